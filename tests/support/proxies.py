"""nginx and Caddy as Debian has them, with nothing of theirs outside of a folder."""

from __future__ import annotations

import os
import shutil
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import trio

NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin") or ""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


async def until_served(client: httpx2.AsyncClient, url: str = "/") -> None:
    """Wait until a proxy answers, and so does what ``url`` is of: whatever that says but 502."""
    while True:
        with suppress(httpx2.TransportError):
            if (await client.get(url)).status_code != httpx2.codes.BAD_GATEWAY:
                return
        await trio.sleep(0.01)


@asynccontextmanager
async def nginx(folder: Path, site: str) -> AsyncIterator[None]:
    """An nginx with that site, and all else as nginx has it by default."""
    temporary = "".join(
        f"{name}_temp_path {folder}/{name};"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    user = "user root;" if os.geteuid() == 0 else ""
    configuration = folder / "nginx.conf"
    configuration.write_text(
        f"{user} daemon off; worker_processes 1; pid {folder}/pid; error_log stderr;"
        f"events {{}} http {{ access_log off; {temporary} {site} }}"
    )
    command: list[str | Path] = [NGINX, "-p", folder, "-c", configuration]
    async with _running(command, signal.SIGTERM, {}):
        yield


@asynccontextmanager
async def caddy(folder: Path, sites: str, https_port: int) -> AsyncIterator[Path]:
    """A Caddy with these sites, of which it is the authority; yields where its certificate will be.

    Its options are those that keep it from the world: an authority of its own in place of a public
    one, no administration, and other ports than 80 and 443.
    """
    caddyfile = folder / "Caddyfile"
    caddyfile.write_text(
        f"{{\nadmin off\nlocal_certs\nskip_install_trust\nstorage file_system {folder}/caddy\n"
        f"default_bind 127.0.0.1\nhttp_port {free_port()}\nhttps_port {https_port}\n}}\n{sites}"
    )
    command: list[str | Path] = ["caddy", "run", "--config", caddyfile]
    homes = {name: str(folder) for name in ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME")}
    with (folder / "caddy.log").open("wb") as log:
        # SIGTERM would wait for its streams
        async with _running(command, signal.SIGKILL, homes, stderr=log):
            yield folder / "caddy/pki/authorities/local/root.crt"


@asynccontextmanager
async def _running(
    command: list[str | Path], ended_by: signal.Signals, variables: dict[str, str], **options: Any
) -> AsyncIterator[None]:
    environment = {**os.environ, **variables}
    process = await trio.lowlevel.open_process(command, env=environment, **options)

    async def watch() -> None:
        raise AssertionError(f"{command[0]} has ended with {await process.wait()}")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        try:
            yield
        finally:
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                process.send_signal(ended_by)
                await process.wait()
