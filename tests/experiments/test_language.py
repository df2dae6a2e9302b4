"""Language models: what is built, and scores over a whole text against a plain loop over its tokens."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from untrained import EXPERIMENTS, built

import plmu
from plmu.experiments import language
from plmu.experiments.language import (
    LSTMLanguageModel,
    LSTMModel,
    ModernModel,
    PlmuModel,
    as_tokens,
    carried_nats,
    language_task,
    reset_nats,
    scores,
)
from plmu.text.symbols import Characters, Words

CPU = torch.device("cpu")
SIZE = 11
MODELS = {
    "paper": PlmuModel(width=8, blocks=2, order=3, theta=4.0),
    "tied": PlmuModel(width=8, blocks=1, order=3, theta=4.0, highways=0, tied=True),
    "attention": PlmuModel(width=8, blocks=1, order=3, theta=4.0, attention=2, window=5),
    "modern": ModernModel(width=8, blocks=2, order=3, thetas=(2.0, 9.0), hidden=6),
    "convolution": ModernModel(width=8, blocks=1, order=3, thetas=(2.0, 9.0), hidden=6, kernel=3, tied=False),
    "selective": ModernModel(width=16, blocks=1, order=3, thetas=(2.0, 9.0), hidden=6, heads=2),
}


def model_of(name: str) -> Any:
    torch.manual_seed(1)
    return language.build(MODELS[name], SIZE).eval()


def tokens_of(count: int) -> Tensor:
    return torch.randint(SIZE, (count,), dtype=torch.uint8)


def losses_step_by_step(model: Any, tokens: Tensor, reset: int | None = None) -> list[float]:
    """Of each token but the first, in nats; the state is forgotten every `reset` tokens."""
    found, state = [], None
    for place, (token, after) in enumerate(zip(tokens[:-1].long(), tokens[1:].long(), strict=True)):
        if reset is not None and place % reset == 0:
            state = None
        out, state = model.step(token[None], state)
        found.append(cross_entropy(out, after[None]).item())
    return found


@pytest.mark.parametrize("name", MODELS)
def test_scores_are_those_of_a_loop_over_tokens(name: str) -> None:
    model, tokens = model_of(name), tokens_of(90)
    with torch.no_grad():
        carried = losses_step_by_step(model, tokens)
        forgetting = losses_step_by_step(model, tokens, reset=20)  # 89 tokens: the last window has 9
        for piece in (1 << 16, 32, 1):
            found = scores(model, tokens, "bpc", 20, piece)
            assert found.keys() == {"bpc", "bpc_reset_20"}
            assert found["bpc"] == pytest.approx(sum(carried) / 89 / math.log(2), rel=1e-5)
            assert found["bpc_reset_20"] == pytest.approx(sum(forgetting) / 89 / math.log(2), rel=1e-5)
        perplexity = scores(model, tokens, "perplexity", 0)
    assert perplexity == {"perplexity": pytest.approx(math.exp(sum(carried) / 89), rel=1e-5)}


class Forgetful(nn.Module):
    """Predicts from the last token alone, and notes how many tokens it reads at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Embedding(SIZE, 8), nn.Linear(8, SIZE))
        self.sizes: list[int] = []

    def forward(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        self.sizes.append(x.numel())
        return self.layers(x), state


@pytest.mark.parametrize(("rows", "lead"), [(2, 0), (3, 7), (5, 4), (7, 1), (4, 20)])
@pytest.mark.parametrize("count", [2, 9, 50, 161, 162, 163, 164])
def test_rows_count_each_token_once(rows: int, lead: int, count: int) -> None:
    model, tokens = Forgetful(), tokens_of(count)
    with torch.no_grad():
        one = carried_nats(model, tokens, CPU)
        assert carried_nats(model, tokens, CPU, rows, lead) == pytest.approx(one, rel=1e-6)
        assert carried_nats(model, tokens, CPU, rows, lead, piece=13) == pytest.approx(one, rel=1e-6)
        out = model(tokens[None, :-1].long())[0][0]
    assert one == pytest.approx(cross_entropy(out, tokens[1:].long()).item(), rel=1e-5)


@pytest.mark.parametrize("count", [1, 19, 20, 21, 39, 40, 41, 77])
def test_windows_without_a_state_count_each_token_once(count: int) -> None:
    model, tokens = Forgetful(), tokens_of(count + 1)
    with torch.no_grad():
        expected = carried_nats(model, tokens, CPU)
        for piece in (1000, 45, 1):
            assert reset_nats(model, tokens, CPU, 20, piece) == pytest.approx(expected, rel=1e-6)


def test_rows_of_an_lstm_begin_before_what_they_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that it has read enough: the lead is longer than it remembers."""
    torch.manual_seed(1)
    model = language.build(LSTMModel(embedding=4, hidden=6, layers=2, forget_bias=0.0), SIZE).eval()
    tokens = tokens_of(700)
    with torch.no_grad():
        whole = carried_nats(model, tokens, CPU)
        assert carried_nats(model, tokens, CPU, 4, 60) == pytest.approx(whole, rel=1e-6)
        assert carried_nats(model, tokens, CPU, 4, 0) != pytest.approx(whole, rel=1e-6)
        monkeypatch.setattr(language, "ROWS", 4)
        monkeypatch.setattr(language, "LEAD", 60)
        read: list[torch.Size] = []
        model.register_forward_pre_hook(lambda _, given: read.append(given[0].shape))
        assert scores(model, tokens, "bpc", 0)["bpc"] == pytest.approx(whole / math.log(2), rel=1e-6)
    assert {shape[0] for shape in read} == {4}


def test_an_lstm_is_its_layers_one_after_another() -> None:
    config = LSTMModel(embedding=4, hidden=6, layers=2, dropout=0.5)
    model = LSTMLanguageModel(SIZE, config).eval()
    x = torch.randint(SIZE, (3, 9))
    whole, end = model(x)
    first, state = model(x[:, :5])
    second, after = model(x[:, 5:], state)
    torch.testing.assert_close(torch.cat([first, second], 1), whole)
    torch.testing.assert_close(after, end)
    hidden = model.embedding(x)
    for layer in model.layers:
        hidden = layer(hidden)[0]
    torch.testing.assert_close(model.out(hidden), whole)


def test_many_words_are_scored_in_smaller_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that their logits fit into memory."""
    numbers = np.arange(200, dtype=np.uint16) % SIZE
    splits = dict.fromkeys(("train", "valid", "test"), numbers)
    words = Words(tuple(f"w{k}" for k in range(SIZE - 2)))
    model = Forgetful()
    found = []
    for logits, most in ((1 << 28, 199), (SIZE * 30, 30)):
        monkeypatch.setattr(language, "LOGITS", logits)
        task = language_task(splits, words, 8, {}, "perplexity", 20)
        model.sizes.clear()
        assert task.score is not None
        with torch.no_grad():
            found.append(task.score(model, task.valid))
        assert max(model.sizes) <= most
    assert found[0] == pytest.approx(found[1], rel=1e-6)


def test_the_loss_is_the_mean_over_tokens() -> None:
    model = model_of("paper").train()
    batch = (torch.randint(SIZE, (2, 12)), torch.randint(SIZE, (2, 12)))
    model.eval()
    out, end = model(batch[0])
    expected = cross_entropy(out.flatten(0, 1), batch[1].flatten())
    torch.testing.assert_close(language.loss(model, batch), expected)
    found, state = language.carried_loss(model, batch, None)
    torch.testing.assert_close(found, expected)
    again, _ = language.carried_loss(model, batch, state)
    torch.testing.assert_close(again, cross_entropy(model(batch[0], end)[0].flatten(0, 1), batch[1].flatten()))


@pytest.mark.parametrize(
    ("given", "dtype"),
    [
        (np.array([0, 255], np.uint8), torch.uint8),
        (np.array([0, 2**15 - 1], np.uint16), torch.int16),
        (np.array([0, 2**16 - 1], np.uint16), torch.int32),
        (np.array([0, 70_000], np.uint32), torch.int32),
    ],
)
def test_token_numbers_of_any_size(given: np.ndarray, dtype: torch.dtype) -> None:
    for writeable in (True, False):
        given.flags.writeable = writeable
        found = as_tokens(given)
        assert found.dtype == dtype
        assert found.tolist() == given.tolist()
        assert found[torch.tensor([[1, 0]])].long().tolist() == [given.tolist()[::-1]]


@pytest.mark.parametrize("name", MODELS)
def test_models_are_what_their_options_say(name: str) -> None:
    config, model = MODELS[name], model_of(name)
    layers = list(model.layers)
    kinds = plmu.LMUBlock if isinstance(config, PlmuModel) else plmu.MemoryBlock
    assert sum(isinstance(layer, kinds) for layer in layers) == config.blocks
    assert isinstance(layers[0], nn.Embedding)
    assert (layers[-1].weight is layers[0].weight) == config.tied
    parts = list(model.modules())
    attention = [part for part in parts if isinstance(part, plmu.CausalAttention)]
    if isinstance(config, PlmuModel):
        assert sum(isinstance(part, plmu.Highway) for part in parts) == config.blocks * config.highways
        assert [(part.heads, part.window) for part in attention] == [(2, 5)] * bool(config.attention)
    else:
        assert sum(isinstance(part, plmu.CausalConvolution) for part in parts) == config.blocks * bool(config.kernel)
        assert sum(isinstance(part, plmu.SelectiveLMU) for part in parts) == config.blocks * bool(config.heads)
    probabilities = {part.p for part in parts if isinstance(part, nn.Dropout)}
    assert probabilities == {config.dropout}
    x = torch.randint(SIZE, (2, 12))
    whole, _ = model(x)
    stream = plmu.Stream(model)
    stepped = torch.stack([stream.push(x[:, t]) for t in range(12)], 1)
    torch.testing.assert_close(stepped, whole, rtol=1e-4, atol=1e-4)
    assert whole.std() < 5, "an untrained model is not sure of anything"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            lambda: PlmuModel(width=8, attention=3),
            "model.width must be an even multiple of model.attention, got 8 and 3",
        ),
        (lambda: PlmuModel(window=1), "model.window must be at least 2 steps; got 1"),
        (lambda: ModernModel(width=10), "model.width must be a multiple of the 4 windows of model.thetas, got 10"),
        (lambda: ModernModel(width=16, heads=3), "model.width must be a multiple of model.heads, got 16 and 3"),
        (lambda: ModernModel(thetas=()), "model.thetas must be one or more numbers of steps"),
    ],
)
def test_models_that_cannot_be_built_are_named(wrong: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wrong()


@pytest.mark.parametrize(("experiment", "most"), [("text8", 3_300_000), ("reviews", 34_000_000)])
def test_parameter_budgets(experiment: str, most: int) -> None:
    """With 27 characters, and with 30,002 words."""
    for name in EXPERIMENTS[experiment].models:
        network, task = built(experiment, name)
        assert task.symbols.size == (27 if experiment == "text8" else 30_002)
        count = sum(p.numel() for p in network.parameters())
        assert 0.75 * most < count <= most, name


def test_a_task_knows_its_symbols() -> None:
    numbers = np.arange(200, dtype=np.uint8) % 3
    task = language_task(dict.fromkeys(("train", "valid", "test"), numbers), Characters("abc"), 8, {"a": 1}, "bpc", 9)
    assert task.symbols is not None
    assert (task.symbols.size, task.window, task.metric, task.higher_is_better) == (3, 8, "bpc", False)
    assert (task.measure, task.finish) == (None, None), "it is scored over whole splits"
    assert task.score is not None
    for wrong in ({"score": None}, {"measure": lambda model, batch: None}, {"finish": lambda sums: {}}):
        with pytest.raises(TypeError, match="either measure and finish, or score"):
            dataclasses.replace(task, **wrong)
