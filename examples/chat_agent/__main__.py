"""`python -m examples.chat_agent`: choose the model and the mode, run, and return the exit code."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import trio

from .builtin_model import BuiltinModel
from .chat import run_chat
from .commands import MAX_LIMIT, NAME
from .keys import hide_in, secret, without_secrets
from .limits import Limits, LimitsError
from .model import Model
from .shutdown import INTERRUPTED
from .terminal import open_terminal, plain_screen
from .tools import bundled_tools

if TYPE_CHECKING:
    from trio_lanes.durable import Store

    from .simulate import Crowd

USAGE_ERROR = 2
WEB_STEPS = 1_000  # of each simulated user: until Ctrl-C, nearly


def main() -> int:
    """Run the demo, and return its exit code."""
    options = _parser().parse_args()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # for characters that this terminal cannot show
    try:
        if options.crash:
            from .crash import run_crash

            return trio.run(run_crash, plain_screen().say)
        return trio.run(_simulate if options.users and not options.web else _chat, options)
    except KeyboardInterrupt:  # Ctrl-C before the lanes were open, or a third Ctrl-C
        return INTERRUPTED
    except BaseExceptionGroup as group:
        if group.split(KeyboardInterrupt)[1] is None:
            return INTERRUPTED
        raise


async def _chat(options: argparse.Namespace) -> int:
    limits = Limits().with_turns(options.limit)
    read_limits = None
    if options.limits is not None:
        read_limits = partial(limits.read, options.limits)
        try:
            limits = read_limits()
        except LimitsError as error:
            print(error, file=sys.stderr)
            return USAGE_ERROR
    async with _open_model(0.03 if options.word_delay is None else options.word_delay) as model:
        if isinstance(model, str):
            print(model, file=sys.stderr)
            return USAGE_ERROR
        if options.durable is not None or options.store is not None:
            return await _chat_durably(options, model, limits, read_limits)
        if options.web:
            from .web.server import listen, run_web

            try:
                listener = listen(options.port)
            except OSError as error:
                print(f"port {options.port}: {error.strerror}", file=sys.stderr)
                return USAGE_ERROR
            crowd = _crowd(options) if options.users else None
            return await run_web(
                model if crowd is None else crowd.model,
                plain_screen().say,
                listener,
                limits=limits,
                read_limits=read_limits,
                turn_timeout=options.turn_timeout,
                grace=options.grace,
                crowd=crowd,
            )
        with open_terminal() as (screen, lines):
            if sys.stdin.isatty():
                screen.say(f"model: {model.name}; /help lists the commands, Ctrl-D ends")
            return await run_chat(
                model,
                screen,
                lines,
                session=options.session,
                limits=limits,
                read_limits=read_limits,
                turn_timeout=options.turn_timeout,
                grace=options.grace,
            )


async def _chat_durably(
    options: argparse.Namespace,
    model: Model,
    limits: Limits,
    read_limits: Callable[[], Limits] | None,
) -> int:
    from trio_lanes.durable import StoreError

    code = USAGE_ERROR
    try:
        with open_terminal() as (screen, lines):
            if options.store is not None:
                from .shared import run_shared_chat

                run = partial(run_shared_chat, model, screen, lines, find_store(options.store))
            else:
                from .durable import run_durable_chat

                run = partial(run_durable_chat, model, screen, lines, options.durable)
            code = await run(
                session=options.session,
                limits=limits,
                read_limits=read_limits,
                turn_timeout=options.turn_timeout,
                grace=options.grace,
            )
    except* (StoreError, OSError, ValueError, ImportError) as errors:
        error: BaseException = errors
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        print(error, file=sys.stderr)
    return code


def find_store(url: str) -> Store:
    """Return the store of a URL, as `trio-lanes --store` names it."""
    from trio_lanes.durable import PostgresStore, SqliteStore, ValkeyStore

    scheme, _, rest = url.partition(":")
    where, _, namespace = url.partition("#")
    if scheme == "sqlite":
        return SqliteStore(rest)
    kind = PostgresStore if scheme.startswith("postgres") else ValkeyStore
    return kind(where, namespace=namespace or "chat")


async def _simulate(options: argparse.Namespace) -> int:
    from .simulate import run_simulation

    return await run_simulation(
        users=options.users,
        steps=3 if options.steps is None else options.steps,
        seed=options.seed,
        limit=options.limit,
        word_delay=0.01 if options.word_delay is None else options.word_delay,
        grace=options.grace,
        say=plain_screen().say,
        live=sys.stdout.isatty(),
    )


def _crowd(options: argparse.Namespace) -> Crowd:
    from .simulate import Crowd

    return Crowd(
        users=options.users,
        steps=WEB_STEPS if options.steps is None else options.steps,
        seed=options.seed,
        word_delay=0.03 if options.word_delay is None else options.word_delay,
    )


@asynccontextmanager
async def _open_model(word_delay: float) -> AsyncIterator[Model | str]:
    """Open the model that the environment selects, or return the error of the environment."""
    base_url = hide_in(os.environ.get("OPENAI_BASE_URL", ""))
    name = os.environ.get("OPENAI_MODEL", "")
    if not base_url:  # a key alone selects no endpoint: the demo stays offline
        yield BuiltinModel(word_delay)
    elif not _is_url(base_url):
        shown = without_secrets(repr(base_url))
        yield f"OPENAI_BASE_URL must be a URL such as http://127.0.0.1:8000/v1, not {shown}"
    elif not name:
        yield "OPENAI_BASE_URL is set, so OPENAI_MODEL must be set as well"
    else:
        from .openai_model import OpenAIModel

        key = secret("OPENAI_API_KEY")
        async with OpenAIModel.open(base_url, key, name, bundled_tools().values()) as model:
            yield model


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m examples.chat_agent",
        description="A chat with many sessions at once, over trio_lanes. With OPENAI_BASE_URL,"
        " OPENAI_MODEL and OPENAI_API_KEY set it uses that endpoint; else a small built-in model.",
    )
    add = partial(parser.add_argument, metavar="N")
    add("--users", type=_whole(1, 1_000), default=0, help="simulated users (built-in model)")
    add("--steps", type=_whole(1, 1_000), help="steps of each user (default: 3; with --web: 1000)")
    add("--seed", type=_whole(0, 2**63), default=0, help="random seed of the users (default: 0)")
    add("--limit", type=_whole(1, MAX_LIMIT), default=4, help="turns at once (default: 4)")
    seconds = partial(parser.add_argument, metavar="SECONDS", type=_seconds)
    seconds("--word-delay", help="per word of the built-in model (default: 0.03; users: 0.01)")
    seconds("--turn-timeout", default=300.0, help="maximum time of a turn (default: 300)")
    seconds("--grace", default=30.0, help="from Ctrl-C until turns are cancelled (default: 30)")
    parser.add_argument(
        "--limits", type=Path, metavar="FILE", help="a TOML file of limits; SIGHUP reads it again"
    )
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument(
        "--durable", type=Path, metavar="FOLDER", help="keep messages until they are answered"
    )
    instead.add_argument(
        "--store", metavar="URL", help="share the chat with other processes: valkey://HOST#NAME"
    )
    instead.add_argument(
        "--crash", action="store_true", help="kill a durable chat in mid-answer, and go on"
    )
    instead.add_argument("--web", action="store_true", help="a web page, not the terminal")
    add("--port", type=_whole(0, 65_535), default=8765, help="port of the web page (default: 8765)")
    parser.add_argument("--session", type=_name, default="me", help="the first current session")
    return parser


def _whole(least: int, most: int) -> Callable[[str], int]:
    def whole(text: str) -> int:
        if text.isascii() and text.isdigit() and len(text) <= 20 and least <= int(text) <= most:
            return int(text)
        raise argparse.ArgumentTypeError(
            f"must be a whole number from {least:,} to {most:,}, not {text!r}"
        )

    return whole


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= 1e6:
        raise argparse.ArgumentTypeError(f"must be a number of seconds, not {text!r}")
    return seconds


def _name(text: str) -> str:
    if not NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a name")
    return text


if __name__ == "__main__":
    sys.exit(main())
