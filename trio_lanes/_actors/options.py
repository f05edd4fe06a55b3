"""The options of lanes, groups and jobs: validated once, at the call, and read-only after."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypedDict

import attrs
import trio

from .._config import check as _check
from .._config.coalesce import Coalesce
from .._config.exact import Amount
from .._config.names import resolve_global_lane
from .._config.reasons import STANDSTILL_AFTER
from .._limits.adaptive import Adaptive
from .._limits.rate import ONE_REQUEST, RateLimit, costs_of, rate_limits

if TYPE_CHECKING:
    from .job import Job

MAX_OWNER_WEIGHT: Final = 1_000_000
"""The greatest weight of an owner, and one over the least: their sums stay exact enough."""

_TIMEOUTS: Final = ("timeout", "queue_timeout", "idle_timeout")

_SESSION_FIELDS: Final = frozenset({"concurrency", "max_waiting", "rate", "wrap", "paused"})

Wrap = Callable[["Job[Any]", Callable[[], Awaitable[Any]]], Awaitable[Any]]


def _concurrency(field: str, value: Any) -> object:
    return value if isinstance(value, Adaptive) else _check.count(field, value)


def _members(value: Iterable[str]) -> tuple[str, ...]:
    if isinstance(value, str):
        raise TypeError(f"members must be an iterable of lane names, not {value!r}")
    members = tuple(resolve_global_lane(member) for member in value)
    if len(set(members)) != len(members):
        raise ValueError(f"members must not be named twice, got {members!r}")
    return members


def _reserve(value: Mapping[str, int]) -> Mapping[str, int]:
    if not isinstance(value, Mapping):
        raise TypeError(f"reserve must be a mapping of members to tokens, not {value!r}")
    return {resolve_global_lane(member): tokens for member, tokens in value.items()}


def _weights(value: Mapping[str, float]) -> Mapping[str, float]:
    if not isinstance(value, Mapping):
        raise TypeError(f"weights must be a mapping of owners to numbers, not {value!r}")
    for owner, weight in value.items():
        if not isinstance(owner, str):
            raise TypeError(f"weights must name owners by strings, not {owner!r}")
        if not owner:
            raise ValueError(f"weights must not name a blank owner, got {owner!r}")
        if isinstance(weight, bool) or not isinstance(weight, int | float):
            raise TypeError(f"weights[{owner!r}] must be a number, not {weight!r}")
        if not 1 / MAX_OWNER_WEIGHT <= weight <= MAX_OWNER_WEIGHT:  # also true of NaN
            raise ValueError(
                f"weights[{owner!r}] must be from {1 / MAX_OWNER_WEIGHT} to {MAX_OWNER_WEIGHT:,}, "
                f"got {weight!r}"
            )
    return dict(value)


@attrs.frozen(kw_only=True)
class LaneConfig:
    """The configuration of a lane. Every field can be read back.

    Raises:
      TypeError, ValueError: for a bad value, naming the field and the value.
    """

    concurrency: int | float | Adaptive = attrs.field(
        default=1, validator=_check.field(_concurrency)
    )
    """How many jobs it runs at once: a whole number, or `math.inf`; 1 unless given. 0 starts no job
    until it is raised. An `Adaptive` is a number that a global lane learns."""
    limiter: trio.CapacityLimiter | None = attrs.field(
        default=None, validator=_check.field(_check.optional_limiter)
    )
    """A limiter that the application shares between lanes and its own code; its tokens are the
    concurrency then. None: the lane has a limiter of its own."""
    max_waiting: int | float = attrs.field(default=math.inf, validator=_check.field(_check.count))
    """How many jobs bound for it may wait, in both layers together; `math.inf` for no bound."""
    rate: RateLimit | Sequence[RateLimit] = attrs.field(default=(), converter=rate_limits)
    """How many requests, tokens or other units its jobs may use in a length of time."""
    aging: float = attrs.field(default=math.inf, validator=_check.field(_check.positive_seconds))
    """Seconds of waiting that are worth one step of priority; `math.inf` for none."""
    weights: Mapping[str, float] = attrs.field(default={}, converter=_weights, hash=False)
    """The owners' weights, which make the lane fair: while owners have jobs in its line, each
    starts as many jobs as its weight is of the sum of their weights, to within one job. An owner
    has the weight under its own name, else that of the longest template (``"tenant:*"``, ``"*"``)
    that matches it, else 1. An owner that is no string, as that of jobs without session and
    ``owner=``, matches ``"*"``. A start costs as much however many owners and entries have jobs; in
    durable lanes it takes time for each entry that has."""
    fair: bool = attrs.field(default=False, validator=_check.field(_check.boolean))
    """Whether the owners of jobs take turns, inside a priority."""
    warn_after: float = attrs.field(default=2.0, validator=_check.field(_check.seconds))
    """Seconds of waiting after which a warning is given, unless the job has its own. The log is
    silent where a rate or a pause alone holds the job."""
    overdue_after: float = attrs.field(default=10.0, validator=_check.field(_check.seconds))
    """Seconds by which a body may outlive its cancellation before ``job_overdue`` is called."""
    standstill_after: float = attrs.field(
        default=STANDSTILL_AFTER, validator=_check.field(_check.positive_seconds)
    )
    """Seconds without a start, an end or a `Job.progress` of its jobs after which it is a problem
    (`Lanes.health`) that jobs wait for its slots; `math.inf`: never. Raise it where honest bodies
    take longer, and tell of no progress."""
    paused: bool = attrs.field(default=False, validator=_check.field(_check.boolean))
    """Whether it begins paused, until `resume` or until `configure` changes this."""
    timeout: float = attrs.field(
        default=math.inf, converter=_check.or_inf, validator=_check.field(_check.seconds)
    )
    """Seconds that a job of it may run, unless the job has its own ``timeout``."""
    queue_timeout: float = attrs.field(
        default=math.inf, converter=_check.or_inf, validator=_check.field(_check.seconds)
    )
    """Seconds that a job bound for it may wait, unless the job has its own ``queue_timeout``."""
    idle_timeout: float = attrs.field(
        default=math.inf, converter=_check.or_inf, validator=_check.field(_check.seconds)
    )
    """Seconds that a job of it may run without progress, unless it has its own ``idle_timeout``."""
    log_failures: bool = attrs.field(default=True, validator=_check.field(_check.boolean))
    """Whether the failure of a job is logged if it is never retrieved. Probe lanes never log it."""
    wrap: Wrap | None = attrs.field(default=None, validator=_check.field(_check.optional_callable))
    """Runs around the body, inside slot, scope and context, as ``await wrap(job, body)``; ``body``
    is to be called without arguments and awaited: once, or, for retries, several times."""

    @property
    def first_concurrency(self) -> int | float:
        """How many jobs it runs at once at first: of an `Adaptive`, the least."""
        if isinstance(self.concurrency, Adaptive):
            return self.concurrency.low
        return self.concurrency

    @property
    def job_defaults(self) -> Mapping[str, float]:
        """The options of a job of it that a submission does not set, by name."""
        given = {name: getattr(self, name) for name in _TIMEOUTS}
        return {name: value for name, value in given.items() if value != math.inf}

    def __attrs_post_init__(self) -> None:
        if self.weights:
            object.__setattr__(self, "fair", True)  # the class is frozen
        if self.limiter is not None and self.concurrency != 1:
            raise ValueError(
                f"concurrency must be left out where there is a limiter, got {self.concurrency!r}: "
                "it is the limiter's total_tokens"
            )


@attrs.frozen
class LaneGroup:
    """Global lanes, or templates of lanes, that share a budget and rate limits.

    Raises:
      TypeError, ValueError: for a bad value, naming the field and the value.
    """

    members: Sequence[str] = attrs.field(converter=_members)
    """The names of the lanes or templates. A lane is in at most one group."""
    concurrency: int | float = attrs.field(default=math.inf, validator=_check.field(_check.count))
    """How many jobs of all of them run at once."""
    reserve: Mapping[str, int] = attrs.field(factory=dict, converter=_reserve)
    """Tokens of the budget that only that member can take."""
    rate: RateLimit | Sequence[RateLimit] = attrs.field(default=(), converter=rate_limits)
    """How many requests, tokens or other units all of them together may use in a length of time."""

    @reserve.validator
    def _check_reserve(self, attribute: object, value: Mapping[str, int]) -> None:
        for member, tokens in value.items():
            if member not in self.members:
                raise ValueError(f"reserve names {member!r}, which is no member")
            if _check.whole(f"reserve[{member!r}]", tokens) < 0:
                raise ValueError(f"reserve[{member!r}] must not be negative, got {tokens!r}")
        if sum(value.values()) > self.concurrency:
            raise ValueError(f"reserve keeps more than the concurrency, got {value!r}")


def session_config(config: LaneConfig, what: str = "sessions") -> LaneConfig:
    """Check ``config`` for session lanes, which have only some of the fields.

    Raises:
      TypeError: if it is no `LaneConfig`.
      ValueError: if another field is not at its default.
    """
    if not isinstance(config, LaneConfig):
        raise TypeError(f"{what} must be a LaneConfig, not {config!r}")
    for field in attrs.fields(LaneConfig):
        value = getattr(config, field.name)
        if field.name not in _SESSION_FIELDS and value != field.default:
            raise ValueError(f"{what} cannot have {field.name}={value!r}")
    if isinstance(config.concurrency, Adaptive):
        raise ValueError(f"{what} cannot have concurrency={config.concurrency!r}")
    return config


def lane_config(name: str, value: object) -> LaneConfig:
    """The configuration that ``{name: value}`` gives a lane: a number is its concurrency."""
    if isinstance(value, LaneConfig):
        return value
    try:
        return LaneConfig(concurrency=value)  # type: ignore[arg-type]  # the validator looks
    except (TypeError, ValueError) as error:
        raise type(error)(f"lane {name!r}: {error}") from None


SESSION_IS_OWNER: Final = object()


class MapOptions(TypedDict, total=False):
    """The keywords that jobs of a ``map`` have in common; all are optional."""

    lane: str
    """The global lane that runs it; ``"main"`` by default."""
    priority: int
    """Higher first, in both layers; 0 by default."""
    owner: Hashable
    """The owner that it counts for in a `fair` lane, and in ``clear``; its session by default."""
    delay: float
    """Seconds after which it takes its place in its queue; it is WAITING until then. With 10**9
    seconds or more it is held: closing lanes do not wait for it, it settles with
    `LanesClosedError`."""
    timeout: float | None
    """Seconds that it may *run*, counted from its start; None, as `math.inf`: no timeout."""
    queue_timeout: float | None
    """Seconds that it may *wait*, over both layers; 0: it starts in this call or not at all, or,
    in a call by a hook or a callback, right after that."""
    idle_timeout: float | None
    """Seconds that it may run without ``current_job().progress()``."""
    warn_after: float
    """Seconds of waiting after which a warning is given; by default the global lane's."""
    on_wait: Callable[[Job[Any], float], None] | None
    """Called once, with the job and the seconds waited, when the wait exceeds ``warn_after``."""
    cost: Amount | Mapping[str, Amount]
    """What it takes from the rate limits of its session, lane and group. A number is requests; a
    mapping is by unit, and costs one request unless it names requests."""
    yield_slot: bool
    """In ``run``, inside a job: lend that job's slot while waiting."""
    name: str
    """A name for people and hooks; by default the name of the function."""
    meta: Any
    """An object for people and hooks; lanes do not use it."""


class JobOptions(MapOptions, total=False):
    """The keywords of everything that submits a function; all are optional."""

    session: str | None
    """The session lane that the job goes through; None for none."""
    on_submit: Callable[[Job[Any]], None] | None
    """In ``run``: called with the job when it is accepted, for a caller that wants its handle, too.
    What it raises is logged."""
    coalesce: Coalesce | None
    """Join the job of the same key that waits, if there is one, instead of being a job: see
    `Coalesce`. Not with ``delay``, nor with a ``queue_timeout`` of 0."""


class ExtraOptions:
    """The options that few jobs use, in one object, so that all other jobs share `NO_EXTRAS`.

    Only `rare_options` makes one: it checks the options that were given, and no others. An object
    has only these. The class has the defaults: an `__init__` would write all of them each time.
    """

    owner: Hashable = SESSION_IS_OWNER
    delay: float = 0.0
    timeout: float = math.inf
    queue_timeout: float = math.inf
    idle_timeout: float = math.inf
    warn_after: float | None = None
    on_wait: Callable[[Job[Any], float], None] | None = None
    on_submit: Callable[[Job[Any]], None] | None = None
    coalesce: Coalesce | None = None
    cost: Mapping[str, Amount] = ONE_REQUEST
    yield_slot: bool = False
    name: str | None = None
    meta: Any = None
    limits_run: bool = False  # whether there is a limit to how long it may run
    submissions: int = 1  # that the job stands for
    given_up: int = 0  # of these: whose callers do not wait for it any more

    @property
    def is_watched(self) -> bool:
        """Whether the job has a timer of its own for a long wait."""
        return self.warn_after is not None or self.on_wait is not None

    def stand_for(self, others: ExtraOptions) -> None:
        """Stand for the submissions of ``others``, too."""
        self.submissions += others.submissions
        self.given_up += others.given_up

    def caller_left(self) -> bool:
        """A caller does not wait for the job any more; return whether another may want it."""
        if self.coalesce is None:
            return False
        self.given_up += 1
        return self.given_up < self.submissions


NO_EXTRAS: Final = ExtraOptions()

_CHECKS: Final[Mapping[str, Callable[[str, Any], Any]]] = {
    "owner": _check.hashable,
    "delay": _check.finite_seconds,
    "timeout": _check.timeout,
    "queue_timeout": _check.timeout,
    "idle_timeout": _check.timeout,
    "warn_after": _check.optional_seconds,
    "on_wait": _check.optional_sync,
    "on_submit": _check.optional_sync,
    "coalesce": lambda _, value: _coalesce(value),
    "cost": lambda _, value: costs_of(value),
    "yield_slot": _check.boolean,
    "name": _check.optional_text,
    "meta": lambda _, value: value,
}


def _coalesce(value: Any) -> Coalesce | None:
    if value is not None and not isinstance(value, Coalesce):
        raise TypeError(f"coalesce must be a Coalesce or None, not {value!r}")
    return value


def rare_options(given: Mapping[str, Any]) -> ExtraOptions:
    """Check the options ``given``, and return them as one object.

    Raises:
      TypeError: for an option that does not exist or is of the wrong type.
      ValueError: for a bad value.
    """
    options = ExtraOptions()
    for name, value in given.items():
        if name not in _CHECKS:
            raise _check.unknown_option(name, JobOptions.__annotations__)
        setattr(options, name, _CHECKS[name](name, value))
    if options.timeout != math.inf or options.idle_timeout != math.inf:
        options.limits_run = True
    if options.coalesce is not None:
        if options.delay:
            raise ValueError(
                f"delay={options.delay!r} is not for coalesce: Coalesce(debounce=, max_wait=) "
                "says when the job may start"
            )
        if not options.queue_timeout:
            raise ValueError("queue_timeout=0 is not for coalesce: the job could never wait")
        options.delay = options.coalesce.debounce
    return options
