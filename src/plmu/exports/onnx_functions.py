"""Functions of torch as nodes of ONNX: each adds nodes to a graph and returns the name of the result."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plmu.exports.onnx_graph import Graph

Emitter = Callable[..., str]


def _plain(kind: str, **attributes: Any) -> Emitter:
    """A function that is a single node of ONNX, with these attributes."""
    return lambda g, x: g.node(kind, x, **attributes)


def _clip(g: Graph, x: str, min_val: float = -1.0, max_val: float = 1.0, wide: bool = False) -> str:
    return g.node("Clip", x, g.number(min_val, wide), g.number(max_val, wide))


def _softplus(g: Graph, x: str, beta: float = 1.0, threshold: float = 20.0) -> str:
    scaled = g.node("Mul", x, g.number(beta))
    curved = g.node("Div", g.node("Softplus", scaled), g.number(beta))
    return g.node("Where", g.node("Greater", scaled, g.number(threshold)), x, curved)


def _glu(g: Graph, x: str, dim: int = -1) -> str:
    value, gate = g.nodes_of("Split", (x,), 2, axis=-1, num_outputs=2)
    return g.node("Mul", value, g.node("Sigmoid", gate))


FUNCTIONS: dict[str, Emitter] = {
    "relu": _plain("Relu"),
    "relu6": lambda g, x: _clip(g, x, 0.0, 6.0),
    "leaky_relu": lambda g, x, negative_slope=0.01: g.node("LeakyRelu", x, alpha=negative_slope),
    "elu": lambda g, x, alpha=1.0: g.node("Elu", x, alpha=alpha),
    "celu": lambda g, x, alpha=1.0: g.node("Celu", x, alpha=alpha),
    "selu": _plain("Selu"),
    "gelu": lambda g, x, approximate="none": g.node("Gelu", x, approximate=approximate),
    "silu": lambda g, x: g.node("Mul", x, g.node("Sigmoid", x)),
    "mish": _plain("Mish"),
    "sigmoid": _plain("Sigmoid"),
    "tanh": _plain("Tanh"),
    "softplus": _softplus,
    "softsign": _plain("Softsign"),
    "hardtanh": _clip,
    "hardsigmoid": _plain("HardSigmoid", alpha=1 / 6, beta=0.5),
    "hardswish": _plain("HardSwish"),
    "logsigmoid": lambda g, x: g.node("Neg", g.node("Softplus", g.node("Neg", x))),
    "tanhshrink": lambda g, x: g.node("Sub", x, g.node("Tanh", x)),
    "abs": _plain("Abs"),
    "exp": _plain("Exp"),
    "log": _plain("Log"),
    "softmax": lambda g, x, dim=-1: g.node("Softmax", x, axis=-1),
    "log_softmax": lambda g, x, dim=-1: g.node("LogSoftmax", x, axis=-1),
    "glu": _glu,
}
