"""Which tiles suit the float32 kernels of `plmu.ops.gpu.triton_split`, on the GPU at hand: errors, times and memory.

`python benchmarks/split_tiles.py --json FILE` checks every variant of the three heavy launches against float64 at four
shapes and times it. It takes the fastest that is as exact as plain float32, and compares the whole of `project` by it
with the float32 GEMM of an m in memory. All variants are compiled first, in many processes. Each shape has a process of
its own, so that a variant that breaks the GPU's context costs itself alone.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])

import torch  # noqa: E402

import plmu  # noqa: E402
from plmu.bench.measure import graphed, peak_memory, timed, training  # noqa: E402
from plmu.bench.problems import GPU_SHAPES, Problem  # noqa: E402
from plmu.ops.gpu import launch, split  # noqa: E402
from plmu.ops.gpu.split import Tile  # noqa: E402
from plmu.ops.gpu.tables import grouping, rows_of, tables, tiles  # noqa: E402

PROJECT = [
    (2, Tile(64, 128, 1, 4, 1)), (2, Tile(32, 128, 1, 4, 1)), (2, Tile(32, 128, 1, 4, 2)), (2, Tile(64, 64, 2, 4, 1)),
    (2, Tile(32, 128, 1, 4, 3)), (2, Tile(64, 64, 1, 4, 1)), (2, Tile(64, 128, 1, 4, 2)), (2, Tile(64, 128, 1, 4, 3)),
    (2, Tile(64, 128, 2, 4, 1)), (2, Tile(32, 128, 2, 4, 2)), (2, Tile(32, 64, 2, 4, 3)),
    (3, Tile(64, 128, 1, 4, 1)), (3, Tile(32, 128, 1, 4, 1)), (3, Tile(32, 128, 1, 4, 2)),
]  # fmt: skip
GRADIENT = [
    (2, Tile(64, 128, 1, 4, 1)), (2, Tile(128, 128, 1, 8, 1)), (2, Tile(128, 128, 1, 8, 2)),
    (2, Tile(64, 128, 1, 4, 2)),
    (2, Tile(64, 64, 1, 4, 1)), (2, Tile(128, 64, 1, 8, 1)), (2, Tile(64, 64, 1, 4, 2)), (2, Tile(64, 128, 1, 4, 3)),
    (3, Tile(64, 128, 1, 4, 1)), (3, Tile(128, 128, 1, 8, 1)),
]  # fmt: skip
SEVERAL = (2, 3)
PROCESSES = min(16, os.cpu_count() or 1)


def name(kind: str, parts: int, tile: Tile) -> str:
    return f"{kind} p{parts} w{tile.width} o{tile.out}x{tile.pieces} warps{tile.warps} stages{tile.stages}"


def launches() -> list[tuple[str, object, list[torch.dtype]]]:
    """Every launch of every variant, with the types of its tensors."""
    device, found = torch.device("cuda"), []
    for shape in GPU_SHAPES:
        b, n, c, o, d = shape.batch, shape.time, shape.channels, shape.out, shape.order
        rows, f = rows_of(d), torch.float32
        for back in (False, True):
            for parts, tile in PROJECT:
                h = torch.float16 if parts == 2 else torch.bfloat16
                blocks, wide = tiles(o if back else c, tile.width), c if back else o
                some = split._at_once(4 * b * n * (c + o), 4 * d * c * o, wide, tile)
                sizes = (device, d, *((some, o) if back else (c, some)), 1, back, parts, tile)
                one = split._project(b, n, rows, False, *sizes, wide)
                found.append((f"{shape} {name('project', parts, tile)}", one,
                              [f, h, f if parts == 2 else h, h, h, f, f, f]))  # fmt: skip
                found.append((f"{shape} divide", split._divide(*sizes, c, blocks), [f, h, f if parts == 2 else h]))
        for parts, tile in GRADIENT:
            h = torch.float16 if parts == 2 else torch.bfloat16
            one = split._weight_gradient(device, b, n, c, o, d, rows, 1, False, parts, tile)[0]
            found.append((f"{shape} {name('gradient', parts, tile)}", one, [f, f, h, h, f, f, f]))
        run, _ = grouping(b, n, c)
        for back in (False, True):
            for keep in (False, True):
                one = launch._carry(device, f, b, n, o if back else c, d, run, 1, 1, False, keep, back, False)
                found.append((f"{shape} carry", one, [f] * 9))
    return found


def compile_some(number: int) -> None:
    """The share of one process."""
    done = set()
    for label, one, types in launches()[number::PROCESSES]:
        key = str((one._kernel, one._grid, one._numbers, one._constants, one._options))
        if key in done:
            continue
        done.add(key)
        try:
            kernel = getattr(one._module(), one._kernel)
            kernel.warmup(*types, *one._numbers, grid=one._grid, **one._constants, **one._options)
        except Exception as error:
            print(json.dumps({"compile": label, "failed": f"{type(error).__name__}: {error}"[:300]}), flush=True)


def milliseconds(call, rounds: int = 5) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def once(repeats: int) -> float:
        begin.record()
        for _ in range(repeats):
            call()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) / repeats

    once(1)
    repeats = max(2, min(50, round(6 / once(2))))
    return median(once(repeats) for _ in range(rounds))


def error(value, right) -> float:
    return float((value.double() - right).norm() / right.norm())


def measure(number: int, skip: set[str]) -> None:
    shape = GPU_SHAPES[number]

    def say(**row) -> None:
        print(json.dumps({"shape": str(shape), **row}, ensure_ascii=False), flush=True)

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.cuda.set_stream(torch.cuda.Stream())
    problem = Problem(shape, torch.float32, "cuda")
    u, weight, system = problem.u.detach(), problem.weight.detach(), problem.system
    of_o = torch.randn(shape.batch, shape.time, shape.out, device="cuda")
    gemm, m = problem.gemm()
    both = training(gemm, m, problem.weight)
    with torch.no_grad():
        base = {"forward": milliseconds(gemm)}
    base["both"] = milliseconds(both)
    say(what="GEMM", ms=base)

    def results(algorithm: str, u, weight, of_o):
        u, weight = u.clone().requires_grad_(), weight.clone().requires_grad_()
        o, _ = plmu.project(u, system, weight, algorithm=algorithm)
        return [one.detach() for one in (o, *torch.autograd.grad(o, (u, weight), of_o))]

    exact = results("chunked", u.double(), weight.double(), of_o.double())
    plain = [error(a, b) for a, b in zip(results("chunked", u, weight, of_o), exact, strict=True)]
    say(what="plain float32", errors=plain)
    torch.cuda.empty_cache()
    run, _ = grouping(shape.batch, shape.time, shape.channels)
    constants = {parts: tables(u, system, 0, run, parts) for parts in SEVERAL}
    _, _, _, taps, advance, leap, _, _ = constants[2]
    before = launch.carry(u, None, None, taps, advance, leap, run)[0]
    after = launch.carry(of_o, None, None, taps, advance, leap, run, reversed=True)[0]
    passing = (None, None, taps, advance, leap, run)
    carried = [milliseconds(lambda: launch.carry(u, *passing))]
    carried.append(milliseconds(lambda: launch.carry(of_o, *passing, reversed=True)))
    say(what="carry", ms=carried)
    best: dict[str, tuple[float, int, Tile]] = {}

    def attempt(kind: str, parts: int, tile: Tile, call, right, bound: float) -> None:
        label = name(kind, parts, tile)
        if label in skip:
            return
        print(json.dumps({"trying": label}), flush=True)
        try:
            found = error(call(), right)
            again = torch.equal(call(), call())
            ms = milliseconds(call, 3)
        except Exception as problem:
            say(what=label, failed=f"{type(problem).__name__}: {problem}"[:300])
            try:
                torch.cuda.synchronize()
            except Exception:
                os._exit(3)
            return
        say(what=label, error=found, error_over_plain=found / bound, ms=ms, repeats=again)
        if found <= 2 * bound and again:
            key = f"{kind} p{parts}"
            best[key] = min(best.get(key, (1e9, parts, tile)), (ms, parts, tile))

    for parts, tile in PROJECT:
        toeplitz, past, future = constants[parts][:3]

        def forward(toeplitz=toeplitz, past=past, tile=tile):
            return split.project(u, before, None, weight, toeplitz, past, tile=tile)[0]

        def backward(toeplitz=toeplitz, future=future, tile=tile):
            return split.project(of_o, after, None, weight, toeplitz, future, reversed=True, tile=tile)[0]

        attempt("project", parts, tile, forward, exact[0], plain[0])
        attempt("reversed", parts, tile, backward, exact[1], plain[1])
    for parts, tile in GRADIENT:
        toeplitz, past = constants[parts][:2]

        def gradient(toeplitz=toeplitz, past=past, tile=tile):
            return split.weight_gradient(u, before, None, of_o, weight, toeplitz, past, tile=tile)

        attempt("gradient", parts, tile, gradient, exact[2], plain[2])
    say(what="fastest", **{key: [ms, list(tile)] for key, (ms, _, tile) in best.items()})
    for parts in SEVERAL:
        if f"whole p{parts}" in skip or f"gradient p{parts}" not in best or f"project p{parts}" not in best:
            continue
        print(json.dumps({"trying": f"whole p{parts}"}), flush=True)
        try:
            split.PARTS = parts
            split.PROJECT, split.WEIGHT_GRADIENT = best[f"project p{parts}"][2], best[f"gradient p{parts}"][2]
            errors = [error(a, b) for a, b in zip(results("fused", u, weight, of_o), exact, strict=True)]
            ours = problem.project("fused")

            def alone(ours=ours):
                with torch.no_grad():
                    return ours()

            def limit():
                with torch.no_grad():
                    return gemm()

            with plmu.for_graphs():
                calls = {"forward": graphed(alone), "both": graphed(training(ours, problem.u, problem.weight))}
                calls |= {"GEMM forward": graphed(limit), "GEMM both": graphed(training(gemm, m, problem.weight))}
            times = timed(calls, device="cuda", rounds=5, least=0.01)
            del calls
            ratios = {way: times.ratio(way, f"GEMM {way}") for way in ("forward", "both")}
            held = u.nbytes + of_o.nbytes
            memory = {"forward": (peak_memory(alone) - of_o.nbytes) / held}
            peak = peak_memory(training(ours, problem.u, problem.weight))
            memory["both"] = (peak - of_o.nbytes - u.nbytes - weight.nbytes) / held
            say(what=f"whole p{parts}", ms={k: 1e3 * v for k, v in times.medians().items()}, over_gemm=ratios,
                working_memory=memory, errors=errors, error_over_plain=[one / plain[i] for i, one in enumerate(errors)],
                tiles=[list(split.PROJECT), list(split.WEIGHT_GRADIENT)])  # fmt: skip
        except Exception as problem_:
            say(what=f"whole p{parts}", failed=f"{type(problem_).__name__}: {problem_}"[:300])
    by_name(say, shape, problem, exact, skip)


def by_name(say, shape, problem, exact, skip) -> None:
    """The kernels without division into parts, by the precisions that Triton itself knows; at the first shape."""
    if shape != GPU_SHAPES[0]:
        return
    split.PARTS = 0
    for precision in ("tf32x3", "bf16x6", "ieee"):
        if precision in skip:
            continue
        print(json.dumps({"trying": precision}), flush=True)
        try:
            launch.precision = lambda dtype, precision=precision: precision
            with torch.no_grad():
                call = problem.project("fused")
                say(what=f"Triton's {precision}, forward", error=error(call(), exact[0]), ms=milliseconds(call, 3))
        except Exception as problem_:
            say(what=f"Triton's {precision}", failed=f"{type(problem_).__name__}: {problem_}"[:300])


def lines_of(command: list[str], seconds: float) -> tuple[list[dict], int | None]:
    """What a process printed as JSON until it ended or its time was over, and its exit status."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        out, err = process.communicate(timeout=max(1.0, seconds))
        status: int | None = process.returncode
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        status = None
    rows = []
    for line in (out or "").splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    if status != 0:
        print("status", status, (err or "")[-1500:], flush=True)
    return rows, status


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seconds", type=float, default=145.0)
    parser.add_argument("--compile", type=int)
    parser.add_argument("--measure", type=int)
    parser.add_argument("--skip", default="[]")
    given = parser.parse_args()
    if given.compile is not None:
        compile_some(given.compile)
        return
    if given.measure is not None:
        measure(given.measure, set(json.loads(given.skip)))
        return
    start = time.monotonic()
    command = [sys.executable, str(Path(__file__).resolve())]
    processes = [subprocess.Popen([*command, "--compile", str(i)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                  text=True) for i in range(PROCESSES)]  # fmt: skip
    found: list[dict] = []
    for process in processes:
        try:
            out, _ = process.communicate(timeout=max(1.0, 55 - (time.monotonic() - start)))
        except subprocess.TimeoutExpired:
            process.kill()
            out, _ = process.communicate()
            found.append({"compile": "a process ran out of time"})
        found += [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    print(f"compiled after {time.monotonic() - start:.0f} s", flush=True)
    for number in range(len(GPU_SHAPES)):
        skip: list[str] = []
        for _ in range(3):
            left = given.seconds - (time.monotonic() - start)
            share = left / (len(GPU_SHAPES) - number)
            if left < 5:
                break
            rows, status = lines_of([*command, "--measure", str(number), "--skip", json.dumps(skip)], share + 8)
            found += [row for row in rows if "trying" not in row]
            tried = [row["trying"] for row in rows if "trying" in row]
            if given.json is not None:
                given.json.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            if status in (0, None) or not tried:
                break
            skip += tried  # what ran is known; the last one broke the context
            skip = [one for one in skip if not one.startswith("whole")] + [tried[-1]]
        print(f"{GPU_SHAPES[number]} after {time.monotonic() - start:.0f} s", flush=True)
    for row in found:
        print(json.dumps(row, ensure_ascii=False), flush=True)


if __name__ == "__main__":
    main()
