"""What becomes of each field of a request: passed on to the model, done here, or refused.

A field with `to` is passed on under that name of chat completions. Any other is done here, if its
check accepts the value; `only` accepts the values that ask for nothing, and is how a field is
refused. `None` is as if the field were missing. A field that is in no table is refused.

A value of a field may also be read over, where a client gets a whole answer without it: hints, and
what a client tells about itself. The answer says so, in the header `x-lanes-ignored`; where it has
no header, as over a WebSocket, such a value is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final

import attrs

from ..chat_agent.model import Settings
from .errors import BadInputError, Refused

Json = dict[str, Any]
# the fields of the request that are read over; None: nobody can be told
IGNORED: Final[ContextVar[list[str] | None]] = ContextVar("IGNORED", default=None)
Table = dict[str, "Rule"]


@attrs.frozen
class Rule:
    """What becomes of a field; ``wants`` says to people what the check accepts."""

    check: Callable[[Any], bool]
    wants: str
    to: str = ""
    convert: Callable[[Any], Any] = lambda value: value
    fields: Table | None = None  # of a value that is an object
    ignores: Callable[[Any], bool] = lambda value: False  # whether a value is read over


def number(low: float, high: float, kinds: tuple[type, ...] = (int, float)) -> Rule:
    wants = f"must be a {'number' if float in kinds else 'whole number'} from {low:g} to {high:g}"
    return Rule(lambda v: type(v) in kinds and low <= v <= high, wants)


def text(longest: int = 512) -> Rule:
    wants = f"must be a string of at most {longest:,} characters"
    return Rule(lambda v: isinstance(v, str) and len(v) <= longest, wants)


def one_of(*values: str) -> Rule:
    return Rule(lambda v: isinstance(v, str) and v in values, f"must be one of {', '.join(values)}")


def only(*values: Any) -> Rule:
    """Refuse each value but these, which ask for nothing."""
    wants = "is not supported by this gateway"
    return Rule(lambda v: any(type(v) is type(one) and v == one for one in values), wants)


def read_over(rule: Rule, *done: Any) -> Rule:
    """Read over each value but these; an empty one asks for nothing."""
    return attrs.evolve(rule, ignores=lambda v: bool(v) and v not in done)


def kind(what: type | tuple[type, ...], wants: str) -> Rule:
    return Rule(lambda v: isinstance(v, what), f"must be {wants}")


def having(fields: Table) -> Rule:
    return attrs.evolve(OBJECT, fields=fields)


def refused(*names: str) -> Table:
    return dict.fromkeys(names, only())


def _is_metadata(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and len(value) <= 16
        and all(isinstance(v, str) and len(k) <= 64 and len(v) <= 512 for k, v in value.items())
    )


def _chat_format(value: Any) -> Any:
    """Return the format of a response, or of a run, as chat completions name it."""
    match value:
        case "auto":
            return {"type": "text"}
        case {"type": "json_schema", **schema} if "json_schema" not in schema:
            return {"type": "json_schema", "json_schema": schema}
    return value


def _is_format(value: Any) -> bool:
    match _chat_format(value):
        case {"type": "text" | "json_object"}:
            return True
        case {"type": "json_schema", "json_schema": {"name": str(), "schema": dict()}}:
            return True
    return False


def are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) and text for text in value)


FLAG: Final = kind(bool, "true or false")
LIST: Final = kind(list, "a list")
OBJECT: Final = kind(dict, "an object")
CONTENT: Final = kind((str, list), "a string or a list")
CHOICE: Final = kind((str, dict), "a string or an object")
LONG: Final = text(4_000_000)
METADATA: Final = Rule(_is_metadata, "must have at most 16 strings of at most 512 characters")
COUNT: Final = number(1, 2**53, (int,))
FORMAT: Final = "must be of the type text, json_object or json_schema, with its name and schema"
SUMMARY: Final = one_of("auto", "concise", "detailed")
EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")

PASSED: Final[Table] = {
    name: attrs.evolve(rule, to=name)
    for name, rule in {
        "model": text(), "temperature": number(0, 2), "top_p": number(0, 1),
        "frequency_penalty": number(-2, 2), "presence_penalty": number(-2, 2),
        "seed": number(-(2**63), 2**63, (int,)), "max_completion_tokens": COUNT,
        "max_tokens": COUNT,
        "stop": Rule(lambda v: are_texts(v if isinstance(v, list) else [v]), "must be strings"),
        "response_format": Rule(_is_format, FORMAT, convert=_chat_format),
        "reasoning_effort": one_of(*EFFORTS), "verbosity": one_of("low", "medium", "high"),
        "parallel_tool_calls": FLAG, "prediction": OBJECT, "service_tier": text(),
        "prompt_cache_key": text(), "prompt_cache_options": OBJECT,
        "prompt_cache_retention": one_of("in_memory", "24h"), "safety_identifier": text(),
    }.items()
}  # fmt: skip
COMPLETIONS: Final[Table] = PASSED | {
    "messages": LIST, "tools": LIST, "tool_choice": CHOICE, "user": text(), "stream": FLAG,
    "stream_options": having({"include_usage": FLAG, "include_obfuscation": read_over(FLAG)}),
    "logit_bias": only({}), "logprobs": only(False), "top_logprobs": only(0), "n": only(1),
    "modalities": only(["text"]), "store": only(False),
    "metadata": read_over(METADATA),  # is for completions that are stored
    **refused("audio", "function_call", "functions", "moderation", "web_search_options"),
}  # fmt: skip
RUNS: Final[Table] = {
    **{name: PASSED[name] for name in ("model", "parallel_tool_calls", "temperature", "top_p")},
    **{n: PASSED[n] for n in ("max_completion_tokens", "reasoning_effort", "response_format")},
    "assistant_id": text(),  # there are no assistants: any name is one
    "instructions": LONG, "tools": LIST,
    "tool_choice": CHOICE,  # see `requests.choice_of`
    "additional_instructions": only(""), "additional_messages": only([]), "include": only([]),
    "metadata": only({}), "stream": only(False), "truncation_strategy": only({"type": "auto"}),
    **refused("max_prompt_tokens"),
}  # fmt: skip
OTHER_NAMES: Final = ("max_tokens", "prediction", "seed", "stop", "response_format", "verbosity")
RESPONSES: Final[Table] = {
    **{name: PASSED[name] for name in PASSED if name not in OTHER_NAMES},
    "max_output_tokens": PASSED["max_completion_tokens"],
    "text": having({"format": PASSED["response_format"], "verbosity": PASSED["verbosity"]}),
    "reasoning": having({
        "effort": PASSED["reasoning_effort"],
        "context": only("auto"), "mode": only("standard"),
        # chat completions have no summary, so there is none, as "auto" allows
        **dict.fromkeys(("summary", "generate_summary"), read_over(SUMMARY, "auto")),
    }),
    "input": CONTENT, "instructions": LONG, "conversation": CHOICE, "previous_response_id": text(),
    "tools": LIST, "tool_choice": CHOICE, "max_tool_calls": COUNT,
    "background": FLAG, "store": FLAG, "metadata": METADATA, "user": text(),
    "stream": FLAG, "stream_options": having({"include_obfuscation": read_over(FLAG)}),
    "truncation": one_of("auto", "disabled"),
    # each name is of something that the output never has, but logprobs it could have
    "include": Rule(
        lambda v: are_texts(v) and "message.output_text.logprobs" not in v,
        "must be names; logprobs are not supported",
    ),
    # of an input that is too long, an error says so
    "context_management": read_over(LIST), "top_logprobs": only(0),
    "client_metadata": read_over(OBJECT), "access_programs": only([]),
    **refused("background_options", "image", "moderation", "prompt"),
}  # fmt: skip
ITEMS: Final[Table] = {"items": LIST}
CONVERSATION: Final[Table] = {"metadata": METADATA}
CONVERSATIONS: Final[Table] = ITEMS | CONVERSATION
THREADS: Final[Table] = {"messages": LIST, "metadata": only({}), "tool_resources": only({})}
MESSAGES: Final[Table] = {
    "content": CONTENT, "role": one_of("user"), "attachments": only([]), "metadata": only({}),
}  # fmt: skip
FUNCTION: Final[Table] = {
    "type": one_of("function"), "name": text(128), "description": text(100_000),
    "parameters": OBJECT, "strict": FLAG,
}  # fmt: skip
SERVER: Final[Table] = {
    "type": one_of("mcp"), "server_label": text(),
    # clients have to send one of these; the label decides, and the gateway knows its server
    **dict.fromkeys(("server_url", "server_description"), text(100_000)),
    "allowed_tools": kind((list, dict), "names, or an object"), "require_approval": CHOICE,
}  # fmt: skip

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


def checked(table: Table, body: Json, where: str = "") -> Settings:
    """Check the fields of a body; return the settings for the model.

    Args:
      where: the name of the field that the body is the value of, and a point.

    Raises:
      Refused: if a field is not known, or has a value that is not accepted; nothing has run.
    """
    settings: Json = {}
    for name, value in body.items():
        rule, param = table.get(name), f"{where}{name}"[:100]
        if rule is None:
            text = f"{param} is not a field that this gateway knows"
            raise Refused(400, text, "unknown_parameter", param=param)
        if value is None:
            continue
        if not rule.check(value):
            raise BadInputError(f"{param} {rule.wants}", param)
        if rule.ignores(value):
            told = IGNORED.get()
            if told is None:
                raise BadInputError(f"{param} {only().wants}", param)
            told.append(param)
        if rule.fields is not None:
            settings |= checked(rule.fields, value, f"{param}.")
        elif rule.to:
            settings[rule.to] = rule.convert(value)
    return settings


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
