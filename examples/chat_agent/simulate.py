"""A crowd of simulated users, an operator who interferes, and a check that nothing went wrong.

What users say and do is drawn from a seed. What must then be in the transcripts is known, and is
compared; `LaneRecorder` watches the lanes meanwhile, and the turns count themselves.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import trio

from trio_lanes import Job, JobCancelledError, JobState, Lanes
from trio_lanes.testing import LaneRecorder

from .agent import TOOLS, TURNS, Agent, Nowhere, cost_of
from .builtin_model import BuiltinModel
from .conversations import Conversations
from .limits import Limits
from .model import Message, ModelError
from .shutdown import resume_all, run_with_lanes
from .tools import bundled_tools

VIOLATED: Final = 1  # exit code
OPERATOR_SECONDS: Final = 1.0  # between two interferences
TOPICS: Final = ("limits", "sessions", "stopping", "pausing", "draining")

Turn = Job[str]


class Crowd:
    """The users, the operator, and what they have seen."""

    def __init__(self, lanes: Lanes, agent: Agent, *, users: int, steps: int, seed: int) -> None:
        self.sent: Final[dict[str, list[Turn]]] = {f"user-{n:02}": [] for n in range(1, users + 1)}
        self.overlaps: Final[list[str]] = []
        self.peak = 0
        self._lanes: Final = lanes
        self._agent: Final = agent
        self._steps: Final = steps
        self._seed: Final = seed
        self._answering: Final[Counter[str]] = Counter()
        self.highest_limit = lanes.lane(TURNS).concurrency

    async def run(self) -> None:
        """Let every user do all of his steps."""
        async with trio.open_nursery() as helpers:
            helpers.start_soon(self._operator)
            async with trio.open_nursery() as users:
                for key in self.sent:
                    users.start_soon(self._user, key)
            helpers.cancel_scope.cancel()

    async def _user(self, key: str) -> None:
        rng = random.Random(f"{self._seed} {key}")
        kinds = (self._ask, self._burst, self._fail, self._stop, self._clear)
        for _ in range(self._steps):
            await trio.sleep(rng.uniform(0.1, 1.5))
            (act,) = rng.choices(kinds, weights=(6, 2, 1, 1, 1))
            await act(key, rng)

    async def _ask(self, key: str, rng: random.Random) -> None:
        await _ended(self._send(key, _question(rng)))

    async def _burst(self, key: str, rng: random.Random) -> None:
        """Three messages before the first answer: they are answered in this order."""
        for turn in [self._send(key, _question(rng)) for _ in range(3)]:
            await _ended(turn)

    async def _fail(self, key: str, rng: random.Random) -> None:
        await _ended(self._send(key, "please fail"))

    async def _stop(self, key: str, rng: random.Random) -> None:
        turn = self._send(key, "slow 600")
        await turn.wait_started()
        await trio.sleep(0.3)
        turn.cancel("changed my mind")
        await _ended(turn)

    async def _clear(self, key: str, rng: random.Random) -> None:
        """Two messages behind a slow one, taken back before their turn."""
        first = self._send(key, "slow 0.5")
        await first.wait_started()
        for _ in range(2):
            self._send(key, _question(rng))
        self._lanes.session(key).clear(reason="never mind")
        await _ended(first)

    def _send(self, key: str, text: str) -> Turn:
        text = f"{text} (#{len(self.sent[key]) + 1})"
        turn = self._lanes.submit_nowait(
            self._turn,
            key,
            text,
            session=key,
            lane=TURNS,
            cost=cost_of([Message("user", text)]),
            name=f"turn of {key}",
            meta=text,
        )
        self.sent[key].append(turn)
        return turn

    async def _turn(self, session: str, text: str) -> str:
        """The agent's turn, counted from inside: a second opinion beside `LaneRecorder`'s."""
        self._answering[session] += 1
        if self._answering[session] > 1:
            self.overlaps.append(f"{session} had two turns at once")
        self.peak = max(self.peak, self._answering.total())
        try:
            return await self._agent.turn(session, text)
        finally:
            self._answering[session] -= 1

    async def _operator(self) -> None:
        """Change limits, and pause and resume, as long as there are users."""
        rng = random.Random(f"{self._seed} operator")
        main = self._lanes.lane(TURNS)
        try:
            while True:
                await trio.sleep(OPERATOR_SECONDS)
                main.concurrency = rng.choice((3, 4, 8, 12))
                self.highest_limit = max(self.highest_limit, main.concurrency)
                name = rng.choice((TURNS, TOOLS, *self.sent))
                lane = self._lanes.session(name) if name in self.sent else self._lanes.lane(name)
                lane.pause()
                await trio.sleep(OPERATOR_SECONDS / 4)
                lane.resume()
        finally:
            resume_all(self._lanes)


async def run_simulation(
    *,
    users: int,
    steps: int = 3,
    seed: int = 0,
    limit: int = 4,
    word_delay: float = 0.01,
    grace: float = 30.0,
    say: Callable[[str], None],
    live: bool = False,
) -> int:
    """Run the crowd, show it if `live`, print what came of it. Returns the exit code."""
    recorder = LaneRecorder()
    conversations = Conversations()
    crowd: Crowd | None = None
    began = trio.current_time()

    async def work(lanes: Lanes) -> None:
        nonlocal crowd
        agent = Agent(lanes, BuiltinModel(word_delay), bundled_tools(), conversations, Nowhere())
        crowd = Crowd(lanes, agent, users=users, steps=steps, seed=seed)
        async with trio.open_nursery() as nursery:
            if live:
                from .live_view import live_view

                nursery.start_soon(live_view, lanes)
            await crowd.run()
            nursery.cancel_scope.cancel()

    limits = Limits().with_turns(limit)
    code = await run_with_lanes(
        work,
        limits.lanes(warn_after=float("inf")),
        limits.groups(),
        say=say,
        grace=grace,
        instruments=[recorder],
    )
    assert crowd is not None
    say(f"{summary(crowd.sent)}, at most {crowd.peak} at once, {trio.current_time() - began:.1f} s")
    violations = [*crowd.overlaps, *check_transcripts(crowd.sent, conversations.transcripts())]
    if crowd.peak > crowd.highest_limit:
        violations.append(f"{crowd.peak} turns at once, with a limit of {crowd.highest_limit}")
    try:
        recorder.check()
    except AssertionError as error:
        violations += str(error).splitlines()
    if violations:
        say(f"check: VIOLATED: {'; '.join(violations)}")
        return VIOLATED
    say(f"check: ok: {len(crowd.sent)} sessions, none out of order, no limit exceeded")
    return code


def summary(sent: Mapping[str, Sequence[Turn]]) -> str:
    """How the turns ended, in one line."""
    endings = Counter(_ending(turn) for turns in sent.values() for turn in turns)
    parts = [f"{endings[word]} {word}" for word in ("answered", "failed", "stopped", "cleared")]
    return f"{endings.total()} messages of {len(sent)} users: {', '.join(parts)}"


def check_transcripts(
    sent: Mapping[str, Sequence[Turn]], transcripts: Mapping[str, Sequence[Message]]
) -> list[str]:
    """What is wrong with the conversations, given what was sent in this order. Empty: nothing."""
    wrong = []
    for key, turns in sent.items():
        try:
            exchanges = _exchanges(transcripts.get(key, ()))
        except ValueError as error:
            wrong.append(f"{key}: {error}")
            continue
        # A turn that was stopped before it had loaded the conversation left nothing in it.
        expected = [
            (turn.meta, _ending(turn))
            for turn in turns
            if _ending(turn) in ("answered", "failed")
            or (_ending(turn) == "stopped" and any(turn.meta == asked for asked, _ in exchanges))
        ]
        if exchanges != expected:
            wrong.append(f"{key}: sent {expected}, but the conversation is {exchanges}")
    return wrong


def _exchanges(messages: Sequence[Message]) -> list[tuple[str, str]]:
    """Each question of a conversation, with how it was answered."""
    exchanges = []
    asked: str | None = None
    for message in messages:
        if message.role == "user":
            if asked is not None:
                raise ValueError(f"{message.text!r} came before the answer to {asked!r}")
            asked = message.text
        elif message.role == "assistant" and not message.calls:
            if asked is None:
                raise ValueError(f"{message.text!r} answers nothing")
            mark = message.text.rpartition(" ")[2]
            exchanges.append(
                (asked, {"[failed]": "failed", "[stopped]": "stopped"}.get(mark, "answered"))
            )
            asked = None
    if asked is not None:
        raise ValueError(f"{asked!r} was not answered")
    return exchanges


def _ending(turn: Turn) -> str:
    if turn.state is JobState.SUCCEEDED:
        return "answered"
    if turn.state is JobState.FAILED:
        return "failed"
    return "stopped" if turn.started_at is not None else "cleared"


async def _ended(turn: Turn) -> None:
    """The turn has ended, well or as it was meant to."""
    try:
        await turn.wait()
    except (ModelError, JobCancelledError):
        pass


def _question(rng: random.Random) -> str:
    """Something that the built-in model has an answer to."""
    return rng.choice(
        (
            "hello",
            "what time is it?",
            f"what is {rng.randint(2, 99)} * {rng.randint(2, 99)}?",
            f"search {rng.choice(TOPICS)}",
            f"calc {rng.randint(2, 9)} ** {rng.randint(2, 9)}, and search {rng.choice(TOPICS)}",
            f"a long answer of {rng.randint(3, 8)} lines, please",
            f"my number is {rng.randint(100, 999)}",
        )
    )
