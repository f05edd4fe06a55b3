"""How a server keeps the script: as functions, or else as a script."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import trio

from tests.durable.conformance.bench import opening
from tests.support.needs import need
from trio_lanes.durable import (
    DurableLanes,
    NoRetry,
    StoreError,
    StoreUnavailableError,
    ValkeyStore,
    open_durable_lanes,
)
from trio_lanes.durable._valkey.errors import RIGHTS
from trio_lanes.durable._valkey.script import Kept, Script, source

from .server import Server, programs
from .test_calls import calls
from .test_faults import Echo, result_of, submit_all

pytestmark = pytest.mark.real_processes


def limited(server: Server, *rules: str) -> str:
    """Make a user with these rules; return the URL."""
    server.ask("ACL", "SETUSER", "limited", "on", ">secret", "~*", "&*", "+@all", *rules)
    return server.url.replace("://", "://limited:secret@")


async def run_jobs(url: str, namespace: str, server: Server, flush: str) -> None:
    """Run jobs before and after the server has lost what it keeps."""
    store = ValkeyStore(url, namespace=namespace)
    with trio.fail_after(60):
        async with open_durable_lanes(store, {"echo": Echo()}) as lanes:
            first = await submit_all(lanes, range(5))
            assert [await result_of(job) for job in first] == [*range(5)]
            server.ask(flush, "FLUSH")
            second = await submit_all(lanes, range(5))
            assert [await result_of(job) for job in second] == [*range(5)]


async def test_functions_are_loaded_once_and_called(own_server: Server, namespace: str) -> None:
    await run_jobs(own_server.url, namespace, own_server, "FUNCTION")
    assert calls(own_server, "evalsha") == 0
    assert calls(own_server, r"function\|load") == 2


async def test_a_user_who_may_load_no_functions_has_a_script(
    own_server: Server, namespace: str
) -> None:
    await run_jobs(limited(own_server, "-function"), namespace, own_server, "SCRIPT")
    assert own_server.ask("FUNCTION", "LIST") == []
    assert calls(own_server, r"script\|load") == 2


async def test_functions_that_are_there_are_called_by_a_user_who_may_load_none(
    own_server: Server, namespace: str
) -> None:
    own_server.ask(*Script(source()).as_library.load)
    await run_jobs(limited(own_server, "-function"), namespace, own_server, "SCRIPT")
    assert calls(own_server, "evalsha") == 0


async def test_a_user_who_may_not_wait_for_replicas_is_refused_at_opening(
    own_server: Server, namespace: str
) -> None:
    url = limited(own_server, "-wait")
    with pytest.raises(StoreError, match=r"cannot be opened: .*no permissions.*wait") as caught:
        async with open_durable_lanes(
            ValkeyStore(url, namespace=namespace, ack="replica"), {"echo": Echo()}
        ):
            raise AssertionError
    assert type(caught.value) is StoreError
    await run_jobs(url, namespace, own_server, "FUNCTION")


@pytest.fixture
def old_server(tmp_path: Path) -> Iterator[Server]:
    """A server that has no functions, as before version 7.0."""
    need("Valkey")
    (tmp_path / "conf").write_text('rename-command FCALL ""\n')
    server = Server(programs()["valkey"], include=str(tmp_path / "conf"))
    try:
        server.start()
        yield server
    finally:
        server.remove()


async def test_a_server_that_has_no_functions_has_a_script(
    old_server: Server, namespace: str
) -> None:
    await run_jobs(old_server.url, namespace, old_server, "SCRIPT")
    assert old_server.ask("FUNCTION", "LIST") == []


@pytest.mark.parametrize("program", ["own_server", "redis_server"])
async def test_the_least_rights_of_a_user_are_enough_and_an_error_names_them(
    request: pytest.FixtureRequest, namespace: str, program: str
) -> None:
    server: Server = request.getfixturevalue(program)
    least = *RIGHTS.split(), f"~{{{namespace}}}:*", f"&{{{namespace}}}:*"
    nothing = "-@all", "resetkeys", "resetchannels"
    for lacks in least:
        if lacks in ("+@connection", "+@read"):  # others bring what is needed at the opening
            continue
        url = limited(server, *nothing, *(right for right in least if right != lacks))
        with pytest.raises(StoreError, match=re.escape(f"needs the rights {' '.join(least)}")):
            async with open_durable_lanes(ValkeyStore(url, namespace=namespace), {}):
                raise AssertionError
    await run_jobs(limited(server, *nothing, *least), namespace, server, "FUNCTION")


async def test_a_user_who_may_run_no_script_is_refused(own_server: Server, namespace: str) -> None:
    url = limited(own_server, "-@scripting")
    with pytest.raises(StoreError, match="no permissions"):
        await run_jobs(url, namespace, own_server, "SCRIPT")


@pytest.mark.parametrize("setting", ["maxmemory", "min-replicas-to-write"])
async def test_a_server_that_takes_no_writes_can_be_read(
    own_server: Server, namespace: str, setting: str
) -> None:
    store = ValkeyStore(own_server.url, namespace=namespace, patience=2)
    async with open_durable_lanes(store, {}, worker=False) as lanes:
        job = await lanes.submit("echo")
        own_server.ask("CONFIG", "SET", setting, "1")
        assert [status.id for status in await lanes.jobs()] == [job.id]
        assert (await lanes.statistics()).waiting == 1
        with pytest.raises(StoreUnavailableError):
            await lanes.submit("echo")
        own_server.ask("CONFIG", "SET", setting, "0")
        assert [status.id for status in await lanes.jobs()] == [job.id]


@pytest.fixture(params=["valkey", "redis"])
def small_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    server: Server = request.getfixturevalue(
        {"valkey": "own_server", "redis": "redis_server"}[request.param]
    )
    yield server
    server.ask("CONFIG", "SET", "maxmemory", "0")


@pytest.mark.parametrize("rules", [(), ("-function",)], ids=["functions", "script"])
async def test_a_server_without_memory_refuses_new_data_and_all_else_goes_on(
    small_server: Server, namespace: str, rules: tuple[str, ...]
) -> None:
    gate, begun, refused, ran = trio.Event(), trio.Event(), 0, []

    async def work(payload: Any) -> Any:
        ran.append(payload)
        begun.set()
        if payload == 0:
            await gate.wait()
        if payload == 3:
            raise NoRetry("no")
        return payload

    async def submit_all_the_time(lanes: DurableLanes) -> None:
        nonlocal refused
        while True:
            with pytest.raises(StoreUnavailableError, match="OOM") as caught:
                await lanes.submit("work", -1)
            assert not caught.value.unknown
            refused += 1
            await trio.sleep(0.01)

    store = ValkeyStore(limited(small_server, *rules), namespace=namespace, patience=0.5)
    with trio.fail_after(60):
        async with open_durable_lanes(store, {"work": work}, {"main": 1}, lease_ttl=1.5) as lanes:
            jobs = [await lanes.submit("work", n) for n in range(5)]
            await begun.wait()
            small_server.ask("CONFIG", "SET", "maxmemory", "1")
            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(submit_all_the_time, lanes)
                await trio.sleep(2)  # longer than the lease
                assert await lanes.cancel(jobs[1].id)
                gate.set()
                assert await jobs[0].wait() == 0
                assert await jobs[2].wait() == 2
                assert await jobs[4].wait() == 4
                assert await lanes.purge(failed=True) == 1
                nursery.cancel_scope.cancel()
            assert ran == [0, 2, 3, 4]
            assert [job.crashes for job in await lanes.jobs()] == [0] * 4
            assert (await lanes.check()).problems == ()
            assert refused
            small_server.ask("CONFIG", "SET", "maxmemory", "0")
            assert await (await lanes.submit("work", 9)).wait() == 9


async def test_a_worker_that_starts_on_a_server_without_memory_drains_it(
    own_server: Server, namespace: str
) -> None:
    store = ValkeyStore(own_server.url, namespace=namespace, patience=2)
    async with open_durable_lanes(store, {}, worker=False) as lanes:
        jobs = await submit_all(lanes, range(9))
        own_server.ask("FUNCTION", "FLUSH")
        own_server.ask("CONFIG", "SET", "maxmemory", "1")
        worker = ValkeyStore(own_server.url, namespace=namespace)
        async with open_durable_lanes(worker, {"echo": Echo()}):
            assert [await result_of(job) for job in jobs] == [*range(9)]


async def test_functions_that_are_lost_again_and_again_are_unavailable(
    own_server: Server, namespace: str
) -> None:
    store = ValkeyStore(own_server.url, namespace=namespace, patience=0.5)
    lost = b"FCALL", "lost"
    kept = Kept(store._script.as_library.load, lost, lost, lost)
    store._script = mock.Mock(as_library=kept, reads=frozenset(), grows=frozenset())
    with pytest.raises(StoreUnavailableError, match="Function not found"):
        async with store.open(opening()):
            pass
    assert 1 < calls(own_server, r"function\|load") < 15


async def test_a_connection_that_hangs_while_functions_are_loaded_is_cut(
    own_server: Server, namespace: str
) -> None:
    store = ValkeyStore(own_server.url, namespace=namespace, patience=2)
    lost = b"FCALL", "lost"
    with trio.fail_after(60):
        async with open_durable_lanes(store, {}, worker=False) as lanes:
            assert store._link is not None
            hangs = Kept((b"BLPOP", "none", "0"), lost, lost, lost)
            kept, store._link._kept = store._link._kept, hangs
            with pytest.raises(StoreUnavailableError) as caught:
                await lanes.submit("echo")
            assert not caught.value.unknown
            store._link._kept = kept
            (job,) = await submit_all(lanes, range(1))
            assert (await job.status()).id == job.id
