"""A proxy between a store and its server that loses what the test wants to be lost."""

from __future__ import annotations

import random
import ssl

import trio


class Proxy:
    """It carries bytes on a loopback port of its own.

    Attributes:
      url: the URL to give to a store.
      port: the port of the server, on the loopback interface.
      swallows: whether answers of the server are lost, and the connection is cut with the first.
      drops: whether requests are lost, and the connection is cut with the first.
      connections: how many connections it has had.
    """

    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        self.port = port
        self._tls = tls
        self.url = ""
        self.swallows = False
        self.drops = False
        self._carrying: set[trio.CancelScope] = set()
        self.connections = 0

    async def serve(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Carry bytes until cancelled."""
        async with trio.open_nursery() as nursery:
            (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
            self.url = f"valkey://127.0.0.1:{listener.socket.getsockname()[1]}"
            nursery.start_soon(trio.serve_listeners, self._carry, [listener])
            task_status.started()

    def cut(self) -> None:
        """Cut the present connections."""
        for scope in self._carrying:
            scope.cancel()

    async def disturb(self, dice: random.Random) -> None:
        """Cut the connections, or lose requests or answers for a short time."""
        how = dice.choice(("cut", "drops", "swallows"))
        if how == "cut":
            self.cut()
        else:
            setattr(self, how, True)
            await trio.sleep(dice.random() * 0.05)
            setattr(self, how, False)

    async def _carry(self, plain: trio.SocketStream) -> None:
        self.connections += 1
        client: trio.SocketStream | trio.SSLStream[trio.SocketStream] = plain
        if self._tls is not None:
            client = trio.SSLStream(plain, self._tls, server_side=True, https_compatible=True)
        try:
            async with client, await trio.open_tcp_stream("127.0.0.1", self.port) as server:
                async with trio.open_nursery() as nursery:
                    self._carrying.add(nursery.cancel_scope)
                    nursery.start_soon(self._requests, client, server, nursery.cancel_scope)
                    async for answer in server:
                        if self.swallows:
                            break
                        await client.send_all(answer)
                    nursery.cancel_scope.cancel()
                self._carrying.discard(nursery.cancel_scope)
        except* (trio.BrokenResourceError, trio.ClosedResourceError):
            pass

    async def _requests(
        self, client: trio.abc.ReceiveStream, server: trio.SocketStream, scope: trio.CancelScope
    ) -> None:
        async for request in client:
            if self.drops:
                break
            await server.send_all(request)
        scope.cancel()
