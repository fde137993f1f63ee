"""Sphinx configuration of the documentation site. `make docs` builds it into build/docs.

The source folder is the root of the repository, so links between docs/, labs/ and the README work
on the site and in plain Markdown. Nothing is loaded from the network.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
import typing
from pathlib import Path
from types import ModuleType
from typing import Any

from sphinx.application import Sphinx
from sphinx.domains.python import ObjectEntry

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import _docstrings  # noqa: E402

import kerneltrick  # noqa: E402

project = "kerneltrick"
author = "The kerneltrick authors"
copyright = author
version = release = kerneltrick.__version__
language = "en"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx_copybutton",
    "_powers",
]
root_doc = "docs/index"
include_patterns = [
    "docs/**",
    "labs/*/README.md",
    "examples/README.md",
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
]
exclude_patterns = [".*", "build", "dist", "out", "src", "tests", "native", "benchmarks", "tools"]
nitpicky = True
smartquotes = False
nitpick_ignore_regex = [
    ("py:class", r"(?!kerneltrick\.).*|.*\._.*")
]  # types of other packages, and private types

# Pages
myst_enable_extensions = ["dollarmath"]
myst_dmath_double_inline = True
myst_heading_anchors = 3
myst_links_external_new_tab = False

# Mathematics: MathJax from the wheel of sphinx-mathjax-offline, one file with its fonts in it.
_mathjax = importlib.util.find_spec("sphinx-mathjax-offline")
if _mathjax is None or _mathjax.origin is None:
    raise ImportError("the site needs sphinx-mathjax-offline: pip install '.[docs]'")
mathjax_path = "tex-svg.js"
mathjax3_config = {
    "options": {"enableMenu": False},
    "svg": {"scale": 0.95, "mtextInheritFont": True},
}

# Look
html_theme = "furo"
html_title = "kerneltrick"
html_static_path = [
    "_static",
    str(Path(_mathjax.origin).parent / "static" / "mathjax" / mathjax_path),
]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_show_search_summary = False  # pages opened from disk may not read other files
html_theme_options = {"navigation_with_keys": True}
pygments_style = "friendly"
pygments_dark_style = "github-dark"
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

# Reference
ROOMS = [
    "kerneltrick",
    "kerneltrick.attention",
    "kerneltrick.maps",
    "kerneltrick.engines",
    "kerneltrick.kernels",
    "kerneltrick.analysis",
    "kerneltrick.costs",
    "kerneltrick.proofs",
    "kerneltrick.report",
    "kerneltrick.hf",
    "kerneltrick.simulate",
    "kerneltrick.sklearn",
    "kerneltrick.torch",
    "kerneltrick.labs",
]
autodoc_default_options = {
    "members": True,
    "special-members": "__call__",
    "member-order": "bysource",
}
autodoc_typehints = "none"  # write_signature adds them
autodoc_inherit_docstrings = False  # members of all maps are documented once, at FeatureMap
maximum_signature_line_length = 88
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"
add_module_names = False


def public(module: ModuleType) -> list[str]:
    """Return the public names of a module: its __all__, or what it defines."""
    found = getattr(module, "__all__", None)
    return list(found) if found is not None else own(module)


def own(module: ModuleType) -> list[str]:
    """Return the public functions and classes that a module without __all__ defines."""
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]


def add_labs(app: Sphinx, docname: str, source: list[str]) -> None:
    """Add a section per lab, in order, so that the page need not list them."""
    if docname != "docs/reference/labs":
        return
    labs = importlib.import_module("kerneltrick.labs")
    modules = sorted((inspect.getdoc(getattr(labs, name)) or "", name) for name in public(labs))
    sections = [(doc.partition(",")[0] + f": {name}", name) for doc, name in modules]
    for title, name in [*sections, ("The grader", "grader")]:
        automodule = f"```{{eval-rst}}\n.. automodule:: kerneltrick.labs.{name}\n```"
        source[0] += f"\n## {title}\n\n{automodule}\n"


def link_of(rooms: list[str]) -> _docstrings.Link:
    """Return a function that finds the entry of a name in backquotes, if it is unambiguous.

    Lower-case words without an underscore (features, get) are usually arguments, so they are not
    linked unless their subpackage precedes them, as in costs.get.
    """
    places: dict[str, list[tuple[Any, str]]] = {}
    for room in rooms:
        module = importlib.import_module(room)
        for name in public(module):
            value, full = getattr(module, name), f"{room}.{name}"
            for short in (name, full.removeprefix("kerneltrick.")):
                known = places.setdefault(short, [])
                if not inspect.ismodule(value) and all(other is not value for other, _ in known):
                    known.append((value, full))
    telling = {
        name: known[0][1]
        for name, known in places.items()
        if len(known) == 1 and re.search(r"[A-Z_.]", name)
    }
    return lambda code: telling.get(code.partition("(")[0])


def skip_member(app: Sphinx, what: str, name: str, value: Any, skip: bool, options: Any) -> bool:
    """Skip fields of named tuples, which are in the signature, and type aliases."""
    is_field = (inspect.getdoc(value) or "").startswith("Alias for field number")
    return skip or is_field or typing.get_origin(value) is not None


def lab_link(name: str) -> _docstrings.Link:
    """Return the links for a lab, where names refer to functions of the lab."""
    module = importlib.import_module(".".join(name.split(".")[:3]))
    return lambda code: f"{module.__name__}.{code}" if code in public(module) else None


class Written:
    """An annotation that is printed as in the source."""

    def __init__(self, annotation: Any):
        self.text = getattr(annotation, "__forward_arg__", annotation)

    def __repr__(self) -> str:
        return self.text if isinstance(self.text, str) else inspect.formatannotation(self.text)


def is_static(name: str) -> bool:
    """Tell whether a full name, module.Class.method, belongs to a static method."""
    place, _, method = name.rpartition(".")
    module, _, owner = place.rpartition(".")
    found = getattr(importlib.import_module(module), owner)
    return isinstance(inspect.getattr_static(found, method), staticmethod)


def write_signature(
    app: Sphinx, what: str, name: str, value: Any, options: Any, given: str | None, returned: str
) -> tuple[str, str | None] | None:
    """Write signatures with types as in the source: MapLike, not its expansion."""
    if given is None or not callable(value):
        return None
    try:
        signature = inspect.signature(value)
    except ValueError:
        return None
    empty = inspect.Signature.empty
    parameters = [
        one if one.annotation is empty else one.replace(annotation=Written(one.annotation))
        for one in signature.parameters.values()
    ]
    if what == "method" and not inspect.ismethod(value) and not is_static(name):
        parameters = parameters[1:]  # self
    result = signature.return_annotation
    shown = what not in ("class", "exception") and result is not empty
    return (
        str(signature.replace(parameters=parameters, return_annotation=empty)).replace(
            "<factory>", "..."
        ),
        repr(Written(result)) if shown else None,
    )


def mend_docstring(
    app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]
) -> None:
    link = lab_link(name) if name.startswith("kerneltrick.labs.") else LINKS
    lines[:] = _docstrings.to_rest(lines, link)
    if what == "class":
        lines += _docstrings.fields(value, link)


def add_aliases(app: Sphinx, env: Any) -> None:
    """Link kerneltrick.attention.linear_attention to kerneltrick.linear_attention, and so on."""
    known = env.domains.python_domain.objects
    described = {}
    for room in ROOMS:
        module = importlib.import_module(room)
        for name in public(module):
            full = f"{room}.{name}"
            if full in known:
                described[id(getattr(module, name))] = known[full]
    for room in ROOMS:
        module = importlib.import_module(room)
        for name in public(module):
            entry = described.get(id(getattr(module, name)))
            if entry is not None and f"{room}.{name}" not in known:
                known[f"{room}.{name}"] = ObjectEntry(
                    entry.docname, entry.node_id, entry.objtype, aliased=True
                )


def add_entrance(app: Sphinx, error: Exception | None) -> None:
    """Write build/docs/index.html, which redirects to the first page in a subfolder."""
    if error is None:
        target = app.builder.get_target_uri(root_doc)
        page = (
            '<!doctype html><html lang="en"><meta charset="utf-8"><title>kerneltrick</title>'
            f'<meta http-equiv="refresh" content="0; url={target}">'
            f'<p><a href="{target}">kerneltrick</a></p></html>'
        )
        (Path(app.outdir) / "index.html").write_text(page, encoding="utf-8")


def add_explorable(app: Sphinx, error: Exception | None) -> None:
    """Write build/docs/explore.html, the page that `kerneltrick explore` writes."""
    if error is None:
        page = kerneltrick.report.render_explore()
        (Path(app.outdir) / "explore.html").write_text(page, encoding="utf-8")


LINKS = link_of(ROOMS)


def setup(app: Sphinx) -> None:
    app.connect("source-read", add_labs)
    app.connect("autodoc-process-signature", write_signature)
    app.connect("autodoc-process-docstring", mend_docstring)
    app.connect("autodoc-skip-member", skip_member)
    app.connect("env-updated", add_aliases)
    app.connect("build-finished", add_entrance)
    app.connect("build-finished", add_explorable)
