"""Data: the published numbers, and clear words for files that are missing, broken or of another kind."""

import gzip
import hashlib
import http.server
import io
import sys
import threading
from functools import partial

import numpy as np
import pytest
import torch

from plmu.data.files import DataConfig, Remote, find
from plmu.errors import DataError
from plmu.experiments.data import addition, mackey_glass, mnist
from plmu.experiments.data.overview import overview


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("PLMU_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.delenv("PLMU_DATA", raising=False)


def test_mackey_glass_has_the_published_numbers():
    values = mackey_glass._cached()[:, mackey_glass.WASHOUT :]
    assert round(values.mean(), 7) == -0.0658485
    assert [round(v, 6) for v in (values - values.mean())[0, :3]] == [-0.067859, -0.117344, -0.164153]
    train, valid, test = mackey_glass.prediction_task()
    assert [tuple(part[0].shape) for part in (train, valid, test)] == [(32, 5000, 1), (32, 5000, 1), (64, 5000, 1)]
    rms = test[1].double().square().mean().sqrt()
    assert round(float(rms), 6) == 0.215863
    copied = (test[0] - test[1]).double().square().mean().sqrt() / rms
    assert round(100 * float(copied), 3) == 162.400
    torch.testing.assert_close(train[0][:, 15:], train[1][:, :-15])


def test_a_damaged_cache_is_made_again(tmp_path, monkeypatch):
    monkeypatch.setenv("PLMU_CACHE", str(tmp_path))
    monkeypatch.setattr(mackey_glass, "SERIES", 2)
    monkeypatch.setattr(mackey_glass, "LENGTH", 30)
    first = mackey_glass._cached()
    (path,) = (tmp_path / "parsed").iterdir()
    path.write_bytes(path.read_bytes()[:200])
    np.testing.assert_array_equal(mackey_glass._cached(), first)


def test_the_permutation_is_the_published_one():
    generator = np.random.RandomState(50)
    generator.permutation(60_000)
    assert generator.permutation(784)[:10].tolist() == [46, 466, 537, 44, 515, 589, 362, 765, 270, 539]


def test_idx_files(tmp_path):
    header = bytes([0, 0, 8, 1]) + (5).to_bytes(4, "big")
    raw = header + bytes(range(5))
    digest = hashlib.sha256(raw).hexdigest()
    (tmp_path / "plain").write_bytes(raw)
    (tmp_path / "packed.gz").write_bytes(gzip.compress(raw))
    for name in ("plain", "packed.gz"):
        assert mnist.read_idx(tmp_path / name, (5,), digest).tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(DataError, match="not an idx file of shape"):
        mnist.read_idx(tmp_path / "plain", (6,), digest)
    with pytest.raises(DataError, match="checksum"):
        mnist.read_idx(tmp_path / "plain", (5,), "0" * 64)
    (tmp_path / "short").write_bytes(raw[:-1])
    with pytest.raises(DataError, match="4 bytes of data instead of 5"):
        mnist.read_idx(tmp_path / "short", (5,), digest)
    (tmp_path / "short.gz").write_bytes(gzip.compress(raw)[:-4])
    with pytest.raises(DataError, match="truncated or damaged"):
        mnist.read_idx(tmp_path / "short.gz", (5,), digest)


def test_missing_data_says_where_it_comes_from(tmp_path, monkeypatch):
    remote = Remote("https://example.invalid/a.gz", "0" * 64)
    with pytest.raises(DataError, match=r"mnist has no a\.gz or a\. Put it there \(it comes from https://example"):
        find(DataConfig(tmp_path), "mnist", ("a.gz", "a"), remote)
    with pytest.raises(DataError, match=r"does not exist: check --data\.root or PLMU_DATA"):
        find(DataConfig(tmp_path / "nowhere"), "mnist", ("a.gz",), remote)
    monkeypatch.setenv("PLMU_DATA", str(tmp_path))
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "a").write_text("x")
    assert find(DataConfig(), "mnist", ("a.gz", "a"), remote) == tmp_path / "mnist" / "a"


def test_without_a_network_the_way_out_is_named(monkeypatch):
    pooch = pytest.importorskip("pooch")

    def unreachable(*_, **__):
        raise ConnectionError("no route to host")

    monkeypatch.setattr(pooch, "retrieve", unreachable)
    with pytest.raises(DataError, match=r"could not be downloaded .*no route to host.*set PLMU_DATA"):
        find(DataConfig(), "mnist", ("a.gz",), Remote("https://example.invalid/a.gz", "0" * 64))


@pytest.mark.parametrize("terminal", [True, False])
def test_a_download_shows_its_progress_on_a_terminal(terminal, tmp_path, monkeypatch):
    pytest.importorskip("pooch")
    content = bytes(100_000)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "a.gz").write_bytes(content)
    monkeypatch.setenv("PLMU_CACHE", str(tmp_path / "cache"))
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: terminal)
    monkeypatch.setattr(sys, "stderr", screen)
    handler = partial(_Silent, directory=tmp_path / "there")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            remote = Remote(f"http://127.0.0.1:{server.server_port}/a.gz", hashlib.sha256(content).hexdigest())
            path = find(DataConfig(), "mnist", ("a.gz",), remote)
        finally:
            server.shutdown()
    assert path.read_bytes() == content
    assert ("100.0/100.0 kB" in screen.getvalue()) == terminal


class _Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def test_the_overview_shows_all_of_an_address_in_80_columns(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    overview(DataConfig())
    shown = capsys.readouterr().out
    assert "…" not in shown
    cells = [line.split("│")[4].strip() for line in shown.splitlines() if line.count("│") == 5]
    assert mnist.HOME in "".join(cells)


def test_the_adding_problem():
    x, y, lengths = addition.sequences(200, 40, seed=0, shortest=7)
    assert lengths.min() >= 7
    assert lengths.max() <= 40
    steps = torch.arange(40)
    for example in range(200):
        marked = steps[x[example, :, 1] == 1]
        half = lengths[example] // 2
        assert len(marked) == 2
        assert marked[0] < half <= marked[1] < lengths[example]
        assert torch.isclose(x[example, marked, 0].sum(), y[example, 0])
        assert x[example, lengths[example] :].abs().sum() == 0
    with pytest.raises(ValueError, match="a sequence needs two steps"):
        addition.sequences(3, 1, seed=0)
    with pytest.raises(ValueError, match="a sequence needs two steps"):
        addition.sequences(3, 5, seed=0, shortest=6)
    x, y, lengths = addition.sequences(3, 2, seed=0)
    assert lengths.tolist() == [2] * 3
    torch.testing.assert_close(x[:, :, 0].sum(1, keepdim=True), y)
