"""Student code that misbehaves is reported, and nothing else suffers."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from answers import ROOT
from grading import LAB, RIGHT, changed, only_wrong

from kerneltrick.labs import grader


def _sleepers():
    """Processes that a student's file has left behind."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "stat").read_text().rpartition(")")[2].split()
            parent = int(words[1])
            name = (folder / "cmdline").read_bytes()
            if b"_child.serve" in name and parent in (1, 0):
                found.append(folder.name)
    return found


class TestWalls:
    def test_an_endless_loop_is_held_against_its_function_and_line(self, hurried):
        found, _ = changed(
            """
            def elu_feature_map(x):
                while True:
                    x = x + 1
            """,
            hurried,
        )
        hint = only_wrong(found, "elu_feature_map")
        assert hint.startswith("never ends, or takes too long (line ")
        assert found["elu_feature_map"].line in (RIGHT.count("\n") + 5, RIGHT.count("\n") + 6)

    def test_an_endless_loop_outside_the_functions(self, hurried):
        found, report = changed("while True:\n    pass\n", hurried)
        assert all(f.right for f in found.values())
        assert report.problems[0].hint.startswith("never ends, or takes too long while the file")
        assert "while True:" in report.problems[0].hint

    def test_endless_loops_everywhere_end_after_the_total_time(self):
        with grader.Server(grader.Limits(call=0.3, total=0.5)) as server:
            source = "".join(
                f"def {e.name}(*a, **k):\n    while True: pass\n" for e in LAB.exercises
            )
            report = grader.grade(LAB, source.encode(), server=server)
        assert report.score == 0
        assert report.functions[-1].hint.startswith("not graded: the time")

    def test_loops_that_catch_everything(self, hurried):
        found, _ = changed(
            """
            def elu_feature_map(x):
                import signal
                for number in range(1, 65):
                    try:
                        signal.signal(number, signal.SIG_IGN)
                    except (OSError, ValueError):
                        pass
                while True:
                    try:
                        while True:
                            pass
                    except BaseException:
                        pass
            """,
            hurried,
        )
        assert "never ends" in only_wrong(found, "elu_feature_map")

    @pytest.mark.parametrize("where", ["elu_feature_map", None])
    @pytest.mark.parametrize("how", ["os._exit(0)", "os.abort()", "os.closerange(3, 100); 1 / 0"])
    def test_ending_the_process(self, where, how, hurried):
        text = f"import os\n{how}\n"
        if where:
            text = f"def {where}(x):\n    import os\n    {how}\n"
        found, report = changed(text, hurried)
        if where:
            hint = only_wrong(found, where)
            assert "ends the process" in hint
        else:
            assert all(f.right for f in found.values())
            assert "while the file is loaded" in report.problems[0].hint

    def test_a_crash_of_the_interpreter(self, hurried):
        found, _ = changed(
            "def elu_feature_map(x):\n    import ctypes\n    ctypes.string_at(0)\n", hurried
        )
        assert "signal 11" in only_wrong(found, "elu_feature_map")

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

    def test_memory_is_limited(self, hurried):
        found, _ = changed(
            "def elu_feature_map(x):\n    return np.ones((40_000, 40_000)) @ x\n", hurried
        )
        assert only_wrong(found, "elu_feature_map").startswith("takes too much memory (line ")

    def test_memory_taken_bit_by_bit(self, hurried):
        found, _ = changed(
            """
            def elu_feature_map(x):
                kept = []
                while True:
                    kept.append(b"x" * 2**20)
            """,
            hurried,
        )
        assert "takes too much memory" in only_wrong(found, "elu_feature_map")

    @pytest.mark.parametrize("namespaces", [True, False])
    def test_processes_left_behind_are_ended(self, namespaces, tmp_path):
        with grader.Server(grader.Limits(call=2, namespaces=namespaces)) as server:
            found, _ = changed(
                """
                def simple_feature_map(x):
                    import os, time
                    if os.fork() == 0:
                        os.setsid()
                        if os.fork() == 0:
                            for number in range(256):
                                try:
                                    os.close(number)
                                except OSError:
                                    pass
                            time.sleep(7654.321)
                        os._exit(0)
                    return x
                """,
                server,
            )
            assert found["simple_feature_map"].right
            assert _sleepers() == []

    def test_a_fork_bomb(self, hurried):
        found, _ = changed(
            """
            def elu_feature_map(x):
                import os
                for _ in range(100):
                    if os.fork() == 0:
                        while True:
                            pass
            """,
            hurried,
        )
        only_wrong(found, "elu_feature_map")

    @pytest.mark.parametrize("namespaces", [True, False])
    def test_there_is_no_network(self, namespaces):
        listener = __import__("socket").create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        with grader.Server(grader.Limits(call=5, namespaces=namespaces)) as server, listener:
            found, _ = changed(
                f"""
                def elu_feature_map(x):
                    import socket
                    socket.create_connection(("127.0.0.1", {port}), 2).send(b"hello")
                """,
                server,
            )
            listener.setblocking(False)
            with pytest.raises(BlockingIOError):
                listener.accept()
        assert "network" in only_wrong(found, "elu_feature_map")

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

    @pytest.mark.parametrize(
        "attempt",
        [
            "import kerneltrick",
            "from kerneltrick.labs import kernel_trick",
            "import importlib; importlib.import_module('kerneltrick.labs.kernel_trick')",
            f"open({str(ROOT / 'src/kerneltrick/labs/kernel_trick.py')!r}).read()",
        ],
    )
    def test_the_reference_is_out_of_reach(self, attempt, server):
        found, _ = changed(f"def elu_feature_map(x):\n    {attempt}\n", server)
        hint = only_wrong(found, "elu_feature_map")
        refusals = ("ImportError: kerneltrick cannot be", "PermissionError", "ModuleNotFoundError")
        assert any(refusal in hint for refusal in refusals)

    REFERENCE = ROOT / "src" / "kerneltrick" / "labs" / "kernel_trick.py"

    @pytest.mark.parametrize(
        "attempt",
        [
            f"import subprocess; exec(subprocess.check_output(['cat', {str(REFERENCE)!r}]))",
            f"import ctypes; 1 / (1 + ctypes.CDLL(None).open({str(REFERENCE).encode()!r}, 0))",
            f"import os; at = os.open({str(REFERENCE.parent.parent)!r}, 0); "
            "os.open('labs/kernel_trick.py', 0, dir_fd=at)",
            f"import os; os.path.join = os.lstat = None; open({str(REFERENCE)!r})",
        ],
    )
    def test_the_reference_is_not_there_for_other_programs_either(self, attempt, server):
        found, _ = changed(
            f"_right = elu_feature_map\ndef elu_feature_map(x):\n    {attempt}\n"
            "    return _right(x)\n",
            server,
        )
        if "files" not in server.walls:
            pytest.skip("no mount namespaces here")
        only_wrong(found, "elu_feature_map")

    @pytest.mark.parametrize("namespaces", [True, False])
    def test_other_processes_cannot_be_signalled(self, namespaces):
        bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        try:
            with grader.Server(grader.Limits(call=2, namespaces=namespaces)) as server:
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

    def test_the_grader_still_works_afterwards(self, hurried):
        assert changed("", hurried)[1].right
