"""Calls of `project` that repeat on a GPU: with arguments of the same shapes, checks, plan and constants are the same.

A route is what an earlier call found out: the constants of `fused`. It is kept with those of its system, and goes when
one of them does. Only plain calls have one: eager, without lengths.
"""

from __future__ import annotations

import torch
from torch import Tensor

from plmu.modes import autocasts, watched
from plmu.ops.gpu import output, projection
from plmu.ops.gpu.launch import Rest
from plmu.ops.gpu.tables import segments_of
from plmu.ops.groups import SystemGroups
from plmu.ops.nonfinite import isolates
from plmu.ops.plan import ALGORITHMS, in_graphs
from plmu.systems import LinearSystem

PLAIN = (Tensor, torch.nn.Parameter)
Route = tuple[torch.dtype, projection.Constants]
Key = tuple[object, ...]


def key_of(u: Tensor, weight: Tensor, state: Tensor | None, resets: Tensor | None, algorithm: str) -> Key | None:
    """All that a plain call depends on besides values; None where this is no such call."""
    if torch.compiler.is_compiling() or not (type(u) is Tensor and type(weight) in PLAIN and _on_gpu(u)):
        return None
    if any(one is not None and type(one) is not Tensor for one in (state, resets)):
        return None
    if watched() or isolates() or torch.cuda.is_current_stream_capturing():
        return None
    device = u.device
    cast = torch.get_autocast_dtype(device.type) if autocasts(device) else None
    started = None if state is None else (state.shape, state.dtype, state.device, state.requires_grad)
    stopped = None if resets is None else (resets.shape, resets.dtype, resets.device)
    place = (u.dtype, weight.dtype, device, weight.device, cast)
    return u.shape, weight.shape, started, stopped, place, algorithm, len(ALGORITHMS), in_graphs()


def run(
    key: Key,
    u: Tensor,
    system: LinearSystem | SystemGroups,
    weight: Tensor,
    state: Tensor | None,
    resets: Tensor | None,
    rest: Rest | None,
) -> tuple[Tensor, Tensor, bool] | None:
    """o, the final state, and whether the rest of a layer is in o; if the route of such a call is known."""
    route: Route | None = None if system._cache is None else system._cache.route(key)
    if route is None:
        return None
    dtype, constants = route
    if u.dtype != dtype or weight.dtype != dtype:
        u, weight = u.to(dtype), weight.to(dtype)
    first = None if state is None else state.contiguous()
    if rest is not None and output.fits(u, weight, rest):
        return *output.output(u, weight, first, segments_of(resets), constants, rest), True
    return *projection.eagerly(u, weight, first, segments_of(resets), constants), False


def keep(key: Key, u: Tensor, system: LinearSystem | SystemGroups, state: Tensor | None, dtype: torch.dtype) -> None:
    """Keep the route of a call that was planned for `fused`."""
    if system._cache is not None and u.shape[0]:
        made = projection.constants(u.detach().to(dtype), system, state)
        uses = made.tables if made.powers is None else (*made.tables, made.powers)
        system._cache.keep_route(key, (dtype, made), uses)


def _on_gpu(u: Tensor) -> bool:
    return u.is_cuda
