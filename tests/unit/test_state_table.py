"""The table of a job's states, walked pair by pair."""

from __future__ import annotations

from itertools import product

import pytest

from trio_lanes import Job, JobState, Lane, Lanes, SessionLane
from trio_lanes._actors.state import TRANSITIONS, advance

ALLOWED = {
    ("WAITING", "RUNNING"),
    ("WAITING", "CANCELLED"),
    ("RUNNING", "SUCCEEDED"),
    ("RUNNING", "FAILED"),
    ("RUNNING", "CANCELLED"),
}


class Stateful:
    def __init__(self, state: JobState) -> None:
        self._state = state

    def __repr__(self) -> str:
        return "<a job>"


@pytest.mark.parametrize(
    ("old", "new"), list(product(JobState, JobState)), ids=lambda state: state.name
)
def test_a_state_goes_only_where_the_table_says(old: JobState, new: JobState) -> None:
    job = Stateful(old)
    if (old.name, new.name) in ALLOWED:
        advance(job, new)
        assert job._state is new
    else:
        with pytest.raises(RuntimeError, match=f"<a job> cannot go to {new.name}"):
            advance(job, new)
        assert job._state is old


def test_the_table_has_every_state() -> None:
    assert set(TRANSITIONS) == set(JobState)


@pytest.mark.parametrize("made_by_lanes_alone", [Job, Lane, Lanes, SessionLane])
def test_users_make_none_of_what_only_lanes_make(made_by_lanes_alone: type) -> None:
    with pytest.raises(TypeError, match=r"^only (open_lanes|lanes) makes? a"):
        made_by_lanes_alone()
