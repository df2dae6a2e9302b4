"""Sequential as a container: indices, slices, loops and additions, checked as the constructor does."""

import pytest
import torch
from torch import nn

import plmu
from plmu import DelayLayer, ParallelLMU, Sequential

SMALL = {"order": 4, "theta": 7.0}


def stack(**options: str) -> Sequential:
    return Sequential(nn.Linear(3, 3), ParallelLMU(3, 4, **SMALL), nn.Tanh(), nn.Linear(4, 2), **options)


def test_indices_len_and_loops() -> None:
    model = stack()
    modules = list(model.layers)
    assert len(model) == 4
    assert list(model) == modules
    for index in range(-4, 4):
        assert model[index] is modules[index]
    assert modules[2] in model
    for index in (4, -5):
        with pytest.raises(IndexError):
            model[index]


@pytest.mark.parametrize("part", [slice(None), slice(0, 2), slice(1, None), slice(-2, None), slice(0, 4, 2)], ids=str)
def test_a_slice_is_a_stack_of_the_same_modules(part: slice) -> None:
    model = stack()
    piece = model[part]
    assert type(piece) is Sequential
    assert list(piece) == list(model.layers)[part]


def test_a_piece_runs_with_its_part_of_the_state() -> None:
    model, x = stack(), torch.randn(2, 9, 3)
    out, state = model(x)
    hidden, first = model[:2](x)
    again, rest = model[2:](hidden)
    assert torch.equal(again, out)
    assert torch.equal(first[1], state[1])
    assert rest == (None, None)


def test_a_slice_fills_missing_values_where_the_model_does() -> None:
    model = stack(missing="hold")
    assert model[:2].missing == "hold"
    assert model[1:].missing is None
    assert model[1::2].missing is None


def test_slices_are_checked_as_stacks_are() -> None:
    with pytest.raises(ValueError, match="at least one module"):
        stack()[4:]
    short = Sequential(nn.Linear(3, 3), ParallelLMU(3, 3, **SMALL), DelayLayer(3, **SMALL, return_sequences=False))
    assert not short.returns_sequences
    assert short[:2].returns_sequences
    with pytest.raises(ValueError, match=r"module 1 \(ParallelLMU\) needs a sequence"):
        short[::-1]


def test_additions() -> None:
    model = Sequential(nn.Tanh())
    linear, layer, delay = nn.Linear(3, 3), ParallelLMU(3, 4, **SMALL), DelayLayer(4, **SMALL, return_sequences=False)
    assert model.input_size is None
    assert model.append(layer) is model
    assert model.input_size == 3
    assert model.insert(0, linear) is model
    assert model.extend([nn.GELU(), delay]) is model
    assert [type(one) for one in model] == [nn.Linear, nn.Tanh, ParallelLMU, nn.GELU, DelayLayer]
    assert not model.returns_sequences
    model.insert(-2, nn.Dropout(0.1))
    assert isinstance(model[3], nn.Dropout)
    same = Sequential(*model)
    same.load_state_dict(model.state_dict())
    x = torch.randn(2, 9, 3)
    assert torch.equal(model.eval()(x)[0], same.eval()(x)[0])
    assert len(model(x)[1]) == 6


def test_additions_are_checked_and_change_nothing_where_they_do_not_fit() -> None:
    model = stack()
    names = list(model.state_dict())
    for call, error, words in (
        (lambda: model.append(nn.Conv1d(3, 3, 1)), ValueError, r"module 4 \(Conv1d\)"),
        (lambda: model.append(nn.ReLU(inplace=True)), ValueError, "inplace"),
        (lambda: model.append(torch.relu), TypeError, r"module 4 must be an nn\.Module"),
        (lambda: model.extend([nn.Tanh(), nn.LSTM(2, 2)]), ValueError, r"module 5 \(LSTM\)"),
        (lambda: model.insert(0, DelayLayer(3, **SMALL, return_sequences=False)), ValueError, "needs a sequence"),
        (lambda: model.insert(9, nn.Tanh()), IndexError, "index must be between -4 and 4, got 9"),
    ):
        with pytest.raises(error, match=words):
            call()
    assert (len(model), list(model.state_dict())) == (4, names)
    assert model.returns_sequences
    filling = stack(missing="hold")
    with pytest.raises(ValueError, match="missing must be None for a model that takes tokens"):
        filling.insert(0, nn.Embedding(5, 3))
    assert len(filling) == 4


def test_what_was_added_is_saved_and_streamed(path) -> None:
    model = stack().append(nn.GELU()).insert(0, nn.LayerNorm(3)).eval()
    plmu.save(model, path)
    x = torch.randn(5, 3)
    again, stream = plmu.load(path).eval(), plmu.Stream(model)
    out = torch.stack([stream.push(sample) for sample in x])
    # Fewer than 100 products are summed in an output.
    bound = 100 * torch.finfo(torch.float32).eps * out.abs().max().item()
    torch.testing.assert_close(out, again(x[None])[0][0].detach(), rtol=0, atol=bound)


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        (
            (ParallelLMU(3, 8, **SMALL), nn.Linear(9, 8)),
            r"module 1 \(Linear\) takes 9 features, but those before it give 8",
        ),
        ((nn.Linear(3, 4), nn.GELU(), nn.LayerNorm(5)), r"module 2 \(LayerNorm\) takes 5 features"),
        ((nn.Linear(3, 8), nn.GLU(), ParallelLMU(8, 2, **SMALL)), r"module 2 \(ParallelLMU\) takes 8 .* give 4"),
        ((plmu.DelayLayer(3, **SMALL), plmu.Standardize(3)), r"module 1 \(Standardize\) takes 3 .* give 12"),
        (
            (
                plmu.Sequential(nn.Embedding(9, 3), nn.Sequential(nn.Linear(3, 5), nn.ReLU())),
                plmu.Residual(nn.Linear(4, 4)),
            ),
            r"module 1 \(Residual\) takes 4 .* give 5",
        ),
    ],
    ids=str,
)
def test_sizes_that_do_not_fit_are_refused_at_once(modules, message) -> None:
    with pytest.raises(ValueError, match=message):
        plmu.Sequential(*modules)
    model = plmu.Sequential(modules[0])
    with pytest.raises(ValueError, match="features"):
        model.extend(modules[1:])
    assert len(model) == 1


def test_modules_of_unknown_sizes_fit_anywhere() -> None:
    class Mine(nn.Module):
        per_step = True

    plmu.Sequential(nn.Linear(3, 4), Mine(), nn.Linear(7, 2), nn.Softmax(-1), nn.Linear(2, 1))


def test_sizes_are_compared_only_where_they_are_known_for_sure() -> None:
    class Doubled(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = super().forward(x)
            return torch.cat([out, -out], dim=-1)

    hooked = nn.Linear(2, 3)
    hooked.register_forward_hook(lambda module, given, out: torch.cat([out, out], dim=-1))
    for first in (Doubled(2, 3), hooked):
        assert Sequential(first, ParallelLMU(6, 3, **SMALL))(torch.randn(2, 5, 2))[0].shape == (2, 5, 3)
    lazy = Sequential(ParallelLMU(2, 3, **SMALL), nn.LazyLinear(4), nn.Linear(4, 1))
    assert lazy(torch.randn(2, 5, 2))[0].shape == (2, 5, 1)
