"""Packed files and archives that are broken or made to do harm: none grows without bound, and each is named."""

import bz2
import gzip
import io
import lzma
import os
import re
import tarfile
import tracemalloc
import zipfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from texts import PACK, pack, snli_folder, snli_lines, zip_file

from plmu.data import reading
from plmu.data.files import DataConfig
from plmu.errors import DataError
from plmu.experiments.data import imdb, qqp, snli, vectors
from plmu.text.words import Builder

REVIEW = "aclImdb/train/pos/5_9.txt"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PLMU_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("PLMU_DATA", raising=False)


@pytest.fixture
def traced():
    """Call it to begin, and again for the most bytes of memory that were held since."""

    def most() -> int:
        if tracemalloc.is_tracing():
            return tracemalloc.get_traced_memory()[1]
        tracemalloc.start()
        return 0

    yield most
    tracemalloc.stop()


ZEROS = {  # 128 MiB of zeros, in 64 parts
    ".gz": gzip.compress(bytes(2**21)) * 64,
    ".bz2": bz2.compress(bytes(2**21)) * 64,
    ".xz": lzma.compress(bytes(2**21), preset=0) * 64,
}


@pytest.mark.parametrize("end", ZEROS)
def test_a_file_that_grows_too_much_is_left(end, tmp_path, traced):
    path = tmp_path / f"aclImdb_v1.tar{end}"
    path.write_bytes(ZEROS[end])
    claims = PACK[end](_header(b"a", 2**26))
    too_much = f"{path.name} unpacks to more than 50 times its size"
    traced()
    pieces = []
    with reading.opened(path) as file, pytest.raises(DataError, match=too_much):
        pieces.extend(len(piece) for piece in iter(lambda: file.read(2**16), b""))
    assert sum(pieces) <= 50 * reading.PIECE + reading.ALLOWANCE  # after the first read
    with pytest.raises(DataError, match=r"line 1: it is longer than 1,048,576 bytes"):
        list(reading.lines(path))
    assert list(reading.members(path, re.compile("x"))) == []  # zeros are the end of an archive
    path.write_bytes(claims + ZEROS[end])
    with pytest.raises(DataError, match=too_much):
        list(reading.members(path, re.compile("x")))
    with pytest.raises(DataError, match=r"has more than the 100 bytes it should have at most"):
        reading.content(path, 100)
    assert traced() < 2**24


def test_a_member_of_a_zip_that_grows_too_much_is_left(tmp_path):
    path = zip_file(
        tmp_path / "v.zip", {"v.txt": (b"b " + b"1" * 1021 + b"\n") * 2**15}, compression=zipfile.ZIP_DEFLATED
    )
    assert path.stat().st_size < 2**17
    with pytest.raises(DataError, match=r"v\.zip unpacks to more than 50 times its size"):
        vectors.read(path, ["a"], 1)


def test_a_file_may_grow_up_to_the_bound(tmp_path):
    path = tmp_path / "a.gz"
    most = reading.RATIO * 20_000 + reading.ALLOWANCE
    for size in (most, most + 1):
        path.write_bytes(gzip.compress(bytes(size)).ljust(20_000, b"\0"))
        assert path.stat().st_size == 20_000
        if size == most:
            assert reading.content(path, most) == bytes(most)
        else:
            with pytest.raises(DataError, match=r"a\.gz unpacks to more than 50 times its size"):
                reading.content(path, most)


def test_xz_may_not_ask_for_much_memory(tmp_path):
    path = tmp_path / "a.xz"
    whole = lzma.compress(b"a 1\n", preset=0)
    path.write_bytes(_with_dictionary(whole, 30))  # 128 MiB
    with pytest.raises(DataError, match=r"a\.xz is truncated or damaged after line 0 \(Memory usage limit exceeded\)"):
        list(reading.lines(path))
    path.write_bytes(_with_dictionary(whole, 28))  # that of xz -9
    assert list(reading.lines(path)) == [(1, "a 1")]


def _with_dictionary(packed: bytes, code: int) -> bytes:
    """An xz file that claims to need a dictionary of (2 + code % 2) · 2^(code / 2 + 11) bytes."""
    block = bytearray(packed[12 : 12 + 4 * (packed[12] + 1)])
    assert block[2:4] == b"\x21\1"
    block[4] = code
    block[-4:] = zlib.crc32(block[:-4]).to_bytes(4, "little")
    return packed[:12] + block + packed[12 + len(block) :]


@pytest.mark.parametrize("end", [".gz", ".bz2", ".xz"])
def test_packed_files_in_parts(end, tmp_path, monkeypatch):
    """Several streams with zeros between and after them, in a file that is not named after its packing."""
    monkeypatch.setattr(reading, "PIECE", 1000)
    content = np.random.default_rng(0).integers(0, 4, 7777, np.uint8).tobytes()
    path = tmp_path / "plain"
    path.write_bytes(PACK[end](content) + bytes(8) + PACK[end](b"more") + bytes(4321))
    assert reading.content(path, 2**22) == content + b"more"
    assert reading.content(path, len(content) + 4) == content + b"more"
    with pytest.raises(DataError, match="has more than the"):
        reading.content(path, len(content) + 3)
    for broken in (PACK[end](content)[:-3], PACK[end](content) + b"rest", PACK[end](content)[:20]):
        path.write_bytes(broken)
        with pytest.raises(DataError, match=r"plain is truncated or damaged \("):
            reading.content(path, 2**22)
    path.write_bytes(PACK[end](b"a\nb\n") + PACK[end](content)[:-3])
    with pytest.raises(DataError, match=r"plain is truncated or damaged after line \d+ \("):
        for _ in reading.lines(path):
            pass


def _header(name: bytes, size: int, kind: bytes = b"0", field: bytes | None = None) -> bytes:
    """A block of a tar archive. `field` is the size as it stands there."""
    field = f"{size:011o}\0".encode() if field is None else field
    block = bytearray(name.ljust(100, b"\0") + b"0000644\0" + b"0000000\0" * 2 + field + b"00000000000\0" + b" " * 8)
    block += kind + bytes(100) + b"ustar\x0000" + bytes(247)
    block[148:156] = f"{sum(block):06o}\0 ".encode()
    return bytes(block)


def _padded(raw: bytes) -> bytes:
    return raw.ljust(-(-len(raw) // 512) * 512, b"\0")


HUGE = b"\x80" + (2**60).to_bytes(11, "big")
PAX = b"33 size=1234567890123456789012345\n"


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (_header(REVIEW.encode(), 0, field=HUGE) + b"x", "claims 1,152,921,504,606,846,976 bytes"),
        (_header(b"other", 0, field=HUGE) + b"x", "claims 1,152,921,504,606,846,976 bytes"),
        (_header(b"other", 0, field=b"\xff" * 11 + b"\0") + b"x", "claims -256 bytes"),
        (_header(b"x", 0, b"L", HUGE) + b"x", "a header claims"),
        (_header(b"x", 0, b"L", b"\xff" * 12) + b"x", "a header claims -1 bytes"),
        (_header(b"x", 2**20 + 1, b"x") + bytes(2**21), "a header claims 1,048,577 bytes"),
        (_header(b"x", 2**20 + 1, b"L") + bytes(2**21), "a header claims 1,048,577 bytes"),
        (
            _header(b"x", len(PAX), b"x") + _padded(PAX) + _header(b"other", 1) + bytes(512),
            "other claims 123,456,789",
        ),
        ((_header(b"x", 5, b"L") + _padded(b"name\0")) * 2_000, "recursion"),
        (_header(REVIEW.encode(), 600) + bytes(100), "unexpected end of data|is cut short"),
        (_header(b"other", 6_000_000) + bytes(100), "unexpected end of data"),
        (_header(REVIEW.encode(), 2**20 + 1) + b"x" * 2**21, f"{REVIEW}: it is longer than 1,048,576 bytes"),
        (b"x" * 512, "invalid header"),
        (b"", "empty"),
    ],
)
def test_a_tar_archive_that_lies_about_its_sizes(raw, message, tmp_path, traced):
    (tmp_path / "aclImdb").mkdir()
    (tmp_path / "aclImdb" / "aclImdb_v1.tar").write_bytes(raw)
    traced()
    with pytest.raises(DataError, match=message):
        imdb.load(DataConfig(tmp_path))
    assert traced() < 2**23


def test_links_devices_and_folders_in_an_archive_are_left_out(tmp_path):
    path = tmp_path / "a.tar"
    secret = pack(tmp_path / "secret", "secret")
    with tarfile.open(path, "w") as archive:
        for number, kind in enumerate(
            (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE)
        ):
            member = tarfile.TarInfo(f"aclImdb/train/pos/{number}_9.txt")
            member.type, member.linkname = kind, str(secret)
            archive.addfile(member)
        for name in (f"../../{REVIEW}", f"/{REVIEW}", f"./{REVIEW}", f"{'long/' * 60}{REVIEW}"):
            member = tarfile.TarInfo(name)
            member.size = 4
            archive.addfile(member, io.BytesIO(b"good"))
    builder = Builder(1)
    assert imdb.read_archive(path, builder) == [("pos", 5)] * 4
    assert list(builder.numbers) == ["good"]
    assert {each.name for each in tmp_path.iterdir()} == {"a.tar", "secret"}


def test_an_archive_does_not_keep_its_headers(tmp_path, traced):
    """Nor anything else of files that are not wanted."""
    path = pack(tmp_path / "a.tar", b"".join(_header(f"{number}".encode(), 0) for number in range(3_000)))
    traced()
    assert list(reading.members(path, re.compile("x"))) == []
    assert traced() < 2**21


def _snli_zip(folder: Path, **options) -> Path:
    text = "\n".join(snli_lines(30)).encode()
    members = {"snli_1.0/": b""} | {f"snli_1.0/snli_1.0_{part}.jsonl": text for part in ("train", "dev", "test")}
    return zip_file(folder / "snli" / "snli_1.0.zip", members, **options)


def test_a_broken_zip_archive_is_named(tmp_path):
    path = _snli_zip(tmp_path)
    whole = path.read_bytes()
    first = whole.index(b"snli_1.0_train") + 200
    central = whole.index(b"PK\1\2")
    cases = {
        "Bad CRC-32": whole[:first] + b"~" + whole[first + 1 :],
        "not a zip file": whole[:-30],
        "encrypted": re.sub(b"(PK\x01\x02....)\x00\x00", b"\\g<1>\x01\x00", whole, flags=re.S),
        "PK": b"PK\3\4" + bytes(200),
    }
    assert central > first
    for message, raw in cases.items():
        path.write_bytes(raw)
        with pytest.raises(
            DataError, match=rf"snli_1\.0\.zip is truncated or damaged after line \d+ \(.*{message}|not a zip"
        ):
            snli.load(DataConfig(tmp_path))
    for method in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        _snli_zip(tmp_path, compression=method)
        with pytest.raises(DataError, match=r"snli_1\.0\.zip, snli_1\.0/snli_1\.0_train\.jsonl: pack it with deflate"):
            snli.load(DataConfig(tmp_path))
    zip_file(path, {"snli_1.0/": b"", "__MACOSX/snli_1.0_train.jsonl": b"x"})
    with pytest.raises(DataError, match=r"snli_1\.0\.zip has no snli_1\.0_train\.jsonl in it"):
        snli.load(DataConfig(tmp_path))
    zip_file(path, {})
    with pytest.raises(DataError, match=r"snli_1\.0\.zip has no file in it"):
        list(reading.lines(path))
    _snli_zip(tmp_path, compression=zipfile.ZIP_DEFLATED)
    assert len(snli.load(DataConfig(tmp_path)).splits["valid"].labels) > 10


def test_a_line_may_be_as_long_as_a_line_may_be(tmp_path):
    path = pack(tmp_path / "a", b"a\n" + b"x" * (reading.LONGEST - 1) + b"\nb\n")
    assert [(number, len(line)) for number, line in reading.lines(path)] == [(1, 1), (2, reading.LONGEST - 1), (3, 1)]
    pack(path, b"a\n" + b"x" * reading.LONGEST + b"\nb\n")
    with pytest.raises(DataError, match=r"a, line 2: it is longer than 1,048,576 bytes"):
        list(reading.lines(path))


def test_the_line_of_an_error_is_that_of_the_file(tmp_path):
    """With a byte-order mark, both ends of lines, and quoted fields over several of them."""
    head = b"\xef\xbb\xbfid\tquestion1\tquestion2\tis_duplicate\r\n"
    path = pack(tmp_path / "a.tsv", head + b'0\t"a\r\nb\nc"\td\t1\r\n1\te\tf\t0\n')
    assert list(reading.table(path, qqp.COLUMNS)) == [(4, ["a\nb\nc", "d", "1"]), (5, ["e", "f", "0"])]
    for number, end in ((2, b"0\ta\tb\t1\textra\n"), (3, b'0\t"a\nb"\tc\n'), (2, b"\n"), (2, b'0\t"a"b\tc\t1\n')):
        pack(path, head + end + b"1\te\tf\t0\n")
        with pytest.raises(DataError, match=rf"a\.tsv, line {number}: "):
            list(reading.table(path, qqp.COLUMNS))
    pack(path, head + b'0\t"' + b"a" * 140_000 + b'"\tb\t1\n')
    with pytest.raises(DataError, match=r"a\.tsv, line 2: field larger than field limit"):
        list(reading.table(path, qqp.COLUMNS))
    pack(path, head + b'0\t"a\n1\te\tf\t0\n')
    with pytest.raises(DataError, match=r"a\.tsv, line 3: unexpected end of data"):
        list(reading.table(path, qqp.COLUMNS))
    for number in (1, 2, 7):
        pack(path, b"a\n" * (number - 1) + b"caf\xe9\n" + b"a\n" * 3)
        with pytest.raises(DataError, match=rf"a\.tsv, line {number}: it is not UTF-8 \(.* at byte 3\)"):
            list(reading.lines(path))
        pack(path, b"a\n" * (number - 1) + b" \n" + b"a\n" * 3)
        with pytest.raises(DataError, match=rf"a\.tsv, line {number}: it is empty"):
            list(reading.filled_lines(path))


def test_nested_json_is_named(tmp_path):
    snli_folder(tmp_path, packing="")
    pack(tmp_path / "snli" / "snli_1.0_dev.jsonl", "[" * 100_000)
    with pytest.raises(DataError, match=r"snli_1\.0_dev\.jsonl, line 1: it is not JSON"):
        snli.load(DataConfig(tmp_path))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_read_if_it_is_not_packed(tmp_path):
    """As of `plmu translate RUN <(command)`."""
    for name, sent in (("plain", b"one\ntwo\n"), ("packed", gzip.compress(b"one\ntwo\n"))):
        pipe = tmp_path / name
        os.mkfifo(pipe)
        with ThreadPoolExecutor() as other:
            writing = other.submit(pipe.write_bytes, sent)
            if name == "plain":
                assert list(reading.lines(pipe)) == [(1, "one"), (2, "two")]
            else:
                with pytest.raises(DataError, match="packed is a pipe of packed bytes: unpack them before, or give"):
                    list(reading.lines(pipe))
            writing.result()
