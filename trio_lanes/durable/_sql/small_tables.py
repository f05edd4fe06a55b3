"""`SmallTables`: all tables but that of jobs: settings, lists, requests, marks of rates.

* The settings are read in one query at the first use of one, and kept.
* What is written waits for the end of the transaction, so a transaction makes few trips to a
  server. A query of lists or schedules puts what waits over what it reads; one of another table
  writes before what waits for that table.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from operator import attrgetter
from typing import Any, Final, TypeVar

import attrs

from ..._limits.meters import Mark, Marks, put
from .._options.schedule import DurableSchedule
from .._rules.request import Request
from .._rules.settings import Settings
from .._rules.tables import SETTING_KINDS, Kind, ListItem
from .._wire.codec import decode, encode
from .rows import Execute, Row, Values
from .statements import Many

T = TypeVar("T")

SETTINGS: Final = "SELECT kind, name, data FROM main.settings"
PUT_SETTINGS: Final = Many(
    "INSERT INTO main.settings SELECT v.kind, v.name, v.data FROM v WHERE true"
    " ON CONFLICT (kind, [name]) DO UPDATE SET data = excluded.data",
    "kind text, name text, data text",
)
DROP_SETTINGS: Final = Many(
    "DELETE FROM main.settings USING v WHERE settings.kind = v.kind AND settings.[name] = v.name",
    "kind text, name text",
)
DROP_ITEMS: Final = Many(
    "DELETE FROM main.lists USING v WHERE lists.[list] = v.list AND lists.taken <= v.taken",
    "list text, taken int",
)
PUT_ITEMS: Final = Many(
    "INSERT INTO main.lists SELECT v.list, v.number, v.tag, v.taken, v.data FROM v WHERE true"
    " ON CONFLICT ([list], number) DO UPDATE SET taken = excluded.taken",
    "list text, number bigint, tag text, taken int, data text",
)
CUT_LISTS: Final = Many(
    "DELETE FROM main.lists USING v WHERE lists.[list] = v.list AND lists.number <= v.last",
    "list text, last bigint",
)
ADD_MARKS: Final = Many(
    "INSERT INTO main.marks SELECT v.meter, v.number, v.time, v.starts, v.until FROM v",
    "meter text, number bigint, time float8, starts bigint, until float8",
)
CUT_MARKS: Final = Many(
    "DELETE FROM main.marks USING v WHERE marks.[meter] = v.meter AND marks.number <= v.last",
    "meter text, last bigint",
)
PUT_SCHEDULES: Final = Many(
    "INSERT INTO main.schedules SELECT v.id, v.name, v.next, v.data FROM v WHERE true"
    " ON CONFLICT (id) DO UPDATE SET next = excluded.next, data = excluded.data",
    "id bigint, name text, next float8, data text",
)
DROP_SCHEDULES: Final = Many(
    "DELETE FROM main.schedules USING v WHERE schedules.id = v.id", "id bigint"
)
_MARK_WRITES: Final = (ADD_MARKS, CUT_MARKS)
_WRITES: Final = (
    *(DROP_ITEMS, PUT_ITEMS, CUT_LISTS),
    *_MARK_WRITES,
    *(DROP_SETTINGS, PUT_SETTINGS),
    *(DROP_SCHEDULES, PUT_SCHEDULES),
)
_REQUEST_FIELDS: Final = [field.name for field in attrs.fields(Request)]
SELECT_REQUESTS: Final = f"SELECT {', '.join(_REQUEST_FIELDS)} FROM main.requests WHERE "
_PUT_REQUEST: Final = (
    f"INSERT INTO main.requests ({', '.join(_REQUEST_FIELDS)})"
    f" VALUES ({', '.join(f':{field}' for field in _REQUEST_FIELDS)})"
    " ON CONFLICT (id) DO UPDATE SET served = excluded.served, since = excluded.since"
)


class SmallTables(Settings, ABC):
    """The part of `SqlTables` for the small tables."""

    def __init__(self) -> None:
        self._small_writes = 0
        self._parsed: dict[tuple[str, str], tuple[str, Any]] = {}  # JSON that was read before
        # {statement: {key: row}}, in the order in which they are written
        self._unwritten: Final[dict[Many, dict[Any, Row]]] = {many: {} for many in _WRITES}
        self._forget_small()

    _execute: Execute  # a statement of the common dialect, with its values if it has some

    @abstractmethod
    def _execute_many(self, many: Many, rows: Collection[Row]) -> None:
        """Execute a statement over rows, of which there is one at least."""

    def _forget_small(self) -> None:
        """Drop all cached rows: another process may have written, or a rollback came."""
        self._settings, self.fair = {}, True  # it may be
        self._marks: dict[str, deque[Mark]] = {}
        self._last_marks: dict[str, int] = {}  # {meter of known marks: the last number}
        self._drop_unwritten()

    def _drop_unwritten(self) -> None:
        for rows in self._unwritten.values():
            rows.clear()

    def _write(self, many: Many, key: Any, row: Row) -> None:
        """Write a row before the next query of its table, or at the end of the transaction."""
        self._unwritten[many][key] = row
        self._small_writes += 1

    def _flush_small(self, statements: Iterable[Many] = _WRITES) -> None:
        """Write the rows that wait for some statements."""
        for many in statements:
            rows = self._unwritten[many]
            if rows:
                self._execute_many(many, list(rows.values()))
                rows.clear()

    # ---- settings

    def _read_settings(self, rows: Iterable[tuple[str, str, str]]) -> None:
        settings: dict[str, dict[str, Any]] = {kind.name: {} for kind in SETTING_KINDS}
        parsed = {}
        for kind, name, data in sorted(rows):  # lanes take turns in the order of their names
            before = self._parsed.get((kind, name))
            if before is None or before[0] != data:
                before = data, decode(data)
            parsed[kind, name] = before
            settings[kind][name] = before[1]
        self._parsed, self._settings = parsed, settings
        self._look_for_fair_lanes()

    def of(self, kind: Kind[T]) -> Mapping[str, T]:
        if not self._settings:
            self._read_settings(self._execute(SETTINGS))
        return self._settings[kind.name]

    def _put_text(self, kind: str, name: str, value: Any) -> None:
        key = kind, name
        for many in (PUT_SETTINGS, DROP_SETTINGS):
            self._unwritten[many].pop(key, None)
        if value is None:
            self._write(DROP_SETTINGS, key, key)
        else:
            self._write(PUT_SETTINGS, key, (*key, encode(value)))

    def identity(self) -> str:
        return str(self._execute("SELECT store FROM main.meta").fetchone()[0])

    # ---- lists

    def append(self, name: str, item: ListItem, keep: int | None = None) -> None:
        row = name, item.number, item.tag, int(item.taken), item.data
        self._write(PUT_ITEMS, (name, item.number), row)
        if keep is not None and item.number > keep:
            self._write(CUT_LISTS, name, (name, item.number - keep))

    def items(self, name: str, after: int, limit: int) -> Iterable[ListItem]:
        cut = self._unwritten[CUT_LISTS].get(name, (name, 0))[1]
        after = max(after, cut)
        rows = self._execute(
            "SELECT number, data, tag, taken FROM main.lists WHERE [list] = :list"
            " AND number > :after AND taken > :dropped ORDER BY number LIMIT :limit",
            {"list": name, "after": after, "dropped": self._dropped(name), "limit": limit},
        )
        found = (ListItem(number, data, tag, bool(taken)) for number, data, tag, taken in rows)
        unwritten = self._unwritten_items(name)
        if not unwritten:
            return found
        items = {item.number: item for item in (*found, *unwritten) if item.number > after}
        return [items[number] for number in sorted(items)[:limit]]

    def last_item(self, name: str) -> int:
        # not max(): PostgreSQL would read all, if it takes the table for empty
        row = self._execute(
            "SELECT number FROM main.lists WHERE [list] = :list AND taken > :dropped"
            " ORDER BY number DESC LIMIT 1",
            {"list": name, "dropped": self._dropped(name)},
        ).fetchone()
        last = 0 if row is None else int(row[0])
        return max([last, *(item.number for item in self._unwritten_items(name))])

    def _unwritten_items(self, name: str) -> list[ListItem]:
        return [
            ListItem(number, data, tag, bool(taken))
            for of, number, tag, taken, data in self._unwritten[PUT_ITEMS].values()
            if of == name
        ]

    def _dropped(self, name: str) -> int:
        """Return what is to be deleted from a list: items with no more `taken` than this."""
        return int(self._unwritten[DROP_ITEMS].get(name, (name, -1))[1])

    def drop_items(self, name: str, *, taken: bool) -> None:
        items = self._unwritten[PUT_ITEMS]
        for item in self._unwritten_items(name):
            if item.taken <= taken:
                del items[name, item.number]
        # with 0, those that were not taken; with 1, all
        self._write(DROP_ITEMS, name, (name, max(int(taken), self._dropped(name))))

    # ---- requests for locks and quotas

    def request(self, id: int) -> Request | None:
        return self._request("id = :id", {"id": id})

    def _request(self, where: str, values: Values) -> Request | None:
        row = self._execute(SELECT_REQUESTS + where, values).fetchone()
        return None if row is None else Request(*row)

    def put_request(self, request: Request) -> None:
        self._small_writes += 1
        self._execute(_PUT_REQUEST, attrs.asdict(request))

    def drop_request(self, id: int) -> None:
        self._small_writes += 1
        self._execute("DELETE FROM main.requests WHERE id = :id", {"id": id})

    def first_request(self, line: str, served: bool) -> Request | None:
        of = "[line] = :line AND served IS "
        if served:
            # any: those that were served are all shared, or one
            return self._request(of + "NOT NULL LIMIT 1", {"line": line})
        return self._request(of + "NULL ORDER BY id LIMIT 1", {"line": line})

    def requests_of(self, instance: str | None) -> list[Request]:
        where = "true" if instance is None else "instance = :instance"
        rows = self._execute(f"{SELECT_REQUESTS}{where} ORDER BY id", {"instance": instance})
        return [Request(*row) for row in rows]

    # ---- schedules

    def schedule(self, name: str) -> DurableSchedule | None:
        found = self._schedules("[name] = :name", {"name": name}, 1)
        return next((one for one in found if one.name == name), None)

    def _schedules(
        self, where: str, values: Mapping[str, Any], limit: int
    ) -> list[DurableSchedule]:
        """Return the unwritten schedules, and so many of those that fulfil a condition."""
        put, dropped = self._unwritten[PUT_SCHEDULES], self._unwritten[DROP_SCHEDULES]
        rows = self._execute(
            f"SELECT data FROM main.schedules WHERE {where} LIMIT :limit",
            {**values, "limit": limit + len(put) + len(dropped)},
        )
        written: list[DurableSchedule] = [decode(data) for (data,) in rows]
        others = [one for one in written if one.id not in put and one.id not in dropped]
        return others + [decode(data) for *_, data in put.values()]

    def schedules(self, after: int, limit: int) -> list[DurableSchedule]:
        found = self._schedules("id > :after ORDER BY id", {"after": after}, limit)
        return sorted((one for one in found if one.id > after), key=attrgetter("id"))[:limit]

    def schedules_due(self, time: float, limit: int) -> list[DurableSchedule]:
        found = self._schedules("next <= :time ORDER BY next, id", {"time": time}, limit)
        due = [one for one in found if one.next is not None and one.next <= time]
        return sorted(due, key=attrgetter("next", "id"))[:limit]

    def put_schedule(self, schedule: DurableSchedule) -> None:
        id = schedule.id
        self._write(PUT_SCHEDULES, id, (id, schedule.name, schedule.next, encode(schedule)))

    def drop_schedule(self, id: int) -> None:
        self._unwritten[PUT_SCHEDULES].pop(id, None)
        self._write(DROP_SCHEDULES, id, (id,))

    # ---- marks of rates

    def marks(self, meter: str) -> Marks:
        marks = self._marks.get(meter)
        if marks is None:  # so none of them is unwritten
            rows = self._execute(
                "SELECT number, time, starts FROM main.marks WHERE [meter] = :meter"
                " ORDER BY number",
                {"meter": meter},
            ).fetchall()
            marks = self._marks[meter] = deque((time, starts) for _, time, starts in rows)
            self._last_marks[meter] = rows[-1][0] if rows else 0
        return marks

    def meters(self) -> Collection[str]:
        self._flush_small(_MARK_WRITES)
        return [meter for (meter,) in self._execute("SELECT DISTINCT meter FROM main.marks")]

    def put_marks(self, meter: str, added: Marks, keep: int, until: float) -> None:
        marks = self.marks(meter)
        assert isinstance(marks, deque)
        put(marks, added, keep)
        for mark in added:
            number = self._last_marks[meter] = self._last_marks[meter] + 1
            self._write(ADD_MARKS, (meter, number), (meter, number, *mark, until))
        if self._last_marks[meter] > keep:
            self._write(CUT_MARKS, meter, (meter, self._last_marks[meter] - keep))

    def forget_marks(self, meter: str) -> None:
        self._flush_small(_MARK_WRITES)
        self._marks.pop(meter, None)
        self._small_writes += 1
        self._execute("DELETE FROM main.marks WHERE [meter] = :meter", {"meter": meter})

    def forget_unused(self, now: float) -> None:
        self._flush_small(_MARK_WRITES)
        self._marks.clear()  # read again when they are needed
        self._small_writes += 1
        self._execute(
            "DELETE FROM main.marks WHERE meter IN"
            " (SELECT meter FROM main.marks GROUP BY meter HAVING max(until) <= :now)",
            {"now": now},
        )
