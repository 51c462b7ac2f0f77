"""Detects secrets: removes them from text that leaves the machine, and finds them in a project
file.

It removes tokens and keys by their shape, values beside a secret-like name, credentials in URLs and
headers, private keys, home folders, this machine's name and user, and all known secret values. A
mark such as ``[redacted: token]`` replaces each. It is idempotent, and linear in the length of the
text.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from urllib.parse import quote

SHORTEST = 6  # characters of a known value; a shorter one would match too much
_COMMON = frozenset(
    {
        "root",
        "user",
        "admin",
        "ubuntu",
        "nobody",
        "docker",
        "runner",
        "localhost",
        "vllm",
        "flashinfer",
    }
)
_DULL = frozenset(
    {
        "true",
        "false",
        "none",
        "null",
        "unset",
        "empty",
        "default",
        "[redacted:",
        "required",
        "auto",
        "yes",
        "no",
    }
)

# Part of a name of a secret. `tokens` (max_tokens), `tokenizer` and `key_cache` are not secrets.
_WORD = (
    r"(?:token|secret|passw(?:or)?d|passwd|pwd|passphrase|credentials?|api[_-]?key|apikey|access[_-]?key|secret[_-]?key"
    r"|private[_-]?key|signing[_-]?key|encryption[_-]?key|auth[_-]?key|client[_-]?secret|authtoken|identitytoken"
    r"|registrytoken|auth|dsn|cookie|license[_-]?key|webhook(?:[_-]url)?|sas|pat)"
)
_NAME = (
    rf"(?<![A-Za-z0-9])(?:[A-Za-z0-9]{{1,40}}[_.-]{{1,2}}){{0,6}}{_WORD}"
    r"(?:[_-](?:id|b64|base64|value|\d{1,3}))?(?![A-Za-z0-9])"
)


# Tokens of a vocabulary, which are not secrets: eos_token, pad_token_id, ...
_VOCABULARY = re.compile(
    r"(?i)(?:bos|eos|pad|unk|sep|cls|mask|stop|start|end|think|thinking|reasoning|image|audio|video|vision|special"
    r"|next|first|last|per|draft|prompt)[_-]token(?:[_-]id)?$"
)


def _beside_name(match: re.Match[str]) -> str:
    """Redact `NAME=value`, unless the value is plainly not a secret (a number, a switch, a
    variable).
    """
    value = match["value"]
    if _is_folder(match["name"], value):
        return match[0]
    if _VOCABULARY.search(match["name"]):
        return match[0]
    bare = value.strip("\"'\\")
    is_plain = bare.lower() in _DULL or re.fullmatch(r"[\d.]{0,5}", bare)
    if is_plain or bare.startswith(("[", "$", "<", "{")):
        return match[0]
    # Keep its quotes: a JSON or YAML file stays valid.
    quoted = re.fullmatch(r"(\\\"|[\"'])(?s:.*)\1", value)
    mark = quoted[1] if quoted else ""
    return f"{match[0][: match.start('value') - match.start()]}{mark}[redacted: secret value]{mark}"


def _after_head(replacement: str, tail: str = "") -> Callable[[re.Match[str]], str]:
    """Keep the group `head`, replace what follows it, once."""

    def replace(match: re.Match[str]) -> str:
        rest = match[0][len(match["head"]) :].lstrip()
        return (
            match[0]
            if rest.startswith(("[redacted", "[user]"))
            else f"{match['head']}{replacement}{tail}"
        )

    return replace


_QUOTED = r"\\\"[^\"\r\n]{1,4000}\\\"|\"(?:[^\"\\\r\n]|\\.){1,4000}\"|'[^'\r\n]{1,4000}'"
_KEY_KIND = r"[A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?"
# Tokens with a known prefix.
_TOKENS = (
    r"hf_[A-Za-z0-9]{16,}",
    r"api_org_[A-Za-z0-9]{16,}",
    r"gh[pousr]_[A-Za-z0-9]{16,}",
    r"github_pat_\w{16,}",
    r"gl(?:pat|ptt|dt|rt|cbt|soat)-[\w.-]{16,}",
    r"xox[abeoprs]-[A-Za-z0-9-]{10,}",
    r"xapp-[A-Za-z0-9-]{10,}",
    r"sk-[\w-]{16,}",
    r"[sr]k_(?:live|test)_[A-Za-z0-9]{10,}",
    r"nvapi-[\w-]{16,}",
    r"AIza[\w-]{30,}",
    r"ya29\.[\w-]{16,}",
    r"(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{12,}",
    r"pypi-[\w-]{16,}",
    r"npm_[A-Za-z0-9]{16,}",
    r"dckr_(?:pat|oat)_[\w-]{10,}",
    r"dop_v1_[a-f0-9]{20,}",
    r"hvs\.[\w-]{16,}",
    r"gsk_[A-Za-z0-9]{16,}",
    r"SG\.[\w-]{10,}\.[\w-]{10,}",
    r"tskey-[A-Za-z0-9-]{16,}",
    r"wandb_v1_\w{16,}",
    r"r8_[A-Za-z0-9]{16,}",
)
_SCHEMES = r"(?:bearer|basic|token|digest|negotiate|aws4-hmac-sha256)"

_Replace = str | Callable[["re.Match[str]"], str]
# Order matters: what spans lines or is most specific comes first.
_SECRETS: tuple[tuple[str, _Replace], ...] = (
    (
        rf"-----BEGIN {_KEY_KIND}-----(?:[^-]|-(?!----(?:END|BEGIN))){{0,20000}}(?:-----END {_KEY_KIND}-----)?",
        "[redacted: private key]",
    ),
    (r"\bAGE-SECRET-KEY-1[0-9A-Z]{20,}", "[redacted: private key]"),
    (r"(?<![A-Za-z0-9])eyJ[\w-]{5,2000}\.[\w-]{5,}(?:\.[\w-]{0,4000}){1,3}", "[redacted: JWT]"),
    (
        r"(?i)(?P<head>\b(?:proxy-)?authorization\\?[\"']?\s{0,3}[:=]\s{0,3}\\?[\"']?)"
        rf"(?:{_SCHEMES}\s{{1,3}})?[^\s\"'\\,;]{{3,}}[^\r\n\"'\\]{{0,300}}",
        _after_head("[redacted: authorization]"),
    ),
    (
        r"(?i)(?P<head>\b(?:bearer|basic)\s{1,3})(?=[\w.~+/=-]{0,200}[0-9=])[\w.~+/=-]{12,}",
        _after_head("[redacted: token]"),
    ),
    (
        r"(?i)(?P<head>\b(?:set-)?cookie\\?[\"']?\s{0,3}:\s{0,3}\\?[\"']?)[^\r\n\"'\\]{3,}",
        _after_head("[redacted: cookie]"),
    ),
    # `git` alone is the user that every ssh address of a forge has.
    (
        r"(?i)(?P<head>\b[a-z][a-z0-9+.-]{1,20}://)(?!git@)[^\s/@\"'<>?#]{1,4000}@",
        _after_head("[redacted: login]", "@"),
    ),
    (
        r"(?i)(?P<head>[?&](?:[a-z0-9_-]{0,30}(?:token|key|secret|password|signature|credential)|sig|sv|se|code|auth)=)"
        r"[^\s&\"'<>#]{1,4000}",
        _after_head("[redacted: secret value]"),
    ),
    (r"https://hooks\.slack\.com/[\w/-]{6,}", "[redacted: webhook]"),
    (
        r"https://(?:[a-z]{1,10}\.)?discord(?:app)?\.com/api/webhooks/[\w/-]{6,}",
        "[redacted: webhook]",
    ),
    (rf"(?<![A-Za-z0-9])(?:{'|'.join(_TOKENS)})", "[redacted: token]"),
    # NAME=v, "NAME": "v", NAME: v, and the same inside a JSON text inside a JSON text.
    (
        rf"(?i)(?P<name>{_NAME})\\?[\"']?\s{{0,4}}(?:=>|:=|=|:)\s{{0,4}}(?P<value>{_QUOTED}|[^\s\"',;)}}\]]{{3,}})",
        _beside_name,
    ),
    (
        rf"(?i)--(?P<name>(?:[a-z0-9]{{1,30}}-){{0,4}}{_WORD})(?:\s{{1,3}}|[\"'],\s{{0,4}})"
        rf"(?P<value>{_QUOTED}|[\"']?(?!-)[^\s\"',]{{3,}})",
        _beside_name,
    ),
    (
        r"(?i)(?P<head>\blogin\s{1,4}\S{1,200}\s{1,4}password\s{1,4})\S{1,400}",
        _after_head("[redacted: secret value]"),
    ),
)
# People and their machines.
_PERSONAL: tuple[tuple[str, _Replace], ...] = (
    (
        r"(?P<head>\b(?:ssh-(?:rsa|ed25519|dss)|ecdsa-sha2-[a-z0-9-]{4,20}) )AAAA[A-Za-z0-9+/=]{16,}(?: \S{1,200})?",
        _after_head("[redacted: public key]"),
    ),
    (
        r"(?P<head>(?<![A-Za-z0-9_])/(?:home|Users)/)[^/\s\"'`:;,|<>(){}\[\]\\]{1,64}",
        _after_head("[user]"),
    ),
    (r"(?i)(?P<head>\b[a-z]:\\{1,2}Users\\{1,2})[^\\/\s\"'`:;,|<>\[]{1,64}", _after_head("[user]")),
    (
        r"(?<![A-Za-z0-9._%+-])(?!git@)[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){0,5}"
        r"\.[A-Za-z]{2,20}\b",
        "[email]",
    ),
)


@cache
def _compiled(
    patterns: tuple[tuple[str, _Replace], ...],
) -> tuple[tuple[re.Pattern[str], _Replace], ...]:
    return tuple((re.compile(pattern), replacement) for pattern, replacement in patterns)


def redact_secrets(text: str) -> str:
    """``text`` without secrets, but with paths and names of people. For the user's own terminal."""
    for pattern, replacement in _compiled(_SECRETS):
        text = pattern.sub(replacement, text)
    return text


def redact(text: str, *, known: Iterable[str] = ()) -> str:
    """``text`` without secrets, home paths, and this machine's host and user names.

    ``known``: further secret values (each also as in a URL, in JSON and in base64).
    """
    for value, substitute in _literals(known):
        text = text.replace(value, substitute)
    for pattern, replacement in _compiled(_SECRETS + _PERSONAL):
        text = pattern.sub(replacement, text)
    for pattern, substitute in _own_names():
        text = pattern.sub(substitute, text)
    return text


def without_login(text: str) -> str:
    """``text`` without users and passwords in addresses."""
    return re.sub(r"(?<=//)[^/@\s]+@", "", text)


def secret_like(name: str) -> bool:
    """Whether a variable of this name holds a secret (``HF_TOKEN``: yes; ``MAX_TOKENS``,
    ``VLLM_USE_V1``: no).
    """
    return re.fullmatch(f"(?i){_NAME}", name) is not None and not _VOCABULARY.search(name)


_VARIABLE = re.compile(r"\$(?:\w+|\{\w+(?::?[-?+][^}]*)?\})")


@lru_cache(4096)  # profiles share most of their values
def secret_in(text: str, *, prose: bool = False) -> str:
    """The kind of secret in ``text`` ("login", "token", ...), by the rules of ``redact``; "" for
    none.

    Shell variables are not secrets, as in ``--api-key "$VLLM_API_KEY"``. ``prose``: a sentence, in
    which a word after ``password:`` is not a secret.
    """
    text = _VARIABLE.sub("$", text)
    for pattern, replacement in _compiled(_SECRETS):
        for match in pattern.finditer(text):
            redacted = (
                match.expand(replacement) if isinstance(replacement, str) else replacement(match)
            )
            if redacted == match[0] or (prose and replacement is _beside_name):
                continue
            head = match.groupdict().get("head") or ""
            rest = re.sub(rf"(?i)^{_SCHEMES}\s+", "", match[0][len(head) :])
            rest = rest.strip("\"'\\ ")
            is_ssh = match[0].lower().startswith(("ssh:", "git+ssh:", "ssh+git:"))
            is_ssh_user = is_ssh and ":" not in rest
            if rest in ("$", "$@", "$:$@") or (is_ssh_user and _label(redacted) == "login"):
                continue
            return _label(redacted)
    return ""


def _label(redacted: str) -> str:
    kind = re.search(r"\[redacted: ([^\]]+)\]", redacted)
    return kind[1] if kind else "secret"


def secret_word(words: Sequence[str]) -> tuple[int, str] | None:
    """The first secret in a command line: the number of its word, and its kind."""
    for number, word in enumerate(words):
        flag, has_value, value = word.partition("=")
        if flag.startswith("-") and secret_like(flag.lstrip("-").replace("-", "_")):
            if has_value and is_secret_value(value):
                return number, f"value of {flag}"
            following = words[number + 1] if number + 1 < len(words) else ""
            if not has_value and not following.startswith("-") and is_secret_value(following):
                return number + 1, f"value of {flag}"
        kind = secret_in(word)
        if kind:
            return number, kind
    return None


def is_secret_value(value: str) -> bool:
    """Whether ``value``, beside a secret-like name, may be a secret: no variable, number, switch or
    path.
    """
    bare = _VARIABLE.sub("", value).strip("\"' ")
    return not (
        bare.lower() in _DULL or re.fullmatch(r"[\d.]*|/[\w./-]*|~/[\w./-]*|<[^<>]*>", bare)
    )


def secret_values(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The values of all secret-like variables, for ``redact``'s ``known``."""
    values = []
    for name, value in environ.items():
        is_secret = secret_like(name) and len(value) >= SHORTEST
        if is_secret and not _is_folder(name, value):
            values.append(value)
    return tuple(values)


def _is_folder(name: str, value: str) -> bool:
    """Is it the shell's own PWD or OLDPWD? Other names that end like these are of passwords."""
    return name in ("PWD", "OLDPWD") and value.startswith("/")


def _literals(known: Iterable[str]) -> list[tuple[str, str]]:
    """Each known value in each spelling -> its replacement, the longest first."""
    home = os.environ.get("HOME", "").rstrip("/")
    spelled = {}
    if home not in ("", "/root") and home.count("/") >= 2:
        spelled[home] = "~"
    secrets = [*secret_values(os.environ), *known]
    spelled |= _encodings_of(secrets)
    longest_first = sorted(spelled, key=len, reverse=True)
    return [(text, spelled[text]) for text in longest_first]


def _encodings_of(values: Iterable[str]) -> dict[str, str]:
    """Each of the ``values`` that is long enough, also as in a URL, in JSON and in base64 -> its
    replacement.
    """
    spellings = set()
    for value in values:
        if len(value) < SHORTEST or value.lower() in _DULL:
            continue
        plain = value.encode("utf-8", "surrogateescape")
        encoded = base64.b64encode(plain).decode()
        in_json = json.dumps(value)[1:-1]
        in_url = quote(plain, safe="")
        spellings |= {value, in_url, in_json, encoded.rstrip("=")}
    longest_first = sorted(spellings, key=lambda text: (-len(text), text))
    return dict.fromkeys(longest_first, "[redacted: known secret]")


def hidden_values(environ: Mapping[str, str], names: Iterable[str] = ()) -> dict[str, str]:
    """Text that must never be printed -> its replacement, the longest first.

    The values of secret-like variables, and of those in ``names`` (a profile's ``secrets``), in
    each spelling.
    """
    listed = [environ.get(name, "") for name in names]
    return _encodings_of([*filter(is_secret_value, secret_values(environ)), *listed])


def _own_names() -> Iterator[tuple[re.Pattern[str], str]]:
    """Patterns of this machine's host and user names, as whole words."""
    host = os.uname().nodename
    words = {host: "[host]", host.split(".")[0]: "[host]"}
    for name in ("USER", "LOGNAME", "SUDO_USER"):
        words[os.environ.get(name, "")] = "[user]"
    for word in sorted(words, key=len, reverse=True):
        if len(word) < 3 or word.lower() in _COMMON:
            continue
        pattern = rf"(?<![A-Za-z0-9_]){re.escape(word)}(?![A-Za-z0-9_])"
        yield re.compile(pattern), words[word]
