"""Sequential and Residual: states threaded, modules that mix time steps refused by name, both directions of time."""

import copy
import pickle
from functools import partial

import closeness
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence

import plmu
from plmu import LMU, DelayLayer, ParallelLMU, Residual, Sequential

TIME = 12


assert_same = partial(closeness.assert_same, terms=100, size=0.0)


def layer(inputs: int = 3, hidden: int = 4, **options) -> ParallelLMU:
    return ParallelLMU(inputs, hidden, order=4, theta=7.0, **options)


def test_states_are_threaded() -> None:
    first, linear, second, last = layer(), nn.Linear(4, 5), LMU(5, 2, order=3, theta=4.0), DelayLayer(2, 3, 6.0)
    model = Sequential(first, linear, nn.GELU(), second, last)
    x = torch.randn(2, TIME, 3)
    initial = model.initial_state(2, x.dtype, x.device)
    for state in (None, initial):
        out, ends = model(x, state)
        hidden, end_0 = first(x)
        hidden, end_3 = second(nn.functional.gelu(linear(hidden)))
        expected, end_4 = last(hidden)
        assert torch.equal(out, expected)
        assert (ends[1], ends[2]) == (None, None)
        for found, wanted in zip((ends[0], *ends[3], ends[4]), (end_0, *end_3, end_4), strict=True):
            assert torch.equal(found, wanted)
    # And each goes back to its own.
    again, _ = model(x, ends)
    hidden = second(nn.functional.gelu(linear(first(x, end_0)[0])), end_3)[0]
    assert torch.equal(again, last(hidden, end_4)[0])


def test_the_initial_state_is_what_none_stands_for() -> None:
    model = Sequential(Residual(layer(3, 3)), Sequential(nn.Linear(3, 2), LMU(2, 2, order=3, theta=4.0)))
    initial = model.initial_state(2, torch.float32, torch.device("cpu"))
    outer, (nothing, (h, m)) = initial
    assert nothing is None
    assert [tuple(one.shape) for one in (outer, h, m)] == [(2, 4, 1), (2, 2), (2, 3, 1)]
    assert not any(one.any() for one in (outer, h, m))


def test_a_detached_state_has_no_history() -> None:
    model = Sequential(layer(), nn.Linear(4, 2), Residual(LMU(2, 2, order=3, theta=4.0)))
    _, state = model(torch.randn(2, TIME, 3))
    first, nothing, (h, m) = plmu.nn.detached(state)
    assert nothing is None
    for found, given in zip((first, h, m), (state[0], *state[2]), strict=True):
        assert given.requires_grad
        assert not found.requires_grad
        assert torch.equal(found, given)
    assert plmu.nn.detached(None) is None


def test_residual_adds_its_input() -> None:
    inner = layer(3, 3)
    x = torch.randn(2, TIME, 3)
    out, state = Residual(inner)(x)
    expected, expected_state = inner(x)
    assert torch.equal(out, x + expected)
    assert torch.equal(state, expected_state)
    out_t, _ = Residual(inner).step(x[:, 0])
    assert torch.equal(out_t, x[:, 0] + inner.step(x[:, 0])[0])


def test_residual_of_a_module_without_state() -> None:
    linear = nn.Linear(3, 3)
    x = torch.randn(2, TIME, 3)
    out, state = Residual(linear)(x)
    assert state is None
    assert torch.equal(out, x + linear(x))
    assert Residual(linear).step(x[:, 0])[1] is None
    assert not Residual(linear)(x, lengths=[TIME, 0])[0][1].any()


@pytest.mark.parametrize("inner", [layer(3, 4), nn.Linear(3, 4)], ids=lambda one: type(one).__name__)
def test_residual_of_another_size_is_named(inner: nn.Module) -> None:
    with pytest.raises(ValueError, match=f"Residual .*{type(inner).__name__} turned 3 features into 4"):
        Residual(inner)(torch.randn(2, TIME, 3))
    with pytest.raises(ValueError, match=r"Residual .*3 features into 4"):
        Residual(inner).step(torch.randn(2, 3))


def test_tokens_enter_through_an_embedding() -> None:
    model = Sequential(nn.Embedding(11, 3), layer(), nn.Linear(4, 11))
    tokens = torch.randint(11, (2, TIME))
    out, _ = model(tokens)
    assert out.shape == (2, TIME, 11)
    state = None
    for t in range(TIME):
        out_t, state = model.step(tokens[:, t], state)
        assert_same(out_t, out[:, t])
    padded = tokens.clone()
    padded[1, 5:] = -100  # padding may hold anything, also what is no token
    short, _ = model(padded, lengths=[TIME, 5])
    assert_same(short[1, :5], out[1, :5])
    assert not short[1, 5:].any()


def test_tokens_into_a_model_without_an_embedding_are_named() -> None:
    with pytest.raises(TypeError, match=r"x must be floating point, got torch.int64"):
        Sequential(layer())(torch.zeros(2, TIME, 3, dtype=torch.int64))
    with pytest.raises(ValueError, match="x must have shape"):
        Sequential(layer())(torch.zeros(2, TIME, dtype=torch.int64))


class TakesTime(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.cumsum(1)


MIXING = [
    nn.Conv1d(3, 3, 1),
    nn.LSTM(3, 3),
    nn.GRU(3, 3),
    nn.BatchNorm1d(3),
    nn.Flatten(),
    nn.Dropout2d(),
    nn.MultiheadAttention(3, 1),
    nn.TransformerEncoderLayer(3, 1, 4),
    nn.Softmax(dim=1),
    nn.GLU(dim=1),
    nn.AvgPool1d(2),
    nn.GroupNorm(1, 3),
    nn.LayerNorm((TIME, 3)),  # over time too
    nn.PReLU(3),  # its channels are the second axis: time in a sequence, features in a step
    nn.ModuleList([nn.Linear(3, 3)]),
    plmu.LMUCell(3, 3, order=2, theta=3.0),
    TakesTime(),
]


@pytest.mark.parametrize("module", MIXING, ids=lambda one: str(one)[:20])
def test_a_module_that_may_mix_time_steps_is_refused_by_name(module: nn.Module) -> None:
    name = type(module).__name__
    with pytest.raises(ValueError, match=rf"module 1 \({name}\).*per_step = True`; if it has a state, subclass plmu"):
        Sequential(nn.Linear(3, 3), module)
    with pytest.raises(ValueError, match=rf"the module \({name}\)"):
        Residual(module)
    with pytest.raises(ValueError, match=rf"module 0\.1\.0 \({name}\)"):
        Sequential(nn.Sequential(nn.Linear(3, 3), nn.Sequential(module)))


@pytest.mark.parametrize("module", [nn.ReLU(inplace=True), nn.Dropout(0.5, inplace=True)], ids=lambda one: str(one)[:7])
def test_a_module_that_overwrites_its_input_is_refused(module: nn.Module) -> None:
    for build in (
        lambda: Sequential(layer(), module),
        lambda: Residual(module),
        lambda: Sequential(nn.Sequential(module)),
    ):
        with pytest.raises(ValueError, match=rf"{type(module).__name__}\) has inplace=True .* use inplace=False"):
            build()


def test_what_becomes_of_an_output_does_not_reach_the_state() -> None:
    class Overwrite(nn.Module):
        per_step = True

        def forward(self, x: Tensor) -> Tensor:
            return x.mul_(0.0)

    for first in (
        plmu.LMU(3, 4, order=4, theta=5.0),
        plmu.DelayLayer(3, order=4, theta=5.0),
        layer(output_activation=None),
    ):
        model, x = Sequential(first, Overwrite()), torch.randn(6, 2, 3)
        state, expected = None, None
        with torch.no_grad():
            for step in x:
                _, state = model.step(step, state)
                _, expected = first.step(step, expected)
        for value, right in zip(flat(state[0]), flat(expected), strict=True):
            assert torch.equal(value, right)


def flat(state: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (state,) if isinstance(state, Tensor) else state


def test_a_layer_inside_nn_sequential_is_refused_by_name() -> None:
    # nn.Sequential would pass the pair (out, state) on and lose the state.
    with pytest.raises(ValueError, match=r"module 0\.1 \(ParallelLMU\)"):
        Sequential(nn.Sequential(nn.Linear(3, 3), layer()))
    with pytest.raises(ValueError, match=r"ParallelLMU"):
        Residual(nn.Sequential(layer(3, 3)))


def test_nn_sequential_of_steps_alone_is_taken() -> None:
    inner = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Tanh(), nn.Softmax(dim=-1)), nn.GLU(dim=-1))
    model = Sequential(layer(), inner)
    x = torch.randn(2, TIME, 3)
    assert torch.equal(model(x)[0], inner(layer_out(model, x)))


def layer_out(model: Sequential, x: Tensor) -> Tensor:
    return model.layers[0](x)[0]


def test_a_module_of_your_own_may_say_that_it_acts_on_each_step_alone() -> None:
    class Square(nn.Module):
        per_step = True

        def forward(self, x: Tensor) -> Tensor:
            return x.square()

    model = Sequential(Square(), layer(), nn.Sequential(Square()))
    x = torch.randn(2, TIME, 3)
    out, state = model(x)
    assert torch.equal(out, model.layers[1](x.square())[0].square())
    assert len(state) == 3


def test_a_steppable_of_your_own() -> None:
    class Sum(plmu.nn.Steppable):
        def forward(self, x, state=None, lengths=None, *, resets=None):
            out = x.cumsum(1) if state is None else x.cumsum(1) + state[:, None]
            return out, out[:, -1]

        def step(self, x, state=None):
            out = x if state is None else x + state
            return out, out

        def initial_state(self, batch, dtype, device):
            return torch.zeros(batch, 3, dtype=dtype, device=device)

    model = Sequential(Sum(), layer())
    x = torch.randn(2, TIME, 3)
    out, state = model(x)
    assert_same(state[0], x.sum(1))
    assert_same(out, model.layers[1](x.cumsum(1))[0])


@pytest.mark.parametrize("module", [torch.relu, "relu", None, nn.Linear])
def test_what_is_no_module_is_named(module: object) -> None:
    with pytest.raises(TypeError, match=r"module 0 must be an nn\.Module"):
        Sequential(module)
    with pytest.raises(TypeError, match=r"module must be an nn\.Module"):
        Residual(module)


def test_an_empty_stack_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one module"):
        Sequential()


@pytest.mark.parametrize(
    ("state", "kind"),
    [((None,), "a tuple of 1"), ((None,) * 3, "a tuple of 3"), ([None] * 2, "list"), (torch.zeros(2, 4, 1), "Tensor")],
)
def test_a_wrong_state_is_named(state: object, kind: str) -> None:
    model = Sequential(layer(), nn.Linear(4, 2))
    for call in (lambda: model(torch.zeros(2, TIME, 3), state), lambda: model.step(torch.zeros(2, 3), state)):
        with pytest.raises(ValueError, match=f"state must be a tuple of 2.*got {kind}"):
            call()
    with pytest.raises(ValueError, match="state must have shape"):
        model(torch.zeros(2, TIME, 3), (torch.zeros(2, 4, 2), None))


def test_a_layer_after_the_last_output_alone_is_refused() -> None:
    short = layer(return_sequences=False)
    with pytest.raises(ValueError, match=r"module 2 \(LMU\) needs a sequence.*return_sequences=False"):
        Sequential(short, nn.Linear(4, 4), LMU(4, 2, order=2, theta=3.0))
    with pytest.raises(ValueError, match=r"module 1 \(Residual\) needs a sequence"):
        Sequential(Sequential(short, nn.ReLU()), Residual(nn.Linear(4, 4)))
    with pytest.raises(ValueError, match=r"Residual needs a sequence, but Sequential"):
        Residual(Sequential(short))


def test_the_last_output_alone_through_a_stack() -> None:
    model = Sequential(nn.Linear(3, 3), layer(return_sequences=False), nn.Linear(4, 2))
    assert not model.returns_sequences
    assert not Sequential(model, nn.ReLU()).returns_sequences
    x = torch.randn(3, TIME, 3)
    out, _ = model(x, lengths=[TIME, 5, 0])
    assert out.shape == (3, 2)
    assert_same(out[0], model(x[:1])[0][0])
    assert_same(out[1], model(x[1:2, :5])[0][0])
    assert not out[2].any()


@pytest.mark.parametrize(
    ("x", "lengths", "resets", "message"),
    [
        (torch.zeros(3), None, None, r"x must have shape .*; got \(3,\): for one sequence give x\[None\]"),
        ([[1.0]], None, None, "x must be a tensor, got list"),
        (
            torch.nested.nested_tensor([torch.zeros(4, 3)], layout=torch.jagged),
            None,
            None,
            "x must be a padded tensor, got a nested one",
        ),
        (pack_sequence([torch.zeros(4, 3)]), None, None, "x must be a tensor, got a PackedSequence: .*pad_packed_seq"),
        (torch.zeros(2, TIME, 3), [TIME + 1, 2], None, "lengths"),
        (torch.zeros(2, TIME, 3), [1], None, "lengths"),
        (torch.zeros(2, TIME, 3), None, torch.zeros(2, TIME + 1, dtype=torch.bool), "resets"),
    ],
)
@pytest.mark.parametrize("model", [Sequential(layer(3, 3)), Residual(nn.Linear(3, 3))], ids=lambda m: type(m).__name__)
def test_bad_input_is_named(model: nn.Module, x: object, lengths: object, resets: object, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        model(x, lengths=lengths, resets=resets)


@pytest.mark.parametrize("bad", [50, -1])
def test_a_bad_token_is_named(bad: int) -> None:
    model = Sequential(nn.Embedding(50, 3), layer())
    tokens = torch.randint(50, (2, TIME))
    tokens[1, 4] = bad
    message = f"x must be token numbers from 0 to 49 for nn.Embedding, got {bad}"
    with pytest.raises(IndexError, match=message):
        model(tokens)
    with pytest.raises(IndexError, match=message):
        model.step(tokens[:, 4])
    with pytest.raises(IndexError, match=message):
        plmu.fold(model).step(tokens[:, 4])
    with pytest.raises(TypeError, match=r"x must be token numbers for nn.Embedding, got torch.float32: .* x.long\(\)"):
        model(tokens.float())
    model(tokens, lengths=[TIME, 4])  # in the padding it may be anything


def test_stacks_of_layers_train_and_copy() -> None:
    blocks = [Residual(Sequential(nn.LayerNorm(3), layer(3, 6), nn.Linear(6, 3))) for _ in range(3)]
    model = Sequential(*blocks, Sequential(layer(), nn.Linear(4, 1)))
    x = torch.randn(2, TIME, 3)
    out, _ = model(x)
    out.square().sum().backward()
    assert all(value.grad is not None and value.grad.isfinite().all() for value in model.parameters())
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(x)[0], out)
    assert set(model.state_dict()) == {name for name, _ in model.named_parameters()}


@pytest.mark.parametrize("lengths", [torch.tensor([TIME, 0, 1, 7]), [TIME, 0, 1, 7]], ids=["tensor", "list"])
def test_reverse_turns_each_sequence_within_its_length(lengths: Tensor | list[int]) -> None:
    x = torch.randn(4, TIME, 3, 2)
    turned = plmu.nn.reverse(x, lengths)
    for i, length in enumerate(lengths):
        assert torch.equal(turned[i, :length], x[i, :length].flip(0))
        assert torch.equal(turned[i, length:], x[i, length:])
    assert torch.equal(plmu.nn.reverse(turned, lengths), x)
    assert torch.equal(plmu.nn.reverse(x), x.flip(1))
    assert torch.equal(plmu.nn.reverse(x[..., 0, 0], lengths), turned[..., 0, 0])


@pytest.mark.parametrize("lengths", [[TIME + 1, 2], [-1, 2], [1, 2, 3]], ids=str)
def test_reverse_names_bad_lengths(lengths: list[int]) -> None:
    with pytest.raises(ValueError, match="lengths"):
        plmu.nn.reverse(torch.zeros(2, TIME, 3), torch.tensor(lengths))


def test_both_directions_of_time() -> None:
    forwards, backwards = layer().double(), layer().double()
    x = torch.randn(4, TIME, 3, dtype=torch.float64)
    lengths = torch.tensor([TIME, 0, 1, 7])
    left, _ = forwards(x, lengths=lengths)
    right = plmu.nn.reverse(backwards(plmu.nn.reverse(x, lengths), lengths=lengths)[0], lengths)
    both = torch.cat([left, right], dim=2)
    for i, length in enumerate(lengths.tolist()):
        assert not both[i, length:].any()
        if length:
            alone = x[i : i + 1, :length]
            expected = torch.cat([forwards(alone)[0], backwards(alone.flip(1))[0].flip(1)], dim=2)
            assert_same(both[i : i + 1, :length], expected)


def test_what_nn_linear_would_say_in_its_own_words() -> None:
    for model in (plmu.Sequential(nn.Linear(3, 3)), plmu.Residual(nn.Linear(3, 3))):
        with pytest.raises(TypeError, match=r"x is torch\.float64 and nn\.Linear torch\.float32: convert one of them"):
            model(torch.randn(1, 4, 3, dtype=torch.float64))
        with pytest.raises(ValueError, match=r"x must have shape \(batch, time, 3\), got \(1, 4, 2\)"):
            model(torch.randn(1, 4, 2))
    inside = plmu.Sequential(nn.Sequential(nn.Embedding(5, 2), nn.ReLU()))
    with pytest.raises(IndexError, match=r"x must be token numbers from 0 to 4 for nn\.Embedding, got 7"):
        inside(torch.tensor([[1, 7]]))
