"""What a request for a response asks for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

from trio_lanes.agents import WhenBusy

from ..chat_agent.toolbox import Servers, Toolbox
from .errors import BadInputError, Refused
from .fields import FUNCTION, RESPONSES, SERVER, Table, checked, having
from .http import field, named
from .wire import Json, session_of

CHAT_TOOL: Final = {"type": FUNCTION["type"], "function": having(FUNCTION)}


Item = Callable[[str], Json | None]  # returns the item with an id


def wanted(body: Json, item: Item, toolbox: Toolbox) -> tuple[Json, str | None]:
    """Return what the body of a request asks for: the fields of an `Ask`, and its session.

    Args:
      toolbox: the servers that are known.

    Raises:
      Refused: if the request is not valid, or asks for what the gateway cannot do.
    """
    settings = checked(RESPONSES, body)
    given = body.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if not isinstance(items, list) or not items or not all(isinstance(i, dict) for i in items):
        raise BadInputError("input must be a string, or a list of items that is not empty")
    items = [_referred(one, item) for one in items]
    previous = body.get("previous_response_id")
    conversation: Any = body.get("conversation")
    if isinstance(conversation, dict):
        conversation = field(conversation, "id", str, "")
    if previous is not None and conversation is not None:
        text = "either conversation or previous_response_id"
        raise Refused(400, text, "mutually_exclusive_parameters", param="previous_response_id")
    session = None if conversation is None else named(conversation, "conversation")
    if previous is not None:
        session = session_of(previous) or None
    mode = (body.get("metadata") or {}).get("when_busy")
    if mode is not None and mode not in [*WhenBusy]:
        text = f"metadata.when_busy must be one of {', '.join(WhenBusy)}"
        raise BadInputError(text, "metadata.when_busy")
    if body.get("background") and body.get("store") is False:
        raise BadInputError("a response in the background is stored", "store")
    functions, servers, approvals = tools_of(body.get("tools") or [], toolbox)
    names = [tool["function"]["name"] for tool in functions + toolbox.schemas(servers)]
    ask = {
        "items": items, "instructions": body.get("instructions") or "", "tools": functions,
        "servers": servers, "approvals": approvals, "previous": previous,
        "mode": mode, "user": body.get("user"),
        "settings": settings | choice_of(body.get("tool_choice"), names),
        "max_tool_calls": body.get("max_tool_calls"),
        "truncates": body.get("truncation") == "auto",
        "is_kept": body.get("store") is not False or conversation is not None,
    }  # fmt: skip
    return ask, session


def _referred(given: Json, item: Item) -> Json:
    """Return the item that a reference names."""
    if given.get("type") != "item_reference":
        return given
    found = item(str(given.get("id")))
    if found is None:
        raise Refused(404, f"there is no item {str(given.get('id'))[:60]}", param="input")
    return found


def tools_of(tools: Sequence[Any], toolbox: Toolbox) -> tuple[list[Json], Servers, Json]:
    """Return the functions among the tools, the servers, and the approvals that they require."""
    functions: list[Json] = []
    servers: Servers = {}
    approvals: Json = {}
    for place, tool in enumerate(tools):
        where = f"tools[{place}]"
        match tool:
            case {"type": "function", "name": str()}:
                checked(FUNCTION, tool, f"{where}.")
                shape = {n: v for n, v in tool.items() if v is not None and n != "type"}
                functions.append({"type": "function", "function": shape})
            case {"type": "mcp", "server_label": str(label)} if label in toolbox:
                checked(SERVER, tool, f"{where}.")
                servers[label] = _allowed(tool.get("allowed_tools"), where)
                approvals[label] = _approval(tool.get("require_approval"), where)
            case _:
                raise BadInputError("a tool is a function, or an MCP server of the gateway", where)
    return functions, servers, approvals


def chat_request(table: Table, body: Json) -> tuple[list[Json], Json]:
    """Check a request in the shape of chat completions; return its tools, and its settings."""
    settings = checked(table, body)
    tools = body.get("tools") or []
    for place, tool in enumerate(tools):
        match tool:
            case {"type": "function", "function": {"name": str()}}:
                checked(CHAT_TOOL, tool, f"tools[{place}].")
            case _:
                raise BadInputError("a tool is a function with a name", f"tools[{place}]")
    names = [tool["function"]["name"] for tool in tools]
    return tools, settings | choice_of(body.get("tool_choice"), names)


def choice_of(choice: Any, names: Collection[str]) -> Json:
    """Return the choice of a tool as a setting for the model."""
    match choice:
        case None:
            return {}
        case "none" | "auto":
            return {"tool_choice": choice}
        case "required" if names:
            return {"tool_choice": choice}
        case (
            {"type": "function" | "mcp", "name": str(name)}
            | {"type": "function", "function": {"name": str(name)}}
        ) if name in names:  # fmt: skip
            return {"tool_choice": {"type": "function", "function": {"name": name}}}
    raise BadInputError("tool_choice is none, auto, required, or names a tool", "tool_choice")


def _names(given: Any, where: str) -> list[str]:
    """Return the names in a list, or in a filter; a filter by `read_only` is refused."""
    match given:
        case {"tool_names": names, **rest} if not rest:
            given = names
    if not isinstance(given, list) or not all(isinstance(name, str) for name in given):
        raise BadInputError(f"{where} has names of tools", where)
    return given


def _allowed(given: Any, where: str) -> list[str] | None:
    return None if given is None else _names(given, f"{where}.allowed_tools")


def _approval(given: Any, where: str) -> Any:
    where = f"{where}.require_approval"
    match given:
        case None:  # the operator of the gateway has chosen its servers
            return "never"
        case "always" | "never":
            return given
        case {**filters} if filters and not filters.keys() - {"always", "never"}:
            return {kind: _names(names, f"{where}.{kind}") for kind, names in filters.items()}
    raise BadInputError(f"{where} is always, never, or has names of tools", where)


def needs_approval(approval: Any, name: str) -> bool:
    """Return whether a person has to approve a call, by the `require_approval` of its server."""
    if isinstance(approval, str):
        return approval == "always"
    always, never = approval.get("always", ()), approval.get("never")
    # a list of those that need none names all of them
    return name in always or (never is not None and name not in never)
