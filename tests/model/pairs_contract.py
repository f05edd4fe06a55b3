"""The contract, said again in the slow and simple way: what stops a job, and who is next.

Two questions are asked of everything that happens:

* At a start: was that job allowed to start, and did it pass none that had to go first?
* At rest, when every task is blocked: does each job that waits wait for something true?

Where the contract leaves the order open (when did the jobs of two sessions come into a lane?) all
orders are right. So a lane sleeps only if each of its possible heads could start.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from tests.model.pairs_facts import Facts, KnownGroup, KnownJob, admits, limits, window
from trio_lanes import Lanes

NEVER_MIND = 0.01
"""Seconds: what ends in the same moment may be seen one after the other."""


class Contract:
    """What must hold of ``lanes``, as far as is known of them."""

    def __init__(self, facts: Facts, lanes: Lanes) -> None:
        self.facts = facts
        self.lanes = lanes

    # ---- parts of the answers

    def used(self, lane: str) -> int:
        return self.lanes.lane(lane).limiter.borrowed_tokens

    def holds(self, known: KnownJob) -> bool:
        """Whether it has a slot; its body may not yet know."""
        return known.job in self.lanes.lane(known.lane).limiter.statistics().borrowers

    def paused(self, lane: str, now: float) -> bool:
        if lane not in self.facts.configs:  # what a pause means to a template is not tested here
            return self.lanes.lane(lane).paused
        return self.facts.paused(lane, now)

    def members(self, group: KnownGroup) -> list[str]:
        alive = self.lanes.statistics().lanes
        return [lane for lane in alive if self.facts.group(lane) is group]

    def budget_left(self, group: KnownGroup) -> float:
        return group.config.concurrency - sum(map(self.used, self.members(group)))

    def kept_from(self, label: str, group: KnownGroup, without: str = "") -> int:
        """The tokens that siblings of ``label`` have for themselves, and do not use now.

        ``without``: a lane whose last start is not counted.
        """
        kept = 0
        for member, tokens in group.config.reserve.items():
            if member != label:
                lanes = [one for one in self.members(group) if self.facts.label(one) == member]
                used = sum(self.used(lane) - (lane == without) for lane in lanes)
                kept += max(0, tokens - used)
        return kept

    def session_lets(self, known: KnownJob, now: float) -> bool | None:
        """Whether its session lets it start; None if the contract does not say."""
        facts = self.facts
        if known.session is None:
            return True
        name = f"session:{known.session}"
        mates = facts.of_session(known.session)
        room = facts.sessions.concurrency - sum(mate.runs for mate in mates)
        line = sorted((mate for mate in mates if mate.waits), key=lambda mate: mate.rank)
        if facts.paused(name, now):
            return False
        if known.waits and line.index(known) >= room:
            return False
        rates = limits(facts.sessions)
        if not rates:
            return True
        contenders = [mate for mate in mates if mate.again] + (line if room > 0 else [])
        best = max(mate.priority for mate in contenders)
        if any(mate.priority == best for mate in contenders if mate is not known):
            again = [mate for mate in contenders if mate.again and mate.priority == best]
            first = again if again else [line[0]]
            if first != [known]:
                return None  # with a rate, jobs of a session may be let go one at a time
        elif known.priority < best:
            return None
        return admits(facts.charges[name], rates, known.cost, now)

    def candidates(self, lane: str, now: float) -> tuple[list[KnownJob], bool]:
        """The jobs that only ``lane`` and its group may stop; and whether that is certain."""
        here = self.facts.waiting(lane)
        here += [known for known in self.facts.running(lane) if known.again]
        answers = {known: self.session_lets(known, now) for known in here}
        return [known for known in here if answers[known]], None not in answers.values()

    def score(self, lane: str, mates: list[KnownJob], now: float) -> float:
        """The priority of ``mates``, which are equals, raised by the wait of their oldest."""
        oldest = min(mate.since for mate in mates)
        return mates[0].priority + (now - oldest) / self.facts.config(lane).aging

    def heads(self, lane: str, jobs: list[KnownJob], now: float) -> list[KnownJob]:
        """Which of ``jobs``, that stand in ``lane``, may be the next."""
        classes = {
            job.priority: [mate for mate in jobs if mate.priority == job.priority] for job in jobs
        }
        scores = {priority: self.score(lane, classes[priority], now) for priority in classes}
        best = max(scores.values(), default=0)
        found = []
        for priority, mates in classes.items():
            if scores[priority] > best - NEVER_MIND:
                again = [mate for mate in mates if mate.again]
                firsts: dict[str | None, KnownJob] = {}
                for mate in sorted(mates, key=lambda mate: mate.place):
                    firsts.setdefault(mate.session, mate)
                moved = [mate for mate in mates if mate.moved]
                found += again or [*firsts.values(), *moved]
        return found

    def lane_admits(self, known: KnownJob, now: float) -> bool:
        rates = limits(self.facts.config(known.lane))
        return admits(self.facts.charges[known.lane], rates, known.cost, now)

    # ---- at a start

    def wrong_with_start(self, known: KnownJob, now: float) -> Iterator[str]:
        """What the contract has against the start of that job, which is not yet charged."""
        facts, lane = self.facts, known.lane
        yield from self.over_limits(known, now)
        if self.paused(lane, now):
            yield f"{known} started in a paused lane"
        if known.session is not None:
            name = f"session:{known.session}"
            if facts.paused(name, now):
                yield f"{known} started in a paused session"
            running = [mate for mate in facts.of_session(known.session) if mate.runs]
            if len(running) > facts.sessions.concurrency:
                yield f"{known} started beside {running}"
        group = facts.group(lane)
        if group is not None:
            kept = self.kept_from(facts.label(lane), group)
            if self.budget_left(group) - kept < 0:
                yield f"{known} took a token of {group.config}, of which {kept} are kept"
        yield from self.passed(known, group, now)

    def over_limits(self, known: KnownJob, now: float) -> Iterator[str]:
        """What limits have against a start, or another start, of that job."""
        for charges, rates in self.facts.meters(known):
            if not admits(charges, rates, known.cost, now):
                taken = [window(charges, rate, now) for rate in rates]
                yield f"{known} took {known.cost} beside {taken} of {rates}"

    def passed(self, known: KnownJob, group: KnownGroup | None, now: float) -> Iterator[str]:
        """The jobs that had to go before ``known``."""
        facts, lane = self.facts, known.lane
        for other in facts.jobs:
            if other is known or not (other.runs and other.wants) or self.holds(other):
                continue
            if other.job.cancel_called and not other.job.blocked_by():
                continue  # it goes on without a slot, as none could come; its body is not told yet
            free = self.used(other.lane) < facts.width(other.lane)
            if other.lane == lane or (group is facts.group(other.lane) is not None and free):
                yield f"{known} started before {other}, which wants its slot back"
        for other in facts.waiting(lane):
            equals = other.priority == known.priority and other.session == known.session
            if equals and other.place < known.place and not (other.moved or known.moved):
                yield f"{known} started before its equal {other}"
        mates = [known, *(mate for mate in facts.waiting(lane) if mate.priority == known.priority)]
        score = self.score(lane, mates, now)
        for sibling in [lane] if group is None else self.members(group):
            for other in self.sure_heads(sibling, group, lane, now):
                theirs = [
                    mate for mate in facts.waiting(sibling) if mate.priority == other.priority
                ]
                if sibling == lane and other.priority == known.priority:
                    continue
                if self.score(sibling, theirs, now) > score + NEVER_MIND:
                    yield f"{known} started before {other}, which is better"
                elif self.is_older(other, known):
                    yield f"{known} started before {other}, which is older"

    def is_older(self, job: KnownJob, other: KnownJob) -> bool:
        """Whether ``job`` is an equal of ``other`` that came into its lane before that did."""
        plain = all(
            one.session is None and not one.moved and self.facts.config(one.lane).aging == inf
            for one in (job, other)
        )
        return plain and job.priority == other.priority and job.place < other.place

    def sure_heads(
        self, lane: str, group: KnownGroup | None, starter: str, now: float
    ) -> list[KnownJob]:
        """The head of ``lane``, where it is certain, and nothing but its group stops it."""
        facts, before = self.facts, now - NEVER_MIND
        jobs = facts.waiting(lane)
        if any(job.session for job in jobs) or any(
            job.readmits or job.unknown for job in facts.running(lane)
        ):
            return []
        heads = self.heads(lane, jobs, now)
        if lane == starter or len(heads) != 1:
            return heads if len(heads) == 1 else []
        ended_together = facts.until[lane] == facts.until[starter]
        if self.paused(lane, now if ended_together else before):
            return []
        if self.used(lane) >= facts.width(lane) or not self.lane_admits(heads[0], before):
            return []
        if any(job.wants for job in facts.running(lane)):
            return []
        assert group is not None
        left = self.budget_left(group) + 1  # before the start that is looked at
        kept = self.kept_from(facts.label(lane), group, without=starter)
        return heads if left - kept >= 1 else []

    # ---- at rest

    def wrong_at_rest(self, now: float) -> Iterator[str]:
        """What the contract has against this moment, at which every task is blocked."""
        for lane in self.lanes.statistics().lanes:
            yield from self.slots(lane)
        yield from self.sleeping_lanes(now)
        for known in self.facts.jobs:
            if known.waits or (known.runs and (known.again or known.wants)):
                yield from self.untrue_blockers(known, now)

    def slots(self, lane: str) -> Iterator[str]:
        borrowers = set(self.lanes.lane(lane).limiter.statistics().borrowers)
        running = [known for known in self.facts.running(lane) if not known.unknown]
        holders = {known.job for known in running if known.has_slot}
        loose = {known.job for known in self.facts.running(lane)} - {one.job for one in running}
        if borrowers - loose != holders:
            yield f"slots of {lane} are with {borrowers}, and belong to {holders}"
        group = self.facts.group(lane)
        free = self.used(lane) < self.facts.width(lane)
        for known in running:
            kinds = [blocker.kind for blocker in known.job.blocked_by()]
            has_budget = group is None or self.budget_left(group) >= 1
            if known.wants and known.job not in borrowers and free and has_budget:
                yield f"{known} wants its slot back, and there is one"
            if known.job.cancel_called and not self.facts.width(lane) and "concurrency" in kinds:
                yield f"{known} is cancelled, and waits for a slot that cannot come"

    def sleeping_lanes(self, now: float) -> Iterator[str]:
        """Work conservation: no lane sleeps, and no group, while a head of it could start."""
        offers: dict[str, list[KnownJob]] = {}
        unsure = set()
        for lane in self.lanes.statistics().lanes:
            jobs, certain = self.candidates(lane, now)
            if not certain:
                unsure.add(lane)
            stopped = self.paused(lane, now) or self.used(lane) >= self.facts.width(lane)
            if stopped or any(known.wants for known in self.facts.running(lane)):
                continue
            heads = self.heads(lane, jobs, now)
            offers[lane] = [head for head in heads if self.lane_admits(head, now)]
            if len(offers[lane]) < len(heads):
                unsure.add(lane)
        for lane, heads in offers.items():
            if not heads or lane in unsure:
                continue
            group = self.facts.group(lane)
            if group is None:
                yield f"{lane} sleeps: nothing stops {heads}"
                continue
            siblings = [other for other in offers if self.facts.group(other) is group]
            if any(other in unsure for other in siblings):
                continue
            every = [head for other in siblings for head in offers[other] if self.has_token(other)]
            rates = limits(group.config)
            if self.has_token(lane) and all(
                admits(group.charges, rates, head.cost, now) for head in every
            ):
                yield f"{lane} sleeps in {group.config}: nothing stops {heads}"

    def has_token(self, lane: str) -> bool:
        group = self.facts.group(lane)
        if group is None:
            return True
        return self.budget_left(group) - self.kept_from(self.facts.label(lane), group) >= 1

    def untrue_blockers(self, known: KnownJob, now: float) -> Iterator[str]:
        """A job that waits says for what, and that is so."""
        found = known.job.blocked_by()
        if not found:
            yield f"{known} waits, and blocked_by() is empty"
        if not known.job.root_causes():
            yield f"{known} waits, and root_causes() is empty"
        seconds = [more for cause, more in known.job.waits.items() if cause != "room"]
        if known.waits and abs(sum(seconds) - (now - known.job.submitted_at)) > NEVER_MIND:
            yield f"{known} does not know where its wait went: {known.job.waits}"
        facts = self.facts
        group = facts.group(known.lane)
        for blocker in found:
            where, is_session = blocker.lane, blocker.lane.startswith("session:")
            match blocker.kind:
                case "pause":
                    true = facts.paused(where, now) if is_session else self.paused(where, now)
                case "concurrency":
                    true = self.used(where) >= facts.width(where)
                case "session":
                    mates = facts.of_session(known.session)
                    true = sum(mate.runs for mate in mates) >= facts.sessions.concurrency
                case "group":
                    true = group is not None and self.budget_left(group) < 1
                case "reservation":
                    true = not self.has_token(known.lane)
                case "order":
                    others = [facts.by_job[job] for job in blocker.jobs]
                    true = bool(others) and all(one.waits or one.readmits for one in others)
                case "rate":
                    true = blocker.until is not None and now < blocker.until < inf
                    true = true and any(
                        not admits(charges, rates, known.cost, now)
                        for charges, rates in facts.meters(known)
                    )
                case _:
                    true = True
            if not true:
                yield f"{known} is said to be blocked by {blocker}"
