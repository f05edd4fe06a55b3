"""`Request`: a request for a lock or a quota, as the tables of a store keep it."""

from __future__ import annotations

from typing import final

import attrs


@final
@attrs.define
class Request:
    """A request for a lock or a quota."""

    id: int
    line: str
    """``lock KEY`` or ``quota NAME``."""
    instance: str
    """The incarnation that made it, and whose end ends it."""
    told: str
    """JSON: of a lock, whether it is shared; of a quota, its rates and the costs."""
    served: float | None = None
    """The fence of a lock; when the costs were taken; None while it waits."""

    @property
    def is_for_quota(self) -> bool:
        """Whether it is for a quota, not for a lock."""
        return self.line.startswith("quota ")
