"""Who does the pieces of work of a command."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import Executor

from kerneltrick._executor import Processes, WorkerDied, dask_executor
from kerneltrick.cli._arguments import DataError, UsageError


@contextlib.contextmanager
def workers(jobs: int | None, dask: str | None) -> Iterator[Executor | None]:
    """The executor that --jobs or --dask ask for; None is this process."""
    if jobs is not None and dask is not None:
        raise UsageError("--jobs are processes of this machine, --dask those of a cluster: one")
    if dask is None and jobs is None:
        yield None
        return
    try:
        with Processes(jobs) if jobs is not None else dask_executor(dask or "") as executor:
            yield executor
    except (ImportError, WorkerDied) as error:
        raise DataError(str(error)) from None
