"""`envgen answers` asks a real HTTP server that is right, or wrong in one way: the verdict that each fault must get."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import forked
import pytest
from local import Quiet, serving

from envgen.bench import answers
from envgen.bench.answers import Answer
from envgen.bench.client import find
from envgen.bench.questions import Asker, questions, scorer
from envgen.serve.chat import ChatFlags

REPLY = 32


def likely(context: list[int], weights: str) -> dict[int, float]:
    """What a model with these weights finds likely after a text."""
    digest = hashlib.sha256(repr((weights, context)).encode()).digest()
    return {number: -0.3 - 0.9 * place for place, number in reversed(list(enumerate(digest[:8])))}


class Model(Quiet):
    """An OpenAI-like server with vLLM's fields."""

    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        self.document(200, {"data": [{"id": "m", "max_model_len": 4096}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        phase = "chat" if "messages" in body else self.server.phase_of(body)
        count = self.server.count(phase)
        fault, _, when = self.server.fault.partition(" in ")
        where, _, after = when.partition(" after ")
        if where not in (phase, "") or count <= int(after or 0):
            fault = ""
        if fault in ("400", "500"):
            self.document(int(fault), {"error": {"message": "CUDA error: an illegal memory access"}})
        elif fault == "hangs":
            self.rfile.read(1)  # until the client gives up
        elif fault == "no JSON":
            self.reply(b"<html>It works!</html>")
        elif phase == "chat":
            self.chat(body, fault)
        else:
            self.document(200, {"choices": [self.completion(body, phase, fault)]})

    def document(self, status: int, document: object) -> None:
        self.reply(json.dumps(document).encode(), status)

    def chat(self, body: dict[str, Any], fault: str) -> None:
        prompt = [ord(letter) for letter in body["messages"][0]["content"]]
        prompt = [7, *prompt] if fault == "template" else prompt
        text = "<|channel|>analysis" if fault == "markup" else "Hello there"
        choice = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        self.document(200, {"prompt_token_ids": prompt, "choices": [choice]})

    def completion(self, body: dict[str, Any], phase: str, fault: str) -> dict[str, Any]:
        weights = "other" if fault == "weights" else ""
        prompt = body["prompt"]
        prompt = [ord(letter) for letter in prompt][-200:] if isinstance(prompt, str) else prompt
        if body.get("prompt_logprobs"):
            rows = [likely(prompt[:place], weights) for place in range(1, len(prompt))]
            rows = rows[: len(rows) // 2] if fault == "half" else rows
            return {"prompt_logprobs": [None, *({str(k): {"logprob": v} for k, v in row.items()} for row in rows)]}
        length, reason = body["max_tokens"], "length"
        if fault.startswith("ends early"):
            length, reason = min(3, length), fault.rpartition(" ")[2]
        if fault == "empty":
            length = 0 if length > 1 else 1
        ids: list[int] = []
        steps = []
        for _ in range(length):
            step = likely([*prompt, *ids], weights)
            steps.append({f"token_id:{k}": float("nan") if fault == "nan" else v for k, v in step.items()})
            ids.append(5 if fault == "repeats" else max(step, key=lambda token: (step[token], -token)))
        steps = [] if fault == "no probabilities" else steps[: len(steps) // 2] if fault == "half" else steps
        text = "".join(f" {one}" for one in ids)
        if phase == "alone":
            self.server.known.add(tuple(prompt))
        return {"text": text, "token_ids": ids, "prompt_token_ids": prompt, "finish_reason": reason,
                "logprobs": {"top_logprobs": steps}}  # fmt: skip


class Server(http.server.ThreadingHTTPServer):
    """``fault``: `WHAT [in chat|alone|batch|reading|rereading [after N]]`."""

    daemon_threads = True

    def __init__(self, fault: str) -> None:
        super().__init__(("127.0.0.1", 0), Model)
        self.fault, self.counts, self.known, self.read = fault, Counter[str](), set[tuple[int, ...]](), Counter[str]()

    def phase_of(self, body: dict[str, Any]) -> str:
        if body["max_tokens"] == REPLY:
            return "batch" if isinstance(body["prompt"], list) and tuple(body["prompt"]) in self.known else "alone"
        self.read[repr(body["prompt"])] += 1
        return "reading" if self.read[repr(body["prompt"])] == 1 else "rereading"

    def count(self, phase: str) -> int:
        self.counts[phase] += 1
        return self.counts[phase]


def asked(url: str) -> tuple[Asker, dict[str, Answer]]:
    asker = Asker(find(url, model=None, key="", silence=10), ChatFlags(), lambda _step: None)
    return asker, asker.ask(questions(quick=True))


@pytest.fixture(scope="module")
def reference() -> dict[str, Answer]:
    with serving(Server("")) as url:
        return asked(url)[1]


SAME, DIFFERENT, BROKEN, UNKNOWN = answers.SAME, answers.DIFFERENT, answers.BROKEN, answers.UNKNOWN


@pytest.mark.parametrize(
    ("fault", "alone", "against"),
    [
        ("", SAME, SAME),
        ("500 in batch", BROKEN, BROKEN),  # a kernel that fails with more than one row
        ("500 in batch after 7", BROKEN, BROKEN),
        ("400 in batch after 7", UNKNOWN, UNKNOWN),
        ("no JSON in batch after 7", BROKEN, BROKEN),
        ("ends early with stop in batch", DIFFERENT, DIFFERENT),
        ("empty in batch", DIFFERENT, DIFFERENT),
        ("no probabilities in batch", UNKNOWN, UNKNOWN),
        ("weights in batch", BROKEN, BROKEN),
        ("500 in alone after 7", BROKEN, BROKEN),
        ("400 in alone after 3", UNKNOWN, UNKNOWN),
        ("400 in alone", BROKEN, BROKEN),
        ("no JSON in alone after 7", BROKEN, BROKEN),
        ("ends early with length in alone", BROKEN, BROKEN),
        ("ends early with stop", SAME, DIFFERENT),  # alone, each text may have an end
        ("ends early with stop in alone after 7", DIFFERENT, DIFFERENT),
        ("empty", BROKEN, BROKEN),
        ("empty in alone after 7", UNKNOWN, UNKNOWN),
        ("500 in reading after 7", BROKEN, BROKEN),
        ("400 in reading", UNKNOWN, UNKNOWN),
        ("half in reading after 7", BROKEN, BROKEN),
        ("500 in rereading after 7", SAME, BROKEN),
        ("half in alone after 7", BROKEN, BROKEN),
        ("nan in alone after 7", BROKEN, BROKEN),
        ("no probabilities in alone after 7", UNKNOWN, UNKNOWN),
        ("no probabilities", UNKNOWN, UNKNOWN),
        ("weights", SAME, BROKEN),
        ("repeats", SAME, BROKEN),
        ("500 in chat", BROKEN, BROKEN),
        ("400 in chat", UNKNOWN, UNKNOWN),
        ("markup in chat", BROKEN, BROKEN),
        ("template in chat", SAME, DIFFERENT),
    ],
)
def test_the_verdict_of_each_fault(fault: str, alone: str, against: str, reference: dict[str, Answer]) -> None:
    with serving(Server(fault)) as url:
        asker, given = asked(url)
        readings = scorer(asker, reference, given)
    own, other = answers.itself(given), answers.against(reference, given, readings, given)
    assert (answers.verdict(own), answers.verdict(own, other)) == (alone, against), (own, other)


def test_a_reference_without_some_answers_proves_less(reference: dict[str, Answer]) -> None:
    lacking = {name: replace(one, fault="answered with 500") for name, one in list(reference.items())[:1]}
    for before, now in (({**reference, **lacking}, reference), (reference, dict(list(reference.items())[1:]))):
        rows = answers.against(before, now, reference, reference)
        assert answers.verdict(answers.itself(now), rows) == UNKNOWN
        assert rows[0].seen.startswith("1 have no answer on one of the two sides")


@pytest.mark.parametrize(
    ("fault", "outcome", "code"),
    [("", SAME, 0), ("500 in batch after 1", BROKEN, 5), ("400 in batch", UNKNOWN, 1), ("hangs in batch", None, 5)],
)
def test_the_command(fault: str, outcome: str | None, code: int, tmp_path: Path) -> None:
    with serving(Server(fault)) as url:
        argv = ("answers", "--url", url, "--quick", "--json", "--timeout", "2")
        done = forked.run(argv, tmp_path, os.environ, timeout=120)
    document = json.loads(done.stdout)
    assert (document.get("outcome"), done.returncode) == (outcome, code), document
    if outcome == BROKEN:
        (seen,) = [row["seen"] for row in document["rows"] if row["name"] == "in a batch against alone"]
        assert "of 32 first tokens agree" in seen and "224 of 256 places were not compared" in seen
        assert "answered with 500: CUDA error" in seen
