"""The agent: the loop that answers a turn with a model, tools, steers and sub-agents.

A turn is the body of a job in the lane `main`, so the lane limits the concurrent requests to
the model. The turn holds its slot until the stream of the model has ended, and lends it while it
waits for people or sub-agents. Starts are charged to rate limits, and each call of the model is a
start: the first call is the start of the turn, each later call is a `Job.readmit`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import attrs

from trio_lanes import Job, Lanes, current_job
from trio_lanes.agents import ActionGate, Conversation, ConversationTurn, Emit, run_tools
from trio_lanes.agents import Message as Entry
from trio_lanes.agents import ToolCall as Running

from .approvals import Approvals
from .events import Called, Entered, Listener, Noted, Piece, Returned, ignore
from .model import Message, Model, ModelBusyError, ModelError, ToolCall, Usage
from .tools import ASK_SUBAGENT, Tool, ToolError, argument_of, call_tool

TURNS: Final = "main"  # the lane of turns
TOOLS: Final = "tools"  # the lane of tool calls
SUBAGENTS: Final = "subagent"  # the lane of sub-agents
MAX_ROUNDS: Final = 8  # rounds of tool calls in a turn
MAX_TRIES: Final = 4  # attempts of one call of the model
BUSY_SECONDS: Final = 5.0  # to wait for a busy model that sends no time
MAX_BUSY_SECONDS: Final = 300.0  # the longest such time; with a longer time, the turn fails
ANSWER_TOKENS: Final = 200  # an estimate, made before the model has answered

Steers = Callable[[], Awaitable[Sequence[str]]]  # returns the steers for the turn


async def no_steers() -> Sequence[str]:
    """Return no steers."""
    return ()


def cost_of(messages: Iterable[Message]) -> dict[str, float]:
    """Estimate the cost of a call of the model, before its usage is known."""
    letters = sum(len(message.text) for message in messages)
    return {"requests": 1, "tokens": ANSWER_TOKENS + letters / 4}


@attrs.frozen(eq=False)
class Agent:
    """The agent that answers turns. It keeps no messages: they are in the conversation.

    Attributes:
      approvals: asks a person before some tools are used; None: no person can be asked.
      delegates: whether the agent has sub-agents.
    """

    lanes: Lanes
    model: Model
    tools: Mapping[str, Tool]
    tell: Listener = ignore
    approvals: Approvals | None = None
    delegates: bool = True

    async def answer(
        self,
        session: str,
        conversation: Conversation,
        texts: Sequence[str],
        steers: Steers = no_steers,
        rolled_back: Callable[[], bool] = bool,
        turn_id: str | None = None,
    ) -> str:
        """Answer `texts`, and the messages that `steers` returns meanwhile. Return the last answer.

        Call it in a job that has just started. It reads the conversation itself; when it
        returns, the answer is stored. If it raises, the text so far is stored; or nothing of the
        turn, if `rolled_back` returns True then.
        """
        async with conversation.turn(*texts, id=turn_id) as turn:
            self.tell(Entered(session, turn.id))
            try:
                return await self._answer(session, turn, steers)
            finally:
                if rolled_back():
                    turn.rollback()

    async def _answer(self, session: str, turn: ConversationTurn, steers: Steers) -> str:
        """Call the model and the tools that it asks for, until it asks for no more."""
        rounds = 0
        start = {"requests": 0.0}  # the start of the job was charged for one request
        while True:
            prompt = [_for_model(entry) for entry in turn.prompt]
            await _current_job().readmit(cost=cost_of(prompt) | start)
            start = {}
            said, calls = await self._ask(session, turn, prompt)
            if calls:
                rounds += 1
                if rounds == MAX_ROUNDS:
                    raise ModelError(f"the model still wants tools after {rounds} rounds")
                await self._call(session, turn, calls)
            if more := await steers():
                await turn.steer(*more)
                rounds = 0
            elif not calls:
                await turn.finish()
                return said

    async def _ask(
        self, session: str, turn: ConversationTurn, prompt: Sequence[Message]
    ) -> tuple[str, list[ToolCall]]:
        """Call the model, again if it is busy. Return its text, and the tool calls.

        A 429 applies to all users of the key: their lanes pause, and this job goes on first.
        """
        job = _current_job()
        tries = 0
        while True:
            tries += 1
            said: list[str] = []
            calls: dict[str, ToolCall] = {}
            try:
                async with self.model.stream(prompt) as events:
                    async for event in events:
                        if isinstance(event, ToolCall):
                            if event.id in calls:
                                raise ModelError(f"the model made two calls {event.id[:40]!r}")
                            calls[event.id] = event
                        elif isinstance(event, Usage):
                            job.charge(tokens=event.tokens)
                        elif isinstance(event, str):
                            said.append(event)
                            turn.append(event)  # stored with the next write
                            self.tell(Piece(session, event))
                return "".join(said).strip(), list(calls.values())
            except ModelBusyError as busy:
                seconds = BUSY_SECONDS if busy.retry_after is None else busy.retry_after
                if said or calls or tries == MAX_TRIES or seconds > MAX_BUSY_SECONDS:
                    raise
            self.tell(Noted(session, f"the model is busy; the next attempt is in {seconds:g} s"))
            job.charge(tokens=0)  # a failed call was a request, too
            for lane in (TURNS, SUBAGENTS):
                self.lanes.pause_for(lane, seconds)
            await job.readmit(cost=cost_of(prompt))

    async def _call(self, session: str, turn: ConversationTurn, calls: Sequence[ToolCall]) -> None:
        """Run the calls concurrently, and write their results in the order of the calls."""
        await turn.call([attrs.asdict(call) for call in calls])
        self.tell(Called(session, tuple(calls)))
        asked = [call for call in calls if self._must_ask(call)]
        approvals = Approvals(ignore) if self.approvals is None else self.approvals
        with approvals.asking(session, asked) as gate:
            running = [
                Running(call.id, partial(self._use, call, gate if call in asked else None))
                for call in calls
            ]
            async with run_tools(running) as run:
                async for event in run:
                    text = event.data if event.kind == "result" else f"error: {event.data}"
                    await turn.result(event.item_id, text)
                    self.tell(Returned(session, calls[event.output_index], text))

    def _must_ask(self, call: ToolCall) -> bool:
        return call.name in self.tools and self.tools[call.name].asks and self.approvals is not None

    async def _use(self, call: ToolCall, gate: ActionGate | None, emit: Emit) -> str:
        """Run one call. The turn lends its slot during long waits, as it may be the last slot."""
        if gate is not None:
            async with _current_job().yield_slot():
                said = {result.id: result.value for result in await gate.wait()}[call.id]
            if said is not True:
                why = f": {said}" if said else ""
                raise ToolError(f"{call.name} was not allowed{why}")
        if call.name == ASK_SUBAGENT and self.delegates:
            return await self.lanes.run(
                self._subagent, call, lane=SUBAGENTS, name=call.name, yield_slot=True
            )
        if call.name in self.tools and self.tools[call.name].asks and gate is None:
            raise ToolError(f"no person can be asked to allow {call.name}")
        return await self.lanes.run(call_tool, self.tools, call, lane=TOOLS, name=call.name)

    async def _subagent(self, call: ToolCall) -> str:
        """Run a sub-agent in a job of its own; its conversation is not kept, only the answer."""
        task = argument_of(self.tools[call.name], call)
        alone = attrs.evolve(self, tell=ignore, approvals=None, delegates=False)
        return await alone.answer("", Conversation("task"), [task])


def _for_model(entry: Entry) -> Message:
    """Convert a message of a conversation to the type of the models."""
    calls = tuple(ToolCall(**call) for call in entry.tool_calls)
    return Message(entry.role, str(entry.content), calls, entry.tool_call_id or "")


def _current_job() -> Job[Any]:
    job = current_job()
    assert job is not None, "a turn is the body of a job"
    return job
