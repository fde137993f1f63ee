"""The documentation site: it builds without a warning, asks for nothing, and reads well everywhere.

Pages are opened in a real browser as in test_browser.py, from the disk and without a network.
"""

from __future__ import annotations

import fcntl
import importlib
import inspect
import os
import re
import shutil
import subprocess
import sys
import urllib.parse
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from pages import run_blocks
from test_browser import FLAGS, missing

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = {  # and the extras they need
    "start.md": ("sympy",),
    "answers.md": (),
    "glossary.md": ("sklearn",),
    "howto/stream_a_long_document.md": (),
    "howto/read_the_report.md": (),
    "howto/scikit_learn.md": ("sklearn",),
}
ROOMS = (
    "kerneltrick",
    *(
        f"kerneltrick.{path.parent.name}"
        for path in sorted((ROOT / "src/kerneltrick").glob("[a-z]*/__init__.py"))
        if path.parent.name != "cli"
    ),
)
LOADS = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src"}


@pytest.mark.parametrize("page", PAGES)
def test_code_blocks_and_commands_run(page, tmp_path, monkeypatch):
    for extra in PAGES[page]:
        pytest.importorskip(extra)
    monkeypatch.chdir(tmp_path)  # for what they save
    assert run_blocks(DOCS / page) >= 3


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; test processes that run side by side build it once."""
    for package in ("furo", "myst_parser", "sphinx_copybutton", "sphinx-mathjax-offline"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed (extra docs)")
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    built = shared / "site"
    with open(shared / "site.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.exists():
            command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-n"]
            places = ["-c", "docs", "-d", str(shared / "doctrees"), ".", str(shared / "building")]
            done = subprocess.run([*command, *places], cwd=ROOT, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr[-5000:]
            (shared / "building").rename(built)
    return built


class Elements(HTMLParser):
    """Addresses that a page loads, those it links to, and its anchors."""

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


def html_pages(site: Path) -> list[Path]:
    return sorted(site.rglob("*.html"))


def test_nothing_is_loaded_from_elsewhere(site):
    outside = re.compile(r"^(?:[a-z]+:)?//", re.I)
    for page in html_pages(site):
        assert [load for load in Elements(page).loads if outside.match(load)] == [], page.name
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//", sheet.read_text()), sheet


def test_every_link_and_anchor_exists(site):
    anchors = {page.resolve(): Elements(page).anchors for page in html_pages(site)}
    broken = []
    for page in html_pages(site):
        for link in Elements(page).links:
            address = urllib.parse.urlsplit(link)
            if address.scheme or address.netloc:
                continue
            path = urllib.parse.unquote(address.path)
            target = (page.parent / path).resolve() if path else page.resolve()
            anchor = urllib.parse.unquote(address.fragment)
            if not target.exists() or (target in anchors and anchor not in anchors[target] | {""}):
                broken.append((page.name, link))
    assert broken == []


def test_the_entrance_leads_to_the_first_page(site):
    entrance = (site / "index.html").read_text()
    assert 'url=docs/index.html"' in entrance
    assert (site / "docs/index.html").exists()


def test_every_page_of_docs_is_on_the_site(site):
    for page in DOCS.rglob("*.md"):
        assert (site / "docs" / page.relative_to(DOCS)).with_suffix(".html").exists(), page


@pytest.fixture(scope="module")
def described(site: Path) -> set[str]:
    """The names of objects.inv."""
    from sphinx.util.inventory import InventoryFile

    inventory = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="")
    return {
        name for kind in inventory.data if kind.startswith("py:") for name in inventory.data[kind]
    }


@pytest.mark.parametrize("room", ROOMS)
def test_every_public_name_is_in_the_reference(described, room):
    module = importlib.import_module(room)
    assert {f"{room}.{name}" for name in module.__all__} - described == set()
    assert room in described


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
    assert to_rest(["one:  1", "three: 3"], known)[:1] == ["::"]
    assert to_rest(["degree 0: 1", "degree 1: x"], known)[:2] == ["| degree 0: 1", "| degree 1: x"]
    assert to_rest([">>> 1 * 2", "2"], known) == [">>> 1 * 2", "2", ""]
    listed = to_rest(["Parameters", "----------", "n_q : number", "    How many."], known)
    assert listed[:5] == [".. rubric:: Parameters", "", r"- **n\_q** : number", "", "  How many."]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing("playwright is not installed")
    executable = shutil.which("chromium")
    if executable is None:
        missing("there is no chromium on the PATH")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=executable, args=FLAGS)
        yield launched
        launched.close()


def open_tab(browser: Any, width: int, scheme: str) -> tuple[Any, list[str]]:
    context = browser.new_context(
        viewport={"width": width, "height": 844}, color_scheme=scheme, offline=True
    )
    tab, troubles = context.new_page(), []
    tab.on("console", lambda message: troubles.append(message.text))
    tab.on("pageerror", lambda error: troubles.append(str(error)))
    tab.on("requestfailed", lambda request: troubles.append(f"not loaded: {request.url}"))
    return tab, troubles


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_pages_never_scroll_sideways_and_mathematics_is_set(site, browser, width, scheme):
    tab, troubles = open_tab(browser, width, scheme)
    formulas = 0
    for page in html_pages(site):
        if page.parent == site:  # the entrance, search and index
            continue
        tab.goto(page.as_uri())
        if tab.locator(".math").count():
            tab.wait_for_function("window.MathJax?.startup?.promise !== undefined")
            tab.evaluate("MathJax.startup.promise.then(() => true)")
        assert tab.evaluate("document.documentElement.scrollWidth") <= width, page.name
        assert tab.locator(".math").count() <= tab.locator("mjx-container").count(), page.name
        assert tab.locator("[data-mjx-error], mjx-merror").count() == 0, page.name
        formulas += tab.locator("mjx-container").count()
    paper = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", paper)[:3])) > 600) == (scheme == "light")
    assert formulas > 50
    assert troubles == []


def test_search_finds_pages_without_a_network(site, browser):
    tab, troubles = open_tab(browser, 1280, "light")
    tab.goto((site / "search.html").as_uri() + "?q=normaliser")
    tab.wait_for_selector("#search-results li a")
    found = tab.locator("#search-results li a").all_inner_texts()
    assert len(found) > 3
    assert any("kernel trick" in title.lower() for title in found)
    tab.goto((site / "search.html").as_uri() + "?q=linear_attention")
    tab.wait_for_selector("#search-results li a")
    first = tab.locator("#search-results li a").first
    assert "linear_attention" in first.inner_text()
    first.click()
    assert tab.locator("dt#kerneltrick\\.linear_attention").is_visible()
    assert troubles == []
