"""The build of the compiled core. With KERNELTRICK_REQUIRE_NATIVE=1, as in CI, it must exist."""

from __future__ import annotations

import importlib
import os
import platform
import re
import shutil
import subprocess
from types import ModuleType

import pytest

REQUIRED = os.environ.get("KERNELTRICK_REQUIRE_NATIVE") == "1"


@pytest.fixture(scope="module")
def core() -> ModuleType:
    try:
        return importlib.import_module("kerneltrick._core")
    except ModuleNotFoundError:
        if REQUIRED:
            raise
        pytest.skip("kerneltrick was installed without its compiled core")


def test_core_is_installed_where_it_is_required(core):
    assert core.__name__ == "kerneltrick._core"


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="AVX is an x86 word")
def test_avx_instructions_are_only_in_the_namespaces_chosen_at_run_time(core):
    """An inline function compiled for AVX but used by the baseline would crash old CPUs."""
    objdump = shutil.which("objdump")
    if objdump is None:
        if REQUIRED:
            pytest.fail("objdump is missing: install binutils")
        pytest.skip("objdump is missing")
    listing = subprocess.run(
        [objdump, "-d", "-C", "--no-show-raw-insn", core.__file__],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    functions = re.findall(r"^[0-9a-f]+ <(.+)>:$((?:\n.+)*)", listing, re.MULTILINE)
    if not any("baseline" in name for name, _ in functions):
        pytest.skip("this core was stripped: it is not the editable install of `make test`")
    wide = {name for name, body in functions if re.search(r"^ +[0-9a-f]+:\tv", body, re.MULTILINE)}
    assert sorted(name for name in wide if not re.search(r"\bavx(2|512)\b", name)) == []
