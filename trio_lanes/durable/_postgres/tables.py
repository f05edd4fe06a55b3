"""`PostgresTables`: the tables of a store in PostgreSQL, with few trips over the network.

Theory of operation

A statement that waits for its answer costs a trip over the network, so a transaction makes two
trips, or three, however many acts it has:

1. It locks the row of `meta`, and asks for what the acts will look up by name (`ReadAhead`).
2. If another process has changed the tables since the last transaction (`meta.version`), the answer
   says what (`Image`). If it does not, the transaction drops the cache, and asks in one trip more
   for all that a claim looks at.
3. It writes all changes and commits.

The store's time is its last time, and what has passed on the server since (`PostgresTables._time`).
So a clock that is set moves what waits for a time by no more than the time since the last act. A
``run_at`` is Unix time: the jobs that have one follow the server's clock.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, Final, TypeAlias, final

import psycopg

from ..._config.names import DEFAULT_LANE
from .._contract.protocol import REMEMBERED_FOR
from .._contract.records import Ended, HeldSnapshot, SubmittedJob
from .._options.names import LONGEST_NAME
from .._options.submission import check_submitted
from .._rules.engine import Engine
from .._rules.engine_store import Lookups
from .._rules.queues import FORGET_EVERY
from .._rules.rates import ONE_REQUEST
from .._rules.tables import STEPS, LastStep
from .._sql.act_thread import HandedAct, Transactions
from .._sql.rows import Cursor, Row, Values
from .._sql.statements import Many
from .._sql.tables import number_at
from .._wire.codec import decode, encode
from .errors import is_of_connection, translated
from .image import Image
from .link import LOCKED, STILL, PostgresLink
from .read_ahead import ANSWERED
from .row_holder import RowHolder
from .rows import PostgresRows, by_column

MAX_TAKEN_IN: Final = 500
"""How many submissions one transaction takes in at most."""
NOTIFIED: Final = 300
"""How many jobs with news a notice names; with more it names none, and every waiter looks."""

JOINED_FOR: Final = 0.05
"""Seconds from its beginning for which a transaction takes claims: its time is of its beginning."""

CLOCK_SET_BY: Final = 1.0
"""Seconds by which the server's clock must be ahead of an instance's to have been set."""
ROWS_PER_FETCH: Final = 500
"""How many jobs are in memory while all are read."""

_LOCK: Final = "SELECT version, notices, sequence, clock, ahead FROM main.meta FOR UPDATE"
_LOOK: Final = "SELECT version, notices, sequence, clock, ahead FROM main.meta"
_READ_TIME: Final = (
    "SELECT main.server_time(), (SELECT count(*) FROM main.listeners WHERE id <> %s"
    " AND until > main.server_time())"
)
# in each session of a worker that knows how much time has passed; `prepare` locks another number
_MARK: Final = "SELECT pg_advisory_lock_shared(hashtext(%s) & 2147483647, 1)"
# what the lease of an instance is, is in the record of `InstanceInfo`
_LIVES: Final = (
    "SELECT max((data::json -> 'v' ->> 4)::double precision), EXISTS (SELECT FROM pg_locks"
    " WHERE locktype = 'advisory' AND granted AND pid <> pg_backend_pid()"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    " AND classid = (hashtext(%s) & 2147483647)::oid AND objid = 1 AND objsubid = 2)"
    " FROM main.settings WHERE kind = 'instance'"
)
_TAKE_IN: Final = (
    "DELETE FROM main.submissions WHERE id IN"
    " (SELECT id FROM main.submissions ORDER BY id LIMIT %s)"
    " RETURNING id, name, lane, session, priority, payload, key, timeout, retry, cost, due, delay"
)
_FOLLOW: Final = (
    "UPDATE main.jobs SET due = run_at + %s"
    " WHERE state = 'parked' AND why = 'delay' AND run_at IS NOT NULL"
)
_FORGET: Final = (
    "DELETE FROM main.jobs WHERE id IN (SELECT id FROM main.jobs"
    " WHERE state IN ('succeeded', 'failed', 'cancelled', 'expired') AND due <= %s"
    " ORDER BY due LIMIT %s)"
)
# of a session of another role, and of a slot, it is not known since when; the transaction is shown
_SNAPSHOTS: Final = (
    "SELECT 'session', pid::text, coalesce(application_name, ''),"
    " (CASE WHEN backend_xmin IS NULL OR age(backend_xid) > age(backend_xmin) THEN backend_xid"
    " ELSE backend_xmin END)::text,"
    " extract(epoch FROM clock_timestamp() - xact_start)::double precision"
    " FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    " AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)"
    " UNION ALL SELECT 'prepared', gid, '', transaction::text,"
    " extract(epoch FROM clock_timestamp() - prepared)::double precision"
    " FROM pg_prepared_xacts WHERE database = current_database()"
    " UNION ALL SELECT 'slot', slot_name::text, coalesce(plugin::text, ''),"
    " concat(xmin, ' ', catalog_xmin), NULL FROM pg_replication_slots"
    " WHERE (database IS NULL OR database = current_database())"
    " AND (xmin IS NOT NULL OR catalog_xmin IS NOT NULL)"
)
_PUT_ANSWERS: Final = Many(
    "INSERT INTO main.answers SELECT v.ticket, v.until, v.data FROM v"
    " ON CONFLICT (ticket) DO UPDATE SET until = excluded.until, data = excluded.data",
    "ticket text, until float8, data text",
)

Given: TypeAlias = tuple[SubmittedJob, float, Exception | None]
"""A submission, when it is due, and why it cannot be accepted; or None."""


@final
class PostgresTables(Image, Transactions):
    """An implementation of `Tables` over one link, with a cache.

    Args:
      name: describes the store.
      named: puts the schema into a statement; see `schema.naming`.
      channel: the channel on which instances notify each other.
      me: the name of this instance on the channel.
      names: the handlers for which the instance claims jobs.
      clock: gives the seconds of a clock of this machine that cannot be set.
      renewed: is called when a lost connection has been made again.
      works: whether the instance is a worker.
    """

    errors = psycopg.Error

    def __init__(
        self,
        link: PostgresLink,
        name: str,
        named: Callable[[str], bytes],
        channel: str,
        me: str,
        names: Collection[str],
        clock: Callable[[], float],
        renewed: Callable[[], None],
        works: bool,
    ) -> None:
        self._execute = self._run
        super().__init__(PostgresRows(self._run), names)
        self._link: Final = link
        self._connection = link.connected()
        self._name: Final = name
        self._named: Final = named
        self._channel: Final = channel
        self._me: Final = me
        self._holder: Final = RowHolder(name, named, STILL * link.patience)
        self._committing = False
        self._notices = 0
        self._ahead = 0.0
        self._moved = False  # whether the jobs with a `run_at` have followed the server's clock
        self._here: Final = clock
        self._renewed: Final = renewed
        self._works: Final = works
        self._marked: psycopg.Connection | None = None  # whose session has the mark of a worker
        self._at: float | None = None  # no time of the store is above this and that of `_here`
        self._listeners = 0  # other stores that listen
        self._forget_before: tuple[float, int] | None = None
        self._looked_at = -math.inf  # when ended jobs were forgotten last
        self._writes_before = 0
        self._new_answers: Final[dict[str, tuple[float, Any]]] = {}
        self._may_join_until = -math.inf  # on the clock of this machine, as the next
        self._read_at = 0.0  # when the time of the transaction was known

    def _run(self, statement: str, values: Values = ()) -> Cursor:
        return self._connection.execute(self._named(statement), values)

    def _execute_many(self, many: Many, rows: Collection[Row]) -> None:
        self._execute(many.at_once, by_column(rows))

    def _stream(self, statement: str) -> Iterator[Any]:
        with self._connection.cursor(name="all") as cursor:
            cursor.itersize = ROWS_PER_FETCH
            cursor.execute(self._named(statement))
            yield from cursor

    # ---- transactions

    def begin_acts(self, engine: Engine, acts: Sequence[HandedAct[Any]]) -> None:
        self._committing = False
        connection = self._link.connected()
        if connection is not self._connection:  # the former was lost
            self._connection = connection
            self._forget()
            self._renewed()
        write = any(act.write for act in acts)
        began = self._here()
        engine.now, given = self.begin(
            [act.lookups for act in acts],
            [act.ticket for act in acts if act.ticket],
            write=write,
            me=self._me,
            take_in=write,
        )
        self._read_at = self._here()
        self._may_join_until = began + JOINED_FOR if write else -math.inf
        for job, due, refused in given:
            engine.take_in(job, due, refused)

    def joining_at(self) -> float | None:
        here = self._here()
        return self._clock + here - self._read_at if here <= self._may_join_until else None

    def commit_acts(self, engine: Engine, acts: Sequence[HandedAct[Any]]) -> None:
        self._committing = any(act.write for act in acts)
        look = engine.work_ready or engine.work_elsewhere
        if self.commit(self._channel, self._me, look, engine.news):
            engine.work_ready = True  # the next step forgets more

    def undo_acts(
        self, acts: list[HandedAct[Any]], error: BaseException
    ) -> tuple[list[list[HandedAct[Any]]], BaseException, bool]:
        lost = is_of_connection(error)
        # the caller asks again, and the ticket or the number of the step decides
        unknown = self._committing and lost
        with suppress(psycopg.Error):
            self.rollback()
        if self._connection.closed:
            self._link.close()
            lost = True
        if len(acts) > 1 and not lost:
            return [[act] for act in acts], error, False
        if isinstance(error, psycopg.Error):
            error = translated(self._name, error)
        return [], error, unknown

    def lose_patience(self) -> None:
        self._link.cut()

    def begin(
        self,
        lookups: Sequence[Lookups] = (),
        tickets: Sequence[str] = (),
        *,
        write: bool,
        me: str = "",
        take_in: bool = False,
    ) -> tuple[float, list[Given]]:
        """Begin a transaction; return the store's time, and submissions that are to be taken in.

        A transaction that does not write sees one snapshot, and holds up no other. One that writes
        waits for the row, and ends a session that holds it and stands still.

        Args:
          lookups: what the acts of the transaction will look up.
          tickets: the tickets of these acts.
          me: the name of this instance among the listeners.
          take_in: whether to remove submissions from their table, and return them.
        """
        until = monotonic() + LOCKED * self._link.patience
        while True:
            try:
                return self._begun(lookups, tickets, write=write, me=me, take_in=take_in)
            except psycopg.errors.LockNotAvailable:
                self._connection.rollback()
                if not self._holder.end_if_still(self._connection) and monotonic() >= until:
                    raise

    def _begun(
        self,
        lookups: Sequence[Lookups],
        tickets: Sequence[str],
        *,
        write: bool,
        me: str,
        take_in: bool,
    ) -> tuple[float, list[Given]]:
        execute, began = self._execute, self._here()
        with self._connection.pipeline():
            if write:
                execute("BEGIN")
            else:
                execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            meta = execute(_LOCK if write else _LOOK)
            time = execute(_READ_TIME, (me,))
            given = execute(_TAKE_IN, (MAX_TAKEN_IN,)) if take_in else None
            behind = self._ask_behind()
            asked = self._ask(lookups, tickets, fresh=False)
        version, self._notices, sequence, clock, ahead = meta.fetchone()
        server, self._listeners = time.fetchone()
        self._ahead = ahead
        now = self._time(server, clock, began, write)
        moved = 0
        if write and self._ahead != ahead:
            moved = execute(_FOLLOW, (self._ahead,)).rowcount
        if moved or not self._catch_up(behind, version):
            self._forget()
            with self._connection.pipeline():
                newest = self._ask_newest()
                asked = self._ask(lookups, tickets, fresh=True)
                image = self._ask_image(max((lookup.room for lookup in lookups), default=0))
            self._read_newest(newest)
            self._read_image(*image)
            self._version = version
            self._changes.incomplete = moved > 0
        self._read(asked)
        self._clock = now
        self._number = max(sequence, number_at(now))
        self._writes_before = self.writes
        taken = [] if given is None else sorted(given.fetchall())
        self._small_writes += len(taken) + moved
        self._moved = moved > 0
        if write and self._works and self._marked is not self._connection:
            execute(_MARK, (self._channel,))
            self._marked = self._connection
            self._small_writes += 1  # who comes after this finds the mark, and the time of now
        return now, [_given(row, now) for row in taken]

    def _time(self, server: float, clock: float, began: float, write: bool) -> float:
        """Return the store's time, and note by how much it is ahead of the server's clock.

        Args:
          server: the time of the server's clock, which was read after ``began``.
          clock: the last time of the store.
          write: whether the time is kept; else it does no harm.
        """
        now, here = server + self._ahead, self._here()
        if self._at is None:
            if write and now > clock + CLOCK_SET_BY and self._is_set_ahead(now, clock):
                now = clock
        elif now > here + self._at + CLOCK_SET_BY:
            now = here + self._at  # it was set ahead: less has passed on the clock of this instance
        now = max(now, clock)  # it was set back: the store's time goes on from its last
        if now != server + self._ahead:
            self._ahead = now - server
        self._at = now - began
        return now

    def _is_set_ahead(self, now: float, clock: float) -> bool:
        """Whether the server's clock was set ahead, for an instance that knows no time of its own.

        It was, if a worker has a lease by the last time of the store, and is there, and half of
        that lease has passed since: it writes in each third of it. If none is there, all have died,
        and the time may have passed.
        """
        until, is_there = self._execute(_LIVES, (self._channel,)).fetchone()
        return (
            until is not None and is_there and clock < until and now - clock > (until - clock) / 2
        )

    def ahead_of_wall(self) -> float:
        return self._ahead

    def commit(
        self, channel: str, me: str, look: bool, news: Sequence[tuple[int, Ended | None]]
    ) -> bool:
        """Write the changes, and commit; its changes are on the disk when this returns.

        Return whether the next step may find more: ended jobs to forget, or jobs that are due now.

        Args:
          look: whether workers of other instances may find a job to claim.
          news: as in `Queues.news`, for tasks of other processes.
        """
        changed, version = self.writes != self._writes_before, self._version
        assert version is not None  # `begin` has set it
        look = look or self._moved
        noticed = changed and (look or bool(news))
        forget = self._forget_before
        self._forget_before = None
        with self._connection.pipeline():
            gone = None if forget is None else self._execute(_FORGET, forget)
            self._flush()
            batch = None
            if changed:
                self._execute(
                    "UPDATE main.meta SET version = version + 1, notices = %s, sequence = %s,"
                    " clock = %s, ahead = %s",
                    (self._notices + noticed, self._number, self._clock, self._ahead),
                )
                if self._listeners:
                    batch = self._tell(version + 1)
            if noticed and self._listeners:
                what = _notice(me, look, [id for id, _ in news])
                self._execute("SELECT pg_notify(%s, %s)", (channel, what))
            self._execute("COMMIT")
        if changed:
            self._version, self._batch = version + 1, batch
            self._notices += noticed
        self._forget_changes()
        more = gone is not None and forget is not None and gone.rowcount == forget[1]
        if more:
            self._looked_at = -math.inf
        self._end()
        return more or self._moved

    def rollback(self) -> None:
        """Undo the transaction."""
        self._forget()
        self._connection.rollback()

    def _forget(self) -> None:
        super()._forget()
        self._forget_before = None
        self._new_answers.clear()

    def _flush(self) -> None:
        super()._flush()
        if self._new_answers:
            new = self._new_answers.items()
            rows = [(ticket, until, encode(answer)) for ticket, (until, answer) in new]
            self._execute_many(_PUT_ANSWERS, rows)
            self._new_answers.clear()

    # ---- selections

    def _least_id(self, time: float) -> int:
        return number_at(time)

    # ---- times

    def forget_due(self, now: float, limit: int) -> int:
        """Forget ended jobs at the end of the transaction; nothing that the rules read has them."""
        if self._looked_at + FORGET_EVERY <= now:
            self._looked_at = now
            self._forget_before = now, limit
        return 0

    def next_over(self) -> float | None:
        return None  # the slow look of the listener finds it, so it costs a step no trip

    # ---- answers that may be asked for again

    def last_step(self, instance: str) -> LastStep | None:
        return self.of(STEPS).get(instance)

    def put_last_step(self, instance: str, step: LastStep | None) -> None:
        self.put(STEPS, instance, step)

    def answer(self, ticket: str, now: float) -> tuple[Any] | None:
        fresh = self._new_answers.get(ticket)
        if fresh is not None:
            return (fresh[1],)
        if ticket not in self._answers:
            self._read_answers([ticket], self._execute(ANSWERED, ([ticket],)))
        until, data = self._answers[ticket]
        return None if until <= now else (decode(data),)

    def put_answer(self, ticket: str, answer: Any, now: float) -> None:
        self._new_answers[ticket] = now + REMEMBERED_FOR, answer
        self._answers.pop(ticket, None)
        self._small_writes += 1

    # ---- consistency

    def held_snapshots(self) -> list[HeldSnapshot]:
        return [HeldSnapshot(*row) for row in self._execute(_SNAPSHOTS)]

    def inspect(self) -> list[str]:
        keys = (
            "SELECT key FROM main.jobs WHERE key IS NOT NULL GROUP BY 1"
            " HAVING count(*) > 1 LIMIT 20"
        )
        problems = super().inspect()
        return problems + [f"several jobs have the key {key!r}" for (key,) in self._execute(keys)]

    def forget_unused(self, now: float) -> None:
        super().forget_unused(now)
        self._execute("DELETE FROM main.answers WHERE until <= :now", {"now": now})


def _notice(me: str, look: bool, ids: Sequence[int]) -> str:
    """Return the text of a notice: who sends it, whether to look, of which jobs there is news."""
    named = "*" if len(ids) > NOTIFIED else ",".join(map(str, ids))
    return f"{me} {'look' if look else '-'} {named}"


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
