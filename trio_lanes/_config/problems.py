"""`Problem`: what is wrong with lanes, here or over a store, as a value."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, final

import attrs

from .reasons import Cause, in_words

PROBLEM_AFTER: Final = 10.0
"""Seconds for which a job has waited before its wait can be a problem."""

_ALWAYS: Final = {"deadlock", "dead", "handler", "instance", "capacity", "gone", "overdue"}


@final
@attrs.frozen
class Problem:
    """Something that is wrong; `str` is the line that a person reads."""

    kind: str
    """``"overdue"``: a body outlives its timeout or its cancellation. ``"standstill"``: jobs wait
    for the slots of a lane, and nothing of it has started, ended or made progress for its
    ``standstill_after``. ``"pause"``: until it is resumed. ``"concurrency"``, ``"group"``: of 0.
    ``"rate"``: a job is held longer than the limit's ``per``. ``"stalled"``: a job waits, and has
    no reason to. ``"deadlock"``. Of durable lanes as well: ``"dead"``: jobs have died within the
    last hour, or a dead job keeps its session closed. ``"handler"``: no live instance has it.
    ``"instance"``: none lives, or one is silent. ``"capacity"``: none has room. ``"gone"``: the
    instance of a run. ``"schedule"``: it skips, or was refused. ``"quota"``: work waits for one
    that gives nothing back for a minute or longer. ``"snapshot"``: somebody keeps the database from
    forgetting old rows. ``"store"``: it cannot be reached, or is slow."""
    lane: str
    """The name of the lane, the session lane, the group or the quota; ``schedule:NAME``; empty: it
    is about no one of them."""
    text: str
    """What is wrong, in words."""
    advice: str
    """What to do."""
    job: int | None = None
    """The id of a job that it holds up, or that is overdue."""

    def __str__(self) -> str:
        return f"{self.text}: {self.advice}"


@final
class Problems(tuple[Problem, ...]):
    """What is wrong; empty: nothing that was looked at."""

    unseen: int = 0
    """How many lanes with waiting jobs were not looked at: there were too many."""
    left_out: tuple[str, ...] = ()
    """What was not looked at, in words; these lanes among it."""
    looked: bool = True
    """Whether it could look: False, if a store cannot be reached."""

    @property
    def sentence(self) -> str:
        """The verdict in a sentence, which also says what was not looked at."""
        return verdict_on(len(self), self.left_out)


def unreachable(error: Exception) -> Problem:
    """Return that a store cannot be reached."""
    advice = "look at its server, its disk and the network"
    return Problem("store", "", f"the store cannot be reached: {error}", advice)


def verdict_on(problems: int, left_out: Sequence[str]) -> str:
    """Return whether lanes are healthy, and what was not looked at, in one sentence."""
    words = f"{problems:,} problem{'s' if problems > 1 else ''}" if problems else "healthy"
    return f"{words}; not looked at: {', '.join(left_out)}" if left_out else words


def problem_of(
    job: int, lane: str, waited: float, causes: Sequence[Cause], longest: float
) -> Problem | None:
    """Return what is wrong with a wait, by its roots; None: it can end by itself.

    Args:
      longest: the longest ``per`` of the rates of its lane and its group; infinite without any.
    """
    wait = f"job {job} of {lane!r} has waited for {in_words(waited)}"
    if not causes:
        text = f"{wait}, though nothing holds it"
        return Problem(
            "stalled", lane, text, "look at what its process does, and at its capacity", job
        )
    for cause in causes:
        first = not cause.chain and " before it" not in cause.root
        if (
            cause.kind in _ALWAYS
            or (cause.kind == "pause" and cause.seconds is None)
            or (cause.kind in ("concurrency", "group") and cause.root.endswith("it has none"))
            or (cause.kind == "rate" and first and (cause.seconds or 0) > longest)
        ):
            assert cause.advice is not None
            text = f"{wait}; {cause}{', until it is resumed' if cause.kind == 'pause' else ''}"
            return Problem(cause.kind, cause.lane, text, cause.advice, job)
    return None


def standstill_of(lane: str, waiting: int, still: float, job: int, cause: Cause | None) -> Problem:
    """Return that nothing of a lane has moved, though jobs wait for its slots.

    Args:
      still: seconds for which nothing has.
      job: the first that waits.
      cause: the root of its wait, if there is one.
    """
    text = f"nothing of {lane!r} has started, ended or made progress for {in_words(still)}, and "
    text += f"{waiting:,} wait" if cause is None else f"{waiting:,} wait; {cause}"
    raises = f"raise standstill_after of {lane!r} if its jobs may take so long"
    helps = None if cause is None else cause.advice
    advice = raises if helps is None else f"{helps}; {raises}"
    return Problem("standstill", lane, text, advice, job)


def distinct(
    problems: Iterable[Problem | None],
    unseen: int,
    left_out: Sequence[str] = (),
    *,
    looked: bool = True,
) -> Problems:
    """Return the first problem of each kind of each lane."""
    found: dict[tuple[str, str], Problem] = {}
    for problem in problems:
        if problem is not None:
            found.setdefault((problem.kind, problem.lane), problem)
    answer = Problems(found.values())
    answer.unseen = unseen
    lanes = f"{unseen:,} more lane{'s' if unseen > 1 else ''} with waiting jobs"
    answer.left_out = (lanes, *left_out) if unseen else tuple(left_out)
    answer.looked = looked
    return answer
