"""System calls that the student's process cannot make: a seccomp filter of Linux.

It closes what a limit on one process and a namespace leave open: sockets in the file system reach
programs outside, and memory is limited for each process, so that there must be one only. This
module runs in the student's process and uses the standard library only.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
from dataclasses import dataclass

_LOAD, _EQUAL, _AT_LEAST, _HAS_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # of classic BPF
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000  # SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data
_PR_SET_SECCOMP, _MODE_FILTER = 22, 2
_CLONE_THREAD = 0x10000
_F_SETOWN, _F_SETOWN_EX = 8, 15
_OTHER_ABI = 0x40000000  # calls of x32, which have the architecture of x86-64

_AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_NUMBERS = {  # name: the number on x86-64, and on AArch64 (None: there is no such call)
    "socket": (41, 198),
    "socketpair": (53, 199),
    "io_uring_setup": (425, 425),
    "fork": (57, None),
    "vfork": (58, None),
    "clone": (56, 220),
    "clone3": (435, 435),
    "unshare": (272, 97),
    "setns": (308, 268),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_open": (434, 434),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "prlimit64": (302, 261),
    "fcntl": (72, 25),
}


@dataclass(frozen=True)
class _FilterRule:
    """A call that is refused, or allowed only if one of `tests` holds of an argument."""

    call: str
    error: int = errno.EPERM
    argument: int = 0
    tests: tuple[tuple[int, int], ...] = ()  # (comparison, value)
    allowed: bool = True  # what holds of a call for which a test does


def _rules(own: int) -> tuple[_FilterRule, ...]:
    itself = ((_EQUAL, own),)
    return (
        # The network, and sockets of other programs; io_uring opens them past any filter.
        *map(_FilterRule, ("socket", "socketpair", "io_uring_setup")),
        # Processes; threads go on. The flags of clone3 cannot be seen: without it, libc uses clone.
        *map(_FilterRule, ("fork", "vfork", "unshare", "setns")),
        _FilterRule("clone3", errno.ENOSYS),
        _FilterRule("clone", tests=((_HAS_BIT, _CLONE_THREAD),)),
        # Memory that no process need have mapped.
        *map(_FilterRule, ("memfd_create", "memfd_secret", "shmget")),
        # Other processes: signals, also by way of fcntl and of limits, and their memory.
        *map(_FilterRule, ("tkill", "pidfd_open", "ptrace")),
        *map(_FilterRule, ("process_vm_readv", "process_vm_writev")),
        *(_FilterRule(x, tests=itself) for x in ("kill", "tgkill", "rt_sigqueueinfo")),
        _FilterRule("rt_tgsigqueueinfo", tests=itself),
        _FilterRule("prlimit64", tests=(*itself, (_EQUAL, 0))),
        _FilterRule("fcntl", argument=1, tests=((_EQUAL, _F_SETOWN), (_EQUAL, _F_SETOWN_EX)),
              allowed=False),
    )  # fmt: skip


def _program(machine: str, own: int) -> bytes:
    column = list(_AUDIT).index(machine)
    code: list[tuple[int, int, int, int]] = [  # operation, jump if true, if false, value
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, _AUDIT[machine]),
        (_RETURN, 0, 0, _REFUSE | errno.EPERM),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _OTHER_ABI),
        (_RETURN, 0, 0, _REFUSE | errno.ENOSYS),
    ]
    for rule in _rules(own):
        number = _NUMBERS[rule.call][column]
        if number is None:
            continue
        refuse, allow = (_RETURN, 0, 0, _REFUSE | rule.error), (_RETURN, 0, 0, _ALLOW)
        body = [refuse]
        if rule.tests:
            holds, else_ = (allow, refuse) if rule.allowed else (refuse, allow)
            body = [(_LOAD, 0, 0, _ARGUMENTS + 8 * rule.argument)]  # the low half comes first
            for at, (comparison, value) in enumerate(rule.tests):
                body.append((comparison, len(rule.tests) - at, 0, value))
            body += [else_, holds]
        code += [(_EQUAL, 0, len(body), number), *body]
    code.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *line) for line in code)


def install(own: int) -> None:
    """Refuse these calls from now on, here and in whatever runs here; OSError where it cannot be.

    `own` is the number of the process. Needs no rights, but `no_new_privs`.
    """
    machine = platform.machine()
    libc = ctypes.CDLL(None, use_errno=True)
    if machine not in _AUDIT or struct.calcsize("P") != 8 or not hasattr(libc, "prctl"):
        raise OSError(f"no filter for system calls on {platform.system()} {machine}")
    program = _program(machine, own)
    body = ctypes.create_string_buffer(program, len(program))
    head = struct.pack("@HP", len(program) // 8, ctypes.addressof(body))  # struct sock_fprog
    if libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_MODE_FILTER), head, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
