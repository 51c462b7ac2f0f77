"""Ask a server the questions of ``questions.yaml``, alone and together, and let it score a text."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import yaml

from envgen.bench.answers import Answer, Step
from envgen.bench.client import COMPLETIONS, BenchTarget, Refused, together
from envgen.binding import JsonDict, JsonObject
from envgen.engine.values import MISSHAPEN
from envgen.serve import chat
from envgen.serve.events import Completion, NoCompletion, log_probability

TOP = 8  # tokens of each place whose probabilities are asked for
REPLY, CHAT_REPLY = 32, 128  # tokens of an answer
QUICK = slice(
    3, None, 4
)  # of the questions, for a quarter of the time: a chat and the longest text are among them
BATCH = 8  # questions at once
# The server computes the probabilities of all words for all places of a text at once, in memory
# that it has not set aside: a longer text is scored in a few places, one by one.
SCORED_AT_ONCE = 256
PLACES = 6


@dataclass(frozen=True)
class FixedQuestion:
    """A question. ``tokens``: the length of a text before it."""

    name: str
    text: str = ""
    chat: str = ""
    tools: bool = False
    tokens: int = 0

    def prompt(self, room: int) -> str:
        """The text to be continued, for a context of ``room`` tokens: the server cuts a long one
        from the left.
        """
        count = min(self.tokens, room) // 8
        boxes = (
            f"The code of box {number} is {number * 7919 % 10007}."
            for number in range(count, 0, -1)
        )
        return " ".join((*boxes, self.text))


@cache
def questions(quick: bool = False) -> tuple[FixedQuestion, ...]:
    """All questions, in their order, or some of each kind."""
    rows = yaml.safe_load(Path(__file__).with_name("questions.yaml").read_bytes())
    return tuple(FixedQuestion(**row) for row in (rows[QUICK] if quick else rows))


@dataclass(eq=False)
class Asker:
    """Asks one server. Nothing is answered from its cache of prefixes, so that no run depends on
    the one before.
    """

    target: BenchTarget
    flags: chat.ChatFlags
    on_step: Callable[[str], None]
    at_once: bool = True  # whether it scores all places of a text in one request
    gives: bool = True  # whether it gives probabilities

    def ask(self, asked: Sequence[FixedQuestion]) -> dict[str, Answer]:
        """Answers by name: each question alone, then all again in batches, then the answers read."""
        answers = {}
        asked = [question for question in asked if self.flags.tools or not question.tools]
        for number, question in enumerate(asked, 1):
            self.on_step(f"alone: {number} of {len(asked)}")
            answers[question.name] = self._alone(question)
        given = [answer for answer in answers.values() if answer.prompt and not answer.fault]
        for start in range(0, len(given), BATCH):
            end = min(start + BATCH, len(given))
            self.on_step(f"in batches of {BATCH}: {end} of {len(given)}")
            for answer in together(self._batched, given[start:end]):
                answers[answer.name] = answer
        written = [answers[answer.name] for answer in given if answer.steps]
        for number, answer in enumerate(written, 1):
            self.on_step(f"reading: {number} of {len(written)}")
            answers[answer.name] = self.score(answer)
        return answers

    def score(self, answer: Answer) -> Answer:
        """The answer with how likely this server finds each of its words, where it was asked; or
        with the reason why it did not say so.
        """
        try:
            return replace(answer, scored=self._scores(answer), read_fault="")
        except (Refused, *MISSHAPEN) as error:
            return replace(answer, scored=[], read_fault=_fault(error))

    def _scores(self, answer: Answer) -> list[Step]:
        """An empty step for each place that was not asked for. Raises Refused, or one of MISSHAPEN."""
        text = [*answer.prompt, *answer.ids]
        if self.at_once and len(text) <= SCORED_AT_ONCE:
            try:
                return self._read(text, len(answer.prompt))
            except Refused as error:
                if not error.by_choice:
                    raise
                self.at_once = False  # as vLLM with a draft
        chosen = sorted({len(answer.ids) * place // PLACES for place in range(PLACES)})
        places = range(len(answer.ids)) if len(text) <= SCORED_AT_ONCE else chosen
        salt = secrets.token_hex(8)  # one text: its beginning may be kept
        steps: list[Step] = [{}] * len(answer.ids)
        for place in places:
            prompt = text[: len(answer.prompt) + place]
            (_, read) = self._continued({"prompt": prompt, "max_tokens": 1, "cache_salt": salt})
            if not read:
                raise Refused("the server gives no probabilities", by_choice=True)
            steps[place] = read[0]
        return steps

    def _alone(self, question: FixedQuestion) -> Answer:
        answer = Answer(question.name)
        try:
            if question.chat:
                answer = self._chat(question)
                body: JsonDict = {"prompt": list(answer.prompt)}
            else:
                room = max(1, (self.target.max_len or 2048) - REPLY - 1)
                body = {
                    "prompt": question.prompt(room),
                    "truncate_prompt_tokens": min(question.tokens or room, room),
                }
            if question.chat and not answer.prompt:
                return answer
            choice, steps = self._continued({**body, "max_tokens": REPLY})
            prompt = choice.get("prompt_token_ids") or answer.prompt
            if not choice.get("token_ids") and not choice.get("text"):
                raise Refused("the answer has no word", by_choice=True)
            text = answer.text or str(choice.get("text") or "")
            return replace(
                answer, prompt=prompt, ids=choice.get("token_ids") or (), steps=steps, text=text
            )
        except (Refused, *MISSHAPEN) as error:
            return replace(answer, fault=_fault(error))

    def _chat(self, question: FixedQuestion) -> Answer:
        """A chat's answer: the tokens that its template makes, its text, and what is wrong with its
        form.
        """
        tools = {"tools": [chat.TOOL]} if question.tools else {}
        effort = {"reasoning_effort": "low"} if self.flags.gpt_oss else {}
        length = min(CHAT_REPLY, (self.target.max_len or 2 * CHAT_REPLY) // 2)
        reply = self.target.ask(
            chat.CHAT_URL,
            {
                "messages": [{"role": "user", "content": question.chat}],
                "max_tokens": length,
                "return_token_ids": True,
                "cache_salt": secrets.token_hex(8),
                **tools,
                **effort,
            },
        )
        try:
            completion = Completion().add(reply)
        except NoCompletion as error:
            raise Refused(f"the reply is not a completion: {error}") from None
        good, seen = (True, "") if completion.tools else chat.judge_chat(completion, self.flags)
        called = "".join(name + arguments for name, arguments in completion.tools.values())
        text = completion.reasoning + completion.text + called
        prompt = reply.get("prompt_token_ids") or ()
        return Answer(question.name, prompt=prompt, text=text, chat=seen if good is False else "")

    def _batched(self, answer: Answer) -> Answer:
        body = {"prompt": list(answer.prompt), "max_tokens": REPLY}
        try:
            choice, steps = self._continued(body)
        except (Refused, *MISSHAPEN) as error:
            return replace(answer, batch_fault=_fault(error))
        ids = choice.get("token_ids") or ()
        return replace(answer, batched_ids=ids, batched=steps)

    def _continued(self, body: JsonObject) -> tuple[JsonObject, list[Step]]:
        """A completion's choice, with how likely each word was. Raises Refused, or one of
        MISSHAPEN.
        """
        given = {"cache_salt": secrets.token_hex(8), "return_token_ids": True, **body}
        keyed = {"logprobs": TOP, "return_tokens_as_token_ids": True} if self.gives else {}
        try:
            reply = self.target.ask(COMPLETIONS, {**given, **keyed})
        except Refused as error:
            if not keyed or not error.by_choice:
                raise
            reply = self.target.ask(COMPLETIONS, given)
            # Not with this flag, draft or front end: then texts are all that there is.
            self.gives = False
        choice = reply["choices"][0]
        tops = (choice.get("logprobs") or {}).get("top_logprobs") or []
        ids = choice.get("token_ids") or ()
        if tops and ids and (len(tops) != len(ids) or not all(tops)):
            raise Refused(f"gave probabilities for {sum(map(bool, tops))} of {len(ids)} tokens")
        room = (self.target.max_len or 0) - len(choice.get("prompt_token_ids") or body["prompt"])
        wanted = body["max_tokens"]
        if choice.get("finish_reason") == "length" and 0 < len(ids) < wanted <= room:
            raise Refused(f"ended for its length after {len(ids)} of {wanted} tokens")
        steps: list[Step] = []
        for top in tops:
            step = {}
            for name, value in top.items():
                token = int(name.removeprefix("token_id:"))
                step[token] = log_probability(value)
            steps.append(step)
        return choice, steps

    def _read(self, text: Sequence[int], start: int) -> list[Step]:
        """How likely each word of a text was, from ``start`` on."""
        given = {
            "prompt": list(text),
            "max_tokens": 1,
            "prompt_logprobs": TOP,
            "cache_salt": secrets.token_hex(8),
        }
        rows = self.target.ask(COMPLETIONS, given)["choices"][0].get("prompt_logprobs")
        if not rows:
            raise Refused("the server scores no prompts", by_choice=True)
        rows = rows[start:]
        if len(rows) != len(text) - start or not all(rows):
            raise Refused(f"scored {sum(map(bool, rows))} of {len(text) - start} tokens")
        return [
            {int(token): log_probability(value["logprob"]) for token, value in row.items()}
            for row in rows
        ]


def _fault(error: Exception) -> str:
    """Why a question was not answered."""
    if isinstance(error, Refused):
        return error.fault
    return f"the reply is not a completion: {type(error).__name__}"


def scorer(
    asker: Asker, reference: Mapping[str, Answer], names: Collection[str]
) -> dict[str, Answer]:
    """The answers of a reference to the questions ``names``, with how likely the server of
    ``asker`` finds them.
    """
    given = [answer for answer in reference.values() if answer.ids and answer.name in names]
    scored = {}
    for number, answer in enumerate(given, 1):
        asker.on_step(f"reading the reference's: {number} of {len(given)}")
        scored[answer.name] = asker.score(answer)
    return scored
