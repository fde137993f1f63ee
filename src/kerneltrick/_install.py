"""How to install an extra of this package: from where the package itself was installed."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit


def missing(what: str, extra: str, error: ImportError | None = None) -> ImportError:
    """Return the error for something that is not installed, as one sentence with the remedy.

    >>> str(missing("a picture needs matplotlib", "plot")).partition(":")[0]
    'a picture needs matplotlib'
    """
    why = "" if error is None else f" ({error})"
    return ImportError(f"{what}{why}: {install_command(extra)}")


def install_command(extra: str) -> str:
    """Return the command that installs an extra, in a checkout, from a wheel or from an index."""
    root = Path(__file__).resolve().parents[2]
    if (root / "pyproject.toml").is_file() and (root / "src" / "kerneltrick").is_dir():
        where = "." if root == Path.cwd() else str(root)
        return "pip install -e " + shlex.quote(f"{where}[{extra}]")
    origin = _origin()
    parts = urlsplit(origin.get("url", ""))
    if parts.scheme == "file" and "dir_info" in origin:
        return "pip install " + shlex.quote(f"{unquote(parts.path)}[{extra}]")
    source = ""
    if "archive_info" in origin:
        source = f" @ {origin['url']}"
    elif "vcs_info" in origin:
        source = f" @ {origin['vcs_info'].get('vcs', 'git')}+{origin['url']}"
    return "pip install " + shlex.quote(f"kerneltrick[{extra}]{source}")


def _origin() -> dict[str, Any]:
    """What pip noted about where the package came from (PEP 610); empty for an index."""
    import importlib.metadata  # slow to import

    try:
        found = importlib.metadata.distribution("kerneltrick").read_text("direct_url.json")
        return dict(json.loads(found)) if found else {}
    except (importlib.metadata.PackageNotFoundError, OSError, ValueError, TypeError):
        return {}
