"""What is told of a store besides problems: the cause of the longest wait, and what backs off."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from ... import Cause
from ..._config.names import label_of
from ..._config.told import LONG_WAIT, MANY, Told, of_owners, of_wait
from .._contract.errors import ResultGoneError
from .._contract.records import DurableStatistics, DurableStatus, LaneLimit

if TYPE_CHECKING:
    from .lanes import DurableLanes

READ_OF_A_STATE: Final = 200
"""How many waiting and how many parked jobs are read for it."""


async def of_oldest(
    lanes: DurableLanes,
    now: DurableStatistics,
    jobs: Iterable[DurableStatus],
    waiting: Sequence[DurableStatus],
    limits: Mapping[str, LaneLimit],
) -> tuple[float, list[Told]]:
    """Return the longest wait in seconds; and if it is long, its cause, and of whom most is.

    Args:
      jobs: among which it is.
      waiting: the first jobs that wait, in all lanes.
    """
    job = max(jobs, key=lambda job: job.waited, default=None)
    if job is None or job.waited < LONG_WAIT:
        return 0.0, []
    causes: Sequence[Cause] = ()
    with suppress(ResultGoneError):  # it may end meanwhile
        causes = await lanes.root_causes(job.id)
    lane, owners = job.lane, [_owner(one) for one in waiting if one.lane == job.lane]
    limit = limits.get(label_of(lane, limits) or "")
    count = now.lanes[lane].waiting if lane in now.lanes else len(owners)
    fair = limit is not None and limit.fair
    wait = of_wait(job.waited, lane, job.id, next(iter(causes), None))
    return job.waited, [wait, *of_owners(lane, count, owners, fair=fair)]


def of_retries(parked: int, jobs: Sequence[DurableStatus]) -> list[Told]:
    """Return what is told of the jobs that back off after a failure, if they are many.

    Args:
      parked: how many jobs are parked.
      jobs: the first of them.
    """
    fails = [job for job in jobs if job.why == "retry"]
    if len(fails) < MANY:
        return []
    errors = Counter((job.history[-1].error or "").partition(":")[0] for job in fails)
    error, count = errors.most_common(1)[0]
    which = "" if parked <= len(jobs) else f"first {len(jobs):,} of the "
    text = f"of the {which}{parked:,} that are parked, {len(fails):,} back off after a failure"
    text += f", {count:,} of them by {error}"
    advice = f"look at one, job {fails[0].id}, and promote them when what fails is mended"
    return [Told(text, advice, fails[0].id)]


def _owner(job: DurableStatus) -> str | None:
    return job.session if job.owner is None else job.owner
