"""Run code of strangers behind walls: in processes with limits, without network or files to write.

A `Server` is a process with NumPy loaded. It makes a `Worker`, a new process, for every file. A
worker loads the file and then calls its functions, one at a time. Arguments and answers are plain
data: arrays, numbers, strings, None, and lists, tuples and dicts of these. `Given` stands for a
function that the code is passed; `Server(given=...)` names the Python file that has them.

>>> with Server(Limits(call=2)) as server:
...     worker = server.worker()
...     loaded = worker.load(b"def double(x):\\n    return 2 * x\\n", "answer.py")
...     fields, answer = worker.call("double", (21,))
...     code = worker.stop()
>>> sorted(loaded.lines), fields["kind"], answer
(['double'], 'answer', 42)

A call that takes too long raises `Slow`, and a process that ends raises `Died`. `server.walls`
names the walls that this machine has: "network", "processes" and "files". docs/labs.md says what
they keep out and what they do not.
"""

from kerneltrick.labs.walls._child import arrays, given_functions, resolve
from kerneltrick.labs.walls._process import (
    Cancelled,
    Died,
    Limits,
    Loaded,
    Refused,
    Server,
    Slow,
    Worker,
    whole,
)
from kerneltrick.labs.walls._wire import Given, Other, Unreadable

__all__ = [
    "Cancelled",
    "Died",
    "Given",
    "Limits",
    "Loaded",
    "Other",
    "Refused",
    "Server",
    "Slow",
    "Unreadable",
    "Worker",
    "arrays",
    "given_functions",
    "resolve",
    "whole",
]
