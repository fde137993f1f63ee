"""`kerneltrick lab check` of a class: zip files, versions, the roster, CSV and feedback."""

import csv
import io
import json
import os
import shutil
import stat
import struct
import zipfile

import pytest
from answers import LABS
from grading import LAB, RIGHT

from kerneltrick.cli import _roster
from kerneltrick.labs import grader
from kerneltrick.labs.grader import _archive

ONE = "def simple_feature_map(x):\n    return x\n"


def make_zip(path, files, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(zipped(files, **options))
    return path


def zipped(files, **options):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", **options) as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return content.getvalue()


def find(where, tmp_path, lab=None):
    scratch = tmp_path / ".scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    return grader.find_submissions(where, LABS, lab, scratch)


EVIL = {"../kernel_trick.py": ONE}
REFUSED = [
    (EVIL, "leads out of it"),
    ({"/tmp/kernel_trick.py": ONE}, "leads out of it"),
    ({"a/../../kernel_trick.py": ONE}, "leads out of it"),
    ({"..\\kernel_trick.py": ONE}, "leads out of it"),
    ({"C:\\kernel_trick.py": ONE}, "leads out of it"),
    ({"inner.rar": "Rar"}, "a .rar archive; only .zip is unpacked"),
    ({"inner.zip": "PK"}, "not a zip file that can be read"),
    ({"inner.zip": zipped(EVIL)}, "leads out of it"),
    ({"inner.zip": zipped({"more.zip": zipped({"kernel_trick.py": ONE})})}, "unpack the outer"),
    ({"notes.txt": "x"}, "no Python file and no notebook is in it"),
    ({}, "no Python file and no notebook is in it"),
    ({f"{i}.txt": "" for i in range(_archive.MOST_FILES + 1)}, "more than 2,000 entries"),
]


class TestZip:
    def test_a_zip_file_is_graded_as_a_folder(self, tmp_path, run):
        make_zip(tmp_path / "class" / "ada.zip", {"lab02/src/kernel_trick.py": ONE})
        (tmp_path / "class" / "bob.py").write_text(ONE)
        code, out, err = run("lab", "check", tmp_path / "class", "--json")
        assert (code, err) == (1, "")
        found = json.loads(out)["submissions"]
        assert [(s["student"], s["file"]) for s in found] == [
            ("ada", "ada.zip/lab02/src/kernel_trick.py"),
            ("bob", "bob.py"),
        ]
        assert {s["functions"][0]["passed"] for s in found} == {4}

    def test_a_zip_file_that_is_named_is_graded(self, tmp_path, run, here):
        path = make_zip(tmp_path / "ada.zip", {"kernel_trick.py": ONE, "notes.txt": "x"})
        code, out, err = run("lab", "check", path)
        assert (code, err) == (1, "")
        assert "Lab 02, The kernel trick: kernel_trick.py" in out
        assert "UTF-8" not in out

    def test_zip_files_of_students_in_the_zip_file_of_a_class(self, tmp_path):
        handed_in = {
            "Ada Lovelace_12_assignsubmission_file_lab.zip": zipped({"src/kernel_trick.py": ONE}),
            "Bob B_34_assignsubmission_file_/work.zip": zipped({"kernel_trick.py": ONE}),
            "Bob B_35_assignsubmission_file_/work.zip": zipped({"kernel_trick.py": ONE}),
            "evilmallory_late_123_4567_lab-1.zip": zipped({"../kernel_trick.py": ONE}),
            "noether_125_4570_kernel_trick-2.py": ONE,
            "zoe/work/kernel_trick.py": ONE,
            "__MACOSX/._work.zip": "x",
        }
        for at, folder in enumerate(("", "lab 02/")):
            files = {folder + name: content for name, content in handed_in.items()}
            where = tmp_path / str(at)
            found = find(make_zip(where / "class.zip", files), where)
            assert {x.removeprefix(folder): len(own) for x, own in found.students.items()} == {
                "Ada Lovelace": 1, "Bob B_34": 1, "Bob B_35": 1, "evilmallory": 0, "noether": 1,
                "zoe": 1,
            }  # fmt: skip
            assert [*found.reasons] == [f"{folder}evilmallory"]
            assert all(s.path.read_text() == ONE for s in found.submissions)

    def test_numbers_that_are_none_of_a_course_stay(self, tmp_path):
        names = {"exam_1_2026_ada", "exam_1_2026_bob", "lab_2_eve"}
        found = find(make_zip(tmp_path / "class.zip", {f"{x}.py": ONE for x in names}), tmp_path)
        assert found.students.keys() == names

    def test_two_archives_of_one_name_that_are_refused(self, tmp_path):
        for name in ("ada", "bob"):
            make_zip(tmp_path / "class" / name / "lab.zip", {"../kernel_trick.py": ONE})
        assert find(tmp_path / "class", tmp_path).reasons.keys() == {"ada", "bob"}

    def test_a_folder_beside_zip_files_has_nothing_to_grade(self, tmp_path):
        make_zip(tmp_path / "class" / "ada.zip", {"kernel_trick.py": ONE})
        (tmp_path / "class" / "erik").mkdir()
        found = find(tmp_path / "class", tmp_path)
        assert found.students == {"ada": ("ada.zip/kernel_trick.py",), "erik": ()}

    def test_what_is_not_unpacked_has_a_row_with_the_reason(self, tmp_path):
        for at, (files, reason) in enumerate(REFUSED):
            where = tmp_path / str(at)
            make_zip(where / "class" / "ada.zip", files)
            (where / "class" / "bob.py").write_text(ONE)
            found = find(where / "class", where)
            assert found.students == {"ada": (), "bob": ("bob.py",)}
            assert reason in found.reasons["ada"], files.keys()
            assert [name.split("/")[0] for name in found.left_out] == ["ada.zip"]
            assert not list(where.rglob("kernel_trick.py"))

    def test_the_row_and_the_exit_code(self, tmp_path, run, here):
        make_zip(tmp_path / "ada.zip", {"../kernel_trick.py": ONE})
        (tmp_path / "bob.py").write_text(RIGHT, encoding="utf-8")
        code, out, err = run("lab", "check", tmp_path)
        assert code == 1
        assert "a path in the zip file leads out of it" in out
        assert "not graded: ada.zip: a path in the zip file" in err
        found = json.loads(run("lab", "check", tmp_path, "--json")[1])
        assert found["nothing_to_grade"] == ["ada"]
        assert "leads out of it" in found["reasons"]["ada"]
        code, _, err = run("lab", "check", tmp_path / "ada.zip")
        assert code == 2
        assert "leads out of it" in err

    def test_what_is_no_zip_file(self, tmp_path):
        for content in (b"", b"no zip", b"PK\x05\x06" + b"\0" * 10, b"PK\x03\x04x"):
            (tmp_path / "ada.zip").write_bytes(content)
            assert "not a zip file that can be read" in find(tmp_path, tmp_path).reasons["ada"]

    def test_damaged_content(self, tmp_path):
        path = make_zip(tmp_path / "class" / "ada.zip", {"kernel_trick.py": ONE * 50},
                        compression=zipfile.ZIP_DEFLATED)  # fmt: skip
        whole = bytearray(path.read_bytes())
        whole[45:55] = b"\xff" * 10
        path.write_bytes(whole)
        found = find(tmp_path / "class", tmp_path)
        assert "not a zip file that can be read" in found.reasons["ada"]

    def test_a_bomb_is_not_unpacked_whatever_it_says_about_its_size(self, tmp_path, monkeypatch):
        monkeypatch.setattr(_archive, "LARGEST_UNPACKED", 10**6)
        files = {f"kernel_trick{i}.py": "#" * 600_000 for i in range(3)}
        nested = {f"{x}.zip": zipped({x: y}, compression=8) for x, y in files.items()}
        make_zip(tmp_path / "class" / "ada.zip", files, compression=zipfile.ZIP_DEFLATED)
        make_zip(tmp_path / "class" / "bob.zip", nested, compression=zipfile.ZIP_DEFLATED)
        found = find(tmp_path / "class", tmp_path)
        assert found.reasons.keys() == {"ada", "bob"}
        for reason in found.reasons.values():
            assert "more than 1,000,000 bytes of code" in reason
        assert found.submissions == ()

    def test_a_long_list_of_entries_is_not_read(self, tmp_path, monkeypatch):
        path = make_zip(tmp_path / "class" / "ada.zip", {"kernel_trick.py": ONE})
        content = path.read_bytes()
        end = list(_archive._END.unpack(content[-22:]))
        end[5] = 2**31  # the size of the list
        path.write_bytes(content[:-22] + _archive._END.pack(*end))
        monkeypatch.setattr(zipfile, "ZipFile", None)
        assert "entries" in find(tmp_path / "class", tmp_path).reasons["ada"]

    def test_a_large_archive_is_not_opened(self, tmp_path):
        with (tmp_path / "ada.zip").open("wb") as file:
            file.truncate(_archive.LARGEST_ARCHIVE + 1)  # takes no space on disk
        assert "bytes; at most" in find(tmp_path, tmp_path).reasons["ada"]

    def test_links_are_skipped(self, tmp_path):
        path = tmp_path / "class" / "ada.zip"
        path.parent.mkdir()
        link = zipfile.ZipInfo("kernel_trick.py")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(link, "/etc/passwd")
        found = find(tmp_path / "class", tmp_path)
        assert found.students == {"ada": ()}
        assert not list((tmp_path / ".scratch").rglob("*.py"))

    def test_a_password_is_named(self, tmp_path):
        path = make_zip(tmp_path / "class" / "ada.zip", {"kernel_trick.py": ONE})
        content = bytearray(path.read_bytes())
        for mark, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
            place = content.index(mark) + at
            content[place : place + 2] = struct.pack("<H", 1)
        path.write_bytes(content)
        assert find(tmp_path / "class", tmp_path).reasons["ada"] == "the zip file has a password"

    def test_unusual_compression_is_refused(self, tmp_path):
        make_zip(tmp_path / "class" / "ada.zip", {"kernel_trick.py": ONE},
                 compression=zipfile.ZIP_LZMA)  # fmt: skip
        assert "unusual" in find(tmp_path / "class", tmp_path).reasons["ada"]

    def test_other_archives_have_a_row(self, tmp_path):
        for name in ("ada.rar", "bob.7z", "eve.tgz"):
            (tmp_path / name).write_bytes(b"x")
        found = find(tmp_path, tmp_path)
        assert found.reasons.keys() == {"ada", "bob", "eve"}
        assert all("only .zip is unpacked" in reason for reason in found.reasons.values())

    def test_what_macos_adds_is_skipped(self, tmp_path):
        files = {"lab/kernel_trick.py": ONE, "__MACOSX/lab/._kernel_trick.py": "\0"}
        make_zip(tmp_path / "class" / "ada.zip", files)
        assert len(find(tmp_path / "class", tmp_path).submissions) == 1

    def test_nothing_is_left_behind(self, tmp_path, run, here, monkeypatch):
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
        (tmp_path / "temporary").mkdir()
        run("lab", "check", make_zip(tmp_path / "ada.zip", {"kernel_trick.py": ONE}))
        assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.usefixtures("here")
class TestVersions:
    def test_the_best_version_counts_and_the_others_are_named(self, tmp_path, run):
        (tmp_path / "ada").mkdir()
        (tmp_path / "ada" / "kernel_trick.py").write_text(ONE)
        (tmp_path / "ada" / "kernel_trick (1).py").write_text(RIGHT, encoding="utf-8")
        os.utime(tmp_path / "ada" / "kernel_trick (1).py", (1000, 1000))  # the best is the oldest
        (tmp_path / "bob.py").write_text(ONE)
        code, out, err = run("lab", "check", tmp_path)
        assert code == 1
        assert "2 students, lab 02" in out
        assert "1 of 2 students have everything right" in out
        assert (
            "note: ada has 2 files of lab 02; the best one counts: "
            "ada/kernel_trick (1).py (100%), not ada/kernel_trick.py (20%)" in err
        )
        found = json.loads(run("lab", "check", tmp_path, "--json")[1])
        assert [s["file"] for s in found["submissions"]] == ["ada/kernel_trick (1).py", "bob.py"]
        assert found["not_counted"] == [
            {"student": "ada", "lab": "02", "file": "ada/kernel_trick.py", "score": 0.2}
        ]

    def test_of_equal_versions_the_newest_counts(self, tmp_path, run):
        names = ("kernel_trick.py", "kernel_trick (1).py")
        for newer in names:
            for name in names:
                (tmp_path / name).write_text(ONE)
                os.utime(tmp_path / name, (2000 if name == newer else 1000,) * 2)
            code, out, err = run("lab", "check", tmp_path)
            assert code == 1
            assert f"Lab 02, The kernel trick: {newer}" in out
            assert "has 2 files of lab 02" in err


@pytest.mark.usefixtures("here")
class TestRoster:
    def test_forms(self, tmp_path):
        path = tmp_path / "roster.csv"
        for text in ("ada\nbob\n", "\ufeffname\nada\nbob", "id;Name\n7;ada\n8;bob\n",
                     "ada,x\n\nbob,y\nada,z\n", "mail\tstudent\nm@x\tada\nn@x\tbob"):  # fmt: skip
            path.write_text(text, encoding="utf-8")
            assert _roster.read_roster(path) == ["ada", "bob"], text

    def test_what_is_no_roster(self, tmp_path, run):
        path = tmp_path / "roster"
        (tmp_path / "kernel_trick.py").write_text(ONE)
        for content in (b"", b"\n\n", b"name\n", b"\xff\xfea\0", None):
            path.unlink() if content is None else path.write_bytes(content)
            code, _, err = run("lab", "check", tmp_path, "--roster", path)
            assert code == 3
            assert "cannot read the roster" in err

    def test_names_are_found_in_those_of_files(self):
        students = dict.fromkeys(
            ("ADA", "Bob Builder_123_assignsubmission_file", "blue/cara", "Ann Marie_7", "Zoë"),
            ("x",),
        )
        roster = ["Ada", "Bob Builder", "Cara", "Ann", "Ann Marie", "Zoe\u0308"]
        assert _roster.on_roster(students, roster) == {
            "ADA": "Ada",
            "Bob Builder_123_assignsubmission_file": "Bob Builder",
            "blue/cara": "Cara",
            "Ann Marie_7": "Ann Marie",
            "Zoë": "Zoe\u0308",
        }

    def test_absentees_have_a_row_and_strangers_a_note(self, tmp_path, run):
        (tmp_path / "class" / "erik").mkdir(parents=True)
        (tmp_path / "class" / "ada.py").write_text(RIGHT, encoding="utf-8")
        (tmp_path / "class" / "x.py").write_text(ONE)
        (tmp_path / "roster.txt").write_text("Zoe\nAda\nErik\n")
        code, out, err = run("lab", "check", tmp_path / "class", "--csv", "--roster",
                             tmp_path / "roster.txt")  # fmt: skip
        assert code == 1
        rows = list(csv.DictReader(io.StringIO(out)))
        assert [(row["student"], row["lab02_score"], row["lab02_hint"]) for row in rows[:3]] == [
            ("Zoe", "", "not handed in"),
            ("Ada", "1.0", ""),
            ("Erik", "", "nothing to grade"),
        ]
        assert rows[3]["student"] == "x"
        assert "not on the roster: x" in err


@pytest.mark.usefixtures("here")
class TestCsv:
    def test_has_a_column_per_function_and_all_hints(self, tmp_path, run):
        text = ONE + "def elu_feature_map(x):\n    return x\n"
        (tmp_path / "ada.py").write_text(text)
        out = run("lab", "check", tmp_path, "--csv")[1]
        (row,) = csv.DictReader(io.StringIO(out))
        assert row["lab02_simple_feature_map"] == "1.0"
        assert row["lab02_elu_feature_map"] == "0.0"
        hints = row["lab02_hints"].split(" | ")
        assert hints[0].startswith("elu_feature_map: your output is x itself")
        assert "verify_associativity: the function is missing" in hints
        assert len(hints) == len(LAB.exercises) - 1

    def test_excel_gets_a_byte_order_mark(self, tmp_path, run):
        (tmp_path / "Zoë.py").write_text(ONE)
        plain = run("lab", "check", tmp_path, "--csv")[1]
        assert run("lab", "check", tmp_path, "--csv", "--excel")[1] == "\ufeff" + plain
        code, _, err = run("lab", "check", tmp_path, "--excel")
        assert (code, "--excel needs --csv" in err) == (3, True)


@pytest.mark.usefixtures("here")
class TestFeedback:
    def test_every_student_gets_a_file(self, tmp_path, run):
        (tmp_path / "class" / "erik").mkdir(parents=True)
        (tmp_path / "class" / "ada.py").write_text(ONE)
        (tmp_path / "class" / "blue").mkdir()
        for name in ("../x", "b"):
            (tmp_path / "class" / "blue" / f"{name.strip('./')}.py").write_text(ONE)
        target = tmp_path / "feedback"
        for _ in range(2):  # it may write over its own files
            code, _, err = run("lab", "check", tmp_path / "class", "--feedback", target)
            assert code == 1
            assert "wrote feedback for 4 students" in err
        names = sorted(path.name for path in target.iterdir())
        assert names == ["ada.md", "blue_b.md", "blue_x.md", "erik.md"]
        text = (target / "ada.md").read_text(encoding="utf-8")
        assert "# ada" in text
        assert "1 of 5 functions are right; score 20%" in text
        assert "- `simple_feature_map`: 4 of 4 cases are right." in text
        assert "  Hint: the function is missing" in text
        assert "nothing to grade" in (target / "erik.md").read_text(encoding="utf-8")

    def test_files_of_the_teacher_are_not_overwritten(self, tmp_path, run):
        (tmp_path / "class").mkdir()
        (tmp_path / "class" / "ada.py").write_text(ONE)
        (tmp_path / "class" / "bob.py").write_text(ONE)
        (tmp_path / "bob.md").write_text("mine")
        code, _, err = run("lab", "check", tmp_path / "class", "--feedback", tmp_path)
        assert code == 3
        assert "nothing was written" in err
        assert (tmp_path / "bob.md").read_text() == "mine"
        assert not (tmp_path / "ada.md").exists()

    def test_not_into_the_folder_that_is_graded(self, tmp_path, run):
        (tmp_path / "ada.py").write_text(ONE)
        code, _, err = run("lab", "check", tmp_path, "--feedback", tmp_path / "feedback")
        assert code == 3
        assert "outside the one that is graded" in err
        assert not (tmp_path / "feedback").exists()
