"""`PostgresTables`: the tables of a store in PostgreSQL, with few trips over the network.

Theory of operation

A statement that waits for its answer costs a trip over the network. So the acts of a batch run in
one of these ways:

* *Free*: on the cache, as of the newest batch that is known, without a transaction. What they look
  up by name and the cache has not, is guessed not to be there, or read in one trip before. Then one
  statement compares, writes and commits (`batch`): one trip. If another instance has committed
  before, nothing was written; the cache is put back, brought up to date, and the acts are done
  again. Every read on the way sees the same batch, or the acts are done again.
* *Locked*: two trips, between which this instance alone may commit. So is it done by who has lost
  `LATE_IN_A_ROW` times, since two instances that are busy would lose most of their work; until
  `CALM_AFTER` batches in a row found that nobody else had committed. Also, where an act needs what
  `put_batch` cannot do (a deleted job), or nothing is cached.
* *Of a snapshot*: questions, while nothing is cached, or if others commit between two of their
  reads. Else they are free, and read in one trip what they look up and what others have changed.

The store's time is its last time, and what has passed on the server since (`PostgresTables._time`).
So a clock that is set moves what waits for a time by no more than the time since the last act. A
``run_at`` is Unix time: the jobs that have one follow the server's clock.
"""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, Final, TypeAlias, TypeVar, final

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
from .._sql.batching import (
    CLOCK_SET_BY,
    JOINED_FOR,
    LATE_IN_A_ROW,
    LOOKED_UP_AFTER,
    NOTIFIED,
    QUEUE_FRONT,
)
from .._sql.cache import place_of
from .._sql.list_front import ListFront
from .._sql.rows import Cursor, Row, Values
from .._sql.small_tables import (
    ADD_MARKS,
    CUT_LISTS,
    CUT_MARKS,
    DROP_ITEMS,
    DROP_SCHEDULES,
    DROP_SETTINGS,
    PUT_ITEMS,
    PUT_SCHEDULES,
    PUT_SETTINGS,
)
from .._sql.statements import Many
from .._sql.tables import ADD_COUNTS, number_at
from .._wire.codec import decode, encode
from .batch import WRONG
from .errors import is_of_connection, translated
from .image import HEAD, Head, Image
from .link import LOCKED, STILL, PostgresLink
from .lock_holder import LockHolder
from .read_ahead import ANSWERED, Asked
from .rows import PostgresRows

T = TypeVar("T")

MAX_TAKEN_IN: Final = 500
"""How many submissions one transaction takes in at most."""


CALM_AFTER: Final = 8
"""After how many batches in a row without those of others it is not."""
BEHIND_BY: Final = 0.05
"""Seconds by which the server's clock may be behind the store's before the store notes it."""
ROWS_PER_FETCH: Final = 500
"""How many jobs are in memory while all are read."""

_SNAPSHOT: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_PUT_NOW: Final = "SELECT main.put(%s::jsonb, %s)"
_PUT_BATCH: Final = (
    "SELECT * FROM main.put_batch(%s::bigint, %s, %s, %s::bigint, %s::double precision,"
    " %s::double precision, %s::int, %s, %s::jsonb, %s::jsonb, %s::jsonb, %s,"
    " hashtext(%s) & 2147483647, %s)"
)
_MISSED: Final = (
    "SELECT * FROM main.missed(%s::bigint, %s, CASE WHEN %s THEN hashtext(%s) & 2147483647 END)"
)
_LAST_STEP: Final = "SELECT data FROM main.steps WHERE instance = %s ORDER BY number DESC LIMIT 1"
# nothing of it is on the disk, so nobody waits for that
_NOTIFY: Final = b"SELECT set_config('synchronous_commit', 'off', true), pg_notify(%s, %s)"
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
    "DELETE FROM main.submissions WHERE id = ANY"
    " (ARRAY(SELECT id FROM main.submissions ORDER BY id LIMIT %s))"
    " RETURNING id, name, lane, session, priority, payload, key, timeout, retry, cost, due, delay"
)
_FOLLOW: Final = (
    "UPDATE main.jobs SET due = run_at + %s"
    " WHERE state = 'parked' AND why = 'delay' AND run_at IS NOT NULL"
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
_PARTS: Final = {
    PUT_SETTINGS: "settings",
    DROP_SETTINGS: "dropped",
    PUT_SCHEDULES: "schedules",
    DROP_SCHEDULES: "cut_schedules",
    DROP_ITEMS: "drop_items",
    PUT_ITEMS: "items",
    CUT_LISTS: "cut_items",
    ADD_MARKS: "marks",
    CUT_MARKS: "cut_marks",
    ADD_COUNTS: "counts",
}
"""How `batch.FUNCTIONS` calls the rows of a statement."""

Given: TypeAlias = tuple[SubmittedJob, float, Exception | None]
"""A submission, when it is due, and why it cannot be accepted; or None."""


class TryAgainError(Exception):
    """The acts of a batch are to be done again: nothing has come of them."""


@final
class NeedsLockError(TryAgainError):
    """They need what is done under the lock alone."""


@final
class LateError(TryAgainError):
    """Another instance has committed before.

    Attributes:
      behind: the batches that were missed, from the known one on; empty: they were not asked for.
    """

    def __init__(self, behind: Sequence[Any] = ()) -> None:
        super().__init__()
        self.behind: Final = behind


@final
class PostgresTables(Image, Transactions):
    """An implementation of `Tables` over one link, with a cache.

    Args:
      name: describes the store.
      named: puts the schema into a statement; see `schema.naming`.
      channel: the channel on which instances notify each other.
      me: the name of this instance on the channel, and among the listeners.
      names: the handlers for which the instance claims jobs.
      clock: gives the seconds of a clock of this machine that cannot be set.
      renewed: is called when a lost connection has been made again.
      works: whether the instance is a worker.

    Attributes:
      late: how many times a batch came late.
      newest: the number of the newest batch when the cache was up to date last, and the store's
        time then.
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
        self._free = False  # whether the batch is done without a transaction
        super().__init__(PostgresRows(self._run, self._put), names)
        self._link: Final = link
        self._connection = link.connected()
        self._name: Final = name
        self._named: Final = named
        self._channel: Final = channel
        self._me: Final = me
        self._holder: Final = LockHolder(name, named, channel, STILL * link.patience)
        self._committing = False
        self._ahead = 0.0
        self._moved = False  # whether the jobs with a `run_at` have followed the server's clock
        self._here: Final = clock
        self._renewed: Final = renewed
        self._works: Final = works
        self._marked: psycopg.Connection | None = None  # whose session has the mark of a worker
        self._at: float | None = None  # no time of the store is above this and that of `_here`
        self._listeners = 0  # other stores that listen
        self._forget_before: tuple[float, float, int] | None = None
        self._forgotten_until = -math.inf  # no ended job is due at this time or before
        self._looked_at = -math.inf  # when ended jobs were forgotten last
        self._writes_before = 0
        self._new_answers: Final[dict[str, tuple[float, Any]]] = {}
        self._new_steps: Final[dict[str, LastStep | None]] = {}
        self._may_join_until = -math.inf  # on the clock of this machine, as the next
        self._read_at = 0.0  # when the time of the transaction was known
        self._server_at = -math.inf  # the time of the server's clock less that of `_here`, at least
        self._head: Head  # of the batch that is cached
        self._now = 0.0  # the store's time of the batch
        # that the server's clock was set: what was `ahead` before, what it is to be
        self._was_set: tuple[float, float] | None = None
        # how the next batches are done
        self._locks = True  # under the lock, once: there may be submissions
        self._lost = 0  # how many batches in a row came late
        self._calm = 0  # how many batches in a row found nothing of others
        self._look_up = 0  # for how many batches nothing is guessed
        self._is_behind = False  # whether a notice said so
        self._in_snapshot = False  # whether the next question is asked in a transaction
        # whether a commit may come yet of which nobody knows: the next batch takes its place
        self._is_unsure = False
        # how this batch is done
        self._writes = False  # whether its acts may change something
        self._looked = False  # whether its cache was compared with the newest batch
        self._guesses: Asked | None = None
        self._made: dict[str, list[Any]] | None = None  # its rows; None: it is not at its end
        self.late = 0
        self.newest = 0, 0.0

    def _run(self, statement: str, values: Values = ()) -> Cursor:
        """Execute a statement. One of a free batch only reads, and sees what the batch builds on.

        Raises:
          TryAgainError: if it writes, or another instance has committed before.
        """
        if not self._free:
            return self._connection.execute(self._named(statement), values)
        if not statement.startswith("SELECT"):
            raise NeedsLockError
        with self._connection.pipeline():
            self._connection.execute(_SNAPSHOT)
            head = self._connection.execute(self._named(HEAD))
            found = self._connection.execute(self._named(statement), values)
            self._connection.execute("COMMIT")
        self._check(head.fetchone())
        return found

    def _check(self, head: Any) -> None:
        """Raise a `LateError` if the batch that is cached is not the newest one."""
        if head[:2] != (self._version, self._batch):
            raise LateError

    def _put(self, name: str, rows: list[Any]) -> None:
        """Write rows now, or at the end of the batch; see `batch.FUNCTIONS` for their names."""
        if self._made is not None:
            self._made.setdefault(name, []).extend(rows)
        elif self._free:
            raise NeedsLockError
        else:
            assert self._version is not None
            self._execute(_PUT_NOW, (_text({name: rows}), self._version + 1))

    def _execute_many(self, many: Many, rows: Collection[Row]) -> None:
        self._put(_PARTS[many], list(rows))

    def _stream(self, statement: str) -> Iterator[Any]:
        if self._free:
            raise NeedsLockError
        with self._connection.cursor(name="all") as cursor:
            cursor.itersize = ROWS_PER_FETCH
            cursor.execute(self._named(statement))
            yield from cursor

    def hint(self, *, lock: bool) -> None:
        """Note that another instance has written, or, with ``lock``, what is done under the lock.

        It may be called in any thread.
        """
        self._is_behind = True
        if lock:
            self._locks = True

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
        tickets = [act.ticket for act in acts if act.ticket]
        engine.now, given = self.begin(
            [act.lookups for act in acts], tickets, write=write, take_in=write
        )
        self._read_at = self._here()
        self._may_join_until = began + JOINED_FOR if write else -math.inf
        for job, due, refused in given:
            engine.take_in(job, due, refused)

    def joining_at(self) -> float | None:
        here = self._here()
        return self._now + here - self._read_at if here <= self._may_join_until else None

    def commit_acts(self, engine: Engine, acts: Sequence[HandedAct[Any]]) -> None:
        self._committing = any(act.write for act in acts)
        look = engine.work_ready or engine.work_elsewhere
        if self.commit(look, engine.news) or self._locks:
            engine.work_ready = True  # the next step forgets more, or takes more in

    def undo_acts(
        self, acts: list[HandedAct[Any]], error: BaseException
    ) -> tuple[list[list[HandedAct[Any]]], BaseException, bool]:
        if isinstance(error, TryAgainError):
            self._undo_to_try_again(error)
            return [acts], error, False
        lost = is_of_connection(error)
        # the caller asks again, and the ticket or the number of the step decides
        unknown = self._committing and lost
        self._is_unsure |= unknown
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

    def _undo_to_try_again(self, error: TryAgainError) -> None:
        if not self._free:
            self._connection.rollback()
        self._free, self._made = False, None
        self.undo()
        if not self._writes:
            self._in_snapshot = True  # else others could commit between any two of its reads
            return
        if not isinstance(error, LateError):
            self._locks = True
            return
        self.late += 1
        self._lost += 1
        self._is_behind = True
        if error.behind:
            head = Head(*error.behind[-1][1:7])
            if self._catch_up(error.behind, head):
                self._head = head
                self._is_behind = False
            else:
                self._forget()

    def undo(self) -> None:
        super().undo()
        if self._guesses is not None:
            for session in self._guesses.sessions:
                self._cache.queues.pop(session, None)
        self._new_answers.clear()
        self._new_steps.clear()
        self._forget_before = None
        self._looked_at = -math.inf

    def lose_patience(self) -> None:
        self._link.cut()

    def begin(
        self,
        lookups: Sequence[Lookups] = (),
        tickets: Sequence[str] = (),
        *,
        write: bool,
        take_in: bool = False,
    ) -> tuple[float, list[Given]]:
        """Begin a batch; return the store's time, and submissions that are to be taken in.

        Args:
          lookups: what the acts of the batch will look up.
          tickets: the tickets of these acts.
          write: whether they may change something.
          take_in: whether to remove submissions from their table, under the lock, and return them.
        """
        self._free = self._tracks = self._looked = self.has_lock = False
        self._guesses = self._made = None
        self._moved = False
        self._writes_before = self.writes
        self._writes = write
        is_held = write and (self._locks or self._lost >= LATE_IN_A_ROW)
        is_held = is_held or (self._in_snapshot and not write)
        self._in_snapshot = False
        if self._version is not None and not is_held:
            now = self._begin_free(lookups, tickets, write)
            if now is not None:
                self._free = self._tracks = True
                self._parked_before = self._cache.parked_until
                return now, []
        if not write:
            return self._begin_here(lookups, tickets, write=False, take_in=False)
        self.has_lock = True
        take_in = take_in and self._locks
        if take_in:
            self._locks = False  # before it is read, since a notice may come meanwhile
        return self._patiently(
            lambda: self._begin_here(lookups, tickets, write=True, take_in=take_in)
        )

    def _patiently(self, call: Callable[[], T]) -> T:
        """Call what waits for the lock; end a session that holds it and stands still."""
        until = monotonic() + LOCKED * self._link.patience
        while True:
            try:
                return call()
            except psycopg.errors.LockNotAvailable:
                self._connection.rollback()
                if not self._holder.end_if_still(self._connection) and monotonic() >= until:
                    raise

    def _begin_free(
        self, lookups: Sequence[Lookups], tickets: Sequence[str], write: bool
    ) -> float | None:
        """Begin without a transaction; return the store's time, None: that cannot be."""
        asked = self._wanted(lookups, tickets, fresh=False)
        here = self._here()
        self._look_up = max(0, self._look_up - 1)
        self._looked = not write or self._is_behind or bool(asked.ids) or self._look_up > 0
        if self._looked and not self._look(asked):
            return None
        head = self._head
        self._ahead = head.ahead
        server = self._server_at + here
        if not write:
            return self._time(server, head.clock, here, write)
        assert self._at is not None
        now = server + head.ahead
        if now > here + self._at + CLOCK_SET_BY or now < head.clock - BEHIND_BY:
            return None  # the server's clock was set: who has the lock notes by how much
        if not self._looked:
            self._guess(asked)
        now = self._now = max(head.clock, now)
        self._at = now - here
        self._number = max(head.sequence, number_at(now))
        return now

    def _look(self, asked: Asked) -> bool:
        """Look up, in one trip, what acts ask for, and what others have changed.

        Return False if the cache was dropped.
        """
        began, execute = self._here(), self._execute
        self._is_behind = False
        if asked.names_nothing:
            missed = self._missed(lock=False).fetchall()
        else:
            with self._connection.pipeline():
                execute(_SNAPSHOT)
                behind = self._missed(lock=False)
                self._ask(asked)
                execute("COMMIT")
            missed = behind.fetchall()
        head = self._see(missed, began)
        if not self._catch_up(missed, head):
            self._forget()
            return False
        self._head = head
        self._read(asked)
        return True

    def _missed(self, *, lock: bool) -> Cursor:
        """Ask for the newest batch, and for those behind the one that is cached."""
        return self._execute(_MISSED, (self._version, self._me, lock, self._channel))

    def _see(self, missed: Sequence[Row], began: float) -> Head:
        """Return the head, from the answer to `_missed`."""
        newest = missed[-1]
        server, self._listeners = newest[8:10]
        self._note_time(server, began)
        return Head(*newest[1:7])

    def _note_time(self, server: float, began: float) -> None:
        """Note the time of the server's clock, which was asked for at ``began``, of `_here`."""
        if server - began < self._server_at:  # it was set back, or is another server
            self._server_at = -math.inf
        self._server_at = max(self._server_at, server - self._here())

    def _guess(self, asked: Asked) -> None:
        """Take it that there is nothing of what acts look up by name; the commit compares."""
        self._guesses = asked
        self._asked = asked
        self._answers.clear()
        self._read_answers(asked.tickets, ())
        for session in asked.sessions:
            front = self._cache.queues[session] = ListFront(place_of, QUEUE_FRONT)
            front.complete = True

    def _begin_here(
        self, lookups: Sequence[Lookups], tickets: Sequence[str], *, write: bool, take_in: bool
    ) -> tuple[float, list[Given]]:
        """Begin a transaction: one that has the lock, or one that sees a snapshot."""
        execute, began = self._execute, self._here()
        before = self._version
        self._is_behind = False
        asked, given = self._wanted(lookups, tickets, fresh=False), None
        guesses = write and not asked.ids and not self._look_up
        with self._connection.pipeline():
            execute("BEGIN" if write else _SNAPSHOT)
            behind = self._missed(lock=write)
            if take_in:
                given = execute(_TAKE_IN, (MAX_TAKEN_IN,))
            if self._version is not None and not guesses:
                self._ask(asked)
        missed = behind.fetchall()
        head = self._head = self._see(missed, began)
        self._ahead = head.ahead
        if write and self._was_set is not None:
            known, ahead = self._was_set
            self._was_set = None
            if known == head.ahead:  # else another instance has noted it
                self._ahead = ahead
        now = self._time(missed[-1][8], head.clock, began, write)
        moved = 0
        if write and self._ahead != head.ahead:
            moved = execute(_FOLLOW, (self._ahead,)).rowcount
        if moved or not self._catch_up(missed, head):
            self._forget()
            guesses = False
            asked = self._wanted(lookups, tickets, fresh=True)
            with self._connection.pipeline():
                self._ask(asked)
                image = self._ask_image(max((lookup.room for lookup in lookups), default=0))
            self._read_image(*image)
            self._version, self._batch = head.batch, head.id
            self._changes.incomplete = moved > 0
        else:
            self._tracks, self._parked_before = write, self._cache.parked_until
        if guesses:
            self._guess(asked)
        else:
            self._read(asked)
        self._now = now
        self._number = max(head.sequence, number_at(now))
        self._writes_before = self.writes
        taken = [] if given is None else sorted(given.fetchall())
        self._locks = self._locks or len(taken) == MAX_TAKEN_IN
        self._small_writes += len(taken) + moved
        self._moved = moved > 0
        self._looked = True
        if write and self._works and self._marked is not self._connection:
            execute(_MARK, (self._channel,))
            self._marked = self._connection
            self._small_writes += 1  # who comes after this finds the mark, and the time of now
        if before == head.batch:
            self._calm += 1
            if self._calm >= CALM_AFTER:
                self._lost = 0
        else:
            self._calm = 0
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

    def commit(self, look: bool, news: Sequence[tuple[int, Ended | None]]) -> bool:
        """Write the changes, and commit; its changes are on the disk when this returns.

        Return whether the next step may find more: ended jobs to forget, or jobs that are due now.

        Args:
          look: whether workers of other instances may find a job to claim.
          news: as in `Queues.news`, for tasks of other processes.

        Raises:
          TryAgainError: if another instance has committed before, or a guess was wrong.
        """
        forget, moved = self._forget_before, self._moved
        is_empty = self.writes == self._writes_before and forget is None
        if is_empty and not (self._is_unsure and self._writes):
            self._end_unchanged()
            return moved
        look = look or moved
        noticed = look or bool(news)
        notice = _notice(self._me, look, [id for id, _ in news]) if noticed else None
        began = self._here()
        row = self._send_batch(int(noticed), notice, forget)
        self._is_unsure = False
        head = self._head = Head(*row[1:7])
        server, others, forgotten = row[8:]
        self._note_time(server, began)
        here = self._here()
        assert self._at is not None
        if abs(server + head.ahead - here - self._at) > CLOCK_SET_BY:
            self._was_set = head.ahead, here + self._at - server
            self._locks = True  # who has the lock notes it
        self._version, self._batch = head.batch, head.id
        missed = noticed and others and not self._listeners
        self._listeners = others
        if missed:  # another began to listen meanwhile
            self._notify(notice)
        if self._free:
            self._lost = 0
        self._steps.update(self._new_steps)
        self._new_steps.clear()
        self._free = False
        self.newest = head.batch, head.clock
        self._forget_changes()
        self._forget_before = None
        more = forget is not None and forgotten == forget[2]
        if forget is not None and not more:
            self._forgotten_until = forget[1]
        if more:
            self._looked_at = -math.inf
        self._end()
        return more or moved

    def _end_unchanged(self) -> None:
        """End a batch that has changed nothing; its answers are as of the newest batch."""
        if not self._free:
            self._connection.execute("COMMIT")
        elif not self._looked:
            self._check(self._connection.execute(self._named(HEAD)).fetchone())
            if self._guessed() is not None:
                raise NeedsLockError  # no commit compares it
        self._free = False
        assert self._version is not None
        self.newest = self._version, self._now
        self._forget_changes()
        self._end()

    def _guessed(self) -> str | None:
        """Return what the acts have taken for granted, as JSON."""
        asked = self._guesses
        if asked is None or asked.names_nothing:
            return None
        guessed = {"tickets": asked.tickets, "keys": asked.keys, "sessions": asked.sessions}
        return json.dumps({name: list(of) for name, of in guessed.items()})

    def _send_batch(
        self, noticed: int, notice: str | None, forget: tuple[float, float, int] | None
    ) -> Any:
        """Send all that the batch writes; return the row of `put_batch`."""
        made: dict[str, list[Any]] = {}
        self._made = made
        self._flush()
        self._made = None
        delta = self._changes.text() if self._listeners else None
        id = uuid.uuid4().hex
        values = (
            *(self._version, self._batch, id, self._number, self._now, self._ahead, noticed),
            *(delta, _text(made), self._guessed(), None if forget is None else _text(forget)),
            *(self._me, self._channel, not self._free),
        )
        is_heard = notice is not None and self._listeners > 0
        if self._free:
            rows = self._patiently(lambda: self._send_free(values, notice if is_heard else None))
        else:
            rows = self._send_held(values, notice if is_heard else None)
        if rows[0][0] == "put":
            return rows[0]
        if rows[0][0] == "wrong":
            self._look_up = LOOKED_UP_AFTER
            raise NeedsLockError
        raise LateError(rows)

    def _send_held(self, values: tuple[Any, ...], notice: str | None) -> list[Any]:
        try:
            with self._connection.pipeline():
                put = self._execute(_PUT_BATCH, values)
                self._execute("COMMIT")
                if notice is not None:
                    self._notify(notice)
        except psycopg.Error as error:
            if error.sqlstate == WRONG:
                return [("wrong",)]
            raise
        return put.fetchall()

    def _send_free(self, values: tuple[Any, ...], notice: str | None) -> list[Any]:
        connection, statement = self._connection, self._named(_PUT_BATCH)
        if notice is None:
            return connection.execute(statement, values).fetchall()
        with connection.pipeline() as pipeline:
            put = connection.execute(statement, values)
            # in the same transaction it would hold up the commits of all databases
            pipeline.sync()
            self._notify(notice)
        return put.fetchall()

    def _notify(self, notice: str | None) -> None:
        self._connection.execute(_NOTIFY, (self._channel, notice))

    def rollback(self) -> None:
        """Undo the transaction."""
        self._locks = True  # what it has taken in is not
        self._free = False
        self._made = None
        self._forget()
        self._connection.rollback()

    def _forget(self) -> None:
        super()._forget()
        self._forget_before = None
        self._forgotten_until = -math.inf
        self._new_answers.clear()
        self._new_steps.clear()

    def _flush(self) -> None:
        super()._flush()
        new = self._new_answers.items()
        if new:
            self._put("answers", [(one, until, encode(answer)) for one, (until, answer) in new])
            self._new_answers.clear()
        steps = [(id, step.number, encode(step)) for id, step in self._new_steps.items() if step]
        if steps:
            self._put("steps", steps)
        requests = self._changes.requests.items()
        put = [row for _, row in requests if row is not None]
        if put:
            self._put("requests", put)
        cut = [id for id, row in requests if row is None]
        if cut:
            self._put("cut_requests", cut)

    # ---- selections

    def _least_id(self, time: float) -> int:
        return number_at(time)

    # ---- times

    def forget_due(self, now: float, limit: int) -> int:
        """Forget ended jobs at the end of the transaction; nothing that the rules read has them."""
        if self._looked_at + FORGET_EVERY <= now:
            self._looked_at = now
            self._forget_before = self._forgotten_until, now, limit
        return 0

    def next_over(self) -> float | None:
        return None  # the slow look of the listener finds it, so it costs a step no trip

    # ---- answers that may be asked for again

    def last_step(self, instance: str) -> LastStep | None:
        for known in (self._new_steps, self._steps):
            if instance in known:
                return known[instance]
        row = self._execute(_LAST_STEP, (instance,)).fetchone()
        step: LastStep | None = None if row is None else decode(row[0])
        self._steps[instance] = step
        return step

    def put_last_step(self, instance: str, step: LastStep | None) -> None:
        if step is None:
            self._execute("DELETE FROM main.steps WHERE instance = %s", (instance,))
        self._new_steps[instance] = step
        self._changes.settings[STEPS.name, instance] = step
        self._small_writes += 1

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

    def _forget_zeros(self) -> None:
        pass  # a batch that sums up leaves them out

    def forget_unused(self, now: float) -> None:
        super().forget_unused(now)
        self._execute("DELETE FROM main.answers WHERE until <= :now", {"now": now})


def _text(made: Any) -> str:
    """Return JSON as the functions of the schema take it."""
    try:
        return json.dumps(made, ensure_ascii=False, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(made), ensure_ascii=False)


def _finite(value: Any) -> Any:
    """Return data with texts in the place of infinite numbers, which JSON does not have."""
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    is_number = isinstance(value, float) and math.isinf(value)
    return ("Infinity" if value > 0 else "-Infinity") if is_number else value


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
