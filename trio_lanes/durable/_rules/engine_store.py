"""`EngineStore`: the calls of `Store`, as transactions of an `Engine`."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Sequence,
)
from functools import partial
from typing import Final, Self, TypeVar, final

import trio

from .._contract.act import NO_HINTS as NO_HINTS
from .._contract.act import Act, PortionedAct, Question
from .._contract.act import Hints as Hints
from .._contract.protocol import ServedAt
from .._contract.records import Ended, Finish, Step
from .._contract.state import DEAD, ENDED
from .._contract.waiter import Waiter
from . import lines, talk
from .engine import Engine
from .job_record import JobRecord
from .queues import Queues

T = TypeVar("T")

MAX_PAYLOAD: Final = 1024 * 1024
PATIENCE: Final = 5.0
MAX_ALIVE: Final = 10_000
PORTION: Final = 500
"""How many jobs one transaction clears, requeues or purges; others can run between two."""


class EngineStore(ABC):
    """A store of tables: all calls of `Store`, except the calls that open it and keep its lease."""

    def __init__(self, max_payload: int = MAX_PAYLOAD, patience: float = PATIENCE) -> None:
        self.max_payload = max_payload
        self.patience = patience
        self.steps_ahead: bool = False
        self.instance: str = ""
        """The incarnation that makes the next call: each call reads it at its beginning."""
        self._waiters: Final[dict[int, set[_Waiter]]] = {}
        self._alive: Final[set[int]] = set()
        """Jobs that have not ended, as far as known: a wait for one need not read the tables."""
        self._news: Final[OrderedDict[int, None]] = OrderedDict()
        """The last jobs of which other processes gave news, which may come before `_tell`."""
        self._waiter_came = trio.Event()
        self._poke, self._pokes = trio.open_memory_channel[None](1)

    @abstractmethod
    def _transact(
        self, act: Callable[[Engine], T], ticket: str = "", hints: Hints = NO_HINTS
    ) -> Awaitable[T]:
        """Call ``act`` in a transaction, then `_tell` its effects. It is not cancelled halfway.

        With a ticket, it is called unless the act with this ticket is done.
        """

    @abstractmethod
    async def _read(self, look: Callable[[Queues], T], *, long: bool = False) -> T:
        """Call ``look``, which changes nothing; ``long`` if it may read every job."""

    def _tell(self, accepted: list[int], ended: list[tuple[int, Ended | None]], look: bool) -> None:
        """Announce the effects of a transaction: wake the tasks that wait for them."""
        if accepted and len(self._alive) < MAX_ALIVE:
            self._alive.update(id for id in accepted if id not in self._news)
        for id, how in ended:
            if how is not None:
                self._alive.discard(id)
            for waiter in self._waiters.pop(id, ()):
                waiter.see(how)
        if look:
            self._look_again()

    def _look_again(self) -> None:
        try:
            self._poke.send_nowait(None)
        except trio.WouldBlock:
            pass  # a wake-up is pending already

    async def _wait_for_waiter(self) -> None:
        """Wait until a task waits for a job."""
        while not self._waiters:
            self._waiter_came = trio.Event()
            await self._waiter_came.wait()

    def _wake_waiters(self, ids: Iterable[int] | None = None) -> None:
        """Have tasks that wait for jobs, or for all, read their jobs again.

        Another process may have changed them.
        """
        if ids is None:
            self._alive.clear()
            ids = list(self._waiters)
        for id in ids:
            self._alive.discard(id)
            self._news[id] = None
            if len(self._news) > MAX_ALIVE:
                self._news.popitem(last=False)
            for waiter in self._waiters.pop(id, ()):
                waiter.see(None)

    def wake(self) -> AsyncIterator[None]:
        return self._pokes  # no generator: a caller that is cancelled has nothing to clean up

    # ---- acts and questions

    async def do(self, act: Act[T], ticket: str) -> T:
        me = self.instance
        if isinstance(act, PortionedAct):
            return await self._in_portions(act, ticket)  # type: ignore[return-value]  # int is T

        def apply(engine: Engine) -> T:
            engine.caller = me
            return act.apply(engine)

        return await self._transact(apply, ticket, act.hints)

    async def _in_portions(self, act: PortionedAct, ticket: str) -> int:
        """Do an act in portions, as a whole; other transactions can run between two.

        Each portion is an act of its own, which has the same ticket if it is asked again.
        """
        portion = partial(act.portion, limit=PORTION)
        await trio.lowlevel.checkpoint_if_cancelled()
        with trio.CancelScope(shield=True):
            done, after = await self._transact(partial(portion, after=None), ticket)
            while after is not None:
                number, after = await self._transact(
                    partial(portion, after=after), f"{ticket} {done}"
                )
                done += number
        return done

    async def look(self, question: Question[T]) -> T:
        return await self._read(question.answer, long=question.long)

    async def step(self, number: int, finished: Sequence[Finish], room: int) -> Step:
        me = self.instance
        return await self._transact(
            lambda engine: engine.step(me, number, finished, room),
            hints=Hints(ids=[finish.id for finish in finished], room=room),
        )

    # ---- instances

    async def _join(
        self,
        ticket: str,
        lost: Sequence[tuple[int, int]],
        held: Collection[int],
        *,
        lease_ttl: float,
        alone: bool,
    ) -> None:
        former = self.instance
        if former == ticket:  # it was asked before, and got an answer
            former = ""
        await self._transact(
            lambda engine: engine.join(
                ticket,
                lease_until=engine.now + lease_ttl,
                alone=alone,
                former=former,
                lost=lost,
                held=held,
            )
        )
        self.instance = ticket

    async def leave(self) -> None:
        me = self.instance
        await self._transact(lambda engine: engine.remove_instance(me))

    async def declare_dead(self, host: str, pid: int) -> None:
        def remove(engine: Engine) -> None:
            for info in engine.tables.instances():
                if (info.host, info.pid) == (host, pid):
                    engine.remove_instance(info.id)

        await self._transact(remove)

    async def wait(self, id: int) -> Ended | None:
        while True:
            with self._waiting(id) as waiter:
                if id not in self._alive:
                    job = await self._read(lambda engine: engine.known(id))
                    if job is None:
                        return None
                    how = _ended_of(job)
                    if how is not None:
                        return how
                await waiter.wait()
            if waiter.how is not None:
                return waiter.how

    def _waiting(self, id: int) -> _Waiter:
        """Return a waiter for news of a job; it is registered for the time of its block."""
        self._waiter_came.set()
        return _Waiter(self._waiters, id)

    async def _until(self, id: int, ask: Callable[[], Awaitable[tuple[T] | None]]) -> T:
        """Ask again, whenever there is news of a job, until there is an answer."""
        while True:
            with self._waiting(id) as waiter:  # before it asks: news may come meanwhile
                found = await ask()
                if found is not None:
                    return found[0]
                await waiter.wait()

    async def events(self, id: int, after: int) -> Sequence[tuple[int, str]] | None:
        return await self._until(id, lambda: self._read(lambda all: talk.events(all, id, after)))

    async def sent(self, id: int, number: int) -> bool:
        return await self._until(id, lambda: self._read(lambda all: talk.sent(all, id, number)))

    async def receive(self, id: int, fence: int, after: int) -> tuple[int, str] | None:
        me = self.instance

        def take(engine: Engine) -> tuple[tuple[int, str] | None] | None:
            engine.caller = me
            return talk.receive(engine, id, fence, after)

        return await self._until(id, lambda: self._transact(take, hints=Hints(ids=[id])))

    async def served(self, request: int) -> ServedAt | None:
        me = self.instance
        while True:
            with self._waiting(request) as waiter:
                asked_at = trio.current_time()
                found = await self._transact(
                    lambda engine: lines.look(engine, request) if engine.is_alive(me) else None
                )
                if found is None or found[0] is not None:
                    return None if found is None else found[0]
                with trio.move_on_at(math.inf if found[1] is None else asked_at + found[1]):
                    await waiter.wait()


def _ended_of(job: JobRecord) -> Ended | None:
    """Return how a job ended; None if it has not ended and is not dead."""
    if job.state in ENDED or job.state is DEAD:
        return Ended(job.state, job.outcome or "null")
    return None


@final
class _Waiter(Waiter):
    """A task that waits for news of a job, from the beginning of a block to its end."""

    __slots__ = ("_by_id", "_id")

    def __init__(self, by_id: dict[int, set[_Waiter]], id: int) -> None:
        super().__init__()
        self._by_id: Final = by_id
        self._id: Final = id

    def __enter__(self) -> Self:
        self._by_id.setdefault(self._id, set()).add(self)
        return self

    def __exit__(self, *_: object) -> None:
        waiters = self._by_id.get(self._id)
        if waiters is not None:
            waiters.discard(self)
            if not waiters:
                del self._by_id[self._id]
