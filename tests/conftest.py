import functools
import gc
import os
import shutil
import signal
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
from native_cases import ISAS

import kerneltrick as kt
from kerneltrick.engines import core

gc.disable()  # until all tests are collected; it would take three quarters of that time

FLAGS = ["--no-sandbox", "--disable-background-networking", "--disable-gpu"]

# A shell starts background jobs with Ctrl-C ignored, and their children inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ["HF_HUB_OFFLINE"] = "1"  # transformers reads it on import; no test downloads anything
# Some virtual machines report AMX and then end every program that uses it, as PyTorch's products of
# bfloat16 do. PyTorch reads this on import.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

# Numbers of examples for `make test`, for `make test-all`, and for long runs by hand.
for profile, examples in {"default": 15, "all": 40, "long": 2000}.items():
    hypothesis.settings.register_profile(
        profile, deadline=None, max_examples=examples, derandomize=bool(os.environ.get("CI"))
    )
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or "default")


def pytest_collection_finish() -> None:
    gc.freeze()  # modules and tests live until the end, so the collector need not visit them
    gc.enable()


def missing(reason: str) -> None:
    if os.environ.get("KERNELTRICK_REQUIRE_BROWSER") == "1":
        pytest.fail(f"KERNELTRICK_REQUIRE_BROWSER=1, but {reason}")
    pytest.skip(reason)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium. Without it, a test is skipped, or fails if a browser is required."""
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


@functools.cache
def commands() -> Any:
    """All commands, which typer builds anew at each call: nearly all the time of a short one."""
    from typer.main import get_command

    from kerneltrick.cli._app import app

    return get_command(app)


@pytest.fixture
def run(capsys: Any, monkeypatch: Any) -> Any:
    """Run the command line: arguments → exit code, standard output, standard error."""
    from kerneltrick.cli import main

    made = commands()
    monkeypatch.setattr("typer.main.get_command", lambda _: made)

    def run(*arguments: Any) -> tuple[Any, str, str]:
        with pytest.raises(SystemExit) as stopped:
            main([str(x) for x in arguments])
        printed = capsys.readouterr()
        return stopped.value.code, printed.out, printed.err

    return run


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    """A grader's process with the usual limits."""
    from kerneltrick.labs import grader

    with grader.Server(grader.Limits(call=10, total=60)) as found:
        yield found


@pytest.fixture(scope="module")
def hurried() -> Iterator[Any]:
    """A grader's process with a short time limit."""
    from kerneltrick.labs import grader

    with grader.Server(grader.Limits(call=0.6, total=20, memory=2**28)) as found:
        yield found


@pytest.fixture
def here(monkeypatch: Any) -> None:
    """`kerneltrick lab check` grades in this process, behind no walls."""
    from grading import Here

    from kerneltrick.labs import grader

    monkeypatch.setattr(grader, "Server", Here)


@pytest.fixture(params=ISAS)
def isa(request: Any, monkeypatch: Any) -> Any:
    """Each instruction set that the compiled core has and this CPU supports."""
    monkeypatch.setenv("KERNELTRICK_ISA", request.param)
    return request.param


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Two of the core's, at work however little there is; one of PyTorch's, whose many wait for
    each other on a busy machine.
    """
    compiled = core()
    if compiled is None:
        pytest.skip("kerneltrick was installed without its compiled core")
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    kt.set_num_threads(2)
    torch.set_num_threads(1)
    compiled.wake_always(True)
    yield
    compiled.wake_always(False)
    kt.set_num_threads(None)
    torch.set_num_threads(before)
