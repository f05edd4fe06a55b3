"""What some instances do over one store, in every order of their calls: stories, turns, promises.

An `Explorer` plays a `Story` again and again, each time in another order, until no order is left.
Each instance is a thread that stands still before each of its trips to the store; one goes on at a
time. What it does is the code of the library from `ActThread._do` on. At a trip a fault may happen:
its answer is lost, or its copy arrives later, or the instance dies. Time may pass, so that leases
end, and the store may go back to what it had in the beginning. After each commit and at the end of
each order the promises are compared with the tables, and at the end the images of the instances,
too. Where a lease ended or an instance died, another one comes and runs what is left.

What a trip is, which faults happen, which orders are the same and how the tables are read, a
subclass knows.
"""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal
from unittest import mock

import attrs
from outcome import Error, Value

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
from trio_lanes.durable._rules.engine import Engine
from trio_lanes.durable._rules.queues import Queues
from trio_lanes.durable._sql.act_thread import ActThread, HandedAct
from trio_lanes.durable.acts.inspection import Check
from trio_lanes.durable.acts.jobs import Enqueue
from trio_lanes.durable.acts.runs import Compare

LEASE = 30.0
"""Seconds of a lease."""
MOST_TRIPS = 60
"""How many trips an instance makes at most, in one order."""
ROOM = 9
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
    delay: float = 0.0
    expires: float | None = None


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
class Order:
    """An operator orders something, or a task of the instance asks for it."""

    act: Act[Any]


@attrs.frozen
class Story:
    """What some instances do.

    Attributes:
      acts: by instance, the batches of acts that it asks for.
      before: the same, before the orders differ.
      lanes: the limits of the lanes.
      faults: how many faults happen at most.
      kinds: which faults; empty: all.
      time: how often two thirds of a lease pass at some moment.
      back: whether the store goes back at some moment to what it had in the beginning.
      hints: when instances hear of the batches of others.
      switches: how often an instance that could go on waits for others at most.
      late: after how many batches that came late an instance takes the lock, or has a turn.
      listens: whether instances say in their batches what they have changed.
      idles: whether an instance stands still before each batch of acts, too.
      kept: how many batches the store keeps.
    """

    acts: Sequence[Any]
    before: Sequence[Any] = ()
    lanes: dict[str, LaneLimit] = attrs.field(factory=lambda: {"main": LaneLimit(9)})
    faults: int = 0
    kinds: Sequence[str] = ()
    time: int = 0
    back: bool = False
    hints: Literal["never", "at once", "later"] = "never"
    switches: float = math.inf
    late: int = 2
    listens: bool = True
    idles: bool = False
    kept: int = 1_000


class Instance(ABC):
    """One instance: what it knows, and the thread in which it acts."""

    tables: Any
    thread: ActThread

    def __init__(self, explorer: Explorer, place: int) -> None:
        self.id = f"me{place}"
        self.place = place
        self.kind: str | None = None  # of the trip before which it stands
        self.sealed: Sequence[HandedAct[Any]] = ()  # the acts of the batch that it commits
        self.dying = self.dead = False
        self.runs: dict[int, int] = {}  # {id: fence}, that it was told of and has not ended
        self.number = 0
        self.explorer = explorer
        self._trips = self._claimed_to = 0
        self._fault = ""
        self._go = threading.Lock()
        self._go.acquire()

    @abstractmethod
    def open(self) -> None:
        """Make the tables and read an image, when all instances are made."""

    def act_over(self, tables: Any, engine: Engine) -> None:
        """Act over these tables from here on."""
        commit_acts = tables.commit_acts

        def commit(engine: Engine, acts: Sequence[HandedAct[Any]]) -> None:
            self.sealed = acts
            commit_acts(engine, acts)

        tables.commit_acts = commit
        self.thread = ActThread("it", tables, engine, 5.0, lambda *_: None)

    def know(self, other: Any) -> None:
        """Know what another one was told."""
        self.number, self.runs = other.number, dict(other.runs)
        self._claimed_to = other._claimed_to

    # ---- turns

    def point(self, kind: str) -> str:
        """Stand before a trip until it is its turn; return the fault that happens.

        Before and after the orders that are explored, it is always its turn.
        """
        if not self.explorer.playing:
            return ""
        self._trips += 1
        if self._trips > MOST_TRIPS:
            self.dying = True
            self.explorer.note("an act is done again and again")
            raise Dead
        self.kind = kind
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
            self.died()
        except BaseException as error:
            self.explorer.note(repr(error))
        finally:
            self.explorer.baton.release()

    def died(self) -> None:  # noqa: B027
        """Hear that it is dead."""

    # ---- acts

    def play(self, batches: Sequence[Sequence[Any]]) -> None:
        """Ask for batches of acts, one after the other."""
        for batch in batches:
            self.ask([self._asked(one) for one in batch])

    def join(self) -> None:
        """Become a new incarnation."""

        def join(engine: Engine) -> None:
            engine.join(self.id, lease_until=engine.now + LEASE)

        act = self.handed(join, "", Lookups())
        self.thread._do([act])
        assert isinstance(act.outcome, Value), act.outcome

    @staticmethod
    def handed(call: Callable[[Engine], Any], ticket: str, lookups: Lookups) -> HandedAct[Any]:
        """Return an act for its thread."""
        return HandedAct(call, None, ticket, True, lookups, 9e9, lambda _: None)

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
                delay=one.delay,
                expires=one.expires,
            )
            act: Any = Enqueue([job])
            return one, act.apply, f"{me} {one.label}", act.lookups, finished
        if isinstance(one, Beat):
            return one, lambda all: all.beat(me, all.now + LEASE), "", Lookups(), finished
        self.number += 1
        if not isinstance(one, Claim):
            ordered = self.act_of(one)

            def apply(engine: Any) -> Any:
                engine.caller = me
                return ordered.apply(engine)

            return one, apply, f"{me} {self.number}", Lookups(), finished
        number, room = self.number, one.room
        if one.ends:
            finished += [Finish(id, fence, Succeeded("1")) for id, fence in self.runs.items()]
        lookups = Lookups(ids=[finish.id for finish in finished], room=room)
        return one, lambda all: all.step(me, number, finished, room), "", lookups, finished

    def act_of(self, one: Any) -> Act[Any]:
        """Return the act of what is ordered."""
        if isinstance(one, Order):
            return one.act
        return Compare(tuple(self.runs.values()), self._claimed_to, (), 0)

    def ask(self, asked: list[Any]) -> None:
        """Ask for acts, and again while it is not known whether they have happened."""
        newest, unsure = self.explorer.newest_told, False
        while asked:
            acts = [self.handed(call, ticket, looks) for _, call, ticket, looks, _ in asked]
            self.before_acts()
            self.thread._do(list(acts))
            if self.dying:
                raise Dead
            again = []
            for one, act in zip(asked, acts, strict=True):
                error = act.outcome.error if isinstance(act.outcome, Error) else None
                if isinstance(error, StoreUnavailableError):
                    if error.unknown or unsure:
                        again.append(one)
                    elif isinstance(one[0], Job) and one[0].key is None:
                        self.explorer.not_happened.add(one[0].label)
                    continue
                if error is not None and not isinstance(error, LaneFullError):
                    self.explorer.note(f"{self.id} got {error!r}")
                    continue
                self.told(one, act, newest)
            asked, unsure = again, True

    def before_acts(self) -> None:  # noqa: B027
        """Hear that acts are asked for."""

    def told(self, asked: Any, act: HandedAct[Any], newest: int) -> None:
        """Hear the outcome of an act; ``newest``: the last number told before it was asked for."""
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
        elif isinstance(one, Claim):
            for finish in finished:
                self.runs.pop(finish.id, None)
                if finish.fence in answer.stale:
                    if explorer.jobs[finish.id][1] in LIVE:
                        explorer.refused.append((finish.id, finish.fence, self.id))
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


class Explorer(ABC):
    """Plays a story in every order.

    Args:
      broken: breaks the library, when all has happened that is the same in each order.

    Attributes:
      epoch: the store's time in the beginning.
      time: of all clocks, in seconds since the beginning.
      copies: what may arrive yet.
      plays: how many orders were played.
      orders: how many of them are not known to be the same as another one.
    """

    epoch: ClassVar[float]
    instances: list[Any]

    def __init__(self, story: Story, broken: Callable[[], None] = lambda: None) -> None:
        self.story = story
        self.broken = broken
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
        self.plays = self.orders = 0
        self._checked: set[Any] = set()  # the tables of which all is known
        self.new()

    def new(self) -> None:
        """Forget the order before."""
        self.playing = False
        self.gone_back = False
        self.time = 0.0
        self.times = 0  # how often time has passed
        self.faults, self.switches = self.story.faults, self.story.switches  # how many may come yet
        self.last: Any = None  # the instance that went last
        self.copies: list[tuple[Any, ...]] = []
        self.told: dict[int, str] = {}  # {id: the label of its job}
        self.newest_told = 0
        self.ended: list[int] = []  # whose ends were told
        self.refused: list[tuple[int, int, str]] = []  # (id, fence, instance) of ends not taken
        self.not_happened: set[str] = set()
        self.decided: dict[str, Any] = {}  # {ticket: the outcome}
        self.labels: dict[int, str] = {}  # of all jobs that were seen
        self.jobs: dict[int, Any] = {}
        self.leases: dict[str, float] = {}  # {instance: until when}
        self.wrong: list[str] = []
        self.way: list[str] = []

    def explore(self, most: int = 100_000) -> int:
        """Play all orders; return how many they are.

        Raises:
          Wrong: if a promise is broken in one.
        """
        self._ways: list[list[int]] = []  # [which, of how many]
        with mock.patch("trio.lowlevel.current_trio_token"):
            self.prepare()
            self.broken()
            while True:
                self._at, self._known = 0, len(self._ways)
                self.orders += self.play()
                assert self.plays <= most
                while self._ways and self._ways[-1][0] == self._ways[-1][1] - 1:
                    self._ways.pop()
                if not self._ways:
                    return self.orders
                self._ways[-1][0] += 1

    def choose(self, number: int) -> int:
        """Return which of so many ways to go."""
        if self._at == len(self._ways):
            self._ways.append([0, number])
        which, of = self._ways[self._at]
        assert of == number, f"not the same again: {self.way}"
        self._at += 1
        return which

    @property
    def is_new(self) -> bool:
        """Whether no order before has come to where this one is."""
        return self._at >= self._known

    # ---- what is the same in each order

    def prepare(self) -> None:
        """Let all happen that is the same in each order."""
        self.new_instances()
        for one in self.instances:
            one.join()
        for one, acts in zip(self.instances, self.story.before, strict=False):
            one.play(acts)
        assert not self.wrong, self.wrong
        self._first = self.instances
        self._first_told = dict(self.told), self.newest_told
        self._first_seen = dict(self.labels), dict(self.jobs), dict(self.leases)

    def new_instances(self) -> None:
        """Make instances that know nothing."""
        self.instances = [self.new_instance(place) for place in range(len(self.story.acts))]
        for one in self.instances:  # now that all listen
            one.open()

    @abstractmethod
    def new_instance(self, place: int) -> Any:
        """Return a new instance."""

    def restore(self) -> None:
        """Let the store have what it had in the beginning."""
        labels, jobs, leases = self._first_seen
        self.labels, self.jobs, self.leases = dict(labels), dict(jobs), dict(leases)

    # ---- one order

    def play(self) -> bool:
        """Play one order; return whether it is not known to be the same as another one."""
        self.new()
        self.plays += 1
        self.restore()
        self.new_instances()
        for one, first in zip(self.instances, self._first, strict=True):
            one.know(first)
        self.told, self.newest_told = dict(self._first_told[0]), self._first_told[1]
        self.playing = True
        try:
            for one, acts in zip(self.instances, self.story.acts, strict=True):
                one.start(acts)
            return self.go_on()
        finally:
            self.playing = False
            for one in self.instances:
                if one.kind:
                    one.go("end")

    def go_on(self) -> bool:
        """Go on, from where all instances stand before their first trips."""
        while options := self._options():
            who, what = options[self.choose(len(options)) if len(options) > 1 else 0]
            self.way.append(f"{who.id if isinstance(who, Instance) else who} {what}".strip())
            before = self.last
            if isinstance(who, Instance):
                is_fault = what != who.kind
                self.faults -= is_fault
                self.switches -= before is not None and who is not before and bool(before.kind)
                self.last = who
                who.go(what if is_fault else "")
            else:
                self.happen(who, what)
            self.tell()
            if self.is_known(before, who, what):
                return False
        if any(one.kind for one in self.instances):
            self.note("all wait for one another")
        self.playing = False
        self.look_at_end()
        self.tell()
        return True

    @abstractmethod
    def is_known(self, before: Any, who: Any, what: str) -> bool:
        """Whether all that may come next is known from another order.

        Args:
          before: the instance that went before.
          who: what has just gone or happened, and ``what``.
        """

    def _options(self) -> list[tuple[Any, str]]:
        """Return what may come next: an instance and its trip or a fault, or what happens."""
        options: list[tuple[Any, str]] = []
        free = [one for one in self.instances if one.kind and self.may_go(one)]
        if self.last in free and self.switches <= 0:
            free = [self.last]
        kinds = self.story.kinds
        for one in free:
            options.append((one, one.kind))
            if self.faults:
                options += [(one, of) for of in self.faults_at(one) if not kinds or of in kinds]
        if self.is_free:
            options += [(f"copy {number}", "arrives") for number in range(len(self.copies))]
        if free:
            options += self.hints_under_way()
            if self.times < self.story.time:
                options.append(("time", "passes"))
            if self.story.back and not self.gone_back and self.is_free:
                options.append(("the store", "goes back"))
        return options

    def may_go(self, one: Any) -> bool:
        """Whether nothing keeps an instance from its trip."""
        return True

    @property
    def is_free(self) -> bool:
        """Whether nobody has the store for itself."""
        return True

    @abstractmethod
    def faults_at(self, one: Any) -> Sequence[str]:
        """Return the faults that may happen at the trip before which an instance stands."""

    @abstractmethod
    def hints_under_way(self) -> list[tuple[Any, str]]:
        """Return what may become of the hints that are under way."""

    def happen(self, who: str, what: str) -> None:
        """Let something happen that no instance does."""
        if who == "time":
            self.times += 1
            self.pass_time(LEASE * 2 / 3)
        elif who == "the store":
            self.gone_back = True
            self.restore()
            self.decided.clear()
        elif who.startswith("copy"):
            self.arrive(*self.copies.pop(int(who[5:])))
        else:
            self.hear(who, what)

    def pass_time(self, seconds: float) -> None:
        """Let time pass."""
        self.time += seconds

    @abstractmethod
    def arrive(self, *copy: Any) -> None:
        """Let a copy arrive."""

    @abstractmethod
    def hear(self, who: str, what: str) -> None:
        """Let one of `hints_under_way` happen."""

    # ---- promises

    def note(self, wrong: str) -> None:
        """Note that a promise is broken."""
        self.wrong.append(wrong)

    def tell(self) -> None:
        """Raise `Wrong` if a promise is broken."""
        if self.wrong:
            raise Wrong(f"{self.wrong[0]}: {', '.join(self.way)}")

    @property
    def now(self) -> float:
        """The store's time."""
        return self.epoch + self.time

    def has_lease(self, instance: Instance) -> bool:
        """Whether the lease of an instance is not over."""
        return self.leases.get(instance.id, 0.0) > self.now

    def look_at(
        self,
        rows: Iterable[Any],
        leases: Mapping[str, float],
        writer: Instance,
        acts: Sequence[HandedAct[Any]],
    ) -> None:
        """Look at the jobs, (id, state, session, lane, fence, instance, payload), after a commit.

        Args:
          leases: by instance, until when it has its lease.
          acts: those of the batch, with their outcomes.
        """
        running: dict[str, int] = {}
        waiting: dict[str, int] = {}
        heads: dict[str, int] = {}
        jobs: dict[int, Any] = {}
        for row in rows:
            id, state, session, lane, *_, payload = row
            jobs[id] = row
            self.labels.setdefault(id, payload[1:-1])
            running[lane] = running.get(lane, 0) + (state == "running")
            waiting[lane] = waiting.get(lane, 0) + (state == "waiting")
            if session is not None and state in LIVE:
                head = heads.setdefault(session, id)
                if state == "running" and head != id:
                    self.note(f"{id} runs in the session {session} before {head}")
        for lane, limit in self.story.lanes.items():
            if running.get(lane, 0) > limit.concurrency:
                self.note(f"{running[lane]} jobs run in the lane {lane}")
            is_new = any(row[3] == lane for id, row in jobs.items() if id not in self.jobs)
            if is_new and waiting.get(lane, 0) > limit.max_waiting:  # else a run was given back
                self.note(f"{waiting[lane]} jobs wait in the lane {lane}")
        labels = [self.labels[id] for id in jobs]
        if len(set(labels)) < len(labels):
            self.note(f"a job is there twice: {labels}")
        for id, row in self.jobs.items():
            now = jobs.get(id)
            if now is None:
                self.note(f"the job {id} is gone")
            elif row[1] == "running" and (now[1], now[4]) != ("running", row[4]):
                if row[5] != writer.id and self.leases.get(row[5], 0) > self.now:
                    self.note(f"the run {id} of {row[5]} was taken from it")
            elif row[1] not in LIVE and now != row:
                self.note(f"the job {id} changed after its end")
        self._look_at_answers(acts, jobs)
        self.jobs = jobs
        self.leases = dict(leases)

    def _look_at_answers(self, acts: Sequence[HandedAct[Any]], jobs: dict[int, Any]) -> None:
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
                    for of in (self.jobs, jobs)
                ):
                    self.note(f"{act.ticket} was refused, and the lane was not full")

    @abstractmethod
    def observe(self, writer: Any, acts: Sequence[HandedAct[Any]]) -> None:
        """`look_at` the tables as they are."""

    def look_at_end(self) -> None:
        """Compare what the instances know with the tables, and the tables with themselves."""
        for one in self.instances:
            one.dying = False  # it is used to look
        self.observe(self.instances[0], ())
        if not self.gone_back:
            self._look_at_told()
        alive = [one for one in self.instances if not one.dead]
        for one in alive:
            if self.has_lease(one) and not self.gone_back:
                self.look_at_known(one)
            try:
                self.compare(one)
            except AssertionError as error:
                self.note(f"the image of {one.id}: {' '.join(str(error).split())[:400]}")
        if self._check() and (self.story.time or len(alive) < len(self.instances)):
            self.look_at_rest()

    def _look_at_told(self) -> None:
        jobs = self.jobs
        for id, label in self.told.items():
            if id not in jobs or self.labels[id] != label:
                self.note(f"the job {label} was accepted, and is not there")
        for id in self.ended:
            if jobs[id][1] != "succeeded":
                self.note(f"the end of {id} was told, and it is {jobs[id][1]}")
        if len(set(self.ended)) < len(self.ended):
            self.note(f"the end of a job was told twice: {self.ended}")
        for id, fence, instance in self.refused:
            if jobs[id][4] == fence and jobs[id][1] == "succeeded":
                self.note(f"the end of {id} was refused to {instance}, and has happened")
        for label in self.not_happened.intersection(self.labels[id] for id in jobs):
            self.note(f"the job {label} was not to be, and is there")

    def look_at_known(self, one: Any) -> None:
        """Compare what an instance that has its lease was told with the tables."""
        of = {
            id: row[4] for id, row in self.jobs.items() if (row[1], row[5]) == ("running", one.id)
        }
        if of != one.runs:
            self.note(f"{one.id} runs {one.runs}, and it should {of}")

    @abstractmethod
    def compare(self, one: Any) -> None:
        """Compare the image of an instance with the tables."""

    def _check(self) -> bool:
        """Let the store check itself, unless it has had the same tables; return whether it was."""
        state = self.state_of_tables()
        if state in self._checked:
            return False
        self._checked.add(state)
        tables, now = self.look()
        queues = Queues(tables, self.opening)
        queues.now = now
        problems = Check().answer(queues).problems
        if problems:
            self.note(f"{problems}")
        return True

    @abstractmethod
    def state_of_tables(self) -> Any:
        """Return what is the same if all tables are."""

    @abstractmethod
    def look(self) -> tuple[Any, float]:
        """Begin to look at the tables; return them and their time."""

    def look_at_rest(self) -> None:
        """Let an instance that comes when all leases are over run all jobs: none is left."""
        self.pass_time(2 * LEASE)
        later = self.new_instance(len(self.instances))
        later.open()
        self.instances.append(later)
        later.join()
        for _ in range(len(self.jobs) + 1):
            later.play([[Claim(ROOM, ends=True)]])
        left = {id: row[1] for id, row in self.jobs.items() if row[1] in LIVE}
        if left:
            self.note(f"what nobody runs is left: {left}")
