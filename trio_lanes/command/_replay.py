"""The command ``replay``: what other limits would have done to a recording."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from ..replay import Recording, RecordingError, Replayed, Waits, as_recorded, read_recording, replay
from ._answer import Answer, Table, counted, number
from ._exits import CommandError
from ._parameters import count

Limits: TypeAlias = Mapping[str, int | float]


def parse_limits(texts: Sequence[str]) -> dict[str, int | float]:
    """Parse ``NAME=N`` of each option ``--set``.

    Raises:
      CommandError: if a text is not of that form, or names a lane twice.
      click.BadParameter: if N is no limit.
    """
    limits: dict[str, int | float] = {}
    for text in texts:
        name, equals, value = text.rpartition("=")
        if not (equals and name) or name in limits:
            why = "is named twice" if name in limits else "is not of the form NAME=N"
            raise CommandError(f"--set {text}: {name or text!r} {why}")
        limits[name] = count(value)
    return limits


def compare(path: str, limits: Limits) -> Answer:
    """Replay the recording in a file, as it was and with other limits.

    Raises:
      CommandError: if the file cannot be used, or has no lane of a name.
    """
    try:
        recording = read_recording(path)
        runs = {"recorded": as_recorded(recording), "replayed": replay(recording)}
        if limits:
            runs["changed"] = replay(recording, limits)
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror}") from error
    except RecordingError as error:
        raise CommandError(str(error)) from error
    except ValueError as error:  # of the limits
        raise CommandError(f"--set: {error}") from error
    changed = " ".join(f"{name}={number(value)}" for name, value in limits.items())
    titles = {"recorded": "recorded", "replayed": "replayed", "changed": f"with {changed}"}
    lines = [f"{counted(len(recording.jobs), 'job')} in {recording.seconds:.1f} s"]
    if recording.left_out:
        lines.append(
            f"{counted(recording.left_out, 'job')} of that time are not in the recording: "
            "in truth, waits were longer"
        )
    document = {
        "seconds": recording.seconds,
        "jobs": len(recording.jobs),
        "left_out": recording.left_out,
        "set": limits,
        **{key: {"total": run.total, "lanes": run.lanes} for key, run in runs.items()},
    }
    return Answer(document, [_table(recording, runs, titles, limits), *lines])


NUMERIC = ("limit", "jobs", "started", "wait p50", "p95", "longest", "jobs/s")


def _table(
    recording: Recording, runs: Mapping[str, Replayed], titles: Mapping[str, str], limits: Limits
) -> Table:
    rows = []
    for label in (*runs["recorded"].lanes, None):
        for key, run in runs.items():
            waits = run.total if label is None else run.lanes.get(label)
            if waits is not None:
                first = ("all" if label is None else label) if key == "recorded" else ""
                limit = "" if label is None else _limit(recording, label, key, limits)
                rows.append((first, titles[key], limit, *_figures(waits)))
    return Table(("lane", "", *NUMERIC), rows, frozenset(NUMERIC))


def _limit(recording: Recording, label: str, key: str, limits: Limits) -> str:
    was = recording.lanes[label].first_concurrency
    return number(limits.get(label, was) if key == "changed" else was)


def _figures(waits: Waits) -> Sequence[str]:
    times = [f"{value:.2f} s" for value in (waits.p50, waits.p95, waits.longest)]
    return (number(waits.jobs), number(waits.started), *times, f"{waits.per_second:.2f}")
