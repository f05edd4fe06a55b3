"""``trio-lanes top``: the frames of a monitor in a terminal, over a real server."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import signal
import socket
import struct
import subprocess
import sys
import termios
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio
from rich.console import Console
from trio.testing import MockClock

from trio_lanes import LaneConfig, Lanes, RateLimit, current_job, open_lanes
from trio_lanes.command import _parameters, _top, main
from trio_lanes.command._exits import CommandError
from trio_lanes.monitor import serve_monitor

ROOT = Path(__file__).parents[2]
PATIENCE = 120.0
ESCAPES = re.compile(r"\x1b[\[\]()][0-9;?]*[a-zA-Z]?")


def totals(**more: Any) -> dict[str, Any]:
    return {
        "active": 2,
        "waiting": 7,
        "sessions": 3,
        "abandoned": 0,
        "oldest": 8.4,
        "oldest_lane": "main",
        "slots": 2,
        "lent": 1,
        "limit": 4,
        "finished": 38,
        "failed": 3,
        "cancelled": 0,
        "quantiles": None,
        **more,
    }


def row(**more: Any) -> dict[str, Any]:
    return {
        "name": "main",
        "limit": 4,
        "slots": 2,
        "lent": 1,
        "cancelling": 0,
        "abandoned": 0,
        "waiting": 7,
        "in_lane": 3,
        "oldest": 8.4,
        "paused": False,
        "paused_until": None,
        "rate_until": None,
        "rates": [],
        "quantiles": None,
        **more,
    }


def frame(**more: Any) -> dict[str, Any]:
    return {
        "n": 1,
        "at": 100.0,
        "pid": 4121,
        "totals": totals(),
        "health": [],
        "more_problems": 0,
        "left_out": [],
        "looked": True,
        "told": [],
        "lanes": [row()],
        "more_lanes": 0,
        "sessions": [],
        "notes": [],
        **more,
    }


def text_of(made: dict[str, Any], link: str = "live") -> str:
    console = Console(width=200, force_terminal=False)
    with console.capture() as capture:
        console.print(_top.drawn(made, link))
    return capture.get()


def test_the_picture_has_totals_lanes_sessions_and_what_is_noticed() -> None:
    session = {"key": "ann", "waiting": 4, "active": 1, "paused": True, "oldest": 97.0}
    other = {"key": "ben", "waiting": 0, "active": 1, "paused": False, "oldest": None}
    note = {"at": 60.0, "level": "error", "text": "deadlock refused", "count": 2}
    told = text_of(
        frame(
            totals=totals(quantiles=[0.6, 6.2, 1, 2], abandoned=1),
            lanes=[
                row(
                    paused=True,
                    paused_until=104.0,
                    cancelling=1,
                    abandoned=2,
                    rates=[{"unit": "tokens", "left": 2, "most": 100}],
                    rate_until=102.1,
                    quantiles=[0.6, 6.2, 1, 2],
                ),
                row(name="free", limit=None, slots=40, paused=True),
                row(name="closed", limit=0, slots=0, waiting=0),
                row(name="wide", limit=1000, slots=500, oldest=7300.0),
            ],
            sessions=[session, other],
            notes=[note, {**note, "level": "odd", "count": 1, "text": "once", "at": -20.0}],
        )
    )
    for wanted in (
        "pid 4121",
        "wait p50 0.6 s p95 6.2 s",
        "given up 1",
        "main (paused 4.0 s, 1 cancelling, 2 given up)",
        "■■··",
        "tokens 2%, waits 2.1 s",
        "free (paused)",
        "40/∞",
        "0/0",
        "2.0 h",
        "ann (paused)",
        "40 s ago  deadlock refused (2 times)",
        "2.0 min ago  once",
    ):
        assert wanted in told, wanted


def test_the_picture_begins_with_the_verdict_and_says_what_it_leaves_out() -> None:
    assert "\nhealthy\n" in text_of(frame())
    problem = {"text": "main is paused", "advice": "resume it"}
    lines = [
        line.rstrip()
        for line in text_of(
            frame(
                health=[problem] * 7,
                more_problems=3,
                left_out=["the bodies of other processes"],
                told=[
                    {"text": "the oldest wait is of 60 s", "advice": "cancel 1"},
                    {"text": "noticed 2.0 s ago", "advice": None},
                ],
                more_lanes=440,
            )
        ).splitlines()
    ]
    assert lines[1:10] == [
        "10 problems; not looked at: the bodies of other processes",
        *["  main is paused: resume it"] * 5,
        "  and 5 more",
        "  the oldest wait is of 60 s: cancel 1",
        "  noticed 2.0 s ago",
    ]
    assert "and 440 more lanes" in lines


def test_a_hostile_name_moves_no_cursor_and_is_no_markup() -> None:
    told = text_of(frame(lanes=[row(name="[red]\x1b[2J\x07")]))
    assert "[red]\\x1b[2J\\x07" in told


@pytest.mark.parametrize("url", ["x", "ftp://localhost/", "http://", "http://[/", "http://h:0/"])
def test_a_url_of_another_kind_is_a_mistake(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", url]) == 2
    assert "is no URL of a monitor" in capsys.readouterr().err


def test_a_header_has_a_name_and_a_value(capsys: pytest.CaptureFixture[str]) -> None:
    assert _parameters.parse_headers(["Cookie: key=a:b", "X:"]) == {"Cookie": "key=a:b", "X": ""}
    assert main(["top", "http://localhost/", "--header", "odd"]) == 2
    assert "--header is not of the form NAME: VALUE" in capsys.readouterr().err


def test_a_missing_package_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def absent(name: str) -> Any:
        return None if name == "httpx2" else find_spec(name)

    monkeypatch.setattr(_parameters, "find_spec", absent)
    assert main(["top", "http://localhost/"]) == 2
    assert "this needs httpx2" in capsys.readouterr().err


# ---- over a server that says what the test wants


def sse(*frames: object) -> bytes:
    return b"".join(b"id: 1\ndata: %s\n\n" % json.dumps(one).encode() for one in frames)


async def followed(*answers: httpx2.Response | Exception, until: int = 99) -> list[Any]:
    """What `follow` shows of a server that gives ``answers``, one for each connection."""
    left = list(answers)
    shown: list[Any] = []

    def handle(request: httpx2.Request) -> httpx2.Response:
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def show(one: Any) -> bool:
        shown.append(None if one is None else one["n"])
        return len(shown) < until

    async with httpx2.AsyncClient(transport=httpx2.MockTransport(handle)) as client:
        await _top.follow(client, "http://x/frames", show)
    return shown


def events(*frames: object) -> httpx2.Response:
    return httpx2.Response(200, content=sse(*frames), headers={"content-type": "text/event-stream"})


async def test_a_lost_connection_is_made_again_after_a_second(autojump_clock: MockClock) -> None:
    shown = await followed(
        events(frame(n=1), frame(n=2)),
        httpx2.ConnectError("refused"),
        httpx2.Response(503, json={"error": "32 viewers look already"}),
        events(frame(n=9)),
        until=6,
    )
    assert shown == [1, 2, None, None, None, 9]
    assert trio.current_time() == 3


@pytest.mark.parametrize(
    ("answer", "code", "why"),
    [
        (httpx2.ConnectError("refused"), 5, "http://x/frames cannot be reached: refused"),
        (httpx2.Response(403, json={"error": "not for you"}), 2, "status 403: not for you"),
        (httpx2.Response(404, text="odd"), 2, "status 404: no monitor of trio-lanes is there"),
        (httpx2.Response(503, json={"error": "full"}), 5, "status 503: full"),
        (httpx2.Response(200, text="<html>"), 2, "is no monitor of trio-lanes"),
        (events(), 5, "http://x/frames has ended without a frame"),
        (events({"n": 1}), 2, "the monitor is of another version of trio-lanes"),
        (events([]), 2, "the monitor is of another version of trio-lanes"),
    ],
)
async def test_a_first_connection_that_fails_is_a_mistake_in_one_line(
    autojump_clock: MockClock, answer: Any, code: int, why: str
) -> None:
    with pytest.raises(CommandError) as caught:
        await followed(answer)
    assert why in str(caught.value)
    assert caught.value.code == code


# ---- over the real page


async def lend() -> None:
    job = current_job()
    assert job is not None
    async with job.yield_slot(reason="approval"):
        await trio.sleep_forever()


@asynccontextmanager
async def served() -> AsyncIterator[tuple[Lanes, str, list[trio.CancelScope]]]:
    """Lanes under a page; cancelling the last scope ends its server, which begins again."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    scopes: list[trio.CancelScope] = []
    main = LaneConfig(concurrency=2, rate=RateLimit(100))
    with trio.fail_after(PATIENCE):
        async with open_lanes({"main": main}) as lanes, trio.open_nursery() as nursery:

            async def serve(task_status: trio.TaskStatus[str]) -> None:
                while True:
                    with trio.CancelScope() as scope:
                        scopes.append(scope)
                        await serve_monitor(lanes, port=port, key="shared", task_status=task_status)
                    task_status = trio.TASK_STATUS_IGNORED

            url = await nursery.start(serve)
            lanes.submit_nowait(lend, session="ann")
            for _ in range(3):
                lanes.submit_nowait(trio.sleep_forever, session="ben")
            yield lanes, url, scopes
            nursery.cancel_scope.cancel()
            lanes.clear()
            lanes.reset()


@pytest.mark.real_processes
async def test_in_a_pipe_it_prints_one_frame_and_ends() -> None:
    async with served() as (_, url, _):
        done = await trio.run_process(
            [sys.executable, "-m", "trio_lanes", "top", url],
            capture_stdout=True,
            capture_stderr=True,
            check=False,
            cwd=ROOT,
        )
    assert done.returncode == 0, done.stderr
    told = done.stdout.decode()
    assert "running 2 · slots 1 of 2, 1 lent · waiting 2 in 2 sessions" in told
    assert "\x1b" not in told


@pytest.mark.real_processes
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
async def test_in_a_terminal_it_goes_on_until_ctrl_c_over_a_server_that_comes_back(
    end: signal.Signals,
) -> None:
    async with served() as (lanes, url, scopes):
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        process = await trio.lowlevel.open_process(
            [sys.executable, "-m", "trio_lanes", "top", url],
            stdin=slave,
            stdout=slave,
            stderr=subprocess.PIPE,
            start_new_session=True,
            cwd=ROOT,
            env={**os.environ, "TERM": "xterm-256color"},
        )
        os.close(slave)
        raw = ""
        assert process.stderr is not None
        async with trio.lowlevel.FdStream(master) as stream, process.stderr as errors:

            async def more() -> bool:
                nonlocal raw
                try:
                    data = await stream.receive_some()
                except trio.BrokenResourceError:  # no process has the terminal open any more
                    return False
                raw += data.decode(errors="replace")
                return bool(data)

            async def until(wanted: str) -> None:
                """Read until that comes, after what was waited for before."""
                nonlocal raw
                raw = ""
                while wanted not in ESCAPES.sub("", raw):
                    assert await more(), raw

            try:
                await until("waiting 2 in 2 sessions")
                assert "\x1b[?1049h" in raw  # the other screen of the terminal
                lanes.pause("main")
                await until("main (paused)")
                scopes[-1].cancel()
                await until("reconnecting")
                lanes.submit_nowait(trio.sleep_forever)
                await until("waiting 3")
                process.send_signal(end)
                while await more():
                    pass
                assert await process.wait() == 0
                assert await errors.receive_some() == b""
                assert "\x1b[?1049l" in raw  # the terminal is as it was
                assert "\x1b[?25h" in raw
            finally:
                if process.returncode is None:
                    process.kill()
                with trio.CancelScope(shield=True):
                    await process.wait()


class Paper(io.StringIO):
    """A file that can be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self._came = trio.Event()
        self._text = ""

    def write(self, text: str) -> int:
        self._text += ESCAPES.sub("", text)
        self._came.set()
        return super().write(text)

    async def until(self, wanted: str) -> None:
        """Wait until that is written, after what was waited for before."""
        self._text = ""
        while wanted not in self._text:
            self._came = trio.Event()
            await self._came.wait()


@pytest.mark.real_processes
async def test_a_signal_ends_it_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    async with served() as (_lanes, url, scopes):
        assert await _top.top(url, {}, Console(force_terminal=False, file=io.StringIO())) == 0
        paper = Paper()
        console = Console(force_terminal=True, width=120, height=40, file=paper)
        async with trio.open_nursery() as nursery:

            async def look() -> None:
                assert await _top.top(url, {}, console) == 0
                nursery.cancel_scope.cancel()

            nursery.start_soon(look)
            await paper.until("live")
            scopes[-1].cancel()
            await paper.until("reconnecting")
            signal.raise_signal(signal.SIGINT)
    assert capsys.readouterr().err == ""
