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
    Mapping,
    Sequence,
)
from functools import partial
from typing import Any, Final, Self, TypeVar, final

import trio

from ... import RateLimit
from .._contract.protocol import PAGE
from .._contract.records import (
    CheckReport,
    DurableBlocker,
    DurableStatistics,
    DurableStatus,
    Ended,
    Finish,
    GroupLimit,
    InstanceInfo,
    LaneLimit,
    QueuedJob,
    Selection,
    Step,
    StoreRules,
    SubmittedJob,
)
from .._contract.waiter import Waiter
from . import inspection, lines, orders, talk
from .blockers import blockers
from .engine import Engine
from .lane_limits import configured
from .queues import Queues

T = TypeVar("T")

MAX_PAYLOAD: Final = 1024 * 1024
PATIENCE: Final = 5.0
MOST_ALIVE: Final = 10_000
AT_ONCE: Final = 500
"""How many jobs one transaction clears, requeues or purges; others can run between two."""


@final
class Hints:
    """What a call will look up, for a store that reads it all at once, before the call.

    A store may ignore it, and a call may look up other things too.

    Attributes:
      batch: the jobs that the call accepts.
      ids: the jobs that the call ends or asks for.
      room: how many jobs the call claims at most.
    """

    __slots__ = ("batch", "ids", "room")

    def __init__(
        self, batch: Sequence[SubmittedJob] = (), ids: Sequence[int] = (), room: int = 0
    ) -> None:
        self.batch: Final = batch
        self.ids: Final = ids
        self.room: Final = room


NO_HINTS: Final = Hints()


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
        if accepted and len(self._alive) < MOST_ALIVE:
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
            if len(self._news) > MOST_ALIVE:
                self._news.popitem(last=False)
            for waiter in self._waiters.pop(id, ()):
                waiter.see(None)

    def wake(self) -> AsyncIterator[None]:
        return self._pokes  # no generator: a caller that is cancelled has nothing to clean up

    # ---- jobs

    async def enqueue(self, batch: Sequence[SubmittedJob], ticket: str) -> list[int]:
        return list(
            await self._transact(lambda engine: engine.enqueue(batch), ticket, Hints(batch=batch))
        )

    async def step(self, number: int, finished: Sequence[Finish], room: int) -> Step:
        me = self.instance
        return await self._transact(
            lambda engine: engine.step(me, number, finished, room),
            hints=Hints(ids=[finish.id for finish in finished], room=room),
        )

    async def checkpoint(self, id: int, fence: int, data: str, ticket: str) -> bool:
        me = self.instance
        return await self._transact(lambda engine: engine.checkpoint(me, id, fence, data), ticket)

    async def take(
        self, id: int, fence: int, taken: Mapping[int, str], data: str, ticket: str
    ) -> bool | None:
        me = self.instance
        return await self._transact(
            lambda engine: engine.take(me, id, fence, taken, data), ticket, Hints(ids=[id, *taken])
        )

    async def lend_slot(self, id: int, fence: int, ticket: str) -> bool:
        me = self.instance
        return await self._transact(lambda engine: engine.lend_slot(me, id, fence), ticket)

    async def regain_slot(self, id: int, fence: int, ticket: str) -> bool | None:
        me = self.instance
        return await self._transact(lambda engine: engine.regain_slot(me, id, fence), ticket)

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

    async def bury(self, host: str, pid: int) -> None:
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
                    how = inspection.ended_of(job)
                    if how is not None:
                        return how
                await waiter.wait()
            if waiter.how is not None:
                return waiter.how

    def _waiting(self, id: int) -> _Waiter:
        """Return a waiter for news of a job; it is registered for the time of its block."""
        self._waiter_came.set()
        return _Waiter(self._waiters, id)

    async def emit(self, id: int, fence: int, event: str, ticket: str) -> int | None:
        me = self.instance
        return await self._transact(
            lambda engine: engine.emit(me, id, fence, event), ticket, Hints(ids=[id])
        )

    async def send(
        self, session: str | None, id: int | None, message: str, key: str | None, ticket: str
    ) -> tuple[int, int] | str:
        def act(engine: Engine) -> tuple[int, int] | str:
            if session is not None:
                job = orders.running(engine, session)
            else:
                job = None if id is None else engine.known(id)
            return talk.send(engine, job, message, key)

        told = await self._transact(act, ticket)
        return told if isinstance(told, str) else (told[0], told[1])

    async def sent(self, id: int, number: int) -> bool:
        while True:
            with self._waiting(id) as waiter:
                taken = await self._read(lambda queues: talk.sent(queues, id, number))
                if taken is not None:
                    return taken
                await waiter.wait()

    async def receive(self, id: int, fence: int, after: int) -> tuple[int, str] | None:
        me = self.instance
        while True:
            with self._waiting(id) as waiter:
                found = await self._transact(
                    lambda engine: engine.receive(me, id, fence, after), hints=Hints(ids=[id])
                )
                if not isinstance(found, bool):
                    return found
                if not found:
                    return None
                await waiter.wait()

    async def acquire(
        self, key: str, shared: bool, ticket: str, job: int | None = None
    ) -> tuple[int, float | None] | None:
        me = self.instance
        return _pair(
            await self._transact(lambda engine: engine.acquire(me, key, shared, job), ticket)
        )

    async def spend(
        self,
        quota: str,
        limits: Sequence[RateLimit],
        costs: Mapping[str, int],
        ticket: str,
        job: int | None = None,
    ) -> tuple[int, float | None] | None:
        me = self.instance
        return _pair(
            await self._transact(lambda engine: engine.spend(me, quota, limits, costs, job), ticket)
        )

    async def served(self, request: int) -> float | None:
        me = self.instance
        while True:
            with self._waiting(request) as waiter:
                asked_at = trio.current_time()
                found = await self._transact(lambda engine: engine.look_at_request(me, request))
                if found is None or found[0] is not None:
                    return None if found is None else found[0]
                with trio.move_on_at(math.inf if found[1] is None else asked_at + found[1]):
                    await waiter.wait()

    async def release(self, request: int, used: bool, ticket: str) -> None:
        await self._transact(lambda engine: lines.release(engine, request, used), ticket)

    async def settle(
        self,
        quota: str,
        limits: Sequence[RateLimit],
        at: float,
        change: Mapping[str, int],
        ticket: str,
    ) -> None:
        await self._transact(lambda engine: lines.settle(engine, quota, limits, at, change), ticket)

    async def reset_quota(self, quota: str, ticket: str) -> bool:
        return await self._transact(lambda engine: lines.reset(engine, quota), ticket)

    async def write_log(self, log: str, record: str, ticket: str) -> int | None:
        me = self.instance
        return await self._transact(lambda engine: engine.write_log(me, log, record), ticket)

    async def read_log(self, log: str, after: int) -> list[tuple[int, str, str]]:
        return await self._read(
            lambda queues: inspection.page_of(queues.tables.items(f"log {log}", after, PAGE)),
            long=True,
        )

    async def drop_log(self, log: str, ticket: str) -> bool:
        return await self._transact(
            lambda engine: engine.tables.drop_items(f"log {log}", taken=True), ticket
        )

    async def events(self, id: int, after: int) -> Sequence[tuple[int, str]] | None:
        while True:
            with self._waiting(id) as waiter:  # before it reads: an event may come meanwhile
                try:
                    found = await self._read(lambda queues: talk.events(queues, id, after))
                except LookupError:
                    return None
                if found is not None:
                    return found
                await waiter.wait()

    # ---- control

    async def cancel(self, id: int, outcome: str, ticket: str, running: bool = True) -> bool:
        return await self._transact(
            lambda engine: orders.cancel(engine, id, outcome, running=running), ticket
        )

    async def put_first(self, id: int, ticket: str) -> bool:
        return await self._transact(
            lambda engine: orders.put_first(engine, id), ticket, Hints(ids=[id])
        )

    async def abort(self, session: str, outcome: str, ticket: str) -> bool:
        return await self._transact(lambda engine: orders.abort(engine, session, outcome), ticket)

    async def clear(self, lane: str | None, session: str | None, outcome: str, ticket: str) -> int:
        act = partial(orders.clear, lane=lane, session=session, outcome=outcome, limit=AT_ONCE)
        return await self._in_portions(act, ticket)

    async def pause(
        self, lane: str | None, session: str | None, seconds: float, ticket: str
    ) -> None:
        await self._transact(lambda engine: orders.pause(engine, lane, session, seconds), ticket)

    async def resume(self, lane: str | None, session: str | None, ticket: str) -> None:
        await self._transact(lambda engine: orders.resume(engine, lane, session), ticket)

    async def configure(
        self,
        lanes: Mapping[str, LaneLimit | int | float | None],
        groups: Mapping[str, GroupLimit] | None,
        rules: Mapping[str, Any],
        ticket: str,
    ) -> None:
        await self._transact(lambda engine: orders.configure(engine, lanes, groups, rules), ticket)

    async def requeue(self, of: Selection, ticket: str) -> int:
        return await self._in_portions(partial(orders.requeue, of=of, limit=AT_ONCE), ticket)

    async def purge(self, of: Selection, ticket: str) -> int:
        purged = await self._in_portions(partial(orders.purge, of=of, limit=AT_ONCE), ticket)
        self._wake_waiters()
        return purged

    async def _in_portions(self, act: Callable[..., tuple[int, int | None]], ticket: str) -> int:
        """Do an act in portions, as a whole; other transactions can run between two.

        It returns how many jobs a portion had, and where the next begins. Each portion is an act of
        its own, which has the same name if it is asked again.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        with trio.CancelScope(shield=True):
            done, after = await self._transact(act, ticket)
            while after is not None:
                number, after = await self._transact(partial(act, after=after), f"{ticket} {done}")
                done += number
        return done

    # ---- inspection

    async def lanes(self) -> Mapping[str, LaneLimit]:
        return configured(await self._read(lambda engine: engine.tables.lanes()))

    async def groups(self) -> Mapping[str, GroupLimit]:
        return await self._read(lambda engine: engine.tables.groups())

    async def rules(self) -> StoreRules:
        return await self._read(lambda engine: engine.rules)

    async def queue(self, session: str, limit: int) -> list[QueuedJob]:
        return await self._read(lambda engine: inspection.queue(engine, session, limit), long=True)

    async def status(self, id: int, texts: bool = False) -> DurableStatus | None:
        if texts:
            return await self._read(lambda queues: inspection.with_texts(queues, id), long=True)
        job = await self._read(lambda engine: engine.known(id))
        return None if job is None else inspection.status_of(job)

    async def running(self, session: str) -> DurableStatus | None:
        job = await self._read(lambda queues: orders.running(queues, session))
        return None if job is None else inspection.status_of(job)

    async def blocked_by(self, id: int) -> tuple[DurableBlocker, ...] | None:
        return await self._read(lambda queues: blockers(queues, id))

    async def jobs(self, of: Selection, after: int, limit: int) -> list[DurableStatus]:
        jobs = await self._read(
            lambda engine: engine.tables.select(of, after, min(limit, PAGE), engine.now), long=True
        )
        return [inspection.status_of(job) for job in jobs]

    async def statistics(self) -> DurableStatistics:
        return await self._read(
            lambda engine: inspection.statistics(engine.tables, engine.now), long=True
        )

    async def instances(self) -> list[InstanceInfo]:
        return await self._read(lambda engine: inspection.instances(engine.tables))

    async def check(self, repair: bool) -> CheckReport:
        # first without the write lock: it takes long, and mostly finds nothing to repair
        report = await self._read(lambda queues: inspection.check(queues, repair=False), long=True)
        if not repair or not report.problems:
            return report
        return await self._transact(lambda engine: inspection.check(engine, repair=True))


def _pair(told: Sequence[Any] | None) -> tuple[int, float | None] | None:
    """Return an answer that a store may have kept as a list."""
    return None if told is None else (told[0], told[1])


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
