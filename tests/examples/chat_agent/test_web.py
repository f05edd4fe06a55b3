"""The chat agent's web server: whom it lets in, what it says, and how it ends."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio
from httpx2.websockets import (
    AsyncWebSocketSession,
    HTTPXWSException,
    WebSocketDisconnect,
    WebSocketUpgradeError,
)

from examples.chat_agent.builtin_model import BuiltinModel
from examples.chat_agent.limits import Limits
from examples.chat_agent.web import server
from examples.chat_agent.web.server import listen, run_web
from tests.examples.chat_agent.held_model import HeldModel, open_endpoint_of

pytestmark = pytest.mark.real_processes

ROOT = Path(__file__).resolve().parents[3]
PATIENCE = 300  # seconds, on a machine that has much else to do


@asynccontextmanager
async def open_server() -> AsyncIterator[str]:
    """A server with the built-in model; its URL."""
    listener = listen(0)
    url = "http://{}:{}/".format(*listener.getsockname())
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:

            async def run() -> None:
                await run_web(BuiltinModel(0), [].append, listener, limits=Limits())

            nursery.start_soon(run)
            yield url
            nursery.cancel_scope.cancel()


async def get(url: str, **headers: str) -> httpx2.Response:
    async with httpx2.AsyncClient(timeout=PATIENCE) as client:
        return await client.get(url, headers=headers)


@asynccontextmanager
async def open_socket(
    url: str, query: str = "?open=me,ann,bob", **headers: str | None
) -> AsyncIterator[AsyncWebSocketSession]:
    sent = {"origin": url.rstrip("/"), **headers}
    sent = {name: value for name, value in sent.items() if value is not None}
    async with httpx2.AsyncClient(timeout=PATIENCE) as client:
        address = url.replace("http", "ws") + "socket" + query
        async with client.websocket(
            address, headers=sent, keepalive_ping_interval_seconds=None
        ) as socket:
            yield socket


async def frame_from(socket: AsyncWebSocketSession) -> dict[str, Any]:
    return json.loads(await socket.receive_text())


async def facts_until(
    socket: AsyncWebSocketSession, wanted: Callable[[dict[str, Any]], object]
) -> list[dict[str, Any]]:
    """The facts that come until one is as wanted."""
    facts: list[dict[str, Any]] = []
    while not any(map(wanted, facts)):
        facts += (await frame_from(socket)).get("facts", ())
    return facts


async def say(socket: AsyncWebSocketSession, session: str, line: str) -> None:
    await socket.send_text(json.dumps({"session": session, "line": line}))


async def reply_to(socket: AsyncWebSocketSession, line: str, session: str = "me") -> str:
    """What is said to somebody who types this line."""
    await say(socket, session, line)
    while "said" not in (frame := await frame_from(socket)):
        pass
    assert frame["session"] == session
    return frame["said"]


async def answer(socket: AsyncWebSocketSession, session: str) -> str:
    """The next answer in that session."""

    def is_answer(fact: dict[str, Any]) -> bool:
        item = fact.get("item", {})
        of_it = (fact.get("session"), item.get("kind"), item.get("state"))
        return of_it == (session, "agent", "done")

    facts = await facts_until(socket, is_answer)
    return next(fact["item"]["text"] for fact in facts if is_answer(fact))


async def ended(socket: AsyncWebSocketSession) -> int:
    """With which code it is closed."""
    with pytest.raises(WebSocketDisconnect) as caught:
        while True:
            await socket.receive_text()
    return caught.value.code


# The page


async def test_the_page_is_one_file_that_needs_no_other_place() -> None:
    async with open_server() as url:
        response = await get(url)
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert "http" not in re.sub(r"http://www\.w3\.org/2000/svg", "", response.text)
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    (nonce,) = set(re.findall(r"'nonce-([\w-]+)'", policy))
    assert response.text.count(f'nonce="{nonce}"') == 2
    assert "{{" not in response.text


async def test_no_header_repeats_the_host_that_the_client_named() -> None:
    async with open_server() as url:
        port = url.rsplit(":", 1)[1].rstrip("/")
        response = await get(url, host=f"localhost:{port}")
    assert response.status_code == 200
    told = " ".join(response.headers.values())
    assert "localhost" not in told
    assert port not in told


async def test_every_page_has_a_nonce_of_its_own() -> None:
    async with open_server() as url:
        nonces = {re.findall(r'nonce="([\w-]+)"', (await get(url)).text)[0] for _ in range(3)}
    assert len(nonces) == 3


def test_the_script_makes_no_html_of_texts() -> None:
    page = (Path(server.__file__).parent / "page.html").read_text(encoding="utf-8")
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert way not in page


# Whom it lets in


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "", "127.0.0.1.evil.example"])
async def test_a_name_that_is_not_this_machine_is_refused(host: str) -> None:
    async with open_server() as url:
        assert (await get(url, host=host)).status_code == 403
        with pytest.raises(WebSocketUpgradeError) as caught:
            async with open_socket(url, host=host, origin=f"http://{host}"):
                raise AssertionError
    assert caught.value.response.status_code == 403


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1:1", "https://127.0.0.1", None]
)
async def test_a_page_of_another_site_is_refused(origin: str | None) -> None:
    async with open_server() as url:
        with pytest.raises(WebSocketUpgradeError) as caught:
            async with open_socket(url, origin=origin):
                raise AssertionError
    assert caught.value.response.status_code == 403


async def test_it_listens_on_the_loopback_alone() -> None:
    with listen(0) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"


# What it says


async def test_a_line_is_a_message_or_a_command_as_in_the_terminal() -> None:
    async with open_server() as url, open_socket(url) as socket:
        await say(socket, "bob", "what is 6*7?")
        assert await answer(socket, "bob") == "6*7 = 42"
        assert (
            await reply_to(socket, "/queue steer", "bob")
            == "mode of messages while bob is busy: steer"
        )
        assert await reply_to(socket, "/why", "bob") == "nothing runs or waits in bob"
        assert await reply_to(socket, "/limit main 2") == "main runs at most 2 at once"
        assert (await reply_to(socket, "/dance")).startswith("! there is no command '/dance'")
        assert (await reply_to(socket, "x" * 10_001)).startswith("! a line may have at most 10,000")
        assert "/queue MODE [NAME]" in await reply_to(socket, "/help")


async def test_the_first_frame_says_everything_and_one_with_a_number_goes_on_behind_it() -> None:
    async with open_server() as url:
        async with open_socket(url) as socket:
            assert (await frame_from(socket))["hello"] == "built-in"
            first = await frame_from(socket)
            assert first["snapshot"]
            assert first["open"] == ["me", "ann", "bob"]
            await say(socket, "me", "hello")
            await answer(socket, "me")
        query = f"?open=me&run={first['run']}&after={first['seq']}"
        async with open_socket(url, query) as socket:
            await frame_from(socket)
            again = await frame_from(socket)
            assert not again["snapshot"]
            assert again["seq"] > first["seq"]
            assert {fact["what"] for fact in again["facts"]} >= {"session", "item"}
        for run, after in (("other", "1"), *((first["run"], n) for n in ("-1", "x", "9" * 5000))):
            nonsense = f"?run={run}&after={after}"
            async with open_socket(url, nonsense) as socket:
                await frame_from(socket)
                assert (await frame_from(socket))["snapshot"]


@pytest.mark.parametrize(
    "message",
    [
        "{",
        "3",
        "{}",
        '{"session": "me"}',
        '{"session": "me", "line": 3}',
        '{"session": "a b", "line": "x"}',
        '{"open": "me"}',
        '{"open": ["a b"]}',
        '{"open": [3]}',
        '{"card": 11}',
        json.dumps({"open": [f"s{n}" for n in range(51)]}),
        "[" * 50_000,
        b"bytes",
    ],
)
async def test_a_message_that_is_none_ends_that_connection_alone(message: str | bytes) -> None:
    async with open_server() as url, open_socket(url) as other:
        async with open_socket(url) as socket:
            if isinstance(message, bytes):
                await socket.send_bytes(message)
            else:
                await socket.send_text(message)
            assert await ended(socket) == 1008
        assert await reply_to(other, "/why") == "nothing runs or waits in me"


async def test_a_message_that_is_too_long_ends_that_connection_alone() -> None:
    async with open_server() as url, open_socket(url) as other:
        async with open_socket(url) as socket:
            await say(socket, "me", "x" * 200_000)
            assert await ended(socket) == 1009
        assert await reply_to(other, "/why") == "nothing runs or waits in me"


async def test_a_client_at_which_the_server_fails_ends_no_turn_and_no_other_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    too_early = (  # something right behind the request, which was not accepted yet
        "GET /socket HTTP/1.1\r\nHost: {0}\r\nOrigin: http://{0}\r\nUpgrade: websocket\r\n"
        "Connection: Upgrade\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
        "Sec-WebSocket-Version: 13\r\n\r\nx"
    )
    async with open_server() as url:
        place = url.removeprefix("http://").rstrip("/")
        async with open_socket(url) as socket:
            await say(socket, "me", "slow 600")
            await facts_until(socket, lambda fact: fact.get("running"))
            host, port = place.split(":")
            async with await trio.open_tcp_stream(host, int(port)) as client:
                await client.send_all(too_early.format(place).encode())
                with pytest.raises(trio.BrokenResourceError):  # or an end
                    while await client.receive_some():
                        pass
                    raise trio.BrokenResourceError
            assert (await reply_to(socket, "/why")).endswith("runs")
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == [
        "the web server has failed at a client"
    ]


async def test_text_that_utf_8_cannot_hold_is_a_message_like_any_other() -> None:
    async with open_server() as url, open_socket(url) as socket:
        await socket.send_text('{"session": "me", "line": "half \\ud83d"}')
        assert await answer(socket, "me") == (
            "You said: half � (That was message 1 of this conversation.)"
        )


async def test_no_page_can_begin_sessions_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_SESSIONS", 2)
    async with open_server() as url, open_socket(url, "?open=a,b") as socket:
        for session, line in (
            ("c", "hello"),
            ("a", "/as c hello"),
            ("c", "/queue steer"),
            ("c", "/pause c"),
            ("a", "/as c"),
        ):
            assert await reply_to(socket, line, session) == (
                "! there are too many sessions: 'c' cannot be begun"
            )
        assert await reply_to(socket, "/why", "a")


async def test_a_session_in_which_nothing_was_said_can_be_paused() -> None:
    async with open_server() as url, open_socket(url) as socket:
        assert await reply_to(socket, "/pause bob", "bob") == "paused bob"
        assert await reply_to(socket, "/pause eve", "bob") == (
            "! there is no session 'eve'; /sessions lists them"
        )


async def test_a_page_is_told_where_it_speaks_now_and_that_it_cannot_end_the_chat() -> None:
    async with open_server() as url, open_socket(url) as socket:
        for line, said, now in (
            ("/as bob", "you are bob now", "bob"),
            ("/why", "nothing runs or waits in me", "me"),
            ("/quit", "! a page does not end the chat: Ctrl-C does, where it was started", "me"),
        ):
            await say(socket, "me", line)
            while "said" not in (frame := await frame_from(socket)):
                pass
            assert frame == {"said": said, "session": "me", "now": now}


# As a person would start it


@asynccontextmanager
async def open_process(*options: str) -> AsyncIterator[tuple[trio.Process, str]]:
    process = await trio.lowlevel.open_process(
        [sys.executable, "-m", "examples.chat_agent", "--web", "--port", "0", *options],
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    assert process.stdout is not None
    try:
        with trio.fail_after(PATIENCE):
            text = ""
            while "\n" not in text:
                text += (await process.stdout.receive_some()).decode()
            found = re.match(r"the page is at (\S+) \(model: [\w-]+\); Ctrl-C ends\n$", text)
            assert found, text
            yield process, found[1]
    finally:
        if process.returncode is None:
            process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
        await process.stdout.aclose()


async def test_a_signal_lets_turns_end_which_pages_see_and_what_waits_for_approval_is_denied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = HeldModel()
    async with (
        open_endpoint_of(model, monkeypatch),
        open_process() as (process, url),
        open_socket(url) as socket,
    ):
        for session, line in (("ann", "one"), ("bob", "mail eve: hi")):
            await say(socket, session, line)
        await model.until_asked("one")
        await facts_until(socket, lambda fact: fact.get("asks"))
        process.send_signal(signal.SIGINT)
        told = await facts_until(socket, lambda fact: fact["what"] == "closing")
        model.let_on("one")
        with pytest.raises(HTTPXWSException):
            while True:
                told += (await frame_from(socket)).get("facts", ())
        assert await process.wait() == 0
    assert {"what": "closing", "reason": "draining"} in told
    items = [fact["item"] for fact in told if fact["what"] == "item"]
    assert "begun one ended one" in [item["text"] for item in items]
    refusal = "error: send_mail was not allowed: no person is left to ask"
    assert refusal in [item["text"] for item in items]


async def test_a_second_signal_cancels() -> None:
    async with open_process() as (process, url), open_socket(url) as socket:
        await say(socket, "ann", "slow 600")
        await facts_until(socket, lambda fact: fact.get("running"))
        process.send_signal(signal.SIGTERM)
        await facts_until(socket, lambda fact: fact["what"] == "closing")
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 130


async def shown_limits(url: str, limits: list[int]) -> None:
    """Wait until the frames of the monitor have these limits."""
    host, port = url.removeprefix("http://").rstrip("/").split(":")
    shown: list[int] = []
    async with await trio.open_tcp_stream(host, int(port)) as stream:
        await stream.send_all(f"GET /lanes/frames HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
        received = b""
        while shown != limits:
            received += await stream.receive_some()
            for found in re.finditer(rb"^data: (.+)\n\n", received, re.MULTILINE):
                shown = [lane["limit"] for lane in json.loads(found[1])["lanes"]]


async def test_a_hangup_has_the_limits_read_again_which_pages_see(tmp_path: Path) -> None:
    file = tmp_path / "limits.toml"
    file.write_text("[at_once]\nmain = 1")
    async with open_process("--limits", str(file)) as (process, url):
        await shown_limits(url, [1, 8, 8])
        file.write_text("[at_once]\nmain = 2\ntools = 3")
        process.send_signal(signal.SIGHUP)
        await shown_limits(url, [2, 3, 8])
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 0


async def test_a_crowd_and_people_on_a_page_share_the_lanes_and_the_crowd_is_checked() -> None:
    async with (
        open_process("--users", "40", "--word-delay", "0.005") as (process, url),
        open_socket(url, "?open=me,user-07") as socket,
    ):
        users: set[str] = set()
        while len(users) < 20:
            facts = (await frame_from(socket)).get("facts", ())
            users |= {fact["session"] for fact in facts if fact["what"] == "session"}
        await say(socket, "me", "what is 6*7?")
        assert await answer(socket, "me") == "6*7 = 42"
        assert await reply_to(socket, "/limit main 2") == "main runs at most 2 at once"
        assert await reply_to(socket, "hello", "user-07") == (
            "! user-07 is a simulated user, who speaks alone: open the chat to read along"
        )
        await facts_until(socket, lambda f: f["what"] == "item" and f["session"] == "user-07")
        assert "chat agent – monitor" in (await get(f"{url}lanes/")).text
        assert (await get(f"{url}lanes/access")).json()["role"] == "operate"
        assert (await get(f"{url}lanes/session/user-07")).json()["key"] == "user-07"
        assert (await get(f"{url}lanes/", host="example.org")).status_code == 403
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        text = ""
        while data := await process.stdout.receive_some():
            text += data.decode()
        assert await process.wait() == 0
    lines = text.splitlines()
    assert re.match(r"\d+ messages of 40 users: ", lines[-2]), text
    assert lines[-1] == "check: ok: 40 sessions, all in order, no limit exceeded"


async def test_a_port_that_is_in_use_is_one_line_and_exit_code_2() -> None:
    with listen(0) as taken:
        port = str(taken.getsockname()[1])
        ended = await trio.run_process(
            [sys.executable, "-m", "examples.chat_agent", "--web", "--port", port],
            capture_stdout=True,
            capture_stderr=True,
            check=False,
            cwd=ROOT,
        )
    assert ended.stderr.decode().startswith(f"port {port}: Address already in use")
    assert ended.stderr.count(b"\n") == 1
    assert ended.stdout == b""
    assert ended.returncode == 2
