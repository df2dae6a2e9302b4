"""A trained model folded once, for streams and sessions, which share its arrays."""

from __future__ import annotations

import copy
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from plmu.core.modes import unwrapped
from plmu.folded import fold
from plmu.modelfiles.compare import fingerprint
from plmu.nn.memory import Memory
from plmu.nn.stacking import entrance, features_of, fills
from plmu.nn.steppable import Steppable
from plmu.runtime.state_tree import finite

MISSING = ("raise", "hold", "zero")
PASS = "pass"  # missing values go to a model that takes them


class FrozenModel:
    """A trained model as it is now, in the folded form that streams and sessions share.

    >>> frozen = plmu.FrozenModel(model)
    >>> stream, sessions = plmu.Stream(frozen), plmu.Sessions(frozen)  # one copy of the weights

    Later changes to the model do not affect it.

    Args:
        model: any steppable module. AveragedModel, DDP and torch.compile wrappers are removed.

    Attributes:
        folded: what `plmu.fold(model)` gives.
        features: numbers of a sample; None for token numbers, or where the model takes any.
        takes_tokens: whether a sample is a token number.
        vocabulary: the number of tokens; None if it is not known.
        fingerprint: a hash of the model's options and weights, which saved states are checked against.
    """

    def __init__(self, model: Steppable) -> None:
        inner = unwrapped(model) if isinstance(model, nn.Module) else model
        self.folded = fold(inner)
        self.fills = fills(inner)
        self._model = copy.deepcopy(inner).eval().requires_grad_(False)
        weight, first = _first_weight(self._model)
        self.place = None  # precision and device of samples
        if weight is not None:
            self.place = weight.new_empty(0, dtype=self.folded.sample_dtype)
        elif self.folded.sample_dtype is not None:
            self.place = torch.empty(0, dtype=self.folded.sample_dtype)
        begin = entrance(self._model)
        self.takes_tokens = isinstance(first, nn.Embedding) or isinstance(begin, nn.Embedding)
        self.features = features_of(begin)
        self.vocabulary = begin.num_embeddings if isinstance(begin, nn.Embedding) else None

    @classmethod
    def of(cls, model: Steppable | FrozenModel) -> FrozenModel:
        """A frozen model of this model; itself if it is frozen already.

        Args:
            model: a steppable module, or a frozen model.
        """
        return model if isinstance(model, FrozenModel) else cls(model)

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint(self._model)

    def initial_state(self, sample: Tensor, device: torch.device, trial: bool = False) -> Any:
        """The state before the first sample.

        Args:
            sample: (batch, features), or token numbers (batch,).
            device: the state's device.
            trial: whether it is for a trial (`plmu.folded.Folded.trial_state`).

        Returns:
            A tensor, None or nested tuples of them.
        """
        dtype = sample.dtype if self.place is None else self.place.dtype
        start = self.folded.trial_state if trial else self.folded.initial_state
        with device:  # also for a class that ignores the argument
            return start(sample.shape[0], dtype, device)

    def checked_missing(self, missing: str | None) -> str:
        """What a missing sample does: the argument, else what the model itself does, which may be "pass", else "raise".

        Args:
            missing: "raise", "hold", "zero" or None.

        Raises:
            ValueError: it is none of these.
        """
        chosen = missing or self.fills or "raise"
        if chosen not in MISSING and not chosen == self.fills == PASS:
            raise ValueError(f"missing must be one of {', '.join(MISSING)}, got {missing!r}")
        return chosen

    def broken_weight(self) -> str | None:
        """The name of the first weight that is infinite or NaN; None if all are finite."""
        for name, value in self._model.state_dict().items():
            if isinstance(value, Tensor) and value.is_floating_point() and not finite(value.float()):
                return name
        return None

    def tokens(self, sample: Tensor) -> Tensor:
        """Token numbers as the model takes them.

        Args:
            sample: () or (batch,).

        Raises:
            TypeError: they are not integers.
            ValueError: the model has no such tokens.
        """
        assert self.place is not None
        device = self.place.device
        if sample.dtype != torch.int64 or sample.device != device:
            if sample.is_floating_point() or sample.is_complex() or sample.dtype == torch.bool:
                raise TypeError(f"this model takes token numbers, got {sample.dtype}")
            sample = sample.to(device=device, dtype=torch.int64)
        if self.vocabulary is not None and sample.numel():
            single = sample.dim() == 0
            lowest, highest = [sample.item()] * 2 if single else (sample.min().item(), sample.max().item())
            if lowest < 0 or highest >= self.vocabulary:
                wrong = lowest if lowest < 0 else highest
                raise ValueError(f"token numbers must be between 0 and {self.vocabulary - 1}, got {wrong}")
        return sample


def as_sample(x: Any, takes_tokens: bool, place: Tensor | None = None) -> Tensor:
    """A sample, given as numbers, lists, arrays or a tensor, as a tensor. Masked values of NumPy become NaN. Numbers of
    Python keep their digits where `place` is float64."""
    if isinstance(x, Tensor):
        if x.is_nested or x.layout is not torch.strided:
            kind = "nested" if x.is_nested else str(x.layout)
            raise TypeError(f"a sample must be a dense tensor, got a tensor that is {kind}")
        return x
    try:
        values = _unmasked(x, takes_tokens) if hasattr(x, "filled") else x
        sample = torch.as_tensor(values)
        narrowed = place is not None and place.dtype == torch.float64 and sample.dtype == torch.get_default_dtype()
        return torch.as_tensor(values, dtype=torch.float64) if narrowed else sample
    except (RuntimeError, TypeError, ValueError) as error:
        raise TypeError(f"a sample must be a tensor or numbers: {error}") from None


def converted(sample: Tensor, place: Tensor | None) -> Tensor:
    """A sample in the precision and on the device of `place`. Without it integers become the default precision."""
    if sample.is_meta:
        raise TypeError("a sample must have values, got a tensor on the meta device")
    if sample.is_complex():
        raise TypeError(f"a sample must be real numbers, got {sample.dtype}: push its real and imaginary parts")
    if place is not None:
        return sample.to(device=place.device, dtype=place.dtype)
    return sample if sample.is_floating_point() else sample.to(torch.get_default_dtype())


def _unmasked(x: Any, takes_tokens: bool) -> Any:
    """A masked array of NumPy with NaN for its masked values."""
    if not x.mask.any():
        return x.filled()
    if takes_tokens:
        raise TypeError("it has masked token numbers")
    return (x if x.dtype.kind == "f" else x.astype(float)).filled(float("nan"))


def _first_weight(model: nn.Module) -> tuple[Tensor | None, nn.Module]:
    """The weight whose precision and device samples take, and its module: the first weight outside a memory, whose own
    weights may be wider."""
    for module in model.modules():
        if not isinstance(module, Memory):
            owner: nn.Module = module
            if is_parametrized(module):  # whose weights are those of its parametrizations
                owner = module.parametrizations  # type: ignore[assignment]
            for value in owner.parameters(recurse=owner is not module):
                return value, module
    return None, model
