"""The table of the Numenta Anomaly Benchmark, from the results of `python -m benchmarks.nab`."""

from __future__ import annotations

from benchmarks.nab_scoring import PROFILES
from benchmarks.tables import Results, markdown

OURS = "plmu"
TITLES = {
    "ARTime": "ARTime",
    "numenta": "Numenta HTM",
    "contextOSE": "CAD OSE",
    "htmjava": "HTM JAVA",
    "knncad": "KNN-CAD",
    "relativeEntropy": "relative entropy",
    "randomCutForest": "Random Cut Forest",
    "windowedGaussian": "windowed Gaussian",
}


def detectors(result: Results) -> str:
    """The score of each detector by each profile, the highest of the standard profile first."""
    scores = {OURS: {profile: part["score"] for profile, part in result["detectors"][OURS].items()}}
    scores |= {title: result["published"][name] for name, title in TITLES.items()}
    lines = []
    for name in sorted(scores, key=lambda name: -scores[name]["standard"]):
        again = result["detectors"].get({title: key for key, title in TITLES.items()}.get(name, ""))
        lines.append([
            f"**{name}**" if name == OURS else name,
            *(f"{scores[name][profile]:.1f}" for profile in PROFILES),
            "" if again is None else f"{again['standard']['score']:.1f}",
        ])  # fmt: skip
    header = ["detector", "standard", "few false alarms", "few misses", "standard, by this scorer"]
    ours = result["detectors"][OURS]["standard"]
    milliseconds = 1000 * result["processor seconds"] / result["rows"]
    return (
        f"{markdown(header, lines)}\n\nAt the threshold of the standard profile plmu has an alarm in"
        f" {ours['windows with an alarm']} of {result['windows']} windows, and {ours['false alarms']} false alarms in"
        f" {result['rows']:,} rows. All files took {milliseconds:.2f} ms of a processor per row, in batches of files."
    )
