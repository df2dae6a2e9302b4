"""Programs: the steps of the folded model, as a list of operations."""

import pytest
import torch
from closeness import within
from exported import NAMES, TOLERANCE, inputs, model_of, program, relative

import plmu
from plmu.exports.evaluate import Evaluator
from plmu.exports.program import Elapse, MatVec, Remember, rounded
from plmu.runtime.state_tree import leaves


@pytest.mark.parametrize("name", NAMES)
def test_a_program_takes_the_folded_models_steps(name: str) -> None:
    model = model_of(name)
    made, folded = program(model), plmu.fold(model)
    evaluator, state = Evaluator(made), None
    with torch.inference_mode():
        for x in inputs(made, 10, 2):
            expected, state = folded.step(x, state)
            within(relative(evaluator.step(x), expected), TOLERANCE)
    states = leaves(state)
    assert [one.shape for one in made.states] == [tuple(one.shape[1:]) for one in states]
    for found, expected in zip(evaluator.states, states, strict=True):
        within(relative(found, expected.flatten(1)), TOLERANCE)


@pytest.mark.parametrize("name", NAMES)
def test_the_system_is_never_rounded(name: str) -> None:
    """With int8 every product that updates a memory is exact, and the others are not."""
    made = program(model_of(name), int8=True)
    kinds = dict(zip(made.next_states, made.kinds, strict=True))
    for one in made.operations:
        if isinstance(one, MatVec):
            assert one.weight.is_system == (kinds.get(one.out) == "memory")
    updates = [
        one for one in made.operations if isinstance(one, Elapse | MatVec | Remember) and kinds.get(one.out) == "memory"
    ]
    assert len(updates) == sum(kind == "memory" for kind in made.kinds)


def test_rounding_errs_by_half_a_step_at_most() -> None:
    weight = torch.randn(5, 7) * torch.logspace(-3, 0, 7)
    weight[2] = 0.0
    weight[:, 3] = 0.0
    numbers, rows, columns = rounded(weight)
    assert numbers.dtype == torch.int8
    step = rows[:, None] * columns
    assert bool(((numbers * step - weight).abs() <= step * (0.5 + 1e-5)).all())
    assert not numbers[2].any()


def test_multiply_adds_are_those_of_the_products() -> None:
    made = program(plmu.Sequential(plmu.ParallelLMU(2, 5, order=6, theta=9.0), torch.nn.Linear(5, 3)))
    assert made.multiply_adds == (6 + 5) * (6 + 2) + 5 * 3
    assert made.state_bytes == 4 * 6
    each = program(plmu.DelayLayer(4, order=6, theta=9.0))
    assert each.multiply_adds == 4 * 6 * 7
