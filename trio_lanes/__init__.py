"""Lanes for Trio: ordered work per session, bounded work over all of them, inside one nursery."""

__version__ = "1.0.0rc1"

from ._actors.job import Blocker as Blocker
from ._actors.job import Job as Job
from ._actors.options import JobOptions as JobOptions
from ._actors.options import LaneConfig as LaneConfig
from ._actors.options import LaneGroup as LaneGroup
from ._actors.options import MapOptions as MapOptions
from ._actors.state import JobState as JobState
from ._config.coalesce import Coalesce as Coalesce
from ._config.errors import JobCancelledError as JobCancelledError
from ._config.errors import JobTimeoutError as JobTimeoutError
from ._config.errors import LaneClearedError as LaneClearedError
from ._config.errors import LaneDeadlockError as LaneDeadlockError
from ._config.errors import LaneError as LaneError
from ._config.errors import LaneFullError as LaneFullError
from ._config.errors import LaneResetError as LaneResetError
from ._config.errors import LanesClosedError as LanesClosedError
from ._config.errors import QueueTimeoutError as QueueTimeoutError
from ._config.errors import UnknownLaneError as UnknownLaneError
from ._config.names import is_probe_lane as is_probe_lane
from ._config.names import resolve_global_lane as resolve_global_lane
from ._config.names import resolve_session_lane as resolve_session_lane
from ._config.problems import Problem as Problem
from ._config.problems import Problems as Problems
from ._config.reasons import Cause as Cause
from ._instrument import LaneInstrument as LaneInstrument
from ._lanes import Lanes as Lanes
from ._lanes import open_lanes as open_lanes
from ._lifecycle.drain import DrainReport as DrainReport
from ._limits.adaptive import Adaptive as Adaptive
from ._limits.adaptive import LimitTried as LimitTried
from ._limits.rate import RateLimit as RateLimit
from ._map import MapResults as MapResults
from ._nursery import LaneNursery as LaneNursery
from ._observe.hooks import context_free as context_free
from ._observe.statistics import GroupStatistics as GroupStatistics
from ._observe.statistics import LanesStatistics as LanesStatistics
from ._observe.statistics import LaneStatistics as LaneStatistics
from ._observe.statistics import RateStatistics as RateStatistics
from ._observe.statistics import SessionStatistics as SessionStatistics
from ._portal import LanesPortal as LanesPortal
from ._retry_after import retry_after as retry_after
from ._signals import shutdown_on_signals as shutdown_on_signals
from ._views import Lane as Lane
from ._views import SessionLane as SessionLane
from ._waiting.current import current_job as current_job

# Tracebacks, reprs and pickles show where users find a name, not where it is defined.
for _name, _value in list(globals().items()):
    if not _name.startswith("_") and getattr(_value, "__module__", "").startswith(__name__ + "."):
        _value.__module__ = __name__
del _name, _value
