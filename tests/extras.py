"""`make extras`: each extra alone, in an environment of its own, from the wheel: it does what its name says.

    python -m tests.extras build/wheel/venv build/wheel/plmu-*.whl

The environments see the packages of the first one, which has the wheel without extras, so that torch is installed once.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]

MODEL = """
import torch
import plmu
from torch import nn
torch.manual_seed(0)
model = plmu.Sequential(plmu.ParallelLMU(1, 8, order=4, theta=9.0), nn.Linear(8, 1)).eval()
plmu.save(model, "model.plmu")
samples = [[0.1], [0.2], [-0.3]]
with torch.no_grad():
    expected = model(torch.tensor([samples]))[0][0]
"""

PROGRAMS = {
    "": MODEL
    + """
import subprocess
stream = plmu.Stream(plmu.load("model.plmu"))
torch.testing.assert_close(torch.stack([stream.push(sample) for sample in samples]), expected, rtol=1e-4, atol=1e-5)
done = subprocess.run([*PLMU, "stream", "model.plmu"], input="0.1\\n0.2\\n-0.3\\n", capture_output=True, text=True)
assert done.returncode == 0, done.stderr
assert len(done.stdout.splitlines()) == 3, done.stdout
plmu.export(model, "deploy", to="c")
""",
    "serve": MODEL
    + """
import json
import subprocess
import urllib.request
from websockets.sync.client import connect
server = subprocess.Popen([*PLMU, "serve", "model.plmu", "--port", "0"], stdout=subprocess.PIPE, text=True)
try:
    address = server.stdout.readline().split()[-1]
    body = json.dumps({"session": "a", "samples": [value for [value] in samples]}).encode()
    with urllib.request.urlopen(f"{address}/step", body, timeout=60) as answer:
        outputs = json.load(answer)["outputs"]
    torch.testing.assert_close(torch.tensor(outputs), expected, rtol=1e-4, atol=1e-5)
    with connect(address.replace("http", "ws") + "/ws") as socket:
        socket.recv()
        socket.send(json.dumps({"sample": samples[0]}))
        torch.testing.assert_close(torch.tensor(json.loads(socket.recv())["output"]), expected[0], rtol=1e-4, atol=1e-5)
finally:
    server.terminate()
    server.wait(60)
""",
    "export": MODEL
    + """
import subprocess
import numpy as np
import onnxruntime
for kind in ("onnx", "c", "torch"):
    done = subprocess.run([*PLMU, "export", "model.plmu", "--to", kind, "--out", kind], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
session = onnxruntime.InferenceSession("onnx/model_step.onnx")
inputs = {one.name: np.zeros([1, *one.shape[1:]], np.float32) for one in session.get_inputs()}
inputs["x"] = np.array(samples[:1], np.float32)
torch.testing.assert_close(torch.tensor(session.run(["y"], inputs)[0]), expected[:1], rtol=1e-4, atol=1e-5)
""",
    "data": """
import subprocess
import numpy as np
import plmu
time = np.arange(600)
series = np.sin(time / 5)
ahead = plmu.Forecaster(horizon=12).fit(series).predict()
assert ahead.shape == (12,)
assert np.abs(ahead - np.sin((600 + np.arange(12)) / 5)).max() < 0.1
random = np.random.default_rng(0)
labels = np.arange(60) % 2
gestures = [random.normal(size=(50, 1)) + 2 * np.sin(time[:50, None] / (2 + 2 * label)) for label in labels]
classifier = plmu.SequenceClassifier().fit(gestures[:40], labels[:40])
assert classifier.score(gestures[40:], labels[40:]) > 0.8
done = subprocess.run([*PLMU, "demo", "--out", "demo"], capture_output=True, text=True)
assert done.returncode == 0, done.stderr
""",
    "train": """
import subprocess
options = ["--training.epochs", "1", "--model.length", "100", "--device", "cpu"]
done = subprocess.run([*PLMU, "train", "addition", *options], capture_output=True, text=True)
assert done.returncode == 0, done.stderr
done = subprocess.run([*PLMU, "report"], capture_output=True, text=True)
assert done.returncode == 0, done.stderr
assert "addition" in done.stdout, done.stdout
""",
}


def main() -> None:
    base, wheel = (Path(word).resolve() for word in sys.argv[1:])
    check_contents(wheel)
    start = time.perf_counter()
    for extra, program in PROGRAMS.items():
        with tempfile.TemporaryDirectory() as folder:
            check(extra, program, Path(folder), base, wheel)
        print(f"{extra or 'no extra':<10}{time.perf_counter() - start:6.0f} s", flush=True)


def check_contents(wheel: Path) -> None:
    """All files of src are in the wheel: none is ignored by accident."""
    with zipfile.ZipFile(wheel) as archive:
        missing = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src" / "plmu").rglob("*.py")}
        missing -= set(archive.namelist())
    if missing:
        raise SystemExit(f"the wheel lacks {sorted(missing)}")


def check(extra: str, program: str, folder: Path, base: Path, wheel: Path) -> None:
    python = base / "bin" / "python"
    if extra:
        python = folder / "venv" / "bin" / "python"
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
        (packages,) = (base / "lib").glob("python3*/site-packages")
        (own,) = (folder / "venv" / "lib").glob("python3*/site-packages")
        (own / "base.pth").write_text(f"{packages}\n")
        subprocess.run(
            [python, ROOT / ".ci" / "install.py", f"{wheel}[{extra}]"], check=True, stdout=subprocess.DEVNULL
        )
    plmu = 'import sys\nPLMU = [sys.executable, "-m", "plmu"]\n'
    done = subprocess.run([python, "-c", plmu + program], cwd=folder, check=False)
    if done.returncode:
        raise SystemExit(f"pip install '.[{extra}]' does not do what it is for" if extra else "pip install . fails")


if __name__ == "__main__":
    main()
