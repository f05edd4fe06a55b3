"""The chat agent on virtual time: what each command does, and what a turn leaves behind."""

import re
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
import trio

from examples.chat_agent.agent import MAX_ROUNDS, Agent
from examples.chat_agent.builtin_model import BuiltinModel
from examples.chat_agent.chat import run_chat
from examples.chat_agent.conversations import Conversations
from examples.chat_agent.limits import MAX_WAITING, Limits
from examples.chat_agent.model import Event, Message, Model, ModelError, ToolCall
from examples.chat_agent.screen import Screen
from examples.chat_agent.tools import Tool, bundled_tools
from trio_lanes import JobCancelledError, Lanes, open_lanes
from trio_lanes.testing import LaneRecorder

Line = str | float
FOREVER = 1e6  # of virtual seconds: what has not ended then never will


class Script:
    """Lines that somebody types; a number is a pause of so many seconds before the next one."""

    def __init__(self, *lines: Line) -> None:
        self._lines = iter(lines)

    async def read(self, prompt: str) -> str | None:
        for line in self._lines:
            if isinstance(line, str):
                return line.replace("{prompt}", prompt)
            await trio.sleep(line)
        return None


class Watched:
    """The built-in model, which counts how often it is asked at once."""

    name = "watched"

    def __init__(self) -> None:
        self.now = 0
        self.most = 0
        self._model = BuiltinModel(word_delay=0.01)

    @asynccontextmanager
    async def stream(self, messages: Sequence[Message]) -> AsyncIterator[AsyncIterator[Event]]:
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            async with self._model.stream(messages) as events:
                yield events
        finally:
            self.now -= 1


async def shown(*lines: Line, model: Model | None = None, limit: int = 4) -> list[str]:
    """What a chat over these lines shows."""
    screen: list[str] = []
    with trio.fail_after(FOREVER):
        code = await run_chat(
            model or BuiltinModel(word_delay=0.01),
            Screen(screen.append),
            Script(*lines),
            limits=Limits().with_turns(limit),
            turn_timeout=100,
        )
    assert code == 0
    return screen


# Sessions, limits and order


async def test_messages_of_one_session_are_answered_in_order_and_never_two_at_once(
    autojump_clock: object,
) -> None:
    model = Watched()
    lines = await shown(*(f"number {n}" for n in range(10)), model=model)
    assert lines == [
        f"me | You said: number {n} (That was message {n + 1} of this conversation.)"
        for n in range(10)
    ]
    assert model.most == 1


async def test_as_speaks_in_another_session_and_stays_in_this_one(autojump_clock: object) -> None:
    lines = await shown("/as bob one", 5, "{prompt}", 5, "/as bob", "{prompt}")
    assert lines[0].startswith("bob | You said: one")
    assert lines[1].startswith("me | You said: me>")
    assert lines[2] == "you are bob now"
    assert lines[3].startswith("bob | You said: bob> (That was message 2")


async def test_sessions_are_answered_side_by_side_up_to_the_limit(autojump_clock: object) -> None:
    model = Watched()
    lines = await shown(*(f"/as user{n} slow 10" for n in range(9)), model=model, limit=3)
    assert model.most == 3
    assert len(lines) == 9


async def test_the_limit_of_a_lane_is_changed_while_it_runs(autojump_clock: object) -> None:
    model = Watched()
    typed = [f"/as user{n} slow 10" for n in range(9)]
    lines = await shown(*typed, 1, "/limit main 8", model=model, limit=2)
    assert "main runs at most 8 at once" in lines
    assert model.most == 8


# Commands


async def test_stop_cancels_the_running_turn_alone(autojump_clock: object) -> None:
    lines = await shown("slow 90", "second", "/as bob slow 5", 1, "/stop")
    assert lines[0] == "me * stopped"
    assert lines[1].startswith("me | You said: second (That was message 2")
    assert lines[2] == "bob | Sorry that it took me so long."


async def test_stop_of_another_session_leaves_this_one_alone(autojump_clock: object) -> None:
    lines = await shown("slow 5", "/as bob slow 90", 1, "/stop bob")
    assert lines == ["bob * stopped", "me | Sorry that it took me so long."]


async def test_clear_drops_what_waits_and_leaves_what_runs(autojump_clock: object) -> None:
    lines = await shown("slow 5", "second", "third", "/as bob fourth", 1, "/clear")
    assert lines[0].startswith("bob | You said: fourth")
    assert lines[1:] == ["cleared 2 waiting in me", "me | Sorry that it took me so long."]


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("main", [], ["one", "three", "two"]),
        ("", [], ["one", "three", "two"]),
        ("me", ["three"], ["one", "two"]),
    ],
)
async def test_what_is_paused_starts_when_it_is_resumed(
    autojump_clock: object, name: str, before: list[str], after: list[str]
) -> None:
    lines = await shown(f"/pause {name}", "one", "two", "/as eve three", 20, f"/resume {name}", 20)
    resumed = next(n for n, line in enumerate(lines) if line.startswith("resumed"))

    def answered(part: list[str]) -> list[str]:
        return sorted(re.findall(r"You said: (\w+)", "\n".join(part)))

    assert answered(lines[:resumed]) == before
    assert answered(lines[resumed:]) == after


async def test_resume_without_a_name_resumes_sessions_and_lanes(autojump_clock: object) -> None:
    lines = await shown("/pause tools", "/pause me", "what is 6*7?", 5, "/resume", 5, "/quit")
    assert lines[-3:] == ["resumed everything", "me * calc: 6*7 = 42", "me | 6*7 = 42"]


async def test_sessions_shows_lanes_and_sessions(autojump_clock: object) -> None:
    lines = await shown(
        "slow 90", "two", "three", "/as bob slow 90", "/as eve", "/pause tools", 3, "/sessions",
        "/stop me", "/stop bob",
    )  # fmt: skip
    table = [line.split() for line in lines]
    assert ["main", "4", "2", "2", "3.0", "s"] in table
    assert ["tools", "8", "0", "0", "-", "paused"] in table
    assert ["me", "3.0", "s:", "'slow", "90'", "2", "'two'"] in table
    assert ["bob", "3.0", "s:", "'slow", "90'", "0"] in table
    assert ["*eve", "-", "0"] in table


async def test_help_names_every_command(autojump_clock: object) -> None:
    text = "\n".join(await shown("/help"))
    for word in (
        "/as",
        "/sessions",
        "/why",
        "/stop",
        "/clear",
        "/limit",
        "/pause",
        "/resume",
        "/quit",
    ):
        assert word in text


async def test_quit_reads_no_further_and_lets_answers_end(autojump_clock: object) -> None:
    lines = await shown("slow 5", "/quit", "never read")
    assert lines == ["me | Sorry that it took me so long."]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("/stop", "nothing runs in me"),
        ("/stop bob", "there is no session 'bob'"),
        ("/clear bob", "there is no session 'bob'"),
        ("/why bob", "there is no session 'bob'"),
        ("/pause bob", "there is no session 'bob'"),
        ("/resume bob", "there is no session 'bob'"),
        ("/limit fast 3", "there is no lane 'fast'"),
        ("/limit main 0", "a limit is a whole number from 1 to 1,000"),
        ("/dance", "there is no command '/dance'"),
    ],
)
async def test_a_bad_line_is_one_clear_line_and_changes_nothing(
    autojump_clock: object, line: str, complaint: str
) -> None:
    before = await shown("/sessions")
    lines = await shown(line, "/sessions")
    assert lines[0].startswith("! ")
    assert complaint in lines[0]
    assert lines[1:] == before


# Bounds


async def test_more_than_may_wait_in_a_paused_lane_is_refused(autojump_clock: object) -> None:
    lines = await shown("/pause", *(f"number {n}" for n in range(MAX_WAITING + 2)))
    assert [line for line in lines if line.startswith("!")] == [
        f"! lane 'main' is full (max_waiting={MAX_WAITING})"
    ] * 2
    assert "resuming main, subagent, tools: nobody else can now" in lines
    answered = [line for line in lines if line.startswith("me | ")]
    assert len(answered) == MAX_WAITING


async def test_a_long_script_is_read_only_as_fast_as_it_is_answered(
    autojump_clock: object,
) -> None:
    lines = await shown(*(f"/as user{n % 7} number {n}" for n in range(3 * MAX_WAITING)))
    assert len(lines) == 3 * MAX_WAITING
    assert not [line for line in lines if line.startswith("!")]


# Failures


async def test_a_failing_turn_is_told_and_the_next_one_is_answered(autojump_clock: object) -> None:
    lines = await shown("please fail", "second")
    assert lines[:2] == [
        "me | I will try,",
        "me * failed: the built-in model failed, as it was asked to",
    ]
    assert lines[2].startswith("me | You said: second (That was message 2")


async def test_a_turn_that_runs_for_too_long_is_stopped(autojump_clock: object) -> None:
    lines = await shown("slow 500", "second")
    assert lines[0] == "me * stopped after 100 s"
    assert lines[1].startswith("me | You said: second")


async def test_an_unexpected_error_is_told_like_any_other(autojump_clock: object) -> None:
    class Broken:
        name = "broken"

        def stream(
            self, messages: Sequence[Message]
        ) -> AbstractAsyncContextManager[AsyncIterator[Event]]:
            raise RuntimeError("out of paper")

    assert await shown("hello", model=Broken()) == ["me * failed: RuntimeError: out of paper"]


# What a turn leaves in the conversation


class Nobody:
    def stream(self, session: str, piece: str) -> None: ...
    def note(self, session: str, text: str) -> None: ...
    def end(self, session: str) -> None: ...


@asynccontextmanager
async def open_agent(
    model: Model | None = None,
    tools: dict[str, Tool] | None = None,
    limits: Limits = Limits(),  # noqa: B008  (frozen)
) -> AsyncIterator[tuple[Agent, Lanes]]:
    recorder = LaneRecorder()
    with trio.fail_after(FOREVER):
        async with open_lanes(
            limits.lanes(), groups=limits.groups(), instruments=[recorder]
        ) as lanes:
            answering = model or BuiltinModel(0.01)
            yield (
                Agent(lanes, answering, tools or bundled_tools(), Conversations(), Nobody()),
                lanes,
            )
    recorder.check()


def history(agent: Agent, session: str = "ann") -> list[tuple[str, str]]:
    return [(m.role, m.text) for m in agent.conversations.transcripts()[session]]


async def test_a_turn_saves_the_question_the_calls_their_results_and_the_answer(
    autojump_clock: object,
) -> None:
    async with open_agent() as (agent, lanes):
        answer = await lanes.run(agent.turn, "ann", "calc 1/0, and search limits", session="ann")
    assert answer.startswith("error: division by zero\nLimits: ")
    question, asked, calc, search, said = agent.conversations.transcripts()["ann"]
    assert (question.role, question.text) == ("user", "calc 1/0, and search limits")
    assert [call.name for call in asked.calls] == ["calc", "search"]
    assert [calc.call_id, search.call_id] == [call.id for call in asked.calls]
    assert calc.text == "error: division by zero"
    assert search.text.startswith("Limits: ")
    assert (said.role, said.text) == ("assistant", answer)


async def test_tools_of_a_turn_run_side_by_side_and_their_results_keep_the_order_of_the_calls(
    autojump_clock: object,
) -> None:
    async def wait(seconds: str) -> str:
        await trio.sleep(float(seconds))
        return f"waited {seconds}"

    class Impatient:
        name = "impatient"

        @asynccontextmanager
        async def stream(self, messages: Sequence[Message]) -> AsyncIterator[AsyncIterator[Event]]:
            async def events() -> AsyncIterator[Event]:
                if messages[-1].role == "user":
                    for n in (3, 1, 2):
                        yield ToolCall(f"call{n}", "wait", f'{{"seconds": "{n}"}}')

            yield events()

    tools = {"wait": Tool("wait", "Waits", "seconds", True, wait)}
    async with open_agent(Impatient(), tools) as (agent, lanes):
        await lanes.run(agent.turn, "ann", "go", session="ann")
        assert trio.current_time() == 3
    assert history(agent)[2:5] == [
        ("tool", "waited 3"),
        ("tool", "waited 1"),
        ("tool", "waited 2"),
    ]


async def test_a_stopped_turn_saves_what_was_said_until_then(autojump_clock: object) -> None:
    async with open_agent() as (agent, lanes):
        job = lanes.submit_nowait(agent.turn, "ann", "long 50", session="ann")
        await trio.sleep(0.5)
        job.cancel()
        with pytest.raises(JobCancelledError):
            await job.wait()
        assert history(agent)[0] == ("user", "long 50")
        role, said = history(agent)[1]
        assert role == "assistant"
        assert re.fullmatch(r"1\. A lane keeps .*\[stopped\]", said, re.S)


async def test_a_turn_that_is_stopped_while_a_tool_runs_leaves_no_call_without_its_result(
    autojump_clock: object,
) -> None:
    async def hang(query: str) -> str:
        await trio.sleep_forever()
        raise AssertionError

    tools = bundled_tools() | {"search": Tool("search", "Hangs", "query", True, hang)}
    async with open_agent(tools=tools) as (agent, lanes):
        job = lanes.submit_nowait(agent.turn, "ann", "search limits", session="ann")
        await trio.sleep(5)
        assert lanes.lane("tools").active == 1
        job.cancel()
        await job.wait_done()
        await lanes.wait_idle()
        assert history(agent) == [("user", "search limits"), ("assistant", "[stopped]")]


async def test_a_failed_turn_saves_that_it_failed(autojump_clock: object) -> None:
    async with open_agent() as (agent, lanes):
        with pytest.raises(ModelError):
            await lanes.run(agent.turn, "ann", "please fail", session="ann")
    assert history(agent) == [("user", "please fail"), ("assistant", "I will try, [failed]")]


async def test_a_model_that_never_has_enough_of_tools_is_stopped(autojump_clock: object) -> None:
    asked = 0

    class Greedy:
        name = "greedy"

        @asynccontextmanager
        async def stream(self, messages: Sequence[Message]) -> AsyncIterator[AsyncIterator[Event]]:
            async def events() -> AsyncIterator[Event]:
                nonlocal asked
                asked += 1
                yield ToolCall(f"call{asked}", "time", "{}")

            yield events()

    async with open_agent(Greedy()) as (agent, lanes):
        with pytest.raises(ModelError, match="still wants tools after"):
            await lanes.run(agent.turn, "ann", "go", session="ann")
    assert asked == MAX_ROUNDS


async def test_without_a_session_two_turns_would_lose_messages(autojump_clock: object) -> None:
    """What lanes are for: the same turns, but not in a session's lane."""

    async def both(session: str | None) -> int:
        async with open_agent() as (agent, lanes):
            for n in range(2):
                lanes.submit_nowait(agent.turn, "ann", f"number {n}", session=session)
            await lanes.wait_idle()
            return Counter(role for role, _ in history(agent))["user"]

    assert await both("ann") == 2
    assert await both(None) == 1
