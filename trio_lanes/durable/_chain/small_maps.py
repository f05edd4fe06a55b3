"""`SmallMaps`: all of a store over a storage but its jobs.

These are lists, requests for locks and quotas, schedules, answers, settings and marks of rates. The
image has requests, schedules and settings whole. The others are read when they are asked for, and
what a batch has changed stands over what is read.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final, TypeVar, cast

import attrs

from ..._limits.meters import Mark, Marks, put
from .._contract.protocol import REMEMBERED_FOR
from .._options.schedule import DurableSchedule
from .._rules.request import Request
from .._rules.tables import Kind, LastStep, ListItem
from .._sql.rows import Row
from .._wire.codec import decode, encode
from . import keys
from .image import Image, Maps, put_row
from .storage import Get, Question, Span, Texts, Writes

T = TypeVar("T")

NO_LIMIT: Final = 2**62

LIST: Final = "list "
"""With the name of a list behind it: the ordered set of its items."""
ANSWERS_OF: Final = "answers "
"""With a number behind it: the map of the answers of some minutes, by ticket."""


class _Items:
    """What a batch has changed of a list."""

    def __init__(self) -> None:
        self.cleared = False
        # {number: text}, in place of another if there is one
        self.added: Final[dict[int, str]] = {}
        self.dropped: Final[set[int]] = set()  # the numbers of items that are gone
        self.cut: int = 0  # the first number that is kept


class SmallMaps(Image):
    """The part of `ChainTables` for all but jobs."""

    def __init__(self) -> None:
        self._now = 0.0  # the store's time of this batch
        self._ahead = 0.0  # the seconds by which that is ahead of the storage's clock
        super().__init__()

    @abstractmethod
    def _ask(self, questions: Sequence[Question]) -> Sequence[Any]:
        """Return the answers of the storage, as of the batch of this image."""

    def _begin_batch(self) -> None:
        super()._begin_batch()
        self._new_answers: dict[str, tuple[float, Any]] = {}
        self._answers: dict[str, tuple[float, Any] | None] = {}  # what is known of others
        self._items: dict[str, _Items] = {}

    # ---- lists

    def _items_of(self, name: str) -> _Items:
        self._writes += 1
        return self._items.setdefault(name, _Items())

    def append(self, name: str, item: ListItem, keep: int | None = None) -> None:
        of = self._items_of(name)
        of.added[item.number] = _item_text(item)
        if keep is not None:
            of.cut = max(of.cut, item.number - keep + 1)

    def _read_items(self, name: str, after: int, limit: int, *, backwards: bool) -> list[ListItem]:
        of = self._items.get(name, _Items())
        after, found = max(after, of.cut - 1), list[tuple[str, str | None]]()
        if not of.cleared:
            start, most = keys.number(after) + keys.BEHIND_ALL, limit + len(of.dropped)
            (found,) = self._ask([Span(LIST + name, start, keys.BEHIND_ALL, most, backwards)])
        texts = {int(text[:16], 16) - 2**63: text for text, _ in found}
        texts = {number: text for number, text in texts.items() if number not in of.dropped}
        texts.update((number, text) for number, text in of.added.items() if number > after)
        ordered = sorted(texts.items(), reverse=backwards)[:limit]
        return [_item_in(number, text) for number, text in ordered]

    def items(self, name: str, after: int, limit: int) -> Iterable[ListItem]:
        return self._read_items(name, after, limit, backwards=False)

    def last_item(self, name: str) -> int:
        last = self._read_items(name, -1, 1, backwards=True)
        return last[0].number if last else 0

    def drop_items(self, name: str, *, taken: bool) -> None:
        of = self._items_of(name)
        for item in self._read_items(name, -1, NO_LIMIT, backwards=False):
            if taken or not item.taken:
                of.added.pop(item.number, None)
                of.dropped.add(item.number)

    # ---- requests for locks and quotas

    def request(self, id: int) -> Request | None:
        return self._requests.get(id)

    def put_request(self, request: Request) -> None:
        self._put_request(request.id, attrs.astuple(request))

    def drop_request(self, id: int) -> None:
        self._put_request(id, None)

    def _put_request(self, id: int, row: Row | None) -> None:
        self._writes += 1
        self._requests_before.setdefault(id, self._requests.row(id))
        self._requests.put(id, row)

    def first_request(self, line: str, served: bool) -> Request | None:
        return self._requests.first(line, served)

    def requests_of(self, instance: str | None) -> list[Request]:
        return [one for one in self._requests.all() if instance in (None, one.instance)]

    # ---- schedules

    def schedule(self, name: str) -> DurableSchedule | None:
        return next((one for one in self._schedules.values() if one.name == name), None)

    def schedules(self, after: int, limit: int) -> list[DurableSchedule]:
        of = sorted(id for id in self._schedules if id > after)
        return [self._schedules[id] for id in of[:limit]]

    def schedules_due(self, time: float, limit: int) -> list[DurableSchedule]:
        timed = [(one.next, one.id) for one in self._schedules.values() if one.next is not None]
        return [self._schedules[id] for due, id in sorted(timed) if due <= time][:limit]

    def put_schedule(self, schedule: DurableSchedule) -> None:
        self._put_schedule(schedule.id, schedule)

    def drop_schedule(self, id: int) -> None:
        self._put_schedule(id, None)

    def _put_schedule(self, id: int, schedule: DurableSchedule | None) -> None:
        self._writes += 1
        self._schedules_before.setdefault(id, self._schedules.get(id))
        put_row(self._schedules, id, schedule)

    # ---- answers that may be asked for again

    def last_step(self, instance: str) -> LastStep | None:
        if instance in self._new_steps:
            return self._new_steps[instance]
        return self._steps.get(instance)

    def put_last_step(self, instance: str, step: LastStep | None) -> None:
        self._writes += 1
        self._new_steps[instance] = step

    def _read_answers(self, tickets: Sequence[str]) -> None:
        found = self._ask([Get(kind, tickets) for kind in where_answers_are(self._now)])
        self._note_answers(tickets, found)

    def _note_answers(self, tickets: Sequence[str], found: Sequence[Sequence[str | None]]) -> None:
        """Note what `where_answers_are` has."""
        for ticket, new, old in zip(tickets, *found, strict=True):
            text = old if new is None else new
            self._answers[ticket] = None if text is None else decode(text)

    def answer(self, ticket: str, now: float) -> tuple[Any] | None:
        fresh = self._new_answers.get(ticket)
        if fresh is not None:
            return (fresh[1],)
        if ticket not in self._answers:
            self._read_answers([ticket])
        known = self._answers[ticket]
        return None if known is None or known[0] <= now else (known[1],)

    def put_answer(self, ticket: str, answer: Any, now: float) -> None:
        self._writes += 1
        self._new_answers[ticket] = now + REMEMBERED_FOR, answer

    # ---- settings, and marks of rates

    def put(self, kind: Kind[T], name: str, value: T | None) -> None:
        self._settings_before.setdefault((kind.name, name), self.of(kind).get(name))
        super().put(kind, name, value)

    def _put_text(self, kind: str, name: str, value: Any) -> None:
        self._writes += 1

    def identity(self) -> str:
        return self._meta["store"]

    def ahead_of_wall(self) -> float:
        return self._ahead

    def marks(self, meter: str) -> Marks:
        marks = self._marks.get(meter)
        if marks is None:
            found: Texts = []
            if meter in self._meters:
                (found,) = self._ask([Span(Maps.MARKS + meter, "", keys.BEHIND_ALL, NO_LIMIT)])
            marks = self._marks[meter] = deque(_mark_in(text) for text, _ in found)
        return marks

    def meters(self) -> Collection[str]:
        return list(self._meters)

    def put_marks(self, meter: str, added: Marks, keep: int, until: float) -> None:
        marks = self.marks(meter)
        put(cast(deque[Mark], marks), added, keep)
        self._set_meter(meter, (until, self._meters.get(meter, (0.0, 0))[1] + len(added)))
        new = self._added_marks.setdefault(meter, [[], keep])
        new[0].extend(added)
        new[1] = keep

    def _set_meter(self, meter: str, value: tuple[float, int] | None) -> None:
        self._writes += 1
        self._meters_before.setdefault(meter, self._meters.get(meter))
        put_row(self._meters, meter, value)

    def forget_marks(self, meter: str) -> None:
        self._set_meter(meter, None)
        self._marks.pop(meter, None)
        self._added_marks.pop(meter, None)
        self._forgotten_marks.add(meter)

    def forget_unused(self, now: float) -> None:
        for meter in [meter for meter, (until, _) in self._meters.items() if until <= now]:
            self.forget_marks(meter)

    # ---- what a batch writes

    def _write_small(self, writes: Writes, delta: list[Any]) -> None:
        """Add what this batch writes of these to its writes, and to its delta."""
        self._write_items(writes)
        self._write_marks(writes, delta)
        for kind, name in self._settings_before:
            value = self._settings[kind].get(name)
            key = f"{kind}\0{name}"
            write_whole(writes, delta, Maps.SETTINGS, key, None if value is None else encode(value))
        for id in self._requests_before:
            row = self._requests.row(id)
            text = None if row is None else json.dumps(row)
            write_whole(writes, delta, Maps.REQUESTS, str(id), text)
        for id in self._schedules_before:
            schedule = self._schedules.get(id)
            text = None if schedule is None else encode(schedule)
            write_whole(writes, delta, Maps.SCHEDULES, str(id), text)
        for instance, step in self._new_steps.items():
            text = None if step is None else encode(step)
            write_whole(writes, delta, Maps.STEPS, instance, text)
        if self._new_answers:
            assert self.batch is not None
            kept, before = where_answers_are(self._now), where_answers_are(self.batch.clock)
            answers = {ticket: encode(answer) for ticket, answer in self._new_answers.items()}
            writes.put[kept[0]] = answers
            writes.clear += [one for one in before if one not in kept]

    def _write_items(self, writes: Writes) -> None:
        for name, of in self._items.items():
            kind = LIST + name
            if of.cleared:
                writes.clear.append(kind)
                continue
            starts = map(keys.number, sorted(of.added.keys() | of.dropped))
            ranges = [(start, start + keys.BEHIND_ALL) for start in starts]
            if of.cut > 1:
                ranges.append(("", keys.number(of.cut)))
            if ranges:
                writes.cut[kind] = ranges
            kept = [text for number, text in of.added.items() if number >= of.cut]
            if kept:
                writes.add[kind] = kept

    def _write_marks(self, writes: Writes, delta: list[Any]) -> None:
        for meter in self._forgotten_marks:
            writes.clear.append(Maps.MARKS + meter)
            delta.append((Maps.METERS, meter, None))
        for meter in self._meters_before:
            value = self._meters.get(meter)
            text = None if value is None else json.dumps(value)
            write_whole(writes, delta, Maps.METERS, meter, text)
        for meter, (added, keep) in self._added_marks.items():
            last = self._meters[meter][1]
            first = last - len(added) + 1
            writes.add[Maps.MARKS + meter] = [
                keys.number(number) + json.dumps(mark)
                for number, mark in enumerate(added, first)
                if number > last - keep
            ]
            if last > keep:
                writes.cut[Maps.MARKS + meter] = [("", keys.number(last - keep + 1))]
            delta.append(("marks", meter, added, keep))


def where_answers_are(now: float) -> tuple[str, str]:
    """Return the maps of the answers of this time, and of those before that are remembered."""
    period = int(now // REMEMBERED_FOR)
    return f"{ANSWERS_OF}{period}", f"{ANSWERS_OF}{period - 1}"


def write_whole(writes: Writes, delta: list[Any], kind: str, key: str, text: str | None) -> None:
    """Write a row of what an image has whole."""
    if text is None:
        writes.drop.setdefault(Maps.WHOLE, []).append(f"{kind} {key}")
    else:
        writes.put.setdefault(Maps.WHOLE, {})[f"{kind} {key}"] = text
    delta.append((kind, key, text))


def _item_text(item: ListItem) -> str:
    data = json.dumps([item.data, item.tag, item.taken], ensure_ascii=False)
    return keys.number(item.number) + data


def _item_in(number: int, text: str) -> ListItem:
    data, tag, taken = json.loads(text[16:])
    return ListItem(number, data, tag, taken)


def _mark_in(text: str) -> Mark:
    time, starts = json.loads(text[16:])
    return time, starts
