"""The `Storage` protocol: what an engine must do, so that it can keep a store. It knows no rules.

Theory of operation

A namespace of a storage has *maps*, which are read by key or as a whole, and *ordered sets* of
texts, which are read by ranges. Both have a *kind*, which is their name. What is in them is decided
by `ChainTables`.

The namespace is a chain of *batches*. A batch is one commit: "if the batch 41 with the id x is
still the newest, write this, and the delta of batch 42 with the id y; else tell me what I have
missed". So there is no lock, no transaction that stays open, and no leader: a process that stands
still or dies between two calls holds up nobody for longer than its turn, some milliseconds. A
number may come twice, when a storage has gone back to an older copy of its data. An id does not.

A commit whose answer is lost may have happened, or may happen yet: its first copy may still lie in
a socket of the server. Whoever commits next on the same batch takes its place for ever.

All calls are made in a thread, and block.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias, final

import attrs


@final
@attrs.frozen
class Head:
    """What the newest batch says of the whole namespace.

    Attributes:
      batch: its number.
      id: its id, which no other batch has.
      sequence: the last number that was given out.
      clock: the time of the store at this batch, in seconds.
      ahead: the seconds by which the store's time is ahead of the storage's clock.
    """

    batch: int
    id: str
    sequence: int
    clock: float
    ahead: float


NO_HEAD: Final = Head(0, "", 0, 0.0, 0.0)
"""The head of a namespace that has no batch yet."""

Missed: TypeAlias = Sequence[tuple[Head, str]] | None
"""The batches behind a known one, each with its delta; None: these are not known any more.

The known batch is not in the chain, or there were too many, or one of them has said nothing, since
nobody listened. Then all is to be read anew.
"""


@final
@attrs.frozen
class Get:
    """The rows of a map with some keys. Its answer: a row for each key, or None."""

    kind: str
    keys: Sequence[str]


@final
@attrs.frozen
class All:
    """A whole map. Its answer: ``{key: row}``."""

    kind: str


@final
@attrs.frozen
class Span:
    """The texts of an ordered set between two texts, which are not among them.

    Its answer: a list of (text, row), at most ``limit``, in order.

    Attributes:
      backwards: whether the last ones are read, in falling order.
      rows: the map of which each text names a row by what is behind its last colon; empty: none,
        and each row is None.
    """

    kind: str
    after: str
    until: str
    limit: int
    backwards: bool = False
    rows: str = ""


Question: TypeAlias = Get | All | Span
Texts: TypeAlias = list[tuple[str, str | None]]


@final
@attrs.frozen
class Seen:
    """What a read has seen, in one snapshot.

    Attributes:
      time: the time of the storage's clock, in seconds.
      head: the newest batch.
      missed: the batches behind the one that the reader knows.
      others: how many other instances listen.
      answers: to the questions, in their order.
    """

    time: float
    head: Head
    missed: Missed
    others: int
    answers: Sequence[object]


@final
@attrs.define
class Writes:
    """What a batch writes. A storage does it in this order.

    Attributes:
      clear: the maps and ordered sets that are deleted.
      remove: {ordered set: texts to be removed}
      cut: {ordered set: ranges to be removed: (after, until), which are not among them}
      add: {ordered set: texts to be added}
      drop: {map: keys whose rows are deleted}
      put: {map: {key: its row}}
    """

    clear: list[str] = attrs.Factory(list)
    remove: dict[str, list[str]] = attrs.Factory(dict)
    cut: dict[str, list[tuple[str, str]]] = attrs.Factory(dict)
    add: dict[str, list[str]] = attrs.Factory(dict)
    drop: dict[str, list[str]] = attrs.Factory(dict)
    put: dict[str, dict[str, str]] = attrs.Factory(dict)


@final
@attrs.frozen
class Batch:
    """One commit.

    Attributes:
      base: the batch on which it builds.
      head: itself.
      delta: what it says to the images of other instances; empty: nothing, as none listens.
      absent: {map: keys of which it has taken for granted that they have no row}
      empty: {ordered set: beginnings of which it has taken for granted that no text has them}
      accepts: whether it accepts jobs, so that a copy of it may be waited for.
      hint: what other instances are told of it; None: nothing.
      turn: whether its instance came late before, and wants that no other commits before it has.
    """

    base: Head
    head: Head
    writes: Writes
    delta: str
    absent: Mapping[str, Sequence[str]]
    empty: Mapping[str, Sequence[str]]
    accepts: bool
    hint: str | None
    turn: bool


class Fate(NamedTuple):
    """What has become of a commit.

    Attributes:
      time: the time of the storage's clock, in seconds.
      done: whether the batch is the newest now. Else it has written nothing, and never will.
      head: the newest batch.
      missed: of a batch that came late: those behind its base.
      others: how many other instances listen.
      wrong: whether it has taken for granted what is not so.
      wait: seconds for which another instance has its turn.
    """

    time: float
    done: bool
    head: Head
    missed: Missed = ()
    others: int = 0
    wrong: bool = False
    wait: float = 0.0


class StorageError(Exception):
    """A call failed.

    Attributes:
      passes: whether the same call can have success later.
      unknown: whether a commit may have happened, or may happen yet.
    """

    def __init__(self, text: str, *, passes: bool = True, unknown: bool = False) -> None:
        super().__init__(text)
        self.passes: Final = passes
        self.unknown: Final = unknown


class Storage(Protocol):
    """The connection of one instance to a namespace.

    Every call raises `StorageError`, and has done nothing then unless ``unknown`` is set.
    """

    name: str
    """The storage, for errors and log lines."""

    def open(self) -> None:
        """Connect. A namespace need not be there: the first commit makes it."""

    def read(self, known: Head | None, questions: Sequence[Question]) -> Seen:
        """Answer questions from one snapshot, and say what was missed since a batch."""

    def commit(self, batch: Batch) -> Fate:
        """Write a batch, if its base is the newest batch, and no other instance has its turn."""

    def hints(self) -> AsyncGenerator[str | None]:
        """Yield what other instances say of their batches; None: some may have been lost.

        In Trio's thread. A hint may be lost, late or superfluous.
        """

    def cut(self) -> None:
        """Let a call that stands still fail, if anything can. In any thread."""

    def close(self) -> None:
        """Disconnect."""


def missed_of(chain: Sequence[tuple[Head, str]], known: Head | None) -> Missed:
    """Return the batches behind a known one in the kept end of a chain."""
    if known is None:
        return None
    for number in range(len(chain) - 1, -1, -1):
        if chain[number][0].batch == known.batch:
            return told(chain[number + 1 :]) if chain[number][0].id == known.id else None
    return None


def told(batches: Sequence[tuple[Head, str]]) -> Missed:
    """Return batches if all of them have said what they have changed."""
    return batches if all(delta for _, delta in batches) else None
