"""The gateway in several processes: any of them accepts a request, and any runs its turn."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio

from examples.chat_agent.openai_server import Endpoint, serve
from tests.durable.postgres.server import Server, programs
from tests.support.chaos import times
from tests.support.needs import need

from .gateways import CLIENTS, client, program
from .test_background import Reader, said
from .test_wire import LIMIT, TERMINAL, Watched, follow

pytestmark = [
    pytest.mark.real_processes,
    # the client's own generators, when a test leaves a stream before its end
    pytest.mark.filterwarnings("ignore:Async generator 'http:ResourceWarning"),
]

PATIENCE = 180.0
FUNCTION = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}


def options(folder: Path, *more: str) -> tuple[str, ...]:
    several = ("--durable", str(folder), "--processes", "3")
    limits = ("--limit", str(LIMIT), "--grace", "10")
    return ("examples.gateway", "--port", "0", *limits, *several, *more)


def children(pid: int) -> list[int]:
    found = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    return [*map(int, " ".join(found).split())]


def until_all_serve(process: Any, url: str, count: int = 3) -> None:
    """Wait until that many processes listen on the port."""
    port = int(url.rsplit(":", 1)[1].partition("/")[0])
    until = time.monotonic() + PATIENCE
    while True:
        rows = Path("/proc/net/tcp").read_text().splitlines()[1:]
        listening = [row for row in rows if row.split()[1].endswith(f":{port:04X}")]
        listening = [row for row in listening if row.split()[3] == "0A"]
        if len(listening) == count:
            return
        assert time.monotonic() < until, listening
        time.sleep(0.05)


@pytest.mark.slow
async def test_order_and_limits_hold_over_all_processes(tmp_path: Path) -> None:
    rng = random.Random(1)
    model = Watched()
    ends: dict[str, dict[str, Any]] = {}
    sent: dict[str, list[int]] = defaultdict(list)

    async def conversation(url: str, name: str) -> None:
        async with trio.open_nursery() as nursery:

            async def see(id: str) -> None:
                async with httpx2.AsyncClient(base_url=url, timeout=120) as client:
                    ends[id] = await follow(client, id, rng)

            for number in range(8):
                # a connection of its own: any process may get it
                async with httpx2.AsyncClient(base_url=url, timeout=120) as client:
                    body = {"conversation": name, "input": f"{name} {number}"}
                    does = rng.choice(["background", "wait", "stream", "cancel", "hang up"])
                    if does == "hang up":
                        with trio.move_on_after(rng.random() / 3):
                            await client.post("responses", json=body | {"stream": True})
                        continue
                    posted = await client.post(
                        "responses",
                        json=body
                        | {
                            "background": does in ("background", "cancel"),
                            "stream": does == "stream",
                        },
                    )
                    assert posted.status_code == 200, posted.text
                    sent[name].append(number)
                    if does == "wait":
                        assert posted.json()["status"] == "completed", posted.text
                    elif does == "stream":
                        assert "response.completed" in posted.text
                    else:
                        id = posted.json()["id"]
                        nursery.start_soon(see, id)
                        if does == "cancel":
                            await trio.sleep(rng.random() / 5)
                            ended = await client.post(f"responses/{id}/cancel")
                            assert ended.json()["status"] in TERMINAL

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            upstream = await nursery.start(serve, Endpoint(model))
            command = options(tmp_path, "--upstream", upstream)
            with program(*command, announces="the gateway is at ") as (process, url):
                await trio.to_thread.run_sync(until_all_serve, process, url)
                async with trio.open_nursery() as clients:
                    for number in range(6):
                        clients.start_soon(conversation, url, f"conv{number}")
                for id, ended in ends.items():
                    async with httpx2.AsyncClient(base_url=url, timeout=120) as client:
                        assert (await client.get(f"responses/{id}")).json() == ended
            nursery.cancel_scope.cancel()
    assert 1 < model.most <= LIMIT  # over all processes
    for name, asked in model.asked.items():  # and the model itself refuses two at once
        assert len(set(asked)) == len(asked)
        in_order = [number for number in asked if number in sent[name]]
        assert in_order == sorted(in_order)


@pytest.mark.slow
def test_a_response_goes_on_in_another_process_when_its_process_is_killed(tmp_path: Path) -> None:
    rng = random.Random(2)
    readers: list[tuple[str, str, Reader]] = []
    with program(*options(tmp_path, "--word-delay", "0.02"), announces="the gateway is at ") as (
        process,
        url,
    ):
        until_all_serve(process, url)
        for kill in range(times(3) + 1):
            for number, name in enumerate(("ann", "bob", "cleo", "dan")):
                text = f"long {rng.randrange(4, 9)} (#{kill}.{number})"
                body = {"conversation": name, "input": text, "background": True}
                try:
                    posted = httpx2.post(f"{url}/responses", json=body, timeout=60)
                except httpx2.TransportError:  # to the process that was killed
                    continue
                assert posted.status_code == 200, posted.text
                readers.append((name, text, Reader(posted.json()["id"])))
            time.sleep(rng.random())
            os.kill(rng.choice(children(process.pid)), signal.SIGKILL)
        assert len(readers) > 6
        for _, _, reader in readers:
            until = time.monotonic() + PATIENCE
            while not reader.ended:
                try:
                    with httpx2.Client(base_url=url, timeout=120) as client:
                        reader.read(client)
                except httpx2.TransportError:
                    assert time.monotonic() < until
        for _, _, reader in readers:
            last = reader.events[-1]["response"]
            assert last["status"] == "completed"
            (answer,) = [part["text"] for item in last["output"] for part in item["content"]]
            assert answer.startswith("1. A lane")
        with httpx2.Client(base_url=url, timeout=120) as client:
            for name in ("ann", "bob", "cleo", "dan"):
                asked = [text for whose, text, _ in readers if whose == name]
                answered = said(client, name)[::2]
                assert len(set(answered)) == len(answered)
                assert [text for text in answered if text in asked] == asked


SCENARIOS = ("loops", "modes", "threads", "functions", "completions", "hang_up")


@pytest.mark.parametrize(
    "arguments",
    [
        ("openai_sync.py", *SCENARIOS),
        pytest.param(("openai_socket.py",), marks=pytest.mark.thorough),
        pytest.param(("anthropic_sync.py",), marks=pytest.mark.thorough),
    ],
    ids=lambda arguments: arguments[0],
)
def test_clients_of_a_gateway_of_one_process_work_with_four(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    name, *scenarios = arguments
    more = ("--processes", "4", "--limit", "8")
    with program(*options(tmp_path, *more), announces="the gateway is at ") as (process, url):
        until_all_serve(process, url, 4)
        client(sys.executable, CLIENTS / name, url, *scenarios)


@pytest.mark.slow
def test_tool_loops_go_on_when_processes_are_killed(tmp_path: Path) -> None:
    rng = random.Random(3)

    def post(body: Any) -> httpx2.Response:
        until = time.monotonic() + PATIENCE
        while True:
            try:
                return httpx2.post(f"{url}/responses", json=body, timeout=120)
            except httpx2.TransportError:  # to the process that was killed: accepted, or not
                assert time.monotonic() < until

    with program(*options(tmp_path), announces="the gateway is at ") as (process, url):
        until_all_serve(process, url)
        for kill in range(times(2)):
            asked = [
                post({"input": f"weather in Paris (#{kill})", "tools": [FUNCTION]}).json()
                for _ in range(4)
            ]
            os.kill(rng.choice(children(process.pid)), signal.SIGKILL)
            for response in asked:
                (call,) = response["output"]
                output = {"type": "function_call_output", "call_id": call["call_id"]}
                body = {"input": [output | {"output": "sunny"}], "tools": [FUNCTION]}
                told = post(body | {"previous_response_id": response["id"]})
                assert told.status_code == 200, told.text
                (answer,) = told.json()["output"]
                assert answer["content"][0]["text"] == "sunny"
            until_all_serve(process, url)


@pytest.mark.parametrize("key", [{}, {"idempotency-key": "once"}])
@pytest.mark.parametrize("path", ["responses", "chat/completions"])
async def test_who_waits_at_processes_that_end_gets_an_answer_and_holds_none_of_them_up(
    path: str, key: dict[str, str], tmp_path: Path
) -> None:
    said = {"responses": {"input": "long 12"}}
    body = said.get(path, {"messages": [{"role": "user", "content": "long 12"}]})
    command = options(tmp_path, "--processes", "2", "--grace", "0", "--word-delay", "0.3")
    statuses = list[int]()

    async def post(url: str) -> None:
        async with httpx2.AsyncClient(base_url=url, timeout=PATIENCE) as client:
            reply = await client.post(path, json=body, headers=key)
            statuses.append(reply.status_code)

    with program(*command, announces="the gateway is at ") as (process, url):
        await trio.to_thread.run_sync(until_all_serve, process, url, 2)
        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(post, url)
                await trio.sleep(1)  # it is answered the same if it comes later
                process.send_signal(signal.SIGINT)
            told, _ = await trio.to_thread.run_sync(process.communicate)
    assert statuses == [503]
    assert "SIGKILL" not in told, told


def test_several_processes_need_a_folder() -> None:
    import subprocess

    from tests.support.programs import ROOT

    done = subprocess.run(
        [sys.executable, "-m", "examples.gateway", "--processes", "2"],
        capture_output=True, text=True, cwd=ROOT, timeout=PATIENCE,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "several processes need --durable FOLDER, which they share\n"


@pytest.fixture(scope="module")
def postgres() -> Iterator[Server]:
    need("PostgreSQL")
    found = programs()
    assert found is not None
    server = Server(found)
    try:
        server.start()
        yield server
    finally:
        server.remove()


def test_two_gateways_over_postgresql_finish_what_the_other_has_begun(
    tmp_path: Path, postgres: Server
) -> None:
    command = ("examples.gateway", "--port", "0", "--limit", "2", "--grace", "0", "--durable")
    command += (str(tmp_path), "--store", f"{postgres.dsn()}#gateway", "--word-delay", "0.02")
    announced = "the gateway is at "
    with program(*command, announces=announced) as (one, first):
        with program(*command, announces=announced) as (_, second):
            ids = []
            for text in ("long 12", "hello", "what is up?"):
                body = {"conversation": "ann", "input": text, "background": True}
                ids.append(httpx2.post(f"{first}/responses", json=body, timeout=60).json()["id"])
            with httpx2.Client(base_url=second, timeout=120) as client:
                reader = Reader(ids[0])
                reader.read(client, 8)
                for pid in (*children(one.pid), one.pid):
                    os.kill(pid, signal.SIGKILL)
                one.wait()
                for id in ids:
                    reader = reader if reader.id == id else Reader(id)
                    reader.read(client)
                    assert reader.events[-1]["type"] == "response.completed"
                assert said(client, "ann")[::2] == ["long 12", "hello", "what is up?"]
