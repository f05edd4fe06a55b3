"""Measure what the monitor's page takes in a browser: headless Chromium, while many jobs wait.

python -m tools.measure_page              # 100,000 jobs of 10,000 sessions, 20 seconds
python -m tools.measure_page 1000 5       # fewer jobs, shorter

It prints the share of one core that the page's main thread takes, and that of all processes of the
browser together, which also draw; a machine without a GPU draws with the processor.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path
from typing import Final

import trio
from playwright.sync_api import CDPSession, sync_playwright

from trio_lanes import LaneConfig, Lanes, open_lanes
from trio_lanes.monitor import serve_monitor

FLAGS: Final = ("--no-sandbox", "--disable-gpu", "--disable-background-networking")
RUNNING: Final = 8
TICKS: Final = os.sysconf("SC_CLK_TCK")


def seconds_of(session: CDPSession) -> float:
    """The time that the tasks of the page's main thread have taken."""
    metrics = session.send("Performance.getMetrics")["metrics"]
    return next(float(m["value"]) for m in metrics if m["name"] == "TaskDuration")


def processor_time(root: int) -> float:
    """The processor time of a process and of all below it, in seconds."""
    times: dict[int, float] = {}
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        number = int(folder.name)
        times[number] = (int(fields[11]) + int(fields[12])) / TICKS
        children.setdefault(int(fields[1]), []).append(number)
    total, waiting = 0.0, [root]
    while waiting:
        number = waiting.pop()
        total += times.get(number, 0)
        waiting += children.get(number, [])
    return total


def measure(url: str, seconds: float) -> None:
    """Open the page, let it settle, and look for so long."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=list(FLAGS)
        )
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.goto(url)
        page.locator("#link").get_by_text("live").wait_for()
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable")
        page.wait_for_timeout(3000)
        own, all_, began = seconds_of(session), processor_time(os.getpid()), time.monotonic()
        mine = time.process_time()
        page.wait_for_timeout(seconds * 1000)
        took = time.monotonic() - began
        here = time.process_time() - mine  # of this process, which serves
        drawn = processor_time(os.getpid()) - all_ - here
        print(f"main thread {(seconds_of(session) - own) / took:.1%} of a core")
        print(f"browser     {drawn / took:.1%} of a core")
        browser.close()


async def work(lanes: Lanes) -> None:
    """Jobs that end: eight at a time."""
    while True:
        await lanes.run(trio.sleep, 0.3, lane="busy", session="worker")


async def main(jobs: int, seconds: float) -> None:
    """Serve the page over lanes in which so many jobs wait."""
    waits = LaneConfig(concurrency=100, paused=True)
    async with (
        open_lanes({"main": waits, "busy": RUNNING}) as lanes,
        trio.open_nursery() as nursery,
    ):
        for number in range(jobs):
            lanes.submit_nowait(trio.sleep, 0, session=f"user {number % max(1, jobs // 10)}")
        for _ in range(RUNNING):
            nursery.start_soon(work, lanes)
        url = await nursery.start(lambda task_status: _serve(lanes, task_status))
        await trio.to_thread.run_sync(measure, url, seconds)
        nursery.cancel_scope.cancel()
        lanes.clear()


async def _serve(lanes: Lanes, task_status: trio.TaskStatus[str]) -> None:
    await serve_monitor(lanes, port=0, task_status=task_status)


if __name__ == "__main__":
    given = [*sys.argv[1:], "100000", "20"] if len(sys.argv) < 3 else sys.argv[1:]
    trio.run(main, int(given[0]), float(given[1]))
