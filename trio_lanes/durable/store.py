"""What the author of a store needs: the `Store` protocol, its records, and the errors it raises.

In a checkout ``python -m tests.durable.conformance my.module:make`` plays the tests that a store
must pass; `CONTRIBUTING.md` says more.
"""

from ._contract.act import Act as Act
from ._contract.act import PortionedAct as PortionedAct
from ._contract.act import Question as Question
from ._contract.errors import KeyConflictError as KeyConflictError
from ._contract.errors import PayloadError as PayloadError
from ._contract.errors import StoreError as StoreError
from ._contract.errors import StoreLockedError as StoreLockedError
from ._contract.errors import StoreUnavailableError as StoreUnavailableError
from ._contract.errors import StoreVersionError as StoreVersionError
from ._contract.protocol import EVENT_BYTES as EVENT_BYTES
from ._contract.protocol import EVENTS_KEPT as EVENTS_KEPT
from ._contract.protocol import JOBS_LISTED as JOBS_LISTED
from ._contract.protocol import MESSAGES_KEPT as MESSAGES_KEPT
from ._contract.protocol import NAMES_LISTED as NAMES_LISTED
from ._contract.protocol import REMEMBERED_FOR as REMEMBERED_FOR
from ._contract.protocol import REQUESTS_LISTED as REQUESTS_LISTED
from ._contract.protocol import STEP_BYTES as STEP_BYTES
from ._contract.protocol import Store as Store
from ._contract.records import Cancelled as Cancelled
from ._contract.records import CheckReport as CheckReport
from ._contract.records import Claim as Claim
from ._contract.records import Died as Died
from ._contract.records import DurableAttempt as DurableAttempt
from ._contract.records import DurableBlocker as DurableBlocker
from ._contract.records import DurableLaneStatistics as DurableLaneStatistics
from ._contract.records import DurableStatistics as DurableStatistics
from ._contract.records import DurableStatus as DurableStatus
from ._contract.records import Ended as Ended
from ._contract.records import Failed as Failed
from ._contract.records import Finish as Finish
from ._contract.records import GroupLimit as GroupLimit
from ._contract.records import InstanceInfo as InstanceInfo
from ._contract.records import JobTexts as JobTexts
from ._contract.records import LaneLimit as LaneLimit
from ._contract.records import LineRequest as LineRequest
from ._contract.records import LockStatistics as LockStatistics
from ._contract.records import Opening as Opening
from ._contract.records import Postponed as Postponed
from ._contract.records import QueuedJob as QueuedJob
from ._contract.records import QuotaLevel as QuotaLevel
from ._contract.records import QuotaStatistics as QuotaStatistics
from ._contract.records import Released as Released
from ._contract.records import Selection as Selection
from ._contract.records import SendResult as SendResult
from ._contract.records import Step as Step
from ._contract.records import StoreActivity as StoreActivity
from ._contract.records import StoreRules as StoreRules
from ._contract.records import SubmittedJob as SubmittedJob
from ._contract.records import Succeeded as Succeeded
from ._contract.state import DurableState as DurableState
from ._options.schedule import DurableSchedule as DurableSchedule
