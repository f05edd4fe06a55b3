"""What a line that somebody typed means. Parsing only: nothing here knows the lanes."""

from __future__ import annotations

import re
from typing import Final

import attrs

MAX_LINE: Final = 10_000  # characters
MAX_LIMIT: Final = 1_000
NAME: Final = re.compile(r"[\w.@+-]{1,40}")

HELP: Final = """\
text                      say it in the current session
/as NAME TEXT             say it as NAME, and stay in the current session
/as NAME                  make NAME the current session
/sessions                 lanes and sessions: what runs and what waits
/why [NAME]               what a session's turns wait for
/stop [NAME]              stop the turn that runs in a session
/clear [NAME]             drop what waits in a session
/limit LANE NUMBER        how many a lane may run at once
/pause [LANE or NAME]     start nothing there until /resume (no name: all lanes)
/resume [LANE or NAME]    go on (no name: everything that is paused)
/help                     this
/quit                     finish what was asked, and leave
Begin with // to say something that begins with a slash."""


class CommandError(ValueError):
    """The line cannot be obeyed; the text says why, in one line, and nothing has changed."""


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
class Clear:
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
class Help:
    pass


@attrs.frozen
class Quit:
    pass


Command = Say | SwitchTo | ShowSessions | Why | Stop | Clear | Limit | Pause | Resume | Help | Quit

USAGE: Final = {
    "/as": "/as NAME [TEXT]",
    "/sessions": "/sessions",
    "/why": "/why [NAME]",
    "/stop": "/stop [NAME]",
    "/clear": "/clear [NAME]",
    "/limit": "/limit LANE NUMBER",
    "/pause": "/pause [LANE or NAME]",
    "/resume": "/resume [LANE or NAME]",
    "/help": "/help",
    "/quit": "/quit",
}


def parse(line: str) -> Command | None:
    """The command of a line; None for a blank one.

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
    """`arguments` are the first word behind the command, if there is one, and the rest."""
    match word, arguments:
        case "/as", [name, text]:
            return Say(text, _name(name))
        case "/as", [name]:
            return SwitchTo(_name(name))
        case "/sessions", []:
            return ShowSessions()
        case "/why", [] | [_]:
            return Why(_optional_name(arguments))
        case "/stop", [] | [_]:
            return Stop(_optional_name(arguments))
        case "/clear", [] | [_]:
            return Clear(_optional_name(arguments))
        case "/limit", [lane, number]:
            return Limit(_name(lane), _limit(number))
        case "/pause", [] | [_]:
            return Pause(_optional_name(arguments))
        case "/resume", [] | [_]:
            return Resume(_optional_name(arguments))
        case "/help", []:
            return Help()
        case "/quit", []:
            return Quit()
    if word in USAGE:
        raise CommandError(f"the command is used so: {USAGE[word]}")
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
