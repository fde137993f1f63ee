"""Work in pieces on processes, threads and a Dask cluster, some of which are killed."""

import concurrent.futures
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from kerneltrick import analysis
from kerneltrick._executor import ONE_THREAD, Piece, Processes, Team, WorkerDied

DATA = analysis.synthetic_attention("clustered:n=24,d=4,heads=2")
MAPS = ["elu", "hedgehog@window=4,sinks=1"]


class Counted:
    """Shared data that records in a folder how often it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __setstate__(self, state):
        self.__dict__ = state
        (self.folder / f"unpacked {os.getpid()} {time.monotonic_ns()}").touch()


def square(shared, x):
    return x * x, os.getpid(), {name: os.environ.get(name) for name in ONE_THREAD}


def die_once(shared, x):
    if x == 3 and not (shared.folder / "died").exists():
        (shared.folder / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    (shared.folder / f"done {x} {time.monotonic_ns()}").touch()
    return x * x


def die(shared):
    os.kill(os.getpid(), signal.SIGKILL)


def results(work, shared, pieces, executor):
    with Team(shared, executor) as team:
        yield from team.results(work, pieces)


def numbered(count):
    return [Piece(str(x), f"piece {x}", (x,)) for x in range(count)]


@pytest.fixture(scope="module")
def two():
    with Processes(2) as executor:
        yield executor


def test_a_team_sends_what_is_shared_once_for_all_its_work(two, tmp_path):
    with Team(Counted(tmp_path), two) as team:
        for _ in range(3):
            found = {piece.key: value for piece, value in team.results(square, numbered(20))}
            assert {key: value[0] for key, value in found.items()} == {
                str(x): x * x for x in range(20)
            }
            assert os.getpid() not in {value[1] for value in found.values()}
            assert all(set(value[2].values()) == {"1"} for value in found.values())
    assert len(list(tmp_path.glob("unpacked*"))) <= 2


def test_a_worker_that_is_killed_costs_its_piece_only(two, tmp_path):
    found = dict(results(die_once, Counted(tmp_path), numbered(8), two))
    assert sorted(found.values()) == [x * x for x in range(8)]
    assert (tmp_path / "died").exists()
    assert len(list(tmp_path.glob("done *"))) == 8  # none was done twice


def test_a_piece_that_kills_every_worker_is_an_error(two):
    with pytest.raises(WorkerDied, match="3 times"):
        list(results(die, None, [Piece("a", "a", ())], two))
    assert len(list(results(square, None, numbered(2), two))) == 2


def test_errors_of_pieces_and_of_what_they_share_are_raised_here(two):
    with pytest.raises(TypeError, match="can't multiply"):
        list(results(square, None, [Piece("a", "a", ("text",))], two))
    with pytest.raises(ValueError, match="defined at the top level of a module"):
        list(results(square, lambda: 1, numbered(1), two))
    for wrong in (0, True, 1.5):
        with pytest.raises(ValueError, match="whole number of workers"):
            Processes(wrong)


def test_a_comparison_does_not_depend_on_who_does_it_to_the_bit(two, tmp_path):
    options = {"measure": False, "seed": 3}
    told = []
    kept = tmp_path / "kept"
    by_two = analysis.compare(
        DATA, MAPS, **options, executor=two, resume=kept, progress=lambda *x: told.append(x)
    )
    with concurrent.futures.ThreadPoolExecutor(3) as threads:
        by_threads = analysis.compare(DATA, MAPS, **options, executor=threads)
    alone = analysis.compare(DATA, MAPS, **options)
    assert by_two.to_json() == by_threads.to_json() == alone.to_json()
    assert [done for _, done, _ in told] == list(range(len(told)))
    # A continued run does only the missing pieces.
    lines = kept.read_text().splitlines(keepends=True)
    kept.write_text("".join(lines[:20]))
    again = analysis.compare(DATA, MAPS, **options, executor=two, resume=kept)
    assert again.to_json() == by_two.to_json()
    assert kept.read_text().splitlines(keepends=True)[:20] == lines[:20]
    assert sorted(kept.read_text().splitlines()) == sorted("".join(lines).splitlines())


def test_workers_end_with_a_parent_that_is_killed(tmp_path):
    script = (
        "import os, sys, time\n"
        "from kerneltrick._executor import Processes\n"
        "if __name__ == '__main__':\n"
        "    with Processes(1) as executor:\n"
        "        print(executor.submit(os.getpid).result(), flush=True)\n"
        "        time.sleep(600)\n"
    )
    path = tmp_path / "parent.py"
    path.write_text(script)
    with subprocess.Popen([sys.executable, path], stdout=subprocess.PIPE, text=True) as parent:
        worker = int(parent.stdout.readline())
        os.kill(worker, 0)
        parent.kill()
    deadline = time.monotonic() + 60
    while Path(f"/proc/{worker}/stat").exists() and time.monotonic() < deadline:
        if Path(f"/proc/{worker}/stat").read_text().split(") ")[1][0] == "Z":
            break
        time.sleep(0.05)
    else:
        assert not Path(f"/proc/{worker}").exists()


def blocked(shared):
    return signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])


@pytest.mark.parametrize("given_up", [False, True])
def test_nothing_of_the_workers_outlives_their_executor(given_up):
    before = {*threading.enumerate(), *multiprocessing.active_children()}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    with Processes(1) as executor, Team(None, executor) as team:
        for _, found in team.results(blocked, [Piece(str(i), "", ()) for i in range(4)]):
            assert found  # Ctrl-C is not for workers; inherited, so it never was
            if given_up:
                break
        executor.shutdown(cancel_futures=given_up)
    assert {*threading.enumerate(), *multiprocessing.active_children()} <= before
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == mask


def test_a_worker_that_is_given_up_while_it_starts_begins_nothing(tmp_path):
    executor = Processes(1)

    class Pids(set):
        def add(self, pid):  # the moment at which the worker has started
            executor._closed = True
            super().add(pid)

    executor._pids = Pids()
    with pytest.raises(concurrent.futures.BrokenExecutor, match="shut down"):
        executor.submit(Path.touch, tmp_path / "begun").result(60)
    executor.shutdown()
    assert not (tmp_path / "begun").exists()


@pytest.mark.slow
def test_ctrl_c_ends_the_workers_too_and_the_run_goes_on(tmp_path):
    path, kept = tmp_path / "o.json", tmp_path / ".o.json.unfinished"
    command = [sys.executable, "-m", "kerneltrick", "compare", "--maps", "elu", "--jobs", "2"]
    process = subprocess.Popen(
        [*command, "--json", path], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if kept.exists() and kept.read_text().count("\n") >= 3:
            break
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said == "kerneltrick: stopped; run the same command again to continue\n"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            break
        time.sleep(0.05)
    else:
        pytest.fail("workers are left")
    assert kept.exists()


@pytest.fixture(scope="module")
def cluster():
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None,
        host="127.0.0.1", silence_logs=50,
    ) as made:  # fmt: skip
        yield made


@pytest.mark.filterwarnings("ignore")
def test_a_dask_cluster_gives_the_same_numbers_with_a_worker_killed_in_the_middle(
    cluster, run, tmp_path
):
    arguments = ["compare", "--synthetic", "clustered:n=24,d=4,heads=2", "--maps", "elu"]
    address = cluster.scheduler_address
    client = cluster.get_client()
    with client:
        (tmp_path / "shared").mkdir()
        found = dict(
            results(die_once, Counted(tmp_path / "shared"), numbered(8), client.get_executor())
        )
        assert sorted(found.values()) == [x * x for x in range(8)]
        assert (tmp_path / "shared" / "died").exists()
    code, _, err = run(*arguments, "--dask", address, "--json", tmp_path / "dask.json")
    assert (code, err) == (0, "")
    code, *_ = run(*arguments, "--jobs", "1", "--json", tmp_path / "jobs.json")
    assert code == 0
    ours, theirs = (
        json.loads((tmp_path / name).read_text()) for name in ("jobs.json", "dask.json")
    )
    for found in (ours, theirs):  # what was timed
        for row in found["maps"]:
            row["ms_per_1000_tokens"] = row["crossover"] = None
        found["softmax"]["ms_per_1000_tokens"] = found["timing"] = found["verdict"] = None
        found["data"]["notes"] = None
        said = found["findings"]
        found["findings"] = [x for x in said if not x.startswith("On this machine elu is ")]
    assert ours == theirs


def test_a_cluster_that_is_not_there_is_one_line(run):
    code, _, err = run("compare", "--dask", "tcp://127.0.0.1:9", "--maps", "elu")
    assert code == 1
    assert "there is no Dask scheduler at tcp://127.0.0.1:9" in err
    assert err.count("\n") == 1
    code, _, err = run("compare", "--dask", "tcp://127.0.0.1:9", "--jobs", "2")
    assert code == 2


OPTIONS = {"window": 4, "sinks": 1, "steps": 4, "seed": 2}


def test_a_fit_over_an_executor_is_that_of_each_layer_alone():
    pytest.importorskip("torch")
    from kerneltrick.torch import fit

    data, told = analysis.sample().select([0, 5], [3, 4]), []
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        found = fit(data, **OPTIONS, executor=executor, progress=lambda *x: told.append(x))
        with pytest.raises(ValueError, match="not a stream"):
            fit(iter([data]), executor=executor)
    assert [x[1:] for x in told] == [(1, 2), (2, 2)]
    for layer in (0, 5):
        alone = fit(data.select([layer]), **OPTIONS)
        assert str(found.maps.dials[layer]) == str(alone.maps.dials[layer])
        assert found.after[layer] == alone.after[layer]
        assert (found.maps.seen[layer] == alone.maps.seen[layer]).all()
    assert found.steps == found.history[-1][0] == 4


@pytest.mark.slow
def test_a_fit_by_workers_goes_on_and_does_not_depend_on_their_number(run, two, tmp_path):
    pytest.importorskip("torch")
    from kerneltrick.torch import fit

    data, resume = analysis.sample().select([0, 5], [3, 4]), tmp_path / "kept"
    found = fit(data, **OPTIONS, executor=two, resume=resume)
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert sorted(path.name for path in kept) == ["kept.0", "kept.5"]
    assert fit(data, **OPTIONS, executor=two, resume=resume).maps.digest == found.maps.digest
    save, out = tmp_path / "qkv.safetensors", tmp_path / "one.safetensors"
    analysis.save_attention(data, save)
    arguments = ("--window", 4, "--sinks", 1, "--steps", 4, "--seed", 2, "--jobs", 1)
    assert run("fit", save, "--out", out, *arguments)[0] == 0
    assert analysis.FittedMaps.load(out).digest == found.maps.digest
    assert not [x.name for x in tmp_path.iterdir() if x.name.startswith(".")]
