"""Parts of responses: what repeats the request, and the usage."""

from __future__ import annotations

from typing import Any, Final

from ..chat_agent.model import Usage

Json = dict[str, Any]
# what a response repeats of its request, and what if that has no such field
ECHOED: Final[Json] = {
    "background": False, "store": True, "instructions": None, "metadata": {}, "user": None,
    "previous_response_id": None, "truncation": "disabled",
    "temperature": 1.0, "top_p": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0,
    "max_output_tokens": None, "reasoning": {"effort": None, "summary": None}, "top_logprobs": 0,
    "text": {"format": {"type": "text"}},
    "tools": [], "tool_choice": "auto", "parallel_tool_calls": True, "max_tool_calls": None,
    "prompt_cache_key": None, "safety_identifier": None, "service_tier": "default",
}  # fmt: skip


def echoed(body: Json) -> Json:
    """Return what a response repeats of its request."""
    given = {name: value for name, value in body.items() if value is not None and name in ECHOED}
    for name in ("reasoning", "text"):
        given[name] = ECHOED[name] | given.get(name, {})
    shape = {"description": None, "parameters": None, "strict": None}
    given["tools"] = [
        {**(shape if tool["type"] == "function" else {}), **tool} for tool in given.get("tools", ())
    ]
    return ECHOED | given


def usage_of(usage: Usage) -> Json:
    """Return the usage of a response."""
    prompt = usage.prompt or usage.tokens - usage.completion  # an endpoint may say the sum alone
    return {
        "input_tokens": prompt, "output_tokens": usage.completion, "total_tokens": usage.tokens,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
    }  # fmt: skip


def text_part(text: str) -> Json:
    """Return a part of a message of a response."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
