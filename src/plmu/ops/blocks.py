"""The blocks of `plmu.ops.chunked`: what [T | P] is multiplied by, the products with a tile of m at a time, and states
carried from chunk to chunk."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from plmu.core.modes import watched
from plmu.core.systems import LinearSystem
from plmu.ops.matrices import apply, block_matrix, block_toeplitz, may_grow, power, reversed_response

# (same, valid); None if all inputs and the state before it reach each step.
# same (blocks, chunk, chunk): whether no reset lies between steps t and s; None without resets.
# valid (blocks, chunk): the steps that the state before the block reaches; without resets, the steps before the
# sequence's end. The states of other steps are zero.
Reach = tuple[Tensor | None, Tensor] | None


class Blocks:
    """The chunked problem: for each of the N = batch · chunks blocks, x = [inputs ; state before], and the matrix
    [T | P] that maps x to the states of the block, as masked by `reach`."""

    def __init__(
        self,
        u: Tensor,
        system: LinearSystem,
        state: Tensor | None,
        lengths: Tensor | None,
        resets: Tensor | None,
        chunk: int,
    ) -> None:
        batch, time, inputs, channels = u.shape
        count = -(-time // chunk)
        self.system, self.chunk, self.count = system, chunk, count
        self.wide = torch.float64 if u.dtype == torch.float64 else torch.float32  # of the carried state
        padding = count * chunk - time
        if padding:
            u = torch.nn.functional.pad(u, (0, 0, 0, 0, 0, padding))
        u = u.reshape(batch, count, chunk * inputs, channels)
        self.reach: Reach = None
        links = None  # whether the state before a chunk flows into that before the next: (batch, chunks − 1)
        ended = None  # the same shape: whether the sequence ends before the next chunk; for an unstable system alone
        if lengths is not None:  # states do not flow into the padding, where an unstable system would overflow
            valid = torch.arange(count * chunk, device=u.device) < lengths[:, None]
            if count > 1:
                links = valid[:, chunk::chunk]
            if may_grow(system):
                self.reach = (None, valid.reshape(batch * count, chunk))
                ended = None if links is None else ~links
        reaching = u  # the inputs that reach the end of their chunk, zero for others
        if resets is not None:
            marks = torch.nn.functional.pad(resets, (0, padding)).reshape(batch, count, chunk)
            segment = marks.cumsum(dim=2)
            through = segment[:, :-1, -1] == 0
            links = through if links is None else links & through
            same = segment[..., :, None] == segment[..., None, :]  # (batch, chunks, chunk, chunk)
            self.reach = (same.flatten(0, 1), (segment == 0).flatten(0, 1))
            reaches_end = (segment == segment[:, :, -1:]).repeat_interleave(inputs, dim=2)
            reaching = torch.where(reaches_end[..., None], u, 0.0)
        self.carried = count > 1 or state is not None or resets is not None
        self.before: Tensor | None = None
        if self.carried:
            self.before = self._states_before(reaching, state, links, ended)
            x = torch.cat([u, self.before.to(u.dtype)], dim=2)
        else:
            x = u
        self.x = x.flatten(0, 1)  # (N, chunk · inputs + order, channels)
        build = block_matrix if self.carried else block_toeplitz
        self.matrix = system.derive(build, chunk, dtype=u.dtype, device=u.device)

    def _states_before(self, u: Tensor, state: Tensor | None, links: Tensor | None, ended: Tensor | None) -> Tensor:
        """The state before each chunk: (batch, chunks, order, channels), in float32 or wider. `u` (batch, chunks,
        chunk · inputs, channels): inputs, zero where a reset keeps them from the end of their chunk."""
        batch, count, _, channels = u.shape
        if count == 1 and state is not None:
            return state[:, None]
        taps = self.system.derive(reversed_response, self.chunk, dtype=self.wide, device=u.device)
        ends = apply(taps, u[:, :-1].to(self.wide))  # what each chunk adds to the next one's initial state
        if ended is not None:
            ends = torch.where(ended[:, :, None, None], 0.0, ends)
        first = ends.new_zeros(batch, 1, self.system.order, channels) if state is None else state[:, None]
        return carry(torch.cat([first, ends], dim=1), links, self.system, self.chunk)

    def last_state(self, time: int) -> Tensor:
        """The state at the last of `time` steps: the rows of that step, applied to the last block alone."""
        order = self.system.order
        build = block_matrix if self.carried else block_toeplitz
        matrix = self.system.derive(build, self.chunk, dtype=self.wide, device=self.x.device)
        row = (time - 1) % self.chunk
        rows = matrix[row * order : (row + 1) * order]
        block = self.x[self.count - 1 :: self.count].to(self.wide)  # (batch, columns, channels)
        if self.before is not None:  # from the state as it was carried, not as it was rounded into x
            block = torch.cat([block[:, :-order], self.before[:, -1]], dim=1)
        return apply(rows, block)


def expand(matrix: Tensor, x: Tensor, reach: Reach) -> Tensor:
    """All states of the blocks x (blocks, columns, channels): (blocks, chunk · order, channels)."""
    if reach is None:
        return apply(matrix, x)
    same, valid = reach
    if same is None:
        return _rows(apply(matrix, x), valid)
    toeplitz, powers = _parts(matrix, same)
    m = _cut(toeplitz, same) @ x[:, : toeplitz.shape[1]]
    return m + _rows(apply(powers, x[:, toeplitz.shape[1] :]), valid)


def contract(matrix: Tensor, grad_m: Tensor, reach: Reach) -> Tensor:
    """The transpose of `expand`: the gradient of x from that of the states."""
    same, valid = reach or (None, None)
    if valid is None or same is None:
        return apply(matrix.mT, grad_m if valid is None else _rows(grad_m, valid))
    toeplitz, powers = _parts(matrix, same)
    grad_inputs = _cut(toeplitz, same).mT @ grad_m
    return torch.cat([grad_inputs, apply(powers.mT, _rows(grad_m, valid))], dim=1)


def _matrix_gradient(grad_m: Tensor, x: Tensor, matrix: Tensor, reach: Reach) -> Tensor:
    """The gradient of [T | P], for a trained system."""
    same, valid = reach or (None, None)
    if valid is None or same is None:
        return torch.einsum("npx,nrx->pr", grad_m if valid is None else _rows(grad_m, valid), x)
    columns = _parts(matrix, same)[0].shape[1]
    per_block = _cut(grad_m @ x[:, :columns].mT, same)
    grad_powers = torch.einsum("npx,nrx->pr", _rows(grad_m, valid), x[:, columns:])
    return torch.cat([per_block.sum(0), grad_powers], dim=1)


def _parts(matrix: Tensor, same: Tensor) -> tuple[Tensor, Tensor]:
    """T and P of [T | P]."""
    order = matrix.shape[0] // same.shape[1]
    return matrix[:, :-order], matrix[:, -order:]


def _cut(matrix: Tensor, same: Tensor) -> Tensor:
    """`matrix` (chunk · order, chunk · inputs), one or one per block, with zeros where a reset lies between."""
    blocks, chunk, _ = same.shape
    by_step: Tensor = matrix.unflatten(-1, (chunk, matrix.shape[-1] // chunk)).unflatten(
        -3, (chunk, matrix.shape[-2] // chunk)
    )
    return torch.where(same[:, :, None, :, None], by_step, 0.0).reshape(blocks, *matrix.shape[-2:])


def _rows(m: Tensor, valid: Tensor) -> Tensor:
    """The states of `valid` steps, zero elsewhere. Selected, since overflow times zero would be NaN."""
    chunk = valid.shape[1]
    by_step: Tensor = m.unflatten(1, (chunk, m.shape[1] // chunk))
    return torch.where(valid[:, :, None, None], by_step, 0.0).flatten(1, 2)


class BlockProject(torch.autograd.Function):
    """W_m [T | P] x, tile by tile: no more than `tile` blocks of m exist at a time, forward or backward."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor, matrix: Tensor, same: Tensor | None, valid: Tensor | None, weight: Tensor, tile: int
    ) -> Tensor:
        parts = []
        for rows in _tiles(x.shape[0], tile):  # no name holds a tile of m: it is freed before the next is made
            reach = _reach(same, valid, rows)
            parts.append(_by_step(expand(matrix, x[rows], reach), weight) @ weight.mT)  # (blocks · chunk, out)
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, matrix, same, valid, weight, ctx.tile = inputs
        ctx.save_for_backward(x, matrix, same, valid, weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, matrix, same, valid, weight = ctx.saved_tensors
        need_x, need_matrix, _, _, need_weight, _ = ctx.needs_input_grad
        steps = matrix.shape[0] * x.shape[2] // weight.shape[1]
        grad_x, grad_matrix, grad_weight = [], None, None
        for rows in _tiles(x.shape[0], ctx.tile):
            reach = _reach(same, valid, rows)
            by_step = gradient[rows.start * steps : rows.stop * steps]
            if need_weight:
                grad_weight = _plus(grad_weight, by_step.mT @ _by_step(expand(matrix, x[rows], reach), weight))
            if need_x or need_matrix:
                grad_m = (by_step @ weight).reshape(rows.stop - rows.start, matrix.shape[0], x.shape[2])
            if need_x:
                grad_x.append(contract(matrix, grad_m, reach))
            if need_matrix:
                grad_matrix = _plus(grad_matrix, _matrix_gradient(grad_m, x[rows], matrix, reach))
            grad_m = None
        joined = None if not need_x else grad_x[0] if len(grad_x) == 1 else torch.cat(grad_x)
        return joined, _narrow(grad_matrix, matrix), None, None, _narrow(grad_weight, weight), None


def _tiles(blocks: int, tile: int) -> list[slice]:
    return [slice(start, min(start + tile, blocks)) for start in range(0, max(blocks, 1), tile)]


def _reach(same: Tensor | None, valid: Tensor | None, rows: slice) -> Reach:
    return None if valid is None else (None if same is None else same[rows], valid[rows])


def _by_step(m: Tensor, weight: Tensor) -> Tensor:
    """m (blocks, chunk · order, channels) as (blocks · chunk, order · channels), a view."""
    return m.reshape(m.shape[0] * m.shape[1] * m.shape[2] // weight.shape[1], weight.shape[1])


def _plus(total: Tensor | None, term: Tensor) -> Tensor:
    """`total` + `term` in float32 or wider; the term alone without a total."""
    term = term if term.dtype == torch.float64 else term.float()
    return term if total is None else total + term


def _narrow(total: Tensor | None, like: Tensor) -> Tensor | None:
    return None if total is None else total.to(like.dtype)


def carry(values: Tensor, links: Tensor | None, system: LinearSystem, stride: int) -> Tensor:
    """s_k = Ā^stride s_{k-1} + v_k for all k: (batch, count, order, channels), in log₂(count) rounds.

    `links` (batch, count − 1) says whether s_{k-1} flows into s_k at all; None if all do. Each round doubles how far
    back every s_k reaches. Each power of Ā is used once on any path, so rounding does not build up. It ends where the
    power of Ā is zero.
    """
    advances, shift = [], 1
    while shift < values.shape[1] and not system.vanishes(stride * shift, values.dtype):
        advances.append(system.derive(power, stride * shift, dtype=values.dtype, device=values.device))
        shift *= 2
    return _carried(values, links, advances, backwards=False, differentiable=not system.constant)


def _carried(
    values: Tensor, links: Tensor | None, advances: list[Tensor], *, backwards: bool, differentiable: bool = False
) -> Tensor:
    """`carry` with `advances`, the powers of Ā for 1, 2, 4, … chunks. `backwards`: its transpose, from the last chunk
    to the first.

    `differentiable`: by operations that autograd records, so that the powers have gradients too; also where torch
    intercepts each operation.
    """
    if advances and not (differentiable or watched()):
        carried: Tensor = _Carry.apply(values, links, backwards, *advances)
        return carried
    for k, advance in enumerate(advances):
        shift = 1 << k
        earlier, later = values[:, :-shift], values[:, shift:]
        passed = apply(advance.mT, later) if backwards else apply(advance, earlier)
        if links is not None:
            passed = torch.where(links[:, :, None, None], passed, 0.0)
            links = links[:, shift:] & links[:, :-shift]
        if backwards:
            values = torch.cat([earlier + passed, values[:, -shift:]], dim=1)
        else:
            values = torch.cat([values[:, :shift], later + passed], dim=1)
    return values


class _Carry(torch.autograd.Function):
    """`_carried` in half as many library calls, and a third as many for the gradient, which is `_carried` in the other
    direction of time."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, links: Tensor | None, backwards: bool, *advances: Tensor) -> Tensor:
        ctx.backwards = backwards
        ctx.save_for_backward(links, *advances)
        # A copy to add to in place, with neighbouring chunks contiguous in memory.
        by_chunk = values.transpose(0, 1).clone(memory_format=torch.contiguous_format)
        links = None if links is None else links.mT
        for k, advance in enumerate(advances):
            shift = 1 << k
            earlier, later = by_chunk[:-shift], by_chunk[shift:]
            source, target = (later, earlier) if backwards else (earlier, later)
            passed = apply(advance.mT if backwards else advance, source)
            if links is not None:
                passed = torch.where(links[:, :, None, None], passed, 0.0)
                links = links[shift:] & links[:-shift]
            target += passed
        return by_chunk.transpose(0, 1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        links, *advances = ctx.saved_tensors
        return _carried(gradient, links, advances, backwards=not ctx.backwards), None, None, *(None for _ in advances)
