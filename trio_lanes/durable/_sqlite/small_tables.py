"""The small tables of a SQLite store: lanes, groups, rules, pauses, instances, marks of rates.

Each table is read as a whole at its first use, and written row by row as it changes.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

import attrs

from ... import RateLimit
from ..._limits.meters import Mark, Marks, put
from .._contract.records import GroupLimit, InstanceInfo, LaneLimit, StoreRules
from .._rules.rates import from_json, group_from_json, group_to_json, to_json
from .._rules.request import Request

_REQUEST: Final = ", ".join(field.name for field in attrs.fields(Request))


class SmallTables:
    """The part of `SqliteTables` for the small tables."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection: Final = connection
        self._execute: Final = connection.execute
        self._small_writes = 0
        self._forget_small()

    def _forget_small(self) -> None:
        """Drop all cached rows: another process may have written, or a rollback came."""
        self._lanes: dict[str, LaneLimit] | None = None
        self._groups: dict[str, GroupLimit] | None = None
        self._quotas: dict[str, tuple[RateLimit, ...]] | None = None
        self._pauses: dict[str, float] | None = None
        self._instances: dict[str, InstanceInfo] | None = None
        self._marks: dict[str, deque[Mark]] = {}
        self._meta: tuple[str, StoreRules | None] | None = None
        self._turns: dict[str, str | int] | None = None

    def _write(self, statement: str, values: tuple[Any, ...]) -> None:
        self._small_writes += 1
        self._execute(statement, values)

    def _identity_and_rules(self) -> tuple[str, StoreRules | None]:
        if self._meta is None:
            store, result_ttl, *others = self._execute(
                "SELECT store, result_ttl, max_crashes, hold FROM meta"
            ).fetchone()
            max_crashes, hold = others
            rules = None
            if result_ttl is not None:
                rules = StoreRules(result_ttl, max_crashes, bool(hold))
            self._meta = store, rules
        return self._meta

    def identity(self) -> str:
        return self._identity_and_rules()[0]

    def rules(self) -> StoreRules | None:
        return self._identity_and_rules()[1]

    def put_rules(self, rules: StoreRules) -> None:
        self._meta = None
        self._write(
            "UPDATE meta SET result_ttl = ?, max_crashes = ?, hold = ?",
            (rules.result_ttl, _counted(rules.max_crashes), rules.hold),
        )

    def lanes(self) -> Mapping[str, LaneLimit]:
        if self._lanes is None:
            rows = self._execute(
                "SELECT name, concurrency, max_waiting, paused_until, rates, proposed, pause_only"
                " FROM lanes"
            )
            self._lanes = {
                name: LaneLimit(most, room, until, from_json(rates), bool(proposed), bool(only))
                for name, most, room, until, rates, proposed, only in rows
            }
        return self._lanes

    def put_lane(self, name: str, limit: LaneLimit | None) -> None:
        self._lanes = None
        if limit is None:
            self._write("DELETE FROM lanes WHERE name = ?", (name,))
            return
        most, room = map(_counted, (limit.concurrency, limit.max_waiting))
        self._write(
            "REPLACE INTO lanes (name, concurrency, max_waiting, paused_until, rates, proposed,"
            " pause_only) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                *(name, most, room, limit.paused_until, to_json(limit.rates), limit.proposed),
                limit.pause_only,
            ),
        )

    def turns(self) -> Mapping[str, str | int]:
        if self._turns is None:
            self._turns = dict(self._execute("SELECT name, value FROM turns"))
        return self._turns

    def put_turn(self, key: str, value: str | int | None) -> None:
        self._turns = {**self.turns()}
        if value is None:
            self._write("DELETE FROM turns WHERE name = ?", (key,))
            del self._turns[key]
        else:
            self._write("REPLACE INTO turns VALUES (?, ?)", (key, value))
            self._turns[key] = value

    def groups(self) -> Mapping[str, GroupLimit]:
        if self._groups is None:
            rows = self._execute("SELECT name, told FROM groups")
            self._groups = {name: group_from_json(told) for name, told in rows}
        return self._groups

    def put_group(self, name: str, group: GroupLimit | None) -> None:
        self._groups = None
        if group is None:
            self._write("DELETE FROM groups WHERE name = ?", (name,))
        else:
            self._write("REPLACE INTO groups VALUES (?, ?)", (name, group_to_json(group)))

    def marks(self, meter: str) -> Marks:
        marks = self._marks.get(meter)
        if marks is None:
            statement = "SELECT time, starts FROM marks WHERE meter = ? ORDER BY number"
            marks = self._marks[meter] = deque(self._execute(statement, (meter,)))
        return marks

    def meters(self) -> Collection[str]:
        return [meter for (meter,) in self._execute("SELECT DISTINCT meter FROM marks")]

    def put_marks(self, meter: str, added: Marks, keep: int, until: float) -> None:
        marks = self.marks(meter)
        assert isinstance(marks, deque)
        put(marks, added, keep)
        for mark in added:
            self._write(
                "INSERT INTO marks (meter, number, time, starts, until)"
                " SELECT ?1, coalesce(max(number), 0) + 1, ?2, ?3, ?4 FROM marks WHERE meter = ?1",
                (meter, *mark, until),
            )
        self._write(
            "DELETE FROM marks WHERE meter = ?1 AND number <="
            " (SELECT max(number) FROM marks WHERE meter = ?1) - ?2",
            (meter, keep),
        )

    def forget_marks(self, meter: str) -> None:
        self._marks.pop(meter, None)
        self._write("DELETE FROM marks WHERE meter = ?", (meter,))

    def forget_unused(self, now: float) -> None:
        self._marks.clear()  # read again when they are needed
        self._write(
            "DELETE FROM marks WHERE meter IN"
            " (SELECT meter FROM marks GROUP BY meter HAVING max(until) <= ?)",
            (now,),
        )

    def request(self, id: int) -> Request | None:
        return self._request("id = ?", (id,))

    def _request(self, where: str, values: tuple[Any, ...]) -> Request | None:
        statement = f"SELECT {_REQUEST} FROM requests WHERE {where}"
        row = self._execute(statement, values).fetchone()
        return None if row is None else Request(*row)

    def put_request(self, request: Request) -> None:
        self._write("REPLACE INTO requests VALUES (?, ?, ?, ?, ?, ?, ?)", attrs.astuple(request))

    def drop_request(self, id: int) -> None:
        self._write("DELETE FROM requests WHERE id = ?", (id,))

    def first_request(self, line: str, served: bool) -> Request | None:
        if served:
            return self._request("line = ? AND served IS NOT NULL LIMIT 1", (line,))
        return self._request("line = ? AND served IS NULL ORDER BY id LIMIT 1", (line,))

    def requests_of(self, instance: str | None) -> list[Request]:
        where, values = ("", ()) if instance is None else ("WHERE instance = ?", (instance,))
        statement = f"SELECT {_REQUEST} FROM requests {where} ORDER BY id"
        return [Request(*row) for row in self._execute(statement, values).fetchall()]

    def quotas(self) -> Mapping[str, tuple[RateLimit, ...]]:
        if self._quotas is None:
            rows = self._execute("SELECT name, told FROM quotas")
            self._quotas = {name: from_json(told) for name, told in rows}
        return self._quotas

    def put_quota(self, name: str, limits: tuple[RateLimit, ...]) -> None:
        self._quotas = None
        self._write("REPLACE INTO quotas VALUES (?, ?)", (name, to_json(limits)))

    def write_log(self, log: str, author: str, record: str) -> int:
        statement = "SELECT coalesce(max(number), 0) + 1 FROM logs WHERE log = ?"
        number: int = self._execute(statement, (log,)).fetchone()[0]
        self._write("INSERT INTO logs VALUES (?, ?, ?, ?)", (log, number, author, record))
        return number

    def read_log(self, log: str, after: int, limit: int) -> Iterable[tuple[int, str, str]]:
        return self._execute(
            "SELECT number, author, told FROM logs WHERE log = ? AND number > ?"
            " ORDER BY number LIMIT ?",
            (log, after, limit),
        )

    def drop_log(self, log: str) -> bool:
        self._small_writes += 1
        return self._execute("DELETE FROM logs WHERE log = ?", (log,)).rowcount > 0

    def pauses(self) -> dict[str, float]:
        """Return {session: when its pause ends}."""
        if self._pauses is None:
            self._pauses = dict(self._execute("SELECT session, until FROM pauses"))
        return self._pauses

    def pause_of(self, session: str) -> float | None:
        return self.pauses().get(session)

    def put_pause(self, session: str, until: float | None) -> None:
        pauses = self.pauses()
        if until is not None:
            pauses[session] = until
            self._write("REPLACE INTO pauses VALUES (?, ?)", (session, until))
        elif pauses.pop(session, None) is not None:
            self._write("DELETE FROM pauses WHERE session = ?", (session,))

    def pauses_due(self, now: float) -> list[str]:
        return [session for session, until in self.pauses().items() if until <= now]

    def _by_id(self) -> dict[str, InstanceInfo]:
        if self._instances is None:
            rows = self._execute("SELECT id, host, pid, since, lease_until, names FROM instances")
            self._instances = {
                id: InstanceInfo(id, host, pid, since, lease_until, tuple(json.loads(names)), 0)
                for id, host, pid, since, lease_until, names in rows
            }
        return self._instances

    def instances(self) -> list[InstanceInfo]:
        return list(self._by_id().values())

    def lease_of(self, instance: str) -> float | None:
        info = self._by_id().get(instance)
        return None if info is None else info.lease_until

    def put_instance(self, info: InstanceInfo) -> None:
        self._by_id()[info.id] = info
        names = json.dumps(info.names)
        self._write(
            "REPLACE INTO instances VALUES (?, ?, ?, ?, ?, ?)",
            (info.id, info.host, info.pid, info.since, info.lease_until, names),
        )

    def drop_instance(self, id: str) -> None:
        self._by_id().pop(id, None)
        self._write("DELETE FROM instances WHERE id = ?", (id,))


def _counted(number: int | float) -> int | float:
    """Return a number that SQLite can keep: its integers have 64 bits."""
    return number if number < 2**63 else math.inf
