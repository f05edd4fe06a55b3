"""The agent: one turn of a conversation, which is the body of a job in the session's lane.

Because a session's jobs run one at a time and in order, a turn may load the conversation, change
it and save it without a lock. Because the lane `main` runs so many at once and no more, the model
sees at most so many requests. And because starts are charged to rate limits, each call of the model
is a start: the first that of the turn itself, every other one a `Job.readmit`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import attrs
import trio

from trio_lanes import Job, Lanes, current_job

from .conversations import Conversations
from .model import Message, Model, ModelBusyError, ModelError, ToolCall, Usage
from .overview import shorten
from .tools import ASK_SUBAGENT, Tool, argument_of, call_tool

TURNS: Final = "main"  # the lane of turns
TOOLS: Final = "tools"  # the lane of tool calls
SUBAGENTS: Final = "subagent"  # the lane of what a turn lets others do
MAX_ROUNDS: Final = 8  # of tool calls in one turn
MAX_TRIES: Final = 4  # of one call of the model
BUSY_SECONDS: Final = 5.0  # to wait for a busy model that does not say how long
MAX_BUSY_SECONDS: Final = 300.0  # to wait for one that does; longer, and the turn fails
ANSWER_TOKENS: Final = 200  # what is not known before the model has answered
SAVE_SECONDS: Final = 2.0  # what a stopped turn may take to save what it has


class Display(Protocol):
    """Who is told what a turn does while it does it."""

    def stream(self, session: str, piece: str) -> None: ...
    def note(self, session: str, text: str) -> None: ...
    def end(self, session: str) -> None: ...


class Nowhere:
    """The display of an agent that nobody looks at."""

    def stream(self, session: str, piece: str) -> None: ...
    def note(self, session: str, text: str) -> None: ...
    def end(self, session: str) -> None: ...


def cost_of(messages: Sequence[Message]) -> dict[str, float]:
    """What a call of the model is charged until it says what it used: a guess."""
    letters = sum(len(message.text) for message in messages)
    return {"tokens": ANSWER_TOKENS + letters / 4}


@attrs.frozen(eq=False)
class Agent:
    """What a turn needs. Its own state is in `conversations`, by session, and nowhere else."""

    lanes: Lanes
    model: Model
    tools: Mapping[str, Tool]
    conversations: Conversations
    display: Display
    delegates: bool = True  # whether it has sub-agents

    async def turn(self, session: str, text: str) -> str:
        """Answer `text`. Whatever happens, what was said until then is saved."""
        messages = await self.conversations.load(session)
        messages.append(Message("user", text))
        said: list[str] = []
        mark = "[stopped]"  # as it is if a cancellation, or a group of them, comes through here
        try:
            await self._answer(session, messages, said)
            mark = ""
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
        for place in range(MAX_ROUNDS):
            if place > 0:  # the start of the job was charged for the first call
                await _current_job().readmit(cost=cost_of(messages))
            calls = await self._ask(session, messages, said)
            if not calls:
                return
            results = await self._call(session, calls)
            # Together, and without a checkpoint between: a call without its result is no history.
            messages.append(Message("assistant", "".join(said), tuple(calls)))
            messages += results
            said.clear()
        raise ModelError(f"the model still wants tools after {MAX_ROUNDS} rounds")

    async def _ask(
        self, session: str, messages: Sequence[Message], said: list[str]
    ) -> list[ToolCall]:
        """One call of the model, made again if the model is busy. Returns what it wants called.

        A 429 is meant for all that use the key: their lanes pause, and this job goes on first.
        """
        job = _current_job()
        tries = 0
        while True:
            tries += 1
            calls: list[ToolCall] = []
            try:
                async with self.model.stream(messages) as events:
                    async for event in events:
                        if isinstance(event, ToolCall):
                            calls.append(event)
                        elif isinstance(event, Usage):
                            job.charge(tokens=event.tokens)
                        else:
                            said.append(event)
                            self.display.stream(session, event)
                return calls
            except ModelBusyError as busy:
                seconds = BUSY_SECONDS if busy.retry_after is None else busy.retry_after
                if said or calls or tries == MAX_TRIES or seconds > MAX_BUSY_SECONDS:
                    raise
            self.display.note(session, f"the model is busy: again in {seconds:g} s")
            job.charge(tokens=0)  # it was a request all the same
            for lane in (TURNS, SUBAGENTS):
                self.lanes.pause_for(lane, seconds)
            await job.readmit(cost=cost_of(messages))

    async def _call(self, session: str, calls: Sequence[ToolCall]) -> list[Message]:
        """The results in the order of the calls, which run side by side in lanes of their own."""
        results = [""] * len(calls)
        async with trio.open_nursery() as nursery:
            for place, call in enumerate(calls):
                nursery.start_soon(self._call_one, call, place, results)
        messages = []
        for call, result in zip(calls, results, strict=True):
            self.display.note(session, f"{call.name}: {shorten(result, 60)}")
            messages.append(Message("tool", result, call_id=call.id))
        return messages

    async def _call_one(self, call: ToolCall, place: int, results: list[str]) -> None:
        """Put the result of a call into its place. What goes wrong is told to the model."""
        run = self.lanes.run
        try:
            if call.name == ASK_SUBAGENT and self.delegates:
                # Meanwhile the slot of the turn is lent: it may be the last one, and the sub-agent
                # may wait long.
                results[place] = await run(
                    self._subagent,
                    call,
                    lane=SUBAGENTS,
                    cost=cost_of([Message("user", call.arguments)]),
                    name=call.name,
                    yield_slot=True,
                )
            else:
                results[place] = await run(call_tool, self.tools, call, lane=TOOLS, name=call.name)
        except Exception as error:
            results[place] = f"error: {error}"

    async def _subagent(self, call: ToolCall) -> str:
        """A job of its own: a conversation that nobody sees or keeps, but for its answer."""
        task = argument_of(self.tools[call.name], call)
        said: list[str] = []
        alone = attrs.evolve(self, display=Nowhere(), delegates=False)
        await alone._answer("", [Message("user", task)], said)
        return "".join(said).strip()


def _current_job() -> Job[Any]:
    job = current_job()
    assert job is not None, "a turn is the body of a job"
    return job
