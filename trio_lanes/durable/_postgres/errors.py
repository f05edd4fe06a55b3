"""What an error of PostgreSQL means for the caller of a store."""

from __future__ import annotations

from typing import Final

import psycopg

from .._contract.errors import StoreError, StoreUnavailableError

_PASSING: Final = ("08", "25006", "25P03", "40", "53", "55", "57", "58")
"""The beginnings of the codes of faults that may pass: no connection, a server that has become a
standby, a client that stood still, a conflict, a full disk, a lock, a shutdown, an I/O error."""

_ADVICE: Final = {
    "28": "check the user and the password in the connection string, and pg_hba.conf",
    "3D": "make the database, or correct its name in the connection string",
    "42501": "grant the role the rights on the schema, or connect as its owner",
    "42P01": "the tables of the store are gone: was its schema dropped? end all processes that use "
    "it, and restore a backup",
    "3F": "the tables of the store are gone: was its schema dropped? end all processes that use "
    "it, and restore a backup",
    "XX001": "the database is damaged: look into the log of the server, and restore a backup",
    "XX002": "an index is damaged: look into the log of the server, and rebuild it",
}


_CODES: Final = {
    "authentication failed": "28P01",
    "no password supplied": "28P01",
    "no pg_hba.conf entry": "28000",
    'role "': "28000",
    'database "': "3D000",
}
"""The codes of errors of connecting, which libpq gives as text alone, by a part of the text."""


def is_of_connection(error: BaseException) -> bool:
    """Whether an error says that the connection is gone, or that the server ends it."""
    if not isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return False
    code = error.sqlstate
    return code is None or code.startswith(("08", "57P"))


def translated(name: str, error: psycopg.Error) -> Exception:
    """Return the `StoreError` for an error of psycopg; the error itself, if it is a bug here."""
    code = error.sqlstate or _code_in(error)
    text = " ".join(str(error).split())
    if code.startswith(_PASSING) or (not code and is_of_connection(error)):
        return StoreUnavailableError(f"{name}: {text}")
    for beginning, advice in _ADVICE.items():
        if code.startswith(beginning):
            return StoreError(f"{name}: {text}; {advice}")
    return error


def _code_in(error: psycopg.Error) -> str:
    """Return the code of an error of connecting, which libpq gives as text alone."""
    text = str(error)
    for part, code in _CODES.items():
        if part in text:
            return code
    return ""
