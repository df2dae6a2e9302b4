"""The output of a layer, relu(W_m m + W_x x + b), in one launch of the kernels for Hopper.

The sum is rounded once, and neither W_m m nor W_x x is written to memory. In the backward pass, one pass over the
gradient applies ReLU and sums it for the bias. If x itself enters the memory, W_x adds to its gradient in the same
launch. States between chunks are kept for the gradient of W_m if they take at most half of the memory of u.

An eager layer spends most of its time on the host. So a `Prepared` call computes what depends on shapes alone once; it
allocates and launches, forwards and backwards. `compiled_output` does the same under torch.compile.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from plmu.core.modes import exporting, watched
from plmu.ops.check import Epilogue
from plmu.ops.gpu import hopper_launch, launch, triton_launch
from plmu.ops.gpu.devices import aligned_if, laid_out, laid_out_if, on
from plmu.ops.gpu.division import Sizes
from plmu.ops.gpu.ends import through_states
from plmu.ops.gpu.projection import plain, through
from plmu.ops.gpu.tables import CHUNK, Constants, rows_of, tiles

PLAIN = (Tensor, torch.nn.Parameter)
Gradients = tuple[Tensor | None, ...]


def fits(u: Tensor, weight: Tensor, epilogue: Epilogue) -> bool:
    """Whether the kernels for Hopper, which the plan has chosen, can fuse the epilogue into W_m m."""
    if type(u) not in PLAIN or type(weight) not in PLAIN or weight.device != u.device:
        return False
    if not epilogue_fits(u.device, epilogue):
        return False
    if torch.compiler.is_compiling():  # the GPU cannot be checked in a trace, but the plan has checked it
        return u.dtype != torch.float32 and not exporting()  # an exported program may run on another GPU
    return not watched() and launch.for_hopper(u, weight)


def epilogue_fits(device: torch.device, epilogue: Epilogue) -> bool:
    """Whether the kernels for Hopper take the tensors of an epilogue."""
    for tensor in epilogue[:3]:
        if tensor is not None and not (type(tensor) in PLAIN and tensor.device == device):
            return False
    return epilogue.weight is None or epilogue.weight.shape[1] % 8 == 0


def keeps_states(order: int, time: int) -> bool:
    """Whether the states before chunks are at most half as large as u, and so are kept for the backward pass."""
    return 2 * rows_of(order) * tiles(time, CHUNK) <= time


def output(
    u: Tensor, weight: Tensor, first: Tensor | None, segments: Tensor | None, constants: Constants, epilogue: Epilogue
) -> tuple[Tensor, Tensor]:
    """o and the final state, if the call `fits`. The tensors of the epilogue are cast to the precision of u."""
    epilogue = cast(epilogue, u.dtype)
    call = prepared(u.shape, weight, epilogue, segments, constants)
    operands = (u, weight, first, *epilogue[:3], segments)
    if not torch.is_grad_enabled():
        return call.forward(*operands)[:2]
    o: Tensor
    last: Tensor
    o, last = _Output.apply(*operands, constants, call)
    return o, last


def cast(epilogue: Epilogue, dtype: torch.dtype) -> Epilogue:
    """The epilogue in this precision; without x if there is no W_x."""
    x, weight, bias = [value if value is None or value.dtype == dtype else value.to(dtype) for value in epilogue[:3]]
    return Epilogue(None if weight is None else x, weight, bias, epilogue.relu)


def prepared(
    shape: torch.Size, weight: Tensor, epilogue: Epilogue, segments: Tensor | None, constants: Constants
) -> Prepared:
    """The prepared call for these arguments. It uses the batch and the time of `shape`, which, like the sizes of the
    weight, are always the same for the same `constants`."""
    features = 0 if epilogue.weight is None else epilogue.weight.shape[1]
    key = (features, epilogue.x is None, epilogue.bias is None, epilogue.relu, segments is None)
    call: Prepared | None = constants.prepared.get(key)
    if call is None:
        direct = epilogue.x is None and features > 0
        options = (features, direct, epilogue.bias is not None, epilogue.relu, segments is not None)
        call = constants.prepared[key] = Prepared(shape[0], shape[1], weight, constants, *options)
    return call


class Prepared:
    """A call for fixed shapes: it has the launches, and allocates the results."""

    def __init__(
        self,
        batch: int,
        time: int,
        weight: Tensor,
        constants: Constants,
        features: int,
        direct: bool,
        bias: bool,
        relu: bool,
        segmented: bool,
    ) -> None:
        out, order, channels = weight.shape
        device, dtype, taps, groups = weight.device, weight.dtype, constants.tables.last_taps, constants.groups
        self._tables, self._steps, self._run, self._groups = constants.tables, constants.steps, constants.run, groups
        self._keeps_states = keeps_states(order, time)
        self.relu, self.direct = relu, direct  # direct: W_x multiplies u itself
        options = (order, constants.tables.past.shape[-1], groups, constants.steps > 0, segmented)
        forwards = Sizes(device, dtype, batch, time, channels, out, *options)
        backwards = Sizes(device, dtype, batch, time, out, channels, *options, True)
        self._project = hopper_launch.project(forwards, features, bias, relu)
        self._weight_gradient = hopper_launch.weight_gradient(forwards)
        self._input_gradient = hopper_launch.input_gradient(backwards, direct)  # with groups, if it is faster
        self._project_back = hopper_launch.project(backwards, out if direct else 0)
        self._last = (batch, order, channels)
        sizes = (device, dtype, batch, time, channels, order, taps.shape[-1], groups, taps.shape[-3])
        self._finish = triton_launch.finish(*sizes, not constants.steps, True, segmented)

    def forward(
        self,
        u: Tensor,
        weight: Tensor,
        first: Tensor | None,
        x: Tensor | None,
        input_weight: Tensor | None,
        bias: Tensor | None,
        segments: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """o, the final state in float32, and the states for `gradients`, if they are kept."""
        u, segments = laid_out(u), aligned_if(segments)
        with on(u):
            o, states, carried, held = self.output(u, weight, first, x, input_weight, bias, segments)
            last_taps, last_advance = self._tables.last_taps, self._tables.last_advance
            last = last_advance.new_empty(self._last)
            arguments = (last if carried is None else carried, last if segments is None else segments)
            self._finish(u, last_taps, last_advance, *arguments, last)
            del held  # all that runs beside the projection is launched
            return o, last, states

    def output(
        self,
        u: Tensor,
        weight: Tensor,
        first: Tensor | None,
        x: Tensor | None,
        input_weight: Tensor | None,
        bias: Tensor | None,
        segments: Tensor | None,
    ) -> tuple[Tensor, Tensor | None, Tensor | None, tuple[Tensor | None, ...]]:
        """o, the states for `gradients` if they are kept, and the state before the last chunk if states are carried;
        and all that the kernels read, to be held until the kernels that run beside them are launched: until then its
        memory must not be written to. On the device of u."""
        weight, x, input_weight, bias = laid_out(weight), laid_out_if(x), laid_out_if(input_weight), laid_out_if(bias)
        toeplitz, past = self._tables.toeplitz, self._tables.past
        before, carried = self._before(u, aligned_if(first), segments)
        marked = None if segments is None else launch.marks_of(segments)[0]
        x = u if self.direct else x
        o, work_space = self._project(u, before, weight, toeplitz, past, marked, x, input_weight, bias)
        held = (*work_space, u, before, weight, marked, x, input_weight, bias)
        return o, before if self._keeps_states else None, carried, held

    def gradients(
        self,
        grad_o: Tensor,
        u: Tensor,
        weight: Tensor,
        first: Tensor | None,
        segments: Tensor | None,
        input_weight: Tensor | None,
        states: Tensor | None,
        need_u: bool,
        need_weight: bool,
    ) -> tuple[Tensor | None, Tensor | None]:
        """The gradients of u and of the weight from that of o before ReLU; None if not needed. `states`: those that the
        forward pass kept, or None."""
        u, weight, grad_o, segments = laid_out(u), laid_out(weight), laid_out(grad_o), aligned_if(segments)
        toeplitz, past, future, taps, advance, leap, _, _, from_state = self._tables
        grad_u = grad_weight = None
        with on(u):
            forwards, backwards = (None, None) if segments is None else launch.marks_of(segments)
            if need_weight:
                before = self._before(u, aligned_if(first), segments)[0] if states is None else laid_out(states)
                grad_weight = self._weight_gradient(u, before, grad_o, toeplitz, past, forwards)
                del before
            if need_u and self._input_gradient is not None:
                direct = laid_out_if(input_weight) if self.direct else None
                arrays = (toeplitz, from_state, taps, advance)
                grad_u = self._input_gradient(grad_o, weight, *arrays, direct)
            elif need_u:
                after = None
                if not self._steps:
                    carrying = (segments, taps, advance, leap, self._run)
                    after, _ = launch.carry(grad_o, None, *carrying, groups=self._groups, reversed=True)
                direct_part = (grad_o, laid_out_if(input_weight)) if self.direct else ()
                grad_u, _ = self._project_back(grad_o, after, weight, toeplitz, future, backwards, *direct_part)
        return grad_u, grad_weight

    def _before(
        self, u: Tensor, first: Tensor | None, segments: Tensor | None
    ) -> tuple[Tensor, Tensor] | tuple[None, None]:
        """The states before chunks, and that before the last chunk; None if inputs replace them."""
        if self._steps:
            return None, None
        _, _, _, taps, advance, leap, _, _, _ = self._tables
        return launch.carry(u, first, segments, taps, advance, leap, self._run, groups=self._groups)


class _Output(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        u: Tensor,
        weight: Tensor,
        first: Tensor | None,
        x: Tensor | None,
        input_weight: Tensor | None,
        bias: Tensor | None,
        segments: Tensor | None,
        constants: Constants,
        call: Prepared,
    ) -> tuple[Tensor, Tensor]:
        o, last, states = call.forward(u, weight, first, x, input_weight, bias, segments)
        states = states if ctx.needs_input_grad[1] else None
        ctx.save_for_backward(u, weight, first, segments, x, input_weight, o if call.relu else None, states)
        ctx.constants, ctx.call = constants, call
        ctx.set_materialize_grads(False)
        return o, last

    @staticmethod
    def backward(ctx: Any, grad_o: Tensor | None, grad_last: Tensor | None) -> Gradients:
        result = gradients(ctx.constants, ctx.call, ctx.saved_tensors, ctx.needs_input_grad[:6], grad_o, grad_last)
        return *result, None, None, None


def gradients(
    constants: Constants,
    call: Prepared,
    saved: tuple[Tensor | None, ...],
    needed: tuple[bool, ...],
    grad_o: Tensor | None,
    grad_last: Tensor | None,
) -> Gradients:
    """The gradients of u, the weight, the first state, x, W_x and the bias, in the order of `needed`."""
    if grad_o is None or not plain(grad_o):
        return _by_operations(constants, call, saved, needed, grad_o, grad_last)
    return by_kernels(constants, call, saved, needed, grad_o, grad_last)


def by_kernels(
    constants: Constants,
    call: Prepared,
    saved: tuple[Tensor | None, ...],
    needed: tuple[bool, ...],
    grad_o: Tensor,
    grad_last: Tensor | None,
) -> Gradients:
    """`gradients` by kernels, for a `plain` gradient."""
    u, weight, first, segments, x, input_weight, o, states = saved
    assert u is not None
    assert weight is not None
    need_u, need_weight, need_first, need_x, need_input_weight, need_bias = needed
    grad_bias = grad_x = grad_input_weight = None
    if o is not None or need_bias:
        grad_o = laid_out(grad_o)
        with on(grad_o):
            grad_o, grad_bias = launch.through_output(grad_o, laid_out_if(o), need_bias)
    if need_x or need_input_weight:
        assert input_weight is not None
        rows = grad_o.reshape(-1, grad_o.shape[2])
        inputs = u if x is None else x
        if need_x:
            grad_x = torch.mm(rows, input_weight).view(inputs.shape)
        if need_input_weight:
            grad_input_weight = torch.mm(rows.t(), inputs.reshape(-1, inputs.shape[2]))
    grad_u = grad_weight = grad_first = None
    if need_u or need_weight:
        grad_u, grad_weight = call.gradients(
            grad_o, u, weight, first, segments, input_weight, states, need_u, need_weight
        )
    if need_first or grad_last is not None:
        options = (constants, (need_u, need_weight, need_first))
        grad_u, grad_first = through_states(u, weight, segments, *options, grad_o, grad_last, grad_u)
    return grad_u, grad_weight, grad_first, grad_x, grad_input_weight, grad_bias


def _by_operations(
    constants: Constants,
    call: Prepared,
    saved: tuple[Tensor | None, ...],
    needed: tuple[bool, ...],
    grad_o: Tensor | None,
    grad_last: Tensor | None,
) -> Gradients:
    """`gradients` by single operations of torch, which it may look at."""
    u, _, _, _, x, input_weight, o, _ = saved
    need_u, need_weight, need_first, need_x, need_input_weight, need_bias = needed
    grad_x = grad_input_weight = grad_bias = None
    if grad_o is not None:
        grad_o = grad_o if o is None else torch.where(o <= 0, 0.0, grad_o)
        grad_bias = grad_o.sum((0, 1)) if need_bias else None
        if need_x and input_weight is not None:
            grad_x = grad_o @ input_weight
        if need_input_weight:
            inputs = u if x is None else x
            assert inputs is not None
            grad_input_weight = grad_o.reshape(-1, grad_o.shape[2]).t() @ inputs.reshape(-1, inputs.shape[2])
    grad_u, grad_weight, grad_first = through(
        saved[:4], constants, (need_u, need_weight, need_first), grad_o, grad_last
    )
    if call.direct and grad_u is not None and grad_o is not None and input_weight is not None:
        grad_u = grad_u + grad_o @ input_weight
    return grad_u, grad_weight, grad_first, grad_x, grad_input_weight, grad_bias
