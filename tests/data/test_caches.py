"""Caches, downloads and files that cannot be read: a damaged cache is made again, all else is told in a sentence."""

import http.server
import json
import os
import re
import stat
import threading
import zlib
from pathlib import Path

import numpy as np
import pytest
from texts import pack, qqp_partition, snli_folder

from plmu.data import cache, reading
from plmu.data.files import DataConfig, Remote, clear_abandoned, find, present
from plmu.errors import DataError
from plmu.experiments.data import characters, imdb, mackey_glass, mnist, qqp, reviews, snli, vectors
from plmu.experiments.data.overview import overview
from plmu.modelfiles.atomic import replacing


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PLMU_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("PLMU_DATA", raising=False)


def test_a_cache_of_another_structure_is_made_again(tmp_path):
    """With the right key and the right checksums."""
    config = DataConfig(qqp_partition(tmp_path))
    first = qqp.load(config)
    (path,) = (tmp_path / "cache" / "parsed").glob("qqp-*.bin")
    whole = path.read_bytes()
    header = whole[cache.START : cache.START + int.from_bytes(whole[len(cache.MAGIC) :][:8], "little")]
    key = json.loads(header)["key"]
    arrays = first.arrays()
    ends, values = arrays["train.0.ends"], arrays["train.0.values"]
    for name, other in (
        ("train.0.ends", ends[:-1]),
        ("train.0.ends", ends[::-1].copy()),
        ("train.0.ends", ends + 1),
        ("train.0.ends", ends - 1),
        ("train.0.ends", ends.astype(np.uint32)),
        ("train.0.ends", ends.reshape(2, -1)),
        ("train.1.values", values[:, None]),
        ("train.1.values", arrays["train.1.values"].astype(np.int64)),
        ("test.0.values", np.where(np.arange(len(arrays["test.0.values"])) == 7, 60_000, 1).astype(np.uint16)),
        ("valid.labels", arrays["valid.labels"][1:]),
        ("words", np.array([255], np.uint8)),
        ("words", None),
        ("train.0.ends", None),
        ("completeness", None),
    ):
        changed = arrays | {name: other}
        cache._write(path, key, {name: value for name, value in changed.items() if value is not None})
        assert path.read_bytes() != whole
        again = qqp.load(config)
        assert again.words == first.words
        assert path.read_bytes() == whole, name
    cache._write(path, key, {})
    assert qqp.load(config).words == first.words
    assert path.read_bytes() == whole


def _framed(header: bytes) -> bytes:
    return cache.MAGIC + len(header).to_bytes(8, "little") + zlib.crc32(header).to_bytes(4, "little") + header


@pytest.mark.parametrize("field", [("|O", [1], 0), ("<i8", [-1, -1], 0), ("<i8", [2**32, 2**32], 0), ("<i8", [1], -8)])
def test_a_cache_that_lies_about_its_arrays_is_made_again(field, tmp_path):
    def make():
        return {"a": np.arange(100)}

    cache.cached("x", [], {}, make, dict)
    (path,) = (tmp_path / "cache" / "parsed").iterdir()
    key = json.dumps({"source": "x", "files": [], "settings": {}}, sort_keys=True)
    header = json.dumps({"key": key, "arrays": {"a": (*field, 0)}}).encode()
    path.write_bytes(_framed(header) + bytes(2000))
    assert cache._read(path, key) is None
    np.testing.assert_array_equal(cache.cached("x", [], {}, make, dict)["a"], np.arange(100))
    header = b'{"key": ' + b"[" * 100_000
    path.write_bytes(_framed(header))
    assert cache._read(path, key) is None
    path.unlink()
    path.mkdir()
    np.testing.assert_array_equal(cache.cached("x", [], {}, make, dict)["a"], np.arange(100))


def test_files_of_equal_name_size_and_time_are_told_apart(tmp_path):
    for folder, letter in (("a", "x"), ("b", "y")):
        path = pack(tmp_path / folder / "text.txt", 400 * f"{letter}z ")
        os.utime(path, ns=(0, 10**18))
        data = characters.load(characters.CharactersConfig(file=path))
        assert letter in data.symbols.decode(data.splits["train"].tolist())


def test_a_file_that_changes_while_it_is_read_is_not_cached(tmp_path):
    path = pack(tmp_path / "a", "before")

    def make():
        path.write_text("later!")
        return {"a": np.arange(3)}

    with pytest.raises(DataError, match=r"a: changed while it was read\. Start again when nothing writes to it"):
        cache.cached("x", [path], {}, make, dict)
    assert not (tmp_path / "cache").exists()


def test_series_and_vectors_of_another_shape_are_made_again(tmp_path, monkeypatch):
    monkeypatch.setattr(mackey_glass, "SERIES", 2)
    monkeypatch.setattr(mackey_glass, "LENGTH", 30)
    pack(tmp_path / "glove" / "v.txt", "a 1 2\nb 3 4\n")
    config = DataConfig(tmp_path)
    series, table = mackey_glass._cached(), vectors.load(config, ["a"], 2).matrix
    real = cache._read
    for other in (np.zeros((1, 2)), np.zeros((2, 145), np.float32), np.full((3, 2), np.nan, np.float32)):
        arrays = {"series": other, "matrix": other, "found": np.array(1)}
        monkeypatch.setattr(cache, "_read", lambda *_, arrays=arrays: arrays)
        np.testing.assert_array_equal(mackey_glass._cached(), series)
        np.testing.assert_array_equal(vectors.load(config, ["a"], 2).matrix, table)
    monkeypatch.setattr(cache, "_read", lambda *_: {"matrix": np.ones((3, 2), np.float32), "found": np.array([1])})
    np.testing.assert_array_equal(vectors.load(config, ["a"], 2).matrix, table)
    monkeypatch.setattr(cache, "_read", real)
    monkeypatch.setattr(mackey_glass, "generate", lambda *_: pytest.fail("made again"))
    np.testing.assert_array_equal(mackey_glass._cached(), series)


def test_temporary_files_of_killed_processes_are_cleared(tmp_path):
    folder = tmp_path / "cache" / "parsed"
    folder.mkdir(parents=True)
    running = [replacing(folder / name) for name in ("old.bin", "new.bin")]
    old, new = (each.__enter__() for each in running)
    download = folder / "tmpab12_x9z"
    for path in (old, download):
        path.write_bytes(b"half")
        os.utime(path, (1, 1))
    kept = [new, folder / "mine.bin", folder / "tmp-of-a-user", folder / "x.tmp"]
    for path in kept[1:]:
        path.write_bytes(b"")
        os.utime(path, (1, 1))
    cache.cached("x", [], {}, lambda: {"a": np.arange(3)}, dict)
    assert not old.exists()
    assert not download.exists()
    assert all(path.exists() for path in kept)
    new.unlink()


LOADERS = {
    "mnist": (mnist.load, "mnist", "train-images-idx3-ubyte.gz"),
    "imdb": (imdb.load, "aclImdb", "aclImdb_v1.tar.gz"),
    "keras": (imdb.load, "aclImdb", "imdb.npz"),
    "qqp": (qqp.load, "qqp", "quora_duplicate_questions.tsv"),
    "snli": (snli.load, "snli", "snli_1.0.zip"),
    "vectors": (lambda config: vectors.load(config, ["a"], 2), "glove", "glove.840B.300d.zip"),
    "text8": (lambda config: characters.load(characters.CharactersConfig(config.root)), "text8", "text8.zip"),
    "amazon": (lambda config: reviews.load(reviews.ReviewsConfig(config.root)), "amazon", "a.json"),
    "films": (lambda config: reviews.load(reviews.ReviewsConfig(config.root, "imdb")), "aclImdb", "aclImdb_v1.tar.gz"),
}


@pytest.mark.parametrize("source", LOADERS)
def test_empty_files_folders_and_files_that_may_not_be_read(source, tmp_path, monkeypatch):
    load, folder, name = LOADERS[source]
    config = DataConfig(tmp_path)
    path = pack(tmp_path / folder / name, b"")
    path.write_bytes(b"")
    with pytest.raises(DataError, match=re.escape(str(path)) + "|none of the 1 words"):
        load(config)

    def refused(file, *_, **__):
        raise PermissionError(13, "Permission denied", str(file))

    with monkeypatch.context() as patch:
        patch.setattr(reading, "open", refused, raising=False)
        with pytest.raises(DataError, match=rf"{re.escape(str(path))} cannot be read \(Permission denied\)"):
            load(config)
    for method in (Path.is_file, Path.is_dir):
        with monkeypatch.context() as patch:
            patch.setattr(Path, method.__name__, refused)
            with pytest.raises(DataError, match=r" cannot be read \(Permission denied\)"):
                load(config)
    path.unlink()
    path.mkdir()
    with pytest.raises(DataError, match=re.escape(f"{folder} has no ")):
        load(config)


def test_the_overview_says_what_cannot_be_read(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "300")
    snli_folder(tmp_path)

    def refused(folder):
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(Path, "iterdir", refused)
    overview(DataConfig(tmp_path))
    assert "snli cannot be read (Permission denied)" in capsys.readouterr().out


def test_a_file_that_goes_while_it_is_looked_at(tmp_path):
    path = tmp_path / "gone"
    with pytest.raises(DataError, match=r"gone cannot be read \(No such file or directory\)"):
        cache.cached("x", [path], {}, dict, dict)


class _Short(http.server.BaseHTTPRequestHandler):
    """Promises more than it sends."""

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "100000")
        self.end_headers()
        self.wfile.write(b"half of it")

    def log_message(self, *_):
        pass


def test_a_download_that_ends_early(tmp_path):
    pytest.importorskip("pooch")
    left = tmp_path / "cache" / "mnist" / "tmp12345678"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"")
    os.utime(left, (1, 1))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Short) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            with pytest.raises(DataError, match=r"a\.gz (could not be downloaded|is not the file it should be)"):
                find(DataConfig(), "mnist", ("a.gz",), Remote(f"http://127.0.0.1:{server.server_port}/a.gz", "0" * 64))
        finally:
            server.shutdown()
    assert list((tmp_path / "cache" / "mnist").iterdir()) == []


def test_a_link_to_nowhere_is_no_file(tmp_path):
    (tmp_path / "qqp").mkdir()
    (tmp_path / "qqp" / "a").symlink_to("b")
    (tmp_path / "qqp" / "b").symlink_to("a")
    os.mkfifo(tmp_path / "qqp" / "pipe")
    assert stat.S_ISFIFO((tmp_path / "qqp" / "pipe").stat().st_mode)
    assert present(DataConfig(tmp_path), "qqp", ("a", "b", "pipe")) is None
    clear_abandoned(tmp_path / "nowhere")
