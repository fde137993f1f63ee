"""Run pieces of work on any executor: processes, threads, or the machines of a Dask cluster."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import pickle
import signal
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias

from kerneltrick._install import missing

Work: TypeAlias = Callable[..., Any]  # work(shared, *arguments): a module-level function

TRIES = 3  # attempts at a piece whose worker dies, before the piece is blamed
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS",
              "VECLIB_MAXIMUM_THREADS")  # fmt: skip


class Piece(NamedTuple):
    """A piece of work: the key of its result, its name for progress reports, and its arguments."""

    key: str
    what: str
    arguments: tuple[Any, ...]


class WorkerDied(RuntimeError):
    """Workers died repeatedly before a piece was done."""


class Team:
    """Workers, and the data that all pieces share, which is sent to each worker once.

    The executor is None (pieces run here, in order, when their result is needed) or any executor of
    `concurrent.futures`: processes, threads, or `distributed.Client.get_executor()`. Workers on
    other machines need Dask; local workers read the shared data from a temporary file.
    """

    def __init__(self, shared: Any, executor: concurrent.futures.Executor | None = None) -> None:
        self.shared, self.executor = shared, executor
        self._sent = contextlib.ExitStack()
        self._parcel: Any = None

    def __enter__(self) -> Team:
        return self

    def __exit__(self, *error: object) -> None:
        self._take_back()

    def results(self, work: Work, pieces: Iterable[Piece]) -> Iterator[tuple[Piece, Any]]:
        """Yield each piece with `work(shared, *piece.arguments)`, in order of completion.

        Pieces whose worker is lost are repeated.
        """
        if self.executor is None:
            for piece in pieces:
                yield piece, work(self.shared, *piece.arguments)
            return
        left = {piece.key: piece for piece in pieces}
        while left:
            before, lost = len(left), None
            futures = {
                self.executor.submit(_done, self._ship(), work, piece.arguments): piece
                for piece in left.values()
            }
            try:
                for future in concurrent.futures.as_completed(futures):
                    try:
                        value = future.result()
                    except concurrent.futures.CancelledError as error:
                        lost = error
                        continue
                    yield left.pop(futures[future].key), value
            finally:
                for future in futures:
                    future.cancel()
            if len(left) == before:
                raise WorkerDied(
                    f"the executor lost all {before} pieces of work, starting with "
                    f"{next(iter(left))!r}"
                ) from lost
            if lost is not None:  # the memory of a lost Dask worker is gone
                self._take_back()

    def _ship(self) -> Any:
        """Return what is passed to each piece in place of the shared data."""
        if self._parcel is None:
            assert self.executor is not None
            self._parcel = self._sent.enter_context(_shipped(self.shared, self.executor))
        return self._parcel

    def _take_back(self) -> None:
        self._sent.close()
        self._parcel = None


class Processes(concurrent.futures.Executor):
    """A pool of worker processes for `executor=`; use it in a `with` statement.

    Processes are spawned, not forked, so the main script must be importable: put its code under
    `if __name__ == "__main__":`. BLAS and PyTorch use one thread per worker, so that results do not
    depend on the number of workers; the compiled core, whose results never do, gets its share of
    the CPUs. If a worker dies, a new one repeats its piece; the others are not affected.
    """

    def __init__(self, jobs: int) -> None:
        if isinstance(jobs, bool) or not isinstance(jobs, int) or jobs < 1:
            raise ValueError(f"Processes needs a whole number of workers ≥ 1, not {jobs!r}")
        self.jobs = jobs
        # One thread for each worker, with a pool of its own: a ProcessPoolExecutor with several
        # processes gives all of them up when one dies.
        self._threads = concurrent.futures.ThreadPoolExecutor(jobs, "kerneltrick worker")
        self._own = threading.local()
        self._lock = threading.Lock()
        self._pools: list[concurrent.futures.ProcessPoolExecutor] = []
        self._pids: set[int] = set()
        self._closed = False

    def submit(
        self, function: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> concurrent.futures.Future[Any]:
        return self._threads.submit(self._work, function, args, kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Shut down like any executor; `cancel_futures` also stops the running pieces."""
        if cancel_futures:
            with self._lock:
                self._closed = True
                for pid in self._pids:
                    _end(pid)
        self._threads.shutdown(wait, cancel_futures=cancel_futures)
        if wait:  # also for the pools, so that Python finds nothing half closed when it exits
            while self._pools:
                self._pools.pop().shutdown()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool | None:
        self.shutdown(cancel_futures=kind is not None)
        return None

    def _work(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        died: Exception | None = None
        for _ in range(TRIES):
            pool: Any = getattr(self._own, "pool", None)
            try:
                if pool is None:
                    pool = self._own.pool = self._started()
                return pool.submit(function, *args, **kwargs).result()
            except concurrent.futures.BrokenExecutor as error:
                self._own.pool, died = None, error
                if self._closed:
                    raise
        raise WorkerDied(
            f"a worker process died {TRIES} times at the same piece of work. If memory ran out, "
            "use fewer jobs. If the error above says so, put the code of the script under "
            'if __name__ == "__main__":'
        ) from died

    def _started(self) -> concurrent.futures.ProcessPoolExecutor:
        """Start one process, with an environment that limits its threads."""
        import multiprocessing  # slow to import

        pool = concurrent.futures.ProcessPoolExecutor(
            1, multiprocessing.get_context("spawn"), _begin
        )
        chosen = dict.fromkeys(ONE_THREAD, "1")
        chosen["KERNELTRICK_NUM_THREADS"] = str(max(1, cores() // self.jobs))
        with self._lock:  # libraries read the environment before our code runs there
            if self._closed:
                raise concurrent.futures.BrokenExecutor("shut down")
            before = {name: os.environ.get(name) for name in chosen}
            os.environ.update(chosen)
            # A process inherits blocked signals, so Ctrl-C does not reach it before `_begin`.
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
            try:
                first = pool.submit(os.getpid)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
                for name, value in before.items():
                    if value is None:
                        del os.environ[name]
                    else:
                        os.environ[name] = value
            self._pools.append(pool)
        pid = first.result()
        with self._lock:
            self._pids.add(pid)
            if self._closed:  # closed while this one was starting
                _end(pid)
                raise concurrent.futures.BrokenExecutor("shut down")
        return pool


@contextlib.contextmanager
def dask_executor(address: str) -> Iterator[concurrent.futures.Executor]:
    """Yield an executor for the Dask cluster whose scheduler is at `address` (extra: dask)."""
    try:
        import distributed
    except ImportError:
        raise missing("Dask is not installed", "dask") from None
    try:
        client = distributed.Client(address, timeout=10)
    except (OSError, ValueError, TimeoutError) as error:
        raise OSError(f"there is no Dask scheduler at {address}: {error}") from None
    with client:
        yield client.get_executor()


def cores() -> int:
    """Return the number of CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Parcel(NamedTuple):
    """The shared data in a file that every worker of this machine opens once."""

    path: str

    def opened(self) -> Any:
        with _LOCK:
            if self.path not in _OPENED:
                _OPENED.clear()  # each is as large as the data
                with open(self.path, "rb") as file:
                    _OPENED[self.path] = pickle.load(file)
            return _OPENED[self.path]


_OPENED: dict[str, Any] = {}
_LOCK = threading.Lock()


@contextlib.contextmanager
def _shipped(shared: Any, executor: concurrent.futures.Executor) -> Iterator[Any]:
    """Yield what is passed to each piece, so that `shared` is sent once to each worker."""
    if isinstance(executor, concurrent.futures.ThreadPoolExecutor):
        yield shared
        return
    client = getattr(executor, "_client", None)
    if client is not None and type(executor).__module__.startswith("distributed."):
        yield client.scatter(shared, broadcast=True, hash=False)
        return
    try:
        content = pickle.dumps(shared, protocol=5)
    except Exception as error:
        raise ValueError(
            f"this work cannot be sent to other processes: {error}; a map that is a function must "
            "be defined at the top level of a module"
        ) from None
    with tempfile.TemporaryDirectory(prefix="kerneltrick-") as folder:
        path = os.path.join(folder, "shared.pickle")
        with open(path, "wb") as file:
            file.write(content)
        yield _Parcel(path)


def _done(parcel: Any, work: Work, arguments: tuple[Any, ...]) -> Any:
    shared = parcel.opened() if isinstance(parcel, _Parcel) else parcel
    return work(shared, *arguments)


def _end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has already ended
        os.kill(pid, signal.SIGTERM)


def _begin() -> None:
    """Make a worker end with its parent, however that ends; Ctrl-C is for the parent alone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    import multiprocessing  # slow to import

    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
