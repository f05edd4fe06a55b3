"""The messages that lanes have written to the log."""

import logging

import pytest


def messages(caplog: pytest.LogCaptureFixture, level: int = logging.WARNING) -> list[str]:
    """Return the messages of this level from the logger "trio_lanes", but for that of opening."""
    found = [
        record.getMessage()
        for record in caplog.records
        if record.name == "trio_lanes" and record.levelno == level
    ]
    return [message for message in found if not message.startswith("lanes opened")]
