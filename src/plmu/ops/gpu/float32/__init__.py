"""Float32 on tensor cores: operands as sums of parts in half precision. Optional; `plmu.ops.fused` runs without it."""
