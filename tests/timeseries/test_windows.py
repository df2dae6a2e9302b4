"""`plmu.timeseries.windows` against windows that a plain loop takes."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from plmu.timeseries.ridge import ScaledSeries
from plmu.timeseries.series import Piece
from plmu.timeseries.windows import Part, Windows, blocks, gather, stride_of

LOOKBACK, HORIZON = 5, 3


def noise(*shape: int) -> np.ndarray:
    """Normal numbers, which are the same whenever a test runs."""
    return torch.randn(*shape, dtype=torch.float64).numpy()


class Layer:
    """Sizes of windows."""

    channels, horizon, lookback, season, phase = 2, HORIZON, LOOKBACK, 4, 3


def pieces(covariates: bool = False, gaps: bool = False) -> list[Piece]:
    """Three pieces of 2 channels, one shorter than a window, with large levels."""
    out = []
    for place, rows in enumerate((17, 4, 12)):
        values = 1000.0 * (place + 1) + noise(rows, 2)
        measured = torch.rand(rows, 2).numpy() > (0.3 if gaps else -1)
        ahead = 50 + noise(rows + 2, 1) if covariates else None
        out.append(Piece("abc"[place], (30, 7, 100)[place], values, measured, covariates=ahead))
    return out


def test_origins_are_those_whose_horizon_lies_in_the_rows() -> None:
    data = pieces()
    windows = Windows.of(data)
    rows = [(6, 15), (0, 4), (0, 12)]
    expected, offset = [], 0
    for piece, (first, end) in zip(data, rows, strict=True):
        for origin in range(len(piece)):
            window = range(origin - LOOKBACK + 1, origin + 1)
            ahead = range(origin + 1, origin + 1 + HORIZON)
            if window[0] >= 0 and ahead[0] >= first and ahead[-1] < end:
                expected.append(offset + origin)
        offset += len(piece)
    assert windows.origins(rows, LOOKBACK, HORIZON).tolist() == expected == [5, *range(6, 12), *range(25, 30)]
    assert windows.origins(rows, LOOKBACK, HORIZON, limit=12).tolist() == expected
    assert windows.origins(rows, LOOKBACK, HORIZON, limit=11).tolist() == expected[::2]
    assert windows.origins(rows, LOOKBACK, HORIZON, limit=11, season=4).tolist() == expected[::3]
    assert windows.origins([(0, 4)] * 3, LOOKBACK, HORIZON).tolist() == []


@pytest.mark.parametrize("length", [LOOKBACK, 9])
@pytest.mark.parametrize("several", [False, True], ids=["complete", "with gaps and covariates"])
def test_windows_are_rows_of_their_piece(length: int, several: bool) -> None:
    """A window that begins before its piece repeats the first row."""
    data = pieces(several, several)
    windows = Windows.of(data)
    origins = windows.origins([(0, 17), (0, 4), (0, 12)], LOOKBACK, HORIZON)
    first_of = [0, 17, 21]
    taken = windows.take(origins, length, HORIZON)
    assert len(origins) == 15
    assert (taken.measured is None) == (taken.covariates is None) == (not several)
    for place, origin in enumerate(origins.tolist()):
        number = max(n for n in range(3) if first_of[n] <= origin)
        piece, row = data[number], origin - first_of[number]
        values = piece.values - piece.values[0]
        index = [max(0, r) for r in range(row - length + 1, row + 1)]
        ahead = range(row + 1, row + 1 + HORIZON)
        np.testing.assert_allclose(taken.windows[place].numpy(), values[index].T, rtol=1e-6)
        np.testing.assert_allclose(taken.future[place].numpy(), values[ahead].T, rtol=1e-6)
        np.testing.assert_array_equal(windows.level[number].numpy(), piece.values[0])
        assert int(taken.steps[place]) == piece.start + row
        if several:
            assert taken.measured is not None
            assert taken.covariates is not None
            assert piece.covariates is not None
            np.testing.assert_array_equal(taken.measured[place].numpy(), piece.measured[ahead].T)
            expected = (piece.covariates - piece.covariates[0])[[*index, *ahead]].T
            np.testing.assert_allclose(taken.covariates[place].numpy(), expected, rtol=1e-5, atol=1e-5)


def test_windows_come_in_blocks_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    windows = Windows.of(pieces())
    origins = windows.origins([(0, 17), (0, 4), (0, 12)], LOOKBACK, HORIZON)
    monkeypatch.setattr("plmu.timeseries.windows.BLOCK", 4 * (LOOKBACK + HORIZON) * 2 + 1)
    parts = list(windows.blocks(origins, LOOKBACK, HORIZON))
    assert [len(part.windows) for part in parts] == [4, 4, 4, 3]
    torch.testing.assert_close(
        torch.cat([part.windows for part in parts]), windows.take(origins, LOOKBACK, HORIZON).windows
    )
    monkeypatch.setattr("plmu.timeseries.windows.BLOCK", 3)
    assert [len(part.windows) for part in windows.blocks(origins[:2], LOOKBACK, HORIZON)] == [1, 1]


def test_no_window_is_gathered_from_no_place() -> None:
    rows = torch.randn(2, 9)
    assert gather(rows, 4, torch.zeros(0, dtype=torch.long)).shape == (0, 2, 4)
    torch.testing.assert_close(gather(rows, 4, torch.tensor([5, 0])), torch.stack([rows[:, 5:9], rows[:, :4]]))


@pytest.mark.parametrize("season", [0, 1, 6, 7])
def test_a_stride_takes_no_more_than_the_limit_and_shares_no_divisor_with_the_season(season: int) -> None:
    assert stride_of(1000, None, season) == stride_of(0, 5, season) == stride_of(5, 5, season) == 1
    for count in (6, 24, 25, 26):
        stride = stride_of(count, 5, season)
        assert len(range(0, count, stride)) <= 5
        assert math.gcd(stride, season) == 1 or not season
        others = [s for s in range(2, stride) if len(range(0, count, s)) <= 5]
        assert all(season and math.gcd(other, season) > 1 for other in others)  # it is the smallest


@pytest.mark.parametrize("stride", [1, 3])
@pytest.mark.parametrize("block", [1, 40, 2**22])
@pytest.mark.parametrize("effect", [None, "plain", "relative"])
def test_blocks_are_all_windows_of_all_parts(
    effect: str | None, block: int, stride: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plmu.timeseries.windows.BLOCK", block)
    lengths, starts = (20, LOOKBACK + HORIZON - 1, LOOKBACK + HORIZON), (6, 0, 11)
    parts = [
        Part(torch.randn(2, rows), start, None if effect is None else torch.randn(2, rows), effect == "relative")
        for rows, start in zip(lengths, starts, strict=True)
    ]
    assert [part.windows(Layer()) for part in parts] == [13, 0, 1]
    windows, futures, phases = [], [], []
    for part in parts:
        for first in range(0, part.windows(Layer()), stride):
            rows = part.values[:, first : first + LOOKBACK + HORIZON].numpy().astype(float)
            if part.effect is not None:
                past = rows[:, :LOOKBACK]
                deviation = np.abs(past - past.mean(1, keepdims=True)).mean(1, keepdims=True)
                change = part.effect[:, first : first + LOOKBACK + HORIZON].numpy()
                rows = rows - change * (deviation if part.relative else 1.0)
            windows.append(rows[:, :LOOKBACK])
            futures.append(rows[:, LOOKBACK:])
            phases.append((part.start + first + LOOKBACK - 1 + Layer.phase) % Layer.season)
    parted = list(blocks(Layer(), parts, stride))
    largest = max(1, block // ((LOOKBACK + HORIZON) * 2))
    sizes = [len(part[0]) for part in parted]
    assert max(sizes) <= largest
    assert all(one + following > largest for one, following in pairwise(sizes)), "short parts are together"
    for place, expected in enumerate((windows, futures)):
        np.testing.assert_allclose(torch.cat([part[place] for part in parted]), np.stack(expected), atol=1e-5)
    assert torch.cat([part[2] for part in parted]).tolist() == phases


@pytest.mark.parametrize("relative", [False, True])
def test_validation_rows_are_no_part_of_the_fit(relative: bool) -> None:
    """Rows to fit and to validate on, and the sums over their windows, by number of row."""
    lengths, validation, starts = (20, 12, 9, 10), [4, 0, 6, 5], [3, 0, 40, 8]
    series, effects = ([torch.randn(2, rows) for rows in lengths] for _ in range(2))
    data = ScaledSeries(series, validation, starts, 2, HORIZON, effects, relative)
    for part, rows, count, start, effect in zip(data.train(), series, validation, starts, effects, strict=True):
        end = rows.shape[1] - count
        torch.testing.assert_close(part.values, rows[:, :end])
        assert part.effect is not None
        torch.testing.assert_close(part.effect, effect[:, :end])
        assert (part.start, part.relative) == (start, relative)
    valid = data.valid(LOOKBACK)
    assert len(valid) == 2  # the second has no validation rows, the third no window before them
    for part, place, first in zip(valid, (0, 3), (20 - 4 - LOOKBACK, 10 - 5 - LOOKBACK), strict=True):
        torch.testing.assert_close(part.values, series[place][:, first:])
        assert part.start == starts[place] + first
    for rows, past, count, effect in zip(series, data.past(), validation, effects, strict=True):
        kept = rows[:, : rows.shape[1] - count].double()
        size = (kept - kept.mean(1, keepdim=True)).abs().mean(1, keepdim=True) if relative else 1.0
        torch.testing.assert_close(past.double(), kept - size * effect[:, : kept.shape[1]], rtol=1e-5, atol=1e-5)
    assert [data.has_validation(lookback) for lookback in (5, 16, 17)] == [True, True, False]
    assert not ScaledSeries(series, [0] * 4, starts, 2, HORIZON).has_validation(1)
    without = ScaledSeries(series, validation, starts, 2, HORIZON)
    assert [past.shape[1] for past in without.past()] == [16, 12, 3, 5]
    torch.testing.assert_close(without.past()[0], series[0][:, :16])
