"""The Delay Network over tokens: the same as an embedding and a DelayLayer, without the embedded text."""

import pytest
import torch
from torch import nn

import plmu
from plmu.nn import tokens as module


def _pair(**options) -> tuple[plmu.TokenDelayLayer, plmu.DelayLayer]:
    torch.manual_seed(0)
    options = {"order": 3, "theta": 12.0, **options}
    layer = plmu.TokenDelayLayer(30, 6, **options).double()
    kept = {key: value for key, value in options.items() if key != "token_dropout"}
    return layer, plmu.DelayLayer(6, **{"return_sequences": False, **kept}).double()


OPTIONS = [
    {},
    {"order": 1},
    {"order": 12},
    {"return_sequences": True},
    {"theta": [5.0, 12.0]},
    {"algorithm": "fft", "return_sequences": True},
    {"order": None, "theta": None, "system": plmu.LinearSystem([[0.9]], [0.5])},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("lengths", [None, torch.tensor([40, 1, 0, 13])])
def test_it_is_an_embedding_and_a_delay_layer(options, lengths):
    layer, delay = _pair(**options)
    given = torch.randint(0, 30, (4, 40), dtype=torch.int32)
    results = []
    for out, last in (layer(given, lengths=lengths), delay(layer.embedding(given), lengths=lengths)):
        (gradient,) = torch.autograd.grad(out.square().sum() + last.square().sum(), layer.embedding.weight)
        results.append((out, last, gradient))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b)
    assert layer.output_size == results[0][0].shape[-1]


def test_the_embedded_text_is_not_made(monkeypatch):
    layer, _ = _pair()
    given = torch.randint(0, 30, (4, 40))
    monkeypatch.setattr(nn.functional, "embedding", lambda *_, **__: pytest.fail("the text was embedded"))
    layer(given)
    monkeypatch.undo()
    made = []
    layer.embedding.register_forward_hook(lambda *_: made.append(1))
    layer(given)
    assert made  # a hook is honoured


def test_pieces_steps_and_streams_agree():
    layer, _ = _pair()
    model = plmu.Sequential(layer, plmu.Standardize(18), nn.Linear(18, 2)).double().eval()
    given = torch.randint(0, 30, (4, 40))
    plmu.standardize(model, given)
    whole, _ = model(given)
    state = model(given[:, :17])[1]
    torch.testing.assert_close(model(given[:, 17:], state)[0], whole)
    state = None
    stream = plmu.Stream(model)
    for t in range(40):
        out, state = model.step(given[:, t], state)
        pushed = stream.push(given[:, t])
    torch.testing.assert_close(out, whole)
    torch.testing.assert_close(pushed, whole)
    with pytest.raises(ValueError, match="token numbers must be between 0 and 29, got 30"):
        stream.push([30, 0, 0, 0])


def test_resets_and_padding_of_any_number():
    layer, delay = _pair()
    given = torch.randint(0, 30, (4, 40))
    resets = torch.zeros(4, 40, dtype=torch.bool)
    resets[:, 22] = True
    expected = delay(layer.embedding(given), resets=resets)
    torch.testing.assert_close(layer(given, resets=resets)[0], expected[0])
    lengths = torch.tensor([40, 1, 0, 13])
    padded = torch.where(torch.arange(40) < lengths[:, None], given, -7)
    assert torch.equal(layer(padded, lengths=lengths)[0], layer(given, lengths=lengths)[0])


@pytest.mark.parametrize("order", [1, module.MOST_SUMS + 1])
def test_tokens_are_dropped_whole_and_in_training_alone(order):
    layer, _ = _pair(order=order, token_dropout=0.4)
    nn.init.ones_(layer.embedding.weight)
    given = torch.zeros(500, 1, dtype=torch.int64)
    out = layer(given)[0]
    kept = out.ne(0).any(1)
    assert 0.5 < float(kept.double().mean()) < 0.7  # 0.6 ± 0.022
    full = layer.eval()(given)[0]
    torch.testing.assert_close(out[kept], full[kept] / 0.6)
    assert full.ne(0).any(1).all()
    stepped = layer.train().step(given[:, 0])[0]
    assert 0.5 < float(stepped.ne(0).any(1).double().mean()) < 0.7


def test_what_it_cannot_take_is_named():
    layer, _ = _pair()
    with pytest.raises(TypeError, match=r"tokens must be token numbers, int64 or int32, got torch.float32"):
        layer(torch.randn(2, 3))
    with pytest.raises(ValueError, match=r"tokens must have shape \(batch, time\) with at least one step, got \(3,\)"):
        layer(torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"tokens must have shape \(batch,\), got \(3, 2\)"):
        layer.step(torch.zeros(3, 2, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"token_dropout must be a number of at least 0 and below 1, got 1\.5"):
        _pair(token_dropout=1.5)


def test_it_saves_and_loads(tmp_path):
    layer, _ = _pair(token_dropout=0.3)
    plmu.save(layer, tmp_path / "layer.plmu")
    loaded = plmu.load(tmp_path / "layer.plmu")
    given = torch.randint(0, 30, (4, 40))
    assert torch.equal(loaded.eval()(given)[0], layer.eval()(given)[0])
    assert loaded.token_dropout == 0.3


def test_it_folds_into_a_table_and_a_memory():
    layer, _ = _pair()
    folded = plmu.fold(layer)
    assert sorted(folded.arrays()) == ["first.table", "inner.matrix"]
    given = torch.randint(0, 30, (4, 10))
    state = other = None
    for t in range(10):
        out, state = layer.step(given[:, t], state)
        found, other = folded.step(given[:, t], other)
    torch.testing.assert_close(found, out)

    class Doubled(plmu.TokenDelayLayer):
        def step(self, tokens, state=None):
            out, state = super().step(tokens, state)
            return 2 * out, state

    doubled = Doubled(30, 6, order=3, theta=12.0)
    assert torch.equal(plmu.fold(doubled).step(given[:, 0])[0], doubled.step(given[:, 0])[0])


@pytest.mark.parametrize("options", [*OPTIONS, {"trainable": "theta"}], ids=str)
@pytest.mark.parametrize("reset", [False, True])
def test_the_plan_names_what_runs(options, reset, monkeypatch):
    layer, _ = _pair(**options)
    called = []
    for name in ("_sums", "_embedded"):
        usual = getattr(layer, name)
        monkeypatch.setattr(layer, name, lambda *given, usual=usual, name=name: called.append(name) or usual(*given))
    resets = torch.zeros(2, 9, dtype=torch.bool) if reset else None
    if reset and "algorithm" in options:
        with pytest.raises(ValueError, match="fft"):
            layer.plan(batch=2, time=9, resets=True)
        return
    plan = layer.plan(batch=2, time=9, resets=reset)
    layer(torch.zeros(2, 9, dtype=torch.int64), resets=resets)
    sums = plan.algorithm == "sums of table rows"
    assert called == ["_sums" if sums else "_embedded"]
    assert sums == ("sums of table rows" not in plan.passed_over)
    assert str(plan)


@pytest.mark.parametrize(
    "table",
    [
        nn.Embedding(30, 6, padding_idx=3),
        nn.Embedding(30, 6, scale_grad_by_freq=True),
        nn.Embedding(30, 6, sparse=True),
    ],
    ids=["padding", "scaled", "sparse"],
)
def test_options_of_a_table_are_honoured(table):
    layer, delay = _pair()
    layer.embedding = table.double()
    given = torch.randint(0, 5, (4, 10))
    gradients = []
    for out in (layer(given)[0], delay(table(given))[0]):
        (gradient,) = torch.autograd.grad(out.sum(), table.weight)
        gradients.append(gradient.to_dense())
    torch.testing.assert_close(*gradients)


def test_a_table_of_another_width_is_refused():
    layer, _ = _pair()
    layer.embedding = nn.Embedding(30, 8)
    with pytest.raises(ValueError, match="embedding must have 6 columns, got 8"):
        layer(torch.zeros(2, 3, dtype=torch.int64))


@pytest.mark.parametrize("sequences", [True, False])
def test_tokens_out_of_range_are_named(sequences):
    layer, _ = _pair(return_sequences=sequences)
    with pytest.raises(IndexError, match="tokens must be from 0 to 29, got 30"):
        layer(torch.tensor([[1, 30]]))
    with pytest.raises(IndexError, match="tokens must be from 0 to 29, got -1"):
        layer.step(torch.tensor([-1]))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is deprecated")
def test_forward_mode_gradients():
    layer, _ = _pair()
    given = torch.randint(0, 30, (2, 7))
    weight, tangent = layer.embedding.weight.detach(), torch.randn(30, 6, dtype=torch.float64)

    def out(table):
        return torch.func.functional_call(layer, {"embedding.weight": table}, (given,))[0]

    _, found = torch.func.jvp(out, (weight,), (tangent,))
    torch.testing.assert_close(found, out(tangent))  # it is linear in the table


def test_the_plan_of_a_text_that_goes_on():
    layer, _ = _pair()
    assert (
        layer.plan(batch=2, time=9, state=True).passed_over["sums of table rows"].startswith("the text begins before")
    )


def test_its_repr_shows_sizes_once() -> None:
    layer = plmu.TokenDelayLayer(9, 4, 2, 5.0, token_dropout=0.1)
    assert layer.extra_repr() == "9, 4, token_dropout=0.1"
