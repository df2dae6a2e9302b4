"""Sampling tokens from a language model, each fed back to give the next."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from plmu.core.modes import unwrapped
from plmu.folded import Folded, fold
from plmu.nn.stacking import entrance
from plmu.nn.steppable import Steppable, positive
from plmu.runtime.state_tree import map_state, without_subnormal

_FLUSH_EVERY = 256  # steps
_NOISE = 4096  # random numbers drawn at once
_UNIFORM = 1e100  # a temperature at which all tokens are as likely, and noise does not overflow


def generate(
    model: Steppable,
    prompt: Iterable[int],
    length: int | None = None,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    excluded: Iterable[int] = (),
    seed: int | None = None,
) -> Iterator[int]:
    """Sample tokens from a language model, each fed back to give the next.

    >>> tokens = plmu.generate(model, prompt=[3, 1, 4], length=100, temperature=0.8, seed=0)
    >>> for token in tokens:
    ...     print(token)

    The model runs in the folded form that `plmu.Stream` uses: without gradients, with dropout off, and with a state
    of constant size. Later changes to the model do not affect the tokens. Each token is sampled when it is asked for,
    and takes the same time however many came before it.

    Args:
        model: a steppable language model: token numbers in, logits over the same tokens out. AveragedModel, DDP and
            torch.compile wrappers are removed.
        prompt: the token numbers to begin with, at least one. They are not returned.
        length: the number of tokens to sample; None for no end.
        temperature: what logits are divided by: below 1 the likely tokens become more likely. 0 always takes the most
            likely token.
        top_k: sample from the k most likely tokens alone; None for all.
        top_p: sample from the fewest most likely tokens whose probabilities, after temperature and top_k, add up to at
            least this; None for all.
        excluded: token numbers that are never sampled, for instance that of unknown words.
        seed: makes the tokens the same again. None draws a seed from torch's random numbers, which
            `torch.manual_seed` sets.

    Returns:
        An iterator over the sampled token numbers.

    Raises:
        TypeError: the model is not steppable or does not take token numbers, or the prompt is not token numbers.
        ValueError: an argument is out of range, or the model's outputs are not one for each token, or not finite.
    """
    inner = unwrapped(model) if isinstance(model, nn.Module) else model
    folded = fold(inner)
    first = entrance(inner)
    if not isinstance(first, nn.Embedding):
        begins = type(first).__name__ if first is not None else type(inner).__name__
        raise TypeError(f"model must take token numbers: begin it with an nn.Embedding; this one begins with {begins}")
    size = first.num_embeddings
    tokens = _tokens(prompt, "prompt", size)
    if not tokens:
        raise ValueError("prompt must have at least one token, got none")
    limit = None if length is None else positive(length, "length")
    sampler = _Sampler(size, temperature, top_k, top_p, _tokens(excluded, "excluded", size), seed)
    steps = _Steps(folded, size, first.weight.device)
    with torch.inference_mode():
        for token in tokens:
            logits = steps.push(token)
    return _sampled(steps, sampler, logits, limit)


def _sampled(steps: _Steps, sampler: _Sampler, logits: Tensor, length: int | None) -> Iterator[int]:
    with torch.inference_mode():  # but not while the caller has the token
        token = sampler.sample(logits)
    yield token
    for _ in itertools.count() if length is None else range(length - 1):
        with torch.inference_mode():
            token = sampler.sample(steps.push(token))
        yield token


class _Steps:
    """A folded language model and its state."""

    def __init__(self, folded: Folded, size: int, device: torch.device) -> None:
        self.folded, self.size = folded, size
        self.numbers = torch.arange(size, device=device)
        self.state: Any = None
        self.count = 0

    def push(self, token: int) -> Tensor:
        """The logits (tokens,) after this token."""
        out, self.state = self.folded.step(self.numbers.narrow(0, token, 1), self.state)
        self.count += 1
        if self.count % _FLUSH_EVERY == 0:  # a CPU is slow with subnormal numbers
            self.state = map_state(self.state, without_subnormal)
        if out.shape != (1, self.size):
            raise ValueError(
                f"model must have one output for each of its {self.size} tokens, the logit; got {out.shape[-1]} outputs"
            )
        return out.view(self.size)


class _Sampler:
    """How a token is drawn from logits."""

    def __init__(
        self,
        size: int,
        temperature: float,
        top_k: int | None,
        top_p: float | None,
        excluded: list[int],
        seed: int | None,
    ) -> None:
        self.temperature = _number(temperature, "temperature")
        if not 0 <= self.temperature < math.inf:
            raise ValueError(f"temperature must be a finite number of at least 0, got {temperature!r}")
        self.temperature = min(self.temperature, _UNIFORM)
        self.top_k = None if top_k is None else min(positive(top_k, "top_k"), size)
        self.top_p = None if top_p is None else _number(top_p, "top_p")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1, got {top_p!r}")
        if len(set(excluded)) == size:
            raise ValueError(f"excluded must leave a token to sample, got all {size}")
        self.excluded = torch.tensor(excluded) if excluded else None
        self.generator = torch.Generator()
        try:
            self.generator.manual_seed(int(torch.randint(2**62, ())) if seed is None else _integer(seed))
        except (TypeError, RuntimeError, ValueError, OverflowError):
            raise ValueError(f"seed must be an integer of at most 64 bits, or None; got {seed!r}") from None
        self.noise, self.used = torch.empty(0), 0  # random numbers that are drawn ahead, and how many are used up

    def sample(self, logits: Tensor) -> int:
        """A token from its logits (tokens,), which may be changed.

        The highest of logits / temperature + Gumbel noise is a draw from their softmax (the Gumbel-max trick).
        """
        if not logits.is_cpu:
            logits = logits.cpu()
        if self.excluded is not None:
            logits.index_fill_(0, self.excluded, -math.inf)
        names: Tensor | None = None
        if self.temperature > 0:
            if self.top_k is not None:
                logits, names = torch.topk(logits, self.top_k)
            elif self.top_p is not None:
                logits, names = torch.sort(logits, descending=True)
            if self.top_p is not None:
                logits = logits[: self._count_within_top_p(logits)]
            logits = torch.add(logits, self._gumbel(len(logits)), alpha=self.temperature)
        highest, place = torch.max(logits, 0)
        if not math.isfinite(highest.item()):  # a NaN counts as the highest
            raise ValueError("the model's output is not finite: its weights or its state are broken")
        return int(place if names is None else names[place])

    def _count_within_top_p(self, logits: Tensor) -> int:
        """The number of these logits, the highest first, that have the probability `top_p` together."""
        assert self.top_p is not None
        spread = (logits - logits[0]).double() / self.temperature
        total = torch.softmax(spread, 0).cumsum(0)
        return min(int(torch.searchsorted(total, self.top_p)) + 1, len(total))

    def _gumbel(self, count: int) -> Tensor:
        """`count` independent draws of Gumbel noise, drawn in advance."""
        if self.used + count > len(self.noise):
            drawn = torch.empty(max(count, _NOISE), dtype=torch.float64).exponential_(generator=self.generator)
            self.noise, self.used = drawn.log_().neg_(), 0
        self.used += count
        return self.noise[self.used - count : self.used]


def _tokens(values: Iterable[int], name: str, size: int) -> list[int]:
    """Token numbers as integers, checked."""
    if isinstance(values, Tensor):
        if values.dim() != 1 or values.is_floating_point() or values.is_complex() or values.dtype == torch.bool:
            raise TypeError(f"{name} must be token numbers (time,), got {values.dtype} of shape {tuple(values.shape)}")
        values = values.tolist()
    elif isinstance(values, str | bytes):
        raise TypeError(f"{name} must be token numbers, got {type(values).__name__}: encode the text first")
    try:
        tokens = [_integer(value) for value in values]
    except TypeError:
        raise TypeError(f"{name} must be token numbers, got {str(values)[:60]!r}") from None
    wrong = next((token for token in tokens if not 0 <= token < size), None)
    if wrong is not None:
        raise ValueError(f"{name} must have token numbers between 0 and {size - 1}, got {wrong}")
    return tokens


def _integer(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError("a bool is not an integer")
    return operator.index(value)


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool | str | bytes):
        raise ValueError(f"{name} must be a number, got {value!r}")
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name} must be a number, got {value!r}") from None
