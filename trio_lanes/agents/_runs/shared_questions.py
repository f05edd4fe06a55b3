"""The questions of `DurableTurn.approve`, as the checkpoint of a turn keeps them.

A question has the id of its call, and a digest of what was shown: the call and the data. A decision
names both, so it counts for nothing else. A model may give the same id to another call, in a later
round of the turn or in another attempt: that is another question, whose id has a number behind it.

A question is kept before it is shown, so that whoever has seen it can decide on it. If the process
dies in between, the next attempt shows it, perhaps a second time.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final, final

import attrs

from trio_lanes.durable import DurableStatus, PayloadError

KIND: Final = "trio_lanes"
"""The field that has the kind of a message of the registry."""
PREFIX: Final = "call "
"""Stands before the id of a question among the fields of a checkpoint."""


@final
@attrs.frozen
class OpenQuestion:
    """A question without a decision: ``await registry.submit(one.job, {one.call: value})``."""

    session: str
    """The key of its session."""
    job: int
    """The number of the job of its turn, the same for each attempt."""
    call: str
    """Its id: that of the call, with ``#2`` and so on behind it if the turn has asked about another
    call with that id before."""
    data: Any
    """What is shown: the data of the question, or the call."""


@final
@attrs.frozen
class KeptQuestion:
    """A question in a checkpoint."""

    of: str | None
    """The digest of what is shown; None: it was kept before there were digests."""
    is_shown: bool = False
    data: Any = None
    decision: tuple[str, Any] | None = None
    """The kind and the value of the result; None: it is open."""

    def as_json(self) -> dict[str, Any]:
        """Return what a checkpoint has of it."""
        return attrs.asdict(self)


def kept_from(value: Any) -> KeptQuestion:
    """Return the question that `KeptQuestion.as_json` has made."""
    if isinstance(value, dict):
        decision = value["decision"]
        return KeptQuestion(**{**value, "decision": None if decision is None else tuple(decision)})
    return KeptQuestion(None, True, None, None if value is None else tuple(value))


def digest_of(call: Mapping[str, Any], data: Any) -> str:
    """Return the digest of a question about ``call`` that shows ``data``.

    Raises:
      PayloadError: if ``data`` is not JSON.
    """
    try:
        shown = json.dumps(data, sort_keys=True, allow_nan=False)
        # what is not JSON is not shown either
        about = json.dumps(dict(call), sort_keys=True, default=lambda value: type(value).__name__)
    except (TypeError, ValueError, RecursionError) as error:
        raise PayloadError(f"the question on a call is not JSON: {error}") from error
    return hashlib.sha256(f"{about}\n{shown}".encode()).hexdigest()[:32]


def decision_key(call: str) -> str:
    """Return the key of the message that decides on a call, of which a job keeps one."""
    return f"decision {hashlib.sha256(call.encode()).hexdigest()[:32]}"


def questions_in(status: DurableStatus) -> dict[str, KeptQuestion]:
    """Return the questions of a job by their ids; none if it is no turn of a durable inbox.

    Args:
      status: has texts.
    """
    assert status.texts is not None
    text = status.texts.checkpoint
    kept = None if text is None else json.loads(text)
    if not isinstance(kept, dict) or "steers" not in kept:
        return {}
    return {
        name.removeprefix(PREFIX): kept_from(value)
        for name, value in kept.items()
        if name.startswith(PREFIX)
    }


def decision_in(status: DurableStatus, call: str) -> tuple[str, Any] | None:
    """Return the kind and the value of the decision on a question; None: there is none.

    A decision is a message of the job until the turn has kept it.

    Args:
      status: has texts.
    """
    question = questions_in(status).get(call)
    if question is not None and question.decision is not None:
        return question.decision
    assert status.texts is not None
    for _, _, text in status.texts.messages:
        message = json.loads(text)
        is_ours = isinstance(message, dict) and message.get(KIND) == "outputs"
        if is_ours and "of" in message and call in message["what"]:
            return "result", message["what"][call]
    return None


def open_questions(status: DurableStatus) -> list[OpenQuestion]:
    """Return the questions of a turn that were shown and have no decision.

    Args:
      status: has texts.
    """
    return [
        OpenQuestion(status.session or "", status.id, call, one.data)
        for call, one in questions_in(status).items()
        if one.is_shown and decision_in(status, call) is None
    ]
