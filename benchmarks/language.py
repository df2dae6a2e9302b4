"""Tokens per second of training language models: `python -m benchmarks.language --device cuda`.

Whole training steps with the configurations of the experiments, on random tokens on the device: loss,
gradients, clipping and optimiser; on a GPU compiled and as a CUDA graph. `flops` are six for each token and each
parameter that a token is multiplied by: the embedding table is not, the output layer is.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from plmu.bench.measure import medians
from plmu.cli.catalogue import lookup
from plmu.experiments import language
from plmu.runs.folder import write_json
from plmu.runs.provenance import provenance
from plmu.text.symbols import Characters, Words
from plmu.training.loop import Trainer
from plmu.training.processes import processes

BATCHES = 4  # of random tokens
MODELS = (("text8", "plmu"), ("text8", "modern"), ("text8", "lstm"), ("text8", "plmu-attention"), ("reviews", "plmu"))
PEAK = {"NVIDIA H200": 989e12}  # dense bfloat16 operations a second, of the data sheet


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu or cuda (cpu)")
    parser.add_argument("--batch", type=int, help="sequences of a batch (as each experiment has them)")
    parser.add_argument("--only", help="one model, such as text8-modern (all)")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    rows = []
    for experiment, model in MODELS:
        if options.only in (None, f"{experiment}-{model}"):
            rows.append(measured(experiment, model, options.device, options.batch))
            print(rows[-1], flush=True)
    if options.json:
        command = " ".join(["python -m benchmarks.language", *sys.argv[1:]])
        machine = provenance(torch.device(options.device))
        write_json(options.json, {"command": command, "machine": machine, "rows": rows})


def measured(experiment: str, model: str, device: str, batch: int | None) -> dict[str, Any]:
    config = lookup(experiment).defaults(model)
    size = getattr(config.model, "vocabulary", 25) + 2
    training = dataclasses.replace(config.training, batch_size=batch or config.training.batch_size, epochs=1)
    tokens = training.batch_size * config.model.length
    numbers = np.random.default_rng(0).integers(0, size, (BATCHES + 2) * tokens).astype(np.uint16)
    symbols = (
        Characters([chr(ord("a") + i) for i in range(size)])
        if size == 27
        else Words([f"w{i}" for i in range(size - 2)])
    )
    task = language.language_task(
        dict.fromkeys(("train", "valid", "test"), numbers), symbols, config.model.length, {}, "bpc"
    )
    network = language.build(config.model, size)
    start = time.perf_counter()
    with processes(device) as group:
        trainer = Trainer(task, network, training, group, 0)
        network.train()
        setup = time.perf_counter() - start
        seconds = medians({"step": trainer.one_step}, device=group.device.type, rounds=9)["step"]
        parameters = sum(p.numel() for p in network.parameters())
        flops = 6 * tokens * sum(p.numel() for p in _multiplied(network))
        peak = PEAK.get(torch.cuda.get_device_name(group.device)) if group.device.type == "cuda" else None
    return {
        "experiment": experiment,
        "model": model,
        "parameters": parameters,
        "batch": training.batch_size,
        "length": config.model.length,
        "milliseconds": 1e3 * seconds,
        "tokens per second": tokens / seconds,
        "flops per second": flops / seconds,
        "share of the bfloat16 peak": None if peak is None else flops / seconds / peak,
        "seconds before the first step": setup,
    }


def _multiplied(network: nn.Module) -> list[nn.Parameter]:
    """Matrices that each token is multiplied by: all but embeddings that are not also the output's."""
    tables = {id(module.weight) for module in network.modules() if isinstance(module, nn.Embedding)}
    outputs = {id(module.weight) for module in network.modules() if isinstance(module, nn.Linear)}
    return [p for p in network.parameters() if p.dim() > 1 and (id(p) not in tables or id(p) in outputs)]


if __name__ == "__main__":
    main()
