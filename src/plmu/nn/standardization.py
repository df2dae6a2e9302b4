"""Standardisation of features by constants that are measured on data, not trained."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from plmu.folded import Applied, Scale, Stateless
from plmu.nn.folding import is_plain
from plmu.nn.savable import savable
from plmu.nn.steppable import factory, positive

SMALLEST = 1e-6  # relative to the largest standard deviation: below it a feature counts as constant
_NARROW = (torch.float16, torch.bfloat16)


@savable(modules=0)
class Standardize(nn.Module):
    """(x − mean) / std for each feature, with constants that `plmu.standardize` measures on data.

    It acts on each time step separately and has no parameters: a reparametrisation of the layer after it. `mean` and
    `std` are buffers, saved with the model and kept in float32 or wider. They start as 0 and 1.

    Args:
        features: the features of x, its last axis; or a shape, the last axes of x.
        device: where the buffers are.
        dtype: of the buffers; narrower than float32 becomes float32.

    Shape:
        x: (..., features). The output has the same shape and dtype.
    """

    per_step = True
    mean: Tensor
    std: Tensor

    def __init__(
        self,
        features: int | Sequence[int],
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        shape = list(features) if isinstance(features, Sequence) else [features]
        self.features = tuple(positive(size, "features") for size in shape)
        if not self.features:
            raise ValueError("features must be a number or a shape with at least one axis, got none")
        kind = factory(device, dtype)["dtype"] or torch.get_default_dtype()
        kind = torch.float32 if kind in _NARROW else kind
        self.register_buffer("mean", torch.zeros(self.features, device=device, dtype=kind))
        self.register_buffer("std", torch.ones(self.features, device=device, dtype=kind))
        self._sums: _Sums | None = None

    @property
    def measuring(self) -> bool:
        """Whether `plmu.standardize` is at work on the model."""
        return self._sums is not None

    @property
    def input_size(self) -> int:
        return self.features[-1]

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """(x − mean) / std.

        Args:
            x: (..., features).
            lengths: (batch,); used only while `plmu.standardize` measures, to leave out padding.

        Returns:
            The standardised features, with the shape and precision of x.
        """
        if not x.is_floating_point():
            raise TypeError(f"x must be floating point, got {x.dtype}: convert it, for example x.float()")
        if x.shape[x.dim() - len(self.features) :] != self.features:
            raise ValueError(f"x must have shape (..., {', '.join(map(str, self.features))}), got {tuple(x.shape)}")
        if self._sums is not None:
            self._observe(x, lengths)
        return ((x - self.mean) / self.std).to(x.dtype)

    def set(self, mean: Tensor | float, std: Tensor | float) -> None:
        """Set the constants.

        Args:
            mean: a number, or a tensor that expands to `features`.
            std: the same, above 0.
        """
        checked = {}
        for name, number in (("mean", mean), ("std", std)):
            value = torch.as_tensor(number).detach().to(getattr(self, name)).expand(self.features)
            if not bool(value.isfinite().all()) or (name == "std" and not bool((value > 0).all())):
                expected = "finite numbers" if name == "mean" else "finite numbers above 0"
                raise ValueError(f"{name} must be {expected} in {value.dtype}, got {number!r}")
            checked[name] = value
        for name, value in checked.items():
            getattr(self, name).copy_(value)

    def _observe(self, x: Tensor, lengths: Tensor | None = None) -> None:
        """Add x (..., features) to the measured mean and variance, without the steps past a length."""
        assert self._sums is not None
        self._sums.add(_valid(x, lengths, len(self.features)).reshape(-1, *self.features))

    def fold(self) -> Stateless:
        """The folded form: one product and a sum, which `plmu.fold` merges into a linear layer that follows."""
        if len(self.features) > 1 or not is_plain(self, Standardize):
            return Applied.of(self)
        mean, std = (value.detach().cpu().double() for value in (self.mean, self.std))
        return Scale(1 / std, -mean / std, dtype=self.std.dtype, device=self.std.device)

    def extra_repr(self) -> str:
        return ", ".join(map(str, self.features))

    def _apply(self, fn: Any, recurse: bool = True) -> Standardize:
        """`nn.Module._apply`, but the constants stay float32 or wider."""
        before = dict(self.named_buffers(recurse=False))
        super()._apply(fn, recurse)
        for name, value in self.named_buffers(recurse=False):
            if value.dtype in _NARROW:
                setattr(self, name, before[name].to(device=value.device, dtype=torch.float32))
        return self


def standardize(
    model: nn.Module, data: Tensor | Iterable[Any], call: Callable[[nn.Module, Any], Any] | None = None
) -> None:
    """Set the constants of every `Standardize` in a model, those inside its layers too, from their inputs on the data.

    A layer with `return_sequences=False` is measured on its final states, any other on all steps that are not padding.
    The model runs in evaluation mode and without gradients. Layers are calibrated in order, one pass over `data` per
    layer.

    >>> plmu.standardize(model, x)  # one batch
    >>> plmu.standardize(model, loader)  # batches x, or (x, ...), of which the rest is ignored
    >>> plmu.standardize(model, loader, lambda model, batch: model(batch[0], lengths=batch[2]))

    Args:
        model: any module with a `Standardize` inside.
        data: one batch as a tensor, or an iterable of batches, for instance a DataLoader.
        call: runs the model on a batch; by default `model(batch)`, or `model(batch[0])` for tuples and lists.

    Raises:
        ValueError: the model has nothing to standardise, or the data is empty or not finite.
    """
    layers = {module: name for name, module in model.named_modules() if isinstance(module, Standardize)}
    if not layers:
        raise ValueError("the model has no plmu.Standardize and no layer with standardize=True")
    if any(layer.std.is_meta for layer in layers):
        raise ValueError("model is on the meta device: nothing can be measured there")
    if isinstance(data, dict) or not isinstance(data, Tensor | Iterable):
        raise TypeError(f"data must be a tensor or an iterable of batches, got {type(data).__name__}")
    batches = [data] if isinstance(data, Tensor) else list(data) if isinstance(data, Iterator) else data
    before = [(layer, layer.mean.clone(), layer.std.clone()) for layer in layers]
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            _measure(model, layers, batches, call or _first_of)
    except BaseException:
        for layer, mean, std in before:
            layer.set(mean, std)
        raise
    finally:
        for layer in layers:
            layer._sums = None
        for module, training in modes:
            module.training = training


def _measure(
    model: nn.Module, layers: dict[Standardize, str], batches: Iterable[Any], call: Callable[[nn.Module, Any], Any]
) -> None:
    """Set the layers' constants in the order in which data reaches them, one pass over the batches for each."""
    waiting = list(layers)
    while waiting:
        reached: list[Standardize] = []
        for layer in waiting:
            layer._sums = _Sums(partial(reached.append, layer))
        empty = True
        for batch in batches:
            empty = False
            call(model, batch)
        if empty:
            again = " when it is passed over again, once for each layer" if len(waiting) < len(layers) else ""
            raise ValueError(f"data has no batches{again}")
        if not reached:
            raise ValueError(f"no data reached {layers[waiting[0]] or 'the layer'} when the model ran")
        first = reached[0]  # the input of the others changes with it: they are measured again
        assert first._sums is not None
        first.set(*first._sums.result())
        first._sums = None
        waiting.remove(first)


def _first_of(model: nn.Module, batch: Any) -> Any:
    return model(batch[0] if isinstance(batch, tuple | list) else batch)


class _Sums:
    """Mean and variance of rows that come in parts, in float64; `at_first` is called at the first part."""

    def __init__(self, at_first: Callable[[], object]) -> None:
        self.count, self._at_first = 0, at_first
        self._mean = self._square = torch.zeros(())

    def add(self, rows: Tensor) -> None:
        if not rows.shape[0]:
            return
        rows = (rows.cpu() if rows.device.type == "mps" else rows).double()
        mean = rows.mean(0)
        square = (rows - mean).square().sum(0)
        if not self.count:
            self._at_first()
            self.count, self._mean, self._square = rows.shape[0], mean, square
            return
        total = self.count + rows.shape[0]
        change = mean - self._mean
        self._square = self._square + square + change.square() * (self.count * rows.shape[0] / total)
        self._mean = self._mean + change * (rows.shape[0] / total)
        self.count = total

    def result(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation; 1 for a constant feature."""
        std = (self._square / self.count).sqrt()
        if not bool(std.isfinite().all()) or not bool(self._mean.isfinite().all()):
            raise ValueError("data must be finite: what reaches a layer to standardise has infinite or NaN values")
        return self._mean, torch.where(std > SMALLEST * std.max(), std, 1.0)


def _valid(x: Tensor, lengths: Tensor | None, trailing: int) -> Tensor:
    """The rows of x, (batch, time, …) or final states (batch, …), that are not padding; features are the `trailing`
    axes."""
    if lengths is None:
        return x
    if x.dim() == 1 + trailing:
        return x[lengths > 0]
    return x[torch.arange(x.shape[1], device=x.device) < lengths[:, None]]
