"""Files: what is saved comes back exactly, whole models and weights alone."""

import json
import os
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import plmu
from plmu import LMU, DelayLayer, FileFormatError, LMUCell, ParallelLMU, Residual, Sequential

SMALL = {"order": 4, "theta": 7.0}
SYSTEM = plmu.LinearSystem(torch.tensor([[0.9, 1 / 3], [-1 / 3, 0.9]], dtype=torch.float64), [1 / 7, 0.5])
MULTI = plmu.LinearSystem([[0.9, 0.2], [-0.2, 0.9]], [[1.0, 0.3, 0.1], [0.5, -1.0, 0.4]])

LAYERS = {
    "parallel": lambda: ParallelLMU(3, 4, **SMALL),
    "every option": lambda: ParallelLMU(
        3,
        4,
        **SMALL,
        memory_size=3,
        gated=True,
        input_to_output=False,
        input_activation="tanh",
        output_activation="gelu",
        bias=False,
        return_sequences=False,
        algorithm="chunked",
    ),
    "no encoder": lambda: ParallelLMU(3, 4, **SMALL, encoder=False, output_activation=None),
    "several theta": lambda: ParallelLMU(3, 4, order=4, theta=(3.0, 9.5), memory_size=2),
    "trained theta": lambda: ParallelLMU(3, 4, order=4, theta=[3.0, 9.5], memory_size=2, trainable="theta"),
    "trained system": lambda: ParallelLMU(3, 4, **SMALL, trainable="system"),
    "given system": lambda: ParallelLMU(3, 4, system=SYSTEM),
    "given system, trained": lambda: ParallelLMU(3, 4, system=SYSTEM, trainable="system"),
    "delay": lambda: DelayLayer(3, **SMALL),
    "delay, multi-input": lambda: DelayLayer(3, system=MULTI),
    "original": lambda: LMU(3, 4, **SMALL, memory_size=2, bias=True, hidden_to_memory=False, hidden_activation="relu"),
    "cell": lambda: LMUCell(3, 4, **SMALL),
    "both directions": lambda: plmu.Bidirectional(ParallelLMU(3, 4, **SMALL), LMU(3, 2, **SMALL)),
    "residual": lambda: Residual(ParallelLMU(3, 3, **SMALL)),
    "nested": lambda: Sequential(
        nn.Sequential(nn.Linear(3, 3, bias=False), nn.Sequential(nn.Tanh(), nn.LayerNorm(3))),
        Residual(Sequential(nn.RMSNorm(3), ParallelLMU(3, 5, system=SYSTEM), nn.Linear(5, 3))),
        Sequential(ParallelLMU(3, 4, system=SYSTEM), DelayLayer(4, system=plmu.LinearSystem([[0.5]], [1.0]))),
        nn.Dropout(0.25),
    ),
}
TORCH = [
    nn.Linear(3, 2),
    nn.Linear(3, 2, bias=False),
    nn.Embedding(5, 3, padding_idx=1, max_norm=2.0, norm_type=1.0, scale_grad_by_freq=True),
    nn.Embedding(5, 3, sparse=True),
    nn.LayerNorm(3),
    nn.LayerNorm(3, eps=0.1, elementwise_affine=False),
    nn.LayerNorm(3, bias=False),
    nn.RMSNorm(3, eps=0.1),
    nn.RMSNorm(3),
    nn.Identity(),
    nn.Dropout(0.25),
    nn.Dropout1d(0.25),
    nn.AlphaDropout(0.25),
    plmu.Standardize(3),
    nn.ReLU(),
    nn.ReLU6(),
    nn.LeakyReLU(0.3),
    nn.PReLU(),
    nn.ELU(0.5),
    nn.CELU(0.5),
    nn.SELU(),
    nn.GELU(approximate="tanh"),
    nn.SiLU(),
    nn.Mish(),
    nn.Sigmoid(),
    nn.Tanh(),
    nn.Softplus(2.0, 10.0),
    nn.Softsign(),
    nn.Hardtanh(-0.5, 0.25),
    nn.Hardsigmoid(),
    nn.Hardswish(),
    nn.LogSigmoid(),
    nn.Tanhshrink(),
    nn.Softmax(dim=-1),
    nn.LogSoftmax(dim=-1),
    nn.GLU(dim=-1),
]


def shaken(model: nn.Module) -> nn.Module:
    with torch.no_grad():
        for value in model.parameters():
            value.add_(0.01 * torch.randn_like(value))
    return model


def outputs(model: nn.Module, x: Tensor) -> list[Tensor]:
    """Everything a model returns, in evaluation mode, as a flat list."""
    training = model.training
    found, waiting = [], [model.eval()(x)]
    model.train(training)
    while waiting:
        one = waiting.pop()
        if isinstance(one, Tensor):
            found.append(one)
        elif one is not None:
            waiting.extend(one)
    return found


def assert_twins(one: nn.Module, other: nn.Module) -> None:
    """The same classes, printed options, names, values and precisions."""
    assert repr(one) == repr(other)
    assert [type(module) for module in one.modules()] == [type(module) for module in other.modules()]
    mine, theirs = one.state_dict(), other.state_dict()
    assert list(mine) == list(theirs)
    for name, value in mine.items():
        assert value.dtype == theirs[name].dtype, name
        assert torch.equal(value, theirs[name]), name


# ---------------------------------------------------------------- round trips


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_layers_come_back_exactly(name: str, dtype: torch.dtype, path: Path) -> None:
    model = shaken(LAYERS[name]()).to(dtype)
    plmu.save(model, path)
    again = plmu.load(path)
    assert_twins(model, again)
    assert all(value.requires_grad and value.is_leaf for value in again.parameters())
    assert again.training
    x = torch.randn(2, 3, dtype=dtype) if name == "cell" else torch.randn(2, 9, 3, dtype=dtype)
    for found, expected in zip(outputs(again, x), outputs(model, x), strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("module", TORCH, ids=str)
def test_modules_of_torch_come_back(module: nn.Module, path: Path) -> None:
    model = nn.Sequential(shaken(module))
    plmu.save(model, path)
    again = plmu.load(path)
    assert_twins(model, again)
    x = (
        torch.randint(5, (2, 9))
        if isinstance(module, nn.Embedding)
        else torch.randn(2, 9, 4 if "GLU" in str(module) else 3)
    )
    assert torch.equal(outputs(again, x)[0], outputs(model, x)[0])


def test_every_module_that_a_stack_takes_can_be_saved() -> None:
    from plmu.nn.stacking import PER_STEP

    tested = {type(module) for module in TORCH}
    assert set(PER_STEP) <= tested
    assert {*plmu.modelfiles.blueprint.TORCH, plmu.Standardize} == tested


def test_a_system_is_kept_in_float64(path: Path) -> None:
    model = Sequential(ParallelLMU(3, 4, system=SYSTEM), DelayLayer(4, system=plmu.LinearSystem([[1 / 3]], [1.0])))
    plmu.save(model.bfloat16(), path)
    first, second = (layer.memory.systems()[0] for layer in plmu.load(path).layers)
    assert torch.equal(first.A, SYSTEM.A)
    assert torch.equal(first.B, SYSTEM.B)
    assert second.A.item() == 1 / 3


def test_nn_sequential_with_names_comes_back(path: Path) -> None:
    model = Sequential(nn.Sequential(OrderedDict(wide=nn.Linear(3, 4), f=nn.ReLU(), narrow=nn.Linear(4, 2))))
    plmu.save(model, path)
    again = plmu.load(path)
    assert_twins(model, again)


F, LINEAR = nn.Tanh(), nn.Linear(3, 3)


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Linear(3, 3), F, nn.Linear(3, 3), F),
        nn.Sequential(LINEAR, F, LINEAR),
        Sequential(LINEAR, F, LINEAR, F),
        Sequential(nn.Sequential(LINEAR, F), nn.Sequential(F, LINEAR, F)),
    ],
    ids=["function", "weights", "in a stack", "nested"],
)
def test_a_module_used_twice_is_used_twice(model: nn.Module, path: Path) -> None:
    plmu.save(model, path)
    again = plmu.load(path)
    x = torch.randn(2, 9, 3)
    assert torch.equal(outputs(again, x)[0], outputs(model, x)[0])
    assert len(list(again.parameters())) == len(list(model.parameters()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_tied_weights_stay_tied(dtype: torch.dtype, path: Path) -> None:
    model = Sequential(nn.Embedding(9, 4), ParallelLMU(4, 4, **SMALL), nn.Linear(4, 9))
    model.layers[2].weight = model.layers[0].weight
    model.to(dtype)
    plmu.save(model, path)
    again = plmu.load(path)
    assert again.layers[2].weight is again.layers[0].weight
    assert len(list(again.parameters())) == len(list(model.parameters()))
    tokens = torch.randint(9, (2, 5))
    assert torch.equal(again(tokens)[0], model(tokens)[0])
    again(tokens)[0].sum().backward()
    torch.optim.SGD(again.parameters(), lr=0.1).step()
    assert torch.equal(again.layers[2].weight, again.layers[0].weight)
    other = Sequential(nn.Embedding(9, 4), ParallelLMU(4, 4, **SMALL), nn.Linear(4, 9)).to(dtype)
    plmu.load_into(other, path)
    assert torch.equal(other.layers[2].weight, model.layers[0].weight)


def test_whole_layers_may_be_tied(path: Path) -> None:
    layer = ParallelLMU(3, 3, **SMALL)
    model = Sequential(Residual(layer), Residual(layer))
    plmu.save(model, path)
    again = plmu.load(path)
    assert len(list(again.parameters())) == len(list(model.parameters()))
    x = torch.randn(2, 9, 3)
    assert torch.equal(again(x)[0], model(x)[0])


def test_an_evaluated_model_and_one_in_use_can_be_saved(path: Path) -> None:
    model = LAYERS["trained theta"]()
    x = torch.randn(2, 9, 3)
    with torch.inference_mode():
        expected = model.eval()(x)[0]
    plmu.save(model, path)
    with torch.inference_mode():
        assert torch.equal(plmu.load(path)(x)[0], expected)


def test_a_loaded_model_does_not_depend_on_its_file(path: Path) -> None:
    """It must not be a view of the file: a copy over it would change the weights, a shorter one crash the process."""
    model, state = LAYERS["parallel"](), path.with_name("state")
    stream = plmu.Stream(model)
    stream.push([1.0, 2.0, 3.0])
    plmu.save(model, path)
    stream.save(state)
    again = plmu.load(path)
    restored = plmu.Stream.restore(model, state)
    for file in (path, state):
        with open(file, "rb+") as opened:
            opened.write(bytes(file.stat().st_size))
    assert_twins(again, model)
    assert torch.equal(restored.push([1.0, 2.0, 3.0]), stream.push([1.0, 2.0, 3.0]))


def test_the_file_is_plain_safetensors_with_a_description(path: Path) -> None:
    model = LAYERS["nested"]()
    plmu.save(model, path)
    with safe_open(path, framework="pt") as file:
        description = json.loads(file.metadata()["plmu"])
        assert set(model.state_dict()) <= set(file.keys())
    assert (description["format"], description["kind"]) == (1, "model")
    assert path.stat().st_mode & 0o777 == 0o666 & ~_umask()
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize("kind", [str, Path])
def test_paths_may_be_strings(kind: type, path: Path) -> None:
    model = LAYERS["parallel"]()
    plmu.save(model, kind(path))
    assert_twins(plmu.load(kind(path), device="cpu"), model)
    plmu.load_into(model, kind(path))


def test_overwriting(path: Path) -> None:
    plmu.save(LAYERS["parallel"](), path)
    model = LAYERS["nested"]()
    plmu.save(model, path)
    assert_twins(plmu.load(path), model)
    assert os.listdir(path.parent) == [path.name]
    assert set(load_file(path)) >= set(model.state_dict())


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


# ---------------------------------------------------------------- weights alone


class Own(nn.Module):
    def __init__(self, systems: int = 1) -> None:
        super().__init__()
        self.inner = ParallelLMU(3, 4, **SMALL, output_activation=torch.sin)
        self.systems = nn.ModuleList(nn.Linear(3, 3) for _ in range(systems))
        self.register_buffer("count", torch.tensor(3))


def test_what_cannot_be_rebuilt_is_named(path: Path) -> None:
    with pytest.raises(ValueError, match=r"ParallelLMU.*output_activation=.*weights_only=True.*load_into"):
        plmu.save(Sequential(ParallelLMU(3, 4, **SMALL, output_activation=torch.sin)), path)
    with pytest.raises(ValueError, match=r"cannot save Own: .* are supported; use save.*weights_only=True.*load_into"):
        plmu.save(Own(), path)
    with pytest.raises(ValueError, match=r"cannot save Conv1d \(model\.1\.0\): .*weights_only=True.*load_into"):
        plmu.save(nn.Sequential(nn.ReLU(), nn.Sequential(nn.Conv1d(1, 1, 1))), path)

    class Derived(ParallelLMU):
        pass

    with pytest.raises(ValueError, match="Derived"):
        plmu.save(Derived(3, 4, **SMALL), path)
    assert not os.listdir(path.parent)


def test_weights_alone(path: Path) -> None:
    model, other = shaken(Own()), Own()
    plmu.save(model, path, weights_only=True)
    with pytest.raises(FileFormatError, match=r"weights alone.*load_into"):
        plmu.load(path)
    other.count.fill_(7)
    assert plmu.load_into(other, path) is other
    assert_twins(other, model)


def test_weights_of_a_model_file_and_of_plain_safetensors(path: Path) -> None:
    for build in LAYERS.values():
        model, other = shaken(build()), build()
        plmu.save(model, path)
        assert_twins(plmu.load_into(other, path), model)
        if not model.state_dict():
            continue
        other = build()
        save_file(model.state_dict(), path)
        assert_twins(plmu.load_into(other, path), model)
        with pytest.raises(FileFormatError, match=r"not written by plmu.*load_into"):
            plmu.load(path)


def test_load_into_keeps_the_models_own_precision_and_parameters(path: Path) -> None:
    model, other = shaken(LAYERS["trained theta"]()), LAYERS["trained theta"]().double()
    before = list(other.parameters())
    plmu.save(model, path)
    plmu.load_into(other, path)
    assert all(a is b for a, b in zip(other.parameters(), before, strict=True))
    for name, value in other.state_dict().items():
        assert torch.equal(value, model.state_dict()[name].double())


MISFITS = {
    "missing": lambda tensors: tensors.pop("bias"),
    "unexpected": lambda tensors: tensors.update(extra=torch.zeros(1)),
    "shape": lambda tensors: tensors.update(bias=torch.zeros(5)),
    "rank": lambda tensors: tensors.update(bias=torch.zeros(4, 1)),
    "all": lambda tensors: tensors.clear(),
}


@pytest.mark.parametrize("problem", MISFITS)
def test_what_does_not_fit_leaves_the_model_as_it_was(problem: str, path: Path) -> None:
    model = ParallelLMU(3, 4, **SMALL)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    tensors = {name: torch.randn_like(value) for name, value in before.items()}
    MISFITS[problem](tensors)
    save_file(tensors, path)
    with pytest.raises(FileFormatError, match=r"does not fit.*(missing bias|unexpected extra|bias is \()|does not fit"):
        plmu.load_into(model, path)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_the_file_of_another_model_is_named(path: Path) -> None:
    plmu.save(ParallelLMU(3, 4, **SMALL), path)
    with pytest.raises(FileFormatError, match=r"memory_weight is \(4, 4, 1\) in the file and \(4, 5, 1\) in the model"):
        plmu.load_into(ParallelLMU(3, 4, order=5, theta=7.0), path)
