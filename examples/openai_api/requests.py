"""What a request for a response asks for."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any

import attrs

from trio_lanes.agents import WhenBusy

from .http import Refused, field, named
from .items import split_tools, to_messages
from .wire import Json, session_of


@attrs.frozen
class Wanted:
    """A request that was checked."""

    items: list[Json]
    instructions: str
    functions: list[Json]  # tools of the client, as in chat completions
    servers: list[str]  # labels of servers whose tools run here
    previous: str | None
    session: str | None  # None: it names none
    when_busy: WhenBusy | None
    group: str | None


def wanted(body: Json, item: Callable[[str], Json | None], servers: Container[str]) -> Wanted:
    """Return what the body of a request asks for.

    Args:
      item: returns the item with an id.
      servers: the labels of the servers that are known.

    Raises:
      Refused, BadInputError: if the request is not valid.
    """
    given = body.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if not isinstance(items, list) or not items or not all(isinstance(i, dict) for i in items):
        raise Refused(400, "input must be a string, or a list of items that is not empty")
    items = [_referred(one, item) for one in items]
    to_messages(items)  # raises for an item that is not supported
    previous = field(body, "previous_response_id", str)
    conversation: Any = body.get("conversation")
    if isinstance(conversation, dict):
        conversation = conversation.get("id")
    if previous is not None and conversation is not None:
        raise Refused(400, "either conversation or previous_response_id")
    session = None if conversation is None else named(str(conversation))
    if previous is not None:
        session = session_of(named(previous))
    mode = field(body, "metadata", dict, {}).get("when_busy")
    if mode is not None and mode not in [*WhenBusy]:
        raise Refused(400, f"metadata.when_busy must be one of {', '.join(WhenBusy)}")
    functions, labels = split_tools(field(body, "tools", list, []), servers)
    return Wanted(
        items,
        field(body, "instructions", str, ""),
        functions,
        labels,
        previous,
        session,
        None if mode is None else WhenBusy(mode),
        field(body, "user", str),
    )


def _referred(given: Json, item: Callable[[str], Json | None]) -> Json:
    """Return the item that a reference names."""
    if given.get("type") != "item_reference":
        return given
    found = item(str(given.get("id")))
    if found is None:
        raise Refused(404, f"there is no item {str(given.get('id'))[:60]}")
    return found
