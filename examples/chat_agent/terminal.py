"""Where the lines come from: a prompt on a terminal, else standard input."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol

import trio

from .commands import MAX_LINE, USAGE, CommandError
from .screen import Screen

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession

MAX_BYTES: Final = 4 * MAX_LINE  # of a line in UTF-8


class Lines(Protocol):
    """Lines that somebody types, or typed before."""

    async def read(self, prompt: str) -> str | None:
        """The next line; None when there are no more.

        Raises:
          CommandError: what came is not a line of text; the next call goes on behind it.
        """


class StreamLines:
    """Lines from a pipe, a file, or a terminal without a prompt."""

    def __init__(self, fd: int) -> None:
        self._fd: Final = fd
        self._buffer = bytearray()
        self._ended = False

    async def read(self, prompt: str) -> str | None:
        too_long = False
        while (end := self._buffer.find(b"\n")) < 0 and not self._ended:
            if len(self._buffer) > MAX_BYTES:
                too_long = True
                self._buffer.clear()
            # `os.read`, because a thread that is abandoned inside `sys.stdin.readline` holds a
            # lock that the interpreter wants when it ends.
            data = await trio.to_thread.run_sync(os.read, self._fd, 65536, abandon_on_cancel=True)
            self._buffer += data
            self._ended = not data
        if end < 0 and not self._buffer and not too_long:
            return None
        end = len(self._buffer) if end < 0 else end
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        if too_long or len(line) > MAX_BYTES:
            raise CommandError(f"a line may have at most {MAX_LINE:,} characters")
        try:
            return line.decode()
        except UnicodeDecodeError:
            raise CommandError("the line is not UTF-8 text") from None


class PromptLines:
    """A prompt with history and completion, in a thread, while answers are shown above it."""

    def __init__(self, session: PromptSession[str]) -> None:
        self._session: Final = session
        self._leaving = False

    async def read(self, prompt: str) -> str | None:
        self._leaving = False
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._leave_when_cancelled)
            # Not abandoned: the thread puts the terminal back into order before it ends.
            line = await trio.to_thread.run_sync(self._prompt, prompt)
            nursery.cancel_scope.cancel()
        if line is KeyboardInterrupt:
            # At a prompt Ctrl-C is a key, not a signal. Make it the signal that it stands for: its
            # one owner (see shutdown.py) then cancels us, and decides about everything else.
            signal.raise_signal(signal.SIGINT)
            await trio.sleep_forever()
        assert line is None or isinstance(line, str)
        return line

    def _prompt(self, prompt: str) -> str | type[KeyboardInterrupt] | None:
        try:
            line = self._session.prompt(prompt, pre_run=self._leave_if_late)
            return line.encode(errors="replace").decode()  # no halves of bad UTF-8
        except EOFError:
            return None
        except KeyboardInterrupt:
            return KeyboardInterrupt

    async def _leave_when_cancelled(self) -> None:
        try:
            await trio.sleep_forever()
        finally:
            self._leaving = True
            loop = self._session.app.loop
            if loop is not None:
                try:
                    loop.call_soon_threadsafe(self._leave)
                except RuntimeError:
                    pass  # the prompt has ended, and its loop is closed

    def _leave_if_late(self) -> None:
        if self._leaving:
            self._leave()

    def _leave(self) -> None:
        app = self._session.app
        if app.future is not None and not app.future.done():
            app.exit(exception=EOFError)


@contextmanager
def open_terminal() -> Iterator[tuple[Screen, Lines]]:
    """The screen, and the lines that are typed below it.

    With a terminal on both sides there is a prompt; else lines are read and written as they are.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or os.environ.get("TERM") == "dumb":
        yield plain_screen(), StreamLines(sys.stdin.fileno())
        return

    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import WordCompleter
    from prompt_toolkit.patch_stdout import patch_stdout

    screen = plain_screen()
    session: PromptSession[str] = PromptSession(
        completer=WordCompleter(list(USAGE), sentence=True),
        complete_while_typing=False,
        bottom_toolbar=lambda: screen.unfinished(width=os.get_terminal_size().columns - 1) or None,
    )
    session.app.min_redraw_interval = 0.1
    screen.on_change = session.app.invalidate
    with patch_stdout(raw=True):
        yield screen, PromptLines(session)


def plain_screen() -> Screen:
    """A screen on standard output, with what that can show."""
    if not sys.stdout.isatty():
        return Screen(_write)
    width = os.get_terminal_size(sys.stdout.fileno()).columns or 80
    return Screen(_write, width=width, colors="NO_COLOR" not in os.environ)


def _write(line: str) -> None:
    # `sys.stdout` is looked up here and now: while there is a prompt, it writes above it.
    try:
        print(line, flush=True)
    except BrokenPipeError:  # nobody reads any more: as good as a Ctrl-C
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        signal.raise_signal(signal.SIGTERM)
