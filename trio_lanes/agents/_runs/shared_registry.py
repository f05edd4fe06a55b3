"""`SharedRunRegistry`: the runs of sessions on any instance, and the ways to reach them.

A run is a run of a durable job, so the store knows where it is, and nothing beside it can disagree.
What is sent to it is a message of the job: the sender learns whether a run has taken it. A message
that a run has taken belongs to the job, so the run after a crash takes it again, and in the same
order. Aborts and outputs are handed over at once; a message for the model waits until the run takes
messages.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Final, cast

import trio

from trio_lanes import JobCancelledError
from trio_lanes.durable import (
    DurableJobError,
    DurableLanes,
    DurableRun,
    DurableState,
    DurableStatus,
    ResultGoneError,
    current_job,
)

from ..._config.check import lanes_of_trio
from .registry import SHORTEST_WAIT, Run, RunRegistry, SendRefused, SendResult, refusal_of
from .shared_questions import (
    KIND,
    OpenQuestion,
    decision_in,
    decision_key,
    open_questions,
    questions_in,
)

_log: Final = logging.getLogger("trio_lanes.agents")

_OFFER_AGAIN: Final = 0.05
"""Seconds between two offers of a message to a run that takes none now."""
_LISTEN_AGAIN: Final = 0.5
"""Seconds after which a store that is away, or was asked by another task, is asked again."""

Outputs = Callable[[Mapping[str, Any]], object]
_Hand = Mapping[Any, Callable[[Any], object]]


class SharedRunRegistry:
    """The active run of each session, on any instance of a store.

    ::

        registry = SharedRunRegistry(lanes)

        async def answer(payload):                  # a handler of durable jobs
            run = ModelRun(payload)                 # a `Run`: takes messages, can be aborted
            async with registry.running(run, outputs=gate.submit):
                return await run.go_on()

        await registry.send("alice", "one more thing")     # on any instance
        await registry.submit("alice", {"call-1": "approved"})

    Sending returns when the run, on whichever instance, has what was sent; or else why not. If the
    instance of the run dies first, the answer is STOPPED, and the job of the run is run again
    elsewhere. Each async method is a checkpoint, and raises
    `~trio_lanes.durable.StoreUnavailableError` if the store cannot do the call now. If it is
    cancelled, what was sent may have reached the run.
    """

    _check_lanes = staticmethod(lanes_of_trio)

    def __init__(self, lanes: DurableLanes) -> None:
        self._check_lanes(lanes)
        self._lanes: Final = lanes
        self._here: Final = RunRegistry()

    def __repr__(self) -> str:
        return f"<trio_lanes.agents.SharedRunRegistry of {self._lanes!r}>"

    @asynccontextmanager
    async def running(self, run: Run, *, outputs: Outputs | None = None) -> AsyncIterator[None]:
        """Hand ``run`` what is sent to its session, for an ``async with`` block of a handler.

        Args:
          run: messages are offered to it when it is streaming and not compacting. Those that it
            has not taken at the end of the block go to its method ``post_later``, if it has one, as
            a `DurableTurn`; else they are lost, which is logged.
          outputs: takes the outputs of `submit`, as `ActionGate.submit` does. What it raises is
            logged. By default the run's own method ``submit``, if it has one, as a `DurableTurn`.

        Raises:
          RuntimeError: outside of a durable job, or in a job without a session.
        """
        job = current_job()
        if job is None or job.session is None:
            raise RuntimeError("running() is for the handler of a durable job with a session")

        def take(message: Any) -> bool:
            return refusal_of(run) is None and run.queue_message(message)

        if outputs is None:
            outputs = cast("Outputs", getattr(run, "submit", _no_place))
        with self._here.running(job.session, run):
            async with hearing(job, run, take, outputs):
                yield

    async def get(self, session: str) -> DurableStatus | None:
        """Return the status of the job that runs in ``session``, on any instance, or None."""
        return await self._lanes.running(session)

    async def send(self, session: str, message: Any, *, key: str | None = None) -> SendResult:
        """Send ``message`` (JSON) to the active run of ``session``.

        A run on this instance that takes no messages now refuses it. A run elsewhere keeps it until
        it takes messages again.

        Args:
          key: messages to one job with the same key are one message.

        Raises:
          TypeError, ValueError, PayloadError: for a bad argument.
        """
        run = self._here.get(session)
        if run is not None and (refusal := refusal_of(run)) is not None:
            await trio.lowlevel.checkpoint()
            return SendResult(refusal)
        return await self._send(session, "message", message, key)

    async def abort(self, session: str, reason: str | None = None) -> SendResult:
        """Ask the active run of ``session`` to end: its ``abort`` is called where it runs.

        To cancel its job for good, whatever happens to its instance, use `DurableLanes.abort
        <trio_lanes.durable.DurableLanes.abort>`.
        """
        return await self._send(session, "abort", reason, None)

    async def submit(
        self, session: str | int, outputs: Mapping[str, Any], *, key: str | None = None
    ) -> SendResult:
        """Hand the outputs of calls, or approvals, to the active run of ``session``.

        A decision on a question of `DurableTurn.approve` is set if none is set, over all instances
        and restarts: the result is true if what stands is ``outputs``, whoever has set it; else
        it is DECIDED, and has what stands. It counts for what the question has shown.

        Args:
          session: the key of the session; or the number of a job, which no later run is taken for:
            with the session alone, it is a decision of whichever turn is active now.
          outputs: ``{call id: output}``, in JSON. While a turn asks, each must be an id of one of
            its questions, or else all are refused: NOT_ASKED.
          key: outputs to one job with the same key are handed over once. Decisions need none.
        """
        outputs = dict(outputs)
        status = await self._active(session)
        if status is None:
            return SendResult(SendRefused.NO_ACTIVE_RUN)
        known = questions_in(status)
        if not any(one.decision is None for one in known.values()) and not set(known) & set(
            outputs
        ):
            return await self._send(session, "outputs", outputs, key)
        if not set(outputs) <= set(known):
            return SendResult(SendRefused.NOT_ASKED)
        decided: dict[str, Any] = {}
        for call, value in outputs.items():
            stands = decision_in(status, call)
            if stands is None:
                said = {KIND: "outputs", "what": {call: value}, "of": known[call].of}
                # the first message with the key is the decision, whoever sends another one
                sent = await self._lanes.send(status.id, said, key=decision_key(call))
                if not sent:
                    assert sent.reason is not None
                    return SendResult(SendRefused(sent.reason))
                stands = await self._standing(status.id, call)
            if stands is None or stands[1] != json.loads(json.dumps(value)):
                decided[call] = None if stands is None else stands[1]
        return SendResult(SendRefused.DECIDED, decided) if decided else SendResult()

    async def questions(self, session: str | int | None = None) -> list[OpenQuestion]:
        """Return the open questions of `DurableTurn.approve`: of a session, of a job, or of all.

        Without a session each job that runs is looked at, in a call of the store for each.
        """
        if session is not None:
            status = await self._active(session)
            return [] if status is None else open_questions(status)
        found: list[OpenQuestion] = []
        after = 0
        while page := await self._lanes.jobs(states=[DurableState.RUNNING], after=after):
            for one in page:
                found += await self.questions(one.id)
            after = page[-1].id
        return found

    async def _active(self, session: str | int) -> DurableStatus | None:
        """Return the status and the texts of the job that runs in a session, or of this job."""
        id: int | None = None
        if isinstance(session, str):
            running = await self._lanes.running(session)
            id = None if running is None else running.id
        else:
            id = session
        status = None if id is None else await self._status(id)
        return status if status is not None and status.state is DurableState.RUNNING else None

    async def _status(self, job: int) -> DurableStatus | None:
        """Return the status and the texts of a job; None if it is forgotten."""
        try:
            return await self._lanes.job(job).status(texts=True)
        except ResultGoneError:
            return None

    async def _standing(self, job: int, call: str) -> tuple[str, Any] | None:
        """Return the kind and the value of the decision on a call; None: the job is forgotten."""
        status = await self._status(job)
        return None if status is None else decision_in(status, call)

    async def wait_ended(self, session: str, timeout: float = 15.0) -> bool:
        """Wait until the job that runs in ``session`` now has ended; False at the timeout.

        A job that is given back has not ended: it runs again.
        """
        status = await self._lanes.running(session)
        if status is None:
            return True
        with trio.move_on_after(max(SHORTEST_WAIT, timeout)) as in_time:
            with suppress(JobCancelledError, DurableJobError, ResultGoneError):  # it has ended
                await self._lanes.job(status.id).wait()
        return not in_time.cancelled_caught

    async def abort_and_wait(
        self, session: str, reason: str | None = None, timeout: float = 15.0
    ) -> bool:
        """`abort` the active run of ``session``, and wait for the end of its job."""
        await self.abort(session, reason)
        return await self.wait_ended(session, timeout)

    async def _send(self, session: str | int, kind: str, what: Any, key: str | None) -> SendResult:
        sent = await self._lanes.send(session, {KIND: kind, "what": what}, key=key)
        return SendResult(None if sent.reason is None else SendRefused(sent.reason))


# ---- where the run is


@asynccontextmanager
async def hearing(
    job: DurableRun, run: Run, take: Callable[[Any], bool], outputs: Outputs
) -> AsyncIterator[None]:
    """Hand over what registries send to ``job``, which is that of ``run``, during the block.

    While another task of the run takes its messages, this waits until that one stops.

    Args:
      take: a message is offered to it until it returns True, or raises.
    """
    waiting: deque[Any] = deque()
    come = trio.lowlevel.ParkingLot()
    decide = getattr(run, "_decide", None)  # of a `DurableTurn`

    def queue(message: Any) -> None:
        waiting.append(message)
        come.unpark()

    hand: _Hand = {"message": queue, "abort": run.abort, "outputs": outputs}
    post_later = getattr(run, "post_later", None)
    failed: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_offer, job, take, waiting, come)
            nursery.start_soon(_hear, job, hand, decide)
            try:
                yield
            except BaseException as error:
                failed = error  # it leaves as it is, not in a group
            nursery.cancel_scope.cancel()
        if failed is not None:
            raise failed
        if post_later is None:  # a job that fails is given them again
            post_later = _lost
    finally:
        if post_later is not None:
            for message in waiting:
                _call(job, post_later, message)


async def _hear(job: DurableRun, hand: _Hand, decide: Callable[..., object] | None) -> None:
    """Hand over each message by its kind; what no registry has sent is a message as it is."""
    messages = job.messages()
    while True:
        try:
            message = await anext(messages)
        except trio.BusyResourceError:
            await trio.sleep(_LISTEN_AGAIN)
            continue
        kind = message.get(KIND) if isinstance(message, dict) else None
        if kind in hand and "of" in message and decide is not None:
            _call(job, partial(decide, of=message["of"]), message["what"])
        elif kind in hand:
            _call(job, hand[kind], message["what"])
        else:
            hand["message"](message)


async def _offer(
    job: DurableRun,
    take: Callable[[Any], bool],
    waiting: deque[Any],
    come: trio.lowlevel.ParkingLot,
) -> None:
    """Offer each message until the run takes it."""
    while True:
        while waiting:
            if _call(job, take, waiting[0]) is False:
                await trio.sleep(_OFFER_AGAIN)  # a run has no event for it
            else:
                waiting.popleft()
        await come.park()


def _call(job: DurableRun, function: Callable[[Any], object], argument: Any) -> object:
    try:
        return function(argument)
    except Exception:
        _log.exception("%r raised when it was handed what was sent to it", job)
        return None


def _lost(message: Any) -> None:
    raise ValueError(f"the run has ended, and has not taken the message {message!r}")


def _no_place(outputs: Any) -> None:
    raise ValueError(f"the run takes no outputs, and was sent {outputs!r}")
