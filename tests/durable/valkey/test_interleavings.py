"""Every interleaving of two workers and three jobs on the real server: all jobs end, each once."""

from collections.abc import Iterator

import pytest

from tests.support.chaos import TIMES
from trio_lanes.durable._valkey.script import Script

from .clock import SCRIPT
from .conftest import _started
from .interleavings import SCENES, Explorer, Wrong
from .server import Server

pytestmark = [pytest.mark.real_processes, pytest.mark.slow]
FAULTS = {
    "the number of a step is forgotten": (
        ("if number <= last.number then", "if false then"),
        "job . ends by itself|a step that was asked again|an old step|the same step",
    ),
    "a step does not ask for the lease": (
        ("  if not is_alive(instance) then\n    for at = 5", "  if false then\n    for at = 4"),
        "a step without a lease",
    ),
    "the next head of a session is not listed": (
        (
            "  tell_ended(job, outcome)\n  list_next_head(job.session)\nend\n\n-- Make a job dead",
            "  tell_ended(job, outcome)\nend\n\n-- Make a job dead",
        ),
        "is a waiting head, and is on no ready list",
    ),
    "the runs of a dead instance are left": (
        ("  crash(runs_of(id))\n  drop_instance(id)", "  drop_instance(id)"),
        "runs on an instance that is not in the store",
    ),
    "a dead instance is not reaped": (
        (
            "    if id ~= instance then\n      remove_instance(id)",
            "    if false then\n      remove_instance(id)",
        ),
        "jobs are stuck",
    ),
}
"""Faults that are put into the script, and what is found."""
FAULTS_OF_SCENES = {
    "a job joins one that has begun": (
        "jobs that coalesce",
        ("if (find(id).fence ~= nil) == begun then", "if begun then"),
        "two jobs wait that have the same key",
    ),
    "a due time is fired twice": (
        "a schedule",
        ("if not of or of.next ~= tonumber(due) then", "if not of then"),
        "a due time|due times",
    ),
    "a budget admits all": (
        "a budget",
        ("if not stop or sum <= math.max(meter.most - amount, 0) then", "if true then"),
        "more is spent",
    ),
    "what is granted counts twice": (
        "a grant",
        ("(one[1] > now and one[2] or 0)", "(one[1] > now and one[2] * 2 or 0)"),
        "more is spent",
    ),
    "a settle above is charged twice": (
        "a grant",
        (
            "  lines.charge(line, meters, more)\n",
            "  lines.charge(line, meters, more)\n  lines.charge(line, meters, more)\n",
        ),
        "more is used",
    ),
    "a spend without a wait waits": (
        "a grant",
        ("wait == '0' and lines.refused_until(request)", "false"),
        "a spend waits",
    ),
}
"""Faults that are put into the script: the scene in which each is found, and what is found."""
FEW_SCENES = [scene for scene in SCENES if scene != "jobs"]
FOUND_LATE = "a dead instance is not reaped"
"""The fault that is found at the end of the way, after all acts."""


@pytest.fixture(scope="module")
def ways_server(server: Server) -> Iterator[Server]:
    """A server whose keys are those of one state at a time."""
    yield from _started(appendonly="no")


@pytest.mark.parametrize(
    ("limit", "room", "faults", "fair"),
    [
        (2, 2, 0, False),
        (2, 1, 0, True),
        pytest.param(1, 2, 1, False, marks=pytest.mark.thorough),
        pytest.param(2, 1, 1, False, marks=pytest.mark.thorough),
    ],
)
def test_in_every_order_of_acts_and_faults_all_jobs_end_once(
    ways_server: Server, limit: int, room: int, faults: int, fair: bool
) -> None:
    faults += TIMES > 1
    explorer = Explorer(ways_server, SCRIPT, limit, room, fair)
    try:
        states = explorer.explore(faults)
    finally:
        explorer.close()
    print(f"limit {limit}, room {room}, {faults} faults: {states} states, {explorer.acts} acts")
    assert explorer.acts > states > 100


@pytest.mark.parametrize(
    ("scene", "copies", "faults"),
    [
        *((scene, 1, 0) for scene in FEW_SCENES),
        # the last scene has several times the states of the others, and the first the fewest
        *(pytest.param(scene, 2, 0, marks=pytest.mark.thorough) for scene in FEW_SCENES[:-1]),
        pytest.param(FEW_SCENES[0], 1, 1, marks=pytest.mark.thorough),
    ],
)
def test_in_every_order_of_calls_a_scene_keeps_its_rule(
    ways_server: Server, scene: str, copies: int, faults: int
) -> None:
    explorer = Explorer(ways_server, SCRIPT, 2, 1, scene=scene, copies=copies)
    try:
        states = explorer.explore(faults)
    finally:
        explorer.close()
    print(f"{scene}, {copies} copies, {faults} faults: {states} states, {explorer.acts} acts")
    assert explorer.acts > states > 100


@pytest.mark.parametrize("fault", FAULTS_OF_SCENES)
def test_a_fault_in_the_script_is_found_in_a_scene(ways_server: Server, fault: str) -> None:
    scene, (right, wrong), found = FAULTS_OF_SCENES[fault]
    assert SCRIPT.text.count(right) == 1
    script = Script(SCRIPT.text.replace(right, wrong))
    explorer = Explorer(ways_server, script, 2, 1, scene=scene)
    try:
        with pytest.raises(Wrong, match=found):
            explorer.explore(faults=0)
    finally:
        explorer.close()


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, marks=pytest.mark.thorough) if fault == FOUND_LATE else fault
        for fault in FAULTS
    ],
)
def test_a_fault_in_the_script_is_found(ways_server: Server, fault: str) -> None:
    (right, wrong), found = FAULTS[fault]
    assert SCRIPT.text.count(right) == 1
    explorer = Explorer(ways_server, Script(SCRIPT.text.replace(right, wrong)), 1, 1)
    try:
        with pytest.raises(Wrong, match=found):
            explorer.explore(faults=1)
    finally:
        explorer.close()
