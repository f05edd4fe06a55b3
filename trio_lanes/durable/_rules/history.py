"""The history of a job's runs, as a store of tables keeps it: a line of JSON for each run.

A claim adds a line, in which the end is open; the end of the run completes it. So a run costs no
parsing. The lines of the last `KEPT` runs are kept. The begin is a time, or for a job that was not
due at once an array: the time, when it was due, and by what.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Final

from .._contract.records import DurableAttempt
from .job_record import JobRecord

KEPT: Final = 10
"""How many runs of a job are remembered."""
LONGEST_ERROR: Final = 300
"""The most characters of an error that are remembered."""
_OPEN: Final = ",null,null,null]"

_text_of: Final = lru_cache(maxsize=1)(float.__repr__)
"""Return a time as text: the same for all runs that a transaction begins or ends.

The text of a float takes longer than the rest of a line.
"""


def process_key(host: str, pid: int) -> str:
    """Return the part of a line that says where a run is."""
    return f"{json.dumps(host)},{pid}"


def begun(job: JobRecord, fence: int, where: str, now: float) -> str:
    """Return the history of a job with a run that begins now.

    Args:
      where: from `process_key`.
    """
    history, begin = job.history, _text_of(now)
    if job.why is not None:
        begin = f'[{begin},{job.due!r},"{job.why}"]'
    line = f"[{job.attempts + 1},{fence},{where},{begin}{_OPEN}"
    if not history:
        return line
    return "\n".join([*history.split("\n")[1 - KEPT :], line])


def ended(history: str, how: str, now: float, error: str | None) -> str:
    """Complete the last run, which ends now."""
    failure = "null" if error is None else json.dumps(error[:LONGEST_ERROR])
    return f'{history.removesuffix(_OPEN)},{_text_of(now)},"{how}",{failure}]'


def forgiven(history: str, fence: int) -> str:
    """Note that a run did not end by a crash, as another instance took it to have ended."""
    # of each: the number, fence, host, pid, begin, end, how it ended, the error
    lines = [json.loads(line) for line in history.splitlines()]
    for line in lines:
        if line[1] == fence and line[6] == "crashed":
            line[6] = "released"
    return "\n".join(json.dumps(line, separators=(",", ":")) for line in lines)


def attempts(history: str) -> tuple[DurableAttempt, ...]:
    """Return the runs, the oldest first."""
    return tuple(map(_attempt, history.splitlines()))


def _attempt(line: str) -> DurableAttempt:
    number, fence, host, pid, begin, *end = json.loads(line)
    begin, *due = begin if isinstance(begin, list) else (begin,)
    return DurableAttempt(number, fence, host, pid, begin, *end, *due)


def waits_of(
    submitted_at: float,
    runs: Sequence[DurableAttempt],
    due: float | None,
    why: str | None,
    until: float | None,
    holds: Sequence[tuple[float, str]],
) -> dict[str, float]:
    """Return the seconds that a job has waited, by cause: see `DurableStatus.waits`.

    Args:
      due: until when it waits, or has waited, for ``why`` since its last run.
      until: now, if it waits; else None.
      holds: what kept the jobs of its lane from a start: see `tables.HOLDS`.
    """
    waits: defaultdict[str, float] = defaultdict(float)
    since: float | None = submitted_at
    if len(runs) == KEPT and runs[0].number > 1:
        since = None  # the runs before are not known
    spans = [(run.started_at, run.due_at, run.due_by, run.ended_at) for run in runs]
    if until is not None:
        spans.append((until, due, why, None))
    for start, due_at, cause, end in spans:
        if since is not None:
            free = since if due_at is None else min(max(since, due_at), start)
            if cause is not None and free > since:
                waits[cause] += free - since
            for (at, hold), (over, _) in pairwise([(free, ""), *holds, (start, "")]):
                seconds = min(over, start) - max(at, free)
                if seconds > 0:
                    waits[hold or "queue"] += seconds
        since = end
    return dict(waits)


def error_type(outcome: str) -> str:
    """Return the type of an error, of which the JSON text is given, as every store can keep it."""
    kind = str(json.loads(outcome)["type"])
    return kind.encode(errors="backslashreplace").decode().replace("\0", "\\0")[:LONGEST_ERROR]


def in_one_line(outcome: str) -> str:
    """Return the JSON text of an error as one line."""
    error = json.loads(outcome)
    return " ".join(f"{error['type']}: {error['message']}".split())
