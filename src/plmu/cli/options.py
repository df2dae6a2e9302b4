"""The options after `plmu train EXPERIMENT`: dataclasses whose docstrings are the help, parsed by tyro.

This is the last part of the parsing: `cli.train` has taken out experiment, FILE and --model.

A field's docstring may have the words `Default: chosen from the data.` or `(default: chosen from the data)`, which are
shown as the default where the value is None or empty.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import re
import shutil
import sys
import textwrap
import types
import typing
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from tyro.constructors import ConstructorRegistry, StructConstructorSpec, StructFieldSpec, StructTypeInfo

from plmu.runs.runner import Options

if TYPE_CHECKING:
    from plmu.runs.experiment import Config, Experiment

METAVARS = {int: "INT", float: "FLOAT", str: "STR", Path: "PATH", bool: "{True,False}"}
DEFAULT = re.compile(r"\s*(?:Default: (?P<sentence>.+?)\.(?=\s|$)|\(default: (?P<brackets>[^)]*)\))")


def parse(experiment: Experiment, model: str, argv: Sequence[str]) -> tuple[Config[Any], Options]:
    """The configuration of a model and the options of its run, from arguments without experiment, FILE and --model."""
    asks_help = bool({"-h", "--help"} & {*argv})
    if asks_help:
        print(_description(experiment, model) + "\n")
    default = experiment.defaults(model)
    command: Any = dataclasses.make_dataclass("Command", [("options", Any), ("config", Any)])
    registry = ConstructorRegistry()
    registry.struct_rule(functools.partial(_fields, experiment=experiment, model=model))
    parsed = tyro.cli(
        command,
        default=command(Options(), default),
        args=[*argv],
        prog=f"plmu train {experiment.name}" + (" FILE" if asks_help and experiment.own_data else ""),
        description="",
        registry=registry,
    )
    return parsed.config, parsed.options


def _description(experiment: Experiment, model: str) -> str:
    """The docstring of the experiment's module, and its models."""
    usual, started = experiment.default_model(started=False), experiment.default_model(started=True)
    with_start = f", with --from {started}" if started != usual else ""
    paragraphs = [
        *(sys.modules[type(experiment).__module__].__doc__ or "").strip().split("\n\n"),
        f"--model {{{','.join(experiment.models)}}} (default: {usual}{with_start})."
        f" The options below are those of {model}.",
    ]
    width = shutil.get_terminal_size().columns
    return "\n\n".join(textwrap.fill(" ".join(paragraph.split()), width) for paragraph in paragraphs)


def _fields(info: StructTypeInfo, experiment: Experiment, model: str) -> StructConstructorSpec | None:
    """How tyro reads a configuration or run options: each field with its help, its type in capitals and its default.

    None, tyro's own way, for anything but an instance of a dataclass. Fields that this experiment or model does not
    use are no options and keep their defaults; --data.root of an experiment on own data is read but not listed.
    """
    default = info.default
    if not dataclasses.is_dataclass(default) or isinstance(default, type):
        return None
    hints, texts = typing.get_type_hints(type(default)), documentation(type(default))
    fixed = (*(["start"] if not experiment.starts else []), *(["training"] if experiment.closed_form(model) else []))
    fields, values = [], {}
    for field in dataclasses.fields(default):
        name, value = field.name, getattr(default, field.name)
        if name in fixed:
            values[name] = value
        elif dataclasses.is_dataclass(value):
            flat = name in ("options", "config")
            kind: Any = Annotated[type(value), tyro.conf.arg(name="")] if flat else type(value)
            fields.append(StructFieldSpec(name=name, type=kind, default=value))
        else:
            text = texts.get(name, "")
            text, hint = shown(text, value)
            if name == "file" and experiment.own_data:
                hint = "(required; the same as FILE)"
            argument = tyro.conf.arg(metavar=_metavar(hints[name]), help_behavior_hint=hint)
            if name == "start":
                text = f"Folder of a finished run of {' or '.join(experiment.starts)} to start from."
                argument = tyro.conf.arg(name="from", metavar="PATH", help_behavior_hint=hint)
            annotated: Any = Annotated[hints[name], argument]
            if name == "root" and experiment.own_data:
                annotated = Annotated[annotated, tyro.conf.Suppress]
            fields.append(StructFieldSpec(name, annotated, value, text))
    return StructConstructorSpec(instantiate=functools.partial(type(default), **values), fields=tuple(fields))


def shown(text: str, value: Any) -> tuple[str, str]:
    """The help of an option without its words on the default, and the default in brackets."""
    sentence = DEFAULT.search(text)
    text = DEFAULT.sub("", text)
    if value is None or value == ():
        default = sentence["sentence"] or sentence["brackets"] if sentence else "none"
    elif isinstance(value, bool):
        default = "on" if value else "off"
    else:
        default = " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return text, f"(default: {default})"


def _metavar(hint: Any) -> str | None:
    """The placeholder for the value of an option whose type is a tuple or may be None; None: tyro's own placeholder."""
    kind, inner = typing.get_origin(hint), typing.get_args(hint)
    if kind is tuple and inner[-1] is ...:
        return f"[{METAVARS[inner[0]]} ...]"
    if kind in (typing.Union, types.UnionType):
        values = [option for option in inner if option is not type(None)]
        return _metavar(values[0]) or METAVARS.get(values[0]) if len(values) == 1 else None
    return None


@functools.cache
def documentation(kind: type) -> dict[str, str]:
    """The docstrings below the fields of a dataclass and of its bases, each on one line, by field."""
    texts: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        try:
            (definition,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        except (OSError, TypeError):  # a class without a source file
            continue
        assert isinstance(definition, ast.ClassDef)
        for field, below in pairwise(definition.body):
            match field, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    texts[name] = " ".join(text.split())
    return texts
