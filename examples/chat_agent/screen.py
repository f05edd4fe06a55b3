"""The screen: whole lines, each with the name of its session in front.

Answers of many sessions arrive word by word at the same time. Words of different sessions must not
mix, so a line is kept until it is complete, or as long as the screen is wide.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final
from zlib import crc32

from .events import Asked, Ended, Event, Noted, Piece, Returned, Steered

COLORS: Final = (36, 33, 32, 35, 34, 31)
# A model, or a user, must not move the cursor: everything that is no text is shown as such.
CONTROL: Final = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


class Screen:
    """Lines of several sessions, for a terminal or a pipe.

    Args:
      write: writes one whole line; it gets the line without its end.
      width: columns of the terminal; None: lines are never broken.
      colors: whether names may be coloured.
    """

    def __init__(
        self, write: Callable[[str], None], *, width: int | None = None, colors: bool = False
    ) -> None:
        self._write: Final = write
        self._width: Final = width
        self._colors: Final = colors
        self._unfinished: Final[dict[str, str]] = {}  # {session: the incomplete line}
        self.on_change: Callable[[], None] = lambda: None

    def stream(self, session: str, piece: str) -> None:
        """Add a piece of an answer, of any length."""
        text = self._unfinished.get(session, "") + piece.replace("\r\n", "\n")
        *complete, text = text.split("\n")
        for line in complete:
            self._answer(session, line)
        room = self._room(session)
        while len(text.rstrip()) > room:
            line, text = _break(text, room)
            self._answer(session, line)
        self._unfinished[session] = text
        self.on_change()

    def end(self, session: str) -> None:
        """End the answer, and show its rest."""
        text = self._unfinished.pop(session, "")
        if text.strip():
            self._answer(session, text)
        self.on_change()

    def note(self, session: str, text: str) -> None:
        """Show a note about a session, in order with the lines of its answer."""
        self.end(session)
        self._write(f"{self._name(session)} * {_clean(text)}")

    def say(self, text: str) -> None:
        """Show lines that belong to no session."""
        for line in text.split("\n"):
            self._write(_clean(line))

    def unfinished(self, width: int) -> str:
        """Return the ends of the incomplete lines, together at most `width` wide."""
        # A copy, because a prompt calls this in its own thread.
        unfinished = self._unfinished.copy()
        texts = [(name, _clean(text)) for name, text in unfinished.items() if text.strip()]
        if not texts:
            return ""
        each = max(width // len(texts) - 3, 12)
        return "   ".join(
            f"{name}: {text[-max(each - len(name) - 2, 6) :].strip()}" for name, text in texts
        )[:width]

    def _answer(self, session: str, line: str) -> None:
        self._write(f"{self._name(session)} | {_clean(line.rstrip())}")

    def _name(self, session: str) -> str:
        color = COLORS[crc32(session.encode()) % len(COLORS)]  # always the same, without a table
        padded = session if self._width is None else f"{session:>6}"
        return f"\x1b[{color}m{padded}\x1b[0m" if self._colors else padded

    def _room(self, session: str) -> float:
        if self._width is None:
            return float("inf")
        return max(self._width - max(len(session), 6) - 4, 20)


def teller(screen: Screen) -> Callable[[Event], None]:
    """Return a listener that shows the events of sessions on ``screen``."""

    def tell(event: Event) -> None:
        match event:
            case Piece(session, text):
                screen.stream(session, text)
            case Steered(session, texts):
                for text in texts:
                    screen.note(session, f"takes in: {shorten(text, 60)}")
            case Returned(session, call, text):
                screen.note(session, f"{call.name}: {shorten(text, 60)}")
            case Asked(session, calls):
                for call in calls:
                    screen.note(session, f"asks for {call.name} {shorten(call.arguments, 100)}")
                screen.note(session, f"say /approve {session} or /deny {session}")
            case Noted(session, text):
                screen.note(session, text)
            case Ended(session, ending):
                screen.end(session)
                if ending:
                    screen.note(session, ending)
            case _:  # the question was typed here, and is above
                pass

    return tell


def shorten(text: str, length: int) -> str:
    """Return one line of at most `length` characters, with a mark at the omitted part."""
    text = " ".join(text.split())
    return text if len(text) <= length else text[: length - 1] + "…"


def _break(text: str, room: float) -> tuple[str, str]:
    """Return a line of at most `room` characters, and the rest."""
    place = text.rfind(" ", 1, int(room) + 1)
    if place < 1:  # one very long word
        return text[: int(room)], text[int(room) :]
    return text[:place], text[place + 1 :]


def _clean(text: str) -> str:
    return CONTROL.sub(lambda match: " " if match[0] == "\t" else "�", text)
