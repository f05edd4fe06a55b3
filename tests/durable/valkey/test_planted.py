"""Faults that are put into the script: the suite or the comparison of two stores finds each."""

from pathlib import Path

import pytest

from tests.durable.conformance.stores import memory
from tests.durable.conformance.suite import play
from tests.durable.conformance.twins import compare_stores
from trio_lanes.durable import ValkeyStore
from trio_lanes.durable._valkey.script import Script

from .clock import SCRIPT
from .place import Place
from .server import Server

pytestmark = [pytest.mark.real_processes, pytest.mark.no_cover]  # it is dear, and about Lua

FAULTS = {
    "a lent slot is not free": (
        "    if not job.lent then\n      at[",
        "    if true then\n      at[",
    ),
    "a run that is given back goes to the tail": ("list_ready(job, true)", "list_ready(job)"),
    "a crash is not counted": ("job.crashes = (job.crashes or 0) + 1", "job.crashes = 0"),
    "a lane has one slot too many": (
        "local free = self:limit(lane).concurrency -",
        "local free = 1 + self:limit(lane).concurrency -",
    ),
    "the next head of a session is not listed": (
        "  tell_ended(job, outcome)\n  list_next_head(job.session)\nend\n\n-- Make a job dead",
        "  tell_ended(job, outcome)\nend\n\n-- Make a job dead",
    ),
    "the fence of a finish is not compared": (
        "job.state == 'running' and job.fence == fence then\n    return job",
        "job.state == 'running' then\n    return job",
    ),
    "a recorded cancellation is forgotten": (
        "  if job.cancel then\n    end_job(job, 'cancelled', job.cancel)\n  else",
        "  if false then\n    end_job(job, 'cancelled', job.cancel)\n  else",
    ),
    "the number of a step is forgotten": ("if number <= last.number then", "if false then"),
    "a ticket is not remembered": (
        "    answer = apply(WITH_TICKET[verb], verb, arguments)\n    keep_answer(ticket, answer)",
        "    answer = apply(WITH_TICKET[verb], verb, arguments)",
    ),
    "a refusal is not remembered": (
        "    keep_answer(ticket, answer)\n",
        "    if answer[1] == 0 then keep_answer(ticket, answer) end\n",
    ),
    "a delayed job is due too early": (
        "'parked', now + item.delay, 'delay'",
        "'parked', now + item.delay / 2, 'delay'",
    ),
}


FOUND_BY_SUITE = {
    "a lent slot is not free": "test_a_lent_slot_is_one_of_its_group_too",
    "a lane has one slot too many": "test_a_job_is_blocked_by_a_lane_without_a_free_slot",
    "a recorded cancellation is forgotten": "test_a_cancelled_run_is_not_postponed_or_given_back",
    "a refusal is not remembered": (
        "test_each_act_is_decided_once_for_its_ticket_whatever_comes_between"
    ),
    "a run that is given back goes to the tail": "test_the_runs_of_a_crash_go_before_waiting_jobs",
    "the fence of a finish is not compared": (
        "test_a_step_asked_again_gives_the_same_claims_and_does_nothing_more"
    ),
}
"""The story that fails; every other fault is found by the comparison."""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_script_is_found(server: Server, fault: str) -> None:
    right, wrong = FAULTS[fault]
    assert SCRIPT.text.count(right) == 1
    place = Place()
    place.server = server

    def store(folder: Path) -> ValkeyStore:
        made = place.store(folder)
        made._script = Script(SCRIPT.text.replace(right, wrong))
        return made

    def differ(seed: int) -> list[str]:
        return compare_stores(memory(), store, seed=seed, clock=place.clock)

    try:
        if fault in FOUND_BY_SUITE:
            with pytest.RaisesGroup(AssertionError, flatten_subgroups=True, allow_unwrapped=True):
                play(FOUND_BY_SUITE[fault], store, clock=place.clock, pause=0.01)
        else:
            assert any(differ(seed) for seed in range(40))
    finally:
        place.close()
