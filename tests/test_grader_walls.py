"""Misbehaving student code is reported and affects nothing else."""

import contextlib
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from answers import ROOT
from grading import LAB, RIGHT, changed, only, only_wrong

from kerneltrick.labs import grader

LIMITS = grader.Limits(call=5, root=True)
OPEN = replace(LIMITS, filter=False, namespaces=False)
REFERENCE = str(ROOT / "src" / "kerneltrick" / "labs" / "kernel_trick.py")


def _left_behind(server):
    """The processes of a server beside itself, by what stands in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if str(server.folder).encode() in (process / "environ").read_bytes():
                found.append(int(process.name))
    return [number for number in found if number != server.process.pid]


def refused(server, attempts, errors, said=""):
    """A student's function makes these attempts, all of which must fail; the result of it."""
    found, _ = changed(
        f"""
        def elu_feature_map(x):
            for attempt in {attempts}:
                try:
                    exec(attempt, globals())
                except {errors} as error:
                    assert {said!r} in str(error), (attempt, error)
                else:
                    raise AssertionError(attempt)
            return ELU(x)
        """.replace("ELU(x)", "np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))"),
        server,
        only(LAB, {"elu_feature_map"}),
    )
    return found["elu_feature_map"]


class TestWalls:
    def test_an_endless_loop_is_held_against_its_function_and_line(self, hurried):
        """Also one that ignores every signal and catches everything."""
        found, _ = changed(
            """
            def elu_feature_map(x):
                while True:
                    x = x + 1
            def simple_feature_map(x):
                import signal
                for number in {*range(1, 65)} - {signal.SIGKILL, signal.SIGSTOP, 32, 33}:
                    signal.signal(number, signal.SIG_IGN)
                while True:
                    try:
                        while True:
                            pass
                    except BaseException:
                        pass
            """,
            hurried,
        )
        result = found.pop("elu_feature_map")
        assert result.hint.startswith("never ends, or takes too long (line ")
        assert result.line in (RIGHT.count("\n") + 5, RIGHT.count("\n") + 6)
        assert "never ends" in only_wrong(found, "simple_feature_map")

    def test_endless_loops_outside_the_functions(self, hurried):
        loops = "while True:\n    pass\ndef endless():\n    while True:\n        pass\n"
        loops += "@endless()\ndef helper(): pass\n"
        found, report = changed(loops, hurried)
        assert all(f.right for f in found.values())
        said = "never ends, or takes too long while the file is loaded (line "
        assert all(problem.hint.startswith(said) for problem in report.problems)
        assert ["while True:" in x.hint for x in report.problems] == [True, False]

    def test_endless_loops_everywhere_end_after_the_total_time(self):
        with grader.Server(grader.Limits(call=0.3, total=0.5)) as server:
            source = "".join(
                f"def {e.name}(*a, **k):\n    while True: pass\n" for e in LAB.exercises
            )
            report = grader.grade(LAB, source.encode(), server=server)
        assert report.score == 0
        assert report.functions[-1].hint.startswith("not graded: the time")

    def test_ending_the_process(self, hurried):
        for how in ("os._exit(0)", "os.abort()", "os.closerange(3, 100); 1 / 0"):
            text = f"def elu_feature_map(x):\n    import os\n    {how}\n"
            assert "ends the process" in only_wrong(changed(text, hurried)[0], "elu_feature_map")
            found, report = changed(f"import os\n{how}\n", hurried)
            assert all(f.right for f in found.values())
            assert "while the file is loaded" in report.problems[0].hint
        crash = "def elu_feature_map(x):\n    import ctypes\n    ctypes.string_at(0)\n"
        assert "signal 11" in only_wrong(changed(crash, hurried)[0], "elu_feature_map")

    def test_megabytes_printed_do_no_harm(self, hurried):
        _, report = changed(
            """
            print("x" * 10**7)
            def simple_feature_map(x):
                for _ in range(100):
                    print("y" * 10**6)
                import sys
                sys.stderr.write("z" * 10**6)
                return x
            """,
            hurried,
        )
        assert report.right

    def test_memory_is_limited(self):
        """Taken at once or bit by bit; an answer takes none from the next call."""
        said = "takes too much memory (line "
        bodies = {"return np.ones((40_000, 40_000)) @ x": said, "return np.ones(2**24)": "returns "}
        bodies["kept = []\n    while True:\n        kept.append(b'x' * 2**20)"] = said
        limits = grader.Limits(call=60, total=600, memory=2**28)  # only memory is limited here
        with grader.Server(limits) as server:
            for body, hint in bodies.items():
                found, _ = changed(f"def elu_feature_map(x):\n    {body}\n", server)
                assert only_wrong(found, "elu_feature_map").startswith(hint), body

    @pytest.mark.parametrize("namespaces", [True, False])
    def test_processes_left_behind_are_ended(self, namespaces):
        """Without a filter that keeps code from starting processes."""
        with grader.Server(replace(OPEN, namespaces=namespaces)) as server:
            found, _ = changed(
                """
                def simple_feature_map(x):
                    import ctypes, os, time
                    fork = ctypes.CDLL(None).fork
                    if fork() == 0:
                        os.setsid()
                        if fork() == 0:
                            os.closerange(0, 256)
                            time.sleep(100)
                        os._exit(0)
                    return x
                """,
                server,
            )
            assert found["simple_feature_map"].right
            assert _left_behind(server) == []

    def test_a_fork_bomb(self):
        with grader.Server(replace(OPEN, call=0.6, namespaces=True)) as server:
            found, _ = changed(
                """
                def elu_feature_map(x):
                    import ctypes
                    for _ in range(100):
                        if ctypes.CDLL(None).fork() == 0:
                            while True:
                                pass
                    return x
                """,
                server,
            )
        only_wrong(found, "elu_feature_map")

    def test_no_other_process_can_be_started(self, server):
        attempts = (
            "import os; os.fork()",
            "import subprocess; subprocess.run(['true'])",
            "import os; os.system('true')",
            "import os; os.posix_spawn('/bin/true', ['true'], {})",
            "import multiprocessing; multiprocessing.Process().start()",
        )
        said = "no other process can be started in a lab"
        found = refused(server, attempts, "PermissionError", said)
        assert found.right, found.hint

    REACHING_OUT = (
        "libc.fork()",
        "libc.vfork()",
        "libc.memfd_create(b'x', 0)",
        "libc.shmget(0, 2**20, 0o1600)",
        "libc.unshare(0x10000000)",
        "libc.socket(1, 1, 0)",
        "libc.socketpair(1, 1, 0, ctypes.create_string_buffer(8))",
        "libc.syscall(425, 8, ctypes.create_string_buffer(256))",  # io_uring_setup
        "libc.kill(PARENT, 0)",
        "libc.prlimit(PARENT, 0, None, ctypes.create_string_buffer(16))",
        "libc.fcntl(0, 8, PARENT)",
        "libc.syscall(0x40000000 + 39)",  # getpid of x32
    )

    @pytest.mark.parametrize("namespaces", [True, False])
    def test_what_reaches_out_of_the_process_is_refused_by_linux(self, namespaces):
        """By way of libc, which asks no Python; or memory and time would not be those of one."""
        calls = [call.replace("PARENT", str(os.getpid())) for call in self.REACHING_OUT]
        with grader.Server(replace(LIMITS, namespaces=namespaces)) as server:
            found, _ = changed(
                f"""
                def simple_feature_map(x):
                    import ctypes
                    libc = ctypes.CDLL(None)
                    for call in {calls}:
                        assert eval(call) == -1, call
                    return x
                """,
                server,
            )
            if "processes" not in server.walls:
                pytest.skip("no filter for system calls here")
        assert found["simple_feature_map"].right, found["simple_feature_map"].hint

    def test_threads_and_signals_to_itself_are_allowed(self, server):
        _, report = changed(
            """
            def simple_feature_map(x):
                import concurrent.futures, os, signal
                signal.signal(signal.SIGUSR2, lambda *a: None)
                os.kill(os.getpid(), signal.SIGUSR2)
                signal.raise_signal(signal.SIGUSR2)
                with concurrent.futures.ThreadPoolExecutor(4) as pool:
                    return np.array(list(pool.map(np.array, x)))
            """,
            server,
        )
        assert report.right

    @pytest.mark.parametrize("namespaces", [True, False])
    def test_no_socket_outside_is_reached(self, namespaces, tmp_path):
        path = f"{tmp_path}/socket"
        inet, unix = socket.create_server(("127.0.0.1", 0)), socket.socket(socket.AF_UNIX)
        unix.bind(path)
        unix.listen()
        for folder in (tmp_path, *tmp_path.parents):
            with contextlib.suppress(OSError):
                folder.chmod(folder.stat().st_mode | 0o011)
        os.chmod(path, 0o777)
        name = b"\x01\x00" + path.encode() + b"\x00"
        attempts = (
            f"import socket; socket.socket().connect({inet.getsockname()!r})",
            f"import socket; socket.socket(socket.AF_UNIX).connect({path!r})",
            "import ctypes; libc = ctypes.CDLL(None)\n"  # without Python
            f"if libc.connect(libc.socket(1, 1, 0), {name!r}, {len(name)}) < 0:\n"
            "    raise PermissionError('there is no network in a lab')",
        )
        limits = replace(LIMITS, namespaces=namespaces)
        with grader.Server(limits) as server, contextlib.closing(inet), contextlib.closing(unix):
            changed("", server)
            if "network" not in server.walls:
                attempts = attempts[:2]  # no filter for system calls here
            found = refused(server, attempts, "OSError", "network")
            for listener in (inet, unix):
                listener.setblocking(False)
                with pytest.raises(BlockingIOError):
                    listener.accept()
        assert found.right, found.hint

    def test_files_cannot_be_changed(self, server, tmp_path):
        target = tmp_path / "precious.txt"
        target.write_text("kept")
        found, _ = changed(
            f"""
            def simple_feature_map(x):
                open("scratch.txt", "w").write("a folder of its own can be written to")
                return x

            def elu_feature_map(x):
                import os
                os.unlink({str(target)!r})
            """,
            server,
        )
        if "files" not in server.walls:
            pytest.skip("no mount namespaces here")
        only_wrong(found, "elu_feature_map")
        assert target.read_text() == "kept"

    def test_the_reference_is_out_of_reach(self, server):
        attempts = (
            "from kerneltrick import linear_attention",
            "from kerneltrick.labs import kernel_trick",
            "import importlib; importlib.import_module('kerneltrick.labs.kernel_trick')",
            f"open({REFERENCE!r}).read()",
        )
        found = refused(server, attempts, "(ImportError, PermissionError)")
        assert found.right, found.hint

    def test_the_reference_is_not_there_for_other_programs_either(self, server):
        attempts = (
            f"import subprocess; exec(subprocess.check_output(['cat', {REFERENCE!r}]))",
            f"import ctypes; 1 / (1 + ctypes.CDLL(None).open({REFERENCE.encode()!r}, 0))",
            f"import os; at = os.open({REFERENCE.rpartition('/labs/')[0]!r}, 0); "
            "os.open('labs/kernel_trick.py', 0, dir_fd=at)",
            f"import os; os.path.join = os.lstat = None; open({REFERENCE!r})",
        )
        found = refused(server, attempts, "Exception")
        if "files" not in server.walls:
            pytest.skip("no mount namespaces here")
        assert found.right, found.hint

    @pytest.mark.parametrize("namespaces", [True, False])
    def test_other_processes_cannot_be_signalled(self, namespaces):
        bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        try:
            with grader.Server(replace(LIMITS, namespaces=namespaces)) as server:
                found, _ = changed(
                    f"""
                    def elu_feature_map(x):
                        import os
                        os.kill({bystander.pid}, 9)
                    def simple_feature_map(x):
                        import os
                        os.killpg({os.getpgid(bystander.pid)}, 0)
                    """,
                    server,
                )
            for name in ("elu_feature_map", "simple_feature_map"):
                assert "other processes cannot be signalled" in found[name].hint
            assert bystander.poll() is None
        finally:
            bystander.kill()
            bystander.wait()

    def test_signals_and_exits_at_the_end(self, hurried):
        _, report = changed(
            """
            import atexit, os, signal, sys
            atexit.register(lambda: os._exit(7))
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            sys.setrecursionlimit(10**6)
            """,
            hurried,
        )
        assert report.right

    def test_root_without_walls_around_the_files_is_refused(self, monkeypatch):
        monkeypatch.setattr(os, "geteuid", lambda: 0)
        limits = replace(OPEN, root=False)
        with grader.Server(limits) as server, pytest.raises(grader.Refused, match="as root"):
            changed("", server)
        with grader.Server(OPEN) as server:
            assert changed("", server)[1].right
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
        with grader.Server(limits) as server:
            assert changed("", server)[1].right
