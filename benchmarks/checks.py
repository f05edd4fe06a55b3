"""Whether a run did the work that its figure claims; asked after the clock has stopped.

Every job writes its number into one log when it starts, and its complement (``~number``) when
it ends, if it has a checkpoint in between. That is the same single `append` for every peer,
and from the log alone follow order, overlap and concurrency. Job ``i`` belongs to session
``i % sessions`` and returns ``i``.
"""

from __future__ import annotations

from collections.abc import Sequence

WIDTH = 100
"""How many jobs may run at once in every measurement that has sessions."""


class WrongResult(Exception):
    """A peer did not do what it is measured for."""


def check_values(results: Sequence[object], n: int) -> None:
    """Every job's own value, in the place where the submitter finds it."""
    if list(results) != list(range(n)):
        wrong = [i for i, value in enumerate(results) if value != i]
        raise WrongResult(f"{len(results)} results for {n} jobs, wrong at {wrong[:5]}")


def check_ran_once(log: Sequence[int], n: int) -> None:
    if sorted(i for i in log if i >= 0) != list(range(n)):
        raise WrongResult(f"not every one of {n} jobs ran exactly once")


def check_order(log: Sequence[int], sessions: int) -> None:
    """Inside each session the jobs started as they were submitted."""
    last: dict[int, int] = {}
    for i in log:
        if i < 0:
            continue
        session = i % sessions
        if last.get(session, -1) > i:
            raise WrongResult(f"job {i} started after job {last[session]} of its session")
        last[session] = i


def check_one_at_a_time(log: Sequence[int], sessions: int) -> None:
    running: dict[int, int] = {}
    for i in log:
        session = (i if i >= 0 else ~i) % sessions
        if i >= 0 and session in running:
            raise WrongResult(f"jobs {running[session]} and {i} of one session overlap")
        if i >= 0:
            running[session] = i
        else:
            del running[session]


def check_limit(log: Sequence[int], width: int) -> None:
    active = most = 0
    for i in log:
        active += 1 if i >= 0 else -1
        most = max(most, active)
    if most > width:
        raise WrongResult(f"{most} jobs ran at once, {width} may")


def verify(
    log: Sequence[int], results: Sequence[object], *, n: int, sessions: int, keeps: frozenset[str]
) -> tuple[str, ...]:
    """Check what a peer promises to keep (`keeps`), and say what was found right."""
    check_values(results, n)
    check_ran_once(log, n)
    found = ["values"]
    if "order" in keeps:
        check_order(log, sessions)
        found.append("order")
    # Without an end in the log jobs cannot be seen to overlap.
    if len(log) == 2 * n:
        if "exclusion" in keeps:
            check_one_at_a_time(log, sessions)
            found.append("exclusion")
        if "limit" in keeps:
            check_limit(log, WIDTH)
            found.append("limit")
    return tuple(found)
