"""Faults put into the code on purpose, each with the layer of tests that must find it.

A layer is called while the fault is in place, and returns what is wrong.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any
from unittest import mock

import attrs
from trio.testing import MockClock

from tests.durable.conformance.stores import memory, sqlite
from tests.durable.conformance.suite import play
from tests.durable.conformance.twins import compare_stores
from trio_lanes.durable.testing import NO_FAULTS, Faults, Life, simulate

PACKAGE = "trio_lanes.durable"
Patch = Callable[[], Any]


def _replaced(path: str, make: Callable[[Any], Any]) -> Patch:
    """Replace an attribute by what ``make`` makes of it."""

    def patch() -> Any:
        module, names = path.split(":")
        owner: Any = importlib.import_module(f"{PACKAGE}.{module}")
        *outer, name = names.split(".")
        for part in outer:
            owner = getattr(owner, part)
        return mock.patch.object(owner, name, make(getattr(owner, name)))

    return patch


def _returning(value: Any) -> Callable[[Any], Any]:
    return lambda before: lambda *args, **options: value


def _uncompared(patch: Patch) -> Patch:
    """A patch without `Compare`, which mends with the next heartbeat what an answer has lost."""

    @contextmanager
    def both() -> Any:
        nothing = _replaced("acts.runs:Compare.apply", _returning(((), (), 0)))
        with nothing(), patch():
            yield

    return both


def _skip_update(*columns: str) -> Callable[[Any], Any]:
    """Leave changes of some columns out."""

    def make(before: Any) -> Any:
        def update(self: Any, job: Any, **changes: Any) -> None:
            before(self, job, **{k: v for k, v in changes.items() if k not in columns})

        return update

    return make


def _number_forgotten(before: Any) -> Any:
    return lambda self, instance, step: None


def _again_gives_no_claims(before: Any) -> Any:
    def again(self: Any, *args: Any) -> Any:
        return attrs.evolve(before(self, *args), claims=())

    return again


def _fence_not_compared(before: Any) -> Any:
    def running_of(self: Any, id: int, fence: int) -> Any:
        job = self.tables.get(id)
        return job if job is not None and job.state.value == "running" else None

    return running_of


def _crash_as_give_back(before: Any) -> Any:
    def crash(self: Any, runs: Any) -> None:
        for job in list(runs):
            self.give_back(job)

    return crash


def _given_back_at_the_tail(before: Any) -> Any:
    return lambda self, job, first=False: before(self, job, first=False)


def _ready_though_behind(before: Any) -> Any:
    def append(self: Any, job: Any) -> None:
        before(self, job)
        if job.ready is None:
            self._set_ready(job)

    return append


def _slot_kept(before: Any) -> Any:
    def runs(self: Any) -> Any:
        found = before(self)
        for job in self._jobs.values():
            if job.state.value in ("parked", "waiting") and job.fence > 0:
                found._holding[job.lane].add(job.id)
        return found

    return runs


def _one_slot_too_many(before: Any) -> Any:
    return lambda self, lane: max(0, int(before(self, lane)) - 1)


def _no_ticket(before: Any) -> Any:
    return lambda self, ticket, act: act()


def _no_refusal_kept(before: Any) -> Any:
    return lambda self, ticket, refusal: None


def _asks_another_step(before: Any) -> Any:
    return lambda self, call, unknown: before(self, call, False)


def _incarnation_not_compared(before: Any) -> Any:
    return lambda self, instance: True


def _former_runs_are_left(before: Any) -> Any:
    return lambda self, instance, **options: before(self, instance, **{**options, "former": ""})


def _held_are_given_back(before: Any) -> Any:
    return lambda self, instance, **options: before(self, instance, **{**options, "held": ()})


def _last_head_wins(before: Any) -> Any:
    def head(self: Any, session: str) -> Any:
        jobs = (job for job in self._jobs.values() if job.session == session)
        queue = sorted((job for job in jobs if job.place is not None), key=lambda job: job.place)
        return queue[-1] if queue else None

    return head


def _pause_ignored(before: Any) -> Any:
    return lambda limit, now: False


def _due_too_early(before: Any) -> Any:
    return lambda self, now, limit, session=None: before(self, now + 2.0, limit, session)


def _one_request(before: Any) -> Any:
    return lambda job: {"requests": 1}


def _no_limit_of_templates(before: Any) -> Any:
    def limit_of(lanes: Any, name: str) -> Any:
        limit = before(lanes, name)
        return limit if limit is None or name in lanes else attrs.evolve(limit, concurrency=99)

    return limit_of


def _first_lane_always(before: Any) -> Any:
    return property(lambda self: "")


def _no_end_of_rates(before: Any) -> Any:
    return lambda self, job: []


def suite(story: str) -> Callable[[], object]:
    """Tell a story of the conformance suite; return the error by which it fails."""

    def layer() -> object:
        try:
            play(story, memory(), clock=MockClock)
        except Exception as error:
            return error
        return None

    return layer


def twins() -> object:
    """Tell the store in memory and SQLite the same; return in what they differ."""
    return next(filter(None, (compare_stores(memory(), sqlite, seed=n) for n in range(24))), None)


def simulation(faults: Faults = Faults()) -> Callable[[], object]:  # noqa: B008  # frozen
    """Play lives; return what is wrong in the first in which something is."""
    return lambda: next(filter(None, (simulate(Life(n, faults=faults)) for n in range(20))), None)


LOSSES = attrs.evolve(NO_FAULTS, lost=0.35)
RULES, TABLES, QUEUES = (
    "_rules.engine:Engine",
    "_memory.tables:MemoryTables",
    "_rules.queues:Queues",
)

FAULTS: dict[str, tuple[Callable[[], object], Patch]] = {
    "the number of a step is forgotten": (
        suite("test_a_step_asked_again_gives_the_same_claims_and_does_nothing_more"),
        _replaced("_rules.answers:RemembersAnswers.put_last_step", _number_forgotten),
    ),
    "a step asked again gives no claims": (
        simulation(),
        _uncompared(_replaced(f"{RULES}._step_again", _again_gives_no_claims)),
    ),
    "the worker takes another step when an answer is lost": (
        simulation(LOSSES),
        _uncompared(_replaced("_runs.worker:Worker._keep_or_withdraw", _asks_another_step)),
    ),
    "the fence of a finish is not compared": (
        suite("test_a_finish_that_comes_too_late_changes_nothing"),
        _replaced(f"{QUEUES}.running_of", _fence_not_compared),
    ),
    "a ticket is not remembered": (
        suite("test_a_submission_with_the_same_ticket_is_accepted_once"),
        _replaced(f"{RULES}.once", _no_ticket),
    ),
    "a refusal is not remembered": (
        suite("test_each_act_is_decided_once_for_its_ticket_whatever_comes_between"),
        _replaced(f"{RULES}.keep_refusal", _no_refusal_kept),
    ),
    "the lease of an instance is not asked": (
        suite("test_an_instance_without_its_lease_does_nothing_until_it_joins_again"),
        _replaced(f"{RULES}.is_alive", _incarnation_not_compared),
    ),
    "a join leaves the runs of the former incarnation": (
        suite("test_the_claims_of_an_unanswered_step_are_given_back_by_the_next_join"),
        _replaced(f"{RULES}.join", _former_runs_are_left),
    ),
    "a join gives back runs that have ended": (
        suite("test_the_claims_of_an_unanswered_step_are_given_back_by_the_next_join"),
        _replaced(f"{RULES}.join", _held_are_given_back),
    ),
    "a crash is not counted": (
        suite("test_the_runs_of_a_crash_run_again_first_with_one_crash_more"),
        _replaced(f"{QUEUES}.crash", _crash_as_give_back),
    ),
    "a run that is given back goes to the tail": (
        suite("test_the_runs_of_a_crash_go_before_waiting_jobs"),
        _replaced(f"{QUEUES}._set_ready", _given_back_at_the_tail),
    ),
    "the next head of a session is not listed": (
        simulation(),
        _replaced(f"{QUEUES}.list_next_head", _returning(None)),
    ),
    "a run that is given back is not listed": (
        simulation(),
        _replaced(f"{QUEUES}.list_ready", _returning(None)),
    ),
    "the second job of a session is listed": (
        simulation(),
        _replaced(f"{QUEUES}.append", _ready_though_behind),
    ),
    "a slot is not freed": (twins, _replaced(f"{TABLES}.runs", _slot_kept)),
    "a lane has one slot too many": (
        simulation(),
        _replaced("_rules.running:Running.slots_used", _one_slot_too_many),
    ),
    "a dead instance is not reaped": (simulation(), _replaced(f"{RULES}._reap", _returning(None))),
    "the last job of a session is its head": (
        twins,
        _replaced(f"{TABLES}.head", _last_head_wins),
    ),
    "a paused lane is claimed from": (
        suite("test_a_paused_lane_or_session_starts_nothing_until_resumed"),
        _replaced("_rules.claims:is_paused", _pause_ignored),
    ),
    "a delayed job is due too early": (twins, _replaced(f"{TABLES}.due", _due_too_early)),
    "a recorded cancellation is forgotten": (
        suite("test_a_cancelled_job_is_cancelled_by_a_crash_that_would_make_it_dead"),
        _replaced(f"{TABLES}.update", _skip_update("cancel")),
    ),
    "a start is charged as one request, whatever its cost": (
        suite("test_a_start_takes_the_cost_of_its_job_from_the_rates"),
        _replaced("_rules.rates:costs_of", _one_request),
    ),
    "a lane of a template has no limit": (
        suite("test_each_lane_of_a_template_has_its_limits_and_is_forgotten_when_empty"),
        _replaced("_rules.budget:limit_of", _no_limit_of_templates),
    ),
    "each claim begins with the first lane": (
        suite("test_lanes_of_templates_take_turns_and_serve_every_priority"),
        _replaced("_rules.claims:FairTurns.served", _first_lane_always),
    ),
    "a rate is no reason to wait": (
        suite("test_a_job_is_blocked_by_rates_until_a_time_that_is_known"),
        _replaced("_rules.budget:Budget.rates_until", _no_end_of_rates),
    ),
}
