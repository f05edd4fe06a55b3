"""Sessions: the one place where a message becomes a turn.

A message is posted into the inbox of its session, which starts a turn for it, or offers it to the
active turn. An idle session has no inbox: only its conversation is kept, and its mode if a user has
set one. The turn is a job in the session lane. Only the turn reads and writes the conversation,
and it reports its own end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import trio

from trio_lanes import Job, LaneInstrument, Lanes
from trio_lanes.agents import (
    Conversation,
    Inboxes,
    InboxStatistics,
    MemoryTranscript,
    Overflow,
    Receipt,
    RunRegistry,
    SettledKind,
    TranscriptStore,
    Turn,
    WhenBusy,
)

from .agent import TURNS, Agent
from .events import Began, Ended, Listener, Noted, Queued, Steered, ignore
from .limits import MAX_WAITING
from .model import ModelError

# The notes about effects of a post on itself, or on waiting messages.
SIDE_EFFECTS: Final = {
    SettledKind.REJECTED: "rejected: the session is busy",
    SettledKind.REPLACED: "it replaces the waiting message",
    SettledKind.SUMMARIZED: "too many wait: the model gets one line of the oldest",
    SettledKind.DROPPED: "too many wait: a message is dropped",
}


class TurnTimeoutError(Exception):
    """The turn exceeded its timeout."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"stopped after {seconds:g} s")


class Sessions:
    """The sessions of the agent. Only `abort` and `wait_room` are asynchronous.

    Args:
      tell: the listener for all events that the agent does not report itself.
      store: the store of the conversations.
      turn_timeout: the maximum number of seconds of a turn.
      when_busy: the mode of all sessions, until `set_mode`.
      cap, overflow: the maximum of waiting messages of a session, and the overflow rule.
    """

    def __init__(
        self,
        lanes: Lanes,
        agent: Agent,
        tell: Listener = ignore,
        *,
        store: TranscriptStore | None = None,
        turn_timeout: float = 300.0,
        when_busy: WhenBusy = WhenBusy.FOLLOWUP,
        cap: int = MAX_WAITING,
        overflow: Overflow = Overflow.DROP_NEWEST,
    ) -> None:
        self.runs: Final = RunRegistry()
        self._lanes: Final = lanes
        self._agent: Final = agent
        self._tell: Final = tell
        self._store: Final = MemoryTranscript() if store is None else store
        self._turn_timeout: Final = turn_timeout
        self.default_mode: Final = when_busy
        self._modes: Final[dict[str, WhenBusy]] = {}  # by session, where a user has set another
        self._inboxes: Final = Inboxes(lanes, self._turn, lane=TURNS, cap=cap, overflow=overflow)

    # ---- posting

    def say(self, session: str, text: str, when_busy: WhenBusy | None = None) -> Receipt:
        """Post a message. It gets its place in the queue at the call.

        Raises:
          LaneError: if the lanes refuse the message.
        """
        before = self._inboxes.statistics().settled
        mode = self.mode(session) if when_busy is None else when_busy
        receipt = self._inboxes.post(session, text, when_busy=mode)
        after = self._inboxes.statistics().settled
        self._tell(Queued(session))
        for kind, words in SIDE_EFFECTS.items():
            if after[kind] > before[kind]:
                self._tell(Noted(session, words))
        return receipt

    async def _turn(self, turn: Turn) -> str:
        """Answer the messages of a turn: the handler of all inboxes."""
        return await self._answer(turn.session, turn)

    async def _answer(self, session: str, turn: Turn) -> str:
        conversation = self.conversation(session)

        async def steers() -> Sequence[str]:
            taken = tuple(map(str, turn.take()))
            if taken:
                self._tell(Steered(session, taken))
                self._tell(Queued(session))
            return taken

        texts = tuple(map(str, turn.messages))
        self._tell(Began(session, texts))
        self._tell(Queued(session))
        ending = "stopped"  # this stays if a cancellation leaves the turn
        try:
            with self.runs.running(session, turn):
                turn.is_streaming = True
                with trio.move_on_after(self._turn_timeout) as limit:
                    answer = await self._agent.answer(
                        session, conversation, texts, steers, lambda: turn.rollback_called
                    )
                if limit.cancelled_caught:
                    raise TurnTimeoutError(self._turn_timeout)
            ending = ""
            return answer
        except (TurnTimeoutError, ModelError) as error:
            ending = f"failed: {error}" if isinstance(error, ModelError) else str(error)
            raise
        except Exception as error:
            ending = f"failed: {type(error).__name__}: {error}"
            raise
        finally:
            self._tell(Ended(session, ending))

    # ---- stopping

    def stop(self, session: str, reason: str) -> bool:
        """Abort the active turn; False if there is none."""
        return self.runs.abort(session, reason)

    def hold(self, session: str, reason: str) -> int:
        """Abort the active turn, and begin no other until `go_on`. Return how many wait."""
        turn = self.turn(session)
        if turn is None:
            self._inboxes.hold(session)
        else:
            turn.abort(reason, then="hold")
        self._tell(Queued(session))
        return len(self._inboxes.waiting(session))

    def go_on(self, session: str) -> None:
        """Answer what waits in a session that is held.

        Raises:
          LaneError: if the lanes refuse its turn; then it is still held.
        """
        self._inboxes.release(session)
        self._tell(Queued(session))

    async def abort(self, session: str, reason: str) -> int:
        """Cancel the waiting messages and the turn, and wait for its end. Return their number."""
        waiting = len(self._inboxes.waiting(session))
        await self._inboxes.abort(session, reason)
        self._tell(Queued(session))
        return waiting

    def clear(self, session: str, reason: str) -> int:
        """Cancel the waiting messages, but not the turn. Return their number."""
        before = len(self._inboxes.waiting(session))
        self._lanes.session(session).clear(reason=reason)
        left = len(self._inboxes.waiting(session))
        self._tell(Queued(session))
        return before - left

    # ---- queries

    def __contains__(self, session: str) -> bool:
        """Whether the session is busy or held."""
        return session in self._inboxes

    @property
    def held(self) -> list[str]:
        """The sessions that are held."""
        return self._inboxes.held

    def is_held(self, session: str) -> bool:
        """Whether the session is held: no turn of it begins until `go_on`."""
        return self._inboxes.is_held(session)

    def mode(self, session: str) -> WhenBusy:
        """Return the mode of the session."""
        return self._modes.get(session, self.default_mode)

    def set_mode(self, session: str, mode: WhenBusy) -> None:
        """Set the mode for messages that are posted later."""
        self._modes.pop(session, None)
        if mode is not self.default_mode:
            self._modes[session] = mode
        self._tell(Queued(session))

    def turn(self, session: str) -> Turn | None:
        """Return the active turn, or None."""
        return self._inboxes.turn(session)

    def waiting(self, session: str) -> list[str]:
        """Return the waiting messages, in order."""
        return [str(receipt.message) for receipt in self._inboxes.waiting(session)]

    def text_of(self, job: Job[Any]) -> str | None:
        """Return the first message of a turn, or of the next turn."""
        if job.session is None or job.session not in self:
            return None
        turn = self.turn(job.session)
        texts = self.waiting(job.session) if turn is None or turn.job is not job else turn.messages
        return str(texts[0]) if texts else None

    def conversation(self, session: str) -> Conversation:
        """Return the conversation of a session."""
        return Conversation(session, self._store)

    def statistics(self) -> InboxStatistics:
        """Return the outcomes of the messages of all sessions."""
        return self._inboxes.statistics()

    async def wait_room(self) -> None:
        """Wait until another message may wait, over all sessions."""
        while True:
            waiting = {key: self._inboxes.waiting(key) for key in self._inboxes.sessions}
            if sum(map(len, waiting.values())) < MAX_WAITING:
                await trio.lowlevel.checkpoint()
                return
            longest = max(waiting.values(), key=len)  # the queue that can shrink
            await longest[0].settled()


class FailuresTold(LaneInstrument):
    """An instrument that retrieves the failures of turns, which report themselves: no logs."""

    def job_finished(self, job: Job[Any]) -> None:
        if job.session is not None:
            _ = job.exception
