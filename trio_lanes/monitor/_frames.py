"""Frames: the numbers of all lanes and a window of their jobs at one moment, for all viewers.

A frame is made without a checkpoint, so that all its numbers belong to the same moment. Nothing in
it grows with the number of jobs: lanes of a template are one row, a row shows the first jobs that
run and the first that start next, and the sessions are looked at in slices, so that the table of
sessions is some frames old if there are many.
"""

from __future__ import annotations

import heapq
import json
import math
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice, takewhile
from typing import Any, Final, Generic, Protocol, TypeVar, final
from weakref import WeakValueDictionary

import trio

from trio_lanes import Job, JobState, Lanes, LaneStatistics, Problem, RateStatistics

from .._config.told import LONG_WAIT, Told, of_owners, of_wait
from ..replay._capture import RunFacts, facts_of
from ._both import StoredLanes, add_to_row, add_to_totals, row_of_store
from ._notes import Notes
from ._records import EndedRun, Records, Step
from ._shown import MAX_ROWS, Frame, clipped, shown_problem
from ._told import OWNERS_READ, of_errors, shown_told

INTERVAL: Final = 0.25  # seconds between two frames, at least
MAX_RUNNING: Final = 24  # jobs of a row
MAX_HEAD: Final = 8
MAX_FRAME_JOBS: Final = 200  # jobs of a frame
_SLICE: Final = 400  # sessions that a frame looks at
_MAX_BUSY_SESSIONS: Final = 30
_MAX_NEXT: Final = 3  # waiting jobs of a session
_MAX_LONGEST_WAITS: Final = 30  # sessions with the oldest waits
_JOBS_READ: Final = 1000  # jobs that are read for them, or twice as many as sessions of each lane
_MAX_LANES: Final = 200  # that are read
_COMPARED_SECONDS: Final = 300.0  # seconds over which waits are compared


T = TypeVar("T")


class StoreOfFrames(Protocol):
    """A store as it was read last, as far as it is part of a frame."""

    @property
    def lanes(self) -> Mapping[str, StoredLanes]: ...
    @property
    def sessions(self) -> int: ...
    @property
    def problems(self) -> Sequence[Problem]: ...
    @property
    def left_out(self) -> Sequence[str]: ...
    @property
    def looked(self) -> bool: ...
    @property
    def oldest(self) -> tuple[float, Sequence[Told]]: ...
    @property
    def retries(self) -> Sequence[Told]: ...
    def is_of(self, lanes: Lanes) -> bool: ...


@final
class _Seldom(Generic[T]):
    """What is looked up once a second, or so rarely that it takes a fiftieth of the time."""

    def __init__(self, look: Callable[[float], T]) -> None:
        self._look: Final = look
        self._next_at = -math.inf
        self._found: T

    def at(self, now: float) -> T:
        """Return what was found last."""
        if now >= self._next_at:
            began = time.perf_counter()
            self._found = self._look(now)
            self._next_at = now + max(1.0, 50 * (time.perf_counter() - began))
        return self._found


@final
class Frames:
    """Makes the frames of one monitor."""

    def __init__(
        self, lanes: Lanes, notes: Notes, records: Records, store: StoreOfFrames | None = None
    ) -> None:
        self._lanes: Final = lanes
        self._store: Final = store
        self._notes: Final = notes
        self.records: Final = records
        self.viewers = 0
        self.number = 0
        """The number of the last frame."""
        self._encoded = b""
        self._made_at = -math.inf
        self._making: Final = trio.Lock()
        self._shown: Final[WeakValueDictionary[int, Job[Any]]] = WeakValueDictionary()
        self._quantiles: Final = _Seldom(lambda now: _quantiles(records, now))
        self._health: Final = _Seldom(lambda now: lanes.health())
        self._longest: Final = _Seldom(self._sessions_by_wait)
        self._reasons: Final = _Seldom(self._longest_waits)
        self._oldest: Final = _Seldom(self._oldest_wait)
        self._sent_record = 0
        self._left_out = 0  # rows of lanes that the last frame does not have
        self._keys: list[str] = []
        self._found: list[tuple[int, int, str]] = []  # of the sessions looked at so far
        self._sessions: list[Frame] = []

    @contextmanager
    def viewed(self) -> Iterator[None]:
        """While a viewer looks."""
        self.viewers += 1
        self.records.look()
        try:
            yield
        finally:
            self.viewers -= 1
            if not self.viewers:
                self.records.look_away()

    async def after(self, number: int) -> tuple[int, bytes]:
        """Return the number and the JSON of a frame that is later than ``number``. A checkpoint.

        The first viewer that needs it makes it. If it is cancelled, the next viewer does.
        """
        async with self._making:
            if self.number <= number or trio.current_time() >= self._made_at + INTERVAL:
                await trio.sleep_until(self._made_at + INTERVAL)
                self._encoded = json.dumps(self.make(), separators=(",", ":")).encode()
            return self.number, self._encoded

    def find(self, number: int) -> Job[Any] | None:
        """Return the job with that id if a frame has shown it and it has not gone."""
        return self._shown.get(number)

    def history(self, after: int, most: int) -> list[Frame]:
        """Return the last ``most`` records after number ``after``, the newest first."""
        return [ended_frame(record) for record in islice(self.records.after(after), most)]

    def make(self) -> Frame:
        """Make the next frame, now."""
        now = trio.current_time()
        self.number += 1
        self._made_at = now
        self.records.next_frame()
        statistics = self._lanes.statistics()
        jobs: list[Frame] = []
        untils = {
            member: group.rate_until
            for group in statistics.groups.values()
            for member in group.members
        }
        rows = self._rows(statistics.lanes, untils, now, jobs)
        each = list(statistics.lanes.values())
        oldest = max(rows, key=lambda row: row["oldest"], default=None)
        ended = [ended_frame(record) for record in self.records.after(self._sent_record)]
        self._sent_record = self.records.last
        totals: Frame = {
            "active": statistics.active,
            "waiting": statistics.waiting,
            "parked": None,
            "sessions": statistics.sessions,
            "abandoned": statistics.abandoned,
            "oldest": round(statistics.oldest_wait, 3),
            "limit": _number(sum(lane.concurrency for lane in each)),
            **_sums(each, "slots", "lent", "finished", "failed", "cancelled"),
            "quantiles": self._quantiles.at(now).get(""),
        }
        if self._store is not None:
            stored = self._store.lanes.values()
            add_to_totals(totals, stored, self._store.sessions, same=self._store.is_of(self._lanes))
        verdict = self._verdict(now)
        totals["oldest_lane"] = oldest["name"] if oldest and oldest["oldest"] else ""
        return {
            "n": self.number,
            "at": round(now, 4),
            "wall": round(time.time(), 3),
            "pid": os.getpid(),
            "totals": totals,
            **verdict,
            "told": self._told(now, verdict["health"]),
            "lanes": rows,
            "more_lanes": self._left_out,
            "groups": [
                {
                    "name": clipped(name),
                    "members": [clipped(member) for member in group.members],
                    "slots": group.slots,
                    "limit": _number(group.concurrency),
                    "rates": [_rate(rate) for rate in group.rates],
                }
                for name, group in list(statistics.groups.items())[:MAX_ROWS]
            ],
            "jobs": jobs,
            "ended": ended,
            "record": self.records.last,
            "sessions": self._look_at_sessions(),
            "longest": self._longest.at(now),
            "notes": self._notes.last(),
        }

    def _verdict(self, now: float) -> Frame:
        """Return what is wrong with the lanes and with the store, each kind of each lane once."""
        here, store = self._health.at(now), self._store
        found = [(one, False) for one in here]
        left_out = [*here.left_out]
        if store is not None:
            known = {(one.kind, one.lane) for one in here}
            found += [(one, True) for one in store.problems if (one.kind, one.lane) not in known]
            left_out += [one for one in store.left_out if one not in left_out]
        # the first of each kind come first: a page shows few, and many are often of one kind
        seen, ranks = Counter[str](), []
        for problem, _ in found:
            ranks.append(seen[problem.kind])
            seen[problem.kind] += 1
        found = [found[place] for place in sorted(range(len(found)), key=ranks.__getitem__)]
        return {
            "health": [shown_problem(one, stored=stored) for one, stored in found[:MAX_ROWS]],
            "more_problems": len(found[MAX_ROWS:]),
            "unseen": here.unseen,
            "left_out": [clipped(one) for one in left_out],
            "looked": store is None or store.looked,
        }

    def _told(self, now: float, problems: Iterable[Frame]) -> list[Frame]:
        """Return what is told of besides problems, which have told of some waits already."""
        here, store = self._oldest.at(now), self._store
        lines = [(one, False) for one in here[1]]
        if store is not None:
            if store.oldest[0] > here[0]:
                lines = [(one, True) for one in store.oldest[1]]
            lines += [(one, True) for one in store.retries]
        lines += [(one, False) for one in of_errors(self._notes.last(), now)]
        known = {(one["job"], one["stored"]) for one in problems}
        return [
            shown_told(one, stored=stored)
            for one, stored in lines
            if one.job is None or (one.job, stored) not in known
        ]

    def _oldest_wait(self, now: float) -> tuple[float, Sequence[Told]]:
        """Return the longest wait in seconds; and if it is long, its cause, and of whom most is."""
        each = self._lanes.statistics().lanes
        name = max(each, key=lambda name: each[name].oldest_wait, default="")
        if not name or each[name].oldest_wait < LONG_WAIT:
            return 0.0, ()
        lane, waited = self._lanes.lane(name), each[name].oldest_wait
        jobs = lane.waiters(OWNERS_READ)
        owners = [None if job.owner is None else clipped(job.owner) for job in jobs]
        cause = next(iter(jobs[0].root_causes()), None)
        more = of_owners(name, lane.waiting, owners, fair=lane.config.fair)
        return waited, [of_wait(waited, name, jobs[0].id, cause), *more]

    # ---- lanes

    def _rows(
        self, lanes: Any, held: Mapping[str, float | None], now: float, jobs: list[Frame]
    ) -> list[Frame]:
        quantiles = self._quantiles.at(now)
        by_label: dict[str, list[tuple[str, LaneStatistics]]] = defaultdict(list)
        for name, lane in lanes.items():
            by_label[self._lanes.lane(name).label].append((name, lane))
        rows = []
        stored = {} if self._store is None else self._store.lanes
        all_labels = list(dict.fromkeys((*by_label, *stored)))
        self._left_out = max(0, len(all_labels) - MAX_ROWS)
        for label in self._labels(all_labels, by_label, now):
            members = by_label.get(label, [])
            if members:
                each = [lane for _, lane in members]
                row = _row(label, each, held.get(label), quantiles.get(label))
                row["longest"] = self._longest_wait(label, now)
            else:
                row = row_of_store(label, stored[label])
            if self._store is not None and label in stored:
                add_to_row(row, stored[label], same=self._store.is_of(self._lanes))
            rows.append(row)
            for name, lane in members:
                if len(jobs) >= MAX_FRAME_JOBS:
                    break
                if lane.active or lane.waiting_in_lane:
                    jobs += self._window(name)
        return rows

    def _labels(
        self,
        labels: list[str],
        by_label: Mapping[str, list[tuple[str, LaneStatistics]]],
        now: float,
    ) -> Iterable[str]:
        """Return the labels of the rows: all, or those with a problem or with the longest waits."""
        if not self._left_out:
            return labels
        wrong = {clipped(problem.lane) for problem in self._health.at(now)}
        waits = {
            label: max((lane.oldest_wait for _, lane in by_label.get(label, ())), default=0.0)
            for label in labels
        }
        if self._store is not None:
            wrong |= {clipped(problem.lane) for problem in self._store.problems}
            for label, one in self._store.lanes.items():
                waits[label] = max(waits[label], one.oldest)
        ranks = {label: (clipped(label) in wrong, waited) for label, waited in waits.items()}
        first = set(heapq.nlargest(MAX_ROWS, ranks, key=ranks.__getitem__))
        return [label for label in labels if label in first]

    def _longest_waits(self, now: float) -> dict[str, tuple[Job[Any], str]]:
        """Return the job of each row that has waited longest, and the root of its wait."""
        first: dict[str, tuple[float, str]] = {}
        for name, lane in self._lanes.statistics().lanes.items():
            if lane.waiting:
                label = self._lanes.lane(name).label
                first[label] = max(first.get(label, (-1.0, "")), (lane.oldest_wait, name))
        jobs = {
            label: self._lanes.lane(name).waiters(1)[0]
            for label, (_, name) in heapq.nlargest(
                MAX_ROWS, first.items(), key=lambda one: one[1][0]
            )
        }
        return {label: (job, self.line(job)["reason"]) for label, job in jobs.items()}

    def _longest_wait(self, label: str, now: float) -> Frame | None:
        job, reason = self._reasons.at(now).get(label, (None, ""))
        # it was looked up before, and may have started since
        if job is not None and reason and job.state is JobState.WAITING:
            return {"job": job.id, "reason": reason}
        return None

    def _window(self, name: str) -> Iterator[Frame]:
        lane = self._lanes.lane(name)
        for job in lane.running(MAX_RUNNING):
            self.records.steps.see(job)
            yield self.brief(job)
        for job in lane.head(MAX_HEAD):
            if job.state is JobState.WAITING:  # else it is readmitted, and was shown
                yield self.brief(job)

    def brief(self, job: Job[Any]) -> Frame:
        """Return what every viewer is shown of ``job``, which can be asked for from now on."""
        self._shown[job.id] = job
        return {
            **_facts(facts_of(job, None, ()), self.records.steps.of(job.id)),
            "slot": job.slot,
            "cancel": job.cancel_called,
            "priority": job.priority,
            "since": _time(job.waiting_since),
        }

    def line(self, job: Job[Any]) -> Frame:
        """Return what a list shows of ``job``: `brief`, and the root of its wait."""
        waits = job.state is JobState.WAITING
        reason = clipped(next(iter(job.root_causes()), ""), 300) if waits else ""
        return {**self.brief(job), "reason": reason}

    # ---- sessions

    def _sessions_by_wait(self, now: float) -> Frame:
        """Return the sessions that wait longest, of all sessions.

        A lane keeps its jobs in the order of their waits, so that the first jobs of each lane are
        enough. Behind the last that was read of a lane no session is named, as it could be another.
        """
        lanes = self._lanes.statistics().lanes
        waiting = sorted(((x.oldest_wait, name) for name, x in lanes.items() if x.waiting))[::-1]
        known_until = now - waiting[_MAX_LANES][0] if len(waiting) > _MAX_LANES else math.inf
        each = max(2 * _MAX_LONGEST_WAITS, _JOBS_READ // max(1, len(waiting)))
        waits: list[tuple[float, int, str | None]] = []
        for _, name in waiting[:_MAX_LANES]:
            jobs = self._lanes.lane(name).waiters(each)
            dated = [(x.waiting_since, x.id, x.session) for x in jobs]
            due = [(since, id, key) for since, id, key in dated if since is not None]
            if len(due) == each:
                known_until = min(known_until, due[-1][0])
            waits += due
        found: dict[str, float] = {}
        for since, _, session in sorted(waits, key=lambda wait: wait[:2]):
            if len(found) == _MAX_LONGEST_WAITS or since > known_until:
                break
            if session is not None:
                found.setdefault(session, since)
        whole = len(found) == _MAX_LONGEST_WAITS or known_until == math.inf
        sessions = [self._numbers(key, since) for key, since in found.items()]
        return {"sessions": sessions, "whole": whole}

    def _numbers(self, key: str, since: float | None) -> Frame:
        session = self._lanes.session(key)
        return {
            "key": clipped(key),
            "waiting": session.waiting,
            "active": session.active,
            "paused": session.paused,
            "oldest": _time(since),
        }

    def _look_at_sessions(self) -> list[Frame]:
        if not self._keys:
            self._keys = self._lanes.sessions()
        keys, self._keys = self._keys[:_SLICE], self._keys[_SLICE:]
        for key in keys:
            session = self._lanes.session(key)
            if session.waiting or session.active:
                self._found.append((session.waiting, session.active, key))
        self._found = heapq.nlargest(_MAX_BUSY_SESSIONS, self._found)
        if not self._keys:  # so that few sessions are shown at once
            self._sessions = [self._session(key) for _, _, key in self._found]
            self._found = []
        return self._sessions

    def _session(self, key: str) -> Frame:
        session = self._lanes.session(key)
        few = session.jobs() if 0 < session.waiting <= 50 else []
        waiting = [job for job in few if job.state is JobState.WAITING]
        waits = [job.waiting_since for job in waiting if job.waiting_since is not None]
        shown = [self.brief(job) for job in waiting[:_MAX_NEXT]]
        return {**self._numbers(key, min(waits, default=None)), "next": shown}


def _row(
    label: str,
    each: list[LaneStatistics],
    held_until: float | None,
    quantiles: tuple[float, ...] | None,
) -> Frame:
    first = each[0]
    waits = any(lane.waiting_in_lane for lane in each)
    untils = [*(lane.rate_until for lane in each), held_until if waits else None]
    return {
        "name": clipped(label),
        "template": label.endswith("*"),
        "alive": len(each),
        "limit": _number(sum(lane.concurrency for lane in each)),
        **_sums(each, "slots", "active", "lent", "cancelling", "overdue", "abandoned", "waiting"),
        **_sums(each, "started", "finished", "succeeded", "failed", "cancelled"),
        "in_sessions": sum(lane.waiting_in_sessions for lane in each),
        "in_lane": sum(lane.waiting_in_lane for lane in each),
        "oldest": round(max(lane.oldest_wait for lane in each), 3),
        "parked": None,
        "paused": all(lane.paused for lane in each),
        "paused_until": _time(first.paused_until),
        "rate_until": _time(max((until for until in untils if until is not None), default=None)),
        "rates": [_rate(rate) for rate in first.rates] if len(each) == 1 else [],
        "quantiles": quantiles,
    }


def _sums(each: list[LaneStatistics], *names: str) -> dict[str, int]:
    return {name: sum(getattr(lane, name) for lane in each) for name in names}


def _rate(rate: RateStatistics) -> Frame:
    most, burst = float(rate.limit.limit), rate.limit.burst
    if rate.limit.algorithm == "gcra":
        most = min(max(most / 10, 1), most) if burst is None else float(burst)
    return {
        "unit": clipped(rate.limit.unit),
        "left": round(rate.left, 3),
        "most": most,
        "full_at": _time(rate.full_at),
    }


def ended_frame(record: EndedRun) -> Frame:
    """Return what every viewer is shown of a job that has ended."""
    reason = record.text and f"{record.error}: {record.text}"
    return {**_facts(record.run, record.steps), "reason": reason}


def _facts(run: RunFacts, steps: Iterable[Step]) -> Frame:
    return {
        "id": run.id,
        "name": clipped(run.name),
        "session": None if run.session is None else clipped(run.session),
        "lane": clipped(run.lane),
        "label": clipped(run.label),
        "state": run.state,
        "submitted": round(run.submitted, 3),
        "started": _time(run.started),
        "finished": _time(run.finished),
        "steps": [(round(at, 3), state) for at, state in steps],
    }


def _quantiles(records: Records, now: float) -> dict[str, tuple[float, ...]]:
    """Return `quantiles` of the last minutes: {label, or "" for all: figures}."""
    by_label: dict[str, list[EndedRun]] = defaultdict(list)
    for record in takewhile(
        lambda record: (record.run.finished or 0) >= now - _COMPARED_SECONDS, reversed(records.ring)
    ):
        for label in ("", record.run.label):
            by_label[label].append(record)
    each = {label: quantiles(some) for label, some in by_label.items()}
    return {label: figures for label, figures in each.items() if figures is not None}


def quantiles(records: Iterable[EndedRun]) -> tuple[float, ...] | None:
    """Return p50 and p95 of waits, and p50 and p95 of runs; None if no job had started."""
    begun = [record for record in records if record.run.started is not None]
    if not begun:
        return None
    runs = [(record.run.finished or 0) - (record.run.started or 0) for record in begun]
    return (*_p50_p95([record.waited for record in begun]), *_p50_p95(runs))


def _p50_p95(values: list[float]) -> tuple[float, float]:
    values.sort()
    last = len(values) - 1
    return round(values[round(last * 0.5)], 3), round(values[round(last * 0.95)], 3)


def _number(value: float) -> float | None:
    """Return ``value``; None for infinity, which JSON does not have."""
    return None if value == math.inf else value


def _time(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
