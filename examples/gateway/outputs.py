"""Whether the outputs of a request belong to calls, and the calls of a turn get their outputs."""

from __future__ import annotations

from typing import Final

from trio_lanes.agents import WhenBusy

from ..openai_api.errors import BadInputError
from ..openai_api.items import is_approval, outputs_of
from .asks import Ask
from .engine import Engine

# Modes that reach the turn itself: it takes the message, or is stopped, or the message is refused
REACHING: Final = (WhenBusy.STEER, WhenBusy.INTERRUPT, WhenBusy.ROLLBACK, WhenBusy.REJECT)


async def check_outputs(engine: Engine, ask: Ask, when_busy: WhenBusy | None = None) -> None:
    """Check that each output has its call, and each call its one output.

    Raises:
      BadInputError: if that is not so.
    """
    calls = [str(item["call_id"]) for item in ask.items if item.get("type") == "function_call"]
    outputs = [id for id in outputs_of(ask.items) if not is_approval(id)]
    late = [id for id in outputs if id not in calls]
    if engine.pending_of(ask.items) is not None:  # what is wrong there, the turn itself says
        late = []
    elif when_busy not in REACHING:
        calls += await engine.waiting_for(ask)
    if late:  # a client may have written the call into its conversation
        messages = await engine.messages(ask.answer.session)
        contents = [message.content for message in messages if message.role == "user"]
        others = [one["input"] for one in contents if one.get("response") != ask.answer.id]
        items = [item for given in others for item in given]
        kinds = {(item.get("call_id"), item.get("type")) for item in items}
        for id in late:
            if (id, "function_call") not in kinds or (id, "function_call_output") in kinds:
                text = f"No tool call found for function call output with call_id {id[:100]}."
                raise BadInputError(text)
    for id in calls:
        if id not in outputs:
            raise BadInputError(f"No tool output found for function call {id[:100]}.")
