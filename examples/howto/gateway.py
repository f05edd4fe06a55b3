"""A small gateway, to be tested: answers in order, and forgets what it is asked to forget."""

from collections import defaultdict

import trio

from trio_lanes import Lanes


class Gateway:
    """Takes messages of many users, and keeps the answers."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        self.answers: defaultdict[str, list[str]] = defaultdict(list)

    def receive(self, user: str, text: str) -> None:
        """A message has come; ``/stop`` forgets those that wait."""
        if text == "/stop":
            self._lanes.session(user).clear(reason="/stop")
        else:
            self._lanes.submit_nowait(self._answer, user, text, session=user, timeout=600)

    async def _answer(self, user: str, text: str) -> None:
        await trio.sleep(300)  # a model thinks
        self.answers[user].append(f"{text}, indeed")
