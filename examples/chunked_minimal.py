"""The chunked algorithm on one page, in plain PyTorch. It is what `plmu` trains with; read this first.

A Delay Network keeps d numbers m_t of each input channel, by a linear recurrence (equation 19 of the paper):

    m_t = Ā m_{t-1} + B̄ u_t

A layer needs o_t = W m_t for all n steps. Instead of n steps one after another, the chunked algorithm cuts time into
chunks of c steps and multiplies by constant matrices:

    1. within a chunk     v_k = the state that the inputs of chunk k alone lead to
    2. between chunks     s_k = Ā^c s_{k-1} + v_k, for all chunks at once in log₂(n/c) rounds
    3. all states         m = T u + P s, s the state before the chunk; T has B̄, ĀB̄, Ā²B̄, …, and P has Ā, Ā², …, Ā^c

In the products below: b batch, k chunks, t and s steps of a chunk, x channels, i and j order, o outputs.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.checkpoint import checkpoint


def delay_network(order: int, theta: float) -> tuple[Tensor, Tensor]:
    """Ā (order, order) and B̄ (order,) for a window of theta steps: equations 8 and 9, then zero-order hold."""
    i = torch.arange(order, dtype=torch.float64)
    row, column = i[:, None], i[None, :]
    scale = (2 * i + 1) / theta
    A = scale[:, None] * torch.where(row < column, -1.0, (-1.0) ** (row - column + 1))
    B = scale * (-1.0) ** i
    both = torch.linalg.matrix_exp(pad(torch.cat([A, B[:, None]], dim=1), (0, 0, 0, 1)))  # of [[A, B], [0, 0]]
    return both[:order, :order], both[:order, order]


def chunk_matrices(A: Tensor, B: Tensor, c: int) -> tuple[Tensor, Tensor]:
    """T (c, c, order) and P (c, order, order), the same for every chunk, sequence and channel."""
    powers = torch.stack([torch.linalg.matrix_power(A, k) for k in range(c + 1)])
    taps = powers[:-1] @ B  # (c, order): the impulse response, Ā^k B̄ for k = 0 … c − 1
    lag = torch.arange(c)[:, None] - torch.arange(c)[None, :]
    T = torch.where((lag >= 0)[:, :, None], taps[lag.clamp(min=0)], 0.0)  # T[t, s] = Ā^(t-s) B̄, zero for s > t
    return T, powers[1:]


def carry(v: Tensor, advance: Tensor) -> Tensor:
    """s_k = advance · s_{k-1} + v_k for all k at once: (batch, chunks, order, channels).

    Each round adds what came `shift` chunks earlier, so every s_k has then looked twice as far back.
    """
    shift = 1
    while shift < v.shape[1]:
        passed = torch.einsum("ij,bkjx->bkix", advance, v[:, :-shift])
        v = torch.cat([v[:, :shift], v[:, shift:] + passed], dim=1)
        advance, shift = advance @ advance, 2 * shift
    return v


def cut(u: Tensor, A: Tensor, B: Tensor, c: int, state: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """T, P, the inputs in chunks (batch, chunks, c, channels) and the state before each chunk."""
    batch, time, channels = u.shape
    T, P = chunk_matrices(A, B, c)
    chunks = pad(u, (0, 0, 0, -time % c)).reshape(batch, -1, c, channels)
    first = u.new_zeros(batch, len(B), channels) if state is None else state
    ends = torch.einsum("si,bksx->bkix", T[-1], chunks[:, :-1])  # what each chunk adds to the state after it
    return T, P, chunks, carry(torch.cat([first[:, None], ends], dim=1), P[-1])


def states(u: Tensor, A: Tensor, B: Tensor, c: int = 64, state: Tensor | None = None) -> Tensor:
    """All states m (batch, time, order, channels) of u (batch, time, channels)."""
    T, P, chunks, before = cut(u, A, B, c, state)
    m = torch.einsum("tsi,bksx->bktix", T, chunks) + torch.einsum("tij,bkjx->bktix", P, before)
    return m.flatten(1, 2)[:, : u.shape[1]]


def project(u: Tensor, A: Tensor, B: Tensor, W: Tensor, c: int = 64, state: Tensor | None = None) -> Tensor:
    """o = W m (batch, time, out) for W (out, order, channels), without ever storing m, which is `order` times u.

    One order i at a time: its states are made, multiplied by their part of W and dropped. `checkpoint` makes them again
    in the backward pass. The GPU kernels do the same, with m_i in registers.
    """
    T, P, chunks, before = cut(u, A, B, c, state)

    def one_order(i: int, chunks: Tensor, before: Tensor, W: Tensor) -> Tensor:
        m_i = torch.einsum("ts,bksx->bktx", T[:, :, i], chunks) + torch.einsum("tj,bkjx->bktx", P[:, i], before)
        return m_i @ W[:, i].mT  # (batch, chunks, c, out)

    parts = (checkpoint(one_order, i, chunks, before, W, use_reentrant=False) for i in range(len(B)))
    return sum(parts, start=u.new_zeros(())).flatten(1, 2)[:, : u.shape[1]]


if __name__ == "__main__":
    A, B = delay_network(order=6, theta=40.0)
    u, m_t, recurrent = torch.randn(2, 1000, 3, dtype=torch.float64), torch.zeros(2, 6, 3, dtype=torch.float64), []
    for u_t in u.unbind(dim=1):
        m_t = torch.einsum("ij,bjx->bix", A, m_t) + B[:, None] * u_t[:, None]
        recurrent.append(m_t)
    difference = (states(u, A, B) - torch.stack(recurrent, dim=1)).abs().max()
    print(f"16 chunks and 1,000 single steps differ by {difference:.0e} at most")
