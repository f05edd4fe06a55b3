"""`EngineStore`: the calls of `Store`, as transactions of an `Engine`."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Final, TypeAlias, TypeVar, final

import trio

from .._contract.act import NO_LOOKUPS as NO_LOOKUPS
from .._contract.act import Act, PortionedAct, Question
from .._contract.act import Lookups as Lookups
from .._contract.protocol import ServedAt
from .._contract.records import Ended, Finish, InstanceInfo, Step, StoreActivity
from .._contract.state import DEAD, ENDED
from .._contract.waiter import Waiters
from . import lines, talk
from .commits import Commits
from .engine import Engine
from .queues import Queues

T = TypeVar("T")

logger: Final = logging.getLogger("trio_lanes.durable")

MAX_PAYLOAD: Final = 1024 * 1024
PATIENCE: Final = 5.0
JOBS_A_STEP: Final = 500
"""How many jobs one transaction clears, requeues or purges; others can run between two."""


Transaction: TypeAlias = tuple[Callable[[Engine], T], str, Lookups]
"""An act in a transaction, its ticket, and what it will look up."""


@final
class _WakeUps:
    """The wake-ups of one worker. It is no generator: a cancelled caller has nothing to clean up.

    Attributes:
      pending: whether one was sent that neither the worker nor a step of it has met.
    """

    def __init__(self) -> None:
        self.pending = False
        self._listeners: Final = trio.lowlevel.ParkingLot()

    def send(self) -> None:
        """Wake the worker up."""
        self.pending = True
        self._listeners.unpark_all()

    def __aiter__(self) -> _WakeUps:
        return self

    async def __anext__(self) -> None:
        if self.pending:
            await trio.lowlevel.checkpoint()
        while not self.pending:  # a step may have met it meanwhile
            await self._listeners.park()
        self.pending = False


_id_of: Final = attrgetter("id")


class EngineStore(ABC):
    """A store of tables: all calls of `Store`, except the call that opens it."""

    def __init__(self, max_payload: int = MAX_PAYLOAD, patience: float = PATIENCE) -> None:
        self.max_payload = max_payload
        self.patience = patience
        self.steps_ahead: bool = False
        self.claims_last: bool = False
        self.leased: bool = True
        self.renewed: trio.Event | None = None
        self.instance: str = ""
        """The incarnation that makes the next call: each call reads it at its beginning."""
        self._commits = Commits()
        self._waiters: Final = Waiters()
        self._wake_ups: Final = _WakeUps()
        self._look_again: Final = self._wake_ups.send

    @abstractmethod
    def _transact(
        self, act: Callable[[Engine], T], ticket: str = "", lookups: Lookups = NO_LOOKUPS
    ) -> Coroutine[Any, Any, T]:
        """Call ``act`` in a transaction, then `_announce` its effects. It is not cancelled halfway.

        With a ticket, it is called unless the act with this ticket is done.
        """

    @abstractmethod
    async def _read(self, look: Callable[[Queues], T], *, long: bool = False) -> T:
        """Call ``look``, which changes nothing; ``long`` if it may read every job."""

    def _announce(
        self, accepted: list[int], news: list[tuple[int, Ended | None]], look: bool
    ) -> None:
        """Announce the effects of a transaction: wake the tasks that wait for them."""
        if accepted:
            self._waiters.accepted(accepted)
        for id, end in news:
            self._waiters.wake(id, end)
        if look:
            self._look_again()

    def _wake_waiters(self, ids: Iterable[int] | None = None) -> None:
        """Have tasks that wait for jobs, or for all, read their jobs again.

        Another process may have changed them.
        """
        if ids is None:
            self._waiters.all_changed()
        else:
            for id in ids:
                self._waiters.changed(id)

    def wake(self) -> AsyncIterator[None]:
        return self._wake_ups

    # ---- acts and questions: not async themselves, to spare each job calls at each resumption

    def do(self, act: Act[T], ticket: str) -> Coroutine[Any, Any, T]:
        if isinstance(act, PortionedAct):
            return self._in_portions(act, ticket)  # type: ignore[return-value]  # int is T
        return self._transact(*self._of_act(act, ticket))

    def _of_act(self, act: Act[T], ticket: str) -> Transaction[T]:
        me = self.instance

        def apply(engine: Engine) -> T:
            engine.caller = me
            return act.apply(engine)

        return apply, ticket, act.lookups

    async def _in_portions(self, act: PortionedAct, ticket: str) -> int:
        """Do an act in portions, as a whole; other transactions can run between two.

        Each portion is an act of its own, which has the same ticket if it is asked again.
        """
        portion = partial(act.portion, limit=JOBS_A_STEP)
        await trio.lowlevel.checkpoint_if_cancelled()
        with trio.CancelScope(shield=True):
            done, after = await self._transact(partial(portion, after=None), ticket)
            while after is not None:
                number, after = await self._transact(
                    partial(portion, after=after), f"{ticket} {done}"
                )
                done += number
        return done

    def look(self, question: Question[T]) -> Coroutine[Any, Any, T]:
        return self._read(question.answer, long=question.long)

    def step(self, number: int, finished: Sequence[Finish], room: int) -> Coroutine[Any, Any, Step]:
        return self._transact(*self._of_step(number, finished, room))

    def _of_step(self, number: int, finished: Sequence[Finish], room: int) -> Transaction[Step]:
        me = self.instance
        self._wake_ups.pending = False  # this step sees what they were sent for
        lookups = Lookups(ids=list(map(_id_of, finished)), room=room)
        return lambda engine: engine.step(me, number, finished, room), "", lookups

    def hear_end(self, id: int, hear: Callable[[Ended | None], None]) -> bool:
        """Have a function called when a job ends; False: it may have ended, and is not.

        It is called once, with None if another process may have changed the job.
        """
        return self._waiters.hear_end(id, hear)

    # ---- instances

    def activity(self) -> StoreActivity | None:
        """Return how the commits of this object go, for a heartbeat; None: nothing is known."""
        return self._commits.activity()

    async def join(
        self, ticket: str, lost: Sequence[tuple[int, int]] = (), held: Collection[int] = ()
    ) -> None:
        former, activity = self.instance, self.activity() if self.leased else None
        if former == ticket:  # it was asked before, and got an answer
            former = ""

        def join(engine: Engine) -> list[InstanceInfo]:
            until = self._lease_until(engine)
            engine.join(
                ticket, lease_until=until, former=former, lost=lost, held=held, activity=activity
            )
            return engine.given_up

        tell_given_up(await self._transact(join))
        self.instance = ticket

    async def beat(self) -> bool:
        me, activity = self.instance, self.activity()

        def beat(engine: Engine) -> tuple[bool, list[InstanceInfo]]:
            return engine.beat(me, self._lease_until(engine), activity), engine.given_up

        alive, given_up = await self._transact(beat)
        tell_given_up(given_up)
        return alive

    def _lease_until(self, engine: Engine) -> float:
        return engine.now + engine.opening.lease_ttl if self.leased else math.inf

    async def leave(self) -> None:
        me = self.instance
        await self._transact(lambda engine: engine.remove_instance(me))

    async def declare_dead(self, instance: str) -> None:
        await self._transact(lambda engine: engine.remove_instance(instance))

    # ---- waits

    def wait(self, id: int) -> Coroutine[Any, Any, Ended | None]:
        return self._waiters.end_of(id, lambda: self._read(lambda all: _end_of(all, id)))

    async def events(self, id: int, after: int) -> Sequence[tuple[int, str]] | None:
        return await self._waiters.until(
            id, lambda: self._read(lambda all: talk.events(all, id, after))
        )

    async def sent(self, id: int, number: int) -> bool:
        return await self._waiters.sent(
            id, lambda: self._read(lambda all: talk.sent(all, id, number))
        )

    async def receive(self, id: int, fence: int, after: int) -> tuple[int, str] | None:
        me = self.instance

        def take(engine: Engine) -> tuple[tuple[int, str] | None] | None:
            engine.caller = me
            return talk.receive(engine, id, fence, after)

        return await self._waiters.until(
            id, lambda: self._transact(take, lookups=Lookups(ids=[id]))
        )

    async def served(self, request: int) -> ServedAt | None:
        me = self.instance

        def look(engine: Engine) -> tuple[ServedAt | None, float | None] | None:
            return lines.look(engine, request) if engine.is_alive(me) else None

        return await self._waiters.served(request, lambda: self._transact(look))


def tell_given_up(instances: Iterable[InstanceInfo]) -> None:
    """Say in the log which instances this one has given up."""
    for one in instances:
        logger.warning(
            "the instance %s on %s %d has sent no heartbeat for %.0f s, and is given up: its %d"
            " runs are given back, and count a crash",
            *(one.id, one.host, one.pid, one.silent, one.running),
        )


def _end_of(queues: Queues, id: int) -> tuple[Ended | None] | None:
    """Return how a job ended, or None if it is unknown, in a tuple; None: it has not ended."""
    job = queues.known(id)
    if job is None:
        return (None,)
    over = job.state in ENDED or job.state is DEAD
    return (Ended(job.state, job.outcome or "null"),) if over else None
