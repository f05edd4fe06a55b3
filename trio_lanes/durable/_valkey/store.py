"""`ValkeyStore`: a store in a Valkey or Redis server, for instances on many machines.

* The rules are a script in the server (``lua/``), so each call is atomic, and no client can hold up
  another. This package has no rules: it sends acts, and reads answers.
* An instance has one connection, for calls and for what the server pushes: wake-ups for its worker,
  and the ends of jobs for its waiting tasks.
* The server's clock decides. Each instance has a lease.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, Literal, final

import attrs
import outcome
import trio

from ... import RateLimit
from .._contract.errors import StoreUnavailableError
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
    Opening,
    QueuedJob,
    Selection,
    Step,
    StoreRules,
    SubmittedJob,
)
from .._contract.state import DurableState
from .._rules.engine_store import MAX_PAYLOAD, PATIENCE
from .._wire.outlast import outlast
from . import text
from .address import read_address
from .link import Link
from .script import Script, source
from .waiters import Waiters

LOOKS_EVERY: Final = (2.0, 5.0)
"""Between which numbers of seconds a slow look follows the one before: a message may be lost."""
LONGEST_NAMESPACE: Final = 64
PORTION: Final = 500
"""How many jobs one call clears, requeues, purges, lists or checks at most."""


@final
class ValkeyStore:
    """A store in a Valkey or Redis server (6.2 or newer).

    Args:
      url: ``valkey://[USER:PASSWORD@]HOST[:PORT][/DATABASE]``, or ``redis://``; with TLS
        ``valkeys://`` or ``rediss://``; ``unix:///PATH[?db=DATABASE]``.
      namespace: each namespace of a database is a store of its own. Its keys begin with
        ``{namespace}:``.
      ack: ``"server"``: a submission is accepted when the server has it. ``"replica"``: when also
        a replica has it, so that it survives a failover.
      patience: seconds after which a call that got no answer raises `StoreUnavailableError`.
      max_payload: the largest payload, result or checkpoint, in bytes of its JSON text.
      make: whether to make the namespace if it is missing.

    What the server has when it crashes is its own setting (``appendfsync``).

    Raises:
      ValueError: for a bad ``url``, ``namespace``, ``ack`` or ``patience``.
    """

    def __init__(
        self,
        url: str,
        *,
        namespace: str = "lanes",
        ack: Literal["server", "replica"] = "server",
        patience: float = PATIENCE,
        max_payload: int = MAX_PAYLOAD,
        make: bool = True,
    ) -> None:
        self._address: Final = read_address(url)
        if (
            not 0 < len(namespace.encode()) <= LONGEST_NAMESPACE
            or not namespace.isprintable()
            or set(namespace) & set("{}* ")
        ):
            raise ValueError(
                f"namespace must be 1 to {LONGEST_NAMESPACE} bytes without space, *, {{ and }}; "
                f"got {namespace!r}"
            )
        if ack not in ("server", "replica"):
            raise ValueError(f"ack must be 'server' or 'replica', not {ack!r}")
        if not patience > 0:
            raise ValueError(f"patience must be a positive number of seconds, got {patience!r}")
        self._namespace: Final = namespace
        self._make: Final = make
        self._replicas: Final = int(ack == "replica")
        self.max_payload: int = max_payload
        self.patience: float = patience
        self.leased: Final = True
        self.steps_ahead: bool = True
        self.instance: str = ""
        """The incarnation that makes the next call."""
        self._runs: Final[dict[int, int]] = {}  # fence -> id, of runs whose end is not recorded
        self._lost: Final[set[int]] = set()  # fences of runs that the server has lost
        self._opening: Opening | None = None
        self._link: Link | None = None
        self._rules: tuple[str, ...] = ()
        self._script = Script(source())
        self._waiters: Final = Waiters()
        self._poke, self._pokes = trio.open_memory_channel[None](1)

    def __repr__(self) -> str:
        return f"<trio_lanes.durable.ValkeyStore {self._address}, namespace {self._namespace!r}>"

    # ---- opening

    @asynccontextmanager
    async def open(self, opening: Opening) -> AsyncIterator[None]:
        if self._link is not None:
            raise RuntimeError(f"{self!r} is open already; make a ValkeyStore for each block")
        self._opening = opening
        self._rules = text.rules_of(opening.rules)
        link = Link(
            f"Valkey at {self._address}",
            self._address,
            self._namespace,
            script=self._script,
            patience=self.patience,
            replicas=self._replicas,
            header=self._header,
            told=self._waiters.told,
            look=self._look_again,
            claimed=lambda: (self.instance, *map(str, self._runs)),
            lost=self._lose,
        )
        failed: outcome.Error | None = None
        serving = keeping, pumping, watching = [trio.CancelScope() for _ in range(3)]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._look_slowly)
            connect = partial(nursery.start, outlast, keeping, link.keep_connected)
            nursery.start_soon(outlast, pumping, link.pump)
            nursery.start_soon(outlast, watching, link.watch)
            begun = await outcome.acapture(self._begin, connect, serving, link, opening)
            try:
                if isinstance(begun, outcome.Error):
                    failed = begun  # the nursery would wrap it in a group
                else:
                    self._link = link
                    yield
            finally:
                for scope in serving:
                    scope.shield = False
                self._link = None
                link.close()
                self._waiters.look_again()  # these tasks get StoreUnavailableError
            nursery.cancel_scope.cancel()
        if failed is not None:
            failed.unwrap()

    def _header(self) -> tuple[str, ...]:
        """The incarnation, and the rules that hold until a worker has written some."""
        return self.instance, *self._rules

    def _lose(self, fences: Sequence[int]) -> None:
        """Note runs of which a restarted server knows nothing: the next step cancels them."""
        self._lost.update(fences)
        self._look_again()

    async def _begin(
        self,
        connect: Callable[[], Awaitable[None]],
        serving: Sequence[trio.CancelScope],
        link: Link,
        opening: Opening,
    ) -> None:
        await connect()
        for scope in serving:  # before the first act, which nothing else ends if this is cancelled
            scope.shield = True
        asked = text.opening_argument(opening, uuid.uuid4().hex)
        await link.call("open", asked, str(int(self._make)))

    async def _call(self, verb: str, *arguments: str, weight: int = 1) -> list[Any]:
        if self._link is None:
            raise StoreUnavailableError(f"{self!r} is not open")
        refused, *answer = await self._link.call(verb, *arguments, weight=weight)
        if refused:
            raise text.refusal(answer)
        return answer

    # ---- hints

    def _look_again(self) -> None:
        try:
            self._poke.send_nowait(None)
        except trio.WouldBlock:
            pass  # a wake-up is pending already

    async def _look_slowly(self) -> None:
        while True:
            await trio.sleep(random.uniform(*LOOKS_EVERY))
            self._look_again()
            self._waiters.look_again()

    async def wake(self) -> AsyncIterator[None]:
        async for poke in self._pokes:
            yield poke

    # ---- instances

    async def join(
        self, ticket: str, lost: Sequence[tuple[int, int]] = (), held: Collection[int] = ()
    ) -> None:
        assert self._opening is not None
        opening, names = self._opening, sorted(self._opening.names)
        former = "" if self.instance == ticket else self.instance
        kind = hashlib.sha1("\0".join(names).encode(), usedforsecurity=False).hexdigest()[:16]
        await self._call(
            "join",
            ticket,  # the ticket of the act, and the id of the incarnation
            ticket,
            text.micros(opening.lease_ttl),
            former,
            opening.host,
            str(opening.pid),
            kind,
            str(len(lost)),
            *(str(number) for run in lost for number in run),
            str(len(held)),
            *map(str, held),
            *names,
        )
        if former:
            for fence in self._runs.keys() - set(held):
                del self._runs[fence]
        self.instance = ticket

    async def leave(self) -> None:
        await self._call("leave", self.instance)

    async def bury(self, host: str, pid: int) -> None:
        await self._call("bury", host, str(pid))

    async def beat(self) -> bool:
        assert self._opening is not None
        (alive,) = await self._call("beat", self.instance, text.micros(self._opening.lease_ttl))
        return bool(alive)

    # ---- jobs

    async def enqueue(self, batch: Sequence[SubmittedJob], ticket: str) -> list[int]:
        arguments: list[str] = []
        for job in batch:
            arguments += text.job_arguments(job)
        told = await self._call("enqueue", ticket, *arguments, weight=len(batch))
        ids = list(map(int, told))
        self._waiters.accepted(ids)
        return ids

    async def step(self, number: int, finished: Sequence[Finish], room: int) -> Step:
        arguments: list[str] = []
        for one in finished:
            arguments += text.finish_arguments(one)
        weight = len(finished) + room
        told = await self._call(
            "step", self.instance, str(number), str(room), *arguments, weight=weight
        )
        step = text.step_of(told)
        for one in finished:
            self._runs.pop(one.fence, None)
        self._runs.update((claim.fence, claim.id) for claim in step.claims)
        self._lost.intersection_update(self._runs)
        if self._lost:
            lost = tuple((self._runs[fence], fence) for fence in self._lost)
            step = attrs.evolve(step, cancels=step.cancels + lost)
        return step

    async def checkpoint(self, id: int, fence: int, data: str, ticket: str) -> bool:
        (done,) = await self._call("checkpoint", ticket, self.instance, str(id), str(fence), data)
        return bool(done)

    async def take(
        self, id: int, fence: int, taken: Mapping[int, str], data: str, ticket: str
    ) -> bool | None:
        run = self.instance, str(id), str(fence)
        ends = [word for other, outcome in taken.items() for word in (str(other), outcome)]
        (done,) = await self._call("take", ticket, *run, data, *ends, weight=len(taken))
        return None if done is None else bool(done)

    async def lend_slot(self, id: int, fence: int, ticket: str) -> bool:
        (done,) = await self._call("lend_slot", ticket, self.instance, str(id), str(fence))
        return bool(done)

    async def regain_slot(self, id: int, fence: int, ticket: str) -> bool | None:
        (done,) = await self._call("regain_slot", ticket, self.instance, str(id), str(fence))
        return None if done is None else bool(done)

    async def emit(self, id: int, fence: int, event: str, ticket: str) -> int | None:
        (number,) = await self._call("emit", ticket, self.instance, str(id), str(fence), event)
        assert number is None or isinstance(number, int)
        return number

    async def events(self, id: int, after: int) -> Sequence[tuple[int, str]] | None:
        (found,) = await self._told_of(id, "events", str(id), str(after))
        return None if found is None else list(text.pairs_of(found))

    async def send(
        self, session: str | None, id: int | None, message: str, key: str | None, ticket: str
    ) -> tuple[int, int] | str:
        to = text.optional(session), "" if id is None else str(id)
        told = await self._call("send", ticket, *to, message, text.optional(key))
        return str(told[0]) if len(told) == 1 else (int(told[0]), int(told[1]))

    async def sent(self, id: int, number: int) -> bool:
        (taken,) = await self._told_of(id, "sent", str(id), str(number))
        return bool(taken)

    async def receive(self, id: int, fence: int, after: int) -> tuple[int, str] | None:
        arguments = self.instance, str(id), str(fence), str(after)
        number, *message = await self._told_of(id, "receive", *arguments)
        return None if number is None else (int(number), str(message[0]))

    async def acquire(
        self, key: str, shared: bool, ticket: str, job: int | None = None
    ) -> tuple[int, float | None] | None:
        of = "" if job is None else str(job)
        told = await self._call("acquire", ticket, self.instance, key, str(int(shared)), of)
        return None if told == [None] else (int(told[0]), float(told[1]) or None)

    async def spend(
        self,
        quota: str,
        limits: Sequence[RateLimit],
        costs: Mapping[str, int],
        ticket: str,
        job: int | None = None,
    ) -> tuple[int, float | None] | None:
        terms = *text.quota_arguments(limits), json.dumps(dict(costs))
        of = "" if job is None else str(job)
        told = await self._call("spend", ticket, self.instance, quota, *terms, of)
        return None if told == [None] else (int(told[0]), float(told[1]) or None)

    async def served(self, request: int) -> float | None:
        while True:
            waiter, asked_at = self._waiters.add(request), trio.current_time()
            try:
                served, *due = await self._call("served", self.instance, str(request))
                if served is None or int(served):
                    return None if served is None else float(served)
                with trio.move_on_at(asked_at + float(due[0]) / 1e6 if due else math.inf):
                    await waiter.wait()
            finally:
                self._waiters.remove(request, waiter)

    async def release(self, request: int, used: bool, ticket: str) -> None:
        await self._call("release", ticket, str(request), str(int(used)))

    async def settle(
        self,
        quota: str,
        limits: Sequence[RateLimit],
        at: float,
        change: Mapping[str, int],
        ticket: str,
    ) -> None:
        less = {unit: -amount for unit, amount in change.items() if amount < 0}
        more = {unit: amount for unit, amount in change.items() if amount > 0}
        terms = text.quota_arguments(limits)
        changes = json.dumps(less), json.dumps(more)
        await self._call("settle", ticket, quota, *terms, f"{at:.0f}", *changes)

    async def reset_quota(self, quota: str, ticket: str) -> bool:
        (known,) = await self._call("reset_quota", ticket, quota)
        return bool(known)

    async def write_log(self, log: str, record: str, ticket: str) -> int | None:
        (number,) = await self._call("write_log", ticket, self.instance, log, record)
        return None if number is None else int(number)

    async def read_log(self, log: str, after: int) -> list[tuple[int, str, str]]:
        told = await self._call("read_log", log, str(after), weight=PORTION)
        columns = told[::3], told[1::3], told[2::3]
        return [(int(n), str(by), str(record)) for n, by, record in zip(*columns, strict=True)]

    async def drop_log(self, log: str, ticket: str) -> bool:
        (dropped,) = await self._call("drop_log", ticket, log)
        return bool(dropped)

    async def _told_of(self, id: int, verb: str, *arguments: str) -> Sequence[Any]:
        """Make a call that has no answer until there is news of a job."""
        while True:
            waiter = self._waiters.add(id)
            try:
                told = await self._call(verb, *arguments)
                if told:
                    return told
                await waiter.wait()
            finally:
                self._waiters.remove(id, waiter)

    async def wait(self, id: int) -> Ended | None:
        while True:
            waiter = self._waiters.add(id)
            try:
                if not self._waiters.is_alive(id):
                    told = await self._call("wait", str(id))
                    if told == [None]:
                        return None
                    if told:
                        state, outcome = told
                        return Ended(DurableState(state), outcome)
                await waiter.wait()
            finally:
                self._waiters.remove(id, waiter)
            if waiter.how is not None:
                return waiter.how

    # ---- control

    async def cancel(self, id: int, outcome: str, ticket: str, running: bool = True) -> bool:
        (done,) = await self._call("cancel", ticket, str(id), outcome, str(int(running)))
        return bool(done)

    async def put_first(self, id: int, ticket: str) -> bool:
        (done,) = await self._call("put_first", ticket, str(id))
        return bool(done)

    async def abort(self, session: str, outcome: str, ticket: str) -> bool:
        (done,) = await self._call("abort", ticket, session, outcome)
        return bool(done)

    async def clear(self, lane: str | None, session: str | None, outcome: str, ticket: str) -> int:
        names = text.optional(lane), text.optional(session)
        return await self._in_portions("clear", ticket, *names, outcome, after="")

    async def pause(
        self, lane: str | None, session: str | None, seconds: float, ticket: str
    ) -> None:
        names = text.optional(lane), text.optional(session)
        await self._call("pause", ticket, *names, text.micros(seconds))

    async def resume(self, lane: str | None, session: str | None, ticket: str) -> None:
        await self._call("resume", ticket, text.optional(lane), text.optional(session))

    async def configure(
        self,
        lanes: Mapping[str, LaneLimit | int | float | None],
        groups: Mapping[str, GroupLimit] | None,
        rules: Mapping[str, Any],
        ticket: str,
    ) -> None:
        await self._call("configure", ticket, text.configure_argument(lanes, groups, rules))

    async def requeue(self, of: Selection, ticket: str) -> int:
        return await self._in_portions("requeue", ticket, *text.selection_arguments(of))

    async def purge(self, of: Selection, ticket: str) -> int:
        purged = await self._in_portions("purge", ticket, *text.selection_arguments(of))
        self._waiters.look_again()
        return purged

    async def _in_portions(self, verb: str, ticket: str, *arguments: str, after: str = "0") -> int:
        """Do an act in portions, as a whole; other acts can come between two.

        Each portion is an act of its own, which has the same ticket if it is asked again.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        done, first = 0, True
        with trio.CancelScope(shield=True):
            while first or after is not None:
                name = ticket if first else f"{ticket} {after}"
                number, after = await self._call(verb, name, *arguments, after, weight=PORTION)
                done += number
                first = False
        return done

    # ---- inspection

    async def lanes(self) -> Mapping[str, LaneLimit]:
        return text.lanes_of(await self._call("lanes"))

    async def groups(self) -> Mapping[str, GroupLimit]:
        return text.groups_of(await self._call("groups"))

    async def rules(self) -> StoreRules:
        result_ttl, max_crashes, hold = await self._call("rules")
        most = float(max_crashes)
        return StoreRules(
            text.a_time(result_ttl), most if most == float("inf") else int(most), bool(hold)
        )

    async def queue(self, session: str, limit: int) -> list[QueuedJob]:
        return text.queued_of(
            await self._call("queue", session, str(min(limit, PAGE)), weight=PORTION)
        )

    async def status(self, id: int, texts: bool = False) -> DurableStatus | None:
        told, *carried = await self._call("status", str(id), str(int(texts)))
        if told is None:
            return None
        status = text.status_of(told)
        return attrs.evolve(status, texts=text.texts_of(carried[0])) if texts else status

    async def running(self, session: str) -> DurableStatus | None:
        (told,) = await self._call("running", session)
        return None if told is None else text.status_of(told)

    async def blocked_by(self, id: int) -> tuple[DurableBlocker, ...] | None:
        (told,) = await self._call("blocked_by", str(id))
        return None if told is None else text.blockers_of(told)

    async def jobs(self, of: Selection, after: int, limit: int) -> list[DurableStatus]:
        limit = min(limit, PAGE)
        which = tuple(text.selection_arguments(of))
        found: list[DurableStatus] = []
        begin: str | None = str(after)
        while begin is not None and len(found) < limit:
            most = str(limit - len(found))
            told, begin = await self._call("jobs", *which, begin, most, weight=PORTION)
            found += map(text.status_of, told)
        return found

    async def statistics(self) -> DurableStatistics:
        return text.statistics_of(await self._call("statistics"))

    async def instances(self) -> list[InstanceInfo]:
        return text.instances_of(await self._call("instances"))

    async def check(self, repair: bool) -> CheckReport:
        problems: list[str] = []
        repaired = 0
        after: str | None = "0"
        while after is not None:
            told, fixed, after = await self._call("check", str(int(repair)), after, weight=PORTION)
            problems += told
            repaired += fixed
        return CheckReport(tuple(problems), repaired)
