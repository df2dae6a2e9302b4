"""Completion of the command line: `plmu completion bash`, `zsh` or `fish` prints a script for that shell.

The script contains all words to complete, so that plmu is not run to complete them; after an upgrade a new script is
needed.
"""

from __future__ import annotations

import dataclasses
import shlex
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from plmu.cli.arguments import Parser
from plmu.cli.catalogue import CATALOGUE, lookup
from plmu.runs.experiment import Experiment
from plmu.runs.runner import Options
from plmu.runs.sources import path_fields

# What may follow a context, which is "", a command or "train EXPERIMENT"; for values, one of these and an option.
Words = dict[str, list[str]]
Flags = dict[str, Sequence[str]]  # options, each with the values it takes if they are few
DEVICES = ("auto", "cpu", "cuda")  # the usual values of --device


def script(shell: str, commands: Mapping[str, Parser | None], options: Sequence[str]) -> str:
    """The completion script of a shell: "bash", "zsh" or "fish".

    Args:
        shell: its name.
        commands: the parser of each command; None for `train`, whose words come from the catalogue.
        options: the program's own options, such as --version.
    """
    words, values = _words(commands, options)
    files = [name for name, parser in commands.items() if parser is not None and parser.takes_path]
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](words, values, files, paths(commands.values()))


def paths(parsers: Iterable[Parser | None]) -> list[str]:
    """The options that take a file or folder, of these commands and of all experiments."""
    options = {option for parser in parsers if parser is not None for option in parser.paths}
    for experiment in map(lookup, CATALOGUE):
        data = experiment.defaults(experiment.models[0]).data
        options |= {f"--data.{name}".replace("_", "-") for name in path_fields(data)}
    return sorted(options | {"--runs", "--from"})


def _words(commands: Mapping[str, Parser | None], options: Sequence[str]) -> tuple[Words, Words]:
    """The words that may follow each context, and the values that may follow each context with an option."""
    words: Words = {"": [*commands, *options], "train": [*CATALOGUE, "--help"]}
    values: Words = {}
    options_of: dict[str, Flags] = {
        name: {**parser.completions} for name, parser in commands.items() if parser is not None
    }
    for name in CATALOGUE:
        experiment = lookup(name)
        flags: Flags = {"--help": (), "--model": experiment.models, **_flags(Options())}
        flags |= {"--from": ()} if experiment.starts else {}
        for model in experiment.models:
            flags |= _options(experiment, model)
        options_of[f"train {name}"] = flags
    for context, flags in options_of.items():
        words[context] = list(flags)
        values |= {f"{context} {flag}": list(choices) for flag, choices in flags.items() if choices}
        values |= {f"{context} --device": list(DEVICES)} if "--device" in flags else {}
    return words, values


def _options(experiment: Experiment, model: str) -> Flags:
    """The options of a model: without those of training if it is fitted in closed form, and without unused ones."""
    flags = _flags(experiment.defaults(model))
    hidden = (
        *(["--training."] if experiment.closed_form(model) else []),
        *(["--data.root"] if experiment.own_data else []),
    )
    return {flag: values for flag, values in flags.items() if not flag.startswith(hidden)}


def _flags(config: Any, prefix: str = "--") -> Flags:
    """The options of a configuration, nested ones included, as tyro names them, each with its choices if it has any."""
    flags: Flags = {}
    hints = typing.get_type_hints(type(config))
    for field in dataclasses.fields(config):
        value, name = getattr(config, field.name), field.name.replace("_", "-")
        if field.name == "start":  # --from, which only some experiments take
            continue
        if dataclasses.is_dataclass(value):
            flags |= _flags(value, f"{prefix}{name}.")
        elif hints[field.name] is bool:
            flags |= {f"{prefix}{name}": (), f"{prefix}no-{name}": ()}
        else:
            literal = typing.get_origin(hints[field.name]) is typing.Literal
            flags[f"{prefix}{name}"] = typing.get_args(hints[field.name]) if literal else ()
    return flags


def _case(words: Words, values: Words, files: list[str], paths: list[str]) -> str:
    """Shell code for bash and zsh that sets `choices`, the words to offer, and `files`, to 1 where a path may come.

    The shell variables `place` and `before` are the context and the word before the one to complete.
    """
    patterns = " | ".join(f"*' {path}'" for path in paths)
    lines = ['    case "$place $before" in']
    lines += [
        f"        {shlex.quote(place)}) choices={shlex.quote(' '.join(choices))} ;;"
        for place, choices in values.items()
    ]
    lines += [f"        {patterns}) files=1 ;;", "        *)", '            case "$place" in']
    for place, choices in words.items():
        also = " files=1" if place in files else ""
        lines.append(f"                {shlex.quote(place)}) choices={shlex.quote(' '.join(choices))}{also} ;;")
    return "\n".join([*lines, "            esac ;;", "    esac"])


def _bash(words: Words, values: Words, files: list[str], paths: list[str]) -> str:
    return f"""_plmu() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} typed=() before= place= choices= files= i
    for ((i = 1; i < COMP_CWORD; i++)); do
        case ${{COMP_WORDS[i]}} in
            = | --traceback) ;;  # bash takes --option=value for three words
            *) before=${{COMP_WORDS[i]}} typed+=("$before") ;;
        esac
    done
    [ "$word" = "=" ] && word=
    place=${{typed[0]}}
    [ "${{#typed[@]}}" -gt 1 ] && [ "$place" = train ] && place="train ${{typed[1]}}"
{_case(words, values, files, paths)}
    mapfile -t COMPREPLY < <(compgen -W "$choices" -- "$word")
    if [ -n "$files" ] && [[ $word != -* ]]; then
        mapfile -t -O "${{#COMPREPLY[@]}}" COMPREPLY < <(compgen -f -- "$word")
        compopt -o filenames
    fi
}}
complete -F _plmu plmu
"""


def _zsh(words: Words, values: Words, files: list[str], paths: list[str]) -> str:
    return f"""#compdef plmu
_plmu() {{
    local -a typed
    typed=(${{words[2,CURRENT-1]:#--traceback}})
    local before=${{typed[-1]}} place=${{typed[1]}} choices= files=
    (( $#typed > 1 )) && [[ $place == train ]] && place="train ${{typed[2]}}"
{_case(words, values, files, paths)}
    compadd -- ${{=choices}}
    [[ -n $files ]] && _files
}}
if [ "$funcstack[1]" = "_plmu" ]; then
    _plmu "$@"
else
    compdef _plmu plmu
fi
"""


def _fish(words: Words, values: Words, files: list[str], paths: list[str]) -> str:
    def case(pattern: str, choices: list[str], with_files: bool) -> str:
        lines = [f"        case {pattern}"]
        lines += [f"            printf '%s\\n' {' '.join(map(shlex.quote, choices))}"] if choices else []
        lines += ["            __fish_complete_path (commandline -ct)"] if with_files else []
        return "\n".join(lines)

    after = [case(shlex.quote(place), choices, False) for place, choices in values.items()]
    after.append(case(" ".join(f"'* {path}'" for path in paths), [], True))
    usual = [case(shlex.quote(place), choices, place in files) for place, choices in words.items()]
    return f"""function __plmu_complete
    set -l typed (string match -v -- --traceback (commandline -opc))
    set -l place
    set -q typed[2]; and set place $typed[2]
    set -q typed[3]; and test "$place" = train; and set place "train $typed[3]"
    switch "$place $typed[-1]"
{chr(10).join(after)}
        case '*'
            switch "$place"
{chr(10).join("    " + line for entry in usual for line in entry.splitlines())}
            end
    end
end
complete -c plmu -f -a '(__plmu_complete)'
"""
