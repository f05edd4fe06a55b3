"""Building blocks for LLM agents: runs, inboxes, conversations, tool calls in order."""

from ._conversations.conversation import Conversation as Conversation
from ._conversations.conversation import ConversationTurn as ConversationTurn
from ._conversations.jsonl import JsonlTranscript as JsonlTranscript
from ._conversations.locks import ThreadLocks as ThreadLocks
from ._conversations.shared_locks import SharedThreadLocks as SharedThreadLocks
from ._conversations.shared_transcripts import SharedTranscripts as SharedTranscripts
from ._conversations.transcript import MemoryTranscript as MemoryTranscript
from ._conversations.transcript import Message as Message
from ._conversations.transcript import TranscriptError as TranscriptError
from ._conversations.transcript import TranscriptLockedError as TranscriptLockedError
from ._conversations.transcript import TranscriptLocks as TranscriptLocks
from ._conversations.transcript import TranscriptStore as TranscriptStore
from ._feeds.feed import Feed as Feed
from ._feeds.feed import FeedGapError as FeedGapError
from ._inbox.durable_inbox import DurableInbox as DurableInbox
from ._inbox.durable_receipt import DurableReceipt as DurableReceipt
from ._inbox.durable_turn import DurableHandler as DurableHandler
from ._inbox.durable_turn import DurableTurn as DurableTurn
from ._inbox.durable_turn import inbox_handler as inbox_handler
from ._inbox.inbox import Inbox as Inbox
from ._inbox.queue import Overflow as Overflow
from ._inbox.queue import Summary as Summary
from ._inbox.queue import WhenBusy as WhenBusy
from ._inbox.receipt import InboxStatistics as InboxStatistics
from ._inbox.receipt import MessageState as MessageState
from ._inbox.receipt import Receipt as Receipt
from ._inbox.receipt import Settled as Settled
from ._inbox.receipt import SettledKind as SettledKind
from ._inbox.table import Inboxes as Inboxes
from ._inbox.turn import Handler as Handler
from ._inbox.turn import Turn as Turn
from ._runs.registry import Registered as Registered
from ._runs.registry import Run as Run
from ._runs.registry import RunRegistry as RunRegistry
from ._runs.registry import SendRefused as SendRefused
from ._runs.registry import SendResult as SendResult
from ._runs.shared_questions import OpenQuestion as OpenQuestion
from ._runs.shared_registry import SharedRunRegistry as SharedRunRegistry
from ._runs.status import RUN_TRANSITIONS as RUN_TRANSITIONS
from ._runs.status import IllegalTransitionError as IllegalTransitionError
from ._runs.status import RunStatus as RunStatus
from ._runs.status import check_transition as check_transition
from ._tools.calls import AnyCall as AnyCall
from ._tools.calls import Emit as Emit
from ._tools.calls import ToolCall as ToolCall
from ._tools.calls import ToolResult as ToolResult
from ._tools.gate import ActionGate as ActionGate
from ._tools.run import ToolEvent as ToolEvent
from ._tools.run import ToolRun as ToolRun
from ._tools.run import run_tools as run_tools

# Tracebacks, reprs and pickles show where users find a name, not where it is defined.
for _name, _value in list(globals().items()):
    if not _name.startswith("_") and getattr(_value, "__module__", "").startswith(__name__ + "."):
        _value.__module__ = __name__
del _name, _value
