"""`project` and `states` by our own kernels on a GPU: chunks as in `plmu.ops.chunked`.

Forward: the states before all chunks (three launches, whatever the length), then one kernel that writes W_m m, or m,
once; for W_m m no tile of m ever reaches memory. Backward: one kernel for the inputs and for the states before chunks,
a scan backwards over the latter, and one for the weight, whose sum over time is cut into fixed shares and added up in a
fixed order, so that results repeat bit for bit.
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

from plmu.ops.matrices import apply, power, response, reversed_response
from plmu.systems import LinearSystem

CHUNK = 64  # steps
GROUP = 64  # chunks that one program scans
LARGEST_ORDER = 64
AVAILABLE = importlib.util.find_spec("triton") is not None


def project(u: Tensor, system: LinearSystem, weight: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
    """W_m m (batch, time, out) for u (batch, time, channels), and the final state."""
    o, before, _ = _project(u.contiguous(), weight.contiguous(), *_given(u, system, state))
    return o, _final_state(u, system, before)


def states(u: Tensor, system: LinearSystem, state: Tensor | None) -> tuple[Tensor, Tensor]:
    """m (batch, time, order, channels) for u (batch, time, channels), and the final state."""
    m, before = _states(u.contiguous(), *_given(u, system, state))
    return m, _final_state(u, system, before)


def _given(u: Tensor, system: LinearSystem, state: Tensor | None) -> tuple[Tensor, ...]:
    """The first state and the constant matrices that all kernels share."""
    operand, wide, device = u.dtype, torch.float32, u.device
    first = u.new_zeros(u.shape[0], system.order, u.shape[2], dtype=wide) if state is None else state
    return (
        first.contiguous(),
        system.derive(by_order, CHUNK, dtype=operand, device=device),
        system.derive(powers_by_order, CHUNK, _rows(system.order), dtype=operand, device=device),
        system.derive(reversed_response, CHUNK, dtype=wide, device=device),
        system.derive(power, CHUNK, dtype=wide, device=device),
        system.derive(power, CHUNK * GROUP, dtype=wide, device=device),
    )


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


@torch.library.custom_op("plmu::project", mutates_args=())
def _project(
    u: Tensor,
    weight: Tensor,
    first: Tensor,
    toeplitz: Tensor,
    powers: Tensor,
    taps: Tensor,
    advance: Tensor,
    leap: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """o, the state before the last chunk in float32, and those before all chunks as the products take them."""
    batch, time, channels = u.shape
    out, order, _ = weight.shape
    last, before = _boundary(u, first, taps, advance, leap)
    chunks = before.shape[1]
    o = u.new_empty(batch, time, out)
    half = u.dtype != torch.float32
    tiles = {"WIDTH": 64 if half else 32, "OUT": 256 if half and out > 128 else 64}
    options = {**_sizes(order), **tiles, "PRECISION": _precision(), "num_warps": 4, "num_stages": 2}
    with torch.cuda.device_of(u):
        _kernels().project[batch * chunks, _tiles(out, tiles["OUT"])](
            u, weight, toeplitz, powers, before, o, time, channels, out, chunks, **options
        )
    return o, last, before


@torch.library.custom_op("plmu::project_backward", mutates_args=())
def _project_backward(
    of_o: Tensor,
    of_last: Tensor,
    u: Tensor,
    weight: Tensor,
    before: Tensor,
    toeplitz: Tensor,
    powers: Tensor,
    taps: Tensor,
    advance: Tensor,
    leap: Tensor,
    need_u: bool,
    need_weight: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of u, of the weight and of the first state; empty where not needed."""
    batch, time, channels = u.shape
    out, order, _ = weight.shape
    chunks = before.shape[1]
    kernels, common = _kernels(), {**_sizes(order), "PRECISION": _precision()}
    of_u, of_first = u.new_empty(0), of_last.new_empty(0)
    if need_u:
        of_u, of_states = torch.empty_like(u), torch.empty_like(before, dtype=torch.float32)
        with torch.cuda.device_of(u):
            kernels.input_gradient[batch * chunks, _tiles(channels, 128)](
                of_o, weight, toeplitz, powers, of_u, of_states, time, channels, out, chunks,
                **common, WIDTH=128, OUT=64, num_warps=4, num_stages=3,
            )  # fmt: skip
        of_first = _adjoint(of_u, of_states, of_last, taps, advance, leap)
    of_weight = weight.new_empty(0)
    if need_weight:
        width, height = (128, 256) if u.dtype != torch.float32 else (64, 64)
        height = min(height, max(64, 1 << (out - 1).bit_length()))
        tiles = order * _tiles(channels, width) * _tiles(out, height)
        shares = max(1, min(batch * chunks, 264 // tiles))  # two programs for each multiprocessor of a large GPU
        share = -(-batch * chunks // shares)
        shares = -(-batch * chunks // share)
        partial = u.new_empty(shares, *weight.shape, dtype=torch.float32)
        with torch.cuda.device_of(u):
            kernels.weight_gradient[order * _tiles(channels, width), _tiles(out, height), shares](
                u, of_o, toeplitz, powers, before, partial, time, channels, out, chunks, batch, share,
                **common, WIDTH=width, OUT=height, num_warps=8, num_stages=3,
            )  # fmt: skip
        of_weight = (partial[0] if shares == 1 else partial.sum(0)).to(weight.dtype)
    return of_u, of_weight, of_first


@torch.library.custom_op("plmu::states", mutates_args=())
def _states(
    u: Tensor, first: Tensor, toeplitz: Tensor, powers: Tensor, taps: Tensor, advance: Tensor, leap: Tensor
) -> tuple[Tensor, Tensor]:
    """m, and the state before the last chunk in float32."""
    batch, time, channels = u.shape
    order = first.shape[1]
    last, before = _boundary(u, first, taps, advance, leap)
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
    of_m: Tensor, of_last: Tensor, toeplitz: Tensor, powers: Tensor, taps: Tensor, advance: Tensor, leap: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients of u and of the first state."""
    batch, time, order, channels = of_m.shape
    chunks = _tiles(time, CHUNK)
    of_u = of_m.new_empty(batch, time, channels)
    of_states = of_last.new_empty(batch, chunks, order, channels)
    with torch.cuda.device_of(of_m):
        _kernels().states_gradient[batch * chunks, _tiles(channels, 64)](
            of_m, toeplitz, powers, of_u, of_states, time, channels, chunks,
            **_sizes(order), WIDTH=64, PRECISION=_precision(), num_warps=4,
        )  # fmt: skip
    return of_u, _adjoint(of_u, of_states, of_last, taps, advance, leap)


def _boundary(u: Tensor, first: Tensor, taps: Tensor, advance: Tensor, leap: Tensor) -> tuple[Tensor, Tensor]:
    """The state before the last chunk in float32, and those before all chunks as the products take them."""
    batch, time, channels = u.shape
    order, chunks = first.shape[1], _tiles(time, CHUNK)
    found = first.new_empty(batch, chunks, order, channels)
    found[:, 0] = first
    if chunks > 1:
        with torch.cuda.device_of(u):
            _kernels().chunk_ends[batch * (chunks - 1), _tiles(channels, 64)](
                u, taps, found, time, channels, chunks, **_sizes(order), WIDTH=64, PRECISION=_exact(u)
            )
        _scan(found, advance, leap, reversed=False)
    return found[:, -1].clone(), found.to(u.dtype)


def _adjoint(of_u: Tensor, of_states: Tensor, of_last: Tensor, taps: Tensor, advance: Tensor, leap: Tensor) -> Tensor:
    """Carry the gradients of the states before chunks backwards, add to `of_u` what they say to earlier inputs, and
    return that of the first state."""
    batch, chunks, order, channels = of_states.shape
    of_states[:, -1] += of_last
    if chunks > 1:
        _scan(of_states, advance.mT.contiguous(), leap.mT.contiguous(), reversed=True)
        with torch.cuda.device_of(of_u):
            _kernels().add_through_ends[batch * (chunks - 1), _tiles(channels, 64)](
                of_u, taps, of_states, of_u.shape[1], channels, chunks,
                **_sizes(order), WIDTH=64, PRECISION=_exact(of_u),
            )  # fmt: skip
    return of_states[:, 0].clone()


def _scan(states: Tensor, advance: Tensor, leap: Tensor, *, reversed: bool) -> None:
    """s_k ← A s_{k-1} + s_k over all chunks, in place; backwards in time if `reversed`."""
    batch, chunks, order, channels = states.shape
    groups = -(-chunks // GROUP)
    last = states.new_empty(batch, groups, order, channels)
    sizes = {"ORDER": order, "ROWS": _rows(order), "GROUP": GROUP, "WIDTH": 64, "REVERSED": reversed}
    columns = _tiles(channels, 64)
    with torch.cuda.device_of(states):
        _kernels().scan_groups[(batch * groups, columns)](states, last, advance, channels, chunks, groups, **sizes)
        if groups > 1:
            _kernels().scan_between[(batch * (groups - 1), columns)](
                states, last, advance, leap, channels, chunks, groups, **sizes
            )


@_project.register_fake
def _(u: Tensor, weight: Tensor, first: Tensor, *tables: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    chunks = -(-u.shape[1] // CHUNK)
    before = u.new_empty(u.shape[0], chunks, weight.shape[1], u.shape[2])
    return u.new_empty(u.shape[0], u.shape[1], weight.shape[0]), torch.empty_like(first), before


@_project_backward.register_fake
def _(
    of_o: Tensor, of_last: Tensor, u: Tensor, weight: Tensor, before: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    need_u, need_weight = rest[-2:]
    of_first = torch.empty_like(of_last) if need_u else of_last.new_empty(0)
    of_weight = torch.empty_like(weight) if need_weight else weight.new_empty(0)
    return torch.empty_like(u) if need_u else u.new_empty(0), of_weight, of_first


def _setup(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    u, weight, _, *tables = inputs
    ctx.save_for_backward(u, weight, output[2], *tables)


def _backward(ctx: Any, of_o: Tensor, of_last: Tensor, of_before: Tensor) -> tuple[Tensor | None, ...]:
    u, weight, before, *tables = ctx.saved_tensors
    need_u, need_weight, need_first = ctx.needs_input_grad[:3]
    of_u, of_weight, of_first = _project_backward(
        of_o.contiguous(), of_last, u, weight, before, *tables, need_u or need_first, need_weight
    )
    return (
        of_u if need_u else None,
        of_weight if need_weight else None,
        of_first if need_first else None,
        *(None for _ in tables),
    )


@_states.register_fake
def _(u: Tensor, first: Tensor, *tables: Tensor) -> tuple[Tensor, Tensor]:
    return u.new_empty(u.shape[0], u.shape[1], first.shape[1], u.shape[2]), torch.empty_like(first)


@_states_backward.register_fake
def _(of_m: Tensor, of_last: Tensor, *tables: Tensor) -> tuple[Tensor, Tensor]:
    return of_m.new_empty(of_m.shape[0], of_m.shape[1], of_m.shape[3]), torch.empty_like(of_last)


def _setup_states(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[2:])


def _backward_states(ctx: Any, of_m: Tensor, of_last: Tensor) -> tuple[Tensor | None, ...]:
    tables = ctx.saved_tensors
    return (*_states_backward(of_m.contiguous(), of_last, *tables), *(None for _ in tables))


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
