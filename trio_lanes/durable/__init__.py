"""Lanes whose accepted work survives: named jobs, kept in a store until they are done."""

from ._errors import DurableJobError as DurableJobError
from ._errors import JobDeadError as JobDeadError
from ._errors import KeyConflictError as KeyConflictError
from ._errors import PayloadError as PayloadError
from ._errors import ResultGoneError as ResultGoneError
from ._errors import StoreError as StoreError
from ._errors import StoreLockedError as StoreLockedError
from ._errors import StoreUnavailableError as StoreUnavailableError
from ._errors import StoreVersionError as StoreVersionError
from ._errors import UnknownHandlerError as UnknownHandlerError
from ._job import DurableJob as DurableJob
from ._lanes import DurableLanes as DurableLanes
from ._memory import MemoryStore as MemoryStore
from ._opening import open_durable_lanes as open_durable_lanes
from ._records import Cancelled as Cancelled
from ._records import CheckReport as CheckReport
from ._records import Claim as Claim
from ._records import Died as Died
from ._records import DurableLaneStatistics as DurableLaneStatistics
from ._records import DurableStatistics as DurableStatistics
from ._records import DurableStatus as DurableStatus
from ._records import Ended as Ended
from ._records import Failed as Failed
from ._records import Finish as Finish
from ._records import GroupLimit as GroupLimit
from ._records import InstanceInfo as InstanceInfo
from ._records import LaneLimit as LaneLimit
from ._records import Opening as Opening
from ._records import Postponed as Postponed
from ._records import Released as Released
from ._records import Step as Step
from ._records import StoreRules as StoreRules
from ._records import Submission as Submission
from ._records import Succeeded as Succeeded
from ._retry import NoRetry as NoRetry
from ._retry import Retry as Retry
from ._retry import RetryPolicy as RetryPolicy
from ._run import DurableRun as DurableRun
from ._run import current_job as current_job
from ._sqlite import SqliteStore as SqliteStore
from ._state import DurableState as DurableState
from ._store import Store as Store

# Tracebacks, reprs and pickles show where users find a name, not where it is defined.
for _name, _value in list(globals().items()):
    if not _name.startswith("_") and getattr(_value, "__module__", "").startswith(__name__ + "."):
        _value.__module__ = __name__
del _name, _value
