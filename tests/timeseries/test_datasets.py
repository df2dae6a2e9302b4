"""Plain torch datasets of one's own series."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import plmu
from plmu.timeseries.datasets import ForecastWindows, LabelledSeries


def test_labelled_series_train_a_model_of_ones_own(tmp_path: Path) -> None:
    rows = "id,x,label\n" + "".join(
        f"{name},{step % period},{period}\n"
        for name, period in (("a", 2), ("b", 3), ("c", 2))
        for step in range(5 + period)
    )
    (tmp_path / "own.csv").write_text(rows)
    data = LabelledSeries.from_file(tmp_path / "own.csv")
    assert (len(data), data.classes) == (3, ["2", "3"])
    x, lengths, labels = next(iter(DataLoader(data, batch_size=3, collate_fn=data.collate)))
    assert x.shape == (3, 8, 1)
    assert lengths.tolist() == [7, 8, 7]
    assert labels.tolist() == [0, 1, 0]
    assert not x[0, 7:].any()
    model = plmu.Sequential(
        plmu.ParallelLMU(1, 4, order=3, theta=4.0, return_sequences=False), torch.nn.Linear(4, len(data.classes))
    )
    torch.nn.functional.cross_entropy(model(x, lengths=lengths)[0], labels).backward()
    with pytest.raises(TypeError, match="lable"):
        LabelledSeries.from_file(tmp_path / "own.csv", lable="x")


def test_labelled_series_are_checked() -> None:
    with pytest.raises(ValueError, match="one for each of the 2"):
        LabelledSeries([[1.0], [2.0]], ["a"])
    with pytest.raises(ValueError, match="equally many channels"):
        LabelledSeries([np.zeros((3, 1)), np.zeros((3, 2))], [0, 1])
    with pytest.raises(ValueError, match=r"series\[1\] has NaN or infinity in step 2"):
        LabelledSeries([[1.0], [1.0, 2.0, np.nan]], [0, 1])
    with pytest.raises(ValueError, match="shape"):
        LabelledSeries([np.zeros((0, 1))], [0])


def test_windows_and_what_follows_them() -> None:
    series = [np.arange(6.0), np.arange(3.0), 10 + np.arange(5.0)]
    data = ForecastWindows(series, lookback=3, horizon=2)
    pairs = [(window[:, 0].tolist(), after[:, 0].tolist()) for window, after in data]
    assert pairs == [([0, 1, 2], [3, 4]), ([1, 2, 3], [4, 5]), ([10, 11, 12], [13, 14])]
    assert data[-1][1][:, 0].tolist() == [13, 14]
    windows, after = next(iter(DataLoader(ForecastWindows(np.zeros((20, 2)), 8, 4), batch_size=5)))
    assert (windows.shape, after.shape) == ((5, 8, 2), (5, 4, 2))
    with pytest.raises(ValueError, match=r"8 \+ 4 steps exceed 6"):
        ForecastWindows(np.zeros(6), 8, 4)
    with pytest.raises(IndexError, match="3 windows"):
        data[3]
    with pytest.raises(ValueError, match="lookback must be an integer"):
        ForecastWindows(np.zeros(20), 2.5, 4)  # type: ignore[arg-type]


def test_classes_have_the_order_of_the_command_line(tmp_path: Path) -> None:
    rows = "".join(f"s{place},{step},{place % 3}.5,{label}\n" for place, label in enumerate(["9", "10", "11", "2"])
                   for step in range(3))  # fmt: skip
    (tmp_path / "own.csv").write_text("id,t,x,label\n" + rows)
    data = LabelledSeries.from_file(tmp_path / "own.csv")
    assert data.classes == ["2", "9", "10", "11"]
    assert data.numbers == [1, 2, 3, 0]
    assert LabelledSeries([[1.0], [2.0]], [10, 9]).classes == [9, 10]
    for labels in ([None, "a"], [np.nan, 1.0], [[1], [2]]):
        with pytest.raises(ValueError, match="labels must be a number or a name for each series"):
            LabelledSeries([[1.0], [2.0]], labels)


def test_options_of_a_file_are_checked(tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text("id,t,xy,label\na,0,1,u\na,1,1,u\nb,0,2,v\nb,1,2,v\n")
    with pytest.raises(ValueError, match="missing must be one of 'linear', 'hold', 'raise', got 'zero'"):
        LabelledSeries.from_file(tmp_path / "own.csv", missing="zero")
    (tmp_path / "labels.csv").write_text("id,label\na,up\nb,down\n")
    data = LabelledSeries.from_file(tmp_path / "own.csv", labels=str(tmp_path / "labels.csv"), values="xy")
    assert data.classes == ["down", "up"]
