"""What tests need besides packages of Python: servers, a browser, a compiler.

A test that needs one has the mark ``needs("Chromium")``, or a fixture that calls `need`. Where it
is missing the test is skipped; `make test-all` names what is missing at its start, and at its end
how many tests were not run for want of it.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.durable.postgres import server as postgres
from tests.durable.valkey import server as valkey

ROOT = Path(__file__).parents[2]
AXE = ROOT / "node_modules/axe-core/axe.min.js"
NODE_CLIENTS = ROOT / "tests/examples/gateway/clients/node/node_modules"
WANT = "for want of "
"""How a reason begins for which a test is skipped."""


def chromium() -> str | None:
    """Return the path of the browser, if it is here."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


def pgbouncer() -> str | None:
    """Return the path of the pooler, which Debian does not put on the path of users."""
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


def ipv6() -> bool:
    """Return whether a server can listen on the loopback address of IPv6."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


HERE: dict[str, Callable[[], object]] = {
    "npm": lambda: shutil.which("node") and AXE.exists() and NODE_CLIENTS.exists(),
    "Chromium": chromium,
    "PostgreSQL": postgres.programs,
    "Valkey": lambda: "valkey" in valkey.programs(),
    "Redis": lambda: "redis" in valkey.programs(),
    "libfaketime": lambda: valkey.FAKETIME,
    "gcc": lambda: shutil.which("gcc"),
    "nginx": lambda: shutil.which("nginx") or Path("/usr/sbin/nginx").exists(),
    "Caddy": lambda: shutil.which("caddy"),
    "promtool": lambda: shutil.which("promtool"),
    "IPv6": ipv6,
    "PgBouncer": pgbouncer,
    "uvloop": lambda: find_spec("uvloop"),
    "pytest-asyncio": lambda: find_spec("pytest_asyncio"),
}
"""Whether a thing is here, by its name."""


def missing() -> list[str]:
    """Return the names of what is not here."""
    return [what for what, is_here in HERE.items() if not is_here()]


def need(what: str) -> None:
    """Skip the test that asks, where that is not here."""
    if not HERE[what]():
        pytest.skip(WANT + what)


def mount_small(disk: Path, size: str) -> None:
    """Mount a file system of that size on a folder; skip the test where that cannot be done."""
    mount = shutil.which("mount")
    options = ["-t", "tmpfs", "-o", f"size={size}", "tmpfs", disk]
    if mount is None or subprocess.run([mount, *options], capture_output=True).returncode:
        pytest.skip(f"{WANT}a root that may mount a disk")
