"""Serve the API in this process: its endpoints, what they need, and the options."""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import httpx2
import trio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from trio_lanes import LaneConfig, Lanes, RateLimit
from trio_lanes.durable import DurableLanes, Store, open_durable_lanes
from trio_lanes.instruments.logging import log_health

from ..anthropic_api.messages import error as anthropic_error
from ..chat_agent.keys import hide_in, secret
from ..chat_agent.openai_model import CONNECT_SECONDS, SILENT_SECONDS
from ..chat_agent.toolbox import PER_SERVER, Toolbox, open_toolbox
from ..chat_agent.upstream import Upstream, open_upstream
from ..deliveries.hooks import Hooks
from ..deliveries.replies import client_for_replies
from ..openai_api.errors import Refused, error
from ..openai_api.http import Bounded, Requests, Shape, full, guarded, not_found, refusal_of
from ..openai_api.once import AGE, Once
from ..openai_api.wire import Answer
from .asks import Ask, Reach
from .backlog import Backlog
from .completions import Completions
from .conversations import Conversations
from .engine import PLACED, TURNS, Engine
from .responses import Responses
from .threads import Threads
from .websocket import serve_socket

Parts = tuple[Upstream, Toolbox, httpx2.AsyncClient, Path]
WEEK: Final = 7 * 24 * 3600.0  # for which the id of a delivery, and a reply that failed, is kept
MESSAGES: Final = "/v1/messages"
COMPLETIONS: Final = "/v1/chat/completions"


def shape_of(path: str) -> Shape:
    """Return the shape of the errors of a path."""
    return anthropic_error if path.startswith(MESSAGES) else error


async def no_socket(socket: WebSocket) -> None:
    """Refuse a WebSocket on any other path."""
    unknown = Refused(404, f"{socket.url.path[:100]} has no WebSocket", "unknown_url")
    await socket.send_denial_response(error(unknown))


def application(engine: Engine, hooks: Hooks, backlog: Backlog, requests: Requests) -> Starlette:
    """Return the endpoints as an ASGI application."""
    responses, completions = Responses(engine, backlog), Completions(engine, backlog)
    conversations, threads = Conversations(engine), Threads(engine, backlog)
    one, run = "/v1/responses/{id}", "/v1/threads/{id}/runs/{run}"
    thread = "/v1/conversations/{id}"
    table = [
        ("POST", "/v1/responses", responses.create),
        ("GET", one, responses.retrieve),
        ("DELETE", one, responses.delete),
        ("GET", one + "/input_items", responses.input_items),
        ("POST", one + "/cancel", responses.cancel),
        ("POST", "/v1/conversations", conversations.create),
        ("GET", thread, conversations.retrieve),
        ("POST", thread, conversations.update),
        ("DELETE", thread, conversations.delete),
        ("GET", thread + "/items", conversations.items),
        ("POST", thread + "/items", conversations.create_items),
        ("GET", thread + "/items/{item}", conversations.item),
        ("DELETE", thread + "/items/{item}", conversations.delete_item),
        ("GET", "/v1/models", completions.models),
        ("GET", "/v1/models/{model:path}", completions.model),
        ("POST", "/hooks/{chat}", hooks.receive),
        ("POST", COMPLETIONS, completions.create),
        ("POST", MESSAGES, completions.create_message),
        ("POST", MESSAGES + "/count_tokens", completions.count_tokens),
        ("POST", "/v1/threads", threads.create),
        ("POST", "/v1/threads/{id}/messages", threads.post),
        ("GET", "/v1/threads/{id}/messages", threads.messages),
        ("POST", "/v1/threads/{id}/runs", threads.run),
        ("GET", run, threads.retrieve),
        ("POST", run + "/cancel", threads.cancel),
        ("POST", run + "/submit_tool_outputs", threads.submit),
    ]
    free = partial(full, engine.lanes, TURNS)
    socket = partial(serve_socket, responses, engine.lanes, partial(refusal_of, full=free))
    routes = [
        *(Route(path, guarded(endpoint, free, shape_of(path)), methods=[method])
          for method, path, endpoint in table),
        WebSocketRoute("/v1/responses", socket),
        WebSocketRoute("/{path:path}", no_socket),
    ]  # fmt: skip
    bounded = Middleware(Bounded, requests, shape_of)
    once = Middleware(Once, engine.nursery, shape_of, backlog.is_durable)
    not_there = {HTTPException: partial(not_found, shape_of)}
    return Starlette(routes=routes, middleware=[bounded, once], exception_handlers=not_there)


async def answer_text(engine: Engine, session: str, text: str) -> str:
    """Answer a message of a chat, in a turn of its own; `ConnectionError` if the model does not."""
    answer = Answer.begun(session, engine.upstream.name, {})
    ask = Ask(answer, [{"role": "user", "content": text}])
    turn = partial(engine.answer, session, [ask], Reach())
    await engine.lanes.run(turn, session=f"hook-{session}", lane=TURNS)
    if answer.status not in ("completed", "incomplete"):
        raise ConnectionError("the model did not answer")
    parts = [part for item in answer.output for part in item.get("content", ())]
    return "".join(part.get("text") or part.get("refusal") or "" for part in parts)


@asynccontextmanager
async def opening(options: argparse.Namespace) -> AsyncIterator[Parts]:
    """Open what turns need, also while they are drained: the model, tools, a client, a folder."""
    key = secret("OPENAI_API_KEY")
    for given in (options.upstream, options.store or "", *options.mcp):
        hide_in(given.partition("=")[2] if given in options.mcp else given)
    with tempfile.TemporaryDirectory() as folder:
        async with (
            open_upstream(
                options.upstream,
                key,
                options.model,
                options.word_delay,
                options.connect_timeout,
                options.silence_timeout,
            ) as upstream,
            open_toolbox(options.tool_timeout, options.mcp) as toolbox,
            client_for_replies() as client,
        ):
            yield upstream, toolbox, client, options.durable or Path(folder)


@asynccontextmanager
async def making(
    options: argparse.Namespace, parts: Parts, requests: Requests,
    opened: Lanes, beside: trio.Nursery,
    jobs: Store, kind: type[Backlog],
    durable_lanes: Mapping[str, float | LaneConfig], max_crashes: float,
) -> AsyncIterator[tuple[Starlette, Engine, DurableLanes]]:  # fmt: skip
    """Make the application; enter with it, its engine, and the durable lanes."""
    upstream, toolbox, client, folder = parts
    store = kind.transcripts(folder / "conversations")
    times = options.turn_timeout, options.gate_timeout
    engine = Engine(opened, beside, upstream, toolbox, store, *times)
    hooks = Hooks(partial(answer_text, engine), client)
    backlog = kind(engine, folder / "responses", bool(options.durable))
    async with open_durable_lanes(
        jobs, {"reply": hooks.reply, **backlog.handlers}, durable_lanes, affinity=1.0,
        capacity=float("inf"), max_crashes=max_crashes, result_ttl=WEEK, grace=options.grace,
    ) as durable:  # fmt: skip
        hooks.durable = backlog.durable = durable
        backlog.forget_older(AGE)
        await backlog.recover()
        async with trio.open_nursery() as telling:
            telling.start_soon(log_health, opened, durable)
            yield application(engine, hooks, backlog, requests), engine, durable
            telling.cancel_scope.cancel()


def lanes_of(options: argparse.Namespace) -> dict[str, LaneConfig]:
    """Return the lanes of this process."""
    rate = [] if options.rpm is None else [RateLimit(options.rpm, per=60.0)]
    turns = LaneConfig(concurrency=options.limit, max_waiting=options.waiting, rate=rate, fair=True)
    unbounded, tools = LaneConfig(concurrency=math.inf), LaneConfig(concurrency=PER_SERVER)
    return {TURNS: turns, PLACED: unbounded, "mcp:*": tools}


def parser() -> argparse.ArgumentParser:
    """Return the parser of the options."""
    parser = argparse.ArgumentParser(prog="python -m examples.gateway", description=__doc__)
    add = parser.add_argument
    add("--port", type=int, default=8080)
    add("--upstream", default="", metavar="URL", help="an OpenAI-compatible endpoint (…/v1)")
    add("--model", default="gpt-5-mini", help="the model of the upstream")
    add("--durable", type=Path, metavar="PATH", help="a folder that outlives the process")
    add("--store", metavar="URL", help="of the jobs: sqlite:PATH, or postgresql://HOST/DB#NAME")
    add("--processes", type=int, default=1, metavar="N", help="which share folder and store")
    add("--mcp", action="append", default=[], metavar="NAME=COMMAND", help="an MCP server, or URL")
    add("--limit", type=int, default=4, help="turns at once (default: 4)")
    add("--waiting", type=int, default=1_000, help="turns that may wait (default: 1000)")
    add("--rpm", type=float, help="turns started in a minute (default: no limit)")
    seconds = partial(add, type=float, metavar="SECONDS")
    seconds("--word-delay", default=0.02, help="per word of the built-in model (default: 0.02)")
    seconds(
        "--connect-timeout", default=CONNECT_SECONDS, help="to reach the upstream (default: 20)"
    )
    seconds("--silence-timeout", default=SILENT_SECONDS, help="of the upstream (default: 300)")
    seconds("--turn-timeout", default=600.0, help="maximum time of a turn (default: 600)")
    seconds("--tool-timeout", default=30.0, help="without progress of a tool (default: 30)")
    seconds("--gate-timeout", default=300.0, help="for outputs of a client (default: 300)")
    seconds("--grace", default=30.0, help="from Ctrl-C until turns are cancelled (default: 30)")
    return parser
