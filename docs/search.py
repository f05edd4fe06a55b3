"""How the site's search orders what it finds: by how much a page is about the words.

Sphinx finds the pages that have all words somewhere, and orders them by their names. Here a page
has a weight for each word (BM25, with the fields of `FIELDS`), a page need not have all words, and
what other tools call it, by the table of ``words.md``, counts for the page that answers. The
weights are reckoned when the site is built; ``search.js`` adds them.

No search program for built sites was tried.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.search import SearchLanguage, WordCollector

SCRIPT: Final = Path(__file__).with_name("search.js")
TABLE: Final = "words"
# How much a word counts where it stands; in the text once.
FIELDS: Final = {"title": 8, "table": 12, "heading": 3, "beginning": 3}
# BM25: how soon further occurrences add nothing, and how much its length is held against a page.
SATURATION: Final = 4
LENGTH: Final = 0.6
# Words that say the same everywhere, without their endings: what others say, and these pages.
SAME: Final = {"task": "job", "execut": "run"}
# Words of questions, about nothing.
ASKING: Final = "can do does from get how i my use using want what when which why"


def _write(app: Sphinx, exception: Exception | None) -> None:
    """Write what the script must know, with the script."""
    if exception or app.builder.format != "html":
        return
    known = _learn(app.env, app.builder.indexer.lang)  # type: ignore[attr-defined]
    text = f"const KNOWN = {json.dumps(known, separators=(',', ':'))};\n{SCRIPT.read_text('utf-8')}"
    Path(app.outdir, "_static", SCRIPT.name).write_text(text, encoding="utf-8")


def _learn(env: BuildEnvironment, language: SearchLanguage) -> dict[str, Any]:
    """Return the pages, the phrases of the table with their pages, and the weights of all words."""
    pages = sorted(name for name in env.found_docs if "nosearch" not in env.metadata[name])
    counts, lengths = {}, {}  # by page
    for page in pages:
        counts[page], lengths[page] = _count(env.get_doctree(page), language)
    phrases, called = defaultdict(list), defaultdict(set)
    for phrase, page in _read_table(env.get_doctree(TABLE), language):
        phrases[" ".join(phrase)].append(pages.index(page))
        called[page].update(phrase)
    for page, words in called.items():
        counts[page].update(dict.fromkeys(words, FIELDS["table"]))
    return {
        "same": SAME,
        "asking": ASKING.split(),
        "pages": [(page, env.titles[page].astext()) for page in pages],
        "phrases": phrases,
        "weights": _weigh(pages, counts, lengths),
    }


def _stems(words: Iterable[str], language: SearchLanguage) -> list[str]:
    lower = (word.lower() for word in words)
    left_out = language.stopwords | set(ASKING.split())
    stems = (language.stem(word) for word in lower if word not in left_out)
    return [SAME.get(stem, stem) for stem in stems]


def _read_table(
    doctree: nodes.document, language: SearchLanguage
) -> Iterable[tuple[list[str], str]]:
    """Give each phrase of the table, as the stems of its words, and its page."""
    for row in doctree.findall(nodes.row):
        said, link = row.children
        for target in link.findall(addnodes.pending_xref):
            for phrase in said.astext().split(","):
                yield _stems(language.split(phrase), language), target["reftarget"]


def _count(doctree: nodes.document, language: SearchLanguage) -> tuple[Counter[str], int]:
    """Return how much each word counts on a page, and how many words its text has."""

    def stems(*parts: nodes.Node) -> list[str]:
        collector = WordCollector(doctree, language)
        for part in parts:
            part.walk(collector)
        return _stems(collector.found_words, language)

    text = stems(doctree)
    counts = Counter(text)
    title, *headings = doctree.findall(nodes.title)
    beginning = next(iter(doctree.findall(nodes.paragraph)), nodes.paragraph())
    parts = {"title": [title], "heading": headings, "beginning": [beginning]}
    for field, of_field in parts.items():
        counts.update(dict.fromkeys(stems(*of_field), FIELDS[field]))
    return counts, len(text)


def _weigh(
    pages: list[str], counts: dict[str, Counter[str]], lengths: dict[str, int]
) -> dict[str, list[int]]:
    """Return for each word its pages, by their numbers, each followed by its weight."""
    usual = sum(lengths.values()) / len(pages)
    having = Counter(word for page in pages for word in counts[page])
    weights: dict[str, list[int]] = {word: [] for word in having}
    for number, page in enumerate(pages):
        room = SATURATION * (1 - LENGTH + LENGTH * lengths[page] / usual)
        for word, count in counts[page].items():
            rare = math.log(1 + (len(pages) - having[word] + 0.5) / (having[word] + 0.5))
            weights[word] += number, round(100 * rare * count / (count + room))
    return weights


def _add_script(app: Sphinx, page: str, template: str, context: Any, doctree: Any) -> None:
    if page == "search":
        app.add_js_file(SCRIPT.name, loading_method="defer")  # after Sphinx's own, before it runs


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("html-page-context", _add_script)
    app.connect("build-finished", _write)
