"""The tools that the model may call: `time`, `calc`, `search` over the bundled documents, and more.

The tool `send_mail` stands for an action that cannot be undone, so it needs the approval of a
person.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final
from zoneinfo import ZoneInfo

import attrs
import trio

from .calc import CalcError, calculate
from .documents import Library
from .model import ToolCall, well_formed

ASK_SUBAGENT: Final = "ask_subagent"
SEARCH_SECONDS: Final = 0.2  # as if the documents were behind a network


class ToolError(Exception):
    """A tool cannot do its task; the text is one line for the model."""


@attrs.frozen
class Tool:
    """A function that the model may call with one optional text argument.

    With `asks`, each call needs the approval of a person.
    """

    name: str
    description: str
    argument: str
    required: bool
    function: Callable[[str], Awaitable[str]]
    asks: bool = False

    def schema(self) -> dict[str, Any]:
        """Return the description of the tool for OpenAI's chat completions."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": {
                    "type": "object",
                    "properties": {self.argument: {"type": "string"}},
                    "required": [self.argument] if self.required else [],
                },
            },
        }


def bundled_tools(
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    library: Library | None = None,
) -> dict[str, Tool]:
    """Return the tools, by name. `now` returns the time, in UTC."""
    documents = Library.bundled() if library is None else library

    async def time(zone: str) -> str:
        await trio.lowlevel.checkpoint()
        try:
            there = now().astimezone(ZoneInfo(zone or "UTC"))
        except (ValueError, LookupError, OSError):
            raise ToolError(f"there is no time zone {zone[:40]!r}") from None
        return f"{there:%H:%M:%S} {there.tzname()} on {there:%A, %d %B %Y}"

    async def calc(expression: str) -> str:
        await trio.lowlevel.checkpoint()
        try:
            return f"{expression.strip()} = {calculate(expression)}"
        except CalcError as error:
            raise ToolError(str(error)) from None

    async def search(query: str) -> str:
        await trio.sleep(SEARCH_SECONDS)
        found = documents.search(query)
        if not found:
            raise ToolError(f"no document is about {query[:40]!r}")
        return "\n".join(f"{document.title}: {document.summary}" for document in found)

    async def send_mail(message: str) -> str:
        await trio.sleep(SEARCH_SECONDS)
        return f"mail sent: {' '.join(message.split())}"

    async def ask_subagent(task: str) -> str:
        # The agent handles this tool (see agent.py); only a call of a sub-agent comes here.
        await trio.lowlevel.checkpoint()
        raise ToolError("a sub-agent has no sub-agents")

    tools = (
        Tool("time", "The present time in an IANA time zone (default: UTC)", "zone", False, time),
        Tool("calc", "The value of an arithmetic expression", "expression", True, calc),
        Tool("search", "Searches the bundled documents about lanes", "query", True, search),
        Tool("send_mail", "Sends a mail", "message", True, send_mail, asks=True),
        Tool(ASK_SUBAGENT, "Asks a sub-agent to do a task", "task", True, ask_subagent),
    )
    return {tool.name: tool for tool in tools}


async def call_tool(tools: Mapping[str, Tool], call: ToolCall) -> str:
    """Return the result of a call. An error is a result, too: the model can try again."""
    try:
        tool = tools.get(call.name)
        if tool is None:
            raise ToolError(
                f"there is no tool {call.name[:40]!r}; the tools are {', '.join(tools)}"
            )
        return await tool.function(argument_of(tool, call))
    except ToolError as error:
        return f"error: {error}"


def argument_of(tool: Tool, call: ToolCall) -> str:
    """Return the argument of the tool as the model gave it.

    Raises:
      ToolError: if the argument is missing or not a text.
    """
    try:
        arguments = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        raise ToolError("the arguments are not JSON") from None
    if not isinstance(arguments, dict):
        raise ToolError("the arguments are not a JSON object")
    argument = arguments.get(tool.argument, "")
    if not isinstance(argument, str) or (tool.required and not argument.strip()):
        raise ToolError(f"{tool.name} needs the text {tool.argument!r}")
    return well_formed(argument)
