"""Every order of the calls that some instances make to a storage in memory, with faults.

An instance is `StorageTables`, an engine and an `ActThread` over a storage that stands still before
each `read`, before each `commit`, and before it waits for the turn of another. Hints come at once,
later or never, and each may be lost.

At a commit a fault may happen: its answer is lost; or all is lost; or its copy arrives at any later
moment, also of one that was answered; or the instance dies before it or after it. A read may fail.
At the end each image is what one is that has read all anew.

All that an instance does follows from what its calls have answered. So two orders that lead to the
same answers for all, and to the same batches, have the same end, and it is played once;
`number_of_orders` counts both.
"""

from __future__ import annotations

import gc
import math
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from copy import copy
from typing import Any, TypeAlias
from unittest import mock

from tests.durable import orders
from tests.durable.orders import LEASE, Dead, Story
from trio_lanes.durable._chain import batches, memory, rows
from trio_lanes.durable._chain.batches import StorageTables, TryAgainError, hint_of
from trio_lanes.durable._chain.memory import MemoryNamespace, MemoryStorage
from trio_lanes.durable._chain.storage import Batch, Fate, Head, Question, Seen, StorageError
from trio_lanes.durable._contract.protocol import REMEMBERED_FOR
from trio_lanes.durable._rules.engine import Engine
from trio_lanes.durable._rules.running import Running
from trio_lanes.durable._rules.tables import INSTANCES
from trio_lanes.durable._sql.act_thread import HandedAct
from trio_lanes.durable._sql.list_front import ListFront
from trio_lanes.durable._sql.rows import COLUMNS
from trio_lanes.durable._wire.codec import decode

EPOCH = REMEMBERED_FOR * 6_000_000 - LEASE / 2
"""The time in the beginning: if time passes, answers are kept in another map."""
AT_COMMITS = (
    "its answer is lost",
    "it is lost",
    "it comes late",
    "it comes twice",
    "dies before it",
    "dies after it",
)
AT_READS = ("it fails",)
COLUMNS_SEEN = ("id", "state", "session", "lane", "fence", "instance", "payload")
_PLACES = [COLUMNS.index(column) for column in COLUMNS_SEEN]

State: TypeAlias = tuple[Any, ...]


class Wire:
    """The storage of one instance: each call waits for its turn."""

    def __init__(self, instance: Instance, real: MemoryStorage) -> None:
        self.name = "it"
        self._instance = instance
        self.real = real

    def open(self) -> None:
        raise NotImplementedError

    def read(self, known: Head | None, questions: Sequence[Question]) -> Seen:
        instance = self._instance
        if instance.dying:
            raise Dead
        fault = instance.point("read")
        instance.learn("read", fault)
        if fault:
            raise StorageError("it fails")
        return self.real.read(known, questions)

    def commit(self, batch: Batch) -> Fate:
        instance = self._instance
        explorer = instance.explorer
        if instance.dying:
            raise Dead
        fault = instance.point("commit")
        before = instance.learned
        instance.learn("commit", fault)
        if fault == "dies before it":
            instance.dying = True
            raise Dead
        if fault in ("it comes late", "it comes twice"):
            acts = [copy(act) for act in instance.sealed]  # as they were decided
            explorer.copies.append((instance, batch, acts, before))
        if fault in ("it is lost", "it comes late"):
            raise StorageError("lost", unknown=True)
        fate = explorer.commit(instance, batch, instance.sealed, before)
        if fault == "dies after it":
            instance.dying = True
            raise Dead
        if fault == "its answer is lost":
            raise StorageError("lost", unknown=True)
        return fate

    def hints(self) -> AsyncGenerator[str | None]:
        raise NotImplementedError

    def cut(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


class _Came:
    """Takes the place of the event that is set at each hint: who waits for it has a turn, too."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    def clear(self) -> None:
        self._is_set = False

    def wait(self, seconds: float) -> None:
        if not self._is_set:
            self._instance.point("wait")
            if not self._is_set:
                self._instance.explorer.time += seconds
            self._instance.learn("wait", "")


class Instance(orders.Instance):
    """One instance, over a `Wire`."""

    explorer: Explorer

    def __init__(self, explorer: Explorer, place: int) -> None:
        super().__init__(explorer, place)
        self.learned = 0  # a number for all that its calls have answered
        real = MemoryStorage(explorer.memory)
        if explorer.story.listens:
            explorer.memory.listeners[real] = lambda hint: explorer.hinted(self, hint)
        self.wire = Wire(self, real)

    def open(self) -> None:
        explorer = self.explorer
        self.tables = tables = StorageTables(
            self.wire, self.id, lambda: explorer.time, lambda: None
        )
        tables._came = _Came(self)  # type: ignore[misc, assignment]
        tables.reads_homes = False
        while True:
            try:
                now = tables.begin(write=True)
                engine = Engine(tables, explorer.opening)
                engine.now = now
                tables.commit(look=False, news=())
            except TryAgainError as error:
                tables.undo_acts([], error)
            else:
                break
        self.act_over(tables, engine)

    def play(self, batches: Sequence[Sequence[Any]]) -> None:
        for batch in batches:
            if self.explorer.playing and self.explorer.story.idles:
                self.point("ask")
                all = self.explorer
                self.learned = all.number_of("ask", self.learned, all.time, all.newest_told)
            super().play([batch])

    def learn(self, what: str, fault: str) -> None:
        """Note of what the answer of a call, and all that comes behind it, is a function."""
        all = self.explorer
        self.learned = all.number_of(
            what, fault, self.learned, all.stored, all.turn, all.time, all.newest_told
        )


class Explorer(orders.Explorer):
    """Plays a story in every order.

    Attributes:
      memory: the storage of all.
      stored: a number for all batches that are in the storage.
      copies: the batches that may arrive yet: of whom, the batch, its acts, what made it.
    """

    epoch = EPOCH
    instances: list[Instance]

    def __init__(self, story: Story, broken: Callable[[], None] = lambda: None) -> None:
        self._numbers: dict[Any, int] = {}
        self._seen: dict[State, list[State]] = {}  # {state: those that may come next}
        super().__init__(story, broken)

    def new(self) -> None:
        super().new()
        if self.plays % 300 == 0:
            gc.collect()
        self.memory = MemoryNamespace(lambda: self.now)
        self.stored = 0
        self.hints: list[deque[str]] = [deque() for _ in self.story.acts]  # under way

    @property
    def turn(self) -> Any:
        """Whose turn it is, and until when."""
        turn = self.memory.turn
        if turn is None or turn[1] <= self.now:
            return None
        return next(one.place for one in self.instances if one.wire.real is turn[0]), turn[1]

    def number_of(self, *what: Any) -> int:
        """Return a number for something."""
        return self._numbers.setdefault(what, len(self._numbers) + 1)

    def explore(self, most: int = 100_000) -> int:
        with (
            mock.patch.object(batches, "LATE_IN_A_ROW", self.story.late),
            mock.patch.object(memory, "BATCHES_KEPT", self.story.kept),
        ):
            gc.disable()  # else it is chance how long records are known to nobody
            try:
                return super().explore(most)
            finally:
                gc.enable()

    def prepare(self) -> None:
        super().prepare()
        self._first_data = _copy(self.memory)

    def new_instance(self, place: int) -> Instance:
        return Instance(self, place)

    def restore(self) -> None:
        _put(self.memory, self._first_data)
        super().restore()

    # ---- one order

    def go_on(self) -> bool:
        self._at_state = self._state()
        self._seen.setdefault(self._at_state, [])
        return super().go_on()

    def is_known(self, before: Any, who: Any, what: str) -> bool:
        was, now = self._at_state, self._state()
        self._at_state = now
        if not self.is_new:
            return False
        self._seen[was].append(now)
        if now in self._seen:
            return True
        self._seen[now] = []
        return False

    def _state(self) -> State:
        is_bound = self.switches < math.inf
        return (
            self.stored,
            self.turn,
            tuple((one.learned, one.kind, one.dead) for one in self.instances),
            tuple((batch.head.id, made_by) for _, batch, _, made_by in self.copies),
            self.time,
            tuple(map(tuple, self.hints)),
            (self.faults, self.gone_back, self.times),
            (self.switches, self.last.place if self.last and is_bound else 0),
        )

    def number_of_orders(self) -> int:
        """Return how many orders there are, also those that lead to the same."""
        number: dict[State, int] = {}
        stack = [next(iter(self._seen))]
        while stack:
            state = stack[-1]
            unknown = [one for one in self._seen[state] if one not in number]
            if unknown:
                stack += unknown
            else:
                number[state] = sum(number[one] for one in self._seen[state]) or 1
                stack.pop()
        return number[next(iter(self._seen))]

    def faults_at(self, one: Instance) -> Sequence[str]:
        return {"commit": AT_COMMITS, "read": AT_READS}.get(str(one.kind), ())

    def hints_under_way(self) -> list[tuple[Any, str]]:
        return [
            (f"hint to {place}", what)
            for place, hints in enumerate(self.hints)
            if hints and self.instances[place].kind
            for what in ("comes", "is lost")
        ]

    def happen(self, who: str, what: str) -> None:
        super().happen(who, what)
        if what == "goes back":
            self.time += 0.001
            self.stored = self.number_of("back", self.stored)

    def arrive(self, *copy: Any) -> None:
        self.commit(*copy)

    def hear(self, who: str, what: str) -> None:
        place = int(who[8:])
        self._hear(self.instances[place], self.hints[place].popleft(), what)

    def hinted(self, to: Instance, hint: str) -> None:
        """Let an instance have a hint, now or later, if hints come."""
        if not self.playing or self.story.hints == "never":
            return
        if self.story.hints == "at once":
            self._hear(to, hint, "comes")
        else:
            self.hints[to.place].append(hint)

    def _hear(self, one: Instance, hint: str, what: str) -> None:
        if what == "comes":
            one.tables.hear(hint_of(hint))
            one.learned = self.number_of("hint", hint, one.learned)

    def commit(
        self, writer: Instance, batch: Batch, acts: Sequence[HandedAct[Any]], made_by: int
    ) -> Fate:
        """Commit a batch, and look at what has become of the jobs.

        Args:
          made_by: a number for all that has made it.
        """
        before = self.memory.newest
        fate = writer.wire.real.commit(batch)
        newest = self.memory.newest
        if newest != before:
            self.stored = self.number_of("batch", self.stored, batch.head.id, made_by)
            if newest.batch != before.batch + 1:
                self.note(f"the batch {newest.batch} follows {before.batch}")
            self.observe(writer, acts)
        return fate

    # ---- promises

    def observe(self, writer: Instance, acts: Sequence[HandedAct[Any]]) -> None:
        maps = self.memory.maps
        found = [rows.row_of(text) for text in maps.get("jobs", {}).values()]
        leases = {}
        beginning = f"settings {INSTANCES.name}\0"
        for key, text in maps.get("whole", {}).items():
            if key.startswith(beginning):
                info = decode(text)
                leases[info.id] = info.lease_until
        jobs = sorted(tuple(row[place] for place in _PLACES) for row in found)
        self.look_at(jobs, leases, writer, acts)

    def compare(self, one: Instance) -> None:
        compare(caught_up(one.tables), self._anew())

    def _anew(self) -> StorageTables:
        """Return an image that has read all anew."""
        storage = MemoryStorage(self.memory)
        return caught_up(StorageTables(storage, "", lambda: self.time, lambda: None))

    def state_of_tables(self) -> Any:
        maps = self.memory.maps
        return tuple(frozenset(maps.get(kind, {}).items()) for kind in ("jobs", "whole"))

    def look(self) -> tuple[Any, float]:
        tables = self._anew()
        return tables, tables.begin(write=False)


def _copy(of: MemoryNamespace) -> Any:
    maps = {kind: dict(rows) for kind, rows in of.maps.items()}
    return list(of.chain), maps, {kind: list(texts) for kind, texts in of.sets.items()}


def _put(into: MemoryNamespace, data: Any) -> None:
    chain, maps, sets = data
    into.chain.clear()
    into.chain.extend(chain)
    into.maps.clear()
    into.maps.update({kind: dict(rows) for kind, rows in maps.items()})
    into.sets.clear()
    into.sets.update({kind: list(texts) for kind, texts in sets.items()})
    into.turn = None


def caught_up(tables: StorageTables) -> StorageTables:
    """Bring an image up to date."""
    while True:
        tables.hear(None)
        try:
            tables.begin(write=False)
            tables.commit(look=False, news=())
        except TryAgainError as error:
            tables.undo_acts([], error)
        else:
            return tables


# ---- images


def compare(one: Any, anew: Any) -> None:
    """Compare an image with one that has read all anew."""
    assert one.batch == anew.batch, "batch"
    assert one.requests_of(None) == anew.requests_of(None), "requests"
    for what in ("_schedules", "_meters", "_steps", "_meta"):
        assert getattr(one, what) == getattr(anew, what), what
    assert _full(one._settings) == _full(anew._settings), "settings"
    assert _full(one._numbers) == _full(anew._numbers), "numbers"
    cache, true = one._cache, anew._cache
    assert not _full(cache.uncounted), "uncounted"
    assert cache.counts.all() == true.counts.all(), "counts"
    assert cache.counts.waiting == true.counts.waiting, "waiting"
    assert _full(cache.counts.bound) == _full(true.counts.bound), "bound"
    if cache.runs is not None:
        assert _shown(cache.runs) == _shown(true.runs), "runs"
    if cache.suspected is not None:
        assert set(cache.suspected) == set(anew.suspected()), "suspected"
    first, over = anew._first_time(), anew._first_over()
    assert cache.parked_until is None or cache.parked_until <= first, "parked_until"
    assert cache.kept_until is None or cache.kept_until <= over, "kept_until"
    for meter, marks in one._marks.items():
        assert list(marks) == list(anew.marks(meter)), meter
    jobs = {job.id: job for job in anew._first_of("states", "", 2**62)}
    for id, job in known_of(one).items():
        assert id in jobs, f"{id} is not there"
        mine, its = (rows.values(of) for of in (job, jobs[id]))
        assert mine == its, f"{mine}, it is {its}"
    for session, front in cache.queues.items():
        _same(front, [job for job in jobs.values() if job.session == session])
    for (lane, priority, name, ring), front in cache.lists.items():
        key = lane, priority, name, ring
        _same(front, [j for j in jobs.values() if (j.lane, j.priority, j.name, j.ring) == key])


def known_of(tables: Any) -> dict[int, Any]:
    """Return the records that an image has, by id."""
    known = tables._known
    found = {id: known.get(id) for id in [*known._references]}
    return {id: job for id, job in found.items() if job is not None}


def _full(of: Any) -> Any:
    return {key: value for key, value in of.items() if value}


def _shown(running: Running) -> Any:
    special = {id for id, job in running._special.items()}
    return _full(running._holding), _full(running._not_lent), special, set(running._records)


def _same(front: ListFront, jobs: Sequence[Any]) -> None:
    place_of = front._place_of
    known = [job.id for place, job in front._entries if place_of(job) == place]
    placed = sorted((place, job.id) for job in jobs if (place := place_of(job)) is not None)
    true = [id for _, id in placed]
    assert known == true[: len(known)], f"a front of {known}, it is {true}"
    assert known == true or not front.complete, f"all of {known}, it is {true}"
