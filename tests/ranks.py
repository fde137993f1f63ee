"""Local processes of torch.distributed that run functions for tests."""

import contextlib
import datetime
import multiprocessing
import os
import socket
import traceback

MODULES = ["torch", "torch.distributed.fsdp", "kerneltrick.torch.distributed", __name__]


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def obey(rank, count, port, timeout, pipe):
    """Run the calls that arrive through the pipe until it is closed."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group(
        "gloo", rank=rank, world_size=count, timeout=datetime.timedelta(seconds=timeout)
    )
    groups = {i: dist.new_group(list(range(i))) for i in range(1, count + 1)}
    while True:
        try:
            work, arguments = pipe.recv()
        except EOFError:
            os._exit(0)
        try:
            pipe.send((True, work(groups, rank, *arguments)))
        except BaseException as error:
            pipe.send((False, (type(error).__name__, str(error), traceback.format_exc())))


class Team:
    """So many ranks."""

    def __init__(self, count, timeout=20.0):
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(MODULES)
        port = free_port()
        self.pipes, self.processes = [], []
        for rank in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=obey, args=(rank, count, port, timeout, theirs), daemon=True
            )
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def ask(self, work, *arguments, ranks=None):
        """Return the results of all ranks in order. A failure of one rank is raised here."""
        found = self.answers(work, *arguments, ranks=ranks)
        for rank, (good, value) in enumerate(found):
            assert good, f"rank {rank}: {value[2] if isinstance(value, tuple) else value}"
        return [value for _, value in found]

    def answers(self, work, *arguments, ranks=None, seconds=60):
        pipes = self.pipes if ranks is None else [self.pipes[i] for i in ranks]
        for pipe in pipes:
            pipe.send((work, arguments))
        found = []
        for pipe in pipes:
            try:
                found.append(pipe.recv() if pipe.poll(seconds) else (False, "no answer"))
            except EOFError:
                found.append((False, "dead"))
        return found

    def close(self):
        for pipe in self.pipes:
            pipe.close()
        for process in self.processes:
            process.join(2)
            with contextlib.suppress(ProcessLookupError, AttributeError):
                process.kill()
