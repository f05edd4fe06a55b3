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
    data: str
    """JSON: of a lock, whether it is shared; of a quota, its rates and the costs."""
    served: float | None = None
    """The fence of a lock; when the costs were taken; None while it waits."""
    job: int | None = None
    """The job whose run made it; None: a task outside of a run."""
    since: float = 0.0
    """Since when it waits, or was served."""

    @property
    def name(self) -> str:
        """The key of the lock, or the name of the quota."""
        return self.line.split(" ", 1)[1]

    @property
    def is_shared(self) -> bool:
        """Whether several such requests may have the lock together."""
        return self.data == "true"  # the JSON text of a bool

    @property
    def is_for_quota(self) -> bool:
        """Whether it is for a quota, not for a lock."""
        return self.line.startswith("quota ")
