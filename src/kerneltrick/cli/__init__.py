"""The command `kerneltrick`."""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False  # as in kerneltrick/__init__.py: nothing is loaded before Ctrl-C is handled
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, NoReturn

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit (see `kerneltrick --help` for the exit codes).

    The commands are imported here, with Ctrl-C already handled: until they are loaded it ends the
    process at once, wherever an import happens to be.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # ignored, or a notebook's: left as it is
        signal.signal(signal.SIGINT, _stop)
    try:
        from kerneltrick.cli._app import run
    finally:
        if before is signal.default_int_handler:
            signal.signal(signal.SIGINT, before)
    sys.exit(run(list(sys.argv[1:] if arguments is None else arguments)))


def _stop(*_: Any) -> None:
    os.write(2, b"kerneltrick: stopped\n")
    os._exit(130)
