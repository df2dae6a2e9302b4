"""BLEU of translations: our own, without a library, to choose the best epoch; and sacrebleu's, to publish.

Both split sentences at spaces, and agree up to rounding.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

from plmu.text.moses import detokenise

ORDER = 4  # words of the longest n-grams
DETOKENISED = "bleu_detokenised"


def bleu(hypotheses: Sequence[str], references: Sequence[str], lowercase: bool = False) -> float:
    """BLEU from 0 to 100 over a corpus of sentences whose words are separated by spaces.

    Smoothed as by sacrebleu: the k-th n-gram order without a match counts as 1 / 2^k matches. Without any match, or
    without n-grams of some order, BLEU is 0.
    """
    matches, total = [0] * ORDER, [0] * ORDER
    length = reference_length = 0
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        ours, theirs = ((text.lower() if lowercase else text).split() for text in (hypothesis, reference))
        length, reference_length = length + len(ours), reference_length + len(theirs)
        for n in range(1, ORDER + 1):
            grams, allowed = (Counter(zip(*(words[k:] for k in range(n)), strict=False)) for words in (ours, theirs))
            matches[n - 1] += sum(min(count, allowed[gram]) for gram, count in grams.items())
            total[n - 1] += max(0, len(ours) - n + 1)
    if not any(matches) or not all(total):
        return 0.0
    missing, logs = 0, 0.0
    for right, count in zip(matches, total, strict=True):
        missing += not right
        logs += math.log((right or 0.5**missing) / count)
    brevity = min(0.0, 1 - reference_length / length)
    return 100 * math.exp(brevity + logs / ORDER)


def scores(hypotheses: Sequence[str], references: Sequence[str]) -> tuple[dict[str, float], str | None]:
    """Scores by name, and sacrebleu's signatures.

    Where sacrebleu is installed, it computes BLEU with and without case, and of detokenised text. Where it is not, the
    scores are our own BLEU with and without case, and the signatures are None.
    """
    result = {"bleu": bleu(hypotheses, references), "bleu_uncased": bleu(hypotheses, references, lowercase=True)}
    try:
        from sacrebleu.metrics.bleu import BLEU
    except ImportError:
        return result, None
    measures = {
        "bleu": BLEU(tokenize="none", force=True),
        "bleu_uncased": BLEU(tokenize="none", lowercase=True, force=True),
        DETOKENISED: BLEU(tokenize=_tokenizer(references)),
    }
    signatures = []
    for name, measure in measures.items():
        ours, theirs = list(hypotheses), list(references)
        if name == DETOKENISED:
            ours, theirs = ([detokenise(text.split()) for text in texts] for texts in (ours, theirs))
        result[name] = measure.corpus_score(ours, [theirs]).score
        signatures.append(f"{name} {measure.get_signature().format(short=False)}")
    return result, "; ".join(signatures)


def _tokenizer(references: Sequence[str]) -> str:
    """The name of sacrebleu's tokenizer for this language: most see a Chinese sentence as one word."""
    text = "".join(references)
    han, kana = (len(re.findall(pattern, text)) for pattern in ("[\u3400-\u9fff]", "[\u3040-\u30ff]"))
    if 2 * (han + kana) < sum(map(str.isalpha, text)):
        return "13a"
    return "char" if kana else "zh"
