"""Tokenised text as Moses writes it, and back."""

import pytest

from plmu.text.moses import detokenise, tokenise

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


@pytest.mark.parametrize(
    ("raw", "tokenised"),
    [
        ("नमस्ते, यह घर है।", "नमस्ते , यह घर है ।"),
        ("السَّلامُ عَلَيْكُمْ، كيف حالك؟", "السَّلامُ عَلَيْكُمْ ، كيف حالك ؟"),
        ("می\u200cخواهم بروم", "می\u200cخواهم بروم"),
        ("שָׁלוֹם עולם", "שָׁלוֹם עולם"),
        ("สวัสดี ยินดี", "สวัสดี ยินดี"),
        ("¿Qué? ¡No!", "¿ Qué ? ¡ No !"),
        ("e\u0301te\u0301's", "e\u0301te\u0301 &apos;s"),
        ("2015年，天气很好。", "2015 年 ， 天 气 很 好 。"),
        ("「スーパーで買う」 OK!", "「 ス ー パ ー で 買 う 」 OK !"),
    ],
)
def test_other_scripts(raw, tokenised):
    """Vowel signs stay in their words; what is written without spaces is split into characters."""
    assert tokenise(raw) == tokenised.split(" ")
    assert detokenise(tokenised.split(" ")) == raw
    assert tokenise(tokenised) == tokenised.split(" ")


def test_spaces_without_width_separate_and_a_byte_order_mark_is_nothing():
    assert tokenise("\ufeffa\u200bb") == ["a", "b"]


def test_words_never_hold_a_space_and_nothing_is_lost():
    text = "a\u00a0b\tc <x> 日本語 ☃ e\u0301 'tis"
    words = tokenise(text)
    assert all(word.split() == [word] for word in words)
    kept = "".join(text.split()).replace("<", "&lt;").replace(">", "&gt;").replace("'", "&apos;")
    assert "".join(words) == kept
