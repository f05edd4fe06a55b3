"""The chat agent's page in a real browser: headless Chromium, driven from a thread.

The model goes on only when a test says so, so that what a person does in the middle of an answer
is done there, however slow the machine is. Nothing here waits for a time: the page is looked at
until it shows what it should.
"""

import json
import re
from collections.abc import Callable
from typing import Literal

import pytest
import trio
from playwright.sync_api import ConsoleMessage, Locator, Page, expect, sync_playwright

from examples.chat_agent.limits import Limits
from examples.chat_agent.tour import CARDS
from examples.chat_agent.web.server import listen, run_web
from tests.examples.chat_agent.held_model import HeldModel
from tests.support.needs import AXE, chromium

pytestmark = [pytest.mark.real_processes, pytest.mark.needs("Chromium")]

PATIENCE = 300.0  # seconds, on a machine that has much else to do
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
HOSTILE = (
    "<script>document.title = 'owned'</script><img src=x onerror=\"document.title = 'owned'\">"
)

expect.set_options(timeout=PATIENCE * 1000 / 2)


class Browser:
    """Pages of one browser, as a person sees them."""

    def __init__(self, url: str, new_page: Callable[[], Page], model: HeldModel) -> None:
        self.url = url
        self.model = model
        self.troubles: list[str] = []  # what the pages complained of
        self.offline = False  # whether they may complain that they are
        self._new_page = new_page

    def let_on(self, text: str) -> None:
        """Let the answer to this message go on, now or when it has come so far."""
        trio.from_thread.run_sync(self.model.let_on, text)

    def open(self, *sessions: str) -> "Tab":
        page = self._new_page()
        page.set_default_timeout(PATIENCE * 1000 / 2)
        page.on("pageerror", lambda error: self.troubles.append(str(error)))
        page.on("console", self._hear)
        page.goto(self.url + "#" + ",".join(sessions))
        expect(page.locator("#link")).to_have_text("live")
        return Tab(page)

    def _hear(self, message: ConsoleMessage) -> None:
        if not (self.offline and "DISCONNECTED" in message.text):
            self.troubles.append(message.text)


class Tab:
    """One page."""

    def __init__(self, page: Page) -> None:
        self.page = page

    def chat(self, session: str) -> Locator:
        return self.page.locator(f'[data-session="{session}"]')

    def say(self, session: str, text: str) -> None:
        box = self.chat(session).get_by_role("textbox")
        box.fill(text)
        box.press("Enter")

    def press(self, session: str, name: str) -> None:
        self.chat(session).get_by_role("button", name=name, exact=True).click()

    def shows(self, session: str, *texts: str) -> None:
        """What was said in the end is this, in this order, and nothing else."""
        expect(self.chat(session).locator(".item:not(.reply)")).to_have_text([*texts])

    def is_told(self, session: str, *texts: str | re.Pattern[str]) -> None:
        """What this page alone is told in the chat is this."""
        expect(self.chat(session).locator(".reply")).to_have_text([*texts])

    def waits(self, session: str, *texts: str) -> None:
        expect(self.chat(session).locator(".queue .next")).to_have_text([*texts])

    def state(self, session: str, text: str) -> None:
        expect(self.chat(session).locator(".state")).to_have_text(text)


async def browse(drive: Callable[[Browser], None], turns: int = 4) -> None:
    """Have `drive` use a browser, in a thread, while a server serves."""
    executable = chromium()
    assert executable is not None
    listener = listen(0)
    url = "http://{}:{}/".format(*listener.getsockname())
    model = HeldModel()

    def in_thread() -> None:
        with sync_playwright() as playwright:
            opened = playwright.chromium.launch(
                executable_path=executable, args=FLAGS, timeout=PATIENCE * 1000 / 2
            )
            browser = Browser(url, opened.new_page, model)
            drive(browser)
            opened.close()
            assert browser.troubles == []

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:

            async def run() -> None:
                limits = Limits().with_turns(turns)
                await run_web(model, lambda text: None, listener, limits=limits)

            nursery.start_soon(run)
            await trio.to_thread.run_sync(in_thread)
            nursery.cancel_scope.cancel()


async def test_messages_are_answered_in_order_and_those_that_wait_are_shown() -> None:
    def drive(browser: Browser) -> None:
        tab = browser.open("ann", "ben")
        for text in ("one", "two", "three"):
            tab.say("ann", text)
        tab.shows("ann", "one", "begun one")
        tab.waits("ann", "two", "three")
        tab.state("ann", "answering, 2 waiting")
        tab.say("ben", "four")  # of another session, which waits for no other
        tab.shows("ben", "four", "begun four")
        for text in ("two", "three", "four", "one"):
            browser.let_on(text)
        tab.shows("ben", "four", "begun four ended four")
        answers = [(text, f"begun {text} ended {text}") for text in ("one", "two", "three")]
        tab.shows("ann", *(text for answer in answers for text in answer))
        tab.waits("ann")
        tab.state("ann", "idle")
        assert browser.model.asked == ["one", "four", "two", "three"]

    await browse(drive)


async def test_an_answer_in_markdown_is_shown_with_its_code_and_no_element_of_its_own() -> None:
    text = "use `x < 1` and **no** <b>tag</b>\n```python\nfor x in y:\n    <i>run</i>\n```\nthen"

    def drive(browser: Browser) -> None:
        tab = browser.open("ann")
        tab.say("ann", text)
        browser.let_on(text)
        answer = tab.chat("ann").locator(".item.agent")
        expect(answer.locator("pre").first).to_have_text("for x in y:\n    <i>run</i>\n")
        expect(answer.locator("code").first).to_have_text("x < 1")
        expect(answer.locator("strong").first).to_have_text("no")
        expect(answer).to_contain_text("<b>tag</b>")
        expect(answer.locator("b, i")).to_have_count(0)

    await browse(drive)


async def test_a_long_text_is_refused_with_a_word_and_stays_in_the_box() -> None:
    def drive(browser: Browser) -> None:
        tab = browser.open("ann")
        tab.say("ann", "x" * 100_000)
        tab.is_told("ann", re.compile("has 100,000 characters.*at most 10,000.*nothing was sent"))
        box = tab.chat("ann").get_by_role("textbox")
        expect(box).to_have_value("x" * 100_000)
        box.fill("one")
        box.press("Enter")
        tab.chat("ann").get_by_text("begun one").wait_for()
        browser.let_on("one")

    await browse(drive)


async def test_enter_that_ends_a_composition_sends_nothing() -> None:
    """Chinese and Japanese are typed by composing: Enter takes the word that is proposed."""

    def drive(browser: Browser) -> None:
        tab = browser.open("ann")
        box = tab.chat("ann").get_by_role("textbox")
        box.fill("日本")
        enter = {"key": "Enter", "bubbles": True, "cancelable": True}
        box.dispatch_event("keydown", enter | {"isComposing": True})
        box.dispatch_event("keydown", enter | {"keyCode": 229})  # as Safari ends a composition
        expect(box).to_have_value("日本")
        box.press("Enter")
        tab.chat("ann").get_by_text("begun 日本").wait_for()
        browser.let_on("日本")

    await browse(drive)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.needs("npm")
async def test_axe_finds_no_fault(scheme: Literal["light", "dark"]) -> None:
    def drive(browser: Browser) -> None:
        tab = browser.open("ann", "ben")
        tab.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        tab.say("ann", "one")
        tab.say("ann", "two")
        tab.say("ben", "mail bob: hi")
        tab.shows("ann", "one", "begun one")
        tab.chat("ben").get_by_role("button", name="Allow").wait_for()
        tab.page.evaluate(AXE.read_text("utf-8"))
        found = tab.page.evaluate("() => axe.run()")["violations"]
        faults = [(f["id"], n["html"], n["any"][:1]) for f in found for n in f["nodes"]]
        assert not faults, json.dumps(faults, indent=1)
        browser.let_on("one")
        browser.let_on("two")

    await browse(drive)


async def test_a_running_answer_is_steered_and_aborted() -> None:
    def drive(browser: Browser) -> None:
        tab = browser.open("ann")
        tab.say("ann", "one")
        tab.shows("ann", "one", "begun one")
        tab.chat("ann").get_by_role("combobox").select_option("steer")
        tab.is_told("ann", "mode of messages while ann is busy: steer")
        tab.say("ann", "two")
        tab.waits("ann", "two")
        browser.let_on("one")
        steered = [
            "one",
            "begun one ended one",
            "taken in by the running turntwo",
            "begun two",
        ]
        tab.shows("ann", *steered)
        tab.say("ann", "three")
        tab.say("ann", "four")
        tab.waits("ann", "three", "four")
        tab.press("ann", "Abort")
        tab.shows("ann", *steered, "stopped")
        tab.is_told(
            "ann", "mode of messages while ann is busy: steer", "aborted ann, with 2 waiting"
        )
        tab.waits("ann")
        browser.let_on("five")
        tab.say("ann", "five")
        tab.shows("ann", *steered, "stopped", "five", "begun five ended five")
        assert browser.model.asked == ["one", "two", "five"]

    await browse(drive)


async def test_stop_holds_what_waits_and_what_is_said_until_go_on() -> None:
    def drive(browser: Browser) -> None:
        tab = browser.open("ann")
        button = tab.chat("ann").get_by_role("button", name="Stop")
        go_on = tab.chat("ann").get_by_role("button", name="Go on")
        expect(button).to_be_disabled()
        expect(go_on).to_be_hidden()
        tab.say("ann", "one")
        tab.say("ann", "two")
        tab.shows("ann", "one", "begun one")
        button.click()
        tab.shows("ann", "one", "begun one", "stopped")
        tab.is_told("ann", "ann is held until /go, with 1 waiting")
        tab.state("ann", "held, 1 waiting")
        expect(button).to_be_hidden()
        tab.say("ann", "three")
        tab.waits("ann", "two", "three")
        tab.page.reload()
        tab.state("ann", "held, 2 waiting")
        for text in ("two", "three"):
            browser.let_on(text)
        go_on.click()
        answers = [(text, f"begun {text} ended {text}") for text in ("two", "three")]
        tab.shows("ann", "one", "begun one", "stopped", *(t for one in answers for t in one))
        tab.state("ann", "idle")
        expect(button).to_be_visible()
        assert browser.model.asked == ["one", "two", "three"]

    await browse(drive)


async def test_a_tool_call_waits_for_a_word_and_lends_its_slot_meanwhile() -> None:
    def drive(browser: Browser) -> None:
        tab = browser.open("ann", "ben")
        call = 'send_mail {"message": "bob: hi"}'
        tab.say("ann", "mail")
        tab.shows("ann", "mail", call + "waits for your word")
        tab.state("ann", "asks for your word")
        main = tab.page.locator('lanes-table [data-lane="main"]')
        expect(main).to_contain_text("+1 lent")
        expect(main.locator(".slots .held")).to_have_count(0)
        tab.say("ben", "one")
        tab.shows("ben", "one", "begun one")
        expect(main.locator(".slots .held")).to_have_count(1)
        browser.let_on("one")
        tab.press("ann", "Allow")
        sent = "mail sent: bob: hi"
        tab.shows("ann", "mail", call + sent, f"it says: {sent}")
        tab.say("ben", "mail")
        tab.press("ben", "Deny")
        denied = "error: send_mail was not allowed"
        tab.shows("ben", "one", "begun one ended one", "mail", call + denied, f"it says: {denied}")
        expect(tab.chat("ben").locator(".ask")).to_be_hidden()

    await browse(drive, turns=1)


async def test_a_reload_in_mid_stream_loses_and_doubles_nothing() -> None:
    def drive(browser: Browser) -> None:
        tab = browser.open("ann", "ben")
        tab.say("ann", "one")
        tab.say("ann", "two")
        tab.shows("ann", "one", "begun one")
        tab.page.reload()
        tab.shows("ann", "one", "begun one")
        tab.waits("ann", "two")
        browser.offline = True
        tab.page.context.set_offline(True)  # and a connection that breaks is made again
        tab.page.evaluate("socket.close()")
        expect(tab.page.locator("#link")).to_have_text("not connected: trying again")
        browser.let_on("one")
        tab.page.context.set_offline(False)
        tab.shows("ann", "one", "begun one ended one", "two", "begun two")
        expect(tab.page.locator("#link")).to_have_text("live")
        browser.let_on("two")
        tab.shows("ann", "one", "begun one ended one", "two", "begun two ended two")

    await browse(drive)


async def test_three_pages_at_once_see_the_same_and_any_of_them_may_act() -> None:
    def drive(browser: Browser) -> None:
        tabs = [browser.open("ann") for _ in range(3)]
        tabs[0].say("ann", "one")
        for tab in tabs:
            tab.shows("ann", "one", "begun one")
        tabs[1].say("ann", "two")
        for tab in tabs:
            tab.waits("ann", "two")
        tabs[2].press("ann", "Stop")
        for tab in tabs:
            tab.shows("ann", "one", "begun one", "stopped")
            tab.state("ann", "held, 1 waiting")
        tabs[0].press("ann", "Go on")
        browser.let_on("two")
        for tab in tabs:
            tab.shows("ann", "one", "begun one", "stopped", "two", "begun two ended two")
        lanes = [tab.page.locator('lanes-table [data-lane="main"]') for tab in tabs]
        lanes[0].locator("summary").click()
        lanes[0].get_by_role("spinbutton").fill("5")
        lanes[0].get_by_role("button", name="Set limit").click()
        for lane in lanes:
            expect(lane.locator(".slots i")).to_have_count(5)
        late = browser.open("ann")
        late.shows("ann", "one", "begun one", "stopped", "two", "begun two ended two")

    await browse(drive)


async def test_a_chat_that_is_closed_and_opened_again_shows_the_same() -> None:
    def drive(browser: Browser) -> None:
        said = ("one", "begun one ended one")
        browser.let_on("one")
        tab = browser.open("ann", "ben")
        name = tab.page.get_by_role("textbox", name="session name")
        tab.say("ann", "one")
        tab.shows("ann", *said)
        tab.say("ann", "two")
        tab.shows("ann", *said, "two", "begun two")
        for _ in range(2):
            tab.press("ann", "×")
            expect(tab.chat("ann")).to_have_count(0)
            name.fill("ann")
            name.press("Enter")
            tab.shows("ann", *said, "two", "begun two")
        browser.let_on("two")
        tab.shows("ann", *said, "two", "begun two ended two")
        tab.press("ann", "×")
        expect(tab.page.locator("#sessions .session")).to_have_count(1)  # ann is idle, and closed
        name.fill("ann")
        name.press("Enter")
        tab.shows("ann", *said, "two", "begun two ended two")

    await browse(drive)


async def test_as_opens_the_chat_of_that_session() -> None:
    def drive(browser: Browser) -> None:
        browser.let_on("one")
        tab = browser.open("ann")
        tab.say("ann", "/as bob")
        tab.is_told("ann", "you are bob now")
        box = tab.chat("bob").get_by_role("textbox")
        expect(box).to_be_focused()
        tab.say("bob", "one")
        tab.shows("bob", "one", "begun one ended one")
        tab.shows("ann")

    await browse(drive)


async def test_an_address_that_makes_no_sense_opens_the_usual_chats() -> None:
    def drive(browser: Browser) -> None:
        tab = browser.open("%", "ann")
        expect(tab.chat("me")).to_be_visible()
        expect(tab.chat("bob")).to_be_visible()

    await browse(drive)


async def test_what_users_write_is_shown_as_they_wrote_it_and_never_run() -> None:
    def drive(browser: Browser) -> None:
        browser.let_on(HOSTILE)
        tab = browser.open("ann")
        tab.say("ann", "one")
        tab.say("ann", HOSTILE)
        tab.waits("ann", HOSTILE)
        browser.let_on("one")
        answer = f"begun {HOSTILE} ended {HOSTILE}"
        tab.shows("ann", "one", "begun one ended one", HOSTILE, answer)
        tab.say("ann", f"/as {HOSTILE}")
        tab.is_told("ann", re.compile("^! '<script>document"))
        other = browser.open(HOSTILE, "ann")  # in the address, which anybody can write
        other.shows("ann", "one", "begun one ended one", HOSTILE, answer)
        for page in (tab.page, other.page):
            assert page.title() == "trio-lanes · chat agent"
            assert page.locator("main script, main img, aside script, aside img").count() == 0

    await browse(drive)


@pytest.mark.needs("npm")
async def test_the_tour_plays_on_the_page_beside_a_running_answer() -> None:
    def drive(browser: Browser) -> None:
        tab = browser.open("ann")
        tab.say("ann", "one")
        tab.shows("ann", "one", "begun one")
        tab.page.get_by_role("button", name="tour", exact=True).click()
        cards = tab.page.get_by_role("dialog").get_by_role("listitem")
        expect(cards).to_have_count(len(CARDS))
        for number, card in enumerate(CARDS):
            expect(cards.nth(number)).to_contain_text(card.says)
            cards.nth(number).get_by_role("button", name=f"play {card.name}").click()
            # what it says is the subject of test_tour: here time is real, and a machine may be slow
            expect(cards.nth(number).locator("pre")).not_to_be_empty()
        tab.page.evaluate(AXE.read_text("utf-8"))
        found = tab.page.evaluate("() => axe.run('#tour')")["violations"]
        assert not [(f["id"], n["html"], n["any"][:1]) for f in found for n in f["nodes"]]
        tab.page.get_by_role("button", name="close the tour").click()
        expect(tab.page.get_by_role("dialog")).to_be_hidden()
        browser.let_on("one")
        tab.shows("ann", "one", "begun one ended one")

    await browse(drive)
