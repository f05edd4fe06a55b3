"""The chat agent's model calls: rate limits, a busy model, sub-agents, and what turns wait for."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio

from examples.chat_agent.agent import BUSY_SECONDS, MAX_BUSY_SECONDS, MAX_TRIES
from examples.chat_agent.builtin_model import BuiltinModel
from examples.chat_agent.chat import run_chat
from examples.chat_agent.limits import Limits, LimitsError, reload
from examples.chat_agent.model import Event, Message, ModelBusyError, Usage
from examples.chat_agent.screen import Screen
from examples.chat_agent.shutdown import resume_all
from tests.examples.chat_agent.typed import FOREVER, Line, Script
from trio_lanes import open_lanes

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "chat_agent" / "limits.toml"


class Provider:
    """The built-in model, which notes when it is called and with what, and may be busy.

    Args:
      busy: for so many calls; `retry_after` is what it says then.
      tokens: what it says that each call took; None for the built-in model's own count.
    """

    name = "provider"

    def __init__(
        self, *, busy: float = 0, retry_after: float | None = None, tokens: int | None = None
    ) -> None:
        self.calls: list[tuple[float, str]] = []
        self._busy = busy
        self._retry_after = retry_after
        self._tokens = tokens
        self._model = BuiltinModel(word_delay=0)

    @asynccontextmanager
    async def stream(self, messages: Sequence[Message]) -> AsyncIterator[AsyncIterator[Event]]:
        self.calls.append((trio.current_time(), messages[-1].text))
        await trio.lowlevel.checkpoint()
        if self._busy > 0:
            self._busy -= 1
            raise ModelBusyError("slow down", self._retry_after)

        async def counted(events: AsyncIterator[Event]) -> AsyncIterator[Event]:
            async for event in events:
                if isinstance(event, Usage) and self._tokens is not None:
                    event = Usage(self._tokens)
                yield event

        async with self._model.stream(messages) as events:
            yield counted(events)

    @property
    def times(self) -> list[float]:
        return [time for time, _ in self.calls]

    def most_in_a_minute(self) -> int:
        return max(sum(t <= other < t + 60 for other in self.times) for t in self.times)


@pytest.fixture
def provider() -> Provider:
    return Provider()


async def shown(
    *lines: Line, model: Provider | BuiltinModel, limits: Limits | None = None
) -> list[str]:
    """What a chat over these lines shows, each with the time at which it was shown."""
    screen: list[str] = []

    def write(line: str) -> None:
        screen.append(f"{trio.current_time():g} {line}")

    with trio.fail_after(FOREVER):
        assert await run_chat(model, Screen(write), Script(*lines), limits=limits) == 0
    return screen


def per_minute(*, requests: float = 1_000, tokens: float = 1e6, main: int = 4) -> Limits:
    return Limits(per_minute={"requests": requests, "tokens": tokens}).with_turns(main)


# Limits of the provider


async def test_no_minute_has_more_calls_of_the_model_than_the_limit(
    autojump_clock: object, provider: Provider
) -> None:
    typed = [f"/as user{n} what is 6*{n}?" for n in range(10)]  # two calls each
    lines = await shown(
        *typed, "ask a subagent: hello", model=provider, limits=per_minute(requests=5)
    )
    assert len([line for line in lines if " | " in line]) == 11
    assert len(provider.calls) == 10 * 2 + 3
    assert provider.most_in_a_minute() == 5


async def test_turns_that_need_a_second_call_come_before_those_that_need_their_first(
    autojump_clock: object, provider: Provider
) -> None:
    typed = [f"/as user{n} calc {n}" for n in range(3)]
    await shown(*typed, model=provider, limits=per_minute(requests=2, main=1))
    asked = [text for _, text in provider.calls]
    assert asked == ["calc 0", "0 = 0", "calc 1", "1 = 1", "calc 2", "2 = 2"]


@pytest.mark.parametrize(("tokens", "seconds"), [(1, 0), (250, 60), (500, 120)])
async def test_what_a_call_really_used_is_charged_in_place_of_the_guess(
    autojump_clock: object, tokens: int, seconds: float
) -> None:
    provider = Provider(tokens=tokens)
    await shown("a", "b", "c", model=provider, limits=per_minute(tokens=500))
    assert provider.times[-1] == seconds


# A busy model


async def test_a_busy_model_pauses_everybody_and_the_refused_turn_goes_first(
    autojump_clock: object,
) -> None:
    provider = Provider(busy=1, retry_after=7)
    typed = ["first", "/as bob second", "/as eve third"]
    lines = await shown(*typed, model=provider, limits=per_minute(main=1))
    assert provider.calls == [(0, "first"), (7, "first"), (7, "second"), (7, "third")]
    assert lines[0] == "0 me * the model is busy; the next attempt is in 7 s"
    assert [line.split(" |")[0] for line in lines[1:]] == ["7 me", "7 bob", "7 eve"]


async def test_why_tells_how_long_a_refused_turn_is_to_wait(autojump_clock: object) -> None:
    provider = Provider(busy=1, retry_after=7)
    lines = await shown("hello", 1, "/why", model=provider)
    assert lines[1:3] == [
        "1 turn of me: 'hello' waits to go on:",
        "1   main is paused, 6.0 s more",
    ]


async def test_a_busy_model_that_does_not_say_for_how_long_is_asked_after_a_while(
    autojump_clock: object,
) -> None:
    provider = Provider(busy=1)
    await shown("hello", model=provider)
    assert provider.times == [0, BUSY_SECONDS]


async def test_a_model_that_stays_busy_fails_the_turn_after_some_tries(
    autojump_clock: object,
) -> None:
    provider = Provider(busy=MAX_TRIES, retry_after=1)
    lines = await shown("hello", "second", model=provider)
    assert provider.times == [*range(MAX_TRIES), MAX_TRIES - 1]
    assert lines[-2] == f"{MAX_TRIES - 1} me * failed: slow down"
    assert "me | You said: second" in lines[-1]


async def test_a_wait_that_is_too_long_fails_the_turn_and_pauses_no_lane(
    autojump_clock: object,
) -> None:
    provider = Provider(busy=1, retry_after=MAX_BUSY_SECONDS + 1)
    lines = await shown("hello", "second", model=provider)
    assert provider.times == [0, 0]
    assert lines[0] == "0 me * failed: slow down"


async def test_a_model_that_is_busy_after_its_first_word_is_not_asked_again(
    autojump_clock: object,
) -> None:
    class Fickle(Provider):
        @asynccontextmanager
        async def stream(self, messages: Sequence[Message]) -> AsyncIterator[AsyncIterator[Event]]:
            async def events() -> AsyncIterator[Event]:
                self.calls.append((trio.current_time(), ""))
                yield "well "
                raise ModelBusyError("slow down", 1)

            yield events()

    provider = Fickle()
    lines = await shown("hello", model=provider)
    assert lines == ["0 me | well", "0 me * failed: slow down"]
    assert len(provider.calls) == 1


async def test_a_refused_call_is_charged_as_a_request_without_tokens(
    autojump_clock: object,
) -> None:
    provider = Provider(busy=1, retry_after=0, tokens=0)
    await shown("hello", "again", model=provider, limits=per_minute(requests=2, tokens=250))
    assert provider.times == [0, 0, 60]


async def test_a_pause_that_the_model_asked_for_outlives_resume_and_a_pause_by_hand_does_not(
    autojump_clock: object,
) -> None:
    limits = Limits()
    async with open_lanes(limits.lanes(), groups=limits.groups()) as lanes:
        lanes.pause("tools")
        lanes.session("ann").pause()
        lanes.pause_for("main", 5)
        resume_all(lanes)
        paused = {name: lane.paused for name, lane in lanes.statistics().lanes.items()}
        assert paused == {"main": True, "tools": False, "subagent": False}
        assert not lanes.session("ann").paused
        await trio.sleep(5)
        assert not lanes.lane("main").paused


# Sub-agents


async def test_sub_agents_of_a_turn_work_side_by_side_and_their_answers_keep_the_order(
    autojump_clock: object, provider: Provider
) -> None:
    lines = await shown("ask a subagent: slow 20; slow 10; what is 6*7?", model=provider)
    assert lines[:3] == [
        "20 me * ask_subagent: Sorry that it took me so long.",
        "20 me * ask_subagent: Sorry that it took me so long.",
        "20 me * ask_subagent: 6*7 = 42",
    ]
    assert lines[-1] == "20 me | 6*7 = 42"


async def test_a_turn_that_waits_for_sub_agents_lends_the_only_slot(
    autojump_clock: object, provider: Provider
) -> None:
    limits = Limits(at_once={"main": 1, "tools": 1, "subagent": 1})
    typed: list[Line] = ["ask a subagent: slow 20; what is 6*7?", 1, "/as bob slow 5", "second"]
    lines = await shown(*typed, model=provider, limits=limits)
    assert lines[0] == "6 bob | Sorry that it took me so long."
    assert lines[-2] == "20 me | 6*7 = 42"
    assert lines[-1].startswith("20 me | You said: second"), "the session's place is not lent"


async def test_a_sub_agent_that_is_refused_waits_and_goes_on(autojump_clock: object) -> None:
    class BusySubagents(Provider):
        @asynccontextmanager
        async def stream(self, messages: Sequence[Message]) -> AsyncIterator[AsyncIterator[Event]]:
            self._busy = len(self.calls) == 1
            async with super().stream(messages) as events:
                yield events

    provider = BusySubagents(retry_after=7)
    lines = await shown("ask a subagent: what is 6*7?", model=provider)
    assert provider.times == [0, 0, 7, 7, 7]
    assert lines == ["7 me * ask_subagent: 6*7 = 42", "7 me | 6*7 = 42"]


@pytest.mark.parametrize(
    ("task", "answer"),
    [
        ("please fail", "error: the built-in model failed, as it was asked to"),
        ("ask a subagent: hello", "error: a sub-agent has no sub-agents"),
    ],
)
async def test_what_a_sub_agent_cannot_do_is_an_answer(
    autojump_clock: object, provider: Provider, task: str, answer: str
) -> None:
    lines = await shown(f"ask a subagent: {task}", "hello", model=provider)
    assert lines[0] == f"0 me * ask_subagent: {answer}"
    assert "me | Hello!" in lines[-1]


async def test_a_turn_that_is_stopped_stops_its_sub_agents(
    autojump_clock: object, provider: Provider
) -> None:
    lines = await shown(
        "ask a subagent: slow 90; slow 80", "second", 1, "/stop", 1, "/sessions", model=provider
    )
    assert lines[0] == "1 me * stopped"
    assert lines[1].startswith("1 me | You said: second (That was message 2")
    assert "2 subagent  8      0        0        -" in lines


# What a turn waits for


async def test_why_tells_what_each_turn_of_a_session_waits_for(
    autojump_clock: object, provider: Provider
) -> None:
    typed: list[Line] = [
        "slow 90",
        "two",
        "three",
        "/as bob slow 80",
        "/as eve hello",
        "/as ann hi",
        1,
    ]
    asked = ["/why", "/why eve", "/why ann", "/why bob"]
    lines = await shown(*typed, *asked, model=provider, limits=per_minute(main=2))
    assert lines[:12] == [
        "1 turn of me: 'slow 90' runs",
        "1 turn of me: 'two' waits to start:",
        "1   session:me runs as many as it may: turn of me: 'slow 90'",
        "1   root: 2 ← 1 of its session ← its body, for 1.0 s",
        "1 'three' waits behind it",
        "1 turn of eve: 'hello' waits to start:",
        "1   main runs as many as it may: turn of me: 'slow 90', turn of bob: 'slow 80'",
        "1 turn of ann: 'hi' waits to start:",
        "1   others are before it: turn of eve: 'hello'",
        "1   main runs as many as it may: turn of me: 'slow 90', turn of bob: 'slow 80'",
        "1 turn of bob: 'slow 80' runs",
        "80 bob | Sorry that it took me so long.",
    ]


async def test_why_tells_pauses_and_limits_and_when_they_end(
    autojump_clock: object, provider: Provider
) -> None:
    limits = per_minute(requests=1)
    typed: list[Line] = [
        "one",
        "two",
        10,
        "/why",
        "/pause main",
        "/pause me",
        "/as bob hi",
        "/why bob",
    ]
    lines = await shown(*typed, "three", "/why", "/resume", model=provider, limits=limits)
    told = [line for line in lines if "10 " in line and " | " not in line]
    assert told == [
        "10 turn of me: 'two' waits to start:",
        "10   the rate limit of model is used up, 50.0 s more",
        "10 paused main",
        "10 paused me",
        "10 turn of bob: 'hi' waits to start:",
        "10   main is paused",
        "10   the rate limit of model is used up, 50.0 s more",
        "10 turn of me: 'two' waits to start:",
        "10   session:me is paused",
        "10 'three' waits behind it",
        "10 resumed everything",
    ]


async def test_why_follows_a_turn_to_the_sub_agents_that_it_waits_for(
    autojump_clock: object, provider: Provider
) -> None:
    limits = Limits(at_once={"main": 4, "tools": 8, "subagent": 1})
    typed: list[Line] = [
        "ask a subagent: slow 50; slow 50",
        1,
        "/why",
        "/why bob",
        "/as bob",
        1,
        "/why",
    ]
    lines = await shown(*typed, model=provider, limits=limits)
    assert lines[0] == "1 turn of me: 'ask a subagent: slow 50…' waits to go on:"
    first, second = sorted(lines[1:6], key=len)[:2]
    assert first == "1     ask_subagent runs"
    assert second == "1     ask_subagent waits to start:"
    assert lines[1:6].count("1   it runs, and waits for a job in subagent: ask_subagent") == 2
    assert "1       subagent runs as many as it may: ask_subagent" in lines[1:6]
    assert lines[6] == "1 ! there is no session 'bob'; /sessions lists them"
    assert lines[7:9] == ["1 you are bob now", "2 nothing runs or waits in bob"]


# The file


def written(folder: Path, text: str) -> Path:
    file = folder / "limits.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_the_file_of_the_example_is_one() -> None:
    limits = Limits().with_turns(9).read(EXAMPLE)
    assert limits.at_once == {"main": 4, "tools": 8, "subagent": 8}
    assert limits.per_minute == {"requests": 60, "tokens": 40_000}


def test_what_a_file_leaves_out_is_as_without_it(tmp_path: Path) -> None:
    limits = Limits().with_turns(9).read(written(tmp_path, "[per_minute]\ntokens = 7.5"))
    assert limits.at_once == {"main": 9, "tools": 8, "subagent": 8}
    assert limits.per_minute == {"requests": 6_000, "tokens": 7.5}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[at_once", "limits: Expected ']'"),
        ("at_once = 3", "at_once must be a table"),
        ("[lanes]\nmain = 3", "unknown name 'lanes'; the names are at_once, per_minute"),
        ("[at_once]\nfast = 3", "unknown name 'at_once.fast'; the names are main, tools, subagent"),
        ("[at_once]\nmain = 0", "main must be a whole number from 1 to 1,000"),
        ("[at_once]\nmain = true", "main must be a whole number"),
        ("[at_once]\nmain = 1.5", "main must be a whole number"),
        ("[at_once]\ntools = 1001", "tools must be a whole number"),
        ("[per_minute]\nrequests = 0", "limit must be above 0, got 0"),
        ("[per_minute]\ntokens = nan", "limit must be finite, got nan"),
        ("[per_minute]\ntokens = 'many'", "limit must be a number, not 'many'"),
        ("[per_minute]\nwords = 5", "unknown name 'per_minute.words'"),
    ],
)
async def test_a_bad_file_is_one_line_and_changes_nothing(
    autojump_clock: object, tmp_path: Path, text: str, complaint: str
) -> None:
    file = written(tmp_path, "[at_once]\nmain = 1\n" + text if "at_once" not in text else text)
    limits = Limits()
    with pytest.raises(LimitsError) as caught:
        limits.read(file)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)
    async with open_lanes(limits.lanes(), groups=limits.groups()) as lanes:
        said = reload(lanes, partial(limits.read, file))
        assert said == f"! {caught.value}; nothing has changed"
        assert lanes.lane("main").concurrency == 4


@pytest.mark.parametrize("spoil", [Path.unlink, partial(Path.write_bytes, data=b"\xff")])
def test_a_file_that_cannot_be_read_is_one_line(
    tmp_path: Path, spoil: Callable[[Path], object]
) -> None:
    file = written(tmp_path, "")
    spoil(file)
    with pytest.raises(LimitsError, match=r"^limits: .+") as caught:
        Limits().read(file)
    assert "\n" not in str(caught.value)


async def test_a_changed_file_changes_limits_and_what_was_used_stays_used(
    autojump_clock: object, tmp_path: Path
) -> None:
    limits = per_minute(requests=2, tokens=9_000, main=1)
    file = written(tmp_path, "[at_once]\nmain = 3\n[per_minute]\nrequests = 3")
    started = []

    async def turn() -> None:
        started.append(trio.current_time())
        await trio.sleep(100)

    async with open_lanes(limits.lanes(), groups=limits.groups()) as lanes:
        for _ in range(4):
            lanes.start_soon(turn)
        await trio.sleep(1)
        assert started == [0]
        said = reload(lanes, partial(limits.read, file))
        assert said == "limits: main 3, tools 8, subagent 8, requests 3, tokens 9,000"
        await trio.sleep(1)
        assert started == [0, 1, 1]
        assert lanes.jobs()[-1].blocked_by()[0].kind == "concurrency"
        lanes.lane("main").concurrency = 4
        assert [blocker.kind for blocker in lanes.jobs()[-1].blocked_by()] == ["rate"]
    assert started == [0, 1, 1, 60]
