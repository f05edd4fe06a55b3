"""Recordings: what went through lanes, as values and as a file of JSON lines.

A recording holds when each job was submitted, how long it ran, and the limits of that time. It
holds no arguments and no results. Sessions and owners are numbers, since a key may be private.

The file has an object a line: the head, with the version and the numbers of lines that follow, then
the changes of limits, then the jobs in the order of submission. All times are seconds since the
first submission.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType, NoneType
from typing import Any, BinaryIO, Final, TypeAlias, final

import attrs

from trio_lanes import JobState, LaneConfig, LaneGroup, RateLimit

from .._config.exact import Amount
from .._limits.rate import rate_limits

FORMAT: Final = "trio-lanes recording"
VERSION: Final = 1
MAX_JOBS: Final = 100_000
_MAX_LINE_LENGTH: Final = 1_000_000  # characters of a line

Step: TypeAlias = tuple[float, str]
"""A time, and the state of the slot that began then: ``lent``, ``wanted`` or ``held``."""


class RecordingError(ValueError):
    """A file is no recording, is damaged, or is from a newer version; the message says what."""


@final
@attrs.frozen(kw_only=True)
class RecordedRun:
    """A job of a recording. Times are seconds since the first submission."""

    id: int
    name: str
    lane: str
    label: str
    """The name of its lane in the configuration: a template, or the lane's own name."""
    session: int | None = None
    """The number of its session; None without a session."""
    owner: int | None = None
    """The number of its owner; None if that is its session, or if it has none."""
    parent: int | None = None
    """The id of the job that submitted it, if a job did that is in the recording."""
    priority: int = 0
    cost: Mapping[str, Amount] = MappingProxyType({"requests": 1})
    submitted: float
    waited_from: float
    """When its wait began: later than ``submitted`` if it had a delay."""
    started: float | None
    finished: float | None
    """When it settled; None if it had not when the recording was made."""
    state: str
    """As `JobState` has it: ``waiting``, ``running``, ``succeeded``, ``failed``, ``cancelled``."""
    steps: tuple[Step, ...] = ()
    """The times at which it lent its slot, was readmitted, and had a slot again."""

    @property
    def waited(self) -> float | None:
        """Seconds from the begin of its wait to its start; None if it has not started."""
        return None if self.started is None else self.started - self.waited_from


@final
@attrs.frozen(kw_only=True)
class LimitChange:
    """A change of a lane while the recording was made."""

    at: float
    lane: str
    """The name of a global lane, or ``session:`` and the number of a session."""
    config: LaneConfig | None = None
    """Its new configuration; None if it was paused or resumed."""
    paused: bool = False


@final
@attrs.frozen(kw_only=True)
class Recording:
    """What went through lanes in some minutes, from `trio_lanes.testing.LaneRecorder.save`.

    Attributes:
      seconds: how long it is.
      lanes: the limits at its begin, by the name or the template of the lanes.
      sessions: the limits of sessions that are not `LaneConfig()`, by number.
      groups: the groups of the lanes.
      changes: what was changed, paused and resumed meanwhile.
      jobs: the jobs, in the order of submission.
      left_out: how many jobs were submitted that are not in it.
    """

    seconds: float
    lanes: Mapping[str, LaneConfig]
    sessions: Mapping[int, LaneConfig] = MappingProxyType({})
    groups: Mapping[str, LaneGroup] = MappingProxyType({})
    changes: tuple[LimitChange, ...] = ()
    jobs: tuple[RecordedRun, ...] = ()
    left_out: int = 0


# ---- the file


def write_recording(recording: Recording, path: str | os.PathLike[str]) -> None:
    """Write ``recording`` to a file, which is replaced as a whole, or not at all.

    Raises:
      OSError: if it cannot be written; then a former file is as it was.
    """
    path = Path(path)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.absolute().parent)
    try:
        with open(descriptor, "w", encoding="utf-8", newline="\n") as file:
            for line in _lines(recording):
                text = json.dumps(line, separators=(",", ":"), allow_nan=False, default=_of_decimal)
                file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _lines(recording: Recording) -> Iterator[dict[str, Any]]:
    yield {
        "format": FORMAT,
        "version": VERSION,
        "seconds": recording.seconds,
        "lanes": {name: _from_config(config) for name, config in recording.lanes.items()},
        "sessions": {str(key): _from_config(config) for key, config in recording.sessions.items()},
        "groups": {name: _from_group(group) for name, group in recording.groups.items()},
        "changes": len(recording.changes),
        "jobs": len(recording.jobs),
        "left_out": recording.left_out,
    }
    for change in recording.changes:
        what: dict[str, Any] = {"paused": change.paused}
        if change.config is not None:
            what = {"config": _from_config(change.config)}
        yield {"at": change.at, "lane": change.lane, **what}
    for job in recording.jobs:
        yield {
            field.name: dict(job.cost) if field.name == "cost" else getattr(job, field.name)
            for field in attrs.fields(RecordedRun)
            if getattr(job, field.name) != field.default
        }


def _from_group(group: LaneGroup) -> dict[str, Any]:
    return {
        "members": list(group.members),
        "concurrency": _number(group.concurrency),
        "reserve": dict(group.reserve),
        "rate": _from_rates(group.rate),
    }


def _from_config(config: LaneConfig) -> dict[str, Any]:
    found: dict[str, Any] = {"concurrency": _number(config.first_concurrency)}
    if config.aging != math.inf:
        found["aging"] = config.aging
    found.update({flag: True for flag in ("fair", "paused") if getattr(config, flag)})
    rates = _from_rates(config.rate)
    return {**found, "rate": rates} if rates else found


def _from_rates(rates: RateLimit | Sequence[RateLimit]) -> list[dict[str, Any]]:
    return [attrs.asdict(rate) for rate in rate_limits(rates)]


def _of_decimal(value: Decimal) -> dict[str, str]:
    return {"decimal": str(value)}


def _with_decimal(data: dict[str, Any]) -> Any:
    """Return the `Decimal` that an object is, or the object."""
    text = data.get("decimal")
    return Decimal(text) if isinstance(text, str) else data  # a number is a cost of that unit


def _number(value: float) -> float | None:
    """Return ``value``; None for infinity, which JSON does not have."""
    return None if value == math.inf else value


def read_recording(path: str | os.PathLike[str]) -> Recording:
    """Read a file that `trio_lanes.testing.LaneRecorder.save` has written.

    It reads from disk, so in an application call it in a thread. Not a checkpoint.

    Raises:
      RecordingError: if the file is no recording, is damaged, or is from a newer version.
      OSError: if it cannot be read.
    """
    with open(path, "rb") as file:
        lines = _Lines(file)
        try:
            return _read(lines)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            why = f"there is no {error}" if isinstance(error, KeyError) else error
            raise RecordingError(f"{os.fspath(path)}, line {lines.number}: {why}") from error


@final
class _Lines:
    """The lines of a file, each a JSON object."""

    def __init__(self, file: BinaryIO) -> None:
        self._file: Final = file
        self.number = 0
        """The number of the last line that was read."""

    def next(self) -> dict[str, Any]:
        """Return the next object."""
        self.number += 1
        line = self._file.readline(_MAX_LINE_LENGTH + 1)
        if not line:
            raise ValueError("the file ends here; it was cut off")
        if len(line) > _MAX_LINE_LENGTH:
            raise ValueError(f"the line has more than {_MAX_LINE_LENGTH} bytes")
        try:
            found = json.loads(line, object_hook=_with_decimal)
        except (ValueError, ArithmeticError, RecursionError):
            raise ValueError("this is not JSON") from None
        if not isinstance(found, dict):
            raise ValueError("this is no object")
        return found

    def end(self) -> None:
        """Refuse what comes after the last line."""
        self.number += 1
        if self._file.read(1):
            raise ValueError("there are more lines than the head says")


def _read(lines: _Lines) -> Recording:
    head = lines.next()
    if head.get("format") != FORMAT:
        raise ValueError("this is no recording of trio-lanes")
    if head.get("version") != VERSION:
        raise ValueError(
            f"the recording has version {head.get('version')!r}, and this trio-lanes reads version "
            f"{VERSION}: update trio-lanes, or record anew"
        )
    changes, jobs = _count(head["changes"]), _count(head["jobs"])
    recording = Recording(
        seconds=_seconds(head["seconds"]),
        lanes={name: _config(each) for name, each in head["lanes"].items()},
        sessions={int(key): _config(each) for key, each in head["sessions"].items()},
        groups={name: _group(each) for name, each in head["groups"].items()},
        left_out=_count(head["left_out"]),
    )
    recording = attrs.evolve(
        recording,
        changes=tuple(_change(lines.next()) for _ in range(changes)),
        jobs=tuple(_run(recording.lanes, lines.next()) for _ in range(jobs)),
    )
    lines.end()
    return recording


def _config(line: Mapping[str, Any]) -> LaneConfig:
    return LaneConfig(
        concurrency=_or_infinity(line["concurrency"]),
        aging=_or_infinity(line.get("aging")),
        fair=line.get("fair", False),
        paused=line.get("paused", False),
        rate=[RateLimit(**rate) for rate in line.get("rate", ())],
    )


def _group(line: Mapping[str, Any]) -> LaneGroup:
    return LaneGroup(
        members=line["members"],
        concurrency=_or_infinity(line["concurrency"]),
        reserve=line["reserve"],
        rate=[RateLimit(**rate) for rate in line["rate"]],
    )


def _change(line: Mapping[str, Any]) -> LimitChange:
    return LimitChange(
        at=_seconds(line["at"]),
        lane=_text(line["lane"]),
        config=_config(line["config"]) if "config" in line else None,
        paused=_flag(line.get("paused", False)),
    )


def _run(lanes: Mapping[str, LaneConfig], line: Mapping[str, Any]) -> RecordedRun:
    run = RecordedRun(**{name: _FIELD_CHECKS[name](value) for name, value in line.items()})
    times = [run.submitted, run.waited_from, run.started, run.finished]
    known = [time for time in times if time is not None]
    if known != sorted(known):
        raise ValueError(f"the times of job {run.id} do not ascend")
    template = run.label.removesuffix("*")
    if run.lane != run.label and (template == run.label or not run.lane.startswith(template)):
        raise ValueError(f"{run.lane!r} is no lane of {run.label!r}")
    if run.label not in lanes:
        raise ValueError(f"the head has no lane {run.label!r}")
    return run


def _or_infinity(value: float | None) -> float:
    return math.inf if value is None else value


def _checks(
    wrong: str, *types: type, within: Callable[[Any], bool] = lambda value: True
) -> Callable[[Any], Any]:
    """Return the function that refuses all but ``types``, not subclasses, and returns the value."""

    def check(value: Any) -> Any:
        if type(value) not in types or not within(value):
            raise ValueError(f"{value!r} is {wrong}")
        return value

    return check


_text = _checks("no text", str)
_flag = _checks("neither true nor false", bool)
_whole = _checks("no whole number", int)
_whole_or_none = _checks("no whole number", int, NoneType)
_count = _checks("no number of things", int, within=lambda value: value >= 0)
_seconds = _checks("no number of seconds", int, float, within=lambda value: 0 <= value < 1e12)


_amount = _checks("no amount", int, float, Decimal, within=lambda value: 0 <= float(value) < 1e12)


def _seconds_or_none(value: Any) -> Any:
    return None if value is None else _seconds(value)


def _steps(value: Any) -> tuple[Step, ...]:
    steps = tuple((_seconds(at), _text(state)) for at, state in value)
    if any(state not in ("lent", "wanted", "held") for _, state in steps):
        raise ValueError(f"{value!r} has a state that a slot does not have")
    return steps


_FIELD_CHECKS: Final[Mapping[str, Callable[[Any], Any]]] = {
    **dict.fromkeys(("name", "lane", "label"), _text),
    **dict.fromkeys(("id", "priority"), _whole),
    **dict.fromkeys(("session", "owner", "parent"), _whole_or_none),
    **dict.fromkeys(("submitted", "waited_from"), _seconds),
    **dict.fromkeys(("started", "finished"), _seconds_or_none),
    "cost": lambda value: {unit: _amount(amount) for unit, amount in value.items()},
    "state": lambda value: JobState(value).value,
    "steps": _steps,
}
"""{field of a run: what checks it}"""
