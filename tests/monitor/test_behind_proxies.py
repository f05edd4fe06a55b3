"""The page at a public name behind a real nginx and a real Caddy, which end TLS.

Their configurations are the files that the docs show, with other ports and other certificates.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, closing
from functools import partial
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx2
import pytest
import trio
from playwright.sync_api import BrowserContext, Page, expect, sync_playwright

from examples.proxies.pages import serve_pages
from tests.monitor.test_browser import FLAGS
from tests.support.certificates import make_certificate
from tests.support.needs import chromium
from tests.support.programs import PATIENCE, ROOT
from tests.support.proxies import caddy, free_port, nginx, until_served
from trio_lanes import Lanes, open_lanes
from trio_lanes.monitor import Role, serve_monitor

pytestmark = [
    pytest.mark.real_processes,
    pytest.mark.parametrize(
        "proxy",
        [
            pytest.param("nginx", marks=pytest.mark.needs("nginx")),
            pytest.param("Caddy", marks=pytest.mark.needs("Caddy")),
        ],
    ),
]

HOST = "ops.example.org"
FILES = {"nginx": "nginx.conf", "Caddy": "Caddyfile"}
DEFAULTS = {
    "nginx": """server {
        listen 443 ssl;
        ssl_certificate /etc/ssl/certs/ops.pem;
        ssl_certificate_key /etc/ssl/private/ops.key;
        location / { proxy_pass http://127.0.0.1:8000; }
    }""",
    "Caddy": "ops.example.org {\n reverse_proxy 127.0.0.1:8000\n}",
}
PATHS = ("", "static/page.js", "access", "frames", "history", "job/1", "session/ann", "durable")
PAUSE = {"do": "pause", "lane": "main"}


class HereResolver(trio.abc.HostnameResolver):
    """Finds each name on this machine."""

    async def getaddrinfo(self, host: Any, port: Any, *args: Any) -> Any:
        return await trio.socket.getaddrinfo("127.0.0.1", port, *args)

    async def getnameinfo(self, sockaddr: Any, flags: int) -> Any:
        raise NotImplementedError


class Site(NamedTuple):
    """A proxy in front of pages."""

    ports: dict[str, int]
    """The ports that were taken, by those of the configuration."""
    trusted: ssl.SSLContext

    def url(self, path: str, port: str = "443") -> str:
        return f"https://{HOST}:{self.ports[port]}{path}"

    def visitor(self, **cookies: str) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(verify=self.trusted, timeout=PATIENCE, cookies=cookies)

    async def until_served(self) -> None:
        """Wait for the proxy and for what serves the pages."""
        async with self.visitor() as visitor:
            await until_served(visitor, self.url("/"))

    @property
    def pages(self) -> dict[str, str]:
        """The path of the cookie of each page of the docs, by its address."""
        return {
            self.url("/lanes/"): "/lanes",
            self.url("/shop/lanes/"): "/shop/lanes",
            self.url("/jobs/"): "/jobs",
            self.url("/", "8443"): "/",
        }


@asynccontextmanager
async def behind(proxy: str, configuration: str, folder: Path) -> AsyncIterator[Site]:
    """A proxy with that configuration, but for its ports and certificates."""
    ports = {port: free_port() for port in ("443", "8443", "8000", "8001", "8765", "8766")}
    configuration = re.sub(
        rf"\b({'|'.join(ports)})\b", lambda port: str(ports[port[0]]), configuration
    )
    trio.socket.set_custom_hostname_resolver(HereResolver())
    async with AsyncExitStack() as stack:
        if proxy == "nginx":
            trusted, key = make_certificate(folder, HOST)
            configuration = configuration.replace("listen ", "listen 127.0.0.1:")
            configuration = configuration.replace("/etc/ssl/certs/ops.pem", str(trusted))
            configuration = configuration.replace("/etc/ssl/private/ops.key", str(key))
            await stack.enter_async_context(nginx(folder, configuration))
        else:
            trusted = await stack.enter_async_context(caddy(folder, configuration, ports["443"]))
        while not trusted.exists():  # noqa: ASYNC110
            await trio.sleep(0.01)
        yield Site(ports, ssl.create_default_context(cafile=trusted))


@asynccontextmanager
async def pages_behind(
    proxy: str, folder: Path, **options: Any
) -> AsyncIterator[tuple[Lanes, Site]]:
    """The pages of the docs behind the proxy of the docs."""
    configuration = (ROOT / "examples/proxies" / FILES[proxy]).read_text("utf-8")
    with trio.fail_after(PATIENCE):
        async with (
            open_lanes({"main": 1}) as lanes,
            behind(proxy, configuration, folder) as site,
            trio.open_nursery() as nursery,
        ):
            _, _, *upstreams = site.ports.values()
            await nursery.start(partial(serve_pages, lanes, tuple(upstreams), **options))
            await site.until_served()
            yield lanes, site
            nursery.cancel_scope.cancel()


def who(connection: Any) -> Role | None:
    roles: dict[str, Role] = {"of-an-operator": "operate", "of-a-reader": "read"}
    return roles.get(connection.cookies.get("key", ""))


def origin_of(url: str) -> str:
    return url.removesuffix(urlsplit(url).path)


async def frame_comes_alone(site: Site, url: str, cookie: str) -> bool:
    """Whether the first frame comes by itself: what a proxy keeps back comes with the next."""
    parts = urlsplit(url)
    stream = await trio.open_ssl_over_tcp_stream(HOST, parts.port or 443, ssl_context=site.trusted)
    request = f"GET {parts.path}frames HTTP/1.1\r\nHost: {parts.netloc}\r\nCookie: {cookie}\r\n\r\n"
    came = b""
    async with stream:
        await stream.send_all(request.encode())
        while b"data: " not in came:
            came += await stream.receive_some()
    return came.count(b"data: ") == 1


async def test_the_page_its_files_and_its_stream_are_for_who_has_the_key(
    proxy: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with pages_behind(proxy, tmp_path) as (_, site):
        keys = re.findall(r"\?key=([\w-]+)", caplog.text)
        assert len(set(keys)) == 4
        cookies: dict[str, str] = {}
        for (url, path), key in zip(site.pages.items(), keys, strict=True):
            async with site.visitor() as owner, site.visitor() as stranger:
                opened = await owner.get(f"{url}?key={key}")
                assert opened.headers["location"] == f"{path.rstrip('/')}/"
                (cookie,) = SimpleCookie(opened.headers["set-cookie"]).values()
                assert cookie["secure"]
                assert cookie["httponly"]
                assert cookie["samesite"] == "strict"
                assert cookie["path"] == path
                page = await owner.get(url)
                assert "lanes – monitor" in page.text
                files = re.findall(r'"(static/[\w.]+)"', page.text)
                assert len(files) == 3
                for file in files:
                    assert (await owner.get(url + file)).status_code == 200
                assert (await owner.get(f"{url}access")).json() == {"role": "read", "token": ""}
                # a busy machine, too, joins frames
                tries = [
                    await frame_comes_alone(site, url, f"{cookie.key}={cookie.value}")
                    for _ in range(3)
                ]
                assert any(tries)
                act = await owner.post(f"{url}act", json=PAUSE, headers={"Origin": origin_of(url)})
                assert "you may look, and not act" in act.json()["error"]

                for part in PATHS:
                    assert (await stranger.get(url + part)).status_code == 401
                for wrong in {*keys, "guess"} - {key}:
                    assert (await stranger.get(f"{url}?key={wrong}")).status_code == 401
                for name, value in cookies.items():  # of the pages before
                    sent = {"Cookie": f"{name}={value}"}
                    assert (await stranger.get(url, headers=sent)).status_code == 401
                for header, value in (
                    ("Origin", "https://evil.example"),
                    ("Sec-Fetch-Site", "cross-site"),
                ):
                    assert (await owner.get(url, headers={header: value})).status_code == 403
                assert await is_shut(owner, f"{url}?key={key}", proxy, {"Host": "evil.example"})
                cookies[cookie.key] = cookie.value


async def is_shut(
    visitor: httpx2.AsyncClient, url: str, proxy: str, headers: dict[str, str]
) -> bool:
    """Whether a request with a rebound Host is refused."""
    answer = await visitor.get(url, headers=headers)
    if proxy == "Caddy":  # which has no such site, and answers with nothing
        return (answer.status_code, answer.text) == (200, "")
    return answer.status_code == 403


async def test_an_act_is_for_who_may_operate_and_comes_from_the_page(
    proxy: str, tmp_path: Path
) -> None:
    async with pages_behind(proxy, tmp_path, authorize=who) as (lanes, site):
        token = ""  # of the page before
        for url in site.pages:
            async with site.visitor(key="of-an-operator") as operator:
                other, token = token, (await operator.get(f"{url}access")).json()["token"]
                right = {"Origin": origin_of(url), "X-Lanes-Token": token}
                for change, status in (
                    ({"Origin": "https://evil.example"}, 403),
                    ({"Origin": "null"}, 403),
                    ({"X-Lanes-Token": other}, 403),
                    ({"Cookie": "key=of-a-reader"}, 403),
                    ({"Cookie": "key=of-nobody"}, 403),
                ):
                    act = await operator.post(f"{url}act", json=PAUSE, headers={**right, **change})
                    assert act.status_code == status, change
                rebound = {"Host": "evil.example", "Origin": "https://evil.example"}
                await operator.post(f"{url}act", json=PAUSE, headers={**right, **rebound})
                assert await is_shut(operator, f"{url}access", proxy, rebound)
                assert not lanes.lane("main").paused
                act = await operator.post(f"{url}act", json=PAUSE, headers=right)
                assert act.status_code == 200
                assert lanes.lane("main").paused
                lanes.resume("main")


async def test_behind_the_defaults_a_page_without_hosts_is_shut_or_can_be_read(
    proxy: str, tmp_path: Path
) -> None:
    with trio.fail_after(PATIENCE):
        async with (
            open_lanes({"main": 1}) as lanes,
            behind(proxy, DEFAULTS[proxy], tmp_path) as site,
            trio.open_nursery() as nursery,
            site.visitor() as visitor,
        ):
            url = site.url("/")
            port = site.ports["8000"]
            await nursery.start(partial(serve_monitor, lanes, port=port, key="a-key"))
            await site.until_served()
            answers = [(await visitor.get(url + path)) for path in PATHS]
            opened = await visitor.get(f"{url}?key=a-key")
            if proxy == "Caddy":  # it sends the Host that the browser names
                assert {answer.status_code for answer in [*answers, opened]} == {403}
                assert "hosts=" in opened.json()["error"]
            else:  # nginx sends that of its upstream
                assert {answer.status_code for answer in answers} == {401}
                assert opened.status_code == 303
                assert "Secure" not in opened.headers["set-cookie"]  # it does not tell of TLS
                assert "lanes – monitor" in (await visitor.get(url)).text
                act = await visitor.post(
                    f"{url}act", json=PAUSE, headers={"Origin": origin_of(url)}
                )
                assert act.status_code == 403
                assert "must send the Host that the browser names" in act.json()["error"]
            nursery.cancel_scope.cancel()


class Chromium:
    """A browser for which HOST is this machine; it is used in a thread of its own."""

    def __init__(self) -> None:
        self.thread = ThreadPoolExecutor(1)
        self.thread.submit(self._launch).result()

    def _launch(self) -> None:
        flags = [
            *FLAGS,
            "--ignore-certificate-errors",
            f"--host-resolver-rules=MAP {HOST} 127.0.0.1",
        ]
        self._playwright = sync_playwright().start()
        self._browser = self._playwright.chromium.launch(
            executable_path=chromium(), args=flags, timeout=PATIENCE * 1000 / 2
        )

    async def drive(self, drive: Callable[[BrowserContext, Callable[..., Any]], None]) -> None:
        """Have ``drive`` use the browser; its second argument calls a function where Trio is."""
        call = partial(trio.from_thread.run_sync, trio_token=trio.lowlevel.current_trio_token())

        def in_thread() -> None:
            with self._browser.new_context() as context:
                drive(context, call)

        await trio.to_thread.run_sync(lambda: self.thread.submit(in_thread).result())

    def close(self) -> None:
        self.thread.submit(self._browser.close).result()
        self.thread.submit(self._playwright.stop).result()
        self.thread.shutdown()


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    with closing(Chromium()) as browser:
        yield browser


def see_live(page: Page) -> None:
    expect(page.locator("#link")).to_have_text("live")
    assert page.evaluate("isSecureContext")


@pytest.mark.needs("Chromium")
async def test_chromium_keeps_the_key_for_the_path_of_the_page(
    proxy: str, tmp_path: Path, browser: Chromium
) -> None:
    async with pages_behind(proxy, tmp_path, key="a-key") as (_, site):
        url, path = next(page for page in site.pages.items() if page[1] == "/jobs")

        def drive(context: BrowserContext, call: Callable[..., Any]) -> None:
            page = context.new_page()
            page.goto(f"{url}?key=a-key#lane=main")
            see_live(page)
            assert page.url == f"{url}#lane=main"
            (cookie,) = context.cookies()
            assert (cookie["path"], cookie["secure"], cookie["httpOnly"]) == (path, True, True)
            page.reload()
            see_live(page)

        await browser.drive(drive)


@pytest.mark.needs("Chromium")
async def test_chromium_follows_the_stream_below_a_path_and_at_a_port_and_acts(
    proxy: str, tmp_path: Path, browser: Chromium
) -> None:
    async with pages_behind(proxy, tmp_path, authorize=who) as (lanes, site):

        def drive(context: BrowserContext, call: Callable[..., Any]) -> None:
            context.add_cookies(
                [{"name": "key", "value": "of-an-operator", "domain": HOST, "path": "/"}]
            )
            for url in (site.url("/shop/lanes/"), site.url("/", "8443")):
                page = context.new_page()
                page.goto(url)
                see_live(page)
                row = page.locator("lanes-table tbody tr").filter(has_text="main")
                row.locator("summary").click()
                row.get_by_role("button", name="Pause").click()
                expect(row).to_contain_text("paused until it is resumed")
                call(lanes.submit_nowait, trio.lowlevel.checkpoint)
                expect(row).to_contain_text("1 waiting")
                call(lanes.resume)
                expect(row).to_contain_text("0 waiting")
                page.close()

        await browser.drive(drive)
