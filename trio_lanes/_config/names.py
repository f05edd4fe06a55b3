"""Names of lanes: how a user's input becomes the name of a session lane or of a global lane.

The name of a session lane begins with ``session:``. Any other name is that of a global lane.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import Final

SESSION_PREFIX: Final = "session:"
DEFAULT_LANE: Final = "main"
DEFAULT_LANES: Final[Mapping[str, int]] = {"main": 4, "cron": 1, "subagent": 8}
TEMPLATE_MARK: Final = "*"
ALL_SESSIONS: Final = SESSION_PREFIX + TEMPLATE_MARK  # where a name stands for all of them
GROUP_PREFIX: Final = "group:"  # where a name may be that of a lane or of a group
MONITOR_KEY: Final = "TRIO_LANES_MONITOR_KEY"  # the variable with the key of a live page
_PROBE_PREFIXES: Final = ("auth-probe:", SESSION_PREFIX + "probe-")


def name_of(fn: object) -> str:
    """Return the name of a function or of a method; of any other object its repr.

    A partial has the name of what it calls. The repr of a partial, or of a bound method, would show
    all that it holds: arguments, which may be secret, or large.
    """
    while isinstance(fn, partial):
        fn = fn.func
    name = getattr(fn, "__qualname__", None)
    return name if isinstance(name, str) else repr(fn)


def _trimmed(what: str, name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"{what} must be a string, not {name!r}")
    return name.strip()


def _bare(key: str) -> str:
    """``key`` without any ``session:`` in front. A bare key is returned as it is."""
    while key.startswith(SESSION_PREFIX):
        key = key[len(SESSION_PREFIX) :].strip()
    return key


def resolve_session_lane(key: str) -> str:
    """The name of the session lane of ``key``.

    The key is trimmed, a blank one becomes ``session:main``, and ``session:`` is put in front
    unless it is there already.

    Raises:
      TypeError: if ``key`` is not a string.
    """
    return SESSION_PREFIX + (_bare(_trimmed("a session key", key)) or DEFAULT_LANE)


def resolve_global_lane(name: str | None) -> str:
    """The name of the global lane that ``name`` means: trimmed; blank or None is ``main``.

    Raises:
      TypeError: if ``name`` is neither a string nor None.
    """
    return DEFAULT_LANE if name is None else _trimmed("a lane name", name) or DEFAULT_LANE


def is_probe_lane(name: str) -> bool:
    """Whether ``name`` is a probe's lane: it begins with ``auth-probe:`` or ``session:probe-``.

    A probe asks whether a service works, so its failure is an answer: the waiters of the job get
    it, and it is never logged as an error.
    """
    return name.startswith(_PROBE_PREFIXES)


def session_key(key: object) -> str:
    """The bare key of a session that a caller named.

    Raises:
      TypeError: if ``key`` is not a string.
      ValueError: if it is blank.
    """
    bare = key.strip() if isinstance(key, str) else _trimmed("session", key)
    if bare.startswith(SESSION_PREFIX):
        bare = _bare(bare)
    if not bare:
        raise ValueError(f"session must not be blank, got {key!r}; leave it out for no session")
    return bare


def is_template(name: str) -> bool:
    """Whether ``name`` is the name of a template of lanes: it ends with ``*``."""
    return name.endswith(TEMPLATE_MARK)


def template_of(name: str, configured: Iterable[str]) -> str | None:
    """The longest template of the names ``configured`` that ``name`` matches, if any."""
    templates = (
        label for label in configured if is_template(label) and name.startswith(label[:-1])
    )
    return max(templates, key=len, default=None)


def label_of(name: str, configured: Collection[str]) -> str | None:
    """Return ``name`` if it is configured, else the longest template that it matches, if any."""
    return name if name in configured else template_of(name, configured)
