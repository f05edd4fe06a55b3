"""What a model says as a message: whole, or as a stream."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, Final

from starlette.responses import JSONResponse

from ..openai_api.chat import completion, said
from ..openai_api.errors import Refused
from ..openai_api.wire import Answer, Json, sse, stem_of

REASONS: Final = {"length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
KINDS: Final = {401: "authentication_error", 403: "permission_error", 404: "not_found_error",
                413: "request_too_large", 429: "rate_limit_error",
                503: "overloaded_error", 504: "timeout_error"}  # fmt: skip


def error(refused: Refused) -> JSONResponse:
    """Return an error in the shape of this API."""
    headers = dict(refused.headers)
    if milliseconds := headers.get("retry-after-ms"):
        headers["retry-after"] = str(math.ceil(int(milliseconds) / 1000))
    return JSONResponse(_error(refused), refused.status, headers)


def _error(refused: Refused) -> Json:
    kind = "api_error" if refused.status > 499 else "invalid_request_error"
    body: Json = {"type": KINDS.get(refused.status, kind), "message": str(refused)}
    if refused.param == "thread":  # by this code, clients send the whole conversation instead
        body["details"] = {"error_code": "thread_unsupported_request"}
    return {"type": "error", "error": body}


def message(answer: Answer) -> Json:
    """Return a response that has ended as a message; raise `Refused` if it has failed."""
    done = completion(answer)
    whole = done["choices"][0]["message"]
    texts = filter(None, (whole["content"], whole["refusal"]))  # it has no other part for one
    content: list[Json] = [{"type": "text", "text": text} for text in texts]
    for call in whole.get("tool_calls", ()):
        block = {"type": "tool_use", "id": call["id"], "name": call["function"]["name"]}
        content.append(block | {"input": _input(call["function"]["arguments"])})
    return _head(answer) | _reason(done) | {"content": content, "usage": _usage(done)}


async def message_events(answer: Answer) -> AsyncIterator[str]:
    """Yield what a completion says as the stream of a message."""

    def event(kind: str, **fields: Any) -> str:
        return sse({"type": kind, **fields})

    yield event("message_start", message=_head(answer))
    yield event("ping")
    index, grows = -1, False
    try:
        async with aclosing(said(answer)) as pieces:
            async for piece in pieces:
                if isinstance(piece, str):
                    if not grows:
                        index, grows = index + 1, True
                        block: Json = {"type": "text", "text": ""}
                        yield event("content_block_start", index=index, content_block=block)
                    delta = {"type": "text_delta", "text": piece}
                    yield event("content_block_delta", index=index, delta=delta)
                else:
                    _input(piece.arguments)
                    if grows:
                        yield event("content_block_stop", index=index)
                    index, grows = index + 1, False
                    block = {"type": "tool_use", "id": piece.id, "name": piece.name, "input": {}}
                    yield event("content_block_start", index=index, content_block=block)
                    delta = {"type": "input_json_delta", "partial_json": piece.arguments}
                    yield event("content_block_delta", index=index, delta=delta)
                    yield event("content_block_stop", index=index)
        done = completion(answer)
    except Refused as refused:
        yield sse(_error(refused))
        return
    if grows:
        yield event("content_block_stop", index=index)
    yield event("message_delta", delta=_reason(done), usage=_usage(done))
    yield event("message_stop")


def _head(answer: Answer) -> Json:
    usage = {"input_tokens": 0, "output_tokens": 0}  # the upstream counts at the end
    return {"id": f"msg_{stem_of(answer.id)}", "type": "message", "role": "assistant",
            "model": answer.object()["model"], "content": [], "stop_reason": None,
            "stop_sequence": None, "usage": usage}  # fmt: skip


def _input(arguments: str) -> Json:
    """Return what the model has written as the input of a tool."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise Refused(502, "the model wrote the input of a tool that is no JSON object")
    return value


def _reason(done: Json) -> Json:
    choice = done["choices"][0]
    if choice["message"]["refusal"]:
        return {"stop_reason": "refusal", "stop_sequence": None}
    sequence = choice.get("stop_reason")  # most upstreams do not say it
    reason = REASONS.get(choice["finish_reason"], "stop_sequence" if sequence else "end_turn")
    return {"stop_reason": reason, "stop_sequence": sequence}


def _usage(done: Json) -> Json:
    usage = done["usage"]
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return {"input_tokens": usage["prompt_tokens"] - cached, "cache_read_input_tokens": cached,
            "output_tokens": usage["completion_tokens"]}  # fmt: skip
