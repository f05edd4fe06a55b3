"""A crowd of simulated users, an operator who changes limits, and a check of the results.

The actions of the users are drawn from a seed. The receipts have the outcomes of the messages. The
check compares the conversations with the outcomes. `LaneRecorder` checks the lanes meanwhile, and
the turns of each session are counted.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

import trio

from trio_lanes import Lane, LaneInstrument, Lanes, SessionLane
from trio_lanes.agents import Message, MessageState, Receipt, SettledKind, WhenBusy
from trio_lanes.testing import LaneRecorder

from .agent import TOOLS, TURNS, Agent
from .builtin_model import BuiltinModel
from .events import Began, Ended, Event
from .limits import Limits
from .model import Event as Answer
from .model import Message as Prompt
from .model import Model
from .sessions import FailuresTold, Sessions
from .shutdown import resume_all, run_with_lanes
from .tools import bundled_tools

VIOLATED: Final = 1  # exit code
OPERATOR_SECONDS: Final = 1.0  # between two actions of the operator
TOPICS: Final = ("limits", "sessions", "stopping", "pausing", "draining")

# The words of the summary for outcomes; the others have their names in `SettledKind`.
WORDS: Final = {SettledKind.RAN: "answered", SettledKind.CANCELLED: "cleared"}
IN_CONVERSATION: Final = {  # status of the answer, by outcome, for messages that a model got
    SettledKind.RAN: "completed",
    SettledKind.MERGED: "completed",
    SettledKind.FAILED: "incomplete",
}


class Crowd(LaneInstrument):
    """The users, the operator, their records, and the check of the results."""

    def __init__(self, *, users: int, steps: int, seed: int, word_delay: float) -> None:
        self.model: Final = Counted(BuiltinModel(word_delay))
        self.sent: Final[dict[str, list[Receipt]]] = {
            f"user-{n:02}": [] for n in range(1, users + 1)
        }
        self.modes: Final[dict[Receipt, WhenBusy]] = {}
        self.overlaps: Final[list[str]] = []
        self.highest_limit = 0.0
        self.recorder: Final = LaneRecorder()
        self._began: Final = trio.current_time()
        self._steps: Final = steps
        self._seed: Final = seed
        self._answering: Final[Counter[str]] = Counter()

    async def run(self, lanes: Lanes, sessions: Sessions) -> None:
        """Run all steps of every user."""
        self._lanes, self._sessions = lanes, sessions
        self.highest_limit = lanes.lane(TURNS).concurrency
        async with trio.open_nursery() as helpers:
            helpers.start_soon(self._operator)
            async with trio.open_nursery() as users:
                for key in self.sent:
                    users.start_soon(self._user, sessions, key)
            helpers.cancel_scope.cancel()

    def watch(self, event: Event) -> None:
        """Count the turns of each session: a second check, besides `LaneRecorder`."""
        if isinstance(event, Began):
            self._answering[event.session] += 1
            if self._answering[event.session] > 1:
                self.overlaps.append(f"{event.session} had two turns at once")
        elif isinstance(event, Ended):
            self._answering[event.session] -= 1

    def lane_configured(self, lane: Lane | SessionLane) -> None:
        if isinstance(lane, Lane) and lane.name == TURNS:  # also by a person on the page
            self.highest_limit = max(self.highest_limit, lane.concurrency)

    async def verdict(self, say: Callable[[str], None]) -> int:
        """Say the results, when the lanes have ended. Return the exit code."""
        took = trio.current_time() - self._began
        say(f"{summary(self.sent)}, at most {self.model.peak} at once, {took:.1f} s")
        violations = [*self.overlaps]
        for key, sent in self.sent.items():
            if not sent:  # Ctrl-C was faster
                continue
            messages = await self._sessions.conversation(key).messages()
            violations += check_conversation(key, sent, self.modes, messages)
        if self.model.peak > self.highest_limit:
            violations.append(
                f"{self.model.peak} calls of the model at once, with a limit of"
                f" {self.highest_limit:g}"
            )
        try:
            self.recorder.check()
        except AssertionError as error:
            violations += str(error).splitlines()
        if violations:
            say(f"check: VIOLATED: {'; '.join(violations)}")
            return VIOLATED
        say(f"check: ok: {len(self.sent)} sessions, all in order, no limit exceeded")
        return 0

    async def _user(self, sessions: Sessions, key: str) -> None:
        rng = random.Random(f"{self._seed} {key}")
        user = User(self, sessions, key, rng)
        kinds = {
            user.ask: 6,
            user.burst: 2,
            user.fail: 1,
            user.stop: 1,
            user.clear: 1,
            user.steer: 1,
            user.collect: 1,
            user.interrupt: 1,
        }
        try:
            for _ in range(self._steps):
                await trio.sleep(rng.uniform(0.1, 1.5))
                (act,) = rng.choices([*kinds], weights=[*kinds.values()])
                await act()
        finally:
            user.leave()

    async def _operator(self) -> None:
        """Change limits, pause and resume, until all users have finished."""
        rng = random.Random(f"{self._seed} operator")
        main = self._lanes.lane(TURNS)
        try:
            while True:
                await trio.sleep(OPERATOR_SECONDS)
                main.concurrency = rng.choice((3, 4, 8, 12))
                name = rng.choice((TURNS, TOOLS, *self.sent))
                lane = self._lanes.session(name) if name in self.sent else self._lanes.lane(name)
                lane.pause()
                await trio.sleep(OPERATOR_SECONDS / 4)
                lane.resume()
        finally:
            resume_all(self._lanes)


class Counted:
    """A model that counts its concurrent calls.

    It counts calls, not turns: a turn that waits for its next call has no slot.
    """

    def __init__(self, model: Model) -> None:
        self.name: Final = model.name
        self.peak = 0
        self._model: Final = model
        self._now = 0

    @asynccontextmanager
    async def stream(self, messages: Sequence[Prompt]) -> AsyncIterator[AsyncIterator[Answer]]:
        self._now += 1
        self.peak = max(self.peak, self._now)
        try:
            async with self._model.stream(messages) as events:
                yield events
        finally:
            self._now -= 1


class User:
    """The possible steps of a user. All messages differ, and have the mark of the user."""

    def __init__(self, crowd: Crowd, sessions: Sessions, key: str, rng: random.Random) -> None:
        self._crowd: Final = crowd
        self._sessions: Final = sessions
        self._key: Final = key
        self._rng: Final = rng
        self._endless: Receipt | None = None  # endless work that only this user will stop

    def leave(self) -> None:
        """Stop endless work, because Ctrl-C may have come in the middle of a step."""
        state = MessageState.SETTLED if self._endless is None else self._endless.state
        if state is MessageState.WAITING:
            self._sessions.clear(self._key, "the user has left")
        elif state is MessageState.IN_TURN:
            self._sessions.stop(self._key, "the user has left")

    def _send(self, text: str, when_busy: WhenBusy = WhenBusy.FOLLOWUP) -> Receipt:
        sent = self._crowd.sent[self._key]
        receipt = self._sessions.say(self._key, f"{text} (#{len(sent) + 1})", when_busy)
        sent.append(receipt)
        self._crowd.modes[receipt] = when_busy
        return receipt

    async def _slow_turn(self, seconds: float) -> Receipt:
        """Start a turn that takes `seconds`, and wait until it has begun."""
        receipt = self._send(f"slow {seconds:g}")
        await self._begun(receipt)
        return receipt

    async def _endless_turn(self) -> Receipt:
        """Start a turn that never ends by itself, and wait until it has begun."""
        self._endless = receipt = self._send("slow 600")
        await self._begun(receipt)
        return receipt

    async def _begun(self, receipt: Receipt) -> None:
        while receipt.state is MessageState.WAITING:  # noqa: ASYNC110  (a receipt tells its end)
            await trio.sleep(0.05)

    async def ask(self) -> None:
        await self._send(_question(self._rng)).settled()

    async def burst(self) -> None:
        """Post three messages before the first answer; they are answered in this order."""
        for receipt in [self._send(_question(self._rng)) for _ in range(3)]:
            await receipt.settled()

    async def fail(self) -> None:
        await self._send("please fail").settled()

    async def stop(self) -> None:
        turn = await self._endless_turn()
        await trio.sleep(0.3)
        self._sessions.stop(self._key, "changed my mind")
        await turn.settled()

    async def clear(self) -> None:
        """Post two messages behind a slow turn, and clear them before their turn."""
        turn = await self._slow_turn(0.5)
        for _ in range(2):
            self._send(_question(self._rng))
        self._sessions.clear(self._key, "never mind")
        await turn.settled()

    async def steer(self) -> None:
        """Post a steer during the answer."""
        turn = await self._slow_turn(0.5)
        more = self._send(_question(self._rng), WhenBusy.STEER)
        await turn.settled()
        await more.settled()

    async def collect(self) -> None:
        """Post two messages that are answered together."""
        turn = await self._slow_turn(0.5)
        more = [self._send(_question(self._rng), WhenBusy.COLLECT) for _ in range(2)]
        for receipt in (turn, *more):
            await receipt.settled()

    async def interrupt(self) -> None:
        """Post an interrupt before the running answer and the waiting messages."""
        turn = await self._endless_turn()
        later = self._send(_question(self._rng))
        urgent = self._send(_question(self._rng), WhenBusy.INTERRUPT)
        for receipt in (turn, later, urgent):
            await receipt.settled()


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
    """Run the crowd, show it if `live`, print the results. Return the exit code."""
    crowd = Crowd(users=users, steps=steps, seed=seed, word_delay=word_delay)

    async def work(lanes: Lanes, _: trio.Nursery) -> None:
        sessions = Sessions(lanes, Agent(lanes, crowd.model, bundled_tools()), crowd.watch)
        async with trio.open_nursery() as nursery:
            if live:
                from .live_view import live_view

                nursery.start_soon(live_view, lanes, sessions)
            await crowd.run(lanes, sessions)
            nursery.cancel_scope.cancel()

    limits = Limits().with_turns(limit)
    code = await run_with_lanes(
        work,
        limits.lanes(warn_after=float("inf")),
        limits.groups(),
        say=say,
        grace=grace,
        instruments=[crowd, crowd.recorder, FailuresTold()],
    )
    return await crowd.verdict(say) or code


def summary(sent: Mapping[str, Sequence[Receipt]]) -> str:
    """Return the numbers of the outcomes, in one line."""
    endings = Counter(_ending(receipt) for receipts in sent.values() for receipt in receipts)
    words = ("answered", "merged", "steered", "failed", "stopped", "cleared")
    parts = [f"{endings[word]} {word}" for word in words]
    return f"{endings.total()} messages of {len(sent)} users: {', '.join(parts)}"


def _ending(receipt: Receipt) -> str:
    outcome = receipt.outcome
    assert outcome is not None, "when the lanes have ended, every message has settled"
    if outcome.kind is SettledKind.CANCELLED and outcome.turn is not None:
        return "stopped"
    return WORDS.get(outcome.kind, outcome.kind)


def check_conversation(
    key: str,
    sent: Sequence[Receipt],
    modes: Mapping[Receipt, WhenBusy],
    messages: Sequence[Message],
) -> list[str]:
    """Return the violations in a conversation, for messages in the order of sending.

    Each message of a turn is in the conversation once, in the order of sending, except that
    interrupts come before messages that waited. An answer follows, complete if the turn was. A turn
    that was stopped before it had read the conversation left nothing in it.
    """
    try:
        said = dict(_said(messages))
    except ValueError as error:
        return [f"{key}: {error}"]
    wrong = []
    in_order: dict[bool, list[str]] = {True: [], False: []}  # the key: whether it was an interrupt
    for receipt in sent:
        outcome = receipt.outcome
        assert outcome is not None
        status = said.get(receipt.message)
        if status is not None:
            in_order[modes[receipt] is WhenBusy.INTERRUPT].append(receipt.message)
        if outcome.kind in IN_CONVERSATION and status != IN_CONVERSATION[outcome.kind]:
            wrong.append(f"{key}: {receipt.message!r} {outcome.kind}, but its answer is {status}")
        if outcome.kind is SettledKind.STEERED and status is None:
            wrong.append(f"{key}: {receipt.message!r} was taken, but not answered")
        if status is not None and outcome.turn is None:
            wrong.append(f"{key}: {receipt.message!r} was {outcome.kind}, but answered")
    for texts in in_order.values():
        if [text for text in said if text in texts] != texts:
            wrong.append(f"{key}: sent {texts}, but the conversation is {[*said]}")
    if strange := said.keys() - {receipt.message for receipt in sent}:
        wrong.append(f"{key}: no user sent {sorted(strange)}")
    return wrong


def _said(messages: Sequence[Message]) -> list[tuple[str, str]]:
    """Return the user messages of a conversation, each with the status of its answer."""
    turns: dict[str, list[Message]] = {}
    for message in messages:
        turns.setdefault(message.id.partition(".")[0], []).append(message)
    said: list[tuple[str, str]] = []
    for turn in turns.values():
        texts = [message.content for message in turn if message.role == "user"]
        if not texts or turn[-1].role != "assistant":
            raise ValueError(f"{texts} and {turn[-1].content!r} are no question and its answer")
        said += [(text, turn[-1].status) for text in texts]
    if len(dict(said)) != len(said):
        raise ValueError("a message was answered twice")
    return said


def _question(rng: random.Random) -> str:
    """Return a question that the built-in model can answer."""
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
