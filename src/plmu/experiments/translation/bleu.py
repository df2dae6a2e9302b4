"""BLEU of translations: a plain one that needs no library, to choose the best epoch by, and sacrebleu's to publish.

Both take tokenised sentences as they are, split at spaces, and are equal but for rounding.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

from plmu.text.moses import detokenise

ORDER = 4  # longest sequences of words that count
DETOKENISED = "bleu_detokenised"


def bleu(hypotheses: Sequence[str], references: Sequence[str], lowercase: bool = False) -> float:
    """BLEU from 0 to 100 over a corpus, with sacrebleu's smoothing: the k-th order without a match counts 1 / 2^k."""
    right, total = [0] * ORDER, [0] * ORDER
    written = wanted = 0
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        ours, theirs = ((text.lower() if lowercase else text).split() for text in (hypothesis, reference))
        written, wanted = written + len(ours), wanted + len(theirs)
        for n in range(1, ORDER + 1):
            found, known = (Counter(zip(*(words[k:] for k in range(n)), strict=False)) for words in (ours, theirs))
            right[n - 1] += sum(min(count, known[words]) for words, count in found.items())
            total[n - 1] += max(0, len(ours) - n + 1)
    if not any(right) or not all(total):
        return 0.0
    missing, logs = 0, 0.0
    for matches, count in zip(right, total, strict=True):
        missing += not matches
        logs += math.log((matches or 0.5**missing) / count)
    brevity = min(0.0, 1 - wanted / written)
    return 100 * math.exp(brevity + logs / ORDER)


def scores(hypotheses: Sequence[str], references: Sequence[str]) -> tuple[dict[str, float], str | None]:
    """BLEU with and without case, and where sacrebleu is installed, of detokenised text too, by it and with its
    signatures; None where it is not."""
    found = {"bleu": bleu(hypotheses, references), "bleu_uncased": bleu(hypotheses, references, lowercase=True)}
    try:
        from sacrebleu.metrics.bleu import BLEU
    except ImportError:
        return found, None
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
        found[name] = measure.corpus_score(ours, [theirs]).score
        signatures.append(f"{name} {measure.get_signature().format(short=False)}")
    return found, "; ".join(signatures)


def _tokenizer(references: Sequence[str]) -> str:
    """The name of sacrebleu's for this language: one that splits at spaces would see a Chinese sentence as one word."""
    text = "".join(references)
    han, kana = (len(re.findall(signs, text)) for signs in ("[\u3400-\u9fff]", "[\u3040-\u30ff]"))
    if 2 * (han + kana) < sum(map(str.isalpha, text)):
        return "13a"
    return "char" if kana else "zh"
