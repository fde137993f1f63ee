"""Rooms know each other by their public faces."""

import ast
import re
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "kerneltrick"


def private_imports():
    """Imports of another room's `_x.py`, or of one of its modules `_x`."""
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).parts
        own = parts[0] if len(parts) > 1 else ""
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ImportFrom) or not node.module or node.level:
                continue
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            for name in [node.module, *names]:
                found = re.match(r"kerneltrick\.([a-z]\w*)(\.[a-z]\w*)*\._\w+$", name)
                if found and found[1] != own:
                    yield f"{path.relative_to(SOURCE)}:{node.lineno}: {name}"


def test_rooms_import_each_other_through_their_public_faces():
    assert [*private_imports()] == []
