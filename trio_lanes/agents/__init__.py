"""What LLM agents need on top of lanes: runs, inboxes, conversations, ordered tools."""

from ._action_gate import ActionGate as ActionGate
from ._calls import AnyCall as AnyCall
from ._calls import Emit as Emit
from ._calls import ToolCall as ToolCall
from ._calls import ToolResult as ToolResult
from ._conversation import Conversation as Conversation
from ._conversation import ConversationTurn as ConversationTurn
from ._inbox import Inbox as Inbox
from ._inbox_line import Overflow as Overflow
from ._inbox_line import Summary as Summary
from ._inbox_line import WhenBusy as WhenBusy
from ._inbox_options import InboxStatistics as InboxStatistics
from ._jsonl import JsonlTranscript as JsonlTranscript
from ._receipt import MessageState as MessageState
from ._receipt import Receipt as Receipt
from ._receipt import Settled as Settled
from ._receipt import SettledKind as SettledKind
from ._run_status import RUN_TRANSITIONS as RUN_TRANSITIONS
from ._run_status import IllegalTransitionError as IllegalTransitionError
from ._run_status import RunStatus as RunStatus
from ._run_status import check_transition as check_transition
from ._runs import Registered as Registered
from ._runs import Run as Run
from ._runs import RunRegistry as RunRegistry
from ._runs import SendRefused as SendRefused
from ._runs import SendResult as SendResult
from ._thread_locks import ThreadLocks as ThreadLocks
from ._tools import ToolEvent as ToolEvent
from ._tools import ToolRun as ToolRun
from ._tools import run_tools as run_tools
from ._transcript import MemoryTranscript as MemoryTranscript
from ._transcript import Message as Message
from ._transcript import TranscriptError as TranscriptError
from ._transcript import TranscriptStore as TranscriptStore
from ._turn import Handler as Handler
from ._turn import Turn as Turn

# Tracebacks, reprs and pickles show where users find a name, not where it is defined.
for _name, _value in list(globals().items()):
    if not _name.startswith("_") and getattr(_value, "__module__", "").startswith(__name__ + "."):
        _value.__module__ = __name__
del _name, _value
