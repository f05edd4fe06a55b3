"""A few short texts about lanes, and a search over them that ranks by rare words."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from importlib import resources
from typing import Final, Self

import attrs

WORD: Final = re.compile(r"[a-z0-9]+")
EMPTY_WORDS: Final = frozenset(
    WORD.findall(
        "a about an and are as at be by can do does for from how i in is it its me of on or so tell"
        " that the they this to was what when where which who why will with you"
    )
)


@attrs.frozen
class Document:
    """A text with a title. The summary is its first paragraph."""

    title: str
    text: str

    @property
    def summary(self) -> str:
        return " ".join(self.text.split("\n\n", 1)[0].split())


class Library:
    """An index of documents. A word that no document has is not in the index."""

    def __init__(self, documents: Iterable[Document]) -> None:
        self._documents: Final = tuple(documents)
        self._words: Final = [
            Counter(_words(document.title) * 3 + _words(document.text))
            for document in self._documents
        ]

    @classmethod
    def bundled(cls) -> Self:
        """Read the texts in this folder, in the order of their file names."""
        folder = resources.files(__package__ or __name__)
        files = sorted(
            (file for file in folder.iterdir() if file.name.endswith(".md")),
            key=lambda file: file.name,
        )
        return cls(_parse(file.read_text(encoding="utf-8")) for file in files)

    def search(self, query: str, limit: int = 2) -> list[Document]:
        """Return the best documents for the query, best first; ties are in the given order."""
        ranked = sorted(
            ((self._score(set(_words(query)), words), -place) for place, words in self._places()),
            reverse=True,
        )
        return [self._documents[-place] for score, place in ranked[:limit] if score > 0]

    def _places(self) -> Iterable[tuple[int, Counter[str]]]:
        return enumerate(self._words)

    def _score(self, query: set[str], words: Counter[str]) -> float:
        total = words.total() or 1
        return sum(
            words[word] / total * math.log(1 + len(self._words) / self._holders(word))
            for word in sorted(query)  # sorted, because a sum of floats depends on the order
            if words[word]
        )

    def _holders(self, word: str) -> int:
        return sum(word in words for words in self._words)


def _words(text: str) -> list[str]:
    # Four letters are stem enough for so few texts: "stop" finds "stopping", "lane" finds "lanes".
    return [word[:4] for word in WORD.findall(text.lower()) if word not in EMPTY_WORDS]


def _parse(text: str) -> Document:
    title, _, body = text.partition("\n")
    return Document(title.lstrip("# ").strip(), body.strip())
