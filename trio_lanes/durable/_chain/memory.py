"""`MemoryStorage`: a storage in memory, which shows what each call of a `Storage` does."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from threading import RLock
from time import time
from typing import Final, final

import trio

from .storage import NO_HEAD, All, Batch, Fate, Get, Head, Question, Seen, Span, Texts, missed_of

BATCHES_KEPT: Final = 1_000
"""How many batches are kept at least."""


@final
class MemoryNamespace:
    """The data of a namespace, for the storages of several instances.

    Args:
      clock: gives the time, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time) -> None:
        self.clock: Final = clock
        self.lock: Final = RLock()
        self.chain: Final[deque[tuple[Head, str]]] = deque(maxlen=BATCHES_KEPT)
        self.maps: Final[dict[str, dict[str, str]]] = {}
        self.sets: Final[dict[str, list[str]]] = {}
        self.listeners: Final[dict[MemoryStorage, Callable[[str], None]]] = {}
        self.turn: tuple[MemoryStorage, float] | None = None  # whose it is, and until when

    @property
    def newest(self) -> Head:
        """The newest batch."""
        return self.chain[-1][0] if self.chain else NO_HEAD


@final
class MemoryStorage:
    """The storage of one instance, over the data of all."""

    def __init__(self, memory: MemoryNamespace) -> None:
        self.name = "memory"
        self._memory: Final = memory

    def open(self) -> None:
        pass

    def read(self, known: Head | None, questions: Sequence[Question]) -> Seen:
        memory = self._memory
        with memory.lock:
            return Seen(
                memory.clock(),
                memory.newest,
                missed_of(list(memory.chain), known),
                self._others(),
                [self._answer(one) for one in questions],
            )

    def _others(self) -> int:
        return len(self._memory.listeners.keys() - {self})

    def _answer(self, question: Question) -> object:
        memory = self._memory
        if isinstance(question, Get):
            rows = memory.maps.get(question.kind, {})
            return [rows.get(key) for key in question.keys]
        if isinstance(question, All):
            return dict(memory.maps.get(question.kind, {}))
        return self._span(question)

    def _span(self, of: Span) -> Texts:
        memory = self._memory
        texts, rows = memory.sets.get(of.kind, []), memory.maps.get(of.rows, {})
        found = texts[bisect_right(texts, of.after) : bisect_left(texts, of.until)]
        found = found[: -of.limit - 1 : -1] if of.backwards else found[: of.limit]
        return [
            (text, rows.get(text[text.rindex(":") + 1 :]) if of.rows else None) for text in found
        ]

    def commit(self, batch: Batch) -> Fate:
        memory = self._memory
        with memory.lock:
            now, newest, others = memory.clock(), memory.newest, self._others()
            if memory.turn is not None and memory.turn[0] is not self and memory.turn[1] > now:
                return Fate(now, False, newest, others=others, wait=memory.turn[1] - now)
            if (newest.batch, newest.id) != (batch.base.batch, batch.base.id):
                if batch.turn:
                    memory.turn = self, now + TURN
                missed = missed_of(list(memory.chain), batch.base)
                return Fate(now, False, newest, missed, others)
            if self._is_wrong(batch):
                return Fate(now, False, newest, others=others, wrong=True)
            memory.turn = None
            self._write(batch)
            memory.chain.append((batch.head, batch.delta))
            if batch.hint is not None:
                for listener, tell in memory.listeners.items():
                    if listener is not self:
                        tell(batch.hint)
            return Fate(now, True, batch.head, others=others)

    def _is_wrong(self, batch: Batch) -> bool:
        memory = self._memory
        return any(
            key in memory.maps.get(kind, {}) for kind, keys in batch.absent.items() for key in keys
        ) or any(
            self._span(Span(kind, beginning, beginning + "~", 1))
            for kind, beginnings in batch.empty.items()
            for beginning in beginnings
        )

    def _write(self, batch: Batch) -> None:
        maps, sets, writes = self._memory.maps, self._memory.sets, batch.writes
        for kind in writes.clear:
            sets.pop(kind, None)
            maps.pop(kind, None)
        for kind, texts in writes.remove.items():
            of = sets[kind]
            for text in texts:
                index = bisect_left(of, text)
                assert of[index] == text
                del of[index]
        for kind, ranges in writes.cut.items():
            of = sets.get(kind, [])
            for after, until in ranges:
                del of[bisect_right(of, after) : bisect_left(of, until)]
        for kind, texts in writes.add.items():
            for text in texts:
                insort(sets.setdefault(kind, []), text)
        for kind, keys in writes.drop.items():
            for key in keys:
                maps.get(kind, {}).pop(key, None)
        for kind, rows in writes.put.items():
            maps.setdefault(kind, {}).update(rows)

    async def hints(self) -> AsyncGenerator[str | None]:
        send, receive = trio.open_memory_channel[str](1_000)
        token = trio.lowlevel.current_trio_token()

        def tell(hint: str) -> None:
            try:
                token.run_sync_soon(_send, send, hint)
            except trio.RunFinishedError:
                pass

        with self._memory.lock:
            self._memory.listeners[self] = tell
        try:
            yield None
            async for hint in receive:
                yield hint
        finally:
            with self._memory.lock:
                del self._memory.listeners[self]

    def cut(self) -> None:
        pass

    def close(self) -> None:
        pass


TURN: Final = 0.01
"""Seconds for which an instance that came late has its turn."""


def _send(channel: trio.MemorySendChannel[str], hint: str) -> None:
    try:
        channel.send_nowait(hint)
    except (trio.WouldBlock, trio.BrokenResourceError):
        pass  # a hint may be lost
