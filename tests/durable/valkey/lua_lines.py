"""Which lines of the script are run: a script that notes each statement that it begins."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Final

from trio_lanes.durable._valkey import script
from trio_lanes.durable._valkey.script import ORDER, joined

SEEN: Final = "lines-run"
"""The key of the set of lines that were run, on the server."""

_STATEMENT: Final = re.compile(
    r"\s*(?:local (?!function)\w|if |for |while |return\b|break\b|call\(|repeat\b"
    r"|[A-Za-z_][\w.]*(?:\[[^\]]*\])*(?:, [\w.\[\]]+)* = |[A-Za-z_][\w.:]*\()"
)
_GOES_ON: Final = re.compile(r"(?:[,({]|\b(?:and|or|not)|\.\.|[^=~<>]=|[+\-*/])\s*(?:--.*)?$")
_BEGINS_WITHIN: Final = re.compile(r"\s*(?:and |or |\.\.|[+\-*/] )")
_AT_LOAD: Final = "  AT_CALL[#AT_CALL + 1] = set"


def statements() -> dict[str, int]:
    """Return the lines that begin a statement, as ``FILE:LINE``, with their places in the file."""
    found = {}
    folder = files(script.__package__) / "lua"
    for name in ORDER:
        for number, _ in _of((folder / f"{name}.lua").read_text("utf-8")):
            found[f"{name}:{number}"] = number
    return found


def _of(text: str) -> list[tuple[int, str]]:
    found, depth, goes_on = [], 0, False
    for number, line in enumerate(text.splitlines(), 1):
        code = re.sub(r"'(?:[^'\\]|\\.)*'", "''", line).split("--")[0]
        at_load = not line.startswith(" ") or line == _AT_LOAD  # no command can be called then
        begins = depth == 0 and not goes_on and not at_load
        if begins and _STATEMENT.match(code) and not _BEGINS_WITHIN.match(code):
            found.append((number, line))
        # a function that is an argument has statements of its own
        opened = sum(code.count(one) for one in "({[") - sum(code.count(one) for one in ")}]")
        depth = 0 if "function(" in code and code.rstrip().endswith(")") else max(0, depth + opened)
        goes_on = bool(_GOES_ON.search(code.rstrip()))
    return found


def noting() -> str:
    """Return the text of the script, with a note of each statement before it."""
    folder = files(script.__package__) / "lua"
    texts = {}
    for name in ORDER:
        lines = (folder / f"{name}.lua").read_text("utf-8").splitlines()
        for number, line in _of("\n".join(lines)):
            indent = line[: len(line) - len(line.lstrip())]
            note = f"redis.call('SADD', '{SEEN}', '{name}:{number}') "
            lines[number - 1] = indent + note + line.lstrip()
        texts[name] = "\n".join(lines) + "\n"
    return joined(texts)
