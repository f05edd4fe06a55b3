"""Programs in processes of their own: started, signalled, and read line by line."""

from __future__ import annotations

import codecs
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

ROOT = Path(__file__).resolve().parents[2]
HOWTO = ROOT / "examples" / "howto"
PATIENCE = 180  # seconds, on a machine that has much else to do


class Program:
    """One that runs. It leads a process group of its own."""

    def __init__(self, process: trio.Process) -> None:
        self.process = process
        self.text = ""  # all that it has written so far
        self._read_to = 0
        self._decode = codecs.getincrementaldecoder("utf-8")().decode  # what is read may be torn

    async def until(self, wanted: str) -> str:
        """Read on until it wrote that; returns what came between."""
        while (place := self.text.find(wanted, self._read_to)) < 0 and await self._more():
            pass
        assert place >= 0, f"no {wanted!r} in {self.text[self._read_to :]!r}"
        between = self.text[self._read_to : place]
        self._read_to = place + len(wanted)
        return between

    async def line(self, beginning: str) -> str:
        """Read on until it wrote a line that begins so; returns its rest."""
        await self.until(beginning)
        return await self.until("\n")

    async def _more(self) -> bool:
        assert self.process.stdout is not None
        data = await self.process.stdout.receive_some()
        self.text += self._decode(data)
        return bool(data)

    async def tell(self, line: str) -> None:
        """Write a line to its standard input."""
        assert self.process.stdin is not None
        await self.process.stdin.send_all(f"{line}\n".encode())

    async def exit_code(self) -> int:
        """Wait for its end."""
        while await self._more():
            pass
        return await self.process.wait()


@asynccontextmanager
async def running(*command: str | Path) -> AsyncIterator[Program]:
    """Python with these arguments; killed at the end of the block, if it has not ended."""
    process = await trio.lowlevel.open_process(
        [sys.executable, "-X", "dev", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        process_group=0,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        with trio.fail_after(PATIENCE):
            yield Program(process)
    finally:
        if process.returncode is None:
            process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
        assert process.stdin is not None
        assert process.stdout is not None
        await process.stdin.aclose()
        await process.stdout.aclose()
