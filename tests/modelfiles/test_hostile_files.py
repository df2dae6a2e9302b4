"""Files that declare what they do not hold: refused before anything is built, in words, at next to no cost."""

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import plmu
from plmu import DelayLayer, FileFormatError, ParallelLMU, Sequential

SMALL = {"order": 4, "theta": 7.0}


def leaf(name: str, **config: object) -> dict[str, object]:
    return {"class": name, "config": config}


def stack(*modules: object, name: str = "Sequential") -> dict[str, object]:
    return {"class": name, "modules": list(modules)}


def nested(depth: int) -> dict[str, object]:
    description = leaf("ReLU")
    for _ in range(depth):
        description = stack(description)
    return description


def put(path: Path, model: object, tensors: dict[str, torch.Tensor] | None = None, **more: object) -> Path:
    description = {"format": 1, "kind": "model", "tied": {}, "model": model, **more}
    save_file(tensors or {}, path, {"plmu": json.dumps(description)})
    return path


LMU = {"input_size": 1, "hidden_size": 1}
LINEAR = {"weight": torch.zeros(2, 1), "bias": torch.zeros(2)}
POOLED = {"channels": 1, "horizon": 1, "window": 2}
SYSTEM = {".systems.0.A": torch.eye(2), ".systems.0.B": torch.ones(2)}

TOO_LONG = "to build this model takes too long for one with 0 bytes of tensors"

# Each with words of its error. Old versions took gigabytes or minutes for the first ones.
HOSTILE = {
    "a large layer": (leaf("Linear", in_features=30_000, out_features=30_000, bias=False), "missing weight"),
    "a large table": (leaf("Embedding", num_embeddings=1 << 40, embedding_dim=1 << 20), "missing weight"),
    "more than there is": (leaf("Linear", in_features=1 << 40, out_features=1 << 40), "cannot be built"),
    "no 64-bit number": (leaf("Linear", in_features=1 << 80, out_features=1), "cannot be built"),
    "a large output": (leaf("ParallelLMU", input_size=1, hidden_size=1 << 31, **SMALL), "missing"),
    "many channels": (leaf("DelayLayer", channels=1 << 50, **SMALL, trainable="system"), "missing memory.A"),
    "a large order": (leaf("DelayLayer", channels=1, order=20_000, theta=20_000.0), TOO_LONG),
    "an order of its own": (leaf("ParallelLMU", **LMU, order=20_000, theta=9.0), TOO_LONG),
    "an order of the cell": (leaf("LMUCell", **LMU, order=20_000, theta=9.0), TOO_LONG),
    "an order beyond numbers": (leaf("LMU", **LMU, order=10**200, theta=9.0), "cannot be built"),
    "a tiny theta": (leaf("DelayLayer", channels=1, order=400, theta=1e-300), TOO_LONG),
    "many theta": (leaf("DelayLayer", channels=1 << 16, order=1, theta=[9.0] * (1 << 16)), TOO_LONG),
    "many memories": (stack(*[leaf("DelayLayer", channels=1, order=300, theta=9.0)] * 99), TOO_LONG),
    "many members": (leaf("PooledForecast", **POOLED, members=[[2, 0, True, False, [], 0]] * 9000), TOO_LONG),
    "a member of words": (
        leaf("PooledForecast", **POOLED, members=[[2, "no", True, False, [], 0]]),
        "a list of .lookb",
    ),
    "a short member": (leaf("PooledForecast", **POOLED, members=[[1, 0, True, False, [], 0]]), r"a lookback from 2"),
    "a member with words": (
        leaf("PooledForecast", **POOLED, members=[[2, 0, True, False, ["5"], 0]]),
        "a list of .lookb",
    ),
    "a member with a power of words": (
        leaf("PooledForecast", **POOLED, members=[[2, 0, True, False, [], "2"]]),
        "a list of .lookb",
    ),
    "a deep member": (leaf("PooledForecast", **POOLED, members=[[2, 0, True, False, [1] * 9000, 0]]), TOO_LONG),
    "a wide member": (leaf("PooledForecast", **POOLED, members=[[2, 0, True, False, [1 << 40], 0]]), "missing"),
    "many modules": (stack(*[leaf("ReLU")] * 9000), TOO_LONG),
    "many highways": (leaf("LMUBlock", width=1, order=1, theta=9.0, highways=10**12), TOO_LONG),
    "fewer than no highways": (leaf("LMUBlock", width=1, order=1, theta=9.0, highways=-(10**12)), "highways must be a"),
    "highways of a kind": (leaf("LMUBlock", width=1, order=1, theta=9.0, highways=1.5), "highways=1.5.* integer"),
    "many blocks": (stack(*[leaf("MemoryBlock", width=4)] * 300), TOO_LONG),
    "an order of a block": (leaf("MemoryBlock", width=1, order=20_000, theta=[9.0]), TOO_LONG),
    "an order of a readout": (
        leaf("SelectiveLMU", input_size=1, hidden_size=1, order=20_000, theta=9.0, heads=1),
        TOO_LONG,
    ),
    "a wide block": (leaf("MemoryBlock", width=1 << 20), "missing"),
    "a long kernel": (leaf("CausalConvolution", channels=1 << 20, kernel_size=1 << 40), "missing weight"),
    "a large window": (leaf("CausalAttention", width=4, heads=1, window=1 << 60, bias=False), "missing inputs.weight"),
    "no heads": (leaf("CausalAttention", width=4, heads=0, window=9, bias=False), "heads must be an integer"),
    "heads of a kind": (leaf("MemoryBlock", width=4, heads=[2]), r"heads=\[2\].* integer or null"),
    "an activation of a kind": (leaf("Highway", features=2, activation=[1]), "activation=.* must be a name"),
    "an unknown activation": (leaf("Highway", features=2, activation="exec"), "activation must be None"),
    "features of a list": (leaf("Highway", features=[2]), "cannot be built"),
    "a gate alone": (stack(leaf("ReLU"), name="Gated"), "cannot be built"),
    "an empty sum": (stack(name="WeightedStack"), "at least one module"),
    "deep": (nested(70), "nested more than 64 deep"),
    "deeper": (nested(300), "nested more than 64 deep|broken description"),
    "device": (leaf("Linear", in_features=1, out_features=2, device="cpu"), "option 'device'"),
    "dtype": (leaf("LayerNorm", normalized_shape=[2], dtype=None), "option 'dtype'"),
    "private": (leaf("Embedding", num_embeddings=2, embedding_dim=1, _weight=None), "option '_weight'"),
    "inplace": (leaf("ReLU", inplace=True), "option 'inplace'"),
    "padding_idx": (leaf("Embedding", num_embeddings=2, embedding_dim=1, padding_idx=2), "cannot be built.*adding_idx"),
    "padding_idx of a kind": (leaf("Embedding", num_embeddings=2, embedding_dim=1, padding_idx=0.5), "padding_idx=0.5"),
    "size of a kind": (leaf("Linear", in_features=1.0, out_features=2), "in_features=1.0.* integer"),
    "size is true": (leaf("Linear", in_features=True, out_features=2), "in_features=True.* integer"),
    "option of a kind": (leaf("LayerNorm", normalized_shape=[2], eps="small"), "eps='small'.* number or null"),
    "NaN": (leaf("Dropout", p=float("nan")), "p=nan.* a number"),
    "no probability": (leaf("Dropout", p=2), "cannot be built.*probability"),
    "list in a list": (leaf("DelayLayer", channels=1, order=1, theta=[[1.0]]), r"theta=\[\[1.0\]\].* numbers"),
    "shape": (leaf("LayerNorm", normalized_shape="ab"), "normalized_shape='ab'.*list of integers"),
    "a shape of a kind": (leaf("LayerNorm", normalized_shape=[1.5]), r"normalized_shape=\[1.5\].*list of integers"),
    "switch": (leaf("Linear", in_features=1, out_features=2, bias="no"), "bias='no'.* true or false"),
    "switch of a layer": (leaf("ParallelLMU", **LMU, **SMALL, gated=[1]), r"gated=\[1\].* true or false"),
    "name of a kind": (leaf("ParallelLMU", **LMU, **SMALL, algorithm=["fft"]), r"algorithm=\['fft'\]"),
    "approximation": (leaf("GELU", approximate="rough"), "approximate='rough'.*none or tanh"),
    "theta": (leaf("DelayLayer", channels=1, order=4, theta=-1.0), "cannot be built.*theta"),
    "order": (leaf("DelayLayer", channels=1, order=0, theta=1.0), "cannot be built.*order"),
    "no theta": (leaf("DelayLayer", channels=1, order=4, theta=None), "cannot be built.*theta"),
    "no name of a system": (leaf("DelayLayer", channels=1, system={"a": 1}), "system=.*name of a system"),
    "a system of weights": (leaf("DelayLayer", channels=1, system={"system": "a"}), "'a'.*name of a system"),
    "no system": (leaf("DelayLayer", channels=1, system={"system": ".systems.1"}), r"no system '.systems.1.A'"),
    "names of a stack": ({**stack(leaf("ReLU"), name="torch.Sequential"), "names": [3]}, "cannot be built"),
    "too few names": ({**stack(leaf("ReLU"), name="torch.Sequential"), "names": []}, "cannot be built"),
    "a long name": (leaf("x" * 100_000), "names a class"),
}  # fmt: skip


@pytest.mark.parametrize("problem", HOSTILE)
def test_what_a_file_declares_is_checked_first(problem: str, path: Path) -> None:
    description, words = HOSTILE[problem]
    with pytest.raises(FileFormatError, match=words) as caught:
        plmu.load(put(path, description))
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_nested_json(path: Path) -> None:
    for text in ("[" * 100_000, '{"a":' * 100_000, "1" * 100_000):
        save_file({}, path, {"plmu": text})
        with pytest.raises(FileFormatError, match="broken description"):
            plmu.load(path)


def test_nothing_is_allocated_before_the_check(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even the tensors that are there."""
    put(path, leaf("Linear", in_features=1, out_features=3), LINEAR)
    monkeypatch.setattr(plmu.modelfiles.files.Contents, "tensors", None)
    with pytest.raises(FileFormatError, match=r"weight is \(2, 1\) in the file and \(3, 1\) in the model"):
        plmu.load(path)


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool, torch.complex64, torch.float8_e4m3fn], ids=str)
def test_weights_must_be_floating_point(dtype: torch.dtype, path: Path) -> None:
    tensors = {**LINEAR, "weight": torch.zeros(2, 1).to(dtype)}
    put(path, leaf("Linear", in_features=1, out_features=2), tensors)
    with pytest.raises(FileFormatError, match=r"weight is \w+ in the file"):
        plmu.load(path)
    if dtype == torch.float8_e4m3fn:
        plmu.load_into(nn.Linear(1, 2), path)
        return
    model = nn.Linear(1, 2)
    before = model.weight.clone()
    with pytest.raises(FileFormatError, match=r"weight is \w+ in the file and torch\.float32 in the model"):
        plmu.load_into(model, path)
    assert torch.equal(model.weight, before)


def test_whole_numbers_stay_whole(path: Path) -> None:
    model = nn.BatchNorm1d(2)
    save_file({**model.state_dict(), "num_batches_tracked": torch.tensor(1.5)}, path)
    with pytest.raises(FileFormatError, match=r"num_batches_tracked is F32 in the file and torch\.int64"):
        plmu.load_into(model, path)
    save_file({**model.state_dict(), "num_batches_tracked": torch.tensor(7)}, path)
    assert plmu.load_into(model, path).num_batches_tracked == 7


@pytest.mark.parametrize(
    "system",
    [
        {".systems.0.A": torch.eye(2).long(), ".systems.0.B": torch.ones(2)},
        {".systems.0.A": torch.full((2, 2), torch.nan), ".systems.0.B": torch.ones(2)},
        {".systems.0.A": torch.eye(3), ".systems.0.B": torch.ones(2)},
        {".systems.0.A": torch.eye(2)},
    ],
    ids=["integers", "NaN", "shapes", "no B"],
)
def test_a_system_that_is_none(system: dict[str, torch.Tensor], path: Path) -> None:
    with pytest.raises(FileFormatError, match="cannot be built"):
        plmu.load(put(path, leaf("DelayLayer", channels=1, system={"system": ".systems.0"}), system))


def test_a_system_that_is_named_often_is_built_once(path: Path) -> None:
    one = leaf("DelayLayer", channels=1, system={"system": ".systems.0"})
    model = plmu.load(put(path, stack(*[one] * 3, name="torch.Sequential"), SYSTEM))
    assert len({id(layer.memory.systems()[0]) for layer in model}) == 1


@pytest.mark.parametrize("frozen", [None, "weight", [1], ["other"], {"weight": True}, [["weight"]]], ids=str)
def test_a_broken_list_of_frozen_weights(frozen: object, path: Path) -> None:
    put(path, leaf("Linear", in_features=1, out_features=2), LINEAR, frozen=frozen)
    with pytest.raises(FileFormatError, match="frozen weights"):
        plmu.load(path)


@pytest.mark.parametrize("tied", [None, [], {"bias": 3}, {"bias": ["weight"]}, {"bias": "bias.0"}], ids=str)
def test_broken_ties(tied: object, path: Path) -> None:
    put(path, leaf("Linear", in_features=1, out_features=2), LINEAR, tied=tied)
    for read in (plmu.load, lambda path: plmu.load_into(nn.Linear(1, 2), path)):
        with pytest.raises(FileFormatError, match="tied tensors"):
            read(path)


@pytest.mark.parametrize("device", ["gpu", "cuda:99", "", 3.5, None], ids=str)
def test_a_device_that_is_none_is_named(device: object, path: Path) -> None:
    plmu.save(nn.Linear(1, 2), path)
    with pytest.raises(ValueError, match=f"device must be .*got {device!r}") as caught:
        plmu.load(path, device=device)
    assert not isinstance(caught.value, FileFormatError)


# ---------------------------------------------------------------- what is large and honest


def test_what_is_within_the_limit_is_built(path: Path) -> None:
    deep: nn.Module = nn.ReLU()
    for _ in range(64):
        deep = Sequential(deep)
    for model in (deep, Sequential(*[nn.ReLU()] * 300), DelayLayer(50, order=2, theta=[9.0] * 50)):
        plmu.save(model, path)
        assert repr(plmu.load(path)) == repr(model)


def test_a_larger_file_may_take_longer_to_build(path: Path) -> None:
    """As a memory of order 2,000 does; here with its limits made smaller, since it takes seconds."""
    cost = 40**3 * (8 + 2 * math.log2(40) + 8)
    layer = ParallelLMU(1, 50, order=40, theta=2.0**-8)
    size = sum(value.nbytes for value in layer.parameters())
    small = 45 * 10**6  # what any layer and system may take
    for limit, per_byte, fits in ((small + cost * 1.01, 0, True), (small + cost * 0.99, 0, False),
                                  (small, 1.01 * cost / size, True), (small, 0.99 * cost / size, False)):  # fmt: skip
        with pytest.MonkeyPatch.context() as patch:
            plmu.save(layer, path)
            patch.setattr(plmu.modelfiles.blueprint, "LIMIT", limit)
            patch.setattr(plmu.modelfiles.blueprint, "LIMIT_PER_BYTE", per_byte)
            if fits:
                plmu.save(layer, path)
                plmu.load(path)
                continue
            with pytest.raises(
                ValueError, match=rf"load would refuse.* with {size:,} bytes.*weights_only=True"
            ) as caught:
                plmu.save(layer, path)
            assert "yourself" not in str(caught.value)
            with pytest.raises(
                FileFormatError, match=rf" with {size:,} bytes.*yourself and call plmu.load_into"
            ) as caught:
                plmu.load(path)
            assert "weights_only" not in str(caught.value)


@pytest.mark.parametrize(
    ("order", "theta", "fits"),
    [(1024, 1024.0, True), (1024, 60.0, True), (1024, 1e9, True), (900, 1.0, True), (1100, 1e9, False)],
)
def test_a_memory_of_order_1024_needs_no_tensors(order: int, theta: float, fits: bool) -> None:
    """Its cost alone: to build it takes a second."""
    cost = plmu.modelfiles.blueprint._cost(leaf("DelayLayer", channels=1, order=order, theta=theta), "model", 0)
    assert (cost <= plmu.modelfiles.blueprint.LIMIT) == fits


def test_what_load_would_refuse_is_not_saved(path: Path) -> None:
    deep: nn.Module = ParallelLMU(1, 2, **SMALL)
    for _ in range(65):
        deep = Sequential(deep)
    with pytest.raises(ValueError, match=r"nested more than 64 deep; use save\(model, path, weights_only=True\)"):
        plmu.save(deep, path)
    plmu.save(deep, path, weights_only=True)
    plmu.load_into(deep, path)
