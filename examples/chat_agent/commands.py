"""The commands of the chat. This module only parses lines: it does not use the lanes."""

from __future__ import annotations

import re
from typing import Final

import attrs

from trio_lanes.agents import WhenBusy

MAX_LINE: Final = 10_000  # characters
MAX_LIMIT: Final = 1_000
TOUR: Final = tuple(map(str, range(1, 11)))  # the cards
NAME: Final = re.compile(r"[\w.@+-]{1,40}")

HELP: Final = """\
text                      post the text in the current session
/as NAME TEXT             post the text as NAME, and stay in the current session
/as NAME                  make NAME the current session
/sessions                 lanes and sessions, with running and waiting turns
/why [NAME]               the reasons why the turns of a session wait
/queue MODE [NAME]        set the mode of messages during an active turn: steer, followup,
                          collect, interrupt, rollback, reject or replace
/stop [NAME]              stop the active turn of a session
/hold [NAME]              stop the active turn, and hold the waiting messages until /go
/go [NAME]                answer the messages that are held
/clear [NAME]             cancel the waiting messages of a session
/abort [NAME]             /clear, then /stop
/approve [NAME]           allow the tool calls that a turn asks for
/deny [NAME]              deny the tool calls that a turn asks for
/limit LANE NUMBER        set the number of jobs that a lane runs at once
/pause [LANE or NAME]     start no jobs there until /resume (no name: all lanes)
/resume [LANE or NAME]    end a pause (no name: all pauses)
/tour [NUMBER]            play the next card of the tour, or a card by its number
/help                     show this list
/quit                     answer all messages, then end
Begin with // to post a text that begins with a slash."""


class CommandError(ValueError):
    """The line is not a valid command; the text is the reason, in one line. Nothing has changed."""


@attrs.frozen
class Say:
    text: str
    session: str | None = None  # None: the current one


@attrs.frozen
class SwitchTo:
    session: str


@attrs.frozen
class ShowSessions:
    pass


@attrs.frozen
class Why:
    session: str | None


@attrs.frozen
class Stop:
    session: str | None


@attrs.frozen
class Hold:
    session: str | None


@attrs.frozen
class Go:
    session: str | None


@attrs.frozen
class Clear:
    session: str | None


@attrs.frozen
class Abort:
    session: str | None


@attrs.frozen
class Queue:
    mode: WhenBusy
    session: str | None


@attrs.frozen
class Approve:
    session: str | None


@attrs.frozen
class Deny:
    session: str | None


@attrs.frozen
class Limit:
    lane: str
    limit: int


@attrs.frozen
class Pause:
    name: str | None


@attrs.frozen
class Resume:
    name: str | None


@attrs.frozen
class Tour:
    number: int | None  # None: the next


@attrs.frozen
class Help:
    pass


@attrs.frozen
class Quit:
    pass


OfSession = Why | Stop | Hold | Go | Clear | Abort | Approve | Deny
Command = (
    Say | SwitchTo | ShowSessions | OfSession | Queue | Limit | Pause | Resume | Tour | Help | Quit
)

# Commands with the name of a session, or without a name.
OF_SESSION: Final[dict[str, type[OfSession]]] = {
    "/why": Why,
    "/stop": Stop,
    "/hold": Hold,
    "/go": Go,
    "/clear": Clear,
    "/abort": Abort,
    "/approve": Approve,
    "/deny": Deny,
}

USAGE: Final = {
    "/as": "/as NAME [TEXT]",
    "/sessions": "/sessions",
    **{word: f"{word} [NAME]" for word in OF_SESSION},
    "/queue": f"/queue {'|'.join(WhenBusy)} [NAME]",
    "/limit": "/limit LANE NUMBER",
    "/pause": "/pause [LANE or NAME]",
    "/resume": "/resume [LANE or NAME]",
    "/tour": "/tour [NUMBER from 1 to 10]",
    "/help": "/help",
    "/quit": "/quit",
}


def parse(line: str) -> Command | None:
    """Return the command of a line; None for a blank line.

    Raises:
      CommandError: the line is too long, or not a command although it begins with a slash.
    """
    line = line.strip()
    if not line:
        return None
    if len(line) > MAX_LINE:
        raise CommandError(
            f"a line may have at most {MAX_LINE:,} characters; this has {len(line):,}"
        )
    if not line.startswith("/"):
        return Say(line)
    if line.startswith("//"):
        return Say(line[1:])
    word, *rest = line.split(maxsplit=1)
    return _parse_command(word, rest[0].split(maxsplit=1) if rest else [])


def _parse_command(word: str, arguments: list[str]) -> Command:
    """Parse `arguments`: the first word after the command, if there is one, and the rest."""
    match word, arguments:
        case "/as", [name, text]:
            return Say(text, _name(name))
        case "/as", [name]:
            return SwitchTo(_name(name))
        case "/sessions", []:
            return ShowSessions()
        case _, [] | [_] if word in OF_SESSION:
            return OF_SESSION[word](_optional_name(arguments))
        case "/queue", [mode, *name] if mode in list(WhenBusy):
            return Queue(WhenBusy(mode), _optional_name(name))
        case "/limit", [lane, number]:
            return Limit(_name(lane), _limit(number))
        case "/pause", [] | [_]:
            return Pause(_optional_name(arguments))
        case "/resume", [] | [_]:
            return Resume(_optional_name(arguments))
        case "/tour", []:
            return Tour(None)
        case "/tour", [number] if number in TOUR:
            return Tour(int(number))
        case "/help", []:
            return Help()
        case "/quit", []:
            return Quit()
    if word in USAGE:
        raise CommandError(f"usage: {USAGE[word]}")
    raise CommandError(f"there is no command {word[:40]!r}; /help lists them")


def _name(text: str) -> str:
    if not NAME.fullmatch(text):
        raise CommandError(
            f"{text[:40]!r} is not a name: 1 to 40 letters, digits or any of . _ @ + -"
        )
    return text


def _optional_name(arguments: list[str]) -> str | None:
    return _name(arguments[0]) if arguments else None


def _limit(text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) <= 9 and 1 <= int(text) <= MAX_LIMIT:
        return int(text)
    raise CommandError(
        f"a limit is a whole number from 1 to {MAX_LIMIT:,}, not {text[:40]!r}; /pause stops a lane"
    )
