"""`Worker`: claims jobs from the store, runs them on the core's lanes, and reports their ends.

Steps (`Store.step`) are taken one after the other. The runs that end while one is under way are
reported together by the next. The store claims a session's next job in or after the step that
reports the end of the former. If the process dies between two steps, the store recovers: see
`Store`.

A store that takes steps ahead (`Store.steps_ahead`) is asked for the next step before it has
answered the present one: it works on the one while this process works on the answer of the other.
The answers are used in their order. If the first has no answer, the store has not done the second.

A step that gets no answer is asked again, with the same number and the same contents, until it gets
an answer or the incarnation ends. It may have claimed jobs, and only its answer says which. When
the incarnation ends, `Store.join` gives back what the step may have claimed. `_StepCall` has the
table of the states of a step.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias, final

import attrs
import trio
from outcome import Error, Value

from ... import Job, JobCancelledError, JobState, Lanes, LanesClosedError
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
    Step,
    SubmittedJob,
    Succeeded,
)
from .._options.json_text import decode, encode, encode_error, error_line
from .._options.retry import RetryPolicy, again
from . import events
from .job import DurableJob
from .run import AGAIN_AFTER as AGAIN_AFTER
from .run import DurableRun

logger: Final = logging.getLogger("trio_lanes.durable")

Handler: TypeAlias = Callable[[Any], Awaitable[Any]]

MAX_STEP: Final = 500
"""How many runs and claims one step has at most, so that the store can serve others soon."""
MAX_ENDS_AHEAD: Final = 50
"""How many runs a step ends at most, if the next can be asked ahead: of runs that end at the same
time, the store ends some while this process goes on with the others."""
GIVE_UP_AFTER: Final = 5.0
"""Seconds for which a store that is not available delays the end of the lanes."""


@final
@attrs.define(eq=False)
class _StepCall:
    """A step, as the store is asked for it.

    | state     | where    | shown by    | what comes next                                        |
    |-----------|----------|-------------|--------------------------------------------------------|
    | under way | `_asked` | no field    | its answer is used; or it is unknown, or taken back    |
    | unknown   | `_asked` | `unknown`   | it is asked again, unchanged, until it has an answer   |
    | ahead     | `_ahead` | `answered`  | it is `_asked` next; or taken back with the one before |
    | withdrawn | the same | `withdrawn` | its incarnation has ended; an answer can still come    |

    A step is taken back if the store has not done it: its ended runs go into a later one. Those of
    a withdrawn step do so, too; its answer says which of them the store has recorded all the same.
    """

    number: int
    finished: tuple[Finish, ...]
    room: int
    term: int
    asked_at: float
    known_to: int
    """A number below the fence of each of its claims."""
    unknown: bool = False
    """Whether it was asked before and may have happened."""
    withdrawn: bool = False
    """Whether its incarnation has ended."""
    answered: trio.Event | None = None
    """Of a step that was asked ahead: set when ``answer`` is there."""
    answer: Value[Step] | Error | None = None


@final
class Worker:
    """The runs of one instance. It is an instrument of the core, which calls `job_finished`."""

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
        self._runs: Final[dict[int, DurableRun]] = {}  # {fence: run that has not ended}
        self._sessions: Final[set[str]] = set()  # of these runs
        self._unfinished: Final[set[int]] = set()  # fences of runs that the store has as running
        self._fatal: Final[set[int]] = set()  # fences of runs that end this process: never reported
        self._known_to = 0  # each claim of a later step has a greater fence
        self._outbox: list[Finish] = []  # for the next step
        self.steps_ahead: Final[bool] = getattr(store, "steps_ahead", False)
        self._claims_last: Final[bool] = getattr(store, "claims_last", False)
        self._asked: _StepCall | None = None  # the step whose answer is used next
        self._ahead: _StepCall | None = None  # the step that was asked ahead, after it
        self._ahead_scope: Final = trio.CancelScope(shield=True)
        self._free: Final = trio.lowlevel.ParkingLot()  # tasks that may ask for a step ahead
        self._steps_taken = 0  # by this incarnation
        self._rejoining = False  # whether the lease is lost, and the next join has no answer yet
        self._joined = trio.Event()  # the join that follows has its answer
        self._changed = trio.Event()  # a step is needed
        self._step_taken = trio.Event()
        self._ended = trio.Event()  # no run is left
        self._idle = trio.Event()  # no run is left, all ends are reported, no claim is under way
        self._unavailable = False
        self._store_gone = False  # whether no call can succeed any more
        self._warned: Final = events.Warned()
        self._broken: BaseException | None = None  # why the end of a run could not be reported
        self.term: int = 0
        """+1 whenever all runs are cancelled; claims of an earlier term do not begin."""
        self.leased: Final[set[trio.CancelScope]] = set()
        """What else must end with the lease: the bodies of locks."""
        self.stopping: bool = False
        self.closed: bool = False
        self.claiming: bool = True
        self.core: Lanes | None = None
        self.submit: Callable[..., Awaitable[DurableJob]]
        """`DurableLanes.submit`, for the children of runs."""
        self.nursery: trio.Nursery | None = None
        self._schedules: Any = None  # `Schedules`, which is imported when there are some

    # ---- the pump

    def request_step(self) -> None:
        """Request a step."""
        self._changed.set()
        if self._asked is not None and self._free:
            self._free.unpark()

    def request_step_for(self, jobs: Iterable[SubmittedJob]) -> bool:
        """Request a step if it may claim one of these jobs, which are about to be submitted.

        The store gets both at the same time, so that the job begins one call earlier. Return
        whether that is after one more pass of the scheduler (`Store.claims_last`).
        """
        if self.claiming and len(self._runs) < self.capacity:
            for job in jobs:
                if not job.delay and job.session not in self._sessions:
                    self.request_step()
                    return self._claims_last
        return False

    async def listen(self) -> None:
        """Request a step at each wake-up from the store."""
        async for _ in self._store.wake():
            self.request_step()

    async def pump(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Take steps until `stop`. It is shielded from the cancellation of the block."""
        # before the shield, since `start` waits for a task that is cancelled before it has started
        await trio.lowlevel.checkpoint_if_cancelled()
        with trio.CancelScope(shield=True) as self._pumping:
            task_status.started()
            try:
                while not self.stopping or self._unfinished or self._asking:
                    await self._step()
                    if self._store_gone and self.stopping:
                        break
            finally:
                self._ahead_scope.cancel()
                self._asked = self._ahead = None
                self._idle.set()  # also if ends are left, which nothing reports any more

    async def ask_ahead(self) -> None:
        """Ask for steps ahead until `pump` ends."""
        with self._ahead_scope:
            async with trio.open_nursery() as nursery:  # a task asks while the other waits
                nursery.start_soon(self._ask_steps_ahead)
                nursery.start_soon(self._ask_steps_ahead)

    async def _ask_steps_ahead(self) -> None:
        while True:
            await self._free.park()
            if self._ahead is not None or not self._may_ask_ahead():
                continue
            call = self._ahead = self._next_call()
            call.answered = trio.Event()
            try:
                step = self._store.step(call.number, call.finished, call.room)
                call.answer = Value(await step)
            except Exception as error:
                call.answer = Error(error)
            call.answered.set()

    def _may_ask_ahead(self) -> bool:
        """Whether a step is under way that has not failed, and there is something for the next."""
        asked = self._asked
        if asked is None or asked.unknown or asked.withdrawn or self._rejoining:
            return False
        if isinstance(asked.answer, Error):  # the pump has not seen it yet
            return False
        return self._changed.is_set() and (bool(self._outbox) or self._room() > 0)

    async def _step(self) -> None:
        if self._broken is not None:
            raise RuntimeError(
                "the end of a run could not be reported; the lanes end, and the job is run again"
            ) from self._broken
        if self._asked is None or self._asked.withdrawn:  # else it is asked again
            self._asked = None
            self._asked, self._ahead = self._ahead or self._next_call(), None
            if self._free and self._may_ask_ahead():
                self._free.unpark()
        call = self._asked
        try:
            if call.answered is None:
                step = await self._store.step(call.number, call.finished, call.room)
            else:
                await call.answered.wait()
                assert call.answer is not None
                step = call.answer.unwrap()
        except StoreUnavailableError as error:
            self._store_gone = error.final
            if not self._unavailable:
                self._unavailable = True
                logger.error(
                    "the store is not available: %s; running jobs go on, new jobs are not claimed,"
                    " and the store is tried again every %g s",
                    error,
                    AGAIN_AFTER,
                )
            await self._withdraw_ahead()
            self._keep_or_withdraw(call, error.unknown)
            self._answered()
            await trio.sleep(AGAIN_AFTER)
            return
        if self._unavailable:
            self._unavailable = False
            logger.warning("the store is available again")
        if call.withdrawn or self._rejoining:
            # The incarnation has ended since, and what the step claimed is given back by the join.
            # An end that came too late for the old incarnation is reported again by the new one.
            self._withdraw()
            self._asked = None
            recorded = {one.fence for one in call.finished}.difference(step.stale)
            self._outbox = [one for one in self._outbox if one.fence not in recorded]
            self._unfinished.difference_update(recorded)
            self._answered()
            if self._rejoining:  # until then the store refuses every end
                with trio.move_on_after(AGAIN_AFTER):
                    await self._joined.wait()
            return
        self._asked = None
        for one in call.finished:
            self._unfinished.discard(one.fence)
        for fence in step.stale:
            logger.warning(
                "the end of the run with fence %d was not recorded: it came after the lease had"
                " been lost; unless an earlier report of it was recorded, the job is run again",
                fence,
            )
        for claim in step.claims:
            self._begin(claim, late=call.term != self.term)
        for _, fence in step.cancels:
            run = self._runs.get(fence)
            if run is not None:  # else it has just ended, and the next step reports it
                assert run._job is not None
                run._cancelled = True
                run._job.cancel("cancelled")
        if step.fires is not None:
            self._note_schedules(call.asked_at + step.fires)
        self._announce_step()
        self._answered()
        if self._outbox or (len(step.claims) == call.room and self._room() > 0):
            self._changed.set()  # there may be more than one step takes
        if self._ahead is None and (not self.stopping or self._unfinished):
            if self._changed.is_set():
                if self._claims_last:  # a submission may have requested the step in this pass
                    await trio.lowlevel.checkpoint()
                return
            if step.next_due is None:
                await self._changed.wait()
            else:  # counted from the request, since the answer of a slow store is old
                with trio.move_on_at(call.asked_at + step.next_due):
                    await self._changed.wait()

    def _note_schedules(self, time: float) -> None:
        """Note when the first schedule of the store falls due, on Trio's clock."""
        if self._schedules is None:
            from .schedules import Schedules

            assert self.nursery is not None
            self._schedules = Schedules(self._store, self)
            self.nursery.start_soon(self._schedules.fire)
        self._schedules.look_at(time)

    def _next_call(self) -> _StepCall:
        self._changed = trio.Event()
        most = MAX_ENDS_AHEAD if self.steps_ahead else MAX_STEP
        finished, self._outbox = self._outbox[:most], self._outbox[most:]
        if self._outbox:
            self.request_step()
        self._steps_taken += 1
        room = int(max(0, min(self._room(), MAX_STEP - len(finished))))
        if room and self._idle.is_set():
            self._idle = trio.Event()
        now, known_to = trio.current_time(), self._known_to
        return _StepCall(self._steps_taken, tuple(finished), room, self.term, now, known_to)

    def _room(self) -> int | float:
        """How many jobs may begin, besides those that the steps under way may claim."""
        if not self.claiming:
            return 0
        room = self.capacity - len([run for run in self._runs.values() if not run._lending])
        for call in (self._asked, self._ahead):  # not by `_under_way`, to spare each job calls
            if call is not None and not call.withdrawn:
                room -= call.room
        return room

    def _under_way(self) -> list[_StepCall]:
        """The steps that have no answer yet, and are of this incarnation."""
        both = (self._asked, self._ahead)
        return [call for call in both if call is not None and not call.withdrawn]

    def _keep_or_withdraw(self, call: _StepCall, unknown: bool) -> None:
        """Keep a step without an answer if it may have happened, now or before."""
        self._asked = None
        if call.withdrawn:
            return
        if unknown or call.unknown:
            self._asked = attrs.evolve(call, unknown=True, answered=None, answer=None)
        else:
            self._outbox[:0] = call.finished

    async def _withdraw_ahead(self) -> None:
        """Take back the step that was asked ahead: the store has not done it."""
        if self._ahead is not None:
            assert self._ahead.answered is not None
            await self._ahead.answered.wait()
            ahead, self._ahead = self._ahead, None
            assert isinstance(ahead.answer, Error)
            if not ahead.withdrawn:
                self._outbox[:0] = ahead.finished

    def _withdraw(self) -> None:
        """Take back the steps that have no answer; their ended runs go into later ones."""
        for call in reversed(self._under_way()):
            call.withdrawn = True
            self._outbox[:0] = call.finished

    def lose_lease(self) -> list[tuple[int, int]]:
        """Note that the incarnation has ended, and cancel all runs. Return (id, fence) of each."""
        self._rejoining = True
        self._joined = trio.Event()
        self.claiming = False
        for run in self.running:
            run._disowned = True
        return self.cancel_all("the lease was lost")

    def joined(self) -> None:
        """Note that a new incarnation has begun, whose steps are counted from 1."""
        self._withdraw()
        self._rejoining = False
        self._joined.set()
        self._steps_taken = 0
        self.claiming = not (self.stopping or self.closed)

    @property
    def held(self) -> list[int]:
        """The fences of runs that have ended, and whose ends have not been reported."""
        asked = [finish for call in self._under_way() for finish in call.finished]
        return [finish.fence for finish in (*asked, *self._outbox)]

    @property
    def known(self) -> tuple[Sequence[int], int]:
        """The fences that the store should have as running, and up to where all are known."""
        asked = (call.known_to for call in self._under_way())
        return [*self._unfinished, *self._fatal], min(asked, default=self._known_to)

    def compared(self, fences: Iterable[int], last: int) -> None:
        """Cancel runs of which the store knows nothing: it has come back with older data.

        Args:
          last: the last number that it has given out.
        """
        self._known_to = max(self._known_to, last)
        for fence in fences:
            run = self._runs.get(fence)
            if run is not None and not run._given_up:  # else it has ended, or will soon
                assert run._job is not None
                logger.warning(
                    "the store knows nothing of the run of job %d with fence %d: it has come back"
                    " with older data; the run is cancelled",
                    run.id,
                    fence,
                )
                run._given_up = run._disowned = True
                run._job.cancel("the store has lost this run")

    @property
    def _asking(self) -> bool:
        """Whether a step that has no answer yet may claim jobs."""
        return any(call.room > 0 for call in self._under_way())

    def _answered(self) -> None:
        """Announce it if no run is left and no claim is under way."""
        if not self._unfinished and not self._asking:
            self._idle.set()

    def next_step(self) -> trio.Event:
        """Return an event that is set at the end of the present step, or else of the next."""
        return self._step_taken

    def _announce_step(self) -> None:
        self._step_taken.set()
        self._step_taken = trio.Event()

    # ---- runs

    def _begin(self, claim: Claim, *, late: bool) -> None:
        core = self.core
        assert core is not None
        self._unfinished.add(claim.fence)
        self._known_to = max(self._known_to, claim.fence)
        try:
            run = DurableRun(claim, self._store, self)
            payload = decode(claim.payload)
        except (RecursionError, ValueError) as error:
            # the submitter may have had a deeper recursion limit, or a longer one for integers
            unreadable = PayloadError(f"the payload or checkpoint data cannot be read: {error}")
            self._outbox.append(Finish(claim.id, claim.fence, Failed(encode_error(unreadable))))
            self.request_step()
            return
        self._runs[claim.fence] = run
        if claim.session is not None:
            self._sessions.add(claim.session)
        if late:  # the claim was on its way when all runs were cancelled
            self._report(run, Released())
            return
        try:
            run._job = core.submit_nowait(
                self._handlers[claim.name],
                payload,
                lane=claim.lane,
                session=claim.session,
                timeout=claim.timeout,
                name=f"{claim.name} {claim.id}",
                meta=run,
            )
        except LanesClosedError:  # the block is being cancelled
            self.claiming = False
            self._report(run, Released())
            return
        events.begun(run)

    @trio.lowlevel.enable_ki_protection
    def job_finished(self, job: Job[Any]) -> None:
        """Report the end of a run: a hook of the core, which must not raise.

        The core removes an instrument whose hook raises, and the worker would get no further end.
        So an error in here fails the job alone. If that cannot be reported either, the pump raises
        the error, which ends the lanes.
        """
        run = job.meta
        # the exact type: `isinstance` calls the class of a proxy, which may raise
        if type(run) is not DurableRun or run._job is not job or run.fence not in self._runs:
            return
        try:
            try:
                outcome = self._outcome(run, job)
            except BaseException as error:
                outcome = Failed(self._error_text(run, error))
            self._report(run, outcome)
            events.ended(run, job, outcome, self._warned)
        except BaseException as error:
            self._broken = error
            self._changed.set()

    def _report(self, run: DurableRun, outcome: Outcome | None) -> None:
        del self._runs[run.fence]
        run._disowned = True  # its body may still run, after a reset
        run._job = None  # the job refers to its run: without this, both wait for the collector
        if run.session is not None:
            self._sessions.discard(run.session)
        if not self._runs:
            self._ended.set()
            self._ended = trio.Event()
        if outcome is None:  # it stays running in the store until this process ends: a crash
            self._unfinished.discard(run.fence)
            self._fatal.add(run.fence)
        else:
            self._outbox.append(Finish(run.id, run.fence, outcome))
        self.request_step()

    def _outcome(self, run: DurableRun, job: Job[Any]) -> Outcome | None:
        """Return the outcome of a run; None if it ends this process, as SystemExit does."""
        how = job.outcome
        if isinstance(how, Value):
            try:
                return Succeeded(encode("the result", how.value, self._store.max_payload))
            except PayloadError as refused:
                return Failed(encode_error(refused))
        error = job.exception
        assert error is not None
        if job.state is not JobState.FAILED:
            return Cancelled() if run._cancelled else Released()
        if isinstance(error, JobCancelledError) and not isinstance(
            error.__cause__, Exception | None
        ):
            # Ctrl-C is no fault of the job; a handler that ends the process would do so for ever
            return Released() if _is_interrupt(error.__cause__) else None
        return self._after(run, error)

    def _after(self, run: DurableRun, error: BaseException) -> Outcome:
        """Return the outcome of a run that raised: retried, failed or dead."""
        claim, policy = run._claim, self._retry
        if claim.retry is not None:
            policy = policy.with_json(claim.retry)
        when = again(policy, error, run.attempt)
        if when is None:
            return Failed(self._error_text(run, error))
        delay, counts, requeue = when
        if counts and run.attempt >= policy.max_attempts:
            return Died(self._error_text(run, error))
        return Postponed(delay, counts, requeue, error_line(error))

    def _error_text(self, run: DurableRun, error: BaseException) -> str:
        """Return the JSON text of an error that ends a job, and give the error to its handles."""
        data = encode_error(error)
        self._failed(run.id, data, error)
        return data

    # ---- ending

    def close(self) -> None:
        """Claim no more jobs, also after the lease is renewed."""
        self.closed = True
        self.claiming = False
        self.request_step()  # a step without room says that this instance takes no more

    @property
    def available(self) -> bool:
        """Whether the store has answered the last step."""
        return not self._unavailable

    @property
    def running(self) -> list[DurableRun]:
        """The runs that have not ended."""
        return list(self._runs.values())

    def cancel_all(self, reason: str) -> list[tuple[int, int]]:
        """Cancel all runs, which gives their jobs back. Return (id, fence) of each."""
        self.term += 1
        for scope in self.leased:
            scope.cancel()
        runs = self.running
        for run in runs:
            assert run._job is not None
            run._given_up = True
            run._job.cancel(reason)
        self._announce_step()  # runs that wait for their slots stop waiting
        return [(run.id, run.fence) for run in runs]

    def give_back(self, reason: str) -> int:
        """Cancel all runs, and begin no more. Return how many were cancelled."""
        self.claiming = False
        return len(self.cancel_all(reason))

    async def wait_idle(self) -> None:
        """Wait until no run is left, all ends are reported, and no claim is under way."""
        if self._unfinished or self._asking:
            await self._idle.wait()
        else:
            await trio.lowlevel.checkpoint()

    async def wait_ended(self) -> None:
        """Wait until no run is left, reported or not. Not always a checkpoint."""
        if self._runs:
            await self._ended.wait()

    async def stop(self) -> None:
        """Report the remaining ends, then end the pump."""
        self.stopping = True
        self.claiming = False
        self._changed.set()
        with trio.move_on_after(GIVE_UP_AFTER) as in_time:
            await self.wait_idle()
        if self._unfinished and (in_time.cancelled_caught or self._store_gone):
            logger.error(
                "the ends of %d runs could not be reported within %g s, since the store is not"
                " available; their jobs are run again, with one crash more",
                len(self._unfinished),
                GIVE_UP_AFTER if in_time.cancelled_caught else 0,
            )
        if in_time.cancelled_caught:
            self._pumping.cancel()


def _is_interrupt(error: BaseException | None) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return any(map(_is_interrupt, error.exceptions))
    return isinstance(error, KeyboardInterrupt)
