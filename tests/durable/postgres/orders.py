"""Every order of the trips of some instances to one namespace, with faults.

An `Explorer` plays a `Story` again and again on the tests' server, each time in another order,
until no order is left. Each instance is a thread that stands still before each trip; one goes on
at a time. What it does is the code of the library from `ActThread._do` on: the thread of a store
and its connections alone are left out. Notices come at once, later or never. Most stories bound how
often an instance that could go on waits for others (`Story.switches`).

At a commit a fault may happen: the answer is lost; or all is lost; or its copy arrives at any
later moment; or the instance dies before it or after it. Time may pass, so that leases end, and the
server may go back to what it had in the beginning. After each commit and at the end of each order
the promises are compared with the tables, and at the end the caches, too. Where a lease ended or an
instance died, another one comes and runs what is left.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any, Literal
from unittest import mock

import attrs
import psycopg
from outcome import Error, Value
from psycopg import sql

from trio_lanes import LaneFullError
from trio_lanes.durable import (
    Finish,
    LaneLimit,
    Opening,
    StoreUnavailableError,
    SubmittedJob,
    Succeeded,
)
from trio_lanes.durable._contract.act import Act, Lookups
from trio_lanes.durable._postgres import tables as module
from trio_lanes.durable._postgres.batch import FUNCTIONS
from trio_lanes.durable._postgres.link import connect
from trio_lanes.durable._postgres.read_ahead import Asked
from trio_lanes.durable._postgres.schema import channel_of, naming, prepare
from trio_lanes.durable._rules.engine import Engine
from trio_lanes.durable._rules.queues import Queues
from trio_lanes.durable._sql.act_thread import ActThread, HandedAct
from trio_lanes.durable.acts.inspection import Check
from trio_lanes.durable.acts.jobs import Enqueue
from trio_lanes.durable.acts.locks import Acquire, Release
from trio_lanes.durable.acts.runs import Compare

LEASE = 30.0
"""Seconds of a lease."""
EPOCH = 1_800_000_000.0
MOST_TRIPS = 60
"""How many trips an instance makes at most, in one order."""
FAULTS = ("its answer is lost", "it is lost", "it comes late", "dies before it", "dies after it")
ROOM = 9
TABLES = (
    *("jobs", "counts", "settings", "lists", "requests", "marks", "answers", "steps"),
    *("deltas", "listeners"),
)
STATE = "SELECT " + ", ".join(
    f"(SELECT md5(string_agg({name}::text, ' ' ORDER BY {name}::text)) FROM {name})"
    for name in ("jobs", "counts", "settings", "requests")
)
LIVE = ("waiting", "parked", "running")


class Wrong(Exception):
    """A promise was broken; the text says which, and in which order."""


class Dead(BaseException):
    """The instance has died."""


@attrs.frozen
class Job:
    """An instance submits a job; ``label`` is its payload."""

    label: str
    session: str | None = None
    lane: str = "main"
    key: str | None = None


@attrs.frozen
class Claim:
    """An instance takes a step: it finishes what it runs if ``ends``, and claims."""

    room: int = 1
    ends: bool = False


@attrs.frozen
class Beat:
    """An instance sends a heartbeat."""


@attrs.frozen
class Compared:
    """An instance compares what it runs with what the store has."""


@attrs.frozen
class Lock:
    """An instance asks for the lock ``k``."""


@attrs.frozen
class Unlock:
    """An instance ends its oldest request for it."""


@attrs.frozen
class Order:
    """An operator orders something."""

    act: Act[Any]


@attrs.frozen
class Sql:
    """A transaction of the user's submits a job: a trip, and another for its commit."""

    label: str


@attrs.frozen
class Story:
    """What some instances do.

    Attributes:
      acts: by instance, the batches of acts that it asks for.
      before: the same, before the orders differ.
      lanes: the limits of the lanes.
      faults: how many faults happen at most.
      kinds: which faults.
      time: how often two thirds of a lease pass at some moment.
      back: whether the server goes back at some moment to what it had in the beginning.
      notices: when they come.
      switches: how often an instance that could go on waits for others at most.
      lock: after how many batches that came late an instance takes the lock.
    """

    acts: Sequence[Any]
    before: Sequence[Any] = ()
    lanes: dict[str, LaneLimit] = attrs.field(factory=lambda: {"main": LaneLimit(9)})
    faults: int = 0
    kinds: Sequence[str] = FAULTS
    time: int = 0
    back: bool = False
    notices: Literal["never", "at once", "later"] = "never"
    lock: int = 2
    switches: float = math.inf


class Wire:
    """A connection of an instance: each trip waits for its turn."""

    def __init__(self, instance: Instance, real: psycopg.Connection) -> None:
        self._instance = instance
        self._explorer = instance.explorer
        self._real = real
        self.closed = False
        self._piped = False
        self._began = False  # whether the pipeline has had its turn
        self._after: BaseException | None = None
        self._commits = False
        self._notices = False

    def execute(self, statement: Any, values: Any = ()) -> Any:
        text = statement if isinstance(statement, bytes) else statement.encode()
        if self._instance.dying:
            raise Dead
        if not self._began:
            self._began = self._piped
            self._turn(text, statement, values)
        if text == b"COMMIT" or b"put_batch(" in text:
            self._commits = True
        if b"pg_notify" in text:
            self._notices = True
        cursor = self._real.execute(statement, values)
        if not self._piped:
            self._done()
        return cursor

    @contextmanager
    def pipeline(self) -> Iterator[Any]:
        self._piped, self._began = True, False
        try:
            with self._real.pipeline() as pipeline:
                yield pipeline
        finally:
            self._piped = self._began = False
        self._done()

    def _turn(self, text: bytes, statement: Any, values: Any) -> None:
        explorer, instance = self._explorer, self._instance
        is_commit = b"put_batch(" in text
        has_lock = explorer.owner is instance
        if not explorer.playing or (self._real.info.transaction_status and not is_commit):
            return
        kind = "commit" if is_commit else "begin" if text == b"BEGIN" else "look"
        fault = instance.point(kind, has_lock)
        if kind == "begin":
            explorer.owner = instance
        if fault == "dies before it":
            instance.dying = True
            raise Dead
        if fault in ("it is lost", "it comes late"):
            if fault == "it comes late":
                acts = [copy(act) for act in instance.sealed]  # as they were decided
                explorer.copies.append((instance, statement, values, acts))
            self.closed = True
            raise psycopg.OperationalError("lost")
        if fault:
            self._after = Dead() if fault == "dies after it" else psycopg.OperationalError("lost")

    def _done(self) -> None:
        explorer = self._explorer
        if self._commits:
            self._commits = False
            if not self._real.info.transaction_status and explorer.owner is self._instance:
                explorer.owner = None
            explorer.observe(self._instance, self._instance.sealed)
        if self._notices:
            self._notices = False
            explorer.notify(self._instance)
        after, self._after = self._after, None
        if after is not None:
            self._instance.dying = isinstance(after, Dead)
            self.closed = not self._instance.dying
            raise after

    def cursor(self, **options: Any) -> Any:
        return self._real.cursor(**options)

    def rollback(self) -> None:
        self._commits, self._after = False, None  # it was refused
        self._real.rollback()
        if self._explorer.owner is self._instance:
            self._explorer.owner = None


class Link:
    """Takes the place of a `PostgresLink`."""

    patience = 5.0

    def __init__(self, instance: Instance, real: psycopg.Connection) -> None:
        self._of = instance, real
        self._wire = Wire(*self._of)

    def connected(self) -> Wire:
        if self._wire.closed:
            self._wire = Wire(*self._of)
        return self._wire

    def close(self) -> None:
        self._wire.closed = True


class Instance:
    """One instance: what it knows, and the thread in which it acts."""

    def __init__(self, explorer: Explorer, place: int, real: psycopg.Connection) -> None:
        self.explorer = explorer
        self.id = f"me{place}"
        self.place = place
        self.real = real
        self.kind: str | None = None  # of the trip before which it stands
        self.has_lock = False
        self.sealed: Sequence[HandedAct[Any]] = ()  # the acts of the batch that it commits
        self.dying = self.dead = False
        self.runs: dict[int, int] = {}  # {id: fence}, that it was told of and has not ended
        # {id: the fence; None: it waited}, of its requests that it was told of and has not ended
        self.requests: dict[int, float | None] = {}
        self.number = 0
        self._trips = self._ticks = self._claimed_to = 0
        self._fault = ""
        self._go = threading.Lock()
        self._go.acquire()
        named, channel = explorer.named, channel_of(explorer.namespace)
        link: Any = Link(self, real)
        self.tables = module.PostgresTables(
            *(link, "it", named, channel, self.id, {"a"}, self._clock, lambda: None),
            works=False,
        )
        self.tables.begin([Lookups(room=ROOM)], write=True)
        self.tables.reads_homes = False
        self.engine = Engine(self.tables, explorer.opening)
        self.tables.commit(False, ())
        self.tables._locks = False  # but for what is submitted in SQL
        commit_acts = self.tables.commit_acts

        def commit(engine: Engine, acts: Sequence[HandedAct[Any]]) -> None:
            self.sealed = acts
            commit_acts(engine, acts)

        self.tables.commit_acts = commit  # type: ignore[method-assign]
        with mock.patch("trio.lowlevel.current_trio_token"):
            self._thread = ActThread("it", self.tables, self.engine, 5.0, lambda *_: None)

    def _clock(self) -> float:
        return self.explorer.time + self._ticks * 1e-5

    # ---- turns

    def point(self, kind: str, has_lock: bool) -> str:
        """Stand before a trip until it is its turn; return the fault that happens."""
        self._trips += 1
        if self._trips > MOST_TRIPS:
            self.dying = True
            self.explorer.note("an act is done again and again")
            raise Dead
        self.kind, self.has_lock = kind, has_lock
        self.explorer.baton.release()
        self._go.acquire()
        self.kind = None
        if self._fault == "end":
            self.dying = True
            raise Dead
        return self._fault

    def go(self, fault: str = "") -> None:
        """Let it make its trip, and what comes behind it up to the next."""
        self._fault = fault
        self._go.release()
        self.explorer.baton.acquire()

    def start(self, batches: Sequence[Sequence[Any]]) -> None:
        """Let it go up to its first trip."""
        threading.Thread(target=self._live, args=[batches], daemon=True).start()
        self.explorer.baton.acquire()

    def _live(self, batches: Sequence[Sequence[Any]]) -> None:
        try:
            self.play(batches)
        except Dead:
            self.dead = self.dying = True
            self.real.rollback()
            if self.explorer.owner is self:
                self.explorer.owner = None
        except BaseException as error:
            self.explorer.note(repr(error))
        finally:
            self.explorer.baton.release()

    # ---- acts

    def play(self, batches: Sequence[Sequence[Any]]) -> None:
        for batch in batches:
            if isinstance(batch[0], Sql):
                self._submit(batch[0])
            else:
                self._ask([self._asked(one) for one in batch])

    def _submit(self, one: Sql) -> None:
        if self.explorer.playing:
            self.point("look", False)
        self.real.execute("BEGIN")
        submit = f"SELECT {self.explorer.namespace}.submit('a', payload => '\"{one.label}\"')"
        self.real.execute(submit.encode())
        if self.explorer.playing:
            self.point("look", False)
        self.real.execute("COMMIT")
        self.explorer.submitted.append(one.label)
        for other in self.explorer.instances:
            other.tables.hint(lock=True)

    def _asked(self, one: Any) -> tuple[Any, Any, str, Lookups, list[Finish]]:
        me = self.id
        finished: list[Finish] = []
        if isinstance(one, Job):
            job = SubmittedJob(
                name="a",
                payload=f'"{one.label}"',
                session=one.session,
                lane=one.lane,
                key=one.key,
            )
            act: Any = Enqueue([job])
            return one, act.apply, f"{me} {one.label}", act.lookups, finished
        if isinstance(one, Order):
            self.number += 1
            return one, one.act.apply, f"{me} {self.number}", Lookups(), finished
        if isinstance(one, (Compared, Lock, Unlock)):
            self.number += 1
            compare = Compare(tuple(self.runs.values()), self._claimed_to, (), 0)
            ended = next(iter(self.requests), 0)
            acts = {Compared: compare, Lock: Acquire("k", False), Unlock: Release(ended, True)}
            of: Any = acts[type(one)]

            def apply(engine: Engine) -> Any:
                engine.caller = me
                return of.apply(engine)

            return one, apply, f"{me} {self.number}", Lookups(), finished
        if isinstance(one, Beat):
            return one, lambda all: all.beat(me, all.now + LEASE), "", Lookups(), finished
        self.number += 1
        number, room = self.number, one.room
        if one.ends:
            finished += [Finish(id, fence, Succeeded("1")) for id, fence in self.runs.items()]
        lookups = Lookups(ids=[finish.id for finish in finished], room=room)
        return one, lambda all: all.step(me, number, finished, room), "", lookups, finished

    def _ask(self, asked: list[Any]) -> None:
        """Ask for acts, and again while it is not known whether they have happened."""
        explorer = self.explorer
        newest = explorer.newest_told
        while asked:
            acts = []
            for _, call, ticket, lookups, _ in asked:
                acts.append(HandedAct(call, None, ticket, True, lookups, 9e9, lambda _: None))
            self._ticks += 1 + self.place  # so that no two give the same numbers
            self._thread._do(list(acts))
            if self.dying:
                raise Dead
            again = []
            for one, act in zip(asked, acts, strict=True):
                error = act.outcome.error if isinstance(act.outcome, Error) else None
                if isinstance(error, StoreUnavailableError):
                    if error.unknown:
                        again.append(one)
                    elif isinstance(one[0], Job):
                        explorer.not_happened.add(one[0].label)
                    continue
                if error is not None and not isinstance(error, LaneFullError):
                    explorer.note(f"{self.id} got {error!r}")
                    continue
                self._told(one, act, newest)
            asked = again

    def _told(self, asked: Any, act: HandedAct[Any], newest: int) -> None:
        explorer = self.explorer
        one, _, ticket, _, finished = asked
        if ticket:
            decided = explorer.decided.get(ticket)
            if decided is None or not same(decided, act.outcome):
                explorer.note(f"{ticket}: told {act.outcome}, decided was {decided}")
        if not isinstance(act.outcome, Value):
            return
        answer = act.outcome.value
        if isinstance(one, Job):
            (id,) = answer
            explorer.told[id] = one.label
            if one.key is None and id <= newest:
                explorer.note(f"{one.label} has the number {id}, and {newest} was told before")
            explorer.newest_told = max(explorer.newest_told, id)
        elif isinstance(one, Lock) and answer is not None:
            id, fence = answer
            self.requests[id] = fence
        elif isinstance(one, Unlock) and self.requests:
            del self.requests[min(self.requests)]
        elif isinstance(one, Claim):
            for finish in finished:
                self.runs.pop(finish.id, None)
                if finish.fence in answer.stale:
                    if explorer.has_lease(self) and not explorer.gone_back:
                        explorer.note(f"the run {finish.id} of {self.id} was taken from it")
                else:
                    explorer.ended.append(finish.id)
            if len(answer.claims) > one.room:
                explorer.note(f"{self.id} has no place for {answer.claims}")
            for claim in answer.claims:
                if claim.id in self.runs:
                    explorer.note(f"{self.id} was told twice to run {claim.id}")
                self.runs[claim.id] = claim.fence
                self._claimed_to = max(self._claimed_to, claim.fence)


def same(one: Any, other: Any) -> bool:
    """Whether two outcomes are the same."""
    if isinstance(one, Value):
        return bool(one == other)
    return isinstance(other, Error) and repr(one.error) == repr(other.error)


class Explorer:
    """Plays a story in every order.

    Args:
      compare: compares the cache of an instance with the tables.
    """

    def __init__(
        self,
        dsn: str,
        namespace: str,
        story: Story,
        compare: Callable[[Any], None],
    ) -> None:
        self.namespace = namespace
        self.named = naming(namespace)
        self.story = story
        self._compare = compare
        number = len(story.acts)
        self._reals = [connect(dsn, 5.0, made=lambda _: None) for _ in range(number)]
        self._observer = connect(dsn, 5.0, made=lambda _: None)
        self.opening = Opening(
            names=frozenset({"a"}),
            lanes=story.lanes,
            max_crashes=3,
            hold=False,
            result_ttl=1e6,
            lease_ttl=LEASE,
            worker=True,
        )
        self.baton = threading.Lock()
        self.baton.acquire()
        self.orders = 0
        self._checked: set[Any] = set()  # the tables of which all is known
        self._new()
        self._prepare()

    def close(self) -> None:
        """Close the connections."""
        for real in (*self._reals, self._observer):
            real.close()

    # ---- what is the same in each order

    def _prepare(self) -> None:
        observer, namespace = self._observer, self.namespace
        prepare(observer, namespace, "the test's server", 1024 * 1024)
        saved = "".join(f"CREATE TABLE saved_{name} (LIKE {name});" for name in TABLES)
        restored = "".join(
            f"DELETE FROM {name}; INSERT INTO {name} SELECT * FROM saved_{name};" for name in TABLES
        )
        text = f"""
            SET search_path = {namespace};
            CREATE TABLE test_time (now double precision);
            INSERT INTO test_time VALUES ({EPOCH});
            CREATE OR REPLACE FUNCTION server_time() RETURNS double precision LANGUAGE sql VOLATILE
                AS $$ SELECT now FROM {namespace}.test_time $$;
            {saved}
            CREATE FUNCTION restore() RETURNS void LANGUAGE plpgsql
                SET search_path = {namespace} AS $$ BEGIN
                {restored} DELETE FROM submissions; UPDATE test_time SET now = {EPOCH};
                END $$;
        """
        observer.execute(text.encode())
        self._new_instances()
        for instance in self.instances:
            listens = "INSERT INTO listeners VALUES (%s, 'infinity')"
            observer.execute(listens, (instance.id,))
        for instance in self.instances:
            join = self._joining(instance)
            instance._thread._do([join])
            assert isinstance(join.outcome, Value), join.outcome
        for instance, batches in zip(self.instances, self.story.before, strict=False):
            instance.play(batches)
        assert not self._wrong, self._wrong
        for name in TABLES:
            observer.execute(f"INSERT INTO saved_{name} SELECT * FROM {name}".encode())
        self._first = [(one.number, one.runs, one.requests) for one in self.instances]
        self._first_told = dict(self.told)
        self._first_seen = dict(self._labels), dict(self._jobs), self._newest

    def break_(self, broken: Callable[[], None] | None, change: tuple[str, str] | None) -> None:
        """Break the library, or the functions of the schema, in all orders from here on.

        Args:
          change: a text of the functions, and what takes its place.
        """
        if broken is not None:
            broken()
        if change is not None:
            assert change[0] in FUNCTIONS
            text = FUNCTIONS.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION")
            one: Any = text.replace(*change)
            self._observer.execute(sql.SQL(one).format(schema=sql.Identifier(self.namespace)))

    def _joining(self, instance: Instance) -> HandedAct[Any]:
        def join(engine: Engine) -> None:
            engine.join(instance.id, lease_until=engine.now + LEASE)

        return HandedAct(join, None, "", True, Lookups(), 9e9, lambda _: None)

    def _new_instances(self) -> None:
        self.instances = [Instance(self, place, real) for place, real in enumerate(self._reals)]

    def _new(self) -> None:
        self.playing = False
        self.time = 1000.0
        self.owner: Instance | None = None  # who has the lock
        self.copies: list[tuple[Instance, Any, Any, Sequence[HandedAct[Any]]]] = []
        self.gone_back = False
        self._notified: list[Instance] = []  # whom notices are under way to
        self.times = 0  # how often time has passed
        self._leases: dict[str, float] = {}  # {instance: until when}
        self.told: dict[int, str] = {}  # {id: the label of its job}
        self.newest_told = 0
        self.ended: list[int] = []  # whose ends were told
        self.not_happened: set[str] = set()
        self.submitted: list[str] = []
        self.decided: dict[str, Any] = {}  # {ticket: the outcome}
        self._labels: dict[int, str] = {}  # of all jobs that were seen
        self._jobs: dict[int, Any] = {}
        self._requests: list[Any] = []
        self._fence = 0.0  # the newest of the lock
        self._newest: Any = None
        self._wrong: list[str] = []
        self._way: list[str] = []

    # ---- one order

    def explore(self, most: int = 100_000) -> int:
        """Play all orders; return how many they are.

        Raises:
          Wrong: if a promise is broken in one.
        """
        way: list[list[int]] = []  # [which, of how many]
        lock = mock.patch.object(module, "LATE_IN_A_ROW", self.story.lock)
        with lock:
            while True:
                at = 0

                def choose(number: int) -> int:
                    nonlocal at
                    if at == len(way):
                        way.append([0, number])
                    assert way[at][1] == number, f"not the same again: {self._way}"
                    at += 1
                    return way[at - 1][0]

                self.orders += self._play(choose)
                assert self.orders <= most
                while way and way[-1][0] == way[-1][1] - 1:
                    way.pop()
                if not way:
                    return self.orders
                way[-1][0] += 1

    def _play(self, choose: Callable[[int], int]) -> bool:
        self._new()
        self._observer.execute(f"SELECT {self.namespace}.restore()".encode())
        self._new_instances()
        for instance, (number, *known) in zip(self.instances, self._first, strict=True):
            instance.number = number
            instance.runs, instance.requests = map(dict, known)
        self.told = dict(self._first_told)
        self._labels, self._jobs = map(dict, self._first_seen[:2])
        self._look_at_newest()
        self._leases = self._next_leases
        self.playing = True
        try:
            for instance, batches in zip(self.instances, self.story.acts, strict=True):
                instance.start(batches)
            faults, idle = self.story.faults, False
            last: Instance | None = None
            switches = self.story.switches
            while options := self._options(faults, switches, last):
                number = choose(len(options)) if len(options) > 1 else 0
                who, what = options[number]
                self._way.append(f"{who.id if isinstance(who, Instance) else who} {what}".strip())
                before = self._newest, self.owner
                is_switch = isinstance(who, Instance) and last is not None and who is not last
                switches -= is_switch and last is not None and last.kind is not None
                if isinstance(who, Instance):
                    faults -= what in FAULTS
                    who.go(what if what in FAULTS else "")
                else:
                    self._happen(who)
                self._tell()
                was, was_idle = last, idle
                idle = before == (self._newest, self.owner) and what not in FAULTS
                if isinstance(who, Instance):
                    last = who
                else:
                    idle = False
                is_bound = switches < math.inf
                if was and last and was_idle and idle and last.place < was.place and not is_bound:
                    return False  # two trips that change nothing: it is the other order of the two
            if any(one.kind for one in self.instances):
                self.note("all wait for the lock")
            self.playing = False
            self._look_at_end()
            self._tell()
            return True
        finally:
            self.playing = False
            for instance in self.instances:
                if instance.kind:
                    instance.go("end")
                instance.real.rollback()

    def _options(
        self, faults: int, switches: float, last: Instance | None
    ) -> list[tuple[Any, str]]:
        """Return what may come next: an instance and its trip or a fault, or what happens."""
        options: list[tuple[Any, str]] = []
        free = [
            one
            for one in self.instances
            if one.kind == "look" or (one.kind and self.owner in (None, one))
        ]
        if last in free and switches <= 0:
            free = [last]
        for one in free:
            options.append((one, str(one.kind)))
            if one.kind == "commit" and faults:
                options += [
                    (one, fault)
                    for fault in self.story.kinds
                    if not (one.has_lock and fault == "it comes late")
                ]
        if self.copies and self.owner is None:
            options.append(("copy", "arrives"))
        if free:
            if self._notified:
                options.append(("notices", "come"))
            if self.times < self.story.time:
                options.append(("time", "passes"))
            if self.story.back and not self.gone_back and self.owner is None:
                options.append(("the server", "goes back"))
        return options

    def _happen(self, what: str) -> None:
        if what == "copy":
            instance, statement, values, acts = self.copies.pop(0)
            self._observer.execute(statement, values)
            self.observe(instance, acts)
        elif what == "notices":
            while self._notified:
                self._notified.pop().tables.hint(lock=False)
        elif what == "time":
            self.times += 1
            self.time += LEASE * 2 / 3
            ahead = f"UPDATE {self.namespace}.test_time SET now = now + {LEASE * 2 / 3}"
            self._observer.execute(ahead.encode())
        else:
            self.gone_back = True
            self._observer.execute(f"SELECT {self.namespace}.restore()".encode())
            self.decided.clear()
            self._labels, self._jobs = map(dict, self._first_seen[:2])
            self._look_at_newest()
            self._leases = self._next_leases

    def notify(self, sender: Instance) -> None:
        """Let the other instances know that one has written, now or later, if notices come."""
        if self.story.notices != "never" and self.playing:
            self._notified += [other for other in self.instances if other is not sender]
            if self.story.notices == "at once":
                self._happen("notices")

    # ---- promises

    def note(self, wrong: str) -> None:
        """Note that a promise is broken."""
        self._wrong.append(wrong)

    def _tell(self) -> None:
        if self._wrong:
            raise Wrong(f"{self._wrong[0]}: {', '.join(self._way)}")

    @property
    def _now(self) -> float:
        return EPOCH + self.times * LEASE * 2 / 3

    def has_lease(self, instance: Instance) -> bool:
        """Whether the lease of an instance is not over."""
        return self._leases.get(instance.id, 0.0) > self._now

    def _look_at_newest(self) -> list[Any]:
        with self._observer.pipeline():
            newest = self._observer.execute("SELECT batch, id FROM deltas ORDER BY batch DESC")
            jobs = self._observer.execute(
                "SELECT id, state, session, lane, fence, instance, payload FROM jobs ORDER BY id"
            )
            requests = self._observer.execute(
                "SELECT id, instance, served FROM requests ORDER BY id"
            )
            leases = self._observer.execute(
                "SELECT name, (data::json -> 'v' ->> 4)::float8 FROM settings"
                " WHERE kind = 'instance'"
            )
        self._newest, self._requests = newest.fetchone(), requests.fetchall()
        self._next_leases: dict[str, float] = dict(leases.fetchall())
        return jobs.fetchall()

    def observe(self, writer: Instance, acts: Sequence[HandedAct[Any]]) -> None:
        """Look at the tables after what may have been a commit."""
        before = self._newest
        rows = self._look_at_newest()
        if self._newest == before:
            return
        if before is not None and self._newest[0] != before[0] + 1:
            self.note(f"the batch {self._newest[0]} follows {before[0]}")
        running: dict[str, int] = {}
        waiting: dict[str, int] = {}
        heads: dict[str, int] = {}
        jobs: dict[int, Any] = {}
        for row in rows:
            id, state, session, lane, *_, payload = row
            jobs[id] = row
            self._labels.setdefault(id, payload[1:-1])
            running[lane] = running.get(lane, 0) + (state == "running")
            waiting[lane] = waiting.get(lane, 0) + (state == "waiting")
            if session is not None and state in LIVE:
                head = heads.setdefault(session, id)
                if state == "running" and head != id:
                    self.note(f"{id} runs in the session {session} before {head}")
        for lane, limit in self.story.lanes.items():
            if running.get(lane, 0) > limit.concurrency:
                self.note(f"{running[lane]} jobs run in the lane {lane}")
            is_new = any(row[3] == lane for id, row in jobs.items() if id not in self._jobs)
            if is_new and waiting.get(lane, 0) > limit.max_waiting:  # else a run was given back
                self.note(f"{waiting[lane]} jobs wait in the lane {lane}")
        labels = [self._labels[id] for id in jobs]
        if len(set(labels)) < len(labels):
            self.note(f"a job is there twice: {labels}")
        for id, row in self._jobs.items():
            now = jobs.get(id)
            if now is None:
                self.note(f"the job {id} is gone")
            elif row[1] == "running" and (now[1], now[4]) != ("running", row[4]):
                if row[5] != writer.id and self._leases.get(row[5], 0) > self._now:
                    self.note(f"the run {id} of {row[5]} was taken from it")
            elif row[1] not in LIVE and now != row:
                self.note(f"the job {id} changed after its end")
        self._look_at_refusals(acts, jobs)
        self._look_at_requests()
        self._jobs = jobs
        self._leases = self._next_leases

    def _look_at_refusals(self, acts: Sequence[HandedAct[Any]], jobs: dict[int, Any]) -> None:
        for act in acts:
            if not act.ticket or act.outcome is None:
                continue
            decided = self.decided.setdefault(act.ticket, act.outcome)
            if not same(decided, act.outcome):
                self.note(f"{act.ticket}: {act.outcome}, decided was {decided}")
            elif isinstance(act.outcome, Error) and decided is act.outcome:
                lane, most = act.outcome.error.args[:2]
                if most > max(
                    sum(row[1] == "waiting" and row[3] == lane for row in of.values())
                    for of in (self._jobs, jobs)
                ):
                    self.note(f"{act.ticket} was refused, and the lane was not full")

    def _look_at_requests(self) -> None:
        served = [fence for _, _, fence in self._requests if fence is not None]
        if self._requests and (len(served) != 1 or self._requests[0][2] is None):
            self.note(f"not the first one alone has the lock: {self._requests}")
        elif served and served[0] < self._fence and not self.gone_back:
            self.note(f"the fence {served[0]} comes after {self._fence}")
        self._fence = max([self._fence, *served])

    def _look_at_end(self) -> None:
        for one in self.instances:
            one.dying = False  # its connection is used to look
        if self.submitted:
            taker = self.instances[-1]
            taker.tables.hint(lock=True)
            taker.play([[Beat()]])
            if sorted(self.submitted) != sorted(self._labels.values()):
                self.note(f"{self.submitted} were submitted, and {self._labels} are there")
        self.observe(self.instances[0], ())
        jobs = self._jobs
        alive = [one for one in self.instances if not one.dead]
        if not self.gone_back:
            for id, label in self.told.items():
                if id not in jobs or self._labels[id] != label:
                    self.note(f"the job {label} was accepted, and is not there")
            for id in self.ended:
                if jobs[id][1] != "succeeded":
                    self.note(f"the end of {id} was told, and it is {jobs[id][1]}")
            if len(set(self.ended)) < len(self.ended):
                self.note(f"the end of a job was told twice: {self.ended}")
            for label in self.not_happened.intersection(self._labels[id] for id in jobs):
                self.note(f"the job {label} was not to be, and is there")
        for one in alive:
            if self.has_lease(one) and not self.gone_back:
                runs = {id: row[4] for id, row in jobs.items() if row[5] == one.id}
                runs = {id: fence for id, fence in runs.items() if jobs[id][1] == "running"}
                if runs != one.runs:
                    self.note(f"{one.id} runs {one.runs}, and it should {runs}")
                asked = {id: fence for id, instance, fence in self._requests if instance == one.id}
                told = {id: asked.get(id) if f is None else f for id, f in one.requests.items()}
                if asked != told:
                    self.note(f"{one.id} was told of the requests {told}, and has {asked}")
        self._look_at_caches(alive)
        if self._check() and (self.story.time or len(alive) < len(self.instances)):
            self._drain()

    def _look_at_caches(self, alive: Sequence[Instance]) -> None:
        for one in alive:
            tables: Any = one.tables
            if tables._version is not None and tables._look(Asked(())):
                try:
                    self._compare(tables)
                except AssertionError as error:
                    self.note(f"the cache of {one.id}: {' '.join(str(error).split())[:300]}")

    def _drain(self) -> None:
        """Let an instance that comes later run all jobs: none is left behind."""
        self._happen("time")
        self._happen("time")
        later = Instance(self, len(self.instances), self._reals[0])
        later._ticks = later.place
        later._thread._do([self._joining(later)])
        for _ in range(len(self._jobs) + 1):
            later.play([[Claim(ROOM, ends=True)]])
        left = {id: row[1] for id, row in self._jobs.items() if row[1] in LIVE}
        if left:
            self.note(f"what nobody runs is left: {left}")
        if self._requests:
            self.note(f"requests of the dead are left: {self._requests}")

    def _check(self) -> bool:
        """Let the store check itself, unless it has had the same tables; return whether it was."""
        state = self._observer.execute(STATE).fetchone()
        if state in self._checked:
            return False
        self._checked.add(state)
        tables: Any = self.instances[0].tables
        tables.rollback()
        queues = Queues(tables, self.opening)
        queues.now, _ = tables.begin(write=False)
        problems = Check().answer(queues).problems
        if problems:
            self.note(f"{problems}")
        tables.rollback()
        return True
