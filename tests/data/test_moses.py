"""Tokenised text as Moses writes it, and back."""

import pytest

from plmu.data.moses import detokenise, tokenise

PAIRS = [
    ("And I was very proud.", "And I was very proud ."),
    ('a song called "Nothing To Envy."', "a song called &quot; Nothing To Envy . &quot;"),
    ("wouldn't let me, it's ours", "wouldn &apos;t let me , it &apos;s ours"),
    ("10,000 people, 2.5 or $3 (50%)", "10,000 people , 2.5 or $ 3 ( 50 % )"),
    ("the U.S. and Mr. Smith's well-being", "the U.S. and Mr. Smith &apos;s well-being"),
    ("Q & A [music] a | b", "Q &amp; A &#91; music &#93; a &#124; b"),
    ("Tôi không biết... ở đâu?", "Tôi không biết ... ở đâu ?"),
    ("go to ted.com now", "go to ted.com now"),
    ("a 5,000-letter code", "a 5,000-letter code"),
    ("", ""),
]


@pytest.mark.parametrize(("raw", "tokenised"), PAIRS)
def test_sentences_are_tokenised_and_joined_again(raw, tokenised):
    assert tokenise(raw) == tokenised.split()
    assert detokenise(tokenised.split()) == raw
    assert tokenise(tokenised) == tokenised.split(), "what is tokenised already stays as it is"


def test_typographic_quotes_are_plain_ones():
    assert tokenise("“It’s” «so»") == tokenise('"It\'s" "so"')


def test_words_never_hold_a_space_and_nothing_is_lost():
    text = "a\u00a0b\t\u200bc <x> 日本語 ☃ e\u0301 'tis"
    words = tokenise(text)
    assert all(word.split() == [word] for word in words)
    kept = "".join(text.split()).replace("<", "&lt;").replace(">", "&gt;").replace("'", "&apos;")
    assert "".join(words) == kept
