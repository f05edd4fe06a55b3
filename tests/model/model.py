"""What lanes promise, as lists and sorts: a model of them without Trio, and without lanes.

It is told what is done to lanes and what is seen of them, in order. It decides what must follow
(which jobs a clear cancels, when a body ends, which job may start, and that one must), and fails
when something else is seen. Where the contract leaves an order open it takes what is seen: of
bodies that end in the same moment, or of jobs that arrive in a lane in the same moment.
"""

from __future__ import annotations

from math import inf

from tests.model.model_jobs import Body, End, ModelJob
from tests.model.model_lanes import ModelGroup, ModelRate, Setting
from tests.model.model_rules import Rules


class Model(Rules):
    """What is done to lanes, and what is seen of them."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.regroup(setting.group, now=0)

    # ---- what is done to lanes

    def submit(
        self,
        session: str | None,
        lane: str,
        priority: int,
        owner: str | None,
        timeout: float,
        queue_timeout: float,
        body: Body,
        now: float,
    ) -> str | None:
        """A job is submitted; the error that this must raise, or None."""
        if lane not in self.lanes:
            return "UnknownLaneError"
        if queue_timeout and not self._room(session, lane, priority, now):
            return "LaneFullError"
        self._begin()
        job = self._accept(
            ModelJob(
                key=len(self.jobs),
                session=session,
                lane=lane,
                priority=priority,
                owner=session if owner is None else owner,
                place=0,
                submitted=now,
                timeout=timeout,
                queue_timeout=queue_timeout,
                body=body,
            )
        )
        if not queue_timeout and not (
            job in self.lanes[lane].line.heads()
            and self.serves(lane, now)
            and self.is_admitted(lane, now)
        ):
            self._settle(job, "CANCELLED", "QueueTimeoutError", now)
        return None

    def _accept(self, job: ModelJob) -> ModelJob:
        self._places += 1
        job.place = self._places
        self.jobs.append(job)
        if job.session is None:
            job.arrival = self._moment
            self.lanes[job.lane].line.join(job)
        self._forward()
        return job

    def _room(self, session: str | None, lane: str, priority: int, now: float) -> bool:
        waiting = self.waiting(f"session:{session}") if session is not None else []
        if len(waiting) >= self.setting.session_bound:
            return False
        running = self.running(f"session:{session}") if session is not None else []
        before = sum(job.priority >= priority for job in waiting)
        return len(self.waiting(lane)) < self.lanes[lane].max_waiting or (
            self.serves(lane, now)
            and not self.lanes[lane].line.jobs
            and self.is_admitted(lane, now)
            and session not in self.paused_sessions
            and len(running) + before < self.setting.session_width
        )

    def cancel(self, job: ModelJob, now: float) -> bool:
        self._begin()
        if job.waits:
            self._settle(job, "CANCELLED", "JobCancelledError", now)
        elif job.runs:
            self._cut(job, End(now, "CANCELLED", "JobCancelledError"))
        else:
            return False
        return True

    def _cut(self, job: ModelJob, end: End) -> None:
        """A job that runs is cancelled, and with it the one that it runs."""
        job.cuts.append(end)
        child = job.child
        if child is not None and child.waits:
            self._settle(child, "CANCELLED", "JobCancelledError", end.when)
        elif child is not None and child.runs:
            child.cuts.append(End(end.when, "CANCELLED", "JobCancelledError"))

    def set_priority(self, job: ModelJob, priority: int) -> str | None:
        """The priority of a job is set; the error that this must raise, or None."""
        if not job.waits:
            return "RuntimeError"
        if priority == job.priority:
            return None
        self._begin()
        self._places += 1
        line, was_there = self.lanes[job.lane].line, job.arrival is not None
        if was_there:
            line.leave(job)
        job.priority, job.place = priority, self._places
        self._forward(moved=job)
        if was_there and job.arrival is not None:
            job.arrival = self._moment
            line.join(job)
        return None

    def clear(self, name: str | None, owner: str | None, now: float) -> int:
        self._begin()
        cleared = [job for job in self.waiting(name) if owner in (None, job.owner)]
        for job in cleared:
            self._settle(job, "CANCELLED", "LaneClearedError", now)
        return len(cleared)

    def reset(self, name: str | None, now: float) -> int:
        self._begin()
        for lane in self.lanes if name is None else {name} & self.lanes.keys():
            self.lanes[lane].generation += 1
        given_up = self.running(name)
        for job in given_up:
            self._cut(job, End(now, "CANCELLED", "LaneResetError"))
        for job in given_up:
            self._settle(job, "CANCELLED", "LaneResetError", now)
        return len(given_up)

    def pause(self, name: str | None, paused: bool) -> None:
        self._begin()
        for lane in self.lanes if name is None else {name} & self.lanes.keys():
            self.lanes[lane].paused = paused
        if name is not None and name.startswith("session:"):
            change = self.paused_sessions.add if paused else self.paused_sessions.discard
            change(name.removeprefix("session:"))
        self._forward()

    def configure(
        self, changes: dict[str, int | tuple[int, float] | None], now: float
    ) -> str | None:
        """Lanes are changed, added and removed; the error that this must raise, or None.

        A pair is a whole configuration: the concurrency, and how many jobs may wait.
        """
        removed = [lane for lane, change in changes.items() if change is None]
        if not self.lanes.keys() >= set(removed):
            return "UnknownLaneError"
        if self.group is not None and {*removed} & {*self.group.members}:
            return "ValueError"
        if any(self.waiting(lane) or self.running(lane) for lane in removed):
            return "ValueError"
        self._begin()
        for lane, change in changes.items():
            if change is None:
                del self.lanes[lane]
                continue
            concurrency = change if isinstance(change, int) else change[0]
            known = self.lanes.setdefault(lane, self._new_lane(lane, concurrency))
            known.concurrency = concurrency
            if not isinstance(change, int):
                known.max_waiting = change[1]
        self._give_slots_back(now)
        return None

    def regroup(self, limits: tuple[float, int] | None, now: float) -> str | None:
        """Other limits for the group, or no group any more; the error that this must raise."""
        if limits is not None and not self.lanes.keys() >= {*ModelGroup.members}:
            return "ValueError"
        self._begin()
        past = None if self.group is None else self.group.rate
        rate = past or ModelRate(self.setting.group_rate, per=2)
        self.group = None if limits is None else ModelGroup(*limits, rate)
        self._give_slots_back(now)
        return None

    def crash(self, now: float) -> None:
        """The block of the lanes is left by an exception."""
        self._begin()
        self.shut = True
        for job in self.waiting():
            self._settle(job, "CANCELLED", "LanesClosedError", now)
        for job in self.jobs:
            job.crashed = now
            job.cuts.append(End(now, "CANCELLED", "JobCancelledError"))

    # ---- what is seen of them

    def saw_start(self, key: int, now: float) -> None:
        """A job took its slots."""
        job = self.jobs[key]
        self._nothing_overdue(before=now)
        assert not self.shut, f"{job} started in lanes that are shut"
        assert job.waits, f"{job} started"
        assert job.arrival is not None, f"{job} started, which its session had not let go"
        heads = self.lanes[job.lane].line.heads()
        assert job in heads, f"{job} passed {heads}"
        assert self.serves(job.lane, now), f"{job} started without a slot"
        assert self.is_admitted(job.lane, now), f"{job} started without a token of its group"
        self._nobody_was_better(job, now)
        job.state, job.started, job.has_slot = "RUNNING", now, True
        lane = self.lanes[job.lane]
        lane.line.start(job)
        job.arrival = None
        lane.started += 1
        lane.rate.starts.append(now)
        if self.group is not None and job.lane in self.group.members:
            self.group.rate.starts.append(now)
        self._begin()
        self._forward()

    def _nobody_was_better(self, job: ModelJob, now: float) -> None:
        """A group starts the best of the heads that its lanes could start."""
        if self.group is None or job.lane not in self.group.members:
            return
        for other in self.group.members:
            if other == job.lane:
                continue  # of owners with equal turns, its own line may choose any
            heads = self.lanes[other].line.heads()
            if heads and self.serves(other, now - 0.001) and self.is_admitted(other, now):
                best = min((-head.priority, head.arrival) for head in heads)
                assert (-job.priority, job.arrival) <= best, f"{job} passed {heads}"

    def saw_call(self, key: int, now: float) -> None:
        """The body of a job began."""
        job = self.jobs[key]
        assert job.runs, f"{job} was called"
        assert not job.called, f"{job} was called twice"
        assert now == job.started, f"{job} was called late, at {now}"
        job.called = job.inside = True

    def saw_lend(self, key: int, now: float) -> None:
        """A job is about to lend its slot."""
        job = self.jobs[key]
        self._goes_on_with_its_child(job, now)
        self._begin()
        if job.runs:
            job.has_slot, job.has_lent = False, True
            self._give_slots_back(now)

    def saw_child(self, key: int, now: float) -> None:
        """A job has submitted another, which it runs."""
        parent = self.jobs[key]
        assert parent.body.child is not None
        self._goes_on_with_its_child(parent, now)
        self._begin()
        parent.child = ModelJob(
            key=len(self.jobs),
            session=None,
            lane="sub",
            priority=0,
            owner=None,
            place=0,
            submitted=now,
            timeout=inf,
            queue_timeout=inf,
            body=parent.body.child,
            parent=parent,
        )
        self._accept(parent.child)

    def _goes_on_with_its_child(self, job: ModelJob, now: float) -> None:
        assert job.inside, f"{job} runs another"
        assert job.child is None, f"{job} runs another twice"
        assert now == job.started + job.body.seconds, f"{job} runs another at {now}"

    def saw_return(self, key: int, now: float) -> None:
        """A job that has lent its slot is about to take it back."""
        job = self.jobs[key]
        self._begin()
        child = job.child
        assert child is None or child.settled == now, f"{job} goes on too late"
        if job.runs:
            self.lanes[job.lane].returning.append(job)
            self._give_slots_back(now)
        else:
            job.back = now

    def saw_exit(self, key: int, now: float) -> None:
        """The body of a job ended."""
        job = self.jobs[key]
        assert now in [end.when for end in job.ends()], f"the body of {job} ended at {now}"
        job.inside = False

    def saw_settled(self, key: int, state: str, error: str | None, now: float) -> None:
        """A job settled."""
        job = self.jobs[key]
        if key in self.unseen:
            self.unseen.discard(key)
            assert (state, error) == (job.state, job.error), f"{job} settled as {state}, {error}"
            return
        self.nothing_can_start(now)  # one transition is over when the next one begins
        self._nothing_overdue(before=now)
        self._begin()
        end = End(now, state, error)  # type: ignore[arg-type]  # it is compared with such
        if job.waits:
            assert end in job.withdrawals(), f"{job} settled as {end}"
        else:
            assert job.runs, f"{job} settled again"
            assert job.called, f"{job} settled before it was called"
            assert not job.inside, f"{job} settled before its body ended"
            assert end in job.ends(), f"{job} settled as {end}"
        self._settle(job, end.state, end.error, now)
        self.unseen.discard(key)

    def at_rest(self, now: float) -> None:
        """Every task is blocked: what was to happen up to now has happened."""
        self._nothing_overdue(before=now + 0.001)
        self.nothing_can_start(now + 0.001)
        for job in self.running():
            assert job.called, f"{job} has not been called"
            if job.has_lent and job.back == inf and (job.child is None or job.child.settled < inf):
                assert job in self.lanes[job.lane].returning, f"{job} does not want its slot"

    def nothing_can_start(self, now: float) -> None:
        """A transition is over: whatever could start before ``now`` has started."""
        before = now - 0.0005  # a timer that is due now may not have been seen yet
        for name, lane in () if self.shut else self.lanes.items():
            assert not (
                lane.line.jobs and self.serves(name, before) and self.is_admitted(name, before)
            ), f"{name} sleeps"

    def all_over(self) -> None:
        """The block of the lanes has been left."""
        left = [job for job in self.jobs if job.waits or job.runs or job.inside]
        assert not left
        assert not any(lane.returning for lane in self.lanes.values())

    def _nothing_overdue(self, before: float) -> None:
        for job in self.jobs:
            if job.waits:
                due = min(end.when for end in job.withdrawals())
                assert due >= before, f"{job} still waits at {before}"
            elif job.inside or job.runs:
                assert job.due() >= before, f"the body of {job} still runs at {before}"
