"""`kerneltrick lab`: list, read, start and check, and the page about them."""

import contextlib
import csv
import functools
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from importlib import resources
from pathlib import Path

import pytest
from answers import LABS, ROOT, model, skeleton
from grading import HERE, LAB, QUICK, RIGHT, Here
from pages import run_blocks

from kerneltrick.cli import _grades
from kerneltrick.labs import COURSE, grader, how_long
from kerneltrick.labs.grader import _start


def test_the_page_about_the_labs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_blocks(ROOT / "docs" / "labs.md") >= 6


def check_links(folder, pattern):
    """Every link in the files has a target."""
    files = list(folder.rglob(pattern))
    assert files
    for path in files:
        for link in re.findall(r"\]\((?!\w+:|#)([^)#]+)", path.read_text(encoding="utf-8")):
            assert (path.parent / link).exists(), (path, link)


def run_student_tests(folder, *options):
    """`pytest tests/` in a student's folder, where kerneltrick is not installed."""
    command = [sys.executable, "-m", "pytest", "tests/", "-q", "-p", "no:cacheprovider", *options]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": ""}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def write_answers(lab, folder, notebook, more=""):
    """Right answers in the student's file, or in another cell of the notebook."""
    answers = model(lab)
    if not notebook:
        with (folder / lab.file).open("a", encoding="utf-8") as file:
            file.write(f"\n\n{answers}{more}")
        return
    path = folder / f"{lab.folder}.ipynb"
    book = json.loads(path.read_text(encoding="utf-8"))
    source = f"{answers}\n{more}".splitlines(keepends=True)
    book["cells"].append({"cell_type": "code", "source": source})
    path.write_text(json.dumps(book))


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

    def test_never_overwrites_and_writes_nothing_half(self, tmp_path, run):
        for existing in ("README.md", "src/kernel_trick.py", "tests/conftest.py"):
            target = tmp_path / existing.replace("/", "-")
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
        real = Path.read_bytes

        def read_bytes(self, *arguments, **options):
            if self.name == "kernel_trick.py":
                raise KeyboardInterrupt
            return real(self, *arguments, **options)

        monkeypatch.setattr(Path, "read_bytes", read_bytes)
        with pytest.raises(KeyboardInterrupt):
            grader.start(LAB, tmp_path / "a" / "b")
        assert list(tmp_path.iterdir()) == []

    def test_a_folder_with_spaces_is_quoted(self, tmp_path, run):
        code, out, _ = run("lab", "start", "02", tmp_path / "my lab")
        assert code == 0
        assert f"kerneltrick lab check '{tmp_path / 'my lab'}'" in out

    def test_a_file_in_the_place_of_the_folder(self, tmp_path, run):
        (tmp_path / "taken").write_text("mine")
        for below in ("", "deeper"):
            code, _, err = run("lab", "start", "02", tmp_path / "taken" / below)
            assert code == 1
            assert "cannot write" in err
            assert (tmp_path / "taken").read_text() == "mine"

    def test_goes_beside_other_files(self, tmp_path, run):
        (tmp_path / "notes.txt").write_text("mine")
        assert run("lab", "start", "lab02", tmp_path)[0] == 0
        assert (tmp_path / "notes.txt").read_text() == "mine"

    @pytest.mark.parametrize("notebook", [False, True])
    @pytest.mark.parametrize("number", LABS)
    def test_has_what_the_texts_mention(self, number, notebook, tmp_path, run):
        """Theory, links that lead somewhere, and no test that only the repository has."""
        lab, option = LABS[number], ["--notebook"] if notebook else []
        code, out, err = run("lab", "start", number, tmp_path, *option)
        assert code == 0, err
        theory = tmp_path / "docs" / grader.page(lab).name
        assert str(theory) in out
        assert theory.exists()
        check_links(tmp_path, "*.ipynb" if notebook else "*.md")
        for path in tmp_path.rglob("*.md"):
            for name in re.findall(r"tests/\w*\.?\w*", path.read_text(encoding="utf-8")):
                assert (tmp_path / name).exists(), (path.name, name)
        readme = (tmp_path / "README.md").read_text(encoding="utf-8")
        own = (ROOT / "labs" / lab.folder / "README.md").read_text(encoding="utf-8")
        blocks = re.compile(r"^```.*?^```", re.M | re.S)
        assert blocks.findall(readme) == blocks.findall(own)
        form = f"{lab.folder}.ipynb" if notebook else lab.file
        assert f"`{form}`" in readme
        assert form in out
        assert (tmp_path / form).exists()
        assert (tmp_path / "src").exists() == (not notebook)

    @pytest.mark.parametrize("notebook", [False, True])
    def test_the_tests_run_as_the_readme_says_in_both_forms(self, notebook, tmp_path):
        grader.start(LAB, tmp_path, notebook)
        bare = run_student_tests(tmp_path)
        assert bare.returncode == 1, bare.stdout + bare.stderr
        assert f"NotImplementedError: {LAB.exercises[0].name}" in bare.stdout
        write_answers(LAB, tmp_path, notebook)
        done = run_student_tests(tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr

    def test_a_notebook_is_tested_without_its_trials(self, tmp_path):
        grader.start(LAB, tmp_path, notebook=True)
        trials = "%matplotlib inline\nfound = undefined()\nundefined()\n1 / 0\n"
        write_answers(LAB, tmp_path, notebook=True, more=trials)
        done = run_student_tests(tmp_path, "-k", "TestFeatureMaps")
        assert done.returncode == 0, done.stdout + done.stderr

    def test_neither_file_nor_notebook(self, tmp_path):
        grader.start(LAB, tmp_path)
        (tmp_path / LAB.file).unlink()
        done = run_student_tests(tmp_path)
        assert "there is neither" in done.stdout + done.stderr

    def test_the_theory_can_be_read(self, run):
        for number, lab in LABS.items():
            code, out, _ = run("lab", "read", number)
            assert code == 0
            assert out.startswith("# ")
            assert out == grader.page(lab).read_text(encoding="utf-8")
            assert grader.page(lab).name.startswith(number)

    def test_what_uv_left_in_the_folder_is_not_copied(self, tmp_path, monkeypatch):
        home = tmp_path / "home"
        shutil.copytree(ROOT / "docs", home / "docs")
        shutil.copytree(ROOT / "labs" / LAB.folder, home / "labs" / LAB.folder)
        (home / "labs" / LAB.folder / ".venv").mkdir()
        (home / "labs" / LAB.folder / ".venv" / "pyvenv.cfg").touch()
        (home / "labs" / LAB.folder / "uv.lock").touch()
        monkeypatch.setattr(_start, "_home", lambda lab: home)
        names = {path.name for path in grader.start(LAB, tmp_path / "mine")}
        assert "pyproject.toml" in names
        assert not names & {"pyvenv.cfg", "uv.lock"}

    def test_typos_are_answered_with_what_exists(self, tmp_path, monkeypatch, run):
        monkeypatch.chdir(tmp_path)
        for typo in ("22", "0", "kernel_tric", "lab2x", ""):
            code, _, err = run("lab", "start", typo)
            assert code == 2
            assert "known are 01, 02, 03" in err
            assert list(tmp_path.iterdir()) == []


OWNERS = [
    ({"kernel_trick.py": "02"}, {"class": 1}),
    ({"lab02/src/kernel_trick.py": "02", "lab03/src/feature_maps.py": "03"}, {"class": 2}),
    ({"lab02/ada.py": "02", "lab03/ada.py": "03", "lab03/bob.py": "03"},
     {"ada": 2, "bob": 1}),
    ({"ada.py": "02", "ada.ipynb": "02"}, {"ada": 2}),
    ({"ada.py": "02", "ada (1).py": "02", "bob.py": "02"}, {"ada": 2, "bob": 1}),
    ({"ada/kernel_trick.py": "02", "ada/kernel_trick (1).py": "02",
      "ada/kernel_trick - Copy.py": "02", "ada/kernel_trick-Copy1.ipynb": "02"},
     {"ada": 4}),
    ({"ada/src/kernel_trick.py": "02", "ada/lab02_kernel_trick.ipynb": "02"}, {"ada": 2}),
    ({"kernel_trick.py": "02", "kernel_trick.ipynb": "02"}, {"class": 2}),
    ({"ada.py": "02", "ada/kernel_trick.py": "02"}, {"ada": 2}),
    ({"ada/kernel_trick.py": "02", "ada (1)/kernel_trick.py": "02"}, {"ada": 2}),
    ({"1/kernel_trick.py": "02", "2/kernel_trick.py": "02"}, {"1": 1, "2": 1}),
    ({"blue/ada.py": "02", "blue/bob/x.py": "02", "red/x.py": "02"},
     {"blue/ada": 1, "blue/bob": 1, "red": 1}),
    ({"ada/old.py": "02", "ada/new.py": "02"}, {"ada/old": 1, "ada/new": 1}),
]  # fmt: skip


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
        assert found[0]["page"] == "01_complexity.md"
        assert found[6]["chapters"] == ["The dial", "Recall"]
        assert found[0]["minutes"] == 30 + 15 * len(found[0]["functions"])

    def test_the_course_names_every_page_and_chapter_and_stands_on_the_first_page(self, run):
        body = resources.files("kerneltrick.report") / "page" / "explore" / "body.html"
        chapters = re.findall(r'<h2 id="\w+-title">(.*)</h2>', body.read_text(encoding="utf-8"))
        assert {name for step in COURSE for name in step.chapters} == set(chapters)
        index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
        explained = (ROOT / "docs" / "explore.md").read_text(encoding="utf-8")
        shown = run("lab", "list")[1]
        for step in COURSE:
            (page,) = (ROOT / "docs").glob(f"{step.page}_*.md")
            lab = LABS.get(step.page)
            (row,) = re.findall(rf"^\| \[{step.page} {step.title}\]\({page.name}\).*$", index, re.M)
            about = how_long(step.minutes(len(lab.exercises) if lab else 0))
            assert row.endswith(f"| {about} |")
            assert about in shown
            assert (f"../labs/{lab.folder}/README.md" if lab else "| – |") in row
            for name in step.chapters:
                number = chapters.index(name) + 1
                slug = f"{number} {name}".lower().replace(" ", "-")
                assert f"[{name}](explore.md#{slug})" in row
                assert f"## {number} {name}\n" in explained
                assert page.name in explained.split(f"## {number} {name}\n")[1].split("\n## ")[0]

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

    def test_json(self, tmp_path, run, here):
        path = tmp_path / "kernel_trick.py"
        path.write_text(RIGHT.replace("def elu_feature_map", "def other"), encoding="utf-8")
        code, out, _ = run("lab", "check", path, "--json")
        assert code == 1
        found = json.loads(out)
        assert found["format"] == "kerneltrick.lab/1"
        assert (found["lab"], found["file"], found["score"]) == ("02", "kernel_trick.py", 0.8)
        assert found["problems"] == []
        assert found["functions"][1] == {
            "name": "elu_feature_map", "passed": 0, "cases": len(LAB.exercises[1].cases) + 1,
            "hint": "the function is missing", "line": None,
        }  # fmt: skip

    def test_a_class_has_one_row_a_student(self, tmp_path, run):
        other = LABS["03"]
        (tmp_path / "ada.py").write_text(RIGHT, encoding="utf-8")
        (tmp_path / "bob.py").write_text("def elu_feature_map(x): return x\n", encoding="utf-8")
        run("lab", "start", "02", tmp_path / "carl")
        (tmp_path / "dora" / "work").mkdir(parents=True)
        solution = model(other)
        (tmp_path / "dora" / "work" / "feature_maps.py").write_text(solution, encoding="utf-8")
        (tmp_path / "dora" / "lab02").mkdir()
        (tmp_path / "dora" / "lab02" / "mine.ipynb").write_text(notebook_of(RIGHT))
        (tmp_path / "erik").mkdir()
        (tmp_path / "notes.py").write_text("x = 1\n")
        (tmp_path / "notes.txt").write_text("x")
        code, out, err = run("lab", "check", tmp_path, "--jobs", "2")
        assert code == 1
        assert "5 students, lab 02, lab 03" in out
        names = {"ada", "bob", "carl", "dora", "erik"}
        rows = [line.split() for line in out.splitlines() if line.split()[:1] and
                line.split()[0] in names]  # fmt: skip
        assert [row[:3] for row in rows] == [
            ["ada", "100%", "–"],
            ["bob", "0%", "–"],
            ["carl", "0%", "–"],
            ["dora", "100%", "100%"],
            ["erik", "–", "–"],
        ]
        assert out.count("nothing to grade") == 1
        assert "2 of 5 students have everything right" in out
        assert "notes.py" in err
        found = json.loads(run("lab", "check", tmp_path, "--json")[1])
        assert [(s["student"], s["file"]) for s in found["submissions"]] == [
            ("ada", "ada.py"),
            ("bob", "bob.py"),
            ("carl", "carl/src/kernel_trick.py"),
            ("dora", "dora/lab02/mine.ipynb"),
            ("dora", "dora/work/feature_maps.py"),
        ]
        assert found["nothing_to_grade"] == ["erik"]

    def test_csv_has_one_row_a_student_and_no_formula(self, tmp_path, run, here):
        (tmp_path / "=1+1").mkdir()
        (tmp_path / "=1+1" / "kernel_trick.py").write_text(RIGHT, encoding="utf-8")
        (tmp_path / 'zoe, "the" second').mkdir()
        code, out, _ = run("lab", "check", tmp_path, "--csv")
        assert code == 1
        functions = [f"lab02_{exercise.name}" for exercise in LAB.exercises]
        assert list(csv.DictReader(io.StringIO(out))) == [
            {"student": "'=1+1", "lab02_file": "'=1+1/kernel_trick.py", "lab02_score": "1.0",
             "lab02_right": "5", "lab02_functions": "5", "lab02_hint": "",
             **dict.fromkeys(functions, "1.0"), "lab02_hints": ""},
            {"student": 'zoe, "the" second', "lab02_file": "", "lab02_score": "",
             "lab02_right": "", "lab02_functions": "", "lab02_hint": "nothing to grade",
             **dict.fromkeys(functions, ""), "lab02_hints": "nothing to grade"},
        ]  # fmt: skip
        assert run("lab", "check", tmp_path, "--csv", "--json")[0] == 3

    def test_whose_file_it_is(self, tmp_path):
        function = {"02": "verify_associativity", "03": "compare_to_softmax"}
        for at, (files, students) in enumerate(OWNERS):
            for name, number in files.items():
                path = tmp_path / str(at) / "class" / name
                path.parent.mkdir(parents=True, exist_ok=True)
                text = f"def {function[number]}(): pass\n"
                path.write_text(notebook_of(text) if path.suffix == ".ipynb" else text)
            found = grader.find_submissions(tmp_path / str(at) / "class", LABS)
            assert {name: len(own) for name, own in found.students.items()} == students
            assert len(found.submissions) == len(files), files

    def test_folders_beside_those_of_students_have_nothing_to_grade(self, tmp_path):
        for name in ("blue/ada", "blue/bob", "blue/empty", "empty", ".git", "tests"):
            (tmp_path / name).mkdir(parents=True)
        for name in ("ada", "bob"):
            (tmp_path / "blue" / name / "kernel_trick.py").touch()
        found = grader.find_submissions(tmp_path, LABS)
        assert [name for name, own in found.students.items() if not own] == ["blue/empty", "empty"]
        assert [name for name, own in found.students.items() if own] == ["blue/ada", "blue/bob"]

    def test_a_folder_beside_ones_own_file_is_no_student(self, tmp_path):
        (tmp_path / "data").mkdir()
        (tmp_path / "kernel_trick.py").touch()
        assert len(grader.find_submissions(tmp_path, LABS).students) == 1

    def test_what_cannot_be_read_is_left_out(self, tmp_path, run):
        (tmp_path / "Zoë Müller" / "sub folder").mkdir(parents=True)
        (tmp_path / "Zoë Müller" / "sub folder" / "kernel_trick.py").write_text(RIGHT)
        (tmp_path / "nowhere.py").symlink_to("/nowhere")
        (tmp_path / "circle").symlink_to(tmp_path)
        os.mkfifo(tmp_path / "pipe.py")
        (tmp_path / "broken.ipynb").write_text("{")
        (tmp_path / "wide.py").write_bytes(RIGHT.encode("utf-16"))
        found = grader.find_submissions(tmp_path, LABS)
        assert [s.name for s in found.submissions] == [
            "Zoë Müller/sub folder/kernel_trick.py", "wide.py"
        ]  # fmt: skip
        assert list(found.left_out) == ["broken.ipynb", "nowhere.py", "pipe.py"]
        code, _, err = run("lab", "check", tmp_path / "pipe.py", "--lab", "02")
        assert code == 2
        assert "pipe.py" in err

    def test_one_file_that_cannot_be_read_does_not_stop_the_class(self, tmp_path):
        report = grader.grade_file(LAB, tmp_path / "gone.py", "gone.py", HERE)
        assert report.score == 0
        assert report.problems[0].hint == "the file cannot be read: No such file or directory"

    def test_root_without_walls_is_refused_unless_told_otherwise(self, tmp_path, run, monkeypatch):
        monkeypatch.setattr(os, "geteuid", lambda: 0)
        open_limits = functools.partial(grader.Limits, namespaces=False)
        monkeypatch.setattr(grader, "Limits", open_limits)
        (tmp_path / "kernel_trick.py").write_text(RIGHT, encoding="utf-8")
        code, out, err = run("lab", "check", tmp_path)
        assert (code, out) == (3, "")
        assert "grade as another user, or add --as-root" in err
        code, out, err = run("lab", "check", tmp_path, "--as-root")
        assert code == 0
        assert "note: on this system student code can change the files" in err

    def test_the_lab_can_be_told(self, tmp_path, run, here):
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
        assert run("lab", "check", tmp_path / "nowhere")[0] == 3
        assert run("lab", "check", tmp_path, "--lab", "99")[0] == 3
        assert run("lab", "check", tmp_path, "--seconds", "-1")[0] == 3

    @pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks into /proc")
    def test_ctrl_c_says_what_was_graded(self, tmp_path):
        (tmp_path / "ada.py").write_text("def verify_associativity(Q, K, V): return True\n")
        (tmp_path / "bob.py").write_text(
            "def verify_associativity(Q, K, V):\n    while True: pass\n"
        )
        process = subprocess.Popen(
            [sys.executable, "-m", "kerneltrick", "lab", "check", str(tmp_path),
             "--seconds", "600", "--jobs", "1"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        deadline = time.monotonic() + 120
        while not looping(process.pid):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        try:
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
        assert process.returncode == 130
        assert "stopped; 1 of 2 files were graded. Nothing is kept" in err
        assert "ada" in out
        assert "bob" not in out

    @pytest.mark.parametrize("option", [[], ["--csv"]])
    def test_half_a_table_is_printed_but_not_half_a_csv_file(
        self, option, tmp_path, run, here, monkeypatch
    ):
        def until_ctrl_c(waiting):
            yield next(iter(waiting))
            raise KeyboardInterrupt

        for name in ("ada", "bob"):
            (tmp_path / f"{name}.py").write_text("def verify_associativity(Q, K, V): return True\n")
        monkeypatch.setattr(_grades, "as_completed", until_ctrl_c)
        code, out, err = run("lab", "check", tmp_path, "--jobs", "1", *option)
        assert code == 130
        assert "stopped; 1 of 2 files were graded. Nothing is kept" in err
        assert ("ada" in out, "bob" in out) == (not option, False)


def looping(pid):
    """Whether a process below this one has used a second of CPU time."""
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text().split():
            with contextlib.suppress(OSError):
                stat = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
                busy = (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK") > 1
                name = Path(f"/proc/{child}/cmdline").read_bytes()
                if (busy and b"_child.serve" in name) or looping(child):
                    return True
    return False


class TestNotebooks:
    @pytest.mark.parametrize("number", LABS)
    def test_a_notebook_that_was_filled_in_is_right(self, number, tmp_path, run, monkeypatch):
        """Bare, nothing is written. Lab 02 is graded behind walls."""
        lab = LABS[number]
        monkeypatch.chdir(tmp_path)
        if number != "02":
            monkeypatch.setattr(grader, "Server", Here)
        grader.start(lab, tmp_path / "x", notebook=True)
        code, out, _ = run("lab", "check", "x")
        assert (code, out.count("not written yet")) == (1, len(lab.exercises))
        write_answers(lab, tmp_path / "x", notebook=True)
        code, out, err = run("lab", "check", "x")
        assert (code, err) == (0, ""), out

    def test_a_hint_names_the_cell(self, tmp_path, run, here):
        cells = [
            "%matplotlib inline\nimport numpy as np",
            "# φ\ndef elu_feature_map(x):\n    return y",
            "print(z)\nimport nothing_of_the_kind",
            "import nothing_either",
        ]
        (tmp_path / "lab02.ipynb").write_text(notebook_of(*cells))
        _, out, _ = run("lab", "check", tmp_path, "--json")
        result = json.loads(out)["functions"][1]
        assert result["hint"] == "NameError: name 'y' is not defined (cell 2, line 3: return y)"
        assert (result["cell"], result["line"]) == (2, 3)
        problems = json.loads(out)["problems"]
        assert [(x["cell"], x["line"]) for x in problems] == [(3, 2), (4, 1)]

    def test_code_between_the_functions_is_not_run(self):
        assert grade_notebook(RIGHT, "assert False\nwhile True: pass").right

    def test_what_is_no_python_is_left_out(self):
        for cell in ("!rm -rf x\n%timeit 1\nx = 1", "%%bash\necho a b", "%%time\nx = 1",
                     "?np.exp", "", "%%html\n<p>"):  # fmt: skip
            report = grade_notebook(cell, RIGHT)
            assert report.right, (cell, report.problems)

    def test_a_syntax_error_is_held_against_its_function(self):
        report = grade_notebook(RIGHT, "x = 1\ndef elu_feature_map(x):\n    return x x")
        assert report.functions[1].hint.endswith("(cell 2, line 3: return x x)")
        assert sum(f.right for f in report.functions) == 4

    def test_what_is_no_notebook(self):
        code = b'{"cells": [{"cell_type": "code", "source": 5}]}'
        for content in (b"", b"{}", b"[]", b'{"cells": 3}', b'{"cells": [1]}', b"[" * 10**5,
                        b"\xff\xfe", b'{"cells": []}', code):  # fmt: skip
            report = grader.grade(LAB, content, server=HERE, notebook=True)
            assert report.score == 0
            assert "notebook" in report.problems[0].hint


def notebook_of(*cells):
    book = [{"cell_type": "code", "source": cell.splitlines(keepends=True)} for cell in cells]
    return json.dumps({"cells": [{"cell_type": "markdown", "source": "# Lab"}, *book]})


def grade_notebook(*cells):
    return grader.grade(QUICK, notebook_of(*cells).encode(), server=HERE, notebook=True)
