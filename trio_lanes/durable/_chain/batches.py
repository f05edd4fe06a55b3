"""`StorageTables`: the acts of an instance as batches of a chain.

Theory of operation

The acts of a batch run on the image, as of the newest batch that is known, and are committed by one
call (`Storage.commit`): one trip. If another instance has committed before, nothing was written;
the image is put back, brought up to date, and the acts are done again. Every read on the way sees
the batch of the image, or the acts are done again.

* What acts look up by name and the image lacks is *guessed* not to be there: a ticket, a key, a
  session's queue. The commit compares the guesses. After a wrong one it is looked up before, for
  `LOOKED_UP_AFTER` batches.
* Who came late `LATE_IN_A_ROW` times gets a turn, in which the others wait.
* After a commit whose answer was lost, the next batch takes its place, also if it changes nothing.

The store's time is its last time, and what has passed since on the storage's clock: see `_time`.
"""

from __future__ import annotations

import json
import math
import uuid
from collections import deque
from collections.abc import Callable, Collection, Sequence
from threading import Event
from typing import Any, Final, NamedTuple, TypeVar, cast, final

from .._contract.errors import StoreError, StoreUnavailableError
from .._contract.records import Ended
from .._contract.state import RUNNING, DurableState
from .._rules.engine import Engine
from .._rules.engine_store import Lookups
from .._rules.job_record import JobRecord
from .._rules.tables import INSTANCES
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
from .._sql.tables import number_at
from . import keys
from .image import Maps
from .keys import Sets
from .small_maps import NO_LIMIT, where_answers_are
from .storage import (
    NO_HEAD,
    All,
    Batch,
    Fate,
    Get,
    Head,
    Missed,
    Question,
    Seen,
    Span,
    Storage,
    StorageError,
)
from .tables import ChainTables

T = TypeVar("T")

TRIES: Final = 5
"""How many times a question is asked anew because others have committed between its reads.

Then its reads may see several batches.
"""
HINTS_KEPT: Final = 100
"""How many hints wait for the next batch; with more the first are dropped, and it reads deltas."""
LONG_HINT: Final = 64_000
"""From how many characters on a delta is not in the hint of its batch."""
LONG_OUTCOME: Final = 1_000
"""From how many characters on an outcome is not in a hint."""
SCHEMA: Final = "1"
"""The version of what the maps and ordered sets have in them."""


class TryAgainError(Exception):
    """The acts of a batch are to be done again: nothing has come of them.

    Attributes:
      head: the newest batch, if it is known; with what was missed.
      wait: seconds for which another instance has its turn.
      wrong: whether a guess was wrong.
    """

    def __init__(
        self,
        head: Head | None = None,
        missed: Missed = None,
        *,
        wait: float = 0.0,
        wrong: bool = False,
    ) -> None:
        super().__init__()
        self.head: Final = head
        self.missed: Final = missed
        self.wait: Final = wait
        self.wrong: Final = wrong


class Hint(NamedTuple):
    """What an instance tells the others of its batch.

    Attributes:
      look: whether a worker may find a job to claim.
      news: (id, how it ended) of jobs; None: of too many to name them.
      base: the id of the batch before.
      head: the batch.
      delta: what it has changed; empty: that is too long.
    """

    look: bool
    news: Sequence[tuple[int, Ended | None]] | None
    base: str
    head: Head
    delta: str


def hint_of(text: str) -> Hint:
    """Return the hint of a text."""
    look, told, base, head, delta = json.loads(text)
    news = None
    if told is not None:
        news = [
            (id, None if state is None else Ended(DurableState(state), outcome))
            for id, state, outcome in told
        ]
    return Hint(look, news, base, Head(*head), delta)


@final
class StorageTables(ChainTables, Transactions):
    """An implementation of `Tables` over one storage.

    Args:
      me: the name of this instance in hints.
      clock: gives the seconds of a clock of this machine that cannot be set.
      renewed: is called when all was read anew: the storage may have older data.

    Attributes:
      late: how many times a batch came late.
      newest: the number of the newest batch when the image was up to date last, and the store's
        time then.
    """

    errors = StorageError
    has_lock = False

    def __init__(
        self,
        storage: Storage,
        me: str,
        clock: Callable[[], float],
        renewed: Callable[[], None],
    ) -> None:
        self._storage: Final = storage
        self._me: Final = me
        self._here: Final = clock
        self._renewed: Final = renewed
        self._was_read = False
        self._server_at = -math.inf  # the storage's time less that of `_here`, at least
        self._at: float | None = None  # no time of the store is above this and that of `_here`
        self._read_at = 0.0
        self._may_join_until = -math.inf
        self._others = 1  # as far as is known
        self._made = 0  # how many batches
        self._lost = 0  # how many batches in a row came late
        self._look_up = 0  # for how many batches nothing is guessed
        self._is_behind = False  # whether a hint said so
        self._told: Final[deque[Hint]] = deque(maxlen=HINTS_KEPT)
        self._came: Final = Event()  # set at each hint
        # whether a commit may come yet of which nobody knows: the next batch takes its place
        self._is_unsure = False
        self._tries = 0  # how many times a question was asked anew
        self._may_write = False
        self._looked = False  # whether this batch has compared the image with the newest batch
        # what this batch has taken for granted: tickets, keys, sessions
        self._guesses: tuple[Collection[str], ...] = (), (), ()
        self._held_jobs: list[JobRecord] = []  # what was looked up: a reference keeps it
        self._committing = False
        self.late = 0
        self.newest = 0, 0.0
        super().__init__()

    def hear(self, hint: Hint | None) -> None:
        """Note what another instance has committed; None: there may be more. In any thread."""
        if hint is None:
            self._is_behind = True
        else:
            self._told.append(hint)
        self._came.set()

    def _take_told(self) -> None:
        """Bring the image up to date by what was told."""
        while self._told:
            hint = self._told.popleft()
            if self.batch is None or hint.head.batch <= self.batch.batch:
                continue
            if hint.delta and hint.base == self.batch.id:
                self.catch_up([(hint.head, hint.delta)])
            else:
                self._is_behind = True

    # ---- reading

    def _ask(self, questions: Sequence[Question]) -> Sequence[Any]:
        seen = self._read(questions)
        if seen.head != self.batch:
            if self._may_write or self._tries < TRIES or seen.missed is None:
                raise TryAgainError(seen.head, seen.missed)
            self.catch_up(seen.missed)
        return seen.answers

    def _read(self, questions: Sequence[Question]) -> Seen:
        began = self._here()
        seen = self._storage.read(self.batch, questions)
        self._note(seen.time, began, seen.others)
        return seen

    def _note(self, server: float, began: float, others: int) -> None:
        """Note the time of the storage's clock, which was asked for at ``began``, of `_here`."""
        if server - began < self._server_at:  # it was set back, or is another one
            self._server_at = -math.inf
        self._server_at = max(self._server_at, server - self._here())
        self._others = others

    def _read_image(self) -> None:
        """Read all that an image has, from one snapshot."""
        running = keys.state_of(RUNNING)
        fronts = [
            Span(Sets.STATES, running, running + keys.BEHIND_ALL, NO_LIMIT, rows=Maps.JOBS),
            Span(Sets.DUE, "", keys.BEHIND_ALL, 1),
            Span(Sets.EXPIRES, "", keys.BEHIND_ALL, 1),
        ]
        seen = self._read([All(Maps.WHOLE), *fronts])
        whole, runs, due, expires = cast(Sequence[Any], seen.answers)
        schema = whole.get(f"{Maps.META} schema", SCHEMA)
        if schema != SCHEMA:
            raise StorageError(f"it has the schema {schema}, not {SCHEMA}", passes=False)
        self._read_whole(seen.head, whole)
        self._put_running(self._records((keys.id_in(text), row) for text, row in runs))
        first = [keys.time_in(found[0][0]) for found in (due, expires) if found]
        self._cache.parked_until = self._parked_before = min(first, default=math.inf)

    # ---- a batch

    def begin_acts(self, engine: Engine, acts: Sequence[HandedAct[Any]]) -> None:
        self._committing = False
        write = any(act.write for act in acts)
        tickets = [act.ticket for act in acts if act.ticket]
        began = self._here()
        engine.now = self.begin([act.lookups for act in acts], tickets, write=write)
        self._may_join_until = began + JOINED_FOR if write else -math.inf

    def begin(
        self, lookups: Sequence[Lookups] = (), tickets: Sequence[str] = (), *, write: bool
    ) -> float:
        """Begin a batch; return the store's time.

        Args:
          lookups: what its acts will look up.
          tickets: the tickets of these acts.
          write: whether they may change something.
        """
        self._may_write, self._looked = write, False
        self._guesses = (), (), ()
        self._look_up = max(0, self._look_up - 1)
        if self.batch is None:
            self._is_behind = False
            self._read_image()
            self._looked = True
            if self._was_read:
                self._renewed()
            self._was_read = True
        self._take_told()
        self._begin_batch()
        self._look_ahead(lookups, tickets, write=write)
        self._now = self._time()
        self._read_at = self._here()
        assert self.batch is not None
        self._number = max(self.batch.sequence, number_at(self._now))
        return self._now

    def _look_ahead(
        self, lookups: Sequence[Lookups], tickets: Sequence[str], *, write: bool
    ) -> None:
        """Look up, or guess, what acts look up by name; bring the image up to date."""
        queues = self._cache.queues
        job_keys: set[str] = set()
        sessions: set[str] = set()
        ids: set[int] = set()
        ran: set[str] = set()
        for lookup in lookups:
            for job in lookup.batch:
                if job.key is not None:
                    job_keys.add(job.key)
                if job.session is not None and job.session not in queues:
                    sessions.add(job.session)
            for id in lookup.ids:
                run = self._known.get(id)
                if run is None:
                    ids.add(id)
                elif run.session is not None and run.session not in queues:
                    ran.add(run.session)
        guesses = write and not self._look_up
        if guesses:
            self._guess(tickets, job_keys, sessions - ran)
            tickets, job_keys, sessions = (), set(), set()
        names, of_sessions = list(job_keys), [*(sessions | ran)]
        if (
            (write or self._looked)
            and not (tickets or names or of_sessions or ids)
            and not self._is_behind
        ):
            return
        self._is_behind = False
        spans = [
            Span(Sets.QUEUES, of, of + keys.BEHIND_ALL, QUEUE_FRONT, rows=Maps.JOBS)
            for of in map(keys.part, of_sessions)
        ]
        old = [Get(kind, tickets) for kind in where_answers_are(self._time())]
        seen = self._read(
            [*old, Get(Maps.KEYS, names), Get(Maps.JOBS, list(map(str, ids))), *spans]
        )
        self._looked = True
        if seen.head != self.batch:
            if seen.missed is None:
                raise TryAgainError(seen.head)
            self.catch_up(seen.missed)
        new_answers, old_answers, found, jobs, *fronts = cast(Sequence[Any], seen.answers)
        self._note_answers(tickets, (new_answers, old_answers))
        self._no_keys = {key for key, id in zip(names, found, strict=True) if id is None}
        self._held_jobs = self._records(zip(ids, jobs, strict=True))
        for session, texts in zip(of_sessions, fronts, strict=True):
            front = queues[session] = ListFront(place_of, QUEUE_FRONT)
            records = self._records((keys.id_in(text), row) for text, row in texts)
            front.extend(records, complete=len(texts) < QUEUE_FRONT)

    def _guess(
        self, tickets: Sequence[str], job_keys: Collection[str], sessions: Collection[str]
    ) -> None:
        """Take it that there is nothing of what acts look up by name; the commit compares."""
        self._guesses = tickets, job_keys, sessions
        self._answers = dict.fromkeys(tickets)
        self._no_keys = set(job_keys)
        for session in sessions:
            front = self._cache.queues[session] = ListFront(place_of, QUEUE_FRONT)
            front.complete = True

    def _time(self) -> float:
        """Return the store's time, and note by how much it is ahead of the storage's clock.

        A clock that is set moves what waits for a time by no more than the time since the last act.
        """
        assert self.batch is not None
        head, here = self.batch, self._here()
        server = self._server_at + here
        now = server + head.ahead
        if self._at is None:
            until = [info.lease_until for info in self.of(INSTANCES).values()]
            living = [lease for lease in until if head.clock < lease < math.inf]
            if living and self._others and now > head.clock + CLOCK_SET_BY:
                now = min(now, max(living))
        elif now > here + self._at + CLOCK_SET_BY:
            now = here + self._at  # it was set ahead: less has passed on the clock of this machine
        now = max(now, head.clock)
        self._ahead = head.ahead if abs(now - server - head.ahead) < 1e-6 else now - server
        self._at = now - here
        return now

    def joining_at(self) -> float | None:
        here = self._here()
        return self._now + here - self._read_at if here <= self._may_join_until else None

    def commit_acts(self, engine: Engine, acts: Sequence[HandedAct[Any]]) -> None:
        self._committing = any(act.write for act in acts)
        look = engine.work_ready or engine.work_elsewhere
        accepts = bool(engine.accepted)
        self.commit(look=look, news=engine.news, accepts=accepts)

    def commit(
        self, *, look: bool, news: Sequence[tuple[int, Ended | None]], accepts: bool = False
    ) -> None:
        """Commit the changes of this batch.

        Args:
          look: whether workers of other instances may find a job to claim.
          news: as in `Queues.news`, for tasks of other processes.
          accepts: whether jobs were accepted.

        Raises:
          TryAgainError: if another instance has committed before, or a guess was wrong.
        """
        assert self.batch is not None
        if self.writes == self._writes_before and not (self._is_unsure and self._may_write):
            if any(self._guesses):  # no commit compares them
                raise TryAgainError(self.batch, (), wrong=True)
            if not self._looked:
                seen = self._read([])
                if seen.head != self.batch:
                    raise TryAgainError(seen.head, seen.missed)
            self._tries = 0
            self.newest = self.batch.batch, self._now
            return
        writes, delta = self._written(told=self._others > 0)
        if self.batch == NO_HEAD:
            self._meta = {"store": uuid.uuid4().hex, "schema": SCHEMA}
            rows = {f"{Maps.META} {name}": text for name, text in self._meta.items()}
            writes.put.setdefault(Maps.WHOLE, {}).update(rows)
        self._made += 1
        id = f"{self._me}-{self._made}"
        head = Head(self.batch.batch + 1, id, self._number, self._now, self._ahead)
        tickets, job_keys, sessions = map(list, self._guesses)
        absent = dict.fromkeys(where_answers_are(self._now), tickets) | {Maps.KEYS: job_keys}
        # another one may listen of which this one does not know yet
        is_told = self._others or look or news
        batch = Batch(
            base=self.batch,
            head=head,
            writes=writes,
            delta=delta,
            absent={kind: names for kind, names in absent.items() if names},
            empty={Sets.QUEUES: list(map(keys.part, sessions))} if sessions else {},
            accepts=accepts,
            hint=self._hint(head, delta, look=look, news=news) if is_told else None,
            turn=self._lost >= LATE_IN_A_ROW,
        )
        began = self._here()
        self._came.clear()
        fate = self._storage.commit(batch)
        self._note(fate.time, began, fate.others)
        if not fate.done:
            self._raise_late(fate)
        self._is_unsure = False
        self._lost = 0
        self.batch = head
        self.newest = head.batch, head.clock
        self._end_batch()

    def _hint(
        self, head: Head, delta: str, *, look: bool, news: Sequence[tuple[int, Ended | None]]
    ) -> str:
        assert self.batch is not None
        told = [
            (id, None, None)
            if end is None or len(end.outcome) > LONG_OUTCOME
            else (id, end.state.value, end.outcome)
            for id, end in news[: NOTIFIED + 1]
        ]
        named = told if len(told) <= NOTIFIED else None
        of_head = head.batch, head.id, head.sequence, head.clock, head.ahead
        short = delta if len(delta) <= LONG_HINT else ""
        return json.dumps((look, named, self.batch.id, of_head, short), ensure_ascii=False)

    def _raise_late(self, fate: Fate) -> None:
        if fate.wait:
            raise TryAgainError(wait=fate.wait)
        if fate.wrong:
            raise TryAgainError(fate.head, (), wrong=True)
        self.late += 1
        self._lost += 1
        raise TryAgainError(fate.head, fate.missed)

    def undo_acts(
        self, acts: list[HandedAct[Any]], error: BaseException
    ) -> tuple[list[list[HandedAct[Any]]], BaseException, bool]:
        if isinstance(error, TryAgainError):
            self._undo_to_try_again(error)
            return [acts], error, False
        if isinstance(error, StorageError):
            self.forget()
            unknown = self._committing and error.unknown
            self._is_unsure |= unknown
            return [], self.translated(error), unknown
        self._put_back()
        again = [[act] for act in acts] if len(acts) > 1 else []
        return again, error, False

    def _put_back(self) -> None:
        """Undo what the acts of this batch have changed, and have guessed."""
        if self.batch is None:
            self.forget()
            return
        self.undo()
        for session in self._guesses[2]:
            self._cache.queues.pop(session, None)

    def translated(self, error: StorageError) -> StoreError:
        """Return an error as callers get it."""
        kind = StoreUnavailableError if error.passes else StoreError
        one = kind(f"{self._storage.name}: {error}")
        one.__cause__ = error
        return one

    def _undo_to_try_again(self, error: TryAgainError) -> None:
        self._put_back()
        if error.wrong:
            self._look_up = LOOKED_UP_AFTER
        if error.wait:
            self._came.wait(error.wait)  # until the other one has committed, or its turn is over
        elif error.head is not None and error.head != self.batch:
            if error.missed is None:
                self.forget()
            else:
                self.catch_up(error.missed)
        if not self._may_write:
            self._tries += 1

    def lose_patience(self) -> None:
        self._storage.cut()
