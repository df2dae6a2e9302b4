"""Words in dates, written as English and numbers: names of months in seven languages, ordinals, and names of time zones
that mean one zone only; 年, 月 and 日. English days of the week are left out."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl

# English, French, German, Spanish, Italian, Portuguese, Dutch; full names and their usual abbreviations.
_MONTHS = {
    "Jan": "january janvier janv januar jänner janner enero ene gennaio gen janeiro januari",
    "Feb": "february février fevrier févr fevr fév februar febrero febbraio fevereiro fev februari",
    "Mar": "march mars märz maerz marzo março marco maart mär mrz mrt",
    "Apr": "april avril avr abril abr aprile",
    "May": "mai mayo maggio maio mag mei",
    "Jun": "june juin juni junio giugno giu junho",
    "Jul": "july juillet juil juli julio luglio lug julho",
    "Aug": "august août aout agosto ago augustus",
    "Sep": "september sept septembre septiembre settembre setembro set",
    "Oct": "october octobre oktober octubre ottobre outubro okt ott out",
    "Nov": "november novembre noviembre novembro",
    "Dec": "december décembre decembre déc dezember diciembre dicembre dezembro dez dic",
}
# Minutes east of Greenwich. EST, CST, IST and others name several zones, so they are not read.
ZONES = {"Z": 0, "UTC": 0, "GMT": 0, "WET": 0, "CET": 60, "MEZ": 60, "WEST": 60}
ZONES |= {"CEST": 120, "MESZ": 120, "EET": 120, "EEST": 180}

_OFFSETS: dict[int, list[str]] = {}
for _name, _minutes in ZONES.items():
    if _name not in ("Z", "UTC"):  # which polars reads
        _OFFSETS.setdefault(_minutes, []).append(_name)
# Patterns, for Python and for polars, and what replaces them.
_RULES = [
    *((rf"(?i)\b(?:{month}\.|(?:{'|'.join(names.split())})\b\.?)", month) for month, names in _MONTHS.items()),
    *(
        (rf"(:\d{{2}}[\d.,:]*)\s*(?:{'|'.join(names)})\s*$", f"${{1}}{minutes // 60:+03}:00")
        for minutes, names in _OFFSETS.items()
    ),
    (r"(\d{4})\s?年\s?(\d{1,2})\s?月\s?(\d{1,2})\s?日", "${1}-${2}-${3}"),
    (r"(\d{4})\s?年\s?(\d{1,2})\s?月", "${1}-${2}"),
    (r"(?i)\b(\d{1,2})(?:st|nd|rd|th|er)\b", "${1}"),
    (r"(?i)\b(\d{1,2}|[a-z]{3})\s+del?\s+", "${1} "),
    (r"(?i)^\s*(?:mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?[.,]?\s+", ""),
]
_COMPILED = [(re.compile(pattern), re.sub(r"\$\{(\d)\}", r"\\g<\1>", text)) for pattern, text in _RULES]


def plain(cell: str) -> str:
    """A cell with its words in English and numbers.

    >>> plain("1er févr. 2024"), plain("2024-02-01 10:00 CET")
    ('1 Feb 2024', '2024-02-01 10:00+01:00')
    """
    if not any(letter.isalpha() for letter in cell):
        return cell
    for pattern, text in _COMPILED:
        cell = pattern.sub(text, cell)
    return cell


def plain_column(cells: pl.Series) -> pl.Series:
    """`plain` of each cell."""
    for pattern, text in _RULES:
        cells = cells.str.replace_all(pattern, text)
    return cells
