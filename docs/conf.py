"""How the site is built: ``make docs``. It needs no network, and any warning is an error."""

from __future__ import annotations

import builtins
import inspect
import logging
import pkgutil
import re
import sys
from importlib.metadata import version as version_of
from pathlib import Path
from types import UnionType
from typing import Any, Final

import attrs
from sphinx.application import Sphinx
from sphinx.ext.napoleon import Config, GoogleDocstring
from sphinx.pycode import ModuleAnalyzer

import trio_lanes

ROOT: Final = Path(__file__).parents[1]
sys.path.append(str(Path(__file__).parent))  # for `search`

# The suite of stores, which is imported for the reference, has rate limits that warn on purpose.
logging.getLogger("trio_lanes").setLevel(logging.ERROR)

project = "trio-lanes"
author = "The trio-lanes authors"
release = version_of("trio-lanes")
version = release

extensions = [
    "myst_parser",
    "search",
    "sphinx.ext.autodoc",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_llms_txt",
    "sphinxcontrib_trio",
]
root_doc = "index"
exclude_patterns = [
    "_build",
    "design-costs.md",
]  # pages include these

html_theme = "furo"
html_favicon = "icon.svg"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_title = f"trio-lanes {release}"
html_show_copyright = False
html_show_sphinx = False

# llms.txt lists the pages, llms-full.txt has their sources, with the programs that they include
llms_txt_title = "trio-lanes"
llms_txt_summary = (
    "Lanes for Trio and asyncio: ordered work per session, bounded work over all of them."
)
llms_txt_exclude = ["changelog", "design*"]

# What is shown of a file ends before its last two empty lines.
highlight_options = {"default": {"stripnl": True}}

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

default_role = "py:obj"  # docstrings name objects in single backticks
add_module_names = False
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_use_legacy_class_based = True  # sphinxcontrib-trio extends these classes
python_maximum_signature_line_length = 90

# A name of this library that leads nowhere is an error. Where those of others are, only the
# network knows.
nitpicky = True
nitpick_ignore_regex = [
    (r"py:.*", r"(?!trio_lanes\b)[a-z_]+\..*"),
    (r"py:.*", "|".join(dir(builtins))),
    (r"py:obj", r"[a-z_]+"),  # an argument
    (r"py:class", r"(trio_lanes(\._\w+|\.\w+)*\.)?(T|T_co|Ts|F|Item)|Any|\.\.\.|BlockerKind|Wrap"),
    (r"py:class", "ServedAt|Seconds|Amount|Costs|Overlap|Decimal"),  # times, amounts, a choice
]

MADE_BY_USERS: Final = (
    trio_lanes.LaneConfig,
    trio_lanes.LaneGroup,
    trio_lanes.RateLimit,
)

DEFAULTS: Final = {  # names in signatures that say nothing to users: what to show instead
    "DEFAULT_LANES": repr(inspect.signature(trio_lanes.open_lanes).parameters["lanes"].default),
    "MappingProxyType({})": "{}",
    "_control.ANY_OWNER": "...",
    "trio_lanes._signals.Stoppable": "trio_lanes.Lanes",
}


def _show_signature(
    app: Sphinx, what: str, name: str, obj: Any, options: object, signature: str, returns: str
) -> tuple[str, str] | None:
    if obj in MADE_BY_USERS:
        return _fields(obj), ""
    if what in ("class", "exception") and not name.startswith("trio_lanes.instruments."):
        return "", ""  # made by the library alone: so the constructor is not shown
    for private, public in DEFAULTS.items():
        signature = signature and signature.replace(private, public)
    return signature, returns


def _fields(cls: Any) -> str:
    """The signature of a class of attrs, without types: these stand under its fields."""
    shown = []
    for field in attrs.fields(cls):
        if field.kw_only and "*" not in shown:
            shown.append("*")
        if isinstance(field.default, attrs.Factory):  # type: ignore[arg-type]  # it is a class
            depends = field.default.takes_self  # on the other fields: no value to show
            shown.append(f"{field.name}={'...' if depends else repr(field.default.factory())}")
        elif field.default is attrs.NOTHING:
            shown.append(field.name)
        else:
            shown.append(f"{field.name}={field.default!r}")
    return f"({', '.join(shown)})"


def _read_docstring(
    app: Sphinx, what: str, name: str, obj: object, options: Any, lines: list[str]
) -> None:
    """What the napoleon extension does, but for fields and properties.

    It takes these to begin with a type and a colon, and to have no sections.
    """
    if isinstance(obj, UnionType):  # a name for a type, whose docstring is that of all unions
        lines.clear()
    config = Config(napoleon_use_ivar=True)
    what = "method" if what in ("attribute", "property") else what
    read = GoogleDocstring(lines, config, app, what, name, obj, options).lines()
    # Of several names in one line, Sphinx would take the first for types.
    lines[:] = [re.sub(r"^:ivar .*?:", lambda names: names[0].replace(", ", ","), x) for x in read]


def _find_public_name(app: Sphinx, env: Any, node: Any, contnode: Any) -> Any:
    """Lead to where a public name is documented, also from where it is defined or imported."""
    name = re.sub(r"^trio_lanes\._\w+\.([a-z]\w*\.)?", "", node.get("reftarget", ""))
    domain = env.domains["py"]
    public = "trio_lanes." + name.replace("AnyJob", "Job")
    if public not in domain.objects and node["refdoc"] == "reference/durable":
        # acts are written below `durable`, and name each other and what is documented there
        last = "." + name.rpartition("_contract.act.")[2]
        public = next((known for known in domain.objects if known.endswith(last)), public)
    return domain.resolve_xref(env, node["refdoc"], app.builder, "obj", public, node, contnode)


def _find_what_is_written_under_fields() -> None:
    """Let autodoc see the documentation of fields and members, and their order.

    It looks for these in the module that a class says it is from, and a public class says
    ``trio_lanes``, which is not where it is written.
    """
    public = ModuleAnalyzer.for_module("trio_lanes")
    public.analyze()
    order: dict[str, int] = {}
    for module in pkgutil.walk_packages(trio_lanes.__path__, "trio_lanes."):
        if module.name.startswith("trio_lanes._") and not module.ispkg:
            private = ModuleAnalyzer.for_module(module.name)
            private.analyze()
            public.attr_docs.update(private.attr_docs)
            order |= {name: len(order) + place for name, place in private.tagorder.items()}
    inherited = ("Submitter.", "OneLane.")
    verbs = [name.partition(".")[2] for name in order if name.startswith(inherited)]
    for cls in ("Lanes", "Lane", "SessionLane"):  # which inherit these, and have them first
        own = {f"{cls}.{verb}": -len(verbs) + place for place, verb in enumerate(verbs)}
        order = {**own, **order} if cls == "Lanes" else {**order, **own}
    public.tagorder.update(order)


def _show_programs(app: Sphinx, exception: Exception | None) -> None:
    """Put the programs into llms-full.txt that its pages include."""
    full = Path(app.outdir) / "llms-full.txt"
    if not full.exists():  # of another builder
        return

    def included(directive: re.Match[str]) -> str:
        path, options = directive[1].lstrip("./"), directive[2]
        text = (ROOT / path).read_text("utf-8")
        if start := re.search(":start-at: (.*)", options):
            text = text[text.index(start[1]) :]
        if end := re.search(":end-before: (.*)", options):
            text = text[: text.index(end[1])]
        return f"```{'text' if path.endswith('.txt') else ''}\n{text.strip()}\n```"

    directive = re.compile(r"```{literalinclude} (\S+)\n(.*?)```", re.S)
    full.write_text(directive.sub(included, full.read_text("utf-8")), encoding="utf-8")


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    _find_what_is_written_under_fields()
    app.connect("autodoc-process-signature", _show_signature)
    app.connect("autodoc-process-docstring", _read_docstring)
    app.connect("missing-reference", _find_public_name)
    app.connect("build-finished", _show_programs, priority=900)  # after llms-full.txt is written
