"""Random changes to files of every kind: each is read or told in a sentence, within bounds of memory."""

import random
import tracemalloc

import numpy as np
import pytest
from fuzzed import CACHES, KINDS, mutate, mutated_file

from plmu.data.files import DataConfig
from plmu.errors import DataError
from plmu.experiments.data import mackey_glass

FEW, MANY = range(12), [pytest.param(seed, marks=pytest.mark.full) for seed in range(12, 200, 12)]


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.delenv("PLMU_DATA", raising=False)
    monkeypatch.setattr(mackey_glass, "SERIES", 2)
    monkeypatch.setattr(mackey_glass, "LENGTH", 30)


@pytest.mark.parametrize("start", [0, *MANY])
@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_file_is_read_or_named(kind, start, tmp_path, monkeypatch):
    make, load = KINDS[kind]
    path = make(tmp_path)
    whole = path.read_bytes()
    monkeypatch.setenv("PLMU_CACHE", "/dev/null/none")
    load(DataConfig(tmp_path))
    read = 0
    for seed in range(start, start + len(FEW)):
        path.write_bytes(mutated_file(random.Random(f"{kind} {seed}"), path.name, whole))
        tracemalloc.start()
        told = ""
        try:
            load(DataConfig(tmp_path))
            read += 1
        except DataError as error:
            told = str(error)
        assert not told or str(path.parent) in told
        assert "\n" not in told
        assert len(told) <= 1000
        assert tracemalloc.get_traced_memory()[1] < 40 * 2**20
        tracemalloc.stop()
    assert read < len(FEW)


@pytest.mark.parametrize("start", [0, *MANY])
@pytest.mark.parametrize("kind", CACHES)
def test_a_changed_cache_is_made_again(kind, start, tmp_path, monkeypatch):
    make, load = CACHES[kind]
    make(tmp_path)
    monkeypatch.setenv("PLMU_CACHE", str(tmp_path / "cache"))
    first = {name: value.copy() for name, value in load(DataConfig(tmp_path)).items()}
    (path,) = (tmp_path / "cache" / "parsed").iterdir()
    whole = path.read_bytes()
    for seed in range(start, start + len(FEW)):
        path.unlink()
        path.write_bytes(mutate(random.Random(f"{kind} {seed}"), whole))
        again = load(DataConfig(tmp_path))
        assert again.keys() == first.keys()
        for name, value in first.items():
            np.testing.assert_array_equal(again[name], value)
