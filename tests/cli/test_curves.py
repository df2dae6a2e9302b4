"""Learning curves: what a result keeps of them, and how the report draws them."""

import itertools
import json
import math
import shutil
from pathlib import Path

import pytest

from plmu.cli.curves import _label, curves, plot_curves
from plmu.cli.program import main
from plmu.cli.report import _page, load
from plmu.errors import RunError
from plmu.runs.results import CURVE, thinned

ROOT = Path(__file__).parents[2]


def history(epochs: int, every: int = 1, start: float = 1.0) -> list[dict[str, float]]:
    scores = {epoch: {"valid_nrmse": start / epoch} for epoch in range(every, epochs + 1, every)}
    return [{"epoch": epoch, "loss": start / epoch, **scores.get(epoch, {})} for epoch in range(1, epochs + 1)]


def summary(name: str = "mackey-glass-plmu", **histories: list[dict[str, float]] | None) -> dict:
    """A committed result whose seeds have these histories."""
    one = json.loads((ROOT / "results" / f"{name}.json").read_text(encoding="utf-8"))
    given = list(histories.values())
    one["seeds"] = [
        {**seed, **({} if some is None else {"history": some})} for seed, some in zip(one["seeds"], given, strict=False)
    ]
    return {**one, "name": name}


def test_a_short_history_is_kept_whole():
    for epochs in (1, 2, CURVE):
        assert thinned(history(epochs), 1) == history(epochs)
    assert thinned([], 1) == []


def test_a_label_has_at_most_30_characters_a_line(monkeypatch):
    for words, lines in ((["a" * 14, "b" * 15], 1), (["a" * 14, "b" * 16], 2)):
        monkeypatch.setattr("plmu.cli.curves.labelled", lambda _, words=words: " ".join(words))
        assert _label({}).splitlines() == ([" ".join(words)] if lines == 1 else words)


@pytest.mark.parametrize("epochs", [CURVE + 1, 150, 500, 12_345])
@pytest.mark.parametrize("every", [1, 7, 90])
@pytest.mark.parametrize("best", [2, 77, 101])
def test_a_long_history_is_thinned_evenly(epochs, every, best):
    whole = history(epochs, every)
    kept = thinned(whole, best)
    places = [int(one["epoch"]) for one in kept]
    assert len(kept) <= CURVE
    assert all(one == whole[place - 1] for one, place in zip(kept, places, strict=True))
    assert {1, best, epochs} <= set(places)
    assert places == sorted(set(places))
    scored = [place for place in places if place % every == 0]
    assert len(scored) >= min(epochs // every, CURVE // 3), "validated epochs are kept"
    gaps = [b - a for a, b in itertools.pairwise(places)]
    assert max(gaps) <= max(2.5 * epochs / (CURVE // 2), every)


def test_what_is_not_finite_is_left_out():
    kept = thinned([{"epoch": 1, "loss": 1.0, "valid_a": math.nan, "valid_b": math.inf}], 1)
    assert kept == [{"epoch": 1, "loss": 1.0}]


def test_curves_are_means_over_seeds():
    one = summary(a=history(4, 2, 1.0), b=history(4, 2, 3.0), c=None)
    loss, score = curves(one)
    assert loss == ([1, 2, 3, 4], pytest.approx([2 / epoch for epoch in (1, 2, 3, 4)]))
    assert score == ([2, 4], pytest.approx([1, 0.5]))
    shared, _ = curves(summary(a=history(4), b=history(4)[1:]))
    assert shared[0] == [2, 3, 4]
    percent = summary("psmnist-plmu", a=[{"epoch": 1, "loss": 2.0, "valid_accuracy": 0.5}])
    assert curves(percent) == (([1], [2.0]), ([1], [50.0]))
    assert curves(summary(a=None)) == (([], []), ([], []))


def test_the_report_draws_a_row_for_each_experiment_and_a_line_for_each_model(tmp_path, monkeypatch):
    from matplotlib import pyplot

    kept = []
    monkeypatch.setattr(pyplot, "close", kept.append)
    refit = summary("imdb-plmu-refit", a=[{"epoch": 1, "loss": 0.5}])
    models = [summary(f"mackey-glass-{model}", a=history(30), b=history(30)) for model in ("plmu", "lstm")]
    assert plot_curves([*models, refit, summary("psmnist-plmu", a=None)], tmp_path / "a.png")
    (figure,) = kept
    left, right, loss, score = figure.axes[2], figure.axes[3], figure.axes[0], figure.axes[1]
    assert [axis.get_title() for axis in (loss, score)] == ["imdb: training loss", "imdb: validation accuracy, %"]
    assert [axis.get_title() for axis in (left, right)] == [
        "mackey-glass: training loss",
        "mackey-glass: validation nrmse",
    ]
    for axis in (left, right):
        assert [len(line.get_xdata()) for line in axis.lines] == [30, 30]
        assert axis.get_yscale() == "log"
        assert axis.get_xlabel() == "epoch"
    assert [text.get_text() for text in right.get_legend().get_texts()] == ["plmu", "lstm"]
    assert loss.get_yscale() == "linear"
    assert [len(line.get_xdata()) for line in score.lines] == [0]  # a refit has no validation
    monkeypatch.undo()
    pyplot.close(figure)


@pytest.mark.parametrize(("runs", "length"), [(1, 240), (12, 100)])
def test_there_is_room_for_many_runs_and_long_names(runs, length, tmp_path):
    """matplotlib warns where there is none, and warnings are errors here."""
    many = [{**summary(a=history(3)), "name": f"{'a-name-' * length}"[:length] + f"$x{run}"} for run in range(runs)]
    plot_curves(many, tmp_path / "a.png")


def test_the_page_shows_them_where_there_are_any(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for folder in ("old", "new"):
        Path(folder).mkdir()
    shutil.copy(ROOT / "results" / "mackey-glass-lstm.json", "old")
    Path("new/mackey-glass-plmu.json").write_text(json.dumps(summary(a=history(3))))
    main(["report", "--results", "old", "--out", "a"])
    assert not Path("a/curves.png").exists()
    assert "curves.png" not in Path("a/report.html").read_text(encoding="utf-8") + capsys.readouterr().out
    main(["report", "--results", "old", "--results", "new", "--out", "b"])
    assert Path("b/curves.png").stat().st_size > 10_000
    assert '<img src="curves.png"' in Path("b/report.html").read_text(encoding="utf-8")
    assert f"wrote {Path('b/report.html')}, {Path('b/results.png')}, {Path('b/curves.png')}" in capsys.readouterr().out
    assert "curves.png" not in _page(load(Path("old")))


@pytest.mark.parametrize(
    "wrong", [3, [3], [{"loss": 1.0}], [{"epoch": 1, "loss": "x"}], [{"epoch": 1, "loss": math.nan}], {"epoch": 1}]
)
def test_a_damaged_history_is_named(wrong, tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(summary(a=wrong)))
    with pytest.raises(RunError, match=r"a\.json is damaged \(TypeError: a history is not a list of numbers by name\)"):
        load(tmp_path)
