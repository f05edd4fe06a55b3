"""Choices read from a number, which Hypothesis draws and makes smaller."""

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Digits:
    """A number, read as one choice after the other; 0 always takes the first option."""

    def __init__(self, number: int) -> None:
        self._number = number

    def pick(self, options: Sequence[T]) -> T:
        self._number, choice = divmod(self._number, len(options))
        return options[choice]
