"""Lanes whose accepted jobs survive a crash: named jobs, kept in a store until they have ended."""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from .._config.extras import needs_extra
from ._contract.errors import BudgetSpentError as BudgetSpentError
from ._contract.errors import DurableJobError as DurableJobError
from ._contract.errors import EventGapError as EventGapError
from ._contract.errors import JobDeadError as JobDeadError
from ._contract.errors import JobExpiredError as JobExpiredError
from ._contract.errors import JobTakenError as JobTakenError
from ._contract.errors import LockLostError as LockLostError
from ._contract.errors import ResultGoneError as ResultGoneError
from ._contract.errors import UnknownHandlerError as UnknownHandlerError
from ._lanes.failures import FailureGroup as FailureGroup
from ._lanes.failures import FailureGroups as FailureGroups
from ._lanes.lanes import DurableLanes as DurableLanes
from ._lanes.locks import HeldLock as HeldLock
from ._lanes.locks import Quota as Quota
from ._lanes.locks import Spent as Spent
from ._lanes.locks import WatchesQuotas as WatchesQuotas
from ._lanes.log import DurableLog as DurableLog
from ._lanes.log import LogRecord as LogRecord
from ._lanes.opening import open_durable_lanes as open_durable_lanes
from ._memory.store import MemoryStore as MemoryStore
from ._options.retry import NoRetry as NoRetry
from ._options.retry import Retry as Retry
from ._options.retry import RetryPolicy as RetryPolicy
from ._options.submission import Submission as Submission
from ._runs.children import Children as Children
from ._runs.job import DurableJob as DurableJob
from ._runs.run import DurableRun as DurableRun
from ._runs.run import SendsHeaders as SendsHeaders
from ._runs.run import current_job as current_job
from .store import Act as Act
from .store import Cancelled as Cancelled
from .store import CheckReport as CheckReport
from .store import Claim as Claim
from .store import Died as Died
from .store import DurableAttempt as DurableAttempt
from .store import DurableBlocker as DurableBlocker
from .store import DurableLaneStatistics as DurableLaneStatistics
from .store import DurableSchedule as DurableSchedule
from .store import DurableState as DurableState
from .store import DurableStatistics as DurableStatistics
from .store import DurableStatus as DurableStatus
from .store import Ended as Ended
from .store import Failed as Failed
from .store import Finish as Finish
from .store import GroupLimit as GroupLimit
from .store import InstanceInfo as InstanceInfo
from .store import JobTexts as JobTexts
from .store import KeyConflictError as KeyConflictError
from .store import LaneLimit as LaneLimit
from .store import LineRequest as LineRequest
from .store import LockStatistics as LockStatistics
from .store import Opening as Opening
from .store import PayloadError as PayloadError
from .store import PortionedAct as PortionedAct
from .store import Postponed as Postponed
from .store import Question as Question
from .store import QueuedJob as QueuedJob
from .store import QuotaLevel as QuotaLevel
from .store import QuotaStatistics as QuotaStatistics
from .store import Released as Released
from .store import Selection as Selection
from .store import SendResult as SendResult
from .store import Step as Step
from .store import Store as Store
from .store import StoreActivity as StoreActivity
from .store import StoreError as StoreError
from .store import StoreLockedError as StoreLockedError
from .store import StoreRules as StoreRules
from .store import StoreUnavailableError as StoreUnavailableError
from .store import StoreVersionError as StoreVersionError
from .store import SubmittedJob as SubmittedJob
from .store import Succeeded as Succeeded

if TYPE_CHECKING:
    from ._postgres.store import PostgresStore as PostgresStore
    from ._sqlite.store import SqliteStore as SqliteStore
    from ._valkey.store import ValkeyStore as ValkeyStore
else:  # a type checker that sees `__getattr__` would accept any name
    _STORES = {"PostgresStore": "_postgres", "SqliteStore": "_sqlite", "ValkeyStore": "_valkey"}
    _EXTRAS = {"PostgresStore": "postgres", "ValkeyStore": "valkey"}

    def __getattr__(name: str) -> object:
        """Import a store at its first use: a program with another store lacks its database."""
        if name not in _STORES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        with needs_extra(name, _EXTRAS.get(name)):
            module = import_module(f".{_STORES[name]}.store", __name__)
        store = globals()[name] = getattr(module, name)
        store.__module__ = __name__
        return store

    def __dir__() -> list[str]:
        return sorted({*globals(), *_STORES})

    # `import *` would leave out a name that is not imported yet; it imports every store of which
    # the extra is here
    _public = {name for name in __dir__() if not name.startswith("_")}
    _public -= {"TYPE_CHECKING", "import_module", "find_spec", "needs_extra", "store"}
    _needed = {"PostgresStore": "psycopg", "ValkeyStore": "coredis"}
    _public -= {store for store, package in _needed.items() if find_spec(package) is None}
    globals()["__all__"] = sorted(_public)

# Tracebacks, reprs and pickles show where users find a name, not where it is defined.
for _value in list(globals().values()):
    if getattr(_value, "__module__", "").startswith(f"{__name__}._"):
        _value.__module__ = __name__
del _value
