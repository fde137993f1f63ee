"""The documentation site builds without warnings, loads nothing, and fits every screen.

Pages are opened in a real browser as in test_browser.py, from the disk and without a network.
"""

from __future__ import annotations

import functools
import html
import importlib
import importlib.util
import inspect
import io
import os
import re
import subprocess
import sys
import urllib.parse
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pages import run_blocks

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = {  # with the extras that they need
    "start.md": ("sympy",),
    "answers.md": (),
    "fitted_maps.md": ("torch",),
    "glossary.md": ("sklearn",),
    "howto/stream_a_long_document.md": (),
    "howto/read_the_report.md": (),
    "howto/attention_in_pytorch.md": ("torch",),
    "howto/mixers.md": ("torch",),
    "howto/inspect.md": ("torch",),
    "howto/recall.md": ("torch",),
    "howto/conformance.md": (),
    "howto/linearise_your_model.md": ("transformers",),
    "howto/run_on_a_cpu.md": ("transformers", "peft"),
    "howto/scale_out.md": ("torch",),
    "howto/scikit_learn.md": ("sklearn",),
    "howto/onnx.md": ("onnxscript", "onnxruntime"),
}
LONG = {"start.md", "howto/attention_in_pytorch.md", "howto/onnx.md"}
ROOMS = (
    "kerneltrick",
    *(
        f"kerneltrick.{path.parent.name}"
        for path in sorted((ROOT / "src/kerneltrick").glob("[a-z]*/__init__.py"))
        if path.parent.name != "cli"
    ),
)
LOADS = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src"}


@pytest.mark.parametrize(
    "page", [pytest.param(x, marks=pytest.mark.slow) if x in LONG else x for x in PAGES]
)
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # PEFT's
@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec:FutureWarning")  # PyTorch's
def test_code_blocks_and_commands_run(page, tmp_path, monkeypatch):
    for extra in PAGES[page]:
        pytest.importorskip(extra)
    monkeypatch.chdir(tmp_path)  # for the files that they write
    assert run_blocks(DOCS / page) >= 3


pytestmark = pytest.mark.xdist_group("docs")  # the site is built once


PART = ("docs/index", "README", "docs/02_kernel_trick", "docs/reference/attention")
WHOLE = pytest.param("whole", marks=pytest.mark.slow)
in_whole = pytest.mark.parametrize("site", [WHOLE], indirect=True)
in_part = pytest.mark.parametrize("site", ["part"], indirect=True)


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Builds the site, or a part of it whose links to other pages are broken: each once."""
    for package in ("furo", "myst_parser", "sphinx_copybutton", "sphinx-mathjax-offline"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed (extra docs)")

    @functools.cache
    def build(extent: str) -> Path:
        built = tmp_path_factory.mktemp("site")
        command = [sys.executable, "-m", "sphinx", "-q", "-c", "docs"]
        if extent == "part":
            command += ["-D", "include_patterns=" + ",".join(f"{page}.md" for page in PART)]
        else:
            command += ["-W", "--keep-going", "-n"]
        command += ["-d", str(tmp_path_factory.mktemp("doctrees")), ".", str(built)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-5000:]
        return built

    return build


@pytest.fixture(scope="module", params=["part", WHOLE])
def site(request: Any, build: Callable[[str], Path]) -> Path:
    return build(request.param)


class Elements(HTMLParser):
    """The addresses that a page loads and links to, and its anchors."""

    def __init__(self, page: Path):
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if given.get(LOADS.get(tag, "")):
            self.loads.append(given[LOADS[tag]])
        elif tag == "a" and "href" in given:
            self.links.append(given["href"])


@functools.cache
def html_pages(site: Path) -> dict[Path, Elements]:
    return {page.resolve(): Elements(page) for page in sorted(site.rglob("*.html"))}


def test_nothing_is_loaded_from_elsewhere(site):
    assert 'url=docs/index.html"' in (site / "index.html").read_text()  # the entrance
    outside = re.compile(r"^(?:[a-z]+:)?//", re.I)
    for page, elements in html_pages(site).items():
        assert [load for load in elements.loads if outside.match(load)] == [], page.name
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//", sheet.read_text()), sheet


@in_whole
def test_every_page_of_docs_is_on_the_site_and_every_link_and_anchor_exists(site):
    pages = html_pages(site)
    for page in DOCS.rglob("*.md"):
        assert (site / "docs" / page.relative_to(DOCS)).with_suffix(".html") in pages, page
    broken = []
    for page, elements in pages.items():
        for link in elements.links:
            address = urllib.parse.urlsplit(link)
            if address.scheme or address.netloc:
                continue
            path = urllib.parse.unquote(address.path)
            target = Path(os.path.normpath(page.parent / path)) if path else page
            anchor = urllib.parse.unquote(address.fragment)
            known = pages[target].anchors | {""} if target in pages else {anchor}
            if not target.exists() or anchor not in known:
                broken.append((page.name, link))
    assert broken == []


def test_every_page_of_docs_is_in_a_table_of_contents():
    listed = {DOCS / "index.md"}
    for page in DOCS.rglob("*.md"):
        for contents in re.findall(
            r"^```{toctree}\n(.*?)^```", page.read_text("utf-8"), re.M | re.S
        ):
            for entry in re.findall(r"^(?!:)(?:.* <)?([^<>\n]+?)>?$", contents, re.M):
                listed.add(Path(os.path.normpath(page.parent / f"{entry}.md")))
    assert set(DOCS.rglob("*.md")) - listed == set()


@pytest.fixture(scope="module")
def described(site: Path) -> set[str]:
    """The names of objects.inv."""
    from sphinx.util.inventory import InventoryFile

    inventory = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="")
    return {
        name for kind in inventory.data if kind.startswith("py:") for name in inventory.data[kind]
    }


def missing_names(described: set[str], room: str) -> set[str]:
    public = {f"{room}.{name}" for name in importlib.import_module(room).__all__}
    return (public | {room}) - described


@in_part
def test_every_public_name_of_attention_is_in_the_reference(described):
    assert missing_names(described, "kerneltrick.attention") == set()


@in_whole
def test_every_public_name_is_in_the_reference(described):
    assert {room: names for room in ROOMS if (names := missing_names(described, room))} == {}


@in_whole
def test_every_function_of_the_labs_is_in_the_reference(described):
    labs = importlib.import_module("kerneltrick.labs")
    for name in labs.__all__:
        module = getattr(labs, name)
        exercises = {
            f"{module.__name__}.{key}"
            for key, value in inspect.getmembers(module, inspect.isfunction)
            if not key.startswith("_") and value.__module__ == module.__name__
        }
        assert exercises
        assert exercises - described == set()


def test_docstrings_are_read_as_plain_text(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    to_rest = importlib.import_module("_docstrings").to_rest
    known = {"State": "kerneltrick.State"}.get
    assert to_rest(["|a| * `x`s of `State` n_q"], known) == [
        r"\|a\| \* ``x``\ s of :py:obj:`State <kerneltrick.State>` n\_q",
        "",
    ]
    assert to_rest(["at −`x`"], known) == [r"at −\ ``x``", ""]
    assert to_rest(["one:  1", "three: 3"], known)[:1] == ["::"]
    assert to_rest(["degree 0: 1", "degree 1: x"], known)[:2] == ["| degree 0: 1", "| degree 1: x"]
    assert to_rest([">>> 1 * 2", "2"], known) == [">>> 1 * 2", "2", ""]
    listed = to_rest(["Parameters", "----------", "n_q : number", "    How many."], known)
    assert listed[:5] == [".. rubric:: Parameters", "", r"- **n\_q** : number", "", "  How many."]


def open_tab(browser: Any, width: int, scheme: str) -> tuple[Any, list[str]]:
    context = browser.new_context(
        viewport={"width": width, "height": 844}, color_scheme=scheme, offline=True
    )
    tab, troubles = context.new_page(), []
    tab.on("console", lambda message: troubles.append(message.text))
    tab.on("pageerror", lambda error: troubles.append(str(error)))
    tab.on("requestfailed", lambda request: troubles.append(f"not loaded: {request.url}"))
    return tab, troubles


def test_pages_never_scroll_sideways_and_mathematics_is_set(site, browser):
    """Each page on a dark phone, the narrowest screen."""
    tab, troubles = open_tab(browser, 390, "dark")
    formulas = 0
    for page in html_pages(site):
        if page == (site / "index.html").resolve():  # the entrance, which redirects
            continue
        tab.goto(page.as_uri(), wait_until="domcontentloaded")
        maths = tab.locator(".math").count()
        if maths:
            tab.wait_for_function("window.MathJax?.startup?.promise !== undefined")
            tab.evaluate("MathJax.startup.promise.then(() => true)")
            assert maths <= tab.locator("mjx-container").count(), page.name
            assert tab.locator("[data-mjx-error], mjx-merror").count() == 0, page.name
            formulas += maths
        assert tab.evaluate("document.documentElement.scrollWidth") <= 390, page.name
    assert formulas > 5
    assert troubles == []


def shaded(table: Any, left: int) -> tuple[bool, bool]:
    """Tell whether the left and right edges of a table are shaded at this scroll position."""
    image = pytest.importorskip("matplotlib.image")
    table.evaluate("(it, left) => { it.scrollLeft = left; }", left)
    pixels = image.imread(io.BytesIO(table.screenshot()))  # from 0 to 1
    below = pixels[-3, :, :3].mean(axis=-1)  # the padding of the wrapper, below the cells
    left_edge, right_edge = abs(below[[2, -3]] - np.median(below)) > 0.1  # whole pixels
    return bool(left_edge), bool(right_edge)


@in_part
def test_a_wide_table_is_shaded_where_it_goes_on(site, browser):
    tab, troubles = open_tab(browser, 390, "light")
    tab.goto((site / "README.html").as_uri(), wait_until="domcontentloaded")
    table = tab.locator(".table-wrapper").first
    hidden = table.evaluate("it => it.scrollWidth - it.clientWidth")
    assert hidden > 100
    for scheme in ("light", "dark"):
        tab.emulate_media(color_scheme=scheme)
        paper = tab.evaluate("getComputedStyle(document.body).backgroundColor")
        bright = sum(map(int, re.findall(r"\d+", paper)[:3])) > 600
        assert bright == (scheme == "light")
        assert shaded(table, 0) == (False, True)
        assert shaded(table, hidden // 2) == (True, True)
        assert shaded(table, hidden) == (True, False)
    tab.set_viewport_size({"width": 1280, "height": 844})
    assert shaded(table, 0) == (False, False)  # the whole table is visible
    assert tab.evaluate("document.documentElement.scrollWidth") <= 1280
    assert troubles == []


def test_no_markup_is_left_in_what_is_read(site):
    """No markup is left outside code that MyST or reST should have removed."""
    code = re.compile(r"<(pre|code|script|style|title)\b.*?</\1>|<div class=\"math.*?</div>", re.S)
    mathematics = re.compile(r"<span class=\"math.*?</span>", re.S)
    for page in html_pages(site):
        text = mathematics.sub("", code.sub("", page.read_text(encoding="utf-8")))
        words = html.unescape(re.sub(r"<[^>]+>", "", text))
        left = re.search(r"\{[a-z-]+\}`|\$\$|``|:[a-z]+:`|\^\{|_\{|\]\(", words)
        assert left is None, (page.name, words[left.start() - 60 : left.end() + 60])


@in_part
def test_static_methods_have_all_their_arguments_in_the_reference(site):
    page = (site / "docs/reference/attention.html").read_text(encoding="utf-8")
    for name, first in (("State.empty", "feature_map"), ("State.load", "path")):
        entry = re.search(rf'id="kerneltrick\.{name}">(.*?)</dt>', page, re.S)[1]
        words = re.sub(r"<[^>]+>", "", entry)
        assert re.search(rf"\(\s*{first}\b", words), words
    step = re.search(r'id="kerneltrick\.Decoder\.step">(.*?)</dt>', page, re.S)[1]
    assert "self" not in step


def test_every_theory_page_leads_to_its_lab_and_back():
    labs = sorted((ROOT / "labs").glob("lab0*"))
    assert len(labs) == 8
    for lab in labs:
        (page,) = DOCS.glob(f"{lab.name[3:5]}_*.md")
        assert f"](../labs/{lab.name}/README.md)" in page.read_text(encoding="utf-8").replace(
            "\n", " "
        )
        assert f"](../../docs/{page.name})" in (lab / "README.md").read_text(encoding="utf-8")


@in_part
def test_search_finds_pages_without_a_network(site, browser):
    tab, troubles = open_tab(browser, 1280, "light")
    tab.goto((site / "search.html").as_uri() + "?q=normaliser")
    tab.get_by_text("Search finished").wait_for()  # results appear one by one
    found = tab.locator("#search-results li a").all_inner_texts()
    assert len(found) > 1
    assert any("kernel trick" in title.lower() for title in found)
    tab.goto((site / "search.html").as_uri() + "?q=linear_attention")
    tab.get_by_text("Search finished").wait_for()
    assert "linear_attention" in tab.locator("#search-results li a").first.inner_text()
    tab.get_by_role("link", name="kerneltrick.linear_attention", exact=True).click()
    tab.wait_for_selector("dt#kerneltrick\\.linear_attention")  # visible
    assert troubles == []
