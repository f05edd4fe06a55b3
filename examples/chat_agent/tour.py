"""A tour in ten cards. Each card does one thing with lanes, and says what it saw.

A card has lanes of its own, so it disturbs no chat. The terminal and the page show the same cards.
Nothing here is from memory: every number and every name in a line was read from the lanes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

import attrs
import trio

from trio_lanes import LaneDeadlockError, Lanes, open_lanes
from trio_lanes.agents import SettledKind, WhenBusy

from .agent import TURNS, Agent
from .builtin_model import BuiltinModel
from .events import Began, Ended, Event, Noted, Steered
from .limits import Limits
from .model import Event as Word
from .model import Message, ModelBusyError
from .screen import shorten
from .sessions import FailuresTold, Sessions
from .why import why

STEP: Final = 0.3  # seconds that a step of a card takes, so that people can follow it


class Stage:
    """Lanes and sessions of one card, and what happened in them."""

    name: Final = "built-in"

    def __init__(self, lanes: Lanes) -> None:
        self.lanes: Final = lanes
        self.sessions: Final = Sessions(lanes, Agent(lanes, self, {}, self._tell), self._tell)
        self.seen: Final[list[str]] = []
        self.busy: Final[list[float]] = []  # how long the model says that it is busy, next times
        self.most = 0  # calls of the model at once
        self._now = 0

    @asynccontextmanager
    async def stream(self, messages: Sequence[Message]) -> AsyncIterator[AsyncIterator[Word]]:
        """Call the model: the built-in model, with the faults of the card."""
        if self.busy:
            raise ModelBusyError("429 Too Many Requests", self.busy.pop())
        self._now += 1
        self.most = max(self.most, self._now)
        try:
            async with BuiltinModel(0.01).stream(messages) as words:
                yield words
        finally:
            self._now -= 1

    def _tell(self, event: Event) -> None:
        match event:
            case Began(session, texts):
                self.seen.append(f"{session} begins: {', '.join(texts)}")
            case Steered(session, texts):
                self.seen.append(f"the turn of {session} takes in: {', '.join(texts)}")
            case Noted(session, text):
                self.seen.append(f"{session}: {text}")
            case Ended(session, ending):
                self.seen.append(f"{session} ends{ending and ': '}{ending}")
            case _:
                pass


Play = Callable[[Stage], Awaitable[Sequence[str]]]


@attrs.frozen
class Card:
    """One thing that lanes do.

    Attributes:
      says: what is done.
      play: does it, and returns what was seen.
      turns: the limit of the lane `main`.
    """

    name: str
    says: str
    play: Play
    turns: int = 4


CARDS: Final[list[Card]] = []


def _card(name: str, says: str, turns: int = 4) -> Callable[[Play], Play]:
    def add(play: Play) -> Play:
        CARDS.append(Card(name, says, play, turns))
        return play

    return add


async def play(number: int) -> str:
    """Play a card, counted from 1, and return its lines."""
    card = CARDS[number - 1]
    limits = Limits().with_turns(card.turns)
    async with open_lanes(
        limits.lanes(warn_after=float("inf")), groups=limits.groups(), instruments=[FailuresTold()]
    ) as lanes:
        seen = await card.play(Stage(lanes))
    head = f"{number} of {len(CARDS)}, {card.name}: {card.says}"
    return "\n".join([head, *(f"  {line}" for text in seen for line in text.splitlines())])


# ---- the cards


@_card("order", "Ann says three things at once. They are answered one by one, in that order.")
async def _order(stage: Stage) -> Sequence[str]:
    for text in (f"slow {STEP:g}", "what is 6*7?", "hello"):
        stage.sessions.say("ann", text)
    await stage.lanes.wait_idle()
    return stage.seen


@_card("limit", "Six people speak, and main runs two turns at once. The limit holds.", turns=2)
async def _limit(stage: Stage) -> Sequence[str]:
    receipts = [stage.sessions.say(f"user{n}", f"slow {STEP:g}") for n in range(1, 7)]
    await trio.sleep(STEP / 2)
    main = stage.lanes.statistics().lanes[TURNS]
    first = f"in the middle: {main.active} running, {main.waiting} waiting"
    kinds = [(await receipt.settled()).kind for receipt in receipts]
    return [
        first,
        f"at the end: {kinds.count(SettledKind.RAN)} answered, at most {stage.most} at once",
    ]


@_card("why", "One slot, and Bob has it. Ann asks why she waits, as /why does.", turns=1)
async def _why(stage: Stage) -> Sequence[str]:
    stage.sessions.say("bob", f"slow {STEP:g}")
    await trio.sleep(STEP / 2)
    stage.sessions.say("ann", "hello")
    stage.sessions.say("ann", "and another thing")
    reasons = why(stage.lanes, stage.sessions, "ann")
    await stage.lanes.wait_idle()
    return [*reasons.splitlines(), "then:", *stage.seen[1:]]


@_card("steer", "Ann says more while she is answered. The same turn takes it in.")
async def _steer(stage: Stage) -> Sequence[str]:
    stage.sessions.say("ann", f"slow {STEP:g}")
    await trio.sleep(STEP / 2)
    more = stage.sessions.say("ann", "what about lunch?", WhenBusy.STEER)
    kind = (await more.settled()).kind
    await stage.lanes.wait_idle()
    messages = await stage.sessions.conversation("ann").messages()
    answer = f"it answers: {shorten(str(messages[-1].content), 60)}"
    return [*stage.seen, f"the second message was {kind}", answer]


@_card("interrupt", "Ann is being answered for ten minutes. An urgent message goes first.")
async def _interrupt(stage: Stage) -> Sequence[str]:
    stage.sessions.say("ann", "slow 600")
    await trio.sleep(STEP / 2)
    stage.sessions.say("ann", "this can wait")
    stage.sessions.say("ann", "the house is on fire", WhenBusy.INTERRUPT)
    await stage.lanes.wait_idle()
    return stage.seen


@_card("clear", "One of Ann's messages runs and two wait. Clearing cancels those that wait.")
async def _clear(stage: Stage) -> Sequence[str]:
    first, *waiting = [
        stage.sessions.say("ann", text) for text in (f"slow {STEP:g}", "second", "third")
    ]
    await trio.sleep(STEP / 2)
    count = stage.sessions.clear("ann", "never mind")
    kinds = ", ".join([(await receipt.settled()).kind for receipt in waiting])
    ran = (await first.settled()).kind
    return [f"cleared {count}: {kinds}", f"the running one: {ran}", *stage.seen]


@_card("stuck and reset", "A job ignores its cancellation and has the only slot.", turns=1)
async def _stuck(stage: Stage) -> Sequence[str]:
    lanes = stage.lanes
    released = trio.Event()

    async def stuck() -> None:
        with trio.CancelScope(shield=True):
            await released.wait()

    job = lanes.submit_nowait(stuck, name="stuck", timeout=STEP / 2)
    stage.sessions.say("ann", "hello")
    await trio.sleep(STEP)
    main = lanes.statistics().lanes[TURNS]
    seen = [
        f"after its timeout: {job.state.name.lower()}, and it keeps its slot",
        f"main: {main.active} running, {main.waiting} waiting",
        f"reset gives up {lanes.reset(TURNS)} job; its caller gets: {job.exception}",
    ]
    await lanes.wait_idle()
    released.set()
    return [*seen, *stage.seen]


@_card("deadlock refused", "A job of Ann waits for another job of Ann, which is behind it.")
async def _deadlock(stage: Stage) -> Sequence[str]:
    lanes = stage.lanes

    async def inner() -> None:
        raise AssertionError("it never starts")

    async def outer() -> str:
        try:
            await lanes.run(inner, session="ann", name="inner")
        except LaneDeadlockError as error:
            return str(error)
        raise AssertionError

    return [f"refused at once: {await lanes.run(outer, session='ann', name='outer')}"]


@_card("lending", "A turn has the only slot of main, and needs a job in main.", turns=1)
async def _lending(stage: Stage) -> Sequence[str]:
    lanes = stage.lanes
    seen: list[str] = []

    async def inner() -> None:
        slots = lanes.statistics().lanes[TURNS]
        seen.append(f"inner runs: {slots.slots} slot in use, {slots.lent} lent")

    async def outer() -> None:
        await lanes.run(inner, name="inner", yield_slot=True)
        seen.append("outer has its slot back, and goes on")

    await lanes.run(outer, name="outer")
    return seen


@_card("429", "The provider is busy and says for how long. Its lanes pause, and nothing is lost.")
async def _busy(stage: Stage) -> Sequence[str]:
    stage.busy.append(STEP)
    receipts = [stage.sessions.say("ann", "what is up?"), stage.sessions.say("bob", "hello")]
    await trio.sleep(STEP / 2)
    paused = stage.lanes.statistics().lanes[TURNS].paused
    kinds = [(await receipt.settled()).kind for receipt in receipts]
    return [
        *stage.seen,
        f"main was paused: {paused}; answered: {kinds.count(SettledKind.RAN)} of 2",
    ]
