"""What has ended: failures by error and name with the last traceback, and how long jobs take.

All is counted from the rings of `Records` when it is asked for; the answer says since when they
reach, and of how many jobs.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import islice
from typing import Final

import trio

from ._frames import ended_frame, quantiles
from ._records import EndedRun, Records
from ._shown import Frame, clipped

_MAX_GROUPS: Final = 30
_LAST_FAILURES: Final = 20


def ended(
    records: Records,
    *,
    error: str | None = None,
    name: str | None = None,
    lane: str | None = None,
    session: str | None = None,
) -> Frame:
    """Return what is known of ended jobs of that error, that name, that lane and that session."""

    def wanted(every: Iterable[EndedRun]) -> list[EndedRun]:
        return [
            record
            for record in every
            if (error is None or record.error == error)
            and (name is None or record.run.name == name)
            and (session is None or record.run.session == session)
            and (lane is None or lane in (record.run.label, record.run.lane))
        ]

    failures, all_ended = wanted(reversed(records.failures)), wanted(records.ring)
    groups: dict[tuple[str, str, str], list[EndedRun]] = defaultdict(list)
    for record in failures:
        groups[record.error, record.run.name, record.run.label].append(record)
    waits: Counter[str] = Counter()
    for record in all_ended:
        waits.update(record.waits)
    names = Counter(record.run.name for record in all_ended)
    return {
        "at": round(trio.current_time(), 3),
        "recorded": len(all_ended),
        "outcomes": Counter(record.run.state for record in all_ended),
        "failed": len(failures),
        "waits": waits,
        "since": min((x.run.finished or 0 for x in all_ended), default=None),
        "failed_since": failures[-1].run.finished if failures else None,
        "groups": [
            {
                "error": kind,
                "name": clipped(job),
                "label": clipped(label),
                "count": len(same),
                "last": ended_frame(same[0]),
                "trace": records.traces.get((kind, job), (0.0, ""))[1],
            }
            for (kind, job, label), same in sorted(groups.items(), key=_size)[:_MAX_GROUPS]
        ],
        "names": [
            {"name": clipped(job), "count": count, "quantiles": quantiles(_of(job, all_ended))}
            for job, count in names.most_common(_MAX_GROUPS)
        ],
        "jobs": [ended_frame(record) for record in islice(failures, _LAST_FAILURES)],
    }


def _size(group: tuple[object, list[EndedRun]]) -> int:
    return -len(group[1])


def _of(name: str, records: list[EndedRun]) -> list[EndedRun]:
    return [record for record in records if record.run.name == name]
