"""The texts of the ordered sets: one for each order in which jobs are looked up.

A text begins with what is looked for, and ends with a colon and the id of the job. The sets are a
function of the rows of jobs, so a batch writes the difference of what its jobs had and have.
"""

from __future__ import annotations

import struct
from typing import Final, final

from .._contract.state import ENDED, PARKED, WAITING, DurableState
from .._rules.job_record import ON_LIST, JobRecord


@final
class Sets:
    """The names of the ordered sets of jobs."""

    QUEUES: Final = "queues"
    """By session and place: the jobs of its queue."""
    DELAYED: Final = "delayed"
    """By session and due time: its parked jobs that have no place."""
    READY: Final = "ready"
    """By lane, priority, handler, ring and place: what claims look at."""
    PARTIES: Final = "parties"
    """By lane, priority, owner, shelf, handler and place: the ready jobs of fair lanes."""
    LANES: Final = "lanes"
    """By lane and id: the jobs that wait or are parked."""
    STATES: Final = "states"
    """By state and id: all jobs."""
    DUE: Final = "due"
    """By time: parked jobs."""
    EXPIRES: Final = "expires"
    """By time: the jobs that end then if they were not claimed."""
    OVER: Final = "over"
    """By time: the ended jobs, which are forgotten then."""
    COALESCED: Final = "coalesced"
    """By key to coalesce by, whether it was claimed, and id."""
    SUSPECTS: Final = "suspects"
    """By lane: jobs that wait and were running in a crash."""


BEHIND_ALL: Final = "~"
"""It is behind all that follows a beginning: digits, small letters and colons."""

_double: Final = struct.Struct(">d")
_bits: Final = struct.Struct(">Q")
_MIDDLE: Final = 2**63
_RANKS: Final = {1: "0", 0: "1", -1: "2"}


def part(name: str) -> str:
    """Return a name as the part of a beginning: no other name's part begins so."""
    return f"{len(name)}:{name}"


def number(value: int) -> str:
    """Return an integer of 64 bits, so that texts have the order of the numbers."""
    return f"{value + _MIDDLE:016x}"


def time(value: float) -> str:
    """Return a time, so that texts have the order of the times."""
    (bits,) = _bits.unpack(_double.pack(value))
    return f"{bits ^ _MIDDLE if bits < _MIDDLE else bits ^ (2 * _MIDDLE - 1):016x}"


def time_in(text: str) -> float:
    """Return the time with which a text begins."""
    bits = int(text[:16], 16)
    bits = bits ^ _MIDDLE if bits >= _MIDDLE else bits ^ (2 * _MIDDLE - 1)
    return float(_double.unpack(_bits.pack(bits))[0])


def list_of(lane: str, priority: int, name: str, ring: str) -> str:
    """Return the beginning of a ready list."""
    return f"{part(lane)}{_RANKS[priority]}{part(name)}{part(ring)}"


def priority_of(lane: str, priority: int) -> str:
    """Return the beginning of the ready lists of a lane and priority."""
    return part(lane) + _RANKS[priority]


def party_of(lane: str, priority: int, party: str, shelf: int) -> str:
    """Return the beginning of an owner's ready jobs."""
    return f"{part(lane)}{_RANKS[priority]}{part(party)}{shelf}"


def state_of(state: DurableState) -> str:
    """Return the beginning of the jobs in a state."""
    return part(state.value)


def coalesced_by(key: str, *, begun: bool) -> str:
    """Return the beginning of the jobs with a key to coalesce by."""
    return f"{part(key)}{int(begun)}"


def texts_of(job: JobRecord) -> list[tuple[str, str]]:
    """Return (ordered set, text) of a job, for all that it is in."""
    id, state = number(job.id), job.state
    end = f":{job.id}"
    texts = [(Sets.STATES, f"{part(state._value_)}{id}{end}")]
    add = texts.append
    session = job.session
    if session is not None and job.place is not None:
        add((Sets.QUEUES, f"{part(session)}{number(job.place)}{end}"))
    if state in ENDED:
        if job.due is not None:  # a record that the rules are changing may have none
            add((Sets.OVER, f"{time(job.due)}{id}{end}"))
    elif state is WAITING or state is PARKED:
        add((Sets.LANES, f"{part(job.lane)}{id}{end}"))
        if state is PARKED:
            assert job.due is not None
            due = f"{time(job.due)}{id}{end}"
            add((Sets.DUE, due))
            if session is not None and job.place is None:
                add((Sets.DELAYED, part(session) + due))
        elif job.crashed_with:
            add((Sets.SUSPECTS, part(job.lane) + end))
        if job.ready is not None and job.shelf == ON_LIST:
            of = list_of(job.lane, job.priority, job.name, job.ring)
            add((Sets.READY, f"{of}{number(job.ready)}{end}"))
    if job.party is not None:
        of = party_of(job.lane, job.priority, job.party, job.shelf)
        add((Sets.PARTIES, f"{of}{part(job.name)}{number(job.ready or 0)}{end}"))
    if job.expires is not None:
        add((Sets.EXPIRES, f"{time(job.expires)}{id}{end}"))
    if job.coalesce is not None:
        add((Sets.COALESCED, f"{coalesced_by(job.coalesce, begun=job.fence > 0)}{id}{end}"))
    return texts


def id_in(text: str) -> int:
    """Return the id of the job of a text."""
    return int(text[text.rindex(":") + 1 :])
