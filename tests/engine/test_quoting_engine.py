"""Every quoting function, read back by the program that it quotes for: Docker's parser, a real shell, Compose.

Many strings go into one Dockerfile and one Compose file, so the whole costs two builds and one container.
"""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from projects import BASE, docker

from envgen.render import quote

pytestmark = pytest.mark.engine

WORDS = r"""
' " \ \\ a\ a\" '' "" `id` $ $$ $$$ $HOME ${HOME} ${X:-y} ${X:?no} ${X $(id) $((1+1)) \$HOME \${X} # <<EOF
<<'EOF' a<<EOF 1<<EOF & && | ; > * ? [a] {a,b} ~ ! !! %s %% @ = a=b - a:b : [x] {x:y} &a *a !t >- %TAG
--- ... {{x}} {%x%} \n a\nb a,b type=bind yes no on off null true 0123 0x1f 1e3 1_000 .inf 2001-01-01
--mount=type=bind
"""
AWKWARD = WORDS.split()
AWKWARD += ["", " ", "  two  ", "trailing ", "\ttab\t", "# a", "a # b", "- x", "? x", ": x", "a: b", "$(touch /pwned)"]
AWKWARD += ["ENV A=b", "FROM scratch", "a\u0085b", "a\u2028b", "\ufeffa", "a\ufeff", "\x1b[31m"]
AWKWARD += (
    "\u00e9\u0085\u00a0\u2028\u2029\u200b\ufeff\u202e\ufffe\uffff\U0001f600\U0010ffff\x7f\x01\x0b\x0c\x1c\x1d\x1e\x1f"
)
BROKEN_LINES = ["\n", "a\nb", "\nRUN touch /pwned", "a\n", "\r", "a\r\nb", "\\\nx"]


def strings(count: int, *, lines: bool) -> list[str]:
    """The awkward ones, and ``count`` random mixtures of their characters; the same in every run."""
    dice = random.Random(20251)
    pool = [*sorted(set("".join(AWKWARD))), "$(", "${", "}", "\\", "'", '"', "$", "#", " ", "<<"]
    found = [*AWKWARD, *(BROKEN_LINES if lines else [])]
    if lines:
        pool += ["\n", "\r\n"]
    found += ["".join(dice.choice(pool) for _ in range(dice.randint(1, 12))) for _ in range(count)]
    return found


@pytest.fixture
def image(tmp_path: Path) -> Iterator[str]:
    name = f"envgen-test-quoting:{uuid.uuid4().hex[:12]}"
    yield name
    docker("image", "rm", "-f", name, check=False)


def build(folder: Path, text: str, image: str) -> dict[str, object]:
    folder.mkdir(exist_ok=True)
    (folder / "Dockerfile").write_text(text, encoding="utf-8", newline="")
    docker("buildx", "build", "--quiet", "--load", "--provenance=false", "-t", image, str(folder))
    config: dict[str, object] = json.loads(docker("image", "inspect", image))[0]["Config"]
    return config


def test_env_and_label_words_come_back_from_dockers_own_parser(tmp_path: Path, image: str) -> None:
    values = strings(300, lines=False)
    lines = ["FROM scratch"]
    lines += [f"ENV V{number}={quote.docker_value(value)}" for number, value in enumerate(values)]
    # Several on one instruction, as rendered files have them.
    lines.append("LABEL " + " \\\n  ".join(f"l{n}={quote.docker_value(value)}" for n, value in enumerate(values)))
    config = build(tmp_path, "\n".join(lines) + "\n", image)
    env = dict(entry.split("=", 1) for entry in config["Env"])  # type: ignore[attr-defined]
    assert {f"V{n}": value for n, value in enumerate(values)} == {k: v for k, v in env.items() if k != "PATH"}
    assert config["Labels"] == {f"l{n}": value for n, value in enumerate(values)}


def test_prepended_values_keep_what_the_base_image_has(tmp_path: Path, image: str) -> None:
    values = [value for value in strings(40, lines=False) if value]
    lines = ["FROM scratch AS one"]
    lines += [f'ENV A{n}="base:$x"' for n in range(len(values))]
    lines += ["FROM one"]
    for n, value in enumerate(values):
        lines += [f"ENV A{n}={quote.docker_prepend(f'A{n}', value)}"]
        lines += [f"ARG B{n}", f"ENV B{n}={quote.docker_prepend(f'B{n}', value)}"]
    config = build(tmp_path, "\n".join(lines) + "\n", image)
    env = dict(entry.split("=", 1) for entry in config["Env"])  # type: ignore[attr-defined]
    for n, value in enumerate(values):
        assert env[f"A{n}"] == f"{value}:base:"
        assert env[f"B{n}"] == value


def test_working_dirs_are_the_folders_that_were_named(tmp_path: Path, image: str) -> None:
    for n, path in enumerate(
        ["/plain", "/two words", "/$HOME", "/${X:-y}", "/it's", '/say "x"', "/a\\b", "/#", "/\u00e9\u2028"]
    ):
        config = build(tmp_path / str(n), f"FROM scratch\nWORKDIR {quote.docker_value(path)}\n", image)
        assert config["WorkingDir"] == path


def test_shell_words_reach_a_program_inside_run_unchanged(tmp_path: Path) -> None:
    words = strings(300, lines=False)
    command = " \\\n  ".join(quote.shell_word(word) for word in words)
    pairs = " ".join(f"W{n}={quote.shell_word(word)}" for n, word in enumerate(words[:150]))
    (tmp_path / "Dockerfile").write_text(
        f"FROM {BASE} AS run\nRUN printf '%s\\0' \\\n  {command} > /words\nRUN env -i {pairs} env -0 > /pairs\n"
        "FROM scratch\nCOPY --from=run /words /pairs /\n",
        encoding="utf-8",
        newline="",
    )
    docker("buildx", "build", "--quiet", "--output", f"type=local,dest={tmp_path / 'out'}", str(tmp_path))
    assert (tmp_path / "out/words").read_bytes().decode().split("\0")[:-1] == words
    listed = (tmp_path / "out/pairs").read_bytes().decode().split("\0")[:-1]
    assert dict(entry.split("=", 1) for entry in listed) == {f"W{n}": word for n, word in enumerate(words[:150])}


def test_compose_hands_every_string_to_the_container(tmp_path: Path, image: str) -> None:
    build(tmp_path / "image", 'FROM scratch\nCMD ["/x"]\n', image)
    values = strings(300, lines=True)
    project = f"envgen-test-{uuid.uuid4().hex[:10]}"
    file = tmp_path / "compose.yaml"
    service = {
        "image": image,
        "network_mode": "none",
        "command": values,
        "environment": {f"V{n}": value for n, value in enumerate(values)},
        "labels": {f"l{n}": value for n, value in enumerate(values)},
    }
    file.write_text(quote.compose_value({"name": project, "services": {"no": service}}), encoding="utf-8")
    docker("compose", "-f", str(file), "config", "-q")
    try:
        docker("compose", "-f", str(file), "create", "--quiet-pull")
        container = docker("compose", "-f", str(file), "ps", "-aq").strip()
        config = json.loads(docker("inspect", container))[0]["Config"]
    finally:
        docker("compose", "-f", str(file), "down", "--timeout", "1")
    seen = dict(entry.split("=", 1) for entry in config["Env"])
    assert {f"V{n}": value for n, value in enumerate(values)} == {k: v for k, v in seen.items() if k != "PATH"}
    assert config["Cmd"] == values
    assert {key: value for key, value in config["Labels"].items() if key.startswith("l")} == {
        f"l{n}": value for n, value in enumerate(values)
    }


def test_defaults_of_compose_variables_are_what_was_written(tmp_path: Path) -> None:
    accepted = []
    for value in strings(200, lines=False):
        try:
            accepted.append((value, quote.compose_variable("ENVGEN_TEST_UNSET", value)))
        except ValueError:
            assert any(char in value for char in "${}"), value
    service = {"image": "a", "environment": {f"V{n}": text for n, (_, text) in enumerate(accepted)}}
    (tmp_path / "compose.yaml").write_text(quote.compose_value({"services": {"a": service}}), encoding="utf-8")
    shown = json.loads(docker("compose", "-f", str(tmp_path / "compose.yaml"), "config", "--format", "json"))
    assert len(accepted) > 100
    assert shown["services"]["a"]["environment"] == {f"V{n}": value for n, (value, _) in enumerate(accepted)}
