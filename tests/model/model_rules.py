"""Who waits and runs in the model, and by what rules slots and places go on to the next."""

from __future__ import annotations

from math import inf

from tests.model.model_jobs import ModelJob, State, within
from tests.model.model_lanes import ModelGroup, ModelLane, ModelLine, ModelRate, Setting


class Rules:
    """All lanes, and all jobs that there ever were."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.lanes = {
            name: self._new_lane(name, getattr(setting, name)) for name in ("main", "cron", "sub")
        }
        self.group: ModelGroup | None = None
        self.paused_sessions: set[str] = set()
        self.jobs: list[ModelJob] = []
        self.shut = False
        self.unseen: set[int] = set()  # the jobs that have just settled, until that is seen
        self._moment = 0
        self._places = 0

    def _new_lane(self, name: str, concurrency: int) -> ModelLane:
        is_main = name == "main"
        rate = ModelRate(self.setting.rate if is_main else inf, per=1)
        return ModelLane(concurrency, ModelLine(self.setting.fair and is_main), rate)

    # ---- looking

    def waiting(self, name: str | None = None) -> list[ModelJob]:
        return [job for job in self.jobs if job.waits and within(job, name)]

    def running(self, name: str | None = None) -> list[ModelJob]:
        return [job for job in self.jobs if job.runs and within(job, name)]

    def holding(self, lane: str) -> list[ModelJob]:
        """The jobs that have the slots of ``lane``."""
        return [job for job in self.running(lane) if job.has_slot]

    def sessions(self) -> set[str]:
        """The sessions that are alive."""
        busy = {job.session for job in self.jobs if (job.waits or job.runs)}
        return {session for session in busy if session is not None} | self.paused_sessions

    def abandoned(self) -> int:
        return sum(job.inside and not job.runs for job in self.jobs)

    def serves(self, lane: str, now: float) -> bool:
        """Whether ``lane`` could start a job that came now, as far as it goes itself."""
        known = self.lanes[lane]
        return (
            not known.paused
            and not known.returning
            and len(self.holding(lane)) < known.concurrency
            and known.rate.ready_at() <= now
        )

    def is_admitted(self, lane: str, now: float = inf) -> bool:
        """Whether the group of ``lane``, if it has one, would let it start a job."""
        group = self.group
        if group is None or lane not in group.members:
            return True
        used = {name: len(self.holding(name)) for name in group.members}
        return group.admits(lane, used) and group.rate.ready_at() <= now

    # ---- the rules

    def _begin(self) -> None:
        self._moment += 1

    def _settle(self, job: ModelJob, state: State, error: str | None, now: float) -> None:
        lane = self.lanes[job.lane]
        if job.runs:
            lane.finished += 1
        if job.arrival is not None:
            lane.line.leave(job)
        if job in lane.returning:
            lane.returning.remove(job)
            job.back = now
        job.state, job.error, job.arrival, job.settled = state, error, None, now
        job.has_slot = False
        if job.parent is not None and not job.parent.has_lent:
            job.parent.back = now
        self.unseen.add(job.key)
        self._forward()
        self._give_slots_back(now)

    def _give_slots_back(self, now: float) -> None:
        """Those who have lent their slots get them before all others, as the limits are."""
        for name, lane in self.lanes.items():
            while (
                lane.returning
                and len(self.holding(name)) < lane.concurrency
                and self._has_budget(name)
            ):
                job = lane.returning.pop(0)
                job.has_slot, job.back = True, now

    def _has_budget(self, lane: str) -> bool:
        group = self.group
        if group is None or lane not in group.members:
            return True
        return sum(len(self.holding(member)) for member in group.members) < group.budget

    def _forward(self, moved: ModelJob | None = None) -> None:
        """Each session has in global lanes as many jobs as it may still start: its best.

        One that comes takes the place of one that is taken back, if they are bound for the same
        lane; else it comes last. Equals of one session stay in order among themselves. One that
        has ``moved`` by its priority has left its line, and goes behind its new equals.
        """
        for session in {job.session for job in self.jobs if job.waits} - {None}:
            name = f"session:{session}"
            waiting = sorted(self.waiting(name), key=lambda job: (-job.priority, job.place))
            room = max(0, self.setting.session_width - len(self.running(name)))
            best = waiting[: 0 if session in self.paused_sessions else room]
            gone = [job for job in reversed(waiting) if job.arrival is not None and job not in best]
            come = [job for job in best if job.arrival is None]
            arrivals = [job.arrival for job in gone]
            for job in gone:
                if job is not moved:
                    self.lanes[job.lane].line.leave(job)
                job.arrival = None
            for index, job in enumerate(come):
                job.arrival = self._moment
                line = self.lanes[job.lane].line
                if index < len(gone) and job.lane == gone[index].lane and job is not moved:
                    job.arrival = arrivals[index]
                    equals = [
                        mate
                        for mate in best
                        if (mate.lane, mate.priority) == (job.lane, job.priority)
                        and (mate in line.jobs or mate is job)
                    ]
                    ordered = sorted(mate.arrival or 0 for mate in equals)
                    for mate, arrival in zip(equals, ordered, strict=True):
                        if mate is not job and mate.arrival != arrival:
                            line.move(mate, arrival)
                    job.arrival = ordered[equals.index(job)]
                line.join(job)
