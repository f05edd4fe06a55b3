"""A turn of the chat agent: what it reads and when, what it holds, and what it leaves behind."""

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from examples.chat_agent.agent import MAX_ROUNDS, Agent
from examples.chat_agent.approvals import Approvals
from examples.chat_agent.builtin_model import BuiltinModel
from examples.chat_agent.events import Began, Listener, Noted, Piece, Returned, Steered, ignore
from examples.chat_agent.events import Event as Fact
from examples.chat_agent.limits import Limits
from examples.chat_agent.model import Event, Message, Model, ModelBusyError, ModelError, ToolCall
from examples.chat_agent.sessions import FailuresTold, Sessions, TurnTimeoutError
from examples.chat_agent.tools import Tool, bundled_tools
from trio_lanes import Lanes, open_lanes
from trio_lanes.agents import MemoryTranscript, Overflow, SettledKind, TranscriptStore, WhenBusy
from trio_lanes.testing import LaneRecorder

FOREVER = 1e6  # of virtual seconds: what has not ended then never will


class Script:
    """A model that says what it is told to, a list for each call; a number is a pause."""

    name = "script"

    def __init__(self, *calls: Sequence[Event | float | Exception]) -> None:
        self.shown: list[list[tuple[str, str]]] = []
        self._calls = iter(calls)

    @asynccontextmanager
    async def stream(self, messages: Sequence[Message]) -> AsyncIterator[AsyncIterator[Event]]:
        self.shown.append([(message.role, message.text) for message in messages])

        async def events() -> AsyncIterator[Event]:
            for event in next(self._calls):
                if isinstance(event, float):
                    await trio.sleep(event)
                elif isinstance(event, Exception):
                    raise event
                else:
                    yield event

        yield events()


class SlowStore:
    """A transcript in memory, which takes a second to write."""

    def __init__(self) -> None:
        self._store = MemoryTranscript()
        self.locks = self._store.locks
        self.live = self._store.live
        self.check = self._store.check
        self.load = self._store.load
        self.written: list[str] = []

    async def append(self, thread_id: str, commit: list[dict[str, Any]]) -> None:
        await trio.sleep(1)
        await self._store.append(thread_id, commit)
        self.written += [record["op"] for record in commit]


class Stage:
    """Sessions, and what was told of them."""

    def __init__(self, sessions: Sessions, lanes: Lanes, approvals: Approvals) -> None:
        self.sessions = sessions
        self.lanes = lanes
        self.approvals = approvals

    async def answer(self, text: str, session: str = "ann") -> str:
        settled = await self.sessions.say(session, text).settled()
        assert settled.kind is SettledKind.RAN
        assert isinstance(settled.result, str)
        return settled.result

    async def kept(self, session: str = "ann") -> list[tuple[str, str, str]]:
        messages = await self.sessions.conversation(session).messages()
        return [(m.role, m.content, m.status) for m in messages]


@asynccontextmanager
async def open_stage(
    model: Model | None = None,
    tools: dict[str, Tool] | None = None,
    *,
    tell: Listener = ignore,
    store: TranscriptStore | None = None,
    cap: int = 20,
    overflow: Overflow = Overflow.SUMMARIZE,
    turns: int = 4,
    timeout: float = 1000,
) -> AsyncIterator[Stage]:
    recorder = LaneRecorder()
    limits = Limits().with_turns(turns)
    with trio.fail_after(FOREVER):
        async with open_lanes(
            limits.lanes(), groups=limits.groups(), instruments=[recorder, FailuresTold()]
        ) as lanes:
            approvals = Approvals(tell)
            model = model or BuiltinModel(0.01)
            agent = Agent(lanes, model, tools or bundled_tools(), tell, approvals)
            sessions = Sessions(
                lanes,
                agent,
                tell,
                store=store,
                turn_timeout=timeout,
                cap=cap,
                overflow=overflow,
            )
            yield Stage(sessions, lanes, approvals)
    recorder.check()


# The conversation


async def test_the_conversation_is_read_in_the_lane_and_not_when_a_message_is_posted(
    autojump_clock: object,
) -> None:
    model = Script(["one"], [1.0, "two"], ["three"])
    async with open_stage(model) as stage:
        for receipt in [stage.sessions.say("ann", text) for text in ("first", "second", "third")]:
            await receipt.settled()
    assert model.shown[1] == [("user", "first"), ("assistant", "one"), ("user", "second")]
    assert model.shown[2][2:] == [("user", "second"), ("assistant", "two"), ("user", "third")]


async def test_a_turn_holds_its_slot_until_its_stream_has_ended_and_its_answer_is_stored(
    autojump_clock: object,
) -> None:
    store = SlowStore()
    written: list[str] = []
    began: list[float] = []

    def tell(fact: Fact) -> None:
        if fact == Began("bob", ("hi",)):
            began.append(trio.current_time())
            written.extend(store.written)

    model = Script(["one ", 5.0, "two"], [])
    async with open_stage(model, store=store, tell=tell, turns=1) as stage:
        stage.sessions.say("ann", "first")
        stage.sessions.say("bob", "hi")
    assert began == [7], "a second for the question, five to answer, one to write the answer"
    assert written == ["open", "append", "finish"]


async def test_a_turn_keeps_the_question_the_calls_their_results_and_the_answer(
    autojump_clock: object,
) -> None:
    async with open_stage() as stage:
        answer = await stage.answer("calc 1/0, and search limits")
        question, asked, calc, search, said = await stage.sessions.conversation("ann").messages()
    assert answer.startswith("error: division by zero\nLimits: ")
    assert (question.role, question.content) == ("user", "calc 1/0, and search limits")
    assert [call["name"] for call in asked.tool_calls] == ["calc", "search"]
    assert [calc.tool_call_id, search.tool_call_id] == [call["id"] for call in asked.tool_calls]
    assert calc.content == "error: division by zero"
    assert search.content.startswith("Limits: ")
    assert (said.role, said.content, said.status) == ("assistant", answer, "completed")


async def test_tools_of_a_turn_run_side_by_side_and_their_results_keep_the_order_of_the_calls(
    autojump_clock: object,
) -> None:
    async def wait(seconds: str) -> str:
        await trio.sleep(float(seconds))
        return f"waited {seconds}"

    calls = [ToolCall(f"call{n}", "wait", f'{{"seconds": "{n}"}}') for n in (3, 1, 2)]
    told: list[Fact] = []
    tools = {"wait": Tool("wait", "Waits", "seconds", True, wait)}
    async with open_stage(Script(calls, []), tools, tell=told.append) as stage:
        await stage.answer("go")
        assert trio.current_time() == 3
        kept = await stage.kept()
    results = [f"waited {n}" for n in (3, 1, 2)]
    assert [content for role, content, _ in kept if role == "tool"] == results
    assert [fact.text for fact in told if isinstance(fact, Returned)] == results


async def test_a_stopped_turn_keeps_what_was_said_until_then(autojump_clock: object) -> None:
    async with open_stage() as stage:
        receipt = stage.sessions.say("ann", "long 50")
        await trio.sleep(0.5)
        assert stage.sessions.stop("ann", "enough")
        assert (await receipt.settled()).kind is SettledKind.CANCELLED
        question, (role, said, status) = await stage.kept()
    assert question == ("user", "long 50", "completed")
    assert (role, status) == ("assistant", "incomplete")
    assert re.fullmatch(r"1\. A lane keeps .*", said, re.S)


async def test_a_turn_that_is_stopped_while_a_tool_runs_leaves_no_call_without_its_result(
    autojump_clock: object,
) -> None:
    async def hang(query: str) -> str:
        await trio.sleep_forever()
        raise AssertionError

    tools = bundled_tools() | {"search": Tool("search", "Hangs", "query", True, hang)}
    async with open_stage(tools=tools) as stage:
        receipt = stage.sessions.say("ann", "search limits")
        await trio.sleep(5)
        assert stage.lanes.lane("tools").active == 1
        stage.sessions.stop("ann", "enough")
        await receipt.settled()
        assert await stage.kept() == [
            ("user", "search limits", "completed"),
            ("assistant", "", "incomplete"),
            ("tool", "cancelled", "incomplete"),
        ]


async def test_a_failed_turn_keeps_what_it_said_and_is_told_to_the_poster(
    autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_stage() as stage:
        receipt = stage.sessions.say("ann", "please fail")
        settled = await receipt.settled()
        assert settled.kind is SettledKind.FAILED
        assert isinstance(settled.error, ModelError)
        assert await stage.kept() == [
            ("user", "please fail", "completed"),
            ("assistant", "I will try,", "incomplete"),
        ]
        del receipt, settled
    assert not caplog.records, "a failure that was told is not logged as well"


async def test_a_turn_that_takes_too_long_fails_and_the_next_one_runs(
    autojump_clock: object,
) -> None:
    async with open_stage(timeout=10) as stage:
        slow = stage.sessions.say("ann", "slow 90")
        assert (await stage.answer("hello")).startswith("Hello!")
        assert trio.current_time() < 11
        assert isinstance((await slow.settled()).error, TurnTimeoutError)


async def test_a_model_that_never_has_enough_of_tools_is_stopped(autojump_clock: object) -> None:
    model = Script(*([ToolCall(f"call{n}", "time", "{}")] for n in range(2 * MAX_ROUNDS)))
    async with open_stage(model) as stage:
        error = (await stage.sessions.say("ann", "go").settled()).error
        assert isinstance(error, ModelError)
        assert "still wants tools after" in str(error)
    assert len(model.shown) == MAX_ROUNDS


async def test_a_model_that_gives_two_calls_one_name_fails_the_turn_alone(
    autojump_clock: object,
) -> None:
    model = Script([ToolCall("same", "time", "{}")] * 2, ["well"])
    async with open_stage(model) as stage:
        error = (await stage.sessions.say("ann", "go").settled()).error
        assert isinstance(error, ModelError)
        assert await stage.answer("again") == "well"


# What comes meanwhile


async def test_a_steer_is_answered_in_the_turn_after_the_calls_that_run(
    autojump_clock: object,
) -> None:
    async def wait(seconds: str) -> str:
        await trio.sleep(float(seconds))
        return "waited"

    model = Script([ToolCall("call", "wait", '{"seconds": "5"}')], [1.0, "both"])
    tools = {"wait": Tool("wait", "Waits", "seconds", True, wait)}
    told: list[Fact] = []
    async with open_stage(model, tools, tell=told.append) as stage:
        first = stage.sessions.say("ann", "first")
        await trio.sleep(1)
        second = stage.sessions.say("ann", "second", WhenBusy.STEER)
        assert (await second.settled()).kind is SettledKind.STEERED
        assert trio.current_time() == 5
        assert (await first.settled()).result == "both"
        assert [role for role, _, _ in await stage.kept()] == [
            "user",
            "assistant",
            "tool",
            "user",
            "assistant",
        ]
    assert model.shown[1][-2:] == [("tool", "waited"), ("user", "second")]
    assert Steered("ann", ("second",)) in told


async def test_a_steer_that_comes_while_the_answer_is_written_is_answered_next(
    autojump_clock: object,
) -> None:
    """Between the last look at what came and the free slot there is no gap to fall into."""
    model = Script(["one"], ["two"])
    async with open_stage(model, store=SlowStore()) as stage:
        first = stage.sessions.say("ann", "first")
        await trio.sleep(1.5)  # the question is stored, the answer is being stored
        second = stage.sessions.say("ann", "second", WhenBusy.STEER)
        assert (await first.settled()).kind is SettledKind.RAN
        assert (await second.settled()).kind is SettledKind.RAN
    assert model.shown[1] == [("user", "first"), ("assistant", "one"), ("user", "second")]


async def test_steers_begin_the_count_of_rounds_anew(autojump_clock: object) -> None:
    calls = [[1.0, ToolCall(f"call{n}", "time", "{}")] for n in range(2 * MAX_ROUNDS - 2)]
    async with open_stage(Script(*calls, ["at last"])) as stage:
        first = stage.sessions.say("ann", "first")
        await trio.sleep(MAX_ROUNDS - 1.5)  # the last round before there are too many
        stage.sessions.say("ann", "second", WhenBusy.STEER)
        assert (await first.settled()).result == "at last"


async def test_what_had_to_make_room_is_mentioned_to_the_model(autojump_clock: object) -> None:
    model = Script([5.0, "one"], ["three"], ["four"])
    told: list[Fact] = []
    async with open_stage(model, cap=2, tell=told.append) as stage:
        stage.sessions.say("ann", "first")
        await trio.sleep(1)
        for text in ("second", "third", "fourth"):
            last = stage.sessions.say("ann", text)
        await last.settled()
    assert model.shown[1][-2:] == [("user", "second"), ("user", "third")]
    assert Noted("ann", "too many wait: the model gets one line of the oldest") in told


# A model that is busy, and when it is asked again


async def test_a_call_is_made_again_only_before_its_first_word(autojump_clock: object) -> None:
    busy = ModelBusyError("slow down", 1)
    async with open_stage(Script([busy], ["well"], ["half a ", busy])) as stage:
        assert await stage.answer("first") == "well"
        second = await stage.sessions.say("ann", "second").settled()
        assert second.error is busy
        assert (await stage.kept())[-1] == ("assistant", "half a ", "incomplete")


async def test_a_call_that_failed_after_a_tool_call_is_not_made_again(
    autojump_clock: object,
) -> None:
    model = Script([ToolCall("call", "time", "{}"), ModelBusyError("slow down", 1)])
    async with open_stage(model) as stage:
        assert (await stage.sessions.say("ann", "go").settled()).kind is SettledKind.FAILED
    assert len(model.shown) == 1


# Approval


async def test_calls_that_need_no_approval_are_made_meanwhile(autojump_clock: object) -> None:
    model = Script(
        [
            ToolCall("1", "send_mail", '{"message": "bob: hi"}'),
            ToolCall("2", "calc", '{"expression": "6*7"}'),
            ToolCall("3", "send_mail", '{"message": "eve: hi"}'),
        ],
        ["done"],
    )
    async with open_stage(model) as stage:
        receipt = stage.sessions.say("ann", "go")
        await trio.sleep(60)
        assert stage.lanes.lane("tools").statistics().finished == 1
        asked = stage.approvals.answer("ann", allowed=True)
        assert [call.id for call in asked] == ["1", "3"]
        await receipt.settled()
        results = [content for role, content, _ in await stage.kept() if role == "tool"]
    assert results == ["mail sent: bob: hi", "6*7 = 42", "mail sent: eve: hi"]


async def test_a_sub_agent_cannot_do_what_needs_approval(autojump_clock: object) -> None:
    async with open_stage() as stage:
        answer = await stage.answer("ask a subagent: mail bob: hi")
    assert answer == "error: no person can be asked to allow send_mail"


async def test_an_abort_withdraws_the_question_and_lets_the_next_message_run(
    autojump_clock: object,
) -> None:
    told: list[Fact] = []
    async with open_stage(tell=told.append, turns=1) as stage:
        stage.sessions.say("ann", "mail bob: hi")
        waiting = stage.sessions.say("ann", "second")
        await trio.sleep(1)
        assert stage.approvals.waiting("ann")
        assert await stage.sessions.abort("ann", "never mind") == 1
        assert not stage.approvals.waiting("ann")
        assert (await waiting.settled()).kind is SettledKind.CANCELLED
        assert (await stage.answer("hello")).startswith("Hello!")
    assert [fact for fact in told if isinstance(fact, Piece)]


# All together


async def test_whatever_the_modes_no_message_is_lost_or_answered_twice(
    autojump_clock: object,
) -> None:
    async with open_stage(turns=2, cap=3) as stage:
        for n in range(60):
            stage.sessions.say(f"user{n % 5}", f"number {n}", list(WhenBusy)[n % 7])
            await trio.sleep(0.02)
        await stage.lanes.wait_idle()
        statistics = stage.sessions.statistics()
        assert statistics.offered == sum(statistics.settled.values()) == 60
        for user in (f"user{n}" for n in range(5)):
            assert user not in stage.sessions  # an idle session has no inbox
            kept = await stage.kept(user)
            said = [text for role, text, _ in kept if role == "user" and "number" in text]
            own = [text for text in said if text.count("number") == 1]  # else it is a summary
            assert len(own) == len(set(own)) > 0
