"""What `PostgresStore` refuses when it is made or opened, and what it says to do."""

import logging
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import psycopg
import pytest
import trio

import trio_lanes.durable
from tests.durable.deploys import deploy, deploy_after_a_kill
from tests.support.needs import need, pgbouncer
from trio_lanes import LaneConfig, RateLimit
from trio_lanes.durable import (
    PostgresStore,
    StoreError,
    StoreUnavailableError,
    StoreVersionError,
    open_durable_lanes,
)
from trio_lanes.durable._postgres import link
from trio_lanes.durable._postgres.schema import SCHEMA_VERSION
from trio_lanes.durable.acts.inspection import StatusOf

from .server import PATIENCE, Server, not_root, programs

pytestmark = pytest.mark.real_processes


async def error_of(store: PostgresStore) -> StoreError:
    with pytest.raises(StoreError) as caught:
        async with open_durable_lanes(store, {}, worker=False):
            raise AssertionError("it was opened")
    return caught.value


@pytest.mark.parametrize(
    ("dsn", "options", "says"),
    [
        ("not a dsn", {}, "connection string"),
        ("postgresql://me:a/b@host/app", {}, "connection string"),
        ("host=x port=5432,5433 dbname=a@b", {"namespace": "Big"}, "namespace"),
        ("dbname=x", {"namespace": "Big"}, "namespace"),
        ("dbname=x", {"namespace": "pg_lanes"}, "namespace"),
        ("dbname=x", {"patience": 0}, "patience"),
    ],
)
def test_a_bad_argument_is_refused_when_the_store_is_made(
    dsn: str, options: dict[str, float], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        PostgresStore(dsn, **options)  # type: ignore[arg-type]


def test_no_message_shows_the_password() -> None:
    store = PostgresStore("postgresql://me:secret@db.example/app")
    assert "secret" not in repr(store)
    assert "app on db.example" in repr(store)


async def test_a_server_that_is_not_there_may_come_back() -> None:
    error = await error_of(PostgresStore("host=/nonexistent dbname=app"))
    assert isinstance(error, StoreUnavailableError)
    assert not error.unknown


async def test_a_database_that_does_not_exist_is_an_error(server: Server) -> None:
    error = await error_of(PostgresStore(server.dsn("nothing")))
    assert "make the database" in str(error)
    assert not isinstance(error, StoreUnavailableError)


async def test_a_wrong_password_is_an_error(server: Server) -> None:
    server.run("CREATE ROLE guarded LOGIN PASSWORD 'right'")
    rules = server.folder / "data" / "pg_hba.conf"
    rules.write_text("local all guarded scram-sha-256\n" + rules.read_text())
    server.run("SELECT pg_reload_conf()")
    while True:
        try:
            psycopg.connect(server.dsn(user="guarded"), password="wrong").close()
        except psycopg.OperationalError:
            break
        await trio.sleep(0.01)
    error = await error_of(PostgresStore(server.dsn(user="guarded") + "&password=wrong"))
    assert "check the user and the password" in str(error)
    error = await error_of(PostgresStore(server.dsn(user="guarded")))
    assert "check the user and the password" in str(error)


async def test_the_error_for_a_role_without_rights_names_the_rights(
    server: Server, namespace: str
) -> None:
    server.run("CREATE ROLE guest LOGIN")
    error = await error_of(PostgresStore(server.dsn(user="guest"), namespace=namespace))
    assert "grant the role the rights" in str(error)
    async with open_durable_lanes(PostgresStore(server.dsn(), namespace=namespace), {}):
        pass
    error = await error_of(PostgresStore(server.dsn(user="guest"), namespace=namespace))
    assert "grant the role the rights" in str(error)


async def test_a_role_works_with_the_rights_that_the_page_about_stores_names(
    server: Server, namespace: str
) -> None:
    async def echo(payload: int) -> int:
        async with lanes.lock("door"):
            return payload

    page = (Path(__file__).parents[3] / "docs/stores.md").read_text()
    grants = re.findall("GRANT .* ON .*SCHEMA lanes TO app;", page)
    assert len(grants) == 2
    async with open_durable_lanes(PostgresStore(server.dsn(), namespace=namespace), {}):
        pass
    server.run("CREATE ROLE app LOGIN")
    for grant in grants:
        server.run(grant.replace("SCHEMA lanes", f"SCHEMA {namespace}"))
    server.run(f"SELECT {namespace}.submit('echo', '1', key => 'k')")
    store = PostgresStore(server.dsn(user="app"), namespace=namespace)
    async with open_durable_lanes(store, {"echo": echo}) as lanes:
        assert await (await lanes.submit("echo", 1, key="k")).wait() == 1
        assert await (await lanes.submit("echo", 2)).wait() == 2
        assert (await lanes.check(repair=True)).problems == ()


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE {}.letters (id int)",
        "CREATE TABLE {0}.meta (program text, schema_version int);"
        "INSERT INTO {0}.meta VALUES ('post', 1)",
    ],
)
async def test_a_schema_of_another_program_is_refused(
    server: Server, namespace: str, statement: str
) -> None:
    server.run(f"CREATE SCHEMA {namespace}")
    server.run(statement.format(namespace))
    tables = f"SELECT count(*) FROM pg_tables WHERE schemaname = '{namespace}'"
    error = await error_of(PostgresStore(server.dsn(), namespace=namespace))
    assert isinstance(error, StoreVersionError)
    assert "choose another namespace" in str(error)
    assert server.run(tables) == [(1,)]


async def test_an_empty_schema_is_filled(server: Server, namespace: str) -> None:
    server.run(f"CREATE SCHEMA {namespace}")
    async with open_durable_lanes(PostgresStore(server.dsn(), namespace=namespace), {}) as lanes:
        assert (await lanes.statistics()).waiting == 0


async def test_a_store_that_makes_no_tables_opens_the_tables_of_another(
    server: Server, namespace: str
) -> None:
    looks = PostgresStore(server.dsn(), namespace=namespace, make=False)
    assert "a worker makes it at its start" in str(await error_of(looks))
    assert server.run(f"SELECT 1 FROM pg_namespace WHERE nspname = '{namespace}'") == []
    async with open_durable_lanes(PostgresStore(server.dsn(), namespace=namespace), {}):
        pass
    async with open_durable_lanes(looks, {}, worker=False) as lanes:
        assert (await lanes.statistics()).waiting == 0


@contextmanager
def newer_version() -> Iterator[None]:
    """A version of this library with one schema more."""
    toy = {SCHEMA_VERSION: "CREATE TABLE toy (x int);"}
    package = "trio_lanes.durable._postgres.schema"
    with (
        mock.patch.dict(f"{package}.MIGRATIONS", toy),
        mock.patch(f"{package}.SCHEMA_VERSION", SCHEMA_VERSION + 1),
    ):
        yield


async def test_only_a_worker_migrates_and_no_worker_of_the_older_version_may_live(
    server: Server, namespace: str
) -> None:
    await deploy(lambda: PostgresStore(server.dsn(), namespace=namespace), newer_version)


async def test_an_older_worker_that_was_killed_is_in_the_way_until_its_lease_is_over(
    server: Server, namespace: str
) -> None:
    def store() -> PostgresStore:
        return PostgresStore(server.dsn(), namespace=namespace)

    await deploy_after_a_kill(store, newer_version)


@pytest.mark.parametrize("schema", [0, 1, 99])
async def test_another_schema_is_refused(server: Server, namespace: str, schema: int) -> None:
    async with open_durable_lanes(PostgresStore(server.dsn(), namespace=namespace), {}):
        pass
    server.run(f"UPDATE {namespace}.meta SET schema_version = {schema}")
    error = await error_of(PostgresStore(server.dsn(), namespace=namespace))
    assert isinstance(error, StoreVersionError)
    assert f"has schema {schema}, and" in str(error)
    assert "let the version that wrote it do all its jobs" in str(error)


async def test_a_server_that_is_too_old_is_refused(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trio_lanes.durable._postgres.schema.OLDEST_SERVER", 990_000)
    error = await error_of(PostgresStore(server.dsn()))
    assert "upgrade the server" in str(error)


async def test_the_error_for_a_read_only_role_names_the_setting(server: Server) -> None:
    server.run("CREATE ROLE reader LOGIN SUPERUSER")
    server.run("ALTER ROLE reader SET default_transaction_read_only = on")
    error = await error_of(PostgresStore(server.dsn(user="reader")))
    assert "default_transaction_read_only=off" in str(error)


@pytest.mark.needs("PostgreSQL")
async def test_a_standby_is_refused() -> None:
    found = programs()
    assert found is not None
    standby = Server(found)
    try:
        (standby.folder / "data" / "standby.signal").touch()
        standby.start()
        error = await error_of(PostgresStore(standby.dsn()))
        assert "connect to the primary server" in str(error)
    finally:
        standby.remove()


async def test_a_database_with_another_encoding_is_refused(server: Server) -> None:
    server.run("CREATE DATABASE ascii ENCODING 'SQL_ASCII' TEMPLATE template0")
    error = await error_of(PostgresStore(server.dsn("ascii")))
    assert "UTF8" in str(error)


async def test_synchronous_commit_off_is_a_warning_only(
    server: Server, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    server.run("CREATE ROLE hasty LOGIN SUPERUSER")
    server.run("ALTER ROLE hasty SET synchronous_commit = off")
    with caplog.at_level(logging.WARNING, "trio_lanes.durable"):
        store = PostgresStore(server.dsn(user="hasty"), namespace=namespace)
        async with open_durable_lanes(store, {}) as lanes:
            assert (await lanes.statistics()).waiting == 0
    assert "synchronous_commit=off" in caplog.text


@pytest.mark.parametrize("level", ["repeatable read", "serializable", "read uncommitted"])
async def test_the_isolation_level_of_a_role_is_not_that_of_the_store(
    server: Server, namespace: str, level: str
) -> None:
    async def echo(payload: int) -> int:
        await trio.lowlevel.checkpoint()
        return payload

    role = f"strict_{namespace}"
    server.run(f"CREATE ROLE {role} LOGIN SUPERUSER")
    server.run(f"ALTER ROLE {role} SET default_transaction_isolation = '{level}'")
    one, two = (PostgresStore(server.dsn(user=role), namespace=namespace) for _ in range(2))
    async with open_durable_lanes(one, {"echo": echo}) as lanes:
        async with open_durable_lanes(two, {"echo": echo}) as others:

            async def submit(n: int) -> None:
                job = await (lanes, others)[n % 2].submit("echo", n, session=f"s{n % 7}")
                assert await job.wait() == n

            async with trio.open_nursery() as nursery:
                for n in range(50):
                    nursery.start_soon(submit, n)
        assert (await lanes.check()).problems == ()
        show = "SHOW transaction_isolation"
        row = await one._transact(lambda engine: engine.tables._execute(show).fetchone())  # type: ignore[attr-defined]
        assert row == ("read committed",)


@pytest.fixture
def pooler(server: Server) -> Iterator[Callable[[str], str]]:
    """A function that starts PgBouncer in a mode before the server, and returns its dsn."""
    need("PgBouncer")
    program = pgbouncer()
    assert program is not None
    started: list[subprocess.Popen[bytes]] = []

    def start(mode: str) -> str:
        settings = f"""
[databases]
postgres = host={server.folder} user=postgres
[pgbouncer]
unix_socket_dir = {server.folder}
listen_port = 6432
auth_type = any
pool_mode = {mode}
"""
        file = server.folder / "pgbouncer.ini"
        file.write_text(settings)
        started.append(
            subprocess.Popen(
                [program, file], stderr=subprocess.DEVNULL, cwd=server.folder, **not_root()
            )
        )
        dsn = f"{server.dsn()}&port=6432"
        until = time.monotonic() + PATIENCE
        while True:
            try:
                psycopg.connect(dsn, connect_timeout=5).close()
                return dsn
            except psycopg.OperationalError:
                assert time.monotonic() < until
                time.sleep(0.05)

    yield start
    for process in started:
        process.terminate()
        process.wait(PATIENCE)


async def test_a_pooler_that_keeps_no_sessions_is_refused_by_name(
    server: Server, namespace: str, pooler: Callable[[str], str]
) -> None:
    dsn = await trio.to_thread.run_sync(pooler, "transaction")
    error = await error_of(PostgresStore(dsn, namespace=namespace))
    assert "PgBouncer with pool_mode=transaction: set pool_mode=session" in str(error)
    found = f"SELECT count(*) FROM pg_namespace WHERE nspname = '{namespace}'"
    assert server.run(found) == [(0,)]


async def test_a_pooler_that_keeps_sessions_works(
    namespace: str, pooler: Callable[[str], str]
) -> None:
    async def echo(payload: int) -> int:
        await trio.lowlevel.checkpoint()
        return payload

    dsn = await trio.to_thread.run_sync(pooler, "session")
    async with open_durable_lanes(PostgresStore(dsn, namespace=namespace), {"echo": echo}) as lanes:
        with trio.fail_after(60):
            for n in range(20):
                assert await (await lanes.submit("echo", n)).wait() == n


async def test_every_statement_names_its_schema(
    server: Server, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trio_lanes.durable._postgres.listener.LOOKS_EVERY", (0.01, 0.02))

    async def echo(payload: int) -> int:
        await trio.lowlevel.checkpoint()
        return payload

    def connect_elsewhere(*args: Any, **options: Any) -> psycopg.Connection:
        connection = connect(*args, **options)
        connection.execute("SET search_path = nowhere")  # as another namespace leaves a session
        return connection

    connect = link.connect
    monkeypatch.setattr(link, "connect", connect_elsewhere)
    limits = {"main": LaneConfig(concurrency=3, rate=RateLimit(100, algorithm="sliding"))}
    quotas = {"q": RateLimit(100)}
    store = PostgresStore(server.dsn(), namespace=namespace)
    async with open_durable_lanes(store, {"echo": echo}, limits, quotas=quotas) as lanes:
        for n in range(3):
            assert await (await lanes.submit("echo", n, key=f"k{n}", session="s")).wait() == n
        server.run(f"SELECT {namespace}.submit('echo', '7')")
        async with lanes.lock("l"):
            await lanes.quota("q").spend()
        await lanes.log("log").append(1)
        await lanes.pause_for("main", 0.1)
        assert await lanes.log("log").delete()
        await trio.sleep(0.1)
        assert (await lanes.check(repair=True)).problems == ()


async def test_several_instances_may_open_a_new_namespace_at_once(
    server: Server, namespace: str
) -> None:
    async def use() -> None:
        async with open_durable_lanes(PostgresStore(server.dsn(), namespace=namespace), {}):
            pass

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(use)


async def test_a_store_is_open_in_one_block_only(server: Server, namespace: str) -> None:
    store = PostgresStore(server.dsn(), namespace=namespace)
    async with open_durable_lanes(store, {}) as lanes:
        with pytest.raises(RuntimeError, match="is open already"):
            async with open_durable_lanes(store, {}):
                raise AssertionError("it was opened")
        assert (await lanes.statistics()).waiting == 0
    with pytest.raises(StoreUnavailableError, match="is not open"):
        await store.look(StatusOf(1))


def test_without_psycopg_the_error_names_the_extra_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def import_module(name: str, package: str) -> object:
        raise ModuleNotFoundError("no", name="psycopg" if "_postgres" in name else "other")

    monkeypatch.delitem(vars(trio_lanes.durable), "PostgresStore", raising=False)
    monkeypatch.delitem(vars(trio_lanes.durable), "SqliteStore", raising=False)
    monkeypatch.setattr("trio_lanes.durable.import_module", import_module)
    with pytest.raises(ImportError, match=r"trio-lanes\[postgres\]"):
        _ = trio_lanes.durable.PostgresStore
    with pytest.raises(ModuleNotFoundError):
        _ = trio_lanes.durable.SqliteStore
