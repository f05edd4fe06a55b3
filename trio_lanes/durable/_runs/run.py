"""`DurableRun`: one run of a durable job, as its handler sees it."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    NoReturn,
    Protocol,
    TypeVar,
    final,
    runtime_checkable,
)

import trio

from ... import JobCancelledError
from ... import current_job as _current_core_job
from ..._config import check as _check
from .._contract.act import Act, new_ticket
from .._contract.errors import StoreUnavailableError
from .._contract.protocol import Store
from .._contract.records import Claim, QueuedJob, SubmittedJob
from .._options.json_text import decode, encode, small
from ..acts.inspection import QueueOf
from ..acts.jobs import Enqueue
from ..acts.orders import Cancel
from ..acts.runs import Checkpoint, EmitEvent, LendSlot, RegainSlot, Take
from .children import Children, open_children
from .deadlock import JobWait

if TYPE_CHECKING:
    from ... import Job
    from .job import DurableJob

T = TypeVar("T")

AGAIN_AFTER: Final = 0.5
"""Seconds between two tries of a store that is not available."""
_LOST: Final = "the run was lost: its instance lost its lease, and the job is run again"


@runtime_checkable
class SendsHeaders(Protocol):
    """An instrument that sends something along with each job that it sees submitted.

    ``DurableRun.headers`` is what all instruments of the submitting instance gave, on whichever
    instance the job runs. So a trace goes on there: see
    `trio_lanes.instruments.otel.OpenTelemetryInstrument`.
    """

    def job_headers(self) -> Mapping[str, str]:
        """Return a few short texts by name. It is called by `submit`, in the submitter's context.

        An error that it raises is raised by `submit`.
        """


class WorkerOfRun(Protocol):
    """The worker of a run, as far as the run knows it."""

    term: int
    submit: Callable[..., Awaitable[DurableJob]]

    @property
    def capacity(self) -> int | float: ...
    @property
    def running(self) -> list[DurableRun]: ...
    def next_step(self) -> trio.Event: ...


@final
class DurableRun:
    """One run of a job, from its claim to its finish.

    A store that is away delays a run, and fails none: each method asks again, by the same ticket
    where it writes, until the store answers, or the run is lost with the lease of its instance or
    given back by a drain. Then the run is cancelled, and the job is run again. While a write may
    have been done, the call waits for its answer, cancelled or not.

    Attributes:
      id: the job's number.
      name: the handler's name.
      session: the job's session, or None.
      lane: the lane whose slot the run holds.
      attempt: the number of this attempt, the first being 1.
      crashes: how often a process died while it ran this job, or stood still past its lease.
      fence: greater than the fence of every earlier run in the store. A resource that remembers
        the greatest fence can refuse the writes of a lost run.
      checkpoint_data: the last argument of `checkpoint` in this or an earlier run; else None.
      headers: what the instruments of the submitter gave to the job: see `SendsHeaders`.
    """

    _last_child = 0  # the number of the last child without a name
    _children_seen: tuple[int, int] = (0, 0)

    def __init__(self, claim: Claim, store: Store, worker: WorkerOfRun) -> None:
        self.id: Final = claim.id
        self.name: Final = claim.name
        self.session: Final = claim.session
        self.lane: Final = claim.lane
        self.attempt: Final = claim.attempt
        self.crashes: Final = claim.crashes
        self.fence: Final = claim.fence
        self.checkpoint_data: Any = None if claim.checkpoint is None else decode(claim.checkpoint)
        self.headers: Final[Mapping[str, str]] = json.loads(claim.headers or "{}")
        self._claim: Final = claim
        self._store: Final = store
        self._worker: Final = worker
        self._waiting_for: Final[list[JobWait]] = []  # of its tasks, for the ends of other jobs
        self._job: Job[Any] | None = None  # the core's job that runs the handler, until its end
        self._cancelled = False  # whether the store has recorded its cancellation
        self._lending = 0  # how many tasks are in `yield_slot`
        self._received = 0  # the number of the last message that it has taken
        self._receiving = False  # whether a task waits for a message
        self._given_up = False  # whether its instance gives the job back
        self._disowned = False  # whether another run of the job may have begun

    def __repr__(self) -> str:
        return f"<trio_lanes.durable.DurableRun of job {self.id}, attempt {self.attempt}>"

    @property
    def _store_in_trio(self) -> Store:
        """The store, for a task of Trio's. In asyncio, a run is used by its door."""
        if not trio.lowlevel.in_trio_task():
            raise RuntimeError(
                "an async verb of a run needs a task of Trio's; in a handler of asyncio's, take "
                "the run by trio_lanes.aio.current_durable_job()"
            )
        return self._store

    async def checkpoint(self, data: object) -> None:
        """Store ``data`` (JSON) for the next attempt. A checkpoint.

        Raises:
          PayloadError: if ``data`` is not JSON, or larger than the store's ``max_payload``.
          JobCancelledError: if this run was lost, and the code is shielded from cancellation.
        """
        text = encode("checkpoint data", data, self._store.max_payload)
        if not await self._do(Checkpoint(self.id, self.fence, text)):
            await self._lost()
        self.checkpoint_data = decode(text)

    async def queue(self, limit: int = 100) -> list[QueuedJob]:
        """Return the oldest jobs of this run's session, with their payloads. A checkpoint.

        They wait, are parked or run, and are in order of their ids; this run's job is among them.
        They are fewer than ``limit`` if their payloads are more than 4 MiB together. A run without
        a session gets an empty list.
        """
        limit = _check.whole("limit", limit)
        if self.session is None or limit < 1:
            await trio.lowlevel.checkpoint()
            return []
        return await self._insist(partial(self._store_in_trio.look, QueueOf(self.session, limit)))

    async def take(self, jobs: Mapping[int, str], data: object) -> bool:
        """Take jobs that wait in this run's session, and store ``data`` as `checkpoint` does.

        Both happen in one act of the store, or nothing does. The jobs are cancelled: `wait` of
        their handles raises `JobTakenError`. So what this run has read of their payloads belongs
        to this job from now on, also in its next attempt, which finds ``data``. A checkpoint.

        Args:
          jobs: the reason for each job, by its number.
          data: JSON for the next attempt.

        Returns:
          False if one of the jobs neither waits nor is parked in this session. Nothing has changed
          then, and the caller may look at the queue again.

        Raises:
          PayloadError: if ``data`` is not JSON, or larger than the store's ``max_payload``.
          JobCancelledError: if this run was lost, and the code is shielded from cancellation.
        """
        text = encode("checkpoint data", data, self._store.max_payload)
        taken = {
            _check.whole("id", id): json.dumps({"by": self.id, "reason": reason})
            for id, reason in jobs.items()
        }
        done = await self._do(Take(self.id, self.fence, text, taken))
        if done is None:
            await self._lost()
        if done:
            self.checkpoint_data = decode(text)
        return bool(done)

    async def follow(self, payload: object, key: str) -> int:
        """Submit a job for this run's handler, session and lane; return its number. A checkpoint.

        It raises what `DurableLanes.submit` raises for a bad payload, a key and a lane.
        """
        text = encode("the payload", payload, self._store.max_payload)
        job = SubmittedJob(
            name=self.name, payload=text, session=self.session, lane=self.lane, key=key
        )
        return (await self._do(Enqueue([job])))[0]

    async def emit(self, event: object) -> int:
        """Say something about this run to tasks that read `DurableJob.events`. A checkpoint.

        Return the number of the event. The events of a job are counted from 1, over all its
        attempts. The store keeps the last 1,000, as long as it keeps the job.

        Args:
          event: JSON; its text has at most 64 KiB.

        Raises:
          PayloadError: if ``event`` is not JSON, or too large.
          JobCancelledError: if this run was lost, and the code is shielded from cancellation.
        """
        text = small("an event", event)
        number = await self._do(EmitEvent(self.id, self.fence, text))
        if number is None:
            await self._lost()
        return number

    def messages(self) -> AsyncIterator[Any]:
        """Return an async iterator that takes the messages of `DurableLanes.send` to this run.

        ::

            async for message in run.messages():
                history.append(message)

        It waits for further messages until it is cancelled. It begins with the messages that an
        earlier run of this job has taken; if this run iterates a second time, it goes on where it
        was. Each step is a checkpoint. When the run ends, messages that it has not taken are
        refused, and their senders know it.

        Raises:
          trio.BusyResourceError: if another task of this run is taking messages.
          JobCancelledError: if this run was lost, and the code is shielded from cancellation.
        """
        return _Messages(self)

    async def _receive(self) -> Any:
        if self._receiving:
            await trio.lowlevel.checkpoint()
            raise trio.BusyResourceError("another task of this run is taking messages")
        self._receiving = True
        try:
            receive = partial(self._store_in_trio.receive, self.id, self.fence, self._received)
            found = await self._insist(receive, waits=True)
        finally:
            self._receiving = False
        if found is None:
            await self._lost()
        self._received, text = found
        return decode(text)

    async def cancel(self, reason: str | None = None) -> None:
        """End this run's job as cancelled, for good, as `DurableLanes.cancel` does. A checkpoint.

        The cancellation is recorded when this returns; soon this run is cancelled.
        """
        await self._do(Cancel(self.id, json.dumps({"reason": reason})))

    def progress(self) -> None:
        """Report that the work goes on, as `trio_lanes.Job.progress` does. Not a checkpoint."""
        if self._job is not None:
            self._job.progress()

    @asynccontextmanager
    async def yield_slot(self) -> AsyncIterator[None]:
        """Lend the lane's slot while waiting for other work; the session stays closed.

        Leaving the block takes the slot back, ahead of every waiting job. It is not cancelled while
        it waits for the slot. If its instance ends or has lost its lease, it goes on without a
        slot, since none may ever be free.
        """
        store, regain = self._store_in_trio, RegainSlot(self.id, self.fence)
        # counted before the call: a task that takes the slot back meanwhile must see this lender
        self._lending += 1
        try:
            if self._lending == 1 and not await self._do(LendSlot(self.id, self.fence)):
                await self._lost()
            yield
        finally:
            self._lending -= 1
            if not self._lending:
                with trio.CancelScope(shield=True):
                    # taken before the call: a slot may be freed while the answer is on its way
                    stepped = self._worker.next_step()
                    # A run that is given up asks for nothing: a call may take the store's patience.
                    while not (
                        self._is_over()
                        or (has := await _has_regained(store, regain))
                        or self._is_over()
                    ):
                        # of a store that is away no step may come
                        with trio.move_on_after(math.inf if has is False else AGAIN_AFTER):
                            await stepped.wait()
                        if self._lending > 0:
                            break  # another task has lent it since, and will take it back
                        stepped = self._worker.next_step()

    def _is_over(self) -> bool:
        """Whether it is given up: a call, so that it is looked at again after each wait."""
        return self._given_up

    def children(self) -> AbstractAsyncContextManager[Children]:
        """Submit jobs from this run, and wait for them; the next attempt finds them again.

        ::

            async with run.children() as jobs:
                for url in urls:
                    await jobs.submit("fetch", url)
                pages = await jobs.wait_all()

        Each child has a key made of this job's number. So the next attempt, after a crash, a deploy
        or a failure, finds the children that there are, and starts none of them twice, while
        the store remembers them: ``result_ttl`` seconds after their ends. It must submit the same
        children in the same order, or with names.

        While it waits for them, this run lends its slot, as `yield_slot` does; its session stays
        closed. Leaving the block waits for the children that have not ended, and raises nothing of
        them. Leaving it with an exception, or cancelled, waits for nothing: the children stay in
        the store and go on; cancelling this job cancels none of them. Entering is no checkpoint;
        leaving normally is one. See `Children`.
        """
        return open_children(self)

    @property
    def children_ended(self) -> tuple[int, int]:
        """Of how many of its children this run has seen the end, and how many it has submitted."""
        return self._children_seen

    def _do(self, act: Act[T]) -> Awaitable[T]:
        """Have the store do an act of this run."""
        return self._insist(partial(self._store_in_trio.do, act, new_ticket()))

    async def _insist(self, call: Callable[[], Awaitable[T]], waits: bool = False) -> T:
        """Make a call of the store, again while the store is away, until it has an answer.

        ``waits`` is of a call that waits for others, and may be left at any time.

        A run may not fail because its store is away: that has nothing to do with its job. Without
        the lease the run is not the job's any more, and with the drain it is given back; the next
        run begins then with what the store has.
        """
        term, unknown = self._worker.term, False
        while True:
            try:
                # what may have been done has an answer that the caller has to know
                with trio.CancelScope(shield=unknown):
                    return await call()
            except StoreUnavailableError as error:
                unknown = unknown or (error.unknown and not waits)
            if term != self._worker.term:
                await self._lost()
            with trio.CancelScope(shield=unknown):
                await trio.sleep(AGAIN_AFTER)

    async def _lost(self) -> NoReturn:
        """Cancel this run, since the store may have given its job to another."""
        if self._job is not None:
            self._job.cancel(_LOST)
        await trio.lowlevel.checkpoint()
        raise JobCancelledError(_LOST)


@final
class _Messages:
    """The messages to a run. It is no generator, so a task that stops early need not close it."""

    def __init__(self, run: DurableRun) -> None:
        self._run: Final = run

    def __aiter__(self) -> _Messages:
        return self

    async def __anext__(self) -> Any:
        return await self._run._receive()


def current_job() -> DurableRun | None:
    """Return the run that the current task belongs to; None outside of a handler.

    A task belongs to a run if it is the run's task, or below it in the tree of nurseries. In a
    thread the answer is None. In asyncio use `trio_lanes.aio.current_durable_job`: the async verbs
    of this one are Trio's. Not a checkpoint.
    """
    job = _current_core_job()
    run = None if job is None else job.meta
    return run if isinstance(run, DurableRun) else None


async def asked(store: Store, call: Callable[[], Awaitable[T]], waits: bool = False) -> T:
    """Make a call of a store: once, or inside of a run of that store as the run's own calls.

    ``waits`` is of a call that waits for others, and may be left at any time.
    """
    run = current_job()
    if run is None or run._store is not store:
        return await call()
    return await run._insist(call, waits)


async def _has_regained(store: Store, regain: RegainSlot) -> bool | None:
    """Ask for the slot; False: none is free, None: the store is away."""
    try:
        return await store.do(regain, new_ticket()) is not False
    except StoreUnavailableError:
        return None
