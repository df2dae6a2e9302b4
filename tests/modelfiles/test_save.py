"""Saving: what `load` could not rebuild, or would rebuild otherwise, is refused; what comes back is the same model."""

import os
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from test_files import LAYERS, SMALL, SYSTEM, assert_twins, outputs
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

import plmu
from plmu import LMU, DelayLayer, LMUCell, ParallelLMU, Residual, Sequential


class Twice(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


class OtherLinear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def parametrised() -> nn.Module:
    layer = ParallelLMU(3, 4, **SMALL)
    parametrize.register_parametrization(layer.encoder, "weight", Twice())
    return layer


def parametrised_itself() -> nn.Module:
    layer = ParallelLMU(3, 4, **SMALL)
    parametrize.register_parametrization(layer, "memory_weight", Twice())
    return layer


def having(model: nn.Module, **attributes: object) -> nn.Module:
    for name, value in attributes.items():
        setattr(model, name, value)
    return model


def inner(model: nn.Module, name: str, **attributes: object) -> nn.Module:
    having(model.get_submodule(name), **attributes)
    return model


OTHER = plmu.LinearSystem(SYSTEM.A, 2 * SYSTEM.B)
CHANGED = {
    "a parametrised encoder": (parametrised, r"model\.encoder is a ParametrizedLinear"),
    "a parametrised layer": (parametrised_itself, "cannot save ParametrizedParallelLMU: "),
    "weight norm": (
        lambda: Sequential(parametrizations.weight_norm(nn.Linear(3, 3))), r"save ParametrizedLinear \(model\.0\): ",
    ),
    "another encoder": (lambda: having(ParallelLMU(3, 4, **SMALL), encoder=nn.Tanh()), "model.encoder is a Tanh"),
    "a longer encoder": (
        lambda: having(ParallelLMU(3, 4, **SMALL), encoder=nn.Sequential(nn.Linear(3, 1), nn.Tanh())),
        "model.encoder is a Sequential",
    ),
    "an encoder of the same names": (
        lambda: having(ParallelLMU(3, 4, **SMALL), encoder=OtherLinear(3, 1)), "model.encoder is a OtherLinear",
    ),
    "an encoder without bias": (
        lambda: having(ParallelLMU(3, 4, **SMALL), encoder=nn.Linear(3, 1, bias=False)), r"missing encoder\.bias",
    ),
    "no encoder": (
        lambda: having(ParallelLMU(3, 4, **SMALL), encoder=None), "model.encoder is nothing where load would build a L",
    ),
    "another size": (lambda: having(ParallelLMU(3, 4, **SMALL), bias=nn.Parameter(torch.zeros(5))), r"bias is \(5,\)"),
    "one weight more": (lambda: having(nn.Linear(3, 4), more=nn.Parameter(torch.zeros(5))), "unexpected more"),
    "one module more": (lambda: having(ParallelLMU(3, 4, **SMALL), more=nn.Tanh()), "model.more is a Tanh"),
    "f2": (lambda: having(ParallelLMU(3, 4, **SMALL), f2=torch.tanh), "model.f2 was changed to .*tanh"),
    "f1": (lambda: Sequential(having(ParallelLMU(3, 4, **SMALL), f1=torch.tanh)), r"model\.layers\.0\.f1 was changed"),
    "f": (lambda: inner(LMU(3, 4, **SMALL), "cell", f=torch.relu), r"model\.cell\.f was changed"),
    "f of a cell": (lambda: having(LMUCell(3, 4, **SMALL), f=torch.relu), r"model\.f was changed"),
    "in a residual": (lambda: Residual(having(ParallelLMU(3, 3, **SMALL), f2=None)), r"model\.module\.f2 was changed"),
    "no f2": (lambda: having(ParallelLMU(3, 4, **SMALL), f2=None), "model.f2 was changed to None"),
    "f2 of a tensor": (lambda: having(ParallelLMU(3, 4, **SMALL), f2=torch.ones(2)), "model.f2 was changed to tensor"),
    "last output": (lambda: having(DelayLayer(3, **SMALL), returns_sequences=False), "returns_sequences was changed"),
    "algorithm": (lambda: inner(DelayLayer(3, **SMALL), "memory", algorithm="fft"), "memory.algorithm was changed"),
    "a memory of another theta": (
        lambda: having(DelayLayer(3, **SMALL), memory=DelayLayer(3, order=4, theta=70.0).memory),
        r"model\.memory has theta \[70\.0\], where load would build \[7\.0\]",
    ),
    "a cell's memory of another theta": (
        lambda: inner(LMU(3, 4, **SMALL), "cell", memory=DelayLayer(1, order=4, theta=70.0).memory),
        r"model\.cell\.memory has theta",
    ),
    "a memory of a system": (
        lambda: having(DelayLayer(3, order=2, theta=7.0), memory=DelayLayer(3, system=SYSTEM).memory),
        r"memory has theta \[\], where load would build \[7\.0\]",
    ),
    "a memory of another system": (
        lambda: having(DelayLayer(3, system=SYSTEM), memory=DelayLayer(3, system=OTHER).memory),
        "memory has a system with other matrices",
    ),
    "a memory with other matrices": (
        lambda: inner(DelayLayer(3, order=2, theta=7.0), "memory", _fixed=[SYSTEM]), "has a system with other matrices",
    ),
    "a foreign class": (lambda: nn.LSTM(3, 4), "cannot save LSTM: only plmu layers and per-step torch modules are"),
    "one inside": (lambda: nn.Sequential(nn.Tanh(), nn.GRU(3, 4)), r"cannot save GRU \(model\.1\): only plmu layers"),
    "complex": (lambda: nn.Linear(3, 3, dtype=torch.complex64), "weight is torch.complex64"),
    "no numbers": (lambda: nn.Linear(3, 3).to("meta"), "weight cannot be saved: it is on the meta device"),
    "no JSON": (lambda: nn.Sequential(having(nn.Dropout(), p=torch.tensor(0.5))), "Tensor is not JSON serializable"),
    "no number": (lambda: nn.Sequential(having(nn.ELU(), alpha="1")), "alpha='1', which must be a number"),
}  # fmt: skip


@pytest.mark.parametrize("what", CHANGED)
def test_what_load_would_not_rebuild_is_refused(what: str, path: Path) -> None:
    build, words = CHANGED[what]
    model = build()
    with pytest.raises(ValueError, match=words) as caught:
        plmu.save(model, path)
    assert not os.listdir(path.parent)
    if what == "no numbers":
        return
    assert "weights_only=True" in str(caught.value)
    plmu.save(model, path, weights_only=True)
    plmu.load_into(model, path)


@pytest.mark.parametrize("name", LAYERS)
def test_frozen_weights_stay_frozen(name: str, path: Path) -> None:
    model = LAYERS[name]()
    names = [key for key, _ in model.named_parameters()]
    for key in names[::2]:
        model.get_parameter(key).requires_grad_(False)
    plmu.save(model, path)
    again = plmu.load(path)
    assert_twins(model, again)
    assert [value.requires_grad for value in again.parameters()] == [i % 2 == 1 for i in range(len(names))]
    thawed = LAYERS[name]()
    assert all(value.requires_grad for value in plmu.load_into(thawed, path).parameters())


def test_files_of_before_have_no_list_of_frozen_weights(path: Path) -> None:
    plmu.modelfiles.files.write(path, nn.Linear(1, 2).state_dict(), {"kind": "model", "tied": {}, "model": {
        "class": "Linear", "config": {"in_features": 1, "out_features": 2, "bias": True}}})  # fmt: skip
    assert all(value.requires_grad for value in plmu.load(path).parameters())


def test_frozen_and_tied(path: Path) -> None:
    model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 9))
    model[1].weight = model[0].weight
    model[0].weight.requires_grad_(False)
    plmu.save(model, path)
    again = plmu.load(path)
    assert again[1].weight is again[0].weight
    assert not again[1].weight.requires_grad
    assert again[1].bias.requires_grad


def test_each_tensor_is_written_once(path: Path) -> None:
    """Also where a module is there twice, three are tied, or buffers are."""

    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.three = (nn.Linear(2, 2, bias=False) for _ in range(3))
            self.two.weight = self.three.weight = self.one.weight
            self.again = self.one
            count = torch.zeros(3)
            self.register_buffer("count", count)
            self.register_buffer("same_count", count)
            whole = torch.randn(6)
            self.left, self.right = nn.Parameter(whole[:3]), nn.Parameter(whole[3:])

    model, other = Shared(), Shared()
    plmu.save(model, path, weights_only=True)
    assert set(load_file(path)) == {"one.weight", "count", "left", "right"}
    assert_twins(plmu.load_into(other, path), model)
    torch.testing.assert_close(load_file(path)["right"], model.right.detach(), rtol=0, atol=0)


def test_loading_leaves_the_random_numbers_alone(path: Path) -> None:
    plmu.save(LAYERS["nested"](), path)
    before = torch.get_rng_state()
    plmu.load(path)
    assert torch.equal(torch.get_rng_state(), before)


def test_saving_leaves_the_model_alone(path: Path) -> None:
    model = LAYERS["nested"]()
    before, state = repr(model), torch.get_rng_state()
    values = [(id(value), value.clone()) for value in model.parameters()]
    plmu.save(model.eval(), path)
    assert repr(model) == before
    assert not model.training
    assert torch.equal(torch.get_rng_state(), state)
    for (name, value), after in zip(values, model.parameters(), strict=True):
        assert name == id(after)
        assert torch.equal(value, after)


def test_what_changes_no_result_may_differ(path: Path) -> None:
    """Modes, hooks, attributes of one's own and in-place activations."""
    model = having(nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True)).eval(), name="mine")
    model[0].register_forward_hook(lambda module, given, out: None)
    plmu.save(model, path)
    x = torch.randn(2, 9, 3)
    assert torch.equal(outputs(plmu.load(path), x)[0], outputs(model, x)[0])


def test_what_is_no_model_is_named(path: Path) -> None:
    model = nn.Linear(1, 2)
    with pytest.raises(TypeError, match=r"model must be an nn.Module, got OrderedDict: .*not its state_dict\(\)"):
        plmu.save(model.state_dict(), path)
    with pytest.raises(TypeError, match=r"model must be an nn.Module, got list$"):
        plmu.save([model], path)
    plmu.save(model, path)
    with pytest.raises(TypeError, match=r"model must be an nn.Module, got OrderedDict"):
        plmu.load_into(model.state_dict(), path)

    class Extra(nn.Linear):
        def get_extra_state(self) -> object:
            return {"a": 1}

    with pytest.raises(ValueError, match="_extra_state cannot be saved: it is a dict"):
        plmu.save(Extra(1, 2), path, weights_only=True)


class Holding(nn.Module):
    """With one buffer."""

    def __init__(self, value: Tensor) -> None:
        super().__init__()
        self.register_buffer("value", value)


def holding_itself() -> nn.Module:
    model = nn.Sequential(nn.Linear(1, 2))
    return model.append(model)


UNWRITABLE = {
    "lazy": (lambda: nn.LazyLinear(3), "weight cannot be saved: it has no shape yet: run the model once"),
    "sparse": (
        lambda: Holding(torch.ones(3).to_sparse()),
        r"value cannot be saved: it is torch\.sparse_coo, not a dense",
    ),
    "compressed": (lambda: Holding(torch.eye(3).to_sparse_csr()), r"it is torch\.sparse_csr, not a dense tensor"),
    "nested": (
        lambda: Holding(torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)),
        "value cannot be saved: it is nested, not a dense tensor",
    ),
    "complex128": (lambda: Holding(torch.ones(3, dtype=torch.complex128)), r"value .* has no torch\.complex128"),
    "a name": (lambda: nn.Sequential(OrderedDict({"\ud800": nn.Linear(1, 2)})), "a name in the model cannot be saved"),
    "itself": (holding_itself, "nested too deep, or holds itself"),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state:UserWarning")
@pytest.mark.parametrize("what", UNWRITABLE)
def test_what_cannot_be_written_is_named(what: str, path: Path) -> None:
    build, words = UNWRITABLE[what]
    with pytest.raises(ValueError, match=words):
        plmu.save(build(), path, weights_only=True)
    assert not os.listdir(path.parent)


def test_conjugates_are_written_as_they_are(path: Path) -> None:
    value = torch.tensor([1 + 2j, 3 - 1j], dtype=torch.complex64)
    for one in (value.conj(), value.conj().imag):
        plmu.save(Holding(one), path, weights_only=True)
        assert torch.equal(load_file(path)["value"], one.resolve_conj().resolve_neg())


@pytest.mark.parametrize("wrong", [None, 3, b"model"], ids=str)
def test_what_is_no_path_is_named(wrong: object, path: Path) -> None:
    stream = plmu.Stream(DelayLayer(3, **SMALL))
    for call in (
        lambda one: plmu.save(nn.Linear(1, 2), one),
        plmu.load,
        lambda one: plmu.load_into(nn.Linear(1, 2), one),
        stream.save,
        lambda one: plmu.Stream.restore(DelayLayer(3, **SMALL), one),
    ):
        with pytest.raises(TypeError, match=f"path must be a string or a path, got {type(wrong).__name__}"):
            call(wrong)
        with pytest.raises(ValueError, match="path must not have a null character"):
            call("a\0b")


def test_an_old_file_keeps_its_permissions_and_a_link_its_target(path: Path) -> None:
    target = path.with_name("target")
    plmu.save(nn.Linear(1, 2), target)
    target.chmod(0o640)
    path.symlink_to(target)
    model = nn.Linear(3, 4)
    plmu.save(model, path)
    assert path.is_symlink()
    assert target.stat().st_mode & 0o777 == 0o640
    assert_twins(plmu.load(target), model)


@pytest.fixture
def group(tmp_path: Path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("weights_only", [False, True])
def test_wrapped_models_are_saved_as_the_model_inside(weights_only: bool, tmp_path: Path, group: None) -> None:
    model, path = LAYERS["nested"](), tmp_path / "model"
    averaged = torch.optim.swa_utils.AveragedModel(model)
    for wrapped in (
        averaged,
        nn.DataParallel(model),
        nn.parallel.DistributedDataParallel(model),
        torch.compile(model, backend="eager"),
        torch.compile(averaged, backend="eager"),
    ):
        plmu.save(wrapped, path, weights_only=weights_only)
        assert_twins(plmu.load_into(LAYERS["nested"](), path), model)
        if not weights_only:
            assert_twins(plmu.load(path), model)
        changed = {name: value.clone() for name, value in model.state_dict().items()}
        with torch.no_grad():
            for value in wrapped.parameters():
                value.zero_()
        assert plmu.load_into(wrapped, path) is wrapped
        assert all(torch.equal(value, changed[name]) for name, value in model.state_dict().items())


def test_weights_of_a_wrapper_are_read_as_they_are(path: Path) -> None:
    model, other = (torch.optim.swa_utils.AveragedModel(nn.Linear(1, 2)) for _ in range(2))
    model.n_averaged += 5
    plmu.modelfiles.files.write(path, model.state_dict(), {"kind": "weights", "tied": {}})
    plmu.load_into(other, path)
    assert other.n_averaged == 5
    assert torch.equal(other.module.weight, model.module.weight)
