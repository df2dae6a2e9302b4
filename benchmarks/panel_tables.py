"""The tables of forecasts of many series, from the results of `python -m benchmarks.panels` and of its peers."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.tables import Results, markdown, number

OURS = "plmu"
# Titles of methods, in the order of the columns.
TITLES = {
    "naive": "Naive",
    "seasonal naive": "seasonal naive",
    "naive 2": "Naive 2",
    "theta": "Theta",
    "DynamicOptimizedTheta": "DOT",
    "AutoTheta": "AutoTheta",
    "AutoETS": "AutoETS",
    "AutoARIMA": "AutoARIMA",
    "LightGBM": "LightGBM",
    OURS: OURS,
}
SCORES = {"mase": "MASE", "smape": "sMAPE, %", "msis": "MSIS", "weighted quantile loss": "weighted quantile loss"}
INTERVALS = ("coverage 80", "coverage 95", "msis", "weighted quantile loss")


def points(ours: Results, peers: Results) -> str:
    """MASE and sMAPE of every method on every set, the lowest in bold; then every loss of plmu, and the versions of the
    peers."""
    sets = merged(ours, peers)
    names = _columns(sets.values(), "mase")
    lines = []
    for title, methods in sets.items():
        cells = []
        for name in names:
            scores = methods.get(name)
            cells.append(" / ".join(_marked(methods, name, key) for key in ("mase", "smape")) if scores else "")
        lines.append([title, *cells])
    table = markdown(["MASE / sMAPE", *(TITLES[name] for name in names)], lines)
    return "\n\n".join([table, losses(sets, ("mase", "smape")), _versions(peers)])


def intervals(ours: Results, peers: Results) -> str:
    """Coverage of the intervals, MSIS and weighted quantile loss of every method with intervals; then every loss."""
    sets = merged(ours, peers)
    names = _columns(sets.values(), "msis")
    lines = []
    for title, methods in sets.items():
        for name in names:
            if "msis" in (scores := methods.get(name, {})):
                covered = [f"{100 * scores[key]:.1f}" for key in INTERVALS[:2]]
                lines.append([title, TITLES[name], *covered, *(_marked(methods, name, key) for key in INTERVALS[2:])])
    header = ["set", "method", "within 80 %", "within 95 %", *(SCORES[key] for key in INTERVALS[2:])]
    return "\n\n".join([markdown(header, lines), losses(sets, INTERVALS[2:])])


def competition(ours: Results, peers: Results) -> str:
    """OWA and MSIS over all of the M4, beside the published ones."""
    lines = [
        [TITLES[name], number(scores["owa"]), number(scores.get("msis"), 4), "here"]
        for name, scores in ours["m4"].items()
    ]
    published = ours["published"]
    for name in dict.fromkeys([*published["owa"], *published["msis"]]):
        figures = [number(published[key].get(name), digits) for key, digits in (("owa", 3), ("msis", 4))]
        lines.append([name, *figures, "published"])
    return markdown(["M4, 100,000 series", "OWA", "MSIS", ""], lines)


def seconds(ours: Results, peers: Results) -> str:
    """Processor seconds of the fit and the forecast for a thousand series."""
    rows = [*ours["rows"], *peers["rows"]]
    sets = {_title(row["set"]): {} for row in rows}  # type: dict[str, dict[str, float]]
    for row in rows:
        for name, scores in row["methods"].items():
            used = sum(value for key, value in scores.items() if key.endswith("processor seconds"))
            sets[_title(row["set"])][name] = 1000 * used / row["series"]
    names = [name for name in TITLES if any(name in spent for spent in sets.values())]
    lines = [[title, *(number(spent.get(name), 2) for name in names)] for title, spent in sets.items()]
    return markdown(["seconds for 1,000 series", *(TITLES[name] for name in names)], lines)


def losses(sets: dict[str, Results], keys: Iterable[str]) -> str:
    """Every set and score where a method is better than plmu, with the methods."""
    if not any(OURS in methods for methods in sets.values()):
        return "plmu has not been measured yet."
    lines = []
    for title, methods in sets.items():
        for key in keys:
            ours = methods.get(OURS, {}).get(key)
            if ours is None:
                continue
            better = {name: scores[key] for name, scores in methods.items() if scores.get(key, ours) < ours}
            if better:
                figures = (f"{TITLES[name]} {number(better[name])}" for name in sorted(better, key=better.__getitem__))
                lines.append([title, SCORES[key], number(ours), ", ".join(figures)])
    if not lines:
        return "No method is better than plmu on any set."
    return "Where plmu is not the best:\n\n" + markdown(["set", "score", OURS, "better"], lines)


def merged(ours: Results, peers: Results) -> dict[str, Results]:
    """The methods of every set; sets of which peers forecast only the first series come twice."""
    elsewhere = {row["set"]: row for row in peers["rows"]}
    sets = {}
    for row in ours["rows"]:
        title, methods, others = _title(row["set"]), row["methods"], elsewhere.get(row["set"])
        if row["series"] != row["of"]:
            title += f", first {row['series']:,}"
        if others and others["series"] == row["series"]:
            methods = {**others["methods"], **methods}
        sets[title] = methods
        if others and (part := row.get(f"first {others['series']}")):
            sets[f"{title}, first {others['series']:,}"] = {**others["methods"], **part}
    return sets


def _title(name: str) -> str:
    return name.replace("-", " ").capitalize()


def _columns(sets: Iterable[Results], key: str) -> list[str]:
    """The methods that have a score on some set."""
    there = {name for methods in sets for name, scores in methods.items() if key in scores}
    return [name for name in TITLES if name in there]


def _marked(methods: Results, name: str, key: str) -> str:
    """A score, in bold where it is the lowest of the methods."""
    text = number(methods[name][key])
    lowest = min(scores[key] for scores in methods.values() if key in scores)
    return f"**{text}**" if methods[name][key] == lowest else text


def _versions(peers: Results) -> str:
    """The versions of the peers."""
    versions: dict[str, str] = {}
    for row in peers["rows"]:
        for scores in row["methods"].values():
            versions |= scores.get("versions", {})
    return f"Peers: {', '.join(f'{name} {version}' for name, version in sorted(versions.items()))}."
