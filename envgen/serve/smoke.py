"""`envgen smoke`: the five small things that a server must be able to do."""

from __future__ import annotations

from envgen.serve.load.generate import Load
from envgen.serve.trial import UNKNOWN, Criterion, Trial, criterion, faults, gigabytes
from envgen.text import shorten

PROMPT = "The capital of France is"
SHORT = 12  # tokens of a short completion
PARALLEL = 4
LONG = 4096
REPEATS = 5
GROWTH = 1_000_000_000
_NO_CONTAINER = "no container is known: name it with --container"


def smoke(trial: Trial) -> list[Criterion]:
    """Run all five; a failure doesn't keep the others from running. Gone when the server goes away."""
    found = []
    for test in (_short, _finite, _parallel, _long, _repeats):
        found.append(test(trial))
        trial.say(f"  {found[-1].name}: {found[-1].verdict}, {found[-1].seen}")
    return found


def _short(trial: Trial) -> Criterion:
    (result,) = trial.closed("short prompt", [trial.target.request(PROMPT, SHORT)], 1).results
    text = result.reply.text
    good = result.good and bool(text)
    seen = f"completed with {_quoted(text)}" if good else result.sentence or "an empty text"
    return criterion("short prompt", good, seen, "a text that is not empty")


def _finite(trial: Trial) -> Criterion:
    name, wanted = "NaN/Inf in log probabilities", "all finite"
    (result,) = trial.closed(name, [trial.target.request(PROMPT, 4 * SHORT, logprobs=True)], 1).results
    if not result.good:
        if result.status in (400, 422):
            return Criterion(name, UNKNOWN, f"the server gives no log probabilities: {result.sentence}", wanted)
        return criterion(name, False, result.sentence, wanted)
    reply = result.reply
    if not reply.logprobs:
        return Criterion(name, UNKNOWN, "the server gives no log probabilities", wanted)
    return criterion(name, not reply.not_finite, f"{reply.not_finite} of {reply.logprobs} are not finite", wanted)


def _parallel(trial: Trial) -> Criterion:
    load = trial.closed("parallel", trial.make(32, SHORT, PARALLEL), PARALLEL)
    return _all_good(f"{PARALLEL} in parallel", load)


def _long(trial: Trial) -> Criterion:
    room = trial.room(SHORT)
    tokens = LONG if room is None else min(LONG, room)
    note = "" if tokens == LONG else f"adapted: the server takes {trial.target.max_len} tokens in all, not {LONG}"
    load = trial.closed("long prompt", trial.make(tokens, SHORT), 1, prompt_tokens=tokens, output_tokens=SHORT)
    (result,) = load.results
    if result.good:
        count = result.reply.prompt_tokens
        seen = f"{count if count is not None else 'an unknown number of'} tokens, first token after {result.ttft:.2f} s"
    else:
        seen = result.sentence
    return criterion(f"prefill of {tokens} tokens", result.good, seen, "no time-out, no error", note)


def _repeats(trial: Trial) -> Criterion:
    name, wanted = f"{REPEATS} repeats", f"all succeed, memory grows by less than {gigabytes(GROWTH)}"
    before = trial.vitals()
    load = trial.closed("repeats", [trial.target.request(PROMPT, 4 * SHORT)] * REPEATS, 1)
    after = trial.vitals()
    bad = faults(load.results)
    if bad:
        return criterion(name, False, bad, wanted)
    if before is None or after is None:
        return Criterion(name, UNKNOWN, f"all succeed; memory: {_NO_CONTAINER}", wanted)
    if after.restarted(before):
        return criterion(name, False, "the server's program was restarted in between", wanted)
    growth = after.growth(before)
    return criterion(name, growth < GROWTH, f"all succeed, memory grew by {gigabytes(growth)}", wanted)


def _all_good(name: str, load: Load) -> Criterion:
    bad = faults(load.results)
    return criterion(name, not bad, bad or f"all {len(load.results)} succeed", "all succeed")


def _quoted(text: str) -> str:
    return repr(shorten(text, 60))
