"""The incidents of a store on the page: each story is stopped where it asks, and a person looks.

The story plays the incident over a store in memory. At the first answer that is not empty, a server
shows the same lanes to Chromium, in which one click, or the keyboard alone, has to lead to the same
cause. The story goes no further then: time has passed.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import trio
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright
from trio.testing import MockClock

from tests.durable.conformance.suite import play
from tests.monitor.test_browser import FLAGS, PATIENCE
from tests.support.needs import chromium
from trio_lanes import Problem, open_lanes
from trio_lanes.durable import DurableLanes, MemoryStore
from trio_lanes.monitor import serve_monitor

from .test_incidents import INCIDENTS

pytestmark = [pytest.mark.real_processes, pytest.mark.needs("Chromium")]

ONLY_IN_A_STORE = {what: story for what, (here, story) in INCIDENTS.items() if here is None}
OTHERS = ("a start cost more than its rate", "no room")
STORIES = {**ONLY_IN_A_STORE, **{what: INCIDENTS[what][1] for what in OTHERS}}
MOST_TABS = 60  # from the head of the page to a job of the store


class SeenError(Exception):
    """The page was looked at, and shows what it should."""


@pytest.fixture(scope="module")
def person() -> Iterator[tuple[ThreadPoolExecutor, Browser]]:
    """A browser, and the thread that it is used in."""
    with ThreadPoolExecutor(1) as thread:
        playwright = thread.submit(lambda: sync_playwright().start()).result()
        browser = thread.submit(
            lambda: playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
        ).result()
        yield thread, browser
        thread.submit(browser.close).result()
        thread.submit(playwright.stop).result()


def shared() -> Any:
    """What makes the stores of a story, which have the same data."""
    first = MemoryStore()
    return lambda folder: first.another()


def by_keyboard_alone(page: Page, link: Locator) -> None:
    page.locator("#freeze").focus()
    for _ in range(MOST_TABS):
        page.keyboard.press("Tab")
        if link.evaluate("link => link === document.activeElement"):
            break
    page.keyboard.press("Enter")


def find_cause(browser: Browser, url: str, job: int | None, found: Any) -> None:
    """Look for the cause of a job's wait, or for a problem, as a person does."""
    page = browser.new_page()
    page.set_default_timeout(PATIENCE * 1000 / 2)
    page.goto(url)
    panel = page.locator("lanes-durable")
    if job is None:
        expect(panel).to_contain_text(f"What to do: {found.advice}")
    else:
        link = panel.locator(f'a[href$="#stored={job}"]').first
        advice = found.advice
        helps = "Only time helps." if advice is None else f"What would help: {advice}"
        help = page.locator("lanes-story .help", has_text=helps)
        for choose in (Locator.click, lambda link: by_keyboard_alone(page, link)):
            page.evaluate("location.hash = ''")
            expect(page.locator("lanes-story h2")).to_have_text("Job")
            expect(link).to_be_visible()
            choose(link)
            expect(help).to_have_count(1)
    page.close()


def test_ten_incidents_are_of_a_store() -> None:
    assert len(STORIES) == 10


@pytest.mark.parametrize("what", STORIES)
def test_the_page_gives_the_cause_of_an_incident_by_one_click_and_by_keyboard_alone(
    what: str,
    person: tuple[ThreadPoolExecutor, Browser],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    thread, browser = person
    clocks: list[MockClock] = []
    asks = {name: getattr(DurableLanes, name) for name in ("root_causes", "health", "statistics")}

    def new_clock() -> MockClock:
        clocks.append(MockClock())
        return clocks[-1]

    async def slowly(lanes: DurableLanes) -> Any:
        await trio.sleep(1.1)
        return await asks["statistics"](lanes)

    async def look(lanes: DurableLanes, job: int | None, found: Any) -> None:
        for name, ask in asks.items():
            monkeypatch.setattr(DurableLanes, name, ask)
        if found.kind == "store":
            monkeypatch.setattr(DurableLanes, "statistics", slowly)
        clocks[-1].rate = 1
        async with open_lanes({"main": 1}) as shown, trio.open_nursery() as nursery:

            async def serve(task_status: trio.TaskStatus[str]) -> None:
                await serve_monitor(shown, durable=lanes, port=0, task_status=task_status)

            url = await nursery.start(serve)
            ends = thread.submit
            await trio.to_thread.run_sync(
                lambda: ends(find_cause, browser, url, job, found).result()
            )
            nursery.cancel_scope.cancel()
        raise SeenError

    async def root_causes(lanes: DurableLanes, id: int) -> Any:
        causes = await asks["root_causes"](lanes, id)
        if causes:
            await look(lanes, id, causes[-1])
        return causes

    async def health(lanes: DurableLanes, **options: Any) -> Any:
        problems = await asks["health"](lanes, **options)
        # that jobs have died is no wait, and has no cause to be found
        waits = [one for one in problems if one.kind != "dead" or one.lane != "main"]
        if waits:
            problem: Problem = waits[0]
            await look(lanes, problem.job, problem)
        return problems

    monkeypatch.setattr(DurableLanes, "root_causes", root_causes)
    monkeypatch.setattr(DurableLanes, "health", health)
    try:
        play(STORIES[what], shared(), clock=new_clock)
    except* SeenError:
        pass
    else:
        pytest.fail("the story has not asked")
