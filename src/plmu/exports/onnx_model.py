"""A program as an ONNX model: one step, or a whole sequence as a Scan over the step."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import onnx
from onnx import TensorProto, helper

from plmu.exports.onnx_graph import Graph, type_of
from plmu.exports.onnx_operations import emit_step
from plmu.exports.program import Program

OPSET, IR_VERSION = 20, 10  # supported by ONNX Runtime since 1.19
LARGEST = 2**31 - 2**20  # bytes: protobuf allows less than 2 GiB


def step_model(program: Program, metadata: Mapping[str, Any], int8: bool = False) -> bytes:
    """The ONNX file of one step: inputs x (batch, features), or token numbers (batch,), and state_0_in, …; outputs y
    and state_0_out, …"""
    graph = Graph(program, int8)
    y, after = emit_step(graph, "x", _inputs(program))
    nodes = [*graph.nodes, _named(y, "y"), *(_named(state, f"state_{i}_out") for i, state in enumerate(after))]
    return _model("step", graph, nodes, ["batch"], program, metadata)


def whole_model(program: Program, metadata: Mapping[str, Any], sequences: bool, int8: bool = False) -> bytes:
    """The ONNX file of a whole sequence: inputs x (batch, time, features), or token numbers (batch, time), and
    state_0_in, …; outputs y and state_0_out, …, with `sequences` y of every step, else of the last."""
    graph = Graph(program, int8)
    states = [f"state_{i}_now" for i in range(len(program.states))]
    y, after = emit_step(graph, "x_now", states)
    body = helper.make_graph(
        [*graph.nodes, *(_named(state, f"state_{i}_next") for i, state in enumerate(after)), _named(y, "y_now")],
        "step",
        [*_state_infos(program, "now"), _info(program, "x_now", ["batch"])],
        [
            *_state_infos(program, "next"),
            helper.make_tensor_value_info("y_now", type_of(program.y), ["batch", program.y.size]),
        ],
    )
    outputs = [f"state_{i}_out" for i in range(len(program.states))]
    scan = helper.make_node(
        "Scan",
        [*_inputs(program), "x"],
        [*outputs, "y" if sequences else "y_all"],
        body=body,
        num_scan_inputs=1,
        scan_input_axes=[1],
        scan_output_axes=[1],
    )
    nodes = [scan]
    if not sequences:
        nodes.append(helper.make_node("Gather", ["y_all", graph.integer(-1)], ["y"], axis=1))
    return _model("sequence", graph, nodes, ["batch", "time"], program, metadata, sequences)


def _model(
    name: str,
    graph: Graph,
    nodes: list[Any],
    axes: list[str],
    program: Program,
    metadata: Mapping[str, Any],
    sequences: bool = True,
) -> bytes:
    """A checked ONNX file of these nodes; `axes` are the names of x's axes before the features."""
    y: list[str | int | None] = [*(axes if sequences else axes[:1]), program.y.size]
    graph_proto = helper.make_graph(
        nodes,
        name,
        [_info(program, "x", axes), *_state_infos(program, "in")],
        [helper.make_tensor_value_info("y", type_of(program.y), y), *_state_infos(program, "out")],
        initializer=list(graph.constants.values()),
    )
    model = helper.make_model(
        graph_proto, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="plmu"
    )
    for key, value in metadata.items():
        model.metadata_props.add(key=key, value=value if isinstance(value, str) else json.dumps(value))
    size = model.ByteSize()
    if size > LARGEST:
        raise ValueError(f"the model takes {size:,} bytes, and an ONNX file holds {LARGEST:,}: export it as torch or c")
    onnx.checker.check_model(model, full_check=True)
    content: bytes = model.SerializeToString()
    return content


def _inputs(program: Program) -> list[str]:
    return [f"state_{i}_in" for i in range(len(program.states))]


def _named(value: str, name: str) -> Any:
    return helper.make_node("Identity", [value], [name])


def _info(program: Program, name: str, axes: list[str]) -> Any:
    """Type and shape of the input x under this name."""
    if program.tokens is not None:
        return helper.make_tensor_value_info(name, TensorProto.INT64, axes)
    return helper.make_tensor_value_info(name, type_of(program.x), [*axes, program.x.size])


def _state_infos(program: Program, suffix: str) -> list[Any]:
    """Types and shapes of the states, named state_0_suffix, …"""
    return [
        helper.make_tensor_value_info(f"state_{i}_{suffix}", type_of(state), ["batch", *(state.shape or (state.size,))])
        for i, state in enumerate(program.states)
    ]
