"""Random histories of clients that do all at once: outputs, approvals, modes, keys, hanging up."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from examples.chat_agent.model import Cut, Message, ModelError, Settings, ToolCall
from examples.openai_api.wire import TERMINAL

from .inside import Gateway, Json, Script, inside

RESPONSES = "/v1/responses"
MODES = ("steer", "followup", "collect", "interrupt", "rollback", "reject", "replace")
LOOKUP: Json = {"type": "function", "name": "lookup", "parameters": {"type": "object"}}
SERVER: Json = {"type": "mcp", "server_label": "gateway", "require_approval": "always"}
ENDS = [f"response.{state}" for state in TERMINAL]


class Moody(Script):
    """A model that calls the tools that it has, fails and is cut, by chance."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self._rng = rng

    def model(self, tools: Sequence[Json], settings: Settings) -> Moody:
        names = [tool["function"]["name"] for tool in tools]
        calls = [ToolCall(name, name, "{}") for name in names if name in ("lookup", "time")]
        chosen = [call for call in calls if self._rng.random() < 0.3]
        pause = self._rng.choice([0.0, 0.5, 3.0])
        end = self._rng.choice(["end", "end", "end", ModelError("down"), Cut("length")])
        self.answers = [["word ", pause, *chosen, end]]
        super().model(tools, settings)
        return self


class Client:
    """A client; the clients of one history share ``known``, the responses that they have seen."""

    def __init__(self, gateway: Gateway, rng: random.Random, known: list[Json]) -> None:
        self._gateway, self._rng, self._known = gateway, rng, known

    def _chance(self, share: float) -> bool:
        return self._rng.random() < share

    def _body(self, text: str) -> Json:
        rng, body = self._rng, dict[str, Any](input=text)
        body["tools"] = [tool for tool in (LOOKUP, SERVER) if self._chance(0.4)]
        body |= {"store": False} if self._chance(0.2) else {"background": self._chance(0.3)}
        body |= {"metadata": {"when_busy": rng.choice(MODES)}} if self._chance(0.5) else {}
        if self._chance(0.5):
            return body | {"conversation": rng.choice("ab")}
        if self._known:
            response = rng.choice(self._known[-4:])
            body["previous_response_id"] = response["id"]
            outputs = [_answer(item, self._chance(0.7)) for item in response["output"]]
            if given := [output for output in outputs if output and self._chance(0.9)]:
                said = [{"role": "user", "content": text}] if self._chance(0.4) else []
                body["input"] = given + said
        return body

    async def live(self, number: int) -> None:
        """Make some requests."""
        for place in range(6):
            await trio.sleep(self._rng.choice([0.0, 0.1, 4.0]))
            body = self._body(f"{number}-{place}")
            key = {"idempotency-key": f"{number}-{place}"} if self._chance(0.3) else {}
            if self._known and self._chance(0.2):
                path = f"{RESPONSES}/{self._rng.choice(self._known)['id']}"
                method, path = self._rng.choice([("POST", path + "/cancel"), ("DELETE", path)])
                assert (await self._gateway.request(method, path)).status in (200, 404)
            elif self._chance(0.5):
                await self._stream(body | {"stream": True}, key)
            else:
                with trio.move_on_after(self._rng.choice([2.0, 1e6])):
                    reply = await self._gateway.request("POST", RESPONSES, body, key)
                    assert reply.status in (200, 400, 404, 409, 429, 502), reply.raw
                    self._known += [reply.body] if reply.status == 200 else []

    async def _stream(self, body: Json, key: dict[str, str]) -> None:
        events: list[Json] = []
        async with self._gateway.stream("POST", RESPONSES, body, key) as stream:
            if stream.status != 200:
                assert stream.status in (400, 404, 409, 429)
                return
            async for event in stream:
                events.append(event)
                if self._chance(0.05):
                    break
            else:
                assert [event["type"] in ENDS for event in events].index(True) == len(events) - 1
        assert [event["sequence_number"] for event in events] == [*range(len(events))]
        self._known += [event["response"] for event in events if "response" in event][-1:]


def _answer(item: Json, approves: bool) -> Json | None:
    """Return what a client answers to a call, or to a request for approval."""
    if item["type"] == "function_call":
        return {"type": "function_call_output", "call_id": item["call_id"], "output": "42"}
    if item["type"] == "mcp_approval_request":
        kind = "mcp_approval_response"
        return {"type": kind, "approval_request_id": item["id"], "approve": approves}
    return None


def check_calls(prompt: Sequence[Message]) -> None:
    """Check that each call has its one output, before anything else is said."""
    calls: set[str] = set()
    for message in prompt:
        if message.role == "tool":
            calls.remove(message.call_id)
        else:
            assert not calls
            calls = {call.id for call in message.calls}


@pytest.mark.seeds(30)
async def test_each_response_ends_once_and_the_model_sees_each_call_with_its_one_output(
    seed: int, autojump_clock: MockClock, tmp_path: Path
) -> None:
    rng, known = random.Random(seed), list[Json]()
    model, options = Moody(rng), ("--gate-timeout", "20", "--limit", str(rng.choice([1, 4])))
    async with inside(model, *options, durable=tmp_path if seed % 2 else None) as gateway:
        async with trio.open_nursery() as nursery:
            for number in range(rng.randrange(3, 9)):
                nursery.start_soon(Client(gateway, rng, known).live, number)
        await trio.sleep(500)  # what waits for a client gives up
        assert gateway.lanes.lane("main").active == gateway.lanes.lane("main").waiting == 0
        assert all(answer.ended.is_set() for answer in gateway.engine.answers.values())
        for response in known:
            found = await gateway.request("GET", f"{RESPONSES}/{response['id']}")
            assert found.status == 404 or found.body["status"] in TERMINAL
    for prompt in model.prompts:
        check_calls(prompt)
