"""The worker: claims what the store admits, runs it on the core's lanes, and reports how it ended.

One step is under way at a time; what ends meanwhile is finished by the next, together. A run is
over for the store when the step that reports it is; only then is its session's next one claimed.
Nothing is lost if the process dies in between: see ``_store``.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias, final

import trio

from ..._config import LaneConfig
from ..._errors import JobCancelledError, LanesClosedError
from ..._job import AnyJob
from ..._lanes import Lanes
from ..._state import FAILED, SUCCEEDED
from .._contract.errors import PayloadError, StoreUnavailableError
from .._contract.protocol import Store
from .._contract.records import (
    Cancelled,
    Claim,
    Died,
    Failed,
    Finish,
    Outcome,
    Postponed,
    Released,
    Succeeded,
)
from .._options.json_text import decode, encode, encode_error
from .._options.retry import RetryPolicy, again
from . import events
from .run import DurableRun

logger: Final = logging.getLogger("trio_lanes.durable")

Handler: TypeAlias = Callable[[Any], Awaitable[Any]]

AGAIN_AFTER: Final = 0.5
"""Seconds after which a store that was not available is tried again."""
GIVE_UP_AFTER: Final = 5.0
"""Seconds for which a store that is not available holds up the end."""


@final
class Worker:
    """What one instance runs. It is also the core's instrument that hears of ends."""

    def __init__(
        self,
        store: Store,
        handlers: Mapping[str, Handler],
        retry: RetryPolicy,
        capacity: int | float,
        failed: Callable[[int, str, BaseException], None],
    ) -> None:
        self._store: Final = store
        self._handlers: Final = handlers
        self._retry: Final = retry
        self.capacity: Final = capacity
        self._failed: Final = failed
        self._runs: Final[dict[int, DurableRun]] = {}  # {fence: what has not ended}
        self._unfinished: Final[set[int]] = set()  # fences of what the store still counts as run
        self._outbox: list[Finish] = []
        self._lanes: Final[set[str]] = set()  # that are known to be on the core
        self._changed = trio.Event()  # something for the next step
        self._step_taken = trio.Event()
        self._ended = trio.Event()  # nothing runs
        self._asking = False  # whether the step that is under way may claim something
        self._idle = trio.Event()  # nothing runs, all is reported, and nothing is being claimed
        self._unavailable = False
        self._broken: BaseException | None = None  # why the end of a run could not be reported
        self._term = 0  # what was claimed in an earlier one is not begun
        self.stopping: bool = False
        self.closed: bool = False
        self.claiming: bool = True
        self.core: Lanes | None = None

    # ---- the pump

    def look(self) -> None:
        """Have a step taken."""
        self._changed.set()

    async def listen(self) -> None:
        """Have a step taken whenever the store says so."""
        async for _ in self._store.wake():
            self.look()

    async def pump(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Take steps until `stop`. It goes on while what is around it is being cancelled."""
        # before the shield: `start` waits for a task that was cancelled before it had started
        await trio.lowlevel.checkpoint_if_cancelled()
        with trio.CancelScope(shield=True) as self._pumping:
            task_status.started()
            try:
                while not self.stopping or self._unfinished:
                    await self._step()
            finally:
                self._answered()

    async def _step(self) -> None:
        if self._broken is not None:
            raise RuntimeError("the end of a run could not be reported") from self._broken
        self._changed = trio.Event()
        term = self._term
        finished, self._outbox = self._outbox, []
        busy = sum(not run._lenders for run in self._runs.values())
        room = self.capacity - busy if self.claiming else 0
        asked = trio.current_time()
        self._asking = room > 0
        if self._asking and self._idle.is_set():
            self._idle = trio.Event()
        try:
            step = await self._store.step(finished, int(max(0, min(room, 1000))))
        except StoreUnavailableError as error:
            self._outbox[:0] = finished
            self._answered()
            if not self._unavailable:
                self._unavailable = True
                logger.error("the store is not available; what runs goes on: %s", error)
            await trio.sleep(AGAIN_AFTER)
            return
        if self._unavailable:
            self._unavailable = False
            logger.warning("the store is available again")
        self._unfinished.difference_update(finish.fence for finish in finished)
        for fence in step.stale:
            logger.warning("a run was lost before it could finish (fence %d)", fence)
        for claim in step.claims:
            self._begin(claim, late=term != self._term)
        for _, fence in step.cancels:
            run = self._runs.get(fence)
            if run is not None:  # else it has just ended, and the next step says so
                assert run._job is not None
                run._cancelled = True
                run._job.cancel("cancelled")
        self._say_step_taken()
        self._answered()
        if not self.stopping or self._unfinished:
            # from when it was asked: the answer of a slow store is old
            with trio.move_on_at(math.inf if step.next_due is None else asked + step.next_due):
                await self._changed.wait()

    def _answered(self) -> None:
        """What the step claimed is known; or that it claimed nothing."""
        self._asking = False
        if not self._unfinished:
            self._idle.set()

    def next_step(self) -> trio.Event:
        """What is set when the step that is under way, or else the next, is over."""
        return self._step_taken

    def _say_step_taken(self) -> None:
        self._step_taken.set()
        self._step_taken = trio.Event()

    # ---- runs

    def _begin(self, claim: Claim, *, late: bool) -> None:
        core = self.core
        assert core is not None
        self._unfinished.add(claim.fence)
        try:
            run = DurableRun(claim, self._store, self)
            payload = decode(claim.payload)
        except (RecursionError, ValueError) as error:
            # whoever submitted it could go deeper, or has no limit for the digits of a number
            unreadable = PayloadError(f"the payload or checkpoint data cannot be read: {error}")
            self._outbox.append(Finish(claim.id, claim.fence, Failed(encode_error(unreadable))))
            self._changed.set()
            return
        self._runs[claim.fence] = run
        if late:  # it was on its way when all that ran was cancelled
            self._report(run, Released())
            return
        try:
            if claim.lane not in self._lanes:
                if claim.lane not in core.statistics().lanes:
                    core.configure({claim.lane: LaneConfig(concurrency=math.inf)})
                self._lanes.add(claim.lane)
            run._job = core.submit_nowait(
                self._handlers[claim.name],
                payload,
                lane=claim.lane,
                session=claim.session,
                timeout=claim.timeout,
                name=f"{claim.name} {claim.id}",
                meta=run,
            )
        except LanesClosedError:  # everything is being cancelled
            self.claiming = False
            self._report(run, Released())
            return
        events.begun(run)

    @trio.lowlevel.enable_ki_protection
    def job_finished(self, job: AnyJob) -> None:
        """Report a run that has ended: a hook of the core, which must not raise.

        The core removes an instrument whose hook raises, and the worker would then hear of no
        further end. So an error in here fails the job alone; and if that cannot be reported
        either, the pump raises it, which ends the lanes.
        """
        run = job.meta
        # the exact type: `isinstance` asks the class of a proxy, which may raise
        if type(run) is not DurableRun or run._job is not job or run.fence not in self._runs:
            return
        try:
            try:
                outcome = self._outcome(run, job)
            except BaseException as error:
                outcome = Failed(self._told(run, error))
            self._report(run, outcome)
            events.ended(run, job, outcome)
        except BaseException as error:
            self._broken = error
            self._changed.set()

    def _report(self, run: DurableRun, outcome: Outcome | None) -> None:
        del self._runs[run.fence]
        if not self._runs:
            self._ended.set()
            self._ended = trio.Event()
        if outcome is None:  # the store still has it as running when this process ends: a crash
            self._unfinished.discard(run.fence)
        else:
            self._outbox.append(Finish(run.id, run.fence, outcome))
        self._changed.set()

    def _outcome(self, run: DurableRun, job: AnyJob) -> Outcome | None:
        """How that run ended. None: by ending this process, with all that it runs."""
        if job.state is SUCCEEDED:
            try:
                return Succeeded(encode("the result", job._value, self._store.max_payload))
            except PayloadError as refused:
                return Failed(encode_error(refused))
        error = job.exception
        assert error is not None
        if job.state is not FAILED:
            return Cancelled() if run._cancelled else Released()
        if isinstance(error, JobCancelledError) and not isinstance(
            error.__cause__, Exception | None
        ):
            # a process that a person ends is well; a handler that ends it would do so for ever
            return Released() if _is_interrupt(error.__cause__) else None
        return self._after(run, error)

    def _after(self, run: DurableRun, error: BaseException) -> Outcome:
        """What becomes of a job whose run raised."""
        claim, policy = run._claim, self._retry
        if claim.retry is not None:
            policy = policy.with_json(claim.retry)
        when = again(policy, error, run.attempt)
        if when is None:
            return Failed(self._told(run, error))
        delay, counts = when
        if counts and run.attempt >= policy.max_attempts:
            return Died(self._told(run, error))
        return Postponed(delay, counts, policy.order == "requeue")

    def _told(self, run: DurableRun, error: BaseException) -> str:
        """What is kept of that error, which ends the job."""
        told = encode_error(error)
        self._failed(run.id, told, error)
        return told

    # ---- ending

    def close(self) -> None:
        """Claim no more, whatever becomes of the lease."""
        self.closed = True
        self.claiming = False

    @property
    def running(self) -> list[DurableRun]:
        """What has not ended."""
        return list(self._runs.values())

    def cancel_all(self, reason: str) -> list[tuple[int, int]]:
        """Cancel what runs; it will be given back. Returns (id, fence) of each."""
        self._term += 1
        runs = self.running
        for run in runs:
            assert run._job is not None
            run._given_up = True
            run._job.cancel(reason)
        self._say_step_taken()  # to those who ask for their slots no more
        return [(run.id, run.fence) for run in runs]

    def give_back(self, reason: str) -> int:
        """Cancel what runs, and begin nothing more. Returns how many were cancelled."""
        self.claiming = False
        return len(self.cancel_all(reason))

    async def wait_idle(self) -> None:
        """Wait until nothing runs, all is reported, and nothing is on its way from the store."""
        if self._unfinished or self._asking:
            await self._idle.wait()
        else:
            await trio.lowlevel.checkpoint()

    async def wait_ended(self) -> None:
        """Wait until nothing runs, though it may not be reported. Not always a checkpoint."""
        if self._runs:
            await self._ended.wait()

    async def stop(self) -> None:
        """Report what is left, then have the pump end."""
        self.stopping = True
        self.claiming = False
        self._changed.set()
        with trio.move_on_after(GIVE_UP_AFTER) as in_time:
            await self.wait_idle()
        if in_time.cancelled_caught:
            if self._unfinished:
                count = len(self._unfinished)
                logger.error("%d runs could not be reported, and will be repeated", count)
            self._pumping.cancel()


def _is_interrupt(error: BaseException | None) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return any(map(_is_interrupt, error.exceptions))
    return isinstance(error, KeyboardInterrupt)
