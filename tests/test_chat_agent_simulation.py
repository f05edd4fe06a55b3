"""The crowd of simulated users: what it does is reproducible, and its check finds what is wrong."""

import io
import re
from collections.abc import Sequence

import pytest
import trio
from rich.console import Console

from examples.chat_agent import simulate
from examples.chat_agent.agent import Agent
from examples.chat_agent.builtin_model import BuiltinModel
from examples.chat_agent.chat import Endings
from examples.chat_agent.conversations import Conversations
from examples.chat_agent.limits import Limits
from examples.chat_agent.live_view import live_view, render
from examples.chat_agent.model import Message
from examples.chat_agent.screen import Screen
from examples.chat_agent.simulate import VIOLATED, check_transcripts, run_simulation, summary
from trio_lanes import Job, open_lanes


async def said(users: int, seed: int, steps: int = 3) -> list[str]:
    lines: list[str] = []
    assert await run_simulation(users=users, steps=steps, seed=seed, say=lines.append) == 0
    return lines


@pytest.mark.many_seeds(5)
async def test_forty_users_are_answered_in_order_and_within_the_limits(
    autojump_clock: object,
) -> None:
    counts, check = await said(users=40, seed=1)
    found = re.match(
        r"(\d+) messages of 40 users: (\d+) answered, (\d+) failed, (\d+) stopped, (\d+) cleared,",
        counts,
    )
    assert found is not None
    total, *endings = map(int, found.groups())
    assert sum(endings) == total > 120
    assert min(endings) > 0, "everything that users can do was done"
    assert check == "check: ok: 40 sessions, none out of order, no limit exceeded"


async def test_the_same_seed_does_and_says_the_same(autojump_clock: object) -> None:
    first, second = [await said(users=12, seed=7) for _ in range(2)]
    assert first[0].split(", at most")[0] == second[0].split(", at most")[0]
    assert (await said(users=12, seed=8))[0] != first[0]


async def test_a_turn_outside_its_session_lane_is_found_out(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crowd that forgets its sessions: turns overlap and lose messages, and the check says so."""

    def send(self: simulate.Crowd, key: str, text: str) -> Job[str]:
        text = f"{text} (#{len(self.sent[key]) + 1})"
        turn = self._lanes.submit_nowait(self._turn, key, text, meta=text)
        self.sent[key].append(turn)
        return turn

    monkeypatch.setattr(simulate.Crowd, "_send", send)
    lines: list[str] = []
    assert await run_simulation(users=40, steps=3, say=lines.append) == VIOLATED
    assert lines[-1].startswith("check: VIOLATED: ")
    assert "two turns at once" in lines[-1]


def user(text: str) -> Message:
    return Message("user", text)


def assistant(text: str) -> Message:
    return Message("assistant", text)


async def turns(*bodies: str) -> list[Job[str]]:
    """Ended turns whose texts are these."""

    async def turn(text: str) -> str:
        await trio.lowlevel.checkpoint()
        return text

    async with open_lanes() as lanes:
        return [lanes.submit_nowait(turn, body, session="ann", meta=body) for body in bodies]


@pytest.mark.parametrize(
    ("transcript", "complaint"),
    [
        ([user("1"), assistant("a"), user("2"), assistant("b")], None),
        ([user("2"), assistant("b"), user("1"), assistant("a")], "but the conversation is"),
        ([user("1"), assistant("a")], "but the conversation is"),
        ([user("1"), user("2"), assistant("a"), assistant("b")], "came before the answer"),
        ([user("1"), assistant("a"), assistant("b")], "answers nothing"),
        ([user("1"), assistant("a"), user("2")], "was not answered"),
        ([user("1"), assistant("a"), user("2"), assistant("b [failed]")], "but the conversation"),
        ([], "but the conversation is"),
    ],
)
async def test_a_transcript_that_does_not_fit_what_was_sent_is_found(
    autojump_clock: object, transcript: Sequence[Message], complaint: str | None
) -> None:
    wrong = check_transcripts({"ann": await turns("1", "2")}, {"ann": transcript})
    if complaint is None:
        assert wrong == []
    else:
        (line,) = wrong
        assert line.startswith("ann: ")
        assert complaint in line


async def test_the_summary_counts_how_turns_ended(autojump_clock: object) -> None:
    assert summary({"ann": await turns("1", "2"), "bob": []}) == (
        "2 messages of 2 users: 2 answered, 0 failed, 0 stopped, 0 cleared"
    )


async def test_the_live_view_shows_lanes_and_sessions_within_the_height_of_the_screen(
    autojump_clock: object,
) -> None:
    console = Console(width=100, height=24, record=True, force_terminal=False)
    limits = Limits().with_turns(2)
    async with open_lanes(limits.lanes(), groups=limits.groups()) as lanes:
        agent = Agent(lanes, BuiltinModel(), {}, Conversations(), simulate.Nowhere())
        for n in range(30):
            for _ in range(2):
                lanes.submit_nowait(agent.turn, f"u{n}", "slow 3", session=f"u{n}", meta="slow 3")
        lanes.lane("tools").pause()
        await trio.sleep(1)
        console.print(render(lanes, height=24))
        text = console.export_text()
        lanes.clear()
        lanes.lane("tools").resume()
    lines = [line.replace("│", " ").split() for line in text.splitlines()]
    assert ["main", "2", "2", "58", "1.0", "s"] in lines
    assert ["tools", "8", "0", "0", "-", "paused"] in lines
    assert ["u0", "1.0", "s:", "'slow", "3'", "1", "'slow", "3'"] in lines
    assert ["u29", "-", "2", "'slow", "3'"] not in lines
    assert len(lines) <= 24
    assert lines[-1][0] == "and"


async def test_the_live_view_draws_until_it_is_cancelled(autojump_clock: object) -> None:
    screen = io.StringIO()
    console = Console(width=100, height=24, force_terminal=True, file=screen)
    async with open_lanes({"main": 2}) as lanes:
        with trio.move_on_after(5) as scope:
            await live_view(lanes, console)
    assert scope.cancelled_caught
    assert screen.getvalue().count("oldest wait") > 10


async def test_a_turn_that_was_cleared_is_not_told_as_stopped(autojump_clock: object) -> None:
    lines: list[str] = []
    async with open_lanes({"main": 1}, instruments=[Endings(Screen(lines.append))]) as lanes:
        for _ in range(2):
            lanes.submit_nowait(trio.sleep, 5, session="ann")
        await trio.sleep(1)
        lanes.clear()
        for job in lanes.jobs():
            job.cancel()
    assert lines == ["ann * stopped"]
