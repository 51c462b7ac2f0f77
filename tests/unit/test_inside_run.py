"""The runner's protocol: the marked document, or why there is none."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from envgen.engine.values import ContainerMount, ExecResult
from envgen.errors import EngineError
from envgen.inside.run import NoAnswer, Program, ask, in_image, read

MARK = "envgen-0123"


def result(stdout: str, stderr: str = "", code: int = 0) -> ExecResult:
    return ExecResult(code, stdout.encode(), stderr.encode())


def test_the_marked_line_counts_and_what_packages_print_does_not() -> None:
    printed = f'{{"answer": {{"x": 0}}}}\n{MARK} {{"answer": {{"x": 1}}}}\nbye\n'
    assert read(result(printed), MARK, "python3") == {"x": 1}


def test_an_exception_comes_back_with_its_stack() -> None:
    document = json.dumps({"error": "ValueError", "message": "no", "stack": ["a", "b"]})
    assert read(result(f"\n{MARK} {document}\n"), MARK, "python3") == NoAnswer("ValueError", "no", ("a", "b"))


@pytest.mark.parametrize(
    ("stderr", "code", "error"),
    [
        ("Timeout (0:00:05)!\nThread 0x1 (most recent call first):\n  File x", 1, "no answer in time: exit code 1"),
        ("", 137, "no answer: it was killed: memory ran out, or somebody stopped it"),
        ("Segmentation fault", 139, "no answer: exit code 139"),
    ],
)
def test_the_reason_names_how_a_process_ended(stderr: str, code: int, error: str) -> None:
    assert str(read(result("", stderr, code), MARK, "python3")) == error


@pytest.mark.parametrize("stdout", [f"{MARK} {{", f"{MARK} []", f"{MARK} 1", f'{MARK} {{"answer": 3}}'])
def test_a_document_of_another_form_is_no_answer(stdout: str) -> None:
    assert isinstance(read(result(stdout), MARK, "python3"), NoAnswer)


def test_a_container_without_python_is_the_engine_s_trouble() -> None:
    with pytest.raises(EngineError, match="cannot start python3 in the container: not found"):
        read(result("", "not found", 127), MARK, "python3")


def test_the_request_travels_on_stdin_with_the_program() -> None:
    sent: list[Any] = []

    def execute(argv: Sequence[str], stdin: bytes, timeout: float) -> ExecResult:
        sent.append((argv[0], json.loads(stdin), timeout))
        mark = sent[0][1]["mark"]
        return result(f'{mark} {{"answer": {{"got": 1}}}}')

    assert ask(execute, "py", Program("predict/main"), {"a": 1}, timeout=5) == {"got": 1}
    python, envelope, timeout = sent[0]
    assert python == "py" and envelope["request"] == {"a": 1} and timeout > 5
    assert envelope["entry"] == "envgen.inside.predict.main" and envelope["entry"] in envelope["files"]
    for name, text in {**envelope["files"], "frame": envelope["frame"]}.items():
        compile(text, name, "exec")


def test_folders_that_are_not_on_the_machine_are_left_out_and_noted() -> None:
    deployment, gone = ContainerMount("/here", "/a"), ContainerMount("/gone", "/b")

    class Machine:
        def run_once(
            self, _image: str, _argv: Sequence[str], *, mounts: Sequence[ContainerMount], **_: Any
        ) -> ExecResult:
            if gone in mounts:  # as Docker says it
                message = 'invalid mount config for type "bind": bind source path does not exist: /gone'
                raise EngineError(f"`python3` in a container of x: {message}")
            return result(str(len(mounts)))

    absent: list[ContainerMount] = []
    machine: Any = Machine()
    assert in_image(machine, "x", mounts=[deployment, gone], absent=absent)([], b"", 1).stdout == b"1"
    assert absent == [gone]
    with pytest.raises(EngineError, match="/gone"):
        in_image(machine, "x", mounts=[deployment, gone])([], b"", 1)
