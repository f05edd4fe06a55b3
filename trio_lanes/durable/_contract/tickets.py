"""Tickets: the names of acts that a store is asked for, also more than once."""

from __future__ import annotations

import os


def new_ticket() -> str:
    """Return a string that no other act of any process has."""
    return os.urandom(16).hex()
