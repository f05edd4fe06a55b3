"""The server's errors: which of them pass, and which servers are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import coredis.exceptions as redis
import trio

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
    trio.TooSlowError,
)
_PASSING_WORDS: Final = ("BUSY", "OOM", "MISCONF", "MASTERDOWN", "NOREPLICAS", "UNKILLABLE")
"""Errors for which coredis has no class; a script that meets one has it in its own message."""


_NO_RIGHTS: Final = ("ACL failure in script", "The user executing the script can't run")
"""The beginnings of the errors of a script whose user lacks a right."""
RIGHTS: Final = "+@read +@write +@scripting +@pubsub +@connection +info +time"


class NotReplicatedError(Exception):
    """The server has an act, and no replica has confirmed it in time."""


def is_passing(error: BaseException | None) -> bool:
    """Whether an error may pass: the same call can have success later."""
    if error is None or isinstance(error, _PASSING):
        return True
    words = str(error).replace("-", " ").split()
    return any(word in _PASSING_WORDS for word in words)


def explained(error: BaseException | None, root: str, tls: bool) -> str:
    """Return the text of an error, with what to do.

    Args:
      root: the beginning of the keys.
      tls: whether the connection is to be encrypted.
    """
    text = str(error)
    if isinstance(error, redis.MovedError):
        node = f"{error.host}:{error.port}"
        return f"MOVED {text}: give the URL of {node}, the node of the cluster that has {root}*"
    if isinstance(error, redis.AuthorizationError) or text.startswith(_NO_RIGHTS):
        return (
            f"{text}; the user needs the rights {RIGHTS} ~{root}* &{root}*, and +wait for replicas"
        )
    if isinstance(error, trio.TooSlowError):
        return "it does not answer" + ("; does this port take TLS connections?" if tls else "")
    return text


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
    if "sentinel" in (info.get("redis_mode"), info.get("server_mode")):
        return StoreError(
            f"{name} is a Sentinel, which keeps no jobs and is not asked for its primary: give the"
            " URL of the primary, by a name that follows it, or of a proxy"
        )
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
