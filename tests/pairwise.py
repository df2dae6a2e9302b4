"""A small set of cases that holds every pair of values: where the full product is too long for each run."""

import itertools
from collections.abc import Callable, Iterable


def product(
    factors: dict[str, Iterable[object]], allowed: Callable[[dict[str, object]], bool] = lambda case: True
) -> list[dict[str, object]]:
    """All allowed cases, the first factor slowest."""
    cases = [dict(zip(factors, values, strict=True)) for values in itertools.product(*factors.values())]
    return [case for case in cases if allowed(case)]


def pairwise(
    factors: dict[str, Iterable[object]], allowed: Callable[[dict[str, object]], bool] = lambda case: True
) -> list[dict[str, object]]:
    """Cases such that any two values that share an allowed case share one of these. The same at every call.

    Greedy: the case with the most pairs still missing comes next, the earliest of those in the product, so values
    listed first, the cheap ones, fill the places that no pair asks for.
    """
    cases = product(factors, allowed)
    number: dict[object, int] = {}
    pairs = []  # for each case a set of pairs, as the bits of a whole number
    for case in cases:
        found = itertools.combinations(case.items(), 2)
        pairs.append(sum(1 << number.setdefault(pair, len(number)) for pair in found))
    missing = (1 << len(number)) - 1
    chosen = []
    while missing:
        best = max(range(len(cases)), key=lambda i: (pairs[i] & missing).bit_count())
        chosen.append(cases[best])
        missing &= ~pairs[best]
    return chosen
