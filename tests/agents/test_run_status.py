"""The table of run statuses: every pair, and the diagram in the docs."""

import itertools
import pickle

import pytest

from trio_lanes import LaneError
from trio_lanes.agents import (
    RUN_TRANSITIONS,
    IllegalTransitionError,
    RunStatus,
    check_transition,
)

# From each status: where it may go. Said here a second time, on purpose.
ALLOWED = {
    "queued": "in_progress cancelling cancelled failed expired",
    "in_progress": "requires_action completed incomplete failed cancelling cancelled expired",
    "requires_action": "queued in_progress completed failed cancelling cancelled expired",
    "cancelling": "cancelled failed completed",
    "cancelled": "",
    "failed": "",
    "completed": "",
    "incomplete": "",
    "expired": "",
}
PAIRS = list(itertools.product(ALLOWED, ALLOWED))


def test_there_are_nine_statuses() -> None:
    assert [str(status) for status in RunStatus] == list(ALLOWED)


@pytest.mark.parametrize(("old", "new"), PAIRS)
def test_a_run_goes_only_where_the_contract_says(old: str, new: str) -> None:
    if new == old or new in ALLOWED[old].split():
        check_transition(RunStatus(old), RunStatus(new))
        return
    with pytest.raises(IllegalTransitionError, match=f"from {old} to {new}") as caught:
        check_transition(RunStatus(old), RunStatus(new))
    assert (caught.value.old, caught.value.new) == (RunStatus(old), RunStatus(new))


@pytest.mark.parametrize("old", ALLOWED)
def test_the_error_names_the_allowed_statuses(old: str) -> None:
    new = next(status for status in ALLOWED if status != old and status not in ALLOWED[old])
    with pytest.raises(IllegalTransitionError) as caught:
        check_transition(RunStatus(old), RunStatus(new))
    advice = str(caught.value).partition(";")[2]
    if ALLOWED[old]:
        allowed = advice.partition(f" allowed from {old}: ")[2]
        assert sorted(allowed.split(", ")) == sorted(ALLOWED[old].split())
    else:
        assert advice == f" {old} is final"


def test_the_public_table_is_the_one_that_is_checked() -> None:
    table = {str(old): sorted(new) for old, new in RUN_TRANSITIONS.items()}
    assert table == {old: sorted(new.split()) for old, new in ALLOWED.items()}


def test_the_public_table_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        RUN_TRANSITIONS[RunStatus.FAILED] = frozenset({RunStatus.QUEUED})  # type: ignore[index]


def test_a_status_may_be_given_as_its_value() -> None:
    check_transition("queued", "in_progress")
    with pytest.raises(IllegalTransitionError) as caught:
        check_transition("failed", "queued")
    assert caught.value.old is RunStatus.FAILED


def test_an_unknown_status_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="running"):
        check_transition(RunStatus.QUEUED, "running")


def test_the_error_is_a_lane_error_and_survives_pickling() -> None:
    error = IllegalTransitionError(RunStatus.FAILED, RunStatus.QUEUED)
    copy = pickle.loads(pickle.dumps(error))
    assert isinstance(copy, LaneError)
    assert str(copy) == str(error)
