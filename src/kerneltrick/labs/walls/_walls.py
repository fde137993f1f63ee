"""Walls around the student's process. Linux has all of them; elsewhere some are missing.

This module runs in the student's process, before the student's code, and uses the standard
library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import _filter

with contextlib.suppress(ImportError):  # Windows has no such limits, and no grader
    import resource

NOBODY = 65534
MOST_PROCESSES = 64
MOST_FILES = 256
LARGEST_FILE = 64 * 2**20

_NEW_NAMESPACES = 0x10000000 | 0x40000000 | 0x20000000 | 0x00020000 | 0x08000000
"""CLONE_NEWUSER, NEWNET, NEWPID, NEWNS and NEWIPC."""
_MOUNT_SETATTR = 442  # the same number on every architecture; glibc has no function for it
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 4, 36, 38

_libc = ctypes.CDLL(None, use_errno=True)


def _call(function: str, *arguments: Any) -> None:
    if not hasattr(_libc, function):
        raise OSError(f"there is no {function} here")
    if getattr(_libc, function)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), function)


def _prctl(option: int, value: int) -> bool:
    try:
        _call("prctl", option, ctypes.c_ulong(value), *(ctypes.c_ulong(0),) * 3)
    except OSError:
        return False
    return True


def leave_root(readable: list[str]) -> None:
    """Go on as nobody, if we are root and nobody can read what Python needs.

    Root is exempt from the limit on processes, and may write anywhere.
    """
    if os.geteuid() != 0:
        return
    os.seteuid(NOBODY)
    able = all(os.access(path, os.R_OK, effective_ids=True) for path in readable)
    os.seteuid(0)
    if able:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        _prctl(_PR_SET_DUMPABLE, 1)  # else /proc/self belongs to root, and so do its id maps


def separate(folder: str, hidden: str) -> bool:
    """New namespaces: no network, processes that die together, and files that cannot be changed.

    The next child is the first process of the new namespace; all others die with it. `folder`
    becomes a small file system of its own, in memory, and the folder `hidden` an empty one.
    Whether the files are behind a wall.
    """
    user, group = os.geteuid(), os.getegid()
    _call("unshare", _NEW_NAMESPACES)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    try:
        private, nosuid_nodev = 0x40000 | 0x4000, 0x2 | 0x4
        _call("mount", None, b"/", None, ctypes.c_ulong(private), None)
        read_only = (ctypes.c_uint64 * 4)(1, 0, 0, 0)  # struct mount_attr: attr_set, …
        _call(
            "syscall",
            ctypes.c_long(_MOUNT_SETATTR),
            -100,
            b"/",
            0x8000,
            ctypes.byref(read_only),
            ctypes.c_size_t(32),
        )
        for where, flags in ((hidden, nosuid_nodev | 0x1), (folder, nosuid_nodev)):  # 1: read only
            options = f"size={LARGEST_FILE},mode=700".encode()
            _call("mount", b"tmpfs", where.encode(), b"tmpfs", ctypes.c_ulong(flags), options)
    except OSError:
        return False
    return True


def filter_calls() -> None:
    """No sockets, no other processes, nor memory outside of this one; see `_filter`."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _filter.install(os.getpid())


def works(wall: Callable[..., Any], *arguments: Any) -> bool:
    """Whether a wall can be built here, tried in a process of its own."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            wall(*arguments)
            code = 0
        except OSError:
            pass
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0


def die_with_parent() -> None:
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans() -> None:
    """Grandchildren that lose their parent become our children, for `sweep`."""
    _prctl(_PR_SET_SUBREAPER, 1)


def sweep() -> None:
    """Kill every child, and the children they leave, until there are none."""
    while True:
        for child in _children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _children() -> list[int]:
    try:
        return [int(n) for n in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    except OSError:
        return []


def limit(memory: int, seconds: float) -> None:
    """Memory beyond what is in use now, CPU time, sizes and numbers of files, processes."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    header, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    with contextlib.suppress(OSError):  # Linux only
        _call("capset", ctypes.byref(header), ctypes.byref(none))
    most = [
        ("RLIMIT_CORE", 0),
        ("RLIMIT_AS", _address_space() + memory),
        ("RLIMIT_CPU", int(seconds) + 1),
        ("RLIMIT_FSIZE", LARGEST_FILE),
        ("RLIMIT_NOFILE", MOST_FILES),
        ("RLIMIT_NPROC", MOST_PROCESSES),
    ]
    for name, value in most:
        number = getattr(resource, name, None)
        if number is not None:
            _, hard = resource.getrlimit(number)
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            with contextlib.suppress(OSError, ValueError):  # macOS refuses some of them
                resource.setrlimit(number, (value, value))


def _address_space() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except OSError:
        return 2**30


def refuse(package: str) -> None:
    """From now on this process opens nothing below `package`, connects to nowhere, kills no other,
    and starts none.

    An audit hook cannot be taken away again, but code that does not go through Python's functions
    does not meet it.
    """
    own = os.getpid()
    realpath = os.path.realpath
    below = os.path.join(realpath(package), "")
    sockets = {"socket.__new__", "socket.connect", "socket.bind", "socket.sendto",
               "socket.sendmsg", "socket.getaddrinfo", "socket.gethostbyname"}  # fmt: skip
    processes = {"os.fork", "os.forkpty", "os.posix_spawn", "os.system", "subprocess.Popen"}

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "import" and arguments[0].partition(".")[0] == "kerneltrick":
            raise ImportError("kerneltrick cannot be imported in a lab: NumPy is enough")
        if event == "open" and isinstance(arguments[0], (str, bytes)):
            path = arguments[0]
            if realpath(path if isinstance(path, str) else path.decode()).startswith(below):
                raise PermissionError("the reference solution cannot be read in a lab")
        if event == "os.killpg" or (event == "os.kill" and arguments[0] != own):
            raise PermissionError("other processes cannot be signalled in a lab")
        if event in processes:
            raise PermissionError("no other process can be started in a lab")
        if event in sockets:
            raise PermissionError("there is no network in a lab")

    sys.addaudithook(hook)
