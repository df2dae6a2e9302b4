"""The models of psMNIST, Mackey-Glass and the adding problem: their sizes, their gradients, and what is deployed."""

import dataclasses

import pytest
import torch

import plmu
from plmu.bench.training_time import random_task
from plmu.experiments import EXPERIMENTS, encoder_last
from plmu.experiments.base import Config
from plmu.experiments.baselines import lstm
from plmu.experiments.mackey_glass import _Dense
from plmu.experiments.text_models import TextExperiment
from plmu.training.loop import Trainer
from plmu.training.processes import Processes
from plmu.training.task import Task

COUNTS = {
    ("mackey-glass", "plmu"): 17_243,
    ("mackey-glass", "lmu"): 18_050,
    ("psmnist", "plmu"): 166_092,
    ("psmnist", "lmu"): 102_027,
    ("psmnist", "lstm"): 164_410,
}


def _tiny_task(experiment: str) -> Task:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(6, 784, generator=generator)
    if experiment == "mackey-glass":
        x = torch.randn(6, 120, 1, generator=generator)
    split = (x, torch.zeros(6))
    return Task(split, split, split, None, None, None, "", True)  # type: ignore[arg-type]


@pytest.mark.parametrize(("experiment", "model"), COUNTS)
def test_parameter_counts(experiment, model):
    one = EXPERIMENTS[experiment]
    network = one.build(one.defaults(model), _tiny_task(experiment))
    assert sum(p.numel() for p in network.parameters()) == COUNTS[experiment, model]


def test_all_models_build_and_run():
    for name, experiment in EXPERIMENTS.items():
        for model in () if isinstance(experiment, TextExperiment) else experiment.models:
            config = experiment.defaults(model)
            network = experiment.build(config, _tiny_task(name))
            x = torch.rand(2, 30) if name == "psmnist" else torch.rand(2, 30, 2 if name == "addition" else 1)
            out = network(x, torch.tensor([30, 20])) if name == "addition" else network(x)
            out = out[0] if isinstance(out, tuple) else out
            assert out.isfinite().all()
        with pytest.raises(ValueError, match="there is no 'nonsense'"):
            experiment.defaults("nonsense")


@pytest.mark.parametrize("experiment", ["mackey-glass", "psmnist"])
def test_what_is_deployed_is_what_was_trained(experiment):
    """Standardisation is folded into ordinary layers, which save, load and stream."""
    torch.manual_seed(0)
    one = EXPERIMENTS[experiment]
    config: Config = one.defaults("plmu")
    config.model.order, config.model.hidden = 12, 9
    task = _tiny_task(experiment)
    network = one.build(config, task).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    plain = one.deployable(network)
    assert plain is not None
    x = task.test[0]
    expected = network(x)
    expected = expected[0] if isinstance(expected, tuple) else expected
    given = x if x.dim() == 3 else x[:, :, None]
    torch.testing.assert_close(plain.eval()(given)[0], expected, rtol=1e-4, atol=1e-4)
    stream = plmu.Stream(plain)
    for t in range(given.shape[1]):
        y = stream.push(given[:, t])
    torch.testing.assert_close(y, expected if experiment == "psmnist" else expected[:, -1], rtol=1e-3, atol=1e-3)


def test_the_encoder_may_change_places_with_the_memory():
    """Values and gradients are those of the layer itself."""
    torch.manual_seed(0)
    lmu = plmu.ParallelLMU(1, 7, 5, 9.0, output_activation=None).double()
    last = plmu.ParallelLMU(1, 7, 5, 9.0, output_activation=None, return_sequences=False).double()
    for parameter in lmu.parameters():
        torch.nn.init.normal_(parameter)
    last.load_state_dict(lmu.state_dict())
    x = torch.randn(3, 40, 1, dtype=torch.float64)
    ours = (*encoder_last.projected(lmu, x, lmu.memory_weight), encoder_last.final_state(lmu, x))
    plain = (*lmu(x), last(x)[1])
    for one, other in zip(ours, plain, strict=True):
        torch.testing.assert_close(one, other)
    parameters = list(lmu.parameters())
    of_ours = torch.autograd.grad(sum(one.square().sum() for one in ours[:2]), parameters)
    of_plain = torch.autograd.grad(sum(one.square().sum() for one in plain[:2]), parameters)
    for one, other in zip(of_ours, of_plain, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("experiment", ["mackey-glass", "psmnist"])
def test_ours_trains_in_bfloat16(experiment):
    one = EXPERIMENTS[experiment]
    config: Config = one.defaults("plmu")
    task = random_task(experiment, 160, 4)
    training = dataclasses.replace(config.training, precision="bfloat16", batch_size=4)
    trainer = Trainer(task, one.build(config, task), training, Processes(0, 1, torch.device("cpu")), 0)
    trainer.index.copy_(torch.arange(4))
    before = [p.detach().clone() for p in trainer.model.parameters()]
    trainer._eager()
    assert trainer.loss_sum.isfinite()
    assert any(not torch.equal(p, old) for p, old in zip(trainer.model.parameters(), before, strict=True))


def test_the_gradients_of_many_examples_are_those_of_a_dense_layer():
    x, weight, bias = torch.randn(7, 5), torch.randn(3, 5), torch.randn(3)
    leaves = [value.double().requires_grad_() for value in (x, weight, bias)]
    assert torch.equal(_Dense.apply(*leaves), torch.nn.functional.linear(*leaves))
    assert torch.autograd.gradcheck(_Dense.apply, leaves)
    assert torch.autograd.gradgradcheck(_Dense.apply, leaves)


def test_the_forget_gates_of_an_lstm_start_open():
    torch.manual_seed(0)
    layer = lstm(3, 4, layers=2, forget_bias=1.5)
    torch.manual_seed(0)
    usual = torch.nn.LSTM(3, 4, 2, batch_first=True)
    for number in (0, 1):
        both = getattr(layer, f"bias_ih_l{number}") + getattr(layer, f"bias_hh_l{number}")
        assert both[4:8].tolist() == [1.5] * 4
        before = getattr(usual, f"bias_ih_l{number}") + getattr(usual, f"bias_hh_l{number}")
        assert torch.equal(both[:4], before[:4])
        assert torch.equal(both[8:], before[8:])
    assert torch.equal(layer.weight_hh_l0, usual.weight_hh_l0)
    assert layer.batch_first
