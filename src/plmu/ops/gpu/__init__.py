"""Kernels of our own for GPUs, and their launching.

From `plmu.project` to a kernel it is five files: `ops/__init__.py` checks and asks the plan, `ops/fused.py` is the
algorithm, `gpu/projection.py` its operators and gradients, `gpu/launch.py` allocates and launches, and the kernels are
in `gpu/triton_chunked.py` (every GPU and precision), or `gpu/gluon_chunked.py` and `gpu/gluon_weight.py` (the two heavy
ones, for Hopper in half precision; with several windows also `gpu/gluon_input_gradient.py`). `gpu/triton_launch.py` and
`gpu/hopper_launch.py` have their grids and tiles, `gpu/direct.py` launches what was compiled again.

`gpu/output.py` is the output of a whole layer in one launch, with all that its calls have prepared. `gpu/encoding.py`
is its encoder, and both as one node of autograd's graph. `gpu/compiled_output.py` is the same for torch.compile.
`gpu/ends.py` has gradients through first and final states. `gpu/split.py` and `gpu/triton_split.py` are the same
products in float32 on tensor cores, `gpu/split_hopper.py`, `gpu/gluon_split.py` and `gpu/gluon_split_weight.py` those
for Hopper.

`gpu/tables.py` makes the constant matrices that they read. `gpu/all_states.py` and `gpu/triton_states.py` have
`states` of the fused algorithm, `gpu/triton_coupled.py` the steps of the original LMU (`plmu.nn.coupled`),
`gpu/highway.py` and `gpu/triton_highway.py` the backward pass of a highway layer (`plmu.nn.highway`).
"""
