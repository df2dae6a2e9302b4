"""How to train: the fields every experiment shares. Their documentation is the command line's help."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch


@dataclass
class TrainingConfig:
    """Optimisation."""

    epochs: int = 10
    """Passes over the training data."""
    batch_size: int = 100
    """Examples, or sequences of a language model, per step over all processes."""
    batch_tokens: int | None = None
    """Most tokens per step, padding included, instead of batch_size: texts of similar length form a batch."""
    accumulate: int = 1
    """Split each batch into this many parts and add up their gradients: less memory, the same result."""
    carry: bool = False
    """For language models: train on consecutive sequences and carry the state to the next."""
    learning_rate: float = 1e-3
    """Peak learning rate."""
    weight_decay: float = 0.0
    """Decoupled weight decay, as in AdamW."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Adam's beta1 and beta2."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """muon, for language and translation: Muon for the weight matrices of the blocks, AdamW for everything else."""
    schedule: Literal["constant", "cosine", "step", "plateau"] = "constant"
    """Learning-rate schedule: constant, cosine to zero, step (see drops), or plateau (see patience)."""
    drops: tuple[float, ...] = ()
    """Epochs after which the step schedule drops the learning rate."""
    drop: float = 0.1
    """Factor by which the step and plateau schedules multiply the learning rate at each drop."""
    patience: int = 2
    """Validations without improvement before the plateau schedule drops the learning rate."""
    warmup: float = 0.0
    """Linear warm-up, as a fraction of all steps."""
    clip: float | None = None
    """Gradient clipping: maximum norm. Default: no clipping."""
    average: float | None = None
    """Decay of an exponential moving average of the weights, such as 0.999. The averaged weights are scored."""
    precision: Literal["float32", "bfloat16", "auto"] = "float32"
    """bfloat16 runs the model under autocast; auto does so on a GPU."""
    graph: bool = True
    """On a GPU, capture the training step as a CUDA graph. Up to 16 times faster for small models."""
    compile: bool = False
    """On a GPU, compile the model and its loss with torch.compile, with or without a CUDA graph."""
    data: Literal["auto", "device", "host"] = "auto"
    """Where training data is kept. auto: on the device if it takes at most a quarter of its free memory."""
    evaluate_every: int = 1
    """Epochs between validations."""
    refit: bool = False
    """Train on the validation data too, and test the last epoch. Use only with fixed hyperparameters."""
    checkpoint_seconds: float = 30.0
    """Seconds between checkpoints; does not affect results."""

    def __post_init__(self) -> None:
        positive = {
            "epochs": self.epochs,
            "batch_size": self.batch_size,
            "learning_rate": self.learning_rate,
            "evaluate_every": self.evaluate_every,
            "accumulate": self.accumulate,
            "patience": self.patience,
            "batch_tokens": 1 if self.batch_tokens is None else self.batch_tokens,
        }
        for name, value in positive.items():
            if not 0 < value < math.inf:
                raise ValueError(f"training.{name} must be above 0 and finite, got {value}")
        if not 0 < self.drop < 1:
            raise ValueError(f"training.drop must lie between 0 and 1, got {self.drop}")
        if not all(0 < epoch < math.inf for epoch in self.drops):
            raise ValueError(f"training.drops must be epochs above 0, got {', '.join(map(str, self.drops))}")
        if self.schedule == "step" and not self.drops:
            raise ValueError("training.schedule = step needs training.drops, the epochs after which the rate drops")
        if self.drops and self.schedule != "step":
            raise ValueError(
                f"training.drops is for training.schedule = step, and the schedule is {self.schedule}: leave it empty"
            )
        if self.schedule == "plateau" and self.refit:
            raise ValueError("training.schedule = plateau needs validation scores, and training.refit has none")
        if not 0 <= self.weight_decay < math.inf:
            raise ValueError(f"training.weight_decay must be at least 0 and finite, got {self.weight_decay}")
        if not self.checkpoint_seconds >= 0:
            raise ValueError(f"training.checkpoint_seconds must be at least 0, got {self.checkpoint_seconds}")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"training.betas must be at least 0 and below 1, got {self.betas}")
        if not 0 <= self.warmup <= 1:
            raise ValueError(f"training.warmup must be a fraction of all steps, between 0 and 1; got {self.warmup}")
        if self.average is not None and not 0 < self.average < 1:
            raise ValueError(f"training.average must lie between 0 and 1, got {self.average}")
        if self.clip is not None and not self.clip > 0:
            raise ValueError(f"training.clip must be above 0, got {self.clip}")

    def autocast(self, device: torch.device) -> torch.autocast:
        """The context in which the model runs."""
        narrow = self.precision == "bfloat16" or (self.precision == "auto" and device.type == "cuda")
        return torch.autocast(device.type, torch.bfloat16, enabled=narrow)

    def learning_rate_at(self, step: int, steps: int) -> float:
        """The learning rate of step `step`, counted from 0, of `steps`: warm-up first, then the schedule."""
        warmup = self.warmup * steps
        if step < warmup:
            return self.learning_rate * (step + 1) / warmup
        if self.schedule == "cosine":
            return self.learning_rate * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1.0, steps - warmup)))
        passed = sum(step >= epoch * steps / self.epochs for epoch in self.drops)
        return self.learning_rate * self.drop**passed

    def plateau_factor(self, scores: Sequence[float], higher_is_better: bool) -> float:
        """The factor of the plateau schedule after validations with these scores."""
        if self.schedule != "plateau":
            return 1.0
        best, without, drops = -math.inf, 0, 0
        for score in (score if higher_is_better else -score for score in scores):
            if score > best:
                best, without = score, 0
            else:
                without += 1
                if without == self.patience:
                    drops, without = drops + 1, 0
        return self.drop**drops
