"""The script that holds the rules: the files of ``lua/``, joined in their order."""

from __future__ import annotations

import hashlib
import re
from importlib.resources import files
from typing import Final, final

ORDER: Final = (
    "base",  # keys, time, numbers
    "records",  # jobs, and the indexes over them
    "history",  # the runs of a job
    "limits",  # lanes, groups and rules
    "rates",  # rate limits
    "budget",  # slots and rates while jobs are claimed
    "tell",  # what other processes are told
    "queues",  # the rules of order
    "accept",  # enqueue
    "claims",  # which jobs an instance may run
    "lines",  # requests for locks and quotas
    "instances",  # leases, and what becomes of the jobs of the dead
    "step",  # finish and claim; acts of one run
    "locks",  # acts of locks and quotas
    "talk",  # events of runs, and messages to them
    "logs",  # append-only logs
    "select",  # which jobs a listing or an order is for
    "orders",  # cancel, clear, pause, resume, configure, requeue, purge
    "look",  # inspection
    "blockers",  # why a job does not go on
    "check",  # the check of consistency
    "open",  # the beginning of a namespace
    "verbs",  # which act a call asks for
)
"""The files, from the lowest: a function is defined before the functions that call it."""
LEAVES: Final = frozenset(
    {"accept", "step", "locks", "talk", "logs", "orders", "look", "blockers", "check", "open"}
)
"""Files that define acts only. A server makes the functions of a script anew for each call, so
those of a leaf are made only if the call asks for one of its acts."""
_VERB: Final = re.compile(r"^(?:READS|WRITES|WITH_TICKET)\.(\w+) = ", re.MULTILINE)


@final
class Script:
    """A script, and the name by which a server knows it.

    Attributes:
      text: its source.
      sha: the name under which a server keeps it.
    """

    def __init__(self, text: str) -> None:
        self.text: Final = text
        self.sha: Final = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def source() -> str:
    """Return the text of all files, in their order.

    All but the first are the body of a function. For each variable that a new function refers to,
    Lua searches the variables of the enclosing function, and most refer to those of the first file:
    these are found at once, since they belong to a function further out.
    """
    folder = files(__package__) / "lua"
    texts = {name: (folder / f"{name}.lua").read_text("utf-8") for name in ORDER}
    parts = [_leaf(texts[name]) if name in LEAVES else texts[name] for name in ORDER[1:]]
    return "\n".join([texts["base"], "return (function()", *parts, "end)()"])


def _leaf(text: str) -> str:
    asked = " or ".join(f"ASKED.{verb}" for verb in _VERB.findall(text))
    return f"if {asked} then\n{text}end"
