"""Text, or any other tokens, from a language model: one token at a time, each sampled and fed back."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from plmu.folded import Folded
from plmu.modes import unwrapped
from plmu.nn.folding import fold
from plmu.nn.stacking import entrance
from plmu.nn.steppable import Steppable, positive
from plmu.state_tree import map_state, without_subnormal

_FLUSH_EVERY = 256  # steps


def generate(
    model: Steppable,
    prompt: Iterable[int],
    length: int | None = None,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    excluded: Iterable[int] = (),
    seed: int | torch.Generator | None = None,
) -> Iterator[int]:
    """Sample tokens from a language model, each fed back to give the next.

    >>> tokens = plmu.generate(model, prompt=[3, 1, 4], length=100, temperature=0.8, seed=0)
    >>> for token in tokens:
    ...     print(token)

    The model steps through the prompt at once, in the folded form that `plmu.Stream` uses: without gradients, with
    dropout off, and with a state of constant size. Later changes to the model do not affect the tokens. Each token is
    sampled when it is asked for, and takes the same time however many came before it.

    Args:
        model: a steppable language model: token numbers in, logits over the same tokens out. AveragedModel, DDP and
            torch.compile wrappers are removed.
        prompt: the token numbers to begin with, at least one. They are not among the tokens returned.
        length: how many tokens to sample; None for no end.
        temperature: what logits are divided by: below 1 the likely tokens become more likely. 0 always takes the most
            likely token.
        top_k: sample from the k most likely tokens alone; None for all.
        top_p: sample from the fewest most likely tokens whose probabilities, after temperature and top_k, add up to at
            least this; None for all.
        excluded: token numbers that are never sampled, for instance that of unknown words.
        seed: a number, or a CPU `torch.Generator`, which makes the tokens the same again; None to go on with the
            random numbers of torch.

    Returns:
        An iterator over the sampled token numbers.

    Raises:
        TypeError: the model is not steppable, does not take token numbers, or the prompt does not consist of any.
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
    for token in tokens:
        logits = steps.push(token)
    return _sampled(steps, logits, sampler, limit)


def _sampled(steps: _Steps, logits: Tensor, sampler: _Sampler, length: int | None) -> Iterator[int]:
    count = 0
    while True:
        token = sampler.sample(logits)
        yield token
        count += 1
        if count == length:
            return
        logits = steps.push(token)


class _Steps:
    """A folded language model and its state."""

    def __init__(self, folded: Folded, size: int, device: torch.device) -> None:
        self.folded, self.size, self.device = folded, size, device
        self.state: Any = None
        self.count = 0

    def push(self, token: int) -> Tensor:
        """The logits (tokens,) after this token, in float64 on the CPU."""
        with torch.inference_mode():
            out, state = self.folded.step(torch.tensor([token], device=self.device), self.state)
            self.count += 1
            if self.count % _FLUSH_EVERY == 0:  # a CPU is slow with them
                state = map_state(state, without_subnormal)
            self.state = state
            if out.shape != (1, self.size):
                raise ValueError(
                    f"model must have one output for each of its {self.size} tokens, its logit; got"
                    f" {tuple(out.shape[1:])} outputs"
                )
            return out[0].to("cpu", torch.float64)


class _Sampler:
    """How a token is drawn from logits."""

    def __init__(
        self,
        size: int,
        temperature: float,
        top_k: int | None,
        top_p: float | None,
        excluded: list[int],
        seed: int | torch.Generator | None,
    ) -> None:
        self.temperature = _number(temperature, "temperature")
        if not 0 <= self.temperature < math.inf:
            raise ValueError(f"temperature must be a finite number of at least 0, got {temperature!r}")
        self.top_k = None if top_k is None else min(positive(top_k, "top_k"), size)
        self.top_p = None if top_p is None else _number(top_p, "top_p")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1, got {top_p!r}")
        if len(set(excluded)) == size:
            raise ValueError(f"excluded must leave a token to sample, got all {size}")
        self.excluded = torch.tensor(excluded) if excluded else None
        self.generator = _generator(seed)

    def sample(self, logits: Tensor) -> int:
        """A token from its logits (tokens,), which are changed."""
        with torch.inference_mode():
            if self.excluded is not None:
                logits.index_fill_(0, self.excluded, -math.inf)
            if self.temperature == 0:
                token = int(logits.argmax())
                _check_finite(logits[token].item())
                return token
            names: Tensor | None = None
            if self.top_k is not None:
                logits, names = torch.topk(logits, self.top_k)
            elif self.top_p is not None:
                logits, names = torch.sort(logits, descending=True)
            # The highest is subtracted first: a low temperature would make infinities of large logits.
            total = (logits - logits.max()).div_(self.temperature).exp_().cumsum_(0)
            mass = total[-1].item()
            _check_finite(mass)
            if self.top_p is not None:
                kept = int(torch.searchsorted(total, self.top_p * mass))
                mass = total[kept].item()
            drawn = mass * torch.rand((), dtype=torch.float64, generator=self.generator).item()
            place = int(torch.searchsorted(total, drawn, right=True))
            return place if names is None else int(names[place])


def _check_finite(value: float) -> None:
    if not math.isfinite(value):
        raise ValueError("the model's output has numbers that are not finite: its weights or its state are broken")


def _generator(seed: int | torch.Generator | None) -> torch.Generator | None:
    if seed is None:
        return None
    if isinstance(seed, torch.Generator):
        if seed.device.type != "cpu":
            raise ValueError(f"seed must be a generator on the CPU, got one on {seed.device}")
        return seed
    try:
        return torch.Generator().manual_seed(_whole(seed))
    except (TypeError, RuntimeError, ValueError, OverflowError):
        raise ValueError(f"seed must be a whole number of 64 bits, a torch.Generator or None; got {seed!r}") from None


def _tokens(given: Iterable[int], name: str, size: int) -> list[int]:
    """Token numbers as whole numbers, checked."""
    if isinstance(given, Tensor):
        if given.dim() != 1 or given.is_floating_point() or given.is_complex() or given.dtype == torch.bool:
            raise TypeError(f"{name} must be token numbers (time,), got {given.dtype} of shape {tuple(given.shape)}")
        given = given.tolist()
    elif isinstance(given, str | bytes):
        raise TypeError(f"{name} must be token numbers, got {type(given).__name__}: encode the text first")
    try:
        tokens = [_whole(one) for one in given]
    except TypeError:
        raise TypeError(f"{name} must be token numbers, got {str(given)[:60]!r}") from None
    wrong = next((one for one in tokens if not 0 <= one < size), None)
    if wrong is not None:
        raise ValueError(f"{name} must have token numbers between 0 and {size - 1}, got {wrong}")
    return tokens


def _whole(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError("a bool is no whole number")
    return operator.index(value)


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool | str | bytes):
        raise ValueError(f"{name} must be a number, got {value!r}")
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name} must be a number, got {value!r}") from None
