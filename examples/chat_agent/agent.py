"""The agent: one turn of a conversation, which is the body of a job in the session's lane.

Because a session's jobs run one at a time and in order, a turn may load the conversation, change
it and save it without a lock. Because the lane `main` runs so many at once and no more, the model
sees at most so many requests. Everything else here would be the same without lanes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import attrs
import trio

from trio_lanes import Lanes

from .conversations import Conversations
from .model import Message, Model, ModelError, ToolCall
from .overview import shorten
from .tools import Tool, call_tool

TURNS: Final = "main"  # the lane of turns
TOOLS: Final = "tools"  # the lane of tool calls
MAX_ROUNDS: Final = 8  # of tool calls in one turn
SAVE_SECONDS: Final = 2.0  # what a stopped turn may take to save what it has


class Display(Protocol):
    """Who is told what a turn does while it does it."""

    def stream(self, session: str, piece: str) -> None: ...
    def note(self, session: str, text: str) -> None: ...
    def end(self, session: str) -> None: ...


@attrs.frozen(eq=False)
class Agent:
    """What a turn needs. Its own state is in `conversations`, by session, and nowhere else."""

    lanes: Lanes
    model: Model
    tools: Mapping[str, Tool]
    conversations: Conversations
    display: Display

    async def turn(self, session: str, text: str) -> str:
        """Answer `text`. Whatever happens, what was said until then is saved."""
        messages = await self.conversations.load(session)
        messages.append(Message("user", text))
        said: list[str] = []
        mark = ""
        try:
            await self._answer(session, messages, said)
        except trio.Cancelled:
            mark = "[stopped]"
            raise
        except Exception:
            mark = "[failed]"
            raise
        finally:
            self.display.end(session)
            answer = " ".join(filter(None, ["".join(said).strip(), mark]))
            messages.append(Message("assistant", answer))
            with trio.move_on_after(SAVE_SECONDS, shield=True):
                await self.conversations.save(session, messages)
        return answer

    async def _answer(self, session: str, messages: list[Message], said: list[str]) -> None:
        """Let the model and its tools take turns until the model wants no more tools."""
        for _ in range(MAX_ROUNDS):
            calls: list[ToolCall] = []
            async with self.model.stream(messages) as events:
                async for event in events:
                    if isinstance(event, ToolCall):
                        calls.append(event)
                    else:
                        said.append(event)
                        self.display.stream(session, event)
            if not calls:
                return
            results = await self._call(session, calls)
            # Together, and without a checkpoint between: a call without its result is no history.
            messages.append(Message("assistant", "".join(said), tuple(calls)))
            messages += results
            said.clear()
        raise ModelError(f"the model still wants tools after {MAX_ROUNDS} rounds")

    async def _call(self, session: str, calls: Sequence[ToolCall]) -> list[Message]:
        """The results in the order of the calls, which run side by side in a lane of their own."""
        jobs = [
            self.lanes.submit_nowait(call_tool, self.tools, call, lane=TOOLS, name=call.name)
            for call in calls
        ]
        try:
            results = []
            for call, job in zip(calls, jobs, strict=True):
                result = await job.wait()
                self.display.note(session, f"{call.name}: {shorten(result, 60)}")
                results.append(Message("tool", result, call_id=call.id))
            return results
        finally:
            for job in jobs:
                job.cancel("the turn has ended")  # does nothing to those that are done
