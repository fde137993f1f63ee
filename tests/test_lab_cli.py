"""`kerneltrick lab`: list, start and check, and the page about them."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from answers import LABS, ROOT, right_answers, skeleton
from grading import LAB, RIGHT
from pages import run_blocks

from kerneltrick.labs import grader


def test_the_page_about_the_labs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_blocks(ROOT / "docs" / "labs.md") >= 6


class TestStart:
    def test_copies_the_folder_and_says_what_to_do(self, tmp_path, monkeypatch, run):
        monkeypatch.chdir(tmp_path)
        code, out, _ = run("lab", "start", "2")
        assert code == 0
        folder = tmp_path / LAB.folder
        assert (folder / LAB.file).read_text() == skeleton(LAB)
        assert (folder / "tests" / "test_kernel_trick.py").exists()
        assert not list(folder.rglob("__pycache__"))
        assert "kerneltrick lab check" in out
        assert "](../" not in (folder / "README.md").read_text()

    @pytest.mark.parametrize("existing", ["README.md", "src/kernel_trick.py", "tests/conftest.py"])
    def test_never_overwrites_and_writes_nothing_half(self, existing, tmp_path, run):
        target = tmp_path / "mine"
        (target / existing).parent.mkdir(parents=True)
        (target / existing).write_text("mine")
        before = sorted(target.rglob("*"))
        code, _, err = run("lab", "start", "02", target)
        assert code == 2
        assert existing in err
        assert (target / existing).read_text() == "mine"
        assert sorted(target.rglob("*")) == before

    def test_a_link_that_leads_nowhere_is_not_overwritten(self, tmp_path, run):
        (tmp_path / "README.md").symlink_to(tmp_path / "nowhere")
        assert run("lab", "start", "02", tmp_path)[0] == 2
        assert not (tmp_path / "nowhere").exists()

    def test_an_interrupted_copy_leaves_nothing(self, tmp_path, monkeypatch):
        real = Path.read_text

        def read_text(self, *arguments, **options):
            if self.name == "kernel_trick.py":
                raise KeyboardInterrupt
            return real(self, *arguments, **options)

        monkeypatch.setattr(Path, "read_text", read_text)
        with pytest.raises(KeyboardInterrupt):
            grader.start(LAB, tmp_path / "a" / "b")
        assert list(tmp_path.iterdir()) == []

    def test_a_folder_with_spaces_is_quoted(self, tmp_path, run):
        code, out, _ = run("lab", "start", "02", tmp_path / "my lab")
        assert code == 0
        assert f"kerneltrick lab check '{tmp_path / 'my lab'}'" in out

    @pytest.mark.parametrize("below", ["", "deeper"])
    def test_a_file_in_the_place_of_the_folder(self, below, tmp_path, run):
        (tmp_path / "taken").write_text("mine")
        code, _, err = run("lab", "start", "02", tmp_path / "taken" / below)
        assert code == 1
        assert "cannot write" in err
        assert (tmp_path / "taken").read_text() == "mine"

    def test_goes_beside_other_files(self, tmp_path, run):
        (tmp_path / "notes.txt").write_text("mine")
        assert run("lab", "start", "lab02", tmp_path)[0] == 0
        assert (tmp_path / "notes.txt").read_text() == "mine"

    @pytest.mark.parametrize("number", LABS)
    def test_every_lab_starts(self, number, tmp_path, run):
        code, _, err = run("lab", "start", number, tmp_path / "x")
        assert code == 0, err
        assert (tmp_path / "x" / LABS[number].file).exists()

    @pytest.mark.parametrize("typo", ["22", "0", "kernel_tric", "lab2x", ""])
    def test_typos_are_answered_with_what_exists(self, typo, tmp_path, monkeypatch, run):
        monkeypatch.chdir(tmp_path)
        code, _, err = run("lab", "start", typo)
        assert code == 2
        assert "known are 01, 02, 03" in err
        assert list(tmp_path.iterdir()) == []


class TestCheck:
    def test_list(self, run):
        code, out, _ = run("lab", "list")
        assert code == 0
        for lab in LABS.values():
            assert lab.title in out
            assert lab.file in out
            assert lab.exercises[-1].name in out
        found = json.loads(run("lab", "list", "--json")[1])
        assert [lab["lab"] for lab in found] == list(LABS)

    def test_a_started_lab_then_a_right_one(self, tmp_path, monkeypatch, run):
        monkeypatch.chdir(tmp_path)
        run("lab", "start", "02", "mine")
        code, out, _ = run("lab", "check", "mine")
        assert code == 1
        assert out.count("not written yet") == 5
        (tmp_path / "mine" / LAB.file).write_text(RIGHT, encoding="utf-8")
        monkeypatch.chdir(tmp_path / "mine")
        code, out, _ = run("lab", "check")
        assert code == 0
        assert "5 of 5 functions are right; score 100%" in out

    def test_json(self, tmp_path, run):
        path = tmp_path / "kernel_trick.py"
        path.write_text(RIGHT.replace("def elu_feature_map", "def other"), encoding="utf-8")
        code, out, _ = run("lab", "check", path, "--json")
        assert code == 1
        found = json.loads(out)
        assert found["format"] == "kerneltrick.lab/1"
        assert (found["lab"], found["file"], found["score"]) == ("02", "kernel_trick.py", 0.8)
        assert found["problems"] == []
        assert found["functions"][1] == {
            "name": "elu_feature_map", "passed": 0, "cases": len(LAB.exercises[1].cases),
            "hint": "the function is missing", "line": None,
        }  # fmt: skip

    def test_a_folder_of_submissions_of_several_labs(self, tmp_path, run):
        other = LABS["03"]
        (tmp_path / "ada.py").write_text(RIGHT, encoding="utf-8")
        (tmp_path / "bob.py").write_text("def elu_feature_map(x): return x\n", encoding="utf-8")
        run("lab", "start", "02", tmp_path / "carl")
        (tmp_path / "dora" / "work").mkdir(parents=True)
        solution = right_answers(other)["right_numpy"]
        (tmp_path / "dora" / "work" / "feature_maps.py").write_text(solution, encoding="utf-8")
        (tmp_path / "notes.py").write_text("x = 1\n")
        (tmp_path / "notes.txt").write_text("x")
        code, out, err = run("lab", "check", tmp_path)
        assert code == 1
        rows = [line.split() for line in out.splitlines() if ".py" in line]
        assert [(row[0], row[1], row[2]) for row in rows] == [
            ("ada.py", "02", "100%"),
            ("bob.py", "02", rows[1][2]),
            ("carl/src/kernel_trick.py", "02", "0%"),
            ("dora/work/feature_maps.py", "03", "100%"),
        ]
        assert "2 of 4 are right" in out
        assert "notes.py" in err
        found = json.loads(run("lab", "check", tmp_path, "--json")[1])
        assert [s["file"] for s in found["submissions"]] == [row[0] for row in rows]

    def test_what_cannot_be_read_is_left_out(self, tmp_path, run):
        (tmp_path / "Zoë Müller" / "sub folder").mkdir(parents=True)
        (tmp_path / "Zoë Müller" / "sub folder" / "kernel_trick.py").write_text(RIGHT)
        (tmp_path / "nowhere.py").symlink_to("/nowhere")
        (tmp_path / "circle").symlink_to(tmp_path)
        os.mkfifo(tmp_path / "pipe.py")
        (tmp_path / "wide.py").write_bytes(RIGHT.encode("utf-16"))
        found, unknown = grader.submissions(tmp_path, LABS)
        assert [s.name for s in found] == ["Zoë Müller/sub folder/kernel_trick.py", "wide.py"]
        assert [path.name for path in unknown] == ["nowhere.py", "pipe.py"]
        code, _, err = run("lab", "check", tmp_path / "pipe.py", "--lab", "02")
        assert code == 2
        assert "no Python file" in err

    def test_a_pipe_that_closes_early(self, tmp_path, run):
        (tmp_path / "kernel_trick.py").write_text("x = 1\n")
        check_it = f"{sys.executable} -m kerneltrick lab check {tmp_path} | true"
        done = subprocess.run(check_it, shell=True, capture_output=True, text=True)
        assert "Traceback" not in done.stderr

    def test_the_lab_can_be_told(self, tmp_path, run):
        path = tmp_path / "homework.py"
        path.write_text("x = 1\n")
        assert run("lab", "check", path)[0] == 2
        code, out, _ = run("lab", "check", path, "--lab", "3")
        assert code == 1
        assert "Lab 03" in out

    def test_nothing_to_grade(self, tmp_path, run):
        code, _, err = run("lab", "check", tmp_path)
        assert code == 2
        assert "kernel_trick.py" in err
        assert run("lab", "check", tmp_path / "nowhere")[0] == 2
        assert run("lab", "check", tmp_path, "--lab", "99")[0] == 2
        assert run("lab", "check", tmp_path, "--seconds", "-1")[0] == 2

    def test_ctrl_c(self, tmp_path):
        path = tmp_path / "kernel_trick.py"
        path.write_text("while True: pass\n")
        process = subprocess.Popen(
            [sys.executable, "-m", "kerneltrick", "lab", "check", str(path), "--seconds", "600"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        time.sleep(3)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 130
        assert "stopped" in err
