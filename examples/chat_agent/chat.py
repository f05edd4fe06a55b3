"""The chat: what each command does to the lanes, and how a turn's end is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from trio_lanes import (
    Job,
    JobState,
    JobTimeoutError,
    LaneError,
    LaneInstrument,
    Lanes,
)

from .agent import TURNS, Agent, cost_of
from .commands import (
    HELP,
    Clear,
    Command,
    CommandError,
    Help,
    Limit,
    Pause,
    Quit,
    Resume,
    Say,
    ShowSessions,
    Stop,
    SwitchTo,
    Why,
    parse,
)
from .conversations import Conversations
from .limits import MAX_WAITING, Limits, reload
from .model import Message, Model, ModelError
from .overview import LANE_HEADER, SESSION_HEADER, SessionRow, lane_rows, session_rows, table
from .screen import Screen
from .shutdown import resume_all, run_with_lanes
from .terminal import Lines
from .tools import bundled_tools
from .why import why


class Chat:
    """Somebody at a keyboard who may speak in any session. All of it is synchronous but `talk`.

    Args:
      session: where plain text goes until `/as NAME` says otherwise.
      turn_timeout: seconds that a turn may run.
    """

    def __init__(
        self, lanes: Lanes, agent: Agent, screen: Screen, *, session: str, turn_timeout: float
    ) -> None:
        self.session = session
        self._lanes: Final = lanes
        self._agent: Final = agent
        self._screen: Final = screen
        self._turn_timeout: Final = turn_timeout
        self._sessions: Final = {session}  # all that were ever named
        self._paused: Final[set[str]] = set()  # lanes and sessions

    async def talk(self, lines: Lines) -> None:
        """Obey lines until there are no more; then let what was paused go on."""
        going_on = True
        while going_on:
            try:
                line = await lines.read(f"{self.session}> ")
                going_on = line is not None and self.obey(line)
            except CommandError as error:
                self._refuse(error)
            if not self._paused:  # else there may never be room, and only a line can help
                await self._lanes.wait_room(MAX_WAITING, TURNS)
        if self._paused:
            self._screen.say(f"resuming {', '.join(sorted(self._paused))}: nobody else can now")
            self._resume(None)

    def obey(self, line: str) -> bool:
        """Do what the line says, or say in one line why not. False: it was the last."""
        try:
            command = parse(line)
            if command is not None:
                self._do(command)
        except (CommandError, LaneError) as error:
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
                self._sessions.add(session)
                self.session = session
                self._screen.say(f"you are {session} now")
            case ShowSessions():
                self._show_sessions()
            case Why(session):
                self._screen.say(why(self._lanes, self._known(session)))
            case Stop(session):
                self._stop(self._known(session))
            case Clear(session):
                key = self._known(session)
                count = self._lanes.session(key).clear(reason="/clear")
                self._screen.say(f"cleared {count} waiting in {key}")
            case Limit(lane, limit):
                self._lanes.lane(lane).concurrency = limit
                self._screen.say(f"{lane} runs at most {limit} at once")
            case Pause(name):
                self._pause(name)
            case Resume(name):
                self._resume(name)
            case Help():
                self._screen.say(HELP)
            case Quit():
                pass

    def _say(self, text: str, session: str) -> None:
        # Synchronous, so a message has its place in line before the next one is read. Nobody
        # waits for the handle: `Endings` is told how the job ended.
        self._lanes.submit_nowait(
            self._agent.turn,
            session,
            text,
            session=session,
            lane=TURNS,
            cost=cost_of([Message("user", text)]),
            timeout=self._turn_timeout,
            name=f"turn of {session}",
            meta=text,
        )
        self._sessions.add(session)

    def _stop(self, session: str) -> None:
        for job in self._lanes.jobs():
            if job.session == session and job.state is JobState.RUNNING:
                job.cancel("/stop")
                return
        raise CommandError(f"nothing runs in {session}")

    def _pause(self, name: str | None) -> None:
        if name is None:
            self._lanes.pause()
            self._paused.update(self._lanes.statistics().lanes)
        elif self._is_lane(name):
            self._lanes.lane(name).pause()
            self._paused.add(name)
        else:
            self._lanes.session(self._known(name)).pause()
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
            self._lanes.session(self._known(name)).resume()
            self._paused.discard(name)
        self._screen.say(f"resumed {name or 'everything'}")

    def _show_sessions(self) -> None:
        busy = session_rows(self._lanes)
        idle = self._sessions - {row.key for row in busy}
        rows = [*busy, *map(SessionRow, sorted(idle))]
        self._screen.say(table(LANE_HEADER, lane_rows(self._lanes)))
        self._screen.say(table(SESSION_HEADER, [row.cells(self.session) for row in rows]))

    def _is_lane(self, name: str) -> bool:
        return name in self._lanes.statistics().lanes

    def _known(self, session: str | None) -> str:
        if session is None:
            return self.session
        if session not in self._sessions:
            raise CommandError(f"there is no session {session!r}; /sessions lists them")
        return session


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
    """Chat until the lines end or a signal says so. Returns the exit code.

    Args:
      limits: what the lanes begin with.
      read_limits: called at SIGHUP for what they go on with; may raise `LimitsError`.
    """
    limits = Limits() if limits is None else limits

    async def work(lanes: Lanes) -> None:
        agent = Agent(lanes, model, bundled_tools(), Conversations(), screen)
        chat = Chat(lanes, agent, screen, session=session, turn_timeout=turn_timeout)
        await chat.talk(lines)

    def hang_up(lanes: Lanes) -> None:
        assert read_limits is not None
        screen.say(reload(lanes, read_limits))

    return await run_with_lanes(
        work,
        limits.lanes(),
        limits.groups(),
        say=screen.say,
        grace=grace,
        instruments=[Endings(screen)],
        on_hangup=None if read_limits is None else hang_up,
    )


class Endings(LaneInstrument):
    """Tells the user of every turn that did not end with its answer.

    An instrument sees all jobs, so that nobody needs a task for each of them just to find out.
    """

    def __init__(self, screen: Screen) -> None:
        self._screen: Final = screen

    def job_finished(self, job: Job[Any]) -> None:
        # What never started was cleared, or given up with all else: that has its own line.
        if job.lane != TURNS or job.session is None or job.started_at is None:
            return
        error = job.exception  # looked at, so the library need not log it
        if error is None:
            return
        if job.state is JobState.CANCELLED:
            ending = "stopped"
        elif isinstance(error, JobTimeoutError):
            ending = f"stopped after {error.seconds:g} s"
        elif isinstance(error, ModelError):
            ending = f"failed: {error}"
        else:
            ending = f"failed: {type(error).__name__}: {error}"
        self._screen.note(job.session, ending)
