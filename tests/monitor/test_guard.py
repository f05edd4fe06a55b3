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
from tests.monitor.web import page as of_readers
from trio_lanes import open_lanes
from trio_lanes.monitor import monitor

PATHS = ["/", "/static/page.js", "/access", "/frames", "/history", "/job/1", "/session/ann"]


@pytest.mark.parametrize("path", PATHS)
async def test_without_authorize_who_has_the_key_may_read_from_wherever(path: str) -> None:
    async with open_lanes({"main": 1}) as lanes:
        app = monitor(lanes, key="a-key")
        for client in ("127.0.0.1", "10.0.0.7", None, "unix socket"):
            for wrong in ("", "?key=", "?key=a-ke", "?key=%C3%A9"):
                refused = await ask(app, path + wrong, client=client)
                assert refused.status == 401
                assert "TRIO_LANES_MONITOR_KEY" in refused.json["error"]
            cookies = await ask(app, "/?key=a-key", client=client)
            cookie = cookies.headers["set-cookie"].partition(";")[0]
            assert (await ask(app, path, cookie=f"{cookie}x", client=client)).status == 401
            if path != "/frames":
                assert (await ask(app, path, cookie=cookie, client=client)).status == 200
                known = await ask(app, f"{path}?key=a-key", client=client)
                assert known.status == (303 if path == "/" else 200)


async def test_a_page_that_is_opened_with_its_key_sets_a_cookie_and_leaves_the_key_out() -> None:
    async with open_lanes({"main": 1}) as lanes:
        answer = await ask(monitor(lanes, key="a-key"), "/?text=a%26b&key=a-key")
        assert answer.status == 303
        assert answer.headers["location"] == "/?text=a%26b"
        cookie = answer.headers["set-cookie"]
        assert "a-key" not in cookie
        assert {"HttpOnly", "Path=/", "SameSite=strict"} <= set(cookie.split("; "))
        assert "Secure" not in cookie
        assert answer.headers["referrer-policy"] == "no-referrer"
        proxied = await ask(monitor(lanes, key="a-key"), "/?key=a-key", x_forwarded_proto="https")
        assert "Secure" in proxied.headers["set-cookie"].split("; ")


async def test_a_cookie_is_for_the_path_of_the_page_and_for_all_pages_with_its_key() -> None:
    async with open_lanes({"main": 1}) as lanes:
        mounted = Starlette(routes=[Mount("/a b", monitor(lanes, key="one"))])
        at_mount = await ask(mounted, "/a%20b/?key=one")
        assert at_mount.headers["location"] == "/a%20b/"
        assert "Path=/a%20b;" in at_mount.headers["set-cookie"]
        proxied = monitor(lanes, key="one", prefix="/ops/lanes/")
        behind = await ask(proxied, "/?key=one")
        assert behind.headers["location"] == "/ops/lanes/"
        assert "Path=/ops/lanes;" in behind.headers["set-cookie"]
        cookie = behind.headers["set-cookie"].partition(";")[0]
        assert (await ask(monitor(lanes, key="one"), cookie=cookie)).status == 200
        assert (await ask(monitor(lanes, key="two"), cookie=cookie)).status == 401
        drawn = [monitor(lanes), monitor(lanes)]
        assert [(await ask(app, cookie=cookie)).status for app in drawn] == [401, 401]


async def test_a_key_is_the_argument_or_the_variable_or_is_drawn_and_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        monkeypatch.setenv("TRIO_LANES_MONITOR_KEY", " of-the-variable\n")
        assert (await ask(monitor(lanes), "/access?key=of-the-variable")).status == 200
        mine = monitor(lanes, key="mine")
        assert (await ask(mine, "/access?key=mine")).status == 200
        assert (await ask(mine, "/access?key=of-the-variable")).status == 401
        authorized = monitor(lanes, authorize=lambda connection: None)
        assert (await ask(authorized, "/access?key=of-the-variable")).status == 403
        assert caplog.records == []
        monkeypatch.setenv("TRIO_LANES_MONITOR_KEY", "")
        app = monitor(lanes, title="shop")
        (record,) = caplog.records
        assert (record.name, record.levelname) == ("trio_lanes.monitor", "WARNING")
        drawn = re.findall(r"\?key=(\S+)", record.getMessage())
        assert "TRIO_LANES_MONITOR_KEY" in record.getMessage()
        assert (await ask(app, f"/access?key={drawn[0]}")).json == {"role": "read", "token": ""}


async def test_a_host_that_is_not_named_is_refused_before_the_key_and_authorize_are_asked() -> None:
    async with open_lanes({"main": 1}) as lanes:
        asked: list[Any] = []
        by_key = monitor(lanes, key="a-key", hosts=["Shop.example", "2001:db8::1", "[2001:db8::2]"])
        by_role = monitor(lanes, authorize=lambda c: asked.append(c) or "operate")  # type: ignore[func-returns-value]
        for host in ("evil.example", "127.0.0.1.evil.example", "[::1", "", "shop.example.evil"):
            for app in (by_key, by_role):
                refused = await ask(app, "/access?key=a-key", host=host)
                assert refused.status == 403
                assert "hosts=" in refused.json["error"]
            assert (await ask(by_key, "/access", host=host)).status == 403
        assert asked == []
        for host in ("localhost", "127.0.0.1:8000", "[::1]:8000", "shop.example", "SHOP.example:1"):
            assert (await ask(by_key, "/access?key=a-key", host=host)).status == 200
        for host in ("[2001:db8::1]:8000", "[2001:db8::2]"):
            assert (await ask(by_key, "/access?key=a-key", host=host)).status == 200


async def test_bad_keys_hosts_and_prefixes_are_refused_at_the_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        for options, error in (
            ({"key": 5}, TypeError),
            ({"key": ""}, ValueError),
            ({"key": "a b"}, ValueError),
            ({"key": "a\n"}, ValueError),
            ({"key": "a", "authorize": lambda connection: None}, ValueError),
            ({"hosts": "shop.example"}, TypeError),
            ({"hosts": [""]}, ValueError),
            ({"hosts": [5]}, ValueError),
            ({"hosts": ["shop.example:8000"]}, ValueError),
            ({"hosts": ["shop.example:x"]}, ValueError),
            ({"hosts": ["https://shop.example"]}, ValueError),
            ({"prefix": 5}, TypeError),
            ({"prefix": "lanes"}, ValueError),
            ({"prefix": "//evil.example"}, ValueError),
            ({"prefix": "/a;b"}, ValueError),
        ):
            arguments: Any = options
            with pytest.raises(error, match=r"key|hosts|prefix"):
                monitor(lanes, **arguments)
        monkeypatch.setenv("TRIO_LANES_MONITOR_KEY", "a secret")
        with pytest.raises(ValueError, match="TRIO_LANES_MONITOR_KEY must be text") as caught:
            monitor(lanes)
        assert "a secret" not in str(caught.value)


async def test_without_authorize_no_client_may_act() -> None:
    async with open_lanes({"main": 1}) as lanes:
        app = monitor(lanes, key="a-key")
        assert (await ask(app, "/access?key=a-key")).json["token"] == ""
        body = b'{"do": "pause", "lane": "main"}'
        origin = f"http://{HOST}"
        for token in ("", "guess"):
            answer = await ask(
                app, "/act?key=a-key", method="POST", body=body, origin=origin, x_lanes_token=token
            )
            assert answer.status == 403
        assert not lanes.lane("main").paused


async def test_an_act_comes_from_this_site_by_the_name_and_by_ports_that_are_both_given() -> None:
    async with open_lanes({"main": 1}) as lanes:
        app = monitor(lanes, authorize=lambda connection: "operate", hosts=["shop.example"])
        token = await token_of(app)
        body = b'{"do": "limit", "lane": "main", "value": 2}'
        for origin, host, status in (
            ("https://shop.example", "shop.example", 200),
            ("https://shop.example:8443", "shop.example", 200),  # Debian's proxy_params
            ("https://shop.example", "shop.example:443", 200),
            ("https://shop.example:8443", "shop.example:8443", 200),
            ("https://shop.example:8443", "shop.example:8444", 403),
            ("https://shop.example:x", "shop.example:8444", 403),
            ("https://shop.example", "127.0.0.1:8000", 403),  # nginx's default
            ("https://evil.example", "shop.example", 403),
            ("null", "shop.example", 403),
        ):
            answer = await post(app, body, token, origin=origin, host=host)
            assert answer.status == status, (origin, host)
            if status == 403:
                assert repr(origin) in answer.json["error"]
                assert repr(host) in answer.json["error"]


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
        title = "<script>alert(1)</script>"
        app = monitor(lanes, authorize=lambda connection: "read", title=title)
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
        app = of_readers(lanes)
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
        app = of_readers(lanes)

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
        app = Starlette(routes=[Mount("/lanes", of_readers(lanes))])
        assert (await ask(app, "/lanes/")).status == 200
        assert (await ask(app, "/lanes/history")).json == {"ended": []}


async def test_bad_arguments_are_refused_at_the_call() -> None:
    with pytest.raises(TypeError, match="lanes must be Lanes"):
        monitor("lanes")  # type: ignore[arg-type]
    async with open_lanes({"main": 1}) as lanes:
        with pytest.raises(TypeError, match="authorize must be"):
            monitor(lanes, authorize="root")  # type: ignore[arg-type]
