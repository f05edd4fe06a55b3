"""A service under a supervisor, as the docs show it: real processes, real signals."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from tests.support.programs import HOWTO, Program, running

pytestmark = pytest.mark.real_processes

# On a clock that stands: no grace ends, so whatever ends, ends by itself.
STANDING = """
import logging, sys, trio, trio.testing
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import service
logging.basicConfig(level=logging.INFO, format="%(message)s")
sys.exit(trio.run(service.main, Path(sys.argv[2]), clock=trio.testing.MockClock()))
"""


def write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


@asynccontextmanager
async def service(limits: Path) -> AsyncIterator[Program]:
    write(limits, "[lanes]\nmain = 1\n")
    async with running("-c", STANDING, HOWTO, limits) as program:
        yield program


def together(*commands: str) -> str:
    """These as one line: when the first has started, the service has taken all of them."""
    return "\n".join(commands)


class Gate:
    """A command that lasts until it is let through."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = path

    def command(self) -> str:
        """Waits, without polling, and then says what it was told."""
        return f"read told < '{self.path}' && echo told to $told"

    async def open(self) -> None:
        """Let it through: it runs, or this waits until it does."""
        async with await trio.open_file(self.path, "w") as gate:
            await gate.write("go on\n")


@pytest.fixture
def limits(tmp_path: Path) -> Path:
    return tmp_path / "limits.toml"


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path / "gate")


@pytest.fixture
def gates(tmp_path: Path) -> list[Gate]:
    return [Gate(tmp_path / f"gate {number}") for number in range(3)]


@pytest.mark.parametrize("how", ["SIGTERM for the process alone", "Ctrl-C for its whole group"])
async def test_a_drain_lets_child_processes_end(how: str, limits: Path, gate: Gate) -> None:
    async with service(limits) as program:
        await program.tell(together(gate.command(), "exit 3"))
        await program.line("started:")
        if how == "SIGTERM for the process alone":
            program.process.terminate()
        else:
            os.killpg(program.process.pid, signal.SIGINT)
        await program.line("draining, with 20 s of grace")
        await program.tell("echo too late")
        await program.line("refused: echo too late")
        await gate.open()
        await program.line("told to go on")
        await program.line("done:")
        await program.line("failed with 3: exit 3")
        await program.line("drained: DrainReport(finished=2, cancelled=0, abandoned=0)")
        assert await program.exit_code() == 0


async def test_a_second_signal_terminates_child_processes(limits: Path) -> None:
    async with service(limits) as program:
        trap = "trap 'echo terminated; exit 3' TERM; (echo set; exec sleep 1000) & wait"
        await program.tell(together(trap, "echo never started"))
        await program.until("\nset\n")
        program.process.terminate()
        await program.line("SIGTERM: draining")
        program.process.send_signal(signal.SIGINT)
        await program.until("SIGINT: cancelling")
        await program.until("\nterminated\n")
        await program.line("cancelled:")
        await program.line("drained: DrainReport(finished=0, cancelled=2, abandoned=0)")
        assert await program.exit_code() == 1
        assert "started: echo never started" not in program.text


async def test_sighup_reads_the_limits_again_and_a_bad_file_changes_nothing(
    limits: Path, gates: list[Gate]
) -> None:
    async with service(limits) as program:
        await program.tell(together(*(gate.command() for gate in gates)))
        await program.line("started:")
        write(limits, "[lanes]\nmain = 2\n")
        program.process.send_signal(signal.SIGHUP)
        await program.line("SIGHUP: reloaded")
        await program.line("started:")
        for bad in ("[lanes]\nmain = -1", "nonsense", "[lanes]\nother = 1\nmain = 'x'"):
            write(limits, bad)
            program.process.send_signal(signal.SIGHUP)
            await program.line("SIGHUP: the reload failed, and nothing has changed")
        program.process.terminate()
        await program.line("draining")
        for gate in gates:
            await gate.open()
            await program.line("done:")
        assert await program.exit_code() == 0
        assert program.text.count("started:") == 3


async def test_sigusr1_gives_up_what_hangs(limits: Path, gate: Gate) -> None:
    write(limits, "[lanes]\nmain = 1\n")
    async with running(HOWTO / "service.py", limits) as program:
        await program.tell(gate.command())
        await program.tell("echo the next one")
        await program.line("started:")
        program.process.send_signal(signal.SIGUSR1)
        await program.line("reset; 1 running jobs were given up")
        await program.line("done: echo the next one")
        program.process.terminate()
        assert await program.exit_code() == 0
