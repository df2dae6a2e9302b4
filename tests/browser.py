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
from pathlib import Path
from typing import Any

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
        with server(run) as program:
            flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", "--no-first-run"]
            process = subprocess.Popen(
                [browser, *flags, f"--user-data-dir={folder}/profile", "about:blank"],
                stderr=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
            try:
                await drive(Path(folder) / "profile" / "DevToolsActivePort", f"http://127.0.0.1:{program.port}/")
            finally:
                process.terminate()
                process.wait(20)


async def drive(port_file: Path, address: str) -> None:
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
                await look(page, address, size, scheme)
        found = complaints(page, address)
        assert not found, "\n".join(found)


if __name__ == "__main__":
    asyncio.run(main())
