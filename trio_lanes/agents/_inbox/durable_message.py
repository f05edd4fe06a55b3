"""A message of a durable inbox, as the payload of its job, and the reasons by which it can settle.

An edit of a message that waits is a job behind it, in the same session: see `durable_turn`.

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

from .queue import GO_FIRST, Overflow, WhenBusy
from .receipt import SettledKind

MAX_MESSAGES: Final = 500
"""The most messages of a session that a post or a turn looks at."""

MERGED: Final = "merged"
STEERED: Final = "steered"
SUMMARIZED: Final = "summarized"
EDITED: Final = "edited"
"""Why a turn has taken a message, or the edit of one: the reasons of `JobTakenError`."""

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
    rolls_back: list[str] = attrs.field(factory=list)
    """The ids of the turns that it has aborted in mode ROLLBACK, and those that these had."""


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
    edits: tuple[int, ...] = ()
    """The jobs of its edits, the last of which has its content."""

    @property
    def waits(self) -> bool:
        """Whether it can be edited: no turn of it has begun."""
        return self.state is not DurableState.RUNNING and not self.begun

    @property
    def goes_first(self) -> bool:
        """Whether it is an interrupt."""
        return self.rules.mode in GO_FIRST

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
    """Return the messages of the jobs of one handler, as edited, in order of acceptance."""
    found: dict[int, QueuedMessage] = {}
    for job in queue:
        if job.name == handler:
            payload = json.loads(job.payload)
            if is_message(payload):
                found[job.id] = message_of(job)
            elif is_edit(payload) and payload["edits"] in found:
                edited = found[
                    payload["edits"]
                ]  # also if it has begun: a crash may have come first
                found[edited.job] = attrs.evolve(
                    edited, content=payload["message"], edits=(*edited.edits, job.id)
                )
    return list(found.values())


def taken_as(reason: str, messages: Iterable[QueuedMessage]) -> dict[int, str]:
    """Return the reasons for the jobs of some messages, and of their edits, to be taken."""
    taken: dict[int, str] = {}
    for one in messages:
        taken |= {one.job: reason, **dict.fromkeys(one.edits, EDITED)}
    return taken


def edits_of(queue: Iterable[QueuedJob], handler: str) -> dict[int, tuple[str, Any]]:
    """Return the message id and the content of each edit, by its job, in order of acceptance."""
    payloads = {job.id: json.loads(job.payload) for job in queue if job.name == handler}
    return {
        job: (payload["id"], payload["message"])
        for job, payload in payloads.items()
        if is_edit(payload)
    }


def is_edit(payload: Any) -> bool:
    """Whether a payload is that of an edit: of the edited message, with its job in ``edits``."""
    return isinstance(payload, dict) and payload.keys() == {*_PAYLOAD_FIELDS, "edits"}


def is_message(payload: Any) -> bool:
    """Whether a payload was made by `payload_of`."""
    return isinstance(payload, dict) and payload.keys() == _PAYLOAD_FIELDS
