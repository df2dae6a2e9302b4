"""Evaluating a linear system over a sequence (the paper's section 3.3): check, choose an algorithm, run it.

All algorithms compute the same function, forward and backward; `plmu.plan` tells which one `"auto"` takes and why.
Shapes: u (batch, time, channels), m (batch, time, order, channels), state (batch, order, channels). `lengths` are for
sequences padded on the right; `resets` (batch, time) marks steps before which the state is set to zero.

The path of a call: `project` in `dispatch.py` checks its arguments (`check.py`), asks for the plan (`plan.py`, which
keeps it for the next call of these sizes), and calls `project` of the algorithm that was chosen. Each algorithm is one
file: `recurrent.py`, `toeplitz.py`, `fft.py` (with `transforms.py`), `chunked.py` (with `blocks.py`) and `fused.py`,
the only one that calls kernels of our own (`gpu/`). A layer calls `output` instead of `project`: W_m m with what else
the layer does (`Epilogue`), which an algorithm may make in one go. Calls that repeat on a GPU skip the checks and the
plan (`routes.py`). `layer_kernels.py` has kernels for other parts of layers. `final_state` is not in the table
`ALGORITHMS`: it has one algorithm, equation 25, in `final.py`, which its `plan` names "product".
In code, `grad_m` is the gradient of the loss for m; u, o, x, weights and states likewise.
`docs/adding-an-algorithm.md` shows how to add an algorithm.
"""

from plmu.ops.algorithm import Algorithm, Case, Option, Plan, Problem, last_of
from plmu.ops.dispatch import final_state, plan, project, states
from plmu.ops.nonfinite import isolate_nonfinite
from plmu.ops.plan import ALGORITHMS, for_graphs, register

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "Case",
    "Option",
    "Plan",
    "Problem",
    "final_state",
    "for_graphs",
    "isolate_nonfinite",
    "last_of",
    "plan",
    "project",
    "register",
    "states",
]
