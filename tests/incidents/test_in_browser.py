"""The incidents of the core on the page: one server, one browser and one page for all of them."""

from __future__ import annotations

import re
from typing import Any

import pytest
import trio
from playwright.sync_api import Page, expect
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.monitor.test_browser import PATIENCE, Stage, browse_over
from trio_lanes import Job, LaneConfig, Lanes, open_lanes

from .test_incidents import CORE, Incident

pytestmark = [pytest.mark.real_processes, pytest.mark.needs("Chromium")]

VERY_LATE = 1000.0  # seconds that the bodies of the incidents take
LATER = 30.0  # seconds that jobs have waited when a person looks


def by_one_click(page: Page, job: Job[Any]) -> None:
    """Choose the lane, in whose list each job is a link with its reason."""
    page.locator("lanes-table").get_by_role("link", name=job.lane, exact=True).click()
    page.locator("lanes-story").get_by_role("link", name=f"{job.id} {job.name}").click()


def by_keyboard_alone(page: Page, job: Job[Any]) -> None:
    page.keyboard.press("/")
    page.keyboard.press("Control+a")
    page.keyboard.type(str(job.id))
    page.keyboard.press("Enter")  # there is one job of that number, so it is chosen


async def pass_time(clock: MockClock) -> None:
    for seconds in (1.5, 1, LATER):  # one event after another
        await wait_all_tasks_blocked(0.01)
        clock.jump(seconds)
    await wait_all_tasks_blocked(0.01)


async def test_the_page_gives_the_cause_of_each_incident_by_one_click_and_by_keyboard_alone(
    mock_clock: MockClock,
) -> None:
    def begin(lanes: Lanes, incident: Incident) -> Job[Any]:
        configs = {  # a number would leave the rates of the incident before
            name: LaneConfig(concurrency=of) if isinstance(of, int) else of
            for name, of in incident.lanes.items()
        }
        lanes.configure(configs, groups=incident.groups)
        return incident.submit(lanes)

    def end(lanes: Lanes) -> None:
        lanes.resume()
        lanes.resume("session:s")
        lanes.clear()
        lanes.reset()

    def drive(stage: Stage) -> None:
        page = stage.open()
        title = page.locator("lanes-story h2")
        for name, incident in CORE.items():
            job = stage.do(begin, stage.lanes, incident)
            trio.from_thread.run(pass_time, mock_clock)
            for choose in (by_keyboard_alone, by_one_click):
                choose(page, job)
                expect(title).to_have_text(f"Job {job.id} · {job.name}")
                advice = incident.advice
                helps = "Only time helps." if advice is None else f"What would help: {advice}"
                help = page.locator("lanes-story .help")
                expect(help, name).to_have_count(1)
                says = re.sub(r"\bof 1\b", r"of \\d+", re.escape(helps).replace(r"\ ", " "))
                expect(help, name).to_have_text(re.compile(f"^{job.id} ← .*{says}$"))
            stage.do(end, stage.lanes)

    mock_clock.rate = 1
    with trio.fail_after(PATIENCE + 2 * LATER * len(CORE) + 2 * VERY_LATE):
        async with open_lanes({"main": 9, "cron": 9}) as lanes:
            try:
                await browse_over(drive, lanes)
            finally:
                mock_clock.jump(VERY_LATE)  # bodies that are shielded end
