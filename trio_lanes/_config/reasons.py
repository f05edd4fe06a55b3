"""The sentences of the reasons for which a job waits, in these lanes and in durable lanes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

REASONS: Final[Mapping[str, str]] = {
    "delay": "its delay is not over",
    "session": "{lane} runs as many as it may",
    "order": "others are before it",
    "concurrency": "{lane} runs as many as it may",
    "pause": "{lane} is paused",
    "rate": "the rate limit of {lane} is used up",
    "group": "the group {lane} runs as many as it may",
    "reservation": "the free slots of the group {lane} are reserved",
    "job": "it runs, and waits for a job in {lane}",
    "room": "it runs, and waits for room in {lane}",
    "lent": "it runs, and has lent its slot",
}
"""By `Blocker.kind`; ``lane`` is the name of what it waits for."""
