"""The README is true: its code runs, its commands exist, and its links have targets."""

import re
from pathlib import Path

import pytest
from pages import run_blocks

import kerneltrick as kt

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
PAGES = {  # and the extras they need; pages 02 and 03 are run in test_labs.py
    "01_complexity.md": ("sympy", "matplotlib"),
    "04_quadratic_kernel.md": ("sympy",),
    "05_heads_and_decoding.md": ("sympy", "torch"),
    "06_kernels_and_rkhs.md": ("sympy", "matplotlib", "sklearn", "torch"),
    "07_based.md": ("sympy",),
    "08_modern_kin.md": ("torch",),
    "choose_a_map.md": ("torch",),
}
QUICK = {"08_modern_kin.md"}  # the others take seconds each


def test_code_runs():
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert blocks
    for block in blocks:
        exec(block, {})


@pytest.mark.parametrize("target", re.findall(r"make ([a-z0-9-]+)", README))
def test_make_targets_exist(target):
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize(
    "page", [x if x in QUICK else pytest.param(x, marks=pytest.mark.slow) for x in PAGES]
)
def test_docs_code_blocks_and_commands_run(page, tmp_path, monkeypatch):
    for extra in PAGES[page]:
        pytest.importorskip(extra)
    monkeypatch.chdir(tmp_path)  # for the pictures
    assert run_blocks(ROOT / "docs" / page) > 5


@pytest.mark.parametrize("page", PAGES)
def test_pictures_of_docs_are_small(page):
    images = re.findall(r"!\[[^]]*\]\(([^)]+)\)", (ROOT / "docs" / page).read_text())
    assert images
    for image in images:
        assert (ROOT / "docs" / image).stat().st_size < 150_000, image


@pytest.mark.parametrize(
    "name",
    [
        "README.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "examples/README.md",
        *(str(page.relative_to(ROOT)) for page in sorted((ROOT / "docs").rglob("*.md"))),
    ],
)
def test_links_lead_somewhere(name):
    page = ROOT / name
    for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if not link.startswith("http"):
            assert (page.parent / link).exists(), link


def test_every_map_is_listed():
    for name in kt.maps.names():
        assert f"`{name}" in README


def test_the_citation_names_this_version():
    citation = (ROOT / "CITATION.cff").read_text()
    assert re.findall(r"^version: (.+)$", citation, re.MULTILINE) == [kt.__version__]
