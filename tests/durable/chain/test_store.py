"""A store over a storage that fails, is cut, lacks its store, or goes back to older data."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from trio_lanes.durable import (
    DurableLanes,
    StoreError,
    StoreUnavailableError,
    open_durable_lanes,
)
from trio_lanes.durable._chain.memory import _send
from trio_lanes.durable.storage import (
    Batch,
    Fate,
    MemoryNamespace,
    MemoryStorage,
    StorageError,
    StorageStore,
)


class Faulty:
    """A storage whose calls something befalls: {the call's name: a function before it}."""

    def __init__(self, memory: MemoryNamespace, befalls: dict[str, Callable[[], None]]) -> None:
        self._inner = MemoryStorage(memory)
        self.name = "the storage"
        self._befalls = befalls
        self.cuts = 0

    def __getattr__(self, name: str) -> Any:
        if name in self._befalls:
            self._befalls[name]()
        return getattr(self._inner, name)

    def cut(self) -> None:
        self.cuts += 1
        self._befalls["read"] = lambda: None


class Once:
    """Does something the first times that it is called."""

    def __init__(self, does: Callable[[], None], times: int = 1) -> None:
        self.does, self.left = does, times

    def __call__(self) -> None:
        if self.left:
            self.left -= 1
            self.does()


def fail(**options: Any) -> Callable[[], None]:
    def failing() -> None:
        raise StorageError("no", **options)

    return failing


@pytest.fixture
def memory(mock_clock: MockClock) -> MemoryNamespace:
    mock_clock.autojump_threshold = 0.001
    return MemoryNamespace(mock_clock.current_time)


async def echo(payload: Any) -> Any:
    return payload


@asynccontextmanager
async def opened(
    memory: MemoryNamespace, befalls: dict[str, Callable[[], None]] | None = None, **options: Any
) -> AsyncIterator[DurableLanes]:
    store = StorageStore(lambda me: Faulty(memory, befalls or {}))
    async with open_durable_lanes(store, {"echo": echo}, {"main": 2}, **options) as lanes:
        yield lanes


def unwrapped(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


@pytest.mark.parametrize(
    ("passes", "kind"),
    [(True, StoreUnavailableError), (False, StoreError)],
    ids=["passes", "stays"],
)
async def test_a_storage_that_cannot_be_opened_is_an_error_that_names_it(
    memory: MemoryNamespace, passes: bool, kind: type[Exception]
) -> None:
    with pytest.raises((Exception, BaseExceptionGroup)) as raised:
        async with opened(memory, {"open": fail(passes=passes)}):
            pytest.fail("it is open")
    error = unwrapped(raised.value)
    assert type(error) is kind
    assert str(error) == "the storage: no"


async def test_a_store_is_open_once_and_its_repr_names_the_storage(
    memory: MemoryNamespace,
) -> None:
    store = StorageStore(lambda me: MemoryStorage(memory))
    assert "not opened yet" in repr(store)
    async with open_durable_lanes(store, {"echo": echo}, {"main": 1}):
        assert repr(store) == "<trio_lanes.durable.storage.StorageStore memory>"
        with pytest.raises((RuntimeError, BaseExceptionGroup)) as raised:
            async with open_durable_lanes(store, {"echo": echo}, {"main": 1}):
                pytest.fail("it is open twice")
        assert isinstance(unwrapped(raised.value), RuntimeError)


async def test_a_store_that_is_not_there_is_made_by_who_may_make_it(
    memory: MemoryNamespace,
) -> None:
    def asking() -> StorageStore:
        return StorageStore(lambda me: MemoryStorage(memory), make=False)

    with pytest.raises((StoreError, BaseExceptionGroup)) as raised:
        async with open_durable_lanes(asking(), {}, {"main": 1}, worker=False):
            pytest.fail("it is open")
    assert "a worker makes it" in str(unwrapped(raised.value))
    assert not memory.chain
    async with opened(memory), open_durable_lanes(asking(), {}, {"main": 1}, worker=False) as lanes:
        assert await (await lanes.submit("echo", 5)).wait() == 5


async def test_two_instances_that_open_at_once_have_one_store(memory: MemoryNamespace) -> None:
    def another() -> None:
        async def other() -> None:
            async with opened(memory):
                pass

        trio.run(other)

    befalls: dict[str, Callable[[], None]] = {"commit": Once(another)}
    async with opened(memory, befalls) as lanes, opened(memory) as others:
        assert (await lanes.statistics()).store == (await others.statistics()).store


async def test_a_commit_whose_answer_is_lost_is_unknown_to_its_caller_and_not_done_twice(
    memory: MemoryNamespace,
) -> None:
    class Losing(Faulty):
        lost = 0

        def commit(self, batch: Batch) -> Fate:
            fate = self._inner.commit(batch)
            if batch.accepts and not Losing.lost:
                Losing.lost += 1
                raise StorageError("the answer is lost", unknown=True)
            return fate

    ran: list[Any] = []

    async def note(payload: Any) -> None:
        ran.append(payload)

    store = StorageStore(lambda me: Losing(memory, {}))
    async with open_durable_lanes(store, {"note": note}, {"main": 2}) as lanes:
        with pytest.raises(StoreUnavailableError) as raised:
            await lanes.submit("note", 1, key="k")
        assert raised.value.unknown
        await (await lanes.submit("note", 1, key="k")).wait()
    assert Losing.lost == 1
    assert ran == [1]


async def test_an_act_is_done_again_as_often_as_others_have_their_turns(
    memory: MemoryNamespace,
) -> None:
    class Late(Faulty):
        left = 0

        def commit(self, batch: Batch) -> Fate:
            if Late.left:
                Late.left -= 1
                return Fate(memory.clock(), False, memory.newest, wait=1e-9)
            return self._inner.commit(batch)

    store = StorageStore(lambda me: Late(memory, {}))
    async with open_durable_lanes(store, {"echo": echo}, {"main": 2}) as lanes:
        Late.left = 2_000  # more than Python's stack has room for
        assert await (await lanes.submit("echo", 1)).wait() == 1


async def test_a_question_goes_on_where_others_commit_between_its_reads(
    memory: MemoryNamespace,
) -> None:
    async with opened(memory) as lanes, opened(memory) as others:
        for number in range(3):
            await (await others.submit("echo", number)).wait()

        def meanwhile() -> None:
            trio.from_thread.run(others.submit, "echo", 9)

        look = StorageStore(lambda me: Faulty(memory, {"read": Once(meanwhile, 20)}))
        async with open_durable_lanes(look, {}, {}, worker=False) as asking:
            assert len(await asking.jobs()) >= 3
            assert (await asking.check()).problems == ()
        assert (await lanes.check()).problems == ()


async def test_a_long_question_that_fails_is_an_error_and_the_store_goes_on(
    memory: MemoryNamespace,
) -> None:
    befalls: dict[str, Callable[[], None]] = {}
    async with opened(memory, befalls) as lanes:
        befalls["open"] = Once(fail())
        with pytest.raises(StoreUnavailableError, match="the storage: no"):
            await lanes.check()
        assert (await lanes.check()).problems == ()


async def test_a_storage_with_older_data_is_compared_with_what_runs(
    memory: MemoryNamespace,
) -> None:
    begun, cancelled = trio.Event(), trio.Event()

    async def waits(payload: Any) -> None:
        begun.set()
        try:
            await trio.sleep_forever()
        finally:
            cancelled.set()

    store = StorageStore(lambda me: MemoryStorage(memory))
    async with open_durable_lanes(store, {"waits": waits}, {"main": 2}, grace=0) as lanes:
        with memory.lock:
            before = copy.deepcopy((memory.maps, memory.sets, list(memory.chain)))
        await lanes.submit("waits")
        await begun.wait()
        with memory.lock:  # the job was accepted after the copy was made
            for now, then in zip((memory.maps, memory.sets), before[:2], strict=True):
                now.clear()
                now.update(then)
            memory.chain.clear()
            memory.chain.extend(before[2])
        with trio.fail_after(60):
            await cancelled.wait()
        assert (await lanes.check()).problems == ()


async def test_a_call_that_stands_still_is_cut_when_its_caller_has_waited_enough(
    memory: MemoryNamespace, mock_clock: MockClock
) -> None:
    mock_clock.autojump_threshold = float("inf")
    released = trio.Event()
    storages: list[Faulty] = []

    def connect(me: str) -> Faulty:
        storages.append(Faulty(memory, {}))
        return storages[-1]

    store = StorageStore(connect, patience=0.2)
    async with open_durable_lanes(store, {}, {"main": 1}, worker=False, lease_ttl=9) as lanes:
        token = trio.lowlevel.current_trio_token()

        def stands_still() -> None:
            trio.from_thread.run(released.wait, trio_token=token)

        storages[0]._befalls["commit"] = Once(stands_still)
        with pytest.raises(StoreUnavailableError):
            await lanes.submit("echo")
        assert storages[0].cuts >= 1
        released.set()


async def test_a_hint_for_a_listener_that_is_slow_or_gone_is_lost() -> None:
    send, receive = trio.open_memory_channel[str](1)
    _send(send, "one")
    _send(send, "two")
    assert await receive.receive() == "one"
    await receive.aclose()
    _send(send, "three")


def test_a_hint_for_a_run_that_has_ended_is_lost() -> None:
    memory = MemoryNamespace()
    storage = MemoryStorage(memory)
    storage.cut()  # nothing stands still in memory

    async def listens() -> None:
        hints = storage.hints()
        assert await anext(hints) is None
        memory.listeners["kept"] = memory.listeners[storage]  # type: ignore[index]
        await hints.aclose()

    trio.run(listens)
    memory.listeners["kept"]("a hint")  # type: ignore[index]
    assert storage not in memory.listeners
