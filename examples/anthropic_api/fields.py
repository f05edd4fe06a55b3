"""What becomes of each field of a request for a message; see the fields of OpenAI's API.

A field that is passed on has its name in chat completions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs

from ..openai_api import fields as rules
from ..openai_api.errors import BadInputError
from ..openai_api.fields import (
    FLAG,
    OBJECT,
    PASSED,
    Rule,
    Table,
    having,
    one_of,
    only,
    read_over,
    text,
)
from ..openai_api.wire import Json

CHOICES: Final = {"auto": "auto", "any": "required", "none": "none"}
TIERS: Final = {"auto": "auto", "standard_only": "default"}


def _schema(value: Any) -> Json:
    named = {"name": "answer", "schema": value["schema"], "strict": True}
    return {"type": "json_schema", "json_schema": named}


def _is_schema(value: Any) -> bool:
    match value:
        case {"type": "json_schema", "schema": dict(), **more}:
            return not more
    return False


SCHEMA: Final = "must be of the type json_schema, with a schema"
TABLES: Final[Mapping[str, Table]] = {
    "request": {
        **{name: PASSED[name] for name in ("model", "temperature", "top_p")},
        "max_tokens": PASSED["max_completion_tokens"],
        "stop_sequences": attrs.evolve(PASSED["stop"], check=rules.are_texts),
        "service_tier": attrs.evolve(one_of(*TIERS), to="service_tier", convert=TIERS.__getitem__),
        "output_config": having({
            "effort": PASSED["reasoning_effort"],
            "format": Rule(_is_schema, SCHEMA, to="response_format", convert=_schema),
        }),
        "metadata": having({"user_id": attrs.evolve(text(), to="user")}),
        "stream": attrs.evolve(FLAG, to="stream"),
        "messages": rules.LIST, "system": rules.CONTENT,
        "tools": rules.LIST, "tool_choice": OBJECT,
        # How much a model thinks is `output_config.effort`; what it thinks is not in the answer.
        "thinking": having({
            "type": one_of("disabled", "adaptive", "enabled"),
            "display": read_over(one_of("omitted", "summarized"), "omitted"),
            "budget_tokens": read_over(rules.COUNT),
        }),
        "context_management": read_over(OBJECT),  # of an input that is too long, an error says so
        "diagnostics": read_over(OBJECT),
        "cache_control": OBJECT,  # upstreams cache the beginning of a prompt by themselves
        "speed": only("standard"),
        **rules.refused("top_k", "container", "inference_geo"),
    },
    "tool": {
        "type": only("custom"),  # the others run at Anthropic, or have schemas of their own
        "name": text(), "description": rules.LONG, "input_schema": OBJECT, "strict": FLAG,
        "cache_control": OBJECT,
        "eager_input_streaming": FLAG,  # each input is one piece
        "allowed_callers": only(["direct"]), "defer_loading": only(False),
        "input_examples": only([]),
    },
    "tool_choice": {
        "type": one_of(*CHOICES, "tool"), "name": text(), "disable_parallel_tool_use": FLAG,
    },
    "message": {"role": one_of("user", "assistant", "system"), "content": rules.CONTENT},
    "text": {"type": text(), "text": rules.LONG, "cache_control": OBJECT, "citations": only([])},
    "image": {
        "type": text(), "source": OBJECT, "cache_control": OBJECT, "transformations": only({}),
    },
    "base64": {"type": text(), "media_type": text(), "data": rules.LONG},
    "url": {"type": text(), "url": rules.LONG},
    "tool_use": {
        "type": text(), "id": text(), "name": text(), "input": OBJECT, "cache_control": OBJECT,
        "caller": only({"type": "direct"}), **rules.refused("toolset_name"),
    },
    "tool_result": {
        "type": text(), "tool_use_id": text(), "content": rules.CONTENT, "is_error": FLAG,
        "cache_control": OBJECT, **rules.refused("toolset_name"),
    },
}  # fmt: skip
NEEDED: Final[Mapping[str, tuple[str, ...]]] = {
    "request": ("model", "messages"), "tool": ("name", "input_schema"), "tool_choice": ("type",),
    "message": ("role", "content"), "text": ("text",), "image": ("source",),
    "base64": ("media_type", "data"), "url": ("url",), "tool_use": ("id", "name", "input"),
    "tool_result": ("tool_use_id",),
}  # fmt: skip


def accepted(what: str, value: Any, where: str = "") -> Json:
    """Return the object without its nulls; raise `Refused` if it is not valid."""
    if not isinstance(value, dict):
        raise BadInputError(f"{where} must be an object", where)
    prefix = f"{where}." if where else ""
    rules.checked(TABLES[what], value, prefix)
    for name in NEEDED[what]:
        if value.get(name) is None:
            raise BadInputError(f"{prefix}{name} is missing", f"{prefix}{name}")
    return {name: given for name, given in value.items() if given is not None}
