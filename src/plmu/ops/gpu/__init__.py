"""GPU kernels and their launches. Only algorithms and `ops/layer_kernels.py` import this room.

A call of `plmu.project` goes from `ops/dispatch.py` (checks and plan) to `ops/fused.py` (the algorithm), and then to:

- `projection.py`: torch operators of W_m m and its gradients; `ends.py`: gradients through the first and final state.
- `launch.py`: allocates results and chooses kernels; `triton_launch.py` and `hopper_launch.py`: their grids and tiles;
  `division.py`: how work is divided; `direct.py`: launches a compiled kernel again; `devices.py`: what a GPU supports.
- `triton_chunked.py`: kernels for every GPU and precision. `gluon_chunked.py`, `gluon_weight.py` and, for several
  windows, `gluon_input_gradient.py`: the three heavy kernels again, for Hopper in half precision.
- `tables.py`: the constant matrices of all kernels.

The output of a whole layer in one launch is in `output.py`, for torch.compile in `compiled_output.py`, and with the
encoder before the memory in `encoding.py`; `route.py` repeats earlier calls without checks.

`all_states.py` and `triton_states.py` have `plmu.states`, `triton_coupled.py` the steps of the original LMU,
`highway.py` and `triton_highway.py` the backward pass of a highway layer. `float32/` has float32 on tensor cores.
"""
