"""What some instances do over one store, in every order of their calls: stories, turns, promises.

An `Explorer` plays a `Story` again and again, each time in another order, until no order is left.
Each instance is a thread that stands still before each of its trips to the store; one goes on at a
time. What it does is the code of the library from `ActThread._do` on. What a trip is, which faults
happen and how the tables are read, a subclass knows.
"""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

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
from trio_lanes.durable._sql.act_thread import ActThread, HandedAct
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

    thread: ActThread

    def __init__(self, explorer: Explorer, place: int) -> None:
        self.id = f"me{place}"
        self.place = place
        self.kind: str | None = None  # of the trip before which it stands
        self.sealed: Sequence[HandedAct[Any]] = ()  # the acts of the batch that it commits
        self.dying = self.dead = False
        self.runs: dict[int, int] = {}  # {id: fence}, that it was told of and has not ended
        self.number = 0
        self._all = explorer
        self._trips = self._claimed_to = 0
        self._fault = ""
        self._go = threading.Lock()
        self._go.acquire()

    # ---- turns

    def point(self, kind: str) -> str:
        """Stand before a trip until it is its turn; return the fault that happens."""
        self._trips += 1
        if self._trips > MOST_TRIPS:
            self.dying = True
            self._all.note("an act is done again and again")
            raise Dead
        self.kind = kind
        self._all.baton.release()
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
        self._all.baton.acquire()

    def start(self, batches: Sequence[Sequence[Any]]) -> None:
        """Let it go up to its first trip."""
        threading.Thread(target=self._live, args=[batches], daemon=True).start()
        self._all.baton.acquire()

    def _live(self, batches: Sequence[Sequence[Any]]) -> None:
        try:
            self.play(batches)
        except Dead:
            self.dead = self.dying = True
            self.died()
        except BaseException as error:
            self._all.note(repr(error))
        finally:
            self._all.baton.release()

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
        if isinstance(one, (Order, Compared)):
            self.number += 1
            if isinstance(one, Order):
                ordered = one.act
            else:
                ordered = Compare(tuple(self.runs.values()), self._claimed_to, (), 0)

            def apply(engine: Any) -> Any:
                engine.caller = me
                return ordered.apply(engine)

            return one, apply, f"{me} {self.number}", Lookups(), finished
        if isinstance(one, Beat):
            return one, lambda all: all.beat(me, all.now + LEASE), "", Lookups(), finished
        self.number += 1
        number, room = self.number, one.room
        if one.ends:
            finished += [Finish(id, fence, Succeeded("1")) for id, fence in self.runs.items()]
        lookups = Lookups(ids=[finish.id for finish in finished], room=room)
        return one, lambda all: all.step(me, number, finished, room), "", lookups, finished

    def ask(self, asked: list[Any]) -> None:
        """Ask for acts, and again while it is not known whether they have happened."""
        newest, unsure = self._all.newest_told, False
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
                        self._all.not_happened.add(one[0].label)
                    continue
                if error is not None and not isinstance(error, LaneFullError):
                    self._all.note(f"{self.id} got {error!r}")
                    continue
                self._told(one, act, newest)
            asked, unsure = again, True

    def before_acts(self) -> None:  # noqa: B027
        """Hear that acts are asked for."""

    def _told(self, asked: Any, act: HandedAct[Any], newest: int) -> None:
        explorer = self._all
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
    """Plays a story in every order."""

    instances: Sequence[Instance]

    def __init__(self, story: Story) -> None:
        self.story = story
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
        self.new()

    def new(self) -> None:
        """Forget the order before."""
        self.gone_back = False
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
        while True:
            self._at, self._known = 0, len(self._ways)
            self.orders += self.play()
            assert self.orders <= most
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

    @abstractmethod
    def play(self) -> bool:
        """Play one order; return whether it counts."""

    # ---- promises

    def note(self, wrong: str) -> None:
        """Note that a promise is broken."""
        self.wrong.append(wrong)

    def tell(self) -> None:
        """Raise `Wrong` if a promise is broken."""
        if self.wrong:
            raise Wrong(f"{self.wrong[0]}: {', '.join(self.way)}")

    @property
    @abstractmethod
    def now(self) -> float:
        """The store's time."""

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

    def look_at_end(self) -> list[Instance]:
        """Compare what was told with the jobs; return the instances that live."""
        jobs = self.jobs
        alive = [one for one in self.instances if not one.dead]
        if not self.gone_back:
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
        for one in alive:
            if self.has_lease(one) and not self.gone_back:
                runs = {id: row[4] for id, row in jobs.items() if row[5] == one.id}
                runs = {id: fence for id, fence in runs.items() if jobs[id][1] == "running"}
                if runs != one.runs:
                    self.note(f"{one.id} runs {one.runs}, and it should {runs}")
        return alive

    def look_at_rest(self, later: Instance) -> None:
        """Let an instance that comes when all leases are over run all jobs: none is left."""
        later.join()
        for _ in range(len(self.jobs) + 1):
            later.play([[Claim(ROOM, ends=True)]])
        left = {id: row[1] for id, row in self.jobs.items() if row[1] in LIVE}
        if left:
            self.note(f"what nobody runs is left: {left}")
