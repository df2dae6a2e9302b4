"""Sentences as words and punctuation apart, the way Moses' tokeniser writes them, and back.

Stanford's files of IWSLT'15 have this form: punctuation stands apart, `'s` and `'t` are words of their own, hyphens
stay inside words, and quotes, brackets and ampersands are written as entities such as `&quot;`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

ENTITIES = {  # in the order in which they are put in; taken out the other way round
    "&": "&amp;",
    "|": "&#124;",
    "<": "&lt;",
    ">": "&gt;",
    "'": "&apos;",
    '"': "&quot;",
    "[": "&#91;",
    "]": "&#93;",
}
_PLAIN = str.maketrans({"’": "'", "‘": "'", "‛": "'", "“": '"', "”": '"', "„": '"', "«": '"', "»": '"', "`": "'"})
_LETTER = r"(?:[^\W\d_][\u0300-\u036f]*)"
_SIGN = r"(?:\w[\u0300-\u036f]*)"  # a letter, digit or underscore, with accents that are characters of their own
_TITLES = r"Mr|Mrs|Ms|Dr|St|Prof|Jr|Sr|Gen|Sen|Rep|Gov|Rev|Lt|Col|vs|etc"
_WORD = re.compile(
    rf"\.{{2,}}|-{{2,}}"
    rf"|\d+(?:[.,]\d+)+(?:-{_SIGN}+)*"  # 10,000 and 2.5-fold
    rf"|{_LETTER}+(?:\.{_LETTER}+)+\.?|(?<!\w)(?:{_TITLES})\.|(?<!\w)[A-Z]\.(?=\s+\S)"  # U.S., Ph.D., ted.com, Mr., J.
    rf"|(?<=\w)'{_LETTER}+"  # 's and 't
    rf"|{_SIGN}+(?:-{_SIGN}+)*"
    rf"|'{_LETTER}{{1,2}}(?!\w)"  # 's that already stands apart
    rf"|\S"
)
_JOINED_LEFT = re.compile(r"[,.!?:;)\]}%…]+$|'\w+$")
_JOINED_RIGHT = ("(", "[", "{", "$", "£", "€", "#")
_QUOTES = ('"', "'")


def tokenise(text: str) -> list[str]:
    """The words of a sentence. Those that stand apart already, with entities, stay as they are.

    >>> tokenise('It\\'s "well-known", isn\\'t it?')
    ['It', '&apos;s', '&quot;', 'well-known', '&quot;', ',', 'isn', '&apos;t', 'it', '?']
    """
    return [_escaped(word) for word in _WORD.findall(unescaped(text).translate(_PLAIN))]


def detokenise(words: Sequence[str]) -> str:
    """The sentence of these words: entities undone, punctuation joined to what it belongs to.

    >>> detokenise(["It", "&apos;s", "&quot;", "well-known", "&quot;", ",", "isn", "&apos;t", "it", "?"])
    'It\\'s "well-known", isn\\'t it?'
    """
    out, space = "", False  # whether the next word is set apart
    opened: set[str] = set()
    for word in map(unescaped, words):
        if word in _QUOTES:
            closing = word in opened
            opened ^= {word}
            out += word if closing or not space else f" {word}"
            space = closing
        else:
            out += word if not space or _JOINED_LEFT.match(word) else f" {word}"
            space = word not in _JOINED_RIGHT
    return out


def unescaped(text: str) -> str:
    """Without entities."""
    for character, entity in reversed(ENTITIES.items()):
        text = text.replace(entity, character)
    return text


def _escaped(word: str) -> str:
    for character, entity in ENTITIES.items():
        word = word.replace(character, entity)
    return word
