"""Affinity over a server: who is woken, who is not there, and long ready lists."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.durable.conformance.bench import Played, opening
from tests.support.programs import PATIENCE
from trio_lanes.durable import LaneLimit, ValkeyStore, open_durable_lanes

from ..test_affinity import claim, pages, settle, turn
from .server import Server

pytestmark = pytest.mark.real_processes
LONG = 36_000.0


@pytest.fixture(autouse=True)
def no_slow_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trio_lanes.durable._valkey.store.LOOKS_EVERY", (LONG, LONG))


async def test_a_turn_that_is_left_wakes_its_instance(server: Server, namespace: str) -> None:
    def instance(name: str) -> Any:
        async def run(payload: Any) -> str:
            return name

        store = ValkeyStore(server.url, namespace=namespace, patience=PATIENCE)
        return open_durable_lanes(store, {"turn": run}, affinity=LONG, lease_ttl=LONG)

    asking = ValkeyStore(server.url, namespace=namespace, patience=PATIENCE)
    with trio.fail_after(PATIENCE):
        async with instance("one") as one:
            assert await (await one.submit("turn", session="s")).wait() == "one"
            async with (
                instance("two") as two,
                instance("three") as three,
                open_durable_lanes(asking, {}, worker=False) as asker,
            ):
                for at in (two, three, asker) * 3:
                    assert await (await at.submit("turn", session="s")).wait() == "one"
                one.close()
                assert await (await two.submit("turn", session="s")).wait() in ("two", "three")


@asynccontextmanager
async def playing(server: Server, namespace: str) -> AsyncIterator[list[Played]]:
    async with AsyncExitStack() as opened:
        stores = []
        for _ in range(2):
            store = Played(ValkeyStore(server.url, namespace=namespace, patience=PATIENCE))
            limits = {"main": LaneLimit(1_000)}
            of = opening(["turn"], lanes=limits, affinity=LONG, lease_ttl=LONG)
            await opened.enter_async_context(store.open(of))
            await store.join()
            stores.append(store)
        yield stores


async def test_nothing_is_left_to_a_client_that_does_not_listen_any_more(
    server: Server, namespace: str
) -> None:
    home = Played(ValkeyStore(server.url, namespace=namespace, patience=PATIENCE))
    async with playing(server, namespace) as (other, _):
        async with home.open(opening(["turn"], affinity=LONG, lease_ttl=LONG)):
            await home.join()
            await settle(home, "s")
            assert await claim(other, turn()) == []
        # it has not left, and its lease is long
        with trio.fail_after(PATIENCE):
            while await claim(other) != ["s"]:  # noqa: ASYNC110  # the server hears of it later
                await trio.sleep(0.01)


async def test_however_many_turns_are_left_the_others_are_found(
    server: Server, namespace: str
) -> None:
    async with playing(server, namespace) as (home, other):
        await pages(home, other)


async def test_a_step_that_was_asked_ahead_does_not_hide_the_room_of_the_one_before(
    server: Server, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_goes, first_done = trio.Event(), trio.Event()
    gates = {"9": (first_goes, first_done), "0": (first_done, trio.Event())}  # {room: ...}
    async with playing(server, namespace) as (home, other):
        await settle(home, "s")
        call = home.store._call  # type: ignore[attr-defined]

        async def held(verb: str, *words: str, weight: int = 1) -> Any:
            before, after = gates[words[2]]
            await before.wait()
            answer = await call(verb, *words, weight=weight)
            after.set()
            return answer

        monkeypatch.setattr(home.store, "_call", held)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(home.step, [], 9)
            await wait_all_tasks_blocked()
            nursery.start_soon(home.step, [], 0)
            await wait_all_tasks_blocked()
            first_goes.set()
        monkeypatch.undo()
        assert await claim(other, turn()) == []
        await home.step([], 0)  # it has no room
        assert await claim(other) == ["s"]
