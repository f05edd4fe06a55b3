"""`--crash`: the durable chat is killed in the middle of an answer, started again, and goes on.

The chat runs in a process of its own, as in `--durable FOLDER`, and dies by SIGKILL: nothing of it
can clean up.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial

import trio

QUESTIONS = ("hello", "long 6", "what is 6 * 7?")
BEGUN = "2. "  # of the long answer, when it is killed
START_SECONDS = 60.0  # for the first words of a process


async def run_crash(say: Callable[[str], None]) -> int:
    """Show a crash. Return the exit code: 0 if every question has its answer in the end."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-u", "-m", "examples.chat_agent", "--durable", folder]
        # word by word, so that an answer has a middle
        start = partial(
            trio.lowlevel.open_process,
            [*command, "--word-delay", "0.1"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        first = await start()
        assert first.stdin is not None
        await first.stdin.send_all("".join(f"{text}\n" for text in QUESTIONS).encode())
        with trio.move_on_after(START_SECONDS):
            await _read(first, say, until=BEGUN)
        await _kill(first)
        say("--- killed with SIGKILL, in the middle of an answer; it is started again ---")
        second = await start()
        assert second.stdin is not None
        await second.stdin.aclose()  # no more questions: it ends when all are answered
        with trio.move_on_after(START_SECONDS):
            text = await _read(second, say)
            await second.wait()
        code = second.returncode  # None: it takes too long
        await _kill(second)
        if code != 0:
            say("--- the second start has failed ---")
            return 1
    answered = "6." in text and "42" in text
    say(f"--- {'every question was answered, once' if answered else 'an answer is missing'} ---")
    return 0 if answered else 1


async def _kill(process: trio.Process) -> None:
    """Kill a process, unless it has ended, and close its pipes."""
    if process.poll() is None:
        process.kill()
    await process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            await pipe.aclose()


async def _read(process: trio.Process, say: Callable[[str], None], until: str | None = None) -> str:
    """Say the lines of a process, until a text comes or the process ends. Return the text."""
    assert process.stdout is not None
    text, said = "", 0
    async for data in process.stdout:
        text += data.decode("utf-8", "replace")
        while (end := text.find("\n", said)) >= 0:
            say(text[said:end])
            said = end + 1
        if until is not None and until in text:
            say(text[said:])
            break
    return text
