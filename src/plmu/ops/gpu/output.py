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
        of_o: Tensor,
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
        u, weight, of_o, segments = laid_out(u), laid_out(weight), laid_out(of_o), aligned_if(segments)
        toeplitz, past, future, taps, advance, leap, _, _, from_state = self._tables
        of_u = of_weight = None
        with on(u):
            forwards, backwards = (None, None) if segments is None else launch.marks_of(segments)
            if need_weight:
                before = self._before(u, aligned_if(first), segments)[0] if states is None else laid_out(states)
                of_weight = self._weight_gradient(u, before, of_o, toeplitz, past, forwards)
                del before
            if need_u and self._input_gradient is not None:
                direct = laid_out_if(input_weight) if self.direct else None
                arrays = (toeplitz, from_state, taps, advance)
                of_u = self._input_gradient(of_o, weight, *arrays, direct)
            elif need_u:
                after = None
                if not self._steps:
                    carrying = (segments, taps, advance, leap, self._run)
                    after, _ = launch.carry(of_o, None, *carrying, groups=self._groups, reversed=True)
                direct_part = (of_o, laid_out_if(input_weight)) if self.direct else ()
                of_u, _ = self._project_back(of_o, after, weight, toeplitz, future, backwards, *direct_part)
        return of_u, of_weight

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
    def backward(ctx: Any, of_o: Tensor | None, of_last: Tensor | None) -> Gradients:
        result = gradients(ctx.constants, ctx.call, ctx.saved_tensors, ctx.needs_input_grad[:6], of_o, of_last)
        return *result, None, None, None


def gradients(
    constants: Constants,
    call: Prepared,
    saved: tuple[Tensor | None, ...],
    needed: tuple[bool, ...],
    of_o: Tensor | None,
    of_last: Tensor | None,
) -> Gradients:
    """The gradients of u, the weight, the first state, x, W_x and the bias, in the order of `needed`."""
    if of_o is None or not plain(of_o):
        return _by_operations(constants, call, saved, needed, of_o, of_last)
    return by_kernels(constants, call, saved, needed, of_o, of_last)


def by_kernels(
    constants: Constants,
    call: Prepared,
    saved: tuple[Tensor | None, ...],
    needed: tuple[bool, ...],
    of_o: Tensor,
    of_last: Tensor | None,
) -> Gradients:
    """`gradients` by kernels, for a `plain` gradient."""
    u, weight, first, segments, x, input_weight, o, states = saved
    assert u is not None
    assert weight is not None
    need_u, need_weight, need_first, need_x, need_input_weight, need_bias = needed
    of_bias = of_x = of_input_weight = None
    if o is not None or need_bias:
        of_o = laid_out(of_o)
        with on(of_o):
            of_o, of_bias = launch.through_output(of_o, laid_out_if(o), need_bias)
    if need_x or need_input_weight:
        assert input_weight is not None
        rows = of_o.reshape(-1, of_o.shape[2])
        inputs = u if x is None else x
        if need_x:
            of_x = torch.mm(rows, input_weight).view(inputs.shape)
        if need_input_weight:
            of_input_weight = torch.mm(rows.t(), inputs.reshape(-1, inputs.shape[2]))
    of_u = of_weight = of_first = None
    if need_u or need_weight:
        of_u, of_weight = call.gradients(of_o, u, weight, first, segments, input_weight, states, need_u, need_weight)
    if need_first or of_last is not None:
        options = (constants, (need_u, need_weight, need_first))
        of_u, of_first = through_states(u, weight, segments, *options, of_o, of_last, of_u)
    return of_u, of_weight, of_first, of_x, of_input_weight, of_bias


def _by_operations(
    constants: Constants,
    call: Prepared,
    saved: tuple[Tensor | None, ...],
    needed: tuple[bool, ...],
    of_o: Tensor | None,
    of_last: Tensor | None,
) -> Gradients:
    """`gradients` by single operations of torch, which it may look at."""
    u, _, _, _, x, input_weight, o, _ = saved
    need_u, need_weight, need_first, need_x, need_input_weight, need_bias = needed
    of_x = of_input_weight = of_bias = None
    if of_o is not None:
        of_o = of_o if o is None else torch.where(o <= 0, 0.0, of_o)
        of_bias = of_o.sum((0, 1)) if need_bias else None
        if need_x and input_weight is not None:
            of_x = of_o @ input_weight
        if need_input_weight:
            inputs = u if x is None else x
            assert inputs is not None
            of_input_weight = of_o.reshape(-1, of_o.shape[2]).t() @ inputs.reshape(-1, inputs.shape[2])
    of_u, of_weight, of_first = through(saved[:4], constants, (need_u, need_weight, need_first), of_o, of_last)
    if call.direct and of_u is not None and of_o is not None and input_weight is not None:
        of_u = of_u + of_o @ input_weight
    return of_u, of_weight, of_first, of_x, of_input_weight, of_bias
