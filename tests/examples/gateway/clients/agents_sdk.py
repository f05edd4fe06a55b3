"""`openai-agents`, on asyncio: python agents_sdk.py BASE_URL."""

import asyncio
import sys

from agents import (
    Agent,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

set_tracing_disabled(True)


@function_tool
def get_weather(city: str) -> str:
    """Return the weather."""
    return f"{city} is sunny"


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
    await client.close()


asyncio.run(main())
