"""Append-only logs."""

from __future__ import annotations

from .._contract.act import Act, Question
from .._contract.protocol import PAGE, STEP_BYTES
from .._rules.queues import Queues


class WriteLog(Act[int | None], leased=True):
    """Add a record (JSON text) to a log, which needs not exist.

    The answer is its number, from 1 up. None: the incarnation of this instance has ended, and
    nothing was added.
    """

    log: str
    record: str

    def apply(self, queues: Queues) -> int | None:
        if not queues.is_alive(queues.caller):
            return None
        return queues.tables.write_log(self.log, queues.caller, self.record)


class DropLog(Act[bool]):
    """Forget a log with all its records; False if there is none."""

    log: str

    def apply(self, queues: Queues) -> bool:
        return queues.tables.drop_log(self.log)


class LogPage(Question[list[tuple[int, str, str]]], long=True):
    """The first records of a log with numbers above ``after``, in order.

    Each is its number, the incarnation that added it, and its text. They are at most ``PAGE``, and
    have at most ``STEP_BYTES`` of text, or are a single record.
    """

    log: str
    after: int

    def answer(self, queues: Queues) -> list[tuple[int, str, str]]:
        page: list[tuple[int, str, str]] = []
        size = 0
        for record in queues.tables.read_log(self.log, self.after, PAGE):
            size += len(record[2].encode())
            if page and size > STEP_BYTES:
                break
            page.append(record)
        return page
