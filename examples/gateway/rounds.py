"""The rounds of a turn: the model is asked, and the tools that it calls are run.

A call that the client answers ends the responses, but not the turn: it lends its slot, and goes on
with the response of the request that brings the outputs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import attrs
import trio

from trio_lanes.agents import ActionGate, ConversationTurn

from ..chat_agent.model import Cut, Message, ModelError, RequestError, Stopped, ToolCall, Usage
from ..chat_agent.openai_model import TOO_LONG
from ..chat_agent.upstream import ask_model
from ..openai_api.history import newer_half
from ..openai_api.items import for_model
from ..openai_api.requests import needs_approval
from ..openai_api.wire import Json, new_id
from .asks import TURNS, Ask, Live, Pending, Reach, joined

if TYPE_CHECKING:
    from .engine import Engine

MAX_ROUNDS: Final = 16  # rounds of tool calls in a turn
CUTS: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}


@attrs.define
class Rounds:
    """The rounds of one turn."""

    engine: Engine
    session: str
    exchange: ConversationTurn
    live: Live
    reach: Reach
    ask: Ask  # what is answered now
    history: list[Message]  # from it is taken out what the model has no room for

    async def run(self) -> None:
        """Answer what is asked, and what comes meanwhile."""
        previous, is_kept = self.ask.previous, self.ask.is_kept
        left = await self.reach.restore(self.exchange, self.live)
        if left and not await self._wait_for_client(left):
            return
        for number in range(MAX_ROUNDS):
            calls, cut = await self._ask_model(number == 0)
            if self.ask.messages:  # its client has the conversation, and runs the tools
                for answer in self.live.answers:
                    for call in calls:
                        answer.call(call)
                calls = []
            # the id of the model may repeat in other sessions
            calls = [attrs.evolve(call, id=new_id("call")) for call in calls]
            if calls and (left := await self._call(calls)):
                if not await self._wait_for_client(left):
                    return
            elif calls and self.ask.settings.get("tool_choice", "none") != "none":
                # a call that is demanded was made
                settings = self.ask.settings | {"tool_choice": "auto"}
                self.ask = attrs.evolve(self.ask, settings=settings)
            more = [] if cut or not is_kept else await self.reach.take()
            for steer in more:
                self.live.join(steer.answer, became="steered")
                await self.exchange.steer(steer.content)
            answers = self.live.answers
            if not calls and not more:
                tokens = max((answer.usage.tokens for answer in answers), default=0)
                usage = {"responses": self.live.stored, "previous": previous, "tokens": tokens}
                await self.exchange.finish(usage=usage)
                if cut:
                    self.live.end("incomplete", CUTS[cut])
                return
            self.ask = joined([self.ask, *more])
            for answer in answers:
                answer.end_text()
        raise ModelError(f"the model still wants tools after {MAX_ROUNDS} rounds")

    async def _ask_model(self, first: bool) -> tuple[list[ToolCall], str]:
        """Ask the model, and write what it says. Return its tool calls, and why it was cut."""
        cut, engine, ask = "", self.engine, self.ask

        def tell(event: str | Usage | Cut | Stopped) -> None:
            nonlocal cut
            if isinstance(event, Cut):
                cut = event.reason
                return
            if isinstance(event, str):
                self.exchange.append(event)
            self.live.add(event)

        tools = [*ask.tools, *engine.toolbox.schemas(ask.servers)]
        model = engine.upstream.model(tools, ask.settings)
        system = [Message("system", ask.instructions)] if ask.instructions else []
        while True:
            prompt = [*system, *self.history, *for_model(self.exchange.messages)]
            try:
                calls = await ask_model(model, prompt, engine.lanes, TURNS, tell, first)
                offered = {tool["function"]["name"] for tool in tools}
                if strange := [call.name for call in calls if call.name not in offered]:
                    raise ModelError(
                        f"the model calls a tool that nobody offered: {strange[0]!r:.60}"
                    )
                return calls, cut
            except RequestError as error:
                if error.code != TOO_LONG or not ask.truncates or not self.history:
                    raise
                self.history, first = newer_half(self.history), False

    async def _call(self, calls: list[ToolCall]) -> list[ToolCall]:
        """Run the calls of server tools; return those that wait for outputs, or for approval."""
        ask, exchange = self.ask, self.exchange
        await exchange.call([attrs.asdict(call) for call in calls])
        made = sum(item["type"] == "mcp_call" for a in self.live.answers[:1] for item in a.output)
        here: list[ToolCall] = []
        left: list[ToolCall] = []
        for call in calls:
            label = self.engine.toolbox.server_of(call.name, ask.servers)
            if label is None:
                left.append(call)
            elif made >= (ask.max_tool_calls or math.inf):
                await exchange.result(call.id, "error: this response may call no more tools")
            else:
                waits = needs_approval(ask.approvals.get(label, "never"), call.name)
                (left if waits else here).append(call)
                made += 1
        await self._run_tools(here, {})
        return left

    async def _run_tools(self, calls: Sequence[ToolCall], approvals: Mapping[str, str]) -> None:
        """Run calls of server tools; ``approvals`` has the requests for approval by call id."""
        toolbox, servers = self.engine.toolbox, self.ask.servers
        items = [
            toolbox.item(call, servers) | {"approval_request_id": approvals.get(call.id)}
            for call in calls
        ]
        for answer in self.live.answers:
            for item in items:
                answer.begin_call(item)

        async def ended(place: int, fields: Json) -> None:
            await self.exchange.result(calls[place].id, fields.get("output", fields.get("error")))
            for answer in self.live.answers:
                kind = "response.mcp_call_arguments"
                answer.end_call(items[place], calls[place], kind, **fields)

        await toolbox.run_all(self.engine.lanes, calls, servers, ended)

    async def _wait_for_client(self, calls: list[ToolCall]) -> bool:
        """Wait for the outputs of calls, and for the approvals of those that servers run.

        Return False if the client never brought them. Otherwise its request is answered from now.
        """
        live, toolbox = self.live, self.engine.toolbox
        servers = {call.id: toolbox.server_of(call.name, self.ask.servers) for call in calls}
        approvals = {f"mcpr_{call.id}": call for call in calls if servers[call.id]}
        ids = [*[id for id, server in servers.items() if not server], *approvals]

        async def stop(reason: str) -> None:
            live.abort(reason)

        pending = Pending(self.session, ActionGate(ids), [*live.ids], stop)
        self.engine.pending.update(dict.fromkeys(ids, pending))
        try:
            async with self.reach.waiting(pending):
                for answer in live.answers:
                    for call in calls:
                        if servers[call.id]:
                            answer.ask(f"mcpr_{call.id}", call, servers[call.id])
                        else:
                            answer.call(call)
                live.end("completed")
                with trio.move_on_after(self.engine.gate_timeout):
                    await pending.gate.wait()
        finally:
            for id in ids:
                del self.engine.pending[id]
            if pending.ask is not None:
                live.join(pending.ask.answer)  # if the turn is cancelled now, this response is, too
        if pending.ask is None:
            return False
        approved = []
        for result in await pending.gate.wait():
            if result.id not in approvals:
                await self.exchange.result(result.id, result.value)
            elif result.value["approve"]:
                approved.append(approvals[result.id])
            else:
                why = result.value.get("reason") or "no reason was given"
                text = f"error: a person has refused this call: {why}"
                await self.exchange.result(approvals[result.id].id, text)
        await self._run_tools(approved, {call.id: id for id, call in approvals.items()})
        if said := pending.ask.said:
            await self.exchange.steer({**pending.ask.content, "input": said})
        self.ask = pending.ask
        return True
