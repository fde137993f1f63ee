"""The time of a frame of `kerneltrick explore` at n = 128: python benchmarks/frames.py.

Prints the CPU time of the page's main thread (script, layout and painting, without a GPU) for each
picture, in ms. A screen with 60 frames a second has 16 ms for one. Needs Playwright and Chromium.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from kerneltrick import report

FRAMES = 40
PICTURES = {
    "two orders": ("", "state.step = 3 * i; drawings.drawOrders()"),
    "the map, elu": ("map=elu", "plane.q[2] = i / 20; drawings.drawPlane()"),
    "the map, favor": ("map=favor", "plane.q[2] = i / 20; drawings.drawPlane()"),
    "the map, taylor": ("map=taylor", "plane.q[2] = i / 20; drawings.drawPlane()"),
    "the dial, elu": ("", "state.window = 3 * i; drawings.drawDial()"),
    "the dial, favor": (
        "far=favor:features=64",
        "state.window = 3 * i; drawings.drawDial()",
    ),
    "a stream": ("", "state.read = i % 6; drawings.drawStream()"),
    "flip a bit": ("", "state.flip = i / 20; drawings.drawParity()"),
}


def measure(page: Any, thread_time: Callable[[], float], step: str) -> float:
    """Return the CPU time of a frame in ms, after a few frames to warm up."""
    body = f"""async (frames) => {{
      const {{ state, plane, drawings }} = kerneltrick;
      for (let i = 0; i < frames; i += 1) {{
        {step};
        await new Promise((done) => requestAnimationFrame(done));
      }}
    }}"""
    page.evaluate(body, 5)
    before = thread_time()
    page.evaluate(body, FRAMES)
    return 1000 * (thread_time() - before) / FRAMES


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = Path(folder) / "explore.html"
        path.write_text(report.render_explore(), encoding="utf-8")
        flags = ["--no-sandbox", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=flags)
        for name, (address, step) in PICTURES.items():
            context = browser.new_context(viewport={"width": 1440, "height": 900})
            page = context.new_page()
            page.goto(f"{path.as_uri()}#n=128&points=128&{address}")
            session = context.new_cdp_session(page)
            session.send("Performance.enable", {"timeDomain": "threadTicks"})

            def thread_time(session: Any = session) -> float:
                found = session.send("Performance.getMetrics")["metrics"]
                return float(next(x["value"] for x in found if x["name"] == "ThreadTime"))

            print(f"{name:16} {measure(page, thread_time, step):5.1f} ms")
            context.close()
        browser.close()


if __name__ == "__main__":
    main()
