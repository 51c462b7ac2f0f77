"""Are two servers' answers the same? Figures of two series of token probabilities, and the verdict.

A step is what a server thought likely in one place of a text: token -> natural logarithm of its
probability. Nothing here asks a server: `questions` does.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from envgen.bench.record import RunRecord
from envgen.binding import JsonDict
from envgen.errors import UsageError

SAME = "same"
CLOSE = "close"
DIFFERENT = "different"
BROKEN = "broken"
UNKNOWN = "not compared"
WORST = (SAME, CLOSE, UNKNOWN, DIFFERENT, BROKEN)
Step = Mapping[int, float]

# Where the lines between the verdicts lie; docs/seen.md has what was measured on either side of
# each.
EXACT = 1e-6  # nats: up to this, rounding in JSON; above it, other arithmetic
# nats, over all places: precision and batches gave up to 0.0022, faults in all texts from 0.012 on
MEAN = 0.005
TEXT = 0.008  # nats, over one text: they gave up to 0.0047, a K that is 5 % too large 0.011
FEWEST = 6  # places of a text whose mean counts: as many as are read of a long one
# nats, in a single place: they gave up to 0.052, one layer's norm that is 5 % too large 0.104
LARGEST = 0.1
# nats between a first token and the one that the other side chose: rounding turned up to 0.25
# around
CLEAR = 0.5
RUINED = 0.5  # agreement on first tokens below which nothing useful is left
LOOPS, LENGTH = (
    4,
    6,
)  # a text that ends in this many copies of at most this many tokens repeats itself


@dataclass(frozen=True)
class Agreement:
    """Two series of steps compared. In nats: ``mean`` over all places, ``worst`` over one text, and
    ``largest``.
    ``clear``: places where they disagree beyond rounding; ``odd``: values that are not finite."""

    places: int = 0
    agreed: int = 0
    mean: float = 0.0
    largest: float = 0.0
    clear: int = 0
    odd: int = 0
    worst: float = 0.0

    @property
    def share(self) -> float:
        return self.agreed / self.places if self.places else 1.0

    @property
    def verdict(self) -> str:
        if not self.places:
            return UNKNOWN
        if self.odd or self.share < RUINED:
            return BROKEN
        if self.clear or self.mean > MEAN or self.worst > TEXT or self.largest > LARGEST:
            return DIFFERENT
        return CLOSE if self.largest > EXACT or self.agreed < self.places else SAME

    def __str__(self) -> str:
        if not self.places:
            return "no place to compare"
        odd = f", {self.odd} values not finite" if self.odd else ""
        return (
            f"{self.share:.1%} of {self.places} first tokens agree, divergence {self.mean:.4f} in the mean "
            f"({self.worst:.4f} of one text), {self.largest:.3f} at most{odd}"
        )


def first(step: Step) -> int:
    """The most likely token; of equal ones the smallest number."""
    return min(step, key=lambda token: (-step[token], token))


def divergence(a: Step, b: Step) -> float:
    """The divergence (Kullback-Leibler, in nats) of ``b`` from ``a`` over the tokens that ``a``
    lists.

    A token that ``b`` does not list is at most as likely as the last one that it lists.
    """
    least = min(b.values())
    given = list(a.values())
    other = [b.get(token, least) for token in a]
    total = _log_of_sum(given)
    reached = _log_of_sum(other)
    apart = []
    for p, q in zip(given, other, strict=True):
        apart.append(math.exp(p - total) * (p - total - q + reached))
    return max(0.0, sum(apart))


def _log_of_sum(logarithms: Sequence[float]) -> float:
    """The logarithm of the sum of the numbers that have these logarithms."""
    largest = max(logarithms)
    return math.log(sum(math.exp(one - largest) for one in logarithms)) + largest


def agreement(pairs: Iterable[tuple[Step, Step]]) -> Agreement:
    """Compare steps, the reference's first. Steps without values are left out."""
    places = agreed = clear = odd = 0
    apart = []
    for a, b in pairs:
        if not a or not b:
            continue
        places += 1
        values = [*a.values(), *b.values()]
        bad = sum(not math.isfinite(value) for value in values)
        if bad:
            odd += bad
            continue
        likeliest = first(a)
        other = first(b)
        agreed += likeliest == other
        ahead = a[likeliest] - a.get(other, min(a.values()))
        clear += likeliest != other and ahead > CLEAR
        apart.append(divergence(a, b))
    mean = math.fsum(apart) / len(apart) if apart else 0.0
    worst = mean if len(apart) >= FEWEST else 0.0
    return Agreement(places, agreed, mean, max(apart, default=0.0), clear, odd, worst)


def together(parts: Sequence[Agreement]) -> Agreement:
    """Several texts as one; the mean is that of all places."""
    places = sum(part.places for part in parts)
    apart = math.fsum(part.mean * part.places for part in parts)
    return Agreement(
        places=places,
        agreed=sum(part.agreed for part in parts),
        mean=apart / places if places else 0.0,
        largest=max((part.largest for part in parts), default=0.0),
        clear=sum(part.clear for part in parts),
        odd=sum(part.odd for part in parts),
        worst=max((part.worst for part in parts), default=0.0),
    )


def repeats(ids: Sequence[int]) -> bool:
    """Whether a text ends in copies of a few tokens."""
    for size in range(1, LENGTH + 1):
        end = list(ids[-size * LOOPS :])
        if len(ids) >= size * LOOPS and end == end[-size:] * LOOPS:
            return True
    return False


@dataclass(frozen=True)
class Answer:
    """What a server answered to a question.

    ``prompt``: the tokens that the model got. ``ids``: its answer, alone; ``steps``: how likely it
    found each place.
    ``batched``: the same with others at the same time. ``scored``: what it says of its own answer
    when it reads it, not writes it. ``fault``, ``batch_fault``, ``read_fault``: why it has none of
    these; ``chat``: what is wrong with the chat's form.
    """

    name: str
    prompt: Sequence[int] = ()
    ids: Sequence[int] = ()
    steps: Sequence[Step] = ()
    batched_ids: Sequence[int] = ()
    batched: Sequence[Step] = ()
    scored: Sequence[Step] = ()
    text: str = ""
    fault: str = ""
    chat: str = ""
    batch_fault: str = ""
    read_fault: str = ""

    @property
    def read_places(self) -> int:
        """How many of its places a server that reads it is asked for."""
        return sum(map(bool, self.scored)) or len(self.ids)

    def sample(self) -> JsonDict:
        """For the record."""
        steps = {}
        for name in _STEPS:
            steps[name] = [list(map(list, step.items())) for step in getattr(self, name)]
        lists = {name: list(getattr(self, name)) for name in ("prompt", "ids", "batched_ids")}
        return {
            "unit": "answer",
            "name": self.name,
            "text": self.text,
            **{name: getattr(self, name) for name in ("fault", "chat", *_FAULTS)},
            **lists,
            **steps,
        }


_STEPS = ("steps", "batched", "scored")
_FAULTS = ("batch_fault", "read_fault")


def read(record: RunRecord) -> dict[str, Answer]:
    """The answers of a record. UsageError if it has none."""
    answers = {}
    for sample in record.samples:
        if sample.get("unit") == "answer":
            kept: JsonDict = {name: value for name, value in sample.items() if name != "unit"}
            for name in _STEPS:
                kept[name] = [
                    {int(token): float(value) for token, value in step} for step in sample[name]
                ]
            answers[kept["name"]] = Answer(**kept)
    if not answers:
        hint = "envgen answers SERVICE records some"
        raise UsageError(f"run {record.id} is of kind {record.kind} and has no answers", hint=hint)
    return answers


@dataclass(frozen=True)
class Row:
    """A line of the report: what was compared, how far it agrees, and what else was seen."""

    name: str
    verdict: str
    seen: str
    figures: Agreement = field(default_factory=Agreement)

    def plain(self) -> JsonDict:
        plain = asdict(self)
        plain |= plain.pop("figures")
        return plain


def shared(a: Sequence[int], b: Sequence[int]) -> int:
    """The number of places that follow the same words in both texts: to the first one that differs,
    and with it.
    """
    for place, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return place + 1
    return min(len(a), len(b))


def paths(a: Answer, steps: Sequence[Step], ids: Sequence[int]) -> list[tuple[Step, Step]]:
    """The places of another text (``ids``) after the same prompt that have the same words before
    them as those of ``a``'s.
    """
    length = shared(a.ids, ids)
    return list(zip(a.steps[:length], steps[:length], strict=False))


def differs_in_length(a: Sequence[int], b: Sequence[int]) -> bool:
    """Whether one of two texts is the beginning of the other. A word that ends a text is one of its
    words, so a server stopped, and no word.
    """
    if len(a) == len(b):
        return False
    length = min(len(a), len(b))
    return list(a[:length]) == list(b[:length])


REFUSED = "refused: "  # begins the fault of a server that does not do what was asked


def _severity(fault: str) -> str:
    return UNKNOWN if fault.startswith(REFUSED) else BROKEN


def _compared(
    name: str,
    parts: Sequence[Agreement],
    wanted: int,
    faults: Mapping[str, str],
    cut: Sequence[str] = (),
) -> Row:
    """A row, in which what could not be compared counts. ``wanted``: the places to compare;
    ``faults``: question -> why it was not answered; ``cut``: those with a text that ends elsewhere.
    """
    whole = together(parts)
    verdicts = [whole.verdict, *map(_severity, faults.values())]
    seen = [str(whole)]
    if whole.places < wanted:
        verdicts.append(UNKNOWN)
        seen.append(f"{wanted - whole.places} of {wanted} places were not compared")
    if cut:
        verdicts.append(DIFFERENT)
        seen.append(f"{len(cut)} texts end earlier or later ({', '.join(cut[:4])})")
    seen += [f"{question}: {fault}" for question, fault in list(faults.items())[:1]]
    return Row(name, max(verdicts, key=WORST.index), "; ".join(seen), whole)


def itself(answers: Mapping[str, Answer]) -> list[Row]:
    """What a server's answers say without others: reading against writing, alone against in a
    batch, their form.
    """
    given = [answer for answer in answers.values() if not answer.fault]
    rows = [
        _compared(
            "writing against reading",
            [agreement(zip(one.scored, one.steps, strict=False)) for one in given],
            sum(one.read_places for one in given),
            {one.name: one.read_fault for one in given if one.read_fault},
        ),
        _compared(
            "in a batch against alone",
            [agreement(paths(one, one.batched, one.batched_ids)) for one in given],
            sum(shared(one.ids, one.batched_ids or one.ids) for one in given),
            {one.name: one.batch_fault for one in given if one.batch_fault},
            [
                one.name
                for one in given
                if not one.batch_fault and differs_in_length(one.ids, one.batched_ids)
            ],
        ),
    ]
    faults = {one.name: one.fault for one in answers.values() if one.fault}
    if faults:
        name, fault = next(iter(faults.items()))
        worst = max(map(_severity, faults.values()), key=WORST.index)
        word = worst if given else BROKEN
        rows.append(Row("answered", word, f"{len(faults)} were not: {name}: {fault}"))
    wrong = [f"{one.name}: {one.chat}" for one in given if one.chat]
    if wrong:
        rows.append(Row("form of chats", BROKEN, f"{len(wrong)} are wrong: {wrong[0]}"))
    return rows


def against(
    reference: Mapping[str, Answer],
    answers: Mapping[str, Answer],
    readings: Mapping[str, Answer],
    asked: Collection[str] = (),
) -> list[Row]:
    """What the answers say beside a reference's. ``readings``: the reference's answers with how
    likely this server finds them; ``asked``: the questions of this run.
    """
    both = []
    missing = []
    unanswered = []
    for name, other in reference.items():
        if name not in answers:
            if name in asked:
                unanswered.append(name)
        elif other.fault:
            missing.append(name)
        elif not answers[name].fault:
            both.append((other, answers[name]))
    missing += unanswered
    rows = []
    if missing:
        seen = f"{len(missing)} have no answer on one of the two sides ({', '.join(missing[:4])})"
        rows.append(Row("questions", UNKNOWN, seen))
    other_prompts = [a.name for a, b in both if list(a.prompt) != list(b.prompt)]
    if other_prompts:
        names = ", ".join(other_prompts[:4])
        seen = f"{len(other_prompts)} of {len(both)} are read as other tokens ({names})"
        rows.append(Row("prompts", DIFFERENT, f"{seen}: another chat template or tokenizer"))
    rows.append(_read([a for a, _ in both], readings))
    rows.append(_written([(a, b) for a, b in both if list(a.prompt) == list(b.prompt)]))
    equal = sum(list(a.ids) == list(b.ids) and a.text == b.text for a, b in both)
    word = SAME if equal == len(both) else CLOSE
    rows.append(Row("texts", word, f"{equal} of {len(both)} are equal"))
    loops = [name for name, answer in answers.items() if repeats(answer.ids)]
    before = [name for name, answer in reference.items() if repeats(answer.ids)]
    if len(loops) > len(both) / 2 > 2 * len(before):
        seen = f"{len(loops)} answers repeat themselves, {len(before)} of the reference"
        rows.append(Row("repetition", BROKEN, seen))
    return rows


def _read(reference: Iterable[Answer], readings: Mapping[str, Answer]) -> Row:
    parts = []
    wanted = 0
    faults = {}
    for answer in reference:
        reading = readings.get(answer.name, Answer(answer.name))
        parts.append(agreement(zip(answer.scored, reading.scored, strict=False)))
        wanted += answer.read_places
        if reading.read_fault:
            faults[answer.name] = reading.read_fault
    return _compared("reading the reference's answers", parts, wanted, faults)


def _written(both: Iterable[tuple[Answer, Answer]]) -> Row:
    parts = []
    wanted = 0
    cut = []
    for a, b in both:
        ids = b.ids or a.ids
        parts.append(agreement(paths(a, b.steps, b.ids)))
        wanted += shared(a.ids, ids)
        if differs_in_length(a.ids, ids):
            cut.append(a.name)
    return _compared("writing", parts, wanted, {}, cut)


def verdict(own: Sequence[Row], other: Sequence[Row] = ()) -> str:
    """The verdict on a server: the worst of its rows against the reference, and what its own say
    beyond `close`.
    """
    own_worst = _worst(own)
    if not other:
        return own_worst
    compared = [row for row in other if row.name != "texts"] or other
    word = _worst(compared)
    if word == SAME and _worst(other) != SAME:
        word = CLOSE
    return max(word, own_worst, key=WORST.index) if own_worst != CLOSE else word


def _worst(rows: Sequence[Row]) -> str:
    return max((row.verdict for row in rows), key=WORST.index)
