"""What goes into a record about the environment, and what never does."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgen.redact import without_login
from envgen.serve.facts import HIDDEN, INSIDE, collect, flags, variables


def test_secrets_are_hidden_by_their_names() -> None:
    env = {
        "HF_TOKEN": "hf_x", "AWS_SECRET_ACCESS_KEY": "k", "MAX_TOKENS": "7", "VLLM_USE_V1": "1",
        "HTTPS_PROXY": "http://me:pw@proxy:3128",
    }  # fmt: skip
    found = variables(env, None)
    assert found["HF_TOKEN"] == found["AWS_SECRET_ACCESS_KEY"] == HIDDEN
    assert (found["MAX_TOKENS"], found["VLLM_USE_V1"]) == ("7", "1")
    assert found["HTTPS_PROXY"] == "http://proxy:3128"


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (("serve", "--api-key", "s3cret", "--port", "8"), ["serve", "--api-key", HIDDEN, "--port", "8"]),
        (("--api-key=s3cret", "x"), [f"--api-key={HIDDEN}", "x"]),
        (("--hf-token", "s3cret"), ["--hf-token", HIDDEN]),
        (("--max-num-batched-tokens", "8192"), ["--max-num-batched-tokens", "8192"]),
        (("--tokenizer", "x"), ["--tokenizer", "x"]),
    ],
)
def test_flags(argv: tuple[str, ...], shown: list[str]) -> None:
    assert flags(argv) == shown


@given(st.text(alphabet=st.characters(exclude_characters="/@ \n\t", exclude_categories=("Cs", "Z", "C")), min_size=1))
def test_passwords_in_addresses(secret: str) -> None:
    assert without_login(f"see https://{secret}@host/x") == "see https://host/x"


def test_a_bare_address_needs_nothing_else() -> None:
    found = collect(url="http://u:p@h:1", model="m")
    assert found["url"] == "http://h:1" and found["model"] == "m" and set(found) == {"url", "model", "envgen"}


def test_what_runs_inside_is_the_standard_library() -> None:
    """Python 3.8 must be able to read it."""
    tree = ast.parse(INSIDE, feature_version=(3, 8))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert names == {"json", "os", "platform", "re", "subprocess"}
