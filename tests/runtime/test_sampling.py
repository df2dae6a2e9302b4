"""plmu.generate: the tokens of the parallel forward, distributions, seeds, and every wrong argument."""

import itertools
import math
from collections import Counter
from typing import Any

import pytest
import torch
from blocks import BLOCKS, WIDTH, WINDOWS, build, language_model
from closeness import assert_same, within
from torch import Tensor, nn

import plmu
from plmu import CausalAttention, LMUBlock, MemoryBlock, Residual, Sequential, WeightedStack
from plmu.runtime import sampling
from plmu.runtime.state_tree import leaves

LETTERS = 11
PROMPT = [3, 1, 4, 1, 5]


def deep() -> Sequential:
    """A language model with attention, and with all else that blocks may have."""
    torch.manual_seed(0)
    stack = WeightedStack(LMUBlock(WIDTH, 3, 4.0), MemoryBlock(WIDTH, 3, WINDOWS, kernel_size=3))
    attention = Residual(Sequential(nn.RMSNorm(WIDTH), CausalAttention(WIDTH, 2, 5)))
    return language_model(stack, MemoryBlock(WIDTH, 2, WINDOWS, heads=2), attention)


def memoryless(logits: list[float], dtype: torch.dtype = torch.float32) -> Sequential:
    """A model with the same logits after every token."""
    table = nn.Embedding(len(logits), len(logits), dtype=dtype)
    with torch.no_grad():
        table.weight.copy_(torch.tensor(logits).expand(len(logits), -1))
    return Sequential(table)


# ---------------------------------------------------------------- the same as the whole sequence


@pytest.mark.parametrize("name", [*(name for name in BLOCKS if "gated" not in name and name != "selective"), "deep"])
def test_greedy_tokens_and_logits_are_those_of_the_parallel_forward(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = (deep() if name == "deep" else language_model(build(name))).double().eval()
    observed: list[Tensor] = []
    whole_sample = sampling._Sampler.sample

    def sample(self: Any, logits: Tensor) -> int:
        observed.append(logits.clone())
        return whole_sample(self, logits)

    monkeypatch.setattr(sampling._Sampler, "sample", sample)
    tokens = list(plmu.generate(model, PROMPT, 40, temperature=0))
    with torch.no_grad():
        logits = model(torch.tensor([PROMPT + tokens[:-1]]))[0][0, len(PROMPT) - 1 :]
    assert_same(torch.stack(observed), logits)
    assert tokens == logits.argmax(1).tolist()
    assert len(set(tokens)) > 1 or name != "deep"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_precisions_of_weights(dtype: torch.dtype) -> None:
    """Each token is among the likeliest of the forward, up to rounding."""
    model = deep().to(dtype).eval()
    tokens = list(plmu.generate(model, PROMPT, 20, temperature=0))
    with torch.no_grad():
        logits = model(torch.tensor([PROMPT + tokens[:-1]]))[0][0, len(PROMPT) - 1 :].double()
    taken = logits[torch.arange(20), torch.tensor(tokens)]
    roundings = 1000 if dtype == torch.float32 else 40  # as in the tests of blocks
    within((logits.amax(1) - taken).max(), roundings * torch.finfo(dtype).eps * logits.abs().max())


def test_what_becomes_of_the_model_and_dropout_do_not_show() -> None:
    torch.manual_seed(0)
    model = language_model(MemoryBlock(WIDTH, 2, WINDOWS, dropout=0.5)).eval()
    expected = list(plmu.generate(model, PROMPT, 30, seed=0))
    tokens = plmu.generate(model.train(), PROMPT, 30, seed=0)
    beginning = [next(tokens) for _ in range(5)]
    with torch.no_grad():
        for value in model.parameters():
            value.zero_()
    assert beginning + list(tokens) == expected
    assert model.training


def test_the_caller_stays_outside_of_inference_mode() -> None:
    tokens = plmu.generate(deep(), PROMPT)
    for _ in range(3):
        next(tokens)
        assert torch.is_grad_enabled()
        assert not torch.is_inference_mode_enabled()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        inside = list(itertools.islice(plmu.generate(deep(), PROMPT, temperature=0), 20))
    assert inside == list(plmu.generate(deep(), PROMPT, 20, temperature=0))


def test_the_state_does_not_grow() -> None:
    model = deep()
    steps = sampling._Steps(plmu.fold(model), LETTERS, torch.device("cpu"))
    sizes = set()
    with torch.inference_mode():
        for token in [1, 2] * 300:
            steps.push(token)
            sizes.add(tuple(leaf.shape for leaf in leaves(steps.state)))
    assert len(sizes) == 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_on_a_gpu() -> None:
    model = deep().double()
    expected = list(plmu.generate(model, PROMPT, 30, seed=1))
    assert list(plmu.generate(model.cuda(), torch.tensor(PROMPT).cuda(), 30, seed=1)) == expected


# ---------------------------------------------------------------- distributions

LOGITS = [1.0, 0.0, 2.5, -1.0, 0.5, 2.0, -math.inf]
DRAWS = 8_000


def wanted(temperature: float, allowed: set[int]) -> Tensor:
    logits = torch.tensor(LOGITS, dtype=torch.float64) / temperature
    included = torch.tensor([number in allowed for number in range(len(LOGITS))])
    return torch.softmax(torch.where(included, logits, -math.inf), 0)


@pytest.mark.parametrize(
    ("options", "allowed"),
    [
        ({}, {0, 1, 2, 3, 4, 5}),
        ({"temperature": 0.5}, {0, 1, 2, 3, 4, 5}),
        ({"temperature": 4}, {0, 1, 2, 3, 4, 5}),
        ({"top_k": 3}, {0, 2, 5}),
        ({"top_k": 100}, {0, 1, 2, 3, 4, 5}),
        ({"top_p": 0.7}, {2, 5}),  # 0.48 and 0.29
        ({"top_p": 0.8}, {0, 2, 5}),  # and 0.11
        ({"top_p": 1.0}, {0, 1, 2, 3, 4, 5}),
        ({"top_k": 4, "top_p": 0.9}, {0, 2, 5}),  # of the four, 0.51, 0.31, 0.11 and 0.07
        ({"temperature": 0.25, "top_p": 0.95}, {2, 5}),
        ({"excluded": [2, 0]}, {1, 3, 4, 5}),
        ({"excluded": torch.tensor([2]), "top_k": 2}, {0, 5}),
    ],
    ids=str,
)
def test_frequencies_follow_the_softmax(options: dict[str, Any], allowed: set[int]) -> None:
    """Hoeffding: one frequency of n draws is further than t from its probability with a chance below 2 exp(−2 n t²).
    For all together it is one in a million."""
    drawn = Counter(plmu.generate(memoryless(LOGITS), [0], DRAWS, seed=3, **options))
    assert set(drawn) <= allowed
    bound = math.sqrt(math.log(2 * len(LOGITS) * 1e6) / (2 * DRAWS))
    expected = wanted(options.get("temperature", 1.0), allowed)
    for number, probability in enumerate(expected.tolist()):
        within(abs(drawn[number] / DRAWS - probability), bound, f"the frequency's {number}")


@pytest.mark.parametrize(
    "options",
    [{"top_k": 1}, {"top_p": 1e-12}, {"temperature": 1e-9}, {"temperature": 1e-300}, {"temperature": 0.0, "top_k": 5}],
    ids=str,
)
def test_the_narrowest_choice_is_the_greedy_one(options: dict[str, Any]) -> None:
    model = deep().double()
    assert list(plmu.generate(model, PROMPT, 40, **options)) == list(plmu.generate(model, PROMPT, 40, temperature=0))


def test_extreme_logits_and_temperatures() -> None:
    large = memoryless([3e38, -3e38, 1e38])
    for temperature in (1e-150, 1.0, 1e30):
        assert set(plmu.generate(large, [0], 50, temperature=temperature)) == {0}
    assert set(plmu.generate(memoryless(LOGITS), [0], 300, temperature=1e300, seed=0)) == {0, 1, 2, 3, 4, 5}


def test_seeds() -> None:
    model = deep()

    def tokens(seed: int | None) -> list[int]:
        return list(plmu.generate(model, PROMPT, 60, seed=seed))

    assert tokens(0) == tokens(0)
    assert tokens(0) != tokens(1)
    torch.manual_seed(5)
    first, second = tokens(None), tokens(None)
    assert first != second
    torch.manual_seed(5)
    assert [tokens(None), tokens(None)] == [first, second]


def test_prompts_may_be_any_numbers() -> None:
    model = deep()
    expected = list(plmu.generate(model, PROMPT, 9, seed=0))
    for prompt in (tuple(PROMPT), iter(PROMPT), torch.tensor(PROMPT), torch.tensor(PROMPT, dtype=torch.uint8)):
        assert list(plmu.generate(model, prompt, 9, seed=0)) == expected
    assert len(list(plmu.generate(model, PROMPT, 1))) == 1


# ---------------------------------------------------------------- what is refused


WRONG: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "no prompt": ({"prompt": []}, ValueError, "prompt must have at least one token, got none"),
    "a text": ({"prompt": "abc"}, TypeError, "prompt must be token numbers, got str: encode the text first"),
    "fractions": ({"prompt": [1, 2.5]}, TypeError, r"prompt must be token numbers, got '\[1, 2.5\]'"),
    "bools": ({"prompt": [True]}, TypeError, "prompt must be token numbers"),
    "one number": ({"prompt": 3}, TypeError, "prompt must be token numbers, got '3'"),
    "a batch": ({"prompt": torch.ones(1, 2).long()}, TypeError, r"token numbers \(time,\), got torch.int64 of shape"),
    "a float tensor": ({"prompt": torch.ones(2)}, TypeError, "got torch.float32"),
    "out of range": ({"prompt": [1, 11]}, ValueError, "prompt must have token numbers between 0 and 10, got 11"),
    "negative": ({"prompt": [-1]}, ValueError, "between 0 and 10, got -1"),
    "length": ({"length": 0}, ValueError, "length must be an integer of at least 1, got 0"),
    "half a length": ({"length": 2.5}, ValueError, "length must be an integer of at least 1, got 2.5"),
    "temperature": ({"temperature": -0.5}, ValueError, "temperature must be a finite number of at least 0, got -0.5"),
    "NaN": ({"temperature": math.nan}, ValueError, "temperature must be a finite number of at least 0, got nan"),
    "infinite": ({"temperature": math.inf}, ValueError, "temperature must be a finite number of at least 0, got inf"),
    "a word": ({"temperature": "hot"}, ValueError, "temperature must be a number, got 'hot'"),
    "nothing": ({"temperature": None}, ValueError, "temperature must be a number, got None"),
    "top_k": ({"top_k": 0}, ValueError, "top_k must be an integer of at least 1, got 0"),
    "top_p": ({"top_p": 0.0}, ValueError, "top_p must be above 0 and at most 1, got 0.0"),
    "top_p above": ({"top_p": 1.5}, ValueError, "top_p must be above 0 and at most 1, got 1.5"),
    "top_p is NaN": ({"top_p": math.nan}, ValueError, "top_p must be above 0 and at most 1, got nan"),
    "excluded": ({"excluded": [12]}, ValueError, "excluded must have token numbers between 0 and 10, got 12"),
    "all excluded": ({"excluded": range(11)}, ValueError, "excluded must leave a token to sample, got all 11"),
    "seed": ({"seed": 1.5}, ValueError, "seed must be an integer of at most 64 bits, or None; got 1.5"),
    "a long seed": ({"seed": 2**64}, ValueError, "seed must be an integer of at most 64 bits, or None; got 1844"),
    "no model": ({"model": nn.Linear(2, 2)}, TypeError, "model must be steppable .* got Linear"),
    "no tokens": ({"model": Sequential(nn.Linear(2, 2))}, TypeError, "this one begins with Linear"),
    "nothing in it": ({"model": Sequential(nn.ReLU())}, TypeError, "this one begins with Sequential"),
    "other outputs": (
        {"model": Sequential(nn.Embedding(11, 4), nn.Linear(4, 2))}, ValueError,
        "model must have one output for each of its 11 tokens, the logit; got 2 outputs",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_wrong_arguments_are_named_at_once(what: str) -> None:
    arguments, kind, words = WRONG[what]
    with pytest.raises(kind, match=words):
        plmu.generate(**({"model": deep(), "prompt": PROMPT} | arguments))  # without taking a token


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("options", [{}, {"temperature": 0}, {"top_k": 2}, {"top_p": 0.5}], ids=str)
def test_outputs_that_are_not_finite(bad: float, options: dict[str, Any]) -> None:
    tokens = plmu.generate(memoryless([0.0, bad, 1.0]), [0], **options)
    with pytest.raises(ValueError, match="the model's output is not finite: its weights or its state are broken"):
        next(tokens)
