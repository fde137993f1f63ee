"""The grader's side of the student's process: start it, ask it, stop it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

import kerneltrick
from kerneltrick.labs.walls import _wire

PATIENCE = 3  # wall time is allowed to be so many times the CPU time
TICK = 0.05
OUTPUT_KEPT = 10_000  # bytes of what the student's code prints

# The child has a package of its own, so that nothing of kerneltrick is imported there.
BOOT = """
import sys, types
folder, numpy_home, descriptor, given = sys.argv[1:]
try:
    import numpy
except ImportError:
    sys.path.append(numpy_home)
package = types.ModuleType("walls")
package.__path__ = [folder]
sys.modules["walls"] = package
from walls import _child
package.__path__ = []
_child.serve(int(descriptor), given)
"""


@dataclass(frozen=True)
class Limits:
    """What a student's file may use. Times are CPU seconds; of wall time, three times as much."""

    call: float = 10.0
    total: float = 60.0
    memory: int = 2**30  # bytes, beyond what Python and NumPy take
    namespaces: bool = True  # use Linux namespaces where they are allowed
    filter: bool = True  # refuse system calls where Linux can
    root: bool = False  # run the code although we are root and its files have no walls
    packages: tuple[str, ...] = ("numpy", "matplotlib")  # to import beside Python's own modules


class Slow(Exception):
    """A call, or the loading of the file, took too long; `line` is where it was."""

    def __init__(self, line: int | None) -> None:
        self.line = line


class Died(Exception):
    """The process ended without an answer."""

    def __init__(self, code: int, line: int | None = None) -> None:
        self.code, self.line = code, line


class Refused(Exception):
    """The code is not run: it could change every file of the machine."""


class Cancelled(BaseException):
    """The grading was called off."""


class Server:
    """A process that has NumPy loaded and makes a new worker for every file; a context manager.

    `given` is a Python file with functions that the code can be passed as arguments.
    """

    def __init__(self, limits: Limits | None = None, given: Path | None = None) -> None:
        if not hasattr(os, "fork"):
            raise OSError("grading needs Linux or macOS; on Windows, use WSL")
        self.limits = limits or Limits()
        self.given = "" if given is None else str(given)
        self.folder = Path(tempfile.mkdtemp(prefix="kerneltrick-lab-"))
        self.process: subprocess.Popen[bytes] | None = None
        self.cancelled = False
        self.walls: list[str] = []

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the process and what it started."""
        self._end()
        shutil.rmtree(self.folder, ignore_errors=True)

    def cancel(self) -> None:
        """Have whoever grades with it, in another thread, end with `Cancelled`."""
        self.cancelled = True

    def _end(self) -> None:
        if self.process is not None:
            self.control.close()  # it ends its worker and itself
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process = None

    def _begin(self) -> None:
        ours, theirs = socket.socketpair()
        arguments = [
            str(Path(__file__).parent),
            str(Path(np.__file__).parent.parent),
            str(theirs.fileno()),
            self.given,
        ]
        one = dict.fromkeys(("OPENBLAS", "OMP", "MKL", "VECLIB_MAXIMUM"), "1")
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-B", "-X", "utf8", "-c", BOOT, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={
                "PATH": os.defpath,
                "HOME": "/",
                "TMPDIR": str(self.folder),
                "MPLCONFIGDIR": str(self.folder),
                "MPLBACKEND": "agg",  # pictures of an exercise go nowhere
                **{f"{k}_NUM_THREADS": v for k, v in one.items()},
            },
            start_new_session=True,  # Ctrl-C is ours to handle
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        self.control = ours

    def worker(self) -> Worker:
        """A new worker, behind its walls, with nothing loaded."""
        try:
            found = self._worker()
        except OSError:  # the server is gone: student code may have ended it
            self._end()
            found = self._worker()
        if os.geteuid() == 0 and "files" not in self.walls and not self.limits.root:
            found.stop()
            raise Refused(
                "there are no Linux namespaces here, and run as root student code could change "
                "every file: grade as another user"
            )
        return found

    def _worker(self) -> Worker:
        if self.process is None:
            self._begin()
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(mode=0o777)
        self.folder.chmod(0o777)
        pipes = [os.pipe() for _ in range(3)]
        (request, requests), (answers, answer), (output, printed) = pipes
        order = {
            "do": "start",
            "folder": str(self.folder),
            "memory": self.limits.memory,
            "seconds": 2 * self.limits.total,
            "namespaces": self.limits.namespaces,
            "filter": self.limits.filter,
            "package": str(Path(kerneltrick.__file__).parent),
        }
        try:
            socket.send_fds(self.control, [json.dumps(order).encode()], [request, answer, printed])
            reply = self._reply()
        except OSError:
            for descriptor in (requests, answers, output):
                os.close(descriptor)
            raise
        finally:
            for descriptor in (request, answer, printed):
                os.close(descriptor)
        self.walls = reply["walls"]
        return Worker(self, reply["pid"], requests, answers, output)

    def _reply(self) -> dict[str, Any]:
        self.control.settimeout(60)
        message = self.control.recv(2**16)
        if not message:
            raise ConnectionError("the server ended")
        found: dict[str, Any] = json.loads(message)
        return found

    def stop(self) -> int:
        """End the worker and all it started; its exit code."""
        try:
            self.control.sendall(b'{"do": "stop"}')
            return int(self._reply()["code"])
        except (OSError, ValueError, KeyError):
            self._end()
            return -1


def whole(x: Any) -> int | None:
    """A whole number of a message, which may hold anything: a line, or a count."""
    return x if type(x) is int and abs(x) < 10**15 else None


@dataclass(frozen=True)
class Loaded:
    """What the process says of the file: names used by each function, lines, and problems."""

    uses: dict[str, set[str]] = field(default_factory=dict)
    lines: dict[str, int | None] = field(default_factory=dict)
    parameters: dict[str, list[str]] = field(default_factory=dict)
    problems: tuple[dict[str, Any], ...] = ()

    @classmethod
    def read(cls, fields: dict[str, Any]) -> Loaded:
        """From a message, which may hold anything."""
        try:
            functions = {str(name): dict(about) for name, about in fields["functions"].items()}
            uses = {name: set(map(str, about["uses"])) for name, about in functions.items()}
            problems = [
                {
                    "line": whole(problem.get("line")),
                    "type": str(problem["type"]),
                    "text": str(problem["text"]),
                    "name": str(problem.get("name")),
                    "all": bool(problem.get("all")),
                }
                for problem in fields["problems"]
            ]
            lines = {name: whole(about.get("line")) for name, about in functions.items()}
            parameters = {
                name: [str(x) for x in about["parameters"]] for name, about in functions.items()
            }
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            raise _wire.Unreadable(f"{type(error).__name__} in what was loaded") from None
        return cls(uses, lines, parameters, tuple(problems))


class Worker:
    """One process with the student's code in it."""

    def __init__(self, server: Server, pid: int, requests: int, answers: int, output: int) -> None:
        self.server, self.pid = server, pid
        self.requests, self.answers, self.output = requests, answers, output
        self.received, self.printed = bytearray(), b""
        self.used = 0.0  # seconds
        os.set_blocking(requests, False)
        os.set_blocking(answers, False)
        os.set_blocking(output, False)
        self.selector = selectors.DefaultSelector()
        self.selector.register(answers, selectors.EVENT_READ)
        self.selector.register(output, selectors.EVENT_READ)
        self.code: int | None = None

    def load(self, source: bytes, filename: str, without: list[int] | None = None) -> Loaded:
        """Load the student's file: the functions it has, and what failed on the way.

        With `without`, statements on these lines, and all but definitions, imports and
        assignments, are left out.
        """
        packages = list(self.server.limits.packages)
        order = {"filename": filename, "without": without, "packages": packages}
        line = None
        try:
            for fields, _ in self._ask(order, source=np.frombuffer(source, np.uint8)):
                if fields.get("kind") == "loaded":
                    return Loaded.read(fields)
                line = whole(fields.get("line"))
        except Slow:
            raise Slow(line) from None
        except Died as error:
            raise Died(error.code, line) from None
        raise Died(self.stop(), line)

    def call(
        self,
        name: str,
        arguments: tuple[Any, ...] = (),
        options: dict[str, Any] | None = None,
        trace: bool = False,
        most: int | None = None,
    ) -> tuple[dict[str, Any], Any]:
        """Call one function: what came of it, and its answer.

        The `kind` of the fields is "answer", "exception", "missing" or "signature". With `trace`
        they have the peak memory of the call. With `most` they have its `operations` instead of an
        answer; it is stopped where it takes more than that, but for 0, which sets no limit.
        """
        request = {"name": name, "trace": trace, "most": most}
        for fields, values in self._ask(request, arguments=arguments, options=options or {}):
            return {**fields, "line": whole(fields.get("line"))}, values.get("value")
        raise Died(self.stop())

    def stop(self) -> int:
        """End it and all it started; its exit code."""
        if self.code is None:
            self.code = self.server.stop()
            self.selector.close()
            for descriptor in (self.requests, self.answers, self.output):
                os.close(descriptor)
        return self.code

    def peak(self) -> int:
        """The most memory it has had so far, in bytes; 0 where that is not known."""
        with contextlib.suppress(OSError):
            found = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{self.pid}/status").read_text())
            return int(found[1]) * 1024 if found else 0
        return 0

    def _cpu(self) -> float:
        with contextlib.suppress(OSError, IndexError, ValueError):
            stat = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
            return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")
        return 0.0

    def _ask(
        self, fields: dict[str, Any], **values: Any
    ) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """Send a request, and yield the messages that answer it."""
        ticket = secrets.token_hex(8)
        to_send = memoryview(_wire.pack({**fields, "ticket": ticket}, **values))
        self.selector.register(self.requests, selectors.EVENT_WRITE)
        clock = _Clock(self._cpu, self.server.limits.call)
        try:
            while True:
                while (message := self._message()) is not None:
                    found, answer = message
                    if found.get("ticket") == ticket:  # else: forged, or late
                        yield found, answer
                for key, _ in self.selector.select(TICK):
                    if key.fd == self.requests:
                        to_send = self._send(to_send)
                    elif key.fd == self.output:
                        self._read_output()
                    elif not self._receive():
                        raise Died(self.stop())
                if self.server.cancelled:
                    raise Cancelled
                if clock.over():
                    line = self._where()
                    self.stop()
                    raise Slow(line)
        except (BrokenPipeError, ConnectionError):
            raise Died(self.stop()) from None
        finally:
            self.used += clock.used()
            with contextlib.suppress(KeyError, ValueError):
                self.selector.unregister(self.requests)

    def _receive(self) -> bool:
        """Read what is there; False at the end."""
        with contextlib.suppress(BlockingIOError):  # a pipe can be read from its other end too
            piece = os.read(self.answers, 2**20)
            self.received += piece
            return bool(piece)
        return True

    def _send(self, to_send: memoryview) -> memoryview:
        with contextlib.suppress(BlockingIOError):
            to_send = to_send[os.write(self.requests, to_send[: 2**16]) :]
        if not to_send:
            self.selector.unregister(self.requests)
        return to_send

    def _read_output(self) -> None:
        with contextlib.suppress(BlockingIOError):
            piece = os.read(self.output, 2**20)
            self.printed = (self.printed + piece)[-OUTPUT_KEPT:]
            if not piece:
                self.selector.unregister(self.output)

    def _message(self) -> tuple[dict[str, Any], dict[str, Any]] | None:
        total = _wire.size(self.received)
        if total is None or len(self.received) < total:
            return None
        message = bytes(self.received[:total])
        del self.received[:total]
        return _wire.unpack(message)

    def _where(self) -> int | None:
        """The line of the student's file that is running now, as the process tells it."""
        self.printed = b""
        if self.pid <= 0:  # it never began, and 0 would be ourselves
            return None
        with contextlib.suppress(OSError):
            os.kill(self.pid, signal.SIGUSR1)
        place = re.compile(rb'File "[^"/]+\.py", line (\d+) in .*\n')
        deadline = time.monotonic() + 1
        while time.monotonic() < deadline and not place.search(self.printed):
            for key, _ in self.selector.select(TICK):
                if key.fd == self.output:
                    self._read_output()
        found = place.search(self.printed)
        return int(found[1]) if found else None


class _Clock:
    """Time used, that stands still while we ourselves are stopped."""

    def __init__(self, cpu: Callable[[], float], seconds: float) -> None:
        self.cpu, self.seconds = cpu, seconds
        self.first = cpu()
        self.wall = self.most = 0.0
        self.last = self.look = time.monotonic()

    def over(self) -> bool:
        now = time.monotonic()
        self.wall += min(now - self.last, 4 * TICK)
        self.last = now
        if now < self.look:
            return False
        self.look = now + TICK
        return self.used() > self.seconds

    def used(self) -> float:
        self.most = max(self.most, self.cpu() - self.first, self.wall / PATIENCE)
        return self.most
