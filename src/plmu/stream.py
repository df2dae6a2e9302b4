"""A trained model as a stream: push a sample, get an output, keep a small state."""

from __future__ import annotations

import copy
import os
import warnings
from functools import cached_property
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from plmu.blueprint import FileFormatError
from plmu.compare import fingerprint
from plmu.files import Contents, reading, write
from plmu.modes import unwrapped
from plmu.nn.folding import fold
from plmu.nn.memory import Memory
from plmu.nn.stacking import entrance, features_of, fills
from plmu.nn.steppable import Steppable
from plmu.state_tree import check_kind, finite, finite_state, leaves, map_state, spoiled, without_subnormal

MISSING = ("raise", "hold", "zero")
_FLUSH_EVERY = 256


class Stream:
    """Runs a steppable model one sample at a time, without gradients and with dropout off.

    >>> stream = plmu.Stream(model)
    >>> y = stream.push(x)  # x: (features,) or (batch, features), or token numbers () or (batch,)

    A stream is the model as it was when the stream was made: later changes to the model do not affect it.
    Samples are converted to the precision of the model's weights. A model without weights takes that of the first
    sample, and whole numbers as torch's default precision.

    Args:
        model: any steppable module. AveragedModel, DDP and torch.compile wrappers are removed.
        missing: what a sample of None or NaN does: "raise", "hold" the last value, or take "zero". In a batch it is
            decided for each number alone. Before the first value, "hold" takes zero too. None: what the model does
            itself (the `missing` of its first layer), or else "raise".
    """

    def __init__(self, model: Steppable, missing: str | None = None) -> None:
        inner = unwrapped(model) if isinstance(model, nn.Module) else model
        self._folded = fold(inner)
        missing = missing or fills(inner) or "raise"
        if missing not in MISSING:
            raise ValueError(f"missing must be one of {', '.join(MISSING)}, got {missing!r}")
        self._model = copy.deepcopy(inner).eval().requires_grad_(False)
        self._step = self._folded.step
        self._weight, first = _first_weight(self._model)
        self._tokens = isinstance(first, nn.Embedding)
        begin = entrance(self._model)
        self._features = features_of(begin)
        self._vocabulary = begin.num_embeddings if isinstance(begin, nn.Embedding) else None
        self.missing = missing
        self.reset()

    def reset(self) -> None:
        """Forget everything: the next sample is the first."""
        self.steps = 0
        self._state: Any = None
        self._last: Tensor | None = None  # the last sample as it entered the model, with its batch axis
        self._single = False  # whether samples come without a batch axis

    def push(self, x: Tensor | Any) -> Tensor:
        """One sample in, one output out. After an error the state is unchanged.

        Args:
            x: (features,) or (batch, features), or token numbers () or (batch,); numbers, lists, arrays or tensors.
                Masked values of a NumPy masked array count as NaN.

        Returns:
            The model's output for this sample, (features,) or (batch, features).

        Raises:
            ValueError: the sample does not fit, is missing or infinite; or it is so large that the state would
                overflow. The state is unchanged: continue with other samples, or call `reset()`.
        """
        with torch.inference_mode():
            sample, single = self._sample(x)
            try:
                out, state = self._step(sample, self._state)
            except IndexError as error:
                raise ValueError(f"a token number is out of range: {error}") from error
            if self._state is None:
                check_kind(state)
            if not finite_state(state):
                self._check_transition(state, sample)
            steps = self.steps + 1
            if steps % _FLUSH_EVERY == 0:
                # In silence a state decays into subnormal numbers, where it stays and a CPU is many times slower.
                state = map_state(state, without_subnormal)
            if self.missing == "hold":
                sample = sample.clone()  # the caller may write the next one into the same memory
        self.steps, self._state, self._last, self._single = steps, state, sample, single
        return out.squeeze(0).clone() if single else out.clone()  # an ordinary tensor, which may be used in training

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state to a file, from which `Stream.restore(model, path)` continues in any process.

        The file holds a fingerprint of the model, a hash of its options and weights, but not the model. Functions are
        hashed by name; two different lambdas can have the same fingerprint. Of a class of your own the hash covers its
        weights and its public attributes that are numbers, names, tensors or functions, and lists or dictionaries of
        those; its step must not change them.

        Args:
            path: the file. It is replaced only when all of it has been written.
        """
        tensors = {f"state.{i}": value for i, value in enumerate(leaves(self._state))}
        if self._last is not None:
            tensors["last"] = self._last
        description = {
            "kind": "stream",
            "steps": self.steps,
            "single": self._single,
            "missing": self.missing,
            "fingerprint": self._fingerprint,
        }
        write(path, {name: value.clone() for name, value in tensors.items()}, description)

    @classmethod
    def restore(cls, model: Steppable, path: str | os.PathLike[str]) -> Stream:
        """A stream that continues where the saved one was.

        Args:
            model: the same model, with the same options and weights.
            path: a file of `Stream.save`. One written before files had a fingerprint is taken with a warning.

        Raises:
            FileFormatError: the file is broken, or is of another model.
        """
        stream = cls(model)
        with reading(path, ("stream",)) as file:
            stream._fill(file)
        return stream

    def _fill(self, file: Contents) -> None:
        """Take over the state of a file, after checking all of it."""
        path, description = file.path, file.description
        missing, steps, single = (description.get(key) for key in ("missing", "steps", "single"))
        if missing not in MISSING or type(steps) is not int or steps < 0 or type(single) is not bool:
            shown = {"missing": missing, "steps": steps, "single": single}
            raise FileFormatError(f"{path} has a broken description: {shown!s:.300}")
        if description.get("fingerprint", self._fingerprint) != self._fingerprint:
            raise FileFormatError(f"{path} is the state of another model: its options or weights are not this one's")
        if (steps == 0) != (not file.shapes):
            raise FileFormatError(f"{path} is broken: it has {len(file.shapes)} tensors after {steps} steps")
        if steps:
            tensors = file.tensors(list(file.shapes), "cpu" if self._weight is None else self._weight.device)
            last = tensors.pop("last", None)
            if last is None:
                raise FileFormatError(f"{path} has a state without the last sample")
            self._state = self._checked_state(last, single, tensors, path)
            self._last = self._token(last) if self._tokens else last
        self.missing, self.steps, self._single = str(missing), steps, single
        if "fingerprint" not in description:
            warnings.warn(f"{path} has no fingerprint of its model: only shapes were compared", stacklevel=3)

    def _checked_state(
        self, last: Tensor, single: bool, tensors: dict[str, Tensor], path: str | os.PathLike[str]
    ) -> Any:
        """The state of a file. Shapes are compared first, and the model runs on one sequence only: a file of a few
        megabytes may declare a batch for which the model needs gigabytes."""
        fits = last.dim() == (1 if self._tokens else 2) and last.numel() > 0 and (last.shape[0] == 1 or not single)
        if self._tokens:
            fits = fits and not last.is_floating_point() and not last.is_complex()
        else:
            fits = fits and last.is_floating_point() and finite(last)
        if not fits or (self._weight is not None and not self._tokens and last.dtype != self._weight.dtype):
            shown = f"{last.dtype} {tuple(last.shape)}"
            raise FileFormatError(f"{path} is the state of another model or broken: its last sample is {shown}")
        expected = self._initial_state(last, torch.device("meta"))
        wanted = [(tuple(value.shape), value.dtype) for value in leaves(expected)]
        found = [tensors[name] for i in range(len(tensors)) if (name := f"state.{i}") in tensors]
        given = [(tuple(value.shape), value.dtype) for value in found]
        if given != wanted or len(found) != len(tensors):
            differ = f"it has {str(given)[:300]}, this model {str(wanted)[:300]}"
            raise FileFormatError(f"{path} is the state of another model: {differ}")
        try:
            with torch.inference_mode():
                if self._tokens:
                    self._token(last)
                self._step(last[:1], None)  # as a first sample would be
        except (IndexError, RuntimeError, TypeError, ValueError) as error:
            other = "another model, whose samples this one cannot take"
            raise FileFormatError(f"{path} is the state of {other}: {error}") from None
        values = iter(found)
        state = map_state(expected, lambda _: next(values))
        if not finite_state(state) and any(
            bool(spoiled(value, start).any())
            for value, start in zip(found, leaves(self._initial_state(last, last.device)), strict=True)
        ):
            raise FileFormatError(f"{path} is broken: its state has infinite or NaN values")
        return state

    def _initial_state(self, sample: Tensor, device: torch.device) -> Any:
        dtype = sample.dtype if self._weight is None else self._weight.dtype
        with device:  # also for a class that does not pass it on
            return self._folded.initial_state(sample.shape[0], dtype, device)

    def _check_transition(self, state: Any, sample: Tensor) -> None:
        """Raise if a number of the state became infinite or NaN. One that was before may stay: a running maximum begins
        at minus infinity."""
        before = leaves(self._initial_state(sample, sample.device) if self._state is None else self._state)
        after = leaves(state)
        pairs: list[tuple[Tensor, Tensor | None]] = list(zip(after, before, strict=False))
        pairs += [(value, None) for value in after[len(before) :]]
        found = [bad for value, old in pairs if bool((bad := spoiled(value, old)).any())]
        if not found:
            return
        batch, rows = sample.shape[0], set[int]()
        for bad in found:
            if bad.dim() and bad.shape[0] == batch:
                rows.update(bad.reshape(batch, -1).any(dim=1).nonzero().flatten().tolist())
        where = f" in rows {', '.join(map(str, sorted(rows)[:10]))} of the batch" if rows and batch > 1 else ""
        broken = [name for name, value in self._model.state_dict().items() if not _is_finite(value)]
        advice = (
            f"The model's weights are not finite: {broken[0]}" if broken else "Push smaller numbers, or call reset()"
        )
        raise ValueError(
            f"this sample would make the state infinite or NaN{where}: it was rejected and the state is unchanged."
            f" {advice}"
        )

    @cached_property
    def _fingerprint(self) -> str:
        return fingerprint(self._model)

    def _sample(self, x: Any) -> tuple[Tensor, bool]:
        """The sample with a batch axis, checked and with missing values filled, and whether it came without one."""
        if x is None:
            return self._filled(None), self._single
        if isinstance(x, Tensor):
            sample = x
            if x.is_nested or x.layout is not torch.strided:
                kind = "nested" if x.is_nested else str(x.layout)
                raise TypeError(f"a sample must be a dense tensor, got a tensor that is {kind}")
        else:
            try:
                sample = torch.as_tensor(self._unmasked(x) if hasattr(x, "filled") else x)
            except (RuntimeError, TypeError, ValueError) as error:
                raise TypeError(f"a sample must be a tensor or numbers: {error}") from None
        place = self._last if self._weight is None else self._weight
        if self._tokens:
            sample = self._token(sample)
        elif place is None or sample.dtype != place.dtype or sample.device != place.device:
            sample = _converted(sample, place)
        features = 0 if self._tokens else 1  # token numbers have no feature axis
        dims = sample.dim()
        if dims != features and dims != features + 1:
            expected = "() or (batch,)" if self._tokens else "(features,) or (batch, features)"
            raise ValueError(f"a sample must have shape {expected}, got {tuple(sample.shape)}")
        missing = features == 1 and not finite(sample)
        single = dims == features
        if single:
            sample = sample.unsqueeze(0)
        if self._last is None:
            if features and self._features is not None and sample.shape[1] != self._features:
                shape = tuple(sample.shape[1:] if single else sample.shape)
                raise ValueError(f"a sample must have {self._features} features, got shape {shape}")
        elif sample.shape != self._last.shape:
            raise ValueError(
                f"this stream has samples of shape {tuple(self._last.shape)} (with the batch), got"
                f" {tuple(sample.shape)}: call reset() to start another one"
            )
        return self._filled(sample) if missing else sample, single

    def _unmasked(self, x: Any) -> Any:
        """A masked array of numpy with NaN where it is masked."""
        if not x.mask.any():
            return x.filled()
        if self._tokens:
            raise TypeError("it has masked token numbers")
        return (x if x.dtype.kind == "f" else x.astype(float)).filled(float("nan"))

    def _token(self, sample: Tensor) -> Tensor:
        assert self._weight is not None
        device = self._weight.device
        if sample.dtype != torch.int64 or sample.device != device:
            if sample.is_floating_point() or sample.is_complex() or sample.dtype == torch.bool:
                raise TypeError(f"this model takes token numbers, got {sample.dtype}")
            sample = sample.to(device=device, dtype=torch.int64)
        if self._vocabulary is not None and sample.numel():
            single = sample.dim() == 0
            lowest, highest = [sample.item()] * 2 if single else (sample.min().item(), sample.max().item())
            if lowest < 0 or highest >= self._vocabulary:
                wrong = lowest if lowest < 0 else highest
                raise ValueError(f"token numbers must be between 0 and {self._vocabulary - 1}, got {wrong}")
        return sample

    def _filled(self, sample: Tensor | None) -> Tensor:
        what = "None" if sample is None else "NaN"
        if sample is not None and bool(torch.isinf(sample).any()):
            raise ValueError(f"a sample holds infinity, or a number too large for {sample.dtype}")
        if self.missing == "raise":
            raise ValueError(f"a sample is {what}: create the stream with missing='hold' or missing='zero' to continue")
        if sample is None:
            if self._last is None:
                raise ValueError(
                    "the first sample is None, so its shape is not known: push NaN in place of each number"
                )
            return self._last if self.missing == "hold" else torch.zeros_like(self._last)
        held = self._last if self.missing == "hold" and self._last is not None else torch.zeros_like(sample)
        return torch.where(torch.isnan(sample), held, sample)

    def __copy__(self) -> Stream:
        """A stream that goes on alone from here: states are replaced, never written into."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    def __deepcopy__(self, memo: dict[int, Any]) -> Stream:
        return self.__copy__()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Stream cannot be pickled: use stream.save(path) and plmu.Stream.restore(model, path)")


def _first_weight(model: nn.Module) -> tuple[Tensor | None, nn.Module]:
    """The weight whose precision and device samples take, the first that is not a memory's own, which stays wide; and
    the module that it belongs to."""
    for module in model.modules():
        if not isinstance(module, Memory):
            for value in module.parameters(recurse=False):
                return value, module
    return None, model


def _converted(sample: Tensor, place: Tensor | None) -> Tensor:
    """Numbers in the precision and on the device of `place`, or of their own."""
    if sample.is_meta:
        raise TypeError("a sample must have values, got a tensor on the meta device")
    if sample.is_complex():
        raise TypeError(f"a sample must be real numbers, got {sample.dtype}: push its real and imaginary parts")
    if place is not None:
        return sample.to(device=place.device, dtype=place.dtype)
    return sample if sample.is_floating_point() else sample.to(torch.get_default_dtype())


def _is_finite(weight: Any) -> bool:
    return not isinstance(weight, Tensor) or not weight.is_floating_point() or finite(weight.float())
