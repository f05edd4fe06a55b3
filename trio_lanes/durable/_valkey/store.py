"""`ValkeyStore`: a store in a Valkey or Redis server, for instances on many machines.

* The rules are a script in the server (``lua/``), so each call is atomic, and no client can hold up
  another. This package has no rules: it sends acts, and reads answers.
* An instance has one connection, for calls and for what the server pushes: wake-ups for its worker,
  and the ends of jobs for its waiting tasks.
* The server's clock decides. Each instance has a lease.
"""

from __future__ import annotations

import hashlib
import random
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, Literal, TypeVar, final

import outcome
import trio

from .._contract.act import Act, PortionedAct, Question
from .._contract.errors import StoreUnavailableError
from .._contract.protocol import JOBS_LISTED, ServedAt
from .._contract.records import CheckReport, DurableStatus, Ended, Finish, Opening, Step
from .._contract.state import DurableState
from .._contract.waiter import Waiters
from .._rules.engine_store import JOBS_A_STEP, MAX_PAYLOAD, PATIENCE, tell_given_up
from .._wire.run_past_cancel import run_past_cancel
from ..acts.inspection import Check, JobsOf
from ..acts.jobs import Enqueue
from . import text
from .address import read_address
from .link import ValkeyLink
from .script import Script, source

T = TypeVar("T")

LOOKS_EVERY: Final = (2.0, 5.0)
"""Between which numbers of seconds a slow look follows the one before: a message may be lost."""
LONGEST_NAMESPACE: Final = 64
SEPARATOR: Final = "\x1e"
"""A character that no JSON text has."""


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
        self.claims_last: bool = False
        self.instance: str = ""
        """The incarnation that makes the next call."""
        self.renewed: trio.Event = trio.Event()
        self._stepping = 0  # steps that have no answer yet
        self._opening: Opening | None = None
        self._link: ValkeyLink | None = None
        self._rules = ""
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
        link = ValkeyLink(
            f"Valkey at {self._address}",
            self._address,
            self._namespace,
            script=self._script,
            patience=self.patience,
            replicas=self._replicas,
            header=lambda: (self.instance, self._rules),
            note=self._hear,
            look=self._look_again,
            renewed=self._renew,
        )
        failed: outcome.Error | None = None
        serving = keeping, pumping, watching = [trio.CancelScope() for _ in range(3)]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._look_slowly)
            connect = partial(nursery.start, run_past_cancel, keeping, link.keep_connected)
            nursery.start_soon(run_past_cancel, pumping, link.pump)
            nursery.start_soon(run_past_cancel, watching, link.watch)
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
                self._waiters.all_changed()  # these tasks get StoreUnavailableError
            nursery.cancel_scope.cancel()
        if failed is not None:
            failed.unwrap()

    def _renew(self) -> None:
        self.renewed.set()
        self.renewed = trio.Event()

    async def _begin(
        self,
        connect: Callable[[], Awaitable[None]],
        serving: Sequence[trio.CancelScope],
        link: ValkeyLink,
        opening: Opening,
    ) -> None:
        await connect()
        # a shield comes too late for tasks inside that are being cancelled already
        await trio.lowlevel.checkpoint_if_cancelled()
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

    def _hear(self, message: str) -> None:
        """Note what the server says about jobs: ``ID`` has news, or ``ID STATE [OUTCOME]``."""
        for about in message.split(SEPARATOR):
            id, *rest = about.split(" ", 2)
            if not rest:
                self._waiters.wake(int(id), None)
            else:
                how = Ended(DurableState(rest[0]), rest[1]) if rest[1:] else None
                self._waiters.changed(int(id), how)

    async def _look_slowly(self) -> None:
        while True:
            await trio.sleep(random.uniform(*LOOKS_EVERY))
            self._look_again()
            self._waiters.all_changed()

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
        asked = {
            "former": former,
            "host": opening.host,
            "pid": str(opening.pid),
            "kind": kind,
            "names": names,
            "affinity": int(text.micros(opening.affinity)),
            "lost": [(str(id), fence) for id, fence in lost],
            "held": list(held),
        }
        # the ticket of the act is also the id of the incarnation
        ttl = text.micros(opening.lease_ttl)
        (given_up,) = await self._call("join", ticket, ticket, ttl, text.to_json(asked))
        tell_given_up(text.instances(given_up))
        self.instance = ticket

    async def leave(self) -> None:
        await self._call("leave", self.instance)

    async def declare_dead(self, instance: str) -> None:
        await self._call("leave", instance)

    async def beat(self) -> bool:
        assert self._opening is not None
        ttl = text.micros(self._opening.lease_ttl)
        alive, given_up = await self._call("beat", self.instance, ttl)
        tell_given_up(text.instances(given_up))
        return bool(alive)

    # ---- acts and questions

    async def do(self, act: Act[T], ticket: str) -> T:
        if isinstance(act, PortionedAct):
            return await self._in_portions(act, ticket)  # type: ignore[return-value]  # int is T
        words, lookups = text.words_of(act), act.lookups
        if act.leased:
            words.insert(0, self.instance)
        weight = max(1, len(lookups.batch) + len(lookups.ids))
        answer: Any = text.answer_to(act, await self._call(act.name, ticket, *words, weight=weight))
        if isinstance(act, Enqueue):
            # the job of a key may be of another client, which hears of its end in place of this one
            ids = [id for id, job in zip(answer, lookups.batch, strict=True) if job.key is None]
            self._waiters.accepted(ids)
        return answer  # type: ignore[no-any-return]  # it is T

    async def _in_portions(self, act: PortionedAct, ticket: str) -> int:
        """Do an act in portions, as a whole; other acts can come between two.

        Each portion is an act of its own, which has the same ticket if it is asked again.
        """
        words = text.words_of(act)
        await trio.lowlevel.checkpoint_if_cancelled()
        with trio.CancelScope(shield=True):
            done, after = await self._call(act.name, ticket, *words, "", weight=JOBS_A_STEP)
            while after is not None:
                name = f"{ticket} {after}"
                number, after = await self._call(act.name, name, *words, after, weight=JOBS_A_STEP)
                done += number
        return int(done)

    async def look(self, question: Question[T]) -> T:
        if isinstance(question, JobsOf):
            return await self._jobs(question)  # type: ignore[return-value]  # a list is T
        if isinstance(question, Check):
            return await self._check()  # type: ignore[return-value]  # a report is T
        weight = JOBS_A_STEP if question.long else 1
        answer = await self._call(question.name, *text.words_of(question), weight=weight)
        return text.answer_to(question, answer)

    async def _jobs(self, asked: JobsOf) -> list[DurableStatus]:
        limit = min(asked.limit, JOBS_LISTED)
        after: int | None = asked.after
        found: list[DurableStatus] = []
        while after is not None and len(found) < limit:
            page = JobsOf(asked.of, after, limit - len(found))
            data, after = await self._call(page.name, *text.words_of(page), weight=JOBS_A_STEP)
            found += map(text.status_of, data)
        return found

    async def _check(self) -> CheckReport:
        problems: list[str] = []
        after: str | None = ""
        while after is not None:
            found, after = await self._call(Check.name, after, weight=JOBS_A_STEP)
            problems += found
        return CheckReport(tuple(problems), 0)

    async def step(self, number: int, finished: Sequence[Finish], room: int) -> Step:
        words: list[str] = []
        for one in finished:
            words += text.finish_arguments(one)
        weight, ahead = len(finished) + room, "1" if self._stepping else "0"
        self._stepping += 1
        try:
            answer = await self._call(
                "step", self.instance, str(number), str(room), ahead, *words, weight=weight
            )
        finally:
            self._stepping -= 1
        return text.step_of(answer)

    # ---- waits

    async def wait(self, id: int) -> Ended | None:
        async def ask() -> tuple[Ended | None] | None:
            answer = await self._call("wait", str(id))
            if not answer:
                return None
            return (None if answer == [None] else Ended(DurableState(answer[0]), answer[1]),)

        return await self._waiters.end_of(id, ask)

    async def _until(self, id: int, verb: str, *words: str) -> list[Any]:
        """Make a call that has no answer until there is news of a job."""

        async def ask() -> tuple[list[Any]] | None:
            answer = await self._call(verb, *words)
            return (answer,) if answer else None

        return await self._waiters.until(id, ask)

    async def events(self, id: int, after: int) -> Sequence[tuple[int, str]] | None:
        (found,) = await self._until(id, "events", str(id), str(after))
        return None if found is None else list(text.pairs_of(found))

    async def sent(self, id: int, number: int) -> bool:
        async def ask() -> tuple[bool | None, float]:
            taken, *left = await self._call("sent", str(id), str(number))
            return (None if taken < 0 else bool(taken)), text.a_time(*left or ["0"])

        return await self._waiters.sent(id, ask)

    async def receive(self, id: int, fence: int, after: int) -> tuple[int, str] | None:
        words = self.instance, str(id), str(fence), str(after)
        number, *message = await self._until(id, "receive", *words)
        return None if number is None else (int(number), str(message[0]))

    async def served(self, request: int) -> ServedAt | None:
        async def ask() -> tuple[ServedAt | None, float | None] | None:
            served, *due = await self._call("served", self.instance, str(request))
            return None if served is None else (float(served) or None, text.seconds(*due or [None]))

        return await self._waiters.served(request, ask)
