"""The chat agent as a person uses it: real processes, real pipes and terminals, a real Ctrl-C.

What is to be in the middle when something happens is held there until it has happened, so nothing
depends on how fast the machine is. An answer that is to end ends when the test lets it; one that
is to be broken off would go on for ten minutes.

A terminal reads keys while there is a prompt, and lines between two prompts. Text may be typed at
any time. Ctrl-C is a key in the first case and a signal in the second. Ctrl-D is lost in the
second, so it is typed when there is a prompt that stays.
"""

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from examples.chat_agent.builtin_model import BuiltinModel
from examples.chat_agent.openai_server import Endpoint, serve
from tests.examples.chat_agent.held_model import HeldModel, open_endpoint_of
from tests.support.programs import running

pytestmark = pytest.mark.real_processes

ROOT = Path(__file__).resolve().parents[3]
CHAT = (sys.executable, "-m", "examples.chat_agent")
PATIENCE = 300  # seconds, on a machine that has much else to do
FAST = ("--word-delay", "0.001")
CTRL_C, CTRL_D = "\x03", "\x04"
# Makes the terminal that it is given the one whose Ctrl-C it gets, as a login shell does.
IN_TERMINAL = (
    sys.executable,
    "-c",
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
    " os.execv(sys.argv[1], sys.argv[1:])",
)
ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[()].|[=>78])")


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY", "OPENAI_MODEL"):
        monkeypatch.delenv(name, raising=False)


async def chat(typed: bytes, *options: str) -> subprocess.CompletedProcess[bytes]:
    with trio.fail_after(PATIENCE):
        return await trio.run_process(
            [*CHAT, *FAST, *options],
            stdin=typed,
            capture_stdout=True,
            capture_stderr=True,
            check=False,
            cwd=ROOT,
        )


class Output:
    """What a process writes, as text that can be waited for."""

    def __init__(self, stream: trio.abc.ReceiveStream) -> None:
        self.text = ""
        self._stream = stream
        self._raw = b""
        self._read_to = 0

    async def until(self, wanted: str) -> None:
        """Read until `wanted` came, after what was waited for before."""
        with trio.move_on_after(PATIENCE / 2):  # so that it can be said what came instead
            while wanted not in self.text[self._read_to :] and await self.more():
                pass
        place = self.text.find(wanted, self._read_to)
        assert place >= 0, f"no {wanted!r} in {self.text[self._read_to :]!r}"
        self._read_to = place + len(wanted)

    async def more(self) -> bool:
        try:
            data = await self._stream.receive_some()
        except trio.BrokenResourceError:  # how Linux says that no process has the terminal open
            return False
        self._raw += data
        self.text = ESCAPES.sub("", self._raw.decode(errors="replace"))
        return bool(data)

    async def rest(self) -> str:
        while await self.more():
            pass
        return self.text[self._read_to :]


class Terminal:
    """A process in a pseudo-terminal."""

    def __init__(self, process: trio.Process, master: int, stream: trio.lowlevel.FdStream) -> None:
        self.output = Output(stream)
        self.process = process
        self._master = master
        self._stream = stream

    async def type(self, text: str) -> None:
        await self._stream.send_all(text.encode())

    async def exit_code(self) -> int:
        await self.output.rest()
        return await self.process.wait()

    async def until_prompt(self) -> None:
        """Wait until there is a prompt, which reads keys."""
        while self.echoes_lines():  # noqa: ASYNC110 # there is no event for it
            await trio.sleep(0.01)

    async def hang_up(self) -> None:
        """Close the other end of the terminal."""
        await self._stream.aclose()
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, self._master)
        os.close(nothing)

    def echoes_lines(self) -> bool:
        """Whether the terminal is as a shell wants it, and not as a prompt does."""
        flags: int = termios.tcgetattr(self._master)[3]
        return bool(flags & termios.ECHO and flags & termios.ICANON and flags & termios.ISIG)


@asynccontextmanager
async def open_chat_in_terminal(
    *options: str, term: str = "xterm-256color"
) -> AsyncIterator[Terminal]:
    master, slave = pty.openpty()
    try:
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
        process = await trio.lowlevel.open_process(
            [*IN_TERMINAL, *CHAT, *FAST, *options],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            cwd=ROOT,
            # this terminal cannot answer where its cursor is
            env={**os.environ, "TERM": term, "PROMPT_TOOLKIT_NO_CPR": "1"},
        )
    finally:
        os.close(slave)
    try:
        async with trio.lowlevel.FdStream(os.dup(master)) as stream:
            with trio.fail_after(PATIENCE):
                yield Terminal(process, master, stream)
    finally:
        if process.returncode is None:
            process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
        os.close(master)


# In a pipe


async def test_a_line_from_a_pipe_is_answered_and_the_end_of_input_ends_the_chat() -> None:
    ended = await chat(b"hello\n")
    assert ended.stdout.startswith(b"me | Hello!")
    assert ended.stderr == b""
    assert ended.returncode == 0


async def test_all_answers_are_given_before_the_end_each_session_in_its_order() -> None:
    typed = "".join(f"/as user{n % 3} number {n}\n" for n in range(30))
    ended = await chat(typed.encode())
    assert ended.returncode == 0
    for session in range(3):
        answered = re.findall(
            rf"^user{session} \| You said: number (\d+)", ended.stdout.decode(), re.M
        )
        assert [int(n) for n in answered] == list(range(session, 30, 3))


async def test_input_that_is_no_text_is_one_line_each_and_the_rest_is_answered() -> None:
    typed = b"\xff\xfe\n/nope\n" + b"x" * 100_000 + b"\n\n   \n/limit main many\nlast without end"
    ended = await chat(typed)
    lines = ended.stdout.decode().splitlines()
    assert len([line for line in lines if line.startswith("! ")]) == 4
    assert "! the line is not UTF-8 text" in lines
    assert "! a line may have at most 10,000 characters" in lines
    assert any(line.startswith("me | You said: last without end") for line in lines)
    assert len(lines) == 5
    assert ended.stderr == b""
    assert ended.returncode == 0


async def test_what_is_paused_at_the_end_of_input_is_resumed_and_answered() -> None:
    ended = await chat(b"/pause\nhello\n")
    assert b"me | Hello!" in ended.stdout
    assert ended.returncode == 0


@asynccontextmanager
async def open_chat_in_pipe(*options: str) -> AsyncIterator[tuple[trio.Process, Output]]:
    """A chat whose standard input stays open."""
    process = await trio.lowlevel.open_process(
        [*CHAT, *FAST, *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with process.stdin, process.stdout:
            with trio.fail_after(PATIENCE):
                yield process, Output(process.stdout)
    finally:
        if process.returncode is None:
            process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_drains_what_runs_and_what_waits_although_input_is_still_open(
    signum: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = HeldModel()
    async with (
        open_endpoint_of(model, monkeypatch),
        open_chat_in_pipe() as (process, output),
    ):
        assert process.stdin is not None
        await process.stdin.send_all(b"one\ntwo\n")
        await model.until_asked("one")
        await process.stdin.send_all(b"/sessions\n")
        await output.until("s: 'one'")
        await output.until("1        'two'")
        process.send_signal(signum)
        await output.until("draining: 1 running, 1 waiting")
        model.let_on("one", "two")
        await output.until("me | begun one ended one")
        await output.until("me | begun two ended two")
        assert await process.wait() == 0


async def test_what_is_paused_at_a_signal_is_finished_as_well() -> None:
    async with open_chat_in_pipe() as (process, output):
        assert process.stdin is not None
        await process.stdin.send_all(b"/pause me\nhello\n/sessions\n")
        await output.until("*me       paused   1        'hello'")
        process.send_signal(signal.SIGINT)
        await output.until("draining: 0 running, 1 waiting")
        await output.until("me | Hello!")
        assert await process.wait() == 0


async def test_what_outlives_the_grace_is_cancelled_and_the_exit_code_says_so() -> None:
    async with open_chat_in_pipe("--grace", "0.2") as (process, output):
        assert process.stdin is not None
        await process.stdin.send_all(b"slow 600\n\n/sessions\n")  # it runs before the third line
        await output.until("s: 'slow 600'")
        process.send_signal(signal.SIGINT)
        await output.until("draining: 1 running, 0 waiting")
        await output.until("me * stopped")
        await output.until("cancelled the jobs that did not end in 0.2 s")
        assert await process.wait() == 130


async def test_what_a_stop_holds_is_answered_after_go_and_ctrl_c_does_not_wait_for_it() -> None:
    async with open_chat_in_pipe() as (process, output):
        assert process.stdin is not None
        await process.stdin.send_all(b"slow 600\n\n/sessions\n")  # it runs before the third line
        await output.until("s: 'slow 600'")
        await process.stdin.send_all(b"two\n/hold\n/why\n")
        await output.until("me is held until /go, with 1 waiting")
        await output.until("turn of me: 'two' is held")
        await process.stdin.send_all(b"/go\n")
        await output.until("me | You said: two")
        await process.stdin.send_all(b"/hold\nthree\n/why\n")
        await output.until("turn of me: 'three' is held")
        process.send_signal(signal.SIGINT)
        await output.until("cancelled the jobs that did not end in 30 s, or were held")
        assert await process.wait() == 130


async def test_a_hangup_has_the_limits_read_again_and_a_bad_file_changes_nothing(
    tmp_path: Path,
) -> None:
    file = tmp_path / "limits.toml"
    file.write_text("[at_once]\nmain = 1")
    async with open_chat_in_pipe("--limits", str(file)) as (process, output):
        assert process.stdin is not None
        await process.stdin.send_all(b"slow 600\n/as bob hello\n/why bob\n")
        await output.until("main runs as many as it may: turn of me: 'slow 600'")
        file.write_text("[at_once]\nmain = 'all'")
        process.send_signal(signal.SIGHUP)
        await output.until("! limits: main must be a whole number from 1 to 1,000; nothing has")
        await process.stdin.send_all(b"/why bob\n")
        await output.until("main runs as many as it may: turn of me: 'slow 600'")
        file.write_text("[at_once]\nmain = 2")
        process.send_signal(signal.SIGHUP)
        await output.until("limits: main 2, tools 8, subagent 8, requests 6,000, tokens 6,000,000")
        await output.until("bob | Hello!")
        await process.stdin.send_all(b"/stop\n")
        await output.until("me * stopped")
        await process.stdin.send_all(b"/as eve one\n")
        await output.until("eve | You said: one")
        # With what was asked just now there has been enough for a minute, which begins only here.
        file.write_text("[at_once]\nmain = 2\n[per_minute]\nrequests = 1")
        process.send_signal(signal.SIGHUP)
        await output.until("limits: main 2, tools 8, subagent 8, requests 1, tokens 6,000,000")
        await process.stdin.send_all(b"/as eve two\n/why eve\n")
        await output.until("the rate limit of model is used up, ")
        process.send_signal(signal.SIGINT)
        await output.until("draining: 0 running, 1 waiting")
        process.send_signal(signal.SIGHUP)
        await output.until("limits: main 2")
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 130


async def test_a_bad_file_of_limits_at_the_start_is_one_line_and_exit_code_2(
    tmp_path: Path,
) -> None:
    ended = await chat(b"hello\n", "--limits", str(tmp_path / "none.toml"))
    assert ended.stderr.startswith(b"limits: ")
    assert ended.stderr.count(b"\n") == 1
    assert ended.stdout == b""
    assert ended.returncode == 2


async def test_a_reader_that_goes_away_ends_the_chat_without_a_traceback() -> None:
    process = await trio.lowlevel.open_process(
        [*CHAT, *FAST],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    with trio.fail_after(PATIENCE):
        async with process.stdin, process.stdout, process.stderr:
            await process.stdin.send_all(b"hello\n")
            await process.stdout.receive_some(10)
            await process.stdout.aclose()
            await process.stdin.send_all(b"long 50\n")  # there is no reader for its lines
            assert await process.stderr.receive_some() == b""
            assert await process.wait() == 0


# In a terminal


async def test_a_chat_in_a_terminal_answers_above_its_prompt_and_leaves_the_terminal_in_order() -> (
    None
):
    async with open_chat_in_terminal() as terminal:
        await terminal.output.until("model: built-in")
        await terminal.type("/as bob what is 6*7?\r")
        await terminal.output.until("me>")
        await terminal.output.until("bob | 6*7 = 42")
        await terminal.type("/as bob\r")
        await terminal.output.until("you are bob now")
        await terminal.until_prompt()
        await terminal.type("hi there\r")
        await terminal.output.until("bob>")
        await terminal.output.until("bob | Hello!")
        await terminal.type("/quit\r")
        assert await terminal.exit_code() == 0
        assert terminal.echoes_lines()


async def test_no_key_is_lost_while_answers_are_shown_above_the_prompt() -> None:
    async with open_chat_in_terminal() as terminal:
        await terminal.type("long 100\r")
        await terminal.output.until("me | 1. ")
        await terminal.until_prompt()
        await terminal.output.more()
        await terminal.type(CTRL_D)
        await terminal.output.until("me | 100. ")
        assert await terminal.exit_code() == 0
        assert terminal.echoes_lines()


async def test_the_end_of_input_key_lets_answers_end(monkeypatch: pytest.MonkeyPatch) -> None:
    model = HeldModel()
    async with open_endpoint_of(model, monkeypatch), open_chat_in_terminal() as terminal:
        await terminal.type("one\rtwo\r")
        await model.until_asked("one")
        await terminal.type("/pause tools\r")
        await terminal.output.until("paused tools")
        await terminal.until_prompt()
        await terminal.type(CTRL_D)
        await terminal.output.until("resuming tools: no user is left to do it")
        model.let_on("one", "two")
        await terminal.output.until("me | begun one ended one")
        await terminal.output.until("me | begun two ended two")
        assert await terminal.exit_code() == 0
        assert terminal.echoes_lines()


async def test_one_ctrl_c_in_a_terminal_drains(monkeypatch: pytest.MonkeyPatch) -> None:
    model = HeldModel()
    async with open_endpoint_of(model, monkeypatch), open_chat_in_terminal() as terminal:
        await terminal.type("one\rtwo\r")
        await model.until_asked("one")
        await terminal.type("/sessions\r")
        await terminal.output.until("s: 'one'")
        await terminal.output.until("1        'two'")
        await terminal.until_prompt()
        await terminal.type(CTRL_C)
        await terminal.output.until("draining: 1 running, 1 waiting; Ctrl-C again to cancel")
        model.let_on("one", "two")
        await terminal.output.until("me | begun one ended one")
        await terminal.output.until("me | begun two ended two")
        assert await terminal.exit_code() == 0
        assert terminal.echoes_lines()


async def test_a_second_ctrl_c_in_a_terminal_cancels() -> None:
    async with open_chat_in_terminal() as terminal:
        await terminal.type("slow 600\r/as bob slow 600\r\r/sessions\r")
        await terminal.output.until("s: 'slow 600'")
        await terminal.output.until("s: 'slow 600'")
        await terminal.type(CTRL_C)
        await terminal.output.until("draining: 2 running, 0 waiting")
        await terminal.type(CTRL_C)
        await terminal.output.until("* stopped")
        await terminal.output.until("* stopped")
        await terminal.output.until("cancelled")
        assert await terminal.exit_code() == 130
        assert terminal.echoes_lines()


async def test_a_signal_from_outside_ends_the_prompt_as_well() -> None:
    async with open_chat_in_terminal() as terminal:
        await terminal.output.until("me>")
        terminal.process.send_signal(signal.SIGTERM)
        await terminal.output.until("draining: 0 running, 0 waiting")
        assert await terminal.exit_code() == 0
        assert terminal.echoes_lines()


@pytest.mark.parametrize("term", ["xterm-256color", "dumb"])
async def test_where_a_hangup_reads_limits_a_terminal_that_goes_away_is_the_end_of_input(
    tmp_path: Path, term: str
) -> None:
    file = tmp_path / "limits.toml"
    file.write_text("[at_once]\nmain = 1")
    async with open_chat_in_terminal("--limits", str(file), term=term) as terminal:
        await terminal.type("/why\r")
        await terminal.output.until("nothing runs or waits in me")
        await terminal.hang_up()
        assert await terminal.process.wait() == 0


async def test_a_crowd_in_a_terminal_is_shown_live_and_checked() -> None:
    async with open_chat_in_terminal("--users", "4", "--steps", "1", "--seed", "1") as terminal:
        await terminal.output.until("oldest wait")
        await terminal.output.until("slow 600")  # which user-01 stops after three looks or more
        await terminal.output.until("messages of 4 users: ")
        await terminal.output.until("check: ok: 4 sessions, all in order, no limit exceeded")
        assert await terminal.exit_code() == 0


async def test_one_ctrl_c_ends_a_crowd_and_it_is_checked_all_the_same() -> None:
    options = ("--users", "4", "--steps", "1000", "--seed", "1", "--grace", f"{PATIENCE}")
    async with open_chat_in_terminal(*options) as terminal:
        await terminal.output.until("slow 600")  # a turn of ten minutes, to be cancelled
        await terminal.type(CTRL_C)
        await terminal.output.until("draining: ")
        await terminal.output.until("check: ok: 4 sessions")
        assert await terminal.exit_code() == 0


# With an endpoint


async def test_the_environment_chooses_an_openai_compatible_endpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    endpoint = Endpoint(BuiltinModel(word_delay=0))
    async with trio.open_nursery() as nursery:
        monkeypatch.setenv("OPENAI_BASE_URL", await nursery.start(serve, endpoint))
        monkeypatch.setenv("OPENAI_MODEL", "tiny")
        monkeypatch.setenv("OPENAI_API_KEY", "secret")
        ended = await chat(b"what is 6*7?\nplease fail\n")
        nursery.cancel_scope.cancel()
    assert ended.stdout.decode().splitlines() == [
        "me * calc: 6*7 = 42",
        "me | 6*7 = 42",
        "me | I will try,",
        "me * failed: the endpoint reports: the built-in model failed, as it was asked to",
    ]
    assert ended.returncode == 0
    assert [request["model"] for request in endpoint.requests] == ["tiny"] * 3


@pytest.mark.parametrize(
    ("url", "model", "named"),
    [("http://127.0.0.1:1/v1", "", "OPENAI_MODEL"), ("nonsense", "tiny", "OPENAI_BASE_URL")],
)
async def test_an_environment_that_makes_no_sense_is_one_line_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, url: str, model: str, named: str
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", url)
    monkeypatch.setenv("OPENAI_MODEL", model)
    ended = await chat(b"hello\n")
    assert named in ended.stderr.decode()
    assert ended.stderr.count(b"\n") == 1
    assert ended.stdout == b""
    assert ended.returncode == 2


async def test_the_demo_of_a_crash_answers_every_question_after_it() -> None:
    async with running("-m", "examples.chat_agent", "--crash") as program:
        assert await program.exit_code() == 0
    before, after = program.text.split("killed with SIGKILL")
    assert "6. A lane" not in before
    assert "was interrupted, and is answered now: long 6" in after
    assert "6. A lane" in after
    assert after.rstrip().endswith("every question was answered, once ---")
