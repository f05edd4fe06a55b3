"""``trio-lanes why`` and ``health`` for an application that serves a monitor."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

import httpx2
import pytest
import trio

from trio_lanes import open_lanes
from trio_lanes.command import _page, _top, main
from trio_lanes.monitor import serve_monitor

PROBLEM = {"kind": "pause", "lane": "main", "text": "main is paused", "advice": "resume it"}
ROOT = {"line": "7 ← 5 of its session ← its body", "advice": "cancel 5"}
JOB = {"state": "waiting", "roots": [ROOT]}
RUNS = {"state": "running", "roots": []}


def page(monkeypatch: pytest.MonkeyPatch, **answers: Any) -> None:
    """Let the command talk to a page that gives these answers; its frames have ``health``."""
    asked: Mapping[str, Any] = {name.replace("_", "/"): answer for name, answer in answers.items()}

    def handle(request: httpx2.Request) -> httpx2.Response:
        path = request.url.path.removeprefix("/lanes/")
        if path == "frames":
            rest = {"unseen": 0, "left_out": [], "looked": True, **asked.get("rest", {})}
            frame = {"n": 1, "health": asked["health"], **rest}
            first = asked.get("first", [])  # before it
            text = b"".join(
                b"id: 1\ndata: %s\n\n" % json.dumps(one).encode() for one in (*first, frame)
            )
            return httpx2.Response(200, content=text, headers={"content-type": "text/event-stream"})
        answer = asked.get(path)
        if isinstance(answer, Exception):
            raise answer
        return httpx2.Response(200, content=json.dumps(answer).encode())

    def client(url: str, headers: Mapping[str, str]) -> httpx2.AsyncClient:
        assert headers == {"Cookie": "key=1"}
        return httpx2.AsyncClient(transport=httpx2.MockTransport(handle))

    monkeypatch.setattr(_page, "page_client", client)
    monkeypatch.setattr("trio_lanes.command._top.drawn", lambda frame, link: frame)


def say(command: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    more = ["--page", "http://x/lanes", "--header", "Cookie:key=1"]
    code = main([*command.split(), *more])
    out, err = capsys.readouterr()
    return code, out, err


def test_health_of_a_page_is_that_of_its_lanes_and_of_its_store(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page(monkeypatch, health=[])
    assert say("health", capsys) == (0, "healthy\n", "")
    left_out = ["1,200 more lanes with waiting jobs", "the bodies of other processes"]
    page(monkeypatch, health=[PROBLEM], rest={"left_out": left_out, "unseen": 1200})
    unseen = f"1 problem; not looked at: {left_out[0]}, {left_out[1]}\n"
    assert say("health", capsys) == (1, "main is paused: resume it\n" + unseen, "")
    away = "the store (its figures are as of 12 s ago)"
    gone = {"kind": "store", "lane": "", "text": "the store is away", "advice": "look at it"}
    page(monkeypatch, health=[gone], rest={"left_out": [away], "looked": False})
    told = f"the store is away: look at it\n1 problem; not looked at: {away}\n"
    assert say("health", capsys) == (2, told, "")
    code, _, error = say("health --standstill-after 9", capsys)
    assert code == 2
    assert "--standstill-after is for a store, not for a page" in error


def test_health_of_a_page_waits_for_a_store_that_is_slow(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    waits = {"n": 1, "health": [], "unseen": 0, "left_out": ["the store"], "looked": False}
    page(monkeypatch, health=[PROBLEM], first=[waits] * 38)
    assert say("health", capsys) == (1, "main is paused: resume it\n", "")
    page(monkeypatch, health=[], first=[waits] * 40)
    assert say("health", capsys) == (2, "healthy; not looked at: the store\n", "")
    # the connection is lost after the first frame, and made again
    monkeypatch.setattr(_top, "MOST_FRAMES", 2)
    monkeypatch.setattr(_top, "AGAIN", 0.0)
    page(monkeypatch, health=[], rest=waits)
    assert say("health", capsys) == (2, "healthy; not looked at: the store\n", "")


def test_why_asks_a_page_for_its_jobs_and_for_those_of_its_store(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page(monkeypatch, job_7=JOB, durable_8=RUNS)
    assert say("why 7 8", capsys) == (
        0,
        "7 ← 5 of its session ← its body\n    what would help: cancel 5\n"
        "job 8 is running; nothing keeps it waiting\n",
        "",
    )
    bare = {**JOB, "roots": [{"line": f"7 ← {n} of its session", "advice": None} for n in (5, 6)]}
    page(monkeypatch, job_7=bare)
    assert say("why 7", capsys) == (0, "7 ← 5 of its session\n7 ← 6 of its session\n", "")
    assert say("why 9", capsys) == (1, "the page does not know job 9\n", "")
    page(monkeypatch, job_7=httpx2.ConnectError("refused"))
    told = "trio-lanes: http://x/lanes/job/7: refused\n"
    assert say("why 7", capsys) == (5, "", told)


@pytest.mark.real_processes
async def test_why_and_health_ask_the_real_page_with_its_key(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with trio.fail_after(120):
        async with open_lanes({"main": 1}) as lanes, trio.open_nursery() as nursery:
            key = "of-the-page"
            url = await nursery.start(partial(serve_monitor, lanes, port=0, key=key))
            bare = url.partition("?")[0]
            first = lanes.submit_nowait(trio.sleep_forever, session="ann")
            job = lanes.submit_nowait(trio.sleep_forever, session="ann")
            await first.wait_started()
            for code, id in ((0, job.id), (1, 99)):
                assert await trio.to_thread.run_sync(main, ["why", str(id), "--page", url]) == code
            assert await trio.to_thread.run_sync(main, ["health", "--page", url]) == 0
            monkeypatch.setenv("TRIO_LANES_MONITOR_KEY", key)
            assert await trio.to_thread.run_sync(main, ["health", "--page", bare]) == 0
            monkeypatch.setenv("TRIO_LANES_MONITOR_KEY", "another")
            for command in (["health"], ["why", "1"]):
                done = await trio.to_thread.run_sync(main, [*command, "--page", bare])
                assert done == 2
            out, err = capsys.readouterr()
            assert "status 401: this page needs its key" in err
            assert key not in err
            assert out.startswith(f"{job.id} ← {first.id} of its session ← its body, for ")
            assert out.endswith("\nthe page does not know job 99\nhealthy\nhealthy\n")
            nursery.cancel_scope.cancel()
            lanes.clear()
            lanes.reset()
