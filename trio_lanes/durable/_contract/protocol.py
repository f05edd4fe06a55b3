"""The `Store` protocol: the calls that durable lanes make to a store.

A `Store` object is the connection of one instance to an engine. A store keeps jobs and decides
which of them an instance may claim. Each call is atomic: it has happened as a whole, or not at all.

A reply can be lost, so each call that changes something can be asked again:

* `Store.step` has a number, counted from 1 in each incarnation. The number of the last step gives
  the same answer again and does nothing more; a lower number does nothing. So a step that gets no
  answer is asked again, unchanged, until it gets one or the lease is over. Without this, the jobs
  that the step claimed would run nowhere, under an instance that does not know of them. One step
  is asked for at a time, unless the store takes them ahead: see `Store.steps_ahead`.
* Every act (`Store.do`) and `Store.join` has a ticket, a string that no other has. The same ticket
  is the same act, for `REMEMBERED_FOR` seconds: it gives the same answer and does nothing more. A
  store in which no reply can be lost may forget the oldest tickets earlier.
* `StoreUnavailableError.unknown` says whether the call may have happened.
* No call lasts longer than `Store.patience`, except `Store.wait`, `Store.events`, `Store.sent`,
  `Store.receive`, `Store.served`, `Store.wake`, and acts and questions that are ``long``.

If the calling process dies:

===========================  ==================================================================
the process dies             the engine has, and then
===========================  ==================================================================
before an `Enqueue`          nothing; the caller had no answer
during the `Enqueue`         the job or nothing; the caller submits again with the same key
after the `Enqueue`          the job, waiting
after `Store.step` claimed   the job, running under a fence; its recovery counts a crash
after the handler's effect   the same: the effect is repeated (a key or a fence can prevent that)
during the finishing step    the job, finished, or running as before
after the finishing step     the end; the session's next job is claimed or waiting
===========================  ==================================================================
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Protocol, TypeAlias, TypeVar

import trio

from .act import Act, Question
from .records import Ended, Finish, Opening, Step

T = TypeVar("T")

ServedAt: TypeAlias = float
"""The fence of a lock, or when costs were taken from a quota: a number that a store has given."""

REMEMBERED_FOR: Final = 300.0
"""Seconds for which a store remembers the ticket of an act, and its answer."""
STEP_BYTES: Final = 4 * 1024 * 1024
"""The most bytes of payloads and checkpoint data in the claims of one step."""

EVENTS_KEPT: Final = 1_000
"""How many events of a job a store keeps."""
MESSAGES_KEPT: Final = 1_000
"""How many messages a job can have."""
EVENT_BYTES: Final = 64 * 1024
"""The most bytes of JSON text of an event or a message."""
JOBS_LISTED: Final = 1_000
"""The most jobs that one call lists."""
NAMES_LISTED: Final = 100
"""The most locks, quotas and paused sessions in `AllStatistics`, events and messages of a job in
`StatusOf`."""
REQUESTS_LISTED: Final = 10
"""The most requests for one lock or quota in `AllStatistics`: of each kind."""


class Store(Protocol):
    """The connection of one instance to an engine that keeps jobs.

    No call stays half done: if a caller is cancelled, the call ends first. Every call raises
    `StoreUnavailableError` for a fault that may pass, and another `StoreError` for a fault that
    will not. It has changed nothing then, unless ``unknown`` is True.
    """

    max_payload: int
    """The largest payload, result or checkpoint, in bytes of its JSON text."""
    patience: float
    """Seconds after which a call that got no answer raises `StoreUnavailableError`."""
    steps_ahead: bool = False
    """Whether a step may be asked while the one before has no answer yet. The store does it after
    that one, and only if that one gets its answer: else it raises `StoreUnavailableError`, and has
    done nothing. A store without this attribute is asked for one step at a time."""
    claims_last: bool = False
    """Whether what is asked for in one pass of Trio's scheduler is done together, claims last. Then
    a submission waits for the pass in which the step is asked for that may claim its job."""

    def open(self, opening: Opening) -> AbstractAsyncContextManager[None]:
        """Connect, and write the lanes that the store lacks. Closing forgets no job, ends no run.

        Raises:
          StoreLockedError: if this is a second worker of an engine that takes only one.
          StoreVersionError: if the engine holds data of a version that this version cannot read.
        """

    async def join(
        self, ticket: str, lost: Sequence[tuple[int, int]] = (), held: Collection[int] = ()
    ) -> None:
        """Become a new incarnation with a lease; give back the jobs of instances without a lease.

        The runs of the former incarnation of this `Store` object are given back too, and no crash
        is counted, since its process is well.

        Args:
          ticket: it is also the id of the new incarnation. With the ticket of an earlier call,
            this only prolongs the lease of that incarnation, unless it is over.
          lost: (id, fence) of runs that were cancelled with the lease of the former incarnation. If
            another instance has counted their crash already, it is taken back. A run that ended at
            the time of its cancellation may be in ``held`` as well.
          held: the fences of runs of the former incarnation that have ended and are not reported
            yet. They belong to the new incarnation, whose next step finishes them.
        """

    async def leave(self) -> None:
        """End this incarnation. Each job that it still runs is given back and counts a crash."""

    async def declare_dead(self, instance: str) -> None:
        """End an incarnation whose process has ended, as `leave` does. It can be repeated.

        It is named by its id: another container may have a process with the same host and pid.
        """

    async def beat(self) -> bool:
        """Prolong the lease, then give back the jobs of instances whose lease has expired.

        Return False if the lease of this instance is over, and its incarnation with it.
        """

    @property
    def leased(self) -> bool:
        """Whether the store has leases; else `beat` need not be called."""

    @property
    def renewed(self) -> trio.Event | None:
        """An event that is set when the store has a new connection; then another takes its place.

        The server may have older data, so a heartbeat is sent at once. A store without this
        attribute, or with None, has no servers.
        """
        return None

    def wake(self) -> AsyncIterator[None]:
        """Yield whenever the worker should take a step: a hint, possibly superfluous or late."""

    # ---- acts and questions

    # not by `async def`: to pyright that is a `CoroutineType`, and a store may give less
    def do(self, act: Act[T], ticket: str) -> Coroutine[Any, Any, T]:
        """Do an act; return its answer. The acts are in `trio_lanes.durable.acts`.

        Raises:
          LaneError, ValueError: if it is refused.
        """

    def look(self, question: Question[T]) -> Coroutine[Any, Any, T]:
        """Return the answer to a question. The questions are in `trio_lanes.durable.acts`."""

    def step(self, number: int, finished: Sequence[Finish], room: int) -> Coroutine[Any, Any, Step]:
        """Finish runs, then claim up to ``room`` jobs, in one atomic call.

        The claims have at most ``STEP_BYTES`` of payloads and checkpoint data, or are a single job.

        Args:
          number: counted from 1 in each incarnation. The number of the last step gives the claims
            and the stale fences of that step again, and does nothing more. A lower number does
            nothing and gives an empty `Step`: its answer has been used already.
        """

    # ---- waits: they change nothing, or give the same answer if they are asked again

    def wait(self, id: int) -> Coroutine[Any, Any, Ended | None]:
        """Wait until the job has ended or is dead; None if it is unknown. Cancellable."""

    async def events(self, id: int, after: int) -> Sequence[tuple[int, str]] | None:
        """Wait for events with numbers above ``after``; return the first of them, at most 100.

        Empty: the job has ended or is dead, and there are no more. None: the job is unknown. It can
        be cancelled.
        """

    async def sent(self, id: int, number: int) -> bool:
        """Wait until a run has taken a message: True; or until none can take it any more: False.

        That is when the run that it was sent to has ended, or has no lease any more. It can be
        cancelled.
        """

    async def receive(self, id: int, fence: int, after: int) -> tuple[int, str] | None:
        """Wait for the next message of a job with a number above ``after``, and take it.

        Messages that an earlier run of the job has taken are taken again; messages that it has not
        taken are gone. None: the fence is no longer the run's. It can be cancelled, and asked again
        with the same ``after``, which gives the same message.
        """

    async def served(self, request: int) -> ServedAt | None:
        """Wait until a request is served; return the fence of the lock, or when costs were taken.

        None: the request has ended. It can be cancelled, and asked again.
        """
