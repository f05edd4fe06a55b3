"""A PostgreSQL server for the contenders that need one: Debian's, on a socket, for one measurement.

It keeps its defaults: each commit is synced to the disk. It is started for each measurement and
ended by its process id.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.sample import Missing

PATIENCE = 30.0


def programs() -> Path | Missing:
    """The folder of the newest server's programs."""
    found = list(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if found:
        return max(found, key=lambda path: float(path.parts[-3])).parent
    initdb = shutil.which("initdb")
    return Path(initdb).parent if initdb else Missing("there is no PostgreSQL server")


def _not_root() -> dict[str, Any]:
    """Arguments with which a program is not started as root, which the server refuses."""
    if os.getuid() != 0:
        return {}
    user = pwd.getpwnam("postgres")
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


@contextmanager
def serving(found: Path, folder: Path) -> Iterator[str]:
    """A server that keeps its data in ``folder``. Gives its connection string."""
    as_user = _not_root()
    with tempfile.TemporaryDirectory() as short:  # the path of a socket may not be long
        for path in (folder, Path(short)):
            path.chmod(0o755)
            if as_user:
                os.chown(path, as_user["user"], as_user["group"])
        data = str(folder / "data")
        quiet: dict[str, Any] = {"cwd": folder, "stdout": subprocess.DEVNULL, **as_user}
        quiet["stderr"] = subprocess.DEVNULL
        options = ["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
        subprocess.run([found / "initdb", "-D", data, *options], check=True, **quiet)
        settings = ["-clisten_addresses=", f"-cunix_socket_directories={short}"]
        with subprocess.Popen([found / "postgres", "-D", data, *settings], **quiet) as server:
            try:
                _wait_for(found, short, as_user)
                yield f"postgresql://postgres@/postgres?host={short}"
            finally:
                server.terminate()


def _wait_for(found: Path, folder: str, as_user: dict[str, Any]) -> None:
    until = time.monotonic() + PATIENCE
    ask = [str(found / "pg_isready"), "-h", folder, "-q"]
    while subprocess.run(ask, cwd=folder, **as_user).returncode != 0:
        if time.monotonic() > until:
            raise TimeoutError("the PostgreSQL server does not start")
        time.sleep(0.05)
