"""Replays a recording through real lanes on a virtual clock, with other limits.

Theory of operation
-------------------
`replay` opens lanes with the limits of the recording under a `trio.testing.MockClock`, which jumps
to the next event whenever nothing is left to do. A job is submitted at the time at which it was. If
another job of the recording submitted it, that job submits it again: as long after its start as it
did, so that the children of a job that starts earlier come earlier, too. The body of a job sleeps
for as long as the body ran, and lends its slot, or is readmitted, when that body did.

What a replay cannot know:

* A body takes as long as it took, also if it waited for another job, or for a slot that it had
  lent: a time in which a slot was lent has the wait for its return in it.
* A job that had not started runs for the median of its lane. If it was withdrawn while it waited,
  it is withdrawn after the same wait, unless it has started by then.
* Bounds on waiting jobs, timeouts and corrections by `Job.charge` are left out. A rate limit begins
  with nothing used.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from statistics import median
from typing import Any, Final, final

import attrs
import trio
from trio.testing import MockClock

from trio_lanes import Job, LaneConfig, LaneGroup, LaneInstrument, Lanes, current_job, open_lanes

from .._config.exact import Amount
from .._config.names import ALL_SESSIONS, GROUP_PREFIX
from .._limits.rate import rate_limits
from ._recording import LimitChange, RecordedRun, Recording

_MAX_SLOWDOWN: Final = 10  # times the length of the recording, and an hour: then a replay ends

Limits = Mapping[str, int | float]


@final
@attrs.frozen(kw_only=True)
class Waits:
    """How the jobs of a lane waited. Times are in seconds; 0 if no job has started."""

    jobs: int
    """Jobs that were submitted."""
    started: int
    """Of these: jobs that have started."""
    p50: float
    """Half of the waits were at most as long."""
    p95: float
    """95 of 100 waits were at most as long."""
    longest: float
    per_second: float
    """Jobs that have started and ended, for each second from the first submission to the last
    end."""


@final
@attrs.frozen(kw_only=True)
class Replayed:
    """What a replay gave."""

    lanes: Mapping[str, Waits]
    """By the names of the lanes or of their templates, as in the recording."""
    total: Waits
    """Over all lanes."""
    jobs: tuple[RecordedRun, ...]
    """The jobs as they went in the replay, in the order of submission in the recording."""


def as_recorded(recording: Recording) -> Replayed:
    """Return the figures of a recording itself."""
    return _figures(recording.jobs)


def replay(
    recording: Recording,
    limits: Limits | None = None,
    *,
    instruments: Iterable[LaneInstrument] = (),
) -> Replayed:
    """Run the jobs of ``recording`` through real lanes on a virtual clock, with other limits.

    ::

        def six_slots_halve_the_waits(monday: Recording) -> bool:
            return replay(monday, {"main": 6}).total.p95 <= replay(monday).total.p95 / 2

    A body sleeps for as long as it ran, so no code of the application runs. It takes about a second
    for 5,000 jobs. It calls `trio.run`, so call it outside of Trio, or in a thread.

    Args:
      limits: how many jobs run at once, by the name of a lane or a template of the recording;
        ``session:*`` for each session, and ``group:NAME`` for a group. They hold all the time;
        other lanes have the limits of the recording, and its changes. Pauses stay.
      instruments: for the lanes, for example a `trio_lanes.testing.LaneRecorder`.

    Raises:
      ValueError: if ``limits`` names what is not in the recording, or for a bad limit.
      TypeError: for a limit that is no number.
    """
    player = _Player(*_with_limits(recording, limits or {}))
    return trio.run(player.play, tuple(instruments), clock=MockClock(autojump_threshold=0))


def _with_limits(recording: Recording, limits: Limits) -> tuple[Recording, LaneConfig]:
    """Return ``recording`` with other limits, and the limits of sessions that it does not name."""
    known = [*recording.lanes, ALL_SESSIONS, *(GROUP_PREFIX + name for name in recording.groups)]
    for name in limits:
        if name not in known:
            raise ValueError(f"{name!r} is not in the recording, which has {', '.join(known)}")

    def limited(name: str, config: Any, **more: Any) -> Any:
        return attrs.evolve(config, concurrency=limits.get(name, config.concurrency), **more)

    quiet = {"warn_after": math.inf, "log_failures": False}
    labels = {run.lane: run.label for run in recording.jobs}
    changes = []
    for change in recording.changes:
        label = labels.get(change.lane, change.lane)
        config = change.config and limited(label, change.config, **quiet)
        changes.append(attrs.evolve(change, config=config))
    changed = attrs.evolve(
        recording,
        lanes={name: limited(name, config, **quiet) for name, config in recording.lanes.items()},
        sessions={key: limited(ALL_SESSIONS, each) for key, each in recording.sessions.items()},
        groups={
            name: limited(GROUP_PREFIX + name, each) for name, each in recording.groups.items()
        },
        changes=tuple(changes),
    )
    return changed, limited(ALL_SESSIONS, LaneConfig())


@final
class _Player:
    """One replay."""

    def __init__(self, recording: Recording, sessions: LaneConfig) -> None:
        self._recording: Final = recording
        self._sessions: Final = sessions
        self._runs: Final = {run.id: run for run in recording.jobs}
        self._played: Final[dict[int, RecordedRun]] = {}
        self._children: Final[defaultdict[int, list[RecordedRun]]] = defaultdict(list)
        took: defaultdict[str, list[float]] = defaultdict(list)
        for run in recording.jobs:
            if run.started is not None and run.finished is not None:
                took[run.label].append(run.finished - run.started)
            parent = self._parent(run)
            if parent is not None:
                self._children[parent.id].append(run)
        self._usual: Final = {label: median(times) for label, times in took.items()}
        self._lanes: Lanes
        self._waits: Final[dict[int, float]] = {}

    def _parent(self, run: RecordedRun) -> RecordedRun | None:
        parent = None if run.parent is None else self._runs.get(run.parent)
        was_running = parent is not None and parent.started is not None
        return parent if was_running else None

    async def play(self, instruments: Sequence[LaneInstrument]) -> Replayed:
        recording = self._recording
        sessions = {f"session:{key}": config for key, config in recording.sessions.items()}
        async with open_lanes(
            {**recording.lanes, **sessions},
            sessions=self._sessions,
            groups=recording.groups,
            instruments=instruments,
        ) as lanes:
            self._lanes = lanes
            with trio.move_on_at(_MAX_SLOWDOWN * (recording.seconds + 3600)):
                for at, what in self._events():
                    await trio.sleep_until(at)
                    if isinstance(what, RecordedRun):
                        self._submit(what)
                    else:
                        self._change(what)
                await lanes.wait_idle()
            for job in lanes.jobs():  # in lanes that are paused, or whose limit is 0
                self._keep(job)
            lanes.clear()
            lanes.reset()
        return _figures([self._played[run.id] for run in recording.jobs if run.id in self._played])

    def _events(self) -> list[tuple[float, RecordedRun | LimitChange]]:
        changes = [(change.at, change) for change in self._recording.changes]
        runs = [(run.submitted, run) for run in self._runs.values() if self._parent(run) is None]
        return sorted([*changes, *runs], key=lambda event: event[0])  # stable

    def _change(self, change: LimitChange) -> None:
        lanes, name = self._lanes, change.lane
        if change.config is None:
            (lanes.pause if change.paused else lanes.resume)(name)
        elif name in self._recording.lanes:
            lanes.configure({name: change.config})
        else:  # a lane of a template
            lanes.lane(name).concurrency = change.config.first_concurrency

    def _submit(self, run: RecordedRun) -> None:
        options: dict[str, Any] = {}
        if run.owner is not None:
            options["owner"] = run.owner
        if run.started is None and run.finished is not None:  # it was withdrawn
            options["queue_timeout"] = run.finished - run.waited_from
        job = self._lanes.submit_nowait(
            self._body,
            run,
            lane=run.lane,
            session=None if run.session is None else str(run.session),
            priority=run.priority,
            delay=run.waited_from - run.submitted,
            cost=self._cost(run),
            name=run.name,
            meta=run,
            **options,
        )
        job.on_settled(self._keep)

    def _cost(self, run: RecordedRun) -> Mapping[str, Amount]:
        """What ``run`` costs in the units that are counted now."""
        lanes = self._lanes
        metered: list[LaneConfig | LaneGroup] = [lanes.lane(run.lane).config]
        metered += lanes.groups.values()
        if run.session is not None:
            metered.append(lanes.session(str(run.session)).config)
        known = {"requests", *(rate.unit for each in metered for rate in rate_limits(each.rate))}
        return {unit: amount for unit, amount in run.cost.items() if unit in known}

    async def _body(self, run: RecordedRun) -> None:
        job = current_job()
        assert job is not None
        assert job.waiting_since is not None
        self._waits[run.id] = job.waiting_since
        async with AsyncExitStack() as loan:
            await self._live(run, job, loan)
        if run.state == "failed":
            raise _FailedError
        if run.state == "cancelled" and run.started is not None:
            job.cancel()
            await trio.lowlevel.checkpoint()

    async def _live(self, run: RecordedRun, job: Job[Any], loan: AsyncExitStack) -> None:
        if run.started is None:
            await trio.sleep(self._usual.get(run.label, 0))
            return
        now = run.started
        end = self._recording.seconds if run.finished is None else run.finished
        queued = lends = False
        for at, what in self._script(run):
            if queued and what == "held":
                queued = False  # this has been waited for
            else:
                await trio.sleep(max(0, at - now))
            now = max(now, at)
            if isinstance(what, RecordedRun):
                self._submit(what)
            elif what == "lent":
                lends = True
                await loan.enter_async_context(job.yield_slot())
            elif what == "held" or lends:  # it wants its slot back
                queued, lends = what != "held", False
                await loan.aclose()
            else:
                queued = True
                await job.readmit()
        await trio.sleep(max(0, end - now))

    def _script(self, run: RecordedRun) -> list[tuple[float, str | RecordedRun]]:
        """What the body of ``run`` did, in order."""
        children = [(child.submitted, child) for child in self._children[run.id]]
        return sorted([*run.steps, *children], key=lambda event: event[0])

    def _keep(self, job: Job[Any]) -> None:
        run: RecordedRun = job.meta
        if run.id not in self._played:
            waited_from = self._waits.get(run.id, job.waiting_since)
            self._played[run.id] = attrs.evolve(
                run,
                priority=job.priority,
                submitted=job.submitted_at,
                waited_from=job.submitted_at if waited_from is None else waited_from,
                started=job.started_at,
                finished=job.finished_at,
                state=job.state.value,
                steps=(),
            )


class _FailedError(Exception):
    """The failure of a body that failed when it was recorded."""


def _figures(runs: Sequence[RecordedRun]) -> Replayed:
    by_label: defaultdict[str, list[RecordedRun]] = defaultdict(list)
    for run in runs:
        by_label[run.label].append(run)
    return Replayed(
        lanes={label: _waits(members) for label, members in by_label.items()},
        total=_waits(runs),
        jobs=tuple(runs),
    )


def _waits(runs: Sequence[RecordedRun]) -> Waits:
    waits = sorted(run.waited for run in runs if run.waited is not None)
    ends = [run.finished for run in runs if run.started is not None and run.finished is not None]
    span = max(ends, default=0) - min((run.submitted for run in runs), default=0)

    def quantile(part: float) -> float:
        return waits[math.ceil(part * len(waits)) - 1] if waits else 0.0

    return Waits(
        jobs=len(runs),
        started=len(waits),
        p50=quantile(0.5),
        p95=quantile(0.95),
        longest=quantile(1),
        per_second=len(ends) / span if span > 0 else 0.0,
    )
