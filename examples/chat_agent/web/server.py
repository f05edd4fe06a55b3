"""The web server: one page, and one WebSocket for each viewer, in the nursery of the lanes.

It serves this machine only. A page of another site must neither read nor write here, so the headers
`Origin` and `Host` of a connection are checked. `Origin` keeps other sites out; `Host` keeps out
sites whose own name resolves to this machine.

Lines of a viewer are parsed as in the terminal. The output of a command goes to that viewer only;
changes are sent to all viewers.
"""

from __future__ import annotations

import json
import logging
import secrets
import socket
from collections.abc import Callable
from functools import partial
from importlib.resources import files
from typing import Final
from urllib.parse import urlsplit

import hypercorn
import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState
from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from trio_lanes import Lanes
from trio_lanes.agents import Overflow
from trio_lanes.monitor import monitor

from ..agent import Agent
from ..approvals import Approvals
from ..chat import Chat
from ..commands import MAX_LINE, NAME
from ..events import Event
from ..limits import Limits, reload
from ..model import Model, well_formed
from ..screen import Screen
from ..sessions import FailuresTold, Sessions
from ..shutdown import run_with_lanes
from ..simulate import Crowd
from ..tools import bundled_tools
from ..tour import CARDS, play
from .board import Board, Window
from .feed import FRAME_SECONDS, Fact, Feed, view

logger: Final = logging.getLogger(__name__)

HOSTS: Final = ("127.0.0.1", "localhost")
MAX_MESSAGE: Final = 8 * MAX_LINE  # bytes
MAX_SESSIONS: Final = 500  # that are busy, paused or open
MAX_OPEN: Final = 50  # sessions that one page has open
FAREWELL_SECONDS: Final = 10.0  # for the last facts to reach the viewers
GOODBYE_SECONDS: Final = 10.0  # to send the reason of a close
IDLE_SECONDS: Final = 30.0  # for which a connection may be idle
STALLED_SECONDS: Final = 60.0  # for which a client may take nothing of what is sent to it
MAX_CONNECTIONS: Final = 2_500  # open at once
CAP: Final = 20  # messages that may wait in a session
GOING_AWAY, POLICY, TRY_LATER = 1001, 1008, 1013  # codes of a closed WebSocket

HEADERS: Final = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
CONTENT_POLICY: Final = (
    "default-src 'none'; script-src 'self' 'nonce-{nonce}'; style-src 'self' 'nonce-{nonce}'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)


class Page:
    """The web page as an ASGI application.

    Args:
      new_chat: makes a chat for one viewer; its output goes to the screen argument.
    """

    def __init__(
        self, feed: Feed, board: Board, new_chat: Callable[[Screen], Chat], model_name: str
    ) -> None:
        self._feed: Final = feed
        self._board: Final = board
        self._new_chat: Final = new_chat
        self._model_name: Final = model_name
        self._html: Final = files(__package__).joinpath("page.html").read_text(encoding="utf-8")
        self._viewers: Final[set[Viewer]] = set()
        self._monitor: Starlette | None = None

    def show_lanes(self, lanes: Lanes) -> None:
        """Show ``lanes`` on a page of the library, at ``/lanes/``."""
        self._monitor = monitor(
            lanes,
            authorize=lambda connection: "operate" if is_ours(connection) else None,
            title="chat agent",
        )

    def app(self) -> Starlette:
        """Return the ASGI application."""
        routes: list[BaseRoute] = [
            Route("/", self._page),
            WebSocketRoute("/socket", self._socket),
        ]
        if self._monitor is not None:
            routes.append(Mount("/lanes", self._monitor))
        return Starlette(routes=routes)

    async def _page(self, request: Request) -> Response:
        if not is_ours(request):
            return PlainTextResponse("this page is for this machine alone", 403, HEADERS)
        nonce = secrets.token_urlsafe(16)
        policy = CONTENT_POLICY.format(nonce=nonce)
        html = self._html.replace("{{nonce}}", nonce)
        headers = {**HEADERS, "Content-Security-Policy": policy}
        return Response(html, media_type="text/html; charset=utf-8", headers=headers)

    async def _socket(self, socket: WebSocket) -> None:
        if not (is_ours(socket) and "origin" in socket.headers):
            await socket.close(POLICY)  # before it is accepted: status 403
            return
        await socket.accept()
        viewer = Viewer(socket)
        self._viewers.add(viewer)
        window = Window(self._board)
        try:
            async with trio.open_nursery() as nursery:
                after = self._last_number(viewer)
                names = viewer.socket.query_params.get("open", "").split(",")
                await window.open(filter(NAME.fullmatch, names[:MAX_OPEN]), after is not None)
                nursery.start_soon(self._show, viewer, window, after)
                await self._listen(viewer, window, nursery)
                nursery.cancel_scope.cancel()
        finally:
            window.close()
            self._viewers.remove(viewer)

    def _last_number(self, viewer: Viewer) -> int | None:
        """Return the number of the last fact of a viewer that comes back."""
        known = viewer.socket.query_params
        try:
            return int(known["after"]) if known.get("run") == self._feed.run else None
        except (LookupError, ValueError):
            return None

    async def all_told(self) -> None:
        """Wait until all viewers have all facts, except viewers that are too slow."""
        with trio.move_on_after(FAREWELL_SECONDS):
            # Poll once per frame: viewers do not acknowledge frames.
            while any(viewer.came_to < self._feed.last for viewer in self._viewers):  # noqa: ASYNC110
                await trio.sleep(FRAME_SECONDS)

    async def _show(self, viewer: Viewer, window: Window, after: int | None) -> None:
        cards = [{"name": card.name, "says": card.says} for card in CARDS]
        await viewer.send({"hello": self._model_name, "tour": cards})
        try:
            await view(self._feed, window, viewer.send, after=after)
        except trio.TooSlowError:
            await viewer.close(TRY_LATER)

    async def _listen(self, viewer: Viewer, window: Window, nursery: trio.Nursery) -> None:
        """Run the commands of a viewer until it disconnects."""
        lines: list[str] = []
        chat = self._new_chat(Screen(lines.append))
        while (message := await viewer.receive()) is not None:
            if isinstance(message, list):
                await window.open(message)
                continue
            if isinstance(message, int):
                nursery.start_soon(self._play, viewer, message)
                continue
            session, line = message
            chat.session = session
            if not await chat.obey(line):
                lines.append("! a page does not end the chat: Ctrl-C does, where it was started")
            if lines:  # and `/as NAME` opens that chat
                said = {"said": "\n".join(lines), "session": session, "now": chat.session}
                await viewer.send(said)
                lines.clear()

    async def _play(self, viewer: Viewer, number: int) -> None:
        """Play a card of the tour, one at a time."""
        async with viewer.touring:
            await viewer.send({"card": number, "shown": await play(number)})


class Viewer:
    """A WebSocket: it sends whole messages, and checks received messages."""

    def __init__(self, socket: WebSocket) -> None:
        self.socket: Final = socket
        self.came_to = 0
        self.touring: Final = trio.Lock()
        self._sending: Final = trio.Lock()

    async def send(self, frame: Fact) -> None:
        """Send JSON; after the viewer has disconnected, wait for the cancellation."""
        async with self._sending:
            try:
                await self.socket.send_text(json.dumps(frame, separators=(",", ":")))
                self.came_to = frame.get("seq", self.came_to)
            except (WebSocketDisconnect, RuntimeError):  # `receive` gets the disconnect, too
                await trio.sleep_forever()

    async def receive(self) -> tuple[str, str] | list[str] | int | None:
        """Return the next session and line.

        Or the sessions that the viewer has open now, or the number of a card of the tour.
        None after a disconnect or an invalid message.
        """
        try:
            message = json.loads(await self.socket.receive_text())
            match message:
                case {"session": str(session), "line": str(line)} if NAME.fullmatch(session):
                    return session, well_formed(line)
                case {"open": [*names]} if len(names) <= MAX_OPEN and all(map(_is_name, names)):
                    return [*names]
                case {"card": int(number)} if 1 <= number <= len(CARDS):
                    return number
        except WebSocketDisconnect:
            return None
        except (LookupError, TypeError, ValueError, RecursionError):  # not text, or not JSON
            pass
        await self.close(POLICY)
        return None

    async def close(self, code: int) -> None:
        """Close the WebSocket with a reason, if it is still open."""
        with trio.move_on_after(GOODBYE_SECONDS):
            try:
                await self.socket.close(code)
            except (WebSocketDisconnect, RuntimeError):
                pass


def _is_name(value: object) -> bool:
    return isinstance(value, str) and NAME.fullmatch(value) is not None


def is_ours(connection: HTTPConnection) -> bool:
    """Whether a request names this machine, and does not come from another site."""
    host = connection.headers.get("host", "")
    origin = connection.headers.get("origin")
    return _hostname(f"//{host}") in HOSTS and origin in (None, f"http://{host}")


def _hostname(url: str) -> str | None:
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises for "8080, another.host"
        return parts.hostname
    except ValueError:
        return None


def listen(port: int) -> socket.socket:
    """Return a listening socket on the loopback interface.

    Raises:
      OSError: if the port is in use.
    """
    return socket.create_server((HOSTS[0], port))


class Connection(TCPServer):
    """A connection of hypercorn that ends with its client, and not after its idle time."""

    async def _read_data(self) -> None:
        await super()._read_data()
        await self.idle_task.stop()


async def serve(
    served: ASGIApp,
    listener: socket.socket,
    max_message: int = MAX_MESSAGE,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve on `listener` until cancelled, and close it. `started` gets the URL.

    A connection is closed if it is idle for too long, or its client takes nothing of what is sent
    to it; one above the bound is closed at once. Hypercorn has no bound for connections, and an
    unexpected message of one client ends all of them, for example data on a WebSocket that was not
    accepted yet. So its connections are opened here, and each fails alone.
    """
    config = hypercorn.Config()
    config.keep_alive_timeout = IDLE_SECONDS  # also for the head of a request to arrive
    config.errorlog = None
    config.websocket_max_message_size = max_message
    config.websocket_ping_interval = 20.0
    most = most_connections()
    app, context = ASGIWrapper(taking_all(served)), WorkerContext(None)  # type: ignore[arg-type]
    opened = 0

    async def connected(stream: trio.SocketStream) -> None:
        nonlocal opened
        if opened >= most:
            return
        opened += 1
        try:
            await Connection(app, config, context, ConnectionState({}), stream)  # type: ignore[arg-type]
        except* Exception:
            logger.exception("the web server has failed at a client")
        finally:
            opened -= 1

    if hasattr(socket, "TCP_USER_TIMEOUT"):  # on Linux; elsewhere a client may stand still
        milliseconds = round(1_000 * STALLED_SECONDS)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
    url = "http://{}:{}/".format(*listener.getsockname())
    async with trio.open_nursery() as nursery:
        listeners = [trio.SocketListener(trio.socket.from_stdlib_socket(listener))]
        await nursery.start(trio.serve_listeners, connected, listeners)
        task_status.started(url)


def most_connections() -> int:
    """Return the bound of connections: at most half of the files that the process may have."""
    try:
        import resource
    except ImportError:  # on Windows
        return MAX_CONNECTIONS
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if files == resource.RLIM_INFINITY else min(MAX_CONNECTIONS, files // 2)


def taking_all(app: ASGIApp) -> ASGIApp:
    """Return the application, which takes the rest of a body that it has not read.

    Without this, hypercorn waits for ever to hand over the rest of a refused request.
    """

    async def take(receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        async def put(message: Message) -> None:
            if message["type"] != "http.response.body" or message.get("more_body"):
                await send(message)
                return
            async with trio.open_nursery() as nursery:
                nursery.start_soon(take, receive)
                await send(message)
                nursery.cancel_scope.cancel()

        await app(scope, receive, put)

    return call


async def run_web(
    model: Model,
    say: Callable[[str], None],
    listener: socket.socket,
    *,
    limits: Limits,
    read_limits: Callable[[], Limits] | None = None,
    turn_timeout: float = 300.0,
    grace: float = 30.0,
    crowd: Crowd | None = None,
) -> int:
    """Serve the page until a signal comes and all turns have ended.

    Return the exit code. The arguments are the same as of `run_chat`.

    Args:
      crowd: simulated users in the same lanes. The results are checked at the end.
    """
    feed = Feed()
    board = Board(feed)
    new_chat: Callable[[Screen], Chat]
    page = Page(feed, board, lambda screen: new_chat(screen), model.name)

    def refusal(session: str) -> str:
        if crowd is not None and session in crowd.sent:
            return f"{session} is a simulated user, who speaks alone: open the chat to read along"
        if session in board or len(board) < MAX_SESSIONS:
            return ""
        return f"there are too many sessions: {session!r} cannot be begun"

    def tell(event: Event) -> None:
        board.tell(event)
        if crowd is not None:
            crowd.watch(event)

    async def work(lanes: Lanes, beside: trio.Nursery) -> None:
        nonlocal new_chat
        approvals = Approvals(board.tell)
        agent = Agent(lanes, model, bundled_tools(), tell, approvals)
        sessions = Sessions(
            lanes,
            agent,
            tell,
            turn_timeout=turn_timeout,
            cap=CAP,
            overflow=Overflow.SUMMARIZE,
        )
        board.attach(lanes, sessions, approvals)
        new_chat = partial(Chat, lanes, sessions, approvals, session="me", refusal=refusal)
        page.show_lanes(lanes)
        url = await beside.start(serve, page.app(), listener)
        say(f"the page is at {url} (model: {model.name}); Ctrl-C ends")
        try:
            if crowd is not None:
                await crowd.run(lanes, sessions)
            await lanes.wait_closing()
        finally:
            approvals.close()

    def hang_up(lanes: Lanes) -> None:
        assert read_limits is not None
        say(reload(lanes, read_limits))

    watching = [] if crowd is None else [crowd, crowd.recorder]
    code = await run_with_lanes(
        work,
        limits.lanes(),
        limits.groups(),
        say=say,
        grace=grace,
        instruments=[board, *watching, FailuresTold()],
        on_hangup=None if read_limits is None else hang_up,
        farewell=page.all_told,
    )
    return code if crowd is None else await crowd.verdict(say) or code
