"""What `ValkeyStore` is given, and which servers and namespaces it refuses."""

import math
import re
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import trio

from tests.durable.deploys import deploy, deploy_after_a_kill
from tests.support.certificates import make_certificate
from trio_lanes import LaneConfig, RateLimit
from trio_lanes.durable import (
    StoreError,
    StoreRules,
    StoreUnavailableError,
    ValkeyStore,
    open_durable_lanes,
)
from trio_lanes.durable._valkey.address import read_address
from trio_lanes.durable._valkey.errors import refuse_server
from trio_lanes.durable.acts.inspection import AllLanes, AllRules, StatusOf
from trio_lanes.durable.acts.orders import Configure
from trio_lanes.durable.store import StoreVersionError

from .proxy import Proxy
from .server import Server, programs

pytestmark = pytest.mark.real_processes


async def echo(payload: Any) -> Any:
    await trio.lowlevel.checkpoint()
    return payload


async def use(store: ValkeyStore, **options: Any) -> Any:
    async with open_durable_lanes(store, {"echo": echo}, **options) as lanes:
        return await (await lanes.submit("echo", 1)).wait()


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("valkey://", "localhost:6379/0"),
        ("redis://h:1/2", "h:1/2"),
        ("rediss://user:p%40@h", "h:6379/0"),
        ("valkeys://h/", "h:6379/0"),
        ("unix:///run/valkey", "/run/valkey"),
        ("unix://:secret@/run/valkey?db=3", "/run/valkey"),
    ],
)
def test_a_url_says_where_the_server_is(url: str, shown: str) -> None:
    address = read_address(url)
    assert str(address) == shown
    assert "secret" not in repr(address)
    assert address.tls == url.startswith(("rediss", "valkeys"))


@pytest.mark.parametrize(
    "url",
    [
        *("", "h:6379", "http://h", "valkey://h:x", "valkey://h/x", "valkey://h?db=1"),
        *("valkey://h#lanes", "unix://h/path", "unix://", "unix:///p?db=x", "unix:///p?x=1"),
    ],
)
def test_a_bad_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"url|database|socket"):
        ValkeyStore(url)


@pytest.mark.parametrize("namespace", ["", "a b", "{a}", "a*", "a\n", "a" * 65])
def test_a_bad_namespace_is_refused(namespace: str) -> None:
    with pytest.raises(ValueError, match="namespace"):
        ValkeyStore("valkey://h", namespace=namespace)


def test_a_bad_ack_or_patience_is_refused() -> None:
    with pytest.raises(ValueError, match="ack"):
        ValkeyStore("valkey://h", ack="disk")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="patience"):
        ValkeyStore("valkey://h", patience=0)


async def test_without_a_server_the_store_is_unavailable() -> None:
    with pytest.raises(StoreUnavailableError, match="cannot be opened"):
        await use(ValkeyStore("valkey://127.0.0.1:1"))


async def test_a_store_is_opened_once_at_a_time(server: Server, namespace: str) -> None:
    store = ValkeyStore(server.url, namespace=namespace)
    assert namespace in repr(store)
    async with open_durable_lanes(store, {}, worker=False) as lanes:
        with pytest.raises(RuntimeError, match="open already"):
            async with open_durable_lanes(store, {}, worker=False):
                pass
        with pytest.raises(ValueError, match="surrogate"):
            await store.look(StatusOf("\ud800"))  # type: ignore[arg-type]
        await lanes.submit("a")
    with pytest.raises(StoreUnavailableError, match="not open"):
        await store.look(StatusOf(1))
    assert await use(store) == 1


async def test_only_a_worker_makes_a_namespace_for_the_command(
    server: Server, namespace: str
) -> None:
    with pytest.raises(StoreError, match="a worker makes them"):
        await use(ValkeyStore(server.url, namespace=namespace, make=False))
    assert server.ask("EXISTS", f"{{{namespace}}}:meta") == 0
    assert await use(ValkeyStore(server.url, namespace=namespace)) == 1
    assert await use(ValkeyStore(server.url, namespace=namespace, make=False)) == 1


@pytest.mark.parametrize(
    ("command", "match"),
    [
        (("SET", "x"), "another program"),
        (("HSET", "field", "x"), "another program"),
        (("HSET", "schema", "99"), "schema 99, and .* let the version that wrote it do all"),
        (("HSET", "schema", "1"), "schema 1, and"),
    ],
)
async def test_data_of_another_program_or_version_is_refused_and_untouched(
    server: Server, namespace: str, command: tuple[str, ...], match: str
) -> None:
    key = f"{{{namespace}}}:meta"
    server.ask(command[0], key, *command[1:])
    with pytest.raises(StoreVersionError, match=match):
        await use(ValkeyStore(server.url, namespace=namespace))
    assert server.ask("KEYS", re.sub(r"[{}]", "?", key[:-4]) + "*") == [key]


SCHEMA = 3


@contextmanager
def newer_version() -> Iterator[None]:
    """A version of this library with one schema more."""
    text = ValkeyStore("valkey://")._script.text
    for old, new in (
        (f"local SCHEMA = {SCHEMA}\n", f"local SCHEMA = {SCHEMA + 1}\n"),
        ("local MIGRATIONS = {}", f"local MIGRATIONS = {{ [{SCHEMA}] = function() end }}"),
    ):
        assert text.count(old) == 1
        text = text.replace(old, new)
    with mock.patch("trio_lanes.durable._valkey.store.source", return_value=text):
        yield


async def test_only_a_worker_migrates_and_no_worker_of_the_older_version_may_live(
    server: Server, namespace: str
) -> None:
    await deploy(lambda: ValkeyStore(server.url, namespace=namespace), newer_version)


@pytest.mark.parametrize("restarts", [False, True])
async def test_an_older_worker_that_was_killed_is_in_the_way_until_its_lease_is_over(
    own_server: Server, namespace: str, restarts: bool
) -> None:
    async def meanwhile() -> None:
        if restarts:  # time in which the server was away does not count
            own_server.stop()
            await trio.sleep(1.1)
            await trio.to_thread.run_sync(own_server.start)

    def store() -> ValkeyStore:
        return ValkeyStore(own_server.url, namespace=namespace)

    await deploy_after_a_kill(store, newer_version, meanwhile)


@pytest.mark.parametrize(
    ("schema", "match"), [(f"{SCHEMA}", "start a worker of this version"), ("99", "has schema 99")]
)
async def test_data_of_another_version_that_come_back_end_the_lanes(
    server: Server, namespace: str, schema: str, match: str
) -> None:
    with newer_version():
        store = ValkeyStore(server.url, namespace=namespace)
        async with open_durable_lanes(store, {}, worker=False) as lanes:
            server.ask("HSET", f"{{{namespace}}}:meta", "schema", schema)
            with pytest.raises(StoreVersionError, match=match):
                await lanes.submit("echo")


@pytest.mark.parametrize(
    ("info", "match"),
    [
        ({"redis_version": "6.0.9"}, "6.2"),
        ({}, "6.2"),
        ({"redis_version": "7.2.4", "role": "slave"}, "replica"),
        ({"redis_version": "7.2.4", "maxmemory_policy": "volatile-lru"}, "noeviction"),
    ],
)
def test_a_server_that_cannot_keep_jobs_is_refused(info: dict[str, str], match: str) -> None:
    refused = refuse_server("the server", info)
    assert refused is not None
    assert match in str(refused)
    assert refuse_server("the server", {"redis_version": "6.2.0"}) is None


async def test_a_server_that_evicts_or_wants_a_password_is_refused(own_server: Server) -> None:
    own_server.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    with pytest.raises(StoreError, match="set maxmemory-policy noeviction"):
        await use(ValkeyStore(own_server.url))
    own_server.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
    own_server.ask("CONFIG", "SET", "requirepass", "secret")
    try:
        with pytest.raises(StoreError, match="cannot be opened") as caught:
            await use(ValkeyStore(own_server.url))
        assert not isinstance(caught.value, StoreUnavailableError)
        host = own_server.url.removeprefix("valkey://")
        assert await use(ValkeyStore(f"redis://default:secret@{host}/3")) == 1
    finally:
        own_server.password("secret", "")


async def test_a_replica_is_refused_and_its_primary_is_named(own_server: Server) -> None:
    replica = Server(programs()["valkey"], replicaof=f"127.0.0.1 {own_server.port}")
    try:
        await trio.to_thread.run_sync(replica.start)
        with pytest.raises(StoreError, match=f"its primary is 127.0.0.1:{own_server.port}"):
            await use(ValkeyStore(replica.url))
    finally:
        replica.remove()


def _free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


async def test_a_sentinel_is_refused(own_server: Server, tmp_path: Path) -> None:
    port, settings = _free_port(), tmp_path / "sentinel.conf"
    watched = f"sentinel monitor m 127.0.0.1 {own_server.port} 1"
    settings.write_text(f"port {port}\nbind 127.0.0.1\n{watched}\n")
    command = [programs()["valkey"], str(settings), "--sentinel"]
    sentinel = subprocess.Popen(command, stdout=subprocess.DEVNULL)  # noqa: ASYNC220
    error: StoreError | None = None
    try:
        with trio.fail_after(60):
            while error is None or isinstance(error, StoreUnavailableError):  # it starts
                with pytest.raises(StoreError) as caught:
                    await use(ValkeyStore(f"valkey://127.0.0.1:{port}"))
                error = caught.value
    finally:
        sentinel.kill()
        sentinel.wait()
    assert "is a Sentinel" in str(error)


async def test_the_wrong_node_of_a_cluster_names_the_right_node(namespace: str) -> None:
    buses = [_free_port() for _ in range(2)]
    program = programs()["valkey"]
    nodes = [Server(program, cluster_enabled="yes", cluster_port=bus) for bus in buses]
    try:
        for node in nodes:
            await trio.to_thread.run_sync(node.start)
        one, other = nodes
        one.ask("CLUSTER", "MEET", "127.0.0.1", other.port, buses[1])
        one.ask("CLUSTER", "ADDSLOTSRANGE", 0, 8191)
        other.ask("CLUSTER", "ADDSLOTSRANGE", 8192, 16383)
        with trio.fail_after(60):
            while any("state:ok" not in node.ask("CLUSTER", "INFO") for node in nodes):  # noqa: ASYNC110
                await trio.sleep(0.05)
        slot = one.ask("CLUSTER", "KEYSLOT", f"{{{namespace}}}:meta")
        right, wrong = (one, other) if slot < 8192 else (other, one)
        with pytest.raises(StoreError, match=f"MOVED {slot} .*URL of 127.0.0.1:{right.port}, "):
            await use(ValkeyStore(wrong.url, namespace=namespace))
        assert await use(ValkeyStore(right.url, namespace=namespace)) == 1
    finally:
        for node in nodes:
            node.remove()


async def test_a_store_on_a_unix_socket(own_server: Server, namespace: str) -> None:
    store = ValkeyStore(f"unix://{own_server.folder}/socket?db=2", namespace=namespace)
    assert await use(store) == 1


async def test_rules_and_rates_are_kept_as_they_were_given(server: Server, namespace: str) -> None:
    store = ValkeyStore(server.url, namespace=namespace)
    rates = RateLimit(999_983, per=86_399.0, burst=7), RateLimit(1, per=0.5, algorithm="sliding")
    limits = {"main": LaneConfig(rate=rates)}
    async with open_durable_lanes(store, {"echo": echo}, limits) as lanes:
        await store.do(Configure({}, None, {"max_crashes": math.inf, "result_ttl": 9.5}), "ticket")
        assert await store.look(AllRules()) == StoreRules(9.5, math.inf, False)
        await store.do(Configure({}, None, {"max_crashes": 5, "hold": True}), "another")
        assert await store.look(AllRules()) == StoreRules(9.5, 5, True)
        assert (await store.look(AllLanes()))["main"].rates == rates
        assert await (await lanes.submit("echo", 1)).wait() == 1


@pytest.mark.parametrize("algorithm", ["gcra", "sliding"])
@pytest.mark.parametrize("per", [1e-300, 1.0, 1e300])
async def test_rates_of_any_size_are_taken(
    server: Server, namespace: str, algorithm: Any, per: float
) -> None:
    store = ValkeyStore(server.url, namespace=namespace)
    async with open_durable_lanes(store, {"echo": echo}) as lanes:
        for limit in (1, 1e300):
            rate = RateLimit(limit, per=per, algorithm=algorithm)
            await lanes.configure({f"{limit}": LaneConfig(rate=rate)})
            assert await (await lanes.submit("echo", 1, lane=f"{limit}")).wait() == 1


async def test_a_log_is_read_from_any_number(server: Server, namespace: str) -> None:
    store = ValkeyStore(server.url, namespace=namespace)
    async with open_durable_lanes(store, {"echo": echo}) as lanes:
        log = lanes.log("a")
        assert await log.append("x") == 1
        assert [record.number for record in await log.read(-1)] == [1]
        assert await log.read(10**30) == []
        with pytest.raises(ValueError, match="after"):
            await log.read(0.5)  # type: ignore[arg-type]


async def test_a_store_behind_tls(
    server: Server, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = make_certificate(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    proxy = Proxy(server.port, context)
    async with trio.open_nursery() as nursery:
        await nursery.start(proxy.serve)
        url = proxy.url.replace("valkey://127.0.0.1", "valkeys://localhost")
        with pytest.raises(StoreUnavailableError, match="certificate"):
            await use(ValkeyStore(url, namespace=namespace))
        plain = server.url.replace("valkey://127.0.0.1", "valkeys://localhost")
        with pytest.raises(StoreUnavailableError, match="does this port take TLS"):
            await use(ValkeyStore(plain, namespace=namespace, patience=0.3))
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert await use(ValkeyStore(url, namespace=namespace)) == 1
        nursery.cancel_scope.cancel()


async def test_a_connection_shows_where_it_leads(server: Server) -> None:
    connection = await read_address(server.url).connect()
    async with trio.open_nursery() as nursery:
        await nursery.start(connection.run)
        assert f"127.0.0.1:{server.port}/0" in repr(connection)
        nursery.cancel_scope.cancel()
