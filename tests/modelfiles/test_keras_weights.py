"""Layers with the weights of keras-lmu give its outputs, which are kept as numbers in keras_lmu.json."""

import base64
import json
import sys
import zlib
from pathlib import Path

import pytest
import torch
from closeness import within

import plmu

CASES = json.loads((Path(__file__).parent / "keras_lmu.json").read_text(encoding="utf-8"))["cases"]
EPS = torch.finfo(torch.float32).eps


def layer_of(case: str) -> torch.nn.Module:
    if case.startswith("feedforward"):
        plain = case.endswith("plain")
        return plmu.ParallelLMU(
            2, 3, 3, 5.0, memory_size=2, bias=not plain, input_to_output=not plain,
            output_activation="relu" if plain else "tanh",
        )  # fmt: skip
    if case == "recurrent":
        return plmu.LMU(2, 3, 3, 5.0, memory_size=2, bias=True)
    return plmu.LMU(
        2, 3, 3, 4.0, memory_size=2, bias=True, memory_to_memory=False, input_to_hidden=False, hidden_to_hidden=False
    )


def weights(case: str) -> dict:
    return dict(CASES[case]["weights"])


def check(layer, case: str) -> None:
    out = layer(torch.tensor(CASES[case]["x"]))[0]
    wanted = torch.tensor(CASES[case]["y"])
    within((out - wanted).abs().max().item(), 200 * EPS)  # of 6 steps, some 20 operations each, near 1


@pytest.mark.parametrize("case", CASES)
def test_outputs_are_those_of_keras_lmu(case):
    layer = layer_of(case)
    plmu.load_keras(layer, weights(case))
    check(layer, case)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", [None, "lmu"])
def test_weights_come_from_a_file(case, name, tmp_path):
    path = tmp_path / "model.weights.h5"
    path.write_bytes(zlib.decompress(base64.b64decode(CASES[case]["h5"])))
    layer = layer_of(case)
    plmu.load_keras(layer, path, name)
    check(layer, case)
    with pytest.raises(ValueError, match=r"has the layers of keras-lmu lmu; name must be one of them, got 'lstm'"):
        plmu.load_keras(layer, path, "lstm")


def test_a_small_file_that_states_large_weights_is_refused(tmp_path):
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "model.weights.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("layers/lmu/vars/0", (2**28, 4), "f4", chunks=(2**10, 4), compression="gzip")
    assert path.stat().st_size < 10_000
    with pytest.raises(ValueError, match=r"model\.weights\.h5 is damaged: layers/lmu/vars/0 says that it has 4\.0 GiB"):
        plmu.load_keras(layer_of(next(iter(CASES))), path)


def test_a_cell_takes_the_weights_of_a_layer():
    layer = plmu.LMU(2, 3, 3, 5.0, memory_size=2, bias=True)
    plmu.load_keras(layer.cell, weights("recurrent"))
    check(layer, "recurrent")


def test_a_trained_window():
    layer = plmu.LMU(
        2, 3, 3, 9.0, memory_size=2, bias=True, memory_to_memory=False, input_to_hidden=False, hidden_to_hidden=False,
        trainable="theta",
    )  # fmt: skip
    plmu.load_keras(layer, weights("trained-theta"))
    assert layer.cell.memory.thetas() == pytest.approx([4.0], rel=1e-6)
    fixed = plmu.LMU(
        2, 3, 3, 9.0, memory_size=2, bias=True, memory_to_memory=False, input_to_hidden=False, hidden_to_hidden=False
    )
    with pytest.raises(ValueError, match="have a trained θ of 4: give it as theta, or trainable='theta'"):
        plmu.load_keras(fixed, weights("trained-theta"))


def changed(case: str, **changes) -> dict:
    found = weights(case)
    for path in list(found):
        name = path.rpartition("/")[2]
        if path.count("/") == min(one.count("/") for one in found) and name in changes:
            value = changes[name]
            del found[path]
            if value is not None:
                found[path] = value
    return found


def parallel(order: int = 3, **options) -> plmu.ParallelLMU:
    return plmu.ParallelLMU(2, 3, order, 5.0, memory_size=2, **options)


@pytest.mark.parametrize(
    ("layer", "given", "said"),
    [
        (parallel(), changed("feedforward", kernel=None), r"kernel of shape \(2, 2\) is missing"),
        (parallel(4), weights("feedforward"), r"kernel has the shape \(8, 3\), and the layer needs \(10, 3\)"),
        (parallel(bias=False), weights("feedforward"), "has no place for keras-lmu's bias, hidden bias"),
        (parallel(gated=True), weights("feedforward"), "no gated form"),
        (parallel(), {"kernel": [[1.0]], "a/b": [1.0], "a/b/c": [1.0]}, "paths of one Keras layer"),
    ],
)
def test_weights_that_do_not_fit_are_named_and_nothing_is_changed(layer, given, said):
    before = [p.detach().clone() for p in layer.parameters()]
    with pytest.raises(ValueError, match=said):
        plmu.load_keras(layer, given)
    assert all(torch.equal(one, two) for one, two in zip(before, layer.parameters(), strict=True))


def test_other_layers_are_refused():
    with pytest.raises(TypeError, match=r"must be a plmu\.ParallelLMU, plmu\.LMU or plmu\.LMUCell, got Linear"):
        plmu.load_keras(torch.nn.Linear(1, 1), weights("feedforward"))


def test_a_file_needs_h5py(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ModuleNotFoundError, match="pip install h5py"):
        plmu.load_keras(layer_of("recurrent"), tmp_path / "a.weights.h5")
