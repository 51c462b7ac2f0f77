"""What leaves the machine holds no secret, and still says what a reader needs."""

from __future__ import annotations

import base64
import json
from urllib.parse import quote

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from planted import KEPT, PLANTED

from envgen.errors import Place, Problem
from envgen.redact import hidden_values, redact, secret_in, secret_like, secret_values, secret_word

# Text around a secret; letters directly beside it would make it another word.
AROUND = st.text(st.characters(codec="utf-8", exclude_characters="\"'\\"), max_size=60)


@pytest.mark.parametrize("kind", PLANTED)
@given(before=AROUND, after=AROUND)
@settings(max_examples=25)
@example(before="before", after="after")
def test_a_planted_secret_is_gone_whatever_stands_around_it(kind: str, before: str, after: str) -> None:
    text, secret = PLANTED[kind]
    redacted = redact(f"{before}\n{text}\n{after}")
    assert secret in text and secret not in redacted and "redacted" in redacted and redact(redacted) == redacted
    if (before, after) == ("before", "after"):
        assert redacted.startswith("before\n") and redacted.endswith("\nafter")


@pytest.mark.parametrize("line", KEPT)
def test_what_is_no_secret_stays(line: str) -> None:
    assert redact(line) == line


@given(st.text())
def test_twice_is_as_once(text: str) -> None:
    once = redact(text)
    assert redact(once) == once


def test_a_json_file_stays_one() -> None:
    tree = {
        "env": {"HF_TOKEN": 'a "quoted" \\ value', "A": "b"},
        "auths": {"x": {"auth": "YWxpY2U6c2VjcmV0"}},
        "n": [1],
    }
    redacted = json.loads(redact(json.dumps(tree, indent=1)))
    assert redacted["env"]["A"] == "b" and redacted["n"] == [1]
    assert "quoted" not in redacted["env"]["HF_TOKEN"] and "YWxp" not in redacted["auths"]["x"]["auth"]


def test_a_yaml_file_stays_one() -> None:
    tree = yaml.safe_load(redact("env:\n  DB_PASSWORD: 'x: y, z'\n  API_KEY: abcdef123 # mine\n  OTHER: 1\n"))
    assert set(tree["env"]) == {"DB_PASSWORD", "API_KEY", "OTHER"} and "x: y" not in str(tree)


def test_known_values_go_in_every_spelling() -> None:
    value = 'p@ss "word"/1'
    for spelling in (value, quote(value, safe=""), json.dumps(value), base64.b64encode(value.encode()).decode()):
        redacted = redact(f"a {spelling} b", known=[value])
        assert redacted.startswith("a ") and redacted.endswith(" b")
        assert all(part not in redacted for part in ("p@ss", "p%40ss", "cEBzc"))


@pytest.mark.parametrize("known", [["opensesame", "opensesame-and-more"], ["opensesame-and-more", "opensesame"]])
def test_a_known_value_that_begins_another_leaves_nothing_of_it(known: list[str]) -> None:
    assert "and-more" not in redact("it was opensesame-and-more, then", known=known)
    names = {f"A{number}_TOKEN": value for number, value in enumerate(known)}
    lengths = list(map(len, hidden_values(names)))
    assert lengths == sorted(lengths, reverse=True)


@pytest.mark.parametrize(
    ("value", "hidden"), [("qw3rtz", True), ("qw3rtzu", True), ("qw3rtzui", True), ("qw3rt", False)]
)
def test_from_six_characters_on_a_known_value_is_hidden(value: str, hidden: bool) -> None:
    assert (value not in redact(f"it was {value} then", known=[value])) is hidden
    assert (value in hidden_values({"A_TOKEN": value})) is (value in secret_values({"A_TOKEN": value})) is hidden


def test_short_known_values_blacken_nothing() -> None:
    assert redact("a 1 true x", known=["1", "true", "", "x"]) == "a 1 true x"


def test_people_and_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/alice")
    monkeypatch.setenv("USER", "alice")
    monkeypatch.setattr("os.uname", lambda: type("U", (), {"nodename": "spark-01.lab"})())
    redacted = redact(
        "alice@spark-01:~$ ls /home/alice/x /Users/bob/y C:\\Users\\eve\\z spark-01.lab malice a.l@example.org"
    )
    for name in ("alice@", "spark-01", "/home/alice", "bob", "eve", "example.org"):
        assert name not in redacted
    assert "malice" in redacted and "~/x" in redacted


@pytest.mark.parametrize(
    ("home", "hidden"),
    [("/home/ann", True), ("/home/ann/", True), ("/srv/x/y", True), ("/root", False), ("/x", False), ("", False)],
)
def test_the_home_of_a_user_is_a_tilde(home: str, hidden: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", home)
    path = f"{home.rstrip('/')}/cache/x"
    assert redact(path) == ("~/cache/x" if hidden else path)


@pytest.mark.parametrize(
    ("name", "value", "text", "expected"),
    [
        ("USER", "bo", "bo is here", "bo is here"),  # two letters are in every text
        ("USER", "bob", "bob is here", "[user] is here"),
        ("SUDO_USER", "eve", "eve_x eve.x", "eve_x [user].x"),
        ("LOGNAME", "root", "root is here", "root is here"),
    ],
)
def test_names_of_users(name: str, value: str, text: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for other in ("USER", "LOGNAME", "SUDO_USER"):
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(name, value)
    assert redact(text) == expected


def test_the_longer_of_two_names_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("USER", "ann"), ("LOGNAME", "ann-marie"), ("SUDO_USER", "")):
        monkeypatch.setenv(name, value)
    assert redact("ann-marie and ann") == "[user] and [user]"


@pytest.mark.parametrize("line", ["eos_token: endoftext", "pad_token_id=5025600", "draft-token=abcdefgh"])
def test_tokens_of_a_vocabulary_stay(line: str) -> None:
    assert redact(line) == line and "redacted" in redact(f"{line} hub_token={line[-8:]}")


@pytest.mark.parametrize(
    ("environ", "names", "hidden"),
    [
        ({"A_TOKEN": "abcdef"}, (), "abcdef"),
        ({"A_TOKEN": "abcde"}, (), ""),
        ({"A_TOKEN": "/a/file"}, (), ""),  # the place of a secret is none
        ({"PLAIN": "abcdef"}, (), ""),
        ({"PLAIN": "abcdef"}, ("PLAIN", "UNSET"), "abcdef"),
        ({"PLAIN": "/a/file"}, ("PLAIN",), "/a/file"),  # a profile says that it is one
    ],
)
def test_what_is_never_printed(environ: dict[str, str], names: tuple[str, ...], hidden: str) -> None:
    assert (hidden in hidden_values(environ, names)) is bool(hidden) and bool(hidden_values(environ, names)) is bool(
        hidden
    )


def test_values_of_this_shell_go_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_SERVICE_TOKEN", "plainword-77")
    assert "plainword-77" not in redact("it said plainword-77 twice: plainword-77")


@pytest.mark.parametrize(
    ("name", "is_one"),
    [("HF_TOKEN", True), ("WANDB_API_KEY", True), ("DB_PASSWORD", True), ("MY_PAT", True),
     ("AWS_SECRET_ACCESS_KEY", True), ("GITHUB_TOKEN_2", True), ("MAX_TOKENS", False), ("VLLM_USE_V1", False),
     ("TOKENIZER", False), ("PATH", False),
     ("KEY_CACHE", False), ("AUTHOR", False), ("VLLM_CACHE_ROOT", False), ("eos_token", False),
     ("next_token_id", False), ("hub_token", True)],
)  # fmt: skip
def test_names_that_say_secret(name: str, is_one: bool) -> None:
    assert secret_like(name) is is_one
    assert secret_values({name: "value-of-it"}) == (("value-of-it",) if is_one else ())


@pytest.mark.parametrize(
    "hostile",
    ["-" * 200_000, "-----BEGIN PRIVATE KEY-----" * 8_000, "eyJ" * 60_000, "a_" * 100_000, "token" * 40_000,
     "=" * 200_000,
     "token=" * 30_000, '"' * 200_000, "https://" * 25_000, "a@" * 100_000, "a." * 100_000 + "@", "/home/" * 30_000,
     "password \\" * 20_000, "authorization:" * 14_000, "x" * 200_000, "?key" * 50_000, "\\" * 200_000,
     "--a-" * 50_000],
    ids=lambda text: text[:16],
)  # fmt: skip
def test_hostile_text_comes_back(hostile: str) -> None:
    """An expression that backtracks would never end."""
    once = redact(hostile[:60_000] + hostile[-1])
    assert redact(once) == once


def test_the_line_of_an_error_is_shown_only_without_a_secret() -> None:
    """Whatever the error is about: the secret beside it would be on the terminal, and in the log of a CI."""
    line = 'env: {PIP_INDEX_URL: "https://u:hunter2hunter2@h/simple"}'
    shown = str(Problem("unknown key", Place("envgen.yaml", 3, 7, "env", line)))
    assert shown == "envgen.yaml:3:7: env: unknown key"
    line = "env: {PIP_INDEX_URL: https://h/simple}"
    assert line in str(Problem("unknown key", Place("envgen.yaml", 3, 7, "env", line)))


def test_the_shells_own_folders_hide_no_path() -> None:
    """After `cd`, OLDPWD is often the project itself; a variable that only ends like it is of a password."""
    folder = "/home/dev/my models é"
    assert hidden_values({"PWD": folder, "OLDPWD": folder}) == {}
    assert folder in hidden_values({"DB_PWD": folder})


@pytest.mark.parametrize(
    ("text", "kind", "of_prose"),
    [
        *((f"{scheme}://git@h/x", "", "") for scheme in ("ssh", "git+ssh", "SSH+git")),  # a user without a password
        ("ssh://git:pw12345@h/x", "login", "login"),
        ("https://me@h/x", "login", "login"),
        ("https://me:$P@h/x", "login", "login"),
        *((f"https://{login}@h/x", "", "") for login in ("$USER", "$U:$P", "${U}:${P:-}")),
        ("Authorization: Bearer $TOKEN", "", ""),
        ("Authorization: Bearer abcdef123456", "authorization", "authorization"),
        ("--api-key '$KEY'", "", ""),
        ("--api-key 'abc123def'", "secret value", ""),
        ("the password: hunter22", "secret value", ""),
        ("HF_TOKEN=${HF_TOKEN:?no}", "", ""),
        ("use hf_abcdefghijklmnopqrstuvwxyz012345", "token", "token"),
        ("https://$U@h and https://me:hunter22@h", "login", "login"),  # the first is none, and the second is
    ],
)
def test_a_variable_or_a_user_is_no_secret(text: str, kind: str, of_prose: str) -> None:
    assert (secret_in(text), secret_in(text, prose=True)) == (kind, of_prose)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("x --api-key hunter22", (2, "value of --api-key")),
        ("--api-key=hunter22 x", (0, "value of --api-key")),
        ("$X --api-key hunter22", (2, "value of --api-key")),
        ("a b https://u:hunter22@h", (2, "login")),
        *((line, None) for line in ("--api-key --hunter22", "--api-key", "--api-key= hunter22", "--max-tokens 22")),
        *((line, None) for line in ("--api-key=$X", "--api-key $X", "api-key hunter22")),
    ],
)
def test_the_word_of_a_command_that_is_a_secret(line: str, found: tuple[int, str] | None) -> None:
    assert secret_word(line.split()) == found


def test_a_home_goes_before_a_secret_in_its_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/hunter2222/me")
    assert redact("/home/hunter2222/me/x hunter2222", known=["hunter2222"]) == "~/x [redacted: known secret]"


def test_a_host_goes_with_the_whole_of_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("USER", "LOGNAME", "SUDO_USER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.uname", lambda: type("U", (), {"nodename": "box.lab.corp"})())
    assert redact("box.lab.corp box box1 labbox") == "[host] [host] box1 labbox"
    monkeypatch.setattr("os.uname", lambda: type("U", (), {"nodename": "ab"})())
    assert redact("ab abc") == "ab abc"
