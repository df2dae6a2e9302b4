"""How to train: the fields every experiment shares. Their documentation is the command line's help."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass
class TrainingConfig:
    """Optimisation."""

    epochs: int = 10
    """Passes over the training data."""
    batch_size: int = 100
    """Examples per step, over all processes."""
    learning_rate: float = 1e-3
    """Peak learning rate."""
    weight_decay: float = 0.0
    """Decoupled weight decay, as in AdamW."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Adam's beta1 and beta2."""
    schedule: Literal["constant", "cosine"] = "constant"
    """Learning-rate schedule: constant, or cosine to zero."""
    warmup: float = 0.0
    """Linear warm-up, as a fraction of all steps."""
    clip: float | None = None
    """Gradient clipping: maximum norm. Default: no clipping."""
    average: float | None = None
    """Decay of an exponential moving average of the weights, such as 0.999. The averaged weights are scored."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """bfloat16 runs the model under autocast."""
    graph: bool = True
    """On a GPU, capture the training step as a CUDA graph. Up to 16 times faster for small models."""
    compile: bool = False
    """Compile the model with torch.compile."""
    evaluate_every: int = 1
    """Epochs between validations."""
    refit: bool = False
    """Train on the validation data too, and test the last epoch. Use only with fixed hyperparameters."""
    checkpoint_seconds: float = 30.0
    """Seconds between checkpoints. Does not affect results."""

    def __post_init__(self) -> None:
        positive = {
            "epochs": self.epochs,
            "batch_size": self.batch_size,
            "learning_rate": self.learning_rate,
            "evaluate_every": self.evaluate_every,
        }
        for name, value in positive.items():
            if not 0 < value < math.inf:
                raise ValueError(f"training.{name} must be above 0 and finite, got {value}")
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

    def learning_rate_at(self, step: int, steps: int) -> float:
        """The learning rate of a step, counted from 0, of a run of so many: warm-up first, then the schedule."""
        warmup = self.warmup * steps
        if step < warmup:
            return self.learning_rate * (step + 1) / warmup
        if self.schedule == "constant":
            return self.learning_rate
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1.0, steps - warmup)))
