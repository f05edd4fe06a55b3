"""The chat that lives in several processes: `--store URL`.

Any number of processes open one store, and any of them answers. A message is accepted when the
store has it; it is a message of a `DurableInbox`, so it steers the turn that runs, wherever that
is. What a turn says are events of its job, and each process shows the events of the messages that
were typed in it. The conversation is in the store too. Kill the process that answers: another one
takes the half answer out of the conversation, and answers the message again.
"""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import attrs
import trio

from trio_lanes import JobCancelledError, JobTimeoutError, LaneError, Lanes, open_lanes
from trio_lanes import shutdown_on_signals as end_by_signals
from trio_lanes.agents import (
    Conversation,
    DurableInbox,
    DurableTurn,
    SharedRunRegistry,
    SharedTranscripts,
    inbox_handler,
)
from trio_lanes.durable import (
    DurableJobError,
    DurableLanes,
    DurableRun,
    EventGapError,
    JobTakenError,
    NoRetry,
    Store,
    StoreUnavailableError,
    open_durable_lanes,
)

from . import events
from .agent import TURNS, Agent
from .approvals import Approvals, NothingAskedError
from .commands import (
    HELP,
    Approve,
    Clear,
    CommandError,
    Deny,
    Help,
    Quit,
    Say,
    ShowSessions,
    Stop,
    SwitchTo,
    parse,
)
from .events import Began, Ended, Event, Listener, Noted, Piece, Steered
from .limits import Limits, reload
from .model import Model, ModelError, ToolCall
from .screen import Screen, teller
from .sessions import FailuresTold
from .shutdown import INTERRUPTED
from .terminal import Lines
from .tools import bundled_tools

LEASE: Final = 6.25  # seconds after which another process answers for one that was killed
MAX_CRASHES: Final = 20  # a chat is killed by people more often than by a message
AGAIN: Final = 0.5  # seconds until a store that is away is asked again
LAST_EVENTS: Final = 2.0  # seconds to store the last events of a turn


def to_json(event: Event) -> dict[str, Any]:
    """Return an event as the store keeps it."""
    return {"event": type(event).__name__, "pid": os.getpid(), **attrs.asdict(event)}


def from_json(told: dict[str, Any]) -> Event:
    """Return the event of a value from `to_json`."""
    fields = {name: value for name, value in told.items() if name not in ("event", "pid")}
    if "calls" in fields:
        fields["calls"] = tuple(ToolCall(**call) for call in fields["calls"])
    if "call" in fields:
        fields["call"] = ToolCall(**fields["call"])
    if "texts" in fields:
        fields["texts"] = tuple(fields["texts"])
    event: Event = getattr(events, told["event"])(**fields)
    return event


class Events:
    """The events of a turn on their way to the store; pieces that wait go together."""

    def __init__(self, run: DurableRun) -> None:
        self._run: Final = run
        self._waiting: list[Event] = []
        self._more = trio.Event()

    def tell(self, event: Event) -> None:
        """Store an event, soon."""
        last = self._waiting[-1] if self._waiting else None
        if isinstance(event, Piece) and isinstance(last, Piece):
            self._waiting[-1] = Piece(event.session, last.text + event.text)
        else:
            self._waiting.append(event)
        self._more.set()

    async def store(self) -> None:
        """Store the events as they come, until cancelled."""
        while True:
            await self._more.wait()
            await self.flush()

    async def flush(self) -> None:
        """Store the events that have come."""
        while self._waiting:
            await self._run.emit(to_json(self._waiting[0]))
            del self._waiting[0]
        self._more = trio.Event()


@asynccontextmanager
async def telling(run: DurableRun) -> AsyncIterator[Listener]:
    """Give a listener whose events are stored, all of them at the end of the block."""
    to_store = Events(run)
    failed: BaseException | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(to_store.store)
        try:
            yield to_store.tell
        except BaseException as error:
            failed = error  # it leaves as it is, not in a group
        nursery.cancel_scope.cancel()
    with trio.move_on_after(LAST_EVENTS, shield=True):
        await to_store.flush()
    if failed is not None:
        raise failed


class SharedChat:
    """One process of a chat in several processes."""

    durable: DurableLanes
    transcripts: SharedTranscripts
    registry: SharedRunRegistry

    def __init__(self, lanes: Lanes, model: Model, screen: Screen, *, turn_timeout: float) -> None:
        self._lanes: Final = lanes
        self._screen: Final = screen
        self._turn_timeout: Final = turn_timeout
        self._tell: Final = teller(screen)
        self._agent: Final = Agent(lanes, model, bundled_tools())
        self._followed: Final[set[int]] = set()

    def use(self, durable: DurableLanes) -> None:
        """Use durable lanes whose handler is `answer`."""
        self.durable = durable
        self.transcripts = SharedTranscripts(durable)
        self.registry = SharedRunRegistry(durable)

    # ---- answering

    async def answer(self, turn: DurableTurn) -> None:
        """Answer the messages of a turn: the handler of the inbox."""
        session, run = turn.session, turn.run
        conversation = Conversation(session, self.transcripts)
        texts = tuple(map(str, turn.messages))
        async with telling(run) as tell:
            if turn.checkpoint_data is not None:  # the turn of a process that was killed
                if not await conversation.take_out(turn.checkpoint_data):
                    return  # it was complete
                tell(Noted(session, "was interrupted, and is answered now"))
            place = f"{run.id}.{run.fence}"
            await turn.checkpoint(place)
            approvals = Approvals(tell)

            async def steers() -> Sequence[str]:
                taken = tuple(map(str, await turn.take()))
                if taken:
                    tell(Steered(session, taken))
                return taken

            def decide(outputs: Any) -> None:
                approvals.answer(session, allowed=outputs["allowed"])

            tell(Began(session, texts))
            ending = "interrupted"
            try:
                async with self.registry.running(turn, outputs=decide):
                    await self._lanes.run(
                        attrs.evolve(self._agent, tell=tell, approvals=approvals).answer,
                        session,
                        conversation,
                        texts,
                        steers,
                        bool,
                        place,
                        session=session,
                        lane=TURNS,
                        timeout=self._turn_timeout,
                    )
                ending = ""
            except (JobTimeoutError, ModelError) as error:
                ending = f"failed: {error}"
                raise NoRetry(ending) from error
            except LaneError:
                raise
            except Exception as error:
                ending = f"failed: {type(error).__name__}: {error}"
                raise NoRetry(ending) from error
            finally:
                tell(Ended(session, ending))

    # ---- showing

    async def follow(self, session: str, id: int) -> None:
        """Show what the turn of a message says, on whichever process, until it has ended."""
        if id in self._followed:
            return
        self._followed.add(id)
        after = 0
        while True:
            try:
                async for number, told in self.durable.job(id).events(after=after):
                    after = number
                    if told["event"] == "Began" and told["pid"] != os.getpid():
                        self._tell(Noted(session, f"process {told['pid']} answers"))
                    self._tell(from_json(told))
                await self.durable.job(id).wait()
            except StoreUnavailableError:
                await trio.sleep(AGAIN)
                continue
            except EventGapError as gap:  # this reader is slower than the turn
                after = gap.first - 1
                continue
            except JobTakenError as taken:  # another turn answers it
                await self.follow(session, taken.by)
            except JobCancelledError as error:
                self._tell(Noted(session, f"cancelled: {error.reason or 'by a person'}"))
            except DurableJobError:
                pass  # the turn has told why
            return

    # ---- talking

    async def talk(self, lines: Lines, session: str, nursery: trio.Nursery) -> None:
        """Run commands until the lines end."""
        while True:
            try:
                line = await lines.read(f"{session}> ")
                if line is None:
                    return
                command = parse(line)
                if isinstance(command, Quit):
                    return
                if isinstance(command, SwitchTo):
                    session = command.session
                    self._screen.say(f"you are {session} now")
                else:
                    await self._obey(command, session, nursery)
            except (CommandError, LaneError, NothingAskedError) as error:
                self._screen.say(f"! {error}")

    async def _obey(self, command: Any, session: str, nursery: trio.Nursery) -> None:
        match command:
            case Say(text, other):
                session = other or session
                receipt = await DurableInbox(self.durable, session, "answer").post(text)
                if receipt.job is None:
                    raise CommandError("the message was refused: too many wait")
                nursery.start_soon(self.follow, session, receipt.job.id)
            case Stop(other):
                if not await self.durable.abort(other or session, "/stop"):
                    raise CommandError(f"nothing runs in {other or session}")
            case Clear(other):
                count = await self.durable.clear(f"session:{other or session}", "/clear")
                self._screen.say(f"cleared {count} waiting in {other or session}")
            case Approve(other):
                await self._decide(other or session, allowed=True)
            case Deny(other):
                await self._decide(other or session, allowed=False)
            case ShowSessions():
                there = await self.durable.statistics()
                processes = len(await self.durable.instances())
                self._screen.say(
                    f"{there.running} being answered, {there.waiting} waiting,"
                    f" in {there.sessions} sessions, by {processes} processes"
                )
            case Help():
                self._screen.say(HELP)
            case None:
                pass
            case _:
                raise CommandError("that command is not for a chat in several processes")

    async def _decide(self, session: str, *, allowed: bool) -> None:
        if not await self.registry.submit(session, {"allowed": allowed}):
            raise NothingAskedError(f"nothing waits for approval in {session}")


async def run_shared_chat(
    model: Model,
    screen: Screen,
    lines: Lines,
    store: Store,
    *,
    session: str = "me",
    limits: Limits | None = None,
    read_limits: Callable[[], Limits] | None = None,
    turn_timeout: float = 300.0,
    grace: float = 30.0,
) -> int:
    """Chat until the lines end or a signal ends the chat. Return the exit code.

    Unanswered messages are kept in ``store``, and other processes answer them. The other arguments
    are the same as of `run_chat`.

    Raises:
      StoreError: if the store cannot be used.
    """
    limits = Limits() if limits is None else limits
    async with open_lanes(
        limits.lanes(), groups=limits.groups(), instruments=[FailuresTold()]
    ) as lanes:
        chat = SharedChat(lanes, model, screen, turn_timeout=turn_timeout)

        def hang_up() -> None:
            assert read_limits is not None
            screen.say(reload(lanes, read_limits))

        async with (
            open_durable_lanes(
                store,
                {"answer": inbox_handler(chat.answer)},
                {TURNS: limits.at_once[TURNS]},
                max_crashes=MAX_CRASHES,
                lease_ttl=LEASE,
                grace=grace,
            ) as durable,
            trio.open_nursery() as nursery,
        ):
            chat.use(durable)
            watch: Callable[..., Awaitable[Any]] = partial(end_by_signals, durable, grace=grace)
            if read_limits is not None:
                watch = partial(watch, reload_signal=signal.SIGHUP, reload=hang_up)
            await nursery.start(watch)
            with trio.CancelScope() as talking:
                nursery.start_soon(_when_closing, durable, talking)
                async with trio.open_nursery() as following:
                    await chat.talk(lines, session, following)
            durable.close()
            await durable.wait_idle()
    return INTERRUPTED if talking.cancelled_caught else 0


async def _when_closing(durable: DurableLanes, talking: trio.CancelScope) -> None:
    await durable.wait_closing()
    talking.cancel()
