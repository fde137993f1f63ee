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


def test_code_runs_and_make_targets_exist():
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert blocks
    for block in blocks:
        exec(block, {})
    targets = re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"make ([a-z0-9-]+)", README)) <= set(targets)


@pytest.mark.parametrize(
    "page", [x if x in QUICK else pytest.param(x, marks=pytest.mark.slow) for x in PAGES]
)
def test_docs_code_blocks_and_commands_run(page, tmp_path, monkeypatch):
    for extra in PAGES[page]:
        pytest.importorskip(extra)
    monkeypatch.chdir(tmp_path)  # for the pictures
    assert run_blocks(ROOT / "docs" / page) > 5


def test_links_lead_somewhere_and_pictures_are_small():
    names = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "examples/README.md")
    for page in (*(ROOT / name for name in names), *sorted((ROOT / "docs").rglob("*.md"))):
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if not link.startswith("http"):
                assert (page.parent / link).exists(), (page.name, link)
    for page in PAGES:
        images = re.findall(r"!\[[^]]*\]\(([^)]+)\)", (ROOT / "docs" / page).read_text())
        assert images, page
        assert all((ROOT / "docs" / image).stat().st_size < 150_000 for image in images), page


def test_every_map_is_listed():
    for name in kt.maps.names():
        assert f"`{name}" in README


def test_the_citation_names_this_version():
    citation = (ROOT / "CITATION.cff").read_text()
    assert re.findall(r"^version: (.+)$", citation, re.MULTILINE) == [kt.__version__]
