"""Completion of the command line: `plmu completion bash`, `zsh` or `fish` prints a script for that shell.

The script holds all words, so that completing them takes no time; it is made again after an upgrade.
"""

from __future__ import annotations

import dataclasses
import shlex
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from plmu.cli.arguments import Parser
from plmu.cli.catalogue import CATALOGUE, lookup
from plmu.runs.experiment import Experiment
from plmu.runs.runner import Options

# What may come at a place, which is the command and, after `train`, the experiment; or after an option there.
Words = dict[str, list[str]]
Flags = dict[str, Sequence[str]]  # options, each with the values it takes if they are few
DEVICES = ("auto", "cpu", "cuda")  # the usual values of --device
PATHS = (
    "--runs",
    "--data.root",
    "--data.file",
    "--data.test-file",
    "--data.labels",
    "--data.source",
    "--data.target",
    "--data.valid-source",
    "--data.valid-target",
    "--data.test-source",
    "--data.test-target",
    "--attention",
    "--from",
    "--results",
    "--out",
    "--input",
    "--state",
    "--states",
)  # options that take a file or folder


def script(shell: str, commands: Mapping[str, Parser | None], options: Sequence[str]) -> str:
    """The script of a shell for these commands and the program's own options."""
    words, values = _words(commands, options)
    files = [name for name, parser in commands.items() if parser is not None and parser.takes_path]
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](words, values, files)


def _words(commands: Mapping[str, Parser | None], options: Sequence[str]) -> tuple[Words, Words]:
    words: Words = {"": [*commands, *options], "train": [*CATALOGUE, "--help"]}
    values: Words = {}
    known: dict[str, Flags] = {name: {**parser.completions} for name, parser in commands.items() if parser is not None}
    for name in CATALOGUE:
        experiment = lookup(name)
        flags: Flags = {"--help": (), "--model": experiment.models, **_flags(Options())}
        flags |= {"--from": ()} if experiment.starts else {}
        for model in experiment.models:
            flags |= _options(experiment, model)
        known[f"train {name}"] = flags
    for place, flags in known.items():
        words[place] = list(flags)
        values |= {f"{place} {flag}": list(taken) for flag, taken in flags.items() if taken}
        values |= {f"{place} --device": list(DEVICES)} if "--device" in flags else {}
    return words, values


def _options(experiment: Experiment, model: str) -> Flags:
    """The options of a model; those of training only where it is trained."""
    found = _flags(experiment.defaults(model))
    hidden = "--training." if experiment.closed_form(model) else "no option"
    return {flag: values for flag, values in found.items() if not flag.startswith(hidden)}


def _flags(config: Any, prefix: str = "--") -> Flags:
    """The options of a dataclass as tyro writes them, each with its values where it takes one of a few."""
    found: Flags = {}
    hints = typing.get_type_hints(type(config))
    for field in dataclasses.fields(config):
        value, name = getattr(config, field.name), field.name.replace("_", "-")
        if field.name == "start":  # --from, which only some experiments take
            continue
        if dataclasses.is_dataclass(value):
            found |= _flags(value, f"{prefix}{name}.")
        elif hints[field.name] is bool:
            found |= {f"{prefix}{name}": (), f"{prefix}no-{name}": ()}
        else:
            literal = typing.get_origin(hints[field.name]) is typing.Literal
            found[f"{prefix}{name}"] = typing.get_args(hints[field.name]) if literal else ()
    return found


def _case(words: Words, values: Words, files: list[str]) -> str:
    """For bash and zsh: sets `found`, and `files` where a path may come, by `place` and the word `before`."""
    paths = " | ".join(f"*' {path}'" for path in PATHS)
    lines = ['    case "$place $before" in']
    lines += [f"        {shlex.quote(place)}) found={shlex.quote(' '.join(some))} ;;" for place, some in values.items()]
    lines += [f"        {paths}) files=1 ;;", "        *)", '            case "$place" in']
    for place, some in words.items():
        also = " files=1" if place in files else ""
        lines.append(f"                {shlex.quote(place)}) found={shlex.quote(' '.join(some))}{also} ;;")
    return "\n".join([*lines, "            esac ;;", "    esac"])


def _bash(words: Words, values: Words, files: list[str]) -> str:
    return f"""_plmu() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} given=() before= place= found= files= i
    for ((i = 1; i < COMP_CWORD; i++)); do
        case ${{COMP_WORDS[i]}} in
            = | --traceback) ;;  # bash takes --option=value for three words
            *) before=${{COMP_WORDS[i]}} given+=("$before") ;;
        esac
    done
    [ "$word" = "=" ] && word=
    place=${{given[0]}}
    [ "${{#given[@]}}" -gt 1 ] && [ "$place" = train ] && place="train ${{given[1]}}"
{_case(words, values, files)}
    mapfile -t COMPREPLY < <(compgen -W "$found" -- "$word")
    if [ -n "$files" ] && [[ $word != -* ]]; then
        mapfile -t -O "${{#COMPREPLY[@]}}" COMPREPLY < <(compgen -f -- "$word")
        compopt -o filenames
    fi
}}
complete -F _plmu plmu
"""


def _zsh(words: Words, values: Words, files: list[str]) -> str:
    return f"""#compdef plmu
_plmu() {{
    local -a given
    given=(${{words[2,CURRENT-1]:#--traceback}})
    local before=${{given[-1]}} place=${{given[1]}} found= files=
    (( $#given > 1 )) && [[ $place == train ]] && place="train ${{given[2]}}"
{_case(words, values, files)}
    compadd -- ${{=found}}
    [[ -n $files ]] && _files
}}
if [ "$funcstack[1]" = "_plmu" ]; then
    _plmu "$@"
else
    compdef _plmu plmu
fi
"""


def _fish(words: Words, values: Words, files: list[str]) -> str:
    def case(pattern: str, some: list[str], with_files: bool) -> str:
        lines = [f"        case {pattern}"]
        lines += [f"            printf '%s\\n' {' '.join(map(shlex.quote, some))}"] if some else []
        lines += ["            __fish_complete_path (commandline -ct)"] if with_files else []
        return "\n".join(lines)

    after = [case(shlex.quote(place), some, False) for place, some in values.items()]
    after.append(case(" ".join(f"'* {path}'" for path in PATHS), [], True))
    usual = [case(shlex.quote(place), some, place in files) for place, some in words.items()]
    return f"""function __plmu_complete
    set -l given (string match -v -- --traceback (commandline -opc))
    set -l place
    set -q given[2]; and set place $given[2]
    set -q given[3]; and test "$place" = train; and set place "train $given[3]"
    switch "$place $given[-1]"
{chr(10).join(after)}
        case '*'
            switch "$place"
{chr(10).join("    " + line for one in usual for line in one.splitlines())}
            end
    end
end
complete -c plmu -f -a '(__plmu_complete)'
"""
