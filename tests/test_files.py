"""Files of q, k and v: which are read, which are refused, and how much memory both take."""

import io
import json
import os
import struct
import subprocess
import sys
import tempfile
import zipfile
import zlib
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from cases import each

from kerneltrick.analysis import _files
from kerneltrick.analysis._data import AttentionData
from kerneltrick.analysis._files import load_attention, save


@pytest.fixture
def arrays():
    q, k, v = np.random.default_rng(0).standard_normal((3, 2, 4, 10, 8)).astype(np.float32)
    return {"q": q, "k": k[:, :2].copy(), "v": v[:, :2, :, :5].copy()}


def npy(array):
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, allow_pickle=True)
    return buffer.getvalue()


def npy_header(header, version=1, length=None):
    text = header if isinstance(header, bytes) else repr(header).encode()
    width = 2 if version == 1 else 4
    size = len(text) if length is None else length
    return b"\x93NUMPY" + bytes([version, 0]) + size.to_bytes(width, "little") + text


def plain(shape, descr="<f4", **other):
    return {"descr": descr, "fortran_order": False, "shape": shape, **other}


def archive(path, members, compression=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, data in members:
            file.writestr(name, data)
    return path


def tensors(path, header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def same(data, arrays):
    for name, expected in arrays.items():
        found = getattr(data, name)
        assert found.dtype.isnative
        assert found.flags.c_contiguous
        np.testing.assert_array_equal(found, expected.reshape(found.shape))


def test_every_kind_of_file_gives_the_same_data(tmp_path, arrays):
    np.savez(tmp_path / "a.npz", **arrays, other=np.zeros(1))
    np.savez_compressed(tmp_path / "b.npz", **arrays)
    safetensors.numpy.save_file({**arrays, "other": np.zeros(1)}, tmp_path / "c.safetensors")
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
        np.save(tmp_path / f"run_{name}.npy", array)
    save(AttentionData(**arrays, layers=(3, 7)), tmp_path / "d.safetensors")
    trio = [tmp_path / f"run_{name}.npy" for name in "qkv"]
    for given in ("a.npz", "b.npz", "c.safetensors", "d.safetensors", "k.npy", "run_v.npy", ""):
        same(load_attention(tmp_path / given), arrays)
    same(load_attention(trio), arrays)
    same(load_attention([str(path) for path in trio]), arrays)
    assert load_attention(tmp_path / "d.safetensors").layers == (3, 7)
    assert load_attention(tmp_path / "a.npz").source == "a.npz"


@each("dtype, order", [("<f2", "F"), (">f2", "C"), ("<f4", "C"), (">f4", "F"), (">f8", "C")])
def test_byte_and_axis_order_do_not_matter(tmp_path, arrays, dtype, order):
    arrays = {name: np.asarray(x, dtype, order=order) for name, x in arrays.items()}
    np.savez_compressed(tmp_path / "x.npz", **arrays)
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    same(load_attention(tmp_path / "x.npz"), arrays)
    same(load_attention(tmp_path), arrays)
    first = {name: x[0, 0] for name, x in arrays.items()}  # one layer and one head
    np.savez(tmp_path / "y.npz", **first)
    data = load_attention(tmp_path / "y.npz")
    assert data.q.shape == (1, 1, *first["q"].shape)
    same(data, first)


def test_bfloat16_becomes_float32_without_loss(tmp_path, arrays):
    narrow = {name: x.astype(ml_dtypes.bfloat16) for name, x in arrays.items()}
    header, data = {}, b""
    for name, x in narrow.items():
        offsets = [len(data), len(data) + x.nbytes]
        header[name] = {"dtype": "BF16", "shape": list(x.shape), "data_offsets": offsets}
        data += x.tobytes()
    found = load_attention(tensors(tmp_path / "x.safetensors", header, data))
    assert found.q.dtype == np.float32
    same(found, {name: x.astype(np.float32) for name, x in narrow.items()})


def test_what_is_saved_comes_back(tmp_path, arrays):
    tokens = ("a", "<script>", '"', "é", "\\", "\n", "Ġx", "", "漢", "z")
    data = AttentionData(
        **arrays,
        layers=(1, 11),
        causal=True,
        scale=0.3,
        mask=np.arange(10) > 1,
        tokens=tokens,
        source="here",
        heads=(4, 5, 6, 9),
        excluded=((11, 6),),
    )
    save(data, tmp_path / "x.safetensors")
    back = load_attention(tmp_path / "x.safetensors")
    same(back, arrays)
    np.testing.assert_array_equal(back.mask, data.mask)
    for field in ("layers", "causal", "scale", "tokens", "source", "heads", "excluded"):
        assert getattr(back, field) == getattr(data, field)
    again = safetensors.numpy.load_file(tmp_path / "x.safetensors")  # the library reads it too
    np.testing.assert_array_equal(again["layers.11.v"], arrays["v"][1])
    with safetensors.safe_open(tmp_path / "x.safetensors", "numpy") as file:
        metadata = file.metadata()
    assert metadata["format"] == "kerneltrick.qkv/1"
    assert json.loads(metadata["scaling"]) == 0.3
    assert json.loads(metadata["causal"]) is True
    assert json.loads(metadata["tokens"]) == list(tokens)


def test_a_save_that_fails_leaves_the_previous_file(tmp_path, arrays, monkeypatch):
    path = tmp_path / "x.safetensors"
    path.write_bytes(b"before")

    def half(stream, *rest):
        stream.write(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(_files, "write_safetensors", half)
    with pytest.raises(OSError, match="no space"):
        save(AttentionData.from_arrays(**arrays), path)
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(ValueError, match=r"\*\.safetensors"):
        save(AttentionData.from_arrays(**arrays), tmp_path / "x.npz")


GOOD = np.ones((2, 6, 4), np.float32)
TRIO = [(f"{name}.npy", npy(GOOD)) for name in "qkv"]


def with_q(data):
    return [("q.npy", data), *TRIO[1:]]


def entry(dtype="F32", shape=(2, 6, 4), offsets=(0, 192)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def layered(shapes, metadata=None):
    """Return a header with consecutive tensors, and their bytes."""
    header, place = {} if metadata is None else {"__metadata__": metadata}, 0
    for name, shape in shapes.items():
        stop = place + 4 * int(np.prod(shape))
        header[name], place = entry(shape=shape, offsets=(place, stop)), stop
    return header, bytes(place)


ONE_LAYER = {f"layers.0.{name}": (2, 6, 4) for name in "qkv"}
OURS = {"format": "kerneltrick.qkv/1"}

# name: (members of an .npz, words of the error)
BAD_NPZ = {
    "keys": (TRIO[1:], ("no array 'q'", "expected q, k and v", "found k, v")),
    "pickle": (with_q(npy(np.array([{}], object))), ("q contains pickled objects",)),
    "dtype": (with_q(npy(GOOD.astype(np.int64))), ("q has dtype int64", "float32")),
    "record": (with_q(npy(np.zeros(2, "f4,f4"))), ("q has dtype [('f0'",)),
    "dtypes": (with_q(npy(GOOD.astype(np.float64))), ("one dtype", "float64")),
    "five axes": ([(n, npy(np.ones((1, 1, 2, 6, 4)))) for n, _ in TRIO], ("(1, 1, 2, 6, 4)",)),
    "features": (with_q(npy(GOOD[..., :3])), ("keys have 4 features but queries have 3",)),
    "no token": ([(n, npy(GOOD[:, :0])) for n, _ in TRIO], ("a token", "(1, 2, 0, 4)")),
    "twice": ([*TRIO, TRIO[0]], ("q.npy more than once",)),
    "empty": (with_q(b""), ("ends within",)),
    "short": (with_q(npy(GOOD)[:-4]), ("declares (2, 6, 4)", "192 bytes", "188")),
    "header is code": (with_q(npy_header(b"__import__('os').abort()")), ("not NumPy's",)),
    "deep header": (with_q(npy_header(b"(" * 9000)), ("not NumPy's",)),
    "long header": (with_q(npy_header(b" " * 20, 2, 1 << 31)), ("header of 2,147,483,648 bytes",)),
    "negative": (with_q(npy_header(plain((-1, 4))) + bytes(16)), ("shape (-1, 4)",)),
    "overflow": (with_q(npy_header(plain((2**62, 4))) + bytes(16)), ("73,786,976,294,838,",)),
    "wraps to 16": (with_q(npy_header(plain((2**62 + 1, 4))) + bytes(16)), ("bytes, but",)),
    "many axes": (with_q(npy_header(plain((1,) * 60)) + bytes(4)), ("declares the shape",)),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Duplicate name")
@each("name", BAD_NPZ)
def test_bad_archives_are_refused_with_what_was_expected_and_found(tmp_path, name):
    members, words = BAD_NPZ[name]
    path = archive(tmp_path / "bad.npz", members)
    refused(path, *words)


def test_compression_that_cannot_be_bounded_is_refused(tmp_path):
    path = archive(tmp_path / "x.npz", TRIO, zipfile.ZIP_LZMA)
    refused(path, "compressed with method", "expected deflate")


# name: (header, bytes after it, length of the header or None for the true one, words of the error)
BAD_SAFETENSORS = {
    "empty": (b"", b"", 99, ("header of 99 bytes",)),
    "long": (b"{}", b"", 2**63, ("header of 9,223,372,036,854,775,808 bytes",)),
    "noise": (b"noise", b"", None, ("not JSON",)),
    "deep": (b"[" * 100_000, b"", None, ("not JSON",)),
    "nothing": (b"{}", b"", None, ("no array 'q'", "found none")),
    "twice": (b'{"q": 1, "q": 2}', b"", None, ("names something twice",)),
    "no dtype": ({"q": {}}, b"", None, ("q has no dtype, shape and data_offsets",)),
    "negative": ({"q": entry(shape=(-2, 6, 4))}, bytes(192), None, ("make no sense",)),
    "size": ({"q": entry(shape=(2**40, 6, 4))}, bytes(192), None, ("declares (1099511627776",)),
    "backwards": ({"q": entry(offsets=(192, 0))}, bytes(192), None, ("bytes 192 to 0",)),
    "overlap": ({"q": entry(), "k": entry()}, bytes(192), None, ("starts at byte",)),
    "short": ({"q": entry()}, bytes(100), None, ("describes", "but the file has")),
    "dtype": ({"q": entry("I32")}, bytes(192), None, ("q has dtype I32", "expected F16")),
    "metadata": ({"__metadata__": {"a": 1}}, b"", None, ("__metadata__",)),
    "ragged": (*layered({**ONE_LAYER, **{f"layers.1.{x}": (2, 5, 4) for x in "qkv"}}), None,
               ("layers.1.q is (2, 5, 4)", "layers.0.q is (2, 6, 4)", "same for every layer")),
    "no k": (*layered({"layers.0.q": (2, 6, 4), "layers.0.v": (2, 6, 4)}), None,
             ("no array 'layers.0.k'",)),
    "both": (*layered({**ONE_LAYER, "q": (2, 6, 4)}), None, ("both 'q' and layers.0.q",)),
    "format": (*layered(ONE_LAYER, {"format": "kerneltrick.qkv/9"}), None, ("kerneltrick.qkv/9",)),
    "scaling": (*layered(ONE_LAYER, {**OURS, "scaling": "-1"}), None, ("scale > 0",)),
    "scaling digits": (*layered(ONE_LAYER, {**OURS, "scaling": "9" * 999}), None, ("scale > 0",)),
    "head digits": (*layered(ONE_LAYER, {**OURS, "heads": f"[{'9' * 9999}]"}), None, ("not JSON",)),
    "scaling text": (*layered(ONE_LAYER, {**OURS, "scaling": '"x"'}), None, ("not a number",)),
    "causal": (*layered(ONE_LAYER, {**OURS, "causal": "1"}), None, ("causal is 1",)),
    "mask": (*layered(ONE_LAYER, {**OURS, "mask": "[true]"}), None, ("(6,)", "(1,)")),
    "excluded": (*layered(ONE_LAYER, {**OURS, "excluded": "[[0]]"}), None, ("excluded",)),
    "not json": (*layered(ONE_LAYER, {**OURS, "mask": "[["}), None, ("mask is not JSON",)),
}  # fmt: skip


@each("name", BAD_SAFETENSORS)
def test_bad_safetensors_are_refused_with_what_was_expected_and_found(tmp_path, name):
    header, data, length, words = BAD_SAFETENSORS[name]
    refused(tensors(tmp_path / "bad.safetensors", header, data, length), *words)


def test_files_that_are_not_there_are_named(tmp_path):
    np.save(tmp_path / "q.npy", GOOD)
    np.save(tmp_path / "other.npy", GOOD)
    with pytest.raises(FileNotFoundError, match=r"k\.npy.*expected the three files"):
        load_attention(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"nowhere\.npz"):
        load_attention(tmp_path / "nowhere.npz")
    with pytest.raises(ValueError, match=r"q\.npy, k\.npy and v\.npy"):
        load_attention(tmp_path / "other.npy")
    with pytest.raises(ValueError, match=r"three \.npy files"):
        load_attention([tmp_path / "q.npy"])
    with pytest.raises(ValueError, match=r"\*\.npz or \*\.safetensors"):
        load_attention(tmp_path / "data.csv")
    for name in "kv":
        (tmp_path / f"{name}.npy").write_bytes(npy(GOOD)[:-5])
    with pytest.raises(ValueError, match=r"k\.npy cannot be read: .*192 bytes, but 187 follow"):
        load_attention(tmp_path)


def refused(path, *words):
    with pytest.raises((ValueError, TypeError)) as caught:
        load_attention(path)
    message = str(caught.value)
    for word in (str(path), *words):
        assert word in message
    assert len(message) < 600


def whole_files():
    folder = Path(tempfile.mkdtemp())
    data = AttentionData.from_arrays(GOOD, GOOD, GOOD, tokens=list("abcdef"))
    save(data, folder / "x.safetensors")
    yield ".safetensors", (folder / "x.safetensors").read_bytes()
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        yield ".npz", archive(folder / "x.npz", TRIO, method).read_bytes()


WHOLE = list(whole_files())


@hypothesis.given(
    which=st.integers(0, len(WHOLE) - 1),
    cut=st.integers(0, 1200),
    changes=st.lists(st.tuples(st.integers(0, 1500), st.integers(0, 255)), max_size=6),
)
@hypothesis.settings(max_examples=200)
@pytest.mark.filterwarnings("ignore")
def test_a_damaged_file_is_read_or_refused_but_never_crashes(which, cut, changes):
    suffix, content = WHOLE[which]
    data = bytearray(content[: len(content) - cut] if cut > 600 else content)
    for place, value in changes:
        if data:
            data[place % len(data)] = value
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"x{suffix}"
        path.write_bytes(data)
        try:
            load_attention(path)
        except (ValueError, TypeError) as error:
            message = str(error)
        else:
            message = str(path)
    assert str(path) in message


# Memory. The files are read in a process of their own, which prints by how much its peak grew.

MEASURE = """
import sys
from kerneltrick.analysis._files import load_attention

def peak():  # not ru_maxrss, which a new process inherits
    with open("/proc/self/status") as status:
        (line,) = (line for line in status if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024

for path in sys.argv[1:]:
    before = peak()
    try:
        outcome = load_attention(path).q.shape
    except (ValueError, TypeError) as error:
        outcome = "refused: " + str(error)
    print(peak() - before, outcome)
"""
MIB = 1 << 20


def measure(*paths):
    """Yield for each file the bytes that the peak of memory grew by, and what came of it."""
    if sys.platform != "linux":
        pytest.skip("the peak is read from /proc")
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, *paths],
        capture_output=True, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    for line in done.stdout.splitlines():
        added, _, outcome = line.partition(" ")
        yield int(added), outcome


def zeros(size, head=b""):
    """`head` and `size` zero bytes, deflated: one block that stands alone, many times over."""
    squeeze = zlib.compressobj(9, zlib.DEFLATED, -15)
    start = squeeze.compress(head) + squeeze.flush(zlib.Z_FULL_FLUSH)
    block = squeeze.compress(bytes(MIB)) + squeeze.flush(zlib.Z_FULL_FLUSH)
    return start + block * (size // MIB) + squeeze.flush()


def raw_archive(path, members):
    """Make a zip of (name, deflated bytes, declared size, declared checksum), even if false."""
    body, directory = b"", b""
    for name, data, size, crc in members:
        head = struct.pack("<HHHHHIIIHH", 20, 0, 8, 0, 0, crc, len(data), size, len(name), 0)
        directory += b"PK\x01\x02\x14\x00" + head + bytes(10) + struct.pack("<I", len(body))
        directory += name.encode()
        body += b"PK\x03\x04" + head + name.encode() + data
    end = struct.pack(
        "<IHHHHIIH", 0x06054B50, 0, 0, len(members), len(members), len(directory), len(body), 0
    )
    path.write_bytes(body + directory + end)
    return path


def deflated(data):
    squeeze = zlib.compressobj(9, zlib.DEFLATED, -15)
    return squeeze.compress(data) + squeeze.flush()


def honest(name):
    data = npy(GOOD)
    return (f"{name}.npy", deflated(data), len(data), zlib.crc32(data))


SIZE = 1 << 29


def bomb(kind, folder):
    path, head = folder / f"{kind}.npz", npy(GOOD)
    if kind == "declares little, holds much":
        # The checksum matches the declared part, so only the sizes reveal it.
        return raw_archive(
            path,
            [("q.npy", zeros(SIZE, head), len(head), zlib.crc32(head)), honest("k"), honest("v")],
        )
    header = npy_header(plain((8, 1 << 17, 128)))
    if kind == "declares much, all zeros":
        size = len(header) + SIZE
        return raw_archive(path, [("q.npy", zeros(SIZE, header), size, 0), honest("k")])
    if kind == "declares much, holds little":
        data = deflated(header + np.random.default_rng(0).bytes(24 * MIB))
        return raw_archive(path, [("q.npy", data, len(header) + SIZE, 0), honest("k"), honest("v")])
    if kind == "a directory of a million members":
        one = struct.pack("<IHHHHHHIIIHHHHHII", 0x02014B50, *[0] * 9, 1, *[0] * 6) + b"a"
        directory = one * 1_000_000
        end = struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, 65535, 65535, len(directory), 0, 0)
        path.write_bytes(directory + end)
        return path
    count = {"a long header of lists": 5_000_000, "the longest header of lists": 690_000}[kind]
    header = b'{"q":[' + b"[]," * count + b"[]]}"
    return tensors(folder / f"{kind}.safetensors", header)


def test_a_bomb_is_refused_in_little_memory(tmp_path):
    kinds = (
        "declares little, holds much",
        "declares much, all zeros",
        "declares much, holds little",
        "a directory of a million members",
        "a long header of lists",
        "the longest header of lists",
    )
    found = measure(*(bomb(kind, tmp_path) for kind in kinds))
    for kind, (added, outcome) in zip(kinds, found, strict=True):
        assert outcome.startswith("refused"), kind
        assert added < 64 * MIB, kind


@pytest.mark.parametrize("kind", ["compressed", "bfloat16", "npy", "fortran"])
def test_memory_stays_below_twice_the_declared_bytes(tmp_path, kind):
    x = np.random.default_rng(0).standard_normal((8, 1 << 13, 128), dtype=np.float32)  # 32 MiB
    declared, path = 3 * x.nbytes, tmp_path / "x.npz"
    if kind == "bfloat16":
        path, declared = tmp_path / "x.safetensors", declared // 2
        half, size = x.astype(ml_dtypes.bfloat16).tobytes(), x.nbytes // 2
        header = {
            f"layers.0.{name}": entry("BF16", x.shape, (i * size, (i + 1) * size))
            for i, name in enumerate("qkv")
        }
        tensors(path, header, half * 3)
    elif kind == "npy":
        path = tmp_path
        for name in "qkv":
            np.save(tmp_path / f"{name}.npy", x)
    elif kind == "compressed":
        x[:, 512:] = 0  # quick to compress, and a sixteenth of its size is still there
        np.savez_compressed(path, q=x, k=x, v=x)
    else:
        x = np.asfortranarray(x.astype(">f4"))
        np.savez(path, q=x, k=x, v=x)
    ((added, outcome),) = measure(path)
    assert outcome == "(1, 8, 8192, 128)"
    assert added < 2 * declared + 64 * MIB
