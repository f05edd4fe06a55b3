"""`Submission`: one job of `DurableLanes.submit_many`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import final

import attrs

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
    timeout: float = math.inf
    retry: RetryPolicy | None = None
    cost: int | Mapping[str, int] = 1
