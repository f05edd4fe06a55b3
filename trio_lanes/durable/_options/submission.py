"""`Submission`: one job of `DurableLanes.submit_many`; and checks of a job's values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, final

import attrs

from ..._config import check as _check
from .._contract.records import SubmittedJob
from .cost import checked_cost
from .names import checked_name
from .retry import RetryPolicy


@final
@attrs.frozen(kw_only=True)
class Submission:
    """One job to submit: an argument of `DurableLanes.submit_many`.

    The fields are the arguments of `DurableLanes.submit`.
    """

    name: str
    payload: object = None
    session: str | None = None
    lane: str = "main"
    priority: int = 0
    key: str | None = None
    delay: float = 0.0
    run_at: float | None = None
    timeout: float = attrs.field(default=math.inf, converter=_check.or_inf)
    retry: RetryPolicy | None = None
    cost: int | Mapping[str, int] = 1


def checked_priority(priority: Any) -> int:
    """Return a priority; raise an error unless it is -1, 0 or 1."""
    if _check.whole("priority", priority) not in (-1, 0, 1):
        raise ValueError(f"priority must be -1, 0 or 1, got {priority!r}")
    return priority  # type: ignore[no-any-return]  # whole() has checked it


def check_submitted(job: SubmittedJob) -> None:
    """Check a job that was submitted past `DurableLanes`, except its payload.

    Raises:
      TypeError, ValueError: as `DurableLanes.submit` does.
    """
    for field in ("name", "session", "lane", "key"):
        if (name := getattr(job, field)) is not None:
            checked_name(field, name)
    checked_priority(job.priority)
    _check.seconds("timeout", job.timeout)
    if job.retry is not None:
        RetryPolicy().with_json(job.retry)
    checked_cost(job.cost)
