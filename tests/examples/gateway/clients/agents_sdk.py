"""`openai-agents`, on asyncio: python agents_sdk.py BASE_URL [session]."""

import asyncio
import sys

from agents import (
    Agent,
    HostedMCPTool,
    MCPToolApprovalRequest,
    OpenAIConversationsSession,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from openai.types.responses.tool_param import Mcp
from pydantic import BaseModel

set_tracing_disabled(True)


@function_tool
def get_weather(city: str) -> str:
    """Return the weather."""
    return f"{city} is sunny"


class City(BaseModel):
    name: str
    people: int


async def main() -> None:
    client = AsyncOpenAI(base_url=sys.argv[1], api_key="any", timeout=120)
    model = OpenAIResponsesModel("built-in", client)
    agent = Agent(name="helper", instructions="be brief", model=model, tools=[get_weather])
    result = await Runner.run(agent, "what is the weather in Paris?")
    assert result.final_output == "Paris is sunny", result.final_output
    again = await Runner.run(
        agent, [*result.to_input_list(), {"role": "user", "content": "thanks"}]
    )
    assert "thanks" in again.final_output, again.final_output
    streamed = Runner.run_streamed(agent, "hello")
    kinds = [event.type async for event in streamed.stream_events()]
    assert "raw_response_event" in kinds
    assert streamed.final_output.startswith("Hello")
    shaped = Agent(name="shaped", model=model, output_type=City)
    assert (await Runner.run(shaped, "Paris 5")).final_output.people == 5

    asked: list[str] = []

    def approve(request: MCPToolApprovalRequest) -> dict[str, bool]:
        asked.append(request.data.name)
        return {"approve": True}

    server: Mcp = {"type": "mcp", "server_label": "gateway", "require_approval": "always"}
    hosted = HostedMCPTool(server, approve)  # type: ignore[arg-type]
    careful = Agent(name="careful", model=model, tools=[hosted])
    done = await Runner.run(careful, "what is 6 * 7")
    assert done.final_output == "6 * 7 = 42", done.final_output
    assert asked == ["calc"]
    more = await Runner.run(careful, [*done.to_input_list(), {"role": "user", "content": "thanks"}])
    assert "thanks" in more.final_output
    await client.close()


async def session() -> None:
    """The history of a session is in a conversation of the gateway."""
    client = AsyncOpenAI(base_url=sys.argv[1], api_key="any", timeout=120)
    model = OpenAIResponsesModel("built-in", client)
    agent = Agent(name="helper", model=model, tools=[get_weather])
    kept = OpenAIConversationsSession(openai_client=client)
    result = await Runner.run(agent, "what is the weather in Paris?", session=kept)
    assert result.final_output == "Paris is sunny", result.final_output
    again = await Runner.run(agent, "thanks", session=kept)
    assert "message 2" in again.final_output, again.final_output
    items = await kept.get_items()
    kinds = [item.get("type") for item in items]
    assert kinds == [
        "message", "function_call", "function_call_output", "message", "message", "message",
    ], kinds  # fmt: skip
    assert await kept.get_items(limit=2) == items[-2:]
    popped = await kept.pop_item()
    assert popped == items[-1]
    assert await kept.get_items() == items[:-1]
    await kept.clear_session()
    await client.close()


asyncio.run(session() if sys.argv[2:] else main())
