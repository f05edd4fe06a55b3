"""Every operation, left in every way, wherever it is done.

What lanes do in the middle of something is left in eleven ways: by a deadline, by a failure, by
Ctrl-C. This file has one table of that: `OPERATIONS` x `WAYS` x `WHERE`, all combinations of these
three at Trio's door; at the others (`DOORS`) all of the first two, each in one of the places. With
each there is one thing more that is on (`EXTRAS`). Each two values of the five come up together.
`make chaos` plays all combinations. `IMPOSSIBLE` says which there are not, and why.

A combination is a `Scene`: virtual time, in which the operation begins at once and is left after a
second. Then the block must have ended, by the right exception and no other, and when it should;
each job has settled, once; nothing runs, waits or is left; and a second block works in the same run
of Trio's, or in the same loop. Meanwhile there is no warning, no error in the log and none that
Python could not raise.

A row of the table is a test: an operation and where it is done. It names each combination in it
that fails.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import signal
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from functools import partial
from inspect import isasyncgenfunction
from itertools import product
from typing import Any, Final, NamedTuple

import attrs
import pytest
import trio
from trio.testing import MockClock

import trio_lanes
import trio_lanes.aio
import trio_lanes.durable
from tests.support.chaos import THOROUGH
from tests.support.covering import covering, pairs
from tests.support.doors import IN_ASYNCIO, VirtualLoop
from tests.support.programs import PATIENCE as REAL_PATIENCE
from trio_lanes import (
    Adaptive,
    Coalesce,
    Job,
    JobCancelledError,
    JobState,
    LaneConfig,
    LaneGroup,
    LaneInstrument,
    LanesClosedError,
    RateLimit,
    current_job,
)
from trio_lanes.agents import Inbox, Turn
from trio_lanes.durable import LockLostError, MemoryStore, StoreUnavailableError
from trio_lanes.testing import LaneRecorder

LEFT_AT: Final = 1.0
"""The second in which the operation is left."""

CLEANUP: Final = 0.25
"""How many seconds a body takes to clean up."""

FOR_EVER: Final = 100.0
"""Seconds of virtual time that no scene takes."""

PATIENCE: Final = 3.0
"""Seconds of the processor after which a scene counts as endless; most take some thousandths."""


LANES_HAVE_ENDED: Final = (
    JobCancelledError,
    LanesClosedError,
    LockLostError,
    StoreUnavailableError,
)


LOGGED: Final = ("refusing new work", "lanes are closed for good since")
"""How the lines of the log begin that say how it is: not that something is wrong."""


class Left(Exception):
    """The failure by which something is left."""


class Overloaded(Exception):
    """The failure that says that an `Adaptive` lane runs too much."""


class Endless(BaseException):
    """What ends a scene that never ends."""


# ---- the doors


class Door(NamedTuple):
    """An event loop, and lanes for it."""

    io: Any  # `trio`, or what stands for it
    lanes: Any
    run: Callable[[Callable[[], Awaitable[None]]], None]
    interrupt: type[BaseException]  # what Ctrl-C is in the main task
    tasks: Callable[[], set[Any]]


def run_in_trio(main: Callable[[], Awaitable[None]]) -> None:
    trio.run(main, clock=MockClock(autojump_threshold=0))


def tasks_of_trio() -> set[Any]:
    """The tasks of this run but Trio's own."""
    root = trio.lowlevel.current_root_task()
    assert root is not None
    found: set[Any] = set()
    todo: list[Any] = [*root.child_nurseries[-1].child_tasks]  # the other has the system tasks
    while todo:
        task = todo.pop()
        found.add(task)
        todo += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
    return found


def run_in_asyncio(main: Callable[[], Any], *, eager: bool = False) -> None:
    unhandled: list[Any] = []
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        loop = runner.get_loop()
        loop.set_exception_handler(lambda _, context: unhandled.append(context))
        if eager:
            loop.set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined]
        runner.run(main())
    assert not unhandled, unhandled
    assert not trio.lowlevel.in_trio_run()


def run_eagerly(main: Callable[[], Any]) -> None:
    run_in_asyncio(main, eager=True)


def of_asyncio(run: Callable[[Callable[[], Awaitable[None]]], None]) -> Door:
    return Door(IN_ASYNCIO, trio_lanes.aio, run, asyncio.CancelledError, asyncio.all_tasks)


EAGER: Final = "asyncio, eager"
DOORS: Final[Mapping[str, Door]] = {
    "trio": Door(trio, trio_lanes, run_in_trio, KeyboardInterrupt, tasks_of_trio),
    "asyncio": of_asyncio(run_in_asyncio),
    EAGER: of_asyncio(run_eagerly),
}

# ---- operations


@attrs.frozen
class Operation:
    """What is done; a context manager if it lasts, so that its block can be left."""

    do: Callable[[Scene], Any]
    lasts: bool
    by_job: bool = False
    """Whether it ends with the error of its job."""


OPERATIONS: Final[dict[str, Operation]] = {}
IN_LOCAL_LANES: Final = "run in the local lanes of durable ones"


def operation(name: str, *, by_job: bool = False) -> Callable[[Any], Any]:
    def enter(do: Any) -> Any:
        lasts = isasyncgenfunction(do)
        OPERATIONS[name] = Operation(asynccontextmanager(do) if lasts else do, lasts, by_job)
        return do

    return enter


@operation("run", by_job=True)
async def run(scene: Scene) -> AsyncIterator[None]:
    await scene.lanes.run(scene.work, **scene.options)
    yield


@operation("run, in line", by_job=True)
async def run_in_line(scene: Scene) -> AsyncIterator[None]:
    for _ in range(3):
        scene.submit()
    await scene.lanes.run(scene.work, **scene.options)
    yield


@operation(IN_LOCAL_LANES, by_job=True)
async def run_in_local_lanes(scene: Scene) -> AsyncIterator[None]:
    await scene.lanes.run(scene.work, **scene.options)
    yield


@operation("submit and wait", by_job=True)
async def submit_and_wait(scene: Scene) -> AsyncIterator[None]:
    job = await scene.lanes.submit(scene.work, **scene.options)
    await job.wait()
    yield


@operation("submit to a full lane")
async def submit_to_a_full_lane(scene: Scene) -> AsyncIterator[None]:
    for _ in range(2):
        scene.lanes.submit_nowait(scene.work, lane="narrow")
    job = await scene.lanes.submit(scene.work, lane="narrow")
    await job.wait()
    yield


@operation("submit_nowait")
def submit_nowait(scene: Scene) -> None:
    scene.submit()
    scene.submit()


@operation("start_soon")
def start_soon(scene: Scene) -> None:
    scene.lanes.start_soon(scene.work, **scene.options)
    scene.lanes.start_soon(scene.work, **scene.options)


@operation("map", by_job=True)
async def map_(scene: Scene) -> AsyncIterator[None]:
    async with scene.lanes.map(scene.work_on, range(3), **scene.options_of_map) as results:
        async for _ in results:
            yield
            break


@operation("open_nursery", by_job=True)
async def open_nursery(scene: Scene) -> AsyncIterator[None]:
    async with scene.lanes.open_nursery() as jobs:
        jobs.start_soon(scene.work, **scene.options)
        await jobs.submit_nowait(scene.work, **scene.options).wait()
        yield


@operation("wait_idle")
async def wait_idle(scene: Scene) -> AsyncIterator[None]:
    scene.submit()
    await scene.lanes.wait_idle(scene.lane)
    yield


@operation("wait_room")
async def wait_room(scene: Scene) -> AsyncIterator[None]:
    for _ in range(3):
        scene.submit()
    await scene.lanes.wait_room(1, scene.lane)
    yield


@operation("drain")
async def drain(scene: Scene) -> AsyncIterator[None]:
    scene.submit()
    await scene.lanes.drain(grace=30, cancel_grace=1)
    yield


@operation("reset")
def reset(scene: Scene) -> None:
    scene.submit()
    scene.lanes.reset(scene.lane)


@operation("clear")
def clear(scene: Scene) -> None:
    for _ in range(3):
        scene.submit()
    scene.lanes.clear(scene.lane)


@operation("a nested wait", by_job=True)
async def nested_wait(scene: Scene) -> AsyncIterator[None]:
    async def parent() -> None:
        job = await scene.lanes.submit(scene.work, **scene.options)
        await job.wait()

    await scene.lanes.run(parent, lane="deep")
    yield


@operation("yield_slot", by_job=True)
async def yield_slot(scene: Scene) -> AsyncIterator[None]:
    async with scene.own_job.yield_slot():
        await scene.lanes.run(scene.work, lane="deep")
        yield


@operation("readmit")
async def readmit(scene: Scene) -> AsyncIterator[None]:
    await scene.own_job.readmit()
    await scene.io.sleep(2)
    yield


@operation("a lock")
async def lock(scene: Scene) -> AsyncIterator[None]:
    async with scene.durable.lock("key"):  # of another until then
        await scene.lanes.run(scene.work, **scene.options)
        yield


@operation("a spend")
async def spend(scene: Scene) -> AsyncIterator[None]:
    await scene.durable.quota("key").spend()  # nothing is left of it until then
    await scene.lanes.run(scene.work, **scene.options)
    yield


@operation("Inbox.post and settled")
async def post_and_settled(scene: Scene) -> AsyncIterator[None]:
    async def handler(turn: Turn) -> None:
        await scene.work()

    receipt = Inbox(scene.lanes, "ann", handler, lane=scene.lane).post("hello")
    await receipt.settled()
    yield


@operation("a turn")
def a_turn(scene: Scene) -> None:
    async def handler(turn: Turn) -> None:
        await scene.lanes.run(scene.work, lane="deep")
        turn.take()
        await scene.work()

    inbox = Inbox(scene.lanes, "ann", handler, lane=scene.lane)
    for message in ("hello", "and", "another"):
        inbox.post(message)


IN_BODIES_ALONE: Final = ("yield_slot", "readmit")
OF_AGENTS: Final = ("Inbox.post and settled", "a turn")
OF_DURABLE_LANES: Final = ("a lock", "a spend")

# ---- how it is left

DEADLINE: Final = "a deadline around the block"
DEADLINE_OF_CALL: Final = "a deadline around the call"
BY_TASK: Final = "cancel() by another task"
BY_CALLBACK: Final = "cancel() in a callback"
BY_HOOK: Final = "cancel() in a hook"
SIBLING: Final = "a sibling task fails"
SIBLING_JOB: Final = "a sibling job fails"
PARENT: Final = "the nursery around is cancelled"
CTRL_C: Final = "Ctrl-C"
EXCEPTION: Final = "an exception in the block"
RETURN: Final = "return"

BY_SCOPE: Final = (DEADLINE, BY_TASK, BY_CALLBACK, BY_HOOK)
WAYS: Final = (
    *BY_SCOPE, DEADLINE_OF_CALL, SIBLING, SIBLING_JOB, PARENT, CTRL_C, EXCEPTION, RETURN,
)  # fmt: skip

# ---- where it is done

BLOCK: Final = "in the block's own task"  # and in no scope inside of the block
CHILD: Final = "in a task beside the block"
NURSERY: Final = "in a nursery in the block"
BODY: Final = "in a body"
ASYNC_WITH: Final = "in an async with in a body"
HOOK: Final = "in a hook"
CALLBACK: Final = "in a callback"

BODIES: Final = (BODY, ASYNC_WITH)
FUNCTIONS: Final = (HOOK, CALLBACK)
WHERE: Final = (BLOCK, CHILD, NURSERY, *BODIES, *FUNCTIONS)

# ---- what else is on


@attrs.frozen(kw_only=True)
class Extra:
    """Lanes, what jobs are submitted with, and who is there before them and comes after them."""

    main: LaneConfig = LaneConfig(concurrency=2, warn_after=math.inf)
    others: Mapping[str, Any] = {}
    group: LaneGroup | None = None
    options: Mapping[str, Any] = {}
    before: Sequence[Mapping[str, Any]] = ({},)
    after: Sequence[Mapping[str, Any]] = ()
    wait_accounting: bool = False
    instruments: bool = False


def config(**fields: Any) -> LaneConfig:
    return LaneConfig(warn_after=math.inf, **fields)


def is_overload(error: BaseException) -> bool:
    return isinstance(error, Overloaded)


def slow(limit: int, per: float) -> RateLimit:
    return RateLimit(limit, per, algorithm="sliding")


A, B = {"lane": "a"}, {"lane": "b"}

EXTRAS: Final[Mapping[str, Extra]] = {
    "nothing": Extra(),
    "session": Extra(options={"session": "ann"}, before=[{"session": "ann"}], after=[{}]),
    "timeout": Extra(options={"timeout": 20.0}, after=[{}]),
    "rate": Extra(main=config(concurrency=4, rate=slow(2, 3)), before=[{}, {}]),
    "group": Extra(
        others={"a": config(concurrency=2)},
        group=LaneGroup(["main", "a"], concurrency=2, reserve={"a": 1}),
        before=[{}, A],
        after=[A],
    ),
    "group with a rate, of unequal aging": Extra(
        main=config(concurrency=2, aging=60.0),
        others={"a": config(), "b": config(aging=30.0)},
        group=LaneGroup(["main", "a", "b"], rate=slow(1, 1.5)),
        before=[{}, {}, A, B],
    ),
    "Adaptive": Extra(
        main=config(concurrency=Adaptive(2, 8, by="aimd", overloaded=is_overload)),
        before=[{"fn": "overload"}, {}],
        after=[{}],
    ),
    "aging in a fair lane": Extra(
        main=config(aging=1.0, fair=True),
        options={"owner": "me"},
        before=[{"owner": "me"}, {"owner": "you", "priority": 1}, {"owner": "she"}],
        after=[{"owner": "you"}],
    ),
    "wait accounting": Extra(before=[{}, {}], after=[{}], wait_accounting=True),
    "instrument": Extra(after=[{}], instruments=True),
    "template": Extra(others={"of:*": config(concurrency=2)}, options={"lane": "of:7"}),
    "coalesce": Extra(
        options={"coalesce": Coalesce("key")},
        before=[{"coalesce": None}, {"coalesce": None}],
        after=[{}],
    ),
}


class Row(NamedTuple):
    """A combination, by the names in the tables."""

    what: str
    how: str
    where: str
    door: str
    extra: str


# ---- what there is not, and why

IMPOSSIBLE: Final[Mapping[str, Callable[[Row], bool]]] = {
    "hooks and callbacks are plain functions: nothing lasts in them": lambda row: (
        row.where in FUNCTIONS and OPERATIONS[row.what].lasts
    ),
    "it is done at once: no deadline comes meanwhile": lambda row: (
        row.how == DEADLINE_OF_CALL and not OPERATIONS[row.what].lasts
    ),
    "only a body has a slot": lambda row: row.what in IN_BODIES_ALONE and row.where not in BODIES,
    "inboxes are for Trio": lambda row: row.what in OF_AGENTS and row.door != "trio",
    "an inbox submits its jobs itself, with no such option": lambda row: (
        row.what in OF_AGENTS and row.extra in ("timeout", "coalesce")
    ),
    "local lanes are Trio's, at both doors": lambda row: (
        row.what == IN_LOCAL_LANES and row.door != "trio"
    ),
    "local lanes have no limits: the store has them": lambda row: (
        row.what == IN_LOCAL_LANES
        and row.extra not in ("nothing", "session", "timeout", "instrument", "coalesce")
    ),
    "each child of a nursery, and each item of a map, has a job to itself": lambda row: (
        row.what in ("open_nursery", "map") and row.extra == "coalesce"
    ),
    "before Python 3.12 asyncio has no eager tasks": lambda row: (
        row.door == EAGER and sys.version_info < (3, 12)
    ),
}


def table() -> Iterator[Row]:
    return map(Row._make, product(OPERATIONS, WAYS, WHERE, DOORS, EXTRAS))


def possible(row: Sequence[str]) -> bool:
    return not any(is_so(Row._make(row)) for is_so in IMPOSSIBLE.values())


def all_rows() -> list[Row]:
    return [*filter(possible, table())]


def chosen_rows() -> list[Row]:
    begun: list[tuple[str, ...]] = [*product(OPERATIONS, WAYS, WHERE, ["trio"])]
    for door in [*DOORS][1:]:  # whose lanes are the same, with other verbs
        begun += covering(product(OPERATIONS, WAYS), [WHERE, [door]], possible_alone)
    return [*map(Row._make, covering(begun, [[*EXTRAS]], possible))]


def possible_alone(row: Sequence[str]) -> bool:
    """Whether it is possible with nothing else on."""
    return possible([*row, "nothing"])


# ---- a combination


class Curious(LaneInstrument):
    """Looks at everything in each hook."""

    lanes: Any

    def look(self, *details: Any) -> None:
        assert self.lanes.statistics().waiting >= 0
        for job in self.lanes.jobs():
            assert repr(job)
            job.blocked_by()

    def lanes_opened(self, lanes: Any) -> None:
        self.lanes = lanes


for _hook in [name for name in vars(LaneInstrument) if name.startswith(("job_", "lane_"))]:
    setattr(Curious, _hook, Curious.look)


class Moments(LaneInstrument):
    """Calls a function when a job of a name has ended."""

    def __init__(self, calls: Mapping[str, Callable[[], object]]) -> None:
        self.calls = calls

    def job_finished(self, job: Job[Any]) -> None:
        call = self.calls.get(job.name)
        if call is not None:
            call()


class Scene:
    """One combination, played in a run of its own."""

    lanes: Any
    durable: Any

    def __init__(self, row: Row) -> None:
        self.what, self.how, self.where, door, extra = row
        self.operation = OPERATIONS[self.what]
        self.extra = EXTRAS[extra]
        self.door = DOORS[door]
        self.io = self.door.io
        self.recorder = LaneRecorder() if self.extra.instruments else None
        self.around: Any = self.io.CancelScope()  # the block
        self.around_call: Any = self.io.CancelScope()
        self.jobs: dict[Job[Any], None] = {}
        self.began = self.ended = 0  # bodies
        self.fails_by_body = self.how == EXCEPTION and self.where == BLOCK and self.operation.by_job
        self.wrong: list[str] = []

    # ---- the story

    async def main(self) -> None:
        start = self.io.current_time()
        there = self.door.tasks()
        error: BaseException | None = None
        try:
            async with self.io.open_nursery() as self.parent:
                try:
                    await self.block()
                finally:
                    self.left_after = self.io.current_time() - start
        except BaseException as exc:
            if isinstance(exc, Endless):
                raise
            error = exc
            if isinstance(exc, asyncio.CancelledError):
                task = asyncio.current_task()
                assert task is not None
                task.uncancel()
        self.check_how_it_ended(error)
        del error
        self.check(self.door.tasks() == there, "tasks are left")
        self.check_that_nothing_is_left()
        await self.second_block()
        self.check(self.door.tasks() == there, "tasks are left by the second block")
        self.check(self.io.current_time() - start < FOR_EVER, "it took for ever")

    async def block(self) -> None:
        if self.how == DEADLINE:
            self.around = self.io.move_on_after(LEFT_AT)
        with self.around:
            async with AsyncExitStack() as opened:
                if self.what in OF_DURABLE_LANES:
                    self.durable = await opened.enter_async_context(self.open_durable_lanes())
                    await self.hold_what_is_wanted()
                async with self.open() as self.lanes:
                    self.begin()
                    await self.in_the_block()

    def open(self) -> AbstractAsyncContextManager[Any]:
        if self.what == IN_LOCAL_LANES:
            return self.open_local_lanes()
        calls: dict[str, Callable[[], object]] = {}
        if self.how == BY_HOOK:
            calls["leave"] = self.around.cancel
        if self.where == HOOK:
            calls["do"] = self.do_at_once
        return self.open_lanes(*([Moments(calls)] if calls else []))

    def open_lanes(self, *instruments: Any) -> AbstractAsyncContextManager[Any]:
        extra = self.extra
        lanes: AbstractAsyncContextManager[Any] = self.door.lanes.open_lanes(
            {
                "main": extra.main,
                **extra.others,
                "outer": config(),
                "deep": config(),
                "narrow": config(max_waiting=1),
                "moments": math.inf,
            },
            groups={} if extra.group is None else {"group": extra.group},
            instruments=[*([self.recorder, Curious()] if self.recorder else []), *instruments],
            wait_accounting=extra.wait_accounting,
        )
        return lanes

    @asynccontextmanager
    async def open_local_lanes(self) -> AsyncIterator[Any]:
        instruments: list[Any] = [self.recorder, Curious()] if self.recorder else []
        if self.how == BY_HOOK:
            instruments.append(Moments({"leave": self.around.cancel}))
        async with self.open_durable_lanes(instruments=instruments) as durable:
            yield durable.local

    def open_durable_lanes(self, **options: Any) -> Any:
        of_door = trio_lanes.durable if self.io is trio else trio_lanes.aio
        quotas = {"key": slow(1, 2)}
        return of_door.open_durable_lanes(
            MemoryStore(), {}, {"*": config()}, quotas=quotas, **options
        )

    async def hold_what_is_wanted(self) -> None:
        async def holds() -> None:
            async with self.durable.lock("key"):
                held.set()
                await self.io.sleep(1.5)

        await self.durable.quota("key").spend()
        held = self.io.Event()
        self.parent.start_soon(self.forgive, holds)
        await held.wait()

    def begin(self) -> None:
        """All that is there before the operation."""
        if self.where in BODIES:
            self.submit_body()
        for options in self.extra.before:
            self.submit(**options)
        for name, seconds in (("do", 0.5), ("leave", LEFT_AT)):
            moment = self.lanes.submit_nowait(
                self.io.sleep, seconds, lane="moments", name=name, coalesce=None
            )
            if name == "do" and self.where == CALLBACK:
                moment.on_settled(lambda _: self.do_at_once())
            if name == "leave" and self.how == BY_CALLBACK:
                moment.on_settled(lambda _: self.around.cancel())
        if self.how == SIBLING_JOB:
            self.lanes.start_soon(self.fail, lane="moments")
        for how, act in (
            (BY_TASK, self.cancel),
            (SIBLING, self.fail),
            (PARENT, self.cancel_parent),
            (CTRL_C, self.interrupt),
        ):
            if self.how == how:
                self.parent.start_soon(act)
        self.parent.start_soon(self.others_come)

    def submit_body(self) -> None:
        """The job in which the operation is done, and one behind it."""
        of_body: dict[str, Any] = {"lane": "outer"}
        if self.what in IN_BODIES_ALONE:  # what else is on is on in this job
            of_body = self.options
        for fn, options in ((self.body, of_body), (self.work, {"lane": "outer"})):
            self.jobs[self.lanes.submit_nowait(fn, **options)] = None

    async def others_come(self) -> None:
        """Shortly before it is left."""
        await self.io.sleep(0.75)
        for options in self.extra.after if self.what != "drain" else ():
            self.submit(**options)
        self.jobs |= dict.fromkeys(self.lanes.jobs())

    async def in_the_block(self) -> None:
        """What the block's own task does."""
        if self.where == BLOCK:
            if self.how == DEADLINE_OF_CALL:
                await self.do()
            else:
                async with self.lasting():
                    await self.stay()
        elif self.where == NURSERY:
            async with self.io.open_nursery() as nursery:
                if self.io is trio:
                    nursery.start_soon(self.do)
                else:  # a TaskGroup is cancelled when its own task has seen the cancellation
                    nursery.start_soon(self.forgive, self.do)
                await self.stay()
        else:
            if self.where == CHILD:
                self.parent.start_soon(self.forgive, self.do)
            await self.stay()

    async def stay(self) -> None:
        """Stay in the block until it is to be left."""
        if self.how == DEADLINE_OF_CALL:
            await self.io.sleep(5)
        elif self.how in (EXCEPTION, RETURN):
            await self.io.sleep(LEFT_AT)
            if self.how == EXCEPTION:
                raise Left
        else:
            await self.io.sleep(2 * FOR_EVER)

    async def do(self) -> None:
        """The operation, in another task than the block's, or in a scope of its own."""
        if self.how == DEADLINE_OF_CALL:
            self.around_call = self.io.move_on_after(LEFT_AT)
        with self.around_call:
            async with self.lasting():
                await self.io.sleep(2 * FOR_EVER if self.how == DEADLINE_OF_CALL else 2)

    @asynccontextmanager
    async def lasting(self) -> AsyncIterator[None]:
        if not self.operation.lasts:
            self.do_at_once()
            yield
        else:
            async with self.operation.do(self):
                yield

    def do_at_once(self) -> None:
        self.operation.do(self)

    async def forgive(self, fn: Callable[[], Awaitable[None]]) -> None:
        """What is done beside the lanes, or in a job, may be told that the lanes have ended."""
        try:
            await fn()
        except* LANES_HAVE_ENDED:
            self.check(self.how != DEADLINE_OF_CALL, "the lanes have ended")

    # ---- bodies

    @property
    def options(self) -> dict[str, Any]:
        return {**self.extra.options}

    @property
    def options_of_map(self) -> dict[str, Any]:
        options = self.options
        if "session" in options:
            session = options["session"]
            options["session"] = lambda item: session
        return options

    @property
    def lane(self) -> str:
        lane: str = self.options.get("lane", "main")
        return lane

    @property
    def own_job(self) -> Job[Any]:
        job = current_job()
        assert job is not None
        return job

    def submit(self, **options: Any) -> None:
        options = {**self.options, **options}
        job = self.lanes.submit_nowait(getattr(self, options.pop("fn", "work")), **options)
        job.on_settled(lambda job: job.exception)  # which is then no failure to log
        self.jobs[job] = None

    async def work(self) -> None:
        self.began += 1
        try:
            if self.fails_by_body and current_job() not in self.jobs:
                await self.io.sleep(LEFT_AT)
                raise Left
            await self.io.sleep(2)
        finally:
            self.ended += 1

    async def work_on(self, item: int) -> int:
        await self.work()
        return item

    async def overload(self) -> None:
        await self.io.sleep(0.5)
        raise Overloaded

    async def body(self) -> None:
        async with self.cleaned_up() if self.where == ASYNC_WITH else AsyncExitStack():
            await self.forgive(self.do)

    @asynccontextmanager
    async def cleaned_up(self) -> AsyncIterator[None]:
        try:
            yield
        finally:
            with self.io.CancelScope(shield=True):
                await self.io.sleep(CLEANUP)

    # ---- how it is left

    async def cancel(self) -> None:
        await self.io.sleep(LEFT_AT)
        self.around.cancel()

    async def cancel_parent(self) -> None:
        await self.io.sleep(LEFT_AT)
        self.parent.cancel_scope.cancel()

    async def fail(self) -> None:
        await self.io.sleep(LEFT_AT)
        raise Left

    @trio.lowlevel.enable_ki_protection  # so that the main task gets it
    async def interrupt(self) -> None:
        await self.io.sleep(LEFT_AT)
        signal.raise_signal(signal.SIGINT)

    # ---- what must have become of it

    def check(self, right: bool, else_: object) -> None:
        if not right:
            self.wrong.append(str(else_))

    def check_how_it_ended(self, error: BaseException | None) -> None:
        expected: set[type[BaseException]] = set()
        if self.how == CTRL_C:
            expected = {self.door.interrupt}
        elif self.how in (SIBLING, SIBLING_JOB, EXCEPTION):
            expected = {Left}
        self.check({*map(type, leaves(error))} == expected, f"it ended by {error!r}")
        self.check(
            bool(self.around.cancelled_caught) == (self.how in BY_SCOPE),
            f"the scope around the block: {self.around}",
        )
        if not expected:  # else the failure may have cancelled what is in the nursery
            self.check(
                bool(self.parent.cancel_scope.cancelled_caught) == (self.how == PARENT),
                f"the scope of the nursery: {self.parent.cancel_scope}",
            )
        self.check(
            bool(self.around_call.cancelled_caught) == (self.how == DEADLINE_OF_CALL),
            f"the scope around the call: {self.around_call}",
        )
        if self.how not in (DEADLINE_OF_CALL, EXCEPTION, RETURN):
            self.check(
                LEFT_AT <= self.left_after <= LEFT_AT + 2 * CLEANUP,
                f"it was left after {self.left_after} s",
            )

    def check_that_nothing_is_left(self) -> None:
        statistics = self.lanes.statistics()
        self.check(
            (statistics.waiting, statistics.active, statistics.abandoned) == (0, 0, 0), statistics
        )
        self.check(not self.lanes.jobs(), self.lanes.jobs())
        self.check(not self.lanes.sessions(), self.lanes.sessions())
        for name in statistics.lanes:
            limiter = self.lanes.lane(name).limiter
            self.check(limiter.borrowed_tokens == 0, f"{name}: {limiter}")
        self.check(self.began == self.ended, f"{self.began} bodies began, {self.ended} ended")
        for job in self.jobs:
            self.check_job(job)
        if self.recorder is not None:
            self.recorder.check()
            submitted, finished = (
                sorted(job.id for job in jobs)
                for jobs in (self.recorder.submitted, self.recorder.finished)
            )
            self.check(submitted == finished, f"submitted {submitted}, finished {finished}")

    def check_job(self, job: Job[Any]) -> None:
        self.check(job.done and job.finished_at is not None, f"{job} has not settled")
        expected = [JobState.SUCCEEDED]
        if type(job.exception) in (Left, Overloaded):
            expected = [JobState.FAILED]
        elif self.how != RETURN or self.what in ("clear", "reset", "map", "a turn"):
            expected.append(JobState.CANCELLED)
        self.check(job.state in expected, f"{job} with {job.exception!r}")
        if self.extra.wait_accounting and job.started_at is not None:
            waited = math.fsum(job.waits.values())
            self.check(
                math.isclose(waited, job.started_at - job.submitted_at, abs_tol=1e-6), job.waits
            )

    async def second_block(self) -> None:
        self.fails_by_body = False
        async with self.open_lanes() as self.lanes:
            job = self.lanes.submit_nowait(self.work_on, 2, **self.options)
            self.check(await self.lanes.run(self.work_on, 1, lane="deep") == 1, "another result")
            await job.wait()
        self.check_that_nothing_is_left()


def leaves(error: BaseException | None) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in leaves(inner)]
    return [] if error is None else [error]


# ---- playing them


@contextmanager
def watched(wrong: list[str]) -> Iterator[None]:
    """Note what Python could not raise, and what was logged; end what never ends."""

    def note(unraisable: Any) -> None:
        wrong.append(f"unraisable: {unraisable.exc_value!r} in {unraisable.object!r}")

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if not record.getMessage().startswith(LOGGED):
                wrong.append(f"logged: {record.getMessage()}")

    def end(number: int, frame: object) -> None:
        raise Endless(f"it took {PATIENCE} s of the processor")

    handler, hook = Handler(logging.WARNING), sys.unraisablehook
    logging.root.addHandler(handler)
    sys.unraisablehook = note
    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, PATIENCE, PATIENCE)
    try:
        yield
        gc.collect()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
        sys.unraisablehook = hook
        logging.root.removeHandler(handler)


def play(row: Row) -> list[str]:
    """Play a combination; return what was wrong."""
    scene = Scene(row)
    wrong = scene.wrong
    with watched(wrong):
        try:
            scene.door.run(scene.main)
        except BaseException as error:
            wrong.append(f"{error!r} from {error.__cause__!r}")
        del scene
    return wrong


def by_row(rows: Sequence[Row]) -> list[Any]:
    """Share them among tests: one for each operation and place."""
    table: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        table.setdefault((row[0], row[2]), []).append(row)
    return [pytest.param(rows, id=", ".join(names)) for names, rows in table.items()]


@pytest.mark.no_cover  # other tests are about each line of this
@pytest.mark.parametrize("rows", by_row(chosen_rows()))
def test_all_ends_whatever_is_done_and_wherever_and_however_it_is_left(rows: list[Row]) -> None:
    play_all(rows)


@pytest.mark.thorough
@pytest.mark.parametrize("rows", by_row(all_rows()) if THOROUGH else [[]])
def test_all_ends_whatever_else_is_on_and_at_each_door(rows: list[Row]) -> None:
    play_all(rows)


def play_all(rows: Sequence[Row]) -> None:
    failed = [f"{' / '.join(row)}: {'; '.join(wrong)}" for row in rows if (wrong := play(row))]
    assert not failed, f"{len(failed)} of {len(rows)}:\n" + "\n".join(failed)


def test_what_is_not_in_the_table_is_impossible_for_one_reason_at_least() -> None:
    rows = [*table()]
    for reason, is_so in IMPOSSIBLE.items():
        if "3.12" not in reason or sys.version_info < (3, 12):
            assert any(map(is_so, rows)), reason
    there, chosen = all_rows(), chosen_rows()
    assert {row[:3] for row in there} == {row[:3] for row in chosen}
    assert set().union(*map(pairs, there)) == set().union(*map(pairs, chosen))


# ---- a portal: its threads take real time


class Counts(LaneInstrument):
    """Sets an event when so many jobs are there."""

    def __init__(self, number: int, event: Any) -> None:
        self.left = number
        self.event = event

    def job_submitted(self, job: Job[Any]) -> None:
        self.left -= 1
        if not self.left:
            self.event.set()


async def leave_with_a_thread_inside(door: Door, how: str, told: list[object]) -> None:
    """Leave a block in which a job of a thread runs, and two wait; note what the thread is told."""
    io, ended = door.io, door.io.Event()

    async def body() -> str:
        await ended.wait()
        return "value"

    async def fail() -> None:
        raise Left

    def work(portal: Any) -> None:
        futures = [portal.submit(body), portal.submit(body)]
        for get in (partial(portal.run, body), futures[0].result, futures[1].result):
            try:
                told.append(get())
            except BaseException as error:
                told.append(type(error))

    around, error = io.CancelScope(), None
    try:
        async with io.open_nursery() as parent:
            with around:
                counts = Counts(3, io.Event())
                async with door.lanes.open_lanes(
                    {"main": 1, "b": 1}, instruments=[counts]
                ) as lanes:
                    thread = threading.Thread(target=work, args=(lanes.portal(),), daemon=True)
                    thread.start()
                    await counts.event.wait()
                    if how == RETURN:
                        ended.set()
                        return
                    if how == EXCEPTION:
                        raise Left
                    if how == SIBLING_JOB:
                        lanes.start_soon(fail, lane="b")
                    elif how == PARENT:
                        parent.cancel_scope.cancel()
                    elif how == CTRL_C:
                        signal.raise_signal(signal.SIGINT)
                    else:
                        around.cancel()
                    await io.sleep_forever()
    except BaseException as exc:
        error = exc
    finally:
        thread.join(REAL_PATIENCE)
        assert not thread.is_alive()
        assert lanes.jobs() == []
    assert bool(around.cancelled_caught) == (how == BY_TASK)
    expected = {EXCEPTION: {Left}, SIBLING_JOB: {Left}, CTRL_C: {door.interrupt}}.get(how, set())
    assert {*map(type, leaves(error))} == expected
    if isinstance(error, asyncio.CancelledError):
        raise error  # so that `asyncio.run` raises a KeyboardInterrupt


@pytest.mark.real_processes
@pytest.mark.parametrize("name", ["trio", "asyncio"])
@pytest.mark.parametrize("how", [BY_TASK, PARENT, SIBLING_JOB, CTRL_C, EXCEPTION, RETURN])
def test_a_thread_at_a_portal_is_told_however_the_block_is_left(how: str, name: str) -> None:
    told: list[object] = []
    main = partial(leave_with_a_thread_inside, DOORS[name], how, told)
    wrong: list[str] = []
    with watched(wrong), pytest.raises(KeyboardInterrupt) if how == CTRL_C else nullcontext():
        if name == "trio":
            trio.run(main)
        else:
            asyncio.run(main())
        if how == CTRL_C and name == "trio":
            raise KeyboardInterrupt  # it was told in the block
    assert not wrong
    if how == RETURN:
        assert told == ["value"] * 3
    else:
        assert {*told} == {JobCancelledError, LanesClosedError}
        assert len(told) == 3
