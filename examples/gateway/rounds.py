"""A round of a turn: the model is asked, and the tools of servers that it calls are run."""

from __future__ import annotations

import math
from collections.abc import Mapping

import attrs

from trio_lanes import Lanes
from trio_lanes.agents import ConversationTurn

from ..chat_agent.model import Cut, Message, RequestError, ToolCall, Usage
from ..chat_agent.openai_model import TOO_LONG
from ..chat_agent.toolbox import Toolbox
from ..chat_agent.upstream import Upstream, ask_model
from ..openai_api.history import newer_half
from ..openai_api.items import for_model
from ..openai_api.live import Live
from ..openai_api.requests import needs_approval
from ..openai_api.wire import Json
from .asks import Ask


@attrs.frozen
class Rounds:
    """The rounds of all turns. ``lane`` is the lane of turns."""

    lanes: Lanes
    lane: str
    upstream: Upstream
    toolbox: Toolbox

    async def ask(
        self,
        ask: Ask,
        history: list[Message],
        exchange: ConversationTurn,
        live: Live,
        first: bool,
    ) -> tuple[list[ToolCall], str]:
        """Ask the model, and write what it says. Return its tool calls, and why it was cut.

        What the model has no room for is taken out of ``history``, if the request allows it.
        """
        cut = ""

        def tell(event: str | Usage | Cut) -> None:
            nonlocal cut
            if isinstance(event, Cut):
                cut = event.reason
                return
            if isinstance(event, str):
                exchange.append(event)
            live.add(event)

        model = self.upstream.model([*ask.tools, *self.toolbox.schemas(ask.servers)], ask.settings)
        system = [Message("system", ask.instructions)] if ask.instructions else []
        while True:
            prompt = [*system, *history, *for_model(exchange.messages)]
            try:
                return await ask_model(model, prompt, self.lanes, self.lane, tell, first), cut
            except RequestError as error:
                if error.code != TOO_LONG or not ask.truncates or not history:
                    raise
                history[:], first = newer_half(history), False

    async def call(
        self, ask: Ask, calls: list[ToolCall], exchange: ConversationTurn, live: Live
    ) -> list[ToolCall]:
        """Run the calls of server tools; return those that wait for outputs, or for approval."""
        await exchange.call([attrs.asdict(call) for call in calls])
        offered = {tool["function"]["name"] for tool in ask.tools}
        made = sum(item["type"] == "mcp_call" for a in live.answers[:1] for item in a.output)
        here: list[ToolCall] = []
        left: list[ToolCall] = []
        for call in calls:
            label = self.toolbox.server_of(call.name, ask.servers)
            if label is None and call.name in offered:
                left.append(call)
            elif label is None:
                await exchange.result(call.id, f"error: there is no tool {call.name[:60]!r}")
            elif made >= (ask.max_tool_calls or math.inf):
                await exchange.result(call.id, "error: this response may call no more tools")
            elif needs_approval(ask.approvals.get(label, "never"), call.name):
                left.append(call)
                made += 1
            else:
                here.append(call)
                made += 1
        await self.run(ask, here, exchange, live, {})
        return left

    async def run(
        self,
        ask: Ask,
        calls: list[ToolCall],
        exchange: ConversationTurn,
        live: Live,
        approvals: Mapping[str, str],
    ) -> None:
        """Run calls of server tools; ``approvals`` has the requests for approval by call id."""
        items = [
            self.toolbox.item(call, ask.servers) | {"approval_request_id": approvals.get(call.id)}
            for call in calls
        ]
        for answer in live.answers:
            for item in items:
                answer.begin_call(item)

        async def ended(place: int, fields: Json) -> None:
            await exchange.result(calls[place].id, fields.get("output", fields.get("error")))
            for answer in live.answers:
                kind = "response.mcp_call_arguments"
                answer.end_call(items[place], calls[place], kind, **fields)

        await self.toolbox.run_all(self.lanes, calls, ask.servers, ended)
