"""`python -m examples.gateway`: serve the API on this machine."""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Final

import httpx2
import trio
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Route

from trio_lanes import LaneConfig, Lanes, RateLimit
from trio_lanes.agents import JsonlTranscript
from trio_lanes.durable import MemoryStore, SqliteStore, open_durable_lanes

from ..chat_agent.sessions import FailuresTold
from ..chat_agent.shutdown import run_with_lanes
from ..chat_agent.toolbox import PER_SERVER, Toolbox
from ..chat_agent.upstream import open_upstream
from ..chat_agent.web.server import listen, serve
from ..deliveries.hooks import Hooks
from ..openai_api.http import Bounded, guarded
from ..openai_api.wire import Answer
from .asks import Ask
from .backlog import LANE, Backlog
from .completions import Completions
from .engine import TURNS, Engine
from .responses import Responses
from .threads import Threads

WEEK: Final = 7 * 24 * 3600.0  # for which the id of a delivery, and a reply that failed, is kept
PASTE = """try it:
  curl {url}responses -H 'Content-Type: application/json' -d '{{"input": "hello"}}'
  python -c "from openai import OpenAI; print(OpenAI(base_url='{url}', api_key='x')\
.responses.create(input='hello').output_text)"
  node -e "import('openai').then(async ({{OpenAI}}) => console.log((await new OpenAI({{\
baseURL: '{url}', apiKey: 'x'}}).responses.create({{input: 'hello'}})).output_text))\""""


class Api:
    """The endpoints as an ASGI application."""

    def __init__(self, engine: Engine, hooks: Hooks, backlog: Backlog | None) -> None:
        responses = Responses(engine, backlog)
        completions, threads = Completions(engine), Threads(engine)
        one, run = "/v1/responses/{id}", "/v1/threads/{id}/runs/{run}"
        table = [
            ("POST", "/v1/responses", responses.create),
            ("GET", one, responses.retrieve),
            ("POST", one + "/cancel", responses.cancel),
            ("POST", "/v1/conversations", responses.create_conversation),
            ("GET", "/v1/conversations/{id}", responses.conversation),
            ("GET", "/v1/conversations/{id}/items", responses.items),
            ("POST", "/v1/chat/completions", completions.create),
            ("GET", "/v1/models", completions.models),
            ("POST", "/v1/threads", threads.create),
            ("POST", "/v1/threads/{id}/messages", threads.post),
            ("GET", "/v1/threads/{id}/messages", threads.messages),
            ("POST", "/v1/threads/{id}/runs", threads.run),
            ("GET", run, threads.retrieve),
            ("POST", run + "/cancel", threads.cancel),
            ("POST", run + "/submit_tool_outputs", threads.submit),
            ("POST", "/hooks/{chat}", hooks.receive),
        ]
        self._engine = engine
        self._routes = [
            Route(path, guarded(endpoint, self.full), methods=[method])
            for method, path, endpoint in table
        ]

    def app(self) -> Starlette:
        return Starlette(routes=self._routes, middleware=[Middleware(Bounded)])

    def full(self) -> dict[str, str]:
        """The headers of a 429: about the time in which a place becomes free."""
        lane = self._engine.lanes.lane(TURNS)
        oldest = self._engine.lanes.statistics().lanes[TURNS].oldest_wait
        seconds = max(0.2, min(10.0, (oldest or 1.0) / max(1, lane.waiting)))
        return {
            "retry_after_ms": str(round(seconds * 1000)),
            "x_ratelimit_limit_requests": str(lane.config.max_waiting),
            "x_ratelimit_remaining_requests": "0",
            "x_ratelimit_reset_requests": f"{seconds:.1f}s",
        }


async def answer_text(engine: Engine, session: str, text: str) -> str:
    """Answer a message of a chat, in a turn of its own; `ConnectionError` if the model does not."""
    answer = Answer.begun(session, engine.upstream.name, {})
    ask = Ask(answer, [{"role": "user", "content": text}])
    turn = partial(engine.answer, session, [ask], lambda reason: None)
    await engine.lanes.run(turn, session=f"hook-{session}", lane=TURNS)
    if answer.status != "completed":
        raise ConnectionError("the model did not answer")
    return "".join(part["text"] for item in answer.output for part in item.get("content", ()))


async def main(options: argparse.Namespace) -> int:
    """Serve until a signal comes and all turns have ended. Return the exit code."""
    rate = [] if options.rpm is None else [RateLimit(options.rpm, per=60.0)]
    lanes = {
        TURNS: LaneConfig(
            concurrency=options.limit, max_waiting=options.waiting, rate=rate, fair=True
        ),
        "mcp:*": LaneConfig(concurrency=PER_SERVER),
    }
    say = partial(print, file=sys.stderr, flush=True)
    key = os.environ.get("OPENAI_API_KEY", "")
    async with AsyncExitStack() as stack:
        folder = options.durable or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        upstream = await stack.enter_async_context(
            open_upstream(options.upstream, key, options.model, options.word_delay)
        )
        toolbox = Toolbox(options.tool_timeout)
        await toolbox.connect(dict(server.split("=", 1) for server in options.mcp), stack)
        client = await stack.enter_async_context(httpx2.AsyncClient())
        listener = listen(options.port)

        async def work(opened: Lanes, beside: trio.Nursery) -> None:
            store = JsonlTranscript(folder / "conversations")
            engine = Engine(
                opened, beside, upstream, toolbox, store, options.turn_timeout, options.gate_timeout
            )
            hooks = Hooks(partial(answer_text, engine), client)
            backlog = Backlog(engine, folder / "responses")
            jobs = SqliteStore(folder / "jobs.db") if options.durable else MemoryStore()
            async with open_durable_lanes(
                jobs,
                {"reply": hooks.reply, "respond": backlog.respond},
                {TURNS: options.limit, LANE: math.inf},
                capacity=math.inf,
                max_crashes=math.inf,
                result_ttl=WEEK,
            ) as durable:
                hooks.durable = backlog.durable = durable
                await backlog.recover()
                api = Api(engine, hooks, backlog if options.durable else None)
                url = await beside.start(serve, api, listener)
                say(f"the gateway is at {url}v1 (model: {upstream.name}); Ctrl-C ends")
                say(PASTE.format(url=f"{url}v1/"))
                await opened.wait_closing()

        return await run_with_lanes(
            work, lanes, {}, say=say, grace=options.grace, instruments=[FailuresTold()]
        )


def parser() -> argparse.ArgumentParser:
    """Return the parser of the options."""
    parser = argparse.ArgumentParser(prog="python -m examples.gateway", description=__doc__)
    add = parser.add_argument
    add("--port", type=int, default=8080)
    add("--upstream", default="", metavar="URL", help="an OpenAI-compatible endpoint (…/v1)")
    add("--model", default="gpt-5-mini", help="the model of the upstream")
    add("--durable", type=Path, metavar="PATH", help="a folder that outlives the process")
    add("--mcp", action="append", default=[], metavar="NAME=COMMAND", help="an MCP server, or URL")
    add("--limit", type=int, default=4, help="turns at once (default: 4)")
    add("--waiting", type=int, default=1_000, help="turns that may wait (default: 1000)")
    add("--rpm", type=float, help="turns started in a minute (default: no limit)")
    seconds = partial(add, type=float, metavar="SECONDS")
    seconds("--word-delay", default=0.02, help="per word of the built-in model (default: 0.02)")
    seconds("--turn-timeout", default=600.0, help="maximum time of a turn (default: 600)")
    seconds("--tool-timeout", default=30.0, help="of a server's tool (default: 30)")
    seconds("--gate-timeout", default=300.0, help="for outputs of a client (default: 300)")
    seconds("--grace", default=30.0, help="from Ctrl-C until turns are cancelled (default: 30)")
    return parser


if __name__ == "__main__":
    try:
        sys.exit(trio.run(main, parser().parse_args()))
    except KeyboardInterrupt:
        sys.exit(130)
