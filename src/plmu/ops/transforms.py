"""The convolution with the impulse response by transforms of two blocks of steps each, so that errors stay local.

Time is cut into blocks of L steps, and the impulse response too, into K pieces that reach as far as the memory lasts.
With a window of 2 L inputs for each block, the states of block j are the last L numbers of

    F⁻¹{ Σ_k F{piece k} · F{window j − k} }            (overlap-save with a partitioned response).

The transform of a window rounds relative to its own inputs, and is then multiplied by what the memory still holds of
them. So a state has the rounding errors of what it holds, and of inputs at most two blocks away. With one transform
over all steps, a peak would blur what is quiet everywhere.

One tile of m exists at a time, small enough for a processor's cache. `project` multiplies it into the weight at once,
and makes it again in the backward pass.

These are for eager calls with a constant system. A second derivative is autograd's, of all blocks at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from plmu.core.modes import is_batched, watched
from plmu.core.systems import LinearSystem
from plmu.ops.matrices import response


def piece_spectra(system: LinearSystem, block: int, pieces: int) -> Tensor:
    """F{H} / points of each piece of H, zero-padded to two blocks: (pieces, inputs, order, block + 1), complex."""
    taps = response(system, block * pieces).unflatten(1, (pieces, block))  # (order, pieces, block, inputs)
    spectra: Tensor = torch.fft.rfft(taps.permute(1, 3, 0, 2), n=2 * block) / (2 * block)
    return spectra.contiguous()


def states(u: Tensor, system: LinearSystem, block: int, reach: int, tile: int) -> Tensor:
    """All states (batch, time, order, channels) of u (batch, time, inputs, channels), from a zero state.

    `reach` says how many lags of the impulse response count, `tile` how many blocks of m are made at a time.
    """
    m: Tensor = _States.apply(u, _spectra(u, system, block, reach), tile)
    return m


def project(u: Tensor, system: LinearSystem, weight: Tensor, block: int, reach: int, tile: int) -> Tensor:
    """W_m m (batch, time, out) for a weight (out, order · channels), without ever holding m."""
    o: Tensor = _Project.apply(u, _spectra(u, system, block, reach), weight, tile)
    return o


def _spectra(u: Tensor, system: LinearSystem, block: int, reach: int) -> Tensor:
    pieces = -(-min(reach, u.shape[1]) // block)
    return system.derive(piece_spectra, block, pieces, dtype=u.dtype, device=u.device)


def _windows(u: Tensor, block: int) -> Tensor:
    """The spectrum of the window of each block, its steps and those of the block before: (inputs, channels, batch,
    blocks, block + 1)."""
    padded = pad(u.permute(2, 3, 0, 1), (block, -u.shape[1] % block))
    spectrum: Tensor = torch.fft.rfft(padded.unfold(3, 2 * block, block))
    return spectrum


def _all_blocks(u: Tensor, spectra: Tensor) -> Tensor:
    """m (batch, time, order, channels) of all blocks at once, by operations that torch differentiates and
    transforms."""
    pieces, _, _, points = spectra.shape
    block, time = points - 1, u.shape[1]
    windows = pad(torch.view_as_real(_windows(u, block)), (0, 0, 0, 0, pieces - 1, 0))
    shifted = torch.view_as_complex(windows.contiguous()).unfold(3, pieces, 1).flip(-1)
    product = torch.einsum("kiof,icbjfk->bjocf", spectra, shifted)
    m: Tensor = torch.fft.irfft(product, n=2 * block, norm="forward")[
        ..., block:
    ]  # (batch, blocks, order, channels, L)
    return m.permute(0, 1, 4, 2, 3).flatten(1, 2)[:, :time]


class _Tiles:
    """Division of m into tiles, (order · channels, sequences · steps) each: the states of a tile, and their gradients.
    A tile is several whole sequences, or some blocks of one. Iterating gives the slices (sequences, blocks, steps) of
    each."""

    def __init__(self, u: Tensor, spectra: Tensor, tile: int) -> None:
        self.batch, self.time, self.inputs, self.channels = u.shape
        self.spectra, self.block = spectra, spectra.shape[3] - 1
        self.blocks = -(-self.time // self.block)
        self.rows = spectra.shape[2] * self.channels
        self.sequences, self.part = max(1, tile // self.blocks), min(tile, self.blocks)
        self.shape = (self.inputs, self.channels, self.batch, self.blocks, self.block + 1)  # of all windows

    def __iter__(self) -> Iterator[tuple[slice, slice, slice]]:
        """The sequences, blocks and steps of each tile."""
        for sequence in range(0, self.batch, self.sequences):
            sequences = slice(sequence, min(sequence + self.sequences, self.batch))
            for first in range(0, self.blocks, self.part):
                last = min(first + self.part, self.blocks)
                yield sequences, slice(first, last), slice(first * self.block, min(last * self.block, self.time))

    def states(self, windows: Tensor, sequences: slice, blocks: slice, steps: slice) -> Tensor:
        """m of a tile, (order · channels, sequences · steps), from the spectra of all windows."""
        windows, total = windows[:, :, sequences], None
        for k, piece in enumerate(self.spectra[: blocks.stop]):
            start = max(blocks.start, k)  # there are no windows before the first
            for window, part in zip(windows, piece, strict=True):
                source = window[:, :, start - k : blocks.stop - k]
                if total is None:
                    total = part[:, None, None, None] * source  # (order, channels, sequences, blocks, points)
                else:
                    total[:, :, :, start - blocks.start :].addcmul_(part[:, None, None, None], source)
        m: Tensor = torch.fft.irfft(total, n=2 * self.block, norm="forward")[..., self.block :]
        rows: Tensor = m.flatten(3)[..., : steps.stop - steps.start].reshape(self.rows, -1)
        return rows

    def collect(self, grad_windows: Tensor, grad_m: Tensor, sequences: slice, blocks: slice, steps: slice) -> None:
        """Add to `grad_windows`, the gradient of all windows' spectra, the part that comes from a tile's `grad_m`."""
        grad_m = grad_m.reshape(-1, self.channels, sequences.stop - sequences.start, steps.stop - steps.start)
        grad_m = pad(grad_m, (0, (blocks.stop - blocks.start) * self.block - grad_m.shape[3]))
        # Behind a block of zeros, as it is in a window, its transform has the other sign at odd frequencies.
        spectrum = torch.fft.rfft(grad_m.unflatten(3, (-1, self.block)), n=2 * self.block)
        grad_windows = grad_windows[:, :, sequences]
        for k, piece in enumerate(self.spectra[: blocks.stop]):
            start = max(blocks.start, k)
            for grad_window, part in zip(grad_windows, piece, strict=True):
                product = spectrum[:, :, :, start - blocks.start :] * part.conj()[:, None, None, None]
                grad_window[:, :, start - k : blocks.stop - k] += product.sum(0)

    def input_gradient(self, grad_windows: Tensor) -> Tensor:
        """The gradient of u from that of all windows' spectra, which is overwritten."""
        grad_windows[..., 1::2].neg_()
        by_window = torch.fft.irfft(grad_windows, n=2 * self.block, norm="forward")
        grad_u: Tensor = by_window[..., self.block :]  # each step is in two windows: the sum over both
        grad_u[..., :-1, :] += by_window[..., 1:, : self.block]
        by_step: Tensor = grad_u.flatten(3)[..., : self.time].permute(2, 3, 0, 1)
        return by_step


def _by_autograd(function: Callable[..., Tensor], inputs: list[Tensor], gradient: Tensor) -> list[Tensor]:
    """The gradients of `function()` for `inputs`, given that of its result; they can be differentiated again."""
    create = torch.is_grad_enabled()
    with torch.enable_grad():
        return list(torch.autograd.grad(function(), inputs, gradient, create_graph=create))


def _is_plain(gradient: Tensor) -> bool:
    """Whether only the values of a gradient are needed: no second derivative, transform, trace or batch of
    gradients."""
    return not (torch.is_grad_enabled() or watched() or is_batched(gradient))


class _States(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, u: Tensor, spectra: Tensor, tile: int) -> Tensor:
        ctx.tiles = tiles = _Tiles(u, spectra, tile)
        ctx.save_for_backward(spectra)
        windows = _windows(u, tiles.block)
        m = u.new_empty(tiles.batch, tiles.time, tiles.rows)
        for sequences, blocks, steps in tiles:
            m[sequences, steps].flatten(0, 1).copy_(tiles.states(windows, sequences, blocks, steps).mT)
        by_channel: Tensor = m.unflatten(2, (-1, tiles.channels))
        return by_channel

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        tiles, (spectra,) = ctx.tiles, ctx.saved_tensors
        if not _is_plain(gradient):
            u = spectra.real.new_zeros(tiles.batch, tiles.time, tiles.inputs, tiles.channels, requires_grad=True)
            return *_by_autograd(lambda: _all_blocks(u, spectra), [u], gradient), None, None  # the same for every u
        grad_m = gradient.reshape(tiles.batch, tiles.time, tiles.rows)
        grad_windows = spectra.new_zeros(tiles.shape)
        for sequences, blocks, steps in tiles:
            grad_tile = grad_m[sequences, steps].flatten(0, 1).mT.contiguous()
            tiles.collect(grad_windows, grad_tile, sequences, blocks, steps)
        return tiles.input_gradient(grad_windows), None, None


class _Project(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, u: Tensor, spectra: Tensor, weight: Tensor, tile: int) -> Tensor:
        ctx.tiles = tiles = _Tiles(u, spectra, tile)
        ctx.save_for_backward(u, spectra, weight)
        windows = _windows(u, tiles.block)
        o = u.new_empty(tiles.batch, tiles.time, weight.shape[0])
        for sequences, blocks, steps in tiles:
            m = tiles.states(windows, sequences, blocks, steps)
            torch.mm(m.mT, weight.mT, out=o[sequences, steps].flatten(0, 1))
        return o

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        tiles, (u, spectra, weight) = ctx.tiles, ctx.saved_tensors
        need_u, _, need_weight, _ = ctx.needs_input_grad
        if not _is_plain(gradient):
            inputs = [tensor for tensor, needed in ((u, need_u), (weight, need_weight)) if needed]
            grads = iter(_by_autograd(lambda: _all_blocks(u, spectra).flatten(2) @ weight.mT, inputs, gradient))
            return next(grads) if need_u else None, None, next(grads) if need_weight else None, None
        grad_windows = spectra.new_zeros(tiles.shape) if need_u else None
        windows, grad_weight = (_windows(u, tiles.block), torch.zeros_like(weight)) if need_weight else (None, None)
        for sequences, blocks, steps in tiles:
            grad_o = gradient[sequences, steps].flatten(0, 1)
            if windows is not None and grad_weight is not None:
                grad_weight.addmm_(grad_o.mT, tiles.states(windows, sequences, blocks, steps).mT)
            if grad_windows is not None:
                tiles.collect(grad_windows, weight.mT @ grad_o.mT, sequences, blocks, steps)
        return None if grad_windows is None else tiles.input_gradient(grad_windows), None, grad_weight, None
