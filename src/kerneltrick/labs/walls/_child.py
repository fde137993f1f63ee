"""The student's process: started as `python -I -B`, it knows the standard library and NumPy only.

One process, the server, imports NumPy once and forks for every file it is given: a keeper, which
builds the walls, and below it the worker, which runs the student's code. The worker loads the file,
then answers one call at a time. The right answers are in the grader's process alone.
"""

from __future__ import annotations
import __future__ as future

import ast
import builtins
import contextlib
import faulthandler
import gc
import inspect
import io
import json
import os
import re
import runpy
import signal
import socket
import sys
import tokenize
import tracemalloc
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from . import _count, _walls, _wire

MOST_CUTS = 100

Array = np.ndarray[Any, Any]


GIVEN: dict[str, Callable[..., Any]] = {}
"""The functions that the code can be passed, by name."""


def given_functions(path: str) -> dict[str, Callable[..., Any]]:
    """The public functions of a Python file."""
    names = runpy.run_path(path).items()
    own = {name: x for name, x in names if isinstance(x, types.FunctionType)}
    return {name: function for name, function in own.items() if not name.startswith("_")}


def parse(source: bytes, filename: str) -> tuple[ast.Module, list[dict[str, Any]]]:
    """The syntax tree of what can be parsed, and what had to be cut out for it.

    >>> tree, cuts = parse(b"def f(x):\\n    return x +\\n\\ndef g(x):\\n    return x\\n", "lab.py")
    >>> [node.name for node in tree.body], cuts[0]["name"], cuts[0]["line"]
    (['g'], 'f', 2)
    """
    encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
    lines = source.decode(encoding).replace("\r\n", "\n").replace("\r", "\n").split("\n")
    cuts: list[dict[str, Any]] = []
    while True:
        try:
            return ast.parse("\n".join(lines), filename), cuts
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            line = getattr(error, "lineno", None)
            text = getattr(error, "msg", None) or str(error) or type(error).__name__
            block = _block(lines, line) if line else None
            cut = {"line": line, "text": text[:300], "type": type(error).__name__, "name": None}
            cuts.append(cut)
            if block is None or len(cuts) > MOST_CUTS:
                return ast.Module([], []), [{**cut, "all": True}]
            first, last, cut["name"] = block
            lines[first:last] = [""] * (last - first)


_DEFINITION = re.compile(r"(?:async\s+)?def\s+(\w+)|class\s+(\w+)")


def _block(lines: list[str], line: int) -> tuple[int, int, str | None] | None:
    """The top-level block that holds a line: from, to, and the function it defines."""
    at = min(line, len(lines)) - 1
    while at > 0 and not lines[at].strip():
        at -= 1  # an error at the end of the file
    if not lines[at].strip():
        return None
    first = at
    while first > 0 and not re.match(r"[A-Za-z_@]", lines[first]):
        first -= 1
    name = _DEFINITION.match(lines[first])
    while first > 0 and lines[first - 1].startswith("@"):
        first -= 1
    if name is None and lines[first].startswith("@"):
        following = (_DEFINITION.match(text) for text in lines[first:])
        name = next((found for found in following if found), None)
    last = at + 1
    if name is not None:
        last = max(last, first + 1)
        while last < len(lines) and not re.match(r"[A-Za-z_@]", lines[last]):
            last += 1
    return first, last, (name[1] or name[2]) if name else None


class Student:
    """The student's module, executed statement by statement: one that fails stops no other."""

    def __init__(self, source: bytes, filename: str, packages: list[str]) -> None:
        self.filename = filename
        self.module = types.ModuleType(filename.removesuffix(".py"))
        self.module.__file__ = filename
        own = {**vars(builtins), "__import__": importer(self.module.__name__, packages)}
        self.module.__dict__["__builtins__"] = own
        self.functions: dict[str, dict[str, Any]] = {}
        self.problems: list[dict[str, Any]] = []
        try:
            self.tree, self.problems = parse(source, filename)
        except (SyntaxError, UnicodeDecodeError, LookupError) as error:
            self.tree = ast.Module([], [])
            text = f"the file cannot be read as text ({error}); save it as UTF-8"
            self.problems = [{"line": None, "text": text, "type": "SyntaxError", "all": True}]

    def run(self, without: list[int] | None, at: Callable[[int], None]) -> None:
        """Execute it; see `Worker.load`. `at` is told the line of each statement."""
        sys.modules[self.module.__name__] = self.module
        flags = 0
        for node in self.tree.body:
            if isinstance(node, ast.ImportFrom) and node.module == "__future__":
                names = (getattr(future, alias.name, None) for alias in node.names)
                flags |= sum(feature.compiler_flag for feature in names if feature)
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                self.functions[node.name] = self._about(node)
            elif without is not None and not isinstance(
                node, (ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign)
            ):
                continue
            if node.lineno in (without or ()):
                continue
            at(node.lineno)
            self._execute(node, flags)

    @staticmethod
    def _about(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> dict[str, Any]:
        names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
        parameters: list[str] = []
        if not isinstance(node, ast.ClassDef):
            parameters = [x.arg for x in (*node.args.posonlyargs, *node.args.args)]
        return {"line": node.lineno, "uses": sorted(names), "parameters": parameters}

    def _execute(self, node: ast.stmt, flags: int) -> None:
        try:
            code = compile(ast.Module([node], []), self.filename, "exec", flags, True)
            exec(code, self.module.__dict__)
        except BaseException as error:  # SystemExit too: the file goes on behind it
            problem = describe(error, self.filename)
            if isinstance(error, SyntaxError):
                problem["name"] = getattr(node, "name", None)
            if problem["line"] is None:
                problem["line"] = getattr(error, "lineno", None) or node.lineno
            self.problems.append(problem)


def importer(module: str, packages: list[str]) -> Callable[..., Any]:
    """An `import` for the student's own code that says what is allowed. It is no wall."""
    # `refuse` has more to say about kerneltrick.
    allowed = {*sys.stdlib_module_names, *packages, module, "kerneltrick"}

    def import_allowed(name: str, *more: Any, **options: Any) -> Any:
        root = name.partition(".")[0]
        if root and root not in allowed:
            listed = ", ".join(packages)
            raise ImportError(
                f"{root} cannot be imported here: use Python's own modules and {listed}"
            )
        return builtins.__import__(name, *more, **options)

    return import_allowed


def describe(error: BaseException, filename: str) -> dict[str, Any]:
    """An exception: its type, its text, and the line of the student's file it came from."""
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == filename:
            line = trace.tb_lineno
        trace = trace.tb_next
    try:
        text = str(error)
    except BaseException:
        text = ""
    bases = [base.__name__ for base in type(error).__mro__]
    return {"type": bases[0], "bases": bases, "text": text[:500], "line": line}


def resolve(tree: Any, given: dict[str, Callable[..., Any]]) -> Any:
    """The arguments with the given functions in place of their names."""
    if isinstance(tree, _wire.Given):
        return given[tree.name]
    if isinstance(tree, (list, tuple)):
        return type(tree)(resolve(part, given) for part in tree)
    if isinstance(tree, dict):
        return {key: resolve(value, given) for key, value in tree.items()}
    return tree


def arrays(tree: Any) -> list[Array]:
    """All arrays of the arguments, in order."""
    if isinstance(tree, np.ndarray):
        return [tree]
    if isinstance(tree, dict):
        tree = list(tree.values())
    return [x for part in tree for x in arrays(part)] if isinstance(tree, (list, tuple)) else []


def call(
    student: Student, name: str, arguments: Any, options: Any, trace: bool, most: int | None
) -> tuple[dict[str, Any], Any]:
    """Call a function of the student: what came of it, and the answer; see `Worker.call`."""
    function = student.module.__dict__.get(name)
    if function is None or not callable(function):
        return {"kind": "missing"}, None
    arguments, options = resolve(arguments, GIVEN), resolve(options, GIVEN)
    try:
        signature = inspect.signature(function)
    except Exception:  # a function written in C may have none, a student's class may do anything
        signature = None
    if signature is not None:
        try:
            signature.bind(*arguments, **options)
        except TypeError as error:
            text = str(signature)[:300]
            return {"kind": "signature", "text": str(error)[:300], "signature": text}, None
    given = arrays([arguments, options])
    before = [x.tobytes() for x in given]
    if trace:
        gc.collect()
        tracemalloc.start()
    counter = _count.OperationCounter(student.filename, most or 0)
    try:
        value = None
        if most is None:
            value = function(*arguments, **options)
        else:
            counter.call(function, arguments, options)
        fields: dict[str, Any] = {"kind": "answer"}
    except BaseException as error:
        value = None
        fields = {"kind": "exception", **describe(error, student.filename)}
    if trace:
        fields["peak"] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    if most is not None:
        fields["operations"] = counter.operations
    after = [x.tobytes() for x in given]
    fields["changed"] = [at for at in range(len(given)) if after[at] != before[at]]
    return fields, value


def read_exactly(descriptor: int, count: int) -> bytes:
    """So many bytes; without a grader at the other end, the process ends."""
    found = b""
    while len(found) < count:
        piece = os.read(descriptor, min(count - len(found), 2**20))
        if not piece:
            os._exit(0)
        found += piece
    return found


def read_message(descriptor: int) -> tuple[dict[str, Any], dict[str, Any]]:
    start = read_exactly(descriptor, _wire.HEAD.size)
    return _wire.unpack(start + read_exactly(descriptor, (_wire.size(start) or 0) - len(start)))


def write_all(descriptor: int, message: bytes) -> None:
    view = memoryview(message)
    while view:
        view = view[os.write(descriptor, view) :]


def work(requests: int, answers: int) -> None:
    """Load the file, then answer calls, until the grader goes away."""
    fields, values = read_message(requests)

    def reply(fields: dict[str, Any], ticket: str, value: Any = None) -> None:
        write_all(answers, _wire.pack({**fields, "ticket": ticket}, value=value))

    ticket = fields["ticket"]
    student = Student(values["source"].tobytes(), fields["filename"], fields["packages"])
    student.run(fields["without"], lambda line: reply({"kind": "at", "line": line}, ticket))
    found = {"functions": student.functions, "problems": student.problems}
    reply({"kind": "loaded", **found}, ticket)
    while True:
        fields, values = read_message(requests)
        how = fields["trace"], fields["most"]
        result, value = call(student, fields["name"], values["arguments"], values["options"], *how)
        reply(result, fields["ticket"], value)
        del values, value  # the next call has all the memory again


def start_worker(order: dict[str, Any], descriptors: list[int]) -> None:
    """Become the worker: nothing but the walls stands between here and the student's code."""
    requests, answers, output = descriptors
    os.setsid()
    _walls.die_with_parent()
    os.chdir(order["folder"])
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    kept = sorted((requests, answers))
    for first, last in zip([3, *(k + 1 for k in kept)], [*kept, 4096], strict=True):
        os.closerange(first, last)
    _walls.limit(order["memory"], order["seconds"])
    if order["filter"]:
        _walls.filter_calls()
    _walls.refuse(order["package"])
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=False)  # where does it loop?
    work(requests, answers)


def keep(order: dict[str, Any], descriptors: list[int], report: int) -> int:
    """Build the walls, start the worker, and outlive it to end what it leaves behind."""
    _walls.die_with_parent()
    _walls.leave_root(order["readable"])
    walls = ["network", "processes"] if order["filter"] else []
    if order["namespaces"] and _walls.separate(order["folder"], order["package"]):
        walls.append("files")
    _walls.adopt_orphans()
    worker = os.fork()
    if worker == 0:
        os.close(report)
        try:
            start_worker(order, descriptors)
        finally:
            os._exit(1)
    for descriptor in descriptors:
        os.close(descriptor)
    os.write(report, json.dumps({"pid": worker, "walls": walls}).encode())
    os.close(report)
    code = os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(worker, signal.SIGKILL)
    _walls.sweep()
    return code if code >= 0 else 128 - code


def serve(descriptor: int, given: str) -> None:
    """Start and stop workers as the grader says; when it goes away, end."""
    if given:
        GIVEN.update(given_functions(given))
    control = socket.socket(fileno=descriptor)
    possible: dict[str, bool] = {}
    keeper = worker = 0
    folder = ""
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 2**16, 3)
        if keeper:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
                os.kill(keeper, signal.SIGCONT)  # student code may have stopped it
            code = os.waitstatus_to_exitcode(os.waitpid(keeper, 0)[1])
            keeper = 0
        if not message:
            with contextlib.suppress(OSError):
                os.rmdir(folder)  # a grader that was killed has not done it
            return
        order = json.loads(message)
        if order["do"] == "stop":
            control.sendall(json.dumps({"code": code}).encode())
            continue
        folder = order["folder"]
        if not possible:
            possible = {
                "namespaces": _walls.works(_walls.separate, folder, order["package"]),
                "filter": _walls.works(_walls.filter_calls),
            }
        for wall, works in possible.items():
            order[wall] = order[wall] and works
        order["readable"] = [str(np.__file__), str(os.__file__)]
        reading, writing = os.pipe()
        keeper = os.fork()
        if keeper == 0:
            code = 1
            try:
                control.close()
                os.close(reading)
                code = keep(order, descriptors, writing)
            finally:
                os._exit(code)
        for open_here in (writing, *descriptors):
            os.close(open_here)
        report = os.read(reading, 2**16)
        os.close(reading)
        worker = json.loads(report)["pid"] if report else keeper
        control.sendall(report or b'{"pid": 0, "walls": []}')
