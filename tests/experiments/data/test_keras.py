"""Keras' copy of IMDB: its pickle is read and never executed, whatever it holds."""

import io
import os
import pickle
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
from texts import keras_file, npy, zip_file

from plmu.data.files import DataConfig
from plmu.errors import DataError
from plmu.experiments.data import imdb, keras


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PLMU_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("PLMU_DATA", raising=False)


def _pickled(reviews: list[object], protocol: int = 3) -> bytes:
    array = np.empty(len(reviews), object)
    array[:] = reviews
    return pickle.dumps(array, protocol)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_lists_of_ranks_are_read(protocol):
    reviews = [[1, 255, 256, 65_535, 65_536, 2**31 - 1], [7], list(range(2_500))]
    assert keras.ranks(_pickled(reviews, protocol), 3) == reviews
    many = [[number, 300] for number in range(2_100)]
    assert keras.ranks(_pickled(many, protocol), 2_100) == many
    assert keras.ranks(_pickled([list(range(100_000))], protocol), 1) == [list(range(100_000))]


def test_a_pickle_of_python_2_is_read():
    """Written by its cPickle: other names, text as bytes, and no order of the class and its values."""
    raw = (
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\nq\1cnumpy\nndarray\nq\2K\0\x85U\1b\x87Rq\3(K\1K\2\x85cnumpy\ndtype\nq\4"
        b"U\2O8K\0K\1\x87Rq\5(K\3U\1|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK?tb\x89]q\6(]q\7(K\1M\x2c\1e]q\x08K\7aetb."
    )
    assert keras.ranks(raw, 2) == [[1, 300], [7]]


def test_ranks_are_those_that_numpy_wrote(tmp_path):
    path = keras_file(tmp_path / "imdb.npz")
    reviews, labels = keras.split(path, "test")
    with np.load(path, allow_pickle=True) as file:
        assert [list(review) for review in reviews] == list(file["x_test"])
        np.testing.assert_array_equal(labels, file["y_test"])


class _Evil:
    def __reduce__(self):
        return os.mkdir, ("executed",)


class _Command:
    def __reduce__(self):
        return os.system, ("touch executed",)


def _pointers() -> bytes:
    """The pickle of an array whose type says that it holds plain numbers, and later that it holds objects: bytes of
    the file become addresses."""
    whole = pickle.dumps(np.array([[1], [2]], object), 3)
    start, end = whole.index(b"]"), whole.rindex(b"t")
    return whole[:start] + b"C\x10" + b"A" * 16 + whole[end:]


@pytest.mark.parametrize(
    "raw",
    [
        _pickled([_Evil(), [1]]),
        _pickled([_Command(), [1]]),
        _pickled([[_Command()], [1]], 2),
        pickle.dumps(_Command(), 4),
        _pickled([[_Evil()], [1]]),
        _pickled([[[1]], [1]]),
        _pickled([["a"], [1]]),
        _pickled([[-1], [1]]),
        _pickled([[2**40], [1]]),
        _pickled([[1.5], [1]]),
        _pickled([[1], [2], [3]]),
        _pickled([(1,), [1]]),
        _pickled([[1], []]),
        _pickled([[1], [[], 2]]),
        _pickled([[1, None], [2]]),
        _pickled([[1], [2]], 0),
        _pickled([[1], [2]])[:-1],
        _pickled([[1], [2, 3]]).replace(b"et", b"t"),
        _pickled([[1], [2]]).replace(b"et", b"t"),
        pickle.dumps([[1], [2]], 3),
        pickle.dumps(None, 3),
        pickle.dumps((), 3),
        _pointers(),
        _pointers().replace(b"K?", b"K\0"),
        b"",
        b".",
        b"].",
        b"K",
        b"(" * 10_000,
        b"K\1" * 10_000,
        b"K\1K\1a.",
        b"e.",
        b"t.",
        b"X\xff\xff\xff\xff.",
        b"r\xff\xff\xff\x7f" * 3 + b".",
        b"]q\0" + b"h\0" * 9 + b"e.",
        b")]]h\0h\0" + b"a" * 3 + b"\x85b.",
    ],
)
def test_what_is_no_list_of_ranks_is_refused_and_never_executed(raw, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"not |it "):
        keras.ranks(raw, 2)
    labels = np.array([0, 1])
    members = {f"{name}.npy": npy("|O", "(2,)", raw) for name in ("x_train", "x_test")}
    members |= {f"{name}.npy": npy("<i8", "(2,)", labels.tobytes()) for name in ("y_train", "y_test")}
    zip_file(tmp_path / "aclImdb" / "imdb.npz", members)
    with pytest.raises(DataError, match=r"imdb\.npz is truncated or damaged in train \((not|it)"):
        imdb.load(DataConfig(tmp_path))
    assert not Path("executed").exists()


def test_a_command_beside_whole_lists_is_refused_and_never_executed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lists = _pickled([[1], [2]])
    for raw in (pickle.dumps(_Command(), 3)[:-1] + lists, lists[:-1] + pickle.dumps(_Command(), 3)):
        with pytest.raises(ValueError, match="not 2 lists of ranks"):
            keras.ranks(raw, 2)
        assert not Path("executed").exists()
        pickle.loads(raw)
        assert Path("executed").exists(), "it is executed by pickle"
        Path("executed").unlink()


def test_the_unpickler_refuses_every_name():
    for value, name in ((_Command(), r"posix\.system"), (np.zeros(1), r"numpy\._?core\.multiarray\._reconstruct")):
        with pytest.raises(pickle.UnpicklingError, match=f"it names {name}"):
            keras.Lists(io.BytesIO(pickle.dumps(value, 3))).load()


@pytest.mark.parametrize("start", [b"", b"]"], ids=["", "list"])
@pytest.mark.parametrize(
    "unit", [b"]a", b"]K\1aa", b"]K\1a", b"Na", b")\x85a", b"\x85", b"q\1", b"N\x86", b"(K\1K\1te", b"(]e", b"K\1a"]
)
def test_a_small_pickle_takes_little_memory(unit, start):
    """Whatever is repeated, and however many reviews are claimed."""
    raw = b"])" + start + unit * (2**18 // len(unit)) + b"\x85."
    for count in (1, 1_000):
        tracemalloc.start()
        with pytest.raises(ValueError, match=r"not |it "):
            keras.ranks(raw, count)
        assert tracemalloc.get_traced_memory()[1] < 3 * len(raw)
        tracemalloc.stop()


def test_bytes_before_a_member_do_not_let_it_grow_more(tmp_path):
    bomb = b"]" + b"]a" * 2**23 + b"\x85."
    given = {"junk": os.urandom(2**19), "x_train.npy": npy("|O", "(8388608,)", bomb), "y_train.npy": GOOD["y_train"]}
    path = zip_file(tmp_path / "imdb.npz", given, compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(DataError, match="unpacks to more than 50 times its size"):
        keras.split(path, "train")


GOOD = {"x_train": npy("|O", "(2,)", _pickled([[1], [2]])), "y_train": npy("<i8", "(2,)", bytes(8) + b"\1" + bytes(7))}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"x_train": npy("<i8", "(2,)", bytes(16))}, "x_train and y_train are not lists of ranks and labels"),
        ({"y_train": npy("|O", "(2,)", _pickled([0, 1]))}, "x_train and y_train are not lists of ranks and labels"),
        ({"y_train": npy("<f8", "(2,)", bytes(16))}, "x_train and y_train are not lists of ranks and labels"),
        ({"y_train": npy("<i8", "(3,)", bytes(24))}, "2 reviews and 3 labels in train"),
        ({"y_train": npy("<i8", "(2,)", bytes(15))}, "is truncated or damaged in train"),
        ({"y_train": npy("<i8", "(2,)", b"\2" + bytes(15))}, "the label of review 0 of train is not 0 or 1"),
        ({"y_train": npy("|i1", "(2,)", b"\0\xff")}, "the label of review 1 of train is not 0 or 1"),
        ({"x_train": npy("|O", "(2,)", _pickled([[1], []]))}, "is truncated or damaged in train"),
        ({"x_train": npy("|O", "(100001,)", _pickled([[1], [2]]))}, "100,001 reviews in train, where there may be"),
        ({"x_train": npy("|O", "(2, 1)", _pickled([[1], [2]]))}, "x_train.npy is not an array of one axis"),
        ({"x_train": npy("|O", "(99999999999,)", b"")}, "x_train.npy is not an array of one axis"),
        ({"x_train": b""}, "x_train.npy is not an array of one axis"),
        ({"x_train": GOOD["x_train"] + bytes(2**25)}, r"x_train\.npy: it has more than the 33,554,432 bytes"),
        ({"x_train": None}, r"imdb\.npz has no x_train\.npy in it"),
    ],
)
def test_a_broken_keras_file_is_named(changed, message, tmp_path):
    given = {f"{name}.npy": raw for name, raw in (GOOD | changed).items() if raw is not None}
    zip_file(tmp_path / "aclImdb" / "imdb.npz", given)
    with pytest.raises(DataError, match=message):
        imdb.load(DataConfig(tmp_path))


@pytest.mark.parametrize("kind", ["|b1", "|u1", "|i1", "<i2", "<i4", "<i8", "<u8"])
def test_labels_of_every_type(kind, tmp_path):
    labels = np.array([0, 1], kind)
    path = zip_file(
        tmp_path / "a.npz", {"x_test.npy": GOOD["x_train"], "y_test.npy": npy(kind, "(2L,)", labels.tobytes())}
    )
    assert keras.split(path, "test")[1].tolist() == [0, 1]


@pytest.mark.parametrize(
    "index",
    [
        b"[1]",
        b'{"a": "b"}',
        b'{"a": 1.5}',
        b'{"": 1}',
        b'{"a\\n": 1}',
        b'{"\\ud800": 1}',
        b"\xff",
        b"[" * 100_000,
        b'{"a": ' + b"9" * 5_000 + b"}",
    ],
)
def test_a_broken_word_index_is_named(index, tmp_path):
    keras_file(tmp_path / "aclImdb" / "imdb.npz").with_name(imdb.INDEX).write_bytes(index)
    with pytest.raises(DataError, match=r"imdb_word_index\.json is damaged or not Keras' word index"):
        imdb.load(DataConfig(tmp_path))
