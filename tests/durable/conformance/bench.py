"""The bench of a test: its store, its clock, and handlers that wait for the test."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar, final

import trio
import trio.testing

from trio_lanes.durable import (
    Claim,
    DurableJob,
    DurableLanes,
    DurableRun,
    DurableState,
    Finish,
    LaneLimit,
    MemoryStore,
    Opening,
    RetryPolicy,
    Step,
    Store,
    SubmittedJob,
    Succeeded,
    current_job,
    open_durable_lanes,
)
from trio_lanes.durable.acts.jobs import Enqueue
from trio_lanes.durable.store import Act

T = TypeVar("T")
Story = TypeVar("Story", bound=Callable[..., Awaitable[None]])
MakeStore: TypeAlias = Callable[[Path], Store]
"""Makes a store that is not open. All stores of one folder have the same data."""
MakeClock: TypeAlias = Callable[[], Any]
"""Makes a clock for Trio and the stores, on which time passes by ``jump(seconds)`` alone."""
LEASE: Final = 1.0
"""Seconds of the lease of instances that a test lets die."""
ONCE: Final = RetryPolicy(max_attempts=1)
RETURNED: Final = Succeeded("1")
STOP: Final = '{"reason": null}'
ERROR: Final = json.dumps({"type": "ValueError", "message": "no", "traceback": ""})
STUCK_AFTER: Final = 180.0
"""Real seconds; far longer than any test takes on a busy machine."""


@final
class Played:
    """One instance that a test plays itself: the calls of its store, with numbers and tickets.

    Attributes:
      store: the store; every other attribute of it is an attribute of this object too.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._steps = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    async def join(self, lost: Sequence[tuple[int, int]] = (), held: Sequence[int] = ()) -> None:
        """Become a new incarnation, whose steps are counted from 1."""
        await self.store.join(ticket(), lost, held)
        self._steps = 0

    async def do(self, act: Act[T], name: str | None = None) -> T:
        """Do an act, with a new ticket unless one is given."""
        return await self.store.do(act, ticket() if name is None else name)

    async def twice(self, act: Act[T]) -> T:
        """Do an act, and ask for it again, which does nothing more and has the same answer."""
        mine = ticket()
        answer = await self.do(act, mine)
        assert await self.do(act, mine) == answer
        return answer

    async def enqueue(self, batch: Sequence[SubmittedJob]) -> list[int]:
        """Accept jobs."""
        return list(await self.do(Enqueue(batch)))

    async def step(self, finished: Sequence[Finish], room: int) -> Step:
        """Take the next step."""
        self._steps += 1
        return await self.store.step(self._steps, finished, room)

    async def claim(self, room: int = 1) -> tuple[Claim, ...]:
        """Claim jobs by the next step."""
        return (await self.step([], room)).claims

    async def begin(self, *jobs: SubmittedJob) -> tuple[Claim, ...]:
        """Accept jobs, and claim as many."""
        await self.enqueue(jobs)
        return await self.claim(len(jobs))

    async def end(self, run: Claim, outcome: Any = RETURNED, room: int = 0) -> Step:
        """End a run by the next step, and claim up to ``room`` jobs."""
        return await self.step(ends(outcome, run), room)


def ends(outcome: Any, *runs: Claim) -> list[Finish]:
    """Return the ends of runs, which have the same outcome."""
    return [Finish(run.id, run.fence, outcome) for run in runs]


def new_job(payload: object = 1, name: str = "echo", **options: Any) -> SubmittedJob:
    """Return a job as lanes give it to a store."""
    return SubmittedJob(name=name, payload=json.dumps(payload), **options)


def ticket() -> str:
    """Return a ticket that no other call has."""
    return uuid.uuid4().hex


class Bench:
    """The store, the clock and the handlers of one test, which is a story of a subclass.

    Attributes:
      log: the entries of the handlers, in order.
      fences: the fences of locks, in order.
    """

    def __init__(
        self,
        make: MakeStore,
        folder: Path,
        clock: trio.testing.MockClock | None,
        pause: float = 0.0,
    ) -> None:
        self._make = make
        self._folder = folder
        self._clock = clock
        self._pause = pause
        self._rounds = 8
        self._gates: dict[str, trio.Event] = {}
        self._open: list[tuple[bool, DurableLanes]] = []  # (whether it works, itself)
        self.log: list[Any] = []
        self.fences: list[int] = []

    @property
    def virtual(self) -> bool:
        """Whether the time of the test is virtual."""
        return self._clock is not None

    @property
    def leased(self) -> bool:
        """Whether instances have leases; else a store takes one instance that works."""
        return self.store().leased

    @property
    def lanes(self) -> DurableLanes:
        """The first instance that is open and works; or the first, if none works."""
        return max(self._open, key=lambda one: one[0])[1]

    def lacks(self, story: Callable[..., object]) -> list[str]:
        """Return what a story needs and the store of this test has not."""
        here = {"leases": self.leased, "virtual time": self.virtual}
        return [what for what in getattr(story, "needs", ()) if not here[what]]

    def store(self) -> Store:
        """Return a store over the data of this test."""
        store = self._make(self._folder)
        if isinstance(store, MemoryStore):
            self._rounds = 1  # nothing of it is outside of Trio
        return store

    def played(self) -> Played:
        """Return an instance over the data of this test, which the test plays itself."""
        return Played(self.store())

    @asynccontextmanager
    async def playing(self, *, dies: bool = False, **options: Any) -> AsyncIterator[Played]:
        """Play an instance that has joined, and leaves at the end of the block, unless it dies."""
        store = self.played()
        async with store.open(opening(**options)):
            await store.join()
            yield store
            if not dies:
                await store.leave()

    def instance(
        self, *, only: Sequence[str] = (), lanes: Any = None, **options: Any
    ) -> AbstractAsyncContextManager[DurableLanes]:
        """Return durable lanes with the handlers of this bench, or with some of them."""
        handlers: dict[str, Callable[[Any], Awaitable[Any]]] = {
            "bad": self.bad,
            "echo": self._echo,
            "gate": self._gate,
            "once": self._once,
            "other": self._echo,
            "steps": self._steps,
            "stubborn": self._stubborn,
        }
        handlers.update(options.pop("handlers", {}))
        if only:
            handlers = {name: handlers[name] for name in only}
        options.setdefault("lease_ttl", 3600)
        options.setdefault("grace", 0)
        limits = {"main": 4, "cron": 1} if lanes is None else lanes
        store = options.pop("store", self.store())
        works = options.get("worker", True)
        return self._listed(works, open_durable_lanes(store, handlers, limits, **options))

    @asynccontextmanager
    async def _listed(
        self, works: bool, instance: AbstractAsyncContextManager[DurableLanes]
    ) -> AsyncIterator[DurableLanes]:
        async with instance as lanes:
            self._open.append((works, lanes))
            try:
                yield lanes
            finally:
                self._open.remove((works, lanes))

    async def _echo(self, payload: Any) -> Any:
        self.log.append(payload)
        return payload

    async def bad(self, payload: Any) -> None:
        """Log the payload, and fail."""
        self.log.append(payload)
        raise ValueError("no")

    async def _once(self, payload: Any) -> Any:
        """Log the payload, and fail if it was not in the log before."""
        self.log.append(payload)
        if self.log.count(payload) == 1:
            raise ValueError("no")
        return payload

    async def _gate(self, payload: Any) -> Any:
        """Log the begin, and end when the test opens the gate."""
        self.log.append(f"{payload} begins")
        try:
            await self.gate(payload).wait()
        except trio.Cancelled:
            self.log.append(f"{payload} is cancelled")
            raise
        self.log.append(f"{payload} ends")
        return payload

    async def _steps(self, payload: Sequence[str]) -> None:
        """Take each lock, and wait for each gate; give the locks back at the end."""
        async with AsyncExitStack() as held:
            for step in payload:
                what, _, name = step.partition(" ")
                if what == "lock":
                    await held.enter_async_context(self.lanes.lock(name))
                else:
                    await self.gate(name).wait()

    async def _stubborn(self, payload: Any) -> None:
        """Log the begin, and end when the test opens the gate, cancelled or not."""
        self.log.append(f"{payload} begins")
        with trio.CancelScope(shield=True):
            await self.gate(payload).wait()

    def gate(self, name: str) -> trio.Event:
        """Return the event that the run with a payload waits for."""
        return self._gates.setdefault(name, trio.Event())

    def begun(self) -> list[str]:
        """Return the payloads of the gates that have begun, in order."""
        lines = [entry for entry in self.log if isinstance(entry, str)]
        return [entry.removesuffix(" begins") for entry in lines if entry.endswith(" begins")]

    async def settle(self) -> None:
        """Wait until nothing more happens without the passage of time."""
        if self._pause:  # the clock of a test may stand still
            await trio.to_thread.run_sync(time.sleep, self._pause)
        for _ in range(self._rounds):
            await trio.testing.wait_all_tasks_blocked()
            await self.lanes.pause_for("session:unused", 0)  # returns after all earlier calls
        await trio.testing.wait_all_tasks_blocked()

    def open(self, *names: str) -> None:
        """Open gates."""
        for name in names:
            self.gate(name).set()

    async def gates(self, names: Iterable[str], **options: Any) -> list[DurableJob]:
        """Submit jobs that wait for gates; return them when nothing more happens."""
        jobs = [await self.lanes.submit("gate", name, **options) for name in names]
        await self.settle()
        return jobs

    async def submitted(self, *args: Any, **options: Any) -> DurableJob:
        """Submit a job, and wait until nothing more happens."""
        job = await self.lanes.submit(*args, **options)
        await self.settle()
        return job

    async def opened(self, name: str) -> None:
        """Open a gate, and wait until nothing more happens."""
        self.gate(name).set()
        await self.settle()

    async def advance(self, seconds: float) -> None:
        """Let time pass, and wait until nothing more happens."""
        if self._clock is None:
            await trio.sleep(seconds)
        else:
            self._clock.jump(seconds)
        await self.settle()

    async def expect(self, *moments: tuple[float, Sequence[Any]], ordered: bool = True) -> None:
        """Let time pass, so many seconds before each look; then the log must have these entries.

        Args:
          ordered: False for entries of tasks that go on together.
        """
        for seconds, entries in moments:
            await self.advance(seconds)
            log = self.log if ordered else sorted(self.log)
            assert log == [*entries], (seconds, log)

    async def lease_over(self, share: float = 1.1) -> None:
        """Let the leases of dead instances expire, or a share of their time pass."""
        if self.leased and self._clock is None:
            await trio.sleep(LEASE * share)
        elif self.leased:
            assert self._clock is not None
            self._clock.jump(LEASE * share)

    @asynccontextmanager
    async def doomed(self, *jobs: SubmittedJob, **options: Any) -> AsyncIterator[list[Claim]]:
        """Claim jobs as an instance that crashes at the end of the block."""
        async with self.playing(dies=True, **options) as store:
            if jobs:
                await store.enqueue(jobs)
            claims = await store.claim(100)
            while not (claims or await store.beat()):
                # the machine was so slow that the lease had expired
                await store.join()
                claims = await store.claim(100)
            yield list(claims)
        await self.lease_over()

    @contextmanager
    def raises(self, *kinds: type[BaseException]) -> Iterator[list[Any]]:
        """A block that must raise an exception of one of these types; it gives a list with it."""
        caught: list[Any] = []
        try:
            yield caught
        except kinds as error:
            caught.append(error)
        assert caught, f"none of {kinds} was raised"

    async def fails(self, job: DurableJob, kind: type[BaseException]) -> Any:
        """Wait for a job, which must raise an exception of this type; return the exception."""
        with self.raises(kind) as caught:
            await job.wait()
        return caught[0]

    async def state(self, id: int) -> DurableState:
        """Return the state of a job."""
        return (await self.lanes.job(id).status()).state


def needs(*what: str) -> Callable[[Story], Story]:
    """Mark a story that is played only where there are ``"leases"`` or ``"virtual time"``."""

    def mark(story: Story) -> Story:
        vars(story)["needs"] = what
        return story

    return mark


def this_run() -> DurableRun:
    """Return the run of the handler that calls this."""
    run = current_job()
    assert run is not None
    return run


def opening(
    names: Sequence[str] = ("echo", "gate"),
    max_crashes: float = 3,
    hold: bool = False,
    **others: Any,
) -> Opening:
    """Return the arguments of an instance that a test plays itself, in this or another process."""
    return Opening(
        names=frozenset(names),
        max_crashes=max_crashes,
        hold=hold,
        result_ttl=100.0,
        worker=True,
        **{"lanes": {"main": LaneLimit(4), "cron": LaneLimit(1)}, "lease_ttl": LEASE, **others},
    )
