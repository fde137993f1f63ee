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


def definitions(kinds):
    """The classes or functions of the package, as (name, file)."""
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, kinds):
                yield node.name.strip("_"), str(path.relative_to(SOURCE))


# Two public classes may have one name where they live in namespaces of their own.
SHARED = {"Custom", "Kernel", "Machine", "Operator", "Polynomial", "Problem", "Result", "Server",
          "Statement", "Taylor"}  # fmt: skip
VAGUE = {"settle", "fold", "kept", "lent", "hand", "part", "turn", "turns", "own", "made", "attend"}


def test_a_class_has_a_name_of_its_own():
    places = {}
    for name, file in definitions(ast.ClassDef):
        places.setdefault(name, set()).add(file)
    shared = {name for name, files in places.items() if len(files) > 1}
    assert shared <= SHARED, {name: places[name] for name in shared - SHARED}


def test_names_can_be_searched():
    found = [x for x in definitions((ast.FunctionDef, ast.ClassDef)) if x[0].lower() in VAGUE]
    # Another name would make its picture old.
    assert found == [("attend", "simulate/_svm.py")]


def test_few_lines_are_laid_out_by_hand():
    lines = [line for path in SOURCE.rglob("*.py") for line in path.read_text("utf-8").splitlines()]
    assert sum("# fmt: skip" in line for line in lines) < 30
