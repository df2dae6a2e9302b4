"""`plmu bench streaming`: the time of a step of a stream on this CPU, and of its matrix products alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import plmu
from plmu.bench.measure import Keep, forget, medians, memories, relative_error

STEPS = 50


def models() -> dict[str, plmu.nn.Steppable]:
    return {
        "psMNIST: order 468, 346 outputs": plmu.ParallelLMU(1, 346, order=468, theta=784.0),
        "Mackey-Glass: order 40, 140 outputs, two dense layers": plmu.Sequential(
            plmu.ParallelLMU(1, 140, order=40, theta=50.0), nn.Linear(140, 80), nn.GELU(), nn.Linear(80, 1)
        ),
        "IMDB: order 1 on 300 channels": plmu.Sequential(plmu.DelayLayer(300, order=1, theta=500.0), nn.Linear(300, 2)),
        "original LMU on psMNIST: order 256, 212 units": plmu.LMU(1, 212, order=256, theta=784.0),
    }


def run(device: str, rounds: int, keep: Keep = forget) -> dict[str, Any]:
    """Runs on the CPU, whatever the device: streams are for deployment."""
    torch.manual_seed(0)
    lstm = nn.LSTM(1, 200, batch_first=True).eval()
    rows: list[dict[str, Any]] = []
    for name, model in models().items():
        rows.append(_row(name, model, rounds))
        keep({"steps": rows})
    x, state = torch.randn(1, 1, 1), None
    with torch.inference_mode():
        _, state = lstm(x)
        seconds = medians({"LSTM": lambda: lstm(x, state)}, rounds=rounds)["LSTM"]
    rows.append({"model": "torch LSTM on psMNIST: 200 units", "microseconds": 1e6 * seconds})
    return {"steps": rows}


def _row(name: str, model: plmu.nn.Steppable, rounds: int) -> dict[str, Any]:
    features = 300 if name.startswith("IMDB") else 1
    sequence = torch.randn(1, STEPS, features)
    with torch.no_grad():
        whole: Tensor = model.eval()(sequence)[0][0]
    stream = plmu.Stream(model)
    error = relative_error(torch.stack([stream.push(x) for x in sequence[0]]), whole)
    if not error < 1e-4:
        raise RuntimeError(f"{name}: the stream differs from the whole sequence by {error:.1e}")
    stream, sample = plmu.Stream(model), sequence[0, 0].clone()
    matrices = _matrices(model)
    vectors = [torch.randn(matrix.shape[1]) for matrix in matrices]

    def products() -> None:
        for matrix, vector in zip(matrices, vectors, strict=True):
            torch.mv(matrix, vector)

    with torch.inference_mode():
        times = medians({"push": lambda: stream.push(sample), "products": products}, rounds=rounds)
    return {
        "model": name,
        "microseconds": 1e6 * times["push"],
        "microseconds of the products alone": 1e6 * times["products"],
        "over the products": times["push"] / times["products"],
        "error": error,
    }


def _matrices(model: nn.Module) -> list[Tensor]:
    """Every weight as a matrix, and every Ā."""
    weights = [value.detach().flatten(1) for value in model.parameters() if value.dim() > 1]
    return weights + [system.A.float() for memory in memories(model) for system in memory.systems()]
