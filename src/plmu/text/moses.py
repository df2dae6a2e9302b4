"""Sentences as words and punctuation apart, the way Moses' tokeniser writes them, and back.

Stanford's files of IWSLT'15 have this form: punctuation stands apart, `'s` and `'t` are words of their own, hyphens
stay inside words, and quotes, brackets and ampersands are written as entities such as `&quot;`. Chinese and Japanese,
which have no spaces, are split into characters.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import cache

ENTITIES = {  # in the order in which they are written; they are undone in reverse order
    "&": "&amp;",
    "|": "&#124;",
    "<": "&lt;",
    ">": "&gt;",
    "'": "&apos;",
    '"': "&quot;",
    "[": "&#91;",
    "]": "&#93;",
}
VERSION = 2  # of `tokenise`
_PLAIN = str.maketrans(
    {
        **dict.fromkeys("’‘‛`", "'"),
        **dict.fromkeys("“”„«»", '"'),
        "\u200b": " ",  # a zero-width space ends a word in Khmer or Thai
        "\ufeff": "",
    }
)
# Han and kana, which are written without spaces: each character is a word. Then their punctuation.
_HAN = r"\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f"
_HAN += r"\U00020000-\U0003ffff"
_HAN_MARKS = r"\u3001-\u3003\u3008-\u3011\u3014-\u301f\uff01-\uff0f\uff1a-\uff20\uff3b-\uff3d\uff5b-\uff65"
_BETWEEN_HAN = re.compile(rf"(?<=[{_HAN}{_HAN_MARKS}]) (?=[{_HAN}{_HAN_MARKS}\d])|(?<=\d) (?=[{_HAN}])")
_TITLES = r"Mr|Mrs|Ms|Dr|St|Prof|Jr|Sr|Gen|Sen|Rep|Gov|Rev|Lt|Col|vs|etc"
_JOINED_LEFT = re.compile(r"[,.!?:;)\]}%…،؛؟۔।॥。、，！？：；）」』】》〉]+$|'\w+$")
_JOINED_RIGHT = (*"([{$£€#¿¡（「『【《〈",)
_QUOTES = ('"', "'")


@cache
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Patterns of a word, and of a character of Han or kana. A combining vowel sign or accent belongs to the letter
    before it."""
    marks = "".join(chr(code) for code in range(0x300, 0x20000) if unicodedata.category(chr(code)).startswith("M"))
    marks += "\u200c\u200d"  # they join letters, or keep them from joining
    letters = rf"(?:[^\W\d_]++[{marks}]*+)++"
    signs = rf"(?:\w++[{marks}]*+)++"  # letters, digits and underscores
    word = re.compile(
        rf"\.{{2,}}|-{{2,}}"
        rf"|\d+(?:[.,]\d+)+(?:-{signs})*"  # 10,000 and 2.5-fold
        rf"|{letters}(?:\.{letters})+\.?|(?<!\w)(?:{_TITLES})\.|(?<!\w)[A-Z]\.(?=\s+\S)"  # U.S., ted.com, Mr., J.
        rf"|'(?<=[\w{marks}]'){letters}"  # 's and 't
        rf"|{signs}(?:-{signs})*"
        rf"|'(?:[^\W\d_][{marks}]*){{1,2}}(?!\w)"  # 's that already stands apart
        rf"|\S[{marks}]*"
    )
    return word, re.compile(rf"[{_HAN}][{marks}]*")


def tokenise(text: str) -> list[str]:
    """The words of a sentence. Text that is tokenised already stays as it is.

    >>> tokenise('It\\'s "well-known", isn\\'t it?')
    ['It', '&apos;s', '&quot;', 'well-known', '&quot;', ',', 'isn', '&apos;t', 'it', '?']
    """
    word, character = _patterns()
    return [_escaped(token) for token in word.findall(character.sub(r" \g<0> ", unescaped(text).translate(_PLAIN)))]


def detokenise(words: Sequence[str]) -> str:
    """The sentence of these words: entities undone, and punctuation joined to its word.

    >>> detokenise(["It", "&apos;s", "&quot;", "well-known", "&quot;", ",", "isn", "&apos;t", "it", "?"])
    'It\\'s "well-known", isn\\'t it?'
    """
    sentence, space = "", False  # whether a space comes before the next word
    open_quotes: set[str] = set()
    for word in map(unescaped, words):
        if word in _QUOTES:
            closing = word in open_quotes
            open_quotes ^= {word}
            sentence += word if closing or not space else f" {word}"
            space = closing
        else:
            sentence += word if not space or _JOINED_LEFT.match(word) else f" {word}"
            space = word not in _JOINED_RIGHT
    return _BETWEEN_HAN.sub("", sentence)


def unescaped(text: str) -> str:
    """A text with its entities undone."""
    for character, entity in reversed(ENTITIES.items()):
        text = text.replace(entity, character)
    return text


def _escaped(word: str) -> str:
    for character, entity in ENTITIES.items():
        word = word.replace(character, entity)
    return word
