"""The `anthropic` client: python anthropic_sync.py BASE_URL."""

import sys
from typing import Any

import anthropic

URL = sys.argv[1].removesuffix("/v1")
client = anthropic.Anthropic(base_url=URL, api_key="any", timeout=120)
MORE: Any = {"model": "built-in", "max_tokens": 1000}


def whole() -> None:
    message = client.messages.create(
        **MORE,
        system="be kind",
        messages=[{"role": "user", "content": "hello"}],
        metadata={"user_id": "u1"},
    )
    assert message.stop_reason == "end_turn"
    (block,) = message.content
    assert block.type == "text"
    assert block.text.startswith("Hello!")


def streamed() -> None:
    asked: Any = [{"role": "user", "content": "long answer of 5"}]
    with client.messages.stream(**MORE, messages=asked) as stream:
        text = "".join(stream.text_stream)
        message = stream.get_final_message()
    assert text.count("\n") == 4
    assert message.content[0].to_dict() == {"type": "text", "text": text}
    assert message.usage.input_tokens + message.usage.output_tokens > 0
    kinds = [event.type for event in client.messages.create(**MORE, messages=asked, stream=True)]
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]


def tools() -> None:
    """The loop that runs tools until the model has said its answer."""

    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """Return the weather.

        Args:
          city: the name of the city
        """
        return f"{city} is sunny"

    asked: Any = [{"role": "user", "content": "what is the weather in Paris?"}]
    runner = client.beta.messages.tool_runner(**MORE, tools=[get_weather], messages=asked)
    first, last = runner
    assert first.stop_reason == "tool_use"
    assert last.content[0].type == "text"
    assert last.content[0].text == "Paris is sunny"


def refused() -> None:
    asked: Any = [{"role": "user", "content": "hello"}]
    count = client.messages.count_tokens(model="built-in", messages=asked)
    assert count.input_tokens > 0
    thinking: Any = {"type": "enabled", "budget_tokens": 1024}
    raw = client.messages.with_raw_response.create(**MORE, messages=asked, thinking=thinking)
    assert raw.headers["x-lanes-ignored"] == "thinking.budget_tokens"
    assert raw.parse()._request_id == raw.headers["request-id"]
    fault: Any = None
    try:
        client.messages.create(**MORE, messages=asked, extra_body={"top_k": 5})
    except anthropic.BadRequestError as error:
        fault = error
    assert fault.body["error"]["type"] == "invalid_request_error"
    assert "top_k" in fault.message
    try:
        client.messages.create(**MORE, messages=[{"role": "user", "content": "fail now"}])
    except anthropic.APIStatusError as error:
        fault = error
    assert fault.status_code == 502


whole()
streamed()
tools()
refused()
