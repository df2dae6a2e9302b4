"""Rows that `Forecaster.partial_fit` gets: their columns, names and covariates ahead, and files that are hostile."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from learned_sums import MEMORY, ROWS, assert_close, course, panel

import plmu
from plmu.errors import DataError, FileFormatError
from plmu.modelfiles.files import Attachment, load_attached, save_attached


def wide(rows: int = ROWS + 60) -> pd.DataFrame:
    times = pd.date_range("2024-01-01", periods=rows, freq="h")
    return pd.DataFrame(course(rows, channels=2), columns=["a", "b"], index=times)


def with_event(rows: int) -> pl.DataFrame:
    """A series with an effect that is known ahead."""
    event = np.random.default_rng(3).integers(0, 2, rows).astype(float)
    times = np.datetime64("2024-01-01", "us") + np.arange(rows) * np.timedelta64(3600, "s")
    return pl.DataFrame({"when": times, "load": course(rows)[:, 0] + 5 * event, "event": event})


def test_columns_of_frames_are_told_by_name() -> None:
    frame = wide()
    forecasters = [plmu.Forecaster(**MEMORY).fit(frame[:ROWS]) for _ in range(2)]
    swapped = frame[["b", "a"]]
    expected = forecasters[0].predict(frame[:ROWS])
    pd.testing.assert_frame_equal(forecasters[0].predict(swapped[:ROWS]), expected)
    forecasters[0].partial_fit(frame[ROWS:])
    forecasters[1].partial_fit(swapped[ROWS:])
    assert_close(*(forecaster.sums_ for forecaster in forecasters))
    pd.testing.assert_frame_equal(*(forecaster.predict() for forecaster in forecasters))
    for method in (forecasters[0].partial_fit, forecasters[0].predict):
        with pytest.raises(ValueError, match="X must have the columns a, b, got a, c"):
            method(frame[ROWS:].rename(columns={"b": "c"}))
    single = plmu.Forecaster(**MEMORY).fit(frame[["a"]][:ROWS])
    assert list(single.predict(frame[["b"]]).columns) == ["b"]  # another series
    with pytest.raises(ValueError, match="X must have the columns a, got b"):
        single.partial_fit(frame[["b"]][ROWS:])


def test_a_second_array_makes_several() -> None:
    data = course()
    forecaster = plmu.Forecaster(**MEMORY).fit(data[:ROWS]).partial_fit([data[ROWS:], course(80, seed=1)])
    ahead = forecaster.predict()
    assert isinstance(ahead, list)
    np.testing.assert_array_equal(ahead[0], forecaster.predict(data, start=0))
    assert len(ahead) == 2


@pytest.mark.parametrize("kind", ["arrays", "frames", "covariates"])
def test_a_series_of_a_list_may_have_no_new_rows(kind: str) -> None:
    options, series = MEMORY, [course(seed=seed, channels=2) for seed in range(2)]
    if kind == "covariates":
        options = {**MEMORY, "covariates": [1]}
    if kind == "frames":
        series = [wide(), wide() + 1]
    forecasters = [plmu.Forecaster(**options).fit([rows[:ROWS] for rows in series]) for _ in range(2)]
    forecasters[0].partial_fit([rows[ROWS:] for rows in series])
    forecasters[1].partial_fit([series[0][ROWS:], series[1][:0]])
    forecasters[1].partial_fit([series[0][:0], series[1][ROWS:]])
    assert_close(*(forecaster.sums_ for forecaster in forecasters))
    future: dict[str, Any] = {"future": [np.zeros(5)] * 2} if kind == "covariates" else {}
    for a, b in zip(*(forecaster.predict(**future) for forecaster in forecasters), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
    for X in ([rows[:0] for rows in series], [*(rows[:1] for rows in series), series[0][:0]]):
        with pytest.raises(ValueError, match="has no rows"):
            forecasters[0].partial_fit(X)


def test_series_that_have_names_go_on_with_names(tmp_path: Path) -> None:
    first, later = panel(ROWS), panel(20, first=ROWS)
    forecaster = plmu.Forecaster(**MEMORY).fit(first)
    plain = later[later["unique_id"] == "a"].drop(columns="unique_id")
    with pytest.raises(DataError, match="X must name its series by column 'unique_id', as that of fit does"):
        forecaster.partial_fit(plain)
    for rows in (plain["y"].to_numpy(), plain.set_index("ds")):
        with pytest.raises((ValueError, DataError), match=r"X must (be a file|name its series)"):
            forecaster.partial_fit(rows)
    # A folder of files, each a series named by its file.
    for name in ("first", "later"):
        (tmp_path / name).mkdir()
    for frame, name in ((first, "first"), (later, "later")):
        for series, rows in frame.groupby("unique_id"):
            rows.drop(columns="unique_id").to_csv(tmp_path / name / f"{series}.csv", index=False)
    of_files = plmu.Forecaster(**MEMORY).fit(tmp_path / "first")
    with pytest.raises(DataError, match="X must name its series, as that of fit does"):
        of_files.partial_fit(tmp_path / "later" / "a.csv")
    assert_close(of_files.partial_fit(tmp_path / "later").sums_, forecaster.partial_fit(later).sums_)


@pytest.mark.parametrize("kind", ["file", "long", "wide"])
def test_covariates_ahead_are_after_the_rows_that_were_learned(kind: str, tmp_path: Path) -> None:
    data, end = with_event(ROWS + 65), ROWS + 60
    if kind == "long":
        data = data.with_columns(unique_id=pl.lit("north"))

    def given(rows: pl.DataFrame, name: str) -> Any:
        if kind != "file":
            return rows
        rows.write_csv(tmp_path / name)
        return tmp_path / name

    forecaster = plmu.Forecaster(**MEMORY, covariates=["event"]).fit(given(data[:ROWS], "first.csv"))
    forecaster.partial_fit(given(data[ROWS:end], "later.csv"))
    plan = given(data[end:].drop("load"), "plan.csv")
    expected = forecaster.predict(given(data.with_columns(load=pl.when(pl.int_range(pl.len()) < end).then("load")
                                                          .otherwise(np.nan)), "whole.csv"))  # fmt: skip
    ahead = forecaster.predict(future=plan, level=80)
    np.testing.assert_array_equal(ahead["load"].to_numpy(), expected["load"].to_numpy())
    assert ahead["when"].to_list() == data["when"][end:].to_list()
    forecaster.save(tmp_path / "f.plmu", updatable=True)
    (tmp_path / "first.csv").unlink(missing_ok=True)
    loaded = plmu.Forecaster.load(tmp_path / "f.plmu").predict(future=plan, level=80)
    np.testing.assert_array_equal(loaded["load"].to_numpy(), ahead["load"].to_numpy())
    # A plan that begins earlier gives its later rows; one with a hole gives none for the last steps.
    longer = given(data[end - 30 :].drop("load"), "longer.csv")
    if kind != "wide":
        np.testing.assert_array_equal(forecaster.predict(future=longer)["load"], expected["load"])
    with pytest.raises(ValueError, match="covariate 'event' must be known for 5 rows after the last row of X, got 3"):
        forecaster.predict(future=given(data[end : end + 3].drop("load"), "short.csv"))


def test_another_half_life_holds_from_the_next_call_on() -> None:
    data = course()
    forecaster = plmu.Forecaster(**MEMORY).fit(data[:ROWS]).partial_fit(data[ROWS : ROWS + 10])
    before = forecaster.sums_.count
    forecaster.set_params(half_life=20).partial_fit(data[ROWS + 10 : ROWS + 30])
    factor = 2.0 ** (-1 / 20)
    assert forecaster.sums_.count == pytest.approx(before / 2 + sum(factor**age for age in range(20)), rel=1e-12)


@pytest.mark.parametrize("hours", [700, 1020, 1045, 5000])
def test_after_a_gap_of_many_half_lives_the_readout_is_as_before(hours: int) -> None:
    forecaster = plmu.Forecaster(**MEMORY, half_life=1.0).fit(wide()[:ROWS])
    before = forecaster._learning().solved()
    later = wide(60)
    later.index = later.index + pd.Timedelta(hours=ROWS + hours)
    forecaster.partial_fit(later[:10])  # too few for a window
    for name, tensor in forecaster.model.state_dict().items():
        torch.testing.assert_close(tensor, before.state_dict()[name], rtol=1e-5, atol=1e-6)
    forecaster.partial_fit(later[10:])
    assert forecaster.sums_.count == pytest.approx(2.0, rel=1e-9)


def test_a_file_imports_no_module_and_sets_no_method(tmp_path: Path) -> None:
    path = tmp_path / "f.plmu"
    plmu.Forecaster(**MEMORY).fit(wide()[:ROWS]).save(path, updatable=True)
    model, attachment = load_attached(path)
    assert attachment is not None

    def loaded(*keys: Any, value: Any) -> plmu.Forecaster:
        content = copy.deepcopy(attachment.content)
        place = content
        for key in keys[:-1]:
            place = place[key]
        place[keys[-1]] = value
        save_attached(model, path, Attachment(content, attachment.tensors))
        return plmu.Forecaster.load(path)

    assert loaded("attributes", "predict", value=1).predict().shape == (5, 2)
    faults: list[tuple[tuple[Any, ...], Any]] = [
        (("learned", "forms", 0, "frame"), "antigravity"),
        (("attributes",), None),
        (("chosen",), 1),
        (("params",), {"horizons": 1}),
        (("params", "half_life"), "long"),
    ]
    for keys, value in faults:
        with pytest.raises(FileFormatError, match="broken description"):
            loaded(*keys, value=value)
    with pytest.raises(FileFormatError, match="holds no Forecaster"):
        loaded("estimator", value="Classifier")


@pytest.mark.parametrize("classifies", [False, True])
def test_tensors_of_a_file_have_the_shapes_of_the_model(classifies: bool, tmp_path: Path) -> None:
    path = tmp_path / "f.plmu"
    if classifies:
        examples = [course(40, seed=seed)[:, 0] for seed in range(12)]
        estimator: Any = plmu.SequenceClassifier(projections=4).fit(examples, [seed % 3 for seed in range(12)])
    else:
        estimator = plmu.Forecaster(**MEMORY).fit(course())
    estimator.save(path, updatable=True)
    model, attachment = load_attached(path)
    assert attachment is not None
    for name, tensor in attachment.tensors.items():
        for other in (None, tensor[:0], tensor.repeat(2, *(1,) * (tensor.ndim - 1)), tensor.to(torch.int16)):
            tensors = {key: value for key, value in attachment.tensors.items() if key != name}
            save_attached(model, path, Attachment(attachment.content, tensors if other is None else
                                                  {**tensors, name: other.contiguous()}))  # fmt: skip
            with pytest.raises(FileFormatError, match="broken description"):
                type(estimator).load(path)


def test_choices_alone_have_no_rows_to_forecast(tmp_path: Path) -> None:
    path = tmp_path / "f.plmu"
    for rows in (course(), panel(ROWS)):
        forecaster = plmu.Forecaster(**MEMORY).fit(rows)
        forecaster.save(path, updatable=True)
        empty = plmu.Forecaster.load(path, empty=True)
        with pytest.raises(ValueError, match="X must be given: there are no rows yet"):
            empty.predict()
        with pytest.raises(ValueError, match="give start: there are no rows yet"):
            empty.stream()
        assert len(empty.predict(rows)) > 0
        with pytest.raises(TypeError, match="other must be a Forecaster, got str"):
            forecaster.merge(path.name)  # type: ignore[arg-type]
