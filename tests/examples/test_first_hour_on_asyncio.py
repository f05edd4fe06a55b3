"""A newcomer's path: a new environment, the wheel, twelve lines in a FastAPI file, uvicorn."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from tests.support.programs import PATIENCE, ROOT

pytestmark = [pytest.mark.real_processes, pytest.mark.thorough]

THEIRS = """
import asyncio

gate = asyncio.Event()
said = []

async def answer(text):
    await gate.wait()
    said.append(text)
    return f"{len(said)}: {text}"
"""
PASTED = """
from contextlib import asynccontextmanager
from fastapi import FastAPI
from trio_lanes.aio import monitor, open_lanes

@asynccontextmanager
async def lifespan(app):
    async with open_lanes({"main": 4}) as app.state.lanes:
        app.mount("/lanes", monitor(app.state.lanes))
        yield

app = FastAPI(lifespan=lifespan)

@app.post("/chat/{user}")
async def chat(user: str, text: str) -> str:
    return await app.state.lanes.run(answer, text, session=user)
"""
OPENS = """
@app.post("/open")
async def open_gate() -> None:
    gate.set()
"""


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """Python in a new environment with the wheel, FastAPI and uvicorn."""

    def run(*command: str | Path) -> None:
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    run(sys.executable, "-m", "venv", "new")
    python = tmp_path / "new" / "bin" / "python"
    run(python, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", tmp_path, ROOT)
    (wheel,) = tmp_path.glob("trio_lanes-*.whl")
    run(python, "-m", "pip", "install", f"{wheel}[monitor]", "fastapi", "uvicorn")
    return python


@contextmanager
def uvicorn(python: Path, folder: Path) -> Iterator[str]:
    """The URL of ``app.py`` under uvicorn, which then ends well by Ctrl-C."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["TRIO_LANES_MONITOR_KEY"] = "shared"
    with subprocess.Popen(
        [python, "-m", "uvicorn", "app:app", "--port", "0"],
        cwd=folder,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stderr is not None
            text = ""
            while "running on" not in text:
                text += (line := process.stderr.readline())
                assert line, text
            yield text.split("running on ")[1].split()[0]
            process.send_signal(signal.SIGINT)
            rest = process.communicate(timeout=PATIENCE)[1]
            assert "Application shutdown complete" in rest
            assert "Traceback" not in rest
        finally:
            process.kill()


def jobs(client: httpx2.Client) -> int:
    """How many jobs the page shows."""
    with client.stream("GET", "/lanes/frames?key=shared") as frames:
        for line in frames.iter_lines():
            if line.startswith("data: "):
                totals = json.loads(line.removeprefix("data: "))["totals"]
                return int(totals["active"] + totals["waiting"])
    raise AssertionError("no frame came")


def test_twelve_lines_in_a_fastapi_file_give_ordered_answers(python: Path, tmp_path: Path) -> None:
    assert len([line for line in PASTED.splitlines() if line]) == 12
    (tmp_path / "app.py").write_text(THEIRS + PASTED + OPENS)
    with (
        uvicorn(python, tmp_path) as url,
        httpx2.Client(base_url=url, timeout=PATIENCE) as client,
    ):
        answers: dict[str, str] = {}

        def ask(text: str) -> None:
            answers[text] = client.post("/chat/ann", params={"text": text}).json()

        threads = []
        for number, text in enumerate(("one", "two", "three", "four", "five"), 1):
            threads.append(threading.Thread(target=ask, args=[text]))
            threads[-1].start()
            while jobs(client) < number:
                pass
        client.post("/open")
        for thread in threads:
            thread.join(PATIENCE)
        assert "monitor" in client.get("/lanes/?key=shared", follow_redirects=True).text
    assert answers == {
        "one": "1: one",
        "two": "2: two",
        "three": "3: three",
        "four": "4: four",
        "five": "5: five",
    }
