"""The chat whose messages survive: `--durable FOLDER`.

A message is accepted when it is on the disk, as a durable job of its session. The handler answers
it by a turn in the lanes of this process, with the limits and rates of any other chat. Kill the
process in the middle of an answer and start it again: it names the interrupted message, and answers
it first. No message is answered twice, because an answer is stored with the number of its job.

The messages of a session are answered one by one, so steering and collecting are not available.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import trio

from trio_lanes import JobCancelledError, JobTimeoutError, LaneError, Lanes, open_lanes
from trio_lanes import shutdown_on_signals as end_by_signals
from trio_lanes.durable import (
    DurableJobError,
    DurableLanes,
    DurableState,
    NoRetry,
    SqliteStore,
    current_job,
    open_durable_lanes,
)

from .agent import TURNS, Agent
from .answers import Answers
from .approvals import Approvals, NothingAskedError
from .commands import (
    HELP,
    Approve,
    Clear,
    CommandError,
    Deny,
    Help,
    Limit,
    Quit,
    Say,
    ShowSessions,
    Stop,
    SwitchTo,
    parse,
)
from .events import Began, Ended, Noted
from .limits import Limits, reload
from .model import Model, ModelError
from .screen import Screen, shorten, teller
from .sessions import FailuresTold
from .shutdown import INTERRUPTED
from .terminal import Lines
from .tools import bundled_tools

OPEN: Final = (DurableState.WAITING, DurableState.PARKED, DurableState.RUNNING)
MAX_CRASHES: Final = 20  # a chat is killed by people more often than by a message


class DurableChat:
    """The chat of one user, whose messages are kept until they are answered."""

    def __init__(
        self, lanes: Lanes, model: Model, screen: Screen, answers: Answers, *, turn_timeout: float
    ) -> None:
        self._lanes: Final = lanes
        self._screen: Final = screen
        self._answers: Final = answers
        self._turn_timeout: Final = turn_timeout
        self._tell: Final = teller(screen)
        self.approvals: Final = Approvals(self._tell)
        self._agent: Final = Agent(lanes, model, bundled_tools(), self._tell, self.approvals)

    # ---- answering

    async def answer(self, text: str) -> None:
        """Answer a message: the handler of the durable jobs."""
        run = current_job()
        assert run is not None
        assert run.session is not None
        session = run.session
        answered = await self._answers.find(run.id)
        if answered:  # the process was killed before the job settled
            self._tell(Noted(session, f"was answered before: {shorten(text, 60)}"))
            return
        if answered is not None or run.crashes:
            self._tell(Noted(session, f"was interrupted, and is answered now: {shorten(text, 60)}"))
        self._tell(Began(session, (text,)))
        ending = "interrupted: it is answered at the next start"
        try:
            await self._lanes.run(
                self._agent.answer,
                session,
                self._answers.conversation(run.id, session),
                [text],
                session=session,
                lane=TURNS,
                timeout=self._turn_timeout,
            )
            ending = ""
        except JobCancelledError as error:
            ending = "stopped"
            raise NoRetry(ending) from error
        except (JobTimeoutError, ModelError) as error:
            ending = f"failed: {error}"
            raise NoRetry(ending) from error
        except Exception as error:
            ending = f"failed: {type(error).__name__}: {error}"
            raise NoRetry(ending) from error
        finally:
            self._tell(Ended(session, ending))

    # ---- talking

    async def talk(self, durable: DurableLanes, lines: Lines, session: str) -> None:
        """Run commands until the lines end; then wait until all messages are answered."""
        going_on = True
        while going_on:
            try:
                line = await lines.read(f"{session}> ")
                if line is None:
                    break
                command = parse(line)
                if isinstance(command, SwitchTo):
                    session = command.session
                    self._screen.say(f"you are {session} now")
                else:
                    await self._obey(durable, command, session)
                    going_on = not isinstance(command, Quit)
            except (CommandError, LaneError, NothingAskedError) as error:
                self._screen.say(f"! {error}")
        self.approvals.close()  # no person is left to allow a call
        while left := await durable.jobs(states=OPEN):
            for status in left:
                try:
                    await durable.job(status.id).wait()
                except (DurableJobError, JobCancelledError):
                    pass  # the turn has reported its end

    async def _obey(self, durable: DurableLanes, command: Any, session: str) -> None:
        match command:
            case Say(text, other):
                await durable.submit("answer", text, session=other or session)
            case Stop(other):
                key = other or session
                running = [job for job in self._lanes.jobs() if job.session == key]
                if not running:
                    raise CommandError(f"nothing runs in {key}")
                for job in running:
                    job.cancel("/stop")
            case Clear(other):
                count = await durable.clear(f"session:{other or session}", "/clear")
                self._screen.say(f"cleared {count} waiting in {other or session}")
            case Approve(other):
                self.approvals.answer(other or session, allowed=True)
            case Deny(other):
                self.approvals.answer(other or session, allowed=False)
            case Limit(name, number):
                self._lanes.lane(name).concurrency = number
                if name == TURNS:
                    await durable.configure({TURNS: number})
                self._screen.say(f"{name} runs at most {number} at once")
            case ShowSessions():
                there = await durable.statistics()
                self._screen.say(
                    f"{there.running} being answered, {there.waiting} waiting,"
                    f" in {there.sessions} sessions"
                )
            case Help():
                self._screen.say(HELP)
            case None | Quit():
                pass
            case _:
                raise CommandError("that command is not for durable messages")


async def run_durable_chat(
    model: Model,
    screen: Screen,
    lines: Lines,
    folder: Path,
    *,
    session: str = "me",
    limits: Limits | None = None,
    read_limits: Callable[[], Limits] | None = None,
    turn_timeout: float = 300.0,
    grace: float = 30.0,
) -> int:
    """Chat until the lines end or a signal ends the chat. Return the exit code.

    Unanswered messages are kept in ``folder``, and answered at the next start. The arguments are
    the same as of `run_chat`.

    Raises:
      StoreError, OSError: if the folder cannot be used.
    """
    limits = Limits() if limits is None else limits
    with Answers.open(folder / "answers.db") as answers:
        async with open_lanes(
            limits.lanes(), groups=limits.groups(), instruments=[FailuresTold()]
        ) as lanes:
            chat = DurableChat(lanes, model, screen, answers, turn_timeout=turn_timeout)
            turns = {TURNS: limits.at_once[TURNS]}

            def hang_up() -> dict[str, int]:
                assert read_limits is not None
                screen.say(reload(lanes, read_limits))
                return {TURNS: int(lanes.lane(TURNS).concurrency)}

            async with (
                open_durable_lanes(
                    SqliteStore(folder / "jobs.db"),
                    {"answer": chat.answer},
                    turns,
                    max_crashes=MAX_CRASHES,
                    grace=grace,
                ) as durable,
                trio.open_nursery() as nursery,
            ):
                await durable.configure(turns)  # not the limits of an earlier start
                watch = partial(end_by_signals, durable, grace=grace)
                if read_limits is not None:
                    watch = partial(watch, reload_signal=signal.SIGHUP, reload=hang_up)
                await nursery.start(watch)
                before = await durable.statistics()
                if before.waiting + before.running:
                    screen.say(f"{before.waiting + before.running} messages are left from before")
                with trio.CancelScope() as talking:
                    nursery.start_soon(_when_closing, durable, talking)
                    await chat.talk(durable, lines, session)
                chat.approvals.close()
                durable.close()
                await durable.wait_idle()
                left = await durable.statistics()
    kept = left.waiting + left.parked + left.running
    if kept:
        screen.say(f"{kept} messages are kept for the next start")
    return INTERRUPTED if kept else 0


async def _when_closing(durable: DurableLanes, talking: trio.CancelScope) -> None:
    await durable.wait_closing()
    talking.cancel()
