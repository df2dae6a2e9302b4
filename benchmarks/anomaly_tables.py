"""The tables of anomalies, from the results of `python -m benchmarks.nab` and `python -m benchmarks.alarm_rates`."""

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


def rates(result: Results) -> str:
    """How often normal samples have an alarm, in multiples of the threshold; early and late."""
    rows = result["rates"]
    spans = list(rows[0]["alarms by threshold"])[1:]
    shares = list(rows[0]["alarms by threshold"][spans[0]])
    lines = []
    for row in rows:
        alarms = [row["alarms by threshold"][span] for span in spans]
        cells = [" / ".join(f"{alarms_of[share]:.2f}" for alarms_of in alarms) for share in shares]
        lines.append([row["stream"], *cells, f"{row['coverage']:.3f}"])
    ranges = " / ".join("{:,} to {:,}".format(*map(int, span.split("-"))) for span in spans)
    shift, step = result["after a level shift"], result["step"]
    header = [f"samples {ranges}", *(f"threshold {share}" for share in shares), "coverage of 95 % intervals"]
    held = " to ".join(f"{100 * shift[name]:.1f}" for name in ("least", "most"))
    return (
        f"{markdown(header, lines)}\n\nAfter a level shift of five standard deviations of normal noise, the"
        f" {100 * shift['level']:.0f} % intervals hold {held} % of the last 200 samples, on the mean of"
        f" {shift['streams']} streams. A sample takes {step['milliseconds']:.2f} ms of a processor in Python. The state"
        f" of a channel with a season of {result['season']} steps has {step['bytes']:,} bytes."
    )
