"""Secrets in a project file: refused wherever they stand, for what is rendered from it is committed and baked in.

Every text of the merged profile is looked at by the detector that also redacts logs and bundles (`redact.py`).
"""

from __future__ import annotations

from collections.abc import Iterator

from envgen.profile.report import Report
from envgen.profile.tree import LIST, MAP, TEXT, Node
from envgen.redact import is_secret_value, secret_in, secret_like, secret_word

Path_ = tuple[str, ...]
_PROSE = frozenset(("description", "prompt", "expect_text", "expect", "forbid"))


def check(report: Report) -> None:
    """Note every value that looks like a secret."""
    for path, node in _values(report.tree, ()):
        if path[-1:] and path[-1] in report.profile.secrets and "env" in path:
            continue  # check_env says that it is there twice
        found = _in_list(path, node) if node.kind == LIST else _in_text(path, node)
        if found is not None:
            where, kind = found
            report.problem(where, _message(where, kind), _hint(where), hidden=True)


def _values(node: Node, path: Path_) -> Iterator[tuple[Path_, Node]]:
    """Each text, and each list of words, with its path."""
    if node.kind == MAP:
        for name, child in node.items.items():
            yield from _values(child, (*path, name))
    elif node.kind == LIST:
        if _is_command(path):
            yield path, node
        else:
            for number, child in node.items.items():
                yield from _values(child, (*path, number))
    elif node.kind == TEXT:
        yield path, node


def _is_command(path: Path_) -> bool:
    return path[-1:] == ("command",) or path[-1:] == ("prepare",) or path[-2:-1] == ("args",)


def _in_list(path: Path_, node: Node) -> tuple[Path_, str] | None:
    words = [child.text for child in node.elements]
    if path[-2:-1] == ("args",):  # the words behind a flag
        words = [f"--{path[-1]}", *words]
        found = secret_word(words)
        return ((*path, str(max(found[0] - 1, 0))), found[1]) if found else None
    found = secret_word(words)
    return ((*path, str(found[0])), found[1]) if found else None


def _in_text(path: Path_, node: Node) -> tuple[Path_, str] | None:
    prose = bool(_PROSE.intersection(path))
    name = next((part for part in reversed(path) if not part.isdigit()), "")
    named = not prose and ("env" in path or "args" in path) and secret_like(name.replace("-", "_"))
    kind = secret_in(node.text, prose=prose)
    if not kind and named and is_secret_value(node.text):
        kind = f"value of {name}"
    return (path, kind) if kind else None


def _message(path: Path_, kind: str) -> str:
    what = "a login in an address" if kind == "login" else f"a secret ({kind})"
    name = next((part for part in reversed(path) if not part.isdigit()), "")
    if path[-2:-1] == ("env",) or (path[0] == "env" and len(path) == 3):
        return f"the value of {name} looks like {what}; rendered files are not secret"
    if "args" in path[:-1]:
        return f"--{path[path.index('args') + 1]} looks like {what}; rendered files are not secret"
    return f"looks like {what}; rendered files are not secret"


def _hint(path: Path_) -> str:
    """The right way for a secret that belongs here."""
    if path[0] == "sources" and path[-1] == "git":
        return "use ssh, or git's own credential helper"
    if path[0] == "sources" and "install" in path:
        return "builds get no secrets; use an address without a login, or the base image's pip configuration"
    if path[0] == "tiktoken":
        return "name an address without a login, or a copy in the project (`file`)"
    if path[0] == "env" or path[-2:-1] == ("env",):
        return f"write `secrets: [{path[-1]}]` and export it in your shell"
    if path[-2:-1] == ("secrets",):
        return "write the name of the variable; its value comes from your shell when a service starts"
    if "args" in path or "command" in path:
        return "write `secrets: [VLLM_API_KEY]` (the variable that the server reads) and export it in your shell"
    return "write it nowhere in this file; `secrets` hands variables of your shell to services"
