"""Prompts of a wanted number of tokens, for a server whose tokenizer is not here: its own usage data tells the length.

All prompts of one length hold the same words in another order. So they have the same number of tokens, and no two of
them share a beginning that the server's prefix cache could answer from.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from envgen.errors import ServiceError
from envgen.serve.load.generate import Request, run_closed
from envgen.serve.target import Target

WORDS = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work night point home water room mother area money story "
    "fact month lot right study book eye job word business issue side kind head house service friend father power hour "
    "game line end member law car city name team minute idea body back parent face level office door health person art "
    "war history party result change morning reason research girl guy moment air teacher force education"
).split()
_FIRST_GUESS = 1.5  # tokens a word
_ROUNDS = 4


class Prompts:
    """Makes prompts. ``ask`` sends one and returns the server's count of its tokens; None where it doesn't count."""

    def __init__(self, ask: Callable[[str], int | None], seed: int) -> None:
        self._ask = ask
        self._random = random.Random(seed)
        self._fitted: dict[int, tuple[list[str], int]] = {}

    def of(self, tokens: int, limit: int | None = None) -> tuple[str, int]:
        """A prompt of about ``tokens`` tokens, never more than ``limit``, and how many it really has (0: unknown)."""
        key = tokens if limit is None else min(tokens, limit)
        if key not in self._fitted:
            self._fitted[key] = self._fit(key, limit)
        words, real = self._fitted[key]
        self._random.shuffle(words)
        return " ".join(words), real

    def _fit(self, wanted: int, limit: int | None) -> tuple[list[str], int]:
        count = max(1, int(wanted / _FIRST_GUESS))
        best: tuple[int, list[str], int] | None = None
        tried: dict[int, int] = {}
        for _ in range(_ROUNDS):
            if count in tried:
                break
            words = [WORDS[self._random.randrange(len(WORDS))] for _ in range(count)]
            real = self._ask(" ".join(words))
            if real is None:
                return words, 0
            tried[count] = real
            distance = abs(real - wanted)
            if (limit is None or real <= limit) and (best is None or distance < best[0]):
                best = (distance, words, real)
            if distance == 0:
                break
            # By the two nearest tries where there are two: a template adds a fixed number of tokens.
            count = max(1, _next(tried, wanted))
        if best is None:
            raise ServiceError(f"no prompt of at most {limit} tokens could be made for this server")
        return best[1], best[2]


def _next(tried: dict[int, int], wanted: int) -> int:
    (near, real), *others = sorted(tried.items(), key=lambda pair: abs(pair[1] - wanted))
    if others and others[0][1] != real:
        other, other_real = others[0]
        slope = (near - other) / (real - other_real)
        if slope > 0:
            return near + round((wanted - real) * slope)
    return round(near * wanted / real) if real else near + 1


def prompts_for(target: Target, seed: int, silence: float) -> Prompts:
    """Prompts for ``target``, whose lengths are found out with completions of one token."""

    def ask(text: str) -> int | None:
        request: Request = target.request(text, 1)
        (result,) = run_closed(target.where, [request], 1, silence=silence).results
        if result.good:
            return result.reply.prompt_tokens
        if result.status in (400, 413, 422):
            # Too long for it: the count must only be too large for the next try to be shorter.
            return 2 * max(target.max_len or 0, len(text.split()))
        raise ServiceError(f"{target.url} does not complete a prompt: {result.sentence}")

    return Prompts(ask, seed)
