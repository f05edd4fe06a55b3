"""Jobs: they are accepted."""

from __future__ import annotations

from collections.abc import Sequence

from .._contract.act import Act, Lookups
from .._contract.records import SubmittedJob
from .._rules.engine import Engine


class Enqueue(Act[tuple[int, ...]]):
    """Accept all jobs, in this order, or none. The answer is their ids.

    A job whose key is known is not accepted again: its id is that of the job with the key.

    Raises:
      UnknownLaneError, LaneFullError, KeyConflictError: for the first job that is refused.
      ValueError: if its cost names a unit, other than requests, that no rate of its lane and of its
        group counts.
    """

    batch: Sequence[SubmittedJob]

    @property
    def lookups(self) -> Lookups:
        return Lookups(batch=self.batch)

    def apply(self, engine: Engine) -> tuple[int, ...]:
        return engine.enqueue(self.batch)
