"""What the README says is true: its code runs, its commands exist, its links lead somewhere."""

import re
from pathlib import Path

import pytest

import kerneltrick as kt

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


def test_code_runs():
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert blocks
    for block in blocks:
        exec(block, {})


@pytest.mark.parametrize("target", re.findall(r"make ([a-z-]+)", README))
def test_make_targets_exist(target):
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "docs/performance.md"])
def test_links_lead_somewhere(name):
    page = ROOT / name
    for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if not link.startswith("http"):
            assert (page.parent / link).exists(), link


def test_every_map_is_listed():
    for name in kt.maps.names():
        assert f"`{name}" in README
