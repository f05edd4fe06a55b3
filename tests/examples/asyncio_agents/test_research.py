"""`examples/asyncio_agents/research.py`: a terminal, and a model behind the gateway."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.examples.gateway.gateways import gateway
from tests.support.loops import ALL_LOOPS
from tests.support.programs import PATIENCE, ROOT

pytestmark = pytest.mark.real_processes

EXAMPLE = ROOT / "examples" / "asyncio_agents" / "research.py"
ON_A_LOOP = """
import asyncio, sys
from examples.asyncio_agents.research import main
from tests.support import loops

with asyncio.Runner(loop_factory=getattr(loops, sys.argv[1])) as runner:
    runner.run(main())
"""


@pytest.mark.parametrize("new_loop", ALL_LOOPS)
def test_what_is_found_is_in_the_order_of_the_topics_and_a_new_message_interrupts(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    plain = new_loop is asyncio.SelectorEventLoop
    command = [EXAMPLE] if plain else ["-c", ON_A_LOOP, new_loop.__name__]
    shown = EXAMPLE.with_suffix(".txt").read_text("utf-8").splitlines()
    with (
        gateway() as url,  # of one place: a request that is kept would hold up the next
        subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
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
