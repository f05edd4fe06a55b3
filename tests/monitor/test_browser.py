"""The page in a real browser: headless Chromium, driven from a thread, over a real server.

The lanes go on only when a test says so. Nothing here waits for a time: the page is looked at until
it shows what it should.
"""

from __future__ import annotations

import random
import re
import socket
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

import pytest
import trio
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    expect,
    sync_playwright,
)
from trio.testing import wait_all_tasks_blocked

from tests.support.needs import AXE, chromium
from trio_lanes import (
    Adaptive,
    Job,
    LaneConfig,
    Lanes,
    LanesStatistics,
    RateLimit,
    current_job,
    open_lanes,
)
from trio_lanes.durable import (
    DurableLanes,
    MemoryStore,
    RetryPolicy,
    StoreActivity,
    open_durable_lanes,
)
from trio_lanes.monitor import Role, serve_monitor
from trio_lanes.monitor._app import MAX_VIEWERS

pytestmark = [pytest.mark.real_processes, pytest.mark.needs("Chromium")]

PATIENCE = 120.0  # seconds, on a machine that has much else to do
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
SMALL = """() => [...document.querySelectorAll('a, button, summary, input, select')]
    .map(one => [one.textContent, one.getBoundingClientRect()])
    .filter(([text, box]) => box.width && (box.width < 24 || box.height < 24))
    .map(([text]) => text)"""
"""The names of all targets that have less than 24 pixels."""
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
"""How many pixels the page is wider than it can be seen."""
BROKEN = """() => [...document.querySelectorAll('thead th, tbody th, lanes-totals .card > *')]
    .flatMap(one => [...one.childNodes, ...one.querySelectorAll('a')])
    .flatMap(one => one.nodeType === 3 ? [one] : [...one.childNodes])
    .filter(text => text.nodeType === 3 && text.data.length < 14 && !text.data.trim().includes(' '))
    .filter(text => {
        const range = document.createRange();
        range.selectNodeContents(text);
        return range.getClientRects().length > 1;
    }).map(text => text.data)"""
"""The short words of heads, names and totals that are broken."""
OPERATOR = "operator"  # of a viewer who may act: its name is in a header

expect.set_options(timeout=PATIENCE * 1000 / 2)


class Stage:
    """Lanes under the page, and what a person does to them."""

    def __init__(self, lanes: Lanes, url: str, browser: Browser) -> None:
        self.lanes = lanes
        self.url = url
        self.troubles: list[str] = []
        self.disturbed = False  # whether pages may complain that the server is away, or has failed
        self.cut: Callable[[], None] = lambda: None  # ends the server, which begins again
        self._browser = browser

    def open(self, *, operates: bool = False, address: str = "", **options: Any) -> Page:
        headers = {"X-User": OPERATOR} if operates else {}
        context: BrowserContext = self._browser.new_context(extra_http_headers=headers, **options)
        page = context.new_page()
        page.set_default_timeout(PATIENCE * 1000 / 2)
        page.on("pageerror", lambda error: self.troubles.append(str(error)))
        page.on("console", self._hear)
        page.goto(self.url + address)
        expect(page.locator("#link")).to_have_text("live")
        return page

    def _hear(self, message: ConsoleMessage) -> None:
        away = self.disturbed and ("ERR_" in message.text or "status of 500" in message.text)
        if not (away or "status of 409" in message.text):  # a refusal, which the page shows
            self.troubles.append(message.text)

    def do(self, act: Callable[..., Any], *args: Any) -> Any:
        """Call ``act`` where the lanes are."""
        return trio.from_thread.run_sync(act, *args)


async def browse(drive: Callable[[Stage], None], **lanes: int | LaneConfig) -> None:
    """Have ``drive`` use a browser, in a thread, while a server serves."""
    with trio.fail_after(PATIENCE):
        async with open_lanes(lanes) as opened:
            await browse_over(drive, opened)


async def browse_over(
    drive: Callable[[Stage], None], opened: Lanes, durable: DurableLanes | None = None
) -> None:
    """Have ``drive`` use a browser over lanes that are open; then end their jobs."""
    executable = chromium()
    assert executable is not None

    def who(connection: Any) -> Role:
        return "operate" if connection.headers.get("x-user") == OPERATOR else "read"

    cuts: list[trio.CancelScope] = []

    def in_thread(opened: Lanes, url: str) -> None:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=executable, args=FLAGS, timeout=PATIENCE * 1000 / 2
            )
            stage = Stage(opened, url, browser)
            stage.cut = lambda: cuts[-1].cancel()
            drive(stage)
            browser.close()
            assert stage.troubles == []

    async with trio.open_nursery() as nursery:

        async def serve(task_status: trio.TaskStatus[str]) -> None:
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = free.getsockname()[1]
            while True:
                with trio.CancelScope() as scope:
                    cuts.append(scope)
                    await serve_monitor(
                        opened, durable=durable, port=port, authorize=who, task_status=task_status
                    )
                task_status = trio.TASK_STATUS_IGNORED

        url = await nursery.start(serve)
        await trio.to_thread.run_sync(in_thread, opened, url)
        nursery.cancel_scope.cancel()
        opened.resume()
        opened.clear()
        opened.reset()


async def test_a_page_that_is_opened_with_its_key_lives_at_an_address_without_it() -> None:
    def drive(url: str) -> None:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=chromium(), args=FLAGS, timeout=PATIENCE * 1000 / 2
            )
            page = browser.new_page()
            page.goto(f"{url}#lane=main")
            expect(page.locator("#link")).to_have_text("live")
            assert page.url == f"{url.partition('?')[0]}#lane=main"
            page.reload()
            expect(page.locator("#link")).to_have_text("live")
            stranger = browser.new_context().new_page()
            stranger.goto(page.url)
            expect(stranger.locator("body")).to_contain_text("this page needs its key")
            browser.close()

    with trio.fail_after(PATIENCE):
        async with open_lanes({"main": 1}) as lanes, trio.open_nursery() as nursery:
            url = await nursery.start(partial(serve_monitor, lanes, port=0))
            await trio.to_thread.run_sync(drive, url)
            nursery.cancel_scope.cancel()


async def lend(reason: str) -> None:
    job = current_job()
    assert job is not None
    async with job.yield_slot(reason=reason):
        await trio.sleep_forever()


async def stubborn() -> None:
    """Outlive a cancellation, but not the test."""
    with trio.move_on_after(5, shield=True):
        await trio.sleep_forever()


async def fail() -> None:
    await trio.sleep(0.2)
    raise ValueError


def pick(page: Page, job: Job[Any]) -> None:
    page.evaluate(
        "id => document.dispatchEvent(new CustomEvent('lanes-pick', {detail: {id}}))", job.id
    )


async def test_each_state_of_a_job_is_seen_on_the_time_line() -> None:
    given_back = trio.Event()

    async def wants() -> None:
        job = current_job()
        assert job is not None
        async with job.yield_slot():
            await given_back.wait()

    def drive(stage: Stage) -> None:
        lanes = stage.lanes
        page = stage.open()

        def begin() -> None:
            lanes.submit_nowait(wants, lane="narrow", session="wants")
            lanes.submit_nowait(trio.sleep_forever, lane="narrow")
            lanes.submit_nowait(lend, "approval", session="lends")
            lanes.submit_nowait(fail, session="fails")
            stops = lanes.submit_nowait(stubborn, session="stops")
            lanes.submit_nowait(trio.sleep_forever, session="runs")
            for _ in range(2):
                lanes.submit_nowait(trio.sleep_forever, session="waits", lane="cron")
            stops.cancel("late")

        stage.do(begin)
        stage.do(given_back.set)
        states = """() => {
            const line = document.querySelector('lanes-timeline');
            return [...new Set([...line.rows().values()].flat().flatMap(
                known => window.pieces(known, line.now).map(piece => piece.state)))].sort();
        }"""
        page.evaluate(
            "import('./static/timeline.js').then(module => { window.pieces = module.pieces; })"
        )
        wanted = ["failed", "lane", "lent", "runs", "session", "stops", "wants"]
        page.wait_for_function(
            f"wanted => JSON.stringify(({states})()) === JSON.stringify(wanted)", arg=wanted
        )
        for name in ("lends", "waits"):
            expect(page.locator("lanes-sessions").get_by_text(name)).to_be_visible()
        page.get_by_role("button", name="slots", exact=True).click()
        page.wait_for_function(
            "document.querySelector('lanes-timeline canvas').ariaLabel.includes('rows')"
        )
        shown = page.evaluate("[...document.querySelector('lanes-timeline').rows().keys()]")
        assert "main 1" in shown

    main = LaneConfig(concurrency=4, log_failures=False)
    await browse(drive, main=main, narrow=1, cron=LaneConfig(concurrency=1, paused=True))


async def test_the_numbers_of_the_page_are_those_of_the_lanes() -> None:
    def drive(stage: Stage) -> None:
        lanes = stage.lanes
        page = stage.open()

        def begin() -> None:
            for number in range(12):
                lanes.submit_nowait(trio.sleep_forever, session=f"s{number % 3}")

        stage.do(begin)
        cards = page.locator("lanes-totals .card")
        expect(cards.filter(has_text="Waiting").locator("strong")).to_have_text("10")
        expect(cards.filter(has_text="Running").locator("strong")).to_have_text("2")
        row = page.locator("lanes-table tbody tr").filter(has_text="main")
        expect(row).to_contain_text("10 waiting · 9 in sessions, 1 in lane")
        expect(row.locator(".slots i.held")).to_have_count(2)
        stage.do(lanes.clear)
        expect(row).to_contain_text("0 waiting")

    await browse(drive, main=2)


@pytest.mark.parametrize("seed", range(2))
async def test_the_figures_of_the_page_equal_the_statistics_after_random_work(seed: int) -> None:
    chance = random.Random(seed)
    gates: list[trio.Event] = []
    jobs: list[Job[Any]] = []

    def gate() -> trio.Event:
        gates.append(trio.Event())
        return gates[-1]

    async def works() -> None:
        await gate().wait()

    async def lends() -> None:
        job = current_job()
        assert job is not None
        async with job.yield_slot():
            await gate().wait()

    async def outlives_its_cancellation() -> None:
        with trio.CancelScope(shield=True):
            await gate().wait()

    async def fails() -> None:
        await gate().wait()
        raise ValueError

    bodies = (works, works, lends, fails, outlives_its_cancellation)

    def drive(stage: Stage) -> None:
        lanes = stage.lanes
        page = stage.open()

        def act() -> None:
            """Change the lanes: a job waits for a gate, and for no time."""
            what = chance.choice(["submit"] * 6 + ["let on"] * 3 + ["cancel", "pause", "limit"])
            if chance.random() < 0.05:
                what = chance.choice(["clear", "reset"])
            name = chance.choice(["main", "cron"])
            if what == "submit":
                session = chance.choice([None, "ann", "ben", "cleo"])
                jobs.append(lanes.submit_nowait(chance.choice(bodies), lane=name, session=session))
            elif what == "let on" and gates:
                gates.pop(chance.randrange(len(gates))).set()
            elif what == "cancel" and jobs:
                chance.choice(jobs).cancel()
            elif what == "pause":
                lanes.resume(name) if lanes.lane(name).paused else lanes.pause(name)
            elif what == "limit":
                lanes.lane(name).concurrency = chance.randrange(5)
            elif what == "clear":
                lanes.clear(name)
            elif what == "reset":
                lanes.reset(name)

        def now() -> tuple[float, LanesStatistics]:
            return trio.current_time(), lanes.statistics()

        for _ in range(12):
            for _ in range(chance.randrange(1, 8)):
                stage.do(act)
            trio.from_thread.run(wait_all_tasks_blocked)
            at, found = stage.do(now)
            page.wait_for_function(
                "at => document.querySelector('lanes-live').latest.at > at", arg=at
            )
            frame = page.evaluate("document.querySelector('lanes-live').latest")
            each = found.lanes
            assert frame["totals"]["active"] == found.active
            assert frame["totals"]["waiting"] == found.waiting
            for name in ("lent", "finished", "failed", "cancelled"):
                assert frame["totals"][name] == sum(getattr(lane, name) for lane in each.values())
            cards = page.locator("lanes-totals .card")
            for card, shown in (
                ("Running", str(found.active)),
                ("Waiting", str(found.waiting)),
                ("Failed", str(sum(lane.failed for lane in each.values()))),
            ):
                expect(cards.filter(has_text=card).locator("strong")).to_have_text(shown)
            for name, lane in each.items():
                row = page.locator(f'[data-lane="{name}"]')
                slots = f"{lane.slots} of {lane.concurrency} slots held, "
                stopping = f"{min(lane.cancelling, lane.slots)} cancelling"
                expect(row.locator(".slots")).to_have_attribute("aria-label", slots + stopping)
                expect(row).to_contain_text(f"{lane.waiting} waiting")
                if lane.lent:
                    expect(row).to_contain_text(f"+{lane.lent} lent")
                if lane.waiting:
                    parts = (
                        f"{lane.waiting_in_sessions} in sessions, {lane.waiting_in_lane} in lane"
                    )
                    expect(row).to_contain_text(parts)
        stage.do(lambda: [gate.set() for gate in gates])

    main = LaneConfig(concurrency=2, log_failures=False)
    await browse(drive, main=main, cron=main)


async def test_a_viewer_that_reads_nothing_and_one_too_many_do_not_hold_the_page_up() -> None:
    def connect(url: str) -> socket.socket:
        host, port = url.removeprefix("http://").rstrip("/").split(":")
        viewer = socket.socket()
        viewer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        viewer.settimeout(PATIENCE / 2)
        viewer.connect((host, int(port)))
        viewer.sendall(f"GET /frames HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
        return viewer

    def status(viewer: socket.socket) -> bytes:
        return viewer.recv(12)

    def drive(stage: Stage) -> None:
        page = stage.open()
        for number in range(500):
            stage.do(
                partial(stage.lanes.submit_nowait, trio.sleep_forever, session=f"{number}" * 30)
            )
        viewers = [connect(stage.url) for _ in range(MAX_VIEWERS - 1)]
        assert [status(viewer) for viewer in viewers] == [b"HTTP/1.1 200"] * len(viewers)
        refused = connect(stage.url)
        assert status(refused) == b"HTTP/1.1 503"
        refused.close()
        # No viewer reads on: their sockets are full, and the page goes on.
        first = page.evaluate("document.querySelector('lanes-live').latest.n")
        page.wait_for_function(
            "first => document.querySelector('lanes-live').latest.n > first + 8", arg=first
        )
        for viewer in viewers:
            viewer.close()
        again = b""
        while again != b"HTTP/1.1 200":  # until the server has seen that they are gone
            with closing(connect(stage.url)) as viewer:
                again = status(viewer)

    await browse(drive, main=2)


async def test_an_operator_pauses_undoes_limits_and_cancels() -> None:
    def drive(stage: Stage) -> None:
        lanes = stage.lanes
        page = stage.open(operates=True)
        row = page.locator("lanes-table tbody tr").filter(has_text="main")
        menu = row.locator("summary")

        menu.click()
        row.get_by_role("button", name="Pause").click()
        expect(row).to_contain_text("paused until it is resumed")
        page.get_by_role("button", name="Undo").click()
        expect(row).not_to_contain_text("paused until it is resumed")
        assert not stage.do(lambda: lanes.lane("main").paused)

        menu.click()
        row.get_by_label("limit of main").fill("3")
        row.get_by_role("button", name="Set limit").click()
        expect(row.locator(".slots i")).to_have_count(3)
        expect(page.locator("lanes-noticed")).to_contain_text("main 1 → 3")

        def begin() -> list[Job[Any]]:
            return [lanes.submit_nowait(trio.sleep_forever, name=f"job {i}") for i in range(6)]

        jobs = stage.do(begin)
        expect(row).to_contain_text("3 waiting")
        pick(page, jobs[4])
        story = page.locator("lanes-story")
        expect(story).to_contain_text("place2 of 3")
        expect(story).to_contain_text(f'{jobs[4].id} ← slots of "main": 3 of 3 in use')
        expect(story).to_contain_text('What would help: raise the concurrency of "main"')
        story.get_by_role("button", name="Priority +1").click()
        expect(story).to_contain_text("place1 of 3")
        story.get_by_role("button", name="Cancel job…").click()
        page.get_by_role("button", name="Leave as it is").click()
        assert jobs[4].state.value == "waiting"
        story.get_by_role("button", name="Cancel job…").click()
        expect(page.locator("#ask-text")).to_contain_text("This cannot be undone")
        page.get_by_role("button", name="Do it").click()
        expect(row).to_contain_text("2 waiting")
        assert jobs[4].state.value == "cancelled"

        menu.click()
        row.get_by_role("button", name="Clear…").click()
        expect(page.locator("#ask-text")).to_contain_text("2 waiting jobs")
        stage.do(lambda: [lanes.submit_nowait(trio.sleep_forever) for _ in range(3)])
        page.get_by_role("button", name="Do it").click()
        expect(page.locator(".toast.bad")).to_contain_text("5 jobs wait by now; look again")
        assert stage.do(lambda: lanes.lane("main").waiting) == 5

    await browse(drive, main=1)


async def test_a_reader_has_no_actions_and_a_hostile_name_is_text() -> None:
    def drive(stage: Stage) -> None:
        lanes = stage.lanes
        page = stage.open()
        expect(page.locator("lanes-table summary")).to_have_count(0)

        def begin() -> Job[Any]:
            lanes.pause("main")
            lanes.submit_nowait(trio.sleep_forever, name=HOSTILE, session=HOSTILE)
            return lanes.submit_nowait(trio.sleep_forever, name=HOSTILE, session=HOSTILE)

        job = stage.do(begin)
        link = page.locator("lanes-sessions").get_by_role("link", name="onerror")
        expect(link).to_have_text(HOSTILE)
        link.click()
        story = page.locator("lanes-story")
        expect(story.get_by_role("heading").first).to_have_text(f"Session {HOSTILE}")
        story.locator(".jobs a.link").last.click()
        expect(story.get_by_role("heading").first).to_contain_text(f"Job {job.id}")
        expect(story).to_contain_text(HOSTILE)
        assert story.get_by_role("button", name="Cancel job…").count() == 0
        assert page.locator("img").count() == 0
        assert page.title() == "lanes – monitor"

    await browse(drive, main=1)


async def test_the_keyboard_searches_and_freezes() -> None:
    def drive(stage: Stage) -> None:
        lanes = stage.lanes
        page = stage.open()
        stage.do(
            lambda: [lanes.submit_nowait(trio.sleep_forever, session=s) for s in ("ann", "ben")]
        )
        page.keyboard.press("/")
        page.keyboard.type("ben")
        page.keyboard.press("Enter")
        title = page.locator("lanes-story h2")
        expect(title).to_have_text("Found: ben")
        expect(title).to_be_focused()
        page.keyboard.press("Tab")
        expect(page.locator("lanes-story a").first).to_have_text("ben")
        page.keyboard.press("Enter")
        expect(title).to_have_text("Session ben")
        assert page.url.endswith("#session=ben")
        again = stage.open(address="#session=ben")
        expect(again.locator("lanes-story h2")).to_have_text("Session ben")
        expect(again.locator("lanes-story .jobs a")).to_have_count(1)
        again.context.close()
        page.locator("h1").click()
        page.keyboard.press(" ")
        expect(page.locator("#link")).to_have_text("frozen")
        waiting = page.locator("lanes-totals .card").filter(has_text="Running").locator("strong")
        shown = waiting.text_content()
        stage.do(lambda: [lanes.submit_nowait(trio.sleep_forever) for _ in range(2)])
        number = page.locator("#who").text_content()
        page.wait_for_function(
            "before => document.querySelector('#who').textContent !== before", arg=number
        )
        assert waiting.text_content() == shown == "2"
        page.keyboard.press(" ")
        expect(waiting).to_have_text("4")

    await browse(drive, main=9)


async def test_incidents_are_reached_by_keyboard_alone_and_what_ended_by_one_click() -> None:
    seen = trio.Event()

    async def stuck() -> None:
        with trio.move_on_after(PATIENCE / 2, shield=True):
            await seen.wait()

    def drive(stage: Stage) -> None:
        lanes = stage.lanes

        def begin() -> tuple[Job[Any], Job[Any]]:
            failed = lanes.submit_nowait(fail, session="ann", name="answer")
            lanes.submit_nowait(trio.sleep_forever, session="ben")
            return failed, lanes.submit_nowait(stuck, session="eve", lane="cron", name="nightly")

        failed, nightly = stage.do(begin)
        page = stage.open()
        title = page.locator("lanes-story h2")
        # The time line: every job that it shows, also one that has failed.
        expect(page.locator("lanes-totals .card").filter(has_text="Failed")).to_contain_text("1")
        page.wait_for_function(
            "id => document.querySelector('lanes-timeline').jobs.get(id)?.job.finished",
            arg=failed.id,
        )
        page.locator("lanes-timeline canvas").focus()
        for key in ("ArrowRight", "ArrowUp", "ArrowUp", "ArrowUp"):
            page.keyboard.press(key)
        said = page.locator("lanes-timeline [role=status]")
        expect(said).to_contain_text(f"{failed.id} ann in main: failed")
        page.keyboard.press("Enter")
        expect(title).to_have_text(f"Job {failed.id} · answer")
        # What ended, by error, with its traceback.
        page.get_by_role("link", name="Failed").click()
        expect(title).to_have_text("What has ended")
        story = page.locator("lanes-story")
        story.get_by_text("last traceback").click()
        expect(story.locator("pre")).to_contain_text("raise ValueError")
        story.get_by_role("link", name="ValueError").click()
        expect(title).to_have_text("Error ValueError")
        # What is noticed leads to its job; it was there before this page.
        stage.do(nightly.cancel)
        noticed = page.locator("lanes-noticed").get_by_role("link", name="nightly still runs")
        noticed.focus()
        page.keyboard.press("Enter")
        expect(title).to_have_text(f"Job {nightly.id} · nightly")
        stage.do(seen.set)
        page.go_back()
        expect(title).to_have_text("Error ValueError")
        page.locator("lanes-table").get_by_role("link", name="cron").click()
        expect(title).to_have_text("Lane cron")
        expect(page.locator("lanes-hour").get_by_role("img")).to_have_count(5)

    main = LaneConfig(concurrency=4, log_failures=False)
    cron = LaneConfig(concurrency=1, overdue_after=0.1)
    await browse(drive, main=main, cron=cron)


async def test_an_icon_is_served_and_names_of_lanes_are_not_broken() -> None:
    def drive(stage: Stage) -> None:
        page = stage.open(viewport={"width": 1440, "height": 900})
        icon = page.evaluate("document.querySelector('link[rel=icon]').href")
        assert page.request.get(icon).status == 200
        heights = page.evaluate(
            "[...document.querySelectorAll('lanes-table .name a')].map(a => a.offsetHeight)"
        )
        assert heights == [24, 24, 24]
        phone = stage.open(viewport={"width": 390, "height": 844})
        heads = phone.evaluate(
            "[...document.querySelectorAll('lanes-table tr[data-lane=main] td[data-head]')]"
            ".filter(cell => cell.offsetParent)"  # without a store no job is parked
            ".map(cell => getComputedStyle(cell, '::before').content)"
        )
        assert heads == ['"slots"', '"line"', '"oldest · p95"', '"rate left"']

    await browse(drive, main=24, subagent=8, provider=8)


async def test_the_panel_of_a_lane_shows_the_limits_that_it_has_tried() -> None:
    def drive(stage: Stage) -> None:
        for _ in range(2):
            trio.from_thread.run(stage.lanes.run, trio.lowlevel.checkpoint)
        page = stage.open()
        page.locator("lanes-table tr[data-lane=main] .name a").click()
        expect(page.locator(".story h3").first).to_have_text("Limits that it has tried")
        expect(page.locator(".story .jobs li").first).to_contain_text("nothing was refused")

    await browse(drive, main=LaneConfig(concurrency=Adaptive(1, 8, by="aimd")))


async def test_the_time_line_is_zoomed_and_frozen() -> None:
    def drive(stage: Stage) -> None:
        page = stage.open()
        stage.do(lambda: stage.lanes.submit_nowait(trio.sleep_forever, session="ann"))
        line = page.locator("lanes-timeline canvas")

        def shows(seconds: int) -> None:
            expect(line).to_have_attribute(
                "aria-label", f"Time line: 1 jobs in 1 rows over {seconds} seconds"
            )

        shows(60)
        page.keyboard.press("+")
        shows(30)
        pressed = page.locator("#span button[aria-pressed=true]")
        expect(pressed).to_have_count(0)
        page.keyboard.press("-")
        shows(60)
        expect(pressed).to_have_text("1 min")
        page.get_by_role("button", name="10 min").click()
        shows(600)
        line.dispatch_event("wheel", {"deltaY": -100, "ctrlKey": True})
        shows(480)
        line.dispatch_event("wheel", {"deltaY": -100})
        page.get_by_role("button", name="Freeze").click()
        now = "document.querySelector('lanes-timeline').now"
        before, number = page.evaluate(now), page.locator("#who").text_content()
        page.wait_for_function(
            "before => document.querySelector('#who').textContent !== before", arg=number
        )
        assert page.evaluate(now) == before
        page.locator("h1").click()
        page.keyboard.press("+")
        shows(240)

    await browse(drive, main=1)


@pytest.mark.needs("npm")
async def test_the_slider_shows_what_another_limit_would_have_done() -> None:
    def drive(stage: Stage) -> None:
        page = stage.open()
        box = page.locator("lanes-replay")
        slider = box.get_by_label("Limit")
        expect(box.locator("output")).to_have_text("1")

        def slide(limit: int) -> None:
            slider.fill(str(limit))

        slide(4)
        expect(box).to_contain_text("too few jobs have ended while a page was open")

        async def work() -> None:
            for _ in range(6):
                stage.lanes.submit_nowait(trio.sleep, 0.2)
            await stage.lanes.wait_idle()

        trio.from_thread.run(work)
        slide(6)
        expect(box.get_by_role("row").filter(has_text="with 6")).to_contain_text("0.0 s")
        as_it_was = box.get_by_role("row").filter(has_text="as it was")
        expect(as_it_was).to_contain_text(re.compile(r"[1-9]\d*\.\d s"))  # the last: five jobs
        page.evaluate(AXE.read_text("utf-8"))
        assert page.evaluate("() => axe.run('lanes-replay')")["violations"] == []

    await browse(drive, main=1)


async def test_a_page_that_lost_its_server_connects_again() -> None:
    def drive(stage: Stage) -> None:
        page = stage.open()
        row = page.locator("lanes-table tbody tr").filter(has_text="main")
        stage.disturbed = True
        stage.do(stage.cut)
        stage.do(stage.lanes.pause, "main")
        expect(row).to_contain_text("paused until it is resumed")
        expect(page.locator("#link")).to_have_text("live")

    await browse(drive, main=1)


CUT = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
"""An answer whose server ends in the body."""
WORDS = b"HTTP/1.1 500 No\r\nContent-Type: text/plain\r\nContent-Length: 6\r\n\r\nbroken"
"""An answer that is not JSON."""


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        pytest.param(CUT, "the server cannot be reached", id="cut"),
        pytest.param(WORDS, "the server has failed with status 500", id="words"),
    ],
)
async def test_an_answer_that_is_cut_or_is_not_json_is_no_error_in_the_page(
    answer: bytes, said: str
) -> None:
    async def answers(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some()
            await stream.send_all(answer)

    def drive(port: int, stage: Stage) -> None:
        page = stage.open(operates=True)
        stage.disturbed = True

        def breaks(path: str) -> Any:
            """Answer so from now on, and until the page has been answered."""
            asked, other = re.compile(rf"/{path}(\?|/\d+$|$)"), f"http://127.0.0.1:{port}/{path}"
            page.route(asked, lambda route: route.continue_(url=other))
            event = "requestfailed" if answer == CUT else "requestfinished"
            return page.expect_event(event, lambda request: bool(request.url == other))

        for path in ("hour", "durable"):  # which the page asks for by itself
            with breaks(path):
                pass
        with breaks("job"):
            page.evaluate("location.hash = 'job=1'")
        with breaks("replay"):
            page.locator("lanes-replay").get_by_label("Limit").fill("4")
        expect(page.locator("lanes-replay")).to_contain_text(said)
        row = page.locator("lanes-table tbody tr").filter(has_text="main")
        row.locator("summary").click()
        with breaks("act"):
            row.get_by_role("button", name="Pause").click()
        expect(page.locator(".toast")).to_contain_text(said)
        with breaks("history"):
            page.reload()
        expect(page.locator("#link")).to_have_text("live")
        with breaks("access"):
            page.reload()
        expect(page.locator("#link")).to_have_text("reconnecting")
        page.unroute_all()
        expect(page.locator("#link")).to_have_text("live")
        assert stage.troubles == []

    with trio.fail_after(PATIENCE):
        async with (
            open_durable_lanes(MemoryStore(), {}, {"main": 1}) as lanes,
            trio.open_nursery() as nursery,
        ):
            serve = partial(trio.serve_tcp, answers, 0, host="127.0.0.1")
            (listener,) = await nursery.start(serve)
            port = listener.socket.getsockname()[1]
            assert lanes.local is not None
            await browse_over(partial(drive, port), lanes.local, lanes)
            nursery.cancel_scope.cancel()


LOOKS: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1440, "height": 900}},
    "dark": {"color_scheme": "dark", "viewport": {"width": 1440, "height": 900}},
    "phone": {"viewport": {"width": 390, "height": 844}},
    "zoom": {"viewport": {"width": 320, "height": 256}},  # 1280 wide, at 400 %
    "forced": {"forced_colors": "active", "viewport": {"width": 1280, "height": 900}},
}


@pytest.mark.needs("npm")
async def test_a_checker_of_accessibility_finds_nothing_in_any_look() -> None:
    def drive(stage: Stage) -> None:
        lanes = stage.lanes

        def begin() -> Job[Any]:
            lanes.submit_nowait(lend, "approval", session="سارة")
            lanes.submit_nowait(stubborn, session="eve").cancel()
            lanes.submit_nowait(trio.sleep_forever, session="ben")
            lanes.pause("cron")
            lanes.submit_nowait(trio.sleep_forever, lane="cron")
            return lanes.submit_nowait(trio.sleep_forever, session="ben")

        job = stage.do(begin)
        for look, options in LOOKS.items():
            page = stage.open(operates=True, **options)
            pick(page, job)
            expect(page.locator("lanes-story")).to_contain_text("Why does it wait?")
            page.locator("lanes-table summary").first.click()
            for summary in page.locator("lanes-hour summary, lanes-story summary").all():
                summary.click()
            small = page.evaluate(SMALL)
            assert small == [], look
            page.evaluate(AXE.read_text("utf-8"))
            found = page.evaluate("() => axe.run()")["violations"]
            assert found == [], look
            assert page.evaluate(OVERFLOW) <= 0, look
            assert page.evaluate(BROKEN) == [], look
            page.context.close()

    await browse(drive, main=3, cron=1)


@pytest.mark.needs("npm")
async def test_dead_letters_of_a_store_are_requeued_and_a_waiting_job_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Over durable lanes: also the checker of accessibility looks at what is theirs."""
    heals: list[bool] = []

    async def fragile(payload: Any) -> None:
        if not heals:
            raise ValueError(HOSTILE)

    async def long(payload: Any) -> None:
        await trio.sleep_forever()

    async def locks(payload: Any) -> None:
        async with lanes.lock(HOSTILE):
            await trio.sleep_forever()

    async def spends(payload: Any) -> None:
        await lanes.quota("tokens").spend(tokens=payload)

    def drive(stage: Stage) -> None:
        page = stage.open(operates=True)
        store = page.locator("lanes-durable")
        expect(store).to_contain_text("2 × ValueError in fragile")
        expect(store).to_contain_text(HOSTILE)
        top = page.locator("lanes-health")
        expect(top).to_contain_text("2 of 'other' died within the last hour: 2 by ValueError")
        expect(top).to_contain_text("What to do: look at them by trio-lanes failures")
        table = page.locator("lanes-table")
        expect(table.get_by_role("columnheader", name="parked")).to_be_visible()
        expect(table.locator("tr[data-lane=main]")).to_contain_text("1 waiting")
        expect(page.locator("lanes-totals")).to_contain_text("0 parked")
        row = store.get_by_role("table", name="Lanes of the store").get_by_role("row")
        expect(row.filter(has_text="main")).to_contain_text("1 of 1")
        waiting = store.locator("li a.link", has_text="long")
        expect(waiting).to_have_count(1)
        expect(store.locator("li").filter(has_text="other: 2 dead")).to_be_visible()
        waiting.click()
        story = page.locator("lanes-story")
        expect(story).to_contain_text("of the store · long")
        expect(story).to_contain_text('slots of "main": all 1 in use')
        lock = store.locator("li").filter(has_text=f"{HOSTILE}: held by")
        expect(lock).to_contain_text("; 1 waiting: job")
        lock.locator("a.link").last.click()
        expect(story).to_contain_text(f'lock "{HOSTILE}"')
        quota = store.locator("li").filter(has_text="tokens: ")
        expect(quota).to_contain_text("of 100 tokens in")
        expect(quota).to_contain_text("; 1 waiting: job")
        expect(store).to_contain_text("Paused sessions")
        instance = store.get_by_role("table", name="Instances")
        expect(instance.get_by_role("columnheader")).to_have_text(
            ["instance", "running", "by lane", "commits", "since"]
        )
        expect(instance).to_contain_text("main 1 · other 3")
        expect(instance).to_contain_text(
            "12.5 a second · 25 % late · longest wait 1.5 s · batch 4711 · image 2.0 s old"
        )
        for look, options in LOOKS.items():
            seen = stage.open(operates=True, address=f"#{page.url.partition('#')[2]}", **options)
            expect(seen.locator("lanes-durable")).to_contain_text("Paused sessions")
            expect(seen.locator("lanes-story")).to_contain_text(f'lock "{HOSTILE}"')
            seen.evaluate(AXE.read_text("utf-8"))
            assert seen.evaluate("() => axe.run()")["violations"] == [], look
            assert seen.evaluate(SMALL) == [], look
            assert seen.evaluate(OVERFLOW) <= 0, look
            assert seen.evaluate(BROKEN) == [], look
            seen.context.close()
        heals.append(True)
        store.get_by_role("button", name="Requeue…").click()
        expect(page.locator("#ask-text")).to_contain_text("Queue 2 dead jobs of fragile again")
        page.get_by_role("button", name="Do it").click()
        expect(page.locator(".toast")).to_contain_text("Requeued 2 jobs of fragile")
        expect(store).not_to_contain_text("Dead letters")
        expect(top).not_to_contain_text("died within the last hour")
        reader = stage.open()
        expect(reader.locator("lanes-durable")).to_contain_text("Instances")
        assert reader.locator("lanes-durable button").count() == 0
        stage.disturbed = True
        reader.route("**/durable", lambda route: route.fulfill(status=500, body="broken"))
        expect(reader.locator("lanes-durable")).to_contain_text("cannot be shown")
        reader.unroute("**/durable")
        expect(reader.locator("lanes-durable")).to_contain_text("Instances")

    store = MemoryStore()
    said = StoreActivity(
        batch=4711,
        commits=9000,
        longest_wait=1.5,
        image_at=1.0,
        image_age=2.0,
        commits_a_second=12.5,
        late_share=0.25,
    )
    monkeypatch.setattr(store, "activity", lambda: said)
    with trio.fail_after(3 * PATIENCE):  # it looks at the page five times
        async with open_durable_lanes(
            store,
            {"fragile": fragile, "long": long, "locks": locks, "spends": spends},
            {"main": 1, "other": 6},
            retry=RetryPolicy(max_attempts=1),
            grace=0,
            lease_ttl=6000,  # so no heartbeat says anything else
            quotas={"tokens": RateLimit(100, per=1000.0, unit="tokens")},
        ) as lanes:
            await lanes.pause("session:ann")
            for _ in range(2):
                await lanes.submit("locks", lane="other")
                await lanes.submit("spends", 100, lane="other")
            for number in range(2):
                await lanes.submit("fragile", number, lane="other")
            await lanes.submit("long", None)
            await lanes.submit("long", None)
            assert lanes.local is not None
            await browse_over(drive, lanes.local, lanes)
            await lanes.clear("main")
