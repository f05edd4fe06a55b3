"""Ctrl-C under make: real processes in a real terminal, with a stand-in for the demo."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.real_processes

PATIENCE = 300  # seconds, on a machine that has much else to do
FOREGROUND = Path(__file__).parents[2] / "tools" / "foreground.py"

# Says "ready", drains at the first SIGINT (which takes until a line is typed), and is cancelled by
# the second. It does not `print`: a handler must not, in the midst of another `print`, and the
# reader of the first may send the signal before that has returned.
DEMO = """
import os, signal, sys

def say(text):
    os.write(1, text + b"\\n")

def cancel(signum, frame):
    say(b"cancelled")
    sys.exit(130)

def drain(signum, frame):
    signal.signal(signal.SIGINT, cancel)
    say(b"draining")

signal.signal(signal.SIGINT, drain)
say(b"ready")
say(b"got " + os.read(0, 1000).strip())
sys.exit(int(sys.argv[1]))
"""


class Terminal:
    """`make demo` as the foreground job of a terminal of its own."""

    def __init__(self, folder: Path, exit_code: int) -> None:
        (folder / "demo.py").write_text(DEMO)
        (folder / "Makefile").write_text(
            f"demo:\n\t@exec {sys.executable} {FOREGROUND} {sys.executable} demo.py {exit_code}\n"
        )
        self._keyboard, line = os.openpty()
        self._seen = b""
        # The leader of a new session that opens a terminal gets it as its own.
        self.make = subprocess.Popen(
            ["/bin/sh", "-c", ': <"$0"; exec make demo', os.ttyname(line)],
            stdin=line,
            stdout=line,
            stderr=line,
            cwd=folder,
            env={k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL")},
            start_new_session=True,
        )
        os.close(line)

    def see(self, text: bytes) -> None:
        """Read until the text has come; what comes behind it is seen next."""
        while text not in self._seen:
            ready, _, _ = select.select([self._keyboard], [], [], PATIENCE)
            assert ready, f"{text!r} has not come: {self._seen!r}"
            try:
                self._seen += os.read(self._keyboard, 1000)
            except OSError:  # the last process has closed the terminal
                raise AssertionError(f"{text!r} has not come: {self._seen!r}") from None
        self._seen = self._seen.partition(text)[2]

    def type(self, keys: bytes) -> None:
        os.write(self._keyboard, keys)

    def close(self) -> None:
        os.close(self._keyboard)
        self.make.kill()
        self.make.wait()


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    opened: list[Terminal] = []
    yield opened
    for terminal in opened:
        terminal.close()


def test_a_demo_that_drains_after_ctrl_c_leaves_make_with_0(
    tmp_path: Path, terminals: list[Terminal]
) -> None:
    terminals.append(t := Terminal(tmp_path, exit_code=0))
    t.see(b"ready")
    t.type(b"\x03")
    t.see(b"draining")
    t.type(b"last words\n")
    t.see(b"got last words")
    assert t.make.wait(PATIENCE) == 0


def test_a_second_ctrl_c_ends_make_as_an_interrupt_once_the_demo_has_cleaned_up(
    tmp_path: Path, terminals: list[Terminal]
) -> None:
    terminals.append(t := Terminal(tmp_path, exit_code=0))
    t.see(b"ready")
    t.type(b"\x03")
    t.see(b"draining")
    t.type(b"\x03")
    t.see(b"cancelled")
    assert t.make.wait(PATIENCE) == -signal.SIGINT  # 130 in a shell


def test_a_demo_that_fails_is_a_failure_of_make(tmp_path: Path, terminals: list[Terminal]) -> None:
    terminals.append(t := Terminal(tmp_path, exit_code=7))
    t.see(b"ready")
    t.type(b"hello\n")
    t.see(b"Error 7")
    assert t.make.wait(PATIENCE) == 2


def test_an_interrupt_sent_to_the_group_of_make_still_reaches_the_demo(
    tmp_path: Path, terminals: list[Terminal]
) -> None:
    terminals.append(t := Terminal(tmp_path, exit_code=0))
    t.see(b"ready")
    os.killpg(t.make.pid, signal.SIGINT)
    t.see(b"draining")
    t.type(b"last words\n")
    t.see(b"got last words")
    assert t.make.wait(PATIENCE) == -signal.SIGINT
