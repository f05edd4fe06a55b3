"""The parts of the chat agent that need no lanes: model, tools, documents, commands, screen."""

import json
import os
from datetime import UTC, datetime

import pytest
import trio

from examples.chat_agent.builtin_model import BuiltinModel
from examples.chat_agent.calc import MAX_LENGTH, CalcError, calculate
from examples.chat_agent.commands import (
    MAX_LINE,
    Abort,
    Approve,
    Clear,
    Command,
    CommandError,
    Deny,
    Go,
    Help,
    Hold,
    Limit,
    Pause,
    Queue,
    Quit,
    Resume,
    Say,
    ShowSessions,
    Stop,
    SwitchTo,
    Why,
    parse,
)
from examples.chat_agent.documents import Document, Library
from examples.chat_agent.model import Event, Message, ModelError, ToolCall, Usage
from examples.chat_agent.screen import Screen
from examples.chat_agent.terminal import MAX_BYTES, StreamLines
from examples.chat_agent.tools import bundled_tools, call_tool
from trio_lanes.agents import WhenBusy

NOON = datetime(2030, 1, 2, 12, 0, 0, tzinfo=UTC)


async def events(*messages: Message | str, word_delay: float = 1.0) -> list[Event]:
    conversation = [Message("user", m) if isinstance(m, str) else m for m in messages]
    async with BuiltinModel(word_delay).stream(conversation) as stream:
        return [event async for event in stream]


async def text(*messages: Message | str) -> str:
    return "".join(event for event in await events(*messages) if isinstance(event, str))


async def calls(asked: str) -> list[tuple[str, dict[str, str]]]:
    return [
        (event.name, json.loads(event.arguments))
        for event in await events(asked)
        if isinstance(event, ToolCall)
    ]


# The built-in model


async def test_the_built_in_model_streams_a_word_at_a_time(autojump_clock: object) -> None:
    began = trio.current_time()
    times = []
    async with BuiltinModel(word_delay=0.5).stream([Message("user", "hello")]) as stream:
        async for event in stream:
            if isinstance(event, Usage):
                break
            assert isinstance(event, str)
            assert len(event.split()) == 1
            times.append(trio.current_time() - began)
    assert times == [0.5 * (n + 1) for n in range(len(times))]
    assert len(times) > 5


async def test_the_same_conversation_gets_the_same_answer(autojump_clock: object) -> None:
    assert await text("tell me something") == await text("tell me something")


async def test_the_built_in_model_knows_how_far_the_conversation_is(
    autojump_clock: object,
) -> None:
    assert "message 1 of" in await text("one thing")
    assert "message 2 of" in await text("one thing", Message("assistant", "yes"), "another")


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        ("what time is it?", [("time", {})]),
        ("the time in Europe/Paris please", [("time", {"zone": "Europe/Paris"})]),
        ("calc 2 ** 8", [("calc", {"expression": "2 ** 8"})]),
        ("what is 6*7?", [("calc", {"expression": "6*7"})]),
        ("search limits", [("search", {"query": "limits"})]),
        ("what is a lane?", [("search", {"query": "what is a lane"})]),
        (
            "calc 1+1, and search sessions",
            [("calc", {"expression": "1+1"}), ("search", {"query": "sessions"})],
        ),
        (
            "ask a subagent: what is 6*7?; slow 10;",
            [("ask_subagent", {"task": "what is 6*7?"}), ("ask_subagent", {"task": "slow 10"})],
        ),
        ("ask a subagent: ;", []),
        ("send a mail to bob: lunch?", [("send_mail", {"message": "bob: lunch?"})]),
        ("email eve that I am late", [("send_mail", {"message": "eve that I am late"})]),
        ("hello", []),
    ],
)
async def test_the_built_in_model_asks_for_tools(
    autojump_clock: object, asked: str, wanted: list[tuple[str, dict[str, str]]]
) -> None:
    assert await calls(asked) == wanted


async def test_the_built_in_model_answers_with_what_the_tools_said(autojump_clock: object) -> None:
    call = ToolCall("1", "calc", '{"expression": "6*7"}')
    answer = await text(
        "what is 6*7?", Message("assistant", "", (call,)), Message("tool", "6*7 = 42", (), "1")
    )
    assert answer == "6*7 = 42"


async def test_the_built_in_model_counts_words_as_its_tokens(autojump_clock: object) -> None:
    said = await events("tell me", Message("assistant", "yes"), "more about it")
    words = len(["tell", "me", "yes", "more", "about", "it"])
    assert said[-1] == Usage(words + len(said) - 1, words, len(said) - 1)
    assert (await events("calc 1+1, and search limits"))[-1] == Usage(5 + 2, 5, 2)


async def test_the_built_in_model_is_long_when_asked_to(autojump_clock: object) -> None:
    assert len((await text("long 40")).splitlines()) == 40
    assert len((await text("give me a long answer")).splitlines()) == 12
    assert len((await text("give me a long answer of 7 lines")).splitlines()) == 7
    assert len((await text("long 999999")).splitlines()) == 500


async def test_the_built_in_model_is_slow_when_asked_to(autojump_clock: object) -> None:
    began = trio.current_time()
    async with BuiltinModel(word_delay=0).stream([Message("user", "slow 90")]) as stream:
        await anext(aiter(stream))
        assert trio.current_time() - began == 90


async def test_the_built_in_model_fails_in_the_middle_when_asked_to(
    autojump_clock: object,
) -> None:
    heard: list[Event] = []
    async with BuiltinModel().stream([Message("user", "please fail")]) as stream:
        with pytest.raises(ModelError, match="as it was asked to"):
            async for event in stream:
                heard.append(event)
    assert heard


# Tools


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("2+3*4", "14"),
        (" (1 + 2) * -3 ", "-9"),
        ("7/2", "3.5"),
        ("7//2", "3"),
        ("7 % 4", "3"),
        ("2**10", "1024"),
        ("0.1+0.2", "0.3"),
        ("2**-1", "0.5"),
        ("1**999999999", "1"),
        ("2**4000", str(2**4000)),
    ],
)
def test_calc_calculates(expression: str, value: str) -> None:
    assert calculate(expression) == value


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("1/0", "division by zero"),
        ("0**-1", "division by zero"),
        ("9**9**9", "too large"),
        ("2**99999999999", "too large"),
        ("2**4095*4", "too large"),
        ("1e308*10", "too large"),
        ("1e999", "too large"),
        ("10.0**400", "too large"),
        ("(-8)**0.5", "not a real number"),
        ("__import__('os')", "not arithmetic"),
        ("a+1", "not arithmetic"),
        ("1,2", "not arithmetic"),
        ("1 2", "not arithmetic"),
        ("~1", "not arithmetic"),
        ("1e", "not arithmetic"),
        ("", "not arithmetic"),
        ("(" * MAX_LENGTH, "not arithmetic"),
        ("1+" * MAX_LENGTH, "at most 200 characters"),
    ],
)
def test_calc_refuses_what_is_not_arithmetic_or_is_too_large(expression: str, reason: str) -> None:
    with pytest.raises(CalcError, match=reason) as caught:
        calculate(expression)
    assert "\n" not in str(caught.value)


async def result(name: str, arguments: str) -> str:
    return await call_tool(bundled_tools(now=lambda: NOON), ToolCall("1", name, arguments))


async def test_the_tools_answer(autojump_clock: object) -> None:
    assert await result("time", "{}") == "12:00:00 UTC on Wednesday, 02 January 2030"
    assert (await result("time", '{"zone": "Asia/Tokyo"}')).startswith("21:00:00 JST")
    assert await result("calc", '{"expression": "6 * 7"}') == "6 * 7 = 42"
    assert (await result("search", '{"query": "Ctrl-C"}')).startswith("Draining: ")
    assert await result("send_mail", '{"message": "half \\ud83d"}') == "mail sent: half �"


@pytest.mark.parametrize(
    ("name", "arguments", "reason"),
    [
        (
            "dance",
            "{}",
            "there is no tool 'dance'; the tools are time, calc, search, send_mail, ask_subagent",
        ),
        ("calc", "{", "not JSON"),
        ("calc", "[" * 100_000, "not JSON"),
        ("calc", "[1]", "not a JSON object"),
        ("calc", "{}", "needs the text 'expression'"),
        ("calc", '{"expression": 3}', "needs the text 'expression'"),
        ("calc", '{"expression": "1/0"}', "division by zero"),
        ("search", '{"query": "zebra"}', "no document"),
        ("time", '{"zone": "Mars/Olympus"}', "no time zone"),
        ("time", '{"zone": "../../etc/passwd"}', "no time zone"),
        ("time", '{"zone": "\\u0000"}', "no time zone"),
    ],
)
async def test_a_bad_call_is_a_result_that_says_so(
    autojump_clock: object, name: str, arguments: str, reason: str
) -> None:
    answer = await result(name, arguments)
    assert answer.startswith("error: ")
    assert reason in answer


def test_the_best_document_comes_first_and_strangers_find_none() -> None:
    library = Library.bundled()
    assert library.search("how do I stop something?")[0].title == "Stopping and clearing"
    assert library.search("pause")[0].title == "Pausing"
    assert library.search("limits")[0].title == "Limits"
    assert library.search("zebra") == []
    assert library.search("the of and") == []


def test_documents_that_fit_equally_well_keep_their_order() -> None:
    library = Library(Document(title, "the same words") for title in ("one", "two", "three"))
    assert [found.title for found in library.search("same words", limit=3)] == [
        "one",
        "two",
        "three",
    ]


# Commands


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("hello there", Say("hello there")),
        ("  hello  ", Say("hello")),
        ("//etc/hosts", Say("/etc/hosts")),
        ("/as bob hello there", Say("hello there", "bob")),
        ("/as\tbob  hello", Say("hello", "bob")),
        ("/as bob", SwitchTo("bob")),
        ("/sessions", ShowSessions()),
        ("/why", Why(None)),
        ("/why bob", Why("bob")),
        ("/queue steer", Queue(WhenBusy.STEER, None)),
        ("/queue replace bob", Queue(WhenBusy.REPLACE, "bob")),
        ("/abort", Abort(None)),
        ("/abort bob", Abort("bob")),
        ("/approve", Approve(None)),
        ("/deny bob", Deny("bob")),
        ("/hold", Hold(None)),
        ("/go bob", Go("bob")),
        ("/stop", Stop(None)),
        ("/stop bob", Stop("bob")),
        ("/clear", Clear(None)),
        ("/clear bob", Clear("bob")),
        ("/limit main 8", Limit("main", 8)),
        ("/pause", Pause(None)),
        ("/pause bob", Pause("bob")),
        ("/resume", Resume(None)),
        ("/resume main", Resume("main")),
        ("/help", Help()),
        ("/quit", Quit()),
        ("", None),
        (" \t ", None),
    ],
)
def test_a_line_is_a_command_or_something_to_say(line: str, command: Command | None) -> None:
    assert parse(line) == command


@pytest.mark.parametrize(
    "line",
    [
        "/",
        "/dance",
        "/as",
        "/as b:b hello",
        f"/as {'b' * 41} hello",
        "/sessions now",
        "/why a b",
        "/stop a b",
        "/limit",
        "/limit main",
        "/limit main 0",
        "/limit main -1",
        "/limit main 1.5",
        "/limit main ²",
        "/limit main 1001",
        f"/limit main {'9' * 5000}",
        "/limit main 8 9",
        "/pause a b",
        "/quit now",
        "x" * (MAX_LINE + 1),
    ],
)
def test_a_bad_line_is_refused_in_one_short_line(line: str) -> None:
    with pytest.raises(CommandError) as caught:
        parse(line)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 150


# The screen


def lines_of(**options: int) -> tuple[Screen, list[str]]:
    lines: list[str] = []
    return Screen(lines.append, width=options.get("width")), lines


def test_words_of_two_sessions_become_lines_of_each() -> None:
    screen, lines = lines_of()
    for piece in ("one ", "two\n", "three"):
        screen.stream("ann", piece)
        screen.stream("bob", piece.upper())
    assert lines == ["ann | one two", "bob | ONE TWO"]
    screen.end("bob")
    screen.end("ann")
    screen.end("ann")
    assert lines[2:] == ["bob | THREE", "ann | three"]


def test_a_note_comes_after_what_was_said_before_it() -> None:
    screen, lines = lines_of()
    screen.stream("ann", "I will")
    screen.note("ann", "stopped")
    assert lines == ["ann | I will", "ann * stopped"]


def test_a_long_line_is_broken_between_words_where_the_terminal_ends() -> None:
    screen, lines = lines_of(width=40)
    for _ in range(20):
        screen.stream("ann", "word ")
    screen.stream("ann", "x" * 100)
    screen.end("ann")
    assert all(len(line) <= 40 for line in lines)
    assert (
        "".join(line.split("| ")[1].replace(" ", "") for line in lines) == "word" * 20 + "x" * 100
    )
    assert lines[0] == "   ann | word word word word word word"


def test_nothing_that_a_model_says_moves_the_cursor() -> None:
    screen, lines = lines_of()
    screen.stream("ann", "\x1b[2Jboo\rhoo\u202e\n")
    assert lines == ["ann | �[2Jboo�hoo�"]


def test_the_ends_of_unfinished_lines_fit_into_the_toolbar() -> None:
    screen, _ = lines_of()
    changes = []
    screen.on_change = lambda: changes.append(1)
    screen.stream("ann", "this is a rather long line of which the end is shown")
    screen.stream("bob", "short")
    toolbar = screen.unfinished(50)
    assert len(toolbar) <= 50
    assert toolbar.startswith("ann: ")
    assert "is shown" in toolbar
    assert toolbar.endswith("bob: short")
    screen.end("ann")
    screen.end("bob")
    assert screen.unfinished(50) == ""
    assert len(changes) == 4


# Lines from a pipe


async def lines_from(data: bytes) -> list[str]:
    """The lines of `data`, refusals among them."""
    reader, writer = os.pipe()
    lines = StreamLines(reader)
    result = []

    async def write() -> None:
        async with trio.lowlevel.FdStream(writer) as stream:
            await stream.send_all(data)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        while True:
            try:
                line = await lines.read("")
            except CommandError as error:
                result.append(f"! {error}")
                continue
            if line is None:
                break
            result.append(line)
    os.close(reader)
    return result


async def test_lines_come_whole_and_the_last_needs_no_end() -> None:
    assert await lines_from(b"one\ntwo\r\n\nthree") == ["one", "two\r", "", "three"]
    assert await lines_from(b"") == []
    assert await lines_from("gr\u00fc\u00df".encode() + b"\n") == ["gr\u00fc\u00df"]


async def test_a_line_that_is_no_text_or_endless_is_refused_and_the_next_is_read() -> None:
    long = b"x" * (MAX_BYTES * 5)
    assert await lines_from(b"a\n\xff\nb\n" + long + b"\nc\n" + long) == [
        "a",
        "! the line is not UTF-8 text",
        "b",
        "! a line may have at most 10,000 characters",
        "c",
        "! a line may have at most 10,000 characters",
    ]
