"""What a lane and a job are told: validated once, where it was given, and read-only after."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypedDict

import attrs

from . import _check
from ._names import SESSION_PREFIX, resolve_global_lane

if TYPE_CHECKING:
    from ._job import Job

_SESSION_FIELDS: Final = frozenset({"concurrency", "max_waiting", "paused"})


@attrs.frozen(kw_only=True)
class LaneConfig:
    """How a lane behaves. Every field can be read back.

    Raises:
      TypeError, ValueError: for a bad value, naming the field and the value.
    """

    concurrency: int | float = attrs.field(default=1, validator=_check.field(_check.count))
    """How many jobs it runs at once: a whole number, or `math.inf`. 0 admits nothing until it
    is raised."""
    max_waiting: int | float = attrs.field(default=math.inf, validator=_check.field(_check.count))
    """How many jobs may wait that are bound for it, in whichever layer; `math.inf` for no bound."""
    warn_after: float = attrs.field(default=2.0, validator=_check.field(_check.seconds))
    """Seconds of waiting after which a job of it is warned about, unless the job says otherwise."""
    overdue_after: float = attrs.field(default=10.0, validator=_check.field(_check.seconds))
    """Seconds by which a body may outlive its cancellation before instruments are told."""
    paused: bool = attrs.field(default=False, validator=_check.field(_check.boolean))
    """Whether it begins paused."""


def session_config(config: LaneConfig) -> LaneConfig:
    """``config`` as that of session lanes, which know only some of the fields.

    Raises:
      TypeError: if it is no `LaneConfig`.
      ValueError: if another field is not at its default.
    """
    if not isinstance(config, LaneConfig):
        raise TypeError(f"sessions must be a LaneConfig, not {config!r}")
    for field in attrs.fields(LaneConfig):
        value = getattr(config, field.name)
        if field.name not in _SESSION_FIELDS and value != field.default:
            raise ValueError(f"sessions cannot have {field.name}={value!r}")
    return config


def lane_config(name: str, value: object) -> LaneConfig:
    """The configuration that ``{name: value}`` gives a lane: a number is its concurrency."""
    if isinstance(value, LaneConfig):
        return value
    try:
        return LaneConfig(concurrency=value)  # type: ignore[arg-type]  # the validator looks
    except (TypeError, ValueError) as error:
        raise type(error)(f"lane {name!r}: {error}") from None


def lane_names(lanes: Mapping[str, Any]) -> dict[str, Any]:
    """``lanes`` under their resolved names.

    Raises:
      TypeError: if it is no mapping with strings for keys.
      ValueError: if a name is blank, or two mean the same lane, or one is a session's.
    """
    if not isinstance(lanes, Mapping):
        raise TypeError(f"lanes must be a mapping of names to limits, not {lanes!r}")
    named: dict[str, Any] = {}
    for given, value in lanes.items():
        if not isinstance(given, str):
            raise TypeError(f"a lane name must be a string, not {given!r}")
        name = resolve_global_lane(given)
        if not given.strip():
            raise ValueError(f"a lane name must not be blank, got {given!r}")
        if name.startswith(SESSION_PREFIX):
            raise ValueError(f"{name!r} names a session lane, not a global one")
        if name in named:
            raise ValueError(f"lane {name!r} is named twice")
        named[name] = value
    return named


class JobOptions(TypedDict, total=False):
    """The keywords of everything that submits a function; all are optional."""

    session: str | None
    """The session lane that the job goes through; None for none."""
    lane: str
    """The global lane that runs it; ``"main"`` unless said."""
    priority: int
    """Higher first, in both layers; 0 unless said."""
    timeout: float
    """Seconds that it may *run*, counted from its start."""
    queue_timeout: float
    """Seconds that it may *wait*, over both layers; 0: it starts in this call or not at all."""
    warn_after: float
    """Seconds of waiting after which it is warned about; the global lane's unless said."""
    on_wait: Callable[[Job[Any], float], None] | None
    """Called once, with the job and the seconds waited, when the wait exceeds ``warn_after``."""
    name: str
    """For people and hooks; the function's own name unless said."""
    meta: Any
    """For people and hooks; never looked at."""


@attrs.frozen(kw_only=True)
class RareOptions:
    """The options that few jobs use, kept together so that all other jobs can share one of it."""

    timeout: float = attrs.field(default=math.inf, validator=_check.field(_check.seconds))
    queue_timeout: float = attrs.field(default=math.inf, validator=_check.field(_check.seconds))
    warn_after: float | None = attrs.field(
        default=None, validator=attrs.validators.optional(_check.field(_check.seconds))
    )
    on_wait: Callable[[Job[Any], float], None] | None = attrs.field(
        default=None, validator=_check.field(_check.optional_callable)
    )
    name: str | None = attrs.field(
        default=None, validator=attrs.validators.optional(attrs.validators.instance_of(str))
    )
    meta: Any = None


NO_OPTIONS: Final = RareOptions()
