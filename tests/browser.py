"""`make test-browser`: the page of `plmu serve` in a headless Chromium, as on a desktop and a phone, light and dark.

Drives Chromium by its debugging protocol over a WebSocket. Needs Debian's `chromium`. Screenshots go to build/browser.
"""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import websockets

from benchmarks.serving import save_model, server

SIZES = {"desktop": (1280, 1000, False), "phone": (375, 812, True)}
OUT = Path("build/browser")
CHART = """(() => { const canvas = document.querySelector('#%s canvas');
  const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  const colors = new Set(); for (let i = 0; i < pixels.length; i += 4) if (pixels[i + 3] > 200)
  colors.add((pixels[i] >> 4) * 256 + (pixels[i + 1] >> 4) * 16 + (pixels[i + 2] >> 4)); return colors.size; })()"""


class Page:
    """A page of the browser."""

    def __init__(self, socket: Any) -> None:
        self.socket, self.number, self.events = socket, 0, []

    async def call(self, method: str, **arguments: Any) -> dict[str, Any]:
        self.number += 1
        await self.socket.send(json.dumps({"id": self.number, "method": method, "params": arguments}))
        while True:
            answer = json.loads(await asyncio.wait_for(self.socket.recv(), 30))
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    async def value(self, script: str) -> Any:
        found = await self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(f"{script[:60]}: {found['exceptionDetails']}")
        return found["result"].get("value")

    async def until(self, script: str, seconds: float = 20) -> Any:
        for _ in range(int(seconds * 10)):
            found = await self.value(script)
            if found:
                return found
            await asyncio.sleep(0.1)
        raise AssertionError(f"never true: {script}")


async def look(page: Page, address: str, size: str, scheme: str) -> None:
    width, height, mobile = SIZES[size]
    screen = {"width": width, "height": height, "deviceScaleFactor": 2 if mobile else 1, "mobile": mobile}
    await page.call("Emulation.setDeviceMetricsOverride", **screen)
    await page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    await page.call("Page.navigate", url=address)
    await page.until("document.readyState === 'complete' && document.querySelectorAll('canvas').length === 2")
    await page.until("document.getElementById('latency').textContent.endsWith('ms')")
    await page.until("document.getElementById('prediction-error').textContent.endsWith('%')")
    await page.until("state.predicted.slice(-LENGTH, -5).every((value) => value !== null)")
    assert await page.value("document.getElementById('status').textContent") == "connected"
    error = "parseFloat(document.getElementById('memory-error').textContent)"
    slide = "(([id, value]) => { const slider = document.getElementById(id); slider.value = value;"
    slide += " slider.dispatchEvent(new Event('input')) })"
    await page.value(f"{slide}(['theta', 100])")
    await page.value(f"{slide}(['order', 2])")
    await page.until("document.getElementById('numbers').textContent === '2'")
    await asyncio.sleep(1)
    coarse = await page.value(error)
    await page.value(f"{slide}(['order', 32])")
    await page.until("document.getElementById('numbers').textContent === '32'")
    await asyncio.sleep(1)
    fine = await page.value(error)
    assert fine < coarse / 2, f"order 32 remembers the window with an error of {fine} %, order 2 with {coarse} %"
    assert fine < 15, f"an order of 32 leaves an error of {fine} %"
    for chart in ("stream-chart", "window-chart"):
        assert await page.value(CHART % chart) > 3, f"{chart} is empty"
    wide = await page.value("document.documentElement.scrollWidth")
    assert wide <= width, f"the page is {wide} wide on a screen of {width}"
    dark = await page.value("getComputedStyle(document.body).backgroundColor")
    assert (dark == "rgb(20, 24, 28)") == (scheme == "dark"), dark
    picture = await page.call("Page.captureScreenshot", captureBeyondViewport=True)
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / f"{size}-{scheme}.png").write_bytes(base64.b64decode(picture["data"]))
    print(f"{size}, {scheme}: error of order 2 {coarse} %, of order 32 {fine} %, latency "
          f"{await page.value('document.getElementById(`latency`).textContent')}")  # fmt: skip


async def look_at_anomalies(page: Page, address: str, size: str, scheme: str) -> None:
    """The page of a detector: the expected interval, an alarm where an anomaly is added, and a file that is played."""
    width, height, mobile = SIZES[size]
    screen = {"width": width, "height": height, "deviceScaleFactor": 2 if mobile else 1, "mobile": mobile}
    await page.call("Emulation.setDeviceMetricsOverride", **screen)
    await page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    await page.call("Page.navigate", url=address)
    await page.until("document.readyState === 'complete' && document.querySelectorAll('canvas').length === 1")
    await page.value("$('rate').value = 100")
    await page.until("watch.outputs.filter((output) => output).length > 100")
    assert await page.value("$('column').options.length") == 2
    before = await page.value("watch.alarms")
    await page.value("$('unusual').click()")
    await page.until(f"watch.alarms > {before}")
    assert "load" in await page.value("$('alarms').firstChild.textContent")
    text = "time,temp,load\\n" + "".join(f"2025-01-0{i},15,{i}\\n" for i in range(1, 6))
    await page.value(f"playFile(new File(['{text}'], 'five.csv'))")
    await page.until("$('status').textContent === 'the file has ended' && state.sent.size === 0")
    assert await page.value("watch.samples.slice(-5).map((sample) => sample[0])") == [1, 2, 3, 4, 5]
    await page.until("watch.outputs.slice(-5).every((output) => output)")
    await page.until(f"{CHART % 'stream-chart'} > 3")
    wide = await page.value("document.documentElement.scrollWidth")
    assert wide <= width, f"the page is {wide} wide on a screen of {width}"
    picture = await page.call("Page.captureScreenshot", captureBeyondViewport=True)
    (OUT / f"anomalies-{size}-{scheme}.png").write_bytes(base64.b64decode(picture["data"]))
    print(f"anomalies, {size}, {scheme}: {await page.value('watch.alarms')} alarms")


def save_detector(folder: Path) -> Path:
    """A run of anomalies, of two columns."""
    folder.mkdir(parents=True)
    rng, hours = np.random.default_rng(0), np.arange(1500)
    load = 50 + 8 * np.sin(2 * np.pi * hours / 24) + rng.standard_normal(1500)
    times = np.datetime64("2024-01-01T00:00") + 60 * hours
    rows = zip(times.tolist(), load.tolist(), rng.normal(15, 1, 1500).tolist(), strict=True)
    lines = [f"{time:%Y-%m-%d %H:%M},{a:.3f},{b:.3f}" for time, a, b in rows]
    (folder / "my.csv").write_text("\n".join(["time,load,temp", *lines, ""]))
    command = [sys.executable, "-m", "plmu", "train", "anomalies", "my.csv", "--quiet"]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return folder / "runs" / "anomalies-my-seed0"


def complaints(page: Page, address: str) -> list[str]:
    """Errors of scripts, and requests that left the server."""
    found = []
    for event in page.events:
        method, given = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown" or (method == "Log.entryAdded" and given["entry"]["level"] == "error"):
            found.append(json.dumps(given)[:400])
        url = given.get("request", {}).get("url", "")
        if method == "Network.requestWillBeSent" and not url.startswith((address, "data:")):
            found.append(f"a request to {url}")
    return found


async def main() -> None:
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("make test-browser needs Debian's package chromium: apt-get install chromium")
    with tempfile.TemporaryDirectory() as folder:
        run = Path(sys.argv[1]) if len(sys.argv) > 1 else save_model(Path(folder) / "run")
        detector = save_detector(Path(folder) / "detector")
        with server(run) as program, server(detector) as watching:
            flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", "--no-first-run"]
            process = subprocess.Popen(
                [browser, *flags, f"--user-data-dir={folder}/profile", "about:blank"],
                stderr=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
            try:
                port_file = Path(folder) / "profile" / "DevToolsActivePort"
                await drive(port_file, f"http://127.0.0.1:{program.port}/", look)
                await drive(port_file, f"http://127.0.0.1:{watching.port}/", look_at_anomalies)
            finally:
                process.terminate()
                process.wait(20)


async def drive(port_file: Path, address: str, view: Callable[..., Awaitable[None]]) -> None:
    for _ in range(300):
        if port_file.is_file() and port_file.read_text().strip():
            break
        await asyncio.sleep(0.1)
    port = port_file.read_text().split()[0]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/json") as response:
        target = next(one for one in json.load(response) if one["type"] == "page")
    async with websockets.connect(target["webSocketDebuggerUrl"], max_size=None) as socket:
        page = Page(socket)
        for domain in ("Page", "Runtime", "Network", "Log"):
            await page.call(f"{domain}.enable")
        for size in SIZES:
            for scheme in ("light", "dark"):
                await view(page, address, size, scheme)
        found = complaints(page, address)
        assert not found, "\n".join(found)


if __name__ == "__main__":
    asyncio.run(main())
