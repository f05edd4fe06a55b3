"""Who may look and act: roles, hosts, origins, tokens, bounds."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import trio
from starlette.applications import Starlette
from starlette.routing import Mount
from trio.testing import MockClock

from tests.monitor.web import HOST, ask, looking, post, token_of
from trio_lanes import open_lanes
from trio_lanes.monitor import monitor

PATHS = ["/", "/static/page.js", "/access", "/frames", "/history", "/job/1", "/session/ann"]


@pytest.mark.parametrize("path", PATHS)
async def test_without_authorize_only_this_machine_may_look(path: str) -> None:
    async with open_lanes({"main": 1}) as lanes:
        app = monitor(lanes)
        assert (await ask(app, path, client="10.0.0.7")).status == 403
        assert (await ask(app, path, client=None)).status == 403
        assert (await ask(app, path, client="unix socket")).status == 403
        for host in ("evil.example", "evil.example:8000", "127.0.0.1.evil.example", "[::1", ""):
            assert (await ask(app, path, host=host)).status == 403
        if path != "/frames":
            for host in ("localhost", "127.0.0.1:8000", "[::1]:8000"):
                assert (await ask(app, path, host=host)).status == 200


async def test_without_authorize_no_client_may_act() -> None:
    async with open_lanes({"main": 1}) as lanes:
        app = monitor(lanes)
        assert await token_of(app) == ""
        assert (await post(app, b'{"do": "pause", "lane": "main"}', "")).status == 403
        assert not lanes.lane("main").paused


@pytest.mark.parametrize("is_async", [False, True])
async def test_authorize_says_what_a_connection_may_do(is_async: bool) -> None:
    def who(connection: Any) -> Any:
        return {"root": "operate", "guest": "read"}.get(connection.headers.get("x-user"))

    async def later(connection: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return who(connection)

    async with open_lanes({"main": 1}) as lanes:
        app = monitor(lanes, authorize=later if is_async else who)
        options: dict[str, Any] = {"client": "10.0.0.7", "host": HOST}
        assert (await ask(app, **options)).status == 403
        guest = await ask(app, "/access", x_user="guest", **options)
        assert guest.json == {"role": "read", "token": ""}
        root = (await ask(app, "/access", x_user="root", **options)).json
        assert root["role"] == "operate"
        body = b'{"do": "pause", "lane": "main"}'
        assert (await post(app, body, root["token"], x_user="guest", **options)).status == 403
        assert (await post(app, body, "guess", x_user="root", **options)).status == 403
        assert not lanes.lane("main").paused
        assert (await post(app, body, root["token"], x_user="root", **options)).status == 200
        assert lanes.lane("main").paused


async def test_authorize_that_returns_another_value_is_an_error() -> None:
    async with open_lanes({"main": 1}) as lanes:
        wrong: Any = lambda connection: "admin"  # noqa: E731
        with pytest.raises(TypeError, match="authorize must return"):
            await ask(monitor(lanes, authorize=wrong))


async def test_requests_from_other_sites_are_refused() -> None:
    async with open_lanes({"main": 1}) as lanes:
        app = monitor(lanes, authorize=lambda connection: "operate")
        token = await token_of(app)
        for origin in ("http://evil.example", "null", "http://[", f"http://{HOST}.evil.example"):
            body = b'{"do": "pause", "lane": "main"}'
            assert (await post(app, body, token, origin=origin)).status == 403
            assert (await ask(app, "/history", origin=origin)).status == 403
        assert (await ask(app, "/history", sec_fetch_site="cross-site")).status == 403
        assert (await ask(app, "/history", sec_fetch_site="same-origin")).status == 200
        without = await ask(
            app, "/act", method="POST", body=b"{}", x_lanes_token=token
        )  # no page sends none
        assert without.status == 403
        assert not lanes.lane("main").paused


async def test_the_page_has_a_policy_with_a_new_nonce_and_no_markup_of_others() -> None:
    async with open_lanes({"main": 1}) as lanes:
        app = monitor(lanes, title="<script>alert(1)</script>")
        pages = [await ask(app) for _ in range(2)]
        nonces = []
        for page in pages:
            assert b"<script>alert" not in page.body
            policy = page.headers["content-security-policy"]
            nonces += re.findall("script-src 'nonce-([^']+)'", policy)
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert page.headers["x-frame-options"] == "DENY"
            assert nonces[-1].encode() in page.body
            assert b"{{" not in page.body
        assert nonces[0] != nonces[1]


async def test_files_of_the_page_are_small_and_no_others_are_served() -> None:
    size = 0
    async with open_lanes({"main": 1}) as lanes:
        app = monitor(lanes)
        page = (await ask(app)).body.decode()
        names = set(re.findall(r'"static/([\w.]+)"', page))
        for name in list(names):
            text = (await ask(app, f"/static/{name}")).body.decode()
            names |= set(re.findall(r'(?:from|import) "\./([\w.]+)"', text))
        for name in names:
            answer = await ask(app, f"/static/{name}")
            assert answer.status == 200
            size += len(answer.body)
        assert {"page.js", "page.css", "story.js"} <= names
        # 2 KiB above 60, for the locks, the quotas and the paused sessions of durable lanes
        assert size <= 66 * 1024
        assert (await ask(app, "/static/page.html")).status == 404
        assert (await ask(app, "/static/..")).status == 404


async def test_viewers_are_bounded(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 1}) as lanes, trio.open_nursery() as nursery:
        app = monitor(lanes)

        async def look() -> None:
            async with looking(app) as viewer:
                viewers.append(viewer)
                await trio.sleep(10)

        viewers: list[Any] = []
        for _ in range(40):
            nursery.start_soon(look)
        await trio.sleep(5)
        assert sorted(viewer.status for viewer in viewers) == [200] * 32 + [503] * 8
        nursery.cancel_scope.cancel()


async def test_actions_are_bounded_in_length_time_and_number(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 1}) as lanes:
        app = monitor(lanes, authorize=lambda connection: "operate")
        token = await token_of(app)
        assert (await post(app, b"[" * 5000, token)).status == 413
        assert (await post(app, None, token)).status == 413
        assert (await post(app, b"", token, leaves=True)).status == 413
        assert (await post(app, b"\xff", token)).status == 400
        assert (await post(app, b"[" * 4000, token)).status == 400
        wrongs: list[object] = [[], {}, {"do": 3}, {"do": "destroy"}]
        for wrong in wrongs:
            assert (await post(app, json.dumps(wrong).encode(), token)).status == 400
        body = b'{"do": "limit", "lane": "main", "value": 2}'
        found = [(await post(app, body, token)).status for _ in range(25)]
        assert found == [200] * 20 + [429] * 5
        await trio.sleep(1)
        assert (
            await post(app, b'{"do": "limit", "lane": "main", "value": 2}', token)
        ).status == 200


async def test_it_is_mounted_in_an_application() -> None:
    async with open_lanes({"main": 1}) as lanes:
        app = Starlette(routes=[Mount("/lanes", monitor(lanes))])
        assert (await ask(app, "/lanes/")).status == 200
        assert (await ask(app, "/lanes/history")).json == {"ended": []}


async def test_bad_arguments_are_refused_at_the_call() -> None:
    with pytest.raises(TypeError, match="lanes must be Lanes"):
        monitor("lanes")  # type: ignore[arg-type]
    async with open_lanes({"main": 1}) as lanes:
        with pytest.raises(TypeError, match="authorize must be"):
            monitor(lanes, authorize="root")  # type: ignore[arg-type]
