"""The public face: frozen names, docstrings, a light import, and documentation whose code runs."""

import contextlib
import inspect
import io
import re
import subprocess
import sys
from pathlib import Path

import pytest

import plmu

ROOT = Path(__file__).parents[1]

PLMU = [
    "DelayLayer",
    "DelayNetwork",
    "FileFormatError",
    "LMU",
    "LMUCell",
    "LinearSystem",
    "ParallelLMU",
    "Plan",
    "Residual",
    "Sequential",
    "Stream",
    "__version__",
    "final_state",
    "for_graphs",
    "isolate_nonfinite",
    "load",
    "load_into",
    "nn",
    "plan",
    "project",
    "save",
    "set_cache_limit",
    "states",
]
PLMU_NN = [
    "ACTIVATIONS",
    "DelayLayer",
    "LMU",
    "LMUCell",
    "ParallelLMU",
    "Residual",
    "Sequential",
    "Steppable",
    "detached",
    "reverse",
]
OPTIONAL = ["matplotlib", "onnx", "pooch", "rich", "sacrebleu", "scipy", "tensorboard", "triton", "tyro"]


def _name(value: object) -> str:
    return getattr(value, "__name__", str(value))


def test_the_public_names_are_frozen() -> None:
    assert sorted(plmu.__all__) == PLMU
    assert sorted(plmu.nn.__all__) == PLMU_NN
    assert all(hasattr(plmu, name) for name in PLMU)
    assert all(hasattr(plmu.nn, name) for name in PLMU_NN)


@pytest.mark.parametrize(
    ("module", "name"), [(plmu, name) for name in PLMU] + [(plmu.nn, name) for name in PLMU_NN], ids=_name
)
def test_every_public_name_is_documented(module: object, name: str) -> None:
    public = getattr(module, name)
    if isinstance(public, str | dict):
        return
    assert (public.__doc__ or "").strip(), f"{name} has no docstring"
    if not inspect.isclass(public):
        return
    for key, member in vars(public).items():
        of_its_own = not any(hasattr(base, key) for base in public.__mro__[1:])
        if of_its_own and not key.startswith("_") and inspect.isfunction(getattr(member, "__func__", member)):
            assert inspect.getdoc(getattr(public, key)), f"{name}.{key} has no docstring"


def test_importing_is_light() -> None:
    """No optional package, and not torch's compiler, whose import takes longer than that of torch itself."""
    program = f"import sys, plmu; print([name for name in {[*OPTIONAL, 'torch._dynamo']} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=120)
    assert done.stderr == ""
    assert done.stdout.strip() == "[]"


def test_the_package_says_that_it_is_typed() -> None:
    assert (Path(plmu.__file__).parent / "py.typed").is_file()


@pytest.mark.parametrize("page", ["README.md", "docs/guide.md"])
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch.compile's own
def test_the_code_of_the_documentation_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All python blocks in order in one namespace; a text block right after one is what it prints."""
    monkeypatch.chdir(tmp_path)
    blocks = _blocks((ROOT / page).read_text(encoding="utf-8"))
    assert any(language == "python" for language, _, _ in blocks), f"{page} has no python blocks"
    namespace: dict[str, object] = {"__name__": "__main__"}
    printed = ""
    for language, line, code in blocks:
        if language == "python":
            output = io.StringIO()
            with contextlib.redirect_stdout(output):
                exec(compile("\n" * line + code, str(ROOT / page), "exec"), namespace)
            printed = output.getvalue()
        elif language == "text" and printed:
            assert code.strip() == printed.strip(), f"{page}:{line}: the page shows another output than the code's"
            printed = ""


def _blocks(text: str) -> list[tuple[str, int, str]]:
    """Language, line and content of the fenced code blocks."""
    found = re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [(match[1], text.count("\n", 0, match.start()) + 1, match[2]) for match in found]
