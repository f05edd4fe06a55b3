"""ThreadLocks: shared and exclusive, in order, gone when unused."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Literal

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, assert_checkpoints, assert_no_checkpoints
from trio.testing import wait_all_tasks_blocked as settle

from trio_lanes.agents import ThreadLocks

pytestmark = pytest.mark.both_doors

Mode = Literal["shared", "exclusive"]


class Story:
    """Who came in when, while tasks hold the key ``"t"`` for as long as the test says."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.locks = ThreadLocks()
        self.inside: list[str] = []
        self.entered: list[str] = []
        self._nursery = nursery
        self._scopes: dict[str, trio.CancelScope] = {}
        self._leave: dict[str, trio.Event] = {}

    def lock(self, mode: Mode) -> AbstractAsyncContextManager[None]:
        return self.locks.shared("t") if mode == "shared" else self.locks.exclusive("t")

    async def come(self, name: str, mode: Mode) -> None:
        """A task wants the key, and now is in or in line."""
        self._leave[name] = trio.Event()
        self._scopes[name] = trio.CancelScope()
        self._nursery.start_soon(self._hold, name, mode)
        await settle()

    async def _hold(self, name: str, mode: Mode) -> None:
        with self._scopes[name]:
            async with self.lock(mode):
                self.inside.append(name)
                self.entered.append(name)
                try:
                    await self._leave[name].wait()
                finally:
                    self.inside.remove(name)

    async def leave(self, *names: str) -> None:
        for name in names:
            self._leave[name].set()
        await settle()

    async def cancel(self, name: str) -> None:
        self._scopes[name].cancel()
        await settle()


async def test_sharers_are_in_together() -> None:
    async with trio.open_nursery() as nursery:
        story = Story(nursery)
        for name in "abc":
            await story.come(name, "shared")
        assert sorted(story.inside) == ["a", "b", "c"]
        await story.leave("a", "b", "c")


async def test_who_is_exclusive_is_alone() -> None:
    async with trio.open_nursery() as nursery:
        story = Story(nursery)
        await story.come("a", "exclusive")
        await story.come("b", "exclusive")
        await story.come("c", "shared")
        assert story.inside == ["a"]
        await story.leave("a")
        assert story.inside == ["b"]
        await story.leave("b")
        assert story.inside == ["c"]
        await story.leave("c")


async def test_a_writer_is_not_starved_by_sharers_that_keep_coming() -> None:
    async with trio.open_nursery() as nursery:
        story = Story(nursery)
        await story.come("a", "shared")
        await story.come("w", "exclusive")
        await story.come("b", "shared")
        assert story.inside == ["a"]  # b could share with a, and stands behind w
        await story.leave("a")
        assert story.inside == ["w"]
        await story.leave("w")
        assert story.inside == ["b"]
        await story.leave("b")


async def test_sharers_in_a_row_come_in_together() -> None:
    async with trio.open_nursery() as nursery:
        story = Story(nursery)
        await story.come("w", "exclusive")
        await story.come("a", "shared")
        await story.come("b", "shared")
        await story.come("v", "exclusive")
        await story.come("c", "shared")
        await story.leave("w")
        assert sorted(story.inside) == ["a", "b"]
        await story.leave("a")
        assert story.inside == ["b"]
        await story.leave("b")
        assert story.inside == ["v"]
        await story.leave("v", "c")
        assert story.entered[-2:] == ["v", "c"]


async def test_a_writer_that_is_cancelled_lets_the_sharers_behind_it_in() -> None:
    async with trio.open_nursery() as nursery:
        story = Story(nursery)
        await story.come("a", "shared")
        await story.come("w", "exclusive")
        await story.come("b", "shared")
        await story.cancel("w")
        assert sorted(story.inside) == ["a", "b"]
        await story.leave("a", "b")
    assert "w" not in story.entered


async def test_keys_have_nothing_to_do_with_each_other(mock_clock: MockClock) -> None:
    locks = ThreadLocks()
    async with locks.exclusive("a"), locks.exclusive("b"), locks.shared(("c", 1)):
        assert len(locks) == 3


async def test_an_unused_key_is_gone() -> None:
    async with trio.open_nursery() as nursery:
        story = Story(nursery)
        assert len(story.locks) == 0
        await story.come("a", "exclusive")
        await story.come("b", "shared")
        assert len(story.locks) == 1
        assert "1 keys" in repr(story.locks)
        await story.cancel("b")
        await story.leave("a")
        assert len(story.locks) == 0


@pytest.mark.parametrize("held", ["shared", "exclusive"])
@pytest.mark.parametrize("wanted", ["shared", "exclusive"])
async def test_a_task_cannot_have_a_key_twice(held: Mode, wanted: Mode) -> None:
    async with trio.open_nursery() as nursery:
        story = Story(nursery)
        async with story.lock(held):
            with pytest.raises(RuntimeError, match="holds 't' already"):
                async with story.lock(wanted):
                    raise AssertionError
            assert len(story.locks) == 1
        async with story.lock(wanted):  # and afterwards it can
            pass
        assert len(story.locks) == 0


@pytest.mark.parametrize("mode", ["shared", "exclusive"])
async def test_entering_is_a_checkpoint_and_leaving_is_not(mode: Mode) -> None:
    locks = ThreadLocks()
    lock = locks.shared("t") if mode == "shared" else locks.exclusive("t")
    with assert_checkpoints():
        await lock.__aenter__()
    with assert_no_checkpoints():
        await lock.__aexit__(None, None, None)


async def test_entering_in_a_cancelled_scope_holds_nothing() -> None:
    locks = ThreadLocks()
    with trio.CancelScope() as scope:
        scope.cancel()
        async with locks.exclusive("t"):
            raise AssertionError
    assert scope.cancelled_caught
    assert len(locks) == 0


@pytest.mark.many_seeds(10)
async def test_a_lock_granted_in_the_tick_of_a_cancellation_is_given_back() -> None:
    async with trio.open_nursery() as nursery:
        story = Story(nursery)
        await story.come("a", "exclusive")
        await story.come("b", "exclusive")
        await story.come("c", "exclusive")
        story._leave["a"].set()
        story._scopes["b"].cancel()
        await settle()
        assert story.inside == ["c"]
        await story.leave("c")
        assert len(story.locks) == 0


async def test_a_failing_block_gives_its_lock_back() -> None:
    locks = ThreadLocks()
    with pytest.raises(KeyError):
        async with locks.exclusive("t"):
            raise KeyError
    assert len(locks) == 0


class Model:
    """What the locks of one key must do: who is in, and who is in line, with their modes."""

    def __init__(self) -> None:
        self.inside: dict[str, str] = {}
        self.line: list[tuple[str, str]] = []

    def serve(self) -> None:
        while self.line:
            name, mode = self.line[0]
            if self.inside and (mode == "exclusive" or "exclusive" in self.inside.values()):
                return
            self.inside[name] = mode
            del self.line[0]

    def come(self, name: str, mode: str) -> None:
        self.line.append((name, mode))
        self.serve()

    def go(self, name: str) -> None:
        self.inside.pop(name, None)
        self.line = [waiting for waiting in self.line if waiting[0] != name]
        self.serve()


@pytest.mark.trio_only("it runs Trio")
@given(st.random_module(), st.data())
def test_any_story_goes_as_the_model_says(seed: object, data: st.DataObject) -> None:
    async def main() -> None:
        model = Model()
        async with trio.open_nursery() as nursery:
            story = Story(nursery)
            here: list[str] = []
            for step in range(data.draw(st.integers(1, 25), label="steps")):
                if bool(here) and data.draw(st.booleans(), label="goes"):
                    name = data.draw(st.sampled_from(here), label="who")
                    here.remove(name)
                    model.go(name)
                    await story.cancel(name)
                else:
                    name = str(step)
                    mode: Mode = data.draw(st.sampled_from(["shared", "exclusive"]), label="mode")
                    here.append(name)
                    model.come(name, mode)
                    await story.come(name, mode)
                assert sorted(story.inside) == sorted(model.inside)
                assert len(story.locks) == bool(here)
            nursery.cancel_scope.cancel()
        assert len(story.locks) == 0

    trio.run(main)
