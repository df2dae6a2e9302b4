"""What must hold for every system, input and algorithm, on examples that hypothesis makes up.

All systems here have ‖A‖, ‖B‖ ≤ 1 and weights ‖W‖ ≤ 1, so no result exceeds the sum of its inputs' sizes and each is a
sum of at most time · inputs + order products: two ways to compute it differ by no more than that many roundings.
"""

import itertools
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from operations import ALGORITHMS, RESETTING, in_chunks
from torch import Tensor

import plmu
from plmu.ops.recurrent import Stepper

EPS = torch.finfo(torch.float64).eps
many = settings(max_examples=60)


@dataclass
class Example:
    algorithm: str
    chunks: tuple[int, bool, int] | None
    system: plmu.LinearSystem
    u: Tensor
    state: Tensor | None
    weight: Tensor
    grad_m: Tensor
    grad_o: Tensor
    grad_last: Tensor

    @property
    def batch(self) -> int:
        return self.u.shape[0]

    @property
    def time(self) -> int:
        return self.u.shape[1]

    def running(self) -> AbstractContextManager:
        """Half of the chunked examples run in chunks of a few steps and tiles of a few chunks."""
        return in_chunks(*self.chunks) if self.algorithm == "chunked" and self.chunks else nullcontext()

    def states(self, u: Tensor, state: Tensor | None, **options: object) -> tuple[Tensor, Tensor]:
        with self.running():
            return plmu.states(u, self.system, state, algorithm=self.algorithm, **options)

    def project(self, u: Tensor, state: Tensor | None, **options: object) -> tuple[Tensor, Tensor]:
        with self.running():
            return plmu.project(u, self.system, self.weight, state, algorithm=self.algorithm, **options)

    def all_of(self, u: Tensor, state: Tensor | None, **options: object) -> tuple[Tensor, Tensor, Tensor]:
        """m, o and the final state, on which all three functions agree."""
        m, last = self.states(u, state, **options)
        o, again = self.project(u, state, **options)
        self.check(again, last)
        self.check(plmu.final_state(u, self.system, state, **options), last)
        return m, o, last

    def check(self, value: Tensor, exact: Tensor, size: float | None = None) -> None:
        """Equal up to rounding, for results no larger than `size` (see the top of this file)."""
        terms = self.time * (self.system.inputs or 1) + self.system.order
        bound = terms * EPS * (self.size if size is None else size)
        torch.testing.assert_close(value, exact, rtol=0, atol=bound)

    @property
    def size(self) -> float:
        """No state exceeds this."""
        return _largest_sum(self.u, self.state)

    @property
    def gradient_size(self) -> float:
        """No gradient of an input exceeds this."""
        return _largest_sum(self.grad_m, self.grad_o, 3 * self.grad_last)


def _largest_sum(*values: Tensor | None) -> float:
    """Over all numbers of one sequence, for the sequence where that is largest."""
    return max(sum(value.abs().flatten(1).sum(1) for value in values if value is not None).tolist())


@st.composite
def examples(draw: st.DrawFn, algorithms: tuple[str, ...] = ALGORITHMS) -> Example:
    batch, order = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    time = draw(st.one_of(st.integers(1, 12), st.sampled_from([63, 129, 300])))
    inputs = draw(st.sampled_from([None, None, 1, 3]))
    width = inputs or draw(st.sampled_from([1, 2, 17]))
    channels = width if inputs is None else 1
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    A, B, weight = random(order, order), random(order, *([inputs] if inputs else [])), random(2, order, channels)
    return Example(
        algorithm=draw(st.sampled_from(algorithms)),
        chunks=draw(st.one_of(st.none(), st.tuples(st.integers(1, 20), st.booleans(), st.integers(1, 5)))),
        system=plmu.LinearSystem(A / torch.linalg.matrix_norm(A, 2), B / B.norm()),
        u=random(batch, time, width),
        state=random(batch, order, channels) if draw(st.booleans()) else None,
        weight=weight / weight.norm(),
        grad_m=random(batch, time, order, channels),
        grad_o=random(batch, time, 2),
        grad_last=random(batch, order, channels),
    )


def cuts_of(data: st.DataObject, time: int) -> list[int]:
    """Where to cut a sequence: 0, any inner steps, and its end."""
    inner = data.draw(st.sets(st.integers(1, time - 1), max_size=5)) if time > 1 else set()
    return [0, *sorted(inner), time]


@many
@given(examples(), st.data())
def test_pieces_with_the_state_carried_equal_the_whole(example: Example, data: st.DataObject) -> None:
    m, o, last = example.all_of(example.u, example.state)
    cuts = cuts_of(data, example.time)
    state, pieces_m, pieces_o = example.state, [], []
    for start, stop in itertools.pairwise(cuts):
        piece_m, piece_o, state = example.all_of(example.u[:, start:stop], state)
        pieces_m.append(piece_m)
        pieces_o.append(piece_o)
    example.check(torch.cat(pieces_m, dim=1), m)
    example.check(torch.cat(pieces_o, dim=1), o)
    example.check(state, last)


@many
@given(examples())
def test_step_by_step_equals_the_whole(example: Example) -> None:
    m, _, last = example.all_of(example.u, example.state)
    step = Stepper(example.system, torch.float64, torch.device("cpu"))
    state = torch.zeros_like(last) if example.state is None else example.state
    u = example.u[:, :, None] if example.system.inputs is None else example.u[..., None]
    for t in range(example.time):
        state = step(u[:, t], state)
        example.check(state, m[:, t])
    example.check(state, last)


@many
@given(examples())
def test_all_algorithms_agree(example: Example) -> None:
    m, o, _ = example.all_of(example.u, example.state)
    other, _ = plmu.states(example.u, example.system, example.state, algorithm="recurrent")
    example.check(m, other)
    example.check(o, torch.einsum("btdc,odc->bto", other, example.weight))


@many
@given(examples(), st.data())
def test_nothing_depends_on_the_future(example: Example, data: st.DataObject) -> None:
    now = data.draw(st.integers(0, example.time - 1))
    later = example.u.clone()
    later[:, now + 1 :] += 1
    for before, after in zip(example.all_of(example.u, None)[:2], example.all_of(later, None)[:2], strict=True):
        example.check(after[:, : now + 1], before[:, : now + 1], size=_largest_sum(later))
    u = example.u.clone().requires_grad_()
    grad_u = torch.autograd.grad(example.states(u, None)[0][:, now], u, example.grad_m[:, now])[0]
    example.check(grad_u[:, now + 1 :], torch.zeros_like(grad_u[:, now + 1 :]), example.gradient_size)


@many
@given(examples(), st.floats(-2, 2), st.floats(-2, 2))
def test_linear_in_input_and_state(example: Example, a: float, b: float) -> None:
    v = example.u.flip(1)
    other = None if example.state is None else example.state.flip(1)
    combined = None if other is None else a * example.state + b * other
    results = zip(
        example.all_of(a * example.u + b * v, combined),
        example.all_of(example.u, example.state),
        example.all_of(v, other),
        strict=True,
    )
    for whole, first, second in results:
        example.check(whole, a * first + b * second, 2 * (abs(a) + abs(b)) * example.size)


@many
@given(examples(), st.data())
def test_padding_changes_nothing(example: Example, data: st.DataObject) -> None:
    """Each padded sequence gives what it gives alone, forward and backward, with NaN in the padding."""
    lengths = torch.tensor([data.draw(st.integers(0, example.time)) for _ in range(example.batch)])
    padding = torch.arange(example.time) >= lengths[:, None]
    u = example.u.clone()
    u[padding] = torch.nan
    got = _with_gradients(example, u, example.state, slice(None), lengths=lengths)
    for value in got:
        assert value.isfinite().all()
    m, o, last, grad_u, grad_weight = got[:5]
    assert not m[padding].any()
    assert not o[padding].any()
    assert not grad_u[padding].any()
    total = torch.zeros_like(grad_weight)
    for i, length in enumerate(lengths.tolist()):
        state = None if example.state is None else example.state[i : i + 1]
        if length == 0:
            before = torch.zeros_like(last[i]) if state is None else state[0]
            assert torch.equal(last[i], before)
            continue
        alone = _with_gradients(example, example.u[i : i + 1, :length], state, slice(i, i + 1))
        example.check(m[i, :length], alone[0][0])
        example.check(o[i, :length], alone[1][0])
        example.check(last[i], alone[2][0])
        example.check(grad_u[i, :length], alone[3][0], example.gradient_size)
        total += alone[4]
        if state is not None:
            example.check(got[5][i], alone[5][0], example.gradient_size)
    example.check(grad_weight, total, example.batch * example.size * example.gradient_size)


def _with_gradients(
    example: Example, u: Tensor, state: Tensor | None, rows: slice, **options: object
) -> tuple[Tensor, ...]:
    """m, o, last, and the gradients of u, weight and state under the example's incoming gradients."""
    u, weight = u.clone().requires_grad_(), example.weight.clone().requires_grad_()
    leaves = [u, weight] if state is None else [u, weight, state := state.clone().requires_grad_()]
    with example.running():
        m, last = plmu.states(u, example.system, state, algorithm=example.algorithm, **options)
        o, again = plmu.project(u, example.system, weight, state, algorithm=example.algorithm, **options)
        final = plmu.final_state(u, example.system, state, **options)
    time = u.shape[1]
    incoming = [example.grad_m[rows, :time], example.grad_o[rows, :time], *3 * [example.grad_last[rows]]]
    gradients = torch.autograd.grad([m, o, last, again, final], leaves, incoming)
    return m.detach(), o.detach(), last.detach(), *gradients


@many
@given(examples(), st.data())
def test_the_order_of_a_batch_does_not_matter(example: Example, data: st.DataObject) -> None:
    order = torch.tensor(data.draw(st.permutations(range(example.batch))))
    lengths = torch.tensor([data.draw(st.integers(0, example.time)) for _ in range(example.batch)])
    state = None if example.state is None else example.state[order]
    straight = example.all_of(example.u, example.state, lengths=lengths)
    permuted = example.all_of(example.u[order], state, lengths=lengths[order])
    for value, exact in zip(permuted, straight, strict=True):
        example.check(value, exact[order])


@many
@given(examples(RESETTING), st.data())
def test_resets_equal_separate_sequences(example: Example, data: st.DataObject) -> None:
    starts = [cuts_of(data, example.time)[1:-1] for _ in range(example.batch)]
    resets = torch.zeros(example.batch, example.time, dtype=torch.bool)
    from_zero = data.draw(st.booleans())  # a reset before the first step drops the initial state
    for i, marks in enumerate(starts):
        resets[i, marks] = True
    resets[:, 0] = from_zero
    m, o, last = example.all_of(example.u, example.state, resets=resets)
    for i, marks in enumerate(starts):
        bounds = [0, *marks, example.time]
        state = None if from_zero or example.state is None else example.state[i : i + 1]
        for start, stop in itertools.pairwise(bounds):
            alone_m, alone_o, end = example.all_of(example.u[i : i + 1, start:stop], state)
            example.check(m[i, start:stop], alone_m[0])
            example.check(o[i, start:stop], alone_o[0])
            state = None
        example.check(last[i], end[0])


@many
@given(examples(RESETTING), st.data())
def test_resets_and_lengths_together(example: Example, data: st.DataObject) -> None:
    """Resets past a sequence's end do nothing, and its final state is the one at its end."""
    length = data.draw(st.integers(0, example.time))
    marks = data.draw(st.sets(st.integers(0, example.time - 1)))
    resets = torch.zeros(example.batch, example.time, dtype=torch.bool)
    resets[:, list(marks)] = True
    u = example.u.clone()
    u[:, length:] = torch.nan
    m, o, last = example.all_of(u, example.state, resets=resets, lengths=[length] * example.batch)
    if length == 0:
        assert torch.equal(last, torch.zeros_like(last) if example.state is None else example.state)
        return
    for value, exact in zip(
        (m[:, :length], o[:, :length], last),
        example.all_of(u[:, :length], example.state, resets=resets[:, :length]),
        strict=True,
    ):
        example.check(value, exact)


@pytest.mark.parametrize("algorithm", RESETTING)
def test_an_empty_sequence_keeps_its_state_whatever_is_reset(algorithm: str) -> None:
    system = plmu.DelayNetwork(3, 5.0).discretize()
    u, state, weight = torch.randn(2, 40, 2), torch.randn(2, 3, 2), torch.randn(1, 3, 2)
    options = {"lengths": [0, 40], "resets": torch.ones(2, 40, dtype=torch.bool)}
    for last in (
        plmu.states(u, system, state, algorithm=algorithm, **options)[1],
        plmu.project(u, system, weight, state, algorithm=algorithm, **options)[1],
        plmu.final_state(u, system, state, **options),
    ):
        assert torch.equal(last[0], state[0])
        torch.testing.assert_close(last[1], system.B.float()[:, None] * u[1, -1])


@many
@given(examples())
def test_channels_do_not_mix(example: Example) -> None:
    if example.system.inputs is not None:
        return
    alone = example.u[:, :, -1:], None if example.state is None else example.state[:, :, -1:]
    m, last = example.states(example.u, example.state)
    alone_m, alone_last = example.states(*alone)
    example.check(m[..., -1:], alone_m)
    example.check(last[..., -1:], alone_last)
