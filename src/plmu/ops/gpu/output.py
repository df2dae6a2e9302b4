"""The output of a layer, relu(W_m m + W_x x + b), in one launch of the kernels for Hopper.

The sum is rounded once, and neither W_m m nor W_x x reaches memory. Backward: one pass over the gradient takes it
through ReLU and sums it up for the bias. Where x itself enters the memory, W_x adds to its gradient as to the output.
States between chunks are kept for the gradient of W_m, where they take at most half of the memory of u.

Called eagerly, a layer spends most of its time on the host. So what depends on shapes alone is found out once: a
`Prepared` allocates and launches, forwards and backwards. `compiled_output` does the same under torch.compile.
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


def fits(u: Tensor, weight: Tensor, rest: Epilogue) -> bool:
    """Whether the kernels for Hopper, which the plan names, take the rest of a layer with W_m m."""
    if type(u) not in PLAIN or type(weight) not in PLAIN or weight.device != u.device:
        return False
    if not rest_fits(u.device, rest):
        return False
    if torch.compiler.is_compiling():  # what asks about the GPU cannot be traced, but the plan has asked
        return u.dtype != torch.float32 and not exporting()  # what is exported may run on another GPU
    return not watched() and launch.for_hopper(u, weight)


def rest_fits(device: torch.device, rest: Epilogue) -> bool:
    """Whether they take the tensors of that rest."""
    for one in rest[:3]:
        if one is not None and not (type(one) in PLAIN and one.device == device):
            return False
    return rest.weight is None or rest.weight.shape[1] % 8 == 0


def keeps(order: int, time: int) -> bool:
    """Whether the states before chunks, where there are any, are at most half as large as u, and so are kept."""
    return 2 * rows_of(order) * tiles(time, CHUNK) <= time


def output(
    u: Tensor, weight: Tensor, first: Tensor | None, segments: Tensor | None, given: Constants, rest: Epilogue
) -> tuple[Tensor, Tensor]:
    """o and the final state, where it `fits`. All tensors of `rest` are cast to the precision of u."""
    rest = cast(rest, u.dtype)
    ready = prepared(u.shape, weight, rest, segments, given)
    operands = (u, weight, first, *rest[:3], segments)
    if not torch.is_grad_enabled():
        return ready.forward(*operands)[:2]
    o: Tensor
    last: Tensor
    o, last = _Output.apply(*operands, given, ready)
    return o, last


def cast(rest: Epilogue, dtype: torch.dtype) -> Epilogue:
    """The rest in that precision; without x where there is no W_x."""
    x, weight, bias = [one if one is None or one.dtype == dtype else one.to(dtype) for one in rest[:3]]
    return Epilogue(None if weight is None else x, weight, bias, rest.relu)


def prepared(shape: torch.Size, weight: Tensor, rest: Epilogue, segments: Tensor | None, given: Constants) -> Prepared:
    """What such a call found out earlier. Of `shape` the batch and the time count; these and the sizes of the weight
    are always the same for the same `given`."""
    features = 0 if rest.weight is None else rest.weight.shape[1]
    key = (features, rest.x is None, rest.bias is None, rest.relu, segments is None)
    found: Prepared | None = given.prepared.get(key)
    if found is None:
        own = rest.x is None and features > 0
        how = (features, own, rest.bias is not None, rest.relu, segments is not None)
        found = given.prepared[key] = Prepared(shape[0], shape[1], weight, given, *how)
    return found


class Prepared:
    """A call for given shapes: its launches, and the memory for results."""

    def __init__(
        self,
        batch: int,
        time: int,
        weight: Tensor,
        given: Constants,
        features: int,
        own: bool,
        bias: bool,
        relu: bool,
        segmented: bool,
    ) -> None:
        out, order, channels = weight.shape
        device, dtype, taps, groups = weight.device, weight.dtype, given.tables.last_taps, given.groups
        self._tables, self._steps, self._run, self._groups = given.tables, given.steps, given.run, groups
        self._keeps = keeps(order, time)
        self.relu, self.own = relu, own  # own: W_x multiplies u itself
        how = (order, given.tables.past.shape[-1], groups, given.steps > 0, segmented)
        forwards = Sizes(device, dtype, batch, time, channels, out, *how)
        backwards = Sizes(device, dtype, batch, time, out, channels, *how, True)
        self._project = hopper_launch.project(forwards, features, bias, relu)
        self._weight_gradient = hopper_launch.weight_gradient(forwards)
        self._input_gradient = hopper_launch.input_gradient(backwards, own)  # with groups, where it is faster
        self._project_back = hopper_launch.project(backwards, out if own else 0)
        self._last = (batch, order, channels)
        sizes = (device, dtype, batch, time, channels, order, taps.shape[-1], groups, taps.shape[-3])
        self._finish = triton_launch.finish(*sizes, not given.steps, True, segmented)

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
        """o, the final state in float32, and what is kept for `gradients`."""
        u, segments = laid_out(u), aligned_if(segments)
        with on(u):
            o, kept, carried, held = self.output(u, weight, first, x, input_weight, bias, segments)
            last_taps, last_advance = self._tables.last_taps, self._tables.last_advance
            last = last_advance.new_empty(self._last)
            given = (last if carried is None else carried, last if segments is None else segments)
            self._finish(u, last_taps, last_advance, *given, last)
            del held  # what runs beside the projection is launched
            return o, last, kept

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
        """o alone, what is kept for `gradients`, and the state that was carried to the last chunk, if one was. And the
        memory to hold until what runs beside this is launched: all that is read, since that must not be written to yet.
        On the device of u."""
        weight, x, input_weight, bias = laid_out(weight), laid_out_if(x), laid_out_if(input_weight), laid_out_if(bias)
        toeplitz, past = self._tables.toeplitz, self._tables.past
        before, carried = self._before(u, aligned_if(first), segments)
        marked = None if segments is None else launch.marks_of(segments)[0]
        x = u if self.own else x
        o, own = self._project(u, before, weight, toeplitz, past, marked, x, input_weight, bias)
        held = (*own, u, before, weight, marked, x, input_weight, bias)
        return o, before if self._keeps else None, carried, held

    def gradients(
        self,
        of_o: Tensor,
        u: Tensor,
        weight: Tensor,
        first: Tensor | None,
        segments: Tensor | None,
        input_weight: Tensor | None,
        kept: Tensor | None,
        need_u: bool,
        need_weight: bool,
    ) -> tuple[Tensor | None, Tensor | None]:
        """Those of u and of the weight from that of o before ReLU; None where not needed. `kept`: what the forward pass
        left, or None."""
        u, weight, of_o, segments = laid_out(u), laid_out(weight), laid_out(of_o), aligned_if(segments)
        toeplitz, past, future, taps, advance, leap, _, _, from_state = self._tables
        of_u = of_weight = None
        with on(u):
            forwards, backwards = (None, None) if segments is None else launch.marks_of(segments)
            if need_weight:
                before = self._before(u, aligned_if(first), segments)[0] if kept is None else laid_out(kept)
                of_weight = self._weight_gradient(u, before, of_o, toeplitz, past, forwards)
                del before
            if need_u and self._input_gradient is not None:
                direct = laid_out_if(input_weight) if self.own else None
                constants = (toeplitz, from_state, taps, advance)
                of_u = self._input_gradient(of_o, weight, *constants, direct)
            elif need_u:
                after = None
                if not self._steps:
                    how = (segments, taps, advance, leap, self._run)
                    after, _ = launch.carry(of_o, None, *how, groups=self._groups, reversed=True)
                rest = (of_o, laid_out_if(input_weight)) if self.own else ()
                of_u, _ = self._project_back(of_o, after, weight, toeplitz, future, backwards, *rest)
        return of_u, of_weight

    def _before(
        self, u: Tensor, first: Tensor | None, segments: Tensor | None
    ) -> tuple[Tensor, Tensor] | tuple[None, None]:
        """The states before chunks, and the one before the last, where inputs do not stand for them."""
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
        given: Constants,
        ready: Prepared,
    ) -> tuple[Tensor, Tensor]:
        o, last, kept = ready.forward(u, weight, first, x, input_weight, bias, segments)
        kept = kept if ctx.needs_input_grad[1] else None
        ctx.save_for_backward(u, weight, first, segments, x, input_weight, o if ready.relu else None, kept)
        ctx.given, ctx.ready = given, ready
        ctx.set_materialize_grads(False)
        return o, last

    @staticmethod
    def backward(ctx: Any, of_o: Tensor | None, of_last: Tensor | None) -> Gradients:
        found = gradients(ctx.given, ctx.ready, ctx.saved_tensors, ctx.needs_input_grad[:6], of_o, of_last)
        return *found, None, None, None


def gradients(
    given: Constants,
    ready: Prepared,
    saved: tuple[Tensor | None, ...],
    needed: tuple[bool, ...],
    of_o: Tensor | None,
    of_last: Tensor | None,
) -> Gradients:
    """Those of u, the weight, the first state, x, W_x and the bias, in the order of `needed`."""
    if of_o is None or not plain(of_o):
        return _by_operations(given, ready, saved, needed, of_o, of_last)
    return by_kernels(given, ready, saved, needed, of_o, of_last)


def by_kernels(
    given: Constants,
    ready: Prepared,
    saved: tuple[Tensor | None, ...],
    needed: tuple[bool, ...],
    of_o: Tensor,
    of_last: Tensor | None,
) -> Gradients:
    """The same where nothing but the values of the gradient is asked."""
    u, weight, first, segments, x, input_weight, o, kept = saved
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
        taken = u if x is None else x
        if need_x:
            of_x = torch.mm(rows, input_weight).view(taken.shape)
        if need_input_weight:
            of_input_weight = torch.mm(rows.t(), taken.reshape(-1, taken.shape[2]))
    of_u = of_weight = of_first = None
    if need_u or need_weight:
        of_u, of_weight = ready.gradients(of_o, u, weight, first, segments, input_weight, kept, need_u, need_weight)
    if need_first or of_last is not None:
        how = (given, (need_u, need_weight, need_first))
        of_u, of_first = through_states(u, weight, segments, *how, of_o, of_last, of_u)
    return of_u, of_weight, of_first, of_x, of_input_weight, of_bias


def _by_operations(
    given: Constants,
    ready: Prepared,
    saved: tuple[Tensor | None, ...],
    needed: tuple[bool, ...],
    of_o: Tensor | None,
    of_last: Tensor | None,
) -> Gradients:
    """The same by single operations of torch, where it looks at them."""
    u, _, _, _, x, input_weight, o, _ = saved
    need_u, need_weight, need_first, need_x, need_input_weight, need_bias = needed
    of_x = of_input_weight = of_bias = None
    if of_o is not None:
        of_o = of_o if o is None else torch.where(o <= 0, 0.0, of_o)
        of_bias = of_o.sum((0, 1)) if need_bias else None
        if need_x and input_weight is not None:
            of_x = of_o @ input_weight
        if need_input_weight:
            taken = u if x is None else x
            assert taken is not None
            of_input_weight = of_o.reshape(-1, of_o.shape[2]).t() @ taken.reshape(-1, taken.shape[2])
    of_u, of_weight, of_first = through(saved[:4], given, (need_u, need_weight, need_first), of_o, of_last)
    if ready.own and of_u is not None and of_o is not None and input_weight is not None:
        of_u = of_u + of_o @ input_weight
    return of_u, of_weight, of_first, of_x, of_input_weight, of_bias
