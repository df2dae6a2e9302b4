"""The task of translation models: pairs of sentences as batches, the loss, and BLEU of a model's translations."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import plmu
from plmu.errors import RunError
from plmu.experiments.data.parallel import ParallelData
from plmu.experiments.language import matrix_groups
from plmu.experiments.translation import bleu
from plmu.experiments.translation.decoding import translate
from plmu.experiments.translation.models import TranslationModel
from plmu.text.vocabularies import BEGIN, END, Vocabulary
from plmu.text.words import Ragged
from plmu.training.task import Batch, Task

AT_ONCE = {"cpu": 64, "cuda": 512}  # sentences translated at a time
SCORED = 64  # sentences of which the perplexity is computed at a time
HYPOTHESES, REFERENCES = "hypotheses.txt", "references.txt"
UNSCORED = "sacrebleu was not installed; the same command adds its signature where it is"
IGNORED = -100  # target of the padding


@dataclass(kw_only=True)
class TranslationTask(Task):
    """A task with its vocabularies and, once it is tested, the translations of the test sentences."""

    source: Vocabulary
    target: Vocabulary
    outputs: dict[str, str] = field(default_factory=dict)  # files to write into the run's folder, by name


def translation_task(data: ParallelData, model: TranslationModel) -> TranslationTask:
    """Translation token by token, scored by BLEU. The best epoch is the one whose greedy translations of all validation
    sentences have the highest BLEU."""
    train, left_out = _training_split(data.splits["train"], model.longest)
    references = data.references["valid"] + data.references["test"]
    first_test = len(data.references["valid"])
    valid, test = _split(data.splits["valid"], 0), _split(data.splits["test"], first_test)
    notes: dict[str, object] = {
        "data": data.completeness,
        "tokens": f"{data.source.size:,} and {data.target.size:,} {data.source.kind}",
    }
    if left_out:
        notes["longest"] = f"{left_out:,} pairs with more than {model.longest} tokens were not trained on"
    outputs: dict[str, str] = {}

    def score(network: nn.Module, split: Batch) -> dict[str, float]:
        numbers = split[4].tolist()
        is_test = numbers[0] >= first_test
        beam = model.beam if is_test else 1
        perplexity = math.exp(nats(network, split))
        hypotheses = [" ".join(data.target.decode(tokens)) for tokens in _translated(network, split, beam, model)]
        targets = [references[number] for number in numbers]
        if not is_test:
            return {"bleu": bleu.bleu(hypotheses, targets), "perplexity": perplexity}
        outputs.update({HYPOTHESES: _lines(hypotheses), REFERENCES: _lines(targets)})
        scores, signature = bleu.scores(hypotheses, targets)
        notes["scoring"] = signature or UNSCORED
        notes["decoding"] = f"beam {beam}, length penalty {model.length_penalty:g}, <unk> not replaced"
        return {**scores, "perplexity": perplexity}

    return TranslationTask(
        train,
        valid,
        test,
        loss=lambda network, batch: loss(network, batch, model.label_smoothing),
        metric="bleu",
        higher_is_better=True,
        evaluation_batch=64,
        score=score,
        groups=matrix_groups,
        lengths=lambda batch: (batch[1], None, batch[3], None),
        weight=lambda batch: batch[3].sum(),
        notes=notes,
        source=data.source,
        target=data.target,
        outputs=outputs,
    )


def loss(network: nn.Module, batch: Batch, smoothing: float = 0.0) -> Tensor:
    """Mean cross-entropy of the target's tokens, in nats."""
    total, count = _summed_loss(network, batch, smoothing)
    return total / count


def _summed_loss(network: nn.Module, batch: Batch, smoothing: float) -> tuple[Tensor, Tensor]:
    """The summed cross-entropy of the target's tokens, END included, in nats; and their number."""
    source, source_lengths, target, target_lengths = batch[:4]
    target = target.long()
    steps = torch.arange(target.shape[1], device=target.device)
    expected = torch.where(steps < target_lengths[:, None], target, IGNORED)
    previous = torch.cat([torch.full_like(target[:, :1], BEGIN), target[:, :-1]], dim=1)
    out = network(source.long(), source_lengths, previous).flatten(0, 1).float()  # causal: padding has no effect
    total = cross_entropy(out, expected.flatten(), ignore_index=IGNORED, reduction="sum", label_smoothing=smoothing)
    return total, target_lengths.sum()


def nats(network: nn.Module, split: Batch) -> float:
    """Mean loss of a token over a whole split, without smoothing."""
    total = count = 0.0
    for batch in _batches(split, network, SCORED):
        loss_sum, tokens = _summed_loss(network, batch, 0.0)
        total, count = total + float(loss_sum), count + float(tokens)
    return total / count


def _translated(network: nn.Module, split: Batch, beam: int, model: TranslationModel) -> list[list[int]]:
    """Token numbers of the translations of a split, in its order."""
    assert isinstance(network, plmu.EncoderDecoder)
    translations: dict[int, list[int]] = {}
    size = AT_ONCE.get(next(network.parameters()).device.type, SCORED)
    for source, lengths, _, _, numbers in _batches(split, network, size):
        results = translate(network, source.long(), lengths, beam, model.length_penalty)
        for number, translation in zip(numbers.tolist(), results, strict=True):
            translations[number] = translation.tokens
    return [translations[number] for number in split[4].tolist()]


def _batches(split: Batch, network: nn.Module, size: int) -> list[Batch]:
    """Batches of `size` sentences of similar length, cut to the longest of each batch, on the device of the model."""
    device = next(network.parameters()).device
    batches: list[Batch] = []
    for rows in split[1].argsort(stable=True).split(size):
        source, source_lengths, target, target_lengths, numbers = (part[rows].to(device) for part in split)
        source, target = source[:, : int(source_lengths.max())], target[:, : int(target_lengths.max())]
        batches.append((source, source_lengths, target, target_lengths, numbers))
    return batches


def _training_split(sides: tuple[Ragged, Ragged], longest: int) -> tuple[Batch, int]:
    """Pairs of which no side has more than `longest` tokens, and the number of other pairs."""
    sizes = np.stack([np.diff(side.ends, prepend=0) for side in sides]).max(0)
    rows = np.flatnonzero(sizes <= longest)
    if not len(rows):
        raise RunError(f"model.longest = {longest} is below the length of every training sentence")
    short = (sides[0].take(rows), sides[1].take(rows))
    return _split(short, 0)[:4], len(sizes) - len(rows)


def _split(sides: tuple[Ragged, Ragged], first: int) -> Batch:
    """Tokens and lengths of source and target, the target with END, and the number of each pair."""
    source, lengths = sides[0].padded(int(np.diff(sides[0].ends, prepend=0).max()), "first")
    longest = int(np.diff(sides[1].ends, prepend=0).max()) + 1
    target, target_lengths = sides[1].padded(longest, "first")
    target[torch.arange(len(target)), target_lengths] = END
    narrow = torch.int16 if max(int(source.max()), int(target.max())) < 2**15 else torch.int32
    numbers = torch.arange(first, first + len(source))
    return source.to(narrow), lengths, target.to(narrow), target_lengths + 1, numbers


def _lines(texts: list[str]) -> str:
    return "".join(f"{text}\n" for text in texts)
