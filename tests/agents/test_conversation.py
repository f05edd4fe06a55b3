"""Conversations: turns of one thread at once, answers in the order of the questions."""

from __future__ import annotations

import logging
import math
import signal
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, final

import pytest
import trio
from trio.testing import MockClock, assert_checkpoints, wait_all_tasks_blocked

from tests.support.calls import Calls
from trio_lanes import LaneError
from trio_lanes.agents import (
    Conversation,
    ConversationTurn,
    Emit,
    JsonlTranscript,
    MemoryTranscript,
    Message,
    ThreadLocks,
    ToolCall,
    TranscriptError,
    TranscriptStore,
)

pytestmark = pytest.mark.both_doors


@pytest.fixture(params=["memory", "jsonl"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> TranscriptStore:
    return MemoryTranscript() if request.param == "memory" else JsonlTranscript(tmp_path)


@pytest.fixture
def conversation(store: TranscriptStore) -> Conversation:
    return Conversation("thread", store)


class ModelError(Exception):
    """What turns fail with here."""


def short(messages: Sequence[Message]) -> list[str]:
    """Who says what; a tilde: it goes on, a bang: it was cut off."""
    marks = {"completed": "", "in_progress": "~", "incomplete": "!"}
    return [
        f"{m.role[0]}:{m.content}{''.join('+' + c['id'] for c in m.tool_calls)}"
        f"{'' if m.tool_call_id is None else '@' + m.tool_call_id}{marks[m.status]}"
        for m in messages
    ]


async def say(conversation: Conversation, question: str, answer: str) -> None:
    async with conversation.turn(question) as turn:
        await turn.finish(answer)


# ---- a turn


async def test_entering_writes_the_question_and_holds_the_place_of_the_answer(
    conversation: Conversation,
) -> None:
    assert await conversation.messages() == []
    async with conversation.turn("one", "two"):
        assert short(await conversation.messages()) == ["u:one", "u:two", "a:~"]


async def test_a_message_says_all_that_there_is_to_say(conversation: Conversation) -> None:
    async with conversation.turn("hello") as turn:
        await turn.call([{"id": "c", "name": "time", "arguments": {"zone": "UTC"}}])
        await turn.result("c", {"hour": 12})
        await turn.finish("noon", usage={"tokens": 5})
    user, call, tool, answer = await conversation.messages()
    assert user == Message("user", "hello", "completed", user.id)
    assert call == Message(
        "assistant",
        "",
        "completed",
        call.id,
        tool_calls=({"id": "c", "name": "time", "arguments": {"zone": "UTC"}},),
    )
    assert tool == Message("tool", {"hour": 12}, "completed", tool.id, tool_call_id="c")
    assert answer == Message("assistant", "noon", "completed", answer.id, usage={"tokens": 5})
    assert len({user.id, call.id, tool.id, answer.id}) == 4


async def test_the_ids_of_messages_do_not_change(conversation: Conversation) -> None:
    async with conversation.turn("hello") as turn:
        await turn.append("noon")
        before = await conversation.messages()
    after = await conversation.messages()
    again = await Conversation("thread", conversation.store).messages()
    assert [m.id for m in before] == [m.id for m in after] == [m.id for m in again]


async def test_text_is_put_together_and_is_there_while_it_comes(
    conversation: Conversation,
) -> None:
    async with conversation.turn("hello") as turn:
        for delta in ("to ", "you", ""):
            await turn.append(delta)
        assert short(await conversation.messages()) == ["u:hello", "a:to you~"]
        await turn.finish()
        assert short(await conversation.messages()) == ["u:hello", "a:to you"]
    assert short(await conversation.messages()) == ["u:hello", "a:to you"]


async def test_what_is_finished_with_stands_in_place_of_the_text(
    conversation: Conversation,
) -> None:
    async with conversation.turn("hello") as turn:
        await turn.append("to yu")
        await turn.finish("to you")
    assert short(await conversation.messages()) == ["u:hello", "a:to you"]


async def test_text_behind_results_begins_the_next_message(conversation: Conversation) -> None:
    async with conversation.turn("weather?") as turn:
        await turn.append("I look.")
        await turn.call(["x", "y"])
        await turn.result("y", "rain")
        await turn.result("x", "sun")
        await turn.append("Sun")
        await turn.append(" and rain.")
        await turn.finish()
    assert short(await conversation.messages()) == [
        "u:weather?",
        "a:I look.+x+y",
        "t:sun@x",
        "t:rain@y",
        "a:Sun and rain.",
    ]


async def test_calls_of_one_message_may_come_one_by_one(conversation: Conversation) -> None:
    async with conversation.turn("?") as turn:
        await turn.call(["x"])
        await turn.call(["y", "z"])
        for call in "xyz":
            await turn.result(call, "ok")
        await turn.call(["x"])  # of the next message, so the id may come again
        await turn.result("x", "ok")
    assert short(await conversation.messages())[1:] == [
        "a:+x+y+z",
        "t:ok@x",
        "t:ok@y",
        "t:ok@z",
        "a:+x",
        "t:ok@x",
    ]


async def test_calls_may_be_tools_or_what_a_model_sent_or_ids(conversation: Conversation) -> None:
    async def tool(emit: Emit) -> None: ...

    async with conversation.turn("?") as turn:
        await turn.call([ToolCall("a", tool), ToolCall("b", tool, name="time"), "c", {"id": "d"}])
    assert (await conversation.messages())[1].tool_calls == (
        {"id": "a"},
        {"id": "b", "name": "time"},
        {"id": "c"},
        {"id": "d"},
    )


async def test_tools_may_give_their_results_at_the_same_time(conversation: Conversation) -> None:
    calls = [str(n) for n in range(8)]
    async with conversation.turn("?") as turn:
        await turn.call(calls)

        async def answer(call: str) -> None:
            await turn.result(call, f"result {call}")

        async with trio.open_nursery() as nursery:
            for call in reversed(calls):
                nursery.start_soon(answer, call)
    messages = await Conversation("thread", conversation.store).messages()
    assert short(messages)[2:] == [f"t:result {call}@{call}" for call in calls]


async def test_users_may_say_more_in_the_midst_of_a_turn(conversation: Conversation) -> None:
    async with conversation.turn("one") as turn:
        await turn.steer("two")  # before there is an answer, so in front of it
        await turn.append("both")
        await turn.steer("three", "four")
        await turn.call(["c"])
        await turn.result("c", "ok")
        await turn.steer("five")
        await turn.finish("done")
    assert short(await conversation.messages()) == [
        "u:one",
        "u:two",
        "a:both",
        "u:three",
        "u:four",
        "a:+c",
        "t:ok@c",
        "u:five",
        "a:done",
    ]


async def test_the_prompt_is_the_history_and_the_turn_without_an_empty_answer(
    conversation: Conversation,
) -> None:
    await say(conversation, "hello", "hi")
    async with conversation.turn("weather?") as turn:
        assert short(turn.prompt) == ["u:hello", "a:hi", "u:weather?"]
        await turn.call(["c"])
        await turn.result("c", "sun")
        assert short(turn.prompt)[2:] == ["u:weather?", "a:+c~", "t:sun@c"]
        await turn.append("Sun")
        assert short(turn.prompt)[4:] == ["t:sun@c", "a:Sun~"]


# ---- how a turn ends


async def test_a_turn_that_answered_is_complete_when_it_is_left(
    conversation: Conversation,
) -> None:
    async with conversation.turn("u1") as turn:
        await turn.append("a1")
    async with conversation.turn("u2") as turn:
        await turn.call(["c"])
        await turn.result("c", "ok")
    assert short(await conversation.messages()) == ["u:u1", "a:a1", "u:u2", "a:+c", "t:ok@c"]


async def test_a_turn_that_left_somebody_without_an_answer_is_incomplete_unless_it_was_finished(
    conversation: Conversation,
) -> None:
    async with conversation.turn("u1"):
        pass
    async with conversation.turn("u2") as turn:
        await turn.append("a2")
        await turn.steer("u3")
    async with conversation.turn("u4") as turn:
        await turn.finish()
    assert short(await conversation.messages()) == [
        *("u:u1", "a:!"),
        *("u:u2", "a:a2", "u:u3", "a:!"),
        *("u:u4", "a:"),
    ]


async def test_calls_without_a_result_are_skipped_when_a_turn_is_left(
    conversation: Conversation,
) -> None:
    async with conversation.turn("?") as turn:
        await turn.call(["x", "y"])
        await turn.result("y", "ok")
    assert short(await conversation.messages()) == [
        "u:?",
        "a:+x+y",
        "t:skipped@x!",
        "t:ok@y",
    ]


async def fail(scope: trio.CancelScope) -> None:
    raise ModelError


async def be_cancelled(scope: trio.CancelScope) -> None:
    scope.cancel()
    await trio.lowlevel.checkpoint()


async def interrupt(scope: trio.CancelScope) -> None:
    raise KeyboardInterrupt


OUT_OF_THE_LOOP = pytest.mark.trio_only("asyncio lets a KeyboardInterrupt out of the loop")


@pytest.mark.parametrize(
    "end", [fail, be_cancelled, pytest.param(interrupt, marks=OUT_OF_THE_LOOP)]
)
@pytest.mark.parametrize("awaited", [True, False])
async def test_a_turn_that_fails_keeps_its_text_and_each_call_gets_a_result(
    conversation: Conversation, end: Callable[[trio.CancelScope], Awaitable[None]], awaited: bool
) -> None:
    async def run() -> None:
        async with conversation.turn("weather?") as turn:
            writes = [turn.append("I lo"), turn.append("ok"), turn.call(["x", "y", "z"])]
            writes.append(turn.result("y", "rain"))
            if awaited:
                for write in writes:
                    await write
            await end(nursery.cancel_scope)

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
    except* (ModelError, KeyboardInterrupt):
        pass
    for reader in (conversation, Conversation("thread", conversation.store)):
        assert short(await reader.messages()) == [
            "u:weather?",
            "a:I look+x+y+z!",
            "t:cancelled@x!",
            "t:rain@y",
            "t:cancelled@z!",
        ]


async def test_the_exception_leaves_the_block_as_it_is(conversation: Conversation) -> None:
    error = ModelError()
    with pytest.raises(ModelError) as caught:
        async with conversation.turn("?"):
            raise error
    assert caught.value is error
    assert error.__context__ is None


async def test_what_was_finished_stays_so_whatever_comes_after(conversation: Conversation) -> None:
    for awaited in (True, False):
        with pytest.raises(ModelError):
            async with conversation.turn("?") as turn:
                write = turn.finish("answer")
                if awaited:
                    await write
                raise ModelError
    assert short(await conversation.messages()) == ["u:?", "a:answer"] * 2


async def test_a_write_whose_wait_is_cancelled_is_written_later(
    conversation: Conversation,
) -> None:
    with pytest.raises(ModelError):
        async with conversation.turn("?") as turn:
            with trio.CancelScope() as scope:
                scope.cancel()
                await turn.append("first ")
            assert scope.cancelled_caught
            assert short(await conversation.messages()) == ["u:?", "a:first ~"]
            other = Conversation("thread", conversation.store)
            assert short(await other.messages()) == ["u:?", "a:~"]
            await turn.append("second")
            assert short(await other.messages()) == ["u:?", "a:first second~"]
            raise ModelError


async def test_what_is_not_awaited_is_written_with_what_is(conversation: Conversation) -> None:
    other = Conversation("thread", conversation.store)
    async with conversation.turn("?") as turn:
        turn.append("a")
        turn.append("b")
        assert short(await conversation.messages()) == ["u:?", "a:ab~"]
        assert short(await other.messages()) == ["u:?", "a:~"]
        await turn.append("c")
        assert short(await other.messages()) == ["u:?", "a:abc~"]
        turn.finish()
        assert short(await other.messages()) == ["u:?", "a:abc~"]
    assert short(await other.messages()) == ["u:?", "a:abc"]


async def test_entering_leaving_and_every_wait_are_checkpoints(
    conversation: Conversation,
) -> None:
    block = conversation.turn("?")
    with assert_checkpoints():
        turn = await block.__aenter__()
    with assert_checkpoints():
        await turn.append("text")
    write = turn.append("text")
    await turn.append("text")
    with assert_checkpoints():
        await write  # though it was written already
    with assert_checkpoints():
        await conversation.messages()
    await turn.finish()
    with assert_checkpoints():
        await block.__aexit__(None, None, None)
    with assert_checkpoints():
        fork = await conversation.fork("fork")
    with assert_checkpoints():
        await conversation.merge(fork)


# ---- several turns


async def test_answers_stand_in_the_order_of_the_questions(
    conversation: Conversation, autojump_clock: MockClock
) -> None:
    async def ask(n: int) -> None:
        await trio.sleep(n)
        async with conversation.turn(f"u{n}") as turn:
            for delta in ("a", str(n)):
                await trio.sleep(10 - 2 * n)  # who asks later is answered earlier
                await turn.append(delta)
            await turn.finish()

    async with trio.open_nursery() as nursery:
        for n in range(4):
            nursery.start_soon(ask, n)
        await trio.sleep(3.5)
        assert [m.role for m in await conversation.messages()] == ["user", "assistant"] * 4
    assert short(await conversation.messages()) == [
        f"{who}:{who}{n}" for n in range(4) for who in "ua"
    ]


async def test_the_history_is_what_had_ended_before_the_turn(conversation: Conversation) -> None:
    await say(conversation, "u1", "a1")
    async with conversation.turn("u2") as second:
        await second.append("a2")
        async with conversation.turn("u3") as third:
            await third.finish("a3")
            async with conversation.turn("u4") as fourth:
                pass
    async with conversation.turn("u5") as fifth:
        pass
    assert short(second.history) == ["u:u1", "a:a1"]
    assert short(third.history) == ["u:u1", "a:a1"]  # the second one runs: question and all
    assert short(fourth.history) == ["u:u1", "a:a1", "u:u3", "a:a3"]
    assert short(fifth.history) == ["u:u1", "a:a1", "u:u2", "a:a2", "u:u3", "a:a3"]
    assert isinstance(fifth.history, tuple)


async def test_the_history_does_not_change(conversation: Conversation) -> None:
    async with conversation.turn("u1") as first:
        async with conversation.turn("u2") as second:
            await first.finish("a1")
            assert second.history == ()


async def test_the_messages_of_a_turn_are_the_prompt_without_the_history(
    conversation: Conversation,
) -> None:
    await say(conversation, "hello", "hi")
    async with conversation.turn("weather?") as turn:
        assert short(turn.messages) == ["u:weather?"]
        turn.append("Sun")
        assert short(turn.messages) == ["u:weather?", "a:Sun~"]
        assert turn.prompt == turn.history + turn.messages


async def test_a_turn_that_is_rolled_back_leaves_the_history_that_others_have_read(
    store: TranscriptStore,
) -> None:
    conversation = Conversation("thread", store)
    await say(conversation, "u1", "a1")
    async with conversation.turn("u2") as second:
        await second.finish("a2")
        async with conversation.turn("u3") as third:
            assert short(third.history) == ["u:u1", "a:a1", "u:u2", "a:a2"]
            await third.finish("a3")
        await second.rollback()
    async with Conversation("thread", store).turn("u4") as fourth:
        assert short(fourth.history) == ["u:u1", "a:a1", "u:u3", "a:a3"]


@pytest.mark.trio_only("it measures what both doors share")
@pytest.mark.slow
async def test_a_turn_after_1200_costs_as_many_calls_as_one_after_10(
    store: TranscriptStore,
) -> None:
    costs = []
    for number in range(1_201):
        with Calls() as calls:
            await say(Conversation("thread", store), f"u{number}", f"a{number}")
        costs.append(calls.count)
    assert costs[1_200] == costs[10]


async def test_an_incomplete_exchange_counts_as_far_as_it_was_answered(
    conversation: Conversation,
) -> None:
    async def cut_off(act: Callable[[ConversationTurn], object]) -> None:
        with pytest.raises(ModelError):
            async with conversation.turn("?") as turn:
                act(turn)
                raise ModelError

    def steered_in_vain(turn: ConversationTurn) -> None:
        turn.append("steered")
        turn.steer("in vain")

    def answered_after_a_tool(turn: ConversationTurn) -> None:
        turn.call(["d"])
        turn.result("d", "ok")

    await cut_off(lambda turn: None)
    await cut_off(lambda turn: turn.append(""))
    await cut_off(lambda turn: turn.append("text"))
    await cut_off(lambda turn: turn.call(["c"]))
    await cut_off(steered_in_vain)
    await cut_off(answered_after_a_tool)
    async with conversation.turn("!") as turn:
        pass
    assert short(turn.history) == [
        "u:?",
        "a:text!",
        "u:?",
        "a:+c!",
        "t:cancelled@c!",
        "u:?",
        "a:steered",
        "u:?",
        "a:+d!",
        "t:ok@d",
    ]


async def test_conversations_of_one_thread_and_store_are_one(conversation: Conversation) -> None:
    other = Conversation("thread", conversation.store)
    async with conversation.turn("u1") as first, other.turn("u2") as second:
        await first.append("a1")
        await second.append("a2")
        for reader in (conversation, other):
            assert short(await reader.messages()) == ["u:u1", "a:a1~", "u:u2", "a:a2~"]
        assert second.history == ()
    async with conversation.turn("u3") as third:
        assert short(third.history) == ["u:u1", "a:a1", "u:u2", "a:a2"]


async def test_readers_at_the_same_time_read_the_same(conversation: Conversation) -> None:
    other = Conversation("thread", conversation.store)
    for n in range(3):
        await say(other, f"u{n}", f"a{n}")
    found = []

    async def read() -> None:
        found.append(await conversation.messages())

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(read)
    assert all(len(messages) == 6 for messages in found)


async def test_threads_of_one_store_have_nothing_to_do_with_each_other(
    store: TranscriptStore,
) -> None:
    one, two = Conversation("one", store), Conversation("two", store)
    await say(one, "u1", "a1")
    async with two.turn("u2") as turn:
        assert turn.history == ()
    assert short(await one.messages()) == ["u:u1", "a:a1"]


async def test_without_a_store_a_conversation_has_one_of_its_own() -> None:
    one, two = Conversation("thread"), Conversation("thread")
    await say(one, "u1", "a1")
    assert await two.messages() == []


# ---- adjacency


@final
class Tried:
    """What a turn must refuse, after what it has done."""

    def __init__(
        self,
        done: Callable[[ConversationTurn], object],
        tried: Callable[[ConversationTurn], object],
    ) -> None:
        self.done = done
        self.tried = tried


def calls(turn: ConversationTurn) -> None:
    turn.call(["x", "y"])


def calls_and_one_result(turn: ConversationTurn) -> None:
    calls(turn)
    turn.result("x", "ok")


def calls_and_results(turn: ConversationTurn) -> None:
    calls_and_one_result(turn)
    turn.result("y", "ok")


def nothing(turn: ConversationTurn) -> None: ...


REFUSED = {
    "text before the results": Tried(calls, lambda turn: turn.append("text")),
    "text before all results": Tried(calls_and_one_result, lambda turn: turn.append("text")),
    "the end before the results": Tried(calls, lambda turn: turn.finish("text")),
    "the end without a text before the results": Tried(calls, lambda turn: turn.finish()),
    "a user before the results": Tried(calls, lambda turn: turn.steer("text")),
    "another call between results": Tried(calls_and_one_result, lambda turn: turn.call(["z"])),
    "no call": Tried(nothing, lambda turn: turn.call([])),
    "a call twice": Tried(nothing, lambda turn: turn.call(["x", "y", "x"])),
    "a call again": Tried(calls, lambda turn: turn.call(["z", "x"])),
    "a user who says nothing": Tried(nothing, lambda turn: turn.steer()),
    "a result without a call": Tried(nothing, lambda turn: turn.result("x", "ok")),
    "a result of another call": Tried(calls, lambda turn: turn.result("z", "ok")),
    "a second result": Tried(calls_and_one_result, lambda turn: turn.result("x", "ok")),
    "a result again": Tried(calls_and_results, lambda turn: turn.result("x", "ok")),
    "text after the end": Tried(lambda turn: turn.finish(), lambda turn: turn.append("text")),
    "a call after the end": Tried(lambda turn: turn.finish(), lambda turn: turn.call(["x"])),
    "a user after the end": Tried(lambda turn: turn.finish(), lambda turn: turn.steer("text")),
    "the end after the end": Tried(lambda turn: turn.finish(), lambda turn: turn.finish("text")),
    "a result after the end": Tried(lambda turn: turn.finish(), lambda turn: turn.result("x", 1)),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
async def test_what_may_not_stand_there_is_refused_and_nothing_has_changed(
    conversation: Conversation, case: Tried
) -> None:
    async with conversation.turn("?") as turn:
        case.done(turn)
        before = await conversation.messages()
        with pytest.raises(TranscriptError):
            case.tried(turn)
        assert await conversation.messages() == before
    again = Conversation("thread", conversation.store)
    assert await again.messages() == await conversation.messages()


async def test_the_error_is_a_lane_error_that_names_the_calls(conversation: Conversation) -> None:
    async with conversation.turn("?") as turn:
        calls(turn)
        with pytest.raises(LaneError, match=r"text .* x, y"):
            turn.append("text")


async def test_a_turn_that_was_left_takes_nothing(conversation: Conversation) -> None:
    async with conversation.turn("?") as turn:
        pass
    with pytest.raises(TranscriptError, match="has ended"):
        await turn.append("text")


async def test_a_turn_that_is_rolled_back_leaves_the_thread(conversation: Conversation) -> None:
    await say(conversation, "?", "yes")
    with pytest.raises(ModelError):
        async with conversation.turn("??") as turn:
            turn.append("no")
            await turn.call(["x"])
            await turn.rollback()
            with pytest.raises(TranscriptError, match="has ended"):
                turn.append("more")
            turn.rollback()
            raise ModelError
    assert short(await conversation.messages()) == ["u:?", "a:yes"]
    async with Conversation("thread", conversation.store).turn("???") as turn:
        assert short(turn.history) == ["u:?", "a:yes"]
        await turn.finish("maybe")
    fork = await conversation.fork("copy")
    assert short(await fork.messages()) == ["u:?", "a:yes", "u:???", "a:maybe"]


async def test_a_turn_can_be_rolled_back_after_its_end_but_not_after_its_block(
    conversation: Conversation,
) -> None:
    async with conversation.turn("?") as turn:
        await turn.finish("yes")
        turn.rollback()
    assert await conversation.messages() == []
    with pytest.raises(TranscriptError, match="cannot be rolled back"):
        turn.rollback()


async def test_a_turn_in_which_nothing_is_said_is_refused(conversation: Conversation) -> None:
    with pytest.raises(TranscriptError):
        conversation.turn()
    assert await conversation.messages() == []


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (lambda turn: turn.finish(object()), "a message must be JSON"),
        (lambda turn: turn.finish(math.nan), "a message must be JSON"),
        (lambda turn: turn.finish("text", usage={1, 2}), "usage must be JSON"),
        (lambda turn: turn.steer(object()), "a message must be JSON"),
        (lambda turn: turn.call([{"id": "x", "fn": print}]), "a tool call must be JSON"),
        (lambda turn: turn.call([{"name": "x"}]), "must have a string for an id"),
        (lambda turn: turn.call([""]), "not empty"),
        (lambda turn: turn.result("c", object()), "a result must be JSON"),
        (lambda turn: turn.append(5), "must be a string"),
    ],
)
async def test_what_cannot_be_kept_is_refused_at_the_call_and_nothing_has_changed(
    conversation: Conversation, write: Callable[[ConversationTurn], object], words: str
) -> None:
    with pytest.raises((TypeError, ValueError), match="a message must be JSON"):
        conversation.turn("fine", object())
    async with conversation.turn("?") as turn:
        await turn.call(["c"])
        with pytest.raises((TypeError, ValueError), match=words):
            write(turn)
        await turn.result("c", "ok")
        await turn.append("fine")
    assert short(await conversation.messages())[-1] == "a:fine"


async def test_what_was_given_may_be_changed_afterwards(conversation: Conversation) -> None:
    content: list[Any] = [{"text": "hello"}]
    async with conversation.turn(content) as turn:
        content.clear()
        await turn.finish(["to", ("you",)])
    user, answer = await conversation.messages()
    assert user.content == [{"text": "hello"}]
    assert answer.content == ["to", ["you"]]  # as it is read back, whichever store keeps it


# ---- fork and merge


async def test_a_fork_has_a_copy_of_the_exchanges_that_have_ended(
    conversation: Conversation,
) -> None:
    await say(conversation, "u1", "a1")
    async with conversation.turn("u2") as running:
        with pytest.raises(ModelError):
            async with conversation.turn("u3") as turn:
                await turn.call(["c"])
                raise ModelError
        ended = [m for m in await conversation.messages() if m.id[:16] != running.id]
        fork = await conversation.fork("fork")
        assert (fork.thread_id, fork.store) == ("fork", conversation.store)
        assert await fork.messages() == ended
        await say(fork, "u4", "a4")
        await running.append("a2")
    assert short(await fork.messages()) == [
        "u:u1",
        "a:a1",
        "u:u3",
        "a:+c!",
        "t:cancelled@c!",
        "u:u4",
        "a:a4",
    ]
    assert len(await conversation.messages()) == 7


async def test_a_fork_of_nothing_is_an_empty_thread(conversation: Conversation) -> None:
    fork = await conversation.fork("fork")
    assert await fork.messages() == []


async def test_a_fork_cannot_be_a_thread_that_exists(conversation: Conversation) -> None:
    await say(conversation, "u1", "a1")
    other = Conversation("other", conversation.store)
    await say(other, "u2", "a2")
    with pytest.raises(TranscriptError, match="a thread 'other' exists already"):
        await conversation.fork("other")
    with pytest.raises(TranscriptError, match="a thread 'thread' exists already"):
        await conversation.fork("thread")
    assert short(await other.messages()) == ["u:u2", "a:a2"]
    with pytest.raises(ValueError, match="empty"):
        await conversation.fork("")


async def test_merging_puts_the_other_thread_behind_this_one(conversation: Conversation) -> None:
    other = Conversation("other", MemoryTranscript())
    await say(other, "u2", "a2")
    async with conversation.turn("u1") as turn, other.turn("u3"):
        await conversation.merge(other)
        await turn.finish("a1")
    assert short(await conversation.messages()) == ["u:u1", "a:a1", "u:u2", "a:a2"]
    assert (await conversation.messages())[2:] == (await other.messages())[:2]
    assert short(await other.messages()) == ["u:u2", "a:a2", "u:u3", "a:!"]


async def test_a_fork_can_be_merged_back_and_ids_stay_unique(conversation: Conversation) -> None:
    await say(conversation, "u1", "a1")
    fork = await conversation.fork("fork")
    await say(fork, "u2", "a2")
    await conversation.merge(fork)
    await conversation.merge(fork)
    messages = await conversation.messages()
    assert short(messages) == ["u:u1", "a:a1"] + ["u:u1", "a:a1", "u:u2", "a:a2"] * 2
    assert len({m.id for m in messages}) == len(messages)
    again = Conversation("thread", conversation.store)
    assert await again.messages() == messages


async def test_a_thread_cannot_be_merged_into_itself(conversation: Conversation) -> None:
    with pytest.raises(ValueError, match="itself"):
        await conversation.merge(Conversation("thread", conversation.store))


@pytest.mark.many_seeds(10)
async def test_threads_may_be_merged_both_ways_at_the_same_time(store: TranscriptStore) -> None:
    one, two = Conversation("one", store), Conversation("two", MemoryTranscript())
    await say(one, "u1", "a1")
    await say(two, "u2", "a2")
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(one.merge, two)
            nursery.start_soon(two.merge, one)
    assert len(await one.messages()) > 2
    assert len(store.locks) == 0


# ---- locks and commits


class Slow:
    """A store whose writes take their time, and can be told to fail."""

    def __init__(self, seconds: float = 0) -> None:
        self.locks = ThreadLocks()
        self.live: set[str] = set()
        self.memory = MemoryTranscript()
        self.seconds = seconds
        self.error: BaseException | None = None
        self.before_append: Callable[[], None] = lambda: None
        self.commits = 0

    def check(self, thread_id: str) -> None:
        self.memory.check(thread_id)

    async def load(self, thread_id: str, start: int = 0) -> Sequence[list[dict[str, Any]]]:
        return await self.memory.load(thread_id, start)

    async def append(self, thread_id: str, commit: list[dict[str, Any]]) -> None:
        self.before_append()
        await trio.sleep(self.seconds)
        if self.error is not None:
            raise self.error
        await self.memory.append(thread_id, commit)
        self.commits += 1


async def test_a_turn_waits_for_who_has_the_thread_alone(
    conversation: Conversation, autojump_clock: MockClock
) -> None:
    entered = []

    async def ask() -> None:
        async with conversation.turn("?") as turn:
            entered.append(trio.current_time())
            await turn.finish("!")

    async with trio.open_nursery() as nursery:
        async with conversation.store.locks.exclusive("thread"):
            nursery.start_soon(ask)
            await trio.sleep(3)
    assert entered == [3]


async def test_messages_are_written_while_the_lock_is_shared(autojump_clock: MockClock) -> None:
    store = Slow()
    conversation = Conversation("thread", store)
    async with conversation.turn("u1") as first, conversation.turn("u2") as second:
        async with trio.open_nursery() as nursery:

            async def write(turn: ConversationTurn) -> None:
                await turn.append("text")

            store.seconds = 1
            nursery.start_soon(write, first)
            nursery.start_soon(write, second)
        assert trio.current_time() == 1
        store.seconds = 0


async def test_the_lock_is_held_until_the_commit_is_done(autojump_clock: MockClock) -> None:
    store = Slow()
    conversation = Conversation("thread", store)
    async with trio.open_nursery() as nursery:

        async def ask() -> None:
            async with conversation.turn("u1") as turn:
                store.seconds = 1
                turn.finish("a1")

        nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        async with store.locks.exclusive("thread"):
            assert trio.current_time() == 1
            assert short(await Conversation("thread", store.memory).messages()) == ["u:u1", "a:a1"]
    assert len(store.locks) == 0


async def test_entering_that_is_cancelled_has_written_nothing(autojump_clock: MockClock) -> None:
    store = Slow(2)
    conversation = Conversation("thread", store)
    with trio.move_on_after(1) as scope:
        async with conversation.turn("u1"):
            raise AssertionError
    assert scope.cancelled_caught
    assert await conversation.messages() == []
    assert len(store.locks) == 0


@pytest.mark.parametrize("verb", ["fork", "merge"])
async def test_a_copy_that_is_cancelled_has_written_nothing(
    autojump_clock: MockClock, verb: str
) -> None:
    store = Slow()
    conversation, other = Conversation("thread", store), Conversation("other", store)
    await say(conversation, "u1", "a1")
    store.seconds = 2
    with trio.move_on_after(1):
        await (other.merge(conversation) if verb == "merge" else conversation.fork("other"))
        raise AssertionError
    assert await other.messages() == []
    assert len(store.locks) == 0


async def test_leaving_that_is_cancelled_writes_all_the_same(autojump_clock: MockClock) -> None:
    store = Slow()
    conversation = Conversation("thread", store)
    with trio.move_on_after(1) as scope:
        async with conversation.turn("u1") as turn:
            store.seconds = 1.5
            turn.append("a1")
    assert scope.cancelled_caught
    assert trio.current_time() == 2.5  # the second try was shielded
    assert short(await Conversation("thread", store.memory).messages()) == ["u:u1", "a:a1"]


async def test_a_last_commit_takes_two_seconds_at_most(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    store = Slow()
    conversation = Conversation("thread", store)
    with trio.move_on_after(1) as scope:
        async with conversation.turn("u1") as turn:
            await turn.append("kept")
            turn.append(" and lost")
            store.seconds = 100
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert trio.current_time() == 3
    assert "is lost" in caplog.text
    assert short(await conversation.messages()) == ["u:u1", "a:kept!"]
    assert len(store.locks) == 0


async def test_a_store_that_fails_at_the_end_of_a_turn_is_heard(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    store = Slow()
    conversation = Conversation("thread", store)
    with pytest.raises(BrokenPipeError):
        async with conversation.turn("u1") as turn:
            store.error = BrokenPipeError()
            turn.finish("a1")
    assert short(await conversation.messages()) == ["u:u1", "a:!"]
    assert len(store.locks) == 0
    assert store.live == set()
    assert not caplog.records


async def test_a_store_that_fails_when_a_turn_has_failed_is_logged(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    store = Slow()
    conversation = Conversation("thread", store)
    with pytest.raises(ModelError):
        async with conversation.turn("u1"):
            store.error = BrokenPipeError()
            raise ModelError
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 2
    assert "could not be written" in caplog.text
    assert store.live == set()


async def test_a_write_that_fails_is_tried_again_with_the_next(autojump_clock: MockClock) -> None:
    store = Slow()
    conversation = Conversation("thread", store)
    async with conversation.turn("u1") as turn:
        store.error = BrokenPipeError()
        with pytest.raises(BrokenPipeError):
            await turn.append("first ")
        store.error = None
        await turn.append("second")
    assert short(await Conversation("thread", store.memory).messages()) == [
        "u:u1",
        "a:first second",
    ]


async def test_what_comes_while_a_write_fails_is_written_behind_it(
    autojump_clock: MockClock,
) -> None:
    store = Slow()
    conversation = Conversation("thread", store)
    async with conversation.turn("u1") as turn, trio.open_nursery() as nursery:
        store.seconds, store.error = 1, BrokenPipeError()

        @nursery.start_soon
        async def write() -> None:
            with pytest.raises(BrokenPipeError):
                await turn.append("first ")

        await trio.sleep(0.5)
        turn.call([{"id": "c"}])
        await trio.sleep(1)
        store.error = None
        await turn.result("c", "done")
        await turn.finish("second")
    assert short(await Conversation("thread", store.memory).messages()) == [
        "u:u1",
        "a:first +c",
        "t:done@c",
        "a:second",
    ]


async def test_entering_that_fails_has_placed_nothing(autojump_clock: MockClock) -> None:
    store = Slow()
    conversation = Conversation("thread", store)
    store.error = BrokenPipeError()
    with pytest.raises(BrokenPipeError):
        async with conversation.turn("u1"):
            raise AssertionError
    assert await conversation.messages() == []
    assert store.live == set()


async def test_writes_of_one_turn_are_stored_in_order_and_together(
    autojump_clock: MockClock,
) -> None:
    store = Slow()
    conversation = Conversation("thread", store)
    async with conversation.turn("u1") as turn:
        store.seconds = 1
        await turn.call(["c0"])
        async with trio.open_nursery() as nursery:

            async def use(n: int) -> None:
                await turn.result(f"c{n}", "ok")

            nursery.start_soon(use, 0)
            await wait_all_tasks_blocked()  # it is being written
            for n in range(1, 4):
                turn.call([f"c{n}"])
                nursery.start_soon(use, n)
                await wait_all_tasks_blocked()
    assert store.commits == 5  # the question, a call, its result, all that came meanwhile, the end
    assert await Conversation("thread", store.memory).messages() == await conversation.messages()


@pytest.mark.trio_only("it cancels at each pass of Trio's scheduler")
@pytest.mark.many_seeds(3)
async def test_cancelling_at_any_checkpoint_leaves_the_pairing_intact(
    store: TranscriptStore,
) -> None:
    async def script(conversation: Conversation) -> None:
        async with conversation.turn("u1") as turn:
            await turn.append("a1")
            await turn.call(["x", "y"])
            await turn.result("y", "ok")
            await turn.result("x", "ok")
            turn.append("done")
            await turn.finish(usage=1)

    for passes in range(60):
        conversation = Conversation(f"thread {passes}", store)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(script, conversation)
            for _ in range(passes):
                await trio.lowlevel.cancel_shielded_checkpoint()
            nursery.cancel_scope.cancel()
        messages = await Conversation(conversation.thread_id, store).messages()
        assert messages == await conversation.messages()
        if messages:
            assert [m.role for m in messages[:2]] == ["user", "assistant"]
            asked = [call["id"] for call in messages[1].tool_calls]
            assert [m.tool_call_id for m in messages if m.role == "tool"] == asked
            assert all(m.status != "in_progress" for m in messages)
        assert len(store.locks) == 0
        assert store.live == set()


@pytest.mark.trio_only("it runs Trio")
def test_a_ctrl_c_leaves_the_turn_incomplete_and_written() -> None:
    store = MemoryTranscript()

    async def main() -> None:
        async with Conversation("thread", store).turn("u1") as turn:
            turn.append("half")
            turn.call(["c"])
            signal.raise_signal(signal.SIGINT)
            await trio.sleep_forever()

    with pytest.raises(KeyboardInterrupt):
        trio.run(main)
    messages = trio.run(Conversation("thread", store).messages)
    assert short(messages) == ["u:u1", "a:half+c!", "t:cancelled@c!"]


@pytest.mark.trio_only("it runs Trio")
def test_a_ctrl_c_in_the_midst_of_the_last_commit_does_not_undo_the_turn() -> None:
    store = Slow()

    def interrupt_once() -> None:
        store.before_append = lambda: None
        signal.raise_signal(signal.SIGINT)

    async def main() -> None:
        async with Conversation("thread", store).turn("u1") as turn:
            store.before_append = interrupt_once
            turn.append("a1")

    with pytest.raises(KeyboardInterrupt):
        trio.run(main)
    assert short(trio.run(Conversation("thread", store).messages)) == ["u:u1", "a:a1"]
    assert store.live == set()
    assert len(store.locks) == 0


def test_the_thread_id_is_checked_at_once(store: TranscriptStore) -> None:
    with pytest.raises(ValueError, match="empty"):
        Conversation(" ", store)
    with pytest.raises(TypeError, match="5"):
        Conversation(5, store)  # type: ignore[arg-type]


async def test_reprs_show_what_is_live(conversation: Conversation) -> None:
    async with conversation.turn("?") as turn:
        assert "'thread'" in repr(conversation)
        assert "1 turns running" in repr(conversation)
        assert "'thread', in_progress" in repr(turn)
    assert "completed" in repr(turn) or "incomplete" in repr(turn)


async def test_the_repr_of_a_store_in_memory_says_how_many_threads_it_has() -> None:
    store = MemoryTranscript()
    await say(Conversation("one", store), "u1", "a1")
    assert "1 threads" in repr(store)


# ---- turns with ids, and turns that are taken out


async def test_a_turn_that_was_cut_off_is_taken_out_and_a_complete_one_stays(
    store: TranscriptStore,
) -> None:
    conversation = Conversation("thread", store)
    assert await conversation.take_out("never there")
    await say(conversation, "one", "1")
    with pytest.raises(ModelError):
        async with conversation.turn("two", id="mine") as turn:
            assert turn.id == "mine"
            turn.append("half an ans")
            with pytest.raises(TranscriptError, match="mine runs"):
                await Conversation("thread", store).take_out("mine")
            raise ModelError
    with pytest.raises(TranscriptError, match="has a turn 'mine' already"):
        async with conversation.turn("two", id="mine"):
            pass
    for _ in range(2):
        assert await Conversation("thread", store).take_out("mine")
    async with conversation.turn("two", id="again") as turn:
        await turn.finish("2")
    assert not await conversation.take_out("again")
    assert short(await conversation.messages()) == ["u:one", "a:1", "u:two", "a:2"]


async def test_a_turn_that_was_taken_out_leaves_its_id_to_another_at_another_place(
    store: TranscriptStore,
) -> None:
    conversation = Conversation("thread", store)
    with pytest.raises(ModelError):
        async with conversation.turn("one", id="mine"):
            raise ModelError
    await say(conversation, "two", "2")
    assert await conversation.take_out("mine")
    async with conversation.turn("three", id="mine") as turn:
        assert short(turn.history) == ["u:two", "a:2"]
        await turn.rollback()
        with pytest.raises(TranscriptError, match="has a turn 'mine' already"):
            async with conversation.turn("in its block", id="mine"):
                pass
    async with Conversation("thread", store).turn("four", id="mine") as turn:
        await turn.finish("4")
    for reader in (conversation, Conversation("thread", store)):
        assert short(await reader.messages()) == ["u:two", "a:2", "u:four", "a:4"]
    async with conversation.turn("five") as turn:
        assert short(turn.history) == ["u:two", "a:2", "u:four", "a:4"]
        await turn.finish("5")
