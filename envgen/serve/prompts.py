"""Prompts of a wanted number of tokens, for a server whose tokenizer is not here: its own usage data tells the length.

All prompts of one length hold the same words in another order, behind the same first one: a word that begins a text may
be another number of tokens than one that follows a space. So they have the same number of tokens, and no two of them
share a beginning that the server's prefix cache could answer from.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from envgen.errors import ServiceError
from envgen.serve.load.generate import run_closed
from envgen.serve.target import Target

_TEXT = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work night point home water room mother area money story "
    "fact month lot right study book eye job word business issue side kind head house service friend father power hour "
    "game line end member law car city name team minute idea body back parent face level office door health person art "
    "war history party result change morning reason research girl guy moment air teacher force education"
)
WORDS = _TEXT.split()
_ROUNDS = 12
TOO_LONG = -1  # what ``ask`` returns for a prompt that the server refuses to take

Ask = Callable[[str], "int | None"]


class Prompts:
    """Makes prompts. ``ask`` sends one and returns the server's count of its tokens; None where it doesn't count."""

    def __init__(self, ask: Ask, seed: int) -> None:
        self._ask = ask
        self._random = random.Random(seed)
        self._fitted: dict[int, tuple[list[str], int]] = {}
        self._tokens_a_word = 1.5  # a guess, until the first answer

    def of(self, tokens: int, limit: int | None = None) -> tuple[str, int]:
        """A prompt of about ``tokens`` tokens, never more than ``limit``, and how many it really has (0: unknown)."""
        wanted = tokens if limit is None else min(tokens, limit)
        if wanted not in self._fitted:
            self._fitted[wanted] = self._fit(wanted, limit)
        words, real = self._fitted[wanted]
        others = words[1:]
        self._random.shuffle(others)
        return " ".join(words[:1] + others), real

    def _fit(self, wanted: int, limit: int | None) -> tuple[list[str], int]:
        """The beginning of one row of words: more words are more tokens, so the search narrows."""
        row: list[str] = []
        counts: dict[int, int] = {}  # words -> tokens
        count = max(1, int(wanted / self._tokens_a_word))
        low, high = 0, 1 << 30  # words: surely not too many, surely too many
        for _ in range(_ROUNDS):
            while len(row) < count:
                row.append(WORDS[self._random.randrange(len(WORDS))])
            real = self._ask(" ".join(row[:count]))
            if real is None:
                return row[:count], 0
            if real == TOO_LONG or (limit is not None and real > limit):
                high = count
            else:
                low = max(low, count)
                counts[count] = real
                self._tokens_a_word = max(0.1, real / count)
            if real == wanted:
                break
            following = self._next(counts, wanted, low, high, count)
            if following in counts or following <= 0:
                break
            count = following
        if not counts:
            raise ServiceError(f"no prompt of at most {limit} tokens could be made for this server")
        best = min(counts, key=lambda words: abs(counts[words] - wanted))
        return row[:best], counts[best]

    def _next(self, counts: dict[int, int], wanted: int, low: int, high: int, count: int) -> int:
        if not counts:
            return count // 2
        near = min(counts, key=lambda words: abs(counts[words] - wanted))
        missing = (wanted - counts[near]) / self._tokens_a_word
        step = round(missing) or (1 if missing > 0 else -1)
        return min(max(near + step, 1), high - 1) if near + step > low or step < 0 else low


def prompts_for(target: Target, seed: int, silence: float) -> Prompts:
    """Prompts for ``target``, whose lengths are found out with completions of one token."""

    def ask(text: str) -> int | None:
        (result,) = run_closed(target.where, [target.request(text, 1)], 1, silence=silence).results
        if result.good:
            return result.reply.prompt_tokens
        if result.status in (400, 413, 422):
            return TOO_LONG
        raise ServiceError(f"{target.url} does not complete a prompt: {result.sentence}")

    return Prompts(ask, seed)
