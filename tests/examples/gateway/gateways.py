"""A gateway, and its clients, in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.programs import PATIENCE, ROOT

CLIENTS = Path(__file__).parent / "clients"
NODE = CLIENTS / "node"


@contextmanager
def program(
    *arguments: str, announces: str, env: Mapping[str, str] | None = None
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A Python module that serves, and the word that it says after ``announces``.

    It ends by SIGINT, as by Ctrl-C; what a test has killed is left alone.
    """
    with subprocess.Popen(
        [sys.executable, "-m", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
    ) as process:
        try:
            assert process.stdout is not None
            told = ""
            while announces not in told:
                line = process.stdout.readline()
                assert line, told
                told += line
            yield process, told.split(announces)[1].split()[0]
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
            try:
                process.communicate(timeout=PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()


@contextmanager
def gateway(*options: str, env: Mapping[str, str] | None = None) -> Iterator[str]:
    """A gateway; its base URL. One turn at once, and no grace at the end, unless options say so."""
    defaults = ("--port", "0", "--limit", "1", "--grace", "0")
    with program(
        "examples.gateway", *defaults, *options, announces="the gateway is at ", env=env
    ) as (_, url):
        yield url


@contextmanager
def upstream() -> Iterator[str]:
    """An OpenAI-compatible endpoint that injects faults; its base URL."""
    with program(
        "examples.chat_agent.openai_server", "--port", "0", announces="OPENAI_BASE_URL="
    ) as (_, url):
        yield url


def client(*command: str | Path) -> None:
    """Run a client to its end; it has checked what it saw."""
    # the client is its own process: a proxy of this machine is not for loopback
    done = subprocess.run(
        [*map(str, command)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE,
        cwd=NODE if str(command[0]) == "node" else ROOT,
        env={**os.environ, "NO_PROXY": "127.0.0.1"},
    )
    assert done.returncode == 0, done.stdout
