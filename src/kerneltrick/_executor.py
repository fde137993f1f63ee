"""Pieces of work on any executor: worker processes, threads, or the machines of a Dask cluster."""

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

Work: TypeAlias = Callable[..., Any]  # work(shared, *arguments): a function of a module

TRIES = 3  # of a piece whose worker dies before it is called the piece's fault
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS",
              "VECLIB_MAXIMUM_THREADS")  # fmt: skip


class Piece(NamedTuple):
    """A piece of work: what its result is kept under, what it is called, and what it is about."""

    key: str
    what: str
    arguments: tuple[Any, ...]


class WorkerDied(RuntimeError):
    """Workers die again and again before a piece is done."""


class Team:
    """Those who do pieces of work, and what all pieces share, which goes to each of them once.

    The executor is None (pieces are done here, in order, each when its result is asked for), or any
    of `concurrent.futures`: of processes or threads, or `distributed.Client.get_executor()`.
    Workers on other machines need Dask: others read what is shared from a temporary file.
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
        """Each piece with `work(shared, *piece.arguments)`, as they get done.

        Pieces whose worker is lost are done again.
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
                    f"the executor lost all of {before} pieces of work, the first of them "
                    f"{next(iter(left))!r}"
                ) from lost
            if lost is not None:  # with a worker of Dask its memory is lost
                self._take_back()

    def _ship(self) -> Any:
        """What to hand to each piece in place of what they share."""
        if self._parcel is None:
            assert self.executor is not None
            self._parcel = self._sent.enter_context(_shipped(self.shared, self.executor))
        return self._parcel

    def _take_back(self) -> None:
        self._sent.close()
        self._parcel = None


class Processes(concurrent.futures.Executor):
    """So many worker processes, for `executor=`; they last until the end of a `with`.

    They are started anew (spawned), not forked, so a script that makes one must be importable: it
    begins its work under `if __name__ == "__main__":`. BLAS and PyTorch have one thread in each, so
    that numbers do not depend on how many there are; the compiled core, whose numbers never do, has
    its share of the processors. If a worker dies, its piece is done again by a new one, and the
    others do not notice.
    """

    def __init__(self, jobs: int) -> None:
        if isinstance(jobs, bool) or not isinstance(jobs, int) or jobs < 1:
            raise ValueError(f"Processes needs a whole number of workers ≥ 1, not {jobs!r}")
        self.jobs = jobs
        # A thread for each worker: the pool of several processes that Python has gives all of them
        # up when one dies.
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
        """As of every executor; with `cancel_futures` also what is being done is given up."""
        if cancel_futures:
            with self._lock:
                self._closed = True
                for pid in self._pids:
                    _end(pid)
        self._threads.shutdown(wait, cancel_futures=cancel_futures)
        if wait:  # for what serves the pools too: at its end Python must find nothing half closed
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
            f"a worker process died {TRIES} times at the same piece of work: if memory ran out, "
            "use fewer jobs; if it says so above, begin the script's work under if __name__ == "
            '"__main__":'
        ) from died

    def _started(self) -> concurrent.futures.ProcessPoolExecutor:
        """One process, with the environment that says how many threads it may have."""
        import multiprocessing  # it would slow every import

        pool = concurrent.futures.ProcessPoolExecutor(
            1, multiprocessing.get_context("spawn"), _begin
        )
        chosen = dict.fromkeys(ONE_THREAD, "1")
        chosen["KERNELTRICK_NUM_THREADS"] = str(max(1, cores() // self.jobs))
        with self._lock:  # libraries read it before any of our code runs there
            if self._closed:
                raise concurrent.futures.BrokenExecutor("shut down")
            before = {name: os.environ.get(name) for name in chosen}
            os.environ.update(chosen)
            # A process inherits what its maker blocks: until `_begin`, Ctrl-C is not for it either.
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
            if self._closed:  # while it was starting: nobody has told it
                _end(pid)
                raise concurrent.futures.BrokenExecutor("shut down")
        return pool


@contextlib.contextmanager
def dask_executor(address: str) -> Iterator[concurrent.futures.Executor]:
    """The workers of the Dask cluster whose scheduler is at `address` (extra: dask)."""
    try:
        import distributed
    except ImportError:
        raise ImportError("Dask is not installed: pip install 'kerneltrick[dask]'") from None
    try:
        client = distributed.Client(address, timeout=10)
    except (OSError, ValueError, TimeoutError) as error:
        raise OSError(f"there is no Dask scheduler at {address}: {error}") from None
    with client:
        yield client.get_executor()


def cores() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Parcel(NamedTuple):
    """What all pieces share, in a file that every worker of this machine opens once."""

    path: str

    def opened(self) -> Any:
        with _LOCK:
            if self.path not in _OPENED:
                _OPENED.clear()  # one is as large as the data
                with open(self.path, "rb") as file:
                    _OPENED[self.path] = pickle.load(file)
            return _OPENED[self.path]


_OPENED: dict[str, Any] = {}
_LOCK = threading.Lock()


@contextlib.contextmanager
def _shipped(shared: Any, executor: concurrent.futures.Executor) -> Iterator[Any]:
    """What to hand to each piece, so that `shared` travels once to each worker."""
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
            "be one of a module"
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
    with contextlib.suppress(ProcessLookupError):  # it has ended by itself
        os.kill(pid, signal.SIGTERM)


def _begin() -> None:
    """A worker ends with its parent, however that ends; Ctrl-C is the parent's alone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    import multiprocessing  # it would slow every import

    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
