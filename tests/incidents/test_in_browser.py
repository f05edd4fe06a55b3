"""The incidents of the core on the page: one server, one browser and one page for all of them."""

from __future__ import annotations

import re
from typing import Any

import pytest
import trio
from playwright.sync_api import Locator, Page, expect
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.monitor.test_browser import PATIENCE, Stage, browse_over
from trio_lanes import Job, JobState, LaneConfig, Lanes, open_lanes

from .test_incidents import CORE, Incident

pytestmark = [pytest.mark.real_processes, pytest.mark.needs("Chromium")]

VERY_LATE = 1000.0  # seconds that the bodies of the incidents take
MOST_TABS = 25  # from the head of the page to the row of a lane
LATER = 30.0  # seconds that jobs have waited when a person looks


def by_one_click(page: Page, reason: Locator, job: Job[Any]) -> None:
    reason.click()


def by_keyboard_alone(page: Page, reason: Locator, job: Job[Any]) -> None:
    expect(reason).to_be_visible()
    page.locator("#freeze").focus()
    for _ in range(MOST_TABS):
        page.keyboard.press("Tab")
        if reason.evaluate("link => link === document.activeElement"):
            break
    page.keyboard.press("Enter")


def by_its_number(page: Page, reason: Locator, job: Job[Any]) -> None:
    page.keyboard.press("/")
    page.keyboard.press("Control+a")
    page.keyboard.type(str(job.id))
    page.keyboard.press("Enter")  # there is one job of that number, so it is chosen


async def pass_time(clock: MockClock) -> None:
    for seconds in (1.5, 1, LATER):  # one event after another
        await wait_all_tasks_blocked(0.01)
        clock.jump(seconds)
    await wait_all_tasks_blocked(0.01)


@pytest.mark.parametrize(
    "in_turn",
    [
        pytest.param(True, id="each incident in one way"),
        pytest.param(False, id="each in every way", marks=pytest.mark.thorough),
    ],
)
async def test_the_page_gives_the_cause_of_each_incident_by_one_click_and_by_keyboard_alone(
    mock_clock: MockClock, in_turn: bool
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
        for place, (name, incident) in enumerate(CORE.items()):
            job = stage.do(begin, stage.lanes, incident)
            trio.from_thread.run(pass_time, mock_clock)
            waits = job.state is JobState.WAITING  # else it waits for a job of its own, or for room
            row = page.locator(f"lanes-table [data-lane={job.lane if waits else incident.lane}]")
            text = (
                f"{job.id} ← " if waits else {"deadlock": "deadlock"}.get(name, 'slots of "cron"')
            )
            reason = row.locator("td a", has_text=text)  # of the longest wait of the lane
            advice = incident.advice
            helps = "Only time helps." if advice is None else advice
            says = re.sub(r"\bof 1\b", r"of \\d+", re.escape(helps).replace(r"\ ", " "))
            ways = [by_keyboard_alone, by_one_click, *([by_its_number] if waits else [])]
            for choose in [ways[place % len(ways)]] if in_turn else ways:
                page.evaluate("location.hash = ''")
                expect(title).to_have_text("Job")
                choose(page, reason, job)
                number = str(job.id) if waits else r"\d+"
                expect(title, name).to_have_text(re.compile(f"^Job {number} · "))
                help = page.locator("lanes-story .help")
                expect(help, name).to_have_count(1)
                expect(help, name).to_have_text(re.compile(f"^{number} ← .*{says}$"))
            stage.do(end, stage.lanes)

    mock_clock.rate = 1
    with trio.fail_after(PATIENCE + 2 * LATER * len(CORE) + 2 * VERY_LATE):
        async with open_lanes({"main": 9, "cron": 9}) as lanes:
            try:
                await browse_over(drive, lanes)
            finally:
                mock_clock.jump(VERY_LATE)  # bodies that are shielded end
