"""The public face: frozen names, docstrings, a light import, and documentation whose code runs."""

import contextlib
import inspect
import io
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import plmu

ROOT = Path(__file__).parents[2]

PLMU = [
    "AnomalyDetector",
    "Bidirectional",
    "CausalAttention",
    "CausalConvolution",
    "CrossAttention",
    "DelayLayer",
    "DelayNetwork",
    "EncoderDecoder",
    "FileFormatError",
    "Forecaster",
    "FrozenModel",
    "Gated",
    "Highway",
    "LMU",
    "LMUBlock",
    "LMUCell",
    "LinearSystem",
    "MemoryBlock",
    "ParallelLMU",
    "Plan",
    "Residual",
    "SelectiveLMU",
    "SequenceClassifier",
    "Sequential",
    "Sessions",
    "Standardize",
    "Stream",
    "TimedDelayLayer",
    "TokenDelayLayer",
    "WeightedStack",
    "__version__",
    "export",
    "final_state",
    "fold",
    "for_graphs",
    "generate",
    "isolate_nonfinite",
    "load",
    "load_into",
    "load_keras",
    "nn",
    "plan",
    "project",
    "save",
    "set_cache_limit",
    "standardize",
    "states",
]
PLMU_NN = [
    "ACTIVATIONS",
    "AnomalyScore",
    "Attended",
    "Bidirectional",
    "CausalAttention",
    "CausalConvolution",
    "Continued",
    "CovariateForecast",
    "CrossAttention",
    "DelayLayer",
    "EncoderDecoder",
    "Gated",
    "Highway",
    "LMU",
    "LMUBlock",
    "LMUCell",
    "LSTM",
    "LearningForecast",
    "LookbackForecast",
    "MemoryBlock",
    "ParallelLMU",
    "PooledForecast",
    "Residual",
    "SelectiveLMU",
    "Sequential",
    "Standardize",
    "Steppable",
    "ThresholdShares",
    "TimedDelayLayer",
    "TokenDelayLayer",
    "WeightedStack",
    "detached",
    "fold",
    "last_valid",
    "open_forget_gates",
    "reverse",
    "standardize",
]
OPTIONAL = [
    "matplotlib",
    "onnx",
    "pooch",
    "rich",
    "sacrebleu",
    "scipy",
    "starlette",
    "tensorboard",
    "tokenizers",
    "triton",
]
OPTIONAL += ["tyro", "uvicorn", "websockets"]


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


def test_importing_imports_no_torch_until_a_name_is_used() -> None:
    """And then all is as if it had: names, modules, `dir`, star import, pickles and compiled functions."""
    program = """
import pickle, sys
import plmu
assert "torch" not in sys.modules
assert set(plmu.__all__) | {"core", "nn", "ops", "runtime", "timeseries"} <= set(dir(plmu))
try:
    plmu.nothing
except AttributeError as error:
    assert str(error) == "module 'plmu' has no attribute 'nothing'"
assert not hasattr(plmu, "torch") and "torch" not in sys.modules
system = plmu.DelayNetwork(3, 5.0).discretize(1.0)
assert "torch" in sys.modules and "DelayNetwork" in vars(plmu)
import torch
assert plmu.ops.states is plmu.states and plmu.core.describe.__name__ == "plmu.core.describe"
layer = pickle.loads(pickle.dumps(plmu.ParallelLMU(1, 2, order=3, theta=4.0)))
assert type(layer) is plmu.nn.ParallelLMU
names = {}
exec("from plmu import *", names)
assert set(plmu.__all__) <= set(names)
assert all(names[name] is getattr(plmu, name) for name in plmu.__all__)
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=120)
    assert (done.stderr, done.returncode) == ("", 0)


def test_every_public_name_has_its_home() -> None:
    assert sorted([*plmu._HOMES, "nn", "__version__"]) == PLMU


def test_the_loss_of_the_padded_example_leaves_the_padding_out() -> None:
    """Targets that are NaN there reach no gradient."""
    blocks = [code for _, _, code in _blocks((ROOT / "docs" / "guide.md").read_text(encoding="utf-8"))]
    (padded,) = (number for number, code in enumerate(blocks) if "valid =" in code)
    setup = "import torch, plmu\nfrom torch import nn\nmodel = plmu.ParallelLMU(1, 1, order=3, theta=9.0)\n"
    spoilt = "target[torch.arange(40) >= lengths[:, None]] = float('nan')\nvalid ="
    namespace: dict[str, Any] = {}
    exec(setup + blocks[padded - 1] + blocks[padded].replace("valid =", spoilt), namespace)
    assert namespace["target"].isnan().any()
    for parameter in namespace["model"].parameters():
        assert parameter.grad.isfinite().all()


def test_the_package_says_that_it_is_typed() -> None:
    assert (Path(plmu.__file__).parent / "py.typed").is_file()


@pytest.mark.parametrize("page", ["README.md", "docs/guide.md", "docs/own-data.md"])
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
