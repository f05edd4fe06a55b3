"""`ValkeyLink`: one connection to the server, made again when it is lost, for calls and for pushes.

Acts that pile up while a call is under way share the next call of the script. It is made before the
answers of the former are given to their tasks, so the server works meanwhile.

Each act has a ticket or a number, so a call whose answer was lost is asked again, on the next
connection. An act ends when it has its answer, or after the patience of the store: a caller that
got "not available" knows from ``unknown`` whether the act may have happened.

A step may be asked while the one before has no answer. Then they are in two calls, and the second
is not sent if the first has failed: the server remembers the answer of the last step alone.

A server that has restarted, or that has taken the place of another, may have older data. So each
new connection is announced, and the instance compares what it has with what the server says.
"""

from __future__ import annotations

import logging
import math
import os
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, final

import coredis.exceptions as redis
import outcome
import trio
from coredis.connection import BaseConnection

from .._contract.errors import (
    StoreError,
    StoreUnavailableError,
    StoreVersionError,
    older_schema,
    other_schema,
)
from .address import Address
from .errors import NotReplicatedError, explained, is_full, is_passing, refuse_server
from .script import Kept, Script
from .text import micros, pairs_of

logger: Final = logging.getLogger("trio_lanes.durable")

RECONNECT_AFTER: Final = (0.05, 1.0)
"""Seconds until a lost connection is made again: at first, and at most."""
ASK_AGAIN_AFTER: Final = 0.05
"""Seconds until a call is asked again that the server did not take."""
REPLICATED: Final = 0.8
"""The part of the store's patience in which a replica must confirm a submission."""
_NO_FUNCTIONS: Final = redis.UnknownCommandError, redis.AuthorizationError
"""The errors of a server that has no functions, or does not let the user load or call them."""
MAX_WEIGHT: Final = 500
"""How many jobs the acts of one call touch at most, unless it is one act."""


@final
class Pending:
    """One act, for which the task that made it waits.

    Attributes:
      verb: which act it is.
      is_step: whether it claims jobs.
      weight: about how many jobs it touches.
      due: the time of Trio's clock until which its task waits.
      after: of a step: the step that was under way when it was asked.
      answer: its answer; None: the task still waits.
      unknown: whether it may have happened, though there is no answer.
    """

    __slots__ = (
        "after",
        "answer",
        "arguments",
        "due",
        "is_step",
        "task",
        "unknown",
        "verb",
        "weight",
    )

    def __init__(self, verb: str, arguments: Sequence[str], weight: int, due: float) -> None:
        self.verb: Final = verb
        self.is_step: Final = verb == "step"
        self.arguments: Final = [verb, str(len(arguments)), *arguments]
        self.weight: Final = weight
        self.due: Final = due
        self.after: Pending | None = None
        self.task: Final = trio.lowlevel.current_task()
        self.answer: outcome.Outcome[list[Any]] | None = None
        self.unknown = False

    def end(self, answer: outcome.Outcome[list[Any]]) -> None:
        """Give the act its answer, unless it was overdue and has one."""
        if self.answer is None:
            self.answer = answer
            trio.lowlevel.reschedule(self.task, answer)


@final
class ValkeyLink:
    """The connection of one store object.

    Args:
      name: the store, for errors and log lines.
      namespace: its keys begin with ``{namespace}:``.
      replicas: how many replicas must have a submission before it is accepted.
      header: gives the incarnation, and the rules that hold until a worker has written some.
      note: is called with each message about jobs and requests of this client.
      look: is called when the worker should take a step.
      renewed: is called when a lost connection has been made again.
    """

    def __init__(
        self,
        name: str,
        address: Address,
        namespace: str,
        *,
        script: Script,
        patience: float,
        replicas: int,
        header: Callable[[], tuple[str, str]],
        note: Callable[[str], None],
        look: Callable[[], None],
        renewed: Callable[[], None],
    ) -> None:
        self._name: Final = name
        self._address: Final = address
        self._root: Final = f"{{{namespace}}}:"
        self._channel: Final = os.urandom(8).hex()
        self._script: Final = script
        self._patience: Final = patience
        self._replicas: Final = replicas
        self._header: Final = header
        self._note: Final = note
        self._look: Final = look
        self._renewed: Final = renewed
        self._acts: Final[deque[Pending]] = deque()  # those that were not sent yet
        self._unanswered: Final[deque[Pending]] = deque()  # in order of `due`; some have an answer
        self._came = trio.Event()
        self._step: Pending | None = None  # the last step, until its task goes on
        self._replied: tuple[list[Pending], list[Any]] | None = None  # answers not given yet
        self._connection: BaseConnection | None = None
        self._connected = trio.Event()
        self._run_id = ""
        self._sent_at = 0.0  # when the last call was sent
        self._at = math.inf  # no time of the store is above this and that of Trio's clock
        self._away_since: float | None = None  # since when calls have had no answer
        self._why: BaseException | None = None  # there is no connection
        self._broken: StoreError | None = None
        self._kept: Kept = script.as_library
        self._loads = False  # whether the server has lost the script, or never had it

    # ---- callers

    @trio.lowlevel.enable_ki_protection  # a task must wait for each act that it has made
    async def call(self, verb: str, *arguments: str, weight: int = 1) -> list[Any]:
        """Do an act, and return its answer without its first element.

        Raises:
          StoreUnavailableError: if there is no answer within the patience.
          StoreError: if the server has no such store any more.
          ValueError: if an argument is no text that UTF-8 can encode.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        "".join(arguments).encode()
        due = trio.current_time() + self._patience
        act = Pending(verb, arguments, weight, due)
        if self._broken is not None:
            raise StoreError(*self._broken.args)
        if act.is_step:
            act.after, self._step = self._step, act
        self._acts.append(act)
        self._unanswered.append(act)
        self._came.set()
        try:
            answer = await trio.lowlevel.wait_task_rescheduled(_not_cancelled)
        finally:
            act.after = None
            if self._step is act:
                self._step = None
        assert isinstance(answer, list)
        return answer

    async def watch(self) -> None:
        """End the acts that are overdue."""
        while True:
            # an act that is made while this sleeps is due after it
            first_due = trio.current_time() + self._patience
            await trio.sleep_until(self._unanswered[0].due if self._unanswered else first_due)
            self._deliver()
            while self._unanswered and self._unanswered[0].due <= trio.current_time():
                act = self._unanswered.popleft()
                if (act.unknown or self._loads) and act.answer is None:
                    self._cut("a call had no answer")
                act.end(outcome.Error(self._unavailable(act)))

    def _unavailable(self, act: Pending) -> StoreUnavailableError:
        why = f": {self._explained(self._why)}" if self._why is not None else ""
        error = StoreUnavailableError(
            f"{self._name} gave no answer within {self._patience:g} s{why}"
        )
        error.unknown = act.unknown
        error.__cause__ = self._why
        return error

    def close(self) -> None:
        """End the acts that wait; there will be no others."""
        self._deliver()
        self._fail(self._unanswered, StoreUnavailableError(f"{self._name} was closed"))
        self._acts.clear()

    # ---- the connection

    def _cut(self, reason: str) -> None:
        if self._connection is not None:
            self._connection.invalidate(reason)

    async def keep_connected(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Keep a connection; `task_status` hears when the first is made.

        Raises:
          StoreError: if the first connection is not made, or reaches a server that is refused.
        """
        first, pause = True, RECONNECT_AFTER[0]
        while True:
            refused: StoreError | None = None
            try:
                async with trio.open_nursery() as nursery:
                    refused = await self._connect(nursery)
                    if refused is None:
                        if first:
                            task_status.started()
                        first, pause = False, RECONNECT_AFTER[0]
                        self._connected.set()
                    else:
                        nursery.cancel_scope.cancel()
            except* (redis.RedisError, OSError, trio.TooSlowError) as errors:
                self._why = _leaf(errors)
            finally:
                self._connection = None
                self._connected = trio.Event()
            if refused is not None:
                self._why = refused
            if first:
                # a connection that was cancelled in its handshake raises ConnectionError
                await trio.lowlevel.checkpoint_if_cancelled()
                raise refused or self._not_opened()
            if self._away_since is None:
                self._away_since = trio.current_time()
            await trio.sleep(pause)
            pause = min(2 * pause, RECONNECT_AFTER[1])

    def _explained(self, error: BaseException | None) -> str:
        return explained(error, self._root, self._address.tls)

    def _not_opened(self) -> StoreError:
        kind = StoreUnavailableError if is_passing(self._why) else StoreError
        error = kind(f"{self._name} cannot be opened: {self._explained(self._why)}")
        error.__cause__ = self._why
        return error

    async def _connect(self, nursery: trio.Nursery) -> StoreError | None:
        """Make the connection, and listen on it; return why the server is refused."""
        with trio.fail_after(self._patience):
            connection = await self._address.connect()
            await nursery.start(connection.run)
        connection.send_command(b"SUBSCRIBE", f"{self._root}to:{self._channel}")
        nursery.start_soon(self._listen, connection)
        with trio.fail_after(self._patience):
            if self._replicas:  # a user who may not ask for them is refused here, not at a job
                await connection.create_request(b"WAIT", 0, 1)
            lines = await connection.create_request(b"INFO")
        assert isinstance(lines, str)
        info = dict(line.split(":", 1) for line in lines.splitlines() if ":" in line)
        refused = refuse_server(self._name, info)
        if refused is None:
            if self._run_id:
                self._renewed()
            self._run_id = info["run_id"]
            self._connection = connection
        return refused

    async def _listen(self, connection: BaseConnection) -> None:
        """Read pushes until the connection is lost, which raises ConnectionError."""
        async for kind, _, text in connection.push_messages:
            if kind == "message" and text == "look":
                self._look()
            elif kind == "message":
                self._note(str(text))

    # ---- calls

    async def pump(self) -> None:
        """Send what has piled up, one call of the script at a time."""
        while True:
            if not self._acts:
                self._deliver()
                self._came = trio.Event()
                await self._came.wait()
                await trio.lowlevel.checkpoint()  # other tasks of this tick add their acts
            await self._ask(self._next_batch())

    def _next_batch(self) -> list[Pending]:
        """Take the acts of the next call. A step comes last: it claims what the others accept."""
        batch: list[Pending] = []
        step: Pending | None = None
        weight = 0
        while self._acts and (weight == 0 or weight + self._acts[0].weight <= MAX_WEIGHT):
            act = self._acts[0]
            if act.is_step and step is not None:
                break
            self._acts.popleft()
            weight += act.weight
            if not act.is_step:
                batch.append(act)
            elif act.after is not None and isinstance(act.after.answer, outcome.Error):
                act.end(outcome.Error(StoreUnavailableError("the step before has failed")))
            else:
                step = act
        return batch if step is None else [*batch, step]

    def _grows(self, act: Pending) -> bool:
        """Whether an act brings data."""
        return act.verb in self._script.grows

    async def _ask(self, batch: list[Pending]) -> None:
        """Ask until there is an answer, or no caller waits any more."""
        was_missing = False
        while batch := [act for act in batch if act.answer is None]:
            connection = self._connection
            if connection is None or _is_lost(connection):
                self._deliver()
                await self._wait_for_another(connection)
                continue
            known = [act.unknown for act in batch]
            try:
                if self._loads:
                    await connection.create_request(*self._kept.load)
                    self._loads = False
                request = self._send(connection, batch)
                self._replied = batch, await self._reply(connection, batch, request)
                return
            except NotReplicatedError as error:  # it has happened
                self._fail(batch, StoreUnavailableError(str(error)))
                return
            except redis.RedisError as error:
                if _is_lost(connection):
                    continue  # the act may have happened: it is asked again
                for act, unknown in zip(batch, known, strict=True):
                    act.unknown = unknown  # the server has done nothing for this request
                if _is_missing(error):
                    self._why, self._loads = error, True
                    if was_missing:
                        await trio.sleep(ASK_AGAIN_AFTER)
                    was_missing = True
                elif self._kept is not self._script.as_script and (
                    isinstance(error, _NO_FUNCTIONS) or (self._loads and is_full(error))
                ):
                    self._kept = self._script.as_script  # a full server takes a script, too
                elif is_full(error) and any(map(self._grows, batch)):  # the other acts go on
                    grown = [act for act in batch if self._grows(act)]
                    self._fail(grown, StoreUnavailableError(f"{self._name} is full: {error}"))
                elif is_passing(error):
                    self._why = error
                    if isinstance(error, redis.ReadOnlyError):
                        self._cut("the server has become a replica")
                    await trio.sleep(ASK_AGAIN_AFTER)
                else:
                    failure = StoreError(f"{self._name} failed: {self._explained(error)}")
                    self._fail(batch, failure)
                    return

    async def _wait_for_another(self, connection: BaseConnection | None) -> None:
        """Wait until there is another connection, or for a moment."""
        with trio.move_on_after(ASK_AGAIN_AFTER):
            await self._connected.wait()
        if self._connection is connection:
            await trio.sleep(ASK_AGAIN_AFTER)

    def _send(self, connection: BaseConnection, batch: list[Pending]) -> Awaitable[Any]:
        """Have the connection send one call of the script."""
        now = self._sent_at = trio.current_time()
        away = 0.0 if self._away_since is None else now - self._away_since
        instance, rules = self._header()
        times = micros(away), micros(now + self._at)
        arguments = [self._run_id, self._channel, instance, *times, rules]
        for act in batch:
            arguments += act.arguments
        reads = all(act.verb in self._script.reads for act in batch)
        grows = any(map(self._grows, batch))
        command, name = self._kept.read if reads else self._kept.call if grows else self._kept.lean
        for act in batch:
            act.unknown = True
        return connection.create_request(command, name, 1, f"{self._root}meta", *arguments)

    async def _reply(
        self, connection: BaseConnection, batch: list[Pending], request: Awaitable[Any]
    ) -> list[Any]:
        """Give the answers of the call before to their tasks; then return the server's answer."""
        if self._replied is not None:
            await trio.lowlevel.checkpoint()  # the connection writes the request
            self._deliver()
        reply = await request
        assert isinstance(reply, list)
        if reply[0] == "done":
            self._why = self._away_since = None
            self._at = reply[3] / 1e6 - self._sent_at
            if reply[2]:
                self._note(reply[2])
        if self._replicas and any(act.verb == "enqueue" for act in batch):
            await self._wait_for_replicas(connection)
        return reply

    async def _wait_for_replicas(self, connection: BaseConnection) -> None:
        """Wait until a replica has all that this connection wrote.

        Raises:
          NotReplicatedError: if no replica has it in time.
        """
        # less than the patience, so that the caller learns which of the two gave no answer
        seconds = REPLICATED * self._patience
        millis = math.ceil(seconds * 1000)
        number = await connection.create_request(b"WAIT", self._replicas, millis)
        assert isinstance(number, int)
        if number < self._replicas:
            raise NotReplicatedError(
                f"the server has it, but no replica has confirmed it in {seconds:g} s"
            )

    def _deliver(self) -> None:
        """Give the answers of the last call to their tasks."""
        if self._replied is None:
            return
        (batch, (kind, *rest)), self._replied = self._replied, None
        if kind != "done":
            self._broken = self._gone(kind, rest)
            self._fail(batch, self._broken)
            return
        looks, _, _, *answers = rest
        for act, answer in zip(batch, answers, strict=True):
            act.end(outcome.Value(answer))
        while self._unanswered and self._unanswered[0].answer is not None:
            self._unanswered.popleft()
        if looks:
            self._look()

    def _gone(self, kind: str, rest: Sequence[Any]) -> StoreError:
        where, what = (f"{self._name}: the {one} {self._root}*" for one in ("keys", "store under"))
        if kind == "version":
            return other_schema(what, rest[0], rest[1])
        if kind == "older":
            schema, wanted, works, living = rest
            who = ", ".join(f"process {pid} on {host}" for host, pid in pairs_of(living))
            return older_schema(what, schema, wanted, who, works=bool(works))
        if kind == "foreign":
            return StoreVersionError(
                f"{where} belong to another program; choose another namespace or database"
            )
        if kind == "missing":
            return StoreError(f"{where} do not exist: a worker makes them at its start")
        return StoreError(
            f"{where} are gone: the server was flushed, or has lost its data; the jobs that it had"
            " are lost; start the instances again to make a new store"
        )

    def _fail(self, batch: Sequence[Pending], error: StoreError) -> None:
        for act in batch:
            act.end(outcome.Error(_with_unknown(error, act.unknown)))


def _not_cancelled(raise_cancel: object) -> trio.lowlevel.Abort:
    return trio.lowlevel.Abort.FAILED


def _is_missing(error: redis.RedisError) -> bool:
    """Whether the server does not have the script."""
    return isinstance(error, redis.NoScriptError) or str(error) == "Function not found"


def _is_lost(connection: BaseConnection) -> bool:
    return not connection.usable


def _with_unknown(error: StoreError, unknown: bool) -> StoreError:
    own = type(error)(*error.args)
    if isinstance(own, StoreUnavailableError):
        own.unknown = unknown
    return own


def _leaf(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
