"""The page behind a real nginx: README's program under uvicorn asks everybody for its key."""

from __future__ import annotations

import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest
import trio

from tests.support.programs import PATIENCE, Program, running
from tests.support.proxies import free_port, nginx, until_served

pytestmark = [pytest.mark.real_processes, pytest.mark.needs("nginx")]

PROXY_PARAMS = "/etc/nginx/proxy_params"  # Debian's
PATHS = ["", "static/page.js", "access", "frames", "history", "job/1", "session/ann", "durable"]
OTHERS_APP = """
from contextlib import asynccontextmanager
from fastapi import FastAPI
from trio_lanes.aio import monitor, open_lanes

@asynccontextmanager
async def lifespan(app):
    async with open_lanes({"main": 1}) as lanes:
        app.mount("/lanes", monitor(lanes, hosts=["shop.example"]))
        yield

app = FastAPI(lifespan=lifespan)
"""


@asynccontextmanager
async def uvicorn(folder: Path, app: str, *options: str) -> AsyncIterator[tuple[Program, int]]:
    """The program ``app`` in ``folder`` under uvicorn, and its port."""
    port = free_port()
    arguments = ["--app-dir", str(folder), "--port", str(port), "--no-access-log", *options]
    async with running("-m", "uvicorn", *arguments, app) as program:
        try:
            yield program, port
        finally:
            with trio.CancelScope(shield=True):
                program.process.send_signal(signal.SIGINT)
                await program.process.wait()


@asynccontextmanager
async def seen_by(
    folder: Path, location: str, path: str = "/"
) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of an nginx with that location, whose path is ``path``."""
    port = free_port()
    site = f"server {{ listen 127.0.0.1:{port}; {location} }}"
    url = f"http://127.0.0.1:{port}"
    async with nginx(folder, site), httpx2.AsyncClient(base_url=url, timeout=PATIENCE) as client:
        await until_served(client, path)
        yield client


async def key_in_the_log(program: Program) -> str:
    line = await program.line("for who has its key")
    return re.findall(r"\?key=(\S+)", line)[0]


async def statuses(client: httpx2.AsyncClient, **headers: str) -> set[int]:
    """The statuses of all paths of the page."""
    return {
        (await client.get(f"/lanes/{path}", headers=headers)).status_code
        for path in PATHS
        if path != "frames" or headers.get("Cookie") is None
    }


async def test_the_program_of_the_readme_is_shut_behind_the_defaults_of_nginx(
    tmp_path: Path,
) -> None:
    async with uvicorn(Path("examples"), "fastapi_app:app") as (program, port):
        key = await key_in_the_log(program)
        location = f"location / {{ proxy_pass http://127.0.0.1:{port}; }}"
        async with seen_by(tmp_path, location) as visitor:
            assert await statuses(visitor) == {401}
            rebound = {"Host": "evil.example"}
            assert await statuses(visitor, **rebound) == {401}  # nginx sends another Host
            page = await visitor.get(f"/lanes/?key={key}", follow_redirects=True)
            assert "lanes – monitor" in page.text
            assert page.url.query == b""
            assert set(visitor.cookies)
            (cookie,) = visitor.cookies.items()
            request = f"GET /lanes/frames HTTP/1.1\r\nHost: x\r\nCookie: {'='.join(cookie)}\r\n\r\n"
            connection = await trio.open_tcp_stream("127.0.0.1", visitor.base_url.port or 0)
            async with connection:
                await connection.send_all(request.encode())
                read = b""
                while b"data: {" not in read:
                    read += await connection.receive_some()
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as here:
            assert await statuses(here) == {401}
            assert await statuses(here, **rebound) == {403}


@pytest.mark.skipif(not Path(PROXY_PARAMS).exists(), reason="for want of nginx")
async def test_behind_the_proxy_params_of_debian_a_host_must_be_named_and_the_key_be_known(
    tmp_path: Path,
) -> None:
    async with uvicorn(Path("examples"), "fastapi_app:app") as (program, port):
        key = await key_in_the_log(program)
        location = f"location / {{ proxy_pass http://127.0.0.1:{port}; include {PROXY_PARAMS}; }}"
        async with seen_by(tmp_path, location) as visitor:
            shop = {"Host": "shop.example", "X-Forwarded-Proto": "https"}
            assert await statuses(visitor, **shop) == {403}
            refused = await visitor.get(f"/lanes/?key={key}", headers=shop)
            assert "hosts=" in refused.json()["error"]
    (tmp_path / "named.py").write_text(OTHERS_APP)
    async with uvicorn(tmp_path, "named:app") as (program, port):
        key = await key_in_the_log(program)
        location = f"location / {{ proxy_pass http://127.0.0.1:{port}; include {PROXY_PARAMS}; }}"
        async with seen_by(tmp_path, location) as visitor:
            assert await statuses(visitor, **shop) == {401}
            assert await statuses(visitor, Host="evil.example") == {403}
            opened = await visitor.get(f"/lanes/?key={key}", headers=shop)
            assert opened.headers["location"] == "/lanes/"
            cookie = opened.headers["set-cookie"].partition(";")[0]
            assert await statuses(visitor, **shop, Cookie=cookie) == {200}


async def test_under_a_prefix_the_page_and_its_cookie_are_at_the_path_of_the_proxy(
    tmp_path: Path,
) -> None:
    options = ("--root-path", "/ops")
    async with uvicorn(Path("examples"), "fastapi_app:app", *options) as (program, port):
        key = await key_in_the_log(program)
        location = f"location /ops/ {{ proxy_pass http://127.0.0.1:{port}/; }}"
        async with seen_by(tmp_path, location, "/ops/") as visitor:
            assert (await visitor.get("/ops/lanes/access")).status_code == 401
            opened = await visitor.get(f"/ops/lanes/?key={key}")
            assert opened.headers["location"] == "/ops/lanes/"
            assert "Path=/ops/lanes;" in opened.headers["set-cookie"]
            assert (await visitor.get("/ops/lanes/access")).json()["role"] == "read"
            script = await visitor.get("/ops/lanes/static/page.js")
            assert script.status_code == 200


async def visits(base_url: str, path: str) -> list[httpx2.Response]:
    """Answers to visitors with a connection each, so that each worker has some."""
    answers = []
    for _ in range(40):
        async with httpx2.AsyncClient(base_url=base_url, timeout=PATIENCE) as visitor:
            answers.append(await visitor.get(path))
    return answers


async def test_two_workers_share_the_key_of_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIO_LANES_MONITOR_KEY", "shared")
    async with uvicorn(Path("examples"), "fastapi_app:app", "--workers", "2") as (program, port):
        for _ in range(2):
            await program.until("Application startup complete")
        location = f"location / {{ proxy_pass http://127.0.0.1:{port}; }}"
        async with seen_by(tmp_path, location) as visitor:
            url = str(visitor.base_url)
            assert {x.status_code for x in await visits(url, "/lanes/access")} == {401}
            known = await visits(url, "/lanes/access?key=shared")
            assert {x.status_code for x in known} == {200}
            await visitor.get("/lanes/?key=shared")
            by_cookie = {(await visitor.get("/lanes/access")).status_code for _ in range(40)}
            assert by_cookie == {200}


async def test_two_workers_without_the_variable_refuse_each_others_keys_and_say_its_name(
    tmp_path: Path,
) -> None:
    async with uvicorn(Path("examples"), "fastapi_app:app", "--workers", "2") as (program, port):
        keys = [await key_in_the_log(program), await key_in_the_log(program)]
        assert keys[0] != keys[1]
        location = f"location / {{ proxy_pass http://127.0.0.1:{port}; }}"
        async with seen_by(tmp_path, location) as visitor:
            url = str(visitor.base_url)
            assert {x.status_code for x in await visits(url, "/lanes/access")} == {401}
            answers: list[httpx2.Response] = []
            while {x.status_code for x in answers} != {200, 401}:
                answers += await visits(url, f"/lanes/access?key={keys[0]}")
            refused = next(x for x in answers if x.status_code == 401)
            assert "TRIO_LANES_MONITOR_KEY" in refused.json()["error"]
