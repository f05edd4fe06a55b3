"""The engine: requests become messages of inboxes, and turns answer them.

A turn may answer several requests: collected ones from its start, steered ones from the moment in
which it takes them.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import attrs
import trio

from trio_lanes import Job, LaneFullError, Lanes
from trio_lanes import agents as parts
from trio_lanes.agents import Conversation, SettledKind, Turn, WhenBusy

from ..chat_agent.model import Message, ModelError
from ..chat_agent.toolbox import Toolbox
from ..chat_agent.upstream import Builtin, Upstream
from ..openai_api.chat import to_message
from ..openai_api.errors import BadInputError, Refused, of_model, problem, too_slow
from ..openai_api.history import Histories
from ..openai_api.items import asked_in, is_approval, once, outputs_of
from ..openai_api.wire import Answer, Json, session_of
from .asks import TURNS as TURNS
from .asks import Ask, Elsewhere, Live, Pending, Reach, joined
from .patience import AWAY, Patient
from .rounds import Rounds

PLACED: Final = "placed"  # a lane without a limit, for jobs whose place counts elsewhere
KEPT: Final = 250  # answers that have ended; older ones are read from their files
CAP: Final = 20  # waiting messages of a session
# Modes that reach the turn itself: it takes the message, or is stopped, or the message is refused
REACHING: Final = (WhenBusy.STEER, WhenBusy.INTERRUPT, WhenBusy.ROLLBACK, WhenBusy.REJECT)


class BusyError(Refused):
    """The session is busy, and the request wants no place in its queue."""

    def __init__(self) -> None:
        text = "the conversation is busy"
        super().__init__(409, text, "conversation_busy", x_should_retry="false")


@attrs.define(eq=False)
class Engine:
    """Sessions, their turns, and the responses that are known.

    Attributes:
      turn_timeout: the maximum number of seconds of a turn, with the waits for its client.
      gate_timeout: for how long a turn waits for outputs of its client.
      begin: runs work without a session in a job, with a place among the turns, and returns the
        job. It is called, and raises, as `Lanes.submit_nowait`; the job may raise a `LaneError`.
      elsewhere: finds what turns of other processes wait for.
    """

    lanes: Lanes
    nursery: trio.Nursery
    upstream: Upstream
    toolbox: Toolbox
    store: parts.TranscriptStore
    turn_timeout: float = 600.0
    gate_timeout: float = 300.0
    elsewhere: Elsewhere = attrs.field(factory=Elsewhere)
    begin: Callable[..., Job[Any]] = attrs.field(init=False)
    answers: OrderedDict[str, Answer] = attrs.field(factory=OrderedDict)
    inboxes: parts.Inboxes = attrs.field(init=False)
    _histories: Histories = attrs.field(factory=Histories)
    processes: int = 1  # how many share the places in which requests wait
    _unended: Counter[str | None] = attrs.field(factory=Counter)  # {user: requests}
    pending: dict[str, Pending] = attrs.field(factory=dict)  # {call id: calls that wait}

    def __attrs_post_init__(self) -> None:
        self.begin = partial(self.lanes.submit_nowait, lane=TURNS)
        self.inboxes = parts.Inboxes(
            self.lanes, self._turn, when_busy=WhenBusy.FOLLOWUP, lane=TURNS,
            cap=CAP, overflow=parts.Overflow.DROP_NEWEST,
        )  # fmt: skip

    # ---- requests

    def post(self, ask: Ask) -> None:
        """Give the request its place in the lane of its session, or to the calls that wait for it.

        Raises:
          LaneError: if there is no room; nothing is kept of the request.
          BadInputError: if it answers some calls of a turn and not all, or calls that are answered.
          BusyError: if the session is busy, and the mode is reject.
        """
        answer = ask.answer
        if ask.alone:
            self._start(ask)
        elif not self.resume(ask):
            if ask.resumes:  # another request was faster
                raise BadInputError("no call waits for these outputs any more")
            self.check_share(ask.user)
            receipt = self.inboxes.post(answer.session, ask, when_busy=ask.mode, group=ask.group)
            if receipt.outcome is not None and receipt.outcome.kind is SettledKind.REJECTED:
                raise BusyError
            if receipt.outcome is not None:
                raise LaneFullError(f"session:{answer.session}", CAP)
            answer.stop = receipt.cancel
            is_busy = self.inboxes.turn(answer.session) is not None
            answer.position = (receipt.position or 0) + is_busy
            if answer.position:
                answer.begin("queued", position=answer.position)
            self.take_place(ask.user)
            self.nursery.start_soon(self._follow, ask, receipt)
        self.answers[answer.id] = answer
        for id in [*self.answers][: max(0, len(self.answers) - KEPT)]:
            if self.answers[id].ended.is_set():
                del self.answers[id]

    def _start(self, ask: Ask) -> None:
        """Answer a request beside all sessions, in a job of its own."""
        self.check_share(ask.user)
        reach, session = Reach(lambda reason: job.cancel(reason)), ask.answer.session
        job = self.begin(self.answer, session, [ask], reach, owner=ask.user, name="alone")
        ask.answer.stop = job.cancel
        self.take_place(ask.user)
        job.on_settled(lambda job: self._settled(ask))

    def check_share(self, user: str | None) -> None:
        """Raise `LaneFullError` if the user has half of the places in which requests wait.

        Of several processes each knows what it has accepted, and gives its part of that half.
        """
        lane = self.lanes.lane(TURNS)
        share = (lane.concurrency + lane.config.max_waiting / 2) / self.processes
        if user and self._unended[user] + 1 > max(1, share):
            raise LaneFullError(TURNS, lane.config.max_waiting)

    def take_place(self, user: str | None) -> None:
        """The user has one more request that has not ended."""
        self._unended[user] += 1

    def give_place_back(self, user: str | None) -> None:
        """The user has one less."""
        self._unended[user] -= 1
        if not self._unended[user]:
            del self._unended[user]

    def resume(self, ask: Ask) -> bool:
        """Give the request, with its outputs, to the turn that waits for it; False if none does."""
        said = outputs_of(ask.items)
        outputs = {id: output for id, output in said.items() if id in self.pending}
        if not outputs:
            return False
        pending = self.pending[next(iter(outputs))]
        try:
            pending.gate.submit(outputs)
        except ValueError as error:
            raise BadInputError(str(error)) from None
        pending.ask = ask
        return True

    async def check_outputs(self, ask: Ask, is_new: bool = True) -> None:
        """Check that each output has its call, and each call its one output.

        Args:
          is_new: whether also the calls need one for which turns wait now.

        Raises:
          BadInputError: if that is not so.
        """
        calls = [str(item["call_id"]) for item in ask.items if item.get("type") == "function_call"]
        outputs = [id for id in outputs_of(ask.items) if not is_approval(id)]
        late = [id for id in outputs if id not in calls]
        ask.resumes = await self.pending_of(ask.items) is not None
        if ask.resumes:  # what is wrong there, the turn itself says
            late = []
        elif is_new and ask.mode not in REACHING:
            calls += await self._waiting_for(ask)
        if late:  # a client may have written the call into its conversation
            contents = asked_in(await self.messages(ask.answer.session))
            others = [one["input"] for one in contents if one.get("response") != ask.answer.id]
            items = [item for given in others for item in given]
            kinds = {(item.get("call_id"), item.get("type")) for item in items}
            for id in late:
                if (id, "function_call") not in kinds or (id, "function_call_output") in kinds:
                    text = f"No tool call found for function call output with call_id {id[:100]}."
                    raise BadInputError(text)
        for id in calls:
            if id not in outputs:
                raise BadInputError(f"No tool output found for function call {id[:100]}.")

    async def _waiting_for(self, ask: Ask) -> list[str]:
        """Return the calls that wait for outputs at the place from which the request goes on."""
        session = ask.answer.session
        waits = {*self.pending.values(), await self.elsewhere.open_wait(f"session:{session}")}
        return [
            id for pending in waits if pending and pending.session == session
            if ask.previous in (None, *pending.responses) for id in pending.gate.missing
        ]  # fmt: skip

    async def pending_of(self, items: Sequence[Json]) -> Pending | None:
        """Return the calls that wait for outputs in these items."""
        for id in outputs_of(items):
            if pending := self.pending.get(id) or await self.elsewhere.open_wait(id):
                return pending
        return None

    def check_images(self, messages: Sequence[Message], param: str) -> None:
        """Refuse messages with images, if the model takes none; an endpoint says so itself."""
        if isinstance(self.upstream, Builtin) and any(message.parts for message in messages):
            raise BadInputError("the built-in model takes no images", param)

    async def messages(self, session: str) -> list[parts.Message]:
        """Return the messages of a session."""
        return once(await Conversation(session, self.store).messages())

    async def said(self, id: str) -> str | None:
        """Return what a completed response said, from its conversation; None if there is none."""
        for message in await self.messages(session_of(id)) if session_of(id) else []:
            if message.usage and id in message.usage["responses"]:
                return str(message.content)
        return None

    # ---- turns

    async def _turn(self, turn: Turn) -> None:
        """Answer the messages of a turn: the handler of all inboxes."""
        await self.answer(turn.session, turn.messages, Reach(turn.abort, turn))

    async def answer(self, session: str, asks: list[Ask], reach: Reach) -> None:
        """Answer requests in a conversation, in a job."""
        live = Live(reach.abort)
        more = {"became": "collected"} if len(asks) > 1 else {}
        for ask in asks:
            live.join(ask.answer, **more)
        status, why = "cancelled", problem("")
        is_kept = any(ask.is_kept for ask in asks)
        patient = Patient(self.store)  # a store that is away for a while delays a turn
        store: Any = patient if is_kept else parts.MemoryTranscript()
        try:
            with trio.move_on_after(self.turn_timeout) as limit:
                contents = [ask.content for ask in asks]
                async with Conversation(session, store).turn(*contents) as exchange:
                    try:
                        ask = joined(asks)
                        history = [*map(to_message, ask.messages)]
                        if not ask.messages:
                            past: Sequence[parts.Message] = exchange.history
                            if not is_kept:
                                past = await Conversation(session, patient).messages()
                            history = self._histories.read(session, past, ask.previous, live.ids)
                        await Rounds(self, session, exchange, live, reach, ask, history).run()
                    finally:
                        if reach.rolled_back():
                            exchange.rollback()
                status = "completed"
            if limit.cancelled_caught:
                status, why = "failed", too_slow(self.turn_timeout)
        except ModelError as error:
            status, why = "failed", of_model(error)
        except Exception as error:
            if not (reach.begins_again and isinstance(error, AWAY)):
                status, why = "failed", problem(f"the gateway failed: {type(error).__name__}")
            raise
        finally:
            live.end(status, why)

    async def _follow(self, ask: Ask, receipt: parts.Receipt) -> None:
        self._settled(ask, began=(await receipt.settled()).turn is not None)

    def _settled(self, ask: Ask, began: bool = False) -> None:
        """Give its user the place back, and end its response if no turn has begun with it."""
        self.give_place_back(ask.user)
        if not began:
            ask.answer.end("cancelled")
        if ask.messages:  # no client may find it
            self.answers.pop(ask.answer.id, None)
