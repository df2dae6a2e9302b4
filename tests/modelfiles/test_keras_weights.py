"""Layers with the weights of keras-lmu give its outputs, which are kept as numbers in keras_lmu.json."""

import base64
import contextlib
import json
import random
import sys
import zlib
from pathlib import Path

import pytest
import torch
from closeness import assert_same, within

import plmu
from plmu.errors import FileFormatError

CASES = json.loads((Path(__file__).parent / "keras_lmu.json").read_text(encoding="utf-8"))["cases"]
EULER = plmu.DelayNetwork(3, 11.3).discretize(method="euler")
EPS = torch.finfo(torch.float32).eps


def layer_of(case: str) -> torch.nn.Module:
    if case.startswith("feedforward"):
        plain = case.endswith("plain")
        return plmu.ParallelLMU(
            2, 3, 3, 5.0, memory_size=2, bias=not plain, input_to_output=not plain,
            output_activation="relu" if plain else "tanh",
        )  # fmt: skip
    if case in ("recurrent", "bias"):
        return plmu.LMU(2, 3, 3, 5.0, memory_size=2, bias=True, encoder_bias=case == "bias")
    if case == "bias-dense":
        options = {"hidden_to_memory": False, "hidden_to_hidden": False, "encoder_bias": True}
        return plmu.LMU(2, 3, 3, 5.0, memory_size=2, bias=True, **options)
    if case == "euler":
        options = {"hidden_to_memory": False, "hidden_to_hidden": False, "memory_to_memory": False}
        return plmu.LMU(2, 3, system=EULER, memory_size=2, bias=True, input_to_hidden=False, **options)
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
    with pytest.raises(
        FileFormatError,
        match=r"model.weights.h5: it has the layers of keras-lmu lmu; name must be one of them, got 'lstm'",
    ):
        plmu.load_keras(layer, path, "lstm")


def test_a_small_file_that_states_large_weights_is_refused(tmp_path):
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "model.weights.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("layers/lmu/vars/0", (2**28, 4), "f4", chunks=(2**10, 4), compression="gzip")
    assert path.stat().st_size < 10_000
    with pytest.raises(ValueError, match=r"layers/lmu/vars/0 of shape \(268435456, 4\) does not fit into a file of"):
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


def test_the_bias_of_the_encoder_in_every_way_to_run():
    """One product a step for one memory channel, and several for two; folded, stepped, saved."""
    for channels in (1, 2):
        torch.manual_seed(0)
        layer = plmu.LMU(2, 3, 4, 9.0, memory_size=channels, bias=channels == 1, encoder_bias=True).double()
        with torch.no_grad():
            for value in layer.parameters():
                value.normal_(std=0.5)
        x, cell = torch.randn(2, 7, 2, dtype=torch.float64), layer.cell
        system, h = plmu.DelayNetwork(4, 9.0).discretize(), torch.zeros(2, 3, dtype=torch.float64)
        m, state = torch.zeros(2, 4, channels, dtype=torch.float64), None
        folded, outputs = plmu.fold(layer), layer(x)[0]
        for t in range(7):
            u = x[:, t] @ cell.input_encoder.T + h @ cell.hidden_encoder.T + m.flatten(1) @ cell.memory_encoder.T
            m = system.A @ m + system.B[:, None] * (u + cell.encoder_bias)[:, None]
            total = x[:, t] @ cell.input_weight.T + h @ cell.hidden_weight.T + m.flatten(1) @ cell.memory_weight.T
            h = torch.tanh(total if cell.bias is None else total + cell.bias)
            assert_same(outputs[:, t], h)
            assert_same(folded.step(x[:, t], state)[0], h)
            stepped, state = layer.step(x[:, t], state)
            assert_same(stepped, h)


def test_a_system_with_another_window_is_refused():
    """The discretisation is not in the weights: a system has one, and must have their θ."""
    options = {"hidden_to_memory": False, "hidden_to_hidden": False, "memory_to_memory": False}
    for method, theta in (("euler", 11.3), ("zoh", 11.3), ("euler", 11.4), ("zoh", 9.0)):
        system = plmu.DelayNetwork(3, theta).discretize(method=method)
        layer = plmu.LMU(2, 3, system=system, memory_size=2, bias=True, input_to_hidden=False, **options)
        if theta == 11.3:
            plmu.load_keras(layer, weights("euler"))
        else:
            with pytest.raises(ValueError, match=r"have a trained θ of 11\.3"):
                plmu.load_keras(layer, weights("euler"))


@pytest.mark.parametrize("rate", [0.0, -0.25, float("nan")])
def test_a_trained_window_must_be_positive(rate):
    layer = layer_of("trained-theta")
    with pytest.raises(ValueError, match="theta_inv must be positive and finite"):
        plmu.load_keras(layer, changed("trained-theta", theta_inv=rate))


def h5_of(case: str, tmp_path: Path) -> Path:
    path = tmp_path / "model.weights.h5"
    path.write_bytes(zlib.decompress(base64.b64decode(CASES[case]["h5"])))
    return path


def refused(path: Path, case: str, said: str) -> None:
    layer = layer_of(case)
    before = [p.detach().clone() for p in layer.parameters()]
    with pytest.raises(FileFormatError, match=f"model.weights.h5: .*{said}"):
        plmu.load_keras(layer, path)
    assert all(torch.equal(one, two) for one, two in zip(before, layer.parameters(), strict=True))


@pytest.mark.parametrize("kind", ["external storage", "external link", "soft link", "virtual", "twice"])
def test_other_files_are_not_read(kind, tmp_path):
    """HDF5 can name any file of the machine as the place of an array."""
    import h5py

    path, secret = h5_of("recurrent", tmp_path), tmp_path / "secret"
    with h5py.File(secret, "w") as other:
        other["kernel"] = torch.ones(8, 3).numpy()
    with h5py.File(path, "a") as file:
        found: list[str] = []
        file.visititems(lambda where, item: found.append(where) if isinstance(item, h5py.Dataset) else None)
        where = next(place for place in found if "hidden_cell" in place)
        shape, dtype = file[where].shape, file[where].dtype
        del file[where]
        if kind == "external storage":
            file.create_dataset(where, shape, dtype, external=[(str(secret), 0, h5py.h5f.UNLIMITED)])
        elif kind == "external link":
            file[where] = h5py.ExternalLink(str(secret), "/kernel")
        elif kind == "soft link":
            file[where] = h5py.SoftLink("/" + found[-1])
        elif kind == "twice":
            file[where] = file[found[-1]]
        else:
            layout = h5py.VirtualLayout(shape, dtype)
            layout[:] = h5py.VirtualSource(str(secret), "kernel", shape=(8, 3))
            file.create_virtual_dataset(where, layout)
    refused(
        path, "recurrent", {"twice": "twice", "soft link": "link", "external link": "link"}.get(kind, "another file")
    )


def test_arrays_that_are_no_numbers_or_too_large_are_refused(tmp_path):
    import h5py

    for value, said in ((b"text", "not numbers"), (None, "does not fit into a file")):
        path = h5_of("recurrent", tmp_path)
        with h5py.File(path, "a") as file:
            if value is None:
                file.create_dataset("a/vars/0", (2**40,), "f4", chunks=(2**10,))
            else:
                file["a/vars/0"] = value
        refused(path, "recurrent", said)


def test_damaged_files_are_refused_by_one_error(tmp_path):
    generator, good = random.Random(0), h5_of("recurrent", tmp_path).read_bytes()
    path, loaded = tmp_path / "damaged.weights.h5", 0
    for _ in range(150):
        data = bytearray(good)
        for _ in range(generator.choice((1, 4, 64))):
            data[generator.randrange(len(data))] = generator.randrange(256)
        path.write_bytes(data[: generator.choice((len(data), len(data), generator.randrange(len(data))))])
        with contextlib.suppress(FileFormatError):
            plmu.load_keras(layer_of("recurrent"), path)
            loaded += 1
    assert 0 < loaded < 120
    for missing in (tmp_path / "absent.weights.h5", tmp_path):
        with pytest.raises(OSError, match=missing.name):
            plmu.load_keras(layer_of("recurrent"), missing)


def test_a_file_needs_h5py(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ModuleNotFoundError, match="pip install h5py"):
        plmu.load_keras(layer_of("recurrent"), tmp_path / "a.weights.h5")
