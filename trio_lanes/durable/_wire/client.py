"""`ServedStoreClient`: a `Store` whose calls are done by the server of a store.

Theory of operation:

* A call is a message with a number, the incarnation of this instance, a verb and its arguments. Its
  answer is a message with the same number.
* A call without an answer is sent again, unchanged, after `ASK_AGAIN`, and as soon as a cut link is
  replaced, until the patience of the store is over. It then raises `StoreUnavailableError`, with
  ``unknown`` set if it was sent at all: also if the answer is that the store is not available,
  since an earlier copy of the call may have been done.
* Calls that read every job, and waits, are sent again over a new link only: they may take long.
* The server pushes a hint when there may be work. A hint can be lost, so `wake` also wakes by
  itself, every few seconds.
* A call ends even if its caller is cancelled, within the patience. A wait for a job changes
  nothing, and is cancelled at once.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, final

import trio

from ... import RateLimit
from .._contract.errors import StoreUnavailableError
from .._contract.protocol import Store
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
    Opening,
    QueuedJob,
    Selection,
    Step,
    StoreRules,
    SubmittedJob,
)
from .codec import decode, encode
from .link import Link
from .outlast import outlast
from .server import NOT_YET, WAITED_FOR

logger: Final = logging.getLogger("trio_lanes.durable")

ASK_AGAIN: Final = 1.0
"""Seconds after which a call without an answer is sent again."""
CONNECT_AGAIN: Final = 0.25
"""Seconds between two tries to connect."""
LOOK_EVERY: Final = (2.0, 5.0)
"""Seconds between two looks for work without a hint, at least and at most."""
LONG: Final = 600.0
"""Seconds after which a call that reads every job is given up."""

Connect = Callable[[], AbstractAsyncContextManager[Link]]


@final
class ServedStoreClient(Store):
    """The store of an instance whose store is in another process.

    Args:
      connect: makes a connection to the server; raises OSError if it cannot.
      name: what the store is called in errors and logs.
      patience: seconds after which a call without an answer raises `StoreUnavailableError`.
    """

    leased = True

    def __init__(self, connect: Connect, *, name: str, patience: float = 5.0) -> None:
        self.max_payload: int = 0  # the server says it
        self.patience = patience
        self._connect: Final = connect
        self._name: Final = name
        self._instance = ""
        self._link: Link | None = None
        self._linked = trio.Event()  # a link is there, or the store cannot be opened
        self._refused: Exception | None = None
        self._last_number = 0
        self._pending: Final[dict[int, _Call]] = {}
        self._poke, self._pokes = trio.open_memory_channel[None](1)

    def __repr__(self) -> str:
        return f"<store {self._name}>"

    # ---- the connection

    @asynccontextmanager
    async def open(self, opening: Opening) -> AsyncIterator[None]:
        linking = trio.CancelScope()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(outlast, linking, self._keep_linked, opening)
            try:
                with trio.move_on_after(self.patience):
                    await self._linked.wait()
                if self._link is not None:
                    linking.shield = True
                    yield
            finally:
                linking.shield = False
                failed = self._refused
                if self._link is None and failed is None:
                    failed = StoreUnavailableError(f"{self._name} has not answered")
                self._refuse(StoreUnavailableError(f"{self._name} is not open"))
                nursery.cancel_scope.cancel()
        if failed is not None:
            raise failed

    def _refuse(self, error: Exception) -> None:
        """Let all calls raise an error from now on."""
        self._refused = error
        self._link = None
        self._linked.set()
        for call in self._pending.values():
            call.changed.set()

    async def _keep_linked(self, opening: Opening) -> None:
        while True:
            try:
                async with self._connect() as link:
                    await self._use(link, opening)
            except (OSError, trio.BrokenResourceError, trio.ClosedResourceError, trio.EndOfChannel):
                pass
            if self._refused is not None:
                return
            self._link = None
            self._linked = trio.Event()
            await trio.sleep(CONNECT_AGAIN)

    async def _use(self, link: Link, opening: Opening) -> None:
        number = self._next_number()
        await link.send(encode([number, opening]))
        with trio.move_on_after(self.patience) as in_time:
            answer = None
            while answer is None:
                answered, told = decode(await link.receive())
                if answered == number:
                    answer = told
        if in_time.cancelled_caught:
            return
        if isinstance(answer, Exception):
            self._refuse(answer)
            return
        assert isinstance(answer, int)
        self.max_payload = answer
        self._link = link
        self._linked.set()
        for call in self._pending.values():
            call.changed.set()  # it is sent over the new link
        while True:
            self._hear(*decode(await link.receive()))

    def _hear(self, number: int, told: Any) -> None:
        if number == 0:
            try:
                self._poke.send_nowait(None)
            except trio.WouldBlock:
                pass  # a hint is pending already
            return
        call = self._pending.pop(number, None)
        if call is not None:  # else the answer came twice, or too late
            call.answer = (told,)
            call.changed.set()

    def _next_number(self) -> int:
        self._last_number += 1
        return self._last_number

    # ---- calls

    async def _ask(self, verb: str, *arguments: Any, long: bool = False) -> Any:
        """Make a call, and return its answer."""
        number = self._next_number()
        call = _Call(encode([number, self._instance, verb, arguments]))
        await trio.lowlevel.checkpoint_if_cancelled()
        self._pending[number] = call
        try:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + self._limit(long)):
                await self._until_answered(call, math.inf if long else ASK_AGAIN)
        finally:
            self._pending.pop(number, None)
        if call.answer is None:
            error = StoreUnavailableError(f"{self._name} has not answered the call {verb!r}")
            error.unknown = call.sent
            raise error
        (answer,) = call.answer
        if isinstance(answer, StoreUnavailableError):
            # an earlier copy of the call, whose answer was lost, may have been done
            answer.unknown = True
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _limit(self, long: bool) -> float:
        return max(LONG, self.patience) if long else self.patience

    async def _until_answered(self, call: _Call, again_after: float) -> None:
        while True:
            call.changed = trio.Event()  # before the check: an answer may come while this sends
            if call.answer is not None:
                return
            while self._link is None and self._refused is None:
                await self._linked.wait()  # a new link may be cut before this task runs
            link = self._link
            if link is None:
                assert self._refused is not None
                raise self._refused
            call.sent = True
            try:
                await link.send(call.text)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass  # the link is cut: the call is sent over the next
            with trio.move_on_after(again_after):
                await call.changed.wait()

    async def join(
        self, ticket: str, lost: Sequence[tuple[int, int]] = (), held: Collection[int] = ()
    ) -> None:
        await self._ask("join", ticket, lost, list(held))
        self._instance = ticket

    async def leave(self) -> None:
        await self._ask("leave")

    async def bury(self, host: str, pid: int) -> None:
        await self._ask("bury", host, pid)

    async def beat(self) -> bool:
        return bool(await self._ask("beat"))

    async def wake(self) -> AsyncIterator[None]:
        while True:
            with trio.move_on_after(random.uniform(*LOOK_EVERY)):
                await self._pokes.receive()
            yield

    async def enqueue(self, batch: Sequence[SubmittedJob], ticket: str) -> list[int]:
        return list(await self._ask("enqueue", batch, ticket))

    async def step(self, number: int, finished: Sequence[Finish], room: int) -> Step:
        return await self._ask("step", number, finished, room)  # type: ignore[no-any-return]

    async def checkpoint(self, id: int, fence: int, data: str, ticket: str) -> bool:
        return bool(await self._ask("checkpoint", id, fence, data, ticket))

    async def take(
        self, id: int, fence: int, taken: Mapping[int, str], data: str, ticket: str
    ) -> bool | None:
        return await self._ask("take", id, fence, taken, data, ticket)  # type: ignore[no-any-return]

    async def lend_slot(self, id: int, fence: int, ticket: str) -> bool:
        return bool(await self._ask("lend_slot", id, fence, ticket))

    async def regain_slot(self, id: int, fence: int, ticket: str) -> bool | None:
        return await self._ask("regain_slot", id, fence, ticket)  # type: ignore[no-any-return]

    async def emit(self, id: int, fence: int, event: str, ticket: str) -> int | None:
        return await self._ask("emit", id, fence, event, ticket)  # type: ignore[no-any-return]

    async def send(
        self, session: str | None, id: int | None, message: str, key: str | None, ticket: str
    ) -> tuple[int, int] | str:
        told = await self._ask("send", session, id, message, key, ticket)
        return told  # type: ignore[no-any-return]

    async def sent(self, id: int, number: int) -> bool:
        return bool(await self._ask_until("sent", id, number))

    async def receive(self, id: int, fence: int, after: int) -> tuple[int, str] | None:
        return await self._ask_until("receive", id, fence, after)  # type: ignore[no-any-return]

    async def events(self, id: int, after: int) -> Sequence[tuple[int, str]] | None:
        return await self._ask_until("events", id, after)  # type: ignore[no-any-return]

    async def acquire(
        self, key: str, shared: bool, ticket: str, job: int | None = None
    ) -> tuple[int, float | None] | None:
        return await self._ask("acquire", key, shared, ticket, job)  # type: ignore[no-any-return]

    async def spend(
        self,
        quota: str,
        limits: Sequence[RateLimit],
        costs: Mapping[str, int],
        ticket: str,
        job: int | None = None,
    ) -> tuple[int, float | None] | None:
        told = await self._ask("spend", quota, limits, costs, ticket, job)
        return told  # type: ignore[no-any-return]

    async def served(self, request: int) -> float | None:
        return await self._ask_until("served", request)  # type: ignore[no-any-return]

    async def release(self, request: int, used: bool, ticket: str) -> None:
        await self._ask("release", request, used, ticket)

    async def settle(
        self,
        quota: str,
        limits: Sequence[RateLimit],
        at: float,
        change: Mapping[str, int],
        ticket: str,
    ) -> None:
        await self._ask("settle", quota, limits, at, change, ticket)

    async def reset_quota(self, quota: str, ticket: str) -> bool:
        return bool(await self._ask("reset_quota", quota, ticket))

    async def write_log(self, log: str, record: str, ticket: str) -> int | None:
        return await self._ask("write_log", log, record, ticket)  # type: ignore[no-any-return]

    async def read_log(self, log: str, after: int) -> list[tuple[int, str, str]]:
        return list(await self._ask("read_log", log, after, long=True))

    async def drop_log(self, log: str, ticket: str) -> bool:
        return bool(await self._ask("drop_log", log, ticket))

    async def wait(self, id: int) -> Ended | None:
        return await self._ask_until("wait", id)  # type: ignore[no-any-return]

    async def _ask_until(self, verb: str, *arguments: Any) -> Any:
        """Make a call that waits, again and again until it has an answer.

        It changes nothing, or gives the same answer when it is asked again.
        """
        while True:
            number = self._next_number()
            call = _Call(encode([number, self._instance, verb, arguments]))
            self._pending[number] = call
            try:
                with trio.move_on_after(WAITED_FOR + self.patience):
                    await self._until_answered(call, math.inf)
            finally:
                self._pending.pop(number, None)
            if call.answer is None:
                continue  # the question or its answer was lost
            (answer,) = call.answer
            if isinstance(answer, Exception):
                raise answer
            if answer != NOT_YET:
                return answer

    # ---- control

    async def cancel(self, id: int, outcome: str, ticket: str, running: bool = True) -> bool:
        return bool(await self._ask("cancel", id, outcome, ticket, running))

    async def put_first(self, id: int, ticket: str) -> bool:
        return bool(await self._ask("put_first", id, ticket))

    async def abort(self, session: str, outcome: str, ticket: str) -> bool:
        return bool(await self._ask("abort", session, outcome, ticket))

    async def clear(self, lane: str | None, session: str | None, outcome: str, ticket: str) -> int:
        return int(await self._ask("clear", lane, session, outcome, ticket, long=True))

    async def pause(
        self, lane: str | None, session: str | None, seconds: float, ticket: str
    ) -> None:
        await self._ask("pause", lane, session, seconds, ticket)

    async def resume(self, lane: str | None, session: str | None, ticket: str) -> None:
        await self._ask("resume", lane, session, ticket)

    async def configure(
        self,
        lanes: Mapping[str, LaneLimit | int | float | None],
        groups: Mapping[str, GroupLimit] | None,
        rules: Mapping[str, Any],
        ticket: str,
    ) -> None:
        await self._ask("configure", lanes, groups, rules, ticket)

    async def requeue(self, of: Selection, ticket: str) -> int:
        return int(await self._ask("requeue", of, ticket, long=of.id is None))

    async def purge(self, of: Selection, ticket: str) -> int:
        return int(await self._ask("purge", of, ticket, long=of.id is None))

    # ---- inspection

    async def lanes(self) -> Mapping[str, LaneLimit]:
        return await self._ask("lanes")  # type: ignore[no-any-return]

    async def groups(self) -> Mapping[str, GroupLimit]:
        return await self._ask("groups")  # type: ignore[no-any-return]

    async def rules(self) -> StoreRules:
        return await self._ask("rules")  # type: ignore[no-any-return]

    async def queue(self, session: str, limit: int) -> list[QueuedJob]:
        return list(await self._ask("queue", session, limit, long=True))

    async def status(self, id: int, texts: bool = False) -> DurableStatus | None:
        return await self._ask("status", id, texts)  # type: ignore[no-any-return]

    async def running(self, session: str) -> DurableStatus | None:
        return await self._ask("running", session)  # type: ignore[no-any-return]

    async def blocked_by(self, id: int) -> tuple[DurableBlocker, ...] | None:
        return await self._ask("blocked_by", id)  # type: ignore[no-any-return]

    async def jobs(self, of: Selection, after: int, limit: int) -> list[DurableStatus]:
        return list(await self._ask("jobs", of, after, limit, long=True))

    async def statistics(self) -> DurableStatistics:
        return await self._ask("statistics", long=True)  # type: ignore[no-any-return]

    async def instances(self) -> list[InstanceInfo]:
        return list(await self._ask("instances"))

    async def check(self, repair: bool) -> CheckReport:
        return await self._ask("check", repair, long=True)  # type: ignore[no-any-return]


@final
class _Call:
    """A call that has no answer yet."""

    def __init__(self, text: str) -> None:
        self.text: Final = text
        self.sent = False
        self.answer: tuple[Any] | None = None
        self.changed = trio.Event()  # it has its answer, or there is another link
