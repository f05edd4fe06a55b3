"""`examples/asyncio_agents/research.py`: a terminal, and a model behind the gateway."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.examples.gateway.gateways import gateway
from tests.support.programs import PATIENCE, ROOT

pytestmark = pytest.mark.real_processes

EXAMPLE = ROOT / "examples" / "asyncio_agents" / "research.py"


def test_what_is_found_is_in_the_order_of_the_topics_and_a_new_message_interrupts() -> None:
    shown = EXAMPLE.with_suffix(".txt").read_text("utf-8").splitlines()
    with (
        gateway() as url,  # of one place: a request that is kept would hold up the next
        subprocess.Popen(
            [sys.executable, EXAMPLE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OPENAI_BASE_URL": url, "NO_PROXY": "127.0.0.1"},
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        for line in [*shown, "> A long text of 500"]:
            if line.startswith("> "):
                process.stdin.write(line.removeprefix("> ") + "\n")
                process.stdin.flush()
            else:
                assert process.stdout.readline() == f"{line}\n"
        assert process.stdout.readline().startswith("1. ")
        rest = process.communicate("hello\n", PATIENCE)[0]  # 500 lines take a hundred seconds
        assert rest.count("\n") < 100
        assert rest.splitlines()[-1].endswith("about lanes, or for a long answer.")
        assert process.returncode == 0
