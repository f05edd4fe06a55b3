"""Statements in the common dialect, which is SQLite's; `of_postgres` makes them PostgreSQL's.

So a statement is text that can be read and tried, not the output of a generator:

* ``main.`` stands before each table: it is SQLite's name of the opened file, and becomes the
  schema of the store.
* ``:name`` is a parameter.
* A column in brackets has a text that may be longer than the entry of an index of PostgreSQL. So
  the index there has its hash, and a comparison compares the hashes, too.
* A statement over many rows (`Many`) calls their columns ``v.name``. PostgreSQL gets a column of
  values as one array, and does the statement once.
"""

from __future__ import annotations

import re
from typing import Final, final

_EQUAL: Final = re.compile(r"((?:\w+\.)?)\[(\w+)\] = ([\w.:]+)")
_HASHED: Final = re.compile(r"((?:\w+\.)?)\[(\w+)\]")
_PARAMETER: Final = re.compile(r"(?<![:\w]):(\w+)")
_SOURCE: Final = re.compile(r" (FROM|USING) v\b")
_COLUMN: Final = re.compile(r"\bv\.(\w+)")


@final
class Many:
    """A statement over many rows.

    Args:
      text: the statement; its rows are those of the table ``v``.
      columns: the columns of a row, each with its type, in the order in which ``text`` has each
        of them once: SQLite's parameters have no numbers, of which Python 3.12.0 warns.

    Attributes:
      for_each: SQLite's statement, which is executed for each row.
      at_once: PostgreSQL's statement, whose parameters are arrays, one for each column.
    """

    def __init__(self, text: str, columns: str) -> None:
        types = dict(column.split() for column in columns.split(", "))
        assert _COLUMN.findall(text) == list(types)
        self.for_each: Final = _COLUMN.sub("?", _SOURCE.sub("", text))
        arrays = ", ".join(f"%s::{kind}[]" for kind in types.values())
        rows = f"unnest({arrays}) AS v({', '.join(types)})"
        self.at_once: Final = _SOURCE.sub(lambda found: f" {found[1]} {rows}", text)


def hashed(text: str) -> str:
    """Return a statement for PostgreSQL, with the hashes of columns in brackets."""
    text = _EQUAL.sub(r"md5(\1\2) = md5(\3) AND \1\2 = \3", text)
    return _HASHED.sub(r"md5(\1\2)", text)


def of_postgres(text: str, schema: str) -> bytes:
    """Return a statement as psycopg takes it."""
    text = _PARAMETER.sub(r"%(\1)s", hashed(text))
    return text.replace("main.", f'"{schema}".').encode()
