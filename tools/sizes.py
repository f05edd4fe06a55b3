"""Print how large the house is: `make sizes`. Nothing fails for a number of lines or of words.

For each package: lines of code, what was added to them since the last release, comments for 100
lines of code, and its longest file. Then the circles of imports, of which the largest has a bound,
in tests/unit/test_house.py; and the words of the pages. It needs nothing but Python; without git it
does not say what has changed.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
LIBRARY: Final = "trio_lanes"
COUNTED: Final = (LIBRARY, "examples", "benchmarks", "tools", "tests")
OTHERS: Final = {
    ".lua": re.compile(r"--.*"),
    ".js": re.compile(r"/\*.*?\*/|(?<![:\w])//[^\n]*", re.S),
    ".css": re.compile(r"/\*.*?\*/", re.S),
}
"""The comments of what is not Python, roughly: in a string they are taken for comments, too."""

NO_CODE: Final = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE,
    tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
}  # fmt: skip
DOCUMENTED: Final = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
Texts = Mapping[str, str]  # of files, by their paths below the root


class Size(NamedTuple):
    """Lines that are neither blank nor a comment nor a docstring; lines with a comment."""

    code: int
    comments: int


def size_of_python(text: str) -> Size:
    """Count the lines of a module."""
    code: set[int] = set()
    comments = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        comments += token.type == tokenize.COMMENT
        if token.type not in NO_CODE:
            code.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node) is not None:
            docstring = node.body[0]
            assert docstring.end_lineno is not None
            code.difference_update(range(docstring.lineno, docstring.end_lineno + 1))
    return Size(len(code), comments)


def size(path: str, text: str) -> Size:
    """Count the lines of a file."""
    if path.endswith(".py"):
        return size_of_python(text)
    comment = OTHERS[PurePosixPath(path).suffix]
    comments = sum(match.count("\n") + 1 for match in comment.findall(text))
    return Size(sum(bool(line.strip()) for line in comment.sub("", text).splitlines()), comments)


def is_counted(path: str) -> bool:
    parts = PurePosixPath(path).parts
    return (
        parts[0] in COUNTED
        and PurePosixPath(path).suffix in {".py", *OTHERS}
        and "node_modules" not in parts
    )


def texts_here() -> dict[str, str]:
    """Return the files of the house as they are on the disk."""
    paths = (path for folder in COUNTED for path in sorted((ROOT / folder).rglob("*.*")))
    return {
        name: path.read_text("utf-8")
        for path in paths
        if path.is_file() and is_counted(name := path.relative_to(ROOT).as_posix())
    }


def git(*command: str) -> bytes:
    return subprocess.run(["git", *command], cwd=ROOT, capture_output=True, check=True).stdout


def last_release() -> tuple[str, str]:
    """Return the revision of the last release, or of the first commit, and what it is."""
    try:
        tag = git("describe", "--tags", "--abbrev=0", "--match", "v[0-9]*").decode().strip()
    except subprocess.CalledProcessError:
        first = git("rev-list", "--max-parents=0", "HEAD").decode().split()[-1]
        return first, f"the first commit, {first[:8]}: there is no release yet"
    return tag, f"the release {tag}"


def texts_at(revision: str) -> dict[str, str]:
    """Return the files of the house at a revision of git."""
    paths = git("ls-tree", "-r", "-z", "--name-only", revision).decode().split("\0")
    found = {}
    for path in filter(is_counted, filter(None, paths)):
        found[path] = git("show", f"{revision}:{path}").decode()
    return found


class Row(NamedTuple):
    """What a package has, without its subpackages."""

    code: int
    comments: int
    longest: str
    its_code: int


def rows(texts: Texts) -> dict[str, Row]:
    """Return the row of each package of the library, and one for each other folder as a whole."""
    files: dict[str, dict[str, Size]] = {}
    for path, text in texts.items():
        top = PurePosixPath(path).parts[0]
        package = PurePosixPath(path).parent.as_posix() if top == LIBRARY else top
        files.setdefault(package, {})[path] = size(path, text)
    found = {}
    for package, sizes in files.items():
        longest = max(sizes, key=lambda path: sizes[path].code)
        name = PurePosixPath(longest).relative_to(package).as_posix()
        code, comments = map(sum, zip(*sizes.values(), strict=True))
        found[package] = Row(code, comments, name, sizes[longest].code)
    return found


def total(found: Mapping[str, Row]) -> Row:
    """Return the sum of the packages of the library."""
    library = {name: row for name, row in found.items() if name.startswith(LIBRARY)}
    longest = max(library, key=lambda name: library[name].its_code)
    return Row(
        sum(row.code for row in library.values()),
        sum(row.comments for row in library.values()),
        f"{longest.removeprefix(LIBRARY + '/')}/{library[longest].longest}",
        library[longest].its_code,
    )


# ---- imports


def imported(module: str, is_package: bool, text: str) -> Iterator[str]:
    """Yield what a module imports anywhere, also for its types alone; a name with its module."""
    parts = module.split(".")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = parts[: len(parts) + is_package - node.level] if node.level else []
            base = [*above, *(node.module.split(".") if node.module else ())]
            yield from (".".join([*base, alias.name]) for alias in node.names)


def circles(texts: Texts) -> list[list[str]]:
    """Return each set of modules that import each other, in one step or several; largest first.

    ``from . import name`` is an import of the module ``name`` where there is one, and otherwise of
    the package.
    """
    modules = {}
    for path, text in texts.items():
        if path.startswith(LIBRARY + "/") and path.endswith(".py"):
            name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            modules[name] = (path.endswith("__init__.py"), text)
    graph: dict[str, set[str]] = {}
    for name, (is_package, text) in modules.items():
        found = (
            one if one in modules else one.rpartition(".")[0]
            for one in imported(name, is_package, text)
        )
        graph[name] = {one for one in found if one in modules and one != name}
    reached = {name: _reached(graph, name) for name in graph}
    all_circles = {
        frozenset(other for other in reached[name] if name in reached[other])
        for name in graph
        if name in reached[name]
    }
    return sorted(map(sorted, all_circles), key=lambda circle: (-len(circle), circle))


def _reached(graph: Mapping[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    ahead = [start]
    while ahead:
        for name in graph[ahead.pop()] - found:
            found.add(name)
            ahead.append(name)
    return found


# ---- pages


def words(page: Path) -> int:
    """Count the words of a page, without its synonyms for the search, which no reader sees."""
    index = re.compile(r"^```{index}.*?^```$", re.M | re.S)
    return len(index.sub("", page.read_text("utf-8")).split())


def pages() -> dict[str, int]:
    """Return the words of the pages for users, and of those for contributors."""
    docs = ROOT / "docs"
    found = {"for users": words(ROOT / "README.md"), "for contributors": 0}
    found["for contributors"] += words(ROOT / "CONTRIBUTING.md")
    for page in (*docs.glob("*.md"), *docs.glob("[a-z]*/*.md")):
        if not page.name.startswith("changelog"):  # which is made by an include
            kind = "for contributors" if page.name.startswith("design") else "for users"
            found[kind] += words(page)
    return found


def main() -> None:
    here = texts_here()
    found = rows(here)
    before: dict[str, Row] | None = None
    try:
        revision, since = last_release()
        before = rows(texts_at(revision))
    except (OSError, subprocess.CalledProcessError) as error:
        since = f"nothing: git does not answer ({type(error).__name__})"
    width = max(map(len, found))
    print(f"changes are since {since}\n")
    print(f"{'package':{width}}    code  change  comments  longest file")
    print(f"{'':{width}}   lines          for 100  lines of code\n")

    def show(name: str, row: Row, old: int) -> None:
        change = "" if before is None else f"{row.code - old:+,}"
        comments = f"{100 * row.comments / max(row.code, 1):.1f}"
        longest = f"{row.longest} {row.its_code:,}"
        print(f"{name:{width}} {row.code:7,} {change:>7} {comments:>9}  {longest}")

    for name in sorted(found, key=lambda name: (not name.startswith(LIBRARY), name)):
        show(name, found[name], before[name].code if before and name in before else 0)
    gone = sorted(set(before or ()) - set(found))
    show("trio_lanes, all", total(found), total(before).code if before else 0)
    if gone:
        print(f"gone: {', '.join(gone)}")
    print("\ncircles of imports, those for types included")
    for circle in circles(here):
        names = ", ".join(name.removeprefix(LIBRARY + ".") for name in circle)
        print(f"  {len(circle):2}  {names}")
    print("\nwords of pages")
    for kind, number in pages().items():
        print(f"  {number:7,}  {kind}")


if __name__ == "__main__":
    main()
