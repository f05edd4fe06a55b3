"""A conversation under random turns, against a small model of what must stand in the thread.

Each example drives several turns of one thread, step by step or several at once: they write, are
refused, finish, fail, are cancelled and interrupted. After every step all that can be read is
compared with the model. A thread in a file is cut at random bytes at the end, as by a crash, and
what is then read is compared with what the model had when the last whole commit was written.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import attrs
import pytest
import trio
from hypothesis import event, given, settings
from hypothesis import strategies as st

from tests.support.chaos import examples
from trio_lanes.agents import (
    Conversation,
    ConversationTurn,
    JsonlTranscript,
    MemoryTranscript,
    Message,
    TranscriptError,
    TranscriptStore,
)

Row: TypeAlias = tuple[str, Any, str, tuple[str, ...], "str | None"]


def rows(messages: Sequence[Message]) -> list[Row]:
    return [
        (m.role, m.content, m.status, tuple(c["id"] for c in m.tool_calls), m.tool_call_id)
        for m in messages
    ]


@attrs.define
class Said:
    """What one side says; an assistant's calls with their results."""

    role: Literal["user", "assistant"]
    text: str = ""
    calls: dict[str, str | None] = attrs.field(factory=dict)


@attrs.define
class Sketch:
    """The model of one exchange; its last entry is always the assistant's that may grow."""

    said: list[Said]
    status: str = "in_progress"
    rolled_back: bool = False

    @property
    def last(self) -> Said:
        return self.said[-1]

    def growing(self) -> Said | None:
        """Where text may be added; None if nowhere."""
        if self.status != "in_progress" or None in self.last.calls.values():
            return None
        if self.last.calls:
            self.said.append(Said("assistant"))
        return self.last

    def do(self, action: Action) -> bool:
        """Do it, if that is allowed; whether it is."""
        before = copy.deepcopy(self.said)
        allowed = self._do(action)
        if not allowed:
            self.said = before
        return allowed

    def _do(self, action: Action) -> bool:
        given = self.last.calls
        match action:
            case ("rollback",):
                self.status, self.rolled_back = "incomplete", True
                return True
            case ("append", text):
                if (answer := self.growing()) is not None:
                    answer.text += text
                    return True
            case ("call", calls):
                is_new = not given or None not in given.values()
                is_open = bool(given) and set(given.values()) == {None}
                if not calls or len(set(calls)) < len(calls) or self.status != "in_progress":
                    return False
                if is_open and not set(calls) & set(given):
                    self.last.calls.update(dict.fromkeys(calls))
                    return True
                if is_new and (answer := self.growing()) is not None:
                    answer.calls.update(dict.fromkeys(calls))
                    return True
            case ("result", call, text):
                if self.status == "in_progress" and call in given and given[call] is None:
                    given[call] = text
                    return True
            case ("steer", texts):
                if texts and self.status == "in_progress" and None not in given.values():
                    if not self.last.text and not given:
                        self.said.pop()
                    self.said += [Said("user", text) for text in texts] + [Said("assistant")]
                    return True
            case ("finish", text):
                if self.status == "in_progress" and None not in given.values():
                    if text is not None and (answer := self.growing()) is not None:
                        answer.text = text
                    self.status = "completed"
                    return True
        return False

    def leave(self, failed: bool) -> None:
        if self.status == "in_progress":
            answered = self.last.text or self.last.calls
            self.status = "completed" if answered and not failed else "incomplete"

    def rows(self, cut_off: bool = False) -> list[Row]:
        status = "incomplete" if cut_off and self.status == "in_progress" else self.status
        word = {"completed": "skipped", "incomplete": "cancelled"}.get(status)
        found: list[Row] = []
        for said in [] if self.rolled_back else self.said:
            its_status = status if said is self.last else "completed"
            found.append((said.role, said.text, its_status, tuple(said.calls), None))
            for call, result in said.calls.items():
                if result is not None:
                    found.append(("tool", result, "completed", (), call))
                elif word is not None:
                    found.append(("tool", word, "incomplete", (), call))
        return found

    def history(self) -> list[Row]:
        """What others are shown of it when it has ended."""
        found = self.rows(cut_off=True)
        if self.rolled_back:
            return []
        if self.status != "completed" and not (self.last.text or self.last.calls):
            found.pop()
            while found and found[-1][0] == "user":
                found.pop()
        return found


Action: TypeAlias = tuple[Any, ...]

text = st.sampled_from(["", "a", "bc", "d\n"])
call = st.sampled_from("xyz")
actions: st.SearchStrategy[Action] = st.one_of(
    st.tuples(st.just("append"), text),
    st.tuples(st.just("call"), st.lists(call, max_size=3)),
    st.tuples(st.just("result"), call, text),
    st.tuples(st.just("result"), call, text),
    st.tuples(st.just("steer"), st.lists(text, max_size=2)),
    st.tuples(st.just("finish"), st.none() | text),
    st.just(("rollback",)),
)


def perform(turn: ConversationTurn, action: Action) -> Awaitable[None]:
    match action:
        case ("append", text):
            return turn.append(text)
        case ("call", calls):
            return turn.call(calls)
        case ("result", call, text):
            return turn.result(call, text)
        case ("steer", texts):
            return turn.steer(*texts)
        case ("finish", text):
            return turn.finish(text)
        case ("rollback",):
            return turn.rollback()
    raise AssertionError(action)


@attrs.define
class Running:
    """A turn that runs, and its model: as it is, and as it was written last."""

    block: Any
    turn: ConversationTurn
    sketch: Sketch
    place: int


class Story:
    """The thread, and what the model says of it."""

    def __init__(self, store: TranscriptStore) -> None:
        self.conversation = Conversation("thread", store)
        self.other = Conversation("thread", store)
        self.written: list[Sketch] = []  # by place, as all others see it
        self.running: list[Running] = []
        # {bytes of the file: the messages and the history that a crash leaves}
        self.crashes: dict[int, tuple[list[Row], list[Row]]] = {0: ([], [])}

    def file_size(self) -> int:
        store = self.conversation.store
        if not isinstance(store, JsonlTranscript):
            return 0
        file = store.folder / "thread.jsonl"
        return file.stat().st_size if file.exists() else 0

    def history(self) -> list[Row]:
        live = {running.place for running in self.running}
        return [
            row
            for place, sketch in enumerate(self.written)
            if place not in live or sketch.status != "in_progress"
            for row in sketch.history()
        ]

    async def check(self) -> None:
        now = {running.place: running.sketch for running in self.running}
        live = [now.get(place, sketch) for place, sketch in enumerate(self.written)]
        messages = await self.conversation.messages()
        assert rows(messages) == [row for sketch in live for row in sketch.rows()]
        assert len({message.id for message in messages}) == len(messages)
        check_adjacency(messages)
        others = await self.other.messages()
        assert rows(others) == [row for sketch in self.written for row in sketch.rows()]
        check_adjacency(others)
        crashed = [row for sketch in self.written for row in sketch.rows(cut_off=True)]
        history = [row for sketch in self.written for row in sketch.history()]
        self.crashes[self.file_size()] = (crashed, history)

    async def enter(self, texts: list[str]) -> None:
        block = self.conversation.turn(*texts)
        turn = await block.__aenter__()
        assert rows(turn.history) == self.history()
        sketch = Sketch([*(Said("user", text) for text in texts), Said("assistant")])
        self.running.append(Running(block, turn, sketch, len(self.written)))
        self.written.append(copy.deepcopy(sketch))

    async def act(self, running: Running, action: Action, awaited: bool) -> None:
        if running.sketch.do(action):
            write = perform(running.turn, action)
            if awaited:
                await write
                self.written[running.place] = copy.deepcopy(running.sketch)
        else:
            with pytest.raises(TranscriptError):
                perform(running.turn, action)

    async def leave(self, running: Running, how: str) -> None:
        error = {"fail": OSError(), "cancel": OSError(), "interrupt": KeyboardInterrupt()}.get(how)
        running.sketch.leave(failed=error is not None)
        with trio.CancelScope() as scope:
            if how == "cancel":
                scope.cancel()
            kind = None if error is None else type(error)
            await running.block.__aexit__(kind, error, None)
        self.written[running.place] = running.sketch
        self.running.remove(running)


def check_adjacency(messages: Sequence[Message]) -> None:
    """What a model's API asks for: by place, and over the ends of exchanges."""
    open_calls: list[str] = []
    unfinished = False
    before = "nothing"
    for message in messages:
        if message.role == "assistant":
            assert before in ("user", "tool")
            assert not open_calls
            unfinished = message.status == "in_progress"
            open_calls = [call["id"] for call in message.tool_calls]
        elif message.role == "tool":
            assert message.tool_call_id in open_calls
            open_calls.remove(message.tool_call_id)
        else:
            assert not open_calls or unfinished
            open_calls = []
        before = message.role
    assert not open_calls or unfinished


async def live_through(story: Story, data: st.DataObject) -> None:
    for _ in range(data.draw(st.integers(1, 25), label="steps")):
        step = data.draw(st.sampled_from(["enter", "act", "act", "act", "leave"]), label="step")
        if step == "enter" or not story.running:
            await story.enter(data.draw(st.lists(text, min_size=1, max_size=2), label="says"))
        elif step == "leave":
            how = data.draw(st.sampled_from(["return", "fail", "cancel", "interrupt"]), label="how")
            await story.leave(data.draw(st.sampled_from(story.running), label="who"), how)
        else:
            who = data.draw(
                st.lists(st.sampled_from(story.running), min_size=1, max_size=3, unique_by=id),
                label="who",
            )
            async with trio.open_nursery() as nursery:
                for running in who:
                    action = data.draw(actions, label="does")
                    awaited = data.draw(st.booleans(), label="awaited")
                    nursery.start_soon(story.act, running, action, awaited)
        await story.check()
    for running in list(story.running):
        if data.draw(st.booleans(), label="goes"):
            await story.leave(running, "return")
            await story.check()
    event(f"{len(story.written)} exchanges")


async def after_the_crash(story: Story, cut: int, folder: Path) -> None:
    """Read what is left, and go on from there."""
    store = story.conversation.store
    assert isinstance(store, JsonlTranscript)
    left = (store.folder / "thread.jsonl").read_bytes()[:cut]
    (folder / "thread.jsonl").write_bytes(left)
    conversation = Conversation("thread", JsonlTranscript(folder))
    messages = await conversation.messages()
    check_adjacency(messages)
    async with conversation.turn("after") as turn:
        # Between two commits of one step the model does not know which of them came first.
        if expected := story.crashes.get(left.rfind(b"\n") + 1):
            event("a crash that the model knows")
            assert (rows(messages), rows(turn.history)) == expected
        await turn.finish("answer")
    assert isinstance(conversation.store, JsonlTranscript)
    conversation.store.close()
    again = Conversation("thread", JsonlTranscript(folder))
    assert (await again.messages())[:-2] == messages


@given(st.random_module(), st.data())
def test_a_thread_in_memory_is_what_the_model_says(seed: object, data: st.DataObject) -> None:
    trio.run(live_through, Story(MemoryTranscript()), data)


@settings(max_examples=examples(40))  # each of which writes some files
@given(st.random_module(), st.data())
def test_a_thread_in_a_file_is_what_the_model_says_also_after_a_crash(
    seed: object, data: st.DataObject
) -> None:
    async def main(folder: Path) -> None:
        story = Story(JsonlTranscript(folder / "now"))
        await live_through(story, data)
        for n in range(3):
            cut = data.draw(st.integers(0, story.file_size()), label="cut")
            crashed = folder / f"crash{n}"
            await trio.Path(crashed).mkdir()
            await after_the_crash(story, cut, crashed)

    with tempfile.TemporaryDirectory() as folder:
        trio.run(main, Path(folder))
