"""An instrument that writes the events of lanes to a logger of the standard library.

::

    async with open_lanes({"main": 4}, instruments=[LoggingInstrument()]) as lanes: ...

Each event is one line. Its record has the same facts as fields (``extra``), for handlers that write
structured logs:

=============================  =====================================================================
field                          events
=============================  =====================================================================
``event``                      all: the name of the hook in `LaneInstrument`
``lane``                       all but ``lanes_closing``: a name or template from the configuration
                               of the lanes, or ``session:*``
``job_id``, ``job_name``,      all events of jobs
``priority``, ``state``
``waited``                     ``job_started``, ``job_waiting_long``, and ``job_finished`` of a job
                               that never started: seconds since its submission
``ran``, ``error``             ``job_finished``: seconds, None if it never started; and the name of
                               the type of the error, or None
``since``                      ``job_overdue``: seconds since its cancellation
``count``, ``reason``          ``lane_cleared``; ``reason`` also ``lanes_closing``
``abandoned``                  ``lane_reset``
``until``                      ``lane_rate_limited``: a time on Trio's clock
``retry_after``                ``lanes_closing``
=============================  =====================================================================

`log_health` is a task that writes what is wrong with lanes, when it comes and when it has gone.

No field has the key of a session: the number of keys has no bound, and a key may be private.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NoReturn, final

import trio

from trio_lanes import Job, Lane, LaneInstrument, Lanes, Problem, Problems, SessionLane

from .._config.check import finite_seconds, positive_seconds
from .._config.names import SESSION_PREFIX
from ._figures import error_of, lane_label

if TYPE_CHECKING:
    from trio_lanes.durable import DurableLanes

_WARNINGS: Final = {"job_waiting_long", "job_overdue", "lane_reset"}  # events


@final
class LoggingInstrument(LaneInstrument):
    """An instrument that writes a line to ``logger`` for each event.

    Long waits, bodies that outlive their cancellation and resets have the level WARNING, or
    ``level`` if that is higher; all other events have ``level``. Logging does not count as
    retrieving a failure.

    Args:
      logger: the logger; ``trio_lanes.events`` unless one is given.
      level: the level of ordinary events.
      session_keys: whether messages at `logging.DEBUG` and below name the session. No other
        message does, and no field.

    Raises:
      TypeError: if ``logger`` is not a logger or ``level`` is not a number.
    """

    def __init__(
        self,
        logger: logging.Logger | None = None,
        *,
        level: int = logging.INFO,
        session_keys: bool = False,
    ) -> None:
        if logger is None:
            logger = logging.getLogger("trio_lanes.events")
        if not isinstance(logger, logging.Logger):
            raise TypeError(f"logger must be a logging.Logger, not {logger!r}")
        if isinstance(level, bool) or not isinstance(level, int):
            raise TypeError(f"level must be a number such as logging.INFO, not {level!r}")
        self._logger: Final = logger
        self._level: Final = level
        self._session_keys: Final = session_keys

    def job_submitted(self, job: Job[Any]) -> None:
        """A hook; see `LaneInstrument`."""
        self._log("job_submitted", job, "was submitted")

    def job_forwarded(self, job: Job[Any]) -> None:
        """A hook; see `LaneInstrument`."""
        self._log("job_forwarded", job, "was forwarded by its session")

    def job_started(self, job: Job[Any]) -> None:
        """A hook; see `LaneInstrument`."""
        waited = _seconds(job.submitted_at, job.started_at)
        self._log("job_started", job, "started after %.3f s", waited, waited=waited)

    def job_finished(self, job: Job[Any]) -> None:
        """A hook; see `LaneInstrument`."""
        raised = error_of(job)
        error = None if raised is None else type(raised).__name__
        if job.started_at is None:
            waited = _seconds(job.submitted_at, job.finished_at)
            took: dict[str, object] = {"waited": waited, "ran": None}
            text, args = "never started, and was %s after %.3f s", [job.state.value, waited]
        else:
            ran = _seconds(job.started_at, job.finished_at)
            took = {"ran": ran}
            text, args = "%s after %.3f s", [job.state.value, ran]
        if error is not None:
            text += " by %s"
            args.append(error)
        self._log("job_finished", job, text, *args, error=error, **took)

    def job_waiting_long(self, job: Job[Any], waited: float) -> None:
        """A hook; see `LaneInstrument`."""
        text = "has waited for %.3f s"
        self._log("job_waiting_long", job, text, waited, waited=waited)

    def job_overdue(self, job: Job[Any], since: float) -> None:
        """A hook; see `LaneInstrument`."""
        text = "still runs %.3f s after it was asked to stop"
        self._log("job_overdue", job, text, since, since=since)

    def lane_idle(self, lane: Lane | SessionLane) -> None:
        """A hook; see `LaneInstrument`."""
        self._log("lane_idle", lane, "is idle")

    def lane_empty(self, lane: Lane | SessionLane) -> None:
        """A hook; see `LaneInstrument`."""
        self._log("lane_empty", lane, "has no waiting jobs")

    def lane_paused(self, lane: Lane | SessionLane) -> None:
        """A hook; see `LaneInstrument`."""
        self._log("lane_paused", lane, "was paused")

    def lane_resumed(self, lane: Lane | SessionLane) -> None:
        """A hook; see `LaneInstrument`."""
        self._log("lane_resumed", lane, "was resumed")

    def lane_cleared(self, lane: Lane | SessionLane, count: int, reason: str | None) -> None:
        """A hook; see `LaneInstrument`."""
        text = "was cleared of %d jobs"
        self._log("lane_cleared", lane, text, count, count=count, reason=reason)

    def lane_reset(self, lane: Lane | SessionLane, abandoned: int) -> None:
        """A hook; see `LaneInstrument`."""
        text = "was reset; %d running jobs were abandoned"
        self._log("lane_reset", lane, text, abandoned, abandoned=abandoned)

    def lane_rate_limited(self, lane: Lane | SessionLane, until: float) -> None:
        """A hook; see `LaneInstrument`."""
        text = "waits for a rate limit until %.3f"
        self._log("lane_rate_limited", lane, text, until, until=until)

    def lanes_closing(self, reason: str, retry_after: float | None) -> None:
        """A hook; see `LaneInstrument`."""
        fields = {"event": "lanes_closing", "reason": reason, "retry_after": retry_after}
        self._logger.log(self._level, "the lanes are closed (%s)", reason, extra=fields)

    def _log(
        self,
        event: str,
        of: Job[Any] | Lane | SessionLane,
        text: str,
        *args: object,
        **fields: object,
    ) -> None:
        level = max(self._level, logging.WARNING) if event in _WARNINGS else self._level
        if not self._logger.isEnabledFor(level):
            return
        key = of.key if isinstance(of, SessionLane) else getattr(of, "session", None)
        named = key is not None and self._session_keys and level <= logging.DEBUG
        whose = f" of session {key!r}" if named else ""
        if isinstance(of, Job):
            lane, who = of.lane_label, "job %d %r%s in lane %r "
            args = (of.id, of.name, whose, lane, *args)
            fields = {
                "job_id": of.id,
                "job_name": of.name,
                "priority": of.priority,
                "state": of.state.value,
                **fields,
            }
        else:
            lane, who = lane_label(of), "lane %r%s "
            args = (lane, whose, *args)
        extra = {"event": event, "lane": lane, **fields}
        self._logger.log(level, who + text, *args, extra=extra)


def _seconds(since: float | None, until: float | None) -> float:
    assert since is not None
    assert until is not None
    return until - since


async def log_health(*lanes: Lanes | DurableLanes, every: float = 30.0) -> NoReturn:
    """Write to the logger ``trio_lanes.health`` when a problem comes, and when it has gone.

    A task of a nursery: ``nursery.start_soon(log_health, lanes, durable)``. A problem is what
    `Lanes.health <trio_lanes.Lanes.health>` and ``DurableLanes.health`` find. It is one line of the
    level WARNING when it comes, and one of INFO when it has gone; the records have ``event``
    (``"problem"``, ``"problem_gone"``), ``kind`` and ``lane`` as fields. While a store cannot be
    reached, what was wrong in it is not said to have gone. It runs until it is cancelled. Of lanes
    for asyncio, give it ``lanes.trio``, in the nursery of a Trio task.

    Args:
      lanes: lanes of the core, and durable lanes; of several, each ``(kind, lane)`` is told once.
      every: seconds between two looks.

    Raises:
      TypeError, ValueError: if there are no lanes, or ``every`` is no positive number of seconds.
    """
    for one in lanes:
        if not callable(getattr(one, "health", None)):
            raise TypeError(f"lanes must be Lanes or DurableLanes, not {one!r}")
    if not lanes:
        raise ValueError("lanes must be given: there is nothing to look at")
    finite_seconds("every", positive_seconds("every", every))
    logger = logging.getLogger("trio_lanes.health")
    known: list[dict[tuple[str, str], Problem]] = [{} for _ in lanes]
    while True:
        before = _merged(known)
        for place, one in enumerate(lanes):
            try:
                problems = one.health()
                if not isinstance(problems, Problems):
                    problems = await problems
            except Exception:  # it is no reason to end what it is to watch
                logger.exception("the health of %r could not be looked at", one)
                continue
            found = {(problem.kind, problem.lane): problem for problem in problems}
            known[place] = found if problems.looked else known[place] | found
        now = _merged(known)
        for key in now.keys() - before.keys():
            logger.warning("%s", now[key], extra=_fields_of("problem", now[key]))
        for key in before.keys() - now.keys():
            has_gone = _fields_of("problem_gone", before[key])
            logger.info("it has gone: %s", before[key].text, extra=has_gone)
        await trio.sleep(every)


def _merged(known: Iterable[Mapping[tuple[str, str], Problem]]) -> dict[tuple[str, str], Problem]:
    """Return the first problem of each kind and lane."""
    merged: dict[tuple[str, str], Problem] = {}
    for problems in known:
        merged = {**problems, **merged}
    return merged


def _fields_of(event: str, problem: Problem) -> dict[str, object]:
    of_session = problem.lane.startswith(SESSION_PREFIX)
    lane = f"{SESSION_PREFIX}*" if of_session else problem.lane
    return {"event": event, "kind": problem.kind, "lane": lane}
