"""The models of psMNIST, Mackey-Glass and the adding problem: their sizes, their gradients, and what is deployed."""

import dataclasses

import pytest
import torch
from torch import nn
from untrained import EXPERIMENTS, built

import plmu
from plmu.bench.training_time import random_task
from plmu.experiments import language
from plmu.experiments.baselines import lstm
from plmu.experiments.text_classification import TextExperiment
from plmu.runs.experiment import Config
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
        for model in () if isinstance(experiment, TextExperiment) or name == "iwslt" else experiment.models:
            network, _ = built(name, model)
            x = torch.rand(2, 30, 2 if name == "addition" else 1)
            if name in ("text8", "reviews"):
                x = torch.randint(27, (2, 30))
            out = network(x, lengths=torch.tensor([30, 20]))[0] if name == "addition" else network(x)[0]
            assert out.isfinite().all()
        with pytest.raises(ValueError, match="there is no 'nonsense'"):
            experiment.defaults("nonsense")


@pytest.mark.parametrize("experiment", ["mackey-glass", "psmnist"])
def test_what_is_deployed_is_what_was_trained(experiment, tmp_path):
    """The trained model itself is saved, loads and streams."""
    torch.manual_seed(0)
    one = EXPERIMENTS[experiment]
    config: Config = one.defaults("plmu")
    config.model.order, config.model.hidden = 12, 9
    task = _tiny_task(experiment)
    network = one.build(config, task).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    given = task.test[0].reshape(6, -1, 1)
    expected = network(given)[0]
    plmu.save(network, tmp_path / "model.plmu")
    loaded = plmu.load(tmp_path / "model.plmu").eval()
    assert torch.equal(loaded(given)[0], expected)
    stream = plmu.Stream(loaded)
    for t in range(given.shape[1]):
        y = stream.push(given[:, t])
    torch.testing.assert_close(y, expected if experiment == "psmnist" else expected[:, -1], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("experiment", ["mackey-glass", "psmnist"])
def test_ours_trains_in_bfloat16(experiment):
    one = EXPERIMENTS[experiment]
    config: Config = one.defaults("plmu")
    task = random_task(experiment, 160, 4)
    training = dataclasses.replace(config.training, precision="bfloat16", batch_size=4)
    trainer = Trainer(task, one.build(config, task), training, Processes(0, 1, torch.device("cpu")), 0)
    trainer.stepping.load(trainer.source.shapes[0], (torch.arange(4),))
    before = [p.detach().clone() for p in trainer.model.parameters()]
    trainer.stepping.eager()
    assert trainer.loss_sum.isfinite()
    assert any(not torch.equal(p, old) for p, old in zip(trainer.model.parameters(), before, strict=True))


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


@pytest.mark.parametrize(
    ("name", "model"), [("iwslt", "plmu"), ("iwslt", "lstm"), ("text8", "modern"), ("text8", "plmu")]
)
def test_all_matrices_but_those_at_the_ends_have_weight_decay(name, model):
    """The ends are the embeddings and, of a language model, the output layer."""
    network, _ = built(name, model)
    others, inner = (language.groups if name == "text8" else language.matrix_groups)(network)
    assert [inner.decay, inner.matrices, others.decay, others.matrices] == [True, True, False, False]
    ends = [module.weight for module in network.modules() if isinstance(module, nn.Embedding)]
    ends += [network[-1].weight] if name == "text8" else []
    names = {id(p): path for path, p in network.named_parameters()}
    matrices = {names[id(p)] for p in network.parameters() if p.dim() > 1}
    assert {names[id(p)] for p in inner.parameters} == matrices - {names[id(p)] for p in ends}
    assert len(inner.parameters) + len(others.parameters) == len(list(network.parameters()))
