"""Let the tests import your functions from the file in src/, or else from the notebook."""

import ast
import json
import re
import sys
import types
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent
FILE = FOLDER / "src" / "delta_rule.py"
NOTEBOOK = FOLDER / "lab08_delta_rule.ipynb"
ASSIGNMENTS = (ast.Assign, ast.AnnAssign)
KEPT = (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, *ASSIGNMENTS)


def load_notebook():
    """A module with the functions, imports and assignments of the notebook."""
    module = types.ModuleType(FILE.stem)
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    for number, cell in enumerate(cells, 1):
        text = "".join(cell["source"])
        if cell["cell_type"] != "code" or text.startswith("%%"):
            continue
        where = f"{NOTEBOOK.name}, cell {number}"
        text = re.sub(r"^(\s*)[%!?].*$", r"\1pass", text, flags=re.M)
        for statement in ast.parse(text, where).body:
            if isinstance(statement, KEPT):
                try:
                    exec(compile(ast.Module([statement], []), where, "exec"), module.__dict__)
                except Exception:
                    if not isinstance(statement, ASSIGNMENTS):
                        raise
    return module


sys.path.insert(0, str(FILE.parent))
if not FILE.exists() and FILE.stem not in sys.modules:
    if not NOTEBOOK.exists():
        raise FileNotFoundError(f"there is neither {FILE} nor {NOTEBOOK}")
    sys.modules[FILE.stem] = load_notebook()
