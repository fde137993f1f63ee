"""The workers of a command."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import Executor

from kerneltrick._executor import Processes, WorkerDied, dask_executor
from kerneltrick.cli._arguments import DataError, UsageError


@contextlib.contextmanager
def workers(jobs: int | None, dask: str | None) -> Iterator[Executor | None]:
    """Yield the executor for --jobs or --dask; None means that this process does the work."""
    if jobs is not None and dask is not None:
        raise UsageError(
            "give either --jobs (processes on this machine) or --dask (a cluster), not both"
        )
    if dask is None and jobs is None:
        yield None
        return
    try:
        with Processes(jobs) if jobs is not None else dask_executor(dask or "") as executor:
            yield executor
    except (ImportError, WorkerDied) as error:
        raise DataError(str(error)) from None
