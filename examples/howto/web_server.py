"""A web server whose answers stream out of lanes, and which ends well when it is asked to.

python web_server.py [PORT]; then: curl -N --data 'tell me more' http://127.0.0.1:8000/alice
"""

import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from functools import partial

import trio
from hypercorn import Config
from hypercorn.trio import serve
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Message, Send

from trio_lanes import Job, LaneError, Lanes, LanesClosedError, open_lanes, shutdown_on_signals

GRACE, CANCEL_GRACE = 20, 5  # seconds


async def answer(text: str, words: trio.MemorySendChannel[str]) -> None:
    """A job: it streams what it has to say."""
    with words:
        for word in text.split():
            await words.send(f"data: {word}\n\n")
            await trio.sleep(0.1)


async def events(
    job: Job[None], words: trio.MemoryReceiveChannel[str]
) -> AsyncGenerator[str, None]:
    with words:
        try:
            async for word in words:
                yield word
            await job.wait()
            yield "event: end\ndata: complete\n\n"
        except LaneError as error:  # cancelled: the client hears it, and its stream ends in order
            yield f"event: end\ndata: {error}\n\n"
        finally:
            job.cancel("the client has gone")  # changes nothing if it has ended


class EventStream(StreamingResponse):
    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[str, None]) -> None:
        super().__init__(events)
        self.events = events

    async def stream_response(self, send: Send) -> None:
        async def send_to_the_end(message: Message) -> None:
            # At the end of an answer a server that shuts down closes the connection. Starlette
            # hears of that, takes it for the client's doing and would cancel it halfway.
            is_last = message.get("more_body") is False
            with trio.CancelScope(shield=is_last):
                await send(message)

        async with aclosing(self.events):
            await super().stream_response(send_to_the_end)


def application(lanes: Lanes) -> Starlette:
    async def ask(request: Request) -> Response:
        user, text = request.path_params["user"], (await request.body()).decode()
        send, receive = trio.open_memory_channel[str](0)
        job = lanes.submit_nowait(answer, text, send, session=user)
        await job.wait_started()  # until then there can still be another answer
        return EventStream(events(job, receive))

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, LanesClosedError)
        seconds = f"{error.retry_after or 1:.0f}"
        return PlainTextResponse(f"{error}\n", 503, headers={"Retry-After": seconds})

    return Starlette(
        routes=[Route("/{user}", ask, methods=["POST"])],
        exception_handlers={LanesClosedError: refused},
    )


async def until_drained(lanes: Lanes) -> None:
    """As a trigger: the server answers until the work has ended, if only to refuse."""
    await lanes.wait_closing()
    await lanes.wait_idle()


async def main(
    port: int = 8000, trigger: Callable[[Lanes], Awaitable[None]] = Lanes.wait_closing
) -> None:
    config = Config()
    config.bind = [f"127.0.0.1:{port}"]
    config.graceful_timeout = GRACE + CANCEL_GRACE + 5  # open streams get at least what jobs get
    async with trio.open_nursery() as nursery, open_lanes({"main": 4}) as lanes:
        await nursery.start(
            partial(
                shutdown_on_signals, lanes, grace=GRACE, cancel_grace=CANCEL_GRACE, retry_after=3
            )
        )
        (url,) = await nursery.start(
            partial(
                serve,
                application(lanes),  # type: ignore[arg-type]  # both write ASGI's types their way
                config,
                shutdown_trigger=partial(trigger, lanes),
            )
        )
        print("serving on", url, flush=True)
        await lanes.wait_closing()
        print("draining", flush=True)
    print("ended", flush=True)


if __name__ == "__main__":
    trio.run(main, int(sys.argv[1]) if len(sys.argv) > 1 else 8000)
