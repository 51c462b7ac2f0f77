"""Readiness asked of a real HTTP server that is right, or wrong in one way; `smoke` comes to the same verdicts."""

from __future__ import annotations

import json
import os
import socketserver
import threading
from pathlib import Path

import forked
import pytest
from fault_server import fault_server

from envgen.serve.chat import ChatFlags
from envgen.serve.readiness import Question, ask

PROMISED = ChatFlags(reasoning="qwen3", tools="hermes")


def test_a_server_that_completes_chats_and_calls() -> None:
    with fault_server() as server:
        answer = ask(server.url, Question("tiny", chat=PROMISED))
    assert answer.ready and answer.text == " one two three" and 0 < answer.first_token < 60
    assert answer.chats["chat"] == (True, "' one two three'") and answer.chats["tool call"][0] is True


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("null chat", "the first chat failed: no content and no reasoning (finish_reason stop)"),
        ("reasoning alone", "the first chat failed: no content (finish_reason stop): the parser 'qwen3' took all"),
        ("null tool", "the first tool call failed: no content and no reasoning"),
        ("no template", "the first chat failed: answered with 400"),
        ("harmony", "the first chat failed: <|channel|> in"),
    ],
)
def test_a_server_whose_chats_are_wrong_is_not_ready(fault: str, why: str, tmp_path: Path) -> None:
    with fault_server(fault) as server:
        answer = ask(server.url, Question("tiny", chat=PROMISED))
        smoke = json.loads(forked.run(("smoke", "--url", server.url, "--json"), tmp_path, os.environ).stdout)
    assert not answer.ready and answer.fatal and why in answer.why
    verdicts = {one["name"]: one["verdict"] for one in smoke["criteria"]}
    # Without the service's flags nothing promises chats or calls.
    assert verdicts.get("chat", verdicts["first answers"]) == {"no template": "not checked", "null tool": "passed"}.get(
        fault, "failed"
    )


@pytest.mark.parametrize(("name", "good"), [("other\x1b[31m", 0), ("adapter", 0), ("other", 1)])
def test_an_answer_of_another_model_is_not_ready(name: str, good: int) -> None:
    """Of a proxy in front, or of another program on the port: in its first prompt, or only in the chat after it."""
    with fault_server(f"answers as {name}", good) as server:
        answer = ask(server.url, Question("tiny", chat=PROMISED))
    what = "chat" if good else "prompt"
    shown = name.replace("\x1b", "\\x1b")
    assert not answer.ready and answer.fatal
    assert answer.why == f"the first {what} was answered by the model {shown}, not alias or tiny"


@pytest.mark.parametrize(("asked", "name"), [("alias", "tiny"), ("tiny", "alias"), ("tiny", ""), (None, "other")])
def test_another_name_of_the_model_is_its_own(asked: str | None, name: str) -> None:
    with fault_server(f"answers as {name}") as server:
        assert ask(server.url, Question(asked, chat=PROMISED)).ready


def test_a_port_without_a_model_must_answer_http() -> None:
    """Docker's proxy accepts a connection, and closes it while nothing listens in the container."""

    class Closing(socketserver.BaseRequestHandler):
        def handle(self) -> None: ...

    with socketserver.TCPServer(("127.0.0.1", 0), Closing) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        found = ask(f"http://127.0.0.1:{proxy.server_address[1]}", Question(None))
        proxy.shutdown()
    assert not found.ready and not found.fatal and "does not answer yet" in found.why


def test_the_model_is_what_the_server_lists() -> None:
    with fault_server() as server:
        answer = ask(server.url, Question(None, chat=PROMISED))
    assert answer.ready and answer.text == " one two three" and not answer.unasked and answer.chats["chat"][0]


@pytest.mark.parametrize(
    ("fault", "question", "why"),
    [
        ("no server", Question("tiny"), "/v1/models answers 200 with something that is not a list of models"),
        ("half an event", Question("tiny"), "the first prompt broke off in the middle"),
        ("nan", Question("tiny"), "the first completion has a NaN or infinite log probability (nan)"),
        ("", Question("tny"), "/v1/models lists tiny, not tny"),
        ("", Question("tiny", expect_text="Paris"), "which does not contain 'Paris'"),
        ("hangs", Question("tiny"), "the first prompt did not come (time-out)"),
    ],
    ids=["no models", "half an event", "NaN", "wrong name", "wrong text", "hangs"],
)
def test_a_server_that_answers_wrongly_is_not_ready(fault: str, question: Question, why: str) -> None:
    with fault_server(fault) as server:
        answer = ask(server.url, question, timeout=2 if fault == "hangs" else 120)
    assert not answer.ready and why in answer.why


@pytest.mark.parametrize("fault", ["cut off while it thinks", "no template", "null chat"])
def test_what_proves_nothing_stops_nothing(fault: str) -> None:
    talk = None if fault == "null chat" else ChatFlags()  # None: only the prompt is asked
    with fault_server(fault) as server:
        answer = ask(server.url, Question("tiny", chat=talk))
    assert answer.ready and [good for good, _ in answer.chats.values()] == ([None] if talk else [])


@pytest.mark.parametrize("key", ["s3cret\n", "s3cret\r\nX: y", "s3cret\u20ac"])
def test_a_key_that_http_does_not_carry_is_told_without_it(key: str) -> None:
    """As read from a file with its newline: requests said "InvalidHeader", http.client prints the whole header."""
    with fault_server() as server:
        answer = ask(server.url, Question("tiny", api_key=key))
    assert not answer.ready and "s3cret" not in answer.why and "characters that HTTP does not carry" in answer.why
