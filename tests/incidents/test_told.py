"""What an operator is told of each incident, and that all is well when it is mended.

By the first screen of the page, at the size of a laptop and of a phone; by commands, the log and
metrics. Where there is no Chromium, the page is left out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from playwright.sync_api import TimeoutError as TooLongError
from playwright.sync_api import sync_playwright
from trio.testing import MockClock

from tests.monitor.test_browser import FLAGS, OVERFLOW, PATIENCE
from tests.support.needs import chromium
from trio_lanes.command._exits import first_leaf

from .stage import Stage
from .told import TOLD, Told, waits

pytestmark = [pytest.mark.real_processes]

SIZES = {"laptop": (1280, 800), "phone": (390, 844)}
SHOTS = os.environ.get("SHOTS")
"""The folder for pictures of the page, if they are wanted."""
SEEN = """([words, gone]) => {
    const all = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), seen = [];
    const range = document.createRange();
    for (let node = all.nextNode(); node; node = all.nextNode()) {
        const under = node.parentElement;
        if (under.closest('.hidden, script') || !under.checkVisibility()) continue;
        range.selectNodeContents(node);
        const boxes = [...range.getClientRects()];
        const panes = [{top: 0, left: 0, bottom: innerHeight, right: innerWidth}];
        for (let over = under; over; over = over.parentElement)
            if (getComputedStyle(over).overflowY === 'auto')
                panes.push(over.getBoundingClientRect());
        if (boxes.length && boxes.every(box => panes.every(pane =>
            box.top >= pane.top && box.left >= pane.left
            && box.bottom <= pane.bottom && box.right <= pane.right))) seen.push(node.data);
    }
    const text = seen.join(' ').replace(/\\s+/g, ' ');
    const holds = words.every(one => text.includes(one)) && !gone.some(one => text.includes(one));
    return words.length + gone.length ? holds : text;
}"""
"""Whether words can be seen without scrolling, and no others; without any, what can be."""


HEALTHY = "Healthy"
HEALTH = ("health", "health --page x")
"""The verdict on what the page shows, by the store if there is one, and by the page."""


def unlabelled(words: str) -> str:
    """Return words of the page as commands say them."""
    for label in ("What to do: ", "What would help: "):
        words = words.removeprefix(label)
    return words.replace(HEALTHY, "healthy")


class Person:
    """Who looks at the page, first on a laptop and then on a phone."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._playwright = self._thread.submit(lambda: sync_playwright().start()).result()
        launch = self._playwright.chromium.launch
        self._browser = self._thread.submit(
            lambda: launch(executable_path=chromium(), args=FLAGS)
        ).result()
        self._page = self._thread.submit(self._browser.new_page).result()
        self._troubles: list[str] = []
        self._page.on("pageerror", lambda error: self._troubles.append(str(error)))

    async def sees(self, url: str, words: Sequence[str], gone: Sequence[str], shot: str) -> None:
        """Look until the first screen of both sizes has all of some words, and none of others."""
        for size in SIZES:
            look = partial(self._look, url, size, words, gone, shot.replace(" ", "_"))
            await trio.to_thread.run_sync(lambda: self._thread.submit(look).result())  # noqa: B023

    def _look(
        self, url: str, size: str, words: Sequence[str], gone: Sequence[str], shot: str
    ) -> None:
        page, (width, height) = self._page, SIZES[size]
        page.set_viewport_size({"width": width, "height": height})
        if not page.url.startswith(url):
            page.goto(url)
        try:
            page.wait_for_function(SEEN, arg=[words, gone], timeout=PATIENCE * 250)
        except TooLongError:
            text = page.evaluate(SEEN, [[], []])
            wrong = [one for one in words if one not in text], [one for one in gone if one in text]
            troubles = self._heard()
            pytest.fail(f"a {size} misses, and has in vain, {wrong}; {troubles}: {text}")
        if SHOTS:
            page.screenshot(path=Path(SHOTS) / f"{shot}-{size}.png")
        assert page.evaluate(OVERFLOW) <= 0
        assert self._heard() == []

    def _heard(self) -> list[str]:
        """Return the errors of the page, each once: the next test has none of them."""
        heard, self._troubles = self._troubles, []
        return heard

    def close(self) -> None:
        self._thread.submit(self._browser.close).result()
        self._thread.submit(self._playwright.stop).result()


@pytest.fixture(scope="module")
def person() -> Iterator[Person | None]:
    person = Person() if chromium() else None
    yield person
    if person is not None:
        person.close()


async def play(name: str, stage: Stage, person: Person | None) -> None:
    incident = TOLD[name]
    stage.clock.autojump_threshold = 0
    async with incident.begin(stage):
        screen = [stage.named(one) for one in incident.screen]
        told = [one for one in screen if one != HEALTHY]
        async with stage.real_time(incident.pace):
            await commands_tell(incident, screen, stage)
            if person is not None:
                await person.sees(stage.url, screen, [], name)
            await incident.mend(stage)
            await commands_tell_of_no_more(told, stage)
            if person is not None:
                await person.sees(stage.url, [HEALTHY], told, f"{name} after")
        await trio.sleep(61)
        assert stage.problems() == {}
        assert stage.logged("problem_gone") == incident.kinds


async def commands_tell_of_no_more(told: Sequence[str], stage: Stage) -> None:
    """Ask commands until they find nothing, ten times as fast as in real time."""
    stage.clock.rate = 10
    codes, left = {1}, list(told)
    while codes != {0} or left:
        await trio.sleep(0.5)
        codes = {(await stage.says(line))[0] for line in HEALTH}
        _, text = await stage.says("top")
        left = [one for one in told if unlabelled(one) in text]
    stage.clock.rate = 1


async def commands_tell(incident: Told, screen: Sequence[str], stage: Stage) -> None:
    """Ask commands, the log and metrics."""
    for line in HEALTH:
        code, text = await stage.says(line)
        assert code == (incident.exit_code or bool(incident.kinds)), text
        if incident.kinds:
            assert (screen[0] if "--page" in line else incident.in_store or screen[0]) in text
    _, text = await stage.says("top")
    for words in screen:
        assert unlabelled(words) in text
    if stage.durable is not None and not incident.kinds:
        _, text = await stage.says("status")
        assert [one for one in screen if one != HEALTHY and unlabelled(one) not in text] == []
    for line, words in incident.commands.items():
        _, text = await stage.says(line)
        assert stage.named(words) in text
    assert stage.logged("problem") == incident.kinds
    assert stage.problems().keys() == incident.kinds
    for figure, value in incident.figures.items():
        assert stage.figure(figure, lane="main") == value


TWINS = (
    *("a hung job", "a forgotten pause", "a tenant that floods"),
    *("a body that outlives its timeout", "a stuck head of a session of a store"),
    "a deadlock of locks",
)
"""Incidents of the core, or of a store, that are played over the other in each run."""


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.thorough] * (n in TWINS)) for n in TOLD]
)
async def test_an_operator_is_told_of_an_incident_and_all_is_well_when_it_is_mended(
    name: str, mock_clock: MockClock, person: Person | None
) -> None:
    try:
        await play(name, Stage(mock_clock), person)
    except BaseExceptionGroup as group:  # of the nurseries around the error
        raise first_leaf(group) from None


MANY = [
    pytest.param(1_000, id="1,000 jobs"),
    pytest.param(5_000, id="5,000 jobs", marks=pytest.mark.thorough),
]


@pytest.mark.parametrize("jobs", MANY)
@pytest.mark.parametrize("of", ["core", "store"])
async def test_of_500_lanes_page_and_commands_say_what_they_leave_out(
    of: str, jobs: int, mock_clock: MockClock, person: Person | None
) -> None:
    stage = Stage(mock_clock)
    mock_clock.autojump_threshold = 0
    lanes = {f"lane {n}": 1 for n in range(500)}
    opened: Any = stage.core(lanes) if of == "core" else stage.stored({"waits": waits}, lanes)
    unseen = "more lanes with waiting jobs"  # 400, or more on a slow machine
    try:
        async with opened:
            for n in range(jobs):
                if stage.durable is None:
                    stage.lanes.submit_nowait(waits, lane=f"lane {n % 500}")
                else:
                    await stage.durable.submit("waits", lane=f"lane {n % 500}")
            await trio.sleep(20)
            async with stage.real_time():
                for line in (*HEALTH, "top"):
                    _, text = await stage.says(line)
                    assert re.search(rf"not looked at: 4\d\d {unseen}", text)
                assert "and 440 more lanes" in text
                if person is not None:
                    words = ["not looked at: 4", unseen, "the oldest wait is of "]
                    await person.sees(stage.url, words, [], f"500 lanes of the {of}")
    except BaseExceptionGroup as group:
        raise first_leaf(group) from None
