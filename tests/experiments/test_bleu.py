"""BLEU without a library is sacrebleu's."""

import random
import sys

import pytest
from sacrebleu.metrics.bleu import BLEU

from plmu.cli.catalogue import lookup
from plmu.experiments.translation.bleu import bleu, scores
from plmu.experiments.translation.task import UNSCORED

CASES = {
    "alike": (["a b c d e"], ["a b c d e"]),
    "one word wrong": (["a b c d e", "A b"], ["a b c x e", "a b"]),
    "no four in a row": (["a b x c d y e"], ["a b z c d z e"]),
    "nothing right": (["x y z w"], ["a b c d"]),
    "too short for four": (["a b"], ["a b"]),
    "empty": ([""], ["a b c"]),
    "short": (["a b c d"], ["a b c d e f g h"]),
}


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_it_equals_sacrebleu(case, lowercase):
    ours, theirs = CASES[case]
    expected = BLEU(tokenize="none", lowercase=lowercase, force=True).corpus_score(ours, [theirs]).score
    assert bleu(ours, theirs, lowercase) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_it_equals_sacrebleu_on_random_corpora(seed):
    rng = random.Random(seed)

    def text() -> str:
        return " ".join(rng.choices("aAbcd&", k=rng.randint(1, 12)))

    ours, theirs = ([text() for _ in range(30)] for _ in range(2))
    expected = BLEU(tokenize="none", force=True).corpus_score(ours, [theirs]).score
    assert bleu(ours, theirs) == pytest.approx(expected, rel=1e-12)


def test_scores_have_signatures_and_detokenised_text_is_tokenised_as_sacrebleu_does():
    ours, theirs = ["It &apos;s a dog , he said ."], ["It &apos;s A dog , he said ."]
    found, signature = scores(ours, theirs)
    assert found["bleu"] == pytest.approx(bleu(ours, theirs))
    assert found["bleu_uncased"] == pytest.approx(100)
    expected = BLEU().corpus_score(["It's a dog, he said."], [["It's A dog, he said."]]).score
    assert found["bleu_detokenised"] == pytest.approx(expected)
    assert signature.count("nrefs:1|case:") == 3
    assert "bleu_uncased nrefs:1|case:lc|eff:no|tok:none|smooth:exp|version:" in signature


@pytest.mark.parametrize(
    ("reference", "tokenizer"), [("天 气 很 好 。", "zh"), ("ス ー パ ー で 買 う 。", "char"), ("I saw 你 .", "13a")]
)
def test_detokenised_text_without_spaces_is_scored_by_characters(reference, tokenizer):
    found, signature = scores([f"{reference} {reference}"], [f"{reference} {reference}"])
    assert found["bleu_detokenised"] == pytest.approx(100)
    assert f"bleu_detokenised nrefs:1|case:mixed|eff:no|tok:{tokenizer}|" in signature


def test_without_sacrebleu_there_is_no_signature(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics.bleu", None)
    found, signature = scores(["a b c d"], ["A b c d"])
    assert signature is None
    assert found.keys() == {"bleu", "bleu_uncased"}
    assert found["bleu_uncased"] == pytest.approx(100)


def test_scores_added_later_are_of_the_hypotheses_against_the_references(tmp_path):
    """BLEU of longer hypotheses has no brevity penalty: the other way round, the score differs."""
    ours, theirs = ["a b c d e f g", "It &apos;s a dog ."], ["a b c d e", "it &apos;s a dog ."]
    (tmp_path / "hypotheses.txt").write_text("".join(f"{text}\n" for text in ours))
    result = {
        "test": {"bleu": 1.0, "bleu_uncased": 2.0, "perplexity": 3.0},
        "notes": {"scoring": UNSCORED, "data": "x"},
    }
    experiment = lookup("iwslt")
    assert experiment.scored_later(tmp_path, result) is None, "without references"
    (tmp_path / "references.txt").write_text("".join(f"{text}\n" for text in theirs))
    after = experiment.scored_later(tmp_path, result)
    expected = BLEU(tokenize="none", force=True).corpus_score(ours, [theirs]).score
    assert expected != pytest.approx(BLEU(tokenize="none", force=True).corpus_score(theirs, [ours]).score)
    assert after["test"]["bleu"] == pytest.approx(expected)
    assert after["test"] == {**scores(ours, theirs)[0], "perplexity": 3.0}
    assert after["notes"] == {"scoring": scores(ours, theirs)[1], "data": "x"}
    assert experiment.scored_later(tmp_path, after) is None, "nothing to add"
