"""Building blocks for LLM agents in asyncio: those of `trio_lanes.agents`, with the same names.

Handlers, tools and stores are asyncio's, and so are the verbs. Who calls whom: the parts are those
of Trio's, and run in its guest run, in the loop's thread. A synchronous verb is a plain call. An
async verb is awaited there, for the asyncio task that calls it: the cancellation of this task
cancels the verb, and comes when the verb has ended. A handler, a tool or a store is called from
Trio's side, as a task of the loop: when a turn, a call or a verb is cancelled, so is that task, by
``Task.cancel()``, and what awaits it goes on when the task has ended. So a turn that is aborted
keeps its session until its handler, its tools and their threads (`trio_lanes.aio.to_thread`) have
ended. No exception of Trio's reaches asyncio code, nor the other way: where `trio_lanes.agents` has
one of Trio's, here is a `RuntimeError`. A task of asyncio's that ends as cancelled although nobody
asked has failed, with `JobCancelledError`.

The values are the same classes. To type checkers, all are: the signatures are the same.
"""

from typing import TYPE_CHECKING

from ...agents import RUN_TRANSITIONS as RUN_TRANSITIONS
from ...agents import AnyCall as AnyCall
from ...agents import DurableHandler as DurableHandler
from ...agents import Emit as Emit
from ...agents import FeedGapError as FeedGapError
from ...agents import Handler as Handler
from ...agents import IllegalTransitionError as IllegalTransitionError
from ...agents import InboxStatistics as InboxStatistics
from ...agents import Message as Message
from ...agents import MessageState as MessageState
from ...agents import OpenQuestion as OpenQuestion
from ...agents import Overflow as Overflow
from ...agents import Registered as Registered
from ...agents import Run as Run
from ...agents import RunStatus as RunStatus
from ...agents import SendRefused as SendRefused
from ...agents import SendResult as SendResult
from ...agents import Settled as Settled
from ...agents import SettledKind as SettledKind
from ...agents import Summary as Summary
from ...agents import ToolCall as ToolCall
from ...agents import ToolEvent as ToolEvent
from ...agents import ToolResult as ToolResult
from ...agents import TranscriptError as TranscriptError
from ...agents import TranscriptLockedError as TranscriptLockedError
from ...agents import TranscriptLocks as TranscriptLocks
from ...agents import TranscriptStore as TranscriptStore
from ...agents import Turn as Turn
from ...agents import WhenBusy as WhenBusy
from ...agents import check_transition as check_transition

if TYPE_CHECKING:
    from ...agents import ActionGate as ActionGate
    from ...agents import Conversation as Conversation
    from ...agents import ConversationTurn as ConversationTurn
    from ...agents import DurableInbox as DurableInbox
    from ...agents import DurableReceipt as DurableReceipt
    from ...agents import DurableTurn as DurableTurn
    from ...agents import Feed as Feed
    from ...agents import Inbox as Inbox
    from ...agents import Inboxes as Inboxes
    from ...agents import JsonlTranscript as JsonlTranscript
    from ...agents import MemoryTranscript as MemoryTranscript
    from ...agents import Receipt as Receipt
    from ...agents import RunRegistry as RunRegistry
    from ...agents import SharedRunRegistry as SharedRunRegistry
    from ...agents import SharedThreadLocks as SharedThreadLocks
    from ...agents import SharedTranscripts as SharedTranscripts
    from ...agents import ThreadLocks as ThreadLocks
    from ...agents import ToolRun as ToolRun
    from ...agents import inbox_handler as inbox_handler
    from ...agents import run_tools as run_tools
else:
    from ._conversations import Conversation as Conversation
    from ._conversations import ConversationTurn as ConversationTurn
    from ._conversations import JsonlTranscript as JsonlTranscript
    from ._conversations import MemoryTranscript as MemoryTranscript
    from ._conversations import SharedThreadLocks as SharedThreadLocks
    from ._conversations import SharedTranscripts as SharedTranscripts
    from ._conversations import ThreadLocks as ThreadLocks
    from ._inboxes import DurableInbox as DurableInbox
    from ._inboxes import DurableReceipt as DurableReceipt
    from ._inboxes import DurableTurn as DurableTurn
    from ._inboxes import Inbox as Inbox
    from ._inboxes import Inboxes as Inboxes
    from ._inboxes import Receipt as Receipt
    from ._inboxes import inbox_handler as inbox_handler
    from ._runs import Feed as Feed
    from ._runs import RunRegistry as RunRegistry
    from ._runs import SharedRunRegistry as SharedRunRegistry
    from ._tools import ActionGate as ActionGate
    from ._tools import ToolRun as ToolRun
    from ._tools import run_tools as run_tools

for _value in list(globals().values()):
    if getattr(_value, "__module__", "").startswith(f"{__name__}._"):
        _value.__module__ = __name__
del _value
