"""The source of the lines: a prompt on a terminal, or standard input."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol

import trio

from .commands import MAX_LINE, USAGE, CommandError
from .screen import Screen

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession

MAX_BYTES: Final = 4 * MAX_LINE  # of a line in UTF-8


class Lines(Protocol):
    """A source of lines that are typed, or were typed before."""

    async def read(self, prompt: str) -> str | None:
        """Return the next line; None at the end.

        Raises:
          CommandError: the input is not a line of text; the next call continues after it.
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
            # lock that the interpreter needs at its exit.
            data = await trio.to_thread.run_sync(_read, self._fd, abandon_on_cancel=True)
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
    """A prompt with history and completion, in a thread, while answers are shown above it.

    prompt_toolkit has a function for lines above the prompt. It leaves raw mode for a moment, in
    which keys such as Ctrl-D are lost, and it may lose lines when the prompt is about to end. Here,
    the code that ends a prompt shows the remaining lines.
    """

    def __init__(self, session: PromptSession[str]) -> None:
        self._session: Final = session
        self._leaving = False
        self._lock: Final = threading.Lock()
        self._prompting = False
        self._to_show: list[str] = []

    def show(self, line: str) -> None:
        """Show a line, above the prompt if there is a prompt."""
        with self._lock:
            self._to_show.append(line)
            if not self._prompting:
                self._write()
            elif len(self._to_show) == 1:  # otherwise a redraw is scheduled already
                self._call_in_prompt(self._show_above)

    def redraw(self) -> None:
        """Redraw: the lines below the prompt have changed."""
        if not self._session.app.invalidated:
            self._call_in_prompt(self._session.app.invalidate)

    async def read(self, prompt: str) -> str | None:
        self._leaving = False
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._leave_when_cancelled)
            # Not abandoned: the thread restores the terminal before it ends.
            line = await trio.to_thread.run_sync(self._prompt, prompt)
            nursery.cancel_scope.cancel()
        if line is KeyboardInterrupt:
            # At a prompt, Ctrl-C is a key, not a signal. Raise the signal instead: its handler
            # (see shutdown.py) cancels this task, and does the rest.
            signal.raise_signal(signal.SIGINT)
            await trio.sleep_forever()
        assert line is None or isinstance(line, str)
        return line

    def _prompt(self, prompt: str) -> str | type[KeyboardInterrupt] | None:
        with self._lock:
            self._prompting = True
        try:
            line = self._session.prompt(prompt, pre_run=self._begin)
            return line.encode(errors="replace").decode()  # no lone surrogates from invalid UTF-8
        except (EOFError, OSError):  # or the terminal was closed
            return None
        except KeyboardInterrupt:
            return KeyboardInterrupt
        finally:
            with self._lock:
                self._prompting = False
                self._write()

    async def _leave_when_cancelled(self) -> None:
        try:
            await trio.sleep_forever()
        finally:
            self._leaving = True
            self._call_in_prompt(self._leave)

    def _call_in_prompt(self, call: Callable[[], None]) -> None:
        """Run `_begin` in the event loop of the prompt, if there is a loop."""
        loop = self._session.app.loop
        if loop is not None:
            try:
                loop.call_soon_threadsafe(call)
            except RuntimeError:
                pass  # the prompt has ended, and its loop is closed

    # ---- in the thread of the prompt

    def _begin(self) -> None:
        """Do the work that was requested before the loop began; nothing is drawn yet."""
        with self._lock:
            self._write()
        if self._leaving:
            self._leave()

    def _leave(self) -> None:
        if self._is_open():
            self._session.app.exit(exception=EOFError)

    def _show_above(self) -> None:
        if self._is_open():
            app = self._session.app
            app.renderer.erase()
            with self._lock:
                self._write()
            app.renderer.request_absolute_cursor_position()
            app.renderer.render(app, app.layout)

    def _is_open(self) -> bool:
        future = self._session.app.future
        return future is not None and not future.done()

    def _write(self) -> None:
        """Write the pending lines at the cursor. The caller holds the lock."""
        if not self._to_show:
            return
        output = self._session.app.output
        output.enable_autowrap()
        output.write_raw("".join(f"{line}\n" for line in self._to_show))
        self._to_show.clear()
        try:
            output.flush()
        except OSError:
            pass  # the terminal was closed: the prompt gets the error, too


@contextmanager
def open_terminal() -> Iterator[tuple[Screen, Lines]]:
    """Open the screen, and the source of the lines that are typed below it.

    If input and output are terminals, there is a prompt; otherwise plain lines are used.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or os.environ.get("TERM") == "dumb":
        yield plain_screen(), StreamLines(sys.stdin.fileno())
        return

    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import WordCompleter
    from prompt_toolkit.patch_stdout import patch_stdout

    session: PromptSession[str] = PromptSession(
        completer=WordCompleter(list(USAGE), sentence=True),
        complete_while_typing=False,
        bottom_toolbar=lambda: screen.unfinished(width=os.get_terminal_size().columns - 1) or None,
    )
    session.app.min_redraw_interval = 0.1
    lines = PromptLines(session)
    screen = plain_screen(lines.show)
    screen.on_change = lines.redraw
    try:
        with patch_stdout(raw=True):  # for output of other code, such as warnings
            yield screen, lines
    finally:
        try:
            sys.stdout.flush()
        except OSError:  # the terminal was closed
            _discard_output()


def plain_screen(write: Callable[[str], None] | None = None) -> Screen:
    """Return a screen on standard output, with its width and colors."""
    write = _write if write is None else write
    if not sys.stdout.isatty():
        return Screen(write)
    width = os.get_terminal_size(sys.stdout.fileno()).columns or 80
    return Screen(write, width=width, colors="NO_COLOR" not in os.environ)


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, 65536)
    except OSError:  # the terminal was closed
        return b""


def _write(line: str) -> None:
    try:
        print(line, flush=True)
    except OSError:  # the reader or the terminal is closed: treat it as Ctrl-C
        _discard_output()
        signal.raise_signal(signal.SIGTERM)


def _discard_output() -> None:
    """Let what is written to standard output go nowhere: else Python exits with 120."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
