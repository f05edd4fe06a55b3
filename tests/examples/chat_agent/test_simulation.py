"""The crowd of simulated users: what it does is reproducible, and its check finds what is wrong."""

import io
import re
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
import trio
from rich.console import Console

from examples.chat_agent.agent import Agent
from examples.chat_agent.builtin_model import BuiltinModel
from examples.chat_agent.limits import Limits
from examples.chat_agent.live_view import live_view, render
from examples.chat_agent.sessions import FailuresTold, Sessions
from examples.chat_agent.simulate import (
    VIOLATED,
    check_conversation,
    run_simulation,
    summary,
)
from trio_lanes import Lanes, open_lanes
from trio_lanes.agents import Inbox, Message, Receipt, WhenBusy


async def said(users: int, seed: int, steps: int = 3) -> list[str]:
    lines: list[str] = []
    assert await run_simulation(users=users, steps=steps, seed=seed, say=lines.append) == 0
    return lines


@pytest.mark.parametrize("seconds", [0.2, 0.5, 1.0, 2.0, 4.0, 8.0])
async def test_ctrl_c_leaves_no_turn_that_only_its_user_would_have_ended(
    autojump_clock: object, seconds: float
) -> None:
    async def interrupt() -> None:
        await trio.sleep(seconds)
        signal.raise_signal(signal.SIGINT)

    lines: list[str] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(interrupt)
        assert await run_simulation(users=40, steps=1000, say=lines.append, grace=100) == 0
    assert lines[-1].startswith("check: ok: 40 sessions")


@pytest.mark.many_seeds(5)
async def test_forty_users_are_answered_in_order_and_within_the_limits(
    autojump_clock: object,
) -> None:
    counts, check = await said(users=40, seed=1)
    words = ("answered", "merged", "steered", "failed", "stopped", "cleared")
    found = re.match(
        r"(\d+) messages of 40 users: " + ", ".join(rf"(\d+) {word}" for word in words), counts
    )
    assert found is not None
    total, *endings = map(int, found.groups())
    assert sum(endings) == total > 120
    assert min(endings) > 0, "everything that users can do was done"
    assert check == "check: ok: 40 sessions, all in order, no limit exceeded"


async def test_the_same_seed_does_and_says_the_same(autojump_clock: object) -> None:
    first, second = [await said(users=12, seed=7) for _ in range(2)]
    assert first[0].split(", at most")[0] == second[0].split(", at most")[0]
    assert (await said(users=12, seed=8))[0] != first[0]


async def test_a_turn_outside_its_session_lane_is_found_out(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages that do not know of each other: turns overlap, and the check says so."""

    def say(self: Sessions, session: str, text: str, when_busy: WhenBusy | None = None) -> Receipt:
        lane_of_its_own = f"{session} {text}"
        inbox = Inbox(self._lanes, lane_of_its_own, lambda turn: self._answer(session, turn))
        return inbox.post(text)

    monkeypatch.setattr(Sessions, "say", say)
    lines: list[str] = []
    code = await run_simulation(users=40, steps=3, say=lines.append, grace=30)
    assert code == VIOLATED
    assert lines[-1].startswith("check: VIOLATED: ")
    assert "two turns at once" in lines[-1]


# The check


@asynccontextmanager
async def open_sessions(turns: int = 4) -> AsyncIterator[tuple[Sessions, Lanes]]:
    limits = Limits().with_turns(turns)
    async with open_lanes(
        limits.lanes(), groups=limits.groups(), instruments=[FailuresTold()]
    ) as lanes:
        yield Sessions(lanes, Agent(lanes, BuiltinModel(0), {})), lanes


def exchange(*asked: str, status: str = "completed", turn: str = "") -> list[Message]:
    turn = turn or "+".join(asked)
    return [
        *(Message("user", text, id=f"{turn}.{n}") for n, text in enumerate(asked)),
        Message("assistant", "well", status, id=f"{turn}.9"),  # type: ignore[arg-type]
    ]


FINE = [
    *exchange("1"),
    *exchange("please fail", status="incomplete"),
    *exchange("hurry"),
    *exchange("2", "3"),
]


@pytest.mark.parametrize(
    ("conversation", "complaint"),
    [
        (FINE, None),
        (FINE[4:6] + FINE[:4] + FINE[6:], None),  # an interrupt comes before what waited
        (FINE[6:] + FINE[:6], "sent ['1', 'please fail', '2', '3'], but the conversation is"),
        (FINE[2:], "'1' ran, but its answer is None"),
        (FINE[:6], "'2' ran, but its answer is None"),
        (FINE[:-1], "are no question and its answer"),
        (FINE + exchange("1", turn="again"), "a message was answered twice"),
        (FINE + exchange("cleared"), "'cleared' was cancelled, but answered"),
        (FINE + exchange("4"), "no user sent ['4']"),
        ([*exchange("1", status="incomplete"), *FINE[2:]], "'1' ran, but its answer is incomplete"),
        (exchange("1", "please fail", "hurry", "2", "3"), "failed, but its answer is completed"),
        ([], "but its answer is None"),
    ],
)
async def test_a_conversation_that_does_not_fit_what_was_sent_is_found(
    autojump_clock: object, conversation: Sequence[Message], complaint: str | None
) -> None:
    async with open_sessions() as (sessions, _):
        sent = [sessions.say("ann", text) for text in ("1", "please fail")]
        hurry = sessions.say("ann", "hurry")  # as if it were an interrupt
        sent += [hurry, *(sessions.say("ann", text) for text in ("2", "3"))]
        for receipt in sent:
            await receipt.settled()
        sessions.say("ann", "slow 5")
        await trio.sleep(1)
        cleared = sessions.say("ann", "cleared")
        sessions.clear("ann", "never mind")
    modes = dict.fromkeys([*sent, cleared], WhenBusy.FOLLOWUP) | {hurry: WhenBusy.INTERRUPT}
    wrong = check_conversation("ann", [*sent, cleared], modes, conversation)
    if complaint is None:
        assert wrong == []
    else:
        assert wrong[0].startswith("ann: ")
        assert complaint in "; ".join(wrong)


async def test_the_summary_counts_what_became_of_messages(autojump_clock: object) -> None:
    async with open_sessions() as (sessions, _):
        receipts = [sessions.say("ann", text) for text in ("1", "please fail", "slow 90")]
        await trio.sleep(10)
        receipts.append(sessions.say("ann", "more", WhenBusy.STEER))
        receipts += [sessions.say("ann", text, WhenBusy.REJECT) for text in ("4", "5")]
        sessions.stop("ann", "enough")
    assert summary({"ann": receipts, "bob": []}) == (
        "6 messages of 2 users: 2 answered, 0 merged, 0 steered, 1 failed, 1 stopped, 0 cleared"
    )


# The view


async def test_the_live_view_shows_lanes_and_sessions_within_the_height_of_the_screen(
    autojump_clock: object,
) -> None:
    console = Console(width=100, height=24, record=True, force_terminal=False)
    async with open_sessions(turns=2) as (sessions, lanes):
        for n in range(30):
            for _ in range(3):
                sessions.say(f"u{n}", "slow 3")
        lanes.lane("tools").pause()
        await trio.sleep(1)
        console.print(render(lanes, sessions, height=24))
        text = console.export_text()
        lanes.clear()
        lanes.lane("tools").resume()
    lines = [line.replace("│", " ").split() for line in text.splitlines()]
    assert ["main", "2", "2", "30", "1.0", "s"] in lines, "of each session, what comes next"
    assert ["tools", "8", "0", "0", "-", "paused"] in lines
    assert ["u0", "1.0", "s:", "'slow", "3'", "2", "'slow", "3'"] in lines
    assert ["u29", "-", "3", "'slow", "3'"] not in lines
    assert len(lines) <= 24
    assert lines[-1][0] == "and"


async def test_the_live_view_draws_until_it_is_cancelled(autojump_clock: object) -> None:
    screen = io.StringIO()
    console = Console(width=100, height=24, force_terminal=True, file=screen)
    async with open_sessions() as (sessions, lanes):
        with trio.move_on_after(5) as scope:
            await live_view(lanes, sessions, console)
    assert scope.cancelled_caught
    assert screen.getvalue().count("oldest wait") > 10
