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
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeAlias, final

import attrs

from trio_lanes import JobState, LaneConfig, LaneGroup, RateLimit

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
    cost: Mapping[str, float] = MappingProxyType({"requests": 1})
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
    with _replaced(Path(path)) as write:
        for line in _lines(recording):
            write(json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n")


@contextmanager
def _replaced(path: Path) -> Iterator[Callable[[str], object]]:
    folder = path.absolute().parent
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=folder)
    try:
        with open(descriptor, "w", encoding="utf-8", newline="\n") as file:
            yield file.write
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
        "groups": {
            name: {
                "members": list(group.members),
                "concurrency": _number(group.concurrency),
                "reserve": dict(group.reserve),
                "rate": _from_rates(group.rate),
            }
            for name, group in recording.groups.items()
        },
        "changes": len(recording.changes),
        "jobs": len(recording.jobs),
        "left_out": recording.left_out,
    }
    for change in recording.changes:
        line: dict[str, Any] = {"at": change.at, "lane": change.lane}
        if change.config is None:
            yield {**line, "paused": change.paused}
        else:
            yield {**line, "config": _from_config(change.config)}
    for job in recording.jobs:
        yield {
            field.name: _plain(getattr(job, field.name))
            for field in attrs.fields(RecordedRun)
            if getattr(job, field.name) != field.default
        }


def _plain(value: object) -> object:
    return dict(value) if isinstance(value, Mapping) else value


def _from_config(config: LaneConfig) -> dict[str, Any]:
    found: dict[str, Any] = {
        "concurrency": _number(config.concurrency),
        "aging": _number(config.aging),
        "fair": config.fair,
        "paused": config.paused,
        "rate": _from_rates(config.rate),
    }
    default: dict[str, Any] = {"aging": None, "fair": False, "paused": False, "rate": []}
    return {name: value for name, value in found.items() if default.get(name, ...) != value}


def _from_rates(rates: RateLimit | Sequence[RateLimit]) -> list[dict[str, Any]]:
    return [attrs.asdict(rate) for rate in each_rate(rates)]


def each_rate(rates: RateLimit | Sequence[RateLimit]) -> Sequence[RateLimit]:
    """Return the rate limits of a `LaneConfig` or a `LaneGroup` as a sequence."""
    return [rates] if isinstance(rates, RateLimit) else rates


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
        lines = _Lines(os.fspath(path), iter(lambda: file.readline(_MAX_LINE_LENGTH + 1), b""))
        head = lines.next()
        if head.get("format") != FORMAT:
            raise RecordingError(f"{lines.path}: this is no recording of trio-lanes")
        version = head.get("version")
        if version != VERSION:
            raise RecordingError(
                f"{lines.path}: the recording has version {version!r}, and this trio-lanes reads "
                f"version {VERSION}: update trio-lanes, or record anew"
            )
        with lines.checked():
            changes = _count(head["changes"])
            jobs = _count(head["jobs"])
            recording = Recording(
                seconds=_seconds(head["seconds"]),
                lanes={_text(name): _config(each) for name, each in head["lanes"].items()},
                sessions={int(key): _config(each) for key, each in head["sessions"].items()},
                groups={_text(name): _group(each) for name, each in head["groups"].items()},
                left_out=_count(head["left_out"]),
            )
        found_changes = [lines.made(_change) for _ in range(changes)]
        found_jobs = [lines.made(partial(_run, recording.lanes)) for _ in range(jobs)]
        lines.end()
    return attrs.evolve(recording, changes=tuple(found_changes), jobs=tuple(found_jobs))


@final
class _Lines:
    """The lines of a file, each a JSON object, and their errors."""

    def __init__(self, path: str, lines: Iterator[bytes]) -> None:
        self.path: Final = path
        self._lines: Final = lines
        self._number = 0

    def next(self) -> dict[str, Any]:
        """Return the next object."""
        self._number += 1
        line = next(self._lines, b"")
        if not line:
            raise self._damaged("the file ends here; it was cut off")
        if len(line) > _MAX_LINE_LENGTH:
            raise self._damaged(f"the line has more than {_MAX_LINE_LENGTH} bytes")
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            raise self._damaged("this is not JSON") from None
        if not isinstance(found, dict):
            raise self._damaged("this is no object")
        return found

    def made(self, make: Callable[[dict[str, Any]], Any]) -> Any:
        """Return what ``make`` makes of the next object."""
        line = self.next()
        with self.checked():
            return make(line)

    @contextmanager
    def checked(self) -> Iterator[None]:
        """Turn the error of a wrong value into a `RecordingError`."""
        try:
            yield
        except KeyError as error:
            raise self._damaged(f"there is no {error}") from error
        except (TypeError, ValueError, AttributeError) as error:
            raise self._damaged(str(error)) from error

    def end(self) -> None:
        """Refuse what comes after the last line."""
        self._number += 1
        if next(self._lines, b""):
            raise self._damaged("there are more lines than the head says")

    def _damaged(self, what: str) -> RecordingError:
        return RecordingError(f"{self.path}, line {self._number}: {what}")


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
    config = line.get("config")
    return LimitChange(
        at=_seconds(line["at"]),
        lane=_text(line["lane"]),
        config=None if config is None else _config(config),
        paused=_flag(line.get("paused", False)),
    )


def _run(lanes: Mapping[str, LaneConfig], line: Mapping[str, Any]) -> RecordedRun:
    checked = {name: _FIELD_CHECKS[name](value) for name, value in line.items()}
    run = RecordedRun(**checked)
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


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        raise ValueError(f"{value!r} is no number of seconds")
    return value


def _count(value: Any) -> int:
    if _whole(value) < 0:
        raise ValueError(f"{value!r} is no number of things")
    return int(value)


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{value!r} is no whole number")
    return value


def _perhaps(check: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else check(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is neither true nor false")
    return value


def _cost(value: Any) -> Mapping[str, float]:
    return {_text(unit): _seconds(amount) for unit, amount in value.items()}


def _steps(value: Any) -> tuple[Step, ...]:
    steps = tuple((_seconds(at), _text(state)) for at, state in value)
    if any(state not in ("lent", "wanted", "held") for _, state in steps):
        raise ValueError(f"{value!r} has a state that a slot does not have")
    return steps


_FIELD_CHECKS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "id": _whole,
    "name": _text,
    "lane": _text,
    "label": _text,
    "session": _perhaps(_whole),
    "owner": _perhaps(_whole),
    "parent": _perhaps(_whole),
    "priority": _whole,
    "cost": _cost,
    "submitted": _seconds,
    "waited_from": _seconds,
    "started": _perhaps(_seconds),
    "finished": _perhaps(_seconds),
    "state": lambda value: JobState(value).value,
    "steps": _steps,
}
