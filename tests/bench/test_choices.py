"""`python -m benchmarks.cpu --random`: the shapes repeat, and the summary counts what it says."""

import json
from pathlib import Path

from benchmarks import choices

RESULTS = Path(__file__).parents[2] / "results"


def test_random_shapes_are_those_of_the_committed_results() -> None:
    written = json.loads((RESULTS / "bench-cpu-choices.json").read_text(encoding="utf-8"))["random"]["rows"]
    drawn = choices.random_shapes(len(written))
    assert [(kind, str(shape)) for kind, shape in drawn] == [(row["kind"], row["shape"]) for row in written]
    assert len(written) == 100
    assert all(shape.batch * shape.time * shape.order * shape.channels <= choices.LARGEST for _, shape in drawn)
    assert all(row["error"] <= 1e-5 for row in written)


def test_the_summary_counts_shapes_within_the_bar() -> None:
    times = [{"auto": 2.0, "chunked": 2.0}, {"auto": 3.0, "chunked": 2.0, "fft": 4.0}]
    found = choices.summary([choices.Choice("states", "a shape", "chunked", each, 0.0) for each in times])
    assert found == {"shapes": 2, "median": 1.25, "worst": 1.5, "within 15 %": 0.5}
