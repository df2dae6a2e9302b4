"""What layers share: wrong arguments are named, with what would be right."""

import pytest
import torch
from torch import nn

import plmu
from plmu import LMU, LMUCell, ParallelLMU

SMALL = {"order": 4, "theta": 7.0}


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (lambda given: ParallelLMU(3, 4, **SMALL, output_activation=given), "output_activation"),
        (lambda given: ParallelLMU(3, 4, **SMALL, input_activation=given), "input_activation"),
        (lambda given: LMU(3, 4, **SMALL, hidden_activation=given), "hidden_activation"),
        (lambda given: LMUCell(3, 4, **SMALL, hidden_activation=given), "hidden_activation"),
    ],
)
def test_an_activation_is_a_function_or_a_name(build, name: str) -> None:
    with pytest.raises(TypeError, match=rf"^{name} must be .* got the class ReLU: pass an instance, ReLU\(\)"):
        build(nn.ReLU)
    for wrong in (["relu"], {"relu": 1}, 3):
        with pytest.raises(ValueError, match=rf"^{name} must be None, a callable or one of relu, .*got "):
            build(wrong)
    build(nn.ReLU())


def test_a_state_to_detach_is_a_tensor_or_tuples() -> None:
    for wrong, kind in (({"a": torch.zeros(1)}, "dict"), ("state", "str"), (3, "int")):
        with pytest.raises(TypeError, match=f"state must be a tensor, None or nested tuples of them, got {kind}"):
            plmu.nn.detached(wrong)
        with pytest.raises(TypeError, match=f"got {kind}"):
            plmu.nn.detached((None, (wrong,)))
    assert plmu.nn.detached([torch.zeros(1), None]) == (torch.zeros(1), None)


def test_what_is_reversed_has_a_batch_and_time() -> None:
    for wrong, kind in ((torch.zeros(5), r"\(5,\)"), (torch.zeros(()), r"\(\)"), ([1, 2], "list")):
        with pytest.raises(ValueError, match=rf"x must be a tensor \(batch, time, \.\.\.\), got {kind}"):
            plmu.nn.reverse(wrong)


def test_only_the_original_takes_one_step_after_another() -> None:
    layers = [plmu.LMU(2, 3, 4, 5.0), plmu.ParallelLMU(2, 3, 4, 5.0), plmu.Residual(plmu.DelayLayer(2, 1, 5.0))]
    assert [layer.parallel for layer in layers] == [False, True, True]
