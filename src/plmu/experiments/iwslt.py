"""Translation (the paper's section 4.5): IWSLT'15 English to Vietnamese, or any pair of files whose lines are
translations of each other, with --data.source and --data.target.

`plmu` and `lstm` write words; those that occur fewer than 5 times in training are <unk>. `bpe` is `plmu` on pieces of
words. On IWSLT'15 all have at most 24.5 million parameters. The epoch is chosen by BLEU of greedy translations of
tst2012; the test is BLEU of translations of tst2013 by beam search. BLEU is sacrebleu's on tokenised text, against
unchanged references; <unk> is not replaced.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from torch import nn

from plmu.experiments.data import parallel
from plmu.experiments.data.parallel import ParallelConfig
from plmu.experiments.translation import bleu, models
from plmu.experiments.translation.models import BpeModel, LSTMModel, PlmuModel
from plmu.experiments.translation.task import HYPOTHESES, REFERENCES, UNSCORED, TranslationTask, translation_task
from plmu.runs.experiment import Config, Experiment
from plmu.text import vocabularies
from plmu.training.config import TrainingConfig
from plmu.training.task import Task


class IWSLT(Experiment):
    name = "iwslt"
    metric = "bleu"
    paper: ClassVar[dict[str, float]] = {"plmu": 25.5, "lstm": 23.3}
    models = ("plmu", "lstm", "bpe")

    def defaults(self, model: str) -> Config[Any]:
        options = {"plmu": PlmuModel(), "lstm": LSTMModel(), "bpe": BpeModel()}[self.check(model)]
        training = TrainingConfig(
            epochs=20,
            batch_tokens=8_192,
            evaluate_every=4,
            optimizer="muon",
            learning_rate=2e-3,
            weight_decay=0.1,
            betas=(0.9, 0.98),
            schedule="cosine",
            warmup=0.05,
            clip=1.0,
            average=0.999,
            precision="auto",
        )
        return Config(options, training, ParallelConfig())

    def published(self, model: str, config: Config[Any]) -> float | None:
        assert isinstance(config.data, ParallelConfig)
        return self.paper.get(model) if config.data.source is None else None

    def task(self, config: Config[Any]) -> Task:
        assert isinstance(config.data, ParallelConfig)
        pieces = config.model.pieces if isinstance(config.model, BpeModel) else 0
        return translation_task(parallel.load(config.data, pieces), config.model)

    def build(self, config: Config[Any], task: Task) -> nn.Module:
        assert isinstance(task, TranslationTask)
        return models.build(config.model, task.source, task.target)

    def companions(self, task: Task) -> dict[str, str]:
        assert isinstance(task, TranslationTask)
        return vocabularies.companions(task.source, task.target)

    def outputs(self, task: Task) -> dict[str, str]:
        assert isinstance(task, TranslationTask)
        return task.outputs

    def scored_later(self, folder: Path, result: dict[str, Any]) -> dict[str, Any] | None:
        """The result with sacrebleu's scores of the translations in the folder, if sacrebleu was missing at the test.

        None if there is nothing to add, or sacrebleu is missing still.
        """
        files = [folder / name for name in (HYPOTHESES, REFERENCES)]
        if result["notes"].get("scoring") != UNSCORED or not all(path.is_file() for path in files):
            return None
        texts = [path.read_text(encoding="utf-8").split("\n")[:-1] for path in files]
        scores, signature = bleu.scores(texts[0], texts[1])
        if signature is None:
            return None
        return {
            **result,
            "test": {**scores, **{name: value for name, value in result["test"].items() if name not in scores}},
            "notes": {**result["notes"], "scoring": signature},
        }
