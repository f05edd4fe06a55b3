"""`ReadAhead`: what a batch on PostgreSQL will look up, asked for in one trip at its start.

* By name: the tickets, ids, keys and sessions of its acts (`Lookups`).
* If the cache was dropped, the image: all that a claim looks at. These are the settings, the
  counts, the sets of running jobs, and the fronts of the ready lists. Also, the requests for locks
  and quotas.

A lookup that finds nothing in memory is a statement of its own. So this only saves trips: without
it every answer would be the same. Before such a statement the unwritten changes are written, which
needs the lock: a free batch that has any is done again. What a batch has not asked for, it guesses
not to be there: see `PostgresTables`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final, final

from .._contract.protocol import STEP_BYTES
from .._rules.affinity import ticket_of
from .._rules.claims import PRIORITIES, bytes_of
from .._rules.counts import Counts
from .._rules.engine_store import Lookups
from .._rules.job_record import JobRecord
from .._rules.request import Request
from .._rules.running import Running
from .._sql.batching import LIST_FRONT, QUEUE_FRONT
from .._sql.cache import ListKey, place_of, ready_of
from .._sql.list_front import ListFront
from .._sql.request_lines import RequestLines
from .._sql.rows import COLUMNS, SELECT, Cursor, Rows
from .._sql.small_tables import SELECT_REQUESTS, SETTINGS
from .._sql.tables import COUNTS, DUE, SPECIAL, SUSPECTED, SqlTables
from .batch import SUMMED_EVERY

IMAGE_ROWS: Final = 2_000
"""How many jobs of all ready lists are read at once, besides the first of each."""

ANSWERED: Final = "SELECT ticket, until, data FROM main.answers WHERE ticket = ANY(%s)"
_JOINED_COLUMNS: Final = ", ".join(f"j.{column}" for column in COLUMNS)
_HEADS: Final = (
    f"SELECT {_JOINED_COLUMNS} FROM ({{}}) s CROSS JOIN LATERAL"
    " (SELECT * FROM main.jobs WHERE jobs.[session] = s.session"
    f" AND place IS NOT NULL ORDER BY place LIMIT {QUEUE_FRONT}) j"
)
_HEADS_OF: Final = _HEADS.format("SELECT DISTINCT unnest(%s::text[]) AS session")
_HEADS_BEHIND: Final = _HEADS.format(
    "SELECT DISTINCT session FROM main.jobs WHERE id = ANY(%s) AND session IS NOT NULL"
)
# what would not fit into a claim is not read; the length of a text is known without reading it
_FRONT: Final = (
    "(SELECT * FROM (SELECT f.*, sum(octet_length(payload) + coalesce(octet_length(checkpoint), 0))"
    " OVER (ORDER BY ready ROWS UNBOUNDED PRECEDING)"
    " - octet_length(payload) - coalesce(octet_length(checkpoint), 0) AS before FROM ("
    "SELECT * FROM main.jobs WHERE jobs.[lane] = c.lane AND jobs.priority = c.priority"
    " AND jobs.[name] = c.name AND jobs.[ring] = c.ring AND ready IS NOT NULL"
    " AND ready > c.after AND shelf = 0"
    " ORDER BY ready LIMIT {}) f) g"
    f" WHERE g.before < {STEP_BYTES})"
)
LANE_NUMBERS: Final = (
    "(SELECT lane, state, name, sum(n)::bigint AS n FROM main.counts WHERE batch >="
    f" (SELECT max(batch) FROM main.deltas) / {SUMMED_EVERY} * {SUMMED_EVERY}"
    " GROUP BY lane, state, name) AS counts"
)
_READY_LISTS: Final = (
    f"{LANE_NUMBERS}, (VALUES (1), (0), (-1)) p(priority)"
    " WHERE state = 'waiting' AND n > 0 AND name = ANY(%(names)s)"
)
_OF_ALL_LISTS: Final = (
    f"least(%(limit)s, 1 + %(image)s / (SELECT greatest(1, count(*)) FROM {_READY_LISTS}))"
)
_FRONTS: Final = (
    f"SELECT {_JOINED_COLUMNS} FROM (SELECT counts.lane, counts.name, p.priority, '' AS ring,"
    f" -9223372036854775808 AS after FROM {_READY_LISTS}) c"
    f" CROSS JOIN LATERAL {_FRONT.format(_OF_ALL_LISTS)} j ORDER BY j.ready"
)
_MORE: Final = (
    f"SELECT {_JOINED_COLUMNS} FROM (SELECT *, %s::bigint AS after FROM unnest(%s::text[],"
    " %s::int[], %s::text[], %s::text[]) AS l(lane, priority, name, ring)) c"
    f" CROSS JOIN LATERAL {_FRONT.format('%s')} j"
)


class ReadAhead(SqlTables):
    """The part of `PostgresTables` that looks up.

    Args:
      names: the handlers for which the instance claims jobs.
    """

    _queue_front = QUEUE_FRONT
    _list_front = LIST_FRONT
    _joined_ids = "string_agg(id::text, ',')"
    _numbers = LANE_NUMBERS

    def __init__(self, rows: Rows, names: Collection[str]) -> None:
        super().__init__(rows)
        self._names: Final = sorted(names)
        self.reads_homes = False  # whether claims ask for the homes of the jobs on ready lists
        self._asked = Asked(())
        self._answers: Final[dict[str, tuple[float, str]]] = {}  # {ticket: (until, JSON)}
        self._requests = RequestLines()

    def _forget(self) -> None:
        super()._forget()
        self._asked = Asked(())
        self._requests = RequestLines()

    def _wanted(self, lookups: Sequence[Lookups], tickets: Sequence[str], *, fresh: bool) -> Asked:
        """Return what acts look up by name and is not in the cache.

        Args:
          fresh: whether the cache is to be dropped.
        """
        queues = self._cache.queues
        asked = Asked(tickets)
        for lookup in lookups:
            for job in lookup.batch:
                if job.key is not None:
                    asked.keys.add(job.key)
                if job.session is not None and (fresh or job.session not in queues):
                    asked.sessions.add(job.session)
            for id in lookup.ids:
                run = None if fresh else self._rows.known(id)
                if run is None:
                    asked.ids.add(id)
                elif run.session is not None and run.session not in queues:
                    asked.sessions.add(run.session)
        return asked

    def _ask(self, asked: Asked) -> None:
        """Ask for it, without waiting for the answers."""
        execute = self._execute
        if asked.tickets:
            asked.answers = execute(ANSWERED, (asked.tickets,))
        if asked.ids:
            asked.jobs.append(execute(f"{SELECT}id = ANY(%s)", (list(asked.ids),)))
            asked.heads.append(execute(_HEADS_BEHIND, (list(asked.ids),)))
        if asked.keys:
            asked.jobs.append(execute(f"{SELECT}key = ANY(%s)", (list(asked.keys),)))
        if asked.sessions:
            asked.heads.append(execute(_HEADS_OF, (list(asked.sessions),)))

    def _read(self, asked: Asked) -> None:
        """Read the answers to `_ask` into the cache."""
        self._answers.clear()
        self._read_answers(asked.tickets, asked.answers or ())
        self._asked = asked
        for cursor in asked.jobs:
            asked.records += self._rows.records(cursor)
        asked.sessions |= {
            job.session for job in asked.records if job.id in asked.ids and job.session is not None
        }
        fronts: dict[str, list[JobRecord]] = {session: [] for session in asked.sessions}
        for cursor in asked.heads:
            found: dict[str, list[JobRecord]] = {}
            for job in self._rows.records(cursor):
                assert job.session is not None
                found.setdefault(job.session, []).append(job)
            fronts.update(found)
        for session, jobs in fronts.items():
            front = self._cache.queues[session] = ListFront(place_of, self._queue_front)
            front.extend(jobs, complete=len(jobs) < QUEUE_FRONT)

    def _ask_image(self, room: int) -> tuple[Any, ...]:
        """Ask for what a claim of ``room`` jobs looks at; return what `_read_image` takes."""
        execute = self._execute
        limit = min(room + 1, LIST_FRONT)  # one more, so that it is known what follows
        fronts = None
        if room and self._names:
            of = {"names": self._names, "limit": limit, "image": IMAGE_ROWS}
            fronts = execute(_FRONTS, of)
        return (
            execute(SETTINGS),
            execute(COUNTS.format(LANE_NUMBERS)),
            execute(self._sets()),
            execute(SELECT + SPECIAL),
            execute(SUSPECTED),
            execute(DUE),
            execute(SELECT_REQUESTS + "true"),
            fronts,
            limit,
        )

    def _read_image(
        self,
        settings: Any,
        counts: Any,
        sets: Any,
        special: Any,
        suspected: Any,
        due: Any,
        requests: Any,
        fronts: Any,
        limit: int,
    ) -> None:
        """Read the answers to `_ask_image` into the cache, which is empty."""
        cache = self._cache
        self._read_settings(settings.fetchall())
        cache.counts = Counts(((lane, state, name), n) for lane, state, name, n in counts)
        cache.runs = Running(sets.fetchall(), self._rows.records(special.fetchall()))
        cache.suspected = {lane for (lane,) in suspected}
        self._read_parked_until(due)
        self._requests = RequestLines(requests)
        if fronts is None:
            return
        lists: dict[tuple[str, int, str, str], list[JobRecord]] = {
            (lane, priority, name, ""): []
            for lane, names in cache.counts.waiting.items()
            for name in names.intersection(self._names)
            for priority in PRIORITIES
        }
        limit = min(limit, 1 + IMAGE_ROWS // max(1, len(lists)))  # as in `_OF_ALL_LISTS`
        for job in self._rows.records(fronts.fetchall()):
            lists[job.lane, job.priority, job.name, job.ring].append(job)
        for key, jobs in lists.items():
            front = cache.lists[key] = ListFront(ready_of, LIST_FRONT)
            front.extend(jobs, complete=self._is_all(jobs, limit))

    def _read_answers(self, tickets: Iterable[str], rows: Iterable[Any]) -> None:
        self._answers.update(dict.fromkeys(tickets, (-math.inf, "null")))
        self._answers.update((ticket, (until, data)) for ticket, until, data in rows)

    # ---- jobs

    def keyed(self, key: str) -> JobRecord | None:
        new = self._rows.new_with(key)
        if new is not None:
            return new
        if key not in self._asked.keys:
            return super().keyed(key)
        for job in self._asked.records:
            if job.key == key and self._rows.known(job.id) is job:  # it is not deleted
                return job
        return None

    # ---- requests for locks and quotas

    def request(self, id: int) -> Request | None:
        return self._requests.get(id)

    def first_request(self, line: str, served: bool) -> Request | None:
        return self._requests.first(line, served)

    def requests_of(self, instance: str | None) -> list[Request]:
        return [one for one in self._requests.all() if instance in (None, one.instance)]

    # ---- ready lists

    def ready(
        self, lane: str, priority: int, name: str, after: int | None, limit: int, ring: str = ""
    ) -> list[JobRecord]:
        jobs = super().ready(lane, priority, name, after, limit, ring)
        if self.reads_homes:
            tickets = [ticket_of(job.session) for job in jobs if job.session is not None]
            if tickets:
                self._read_answers(tickets, self._execute(ANSWERED, (tickets,)))
        return jobs

    def _ready_behind(self, keys: Sequence[ListKey], after: int, limit: int) -> Iterable[JobRecord]:
        rows = self._execute(_MORE, (after, *map(list, zip(*keys, strict=True)), limit))
        return self._rows.records(rows)

    def _is_all(self, jobs: Sequence[JobRecord], limit: int) -> bool:
        return len(jobs) < limit and sum(map(bytes_of, jobs)) < STEP_BYTES


@final
class Asked:
    """What a batch looks up by name, and the records that it got; of a guess, none."""

    def __init__(self, tickets: Sequence[str]) -> None:
        self.tickets: Final = tickets
        self.ids: set[int] = set()
        self.keys: set[str] = set()
        self.sessions: set[str] = set()
        self.answers: Cursor | None = None
        self.jobs: list[Cursor] = []
        self.heads: list[Cursor] = []
        self.records: list[JobRecord] = []

    @property
    def names_nothing(self) -> bool:
        """Whether nothing is looked up."""
        return not (self.tickets or self.ids or self.keys or self.sessions)
