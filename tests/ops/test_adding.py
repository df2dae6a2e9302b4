"""An algorithm that plmu does not have, added as docs/adding-an-algorithm.md says: run, planned, explained, refused."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from closeness import assert_same
from operations import everything, fresh_system, with_gradients
from torch import Tensor

import plmu
from plmu.ops import ALGORITHMS, Algorithm, Case, Option, Plan, Problem, register
from plmu.ops.plan import known_plan

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/adding-an-algorithm.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(python|diff|text)\n(.*?)^```$", PAGE, flags=re.M | re.S)
FILE, CHANGE, *REST = [text for _, text in BLOCKS]


@pytest.fixture
def doubling() -> Iterator[Algorithm]:
    """The page's algorithm, in the table for one test."""
    names: dict = {"__name__": "doubling"}
    exec(FILE, names)
    register(names["ALGORITHM"])
    yield names["ALGORITHM"]
    del ALGORITHMS["doubling"]
    known_plan.cache_clear()


def test_the_page_is_followed(tmp_path: Path) -> None:
    """On a copy of the package: one file, one line, and the rest of the page runs and prints what it says."""
    assert [kind for kind, _ in BLOCKS] == ["python", "diff", "python", "text", "python", "text"]
    shutil.copytree(ROOT / "src/plmu", tmp_path / "plmu", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "plmu/ops/doubling.py").write_text(FILE, encoding="utf-8")
    table = tmp_path / "plmu/ops/plan.py"
    old, new = ("".join(line[1:] for line in CHANGE.splitlines(True) if line[0] in (" ", sign)) for sign in "-+")
    source = table.read_text(encoding="utf-8")
    assert source.count(old) == 1
    table.write_text(source.replace(old, new), encoding="utf-8")
    code, said = "".join(REST[0::2]), "".join(REST[1::2])
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode() == said


@pytest.mark.parametrize("lengths", [None, torch.tensor([3, 0, 4])], ids=["whole", "padded"])
def test_it_computes_what_the_recurrence_does(doubling: Algorithm, lengths: Tensor | None) -> None:
    system = fresh_system()
    found, exact = (
        with_gradients(everything(system, name, lengths=lengths), torch.float64) for name in ("doubling", "recurrent")
    )
    assert_same(found, exact)


def test_it_is_planned_by_name_and_by_auto(doubling: Algorithm, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"batch": 2, "time": 50, "channels": 3, "system": fresh_system()}
    for kind, out in (("states", None), ("project", 4)):
        named = plmu.plan(kind, out=out, algorithm="doubling", **sizes)
        assert named.algorithm == "doubling"
        assert "looks twice as far back. Asked for by name." in str(named)
        assert "doubling" in plmu.plan(kind, out=out, **sizes).costs
    monkeypatch.setattr(doubling, "options", lambda case: [Option("doubling", 0.0)])
    known_plan.cache_clear()
    called = []
    states = doubling.states
    monkeypatch.setattr(doubling, "states", lambda *given: called.append(given) or states(*given))
    assert plmu.plan("states", **sizes).algorithm == "doubling"
    plmu.states(torch.randn(2, 50, 3), sizes["system"])
    plmu.ParallelLMU(3, 4, order=6, theta=20.0, memory_size=3)(torch.randn(2, 50, 3))
    assert len(called) == 2


def test_it_is_refused_where_it_cannot_run(doubling: Algorithm) -> None:
    u, resets = torch.randn(2, 50, 3), torch.zeros(2, 50, dtype=torch.bool)
    with pytest.raises(ValueError, match="algorithm='doubling' cannot reset inside a sequence: use chunked or auto"):
        plmu.states(u, fresh_system(), resets=resets, algorithm="doubling")
    growing = plmu.LinearSystem([[1.5]], [1.0])
    with pytest.raises(ValueError, match="algorithm='doubling' would overflow in the padding"):
        plmu.states(u, growing, lengths=[3, 4], algorithm="doubling")
    chosen = plmu.plan("states", batch=2, time=50, channels=3, system=growing, lengths=True)
    assert "not doubling: would overflow in the padding" in str(chosen)
    plmu.states(u, growing, lengths=[3, 4])


def test_half_an_algorithm_raises() -> None:
    class Half(Algorithm):
        name = "half"

        def states(self, problem: Problem, plan: Plan) -> tuple[Tensor, Tensor]:
            raise NotImplementedError

        def options(self, case: Case) -> list[Option]:
            return [Option("half", 0.0)]

    with pytest.raises(TypeError, match=r"abstract.*explain.*limit"):
        Half()
    with pytest.raises(TypeError, match=r"must be an instance of plmu\.ops\.Algorithm, got"):
        register(Half)
    assert "half" not in ALGORITHMS


@pytest.mark.parametrize("name", ["auto", "chunked", "two words", None])
def test_a_name_that_is_taken_or_no_word_raises(name: str | None) -> None:
    class Named(type(ALGORITHMS["fft"])):
        pass

    Named.name = name
    with pytest.raises(ValueError, match="name"):
        register(Named())


@pytest.mark.parametrize("kind", ["states", "project"])
def test_a_plan_for_an_algorithm_that_is_not_there_raises(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It never runs another one in its place."""
    monkeypatch.setattr("plmu.ops.dispatch._plan", lambda kind, *_, **__: Plan(kind, "half", 16))
    weight = [torch.randn(2, 3, 3)] if kind == "project" else []
    with pytest.raises(ValueError, match=r"algorithm must be auto or one of chunked, .* got 'half'"):
        getattr(plmu, kind)(torch.randn(2, 50, 3), fresh_system(), *weight)
