"""The chat agent with `--store`: two real processes, one session, and a server of its own."""

import signal
from collections.abc import Iterator

import pytest
import trio

from examples.chat_agent import events
from examples.chat_agent.model import ToolCall
from examples.chat_agent.shared import from_json, to_json
from tests.durable.valkey.server import Server, programs
from tests.support.needs import need
from tests.support.programs import Program, running
from trio_lanes.agents import Conversation, SharedTranscripts
from trio_lanes.durable import ValkeyStore, open_durable_lanes

pytestmark = pytest.mark.real_processes


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY", "OPENAI_MODEL"):
        monkeypatch.delenv(name, raising=False)
    need("Valkey")
    server = Server(programs()["valkey"])
    try:
        server.start()
        yield server
    finally:
        server.remove()


def chat(server: Server, word_delay: float) -> list[str]:
    """The command of one process of the chat."""
    return [
        *("-m", "examples.chat_agent", "--store", f"{server.url}#chat", "--session", "alice"),
        *("--word-delay", str(word_delay)),
    ]


async def processes(program: Program, number: int) -> None:
    """Wait until so many processes share the chat."""
    while True:
        await program.tell("/sessions")
        if int((await program.line("sessions, by ")).split()[0]) == number:
            return
        await trio.sleep(0.1)


async def messages(server: Server) -> list[tuple[str, str]]:
    """The conversation, as another process reads it."""
    store = ValkeyStore(server.url, namespace="chat")
    async with open_durable_lanes(store, {}) as lanes:
        conversation = Conversation("alice", SharedTranscripts(lanes))
        return [(one.role, str(one.content)) for one in await conversation.messages()]


async def test_a_line_typed_in_one_process_steers_another_and_survives_its_death(
    server: Server,
) -> None:
    async with running(*chat(server, 0.06)) as first, running(*chat(server, 0.06)) as second:
        await processes(first, 2)
        await first.tell("tell me about lanes")
        await first.until("Lanes: A lane is a queue")
        await second.tell("what is 2+2")
        await first.until("takes in: what is 2+2")  # typed there, and answered here
        first.process.send_signal(signal.SIGKILL)
        await first.process.wait()
        await second.until("answers")
        await second.until("was interrupted, and is answered now")
        await second.until("Lanes: A lane is a queue")
        await second.until("2+2 = 4")
        assert second.process.stdin is not None
        await second.process.stdin.aclose()
        assert await second.exit_code() == 0
    said = [text for role, text in await messages(server) if role == "user"]
    assert said == ["tell me about lanes", "what is 2+2"]  # once each


async def test_a_turn_is_stopped_from_another_process(server: Server) -> None:
    async with running(*chat(server, 0.5)) as first, running(*chat(server, 0.5)) as second:
        await processes(first, 2)
        await second.tell("/stop")
        await second.until("nothing runs in alice")
        await second.tell("/approve")
        await second.until("nothing waits for approval in alice")
        await second.tell("/limit main 2")
        await second.until("not for a chat in several processes")
        await first.tell("tell me about lanes")
        await first.until("search")
        await second.tell("/stop")
        await first.until("cancelled: /stop")
        for program in (first, second):
            await program.tell("/quit")
            assert await program.exit_code() == 0


async def test_a_store_that_is_none_is_an_error() -> None:
    command = ["-m", "examples.chat_agent", "--store", "valkey://127.0.0.1:1"]
    async with running(*command) as program:
        assert await program.exit_code() == 2
        assert "127.0.0.1:1" in program.text
    async with running(*command[:-1], "gopher://nowhere") as program:
        assert await program.exit_code() == 2
        assert "valkey://" in program.text


def test_events_come_back_from_json_as_they_were() -> None:
    call = ToolCall("1", "search", "{}")
    for event in (
        events.Began("s", ("a", "b")),
        events.Called("s", (call,)),
        events.Returned("s", call, "found"),
        events.Answered("s", None),
        events.Ended("s", ""),
    ):
        assert from_json(to_json(event)) == event
