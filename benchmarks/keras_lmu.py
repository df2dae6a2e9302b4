"""A training step of plmu against one of keras-lmu on a CPU, one thread each: `python -m benchmarks.keras_lmu`.

Needs `pip install keras-lmu tensorflow` beside plmu. Both layers have the same equations and the same weights: outputs
and the gradients of all weights must agree in float64 before anything is timed. plmu runs eager. keras-lmu runs in a
`tf.function` in three forms, because its documented one applies the hidden layer step by step:

- hidden cell: `LMU(hidden_cell=Dense(...))`;
- Dense after: `LMU(hidden_cell=None)` and then `Dense(...)`;
- XLA: the same with `jit_compile=True`, which Keras itself leaves off on machines without a GPU.

All candidates take turns within one run, and ratios are medians of the ratios within each round.
"""

from __future__ import annotations

import argparse
import copy
import os
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import plmu
from plmu.bench.measure import Call, relative_error, timed
from plmu.bench.problems import Shape
from plmu.runs.folder import write_json
from plmu.runs.provenance import provenance

# Each with whether the output is that of all steps, or of the last one alone.
CASES = (
    (Shape(32, 784, 1, 64, 256, 784.0, "psMNIST"), False),
    (Shape(8, 1000, 1, 140, 40, 50.0, "Mackey-Glass"), True),
    (Shape(8, 512, 32, 64, 8, 64.0, "32 channels"), True),
)
OURS = "plmu"
FORMS = ("hidden cell", "Dense after", "XLA")
AGREE = torch.finfo(torch.float32).eps  # relative, of float64 results that a float32 result cannot tell apart
Results = tuple[Tensor, list[Tensor]]  # the output, and the gradients of the weights in the layout of keras-lmu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=21, help="number of times that each candidate is timed (21)")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    one_thread()
    rows = []
    for shape, sequences in CASES:
        rows.append(row(shape, sequences, options.rounds))
        print(rows[-1], flush=True)
    if options.json:
        report = {
            "command": " ".join(["python -m benchmarks.keras_lmu", *sys.argv[1:]]),
            "machine": provenance(torch.device("cpu")),
            "versions": {name: version(name) for name in ("keras-lmu", "keras", "tensorflow")},
            "rows": rows,
        }
        write_json(options.json, report)


def one_thread() -> None:
    """Equal settings for both; before TensorFlow's first operation."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    torch.set_num_threads(1)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)


def row(shape: Shape, sequences: bool, rounds: int) -> dict[str, Any]:
    """Times of all candidates on one shape, after a check that they compute the same."""
    torch.manual_seed(0)
    layer = plmu.ParallelLMU(
        shape.channels, shape.out, shape.order, shape.theta, shape.channels, return_sequences=sequences
    )
    for weight in leaves(layer):
        if weight.ndim == 1:  # biases begin at zero, which would hide a wrong one
            torch.nn.init.normal_(weight)
    x = torch.randn(shape.batch, shape.time, shape.channels)
    with torch.no_grad():
        gradient = torch.randn_like(layer(x)[0])
    exact = copy.deepcopy(layer).double()
    expected = results(exact, x.double(), gradient.double())
    difference = 0.0
    for form in FORMS[:2]:
        output, gradients = keras_step(form, shape, exact, x.double(), gradient.double(), graph=False)()
        pairs = zip([output, *gradients], [expected[0], *expected[1]], strict=True)
        difference = max(difference, *(relative_error(_tensor(theirs), ours) for theirs, ours in pairs))
    if not difference <= AGREE:
        raise SystemExit(f"{shape}: plmu and keras-lmu differ by {difference:.1e} in float64")
    calls: dict[str, Call] = {OURS: lambda: torch.autograd.grad(layer(x)[0], leaves(layer), gradient)}
    calls |= {form: keras_step(form, shape, layer, x, gradient) for form in FORMS}
    times = timed(calls, rounds=rounds)
    return {
        "shape": str(shape),
        "name": shape.name,
        "output": "all steps" if sequences else "last step",
        "milliseconds": {name: 1e3 * seconds for name, seconds in times.medians().items()},
        "times ours": {form: times.ratio(form, OURS) for form in FORMS},
        "quartiles of times ours": {form: quartiles(times[form], times[OURS]) for form in FORMS},
        "difference in float64": difference,
        "error": {
            OURS: relative_error(layer(x)[0], expected[0]),
            "keras-lmu": relative_error(_tensor(calls[FORMS[1]]()[0]), expected[0]),  # type: ignore[index]
        },
    }


def quartiles(seconds: list[float], ours: list[float]) -> list[float]:
    """First and third quartile of the ratios within each round, which a busy machine spreads."""
    ratios = torch.tensor(seconds, dtype=torch.float64) / torch.tensor(ours, dtype=torch.float64)
    return torch.quantile(ratios, torch.tensor([0.25, 0.75], dtype=torch.float64)).tolist()


def leaves(layer: plmu.ParallelLMU) -> list[Tensor]:
    return [layer.encoder.weight, layer.encoder.bias, layer.memory_weight, layer.input_weight, layer.bias]


def results(layer: plmu.ParallelLMU, x: Tensor, gradient: Tensor) -> Results:
    output = layer(x)[0]
    return output, keras_layout(*torch.autograd.grad(output, leaves(layer), gradient))


def keras_layout(encoder: Tensor, encoder_bias: Tensor, memory: Tensor, inputs: Tensor, bias: Tensor) -> list[Tensor]:
    """Weights, or their gradients, as keras-lmu has them: transposed, the memory channel by channel, then the input."""
    dense = torch.cat([memory.permute(2, 1, 0).flatten(0, 1), inputs.mT])
    return [encoder.mT, encoder_bias, dense, bias]


def keras_step(
    form: str, shape: Shape, layer: plmu.ParallelLMU, x: Tensor, gradient: Tensor, *, graph: bool = True
) -> Callable[[], tuple[Any, list[Any]]]:
    """A call of keras-lmu, with the weights of `layer`, that returns the output and the gradients of all weights."""
    import keras
    import keras_lmu
    import tensorflow as tf

    dtype = str(x.dtype).removeprefix("torch.")
    dense = keras.layers.Dense(shape.out, activation="relu", dtype=dtype)
    memory = keras_lmu.LMU(
        memory_d=shape.channels,
        order=shape.order,
        theta=shape.theta,
        hidden_cell=dense if form == "hidden cell" else None,
        input_to_hidden=True,
        use_bias=True,
        return_sequences=layer.returns_sequences,
        dtype=dtype,
    )
    arguments = tf.constant(x.numpy()), tf.constant(gradient.numpy())
    model = memory if form == "hidden cell" else lambda x: dense(memory(x))
    model(arguments[0])  # builds the weights
    variables = [memory.layer.kernel, memory.layer.bias, dense.kernel, dense.bias]
    for variable, value in zip(variables, keras_layout(*leaves(layer)), strict=True):
        variable.assign(value.detach().numpy())

    def step(x: Any, gradient: Any) -> tuple[Any, list[Any]]:
        keras.config.set_dtype_policy(dtype)  # of the `TimeDistributed` that a hidden cell is wrapped into
        with tf.GradientTape() as tape:
            output = model(x)
        return output, tape.gradient(output, variables, output_gradients=gradient)

    run = tf.function(step, jit_compile=form == "XLA") if graph else step
    return lambda: run(*arguments)


def _tensor(value: Any) -> Tensor:
    return torch.from_numpy(value.numpy())


if __name__ == "__main__":
    main()
