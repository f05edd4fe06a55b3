"""`PostgresTables`: each lookup of `Tables`, from the cache or as one SQL statement.

Theory of operation

A statement that waits for its answer costs a trip over the network, so a transaction makes two or
three trips, however many acts it has:

1. It locks the row of `meta`, and asks for what the acts will look up by name (`Hints`).
2. If another process has changed the tables since the last transaction (`meta.version`), it drops
   the cache and asks for all that a claim looks at: the settings, the counts, the sets of running
   jobs, the fronts of the ready lists.
3. It writes all changes and commits.

A lookup that finds nothing in memory is a statement of its own, after the unwritten changes are
written. So the first two steps only save trips: without them every answer would be the same.

Numbers (ids, places, fences) are greater than the store's time in microseconds. So they never come
twice, also if the server was restored from a backup, or a standby that lacks the last moments has
become the primary. They stay below 2**53, which JSON and JavaScript keep exact, until 2255.

The store's time is its last time, and what has passed on the server since (`PostgresTables._time`).
If the server's clock is set back, the store's time goes on from `meta.clock`. If it is set ahead,
an instance that has been here before sees that less has passed on its own clock. So a clock that is
set moves what waits for a time by no more than the time since the last act. A ``run_at`` is Unix
time: the jobs that have one follow the server's clock.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias, final

import psycopg

from ..._config.names import DEFAULT_LANE
from .._contract.protocol import STEP_BYTES
from .._contract.records import Ended, Selection, SubmittedJob
from .._contract.state import DEAD, ENDED, FAILED, RUNNING
from .._options.names import LONGEST_NAME
from .._options.submission import check_submitted
from .._rules.claims import PRIORITIES, bytes_of
from .._rules.engine_store import Hints
from .._rules.job_record import WANTS_SLOT, JobRecord
from .._rules.rates import ONE_REQUEST
from .._tables.cache import NEVER, PAYLOADS, QUEUES_KEPT, Cache, place_of, ready_of
from .._tables.counts import Counts
from .._tables.list_front import ListFront
from .rows import SELECTED, Rows, Values
from .running import SETS, SPECIAL, Running
from .small_tables import SETTINGS, SmallTables

QUEUE_FRONT: Final = 4
"""How many jobs of a session's queue are read at once."""
LIST_FRONT: Final = 128
"""How many jobs of a ready list are read at once, at most."""
IMAGE: Final = 2_000
"""How many jobs of all ready lists are read at once, besides the first of each."""
TAKEN_IN_AT_ONCE: Final = 500
"""How many submissions one transaction takes in at most."""
FORGET_EVERY: Final = 1.0
"""Seconds between two looks for ended jobs to forget."""
NOTIFIED: Final = 300
"""How many ended jobs a notice names; with more it names none, and every waiter looks."""

OUT_OF_ORDER: Final = 60.0
"""Seconds by which the numbers may be ahead of the time, after very many in a second."""
AHEAD: Final = 1.0
"""Seconds by which the server's clock must be ahead of an instance's to have been set."""
READ_AT_ONCE: Final = 500
"""How many jobs are in memory while all are read."""

_LETTERS: Final = frozenset({DEAD, FAILED})
_COUNTS: Final = "SELECT lane, state, name, n FROM @counts WHERE n <> 0"
_BY_ID: Final = f"SELECT {SELECTED} FROM @jobs j WHERE j.id = ANY(%s)"
_BY_KEY: Final = f"SELECT {SELECTED} FROM @jobs j WHERE j.key = ANY(%s)"
_LIVE: Final = "j.state IN ('waiting', 'parked', 'running', 'dead')"
_LOCK: Final = "SELECT version, notices, sequence, clock, ahead FROM @meta FOR UPDATE"
_LOOK: Final = "SELECT version, notices, sequence, clock, ahead FROM @meta"
_TIME: Final = (
    "SELECT @server_time(), (SELECT count(*) FROM @listeners WHERE id <> %s"
    " AND until > @server_time())"
)
_TAKE_IN: Final = (
    "DELETE FROM @submissions WHERE id IN (SELECT id FROM @submissions ORDER BY id LIMIT %s)"
    " RETURNING id, name, lane, session, priority, payload, key, timeout, retry, cost, due,"
    " delay"
)
_HEADS: Final = (
    f"SELECT {SELECTED} FROM ({{}}) s CROSS JOIN LATERAL"
    " (SELECT * FROM @jobs WHERE md5(jobs.session) = md5(s.session) AND jobs.session = s.session"
    f" AND place IS NOT NULL ORDER BY place LIMIT {QUEUE_FRONT}) j"
)
_HEADS_OF: Final = _HEADS.format("SELECT DISTINCT unnest(%s::text[]) AS session")
_HEADS_BEHIND: Final = _HEADS.format(
    "SELECT DISTINCT session FROM @jobs WHERE id = ANY(%s) AND session IS NOT NULL"
)
# what would not fit into a claim is not read; the length of a text is known without reading it
_FRONT: Final = (
    "(SELECT * FROM (SELECT f.*, sum(octet_length(payload) + coalesce(octet_length(checkpoint), 0))"
    " OVER (ORDER BY ready ROWS UNBOUNDED PRECEDING)"
    " - octet_length(payload) - coalesce(octet_length(checkpoint), 0) AS before FROM ("
    "SELECT * FROM @jobs WHERE md5(jobs.lane) = md5(c.lane) AND jobs.priority = c.priority"
    " AND md5(jobs.name) = md5(c.name) AND jobs.lane = c.lane AND jobs.name = c.name"
    " AND ready IS NOT NULL AND ready > c.after AND shelf = 0"
    " ORDER BY ready LIMIT {}) f) g"
    f" WHERE g.before < {STEP_BYTES})"
)
_LISTS: Final = (
    "@counts, (VALUES (1), (0), (-1)) p(priority)"
    " WHERE state = 'waiting' AND n > 0 AND name = ANY(%(names)s)"
)
_OF_ALL_LISTS: Final = (
    f"least(%(limit)s, 1 + %(image)s / (SELECT greatest(1, count(*)) FROM {_LISTS}))"
)
_FRONTS: Final = (
    f"SELECT {SELECTED} FROM (SELECT counts.lane, counts.name, p.priority,"
    f" -9223372036854775808 AS after FROM {_LISTS}) c"
    f" CROSS JOIN LATERAL {_FRONT.format(_OF_ALL_LISTS)} j ORDER BY j.ready"
)
_MORE: Final = (
    f"SELECT {SELECTED} FROM (SELECT %(lane)s::text AS lane, %(name)s::text AS name,"
    " %(priority)s::int AS priority, %(after)s::bigint AS after) c"
    f" CROSS JOIN LATERAL {_FRONT.format('%(limit)s')} j ORDER BY j.ready"
)
_DUE: Final = "SELECT min(due) FROM @jobs WHERE state = 'parked'"
_FOLLOW: Final = (
    "UPDATE @jobs SET due = run_at + %s"
    " WHERE state = 'parked' AND why = 'delay' AND run_at IS NOT NULL"
)
_FORGET: Final = (
    "DELETE FROM @jobs WHERE id IN (SELECT id FROM @jobs"
    " WHERE state IN ('succeeded', 'failed', 'cancelled') AND due <= %s ORDER BY due LIMIT %s)"
)

Given: TypeAlias = tuple[SubmittedJob, float, Exception | None]
"""A submission, when it is due, and why it cannot be accepted; or None."""


@final
class PostgresTables(SmallTables):
    """An implementation of `Tables` over one connection, with a cache.

    Args:
      named: puts the schema into a statement; see `schema.naming`.
      names: the handlers for which the instance claims jobs.
      clock: gives the seconds of a clock of this machine that cannot be set.
    """

    def __init__(
        self,
        connection: psycopg.Connection,
        named: Callable[[str], bytes],
        names: Collection[str],
        clock: Callable[[], float],
    ) -> None:
        self._connection = connection
        self._named: Final = named
        super().__init__(self._run)
        self._names: Final = sorted(names)
        self._rows: Final = Rows(self._run)
        self._cache = Cache()
        self._running: Running | None = None
        self._version: int | None = None  # the version of the tables that is cached; or None
        self._number = self._notices = 0
        self._clock = self._ahead = 0.0
        self._moved = False  # whether the jobs with a `run_at` have followed the server's clock
        self._here: Final = clock
        self._at: float | None = None  # no time of the store is above this and that of `_here`
        self._listeners = 0  # other stores that listen
        self._forget_before: tuple[float, int] | None = None
        self._looked_at = -math.inf  # when ended jobs were forgotten last
        self._writes_before = 0

    def _run(self, statement: str, values: Values = ()) -> psycopg.Cursor[Any]:
        return self._connection.execute(self._named(statement), values)

    # ---- transactions

    def use(self, connection: psycopg.Connection) -> None:
        """Use another connection from now on: the former was lost."""
        if connection is not self._connection:
            self._connection = connection
            self._forget()

    def begin(
        self,
        hints: Sequence[Hints] = (),
        tickets: Sequence[str] = (),
        *,
        write: bool,
        me: str = "",
        take_in: bool = False,
    ) -> tuple[float, list[Given]]:
        """Begin a transaction; return the store's time, and submissions that are to be taken in.

        A transaction that does not write sees one snapshot, and holds up no other.

        Args:
          hints: what the acts of the transaction will look up.
          tickets: the tickets of these acts.
          me: the name of this instance among the listeners.
          take_in: whether to remove submissions from their table, and return them.
        """
        execute, began = self._run, self._here()
        with self._connection.pipeline():
            if write:
                execute("BEGIN")
            else:
                execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            meta = execute(_LOCK if write else _LOOK)
            time = execute(_TIME, (me,))
            given = execute(_TAKE_IN, (TAKEN_IN_AT_ONCE,)) if take_in else None
            asked = self._ask(hints, tickets, fresh=False)
        version, self._notices, sequence, clock, ahead = _row(meta)
        server, self._listeners = _row(time)
        self._ahead = ahead
        now = self._time(server, clock, began)
        moved = 0
        if write and self._ahead != ahead:
            moved = execute(_FOLLOW, (self._ahead,)).rowcount
        if version != self._version or moved:
            self._forget()
            with self._connection.pipeline():
                asked = self._ask(hints, tickets, fresh=True)
                image = self._ask_image(max((hint.room for hint in hints), default=0))
            self._read_image(*image)
            self._version = version
        self._read(asked)
        self._clock = now
        self._number = max(sequence, int(now * 1_000_000))
        self._writes_before = self.writes
        taken = [] if given is None else sorted(given.fetchall())
        self._small_writes += len(taken) + moved
        self._moved = moved > 0
        return now, [_given(row, now) for row in taken]

    def _time(self, server: float, clock: float, began: float) -> float:
        """Return the store's time, and note by how much it is ahead of the server's clock.

        Args:
          server: the time of the server's clock, which was read after ``began``.
          clock: the last time of the store.
        """
        now, here = server + self._ahead, self._here()
        if self._at is not None and now > here + self._at + AHEAD:  # it was set ahead
            now = here + self._at
        now = max(now, clock)  # or it was set back
        if now != server + self._ahead:
            self._ahead = now - server
        self._at = now - began
        return now

    def _ask(self, hints: Sequence[Hints], tickets: Sequence[str], *, fresh: bool) -> _Asked:
        """Ask for what acts look up by name, without waiting for the answers.

        Args:
          fresh: whether to ask for what is in the cache, too.
        """
        execute, queues = self._run, self._cache.queues
        asked = _Asked(tickets)
        unknown: list[int] = []
        for hint in hints:
            for job in hint.batch:
                if job.key is not None:
                    asked.keys.add(job.key)
                if job.session is not None and (fresh or job.session not in queues):
                    asked.sessions.add(job.session)
            for id in hint.ids:
                run = None if fresh else self._rows.known(id)
                if run is None:
                    unknown.append(id)
                elif run.session is not None and run.session not in queues:
                    asked.sessions.add(run.session)
        asked.ids.update(unknown)
        if asked.tickets:
            statement = "SELECT ticket, until, told FROM @answers WHERE ticket = ANY(%s)"
            asked.answers = execute(statement, (asked.tickets,))
        if unknown:
            asked.jobs.append(execute(_BY_ID, (unknown,)))
            asked.heads.append(execute(_HEADS_BEHIND, (unknown,)))
        if asked.keys:
            asked.jobs.append(execute(_BY_KEY, (list(asked.keys),)))
        if asked.sessions:
            asked.heads.append(execute(_HEADS_OF, (list(asked.sessions),)))
        return asked

    def _read(self, asked: _Asked) -> None:
        """Read the answers to `_ask` into the cache."""
        self._read_answers(asked.tickets, () if asked.answers is None else asked.answers)
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
            front = self._cache.queues[session] = ListFront(place_of, QUEUE_FRONT)
            front.extend(jobs, complete=len(jobs) < QUEUE_FRONT)

    def _ask_image(self, room: int) -> tuple[Any, ...]:
        execute = self._run
        limit = min(room + 1, LIST_FRONT)  # one more, so that it is known what follows
        fronts = None
        if room and self._names:
            of = {"names": self._names, "limit": limit, "image": IMAGE}
            fronts = execute(_FRONTS, of)
        return (
            execute(SETTINGS),
            execute(_COUNTS),
            execute(SETS),
            execute(f"SELECT {SELECTED} FROM @jobs j WHERE {SPECIAL}"),
            execute(_DUE),
            fronts,
            limit,
        )

    def _read_image(
        self, settings: Any, counts: Any, sets: Any, special: Any, due: Any, fronts: Any, limit: int
    ) -> None:
        cache = self._cache
        self._read_settings(settings.fetchall())
        cache.counts = Counts(((lane, state, name), n) for lane, state, name, n in counts)
        self._running = Running(sets.fetchall(), self._rows.records(special.fetchall()))
        (parked,) = _row(due)
        cache.parked_until = NEVER if parked is None else parked
        if fronts is None:
            return
        lists: dict[tuple[str, int, str], list[JobRecord]] = {
            (lane, priority, name): []
            for lane, name in cache.counts.waiting
            if name in self._names
            for priority in PRIORITIES
        }
        limit = min(limit, 1 + IMAGE // max(1, len(lists)))  # as in `_OF_ALL_LISTS`
        for job in self._rows.records(fronts.fetchall()):
            lists[job.lane, job.priority, job.name].append(job)
        for key, jobs in lists.items():
            front = cache.lists[key] = ListFront(ready_of, LIST_FRONT)
            front.extend(jobs, complete=_is_all(jobs, limit))

    def commit(
        self, channel: str, me: str, look: bool, ended: Sequence[tuple[int, Ended | None]]
    ) -> bool:
        """Write the changes, and commit; its changes are on the disk when this returns.

        Return whether the next step may find more: ended jobs to forget, or jobs that are due now.

        Args:
          look: whether workers of other instances may find a job to claim.
          ended: the jobs that have ended, for tasks of other processes.
        """
        changed = self.writes != self._writes_before
        look = look or self._moved
        noticed = changed and (look or bool(ended))
        forget = self._forget_before
        self._forget_before = None
        with self._connection.pipeline():
            gone = None if forget is None else self._execute(_FORGET, forget)
            self._flush()
            if changed:
                self._execute(
                    "UPDATE @meta SET version = version + 1, notices = %s, sequence = %s,"
                    " clock = %s, ahead = %s",
                    (self._notices + noticed, self._number, self._clock, self._ahead),
                )
            if noticed and self._listeners:
                what = _notice(me, look, [id for id, _ in ended])
                self._execute("SELECT pg_notify(%s, %s)", (channel, what))
            self._execute("COMMIT")
        if changed and self._version is not None:
            self._version += 1
            self._notices += noticed
        more = gone is not None and forget is not None and gone.rowcount == forget[1]
        if more:
            self._looked_at = -math.inf
        self._rows.end()
        if len(self._cache.queues) > QUEUES_KEPT or self._rows.payloads > PAYLOADS:
            self._cache.forget_fronts()
            self._rows.payloads = 0
        return more or self._moved

    def rollback(self) -> None:
        """Undo the transaction."""
        self._forget()
        self._connection.rollback()

    def _forget(self) -> None:
        self._version = None
        self._rows.forget()
        self._cache = Cache()
        self._running = None
        self._forget_before = None
        self._asked = _Asked(())
        self._forget_small()

    def _flush(self) -> None:
        self._rows.flush()
        self._flush_small()
        self._cache.count()
        uncounted = [(*sums, n) for sums, n in self._cache.uncounted.items() if n]
        if uncounted:
            self._execute(
                "INSERT INTO @counts AS c"
                " SELECT * FROM unnest(%s::text[], %s::text[], %s::text[], %s::bigint[])"
                " ON CONFLICT (md5(lane), state, md5(name)) DO UPDATE SET n = c.n + excluded.n",
                [list(column) for column in zip(*uncounted, strict=True)],
            )
        self._cache.uncounted.clear()

    @property
    def writes(self) -> int:
        """The number of changes so far: a caller compares it with an earlier value."""
        return self._small_writes + self._rows.writes

    # ---- jobs

    def insert(self, job: JobRecord) -> None:
        self._rows.insert(job)
        self._cache.appeared(job)

    def update(self, job: JobRecord, **changes: Any) -> None:
        before = job.state
        for column, value in changes.items():
            setattr(job, column, value)
        self._rows.change(job, changes)
        cache = self._cache
        if "state" in changes:
            cache.changed_state(job, before)
        if self._running is not None and RUNNING in (before, job.state):
            if job.state is RUNNING:
                self._running.put(job)
            else:
                self._running.drop(job)
        if "place" in changes:
            cache.changed_place(job)
        if "ready" in changes or "shelf" in changes:
            cache.changed_ready(job)

    def delete(self, job: JobRecord) -> None:
        self._rows.delete(job)
        self._cache.disappeared(job)

    def get(self, id: int) -> JobRecord | None:
        return self._rows.get(id)

    def keyed(self, key: str) -> JobRecord | None:
        new = self._rows.new_with(key)
        if new is not None:
            return new
        if key not in self._asked.keys:
            return self._rows.one("j.key = %s", (key,))
        for job in self._asked.records:
            if job.key == key and self._rows.known(job.id) is job:  # it is not deleted
                return job
        return None

    def next_number(self) -> int:
        self._number += 1
        return self._number

    def last_number(self) -> int:
        return self._number

    # ---- queues and ready lists

    def head(self, session: str) -> JobRecord | None:
        front = self._cache.queues.get(session)
        if front is None:
            front = self._cache.queues[session] = ListFront(place_of, QUEUE_FRONT)
        while (head := front.head()) is None and not front.complete:
            if session in self._rows.touched:
                self._flush()
            jobs = self._rows.select(
                "md5(j.session) = md5(%(session)s) AND j.session = %(session)s"
                " AND j.place > %(after)s AND j.place IS NOT NULL ORDER BY j.place LIMIT %(limit)s",
                {"session": session, "after": _last_of(front), "limit": QUEUE_FRONT},
            )
            front.extend(jobs, complete=len(jobs) < QUEUE_FRONT)
        return head

    def ready(
        self, lane: str, priority: int, name: str, after: int | None, limit: int
    ) -> list[JobRecord]:
        known = self._cache.lists.get((lane, priority, name))
        if known is None:
            known = self._cache.lists[lane, priority, name] = ListFront(ready_of, LIST_FRONT)
        # fewer than are asked for will do: the caller asks again
        while (found := known.first(after, limit) or known.first(after, 1)) is None:
            self._flush()
            of = {"lane": lane, "priority": priority, "name": name}
            rows = self._execute(_MORE, {**of, "after": _last_of(known), "limit": LIST_FRONT})
            jobs = list(self._rows.records(rows))
            known.extend(jobs, complete=_is_all(jobs, LIST_FRONT))
        return found

    def has_waiting(self, lane: str, name: str) -> bool:
        return (lane, name) in self._counts().waiting

    def waiting_lanes(self, names: Collection[str]) -> Collection[str]:
        return {lane for lane, name in self._counts().waiting if name in names}

    # ---- times

    def parked_due(self, now: float, limit: int, session: str | None = None) -> list[JobRecord]:
        if self._parked_until() > now:
            return []
        self._flush()
        if session is not None:
            return self._rows.select(
                "md5(j.session) = md5(%(session)s) AND j.session = %(session)s"
                " AND j.state = 'parked' AND j.place IS NULL AND j.due <= %(now)s"
                " ORDER BY j.due, j.id LIMIT %(limit)s",
                {"session": session, "now": now, "limit": limit},
            )
        self._cache.parked_until = None
        return self._rows.select(
            "j.state = 'parked' AND j.due <= %s ORDER BY j.due, j.id LIMIT %s", (now, limit)
        )

    def _parked_until(self) -> float:
        until = self._cache.parked_until
        if until is None:
            self._flush()
            (due,) = _row(self._execute(_DUE))
            until = self._cache.parked_until = NEVER if due is None else due
        return until

    def forget_due(self, now: float, limit: int) -> int:
        """Forget ended jobs at the end of the transaction; nothing that the rules read has them."""
        if self._looked_at + FORGET_EVERY <= now:
            self._looked_at = now
            self._forget_before = now, limit
        return 0

    def next_due(self) -> float | None:
        until = min([self._parked_until(), *self.pauses().values()])
        return until if until < NEVER else None

    def next_over(self) -> float | None:
        return None  # the slow look of the listener finds it, so it costs a step no trip

    # ---- runs

    def _runs(self) -> Running:
        assert self._running is not None  # each transaction begins with it
        return self._running

    def running(self, instance: str) -> list[JobRecord]:
        self._flush()
        return self._rows.select("j.state = 'running' AND j.instance = %s", (instance,))

    def beside(self, instance: str) -> tuple[int, list[JobRecord]]:
        ids = self._runs().beside[instance]
        special = self._runs().special
        return len(ids), [job for id, job in special.items() if job.company and id in ids]

    def cancelled_running(self, instance: str) -> list[JobRecord]:
        special = self._runs().special.values()
        return [job for job in special if job.cancel is not None and job.instance == instance]

    def slots_used(self, lane: str) -> int:
        return len(self._runs().holding.get(lane, ()))

    def running_lanes(self) -> Collection[str]:
        runs = self._runs()
        wanting = (job.lane for job in runs.special.values() if job.lent == WANTS_SLOT)
        return {*(lane for lane, ids in runs.holding.items() if ids), *wanting}

    def wanting(self, lane: str) -> list[JobRecord]:
        special = self._runs().special.values()
        wanting = [job for job in special if job.lent == WANTS_SLOT and job.lane == lane]
        return sorted(wanting, key=lambda job: job.fence)

    # ---- selections

    def clearable(
        self, lane: str | None, session: str | None, before: int, limit: int
    ) -> list[JobRecord]:
        self._flush()
        of = {"lane": lane, "session": session, "before": before, "limit": limit}
        if session is None:
            return self._rows.select(
                "j.state IN ('waiting', 'parked') AND j.lane = %(lane)s AND j.id < %(before)s"
                " ORDER BY j.id DESC LIMIT %(limit)s",
                of,
            )
        of_session = "md5(j.session) = md5(%(session)s) AND j.session = %(session)s"
        queued = self._rows.select(
            f"{of_session} AND j.place IS NOT NULL AND j.state IN ('waiting', 'parked')"
            " AND j.id < %(before)s ORDER BY j.place DESC LIMIT %(limit)s",
            of,
        )
        delayed = self._rows.select(
            f"{of_session} AND j.place IS NULL AND j.state = 'parked' AND j.id < %(before)s"
            " LIMIT %(limit)s",
            {**of, "limit": limit - len(queued)},
        )
        return queued + delayed

    def select(self, of: Selection, after: int, limit: int, now: float) -> list[JobRecord]:
        self._flush()
        # written out, so that the server can use the index of one state
        named = ", ".join(f"'{state.value}'" for state in of.states)
        conditions = [f"j.state IN ({named})", "j.id > %(after)s"] if of.states else ["false"]
        values = {
            "id": of.id,
            "lane": of.lane,
            "session": of.session,
            "name": of.name,
            "error": of.error,
        }
        for column, value in values.items():
            if value is not None:
                conditions.append(f"j.{column} = %({column})s")
                if column in ("name", "error"):
                    conditions.append(f"md5(j.{column}) = md5(%({column})s)")
        # an id is greater than the microseconds of the time of its submission, by little
        if of.since is not None:
            conditions.append("j.submitted_at >= %(since)s")
            after = max(after, _number_at(of.since) - 1)
        if of.until is not None:
            conditions.append("j.submitted_at < %(until)s AND j.id < %(before)s")
        if of.states <= _LETTERS:
            conditions.append("j.error IS NOT NULL")
        if not ENDED.isdisjoint(of.states):
            conditions.append(f"(j.due > %(now)s OR {_LIVE})")
        return self._rows.select(
            f"{' AND '.join(conditions)} ORDER BY j.id LIMIT %(limit)s",
            {
                **values,
                "since": of.since,
                "until": of.until,
                "before": None if of.until is None else _number_at(of.until + OUT_OF_ORDER),
                "after": after,
                "now": now,
                "limit": None if limit < 0 else limit,
            },
        )

    def all_live(self) -> Iterator[JobRecord]:
        self._flush()
        # on the server, since they may be more than fit into memory
        with self._connection.cursor(name="all_live") as cursor:
            cursor.itersize = READ_AT_ONCE
            statement = (
                f"SELECT {SELECTED} FROM @jobs j WHERE {_LIVE}"
                " ORDER BY j.session NULLS FIRST, j.place NULLS FIRST, j.id"
            )
            cursor.execute(self._named(statement))
            yield from self._rows.records(cursor)

    # ---- sums

    def waiting_for(self, lane: str) -> int:
        return self._counts().bound.get(lane, 0)

    def counts(self) -> Mapping[tuple[str, str, str], int]:
        return self._counts().all()

    def _counts(self) -> Counts:
        self._cache.count()
        counts = self._cache.counts
        assert counts is not None  # each transaction begins with it
        return counts

    def sessions(self) -> int:
        self._flush()
        statement = "SELECT count(DISTINCT session) FROM @jobs WHERE place IS NOT NULL"
        return int(_row(self._execute(statement))[0])

    def sessions_of_lanes(self) -> Mapping[str, int]:
        self._flush()
        return dict(
            self._execute(
                "SELECT lane, count(DISTINCT session) FROM @jobs WHERE place IS NOT NULL GROUP BY 1"
            )
        )

    # ---- consistency

    def forget_unused(self, now: float) -> None:
        self._flush()
        self._small_writes += 1
        self._counts().forget_zeros()
        self._execute("DELETE FROM @counts WHERE n = 0")
        super().forget_unused(now)

    def inspect(self) -> list[str]:
        self._flush()
        problems = []
        if self._true_counts() != self._live_counts():
            problems.append("the stored counts of jobs are wrong")
        keys = "SELECT key FROM @jobs WHERE key IS NOT NULL GROUP BY 1 HAVING count(*) > 1 LIMIT 20"
        problems += [f"several jobs have the key {key!r}" for (key,) in self._execute(keys)]
        return problems

    def recount(self) -> bool:
        self._flush()
        true = self._true_counts()
        if true == self._live_counts():
            return False
        self._cache.counts = Counts(true.items())
        self._cache.uncounted.update(true)
        self._small_writes += 1
        self._execute("DELETE FROM @counts")
        return True

    def _true_counts(self) -> dict[tuple[str, str, str], int]:
        rows = self._execute(
            f"SELECT lane, state, name, count(*) FROM @jobs j WHERE {_LIVE} GROUP BY 1, 2, 3"
        )
        return {(lane, state, name): n for lane, state, name, n in rows}

    def _live_counts(self) -> dict[tuple[str, str, str], int]:
        return {(lane, state, name): n for lane, state, name, n in self._execute(_COUNTS)}


@final
class _Asked:
    """What a transaction has asked for by name, and the records that it got."""

    def __init__(self, tickets: Sequence[str]) -> None:
        self.tickets: Final = tickets
        self.ids: set[int] = set()
        self.keys: set[str] = set()
        self.sessions: set[str] = set()
        self.answers: psycopg.Cursor[Any] | None = None
        self.jobs: list[psycopg.Cursor[Any]] = []
        self.heads: list[psycopg.Cursor[Any]] = []
        self.records: list[JobRecord] = []


def _row(cursor: psycopg.Cursor[Any]) -> tuple[Any, ...]:
    row: tuple[Any, ...] | None = cursor.fetchone()
    assert row is not None
    return row


def _is_all(jobs: Sequence[JobRecord], limit: int) -> bool:
    """Whether a query for the front of a ready list has returned the whole list."""
    return len(jobs) < limit and sum(map(bytes_of, jobs)) < STEP_BYTES


def _last_of(front: ListFront) -> int:
    last = front.last()
    return -(2**63) if last is None else last


def _number_at(time: float) -> int:
    """Return the number that a store gives out at a time, within the range of numbers."""
    return int(max(0.0, min(time, 9e12)) * 1_000_000)


def _notice(me: str, look: bool, ended: Sequence[int]) -> str:
    """Return the text of a notice: who sends it, whether to look, which jobs have ended."""
    ids = "*" if len(ended) > NOTIFIED else ",".join(map(str, ended))
    return f"{me} {'look' if look else '-'} {ids}"


def _given(row: tuple[Any, ...], now: float) -> Given:
    _, name, lane, session, priority, payload, key, timeout, retry, cost, due, delay = row
    try:
        item = SubmittedJob(
            name=name,
            lane=lane,
            session=session,
            priority=priority,
            payload=payload,
            key=key,
            timeout=timeout,
            retry=retry,
            cost={**ONE_REQUEST, **json.loads(cost)},
        )
        check_submitted(item)
    except (TypeError, ValueError) as error:
        lane = lane if len(lane) <= LONGEST_NAME else DEFAULT_LANE
        return SubmittedJob(name=name[:LONGEST_NAME], lane=lane, payload=payload), now, error
    # the server's clock may have been set since
    return item, min(due, now + delay), None
