"""Take the pictures of the monitor that README and docs show, in headless Chromium.

python -m tools.photograph_monitor docs/howto/monitor.png docs/howto/monitor-dark.png

A crowd of sessions works for half a minute in lanes that are too narrow for it: one job waits for
a person, one outlives its cancellation, a lane is paused by a 429 and another by hand.
"""

from __future__ import annotations

import random
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import Final, Literal

import trio
from playwright.sync_api import sync_playwright

from trio_lanes import LaneConfig, LaneGroup, Lanes, RateLimit, current_job, open_lanes
from trio_lanes.monitor import serve_monitor

FLAGS: Final = ("--no-sandbox", "--disable-gpu", "--disable-background-networking")
NAMES: Final = [
    "ann",
    "ben",
    "cleo",
    "dan",
    "eve",
    "finn",
    "gus",
    "hana",
    "ivo",
    "jo",
    "سارة",
    "kim",
]
SECONDS: Final = 30.0
COLOURS: Final[tuple[Literal["light", "dark"], ...]] = ("light", "dark")


async def turn(seconds: float) -> None:
    """Answer; now and then with a sub-agent, for which the slot is lent."""
    job = current_job()
    assert job is not None
    if seconds > 3:
        async with job.yield_slot(reason="approval"):
            await trio.sleep(seconds / 2)
    await trio.sleep(seconds)
    if 1.8 < seconds < 2:
        raise ValueError("the model refused")


async def stubborn() -> None:
    """Outlive its cancellation."""
    with trio.CancelScope(shield=True):
        await trio.sleep(25)


async def crowd(lanes: Lanes) -> None:
    """Sessions that talk, until cancelled."""
    chance = random.Random(4)
    lanes.pause("cron")
    lanes.submit_nowait(trio.sleep, 1, lane="cron", name="report")
    began = trio.current_time()
    while True:
        name = chance.choice(NAMES)
        seconds = chance.choice([0.6, 0.9, 1.4, 1.9, 4.0])
        lanes.submit_nowait(turn, seconds, session=name, name=f"turn of {name}")
        if chance.random() < 0.4:
            lanes.submit_nowait(turn, 2.5, lane=f"tool:{name}", name="search")
        await trio.sleep(chance.random() * 0.9)
        if 9 < trio.current_time() - began < 10:
            lanes.lane("main").concurrency = 4
        if 14 < trio.current_time() - began < 15:
            lanes.pause_for("main", 3)
            lanes.submit_nowait(stubborn, session="eve", name="turn of eve", priority=5)
        if 21 < trio.current_time() - began < 22:
            for job in lanes.lane("main").running(9):
                if job.name == "turn of eve" and job.priority:
                    job.cancel("by an operator")


def photograph(url: str, files: list[Path]) -> None:
    """Wait until there is something to see, choose a job that waits, and take the pictures."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=list(FLAGS)
        )
        pages = []
        for colour in COLOURS[: len(files)]:
            page = browser.new_page(viewport={"width": 1440, "height": 900}, color_scheme=colour)
            page.goto(url)
            pages.append(page)
        pages[0].wait_for_timeout(SECONDS * 1000)
        for page, file in zip(pages, files, strict=True):
            page.locator("lanes-table td a").first.click()  # the longest wait of the first lane
            page.get_by_text("Why does it wait?").wait_for()
            page.evaluate("document.activeElement.blur()")
            page.screenshot(path=str(file))
        browser.close()


async def main(files: list[Path]) -> None:
    """Serve the page over a crowd, and take the pictures of it."""
    rate = RateLimit(240, unit="tokens", burst=60)
    async with open_lanes(
        {
            "main": LaneConfig(concurrency=6, log_failures=False),
            "cron": 1,
            "tool:*": LaneConfig(concurrency=1),
        },
        groups={"openai": LaneGroup(["main"], concurrency=6, rate=rate)},
        wait_accounting=True,
    ) as lanes:
        async with trio.open_nursery() as nursery:
            url = await nursery.start(partial(serve_monitor, lanes, port=0))
            nursery.start_soon(crowd, lanes)
            await trio.to_thread.run_sync(photograph, url, files)
            nursery.cancel_scope.cancel()
        lanes.resume()
        lanes.clear()
        lanes.reset()


if __name__ == "__main__":
    trio.run(main, [Path(name) for name in sys.argv[1:]])
