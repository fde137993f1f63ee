"""The command `kerneltrick`."""

from kerneltrick.cli._app import main

__all__ = ["main"]
