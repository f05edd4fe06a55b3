"""A message of a durable inbox, as the payload of its job, and the reasons by which it can settle.

The payload has the message and the rules with which it was posted. So an instance that runs a turn
needs no options of the inbox, and a deployment may change them: each message keeps its own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, final

import attrs

from trio_lanes.durable import DurableState, QueuedJob

from .queue import Overflow, WhenBusy
from .receipt import SettledKind

MAX_MESSAGES: Final = 500
"""The most messages of a session that a post or a turn looks at."""

MERGED: Final = "merged"
STEERED: Final = "steered"
SUMMARIZED: Final = "summarized"
"""Why a turn has taken a message: the reasons of `JobTakenError`."""

NOT_ENDED: Final = frozenset({DurableState.WAITING, DurableState.PARKED, DurableState.RUNNING})
"""The states of a job whose message has not settled."""

REPLACED: Final = "a newer message has replaced it"
DROPPED: Final = "the inbox was full"
"""Why a post has cancelled a message: the reasons of `JobCancelledError`."""

KINDS: Final[Mapping[str, SettledKind]] = MappingProxyType(
    {
        STEERED: SettledKind.STEERED,
        SUMMARIZED: SettledKind.SUMMARIZED,
        REPLACED: SettledKind.REPLACED,
        DROPPED: SettledKind.DROPPED,
    }
)
"""The outcomes that a message has by its reason alone."""


def _or_infinity(value: float | None) -> float:
    return math.inf if value is None else value


@final
@attrs.frozen(kw_only=True)
class Rules:
    """How a message was posted."""

    mode: WhenBusy = attrs.field(converter=WhenBusy)
    group: str | None
    runs_at_once: bool
    """Whether the inbox was idle at the post."""
    debounce: float
    max_wait: float = attrs.field(converter=_or_infinity)
    cap: int | float = attrs.field(converter=_or_infinity)
    overflow: Overflow = attrs.field(converter=Overflow)


@final
@attrs.frozen
class QueuedMessage:
    """A message that an inbox has accepted."""

    job: int
    """The number of its job, in the order of acceptance."""
    id: str
    content: Any
    rules: Rules
    state: DurableState
    begun: bool
    """Whether a turn of it may have begun: then no other turn takes it."""
    age: float

    @property
    def goes_first(self) -> bool:
        """Whether it is an interrupt."""
        return self.rules.mode is WhenBusy.INTERRUPT

    @property
    def order(self) -> tuple[bool, int]:
        """Its place among the messages of its session: interrupts first, else by acceptance."""
        return not self.goes_first, self.job

    @property
    def is_collected(self) -> bool:
        """Whether it may share a turn with messages before and behind it."""
        return self.rules.mode is WhenBusy.COLLECT and not self.rules.runs_at_once

    def is_joined_by(self, other: QueuedMessage) -> bool:
        """Whether ``other``, the next message, shares a turn with this one."""
        return (
            self.is_collected
            and other.is_collected
            and not other.begun
            and self.rules.group == other.rules.group
        )


_PAYLOAD_FIELDS: Final = {"id", "message", *attrs.fields_dict(Rules)}


def payload_of(id: str, content: Any, rules: Rules) -> dict[str, Any]:
    """Return the payload of the job of a message."""
    fields = attrs.asdict(rules)
    finite = {name: None if value == math.inf else value for name, value in fields.items()}
    return {"id": id, "message": content, **finite}


def message_of(job: QueuedJob) -> QueuedMessage:
    """Return the message of a job."""
    payload = json.loads(job.payload)
    id, content = payload.pop("id"), payload.pop("message")
    return QueuedMessage(job.id, id, content, Rules(**payload), job.state, job.begun, job.age)


def messages_of(queue: Iterable[QueuedJob], handler: str) -> list[QueuedMessage]:
    """Return the messages of the jobs of one handler, in order of acceptance."""
    return [
        message_of(job)
        for job in queue
        if job.name == handler and is_message(json.loads(job.payload))
    ]


def is_message(payload: Any) -> bool:
    """Whether a payload was made by `payload_of`."""
    return isinstance(payload, dict) and payload.keys() == _PAYLOAD_FIELDS
