"""The facts about lanes and jobs that are known from outside: calls, and the reports of bodies.

Nothing here looks into the library. A body says what it is about to do before it does it, a hook
says what has started and settled, and the test writes down what it does to the lanes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from tests.model.pairs_plans import Setting, Spec
from trio_lanes import Job, JobState, LaneConfig, LaneGroup, RateLimit


@dataclass(eq=False)
class KnownJob:
    """A job, and what its body is doing."""

    job: Job[Any]
    spec: Spec
    place: int  # among all jobs; by submission, or by its last change of priority
    since: float  # when it began to wait
    priority: int
    cost: float
    moved: bool = False  # whether its priority was ever changed
    lenders: int = 0  # tasks of it that lend its slot
    wants_slot: int = 0  # tasks of it that want the slot back
    readmits: bool = False
    went_without: bool = False  # it was cancelled, and went on without a slot
    starts: int = 0  # it is started again when it is readmitted, also at the same time
    charged: bool = False  # whether it has said what it used since its last start
    unknown: bool = False  # whether it lends by itself: its body cannot say when

    def __repr__(self) -> str:
        what = self.job.state.name
        for name in ("lenders", "wants_slot", "readmits", "went_without"):
            if getattr(self, name):
                what += f" {name}"
        if self.job.cancel_called:
            what += " cancelled"
        return f"<{self.job.id} in {self.lane}, {self.session}, {what}>"

    @property
    def lane(self) -> str:
        return self.job.lane

    @property
    def session(self) -> str | None:
        return self.job.session

    @property
    def waits(self) -> bool:
        return self.job.state is JobState.WAITING

    @property
    def runs(self) -> bool:
        return self.job.state is JobState.RUNNING

    @property
    def has_slot(self) -> bool:
        """Whether it should have a slot, at rest."""
        return not (self.lenders or self.wants_slot or self.readmits or self.went_without)

    @property
    def wants(self) -> bool:
        """Whether it wants its slot back, to go on or to clean up."""
        return bool(self.wants_slot and not self.lenders) or (
            self.readmits and self.job.cancel_called
        )

    @property
    def again(self) -> bool:
        """Whether it stands in line to be started again."""
        return self.readmits and not self.job.cancel_called

    @property
    def rank(self) -> tuple[int, int]:
        return (-self.priority, self.place)


@dataclass
class Charge:
    job: KnownJob
    start: int  # of that job
    when: float
    amount: float


@dataclass(eq=False)
class KnownGroup:
    """A group, from when it was first configured under its name to when it was left out."""

    config: LaneGroup
    charges: list[Charge] = field(default_factory=list)


class Facts:
    """All that is known."""

    def __init__(self, setting: Setting) -> None:
        self.configs = dict(setting.lanes)
        self.sessions = setting.sessions
        self.groups = {name: KnownGroup(group) for name, group in setting.groups.items()}
        self.jobs: list[KnownJob] = []
        self.by_job: dict[Job[Any], KnownJob] = {}
        self.live_widths: dict[str, float] = {}  # set by `lane.concurrency`, of templates' lanes
        self.may_have_retired: set[str] = set()  # of these
        self.widest: dict[str, float] = {}  # what each lane was at most, or each template's
        self.by_hand: set[str] = set()  # lanes and sessions that are paused
        self.until: defaultdict[str, float] = defaultdict(lambda: -inf)  # ... for a time
        self.charges: defaultdict[str, list[Charge]] = defaultdict(list)  # {lane or session: ...}
        self.places = 0

        for label, config in setting.lanes.items():
            self.note_width(label, config.concurrency)

    def note_width(self, label: str, width: float) -> None:
        self.widest[label] = max(width, self.widest.get(label, 0))

    # ---- jobs

    def add(self, job: Job[Any], spec: Spec, now: float) -> KnownJob:
        known = KnownJob(job, spec, self.next_place(), now, job.priority, spec.cost)
        self.jobs.append(known)
        self.by_job[job] = known
        return known

    def next_place(self) -> int:
        self.places += 1
        return self.places

    def waiting(self, lane: str) -> list[KnownJob]:
        return [known for known in self.jobs if known.waits and known.lane == lane]

    def running(self, lane: str) -> list[KnownJob]:
        return [known for known in self.jobs if known.runs and known.lane == lane]

    def of_session(self, key: str | None) -> list[KnownJob]:
        alive = [known for known in self.jobs if known.waits or known.runs]
        return [known for known in alive if known.session == key]

    # ---- lanes

    def label(self, lane: str) -> str:
        """The name under which ``lane`` is configured."""
        return lane if lane in self.configs else f"{lane.split(':')[0]}:*"

    def config(self, lane: str) -> LaneConfig:
        return self.configs[self.label(lane)]

    def width(self, lane: str) -> float:
        return self.live_widths.get(lane, self.config(lane).concurrency)

    def group(self, lane: str) -> KnownGroup | None:
        label = self.label(lane)
        for group in self.groups.values():
            if label in group.config.members:
                return group
        return None

    def paused(self, name: str, now: float) -> bool:
        return name in self.by_hand or self.until[name] > now

    # ---- rates

    def charge(self, known: KnownJob, now: float) -> None:
        """``known`` was started, or started again."""
        known.charged = False
        known.starts += 1
        for charges, _ in self.meters(known):
            charges.append(Charge(known, known.starts, now, known.cost))

    def meters(self, known: KnownJob) -> list[tuple[list[Charge], Sequence[RateLimit]]]:
        """What charges a start of that job now: what it has charged before, and its limits."""
        meters = [(self.charges[known.lane], limits(self.config(known.lane)))]
        if known.session is not None:
            meters.append((self.charges[f"session:{known.session}"], limits(self.sessions)))
        group = self.group(known.lane)
        if group is not None:
            meters.append((group.charges, limits(group.config)))
        return meters

    def last_charges(self, known: KnownJob) -> list[Charge]:
        """What its last start was charged, wherever that was."""
        every = [*self.charges.values(), *(group.charges for group in self.groups.values())]
        return [
            charge
            for charges in every
            for charge in charges
            if charge.job is known and charge.start == known.starts
        ]


def limits(config: LaneConfig | LaneGroup) -> Sequence[RateLimit]:
    rate = config.rate
    return (rate,) if isinstance(rate, RateLimit) else tuple(rate)


def window(charges: Iterable[Charge], limit: RateLimit, now: float) -> float:
    """What was charged in the window that ends now."""
    return sum(charge.amount for charge in charges if charge.when > now - limit.per)


def admits(charges: list[Charge], rates: Sequence[RateLimit], cost: float, now: float) -> bool:
    """Whether all ``rates`` admit a start of that cost now."""
    return not cost or all(window(charges, rate, now) + cost <= rate.limit for rate in rates)
