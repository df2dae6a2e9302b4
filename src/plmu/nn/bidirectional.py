"""Two layers over one sequence: one reads it forwards, the other backwards."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from plmu.core.modes import copy_among_fakes
from plmu.nn.stacking import entrance, features_of, fills
from plmu.nn.steppable import Steppable, reverse
from plmu.ops.check import Lengths, check_padded, checked_lengths, checked_resets

MERGES = ("concat", "sum")


class Bidirectional(Steppable):
    """One layer forwards and one backwards in time: `out, (end, start) = layer(x, lengths=lengths)`.

    It needs the whole sequence. So it trains, and runs on whole sequences, but takes neither single steps nor an
    initial state, and cannot be streamed or folded.

    Args:
        layer: any steppable module, for example a `ParallelLMU`.
        backward_layer: the layer that reads backwards, with the same `return_sequences`; by default a copy of `layer`
            with weights of its own, initialised anew.
        merge: "concat" puts the forward and the backward output side by side, "sum" adds them.

    Shape:
        x: (batch, time, features), or (batch, time) of token numbers where the layers take them.
        out: (batch, time, forward + backward features); (batch, features) if the layers have `return_sequences=False`,
            then the forward output at the last step beside the backward output at the first.
        state: the pair of the layers' final states.

    `lengths` and `resets` work as in every layer: each sequence, and each document in it, is read backwards on its own.
    """

    def __init__(self, layer: Steppable, backward_layer: Steppable | None = None, merge: str = "concat") -> None:
        super().__init__()
        for name, value in (("layer", layer), ("backward_layer", backward_layer)):
            if not isinstance(value, Steppable) and (value is not None or name == "layer"):
                raise TypeError(f"{name} must be a steppable module, such as plmu.ParallelLMU; got {_kind(value)}")
        if merge not in MERGES:
            raise ValueError(f"merge must be one of {', '.join(MERGES)}, got {merge!r}")
        self.forward_layer = layer
        self.backward_layer = _renewed(layer) if backward_layer is None else backward_layer
        if self.forward_layer.returns_sequences != self.backward_layer.returns_sequences:
            raise ValueError("layer and backward_layer must have the same return_sequences")
        self.merge = merge
        sizes = [getattr(side, "output_size", None) for side in (self.forward_layer, self.backward_layer)]
        if isinstance(sizes[0], int) and isinstance(sizes[1], int):
            self.output_size = sizes[0] + sizes[1] if merge == "concat" else sizes[0]
        self.returns_sequences = layer.returns_sequences
        self.input_size = features_of(entrance(layer))

    def forward(
        self, x: Tensor, state: Any = None, lengths: Lengths = None, *, resets: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        """Both readings of each sequence.

        Args:
            x: the input, (batch, time, features), or token numbers (batch, time) where the layers take those.
            state: must be None.
            lengths: the length of each sequence, (batch,), where they are padded on the right; None if all have
                `time` steps.
            resets: (batch, time) of bools: the first step of each document.

        Returns:
            The output (batch, time, forward + backward features), zero in the padding; or (batch, features) if the
            layers have `return_sequences=False`. And the pair of the layers' final states.
        """
        if state is not None:
            raise ValueError("Bidirectional needs the whole sequence and cannot go on from a state: state must be None")
        check_padded(x, "x")
        if x.dim() < 2:
            raise ValueError(f"x must have shape (batch, time, features), got {tuple(x.shape)}")
        lengths = checked_lengths(lengths, x.shape[0], x.shape[1], x.device)
        resets = checked_resets(resets, x.shape[0], x.shape[1], x.device)
        ahead, end = self.forward_layer(x, None, lengths, resets=resets)
        back, start = self.backward_layer(reverse(x, lengths), None, lengths, resets=_from_behind(resets, lengths))
        if self.returns_sequences:
            back = reverse(back, lengths)
        if self.merge == "concat":
            return torch.cat([ahead, back], dim=-1), (end, start)
        if ahead.shape != back.shape:
            sizes = f"{ahead.shape[-1]} and {back.shape[-1]}"
            raise ValueError(f"merge='sum' needs layers with equally many output features, got {sizes}")
        return ahead + back, (end, start)

    def step(self, x: Tensor, state: Any = None) -> NoReturn:
        """Not supported: needs future inputs.

        Args:
            x: not taken.
            state: not taken.
        """
        _refuse()

    def initial_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> NoReturn:
        """Not supported: there is no state to begin with.

        Args:
            batch: number of sequences.
            dtype: the precision of the input; states are float32 or wider.
            device: where the state is.
        """
        _refuse()

    def fold(self) -> NoReturn:
        """Not supported: a folded model takes steps."""
        _refuse()

    def _fills(self) -> str | None:
        return fills(self.forward_layer) or fills(self.backward_layer)

    def extra_repr(self) -> str:
        return "" if self.merge == "concat" else f"merge={self.merge}"


def _refuse() -> NoReturn:
    raise ValueError(
        "Bidirectional needs the whole sequence: a model with it cannot be stepped, streamed or folded;"
        " call it on whole sequences"
    )


def _from_behind(resets: Tensor | None, lengths: Tensor | None) -> Tensor | None:
    """Resets for the reversed sequence, where a document begins at its last step."""
    if resets is None:
        return None
    behind = torch.cat([resets[:, 1:], torch.zeros_like(resets[:, :1])], dim=1)
    return reverse(behind, lengths)


def _renewed(layer: Steppable) -> Steppable:
    """A copy with weights initialised anew, except frozen ones."""
    if any(is_parametrized(module) for module in layer.modules()):
        raise ValueError("layer has parametrized weights, which cannot be initialised anew: give backward_layer")
    renewed = copy_among_fakes(layer)
    _initialise(renewed, "layer")
    with torch.no_grad():
        for parameter, original in zip(renewed.parameters(), layer.parameters(), strict=True):
            if not original.requires_grad:  # such as pretrained vectors
                parameter.copy_(original)
    return renewed


def _initialise(module: nn.Module, where: str) -> None:
    """Call `reset_parameters` of the module, or else of each module inside it; raise if weights would be left out."""
    again = getattr(module, "reset_parameters", None)
    if again is not None:
        again()
        return
    if any(True for _ in module.parameters(recurse=False)):
        raise ValueError(
            f"{where} ({_kind(module)}) has weights but no reset_parameters() that would initialise a copy of it:"
            " give backward_layer"
        )
    for name, inner in module.named_children():
        _initialise(inner, f"{where}.{name}")


def _kind(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
