"""Pictures and tables record which code they show, and outdated ones are found."""

import importlib
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")
ROOT = Path(__file__).resolve().parent.parent
with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(ROOT / "tools")
    generated = importlib.import_module("generated")

PYTHON = 'def f(x):\n    """Says."""\n    return x + 1  # why\n\n\ndef g(x):\n    return x\n'
PNG = bytes.fromhex(  # one grey pixel
    "89504e470d0a1a0a0000000d49484452000000010000000108000000003a7e9b55"
    "0000000a49444154789c6368000000820081773cd72a0000000049454e44ae426082"
)


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project with a picture that has two sources and a table that has one."""
    for folder in ("docs/images", "src"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "src" / "a.py").write_text(PYTHON)
    (tmp_path / "src" / "b.h").write_text("int x; // a number\n")
    monkeypatch.setattr(generated, "ROOT", tmp_path)
    monkeypatch.setattr(generated, "IMAGES", tmp_path / "docs/images")
    product = generated.Product
    picture, table = (
        product("figures", ("src/a.py:f", "src/*.h")),
        product("bench", ("src/a.py",), True),
    )
    monkeypatch.setattr(generated, "PICTURES", {"p.png": picture})
    monkeypatch.setattr(generated, "TABLES", {"<!-- t:begin -->": table})
    make(tmp_path)
    return tmp_path


def make(project):
    generated.fingerprint.cache_clear()
    generated.save_png(PNG, "p.png", project / "docs/images")
    page = generated.page_with(
        "a\n<!-- t:begin -->\n<!-- t:end -->\n", "|1|", "<!-- t:begin -->", "<!-- t:end -->"
    )
    (project / "docs" / "performance.md").write_text(page)


def names():
    generated.fingerprint.cache_clear()
    return list(generated.old())


def test_nothing_but_times_is_older_than_the_code_it_shows():
    found = generated.old()
    assert [name for name, product in found.items() if not product.timed] == []
    drawn = {path.name for path in (ROOT / "docs/images").iterdir()}
    assert drawn == set(generated.PICTURES)


def test_comments_docstrings_and_layout_make_nothing_old(project):
    (project / "src" / "a.py").write_text("def f(x): return (x + 1)\ndef g(x): return x\n")
    (project / "src" / "b.h").write_text("/* it counts */\nint   x;\n")
    assert names() == []


def test_a_change_of_the_code_makes_old_what_shows_it(project):
    (project / "src" / "a.py").write_text(PYTHON.replace("    return x\n", "    return -x\n"))
    assert names() == ["<!-- t:begin -->"]  # the picture shows f alone
    (project / "src" / "b.h").write_text("int y;\n")
    assert names() == ["p.png", "<!-- t:begin -->"]
    make(project)
    assert names() == []


def test_old_times_are_told_and_old_pictures_fail(project, capsys):
    assert generated.main([]) == 0
    (project / "src" / "a.py").write_text(PYTHON.replace("    return x\n", "    return -x\n"))
    generated.fingerprint.cache_clear()
    assert generated.main([]) == 0
    assert "t:begin -->; make bench on a quiet machine" in capsys.readouterr().err
    assert generated.main(["--all"]) == 1
    (project / "src" / "b.h").write_text("int y;\n")
    generated.fingerprint.cache_clear()
    assert generated.main([]) == 1
    assert "p.png; make figures\n" in capsys.readouterr().err


def test_a_stamped_picture_is_a_picture_and_says_its_version(project):
    from matplotlib import image

    path = project / "docs/images/p.png"
    assert image.imread(path).shape == (1, 1)
    stamp = generated.stamp_of_picture(path.read_bytes())
    assert stamp.startswith(f"kerneltrick {generated.__version__}, sources ")
    assert generated.stamp_of_picture(PNG) is None
    path.write_bytes(PNG)
    assert names() == ["p.png"]  # old without its stamp


def test_a_source_can_be_one_method_of_a_class(project):
    def of(text):
        (project / "src" / "c.py").write_text(text)
        generated.fingerprint.cache_clear()
        return generated.fingerprint(("src/c.py:C.f",))

    before = of("class C:\n    def f(self): return 1\n    def g(self): return 2\n")
    assert of("class C:\n    def f(self): return 1\n    def g(self): return 3\n") == before
    assert of("class C:\n    def f(self): return 4\n    def g(self): return 2\n") != before


def test_a_source_that_is_gone_is_named(project):
    for source in ("src/none.py", "src/a.py:h", "src/a.py:f.h"):
        with pytest.raises(ValueError, match="there is no "):
            generated.fingerprint((source,))


def test_only_the_text_between_the_marks_is_replaced_and_the_version_is_no_reason(
    tmp_path, monkeypatch, capsys
):
    page = "before\n<!-- x:begin -->\nold\n<!-- x:end -->\nafter\n"
    marks = ("<!-- x:begin -->", "<!-- x:end -->")
    once = generated.page_with(page, "new", *marks)
    assert once.replace(
        f"<!-- made by kerneltrick {generated.__version__} -->\n", ""
    ) == page.replace("old", "new")
    for broken in ("no marks", "\n".join(reversed(marks))):
        with pytest.raises(ValueError, match="needs a line"):
            generated.page_with(broken, "new", *marks)
    (tmp_path / "page.md").write_text(once)
    monkeypatch.setattr(generated, "__version__", "99")
    again = {tmp_path / "page.md": generated.page_with(once, "new", *marks)}
    assert generated.update(again, True, "x") == 0
    other = {tmp_path / "page.md": generated.page_with(once, "newer", *marks)}
    assert generated.update(other, True, "x") == 1
    assert "run make x" in capsys.readouterr().err
