"""Every order of the calls that some instances make to a storage in memory, with faults.

An instance is `StorageTables`, an engine and an `ActThread` over a storage that stands still before
each `read`, before each `commit`, and before it waits for the turn of another. Hints come at once,
later or never, and each may be lost.

At a commit a fault may happen: its answer is lost; or all is lost; or its copy arrives at any later
moment, also of one that was answered; or the instance dies before it or after it. A read may fail.
Time may pass, so that leases end, and the storage may go back to what it had in the beginning.
After each commit and at the end of each order the promises are compared with the maps, and at the
end the images, too: each is what one is that has read all anew. Where a lease ended or an instance
died, another one comes and runs what is left.

All that an instance does follows from what its calls have answered. So two orders that lead to the
same answers for all, and to the same batches, have the same end, and it is played once; `orders`
counts both, and `plays` one.
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
from trio_lanes.durable._rules.queues import Queues
from trio_lanes.durable._rules.running import Running
from trio_lanes.durable._rules.tables import INSTANCES
from trio_lanes.durable._sql.act_thread import ActThread, HandedAct
from trio_lanes.durable._sql.list_front import ListFront
from trio_lanes.durable._sql.rows import COLUMNS
from trio_lanes.durable._wire.codec import decode
from trio_lanes.durable.acts.inspection import Check

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
        fault = instance.point_or_none("read")
        instance.learn("read", fault)
        if fault:
            raise StorageError("it fails")
        return self.real.read(known, questions)

    def commit(self, batch: Batch) -> Fate:
        instance = self._instance
        explorer = instance.explorer
        if instance.dying:
            raise Dead
        fault = instance.point_or_none("commit")
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
            self._instance.point_or_none("wait")
            if not self._is_set:
                self._instance.explorer.time += seconds
            self._instance.learn("wait", "")


class Instance(orders.Instance):
    """One instance, over a `Wire`."""

    def __init__(self, explorer: Explorer, place: int) -> None:
        super().__init__(explorer, place)
        self.explorer = explorer
        self.learned = 0  # a number for all that its calls have answered
        real = MemoryStorage(explorer.memory)
        if explorer.story.listens:
            explorer.memory.listeners[real] = lambda hint: explorer.hinted(self, hint)
        self.wire = Wire(self, real)

    def open(self) -> None:
        """Read an image."""
        explorer = self.explorer
        self.tables = tables = StorageTables(
            self.wire, self.id, {"a"}, lambda: explorer.time, lambda: None
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
        commit_acts = tables.commit_acts

        def commit(engine: Engine, acts: Sequence[HandedAct[Any]]) -> None:
            self.sealed = acts
            commit_acts(engine, acts)

        tables.commit_acts = commit  # type: ignore[method-assign]
        self.thread = ActThread("it", tables, engine, 5.0, lambda *_: None)

    def play(self, batches: Sequence[Sequence[Any]]) -> None:
        for batch in batches:
            if self.explorer.playing and self.explorer.story.idles:
                self.point("ask")
                all = self.explorer
                self.learned = all.number_of("ask", self.learned, all.time, all.newest_told)
            super().play([batch])

    def point_or_none(self, kind: str) -> str:
        """Stand before a trip; but not before or after the orders that are explored."""
        return self.point(kind) if self.explorer.playing else ""

    def learn(self, what: str, fault: str) -> None:
        """Note of what the answer of a call, and all that comes behind it, is a function."""
        all = self.explorer
        self.learned = all.number_of(
            what, fault, self.learned, all.stored, all.turn, all.time, all.newest_told
        )


class Explorer(orders.Explorer):
    """Plays a story in every order.

    Args:
      broken: breaks the library, when all has happened that is the same in each order.

    Attributes:
      memory: the storage of all.
      time: of all clocks, in seconds since the beginning.
      stored: a number for all batches that are in the storage.
      copies: the batches that may arrive yet: of whom, the batch, its acts, what made it.
      plays: how many orders were played; `orders` has those that are the same, too.
    """

    instances: list[Instance]

    def __init__(self, story: Story, *, broken: Callable[[], None] = lambda: None) -> None:
        self.playing = False
        self._break = broken
        self.plays = 0
        self._numbers: dict[Any, int] = {}
        self._seen: dict[State, list[State]] = {}  # {state: those that may come next}
        self._checked: set[Any] = set()  # the maps of which all is known
        super().__init__(story)

    def new(self) -> None:
        super().new()
        self.time = 0.0
        self.stored = 0
        self.copies: list[tuple[Instance, Batch, Sequence[HandedAct[Any]], int]] = []
        self.hints: list[deque[str]] = [deque() for _ in self.story.acts]  # under way
        self._times = 0

    @property
    def now(self) -> float:
        return EPOCH + self.time

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
            mock.patch("trio.lowlevel.current_trio_token"),
            mock.patch.object(batches, "LATE_IN_A_ROW", self.story.late),
            mock.patch.object(memory, "BATCHES_KEPT", self.story.kept),
        ):
            self._prepare()
            self._break()
            gc.disable()  # else it is chance how long records are known to nobody
            try:
                super().explore(most)
            finally:
                gc.enable()
        return self.orders

    def _prepare(self) -> None:
        self.memory = MemoryNamespace(lambda: self.now)
        self._new_instances()
        for one in self.instances:
            one.join()
        for one, acts in zip(self.instances, self.story.before, strict=False):
            one.play(acts)
        assert not self.wrong, self.wrong
        self._first = _copy(self.memory)
        self._first_of = [(one.number, one.runs, one._claimed_to) for one in self.instances]
        self._first_told = dict(self.told), self.newest_told
        self._first_seen = dict(self.labels), dict(self.jobs), dict(self.leases)

    def _new_instances(self) -> None:
        self.instances = [Instance(self, place) for place in range(len(self.story.acts))]
        for one in self.instances:  # now that all listen
            one.open()

    # ---- one order

    def play(self) -> bool:
        self.new()
        self.plays += 1
        if self.plays % 300 == 0:
            gc.collect()
        self.memory = MemoryNamespace(lambda: self.now)
        self._restore()
        self._new_instances()
        for one, (number, runs, claimed_to) in zip(self.instances, self._first_of, strict=True):
            one.number, one.runs, one._claimed_to = number, dict(runs), claimed_to
        self.told, self.newest_told = dict(self._first_told[0]), self._first_told[1]
        self.playing = True
        try:
            for one, acts in zip(self.instances, self.story.acts, strict=True):
                one.start(acts)
            return self._go_on()
        finally:
            self.playing = False
            for one in self.instances:
                if one.kind:
                    one.go("end")

    def _go_on(self) -> bool:
        faults, switches = self.story.faults, self.story.switches
        last: Instance | None = None
        state = self._state(faults, switches, last)
        self._seen.setdefault(state, [])
        while options := self._options(faults, switches, last):
            who, what = options[self.choose(len(options)) if len(options) > 1 else 0]
            self.way.append(f"{who.id if isinstance(who, Instance) else who} {what}".strip())
            if isinstance(who, Instance):
                is_fault = what in AT_COMMITS or what in AT_READS
                faults -= is_fault
                switches -= last is not None and who is not last and last.kind is not None
                last = who
                who.go(what if is_fault else "")
            else:
                self._happen(who, what)
            self.tell()
            before, state = state, self._state(faults, switches, last)
            if self.is_new:
                self._seen[before].append(state)
                if state in self._seen:
                    return True
                self._seen[state] = []
        self.playing = False
        self._look_at_end()
        self.tell()
        return True

    def _state(self, faults: int, switches: float, last: Instance | None) -> State:
        is_bound = switches < math.inf
        return (
            self.stored,
            self.turn,
            tuple((one.learned, one.kind, one.dead) for one in self.instances),
            tuple((batch.head.id, made_by) for _, batch, _, made_by in self.copies),
            self.time,
            tuple(map(tuple, self.hints)),
            (faults, self.gone_back, self._times),
            (switches, last.place if last and is_bound else 0),
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

    def _options(
        self, faults: int, switches: float, last: Instance | None
    ) -> list[tuple[Any, str]]:
        """Return what may come next: an instance and its trip or a fault, or what happens."""
        options: list[tuple[Any, str]] = []
        free = [one for one in self.instances if one.kind]
        if last in free and switches <= 0:
            free = [last]
        kinds = self.story.kinds
        for one in free:
            assert one.kind is not None
            options.append((one, one.kind))
            if faults and one.kind in ("read", "commit"):
                of = AT_COMMITS if one.kind == "commit" else AT_READS
                options += [(one, fault) for fault in of if not kinds or fault in kinds]
        options += [(f"copy {number}", "arrives") for number in range(len(self.copies))]
        if free:
            for place, hints in enumerate(self.hints):
                if hints and self.instances[place].kind:
                    options.append((f"hint to {place}", "comes"))
                    options.append((f"hint to {place}", "is lost"))
            if self._times < self.story.time:
                options.append(("time", "passes"))
            if self.story.back and not self.gone_back:
                options.append(("the storage", "goes back"))
        return options

    def _happen(self, who: str, what: str) -> None:
        if who.startswith("copy"):
            self.commit(*self.copies.pop(int(who[5:])))
        elif who.startswith("hint"):
            place = int(who[8:])
            self._hear(self.instances[place], self.hints[place].popleft(), what)
        elif who == "time":
            self._times += 1
            self.time += LEASE * 2 / 3
        else:
            self.gone_back = True
            self.time += 0.001
            self._restore()
            self.decided.clear()
            self.stored = self.number_of("back", self.stored)

    def _restore(self) -> None:
        _put(self.memory, self._first)
        labels, jobs, leases = self._first_seen
        self.labels, self.jobs, self.leases = dict(labels), dict(jobs), dict(leases)

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
            self._observe(writer, acts)
        return fate

    # ---- promises

    def _observe(self, writer: Instance, acts: Sequence[HandedAct[Any]]) -> None:
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

    def _look_at_end(self) -> None:
        for each in self.instances:
            each.dying = False  # its storage is used to look
        self._observe(self.instances[0], ())
        alive = self.look_at_end()
        for one in alive:
            assert isinstance(one, Instance)
            try:
                compare(caught_up(one.tables), self._anew())
            except AssertionError as error:
                self.note(f"the image of {one.id}: {' '.join(str(error).split())[:400]}")
        if self._check() and (self.story.time or len(alive) < len(self.instances)):
            self.time += 2 * LEASE
            later = Instance(self, len(self.instances))
            later.open()
            self.instances.append(later)
            self.look_at_rest(later)

    def _anew(self) -> StorageTables:
        """Return an image that has read all anew."""
        storage = MemoryStorage(self.memory)
        return caught_up(StorageTables(storage, "", (), lambda: self.time, lambda: None))

    def _check(self) -> bool:
        """Let the store check itself, unless it has had the same maps; return whether it was."""
        maps = self.memory.maps
        state = tuple(frozenset(maps.get(kind, {}).items()) for kind in ("jobs", "whole"))
        if state in self._checked:
            return False
        self._checked.add(state)
        tables = self._anew()
        queues = Queues(tables, self.opening)
        queues.now = tables.begin(write=False)
        problems = Check().answer(queues).problems
        if problems:
            self.note(f"{problems}")
        return True


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
    for what in ("_requests", "_request_rows", "_schedules", "_schedule_rows", "_meters"):
        assert getattr(one, what) == getattr(anew, what), what
    for what in ("_steps", "_meta"):
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
