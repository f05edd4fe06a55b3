"""The error for a package that an extra of trio-lanes brings, and that is not here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


def how_to_install(what: str, package: str, extra: str) -> str:
    """Return a sentence: what needs which package, and the commands that install it."""
    return (
        f"{what} needs {package}: pip install 'trio-lanes[{extra}]', "
        f"or in a checkout: pip install '.[{extra}]'"
    )


@contextmanager
def needs_extra(what: str, extra: str | None) -> Iterator[None]:
    """Around the imports of ``what``: name its ``extra``, if any, where a package is missing.

    Raises:
      ImportError: in the place of a `ModuleNotFoundError` for a package that is not this one.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if extra is None or package == "trio_lanes":
            raise
        raise ImportError(how_to_install(what, package, extra), name=package) from error
