"""Experiments are compositions of public names: what they train, a user can build."""

import re
from pathlib import Path

import torch
from test_models import _tiny_task
from torch import nn
from untrained import EXPERIMENTS, built

import plmu
from plmu.experiments.text_classification import classifier

ROOT = Path(__file__).parents[2]


def _networks():
    for name, experiment in EXPERIMENTS.items():
        for model in experiment.models:
            yield name, model, built(name, model)[0]


def test_every_part_of_a_network_with_our_layers_is_public():
    ours = 0
    for name, model, network in _networks():
        parts = [type(module) for path, module in network.named_modules() if path]
        homes = [".".join(kind.__module__.split(".")[:2]) for kind in parts]
        if "plmu.nn" not in homes:
            continue
        ours += 1
        for kind, home in zip(parts, homes, strict=True):
            assert home in ("plmu.nn", "torch.nn"), f"{name} {model} has a {kind.__module__}.{kind.__name__}"
    assert ours >= 14


def test_trained_embeddings_enter_the_memory_from_their_table():
    network = classifier(EXPERIMENTS["imdb"].defaults("plmu").model, nn.Embedding(30, 300), 1, 1)
    assert [type(part) for part in network.layers] == [plmu.TokenDelayLayer, plmu.Standardize, nn.Dropout, nn.Linear]
    assert isinstance(network(torch.zeros(2, 5, dtype=torch.int64))[0], torch.Tensor)


def test_the_model_of_the_results_page_takes_the_weights_of_an_experiment():
    """Its few lines are run as they stand."""
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    (listing,) = [code for code in re.findall(r"```python\n(.*?)```", page, re.S) if "order=468" in code]
    assert listing.count("\n") <= 10
    names = {"torch": torch, "nn": nn, "plmu": plmu}
    exec(listing, names)
    experiment = EXPERIMENTS["psmnist"]
    trained = experiment.build(experiment.defaults("plmu"), _tiny_task("psmnist"))
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model = names["model"]
    assert repr(model) == repr(trained)
    model.load_state_dict(trained.state_dict())
    x = torch.rand(3, 784, 1)
    assert torch.equal(model.eval()(x)[0], trained.eval()(x)[0])
