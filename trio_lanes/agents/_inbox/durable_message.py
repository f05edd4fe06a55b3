"""A message of a durable inbox, as the payload of its job, and the reasons by which it can settle.

An edit of a message that waits is a job behind it, in the same session: see `durable_turn`.

The payload has the message and the rules with which it was posted. So an instance that runs a turn
needs no options of the inbox, and a deployment may change them: each message keeps its own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, final

import attrs

from trio_lanes.durable import DurableState, QueuedJob

from .queue import Overflow, Posted, WhenBusy
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
class Rules(Posted):
    """How a message was posted: with what the options of its inbox were then."""

    mode: WhenBusy = attrs.field(converter=WhenBusy)
    group: str | None
    runs_at_once: bool
    debounce: float
    max_wait: float = attrs.field(converter=_or_infinity)
    cap: int | float = attrs.field(converter=_or_infinity)
    overflow: Overflow = attrs.field(converter=Overflow)
    rolls_back: list[str] = attrs.field(factory=list)
    """The ids of the turns that it has aborted in mode ROLLBACK, and those that these had."""
    waited: float = 0.0
    """Seconds for which a collected message had waited that this one has dropped: ``max_wait``
    counts from that, or a stream of messages that overflows the inbox would never be due."""


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
    """Seconds since it was accepted."""
    edits: tuple[int, ...] = ()
    """The jobs of its edits, the last of which has its content."""

    @property
    def waited(self) -> float:
        """Seconds for which it waits, or a collected message did that it has dropped."""
        return self.age + self.rules.waited

    @property
    def waits(self) -> bool:
        """Whether it can be edited: no turn of it has begun."""
        return self.state is not DurableState.RUNNING and not self.begun

    @property
    def order(self) -> tuple[bool, int]:
        """Its place among the messages of its session: interrupts first, else by acceptance."""
        return not self.rules.goes_first, self.job


_ADDED: Final = {"waited"}  # fields that a message of an earlier release does not have
_MESSAGE: Final = {"id", "message", *attrs.fields_dict(Rules)}
_EDIT: Final = {"edits", "id", "message"}


def payload_of(id: str, content: Any, rules: Rules) -> dict[str, Any]:
    """Return the payload of the job of a message."""
    fields = attrs.asdict(rules)
    finite = {name: None if value == math.inf else value for name, value in fields.items()}
    return {"id": id, "message": content, **finite}


def message_from(payload: dict[str, Any]) -> tuple[str, Any, Rules]:
    """Return the id, the content and the rules that `payload_of` was given."""
    fields = {**payload}
    return fields.pop("id"), fields.pop("message"), Rules(**fields)


def key_of(handler: str, session: str, id: str) -> str:
    """Return the key of the job of a message: one id in one session is one message."""
    return f"{handler}:{session}:{id}"


def edit_of(message: QueuedMessage, content: Any) -> dict[str, Any]:
    """Return the payload of the job of an edit."""
    return {"edits": message.job, "id": message.id, "message": content}


def is_message(payload: Any) -> bool:
    """Whether a payload was made by `payload_of`."""
    return isinstance(payload, dict) and payload.keys() | _ADDED == _MESSAGE


def is_edit(payload: Any) -> bool:
    """Whether a payload was made by `edit_of`."""
    return isinstance(payload, dict) and payload.keys() == _EDIT


def messages_of(queue: Iterable[QueuedJob], handler: str) -> list[QueuedMessage]:
    """Return the messages of the jobs of one handler, as edited, in order of acceptance."""
    found: dict[int, QueuedMessage] = {}
    for job, payload in _payloads(queue, handler):
        if is_message(payload):
            id, content, rules = message_from(payload)
            found[job.id] = QueuedMessage(job.id, id, content, rules, job.state, job.begun, job.age)
        elif is_edit(payload) and (edited := found.get(payload["edits"])) is not None:
            # also if it has begun: a crash may have come first
            found[edited.job] = attrs.evolve(
                edited, content=payload["message"], edits=(*edited.edits, job.id)
            )
    return list(found.values())


def edits_of(
    queue: Iterable[QueuedJob], handler: str, ids: Collection[str]
) -> dict[int, dict[str, Any]]:
    """Return the payloads of the edits of some messages, by job, in order of acceptance."""
    return {
        job.id: payload
        for job, payload in _payloads(queue, handler)
        if is_edit(payload) and payload["id"] in ids
    }


def _payloads(queue: Iterable[QueuedJob], handler: str) -> Iterator[tuple[QueuedJob, Any]]:
    return ((job, json.loads(job.payload)) for job in queue if job.name == handler)


def taken_as(reason: str, messages: Iterable[QueuedMessage]) -> dict[int, str]:
    """Return the reasons for the jobs of some messages, and of their edits, to be taken."""
    taken: dict[int, str] = {}
    for one in messages:
        taken |= {one.job: reason, **dict.fromkeys(one.edits, EDITED)}
    return taken
