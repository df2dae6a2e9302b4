"""Models that the tests of exports run over, and how they run ONNX."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import blocks
import layers
import onnxruntime
import torch
from torch import Tensor, nn

import plmu
from plmu import DelayLayer, Gated, LMUBlock, MemoryBlock, ParallelLMU, Residual, Sequential
from plmu.exports.exporting import prepared, program_of
from plmu.exports.program import Program

TOLERANCE = 1e-5  # what an export promises, of float32 outputs

ACTIVATIONS = [
    nn.ReLU(), nn.ReLU6(), nn.LeakyReLU(0.3), nn.PReLU(), nn.ELU(0.5), nn.CELU(0.5), nn.SELU(), nn.GELU(),
    nn.GELU(approximate="tanh"), nn.SiLU(), nn.Mish(), nn.Sigmoid(), nn.Tanh(), nn.Softplus(2.0, 0.5), nn.Softplus(),
    nn.Softsign(), nn.Hardtanh(-0.5, 0.25), nn.Hardsigmoid(), nn.Hardswish(), nn.LogSigmoid(), nn.Tanhshrink(),
    nn.Softmax(-1), nn.LogSoftmax(-1), nn.Dropout(0.5), nn.LayerNorm(4), nn.LayerNorm(4, elementwise_affine=False),
    nn.RMSNorm(4), nn.RMSNorm(4, eps=0.1, elementwise_affine=False), plmu.Standardize(4),
]  # fmt: skip


def continued(layer: Any) -> plmu.nn.Continued:
    """The layer after some steps."""
    _, state = layer(torch.randn(1, 5, 3))
    return plmu.nn.Continued(layer).continue_from(state, step=5)


# Beside the tables of layers and blocks: what folds in another way.
MORE: dict[str, Callable[[], Any]] = {
    "functions": lambda: Sequential(
        *(Residual(nn.Sequential(one, nn.Linear(4, 4))) for one in ACTIVATIONS), nn.GLU(-1)
    ),
    "near identity": lambda: ParallelLMU(3, 4, order=1, theta=1e5),
    "near identity, some channels": lambda: ParallelLMU(3, 4, order=1, theta=[3.0, 1e5], memory_size=2),
    "f1": lambda: ParallelLMU(3, 4, **layers.SMALL, input_activation="tanh"),
    "several inputs": lambda: ParallelLMU(3, 4, system=plmu.LinearSystem(0.9 * torch.eye(5), torch.randn(5, 2))),
    "hold": lambda: ParallelLMU(3, 4, **layers.SMALL, missing="hold"),
    "zero": lambda: Sequential(nn.Linear(3, 4), DelayLayer(4, **layers.SMALL), missing="zero"),
    "linear in a row": lambda: Sequential(
        nn.Linear(3, 5), nn.Linear(5, 3), ParallelLMU(3, 6, **layers.SMALL, output_activation=None), nn.Linear(6, 2)
    ),
    "norm and gates": lambda: Sequential(
        nn.RMSNorm(3), Gated(ParallelLMU(3, 4, 3, [3.0, 9.0, 1e4], encoder=False), nn.Linear(3, 4)),
        nn.RMSNorm(4), Gated(nn.Linear(4, 4, bias=False), nn.Sequential(nn.Linear(4, 4), nn.SiLU())),
    ),
    "letters": lambda: blocks.language_model(MemoryBlock(8, 3, blocks.WINDOWS), LMUBlock(8, 3, 4.0)),
    "letters with attention": lambda: blocks.language_model(
        LMUBlock(8, 3, 4.0), Residual(Sequential(nn.RMSNorm(8), plmu.CausalAttention(8, 2, 4)))
    ),
    "shares": lambda: Sequential(nn.Linear(3, 4), plmu.nn.ThresholdShares(4, 2), nn.Linear(8, 2)),
    "shares and positions": lambda: Sequential(
        DelayLayer(3, **layers.SMALL), nn.Linear(3 * layers.SMALL["order"], 4),
        plmu.nn.ThresholdShares(4, 2, positions=True, return_sequences=False), nn.Linear(16, 2),
    ),
    "shares and positions of degree 3": lambda: Sequential(
        nn.Linear(3, 4), plmu.nn.ThresholdShares(4, 2, positions=3), nn.Linear(32, 2)
    ),
    "continued": lambda: continued(
        Sequential(ParallelLMU(3, 4, **layers.SMALL, missing="hold"), DelayLayer(4, **layers.SMALL), nn.Linear(16, 2))
    ),
    "timed": lambda: Sequential(plmu.TimedDelayLayer(2, 4, 7.0), nn.Linear(8, 2)),
    "token delay": lambda: Sequential(plmu.TokenDelayLayer(9, 3, **layers.SMALL), nn.Linear(12, 2)),
}  # fmt: skip
NAMES = [*layers.LAYERS, *(f"block: {one}" for one in blocks.BLOCKS), *MORE]


def model_of(name: str) -> Any:
    """A float32 model in evaluation mode with no weight at zero, where a forgotten connection would not show."""
    if name in layers.LAYERS:
        return layers.build(name, torch.float32).eval()
    if name.startswith("block: "):
        return blocks.build(name.removeprefix("block: "), torch.float32).eval()
    torch.manual_seed(1)
    model = MORE[name]()
    with torch.no_grad():
        for value in model.parameters():
            value.add_(0.1 * torch.randn_like(value))
        for key, value in model.named_buffers():
            if not value.is_floating_point():
                continue
            value.add_(torch.rand_like(value) if "std" in key else torch.randn_like(value))
    return model.eval()


def program(model: Any, int8: bool = False) -> Program:
    return program_of(prepared(model), int8)


def inputs(made: Program, *shape: int) -> Tensor:
    """(*shape, features), the first of which may be an interval; or token numbers (*shape)."""
    if made.tokens is not None:
        return torch.randint(made.tokens, shape)
    x = torch.randn(*shape, made.x.size)
    if made.usual_interval is not None:
        x[..., 0] = x[..., 0].abs() * made.usual_interval
    return x


class Session:
    """An ONNX model that runs on one core, and its states."""

    def __init__(self, data: bytes | str | Path, made: Program) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        given = data if isinstance(data, bytes) else str(data)
        self.session = onnxruntime.InferenceSession(given, options, providers=["CPUExecutionProvider"])
        self.made = made
        self.states: list[Any] | None = None

    def __call__(self, x: Tensor) -> Tensor:
        batch = x.shape[0]
        states = self.states or [
            torch.zeros(batch, *(one.shape or ()), dtype=one.dtype).numpy() for one in self.made.states
        ]
        feeds = {f"state_{i}_in": state for i, state in enumerate(states)}
        names = ["y", *(f"state_{i}_out" for i in range(len(states)))]
        y, *self.states = self.session.run(names, {"x": self._samples(x), **feeds})
        return torch.from_numpy(y)

    def _samples(self, x: Tensor) -> Any:
        return (x if self.made.tokens is not None else x.to(self.made.x.dtype)).numpy()


def relative(found: Tensor, expected: Tensor) -> float:
    """The largest error against the largest value, or 1 where that is larger."""
    assert found.shape == expected.shape
    return (found - expected).abs().max().item() / max(1.0, expected.abs().max().item())
