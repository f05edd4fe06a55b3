"""How a recording is made: of jobs that have ended, and of the limits of their lanes.

`LimitHistory` is an instrument without any hook of jobs: it costs nothing while jobs run. What is
kept of a job is a `RunFacts`, a tuple that is made when the job has ended, and keeps nothing alive.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Container, Hashable, Iterable, Mapping, Sequence
from itertools import count
from typing import Any, Final, NamedTuple, TypeAlias, final

import attrs
import trio

from trio_lanes import (
    Job,
    Lane,
    LaneConfig,
    LaneGroup,
    LaneInstrument,
    Lanes,
    SessionLane,
    UnknownLaneError,
)

from .._config.exact import Amount
from ._recording import MAX_JOBS, LimitChange, RecordedRun, Recording, Step

_MAX_CHANGES: Final = 1000
_DEFAULT: Final = LaneConfig()
_SESSION: Final = "session:"
_TIMES: Final = ("submitted", "waited_from", "started", "finished")

_Numbers: TypeAlias = defaultdict[Hashable, int]
"""A number for each key, in the order in which they are asked for."""


class RunFacts(NamedTuple):
    """What a recording needs of a job. Times are on Trio's clock."""

    id: int
    name: str
    lane: str
    label: str
    session: str | None
    owner: Hashable
    parent: int | None
    priority: int
    cost: Mapping[str, Amount]
    submitted: float
    waited_from: float
    started: float | None
    finished: float | None
    state: str
    steps: Sequence[Step]


def facts_of(job: Job[Any], parent: int | None, steps: Sequence[Step]) -> RunFacts:
    """Return what a recording needs of ``job``.

    Args:
      parent: the id of the job that submitted it. `Job.parent` is None once that job has gone.
    """
    # Not `Job.waiting_since`: a job that is readmitted begins to wait anew.
    due = job.submitted_at + job.delay
    ends = [time for time in (job.started_at, job.finished_at) if time is not None]
    return RunFacts(
        job.id,
        job.name,
        job.lane,
        job.lane_label,
        job.session,
        job.owner,
        parent,
        job.priority,
        job.cost,
        job.submitted_at,
        min([due, *ends]),
        job.started_at,
        job.finished_at,
        job.state.value,
        steps,
    )


@final
class LimitHistory(LaneInstrument):
    """The limits of lanes at some time, and their last changes."""

    def __init__(self) -> None:
        self._lanes: Lanes | None = None
        self._since = -math.inf
        self._base: Final[dict[str, LaneConfig]] = {}
        self._changes: Final[deque[LimitChange]] = deque()

    # ---- hooks

    def lanes_opened(self, lanes: Lanes) -> None:
        self._lanes, self._since = lanes, trio.current_time()
        self._changes.clear()
        self._base.clear()
        for name in lanes.statistics().lanes:
            lane = lanes.lane(name)
            self._base.setdefault(lane.label, _limits(lane, paused=lane.paused))

    def lane_configured(self, lane: Lane | SessionLane) -> None:
        if isinstance(lane, Lane):
            config = _limits(lane, paused=lane.paused)
            if lane.name in self._base or lane.name != lane.label:
                self._add(LimitChange(at=trio.current_time(), lane=lane.name, config=config))
            else:  # new: nothing was submitted to it before
                self._base[lane.name] = config

    def lane_paused(self, lane: Lane | SessionLane) -> None:
        self._add(LimitChange(at=trio.current_time(), lane=lane.name, paused=True))

    def lane_resumed(self, lane: Lane | SessionLane) -> None:
        self._add(LimitChange(at=trio.current_time(), lane=lane.name, paused=False))

    def _add(self, change: LimitChange) -> None:
        self._changes.append(change)
        if len(self._changes) > _MAX_CHANGES:
            _apply(self._base, self._changes.popleft())

    # ---- the recording

    def recording(self, runs: Iterable[RunFacts], left_out: int = 0) -> Recording:
        """Return the recording of ``runs``: of the last `MAX_JOBS` of these, if there are more.

        Raises:
          RuntimeError: if no lanes were opened with this instrument.
        """
        if self._lanes is None:
            raise RuntimeError("there is nothing to record: no lanes have this instrument")
        runs = sorted(runs, key=lambda run: run.id)
        left_out += max(0, len(runs) - MAX_JOBS)
        runs = runs[-MAX_JOBS:]
        begin = min((run.submitted for run in runs), default=self._since)
        end = max((_last(run) for run in runs), default=begin)
        lanes, sessions = dict(self._base), _numbers()
        for change in self._changes:
            if change.at <= begin:
                _apply(lanes, change)
        configs: dict[int, LaneConfig] = {}
        for run in runs:
            if run.label not in lanes:
                lanes[run.label] = _limits_of(self._lanes, run.lane)
            if run.session is not None and run.session not in sessions:
                config = _plain(self._lanes.session(run.session).config)
                number = sessions[run.session]
                if config != _DEFAULT:
                    configs[number] = config
        owners, ids = _numbers(), {run.id for run in runs}
        return Recording(
            seconds=end - begin,
            lanes=lanes,
            sessions=configs,
            groups=dict(_groups(self._lanes.groups, lanes)),
            changes=tuple(self._changes_after(begin, sessions)),
            jobs=tuple(_run(run, begin, sessions, owners, ids) for run in runs),
            left_out=left_out,
        )

    def _changes_after(self, begin: float, sessions: _Numbers) -> Iterable[LimitChange]:
        for change in self._changes:
            if change.at <= begin:
                continue
            lane = change.lane
            if lane.startswith(_SESSION):
                key = lane.removeprefix(_SESSION)
                if key not in sessions:
                    continue  # no job of it is in the recording
                lane = f"{_SESSION}{sessions[key]}"
            yield attrs.evolve(change, at=change.at - begin, lane=lane)


def _numbers() -> _Numbers:
    return defaultdict(count(1).__next__)


def _run(
    run: RunFacts, begin: float, sessions: _Numbers, owners: _Numbers, ids: set[int]
) -> RecordedRun:
    def at(time: float | None) -> float | None:
        return None if time is None else max(0.0, time - begin)

    own = run.owner is not None and run.owner != run.session
    changed: dict[str, Any] = {
        "session": None if run.session is None else sessions[run.session],
        "owner": owners[run.owner] if own else None,
        "parent": run.parent if run.parent in ids else None,
        "steps": tuple((max(0.0, time - begin), state) for time, state in run.steps),
    }
    times = {name: at(getattr(run, name)) for name in _TIMES}
    return RecordedRun(**{**run._asdict(), **changed, **times})


def _last(run: RunFacts) -> float:
    return max(time for time in (run.finished, run.started, run.submitted) if time is not None)


def _apply(lanes: dict[str, LaneConfig], change: LimitChange) -> None:
    """Make ``change`` in ``lanes``, which have a template and not the lanes of it."""
    if change.lane in lanes:
        config = change.config or attrs.evolve(lanes[change.lane], paused=change.paused)
        lanes[change.lane] = config


def _groups(
    groups: Mapping[str, LaneGroup], lanes: Container[str]
) -> Iterable[tuple[str, LaneGroup]]:
    """Yield ``groups`` with those members that are in the recording."""
    for name, group in groups.items():
        members = [member for member in group.members if member in lanes]
        reserve = {member: count for member, count in group.reserve.items() if member in lanes}
        if members:
            yield name, attrs.evolve(group, members=members, reserve=reserve)


def _limits_of(lanes: Lanes, name: str) -> LaneConfig:
    try:
        return _limits(lanes.lane(name), paused=False)
    except UnknownLaneError:  # it was removed
        return LaneConfig(concurrency=math.inf)


def _limits(lane: Lane, *, paused: bool) -> LaneConfig:
    return attrs.evolve(_plain(lane.config), concurrency=lane.concurrency, paused=paused)


def _plain(config: LaneConfig) -> LaneConfig:
    """Return ``config`` without all that is no limit: the time of a body has that in it."""
    return LaneConfig(
        concurrency=config.concurrency,
        aging=config.aging,
        fair=config.fair,
        rate=config.rate,
        paused=config.paused,
    )
