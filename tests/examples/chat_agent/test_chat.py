"""The chat agent on virtual time: what each command does, and what a turn leaves behind."""

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
import trio

from examples.chat_agent import limits as chat_limits
from examples.chat_agent import sessions
from examples.chat_agent.builtin_model import BuiltinModel
from examples.chat_agent.chat import run_chat
from examples.chat_agent.limits import Limits
from examples.chat_agent.model import Event, Message, Model
from examples.chat_agent.screen import Screen
from tests.examples.chat_agent.typed import FOREVER, Line, Script


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
    assert lines[1].startswith("me | You said: second (That was message 1"), "nothing was answered"
    assert lines[2] == "bob | Sorry that it took me so long."


async def test_hold_stops_the_turn_and_go_answers_what_has_waited(autojump_clock: object) -> None:
    lines = await shown(
        "slow 90", "second", 1, "/hold", "third", 20, "/sessions", "/why", "/go", 20, "/go"
    )
    table = [line.split() for line in lines]
    assert ["*me", "held", "2", "'second'"] in table
    lines = [line for line in lines if not line.startswith((" ", "lane"))]
    said = [line for line in lines if "limit" not in line and "waiting  next" not in line]
    at = said.index("me is held until /go, with 1 waiting")
    assert "me * stopped" in said[: at + 2]
    assert "turn of me: 'second' is held" in said
    assert "'third' waits behind it" in said
    assert "me is held: no turn of it begins until /go" in said
    at = said.index("going on in me")
    answers = [line for line in said if "You said" in line]
    assert [re.findall(r"You said: (\w+)", line) for line in answers] == [["second"], ["third"]]
    assert said.index(answers[0]) > at
    assert said[-1] == "! me is not held"


async def test_an_idle_session_is_held_too_until_no_user_is_left(autojump_clock: object) -> None:
    lines = await shown("/hold", "/why", "/sessions", "hello", 20)
    assert lines[:2] == [
        "me is held until /go, with 0 waiting",
        "me is held: no turn of it begins until /go",
    ]
    assert ["*me", "held", "0"] in [line.split() for line in lines]
    assert "going on in me: no user is left to do it" in lines
    assert lines[-1].startswith("me | ")


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
    assert ["main", "4", "2", "1", "3.0", "s"] in table, "of each session, what comes next"
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
        "/queue",
        "/stop",
        "/clear",
        "/abort",
        "/approve",
        "/deny",
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
        ("/abort bob", "there is no session 'bob'"),
        ("/queue steer bob", "there is no session 'bob'"),
        ("/queue later", "usage: /queue steer|followup|collect|"),
        ("/approve", "nothing waits for approval in me"),
        ("/deny bob", "there is no session 'bob'"),
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


# What becomes of a message while a turn is active


@pytest.mark.parametrize(
    ("mode", "told"),
    [
        (
            "steer",
            [
                "me | Sorry that it took me so long.",
                "me * takes in: two",
                "me * takes in: three",
                "me | You said: two (That was message 2 of this conversation.)",
                "me | You said: three (That was message 3 of this conversation.)",
            ],
        ),
        (
            "followup",
            [
                "me | Sorry that it took me so long.",
                "me | You said: two (That was message 2 of this conversation.)",
                "me | You said: three (That was message 3 of this conversation.)",
            ],
        ),
        (
            "collect",
            [
                "me | Sorry that it took me so long.",
                "me | You said: two (That was message 2 of this conversation.)",
                "me | You said: three (That was message 3 of this conversation.)",
            ],
        ),
        (
            "interrupt",
            [
                "me * stopped",
                "me | You said: two (That was message 1 of this conversation.)",
                "me | You said: three (That was message 2 of this conversation.)",
            ],
        ),
        (
            "rollback",
            [
                "me * stopped",
                "me | You said: two (That was message 1 of this conversation.)",
                "me | You said: three (That was message 2 of this conversation.)",
            ],
        ),
        (
            "reject",
            [
                "me * rejected: the session is busy",
                "me * rejected: the session is busy",
                "me | Sorry that it took me so long.",
            ],
        ),
        (
            "replace",
            [
                "me * it replaces the waiting message",
                "me | Sorry that it took me so long.",
                "me | You said: three (That was message 2 of this conversation.)",
            ],
        ),
    ],
)
async def test_queue_says_what_becomes_of_a_message_while_a_turn_is_active(
    autojump_clock: object, mode: str, told: list[str]
) -> None:
    pause = 1 if mode in ("interrupt", "rollback") else 0
    lines = await shown(f"/queue {mode}", "slow 5", 1, "two", pause, "three")
    assert lines == [f"mode of messages while me is busy: {mode}", *told]


async def test_queue_of_another_session_leaves_this_one_alone(autojump_clock: object) -> None:
    lines = await shown("/as bob hi", 5, "/queue reject bob", "slow 5", 1, "two")
    assert lines[-1].startswith("me | You said: two (That was message 2")


async def test_abort_drops_what_waits_then_stops_the_turn_and_returns_when_it_has_ended(
    autojump_clock: object,
) -> None:
    lines = await shown("slow 90", "two", "three", 1, "/abort", "/sessions", "four")
    assert lines[:2] == ["me * stopped", "aborted me, with 2 waiting"]
    assert [line.split() for line in lines][-2] == ["*me", "-", "0"]
    assert lines[-1].startswith("me | You said: four (That was message 1")


async def test_abort_of_an_idle_session_changes_nothing(autojump_clock: object) -> None:
    lines = await shown("/abort", "hello")
    assert lines[0] == "aborted me, with 0 waiting"
    assert lines[1].startswith("me | Hello!")


# Approval


async def test_a_call_that_needs_approval_waits_for_it(autojump_clock: object) -> None:
    lines = await shown("mail bob: lunch?", 20, "/sessions", "/approve", 20)
    assert lines[:2] == [
        'me * asks for send_mail {"message": "bob: lunch?"}',
        "me * say /approve me or /deny me",
    ]
    assert ["*me", "20.0", "s:", "'mail", "bob:", "lunch?'", "0"] in [s.split() for s in lines]
    assert lines[-2:] == ["me * send_mail: mail sent: bob: lunch?", "me | mail sent: bob: lunch?"]


async def test_a_call_that_is_denied_is_not_made_and_the_model_is_told(
    autojump_clock: object,
) -> None:
    lines = await shown("/as bob mail eve: hi", 5, "/deny bob")
    assert lines[2:] == [
        "bob * send_mail: error: send_mail was not allowed",
        "bob | error: send_mail was not allowed",
    ]


async def test_a_turn_that_waits_for_approval_lends_its_slot_and_keeps_its_sessions_place(
    autojump_clock: object,
) -> None:
    typed: list[Line] = ["mail bob: lunch?", "after", 1, "/as bob hello", 5, "/approve"]
    lines = await shown(*typed, limit=1)
    assert lines[2].startswith("bob | Hello!")
    assert lines[3] == "me * send_mail: mail sent: bob: lunch?"
    assert lines[-1].startswith("me | You said: after")


async def test_a_turn_that_is_stopped_while_it_waits_for_approval_asks_no_more(
    autojump_clock: object,
) -> None:
    lines = await shown("mail bob: lunch?", 1, "/stop", 1, "/approve", "after")
    assert lines[2:4] == ["me * stopped", "! nothing waits for approval in me"]
    assert lines[-1].startswith("me | You said: after")


async def test_without_a_listener_what_waits_for_approval_is_not_allowed(
    autojump_clock: object,
) -> None:
    lines = await shown("mail bob: lunch?", 1)
    assert lines[-1] == "me | error: send_mail was not allowed: no person is left to ask"
    lines = await shown("slow 5, then mail bob: lunch?")
    assert lines[-1] == "me | error: send_mail was not allowed: no person can be asked"


# Bounds


FEW = 100


@pytest.fixture
def few_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the messages may wait, so that a script of too many is not long."""
    monkeypatch.setattr(chat_limits, "MAX_WAITING", FEW)
    monkeypatch.setattr(sessions, "MAX_WAITING", FEW)
    monkeypatch.setitem(sessions.Sessions.__init__.__kwdefaults__, "cap", FEW)


@pytest.mark.usefixtures("few_may_wait")
async def test_more_than_may_wait_in_a_paused_lane_is_refused(autojump_clock: object) -> None:
    lines = await shown("/pause", *(f"number {n}" for n in range(FEW + 2)))
    assert lines.count("me * too many wait: a message is dropped") == 2
    assert "resuming main, subagent, tools: no user is left to do it" in lines
    answered = [line for line in lines if line.startswith("me | ")]
    assert len(answered) == FEW


@pytest.mark.usefixtures("few_may_wait")
async def test_a_long_script_is_read_only_as_fast_as_it_is_answered(
    autojump_clock: object,
) -> None:
    lines = await shown(*(f"/as user{n % 50} number {n}" for n in range(3 * FEW)))
    assert len(lines) == 3 * FEW
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
