"""Character-level language models (the paper's section 4.4), of text8 or of a text of your own (--data.file).

Models: `plmu` is the paper's, three blocks with a window of 15, trained on sequences of 180 characters. `plmu-paper`
is the same, trained as in the paper: Adam with its defaults, and a learning rate divided by 10 after epoch 12 of 20.
`plmu-attention` adds a causal self-attention layer after the last block. `modern` has six blocks of a memory with four
windows, output gates and gated feed-forward layers. `lstm` is the baseline. On text8 each has at most 3.3 million
parameters.

Scores: bits per character over the whole split, with the state carried from beginning to end (bpc), and with the
state reset after every 180 characters (bpc_reset_180).
"""

from __future__ import annotations

from typing import Any, ClassVar

from plmu.experiments.data import characters
from plmu.experiments.data.characters import CharactersConfig
from plmu.experiments.language import (
    LanguageExperiment,
    LSTMModel,
    ModernModel,
    PlmuModel,
    language_task,
    training,
)
from plmu.runs.experiment import Config
from plmu.training.config import TrainingConfig
from plmu.training.task import Task

RESET = 180


class Text8(LanguageExperiment):
    name = "text8"
    metric = "bpc"
    paper: ClassVar[dict[str, float]] = {"plmu": 1.61, "plmu-paper": 1.61, "lstm": 1.65}
    models = ("plmu", "modern", "lstm", "plmu-attention", "plmu-paper")
    streamable = ("plmu", "modern", "plmu-attention", "plmu-paper")

    def defaults(self, model: str) -> Config[Any]:
        choices: dict[str, tuple[Any, TrainingConfig]] = {
            "plmu": (PlmuModel(dropout=0.05), training(epochs=10, batch_size=128)),
            "modern": (ModernModel(), training(epochs=10, batch_size=32)),
            "lstm": (LSTMModel(), training(epochs=10, batch_size=128)),
            "plmu-attention": (PlmuModel(attention=2, dropout=0.05), training(epochs=10, batch_size=128)),
            "plmu-paper": (
                PlmuModel(dropout=0.0),
                training(
                    epochs=20, batch_size=256, learning_rate=1e-3, weight_decay=0.0, betas=(0.9, 0.999), warmup=0.0,
                    clip=None, schedule="step", drops=(12.0,), optimizer="adamw",
                ),
            ),
        }  # fmt: skip
        return Config(*choices[self.check(model)], CharactersConfig())

    def published(self, model: str, config: Config[Any]) -> float | None:
        assert isinstance(config.data, CharactersConfig)
        return self.paper.get(model) if config.data.file is None else None

    def task(self, config: Config[Any]) -> Task:
        assert isinstance(config.data, CharactersConfig)
        data = characters.load(config.data)
        notes: dict[str, object] = {"data": data.completeness, "tokens": f"{data.symbols.size} {data.symbols.kind}"}
        return language_task(data.splits, data.symbols, config.model.length, notes, self.metric, RESET)
