"""The chat agent with `--durable`: real processes that are killed in the middle of an answer.

The model that they ask is in the process of the tests, which so know what is being answered, and
can let it stop there.
"""

import json
import math
import os
import random
import signal
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, closing
from itertools import pairwise
from pathlib import Path

import pytest
import trio

from examples.chat_agent.answers import Answers
from examples.chat_agent.builtin_model import BuiltinModel
from examples.chat_agent.durable import run_durable_chat
from examples.chat_agent.model import Event, Message
from examples.chat_agent.screen import Screen
from tests.examples.chat_agent.held_model import HeldModel, open_endpoint_of
from tests.examples.chat_agent.test_process import CHAT, FAST, PATIENCE, ROOT, Output, chat
from trio_lanes.durable import SqliteStore, open_durable_lanes

pytestmark = pytest.mark.real_processes

LONG = bool(os.environ.get("TRIO_LANES_LONG_TESTS"))

# (session, what is said there), in this order
SAID = [
    ("me", "hello"),
    ("bob", "what is 6*7"),
    ("me", "long 8"),
    ("me", "what is 2+2"),
    ("bob", "long 2"),
    ("eve", "ask a subagent: what is 5*5?"),
    ("bob", "hello"),
    ("me", "what is 3+3"),
]


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY", "OPENAI_MODEL"):
        monkeypatch.delenv(name, raising=False)


class HaltingModel:
    """The built-in one, until it halts: then it says nothing more to anybody."""

    name = "halting"

    def __init__(self) -> None:
        self.go_on()

    def go_on(self, words: float = math.inf, to: str = "") -> None:
        """Answer again, and halt after so many words; count those that answer `to`, if given."""
        self.halted = trio.Event()
        self._left = words
        self._to = to

    @asynccontextmanager
    async def stream(self, messages: Sequence[Message]) -> AsyncIterator[AsyncIterator[Event]]:
        async def events() -> AsyncIterator[Event]:
            async with BuiltinModel(0).stream(messages) as answer:
                async for event in answer:
                    if self.halted.is_set():
                        await trio.sleep_forever()
                    yield event
                    self._left -= self._to in ("", messages[-1].text)
                    if self._left <= 0:
                        self.halted.set()

        async with aclosing(events()) as answer:
            yield answer


def rows(folder: Path) -> list[tuple[int, str, bool, str]]:
    """(job, session, whether it is answered, what was said there) of every turn, in order."""
    with closing(sqlite3.connect(folder / "answers.db", timeout=PATIENCE)) as db:
        said = db.execute("SELECT job, session, answered, said FROM turns ORDER BY job")
        return [
            (job, session, bool(answered), json.loads(text)[0]["contents"][0])
            for job, session, answered, text in said
        ]


async def talk(
    folder: Path, typed: str, kill: Callable[[trio.Process], Awaitable[None]], *options: str
) -> tuple[int, str]:
    """Chat until `kill` returns; returns the exit code and what was shown."""
    async with trio.open_nursery() as nursery:
        process = await trio.lowlevel.open_process(
            [*CHAT, *FAST, "--durable", str(folder), *options],
            stdin=-1,
            stdout=-1,
            cwd=ROOT,
        )
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            output = Output(process.stdout)
            nursery.start_soon(output.rest)
            with trio.fail_after(PATIENCE):
                await process.stdin.send_all(typed.encode())
                await kill(process)
                await process.stdin.aclose()
                code = await process.wait()
        finally:
            process.kill()
            await process.wait()
    await process.stdout.aclose()
    return code, output.text


def lines(said: list[tuple[str, str]]) -> str:
    return "".join(f"/as {session} {text}\n" for session, text in said)


async def let_it_end(process: trio.Process) -> None:
    await trio.lowlevel.checkpoint()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 # what another process does
        await trio.sleep(0.01)


def accepted(folder: Path) -> int:
    """How many messages are on the disk; asked when the process works, not while it starts."""
    with closing(sqlite3.connect(folder / "jobs.db", timeout=PATIENCE)) as db:
        count: int = db.execute("SELECT count(*) FROM jobs").fetchone()[0]
    return count


def in_the_middle(
    model: HaltingModel, folder: Path, text: str
) -> Callable[[trio.Process], Awaitable[None]]:
    """Kill it when all has been accepted, and that is being answered."""

    async def kill(process: trio.Process) -> None:
        await model.halted.wait()
        await until(lambda: accepted(folder) == len(SAID))
        assert [said for _, _, answered, said in rows(folder) if not answered].count(text) == 1
        process.kill()

    model.go_on(5, to=text)
    return kill


async def verify(folder: Path, said: list[tuple[str, str]]) -> None:
    """Every message has exactly one answer, and they are in order."""
    assert [(session, text) for _, session, _, text in rows(folder)] == said
    assert all(answered for _, _, answered, _ in rows(folder))
    with Answers.open(folder / "answers.db") as answers:
        for session in {session for session, _ in said}:
            messages = await answers.transcript(session)
            asked = [message.content for message in messages if message.role == "user"]
            assert asked == [text for other, text in said if other == session]
            assert all(message.status == "completed" for message in messages)
            for before, after in pairwise(messages):
                assert (before.role, after.role) != ("user", "user"), "not answered"
            assert messages[-1].role == "assistant"
    with closing(sqlite3.connect(folder / "jobs.db")) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert db.execute("SELECT state, count(*) FROM jobs GROUP BY 1").fetchall() == [
            ("succeeded", len(said))
        ]


async def test_a_chat_killed_in_the_middle_of_an_answer_answers_everybody_once_and_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = HaltingModel()
    async with open_endpoint_of(model, monkeypatch):
        code, shown = await talk(tmp_path, lines(SAID), in_the_middle(model, tmp_path, "long 8"))
        assert code == -signal.SIGKILL
        model.go_on()
        code, shown = await talk(tmp_path, "", let_it_end)
        assert code == 0, shown
        assert "me * was interrupted, and is answered now: long 8" in shown
        assert "messages are left from before" in shown
        await verify(tmp_path, SAID)
        again = await chat(b"", "--durable", str(tmp_path))
    assert again.returncode == 0
    assert again.stdout == b"", "there was nothing left to say"


async def test_a_chat_that_is_killed_again_and_again_answers_everybody_once_and_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(seed := random.randrange(10**6))
    model = HaltingModel()
    kills = 0

    async def kill(process: trio.Process) -> None:
        """When the model has halted; unless the process has answered all before."""
        assert process.stdin is not None
        await process.stdin.aclose()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ends, process, nursery.cancel_scope)
            await model.halted.wait()
            nursery.cancel_scope.cancel()
        process.kill()

    async def ends(process: trio.Process, waiting: trio.CancelScope) -> None:
        await process.wait()
        waiting.cancel()

    async with open_endpoint_of(model, monkeypatch):
        killed = in_the_middle(model, tmp_path, "long 8")  # by then all was accepted
        for typed in (lines(SAID), *[""] * (29 if LONG else 3)):
            code, _ = await talk(tmp_path, typed, killed)
            assert code in (0, -signal.SIGKILL), seed
            kills += code == -signal.SIGKILL
            killed = kill
            model.go_on(draw.randint(1, 150))
        model.go_on()
        code, shown = await talk(tmp_path, "", let_it_end)
    assert code == 0, (seed, shown)
    assert kills >= 1
    await verify(tmp_path, SAID)


async def test_an_answer_that_was_written_before_the_kill_is_not_given_again(
    tmp_path: Path,
) -> None:
    with Answers.open(tmp_path / "answers.db") as answers:
        async with open_durable_lanes(
            SqliteStore(tmp_path / "jobs.db"), {}, {"main": 4}, worker=False
        ) as lanes:
            job = await lanes.submit("answer", "hello", session="me")
            await lanes.submit("answer", "what is 6*7", session="me")
        async with answers.conversation(job.id, "me").turn("hello") as turn:
            turn.append("Good day.")
            await turn.finish()
    before = rows(tmp_path)
    code, shown = await talk(tmp_path, "", let_it_end)
    assert code == 0
    assert "me * was answered before: hello" in shown
    assert rows(tmp_path)[:1] == before
    await verify(tmp_path, [("me", "hello"), ("me", "what is 6*7")])


async def test_ctrl_c_keeps_what_is_not_answered_for_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = HeldModel()

    async def interrupt(process: trio.Process) -> None:
        await model.until_asked("one")
        await until(lambda: accepted(tmp_path) == 2)
        process.send_signal(signal.SIGINT)

    async with open_endpoint_of(model, monkeypatch):
        code, shown = await talk(tmp_path, "one\ntwo\n", interrupt, "--grace", "0")
    assert code == 130
    assert "2 messages are kept for the next start" in shown
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as db:
        assert db.execute("SELECT max(crashes), count(*) FROM jobs").fetchone() == (0, 2)


async def test_a_folder_that_somebody_works_in_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = HeldModel()

    async def second(process: trio.Process) -> None:
        await model.until_asked("one")
        other = await chat(b"", "--durable", str(tmp_path))
        assert other.returncode == 2
        assert b"locked by another worker: process" in other.stderr
        process.kill()

    async with open_endpoint_of(model, monkeypatch):
        await talk(tmp_path, "one\n", second)


@pytest.mark.parametrize("name", ["answers.db", "jobs.db"])
async def test_a_folder_whose_files_are_damaged_is_refused_in_one_line(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / name).write_text("no database, and long enough to be taken for one\n" * 100)
    ended = await chat(b"hello\n", "--durable", str(tmp_path))
    assert ended.returncode == 2
    (line,) = ended.stderr.decode().splitlines()
    assert line.startswith(f"{tmp_path / name}")
    assert line.endswith("file is not a database")


async def test_a_hangup_has_the_limits_read_again_for_messages_that_survive_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = HeldModel()
    file = tmp_path / "limits.toml"
    file.write_text("[at_once]\nmain = 1")

    async def hang_up(process: trio.Process) -> None:
        await model.until_asked("one")
        await until(lambda: accepted(tmp_path) == 2)
        assert model.asked == ["one"]
        file.write_text("[at_once]\nmain = 2")
        process.send_signal(signal.SIGHUP)
        await model.until_asked("two")
        model.let_on("one", "two")

    async with open_endpoint_of(model, monkeypatch):
        typed = "one\n/as bob two\n"
        code, shown = await talk(tmp_path, typed, hang_up, "--limits", str(file))
    assert code == 0
    assert "limits: main 2, tools 8, subagent 8, requests 6,000, tokens 6,000,000" in shown
    await verify(tmp_path, [("me", "one"), ("bob", "two")])


class BrokenModel:
    """A model with a mistake in it."""

    name = "broken"
    asked = 0

    @asynccontextmanager
    async def stream(self, messages: Sequence[Message]) -> AsyncIterator[AsyncIterator[Event]]:
        await trio.lowlevel.checkpoint()
        self.asked += 1
        raise RuntimeError("oops")
        yield


class Typed:
    """Lines that somebody types."""

    def __init__(self, *lines: str) -> None:
        self._lines = [*lines]

    async def read(self, prompt: str) -> str | None:
        await trio.lowlevel.checkpoint()
        return self._lines.pop(0) if self._lines else None


async def test_an_unexpected_error_is_told_and_the_message_is_not_answered_again(
    tmp_path: Path,
) -> None:
    model = BrokenModel()
    shown: list[str] = []
    screen = Screen(shown.append)
    assert await run_durable_chat(model, screen, Typed("hello"), tmp_path) == 0
    assert await run_durable_chat(model, screen, Typed(), tmp_path) == 0
    assert shown == ["me * failed: RuntimeError: oops"]
    assert model.asked == 1
