"""The server's errors: which of them pass, and which servers are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import coredis.exceptions as redis

from .._contract.errors import StoreError

OLDEST: Final = (6, 2)

_PASSING: Final = (
    redis.ConnectionError,
    redis.BusyLoadingError,
    redis.ReadOnlyError,
    redis.ClusterDownError,
    redis.TryAgainError,
    OSError,
    TimeoutError,
)
_PASSING_WORDS: Final = ("BUSY", "OOM", "MISCONF", "MASTERDOWN", "NOREPLICAS", "UNKILLABLE")
"""Errors for which coredis has no class; a script that meets one has it in its own message."""


class NotReplicatedError(Exception):
    """The server has an act, and no replica has confirmed it in time."""


def is_passing(error: BaseException | None) -> bool:
    """Whether an error may pass: the same call can have success later."""
    if error is None or isinstance(error, _PASSING):
        return True
    words = str(error).replace("-", " ").split()
    return any(word in _PASSING_WORDS for word in words)


def is_full(error: BaseException) -> bool:
    """Whether the server's memory is full."""
    return "OOM" in str(error).split()


def refuse_server(name: str, info: Mapping[str, str]) -> StoreError | None:
    """Return why a server cannot be used; None: it can.

    Args:
      info: the fields of the server's ``INFO``.
    """
    version = info.get("redis_version", "0")
    if tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < OLDEST:
        return StoreError(f"{name} has version {version}; Valkey, or Redis from 6.2 up, is needed")
    if info.get("role") == "slave":
        primary = f"{info.get('master_host')}:{info.get('master_port')}"
        return StoreError(f"{name} is a replica, which cannot be written; its primary is {primary}")
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        return StoreError(
            f"{name} evicts keys when its memory is full (maxmemory-policy {policy}), so jobs would"
            " be lost; set maxmemory-policy noeviction"
        )
    return None
