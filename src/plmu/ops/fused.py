"""`project` and `states` by our own kernels on a GPU: chunks as in `plmu.ops.chunked`.

Forward: the states before all chunks, in one launch or three, then one kernel that writes W_m m, or m, once; for W_m m
no tile of m ever reaches memory. Backward: the gradient of u is the same projection with time running backwards, of the
gradient of o by the transposed weight. That of the weight is one more kernel, whose sum over time is cut into fixed
shares and added up in a fixed order, so that results repeat bit for bit. Nothing but u and the weight is kept between
the two passes.

The kernels are written twice: in Triton for every GPU and precision (`triton_chunked`), and the two heavy ones for the
copy engine and the matrix units of Hopper GPUs (`gluon_chunked`).
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from plmu.ops import hopper
from plmu.ops.matrices import apply, power, response, reversed_response
from plmu.systems import LinearSystem

CHUNK = 64  # steps
ONE_GROUP = 32  # chunks that one program carries states over; more of them are divided into groups
FADED = 1e-5  # norm of Ā^CHUNK below which a chunk knows nothing of what came before the previous one
LARGEST_ORDER = 64
AVAILABLE = importlib.util.find_spec("triton") is not None

Tables = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def project(u: Tensor, system: LinearSystem, weight: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
    """W_m m (batch, time, out) for u (batch, time, channels), and the final state."""
    first = None if state is None else state.contiguous()
    o, before_last = _project(u.contiguous(), weight.contiguous(), first, *_tables(u, system), fades(system))
    return o, _final_state(u, system, before_last)


def states(u: Tensor, system: LinearSystem, state: Tensor | None) -> tuple[Tensor, Tensor]:
    """m (batch, time, order, channels) for u (batch, time, channels), and the final state."""
    first = None if state is None else state.contiguous()
    m, before_last = _states(u.contiguous(), first, *_tables(u, system), fades(system))
    return m, _final_state(u, system, before_last)


def _tables(u: Tensor, system: LinearSystem) -> Tables:
    """The constant matrices that all kernels share."""
    operand, wide, device = u.dtype, torch.float32, u.device
    rows, leap = _rows(system.order), CHUNK * _group(_tiles(u.shape[1], CHUNK))
    return (
        system.derive(by_order, CHUNK, dtype=operand, device=device),
        system.derive(powers_by_order, CHUNK, rows, dtype=operand, device=device),
        system.derive(powers_from_end, CHUNK, rows, dtype=operand, device=device),
        system.derive(reversed_response, CHUNK, dtype=wide, device=device),
        system.derive(power, CHUNK, dtype=wide, device=device),
        system.derive(power, leap, dtype=wide, device=device),
    )


def fades(system: LinearSystem) -> bool:
    """Whether a state is gone after a chunk, as far as any of these precisions can tell."""
    left = system.derive(power, CHUNK, dtype=torch.float64, device=torch.device("cpu"))
    return bool(torch.linalg.matrix_norm(left, 2) <= FADED)


# What torch.compiler.assume_constant_result does, without importing the compiler, which takes longer than torch.
fades._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _group(chunks: int) -> int:
    """Chunks in a group: all, or about the square root, for as many steps within groups as between them."""
    return chunks if chunks <= ONE_GROUP else 1 << (chunks.bit_length() // 2)


def _final_state(u: Tensor, system: LinearSystem, before: Tensor) -> Tensor:
    """From the state before the last chunk."""
    wide, device = torch.float32, u.device
    tail = (u.shape[1] - 1) % CHUNK + 1  # steps of the last chunk
    added = apply(system.derive(reversed_response, tail, dtype=wide, device=device), u[:, -tail:].to(wide))
    return added + apply(system.derive(power, tail, dtype=wide, device=device), before)


def by_order(system: LinearSystem, chunk: int) -> Tensor:
    """T_i for every order i: (order, chunk, chunk), T_i[t, s] = H[i, t − s] for s ≤ t."""
    taps = response(system, chunk).squeeze(2)
    time = torch.arange(chunk, device=taps.device)
    lag = time[:, None] - time[None, :]
    return taps[:, lag.clamp(min=0)] * (lag >= 0)


def powers_by_order(system: LinearSystem, chunk: int, rows: int) -> Tensor:
    """P_i for every order i: (order, chunk, rows), row i of Ā¹ … Ā^chunk, padded with zeros."""
    by_order = system.powers(chunk).transpose(0, 1)
    return torch.nn.functional.pad(by_order, (0, rows - system.order)).contiguous()


def powers_from_end(system: LinearSystem, chunk: int, rows: int) -> Tensor:
    """The same for time that runs backwards: row i of Ā^chunk … Ā¹."""
    return powers_by_order(system, chunk, rows).flip(1)


@torch.library.custom_op("plmu::project", mutates_args=())
def _project(
    u: Tensor,
    weight: Tensor,
    first: Tensor | None,
    toeplitz: Tensor,
    powers: Tensor,
    from_end: Tensor,
    taps: Tensor,
    advance: Tensor,
    leap: Tensor,
    faded: bool,
) -> tuple[Tensor, Tensor]:
    """o, and the state before the last chunk in float32."""
    before, last = _carry(u, first, taps, advance, leap, faded)
    return _apply(u, before, weight, toeplitz, powers), last


@torch.library.custom_op("plmu::project_backward", mutates_args=())
def _project_backward(
    of_o: Tensor,
    of_last: Tensor | None,
    u: Tensor,
    weight: Tensor,
    first: Tensor | None,
    toeplitz: Tensor,
    powers: Tensor,
    from_end: Tensor,
    taps: Tensor,
    advance: Tensor,
    leap: Tensor,
    faded: bool,
    need_u: bool,
    need_weight: bool,
    need_first: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of u, of the weight and of the first state; empty where not needed."""
    of_u, of_weight, of_first = u.new_empty(0), weight.new_empty(0), taps.new_empty(0)
    if need_weight:
        before, _ = _carry(u, first, taps, advance, leap, faded)
        of_weight = _weight_gradient(u, before, of_o, weight, toeplitz, powers)
        del before
    if need_first or of_last is not None:
        of_u, of_states = _input_gradient(of_o, u, weight, toeplitz, powers)
        of_first = _adjoint(of_u, of_states, of_last, taps, advance)
    elif need_u:
        after, _ = _carry(of_o, None, taps, advance, leap, faded, reversed=True)
        of_u = _apply(of_o, after, weight, toeplitz, from_end, reversed=True)
    return of_u, of_weight, of_first


@torch.library.custom_op("plmu::states", mutates_args=())
def _states(
    u: Tensor,
    first: Tensor | None,
    toeplitz: Tensor,
    powers: Tensor,
    from_end: Tensor,
    taps: Tensor,
    advance: Tensor,
    leap: Tensor,
    faded: bool,
) -> tuple[Tensor, Tensor]:
    """m, and the state before the last chunk in float32."""
    batch, time, channels = u.shape
    order = taps.shape[0]
    before, last = _carry(u, first, taps, advance, leap, faded)
    m = u.new_empty(batch, time, order, channels)
    chunks = before.shape[1]
    with torch.cuda.device_of(u):
        _kernels().all_states[batch * chunks, order * _tiles(channels, 64)](
            u, toeplitz, powers, before, m, time, channels, chunks,
            **_sizes(order), WIDTH=64, PRECISION=_precision(), num_warps=4,
        )  # fmt: skip
    return m, last


@torch.library.custom_op("plmu::states_backward", mutates_args=())
def _states_backward(
    of_m: Tensor, of_last: Tensor | None, toeplitz: Tensor, powers: Tensor, taps: Tensor, advance: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients of u and of the first state."""
    batch, time, order, channels = of_m.shape
    chunks = _tiles(time, CHUNK)
    of_u = of_m.new_empty(batch, time, channels)
    of_states = taps.new_empty(batch, chunks, order, channels)
    with torch.cuda.device_of(of_m):
        _kernels().states_gradient[batch * chunks, _tiles(channels, 64)](
            of_m, toeplitz, powers, of_u, of_states, time, channels, chunks,
            **_sizes(order), WIDTH=64, PRECISION=_precision(), num_warps=4,
        )  # fmt: skip
    return of_u, _adjoint(of_u, of_states, of_last, taps, advance)


def _carry(
    u: Tensor, first: Tensor | None, taps: Tensor, advance: Tensor, leap: Tensor, faded: bool, *, reversed: bool = False
) -> tuple[Tensor, Tensor]:
    """The states before all chunks as the products take them (batch, chunks, rows, channels), and the last in float32.

    `reversed`: those after all chunks, of time that runs backwards.
    """
    batch, time, channels = u.shape
    order, chunks = taps.shape[0], _tiles(time, CHUNK)
    size = min(4, chunks) if faded else _group(chunks)
    groups = _tiles(chunks, size)
    before = u.new_empty(batch, chunks, _rows(order), channels)
    last = taps.new_empty(batch, order, channels)
    starts = last if first is None else first  # of no use where there is none
    kernels, options = _kernels(), {**_sizes(order), "WIDTH": 64, "PRECISION": _exact(u)}
    programs, columns = batch * groups, _tiles(channels, 64)

    def run(ends: Tensor, **flags: bool) -> None:
        kernels.carry[programs, columns](
            u, taps, advance, starts, ends, before, last, time, channels, chunks, groups, size,
            **options, **flags, FADES=faded, REVERSED=reversed,
        )  # fmt: skip

    with torch.cuda.device_of(u):
        if groups > 1 and not faded:
            ends = taps.new_empty(batch, groups, order, channels)
            run(ends, STARTED=False, KEEP=False)
            earlier, starts = starts, torch.empty_like(ends)
            sizes = {"ORDER": order, "ROWS": _rows(order), "WIDTH": 64, "PRECISION": _exact(u)}
            kernels.carry_groups[batch, columns](
                earlier, leap, ends, starts, channels, groups, **sizes, STARTED=first is not None
            )
            run(ends, STARTED=True, KEEP=True)
        else:
            run(last, STARTED=first is not None, KEEP=True)
    return before, last


def _apply(
    u: Tensor, before: Tensor, weight: Tensor, toeplitz: Tensor, powers: Tensor, *, reversed: bool = False
) -> Tensor:
    """W_m m; or, of time that runs backwards and the transposed weight, the gradient of u from that of o."""
    batch, time, inputs = u.shape
    order, outputs = weight.shape[1], weight.shape[2 if reversed else 0]
    o = u.new_empty(batch, time, outputs)
    if hopper.runs(u, weight):
        hopper.project(u, before, weight, toeplitz, powers, o, reversed=reversed)
        return o
    half = u.dtype != torch.float32
    tiles = {"WIDTH": 64 if half else 32, "OUT": 256 if half and outputs > 128 else 64}
    with torch.cuda.device_of(u):
        _kernels().project[batch * before.shape[1], _tiles(outputs, tiles["OUT"])](
            u, weight, toeplitz, powers, before, o, time, inputs, outputs, before.shape[1],
            **_sizes(order), **tiles, REVERSED=reversed, PRECISION=_precision(), num_warps=4, num_stages=2,
        )  # fmt: skip
    return o


def _weight_gradient(
    u: Tensor, before: Tensor, of_o: Tensor, weight: Tensor, toeplitz: Tensor, powers: Tensor
) -> Tensor:
    """Σ of_oᵀ m over all steps."""
    batch, time, channels = u.shape
    out, order, _ = weight.shape
    total = batch * before.shape[1]
    special = hopper.runs(u, weight)
    if special:
        tiles = hopper.weight_tiles(weight)
    else:
        width, height = (128, 256) if u.dtype != torch.float32 else (64, 64)
        height = min(height, max(64, 1 << (out - 1).bit_length()))
        tiles = order * _tiles(channels, width) * _tiles(out, height)
    shares = max(1, min(total, hopper.MULTIPROCESSORS // tiles))
    share = -(-total // shares)
    shares = -(-total // share)
    partial = weight.new_empty(shares, *weight.shape, dtype=weight.dtype if shares == 1 else torch.float32)
    if special:
        hopper.weight_gradient(u, before, of_o, toeplitz, powers, partial, share)
    else:
        with torch.cuda.device_of(u):
            _kernels().weight_gradient[order * _tiles(channels, width), _tiles(out, height), shares](
                u, of_o, toeplitz, powers, before, partial, time, channels, out, before.shape[1], batch, share,
                **_sizes(order), WIDTH=width, OUT=height, PRECISION=_precision(), num_warps=8, num_stages=3,
            )  # fmt: skip
    return partial[0] if shares == 1 else partial.sum(0).to(weight.dtype)


def _input_gradient(of_o: Tensor, u: Tensor, weight: Tensor, toeplitz: Tensor, powers: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of u and of the states before chunks, from the outputs of each chunk alone."""
    batch, time, channels = u.shape
    out, order, _ = weight.shape
    chunks = _tiles(time, CHUNK)
    of_u = torch.empty_like(u)
    of_states = u.new_empty(batch, chunks, order, channels, dtype=torch.float32)
    with torch.cuda.device_of(u):
        _kernels().input_gradient[batch * chunks, _tiles(channels, 128)](
            of_o, weight, toeplitz, powers, of_u, of_states, time, channels, out, chunks,
            **_sizes(order), WIDTH=128, OUT=64, PRECISION=_precision(), num_warps=4, num_stages=3,
        )  # fmt: skip
    return of_u, of_states


def _adjoint(of_u: Tensor, of_states: Tensor, of_last: Tensor | None, taps: Tensor, advance: Tensor) -> Tensor:
    """Carry the gradients of the states before chunks backwards, add to `of_u` what they say to earlier inputs, and
    return that of the first state."""
    batch, chunks, order, channels = of_states.shape
    if of_last is not None:
        of_states[:, -1] += of_last
    if chunks > 1:
        _carry_back(of_states, advance.mT)
        with torch.cuda.device_of(of_u):
            _kernels().add_through_ends[batch * (chunks - 1), _tiles(channels, 64)](
                of_u, taps, of_states, of_u.shape[1], channels, chunks,
                **_sizes(order), WIDTH=64, PRECISION=_exact(of_u),
            )  # fmt: skip
    return of_states[:, 0].clone()


def _carry_back(states: Tensor, advance: Tensor) -> None:
    """s_k ← A s_{k+1} + s_k over all chunks from the last, in place, by doubling."""
    reach = 1
    while reach < states.shape[1]:
        states[:, :-reach] += advance @ states[:, reach:].clone()
        advance, reach = advance @ advance, 2 * reach


@_project.register_fake
def _(u: Tensor, weight: Tensor, first: Tensor | None, toeplitz: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    batch, time, channels = u.shape
    return u.new_empty(batch, time, weight.shape[0]), u.new_empty(batch, weight.shape[1], channels, dtype=torch.float32)


@_project_backward.register_fake
def _(of_o: Tensor, of_last: Tensor | None, u: Tensor, weight: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    need_u, need_weight, need_first = rest[-3:]
    through = need_first or of_last is not None
    of_first = u.new_empty(u.shape[0], weight.shape[1], u.shape[2], dtype=torch.float32)
    return (
        torch.empty_like(u) if need_u or through else u.new_empty(0),
        torch.empty_like(weight) if need_weight else weight.new_empty(0),
        of_first if through else of_first.new_empty(0),
    )


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.faded = inputs
    ctx.save_for_backward(*tensors)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, of_o: Tensor | None, of_last: Tensor | None) -> tuple[Tensor | None, ...]:
    u, weight, *rest = ctx.saved_tensors
    need_u, need_weight, need_first = ctx.needs_input_grad[:3]
    if of_o is None:
        of_o = u.new_zeros(*u.shape[:2], weight.shape[0])
    of_u, of_weight, of_first = _project_backward(
        of_o.contiguous(), of_last, u, weight, *rest, ctx.faded, need_u, need_weight, need_first
    )
    return (
        of_u if need_u else None,
        of_weight if need_weight else None,
        of_first if need_first else None,
        *(None for _ in rest),
    )


@_states.register_fake
def _(u: Tensor, first: Tensor | None, toeplitz: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    batch, time, channels = u.shape
    order = toeplitz.shape[0]
    return u.new_empty(batch, time, order, channels), u.new_empty(batch, order, channels, dtype=torch.float32)


@_states_backward.register_fake
def _(of_m: Tensor, of_last: Tensor | None, *tables: Tensor) -> tuple[Tensor, Tensor]:
    batch, time, order, channels = of_m.shape
    return of_m.new_empty(batch, time, channels), of_m.new_empty(batch, order, channels, dtype=torch.float32)


def _setup_states(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, _, toeplitz, powers, _, taps, advance, _, _ = inputs
    ctx.save_for_backward(toeplitz, powers, taps, advance)
    ctx.m, ctx.operand = output[0].shape, output[0].dtype
    ctx.set_materialize_grads(False)


def _backward_states(ctx: Any, of_m: Tensor | None, of_last: Tensor | None) -> tuple[Tensor | None, ...]:
    tables = ctx.saved_tensors
    if of_m is None:
        of_m = tables[0].new_zeros(ctx.m, dtype=ctx.operand)
    of_u, of_first = _states_backward(of_m.contiguous(), of_last, *tables)
    return (of_u, of_first if ctx.needs_input_grad[1] else None, *([None] * 7))


def _no_second(ctx: Any, *gradients: Tensor) -> None:
    raise RuntimeError("the fused kernels have no second derivative: use algorithm='chunked' for it")


_project.register_autograd(_backward, setup_context=_setup)
_project_backward.register_autograd(_no_second)
_states.register_autograd(_backward_states, setup_context=_setup_states)
_states_backward.register_autograd(_no_second)


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter, on any device."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@functools.cache
def _kernels() -> ModuleType:
    return importlib.import_module("plmu.ops.triton_chunked")


def _rows(order: int) -> int:
    """The order rounded up to a size that a matrix unit takes."""
    return max(16, 1 << (order - 1).bit_length())


def _sizes(order: int) -> dict[str, int]:
    return {"ORDER": order, "ROWS": _rows(order), "CHUNK": CHUNK}


def _tiles(size: int, tile: int) -> int:
    return -(-size // tile)


def _precision() -> str:
    """How float32 operands are multiplied: as they are, unless torch is allowed to round them."""
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"


def _exact(u: Tensor) -> str:
    """For products in float32 that carry the state."""
    return "ieee" if u.dtype == torch.float32 else "tf32x3"
