"""The small tables of a PostgreSQL store: lanes, groups, quotas, pauses, instances, rates, etc.

Most are rows of one table, `settings`: JSON under a kind and a name. All of them are read in one
query, and written together at the end of a transaction.
"""

from __future__ import annotations

import json
import math
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, LiteralString

import attrs

from ... import RateLimit
from ..._limits.meters import Mark, Marks, put
from .._contract.protocol import REMEMBERED_FOR
from .._contract.records import GroupLimit, InstanceInfo, LaneLimit, StoreRules
from .._rules.job_record import JobRecord
from .._rules.rates import from_json, group_from_json, group_to_json, to_json
from .._rules.request import Request
from .._rules.tables import LastStep
from .rows import Execute

SETTINGS: Final = 'SELECT kind, name, told FROM @settings ORDER BY kind, name COLLATE "C"'
"""In the order in which lanes take turns."""
REQUESTS: Final[LiteralString] = (
    "SELECT id, line, instance, told, served, job, since FROM @requests WHERE "
)
_OF_METER: Final = "md5(meter) = md5(%s) AND meter = %s"
_SAME_METER: Final = "md5(marks.meter) = md5(v.meter) AND marks.meter = v.meter"


class SmallTables:
    """The part of `PostgresTables` for the small tables."""

    def __init__(self, execute: Execute) -> None:
        self._execute: Final = execute
        self._small_writes = 0
        self._parsed: dict[tuple[str, str], tuple[str, Any]] = {}  # JSON that was read before
        self._unwritten: Final[dict[tuple[str, str], str | None]] = {}
        self._new_answers: Final[dict[str, tuple[float, Any]]] = {}
        self._answers: Final[dict[str, tuple[float, str]]] = {}
        self._new_marks: Final[list[tuple[str, Mark, float]]] = []
        self._new_events: Final[list[tuple[int, int, str]]] = []  # (job, number, event)
        self._old_events: Final[list[tuple[int, int]]] = []  # (job, the last number to delete)
        self._kept: Final[dict[str, int]] = {}  # {meter of a new mark: how many marks it keeps}
        self._forget_small()

    def _forget_small(self) -> None:
        """Drop all cached rows: another process may have written, or a rollback came."""
        self._settings: dict[str, dict[str, Any]] | None = None
        self._marks: dict[str, deque[Mark]] = {}
        self._new_marks.clear()
        self._new_events.clear()
        self._old_events.clear()
        self._kept.clear()
        self._unwritten.clear()
        self._new_answers.clear()

    # ---- settings

    def _read_settings(self, rows: Iterable[tuple[str, str, str]]) -> None:
        settings: dict[str, dict[str, Any]] = {kind: {} for kind in _FROM_TEXT}
        parsed = {}
        for kind, name, told in rows:
            before = self._parsed.get((kind, name))
            if before is None or before[0] != told:
                before = told, _FROM_TEXT[kind](name, told)
            parsed[kind, name] = before
            settings[kind][name] = before[1]
        self._parsed = parsed
        self._settings = settings

    def _of(self, kind: str) -> dict[str, Any]:
        assert self._settings is not None  # each transaction begins with it
        return self._settings[kind]

    def _put(self, kind: str, name: str, value: Any, told: str | None) -> None:
        """Set the value of a name, and its JSON text; None: there is none any more."""
        of = self._of(kind)
        if told is None:
            if of.pop(name, None) is None:
                return
        else:
            of[name] = value
        self._unwritten[kind, name] = told
        self._small_writes += 1

    def _flush_small(self) -> None:
        self._flush_marks()
        self._flush_events()
        gone = [key for key, told in self._unwritten.items() if told is None]
        if gone:
            kinds, names = zip(*gone, strict=True)
            self._execute(
                "DELETE FROM @settings USING unnest(%s::text[], %s::text[]) AS v(kind, name)"
                " WHERE settings.kind = v.kind AND md5(settings.name) = md5(v.name)"
                " AND settings.name = v.name",
                (list(kinds), list(names)),
            )
        there = [(*key, told) for key, told in self._unwritten.items() if told is not None]
        if there:
            self._execute(
                "INSERT INTO @settings SELECT * FROM unnest(%s::text[], %s::text[], %s::text[])"
                " ON CONFLICT (kind, md5(name)) DO UPDATE SET told = excluded.told",
                [list(column) for column in zip(*there, strict=True)],
            )
        self._unwritten.clear()
        if self._new_answers:
            tickets = list(self._new_answers)
            self._execute(
                "INSERT INTO @answers SELECT * FROM unnest(%s::text[], %s::float8[], %s::text[])"
                " ON CONFLICT (ticket) DO UPDATE SET until = excluded.until, told = excluded.told",
                (
                    tickets,
                    [until for until, _ in self._new_answers.values()],
                    [json.dumps(answer) for _, answer in self._new_answers.values()],
                ),
            )
            self._new_answers.clear()

    def identity(self) -> str:
        row = self._execute("SELECT store FROM @meta").fetchone()
        assert row is not None
        return str(row[0])

    def rules(self) -> StoreRules | None:
        rules: StoreRules | None = self._of("rules").get("")
        return rules

    def put_rules(self, rules: StoreRules) -> None:
        self._put("rules", "", rules, json.dumps(attrs.astuple(rules)))

    def lanes(self) -> Mapping[str, LaneLimit]:
        return self._of("lane")

    def put_lane(self, name: str, limit: LaneLimit | None) -> None:
        told = None
        if limit is not None:
            most, room = limit.concurrency, limit.max_waiting
            told = json.dumps(
                [
                    *(most, room, limit.paused_until, to_json(limit.rates), limit.proposed),
                    limit.pause_only,
                ]
            )
        self._copy("lane")
        self._put("lane", name, limit, told)
        self._copy("lane")  # in the order of the names

    def _copy(self, kind: str) -> None:
        """Change a copy from now on: callers keep the mapping that they have got."""
        of = self._of(kind)
        assert self._settings is not None
        self._settings[kind] = dict(sorted(of.items()))

    def groups(self) -> Mapping[str, GroupLimit]:
        return self._of("group")

    def put_group(self, name: str, group: GroupLimit | None) -> None:
        self._copy("group")
        self._put("group", name, group, None if group is None else group_to_json(group))

    def turns(self) -> Mapping[str, str | int]:
        return dict(self._of("turn"))

    def put_turn(self, key: str, value: str | int | None) -> None:
        self._put("turn", key, value, None if value is None else json.dumps(value))

    def pauses(self) -> Mapping[str, float]:
        """Return {session: when its pause ends}."""
        return self._of("pause")

    def pause_of(self, session: str) -> float | None:
        return self.pauses().get(session)

    def put_pause(self, session: str, until: float | None) -> None:
        self._put("pause", session, until, None if until is None else json.dumps(until))

    def pauses_due(self, now: float) -> list[str]:
        return [session for session, until in self.pauses().items() if until <= now]

    def instances(self) -> list[InstanceInfo]:
        return list(self._of("instance").values())

    def lease_of(self, instance: str) -> float | None:
        info: InstanceInfo | None = self._of("instance").get(instance)
        return None if info is None else info.lease_until

    def put_instance(self, info: InstanceInfo) -> None:
        told = [info.host, info.pid, info.since, info.lease_until, info.names]
        self._put("instance", info.id, info, json.dumps(told))

    def drop_instance(self, id: str) -> None:
        self._put("instance", id, None, None)
        self._put("step", id, None, None)

    def last_step(self, instance: str) -> LastStep | None:
        step: LastStep | None = self._of("step").get(instance)
        return step

    def put_last_step(self, instance: str, step: LastStep) -> None:
        self._put("step", instance, step, json.dumps(attrs.astuple(step)))

    # ---- answers that may be asked for again

    def _read_answers(self, asked: Iterable[str], rows: Iterable[tuple[str, float, str]]) -> None:
        """Note which tickets were looked up, and the answers that there are."""
        self._answers.clear()
        self._answers.update(dict.fromkeys(asked, (-math.inf, "null")))
        self._answers.update((ticket, (until, told)) for ticket, until, told in rows)

    def answer(self, ticket: str, now: float) -> tuple[Any] | None:
        fresh = self._new_answers.get(ticket)
        if fresh is not None:
            return (fresh[1],)
        known = self._answers.get(ticket)
        if known is None:
            self._flush_small()
            known = self._execute(
                "SELECT until, told FROM @answers WHERE ticket = %s", (ticket,)
            ).fetchone()
        if known is None or known[0] <= now:
            return None
        return (json.loads(known[1]),)

    def put_answer(self, ticket: str, answer: Any, now: float) -> None:
        self._new_answers[ticket] = now + REMEMBERED_FOR, answer
        self._answers.pop(ticket, None)
        self._small_writes += 1

    # ---- events

    def put_event(self, job: JobRecord, number: int, event: str, keep: int) -> None:
        self._new_events.append((job.id, number, event))
        if number > keep:
            self._old_events.append((job.id, number - keep))
        self._small_writes += 1

    def events(self, id: int, after: int, limit: int) -> list[tuple[int, str]]:
        self._flush_events()
        statement = (
            "SELECT number, told FROM @events WHERE job = %s AND number > %s"
            " ORDER BY number LIMIT %s"
        )
        return self._execute(statement, (id, after, limit)).fetchall()

    def _flush_events(self) -> None:
        if self._new_events:
            self._execute(
                "INSERT INTO @events SELECT * FROM unnest(%s::bigint[], %s::bigint[], %s::text[])",
                [list(column) for column in zip(*self._new_events, strict=True)],
            )
            self._new_events.clear()
        if self._old_events:
            self._execute(
                "DELETE FROM @events USING unnest(%s::bigint[], %s::bigint[]) AS v(job, last)"
                " WHERE events.job = v.job AND number <= v.last",
                [list(column) for column in zip(*self._old_events, strict=True)],
            )
            self._old_events.clear()

    # ---- messages

    def put_message(self, id: int, number: int, key: str | None, taken: bool, message: str) -> None:
        self._small_writes += 1
        self._execute(
            "INSERT INTO @messages VALUES (%s, %s, %s, %s, %s)"
            " ON CONFLICT (job, number) DO UPDATE SET taken = excluded.taken",
            (id, number, key, taken, message),
        )

    def messages(self, id: int, after: int, limit: int) -> list[tuple[int, str | None, bool, str]]:
        statement = (
            "SELECT number, key, taken, told FROM @messages WHERE job = %s AND number > %s"
            " ORDER BY number LIMIT %s"
        )
        return self._execute(statement, (id, after, limit)).fetchall()

    def drop_untaken(self, id: int) -> None:
        self._small_writes += 1
        self._execute("DELETE FROM @messages WHERE job = %s AND NOT taken", (id,))

    # ---- requests for locks and quotas

    def request(self, id: int) -> Request | None:
        return self._request("id = %s", (id,))

    def _request(self, where: LiteralString, values: tuple[Any, ...]) -> Request | None:
        row = self._execute(REQUESTS + where, values).fetchone()
        return None if row is None else Request(*row)

    def put_request(self, request: Request) -> None:
        self._small_writes += 1
        self._execute(
            "INSERT INTO @requests (id, line, instance, told, served, job, since)"
            " VALUES (%s, %s, %s, %s, %s, %s, %s)"
            " ON CONFLICT (id) DO UPDATE SET served = excluded.served, since = excluded.since",
            attrs.astuple(request),
        )

    def drop_request(self, id: int) -> None:
        self._small_writes += 1
        self._execute("DELETE FROM @requests WHERE id = %s", (id,))

    def first_request(self, line: str, served: bool) -> Request | None:
        of: LiteralString = "md5(line) = md5(%s) AND line = %s AND served "
        if served:
            return self._request(of + "IS NOT NULL LIMIT 1", (line, line))
        return self._request(of + "IS NULL ORDER BY id LIMIT 1", (line, line))

    def requests_of(self, instance: str | None) -> list[Request]:
        if instance is None:
            rows = self._execute(REQUESTS + "TRUE ORDER BY id").fetchall()
        else:
            rows = self._execute(REQUESTS + "instance = %s ORDER BY id", (instance,)).fetchall()
        return [Request(*row) for row in rows]

    def quotas(self) -> Mapping[str, tuple[RateLimit, ...]]:
        return self._of("quota")

    def put_quota(self, name: str, limits: tuple[RateLimit, ...]) -> None:
        self._put("quota", name, limits, to_json(limits))

    # ---- logs

    def write_log(self, log: str, author: str, record: str) -> int:
        self._small_writes += 1
        row = self._execute(
            "INSERT INTO @logs SELECT %s, coalesce(max(number), 0) + 1, %s, %s FROM @logs"
            " WHERE md5(log) = md5(%s) AND log = %s RETURNING number",
            (log, author, record, log, log),
        ).fetchone()
        assert row is not None
        return int(row[0])

    def read_log(self, log: str, after: int, limit: int) -> Iterable[tuple[int, str, str]]:
        return self._execute(
            "SELECT number, author, told FROM @logs"
            " WHERE md5(log) = md5(%s) AND log = %s AND number > %s ORDER BY number LIMIT %s",
            (log, log, after, limit),
        )

    def drop_log(self, log: str) -> bool:
        self._small_writes += 1
        statement = "DELETE FROM @logs WHERE md5(log) = md5(%s) AND log = %s"
        return self._execute(statement, (log, log)).rowcount > 0

    # ---- marks of rates

    def marks(self, meter: str) -> Marks:
        marks = self._marks.get(meter)
        if marks is None:
            self._flush_marks()
            statement = f"SELECT time, starts FROM @marks WHERE {_OF_METER} ORDER BY number"
            marks = self._marks[meter] = deque(self._execute(statement, (meter, meter)))
        return marks

    def meters(self) -> Collection[str]:
        self._flush_marks()
        return [meter for (meter,) in self._execute("SELECT DISTINCT meter FROM @marks")]

    def put_marks(self, meter: str, added: Marks, keep: int, until: float) -> None:
        marks = self.marks(meter)
        assert isinstance(marks, deque)
        put(marks, added, keep)
        self._new_marks.extend((meter, mark, until) for mark in added)
        self._kept[meter] = keep
        self._small_writes += 1

    def _flush_marks(self) -> None:
        if not self._new_marks:
            return
        order = Counter[str]()  # of the new marks of a meter
        rows = []
        for meter, mark, until in self._new_marks:
            order[meter] += 1
            rows.append((meter, order[meter], *mark, until))
        self._execute(
            "INSERT INTO @marks SELECT v.meter, v.n + coalesce("
            f"(SELECT max(number) FROM @marks WHERE {_SAME_METER}), 0), v.time, v.starts,"
            " v.until"
            " FROM unnest(%s::text[], %s::bigint[], %s::float8[], %s::bigint[], %s::float8[])"
            " AS v(meter, n, time, starts, until)",
            [list(column) for column in zip(*rows, strict=True)],
        )
        self._execute(
            "DELETE FROM @marks USING unnest(%s::text[], %s::bigint[]) AS v(meter, keep)"
            f" WHERE {_SAME_METER} AND number <="
            f" (SELECT max(number) FROM @marks WHERE {_SAME_METER}) - v.keep",
            (list(self._kept), list(self._kept.values())),
        )
        self._new_marks.clear()
        self._kept.clear()

    def forget_unused(self, now: float) -> None:
        self._flush_marks()
        self._marks.clear()  # read again when they are needed
        self._small_writes += 1
        self._execute(
            "DELETE FROM @marks WHERE meter IN"
            " (SELECT meter FROM @marks GROUP BY meter HAVING max(until) <= %s)",
            (now,),
        )

    def forget_marks(self, meter: str) -> None:
        self._flush_marks()
        self._marks.pop(meter, None)
        self._small_writes += 1
        self._execute(f"DELETE FROM @marks WHERE {_OF_METER}", (meter, meter))


def _lane(name: str, told: str) -> LaneLimit:
    most, room, paused_until, rates, proposed, pause_only = json.loads(told)
    return LaneLimit(most, room, paused_until, from_json(rates), proposed, pause_only)


def _instance(id: str, told: str) -> InstanceInfo:
    host, pid, since, lease_until, names = json.loads(told)
    return InstanceInfo(id, host, pid, since, lease_until, tuple(names), 0)


def _step(instance: str, told: str) -> LastStep:
    number, fences_after, stale = json.loads(told)
    return LastStep(number, fences_after, tuple(stale))


_FROM_TEXT: Final[Mapping[str, Callable[[str, str], Any]]] = {
    "group": lambda name, told: group_from_json(told),
    "instance": _instance,
    "lane": _lane,
    "pause": lambda name, told: json.loads(told),
    "quota": lambda name, told: from_json(told),
    "rules": lambda name, told: StoreRules(*json.loads(told)),
    "step": _step,
    "turn": lambda name, told: json.loads(told),
}
"""By kind, what makes the value of a name from its JSON text."""
