"""The files of a C export: a header, a source, a check program with expected outputs, and a Makefile."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

import plmu
from plmu.exports.c_code import Code, number
from plmu.exports.c_outputs import SHOWN, Outputs, comment, outputs_of
from plmu.exports.evaluate import one_thread
from plmu.exports.program import Fill, Program
from plmu.exports.rounding import Rounding

# Limits of the check program: steps, expected outputs, and multiply-adds to compute them.
CHECK_STEPS, CHECK_NUMBERS, CHECK_WORK = 1000, 100_000, 400_000_000
TOLERANCE = 1e-5  # error of an output, relative to the largest output
# The check allows `LARGER` times as much as rounding moves outputs, and ends where that is above `APART`.
LARGER, APART = 4.0, 5e-3
_RESTRICT = "#ifdef __cplusplus /* a compiler of C++ takes this file, too */\n#define restrict __restrict\n#endif\n"
FLAGS = "-std=c99 -O3 -ffp-contract=fast -Wall -Wextra -Wconversion -pedantic"


def checked_name(name: str) -> str:
    """The name of an export, which C functions and files get; ValueError unless it is a C name in small letters."""
    if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9_]{0,40}", name):
        raise ValueError(f"name must be a C name in small letters, such as 'model'; got {name!r}")
    return name


def c_files(
    program: Program, name: str, metadata: Mapping[str, Any], int8: bool, fixed: bool = False
) -> tuple[dict[str, str], Code]:
    """The contents of each file by its name; and the code, which has the sizes of the memory it uses."""
    code, outputs = Code(program, int8, fixed), outputs_of(program, name, metadata)
    for helper in outputs.helpers:
        code.use(helper)
    files = {
        f"{name}.h": _header(program, code, name, outputs, metadata),
        f"{name}.c": _source(program, code, name, outputs),
        f"{name}_check.c": _check(program, name, int8, fixed),
        "Makefile": _MAKEFILE,  # one for all models of a folder
    }
    return files, code


def c_types(program: Program) -> tuple[str, str]:
    """The types of the numbers of x and y."""
    types = ["double" if value.wide else "float" for value in (program.x, program.y)]
    return types[0] if program.tokens is None else "int32_t", types[1]


def _header(program: Program, code: Code, name: str, outputs: Outputs, metadata: Mapping[str, Any]) -> str:
    upper, tokens = name.upper(), program.tokens
    kind, out = c_types(program)
    result_text = "0." if tokens is None else "0; or -1 if there is no such token, and then nothing changes."
    fills = any(isinstance(operation, Fill) for operation in program.operations)
    nan_text = "" if fills or tokens is not None else "NaN in x stays until init.\n * "
    rounded_inputs = f"    int16_t whole[{code.fixed_inputs}]; /* the same */\n" if code.fixed_inputs else ""
    levels = f"    double levels[{code.memory.wide_state_size}];\n" if code.memory.wide_state_size else ""
    levels += f"    double wide[{code.memory.wide_work_size}]; /* as work */\n" if code.memory.wide_work_size else ""
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in metadata.items()}
    lines = (f"{key}: {text}" for key, text in texts.items() if len(key) + len(text) <= SHOWN)
    described = "".join(f" * {comment(line)}\n" for line in lines)
    return f"""/* A model of plmu {plmu.__version__} that takes one step at a time.
{described} */
#ifndef {upper}_H
#define {upper}_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {{
#endif

#define {upper}_INPUTS {program.x.size}
#define {upper}_OUTPUTS {program.y.size}
{outputs.defines}
/* One stream. It holds no pointers: copy it, save it, have as many as you like. */
typedef struct {{
    float memory[{max(code.memory.state_size, 1)}];
    float work[{max(code.memory.work_size, 1)}]; /* used within a step alone */
{rounded_inputs}{levels}}} {name}_state;

/* Start a stream, or start it again. {_first_step(program, name)}*/
void {name}_init({name}_state *state);
{_start_declared(program, name)}
/* One step. x is {outputs.x}.
 * y is {outputs.y}.
 * They must not overlap. {nan_text}Returns {result_text} */
int {name}_step({name}_state *state, const {kind} *x, {out} *y);
{outputs.declared}
#ifdef __cplusplus
}}
#endif

#endif
"""


def _first_step(program: Program, name: str) -> str:
    """What is said of the season at the start of a stream; ends with a space."""
    if not program.seasons:
        return ""
    phases = ", ".join(f"phase {season.phase} of a season of {season.steps} steps" for season in program.seasons)
    return f"""The first sample is taken to be at {phases}:
 * forecasts are wrong if it is not. {name}_start begins at any step. """


def _start_declared(program: Program, name: str) -> str:
    if not program.seasons:
        return ""
    return f"""
/* The same, with the first sample at the step of this number of the clock of the data; step_number, if it stands above,
 * says how to compute it. Step 0 is the first one of the data. */
void {name}_start({name}_state *state, int64_t step);
"""


def _start_source(program: Program, code: Code, name: str) -> str:
    """The C source of `NAME_start`: init, and then each position is [step, -1], a number that is preset, as in the
    layer's `state_at`."""
    lines = []
    for season in program.seasons:
        position = code.at(program.states[season.state])
        lines.append(f"    ({position})[0] = (double)step;\n    ({position})[1] = -1.0; /* the number is set */\n")
    return f"""void {name}_start({name}_state *state, int64_t step)
{{
    {name}_init(state);
{"".join(lines)}}}
"""


def _source(program: Program, code: Code, name: str, outputs: Outputs) -> str:
    kind, out = c_types(program)
    works = any(re.search(r"\bwork\b", statement) for statement in code.statements)
    work = "    float *work = state->work;\n" if works else ""
    work += "    double *wide = state->wide;\n" if code.memory.wide_work_size else ""
    work += "    float unit;\n" if code.fixed_inputs else ""
    check = "" if program.tokens is None else f"    if (x[0] < 0 || x[0] >= {program.tokens})\n        return -1;\n"
    unused = [] if any("state->" in statement for statement in [*code.statements, work]) else ["state"]
    unused += [] if check or any(_reads_x(statement) for statement in code.statements) else ["x"]
    body = "".join(f"    {statement}\n" for statement in code.statements)
    body += "".join(f"    (void){statement};\n" for statement in unused)
    parts = [
        f'#include "{name}.h"\n\n#include <stddef.h>\n\n{_RESTRICT}',
        *code.arrays,
        *code.helpers.values(),
        f"""void {name}_init({name}_state *state)
{{
    unsigned char *bytes = (unsigned char *)state;
    size_t i;
    for (i = 0; i < sizeof *state; i++)
        bytes[i] = 0;
}}
""",
        *([_start_source(program, code, name)] if program.seasons else []),
        f"int {name}_step({name}_state *state, const {kind} *x, {out} *y)\n{{\n{work}{check}{body}    return 0;\n}}\n",
        outputs.defined,
    ]
    return "\n".join(part for part in parts if part)


def _reads_x(statement: str) -> bool:
    """Whether a statement uses the input x of a step."""
    return bool(re.search(r"\bx\b", statement))


def sequence(program: Program, steps: int) -> Tensor:
    """The inputs of the check program, by the same generator as in C: (steps, features) from −1 to 1, or token numbers
    (steps,). An interval is from 0 on."""
    count = steps * program.x.size
    values, seed = [], 1
    for _ in range(count):
        seed = (1664525 * seed + 1013904223) % 2**32
        values.append(seed >> 8)
    if program.tokens is not None:
        return torch.tensor(values) % program.tokens
    x = torch.tensor(values, dtype=torch.float64).view(steps, program.x.size)
    if program.usual_interval is None:
        return (x / 2**23 - 1).float()
    return torch.cat([x[:, :1] / 2**24 * program.usual_interval, x[:, 1:] / 2**23 - 1], 1).float()


def expected_outputs(program: Program, int8: bool, fixed: bool = False) -> tuple[Tensor, float]:
    """The outputs that the check program expects, (steps, outputs), computed in float64; and the relative error that it
    allows.

    That is `LARGER` times as far as rounding to float32 moves them in whichever order sums are taken, and at least
    `TOLERANCE`. The check stops where it would exceed `APART`, as in a model whose nonlinear recurrence is chaotic.
    """
    limits = CHECK_STEPS, CHECK_NUMBERS // program.y.size, CHECK_WORK // max(program.multiply_adds, 1)
    steps = max(20, min(limits))
    copies, outputs = Rounding(program, int8, fixed), list[Tensor]()
    largest = moved = 0.0
    with torch.inference_mode(), one_thread():
        for x in sequence(program, steps):
            output = copies.step(x[None])
            apart = (output[1:] - output[0]).abs().max().item()
            now = max(largest, output[0].abs().max().item())
            if outputs and not LARGER * max(moved, apart) <= APART * now:
                break
            largest, moved = now, max(moved, apart)
            outputs.append(output[:1].float())
    return torch.cat(outputs), max(TOLERANCE, LARGER * moved / (largest or 1.0))


def _check(program: Program, name: str, int8: bool, fixed: bool) -> str:
    (expected, allowed), upper = expected_outputs(program, int8, fixed), name.upper()
    values = [number(value) for value in expected.flatten().tolist()]
    lines = ",\n    ".join(", ".join(values[i : i + 8]) for i in range(0, len(values), 8))
    kind, out = c_types(program)
    make = f"({kind})((float)(seed >> 8) / 8388608.0f - 1.0f)"
    if program.tokens is not None:
        make = f"(int32_t)((seed >> 8) % {program.tokens}u)"
    elif program.usual_interval is not None:
        make = f"i == 0 ? (float)(seed >> 8) / 16777216.0f * {number(program.usual_interval)} : {make}"
    return f"""/* Runs the model on numbers of a generator and compares with what plmu gave for them. */
#include "{name}.h"

#include <math.h>
#include <stdio.h>

#define STEPS {len(expected)}

static const float expected[STEPS * {upper}_OUTPUTS] = {{
    {lines}
}};
static {name}_state state;

int main(void)
{{
    uint32_t seed = 1;
    float largest = 0.0f, error = 0.0f;
    int step, i;
    {name}_init(&state);
    for (step = 0; step < STEPS; step++) {{
        {kind} x[{upper}_INPUTS];
        {out} y[{upper}_OUTPUTS];
        for (i = 0; i < {upper}_INPUTS; i++) {{
            seed = seed * 1664525u + 1013904223u;
            x[i] = {make};
        }}
        if ({name}_step(&state, x, y) != 0) {{
            printf("step %d failed\\n", step);
            return 1;
        }}
        for (i = 0; i < {upper}_OUTPUTS; i++) {{
            const float right = expected[step * {upper}_OUTPUTS + i], wrong = (float)fabs((double)y[i] - (double)right);
            largest = fabsf(right) > largest ? fabsf(right) : largest;
            if (!(wrong <= error))
                error = wrong;
        }}
    }}
    largest = largest > 0.0f ? largest : 1.0f;
    printf("%d steps, relative error %.2e, allowed {allowed:.1e}\\n", STEPS, (double)(error / largest));
    return error / largest <= {number(allowed)} ? 0 : 1;
}}
"""


_MAKEFILE = f"""# `make check` compares each model here with expected outputs; `make model.o` compiles one alone.
CFLAGS = {FLAGS}
CHECKS = $(patsubst %.c,%,$(wildcard *_check.c))

check: $(CHECKS)
	@set -e; for program in $(CHECKS); do ./$$program; done

$(CHECKS): %_check: %.c %_check.c %.h
	$(CC) $(CFLAGS) -o $@ $*.c $*_check.c -lm

%.o: %.c %.h
	$(CC) $(CFLAGS) -c $<

clean:
	rm -f $(CHECKS) $(CHECKS:_check=.o)

.PHONY: check clean
"""
