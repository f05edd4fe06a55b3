"""`map`: a window of jobs that moves along an iterable, driven by the task that takes results.

Taking a result submits items until the window is full, and then waits for the job at its head, or
for the first job to end. No task does this in the background, so a failure is in no exception
group, and a slow taker of results slows down the reading of items. Only an async iterable is read
in a task of its own: reading it may take long, and must not be cancelled when only the taking is.

It stands on the verbs of the loop, because the public verbs lack three things:

* A wait for any of several jobs, or for room. The search for deadlocks has to see it as one wait,
  which ends if any of them can: waits for single jobs, in tasks of their own, would be refused as
  soon as one of them cannot.
* A request for room that keeps its place in line when the task that takes a result is cancelled:
  `submit` withdraws it.
* An act that cancels all jobs at once. One after the other, each would give its place to the next,
  which would start before it is cancelled.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Final, Generic, Self, TypeVar, final

import outcome
import trio
from trio.lowlevel import Abort, ParkingLot, disable_ki_protection, enable_ki_protection

from ._actors.job import AnyJob, Job
from ._actors.wait import RoomRequest, Wait
from ._config.protected import protected_context
from ._flow.loop import Scheduler
from ._flow.parking import RaiseCancel
from ._waiting.current import job_here

logger: Final = logging.getLogger("trio_lanes")

T_co = TypeVar("T_co", covariant=True)

MOST_BY_DEFAULT: Final = 1_000
_BLOCK_LEFT: Final = "the block of its map was left"


class MapResults(Generic[T_co]):
    """The results of a `map`, an async iterator: ``async with lanes.map(...) as results``.

    There is exactly one result for each item. Taking the result of a failed item raises its
    exception; code that catches it may take the next result. A failure of the iterable itself is
    raised after the results of the items before it. Taking a result is a checkpoint, and loses
    nothing if it is cancelled: the next attempt goes on. Only one task at a time may take results.

    Raises:
      Exception: the failure of the job of that item, or the refusal of the item, as in `Job.wait`.
      LaneDeadlockError: inside a job, if this would never end.
      trio.BusyResourceError: if another task is taking a result.
      trio.ClosedResourceError: if the block was left.
    """

    _window: Window[T_co]

    @classmethod
    def _create(cls, window: Window[T_co]) -> Self:
        results = cls.__new__(cls)
        results._window = window
        return results

    def __repr__(self) -> str:
        outstanding = self._window.outstanding
        return f"<trio_lanes.MapResults at {id(self):#x}, {outstanding} outstanding>"

    def __aiter__(self) -> MapResults[T_co]:
        return self

    @enable_ki_protection
    async def __anext__(self) -> T_co:
        entry = await self._take()
        if entry is None:
            raise StopAsyncIteration
        try:
            if isinstance(entry, Job):
                return entry._unwrap()
            raise entry
        except StopAsyncIteration as error:  # would look like the end of all items
            raise RuntimeError("an item raised StopAsyncIteration") from error
        finally:
            del entry, self  # this frame is in the traceback of the error

    async def _take(self) -> Job[T_co] | Exception | None:
        return await self._window.take()


@final
class Window(Generic[T_co]):
    """The jobs of one `map` that are outstanding: submitted, and their results not taken."""

    until_started: Final = False  # as a waiter of its jobs it wants their ends

    def __init__(
        self,
        scheduler: Scheduler,
        make: Callable[[Any, str | None], Job[T_co]],
        items: Iterator[Any] | None,
        *,
        lane: str,
        session: Callable[[Any], str] | None,
        ordered: bool,
        max_outstanding: int | None,
        lender: AnyJob | None,
    ) -> None:
        self._scheduler: Final = scheduler
        self._make: Final = make
        self._items: Final = items  # None: they are read by `read`
        self._lane: Final = lane
        self._session: Final = session
        self._ordered: Final = ordered
        self._max_outstanding: Final = max_outstanding
        self._lender: Final = lender
        self._has_more = True  # whether more items may come
        self._items_error: Exception | None = None  # the error of the iterable that ended it
        self.close_error: BaseException | None = None  # of ending the reading, or of closing
        self.outstanding = 0  # items that were read, and whose results have not been taken
        self._line: deque[Job[T_co] | Exception] = deque()  # in the order of taking
        self._unsettled: dict[AnyJob, None] = {}  # accepted, and not yet settled
        self._request: RoomRequest | None = None  # that waits for room
        self._parked: Wait | None = None  # of the task that takes a result
        self._taking = False
        self._left = False
        self._reader: Final = trio.CancelScope()  # of the reading of an async iterable
        self._resting: Final = ParkingLot()  # where its reader waits until an item is wanted

    async def take(self) -> Job[T_co] | Exception | None:
        """Return the next result: a settled job, the refusal of an item, or None at the end."""
        self._scheduler.check_thread()
        if self._taking:
            raise trio.BusyResourceError("another task is taking a result of this map")
        self._taking = True
        try:
            return await self._take()
        finally:
            self._taking = False

    async def _take(self) -> Job[T_co] | Exception | None:
        has_waited = False
        while True:
            if self._left:
                raise trio.ClosedResourceError("the block of this map was left")
            self._fill()
            if self._is_ready or not (self._unsettled or self._request or self._has_more):
                break
            async with self._lending():
                if not self._is_ready:  # lending may have been enough
                    await self._park()
            has_waited = True
        if not has_waited:
            await trio.lowlevel.checkpoint()
        if self._line:
            self.outstanding -= 1
            self._resting.unpark_all()
            return self._line.popleft()
        error, self._items_error = self._items_error, None
        return error

    @property
    def _is_ready(self) -> bool:
        """Whether there is a result to take."""
        if not self._line:
            return False
        head = self._line[0]
        return not isinstance(head, Job) or head.done

    # ---- submitting

    @property
    def _size(self) -> int:
        """How many may be outstanding now."""
        if self._max_outstanding is not None:
            return self._max_outstanding
        lane = self._scheduler.registry.find_or_make_lane(self._lane)
        width = 0 if lane is None else lane.limiter.total_tokens
        return max(1, int(min(2 * width, MOST_BY_DEFAULT)))

    @property
    def _wants_item(self) -> bool:
        may_come = self._has_more and not self._left and self._request is None
        return may_come and self.outstanding < self._size

    def _fill(self) -> None:
        """Submit items until the iterable has ended, or the window or the lane is full."""
        while self._items is not None and self._wants_item:
            try:
                item = _unprotected(next, self._items)
            except StopIteration:
                self._has_more = False
            except Exception as error:
                self._has_more = False
                self._items_error = error
            else:
                self._submit(item)

    def _submit(self, item: Any) -> None:
        """Submit ``item``, or request room for it, or note why it is refused."""
        self.outstanding += 1
        try:
            key = None if self._session is None else _unprotected(self._session, item)
            job = self._make(item, key)
        except Exception as error:
            self._line.append(error)
            return
        scheduler = self._scheduler
        scheduler.waits.add_waiter(job, self)
        if self._ordered:
            self._line.append(job)
        if scheduler.full(job) is None:
            self._unsettled[job] = None
            scheduler.submit(job)
        else:
            self._request = scheduler.request_room(job, self._room_decided)

    def _room_decided(self, what: outcome.Maybe[AnyJob]) -> None:
        request, self._request = self._request, None
        assert request is not None
        job = request.job
        if isinstance(what, outcome.Value):
            self._unsettled[job] = None  # it is accepted next
        else:
            assert isinstance(what.error, Exception)
            if self._ordered:
                self._line.pop()  # none came after it
            self._line.append(what.error)
        self._wake()  # to submit more
        self._resting.unpark_all()

    # ---- waiting

    @property
    def wait(self) -> Wait | None:
        """As a `Waiter` of its jobs."""
        return self._parked

    def job_ended(self, target: AnyJob) -> None:
        """As a `Waiter` of its jobs: ``target`` has settled."""
        self._unsettled.pop(target, None)
        if not self._ordered:
            self._line.append(target)
        if self._is_ready or not self._unsettled:
            self._wake()

    def _wake(self) -> None:
        wait, self._parked = self._parked, None
        if wait is not None:
            self._scheduler.waits.end(wait)

    def _wait(self) -> Wait:
        """The wait of this task: for the head, for any of all, for room, or for an item."""
        task, job = trio.lowlevel.current_task(), job_here(self._scheduler.running)
        if not self._unsettled:
            return Wait(task, None if self._request is None else job, request=self._request)
        any_of: Collection[AnyJob] = self._unsettled.keys()
        if self._ordered and not self._left:
            head = self._line[0]
            assert isinstance(head, Job)
            any_of = (head,)
        return Wait(task, job, any_of=any_of, failed=self._forget)

    def _forget(self) -> None:
        self._parked = None

    async def _park(self) -> None:
        wait = self._parked = self._wait()
        try:
            self._scheduler.waits.begin(wait)
        except BaseException:
            self._parked = None
            raise

        def abort(raise_cancel: RaiseCancel) -> Abort:
            self._parked = None
            self._scheduler.waits.forget(wait)
            return Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def _lending(self) -> AbstractAsyncContextManager[None]:
        return nullcontext() if self._lender is None else self._lender.yield_slot()

    # ---- leaving

    async def leave(self) -> None:
        """Cancel the jobs that have not ended, and wait, shielded, for the running ones."""
        self._left = True
        error, self._items_error = self._items_error, None
        if error is not None:  # as the failure of a job that is not retrieved
            logger.error("the items of a map raised; its results were not taken", exc_info=error)
        self._reader.cancel()
        scheduler = self._scheduler
        with scheduler.batch():
            if self._request is not None:
                scheduler.drop_request(self._request)
                self._request = None
            for job in [*self._unsettled]:
                job.cancel(_BLOCK_LEFT)
        self._wake()  # another task that takes a result
        if self._unsettled:
            with trio.CancelScope(shield=True):
                async with self._lending():
                    while self._unsettled:
                        await self._park()

    # ---- reading an async iterable

    @enable_ki_protection
    async def read(self, items: AsyncIterator[Any]) -> None:
        """Read ``items`` as long as some are wanted, and close them. Raises no `Exception`."""
        try:
            with self._reader:
                try:  # inside of the scope, which would make a copy of a group
                    while True:
                        while not self._wants_item:
                            await self._resting.park()
                        item = await _next_of(items)
                        if self._left:  # while it was being read
                            break
                        self._submit(item)
                        self._wake()  # it may wait for nothing but this
                except StopAsyncIteration:
                    pass
                except Exception as error:
                    if trio.current_effective_deadline() == -math.inf:  # it was cancelled
                        self.close_error = error
                    else:
                        self._items_error = error
        except RuntimeError as error:  # a generator has left a scope of its own open at a yield
            self.close_error = error
        finally:
            self._has_more = False
            self._wake()
            try:
                await _close(items)
            except (Exception, BaseExceptionGroup) as error:
                # A generator that yields in a nursery raises its GeneratorExit in a group.
                if isinstance(error, BaseExceptionGroup) and error.subgroup(trio.Cancelled):
                    raise
                if self.close_error is not None:  # its cancelled reading has raised, too
                    error.__context__ = self.close_error
                self.close_error = error


@protected_context
async def opened(
    results: MapResults[T_co], items: AsyncIterator[Any] | None
) -> AsyncIterator[MapResults[T_co]]:
    """The block of a `map`; ``items`` if they are to be read asynchronously."""
    window = results._window
    if items is None:
        try:
            yield results
        finally:
            await window.leave()
        await trio.lowlevel.checkpoint()
        return
    failure: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(window.read, items)
            try:
                yield results
            except BaseException as error:
                failure = error  # the nursery would wrap it
            await window.leave()
    except BaseException as error:
        if failure is None or not _is_cancelled(error):
            raise
    if window.close_error is not None:
        raise window.close_error from failure
    if failure is not None:
        raise failure
    await trio.lowlevel.checkpoint()  # leaving a nursery lets others run, but is not cancelled


def _is_cancelled(error: BaseException) -> bool:
    """Whether ``error``, a group or a single exception, holds only cancellations."""
    return BaseExceptionGroup("", [error]).split(trio.Cancelled)[1] is None


# ---- the user's code, which Ctrl-C may interrupt


@disable_ki_protection
def _unprotected(fn: Callable[[Any], Any], argument: Any) -> Any:
    return fn(argument)


@disable_ki_protection
async def _next_of(items: AsyncIterator[Any]) -> Any:
    return await anext(items)


@disable_ki_protection
async def _close(items: AsyncIterator[Any]) -> None:
    aclose = getattr(items, "aclose", None)
    if aclose is not None:
        await aclose()
