"""The chat: the effect of each command on sessions and lanes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from trio_lanes import LaneError, Lanes

from .agent import Agent
from .approvals import Approvals, NothingAskedError
from .commands import (
    HELP,
    Abort,
    Approve,
    Clear,
    Command,
    CommandError,
    Deny,
    Go,
    Help,
    Hold,
    Limit,
    Pause,
    Queue,
    Quit,
    Resume,
    Say,
    ShowSessions,
    Stop,
    SwitchTo,
    Tour,
    Why,
    parse,
)
from .limits import Limits, reload
from .model import Model
from .overview import LANE_HEADER, SESSION_HEADER, SessionRow, lane_rows, session_rows, table
from .screen import Screen, teller
from .sessions import FailuresTold, Sessions
from .shutdown import resume_all, run_with_lanes
from .terminal import Lines
from .tools import bundled_tools
from .tour import CARDS, play
from .why import why


class Chat:
    """The chat of one user, who may write in any session.

    Args:
      session: the session of plain text, until `/as NAME` changes it.
      refusal: why this user may not use a session of that name; "" if that is allowed.
    """

    def __init__(
        self,
        lanes: Lanes,
        sessions: Sessions,
        approvals: Approvals,
        screen: Screen,
        *,
        session: str,
        refusal: Callable[[str], str] = lambda session: "",
    ) -> None:
        self.session = session
        self._lanes: Final = lanes
        self._sessions: Final = sessions
        self._approvals: Final = approvals
        self._screen: Final = screen
        self._refusal: Final = refusal
        self._known: Final = {session}  # the sessions that this user has named
        self._paused: Final[set[str]] = set()  # lanes and sessions
        self._card = 0  # of the tour: the last one

    async def talk(self, lines: Lines) -> None:
        """Run commands until the lines end; then resume what was paused or held here."""
        going_on = True
        while going_on:
            try:
                line = await lines.read(f"{self.session}> ")
                going_on = line is not None and await self.obey(line)
            except CommandError as error:
                self._refuse(error)
            # Without a /resume or a /go, there may never be room: read the next line.
            if not (self._paused or self._sessions.held):
                await self._sessions.wait_room()
        if self._paused:
            self._screen.say(
                f"resuming {', '.join(sorted(self._paused))}: no user is left to do it"
            )
            self._resume(None)
        for session in self._sessions.held:
            self._screen.say(f"going on in {session}: no user is left to do it")
            self._sessions.go_on(session)

    async def obey(self, line: str) -> bool:
        """Run the command of a line, or show an error. Return False after the last line.

        Only `/abort` and `/tour` wait, so a message has its place in the queue before the next line
        is read.
        """
        try:
            command = parse(line)
            if isinstance(command, Abort):
                await self._abort(self._named(command.session))
            elif isinstance(command, Tour):
                await self._tour(command.number)
            elif command is not None:
                self._do(command)
        except (CommandError, LaneError, NothingAskedError) as error:
            self._refuse(error)
            return True
        return not isinstance(command, Quit)

    def _refuse(self, error: Exception) -> None:
        self._screen.say(f"! {error}")

    def _do(self, command: Command) -> None:
        match command:
            case Say(text, session):
                self._say(text, session or self.session)
            case SwitchTo(session):
                self._admit(session)
                self._known.add(session)
                self.session = session
                self._screen.say(f"you are {session} now")
            case ShowSessions():
                self._show_sessions()
            case Why(session):
                self._screen.say(why(self._lanes, self._sessions, self._named(session)))
            case Queue(mode, session):
                key = self._named(session)
                self._sessions.set_mode(key, mode)
                self._screen.say(f"mode of messages while {key} is busy: {mode}")
            case Stop(session):
                key = self._named(session)
                if not self._sessions.stop(key, "/stop"):
                    raise CommandError(f"nothing runs in {key}")
            case Hold(session):
                key = self._named(session)
                count = self._sessions.hold(key, "/hold")
                self._screen.say(f"{key} is held until /go, with {count} waiting")
            case Go(session):
                key = self._named(session)
                if not self._sessions.is_held(key):
                    raise CommandError(f"{key} is not held")
                self._sessions.go_on(key)
                self._screen.say(f"going on in {key}")
            case Clear(session):
                key = self._named(session)
                count = self._sessions.clear(key, "/clear")
                self._screen.say(f"cleared {count} waiting in {key}")
            case Approve(session):
                self._approvals.answer(self._named(session), allowed=True)
            case Deny(session):
                self._approvals.answer(self._named(session), allowed=False)
            case Limit(lane, limit):
                self._lanes.lane(lane).concurrency = limit
                self._screen.say(f"{lane} runs at most {limit} at once")
            case Pause(name):
                self._pause(name)
            case Resume(name):
                self._resume(name)
            case Help():
                self._screen.say(HELP)
            case _:
                pass

    def _say(self, text: str, session: str) -> None:
        self._admit(session)
        self._sessions.say(session, text)
        self._known.add(session)

    async def _abort(self, session: str) -> None:
        count = await self._sessions.abort(session, "/abort")
        self._screen.say(f"aborted {session}, with {count} waiting")

    async def _tour(self, number: int | None) -> None:
        self._card = self._card % len(CARDS) + 1 if number is None else number
        self._screen.say(await play(self._card))
        if number is None and self._card < len(CARDS):
            self._screen.say(f"/tour plays card {self._card + 1}")

    def _pause(self, name: str | None) -> None:
        if name is None:
            self._lanes.pause()
            self._paused.update(self._lanes.statistics().lanes)
        elif self._is_lane(name):
            self._lanes.lane(name).pause()
            self._paused.add(name)
        else:
            self._lanes.session(self._named(name)).pause()
            self._paused.add(name)
        self._screen.say(f"paused {name or 'all lanes'}")

    def _resume(self, name: str | None) -> None:
        if name is None:
            resume_all(self._lanes)
            self._paused.clear()
        elif self._is_lane(name):
            self._lanes.lane(name).resume()
            self._paused.discard(name)
        else:
            self._lanes.session(self._named(name)).resume()
            self._paused.discard(name)
        self._screen.say(f"resumed {name or 'everything'}")

    def _show_sessions(self) -> None:
        busy = session_rows(self._lanes, self._sessions)
        idle = self._known - {row.key for row in busy}
        rows = [*busy, *map(SessionRow, sorted(idle))]
        self._screen.say(table(LANE_HEADER, lane_rows(self._lanes)))
        self._screen.say(table(SESSION_HEADER, [row.cells(self.session) for row in rows]))

    def _is_lane(self, name: str) -> bool:
        return name in self._lanes.statistics().lanes

    def _named(self, session: str | None) -> str:
        session = session or self.session
        if session not in {self.session, *self._known} and session not in self._sessions:
            raise CommandError(f"there is no session {session!r}; /sessions lists them")
        self._admit(session)
        return session

    def _admit(self, session: str) -> None:
        if why_not := self._refusal(session):
            raise CommandError(why_not)


async def run_chat(
    model: Model,
    screen: Screen,
    lines: Lines,
    *,
    session: str = "me",
    limits: Limits | None = None,
    read_limits: Callable[[], Limits] | None = None,
    turn_timeout: float = 300.0,
    grace: float = 30.0,
) -> int:
    """Chat until the lines end or a signal ends the chat. Return the exit code.

    Args:
      limits: the first limits of the lanes.
      read_limits: returns new limits at SIGHUP; may raise `LimitsError`.
    """
    limits = Limits() if limits is None else limits

    async def work(lanes: Lanes, _: trio.Nursery) -> None:
        tell = teller(screen)
        approvals = Approvals(tell)
        agent = Agent(lanes, model, bundled_tools(), tell, approvals)
        sessions = Sessions(lanes, agent, tell, turn_timeout=turn_timeout)
        try:
            await Chat(lanes, sessions, approvals, screen, session=session).talk(lines)
        finally:
            approvals.close()  # no person is left to allow a call

    def hang_up(lanes: Lanes) -> None:
        assert read_limits is not None
        screen.say(reload(lanes, read_limits))

    return await run_with_lanes(
        work,
        limits.lanes(),
        limits.groups(),
        say=screen.say,
        grace=grace,
        instruments=[FailuresTold()],
        on_hangup=None if read_limits is None else hang_up,
    )
