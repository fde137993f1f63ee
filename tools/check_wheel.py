"""Install the wheel of dist/ into a new environment and use it there: `make build`."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

PROGRAM = """
import numpy as np, kerneltrick as kt, kerneltrick._core
q, k, v = np.random.default_rng(0).standard_normal((3, 100, 8))
out, state = kt.linear_attention(q, k, v, "elu", causal=True, return_state=True)
assert out.shape == (100, 8) and state.stop == 100
print("kerneltrick", kt.__version__, "works from", kt.__file__)
"""
LIMIT = 8e6  # bytes in the wheel


def main(folder: str) -> int:
    (wheel,) = Path(folder).glob("*.whl")
    (sdist,) = Path(folder).glob("*.tar.gz")
    names = zipfile.ZipFile(wheel).namelist()
    for needed in (
        "kerneltrick/py.typed",
        "kerneltrick/maps/_favor.py",
        "kerneltrick/analysis/sample/minilm-moby-dick.safetensors",
        "kerneltrick/analysis/sample/NOTE.md",
        "kerneltrick/inspection/model/model.safetensors",
        "kerneltrick/inspection/model/text.txt",
        "kerneltrick/report/page/frame.html",
        "kerneltrick/report/page/base.js",
        "kerneltrick/report/page/evaluation/body.html",
        "kerneltrick/labs/lab02_kernel_trick/src/kernel_trick.py",
        "kerneltrick/labs/lab02_kernel_trick/pyproject.toml",
        "kerneltrick/labs/notebooks/lab02_kernel_trick.ipynb",
        "kerneltrick/docs/02_kernel_trick.md",
    ):
        assert needed in names, f"{needed} is missing from {wheel.name}"
    cores = [name for name in names if name.endswith((".so", ".pyd"))]
    assert len(cores) == 1, f"{wheel.name} should have one compiled core and has {cores}"
    assert cores[0].startswith("kerneltrick/_core."), f"{cores[0]} is not the compiled core"
    size = wheel.stat().st_size
    assert size <= LIMIT, f"{wheel.name} has {size / 1e6:.2f} MB, more than {LIMIT / 1e6:.0f} MB"
    with tarfile.open(sdist) as archive:
        inside = {"/".join(name.split("/")[1:]) for name in archive.getnames()}
    for needed in (
        "pyproject.toml",
        "LICENSE",
        "README.md",
        "tests/oracle.py",
        "Makefile",
        "CMakeLists.txt",
        "native/kernels.cpp",
        "native/bind.cpp",
    ):
        assert needed in inside, f"{needed} is missing from {sdist.name}"
    with tempfile.TemporaryDirectory() as home:
        venv.create(home, with_pip=True)
        python = Path(home) / "bin" / "python"
        subprocess.run([python, "-m", "pip", "install", "-q", wheel], check=True)
        subprocess.run([python, "-c", PROGRAM], check=True, cwd=home)
        command = Path(home) / "bin" / "kerneltrick"
        subprocess.run([command, "--version"], check=True, cwd=home)
        subprocess.run([command, "lab", "start", "02"], check=True, cwd=home)
    print(f"{wheel.name}: {size / 1e3:.0f} kB, {sdist.name}: checked")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
