"""Calls of `project` that repeat on a GPU: with arguments of the same shapes, checks, plan and constants are the same.

A route is what an algorithm found out in an earlier call. It is kept with the constants of its system and evicted with
them. Only plain calls have one: eager, without lengths.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from plmu.core.modes import autocasts, watched
from plmu.core.systems import LinearSystem
from plmu.ops.check import Epilogue, Problem
from plmu.ops.groups import SystemGroups
from plmu.ops.nonfinite import isolates
from plmu.ops.plan import ALGORITHMS, in_graphs

if TYPE_CHECKING:
    from plmu.ops.algorithm import Algorithm

DEVICES = ("cuda",)  # kinds of devices for which calls have routes
PLAIN = (Tensor, torch.nn.Parameter)
Key = tuple[object, ...]


class Route(ABC):
    """Runs further calls with arguments of the same shapes, without checks or plan."""

    uses: tuple[Tensor, ...]  #: the constants of the system that it holds
    last_use = 0  #: counted by the cache

    @abstractmethod
    def output(
        self, u: Tensor, weight: Tensor, state: Tensor | None, resets: Tensor | None, epilogue: Epilogue | None
    ) -> tuple[Tensor, Tensor]:
        """As `plmu.ops.dispatch.output`."""

    def encoded_output(
        self,
        x: Tensor,
        encoder: tuple[Tensor, Tensor | None],
        weight: Tensor,
        state: Tensor | None,
        resets: Tensor | None,
        epilogue: Epilogue | None,
    ) -> tuple[Tensor, Tensor] | None:
        """`output` for u = U x + b with `encoder` (U, b), encoder included; None if this route cannot."""
        return None


def key_of(
    u: Tensor, weight: Tensor, state: Tensor | None, resets: Tensor | None, algorithm: str, channels: int | None = None
) -> Key | None:
    """All that a plain call depends on besides the values of its tensors; None if the call is not plain. `channels`:
    those of the encoder's output, if u is the input of an encoder."""
    if torch.compiler.is_compiling() or not (type(u) is Tensor and type(weight) in PLAIN):
        return None
    if u.device.type not in DEVICES:
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
    key: Key | None, u: Tensor, system: LinearSystem | SystemGroups, *operands: Any
) -> tuple[Tensor, Tensor] | None:
    """The output and the final state by the route under that key, None if there is none. `operands`: as for
    `Route.output`, after u."""
    route = _known(key, system)
    return None if route is None else route.output(u, *operands)


def run_encoded(
    x: Tensor,
    encoder: tuple[Tensor, Tensor | None],
    system: LinearSystem | SystemGroups,
    weight: Tensor,
    state: Tensor | None,
    resets: Tensor | None,
    algorithm: str,
    epilogue: Epilogue | None,
) -> tuple[Tensor, Tensor] | None:
    """`run` for u = U x + b with `encoder` (U, b); None unless there is a route, and it takes the encoder too."""
    route = _known(key_of(x, weight, state, resets, algorithm, encoder[0].shape[0]), system)
    return None if route is None else route.encoded_output(x, encoder, weight, state, resets, epilogue)


def keep(key: Key, algorithm: Algorithm, problem: Problem, weight: Tensor) -> Route | None:
    """The route that the algorithm makes for such calls, cached under the key; None if it makes none."""
    cache = (problem.groups or problem.system)._cache
    route = None if cache is None else algorithm.route(problem, weight)
    if cache is not None and route is not None:
        cache.keep_route(key, route)
    return route


def _known(key: Key | None, system: LinearSystem | SystemGroups) -> Route | None:
    cache = None if key is None else getattr(system, "_cache", None)
    route: Route | None = None if cache is None else cache.route(key)
    return route
