"""What a page is told of the chat agent: any number of viewers, none of which can slow a lane."""

import json
import math
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked as settle_down

from examples.chat_agent.agent import Agent
from examples.chat_agent.approvals import Approvals
from examples.chat_agent.builtin_model import BuiltinModel
from examples.chat_agent.limits import Limits
from examples.chat_agent.sessions import FailuresTold, Sessions
from examples.chat_agent.tools import bundled_tools
from examples.chat_agent.web.board import Board, Window
from examples.chat_agent.web.feed import SEND_SECONDS, Fact, Feed, joined, view
from trio_lanes import Lanes, open_lanes
from trio_lanes.agents import WhenBusy

ALL = ("ann", "bob", "cleo", "dan", "eve")


class Viewer:
    """What a page makes of the frames that it is sent: the same state as its own script keeps."""

    def __init__(self, seconds: float = 0, opens: Sequence[str] = ALL) -> None:
        self.seconds = seconds  # that a frame takes
        self.opens = opens
        self.frames: list[Fact] = []
        self.run = ""
        self.seq = -1
        self.forget()

    def forget(self) -> None:
        self.sessions: dict[str, Fact] = {}
        self.items: dict[str, dict[int, Any]] = {}

    async def send(self, frame: Fact) -> None:
        frame = json.loads(json.dumps(frame, allow_nan=False))
        await trio.sleep(self.seconds)
        self.frames.append(frame)
        if frame["snapshot"]:
            self.forget()
        for fact in frame["facts"]:
            self.learn(fact)
        self.run, self.seq = frame["run"], frame["seq"]

    def learn(self, fact: Fact) -> None:
        match fact["what"]:
            case "session":
                self.sessions[fact["session"]] = fact
            case "gone":
                del self.sessions[fact["session"]]
            case "opened":
                self.items.pop(fact["session"], None)
            case "item":
                self.items.setdefault(fact["session"], {})[fact["item"]["id"]] = fact["item"]
            case "piece":
                self.items[fact["session"]][fact["id"]]["text"] += fact["text"]

    @property
    def known(self) -> object:
        """What is shown; a session that was opened again has other ids of its items."""
        items = {
            session: [item | {"id": 0} for item in items.values()]
            for session, items in self.items.items()
        }
        return self.sessions, items

    def said(self, session: str) -> list[tuple[str, str]]:
        return [(item["kind"], item["text"]) for item in self.items[session].values()]


class Stage:
    def __init__(
        self, feed: Feed, board: Board, sessions: Sessions, lanes: Lanes, nursery: trio.Nursery
    ) -> None:
        self.nursery = nursery
        self.feed = feed
        self.board = board
        self.sessions = sessions
        self.lanes = lanes
        self.approvals = board._approvals

    def view(self, viewer: Viewer) -> Callable[[], Awaitable[None]]:
        """A connection of this viewer, which resumes where it was."""
        after = None if viewer.run != self.feed.run else viewer.seq

        async def connect() -> None:
            window = Window(self.board)
            try:
                await window.open(viewer.opens, after is not None)
                await view(self.feed, window, viewer.send, after=after)
            finally:
                window.close()

        return connect

    async def truth(self) -> object:
        """What somebody who looks for the first time would see."""
        viewer, window = Viewer(), Window(self.board)
        await window.open(viewer.opens)
        for fact in json.loads(json.dumps(window.snapshot())):
            viewer.learn(fact)
        window.close()
        return viewer.known


@asynccontextmanager
async def open_stage(kept: int = 2_000, turns: int = 4) -> AsyncIterator[Stage]:
    feed = Feed(kept)
    board = Board(feed)
    limits = Limits().with_turns(turns)
    with trio.fail_after(1e6):
        async with open_lanes(
            limits.lanes(), groups=limits.groups(), instruments=[board, FailuresTold()]
        ) as lanes:
            approvals = Approvals(board.tell)
            agent = Agent(lanes, BuiltinModel(0.1), bundled_tools(), board.tell, approvals)
            sessions = Sessions(lanes, agent, board.tell)
            board.attach(lanes, sessions, approvals)
            async with trio.open_nursery() as nursery:
                yield Stage(feed, board, sessions, lanes, nursery)
                nursery.cancel_scope.cancel()


async def busy_minute(stage: Stage) -> None:
    """A bit of everything."""
    say = stage.sessions.say
    say("ann", "long 5")
    say("ann", "what is 6*7?")
    say("bob", "mail eve: hi")
    say("cleo", "please fail")
    await trio.sleep(1)
    say("ann", "search limits", WhenBusy.STEER)
    say("dan", "slow 90")
    say("dan", "never read")
    stage.lanes.session("eve").pause()
    say("eve", "ask a subagent: hello; calc 1/0")
    await trio.sleep(5)
    stage.approvals.answer("bob", allowed=False)
    stage.lanes.session("eve").resume()
    await stage.sessions.abort("dan", "enough")
    await stage.lanes.wait_idle()


# The feed


def test_who_has_come_to_a_number_is_given_what_is_behind_it() -> None:
    feed = Feed(kept=3)
    facts = [{"what": "lanes", "n": n} for n in range(5)]
    assert feed.since(0) == []
    for fact in facts:
        feed.publish(fact)
    assert feed.last == 5
    assert feed.since(5) == []
    assert feed.since(4) == facts[4:]
    assert feed.since(2) == facts[2:]
    assert feed.since(1) is None, "it is not kept any more"
    assert feed.since(6) is None, "it was never published"


def test_pieces_of_one_text_are_put_together_and_nothing_else() -> None:
    one, two = {"what": "piece", "id": 1, "text": "a"}, {"what": "piece", "id": 2, "text": "b"}
    item = {"what": "item", "session": "me", "item": {}}
    assert joined([one, one, two, item, one, one]) == [
        one | {"text": "aa"},
        two,
        item,
        one | {"text": "aa"},
    ]
    assert one["text"] == "a"


# Viewers


async def test_a_viewer_sees_what_a_first_look_would_show(autojump_clock: object) -> None:
    viewer = Viewer()
    async with open_stage() as stage:
        stage.nursery.start_soon(stage.view(viewer))
        await busy_minute(stage)
        await trio.sleep(1)
        assert viewer.known == await stage.truth()
    assert [frame["snapshot"] for frame in viewer.frames][:2] == [True, False]
    assert viewer.said("bob") == [
        ("user", "mail eve: hi"),
        ("tool", "error: send_mail was not allowed"),
        ("agent", "error: send_mail was not allowed"),
    ]
    kinds = [(item["kind"], item["state"]) for item in viewer.items["ann"].values()]
    assert ("user", "steered") in kinds


async def test_a_viewer_is_sent_the_texts_of_the_sessions_that_it_has_open_and_no_other(
    autojump_clock: object,
) -> None:
    """Also not the messages that wait."""
    both, one, none = Viewer(opens=("ann", "bob")), Viewer(opens=("bob",)), Viewer(opens=())
    async with open_stage() as stage:
        for viewer in (both, one, none):
            stage.nursery.start_soon(stage.view(viewer))
        for session in ("ann", "bob"):
            for text in ("first", "second"):
                stage.sessions.say(session, f"{text} by {session}")
        await trio.sleep(0.1)
        assert both.sessions["ann"]["texts"] == ["second by ann"]
        assert none.sessions["ann"] == both.sessions["ann"] | {"texts": []}
        await stage.lanes.wait_idle()
        await trio.sleep(1)
    assert len(both.said("ann")) == len(both.said("bob")) == len(one.said("bob")) == 4
    assert "by ann" in json.dumps(both.frames)
    assert "by bob" in json.dumps(one.frames)
    assert "by ann" not in json.dumps(one.frames)
    assert not re.search("by ann|by bob", json.dumps(none.frames))


async def test_a_session_that_is_opened_later_shows_what_was_said_before_and_goes_on(
    autojump_clock: object,
) -> None:
    viewer = Viewer(opens=())
    async with open_stage() as stage:
        await busy_minute(stage)
        assert len(stage.board.transcripts) == 0
        window = Window(stage.board)
        stage.nursery.start_soon(view, stage.feed, window, viewer.send)
        await trio.sleep(1)
        await window.open(["ann", "bob", "dan"])
        await trio.sleep(1)
        kinds = [(item["kind"], item["state"]) for item in viewer.items["ann"].values()]
        # the message that steers goes before the one that waits
        assert kinds == [("user", "asked"), ("agent", "done"),
                         ("user", "steered"), ("tool", "done"), ("agent", "done"),
                         ("user", "asked"), ("tool", "done"), ("agent", "done")]  # fmt: skip
        assert viewer.said("bob")[1] == ("tool", "error: send_mail was not allowed")
        assert viewer.said("dan")[0] == ("user", "slow 90")
        before = viewer.said("bob")
        stage.sessions.say("bob", "hello")
        stage.sessions.say("cleo", "hello")
        await trio.sleep(0.15)
        await window.open(["cleo", "bob"])  # in the middle of an answer
        await stage.lanes.wait_idle()
        await trio.sleep(1)
        assert viewer.said("bob")[: len(before)] == before
        assert [kind for kind, _ in viewer.said("bob")[len(before) :]] == ["user", "agent"]
        assert [text for kind, text in viewer.said("cleo") if kind == "user"] == [
            "please fail",
            "hello",
        ]
        assert viewer.frames[-1]["open"] == ["bob", "cleo"]
        window.close()
        assert len(stage.board.transcripts) == 0


async def test_a_thousand_idle_sessions_leave_nothing_in_the_tables_of_the_page(
    autojump_clock: object,
) -> None:
    viewer = Viewer(opens=("user7",))
    async with open_stage() as stage:
        stage.nursery.start_soon(stage.view(viewer))
        for number in range(1_000):
            stage.sessions.say(f"user{number}", "calc 1+1" if number % 2 else "slow 0.1")
            if number % 10 == 9:
                stage.sessions.clear(f"user{number}", "never mind")
            if number % 50 == 49:
                await stage.lanes.wait_idle()
        stage.lanes.session("eve").pause()
        await trio.sleep(1)
        assert [*viewer.sessions] == ["user7", "eve"]
        assert (len(stage.board), len(stage.board.transcripts)) == (2, 1)
        stage.lanes.session("eve").resume()
        stage.sessions.set_mode("ann", WhenBusy.STEER)
        stage.sessions.set_mode("bob", WhenBusy.FOLLOWUP)
        await trio.sleep(1)
        assert [*viewer.sessions] == ["user7", "ann"]


async def test_three_viewers_of_different_speed_end_with_the_same_picture(
    autojump_clock: object,
) -> None:
    viewers = [Viewer(0), Viewer(0.5), Viewer(5)]
    async with open_stage(kept=50) as stage:
        for viewer in viewers:
            stage.nursery.start_soon(stage.view(viewer))
        await busy_minute(stage)
        await trio.sleep(20)
        assert [viewer.known for viewer in viewers] == [await stage.truth()] * 3
    assert sum(frame["snapshot"] for frame in viewers[0].frames) == 1
    assert sum(frame["snapshot"] for frame in viewers[2].frames) > 1, "it fell behind"


async def test_a_viewer_that_takes_nothing_slows_no_other_and_is_given_up(
    autojump_clock: object,
) -> None:
    async def took(stuck: bool) -> float:
        async with open_stage(kept=50, turns=2) as stage:
            gone = trio.Event()

            async def stuck_viewer() -> None:
                with pytest.raises(trio.TooSlowError):
                    await stage.view(Viewer(math.inf))()
                gone.set()

            if stuck:
                stage.nursery.start_soon(stuck_viewer)
                await settle_down()
            began = trio.current_time()
            await busy_minute(stage)
            ended = trio.current_time()
            if stuck:
                await gone.wait()
                assert trio.current_time() == began + SEND_SECONDS
            return ended - began

    assert await took(stuck=True) == pytest.approx(await took(stuck=False))


async def test_what_is_kept_for_viewers_is_bounded_however_many_there_are(
    autojump_clock: object,
) -> None:
    async with open_stage(kept=50) as stage:
        for _ in range(20):
            stage.nursery.start_soon(stage.view(Viewer(10)))
        await busy_minute(stage)
        assert stage.feed.last > 200
        assert len(stage.feed.since(stage.feed.last - 50) or ()) == 50
        assert stage.feed.since(stage.feed.last - 51) is None


async def test_a_viewer_that_comes_back_goes_on_from_where_it_was(autojump_clock: object) -> None:
    viewer = Viewer()
    async with open_stage() as stage:
        for seconds in (0.5, 0.25, 3, 1):  # each time the connection breaks, in mid-stream or not
            with trio.move_on_after(seconds):
                async with trio.open_nursery() as connection:
                    connection.start_soon(stage.view(viewer))
                    if viewer.seq <= 0:
                        stage.sessions.say("ann", "long 3")
            await trio.sleep(0.3)
        await stage.lanes.wait_idle()
        with trio.move_on_after(1):
            await stage.view(viewer)()
        assert viewer.known == await stage.truth()
    assert [frame["snapshot"] for frame in viewer.frames].count(True) == 1
    ((_, question), (_, answer)) = viewer.said("ann")
    assert question == "long 3"
    assert [line[:2] for line in answer.splitlines()] == ["1.", "2.", "3."]


async def test_a_viewer_of_another_run_is_given_a_snapshot(autojump_clock: object) -> None:
    viewer = Viewer()
    for text in ("one", "two"):
        async with open_stage() as stage:
            stage.sessions.say("ann", text)
            await stage.lanes.wait_idle()
            with trio.move_on_after(1):
                await stage.view(viewer)()
            assert viewer.known == await stage.truth()
    assert viewer.said("ann")[0] == ("user", "two")


async def test_viewers_are_told_that_the_lanes_close_and_why(autojump_clock: object) -> None:
    viewer, late = Viewer(), Viewer()
    async with open_stage() as stage:
        stage.nursery.start_soon(stage.view(viewer))
        await trio.sleep(1)
        stage.lanes.close("restarting")
        stage.nursery.start_soon(stage.view(late))
        await trio.sleep(1)
    told = {"what": "closing", "reason": "restarting"}
    assert told in viewer.frames[-1]["facts"]
    assert told in late.frames[0]["facts"]
