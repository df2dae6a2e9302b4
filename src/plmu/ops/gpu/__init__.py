"""Kernels of our own for GPUs, and their launching.

From `plmu.project` to a kernel it is four files: `ops/__init__.py` checks and asks the plan, `ops/fused.py` is the
algorithm with its gradients, `gpu/launch.py` allocates and launches, and the kernels are in `gpu/triton_chunked.py`
(every GPU and precision) and `gpu/gluon_chunked.py` (the two heavy ones, for Hopper in half precision).

`gpu/output.py` is the output of a whole layer in one launch, `gpu/encoding.py` the gradients of its encoder.
`gpu/split.py` and `gpu/triton_split.py` are the same products in float32 on tensor cores, `gpu/split_hopper.py` and
`gpu/gluon_split.py` those for Hopper.

`gpu/tables.py` makes the constant matrices that they read. `gpu/all_states.py` has `states` of the fused algorithm,
`gpu/triton_coupled.py` the steps of the original LMU (`plmu.nn.coupled`).
"""
