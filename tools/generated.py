"""Stamp generated pictures and tables with the version and a hash of the sources they show.

python tools/generated.py         exit 1 if a picture or table is older than the code it shows
python tools/generated.py --all   also check pictures and tables that show times

A stamp holds a hash of the sources that determine what is shown. The hash ignores comments, layout
and Python docstrings, so only a change of code makes a picture outdated. Files that a tool can
quickly regenerate and check (`--check` of make_labs, make_claims, …) carry only the version.
"""

from __future__ import annotations

import argparse
import ast
import functools
import hashlib
import io
import re
import struct
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kerneltrick import __version__
from kerneltrick._files import write
from kerneltrick._pictures import picture_style

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
PACKAGE = "src/kerneltrick"
_STAMP = re.compile(r"<!-- made by (kerneltrick [^>]*) -->\n")


@dataclass(frozen=True)
class Product:
    """A picture or table: the make target that regenerates it, and its sources.

    A source is a file, a glob pattern, or `file:name` for one function, class or method.
    """

    target: str  # the target for make
    sources: tuple[str, ...]
    timed: bool = False  # whether it shows times and needs a quiet machine

    def stamp(self) -> str:
        return f"kerneltrick {__version__}, sources {fingerprint(self.sources)}"


def _simulation(name: str) -> Product:
    figure = f"{PACKAGE}/simulate/_figures.py:{name}_figure"
    return Product("figures", (f"{PACKAGE}/simulate/_{name}.py", figure))


CORE = ("native/*.h", "native/*.cpp", f"{PACKAGE}/engines/*.py", f"{PACKAGE}/attention/_linear.py")
PICTURES = {
    "speed.png": Product(
        "figures",
        ("tools/make_figures.py:speed_figure", "benchmarks/levels.py",
         "benchmarks/language_model.py:SdpaAttention", *CORE),
        timed=True,
    ),
    "overview.png": Product(
        "figures",
        ("tools/make_figures.py:topical_tokens", "tools/make_figures.py:overview",
         "tools/make_figures.py:overview_figure"),
    ),
    "report.png": Product(
        "figures",
        ("tools/make_figures.py:screenshot", f"{PACKAGE}/report/page/*",
         f"{PACKAGE}/report/page/compare/*", f"{PACKAGE}/analysis/*.py",
         f"{PACKAGE}/cli/_arguments.py:default_maps"),
        timed=True,  # not really, but it needs a browser, so an old one is no failure
    ),
    "inspect.png": Product(
        "figures",
        ("tools/make_figures.py:inspected", f"{PACKAGE}/report/page/*",
         f"{PACKAGE}/report/page/inspect/*", f"{PACKAGE}/inspection/*.py"),
        timed=True,  # not really, but it needs a browser
    ),
    "complexity.png": Product(
        "figures",
        (f"{PACKAGE}/costs/_plot.py", f"{PACKAGE}/costs/_features.py",
         f"{PACKAGE}/costs/_attention.py:softmax", f"{PACKAGE}/costs/_attention.py:linear"),
    ),
    "brackets.png": Product("figures", ("tools/make_figures.py:brackets",)),
    "chunks.png": Product("figures", ("tools/make_figures.py:chunks",)),
    "roots.png": Product("figures", ("tools/drawings.py:roots",)),
    "caches.png": Product(
        "figures", ("tools/drawings.py:caches", f"{PACKAGE}/costs/_decoding.py")
    ),
    "ridge.png": Product(
        "figures", tuple(f"tools/drawings.py:{name}" for name in ("bumps", "mesa", "ridge"))
    ),
    "family.png": Product("figures", ("tools/drawings.py:family",)),
    "quadratic.png": Product("figures", ("tools/make_figures.py:quadratic",)),
    "decoding.png": Product(
        "figures", ("tools/make_figures.py:decoding", f"{PACKAGE}/costs/_decoding.py")
    ),
    "dial.png": Product(
        "figures", ("tools/make_figures.py:dial", f"{PACKAGE}/analysis/_windows.py:head_errors",
                    f"{PACKAGE}/analysis/_blocks.py:_joined"),
    ),
    "communication.png": Product(
        "figures", (f"{PACKAGE}/costs/_communication.py", f"{PACKAGE}/costs/_attention.py:chunked"),
    ),
    "recall.png": Product("figures", ("tools/make_recall.py", f"{PACKAGE}/labs/based.py")),
    "fitted.png": Product(
        "fitted", ("tools/make_fitted.py:figure",
                   *(f"{PACKAGE}/torch/_transfer.py:Transfer.{name}"
                     for name in ("_take_step", "_loss", "_errors", "_look"))),
    ),
    "trained.png": Product(
        "trained", ("tools/make_trained.py:figure", f"{PACKAGE}/recall/_model.py",
                    f"{PACKAGE}/recall/_task.py:Task.examples",
                    *(f"{PACKAGE}/recall/_train.py:{name}" for name in ("_schedule", "_batch"))),
    ),
    "kin.png": Product("kin", ("tools/make_kin.py:kin_figure", "tools/make_kin.py:weights")),
    "choose.png": Product(
        "kin", ("tools/make_kin.py:choose_figure", "tools/make_kin.py:measure",
                f"{PACKAGE}/analysis/_quality.py", f"{PACKAGE}/analysis/_synthetic.py"),
    ),
    **{
        f"{name}.png": _simulation(name)
        for name in ("moments", "scaling", "features", "representer", "svm")
    },
}  # fmt: skip
TABLES = {  # by their first line
    "<!-- bench:start -->": Product(
        "bench",
        ("benchmarks/bench.py", "benchmarks/baselines.py", f"{PACKAGE}/engines/_chunked.py",
         f"{PACKAGE}/attention/_linear.py"),
        timed=True,
    ),
    "<!-- native:begin -->": Product("bench-native", ("benchmarks/native.py", *CORE), timed=True),
    "<!-- delta:begin -->": Product(
        "bench-native",
        ("benchmarks/delta_peers.py", "native/delta*", f"{PACKAGE}/engines/_delta_native*.py"),
        timed=True,
    ),
    "<!-- jax:begin -->": Product(
        "bench-native",
        ("benchmarks/jax_peers.py", "native/ffi.cpp", f"{PACKAGE}/engines/_xla_call.py",
         f"{PACKAGE}/engines/_jax*.py", f"{PACKAGE}/engines/*native_jax.py"),
        timed=True,
    ),
    "<!-- onnx:begin -->": Product(
        "bench-native",
        ("benchmarks/onnx_layers.py", f"{PACKAGE}/onnx/*.py", f"{PACKAGE}/engines/_onnx.py"),
        timed=True,
    ),
    "<!-- steps:begin -->": Product(
        "bench-models",
        ("benchmarks/steps.py", "native/delta_step.h", "native/scan*", "native/convolution.cpp",
         f"{PACKAGE}/engines/_repeat_torch.py", f"{PACKAGE}/hf/_convolution.py",
         f"{PACKAGE}/hf/_delta.py", f"{PACKAGE}/hf/_state_space.py"),
        timed=True,
    ),
    "<!-- models:begin -->": Product(
        "bench-models",
        ("benchmarks/models.py", f"{PACKAGE}/hf/_published.py", f"{PACKAGE}/hf/_state_space.py",
         f"{PACKAGE}/hf/_delta.py", f"{PACKAGE}/hf/_selective_scan.py",
         f"{PACKAGE}/hf/_convolution.py"),
        timed=True,
    ),
}  # fmt: skip


@functools.cache
def fingerprint(sources: tuple[str, ...]) -> str:
    """Return a hash of the code in these sources."""
    digest = hashlib.sha256()
    for source in sources:
        pattern, _, name = source.partition(":")
        files = sorted(path for path in ROOT.glob(pattern) if path.is_file())
        if not files:
            raise ValueError(f"there is no source {pattern}")
        for path in files:
            digest.update(f"{path.relative_to(ROOT)}:{name}\0{code(path, name)}\0".encode())
    return digest.hexdigest()[:12]


def code(path: Path, name: str = "") -> str:
    """Return the part of a file, or of one function, class or method, that the hash covers."""
    if path.suffix == ".py":
        tree: ast.AST = ast.parse(path.read_text(encoding="utf-8"))
        for part in filter(None, name.split(".")):
            named = {getattr(node, "name", None): node for node in ast.iter_child_nodes(tree)}
            if part not in named:
                raise ValueError(f"there is no {name} in {path}")
            tree = named[part]
        for node in ast.walk(tree):
            body: list[Any] = getattr(node, "body", [])
            if isinstance(body, list) and body and _is_docstring(body[0]):
                del body[0]
        return ast.dump(tree)
    content = path.read_bytes()
    if path.suffix in (".h", ".cpp"):
        text = re.sub(r"//[^\n]*|/\*.*?\*/", "", content.decode(), flags=re.DOTALL)
        return " ".join(text.split())
    return hashlib.sha256(content).hexdigest()


def _is_docstring(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def save_picture(figure: Any, name: str, folder: Path = IMAGES, dpi: int = 120) -> None:
    """Save a matplotlib figure as the picture `name`."""
    drawn = io.BytesIO()
    with picture_style():
        figure.savefig(drawn, format="png", dpi=dpi)
    save_png(drawn.getvalue(), name, folder)


def save_png(content: bytes, name: str, folder: Path = IMAGES) -> None:
    """Save the picture `name` with its stamp."""
    content = stamped(packed(content), PICTURES[name].stamp())
    write(folder / name, content)
    print(f"wrote {folder / name}, {len(content) / 1000:.0f} kB")


def packed(png: bytes) -> bytes:
    """The picture with 256 colours and without transparency: a third of the bytes.

    Wheels carry pictures. Drawings have few colours, so the eye sees no difference.
    """
    from PIL import Image

    with Image.open(io.BytesIO(png)) as picture:
        if picture.mode == "RGBA" and picture.getextrema()[3] == (255, 255):
            picture = picture.convert("RGB")
        if picture.mode == "RGB":
            picture = picture.quantize(256, dither=Image.Dither.NONE)
        made = io.BytesIO()
        picture.save(made, "png", optimize=True)
    return made.getvalue()


def stamped(png: bytes, stamp: str) -> bytes:
    """Insert the stamp as a text chunk after the header (8 bytes of signature, 25 of IHDR)."""
    chunk = b"tEXtkerneltrick\0" + stamp.encode()
    size, check = struct.pack(">I", len(chunk) - 4), struct.pack(">I", zlib.crc32(chunk))
    return png[:33] + size + chunk + check + png[33:]


def stamp_of_picture(png: bytes) -> str | None:
    place = 8
    while place + 8 <= len(png):
        (size,) = struct.unpack(">I", png[place : place + 4])
        content = png[place + 4 : place + 8 + size]
        if content.startswith(b"tEXtkerneltrick\0"):
            return content[16:].decode()
        place += 12 + size
    return None


def page_with(page: str, block: str, begin: str, end: str) -> str:
    """Return the page with the stamp and `block` between its lines `begin` and `end`."""
    before, first, rest = page.partition(begin)
    _, last, after = rest.partition(end)
    if not (first and last):
        raise ValueError(f"the page needs a line {begin} and, after it, a line {end}")
    stamp = TABLES[begin].stamp() if begin in TABLES else f"kerneltrick {__version__}"
    return f"{before}{begin}\n<!-- made by {stamp} -->\n{block}\n{end}{after}"


def stamp_of_table(page: str, begin: str) -> str | None:
    found = _STAMP.match(page.partition(begin + "\n")[2])
    return found[1] if found else None


def update(wanted: dict[Path, str], check: bool, target: str) -> int:
    """Write the files that differ from `wanted`. With `check`, only list them and return 1.

    A different version in the stamp does not count as a difference.
    """
    stale = [
        path
        for path, text in wanted.items()
        if not path.exists()
        or _STAMP.sub("", path.read_text(encoding="utf-8")) != _STAMP.sub("", text)
    ]
    if check and stale:
        names = ", ".join(map(str, stale))
        print(f"outdated, run make {target}: {names}", file=sys.stderr)
        return 1
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, wanted[path])
        print(f"wrote {path}")
    return 0


def old() -> dict[str, Product]:
    """Return the pictures and tables that are older than the code, by name."""
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    stamps = {
        **{name: stamp_of_picture((IMAGES / name).read_bytes()) for name in PICTURES},
        **{begin: stamp_of_table(page, begin) for begin in TABLES},
    }
    products = {**PICTURES, **TABLES}
    return {
        name: products[name]
        for name, stamp in stamps.items()
        if stamp is None or not stamp.endswith(f"sources {fingerprint(products[name].sources)}")
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--all", action="store_true", help="also fail for pictures and tables that show times"
    )
    arguments = parser.parse_args(argv)
    found = old()
    for name, product in found.items():
        when = " on a quiet machine" if product.timed else ""
        print(f"older than the code it shows: {name}; make {product.target}{when}", file=sys.stderr)
    return int(any(arguments.all or not product.timed for product in found.values()))


if __name__ == "__main__":
    raise SystemExit(main())
