"""Fair lanes: the owners of ready jobs take turns, as in a fair lane of the core.

A job stands for its owner: the one that was given, else its session; jobs without both share one.
Of each owner, the first job of each handler is on the ready list, at the owner's turn; the others
are shelved behind it. When a job is claimed, the next of its owner comes to the end of the list,
and so do the owner's first jobs of other handlers. When it leaves without a run, the next takes its
place. So a list has an entry for each owner, and to choose the next entry is to choose an owner.

Weights divide a list: each entry of the weights has a list of its own, its *ring*. How many owners
each ring has, and what it is owed, is in the tables while it has owners (`SHARES`);
`_config.shares` chooses by that.

A job that was given back goes to the front of all, as in a plain lane, and takes no turn.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..._config.shares import weight_class
from .._contract.records import LaneLimit
from .job_record import BEHIND_OWNER, ON_LIST, JobRecord
from .lane_limits import limit_of
from .tables import LIMITS, SHARES, Tables


def weights_of(tables: Tables, lane: str) -> Mapping[str, float] | None:
    """Return the weights of owners in a lane; None: it is not fair."""
    limit = limit_of(tables.of(LIMITS), lane)
    return limit.weights if limit is not None and limit.fair else None


def key_of(lane: str, priority: int) -> str:
    """Return under which name the shares of a priority of a lane are kept."""
    return f"{priority} {lane}"


def join(tables: Tables, job: JobRecord) -> None:
    """Let a job that has become ready stand for its owner; its shelf is set in the record alone."""
    weights = weights_of(tables, job.lane)
    if weights is None:
        return
    party, ring = _standing(job, weights)
    heads = tables.heads_of(job.lane, job.priority, party)
    tables.update(job, party=party, ring=ring)
    if job.name in [head.name for head in heads]:
        job.shelf = BEHIND_OWNER
    if not heads:
        _count(tables, job, ring, 1)


def leave(tables: Tables, job: JobRecord, *, claimed: bool) -> None:
    """Take a job that stands for its owner off the lists; the owner's next job comes on."""
    party, ring, place = job.party, job.ring, job.ready
    assert party is not None
    on_list = job.shelf == ON_LIST
    tables.update(job, party=None, ring="", ready=None, shelf=ON_LIST)
    if not on_list:
        return
    heads = tables.heads_of(job.lane, job.priority, party)
    behind = tables.first_behind(job.lane, job.priority, job.name, party)
    if claimed:
        heads = sorted([*heads, behind] if behind else heads, key=lambda head: head.id)
        for head in heads:
            tables.update(head, ready=tables.next_number(), shelf=ON_LIST)
    elif behind is not None:
        tables.update(behind, ready=place, shelf=ON_LIST)
    if not heads and behind is None:
        _count(tables, job, ring, -1)


def relist_changed(tables: Tables, before: Mapping[str, LaneLimit]) -> None:
    """List anew what waits in lanes that are fair now, or not any more, or have other weights."""
    for waits in sorted(tables.counts().waiting):
        past, present = limit_of(before, waits), limit_of(tables.of(LIMITS), waits)
        if past and present and (past.fair, past.weights) != (present.fair, present.weights):
            _relist(tables, waits)


def _relist(tables: Tables, lane: str) -> None:
    """List the ready jobs of a lane anew, by its present limits; the owners keep their turns."""
    weights = weights_of(tables, lane)
    owners: set[tuple[int, str]] = set()
    heads: set[tuple[int, str, str]] = set()
    for priority in {job.priority for job in tables.listed(lane)}:
        tables.put(SHARES, key_of(lane, priority), None)
    for job in tables.listed(lane):
        party, ring = (None, "") if weights is None else _standing(job, weights)
        shelf = ON_LIST
        if party is not None:
            if (job.priority, party, job.name) in heads:
                shelf = BEHIND_OWNER
            if (job.priority, party) not in owners:
                _count(tables, job, ring, 1)
            owners.add((job.priority, party))
            heads.add((job.priority, party, job.name))
        number = tables.next_number()
        tables.update(job, ready=number, shelf=shelf, party=party, ring=ring)


def _standing(job: JobRecord, weights: Mapping[str, float]) -> tuple[str, str]:
    owner = job.session if job.owner is None else job.owner
    return "-" if owner is None else f"={owner}", weight_class(weights, owner)


def _count(tables: Tables, job: JobRecord, ring: str, by: int) -> None:
    """Count the owners of a ring. What is owed to it is forgotten with the last of them."""
    if not weights_of(tables, job.lane):
        return
    name = key_of(job.lane, job.priority)
    rings = dict(tables.of(SHARES).get(name, {}))
    owners, owed = rings.pop(ring, (0, 0.0))
    if owners + by > 0:
        rings[ring] = owners + by, owed
    tables.put(SHARES, name, rings or None)
