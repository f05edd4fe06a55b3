"""The script that holds the rules: the files of ``lua/``, joined in their order.

A server keeps it as a library of functions, and makes these once. A server before 7.0, or one that
lets the user load no functions, keeps it as a script, and makes all functions anew for each call.
"""

from __future__ import annotations

import hashlib
import re
from importlib.resources import files
from typing import Final, final

import attrs

ORDER: Final = (
    "base",  # keys, time, numbers
    "texts",  # texts that are written together
    "ready",  # the lists of jobs that may start
    "records",  # jobs, and the indexes over them
    "history",  # the runs of a job
    "limits",  # lanes, groups and rules
    "meters",  # the arithmetic of rate limits
    "calendar",  # that of days and months
    "rates",  # rate limits of lanes, groups and quotas
    "budget",  # slots and rates while jobs are claimed
    "tell",  # what other processes hear
    "fair",  # owners that take turns
    "queues",  # the rules of order
    "tickets",  # what is known of acts that may be asked for again
    "affinity",  # which jobs are left to other instances
    "holds",  # what keeps lanes from starts
    "claims",  # which jobs an instance may run
    "lines",  # requests for locks and quotas
    "clock",  # the beginning of a call that writes
    "engine",  # leases; enqueue; finish and claim
    "talk",  # events of runs, and messages to them
    "runs",  # acts of one run
    "locks",  # acts of locks and quotas
    "logs",  # append-only logs
    "select",  # which jobs a listing or an order is for
    "orders",  # cancel, clear, pause, resume, configure, requeue, purge
    "schedules",  # when jobs are made by the clock
    "inspection",  # inspection, and the check of consistency
    "blockers",  # why a job does not go on
    "open",  # the beginning of a namespace
    "verbs",  # which act a call asks for
)
"""The files, from the lowest: a function is defined before the functions that call it.

A file that has a twin in Python has its name, and has its functions by the same names in the same
order: those of ``_rules``, of ``acts``, and of ``_limits``.
"""
LEAVES: Final = frozenset(
    {"engine", "runs", "locks", "logs", "orders", "schedules", "inspection", "blockers", "open"}
)
"""Files that define acts only: no other file calls their functions."""
_BOTTOM: Final = 3
"""The number of the lowest files, which are outside of the function that the others are in."""
_READ: Final = re.compile(r"^function READS\.(\w+)", re.MULTILINE)
_GROWS: Final = re.compile(r"^GROWS\.(\w+) = ", re.MULTILINE)


@final
@attrs.frozen
class Kept:
    """How a server keeps a script.

    Attributes:
      load: the command that brings the script to the server.
      call: the first words of a call.
      read: the first words of a call whose acts only read.
      lean: the first words of a call whose acts bring no data.
    """

    load: tuple[bytes, *tuple[str, ...]]
    call: tuple[bytes, str]
    read: tuple[bytes, str]
    lean: tuple[bytes, str]


@final
class Script:
    """A script that can be called.

    Args:
      text: Lua that defines the local function ``run``.

    Attributes:
      text: the same.
      reads: the verbs of acts that only read.
      grows: the verbs of acts that bring data.
      as_library: it is called as a function. A server that takes no writes, as it cannot save,
        refuses a call before it begins, unless its acts only read; a server whose memory is full,
        unless its acts bring no data.
      as_script: it is called as a script.
    """

    def __init__(self, text: str) -> None:
        self.text: Final = text
        self.reads: Final = frozenset(_READ.findall(text))
        self.grows: Final = frozenset(_GROWS.findall(text))
        name = f"trio_lanes_{_sha(text)}"
        library = "\n".join(
            [
                f"#!lua name={name}",
                text,
                f"redis.register_function('{name}', run)",
                f"redis.register_function{{function_name = '{name}_reads', callback = run,",
                "  flags = { 'no-writes' }}",
                f"redis.register_function{{function_name = '{name}_lean', callback = run,",
                "  flags = { 'allow-oom' }}",
            ]
        )
        script = f"{text}\nreturn run(KEYS, ARGV, true)\n"
        self.as_library: Final = Kept(
            (b"FUNCTION", "LOAD", "REPLACE", library),
            (b"FCALL", name),
            (b"FCALL", f"{name}_reads"),
            (b"FCALL", f"{name}_lean"),
        )
        by_sha = b"EVALSHA", _sha(script)
        self.as_script: Final = Kept((b"SCRIPT", "LOAD", script), by_sha, by_sha, by_sha)


def _sha(text: str) -> str:
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def source() -> str:
    """Return the text of all files, in their order.

    Lua has at most 200 local variables at one place of a function, so all files but the lowest are
    in a function of their own, and each leaf is in a block.
    """
    folder = files(__package__) / "lua"
    texts = {name: (folder / f"{name}.lua").read_text("utf-8") for name in ORDER}
    return joined(texts)


def joined(texts: dict[str, str]) -> str:
    """Join the texts of files, by name."""
    parts = [f"do\n{texts[name]}end" if name in LEAVES else texts[name] for name in ORDER]
    below, above = parts[:_BOTTOM], parts[_BOTTOM:]
    return "\n".join([*below, "local run = (function()", *above, "end)()"])
