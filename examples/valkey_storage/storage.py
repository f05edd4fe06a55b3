"""`ValkeyStorage`: a namespace in a Valkey or Redis server, in hashes, sorted sets and a list.

Two short scripts beside this file do all: one compares the newest batch and what was guessed,
writes, and appends the delta; the other one reads. They know no rules, and no field of a job.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import suppress
from importlib.resources import files
from typing import Any, Final, final

import trio
import valkey.exceptions as errors
from valkey.connection import ConnectionPool

from trio_lanes.durable.storage import (
    NO_HEAD,
    All,
    Batch,
    Fate,
    Get,
    Head,
    Missed,
    Question,
    Seen,
    StorageError,
    Texts,
    told,
)

TURN: Final = 10
"""Milliseconds for which an instance that came late has its turn."""
KEPT: Final = 1_000
"""How many deltas are kept."""
MOST_WORDS: Final = 4_000
"""How many words a script hands on to one command: Lua has room for 8,000."""
REPLICATED: Final = 0.8
"""The part of the patience in which a replica must confirm a submission."""
RECONNECT_AFTER: Final = (0.05, 1.0)
"""Seconds until the connection for hints is made again: at first, and at most."""


LISTENS_FOR: Final = 60
"""Seconds for which others send hints to an instance that does not say again that it listens."""


def _script(name: str) -> tuple[str, str]:
    text = "".join(
        (files(__package__) / f"{one}.lua").read_text("utf-8") for one in ("chain", name)
    )
    return text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


_COMMIT: Final = _script("commit")
_READ: Final = _script("read")


@final
class ValkeyStorage:
    """The connection of one instance to a namespace of a server.

    A store over it::

        StorageStore(lambda me: ValkeyStorage("valkey://localhost", "lanes", me=me))

    Args:
      replicas: how many replicas must have a submission before it is accepted.
      me: the name of the instance, by which it has its turn.
    """

    def __init__(
        self, url: str, namespace: str, *, me: str, patience: float = 5.0, replicas: int = 0
    ) -> None:
        options: dict[str, Any] = {"decode_responses": True, "socket_timeout": patience}
        pool: Any = ConnectionPool  # it knows the kinds of connections
        self._pool: Final = pool.from_url(url, **options)
        self.name = f"the namespace {namespace!r} of Valkey"
        self._root: Final = f"{{{namespace}}}:"
        self._me: Final = me
        self._patience: Final = patience
        self._replicas: Final = replicas
        self._connection: Any = None

    # ---- the connection

    def _connect(self) -> Any:
        connection: Any = self._pool.make_connection()
        connection.connect()
        return connection

    def open(self) -> None:
        try:
            self._connection = self._connect()
        except (errors.ValkeyError, OSError) as error:
            raise StorageError(str(error)) from error

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()

    def cut(self) -> None:
        connection = self._connection
        if connection is not None:
            with suppress(Exception):
                connection.disconnect()

    def _call(self, script: tuple[str, str], words: Sequence[str], *, writes: bool) -> Any:
        sent = False
        try:
            if self._connection is None:
                self._connection = self._connect()
            sent = True
            return _evaluate(self._connection, script, words)
        except (errors.ConnectionError, errors.TimeoutError, OSError) as error:
            self.close()
            raise StorageError(str(error), unknown=writes and sent) from error
        except errors.ValkeyError as error:
            raise StorageError(str(error)) from error

    # ---- reading and committing

    def read(self, known: Head | None, questions: Sequence[Question]) -> Seen:
        words = [self._root, _text_of(known), self._me, ""]
        for one in questions:
            words += _words_of(one)
        now, newest, missed, others, *answers = self._call(_READ, words, writes=False)
        return Seen(
            float(now),
            _head_of(newest),
            _missed_of(missed),
            others,
            [_answer_of(*pair) for pair in zip(questions, answers, strict=True)],
        )

    def commit(self, batch: Batch) -> Fate:
        writes = batch.writes
        words = [
            self._root,
            _text_of(batch.base),
            _text_of(batch.head),
            batch.delta,
            self._me,
            str(TURN) if batch.turn else "",
            batch.hint or "",
            str(KEPT),
        ]
        guards: list[str] = []
        for kind, names in batch.absent.items():
            guards += _grouped("absent", kind, names)
        for kind, beginnings in batch.empty.items():
            guards += _grouped("empty", kind, beginnings)
        words += [str(len(guards)), *guards]
        for kind in writes.clear:
            words += ["UNLINK", kind, "0"]
        for kind, texts in writes.remove.items():
            words += _grouped("ZREM", kind, texts)
        for kind, ranges in writes.cut.items():
            for after, until in ranges:
                words += ["ZREMRANGEBYLEX", kind, "2", f"({after}", f"({until}"]
        for kind, texts in writes.add.items():
            words += _grouped("ZADD", kind, [word for text in texts for word in ("0", text)])
        for kind, names in writes.drop.items():
            words += _grouped("HDEL", kind, names)
        for kind, rows in writes.put.items():
            words += _grouped("HSET", kind, [word for row in rows.items() for word in row])
        answer = self._call(_COMMIT, words, writes=True)
        if isinstance(answer, str):
            time, others = answer.split(" ")
            if self._replicas and batch.accepts:
                self._wait_for_replicas()
            return Fate(float(time), True, batch.head, others=int(others))
        how, stamp, *rest = answer
        now, newest = float(stamp), _head_of(rest[0])
        if how == "wait":
            return Fate(now, False, newest, wait=rest[1] / 1e3)
        if how == "wrong":
            return Fate(now, False, newest, wrong=True)
        return Fate(now, False, newest, _missed_of(rest[1]))

    def _wait_for_replicas(self) -> None:
        seconds = REPLICATED * self._patience
        self._connection.send_command("WAIT", self._replicas, math.ceil(seconds * 1000))
        if self._connection.read_response() < self._replicas:
            raise StorageError(
                f"the server has it, but no replica has confirmed it in {seconds:g} s", unknown=True
            )

    # ---- hints

    async def hints(self) -> AsyncGenerator[str | None]:
        pause = RECONNECT_AFTER[0]
        while True:
            connection: Any = None
            try:
                connection = await trio.to_thread.run_sync(self._connect_for_hints)
                yield None
                pause = RECONNECT_AFTER[0]
                until = trio.current_time() + LISTENS_FOR / 3
                while True:
                    with trio.move_on_at(until) as waited:
                        if not connection.can_read(0):
                            await trio.lowlevel.wait_readable(connection._sock)
                    if waited.cancelled_caught:
                        await trio.to_thread.run_sync(self._register)
                        until = trio.current_time() + LISTENS_FOR / 3
                        continue
                    kind, _, text = connection.read_response()
                    if kind == "message":
                        yield text
            except (errors.ValkeyError, OSError):
                await trio.sleep(pause)
                pause = min(2 * pause, RECONNECT_AFTER[1])
            finally:
                if connection is not None:
                    connection.disconnect()

    def _connect_for_hints(self) -> Any:
        self._register()
        connection = self._connect()
        connection.send_command("SUBSCRIBE", f"{self._root}to:{self._me}")
        connection.read_response()
        return connection

    def _register(self) -> None:
        """Have the others send hints for a while."""
        connection = self._connect()
        try:
            _evaluate(connection, _READ, [self._root, "", self._me, str(LISTENS_FOR)])
        finally:
            connection.disconnect()


def _evaluate(connection: Any, script: tuple[str, str], words: Sequence[str]) -> Any:
    """Call a script, which the server may not have yet."""
    connection.send_packed_command([_packed(["EVALSHA", script[1], "0", *words])])
    try:
        return connection.read_response()
    except errors.NoScriptError:
        connection.send_packed_command([_packed(["EVAL", script[0], "0", *words])])
        return connection.read_response()


def _packed(words: Sequence[str]) -> bytes:
    """Return the bytes of a command: faster by far than one word at a time."""
    text = "".join([f"${len(word)}\r\n{word}\r\n" for word in words])
    if text.isascii():
        return f"*{len(words)}\r\n{text}".encode()
    parts = [f"*{len(words)}\r\n".encode()]
    for word in words:
        data = word.encode()
        parts += [b"$%d\r\n" % len(data), data, b"\r\n"]
    return b"".join(parts)


def _grouped(command: str, kind: str, words: Sequence[str]) -> list[str]:
    found: list[str] = []
    for at in range(0, len(words), MOST_WORDS):
        some = words[at : at + MOST_WORDS]
        found += [command, kind, str(len(some)), *some]
    return found


def _words_of(question: Question) -> list[str]:
    if isinstance(question, Get):
        return ["get", question.kind, str(len(question.keys)), *question.keys]
    if isinstance(question, All):
        return ["all", question.kind, "0"]
    way = "1" if question.backwards else ""
    limit = str(min(question.limit, 2**31))
    words = [question.after, question.until, limit, way, question.rows]
    return ["span", question.kind, "5", *words]


def _answer_of(question: Question, answer: Any) -> object:
    if isinstance(question, Get):
        return answer
    if isinstance(question, All):
        return dict(zip(answer[::2], answer[1::2], strict=True))
    texts, rows = answer
    found: Texts = list(zip(texts, rows or [None] * len(texts), strict=True))
    return found


def _text_of(head: Head | None) -> str:
    if head is None or head == NO_HEAD:
        return ""
    return f"{head.batch} {head.id} {head.sequence} {head.clock!r} {head.ahead!r}"


def _head_of(text: str | None) -> Head:
    if not text:
        return NO_HEAD
    number, id, sequence, clock, ahead = text.split(" ")
    return Head(int(number), id, int(sequence), float(clock), float(ahead))


def _missed_of(entries: Iterable[str] | None) -> Missed:
    if entries is None:
        return None
    found = []
    for entry in entries:
        head, _, delta = entry.partition("\n")
        found.append((_head_of(head), delta))
    return told(found)
