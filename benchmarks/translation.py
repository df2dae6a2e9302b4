"""The speed of a translation model on a CPU: `python -m benchmarks.translation RUN SENTENCES`.

RUN is a folder of `plmu train iwslt`, SENTENCES a file with one sentence a line. Sentences per second are those of
`plmu translate`, with the beam of the run, one by one and in batches. Then the decoder takes many steps on one
sentence, with as many hypotheses: does a step take more time or memory after thousands of tokens than at first?

Before anything is timed, the logits of single steps must be those of the parallel forward.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

from plmu.data.reading import lines
from plmu.experiments.translation.translator import Options, Translator
from plmu.runs.folder import write_json
from plmu.runs.provenance import provenance
from plmu.runtime.state_tree import leaves
from plmu.text.vocabularies import BEGIN

BATCHES = (1, 32)
CHECKED = 20  # steps
PIECE = 500  # steps that are timed together
BOUND = 1e-4  # of logits, between steps and the parallel forward in float32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of a run of iwslt")
    parser.add_argument("sentences", type=Path, help="file with one sentence a line")
    parser.add_argument("--count", type=int, default=200, help="sentences, evenly spaced in the file (200)")
    parser.add_argument("--steps", type=int, default=10_000, help="steps on one sentence (10,000)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    translator = Translator(options.run)
    sentences = [text for _, text in lines(options.sentences) if text.strip()]
    sample = sentences[:: max(1, len(sentences) // options.count)][: options.count]
    figures: dict[str, Any] = {"largest difference of logits": check(translator, sample[0])}
    figures |= {f"sentences a second, batch {size}": speed(translator, sample, size) for size in BATCHES}
    figures |= steps(translator, sample[0], options.steps)
    row = {
        "run": options.run.name,
        "threads": options.threads,
        "sentences": len(sample),
        "beam": translator.config.beam,
    }
    row |= {"parameters": sum(parameter.numel() for parameter in translator.model.parameters()), **figures}
    print(row)
    if options.json:
        command = f"python -m benchmarks.translation {options.run.name} {options.sentences.name}"
        write_json(options.json, {"command": command, "machine": provenance(torch.device("cpu")), "rows": [row]})


def source_of(translator: Translator, sentence: str, rows: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    numbers = [number for word in translator.source.encode([word] for word in sentence.split()) for number in word]
    return torch.tensor([numbers] * rows), torch.full((rows,), len(numbers))


@torch.no_grad()
def check(translator: Translator, sentence: str) -> float:
    model = translator.model
    source, lengths = source_of(translator, sentence)
    target = torch.randint(4, translator.target.size, (1, CHECKED))
    together = model(source, lengths, target)
    context, state = model.encode(source, lengths), None
    worst = 0.0
    for t in range(CHECKED):
        out, state = model.step(target[:, t], state, context)
        worst = max(worst, float((out - together[:, t]).abs().max()))
    if worst > BOUND * float(together.abs().max()):
        raise RuntimeError(f"steps differ from the parallel forward by {worst:.1e}")
    return worst


def speed(translator: Translator, sentences: list[str], batch: int) -> float:
    options = Options(batch=batch)
    translator.translate(sentences[:batch], options)  # a CPU takes a while to be at its speed
    start = time.perf_counter()
    translator.translate(sentences, options)
    return len(sentences) / (time.perf_counter() - start)


@torch.no_grad()
def steps(translator: Translator, sentence: str, count: int) -> dict[str, float]:
    """Times of decoder steps on a batch of hypotheses of one sentence, each fed its likeliest token, END included."""
    model = translator.model
    source, lengths = source_of(translator, sentence)
    context, state = model.encode(source, lengths), None
    token = torch.full((translator.config.beam,), BEGIN)
    times, memory, size = [], [], 0
    for _ in range(count // PIECE):
        start = time.perf_counter()
        for _ in range(PIECE):
            out, state = model.step(token, state, context)
            token = out[:, 4:].argmax(1) + 4
        times.append((time.perf_counter() - start) / PIECE)
        memory.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        size = sum(leaf.numel() * leaf.element_size() for leaf in leaves(state))
    return {
        "steps": count // PIECE * PIECE,
        "ms a step, first": 1e3 * times[0],
        "ms a step, last": 1e3 * times[-1],
        "ms a step, median": 1e3 * statistics.median(times),
        "bytes of state, all hypotheses": size,
        "growth of memory, MB": (memory[-1] - memory[0]) / (1 << (10 if sys.platform.startswith("linux") else 20)),
    }


if __name__ == "__main__":
    main()
