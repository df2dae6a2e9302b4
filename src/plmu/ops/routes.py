"""Calls of `project` that repeat on a GPU: with arguments of the same shapes, checks, plan and constants are the same.

A route is what an earlier call found out: the constants of `fused`. It is kept with those of its system, and goes when
one of them does. Only plain calls have one: eager, without lengths.
"""

from __future__ import annotations

import torch
from torch import Tensor

from plmu.core.modes import autocasts, watched
from plmu.core.systems import LinearSystem
from plmu.ops.gpu import encoding, launch, output, projection
from plmu.ops.gpu.launch import Rest
from plmu.ops.gpu.tables import Constants, segments_of
from plmu.ops.groups import SystemGroups
from plmu.ops.nonfinite import isolates
from plmu.ops.plan import ALGORITHMS, in_graphs

Route = tuple[torch.dtype, Constants, bool]  # and whether the kernels for Hopper run
Key = tuple[object, ...]


def key_of(
    u: Tensor, weight: Tensor, state: Tensor | None, resets: Tensor | None, algorithm: str, channels: int | None = None
) -> Key | None:
    """All that a plain call depends on besides values; None where this is no such call. `channels`: of what an encoder
    makes of u."""
    if torch.compiler.is_compiling() or not (type(u) is Tensor and type(weight) in output.PLAIN and on_gpu(u)):
        return None
    if (state is not None and type(state) is not Tensor) or (resets is not None and type(resets) is not Tensor):
        return None
    if watched() or isolates() or torch.cuda.is_current_stream_capturing():
        return None
    device = u.device
    cast = torch.get_autocast_dtype(device.type) if autocasts(device) else None
    started = None if state is None else (state.shape, state.dtype, state.device, state.requires_grad)
    stopped = None if resets is None else (resets.shape, resets.dtype, resets.device)
    place = (u.dtype, weight.dtype, device, weight.device, cast)
    shape = u.shape if channels is None else (u.shape[0], u.shape[1], channels)
    return shape, weight.shape, started, stopped, place, algorithm, len(ALGORITHMS), in_graphs()


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
    dtype, constants, hopper = route
    if u.dtype != dtype or weight.dtype != dtype:
        u, weight = u.to(dtype), weight.to(dtype)
    first = None if state is None else state.contiguous()
    segments = segments_of(resets)
    if hopper and (rest is None or output.rest_fits(u.device, rest)):
        return *output.output(u, weight, first, segments, constants, rest or output.NOTHING), rest is not None
    return *projection.eagerly(u, weight, first, segments, constants), False


def run_encoded(
    x: Tensor,
    encoder: tuple[Tensor, Tensor | None],
    system: LinearSystem | SystemGroups,
    weight: Tensor,
    state: Tensor | None,
    resets: Tensor | None,
    algorithm: str,
    rest: Rest | None,
) -> tuple[Tensor, Tensor] | None:
    """o with the rest of a layer in it, and the final state, for what an encoder makes of x; None unless the route of
    such a call is known, in the precision of x."""
    key = key_of(x, weight, state, resets, algorithm, encoder[0].shape[0])
    route: Route | None = None if key is None or system._cache is None else system._cache.route(key)
    if route is None or not route[2] or route[0] != x.dtype:
        return None
    first = None if state is None else state.contiguous()
    return encoding.output(x, encoder, weight, first, segments_of(resets), route[1], rest or output.NOTHING)


def keep(
    key: Key, u: Tensor, system: LinearSystem | SystemGroups, weight: Tensor, state: Tensor | None, dtype: torch.dtype
) -> None:
    """Keep the route of a call that was planned for `fused`."""
    if system._cache is not None and u.shape[0]:
        u = u.detach().to(dtype)
        made = projection.constants(u, system, state)
        uses = made.tables if made.powers is None else (*made.tables, made.powers)
        system._cache.keep_route(key, (dtype, made, launch.for_hopper(u, weight)), uses)


def on_gpu(u: Tensor) -> bool:
    """Whether calls with such an input have routes at all."""
    return u.is_cuda
