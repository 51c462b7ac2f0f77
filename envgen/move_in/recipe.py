"""A recipe of eugr's or sparkrun's, as a Compose file with one service. Nothing of it is run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from envgen.move_in.draft import Draft
from envgen.profile.tree import LIST, MAP, NULL, TEXT, Node, scalar

_MARKS = ("recipe_version", "container", "runtime", "model")
# What both runners give every container (launch-cluster.sh; sparkrun's Docker executor).
_CACHES = (".cache/huggingface", ".cache/vllm", ".cache/flashinfer", ".triton")
_FLAGS = {"tensor_parallel": "tensor-parallel-size", "pipeline_parallel": "pipeline-parallel-size"}
_SAID = frozenset(
    ("recipe_version", "name", "description", "model", "container", "defaults", "env", "command", "runtime",
     "runtime_version", "metadata", "model_revision", "solo_only")
)  # fmt: skip
_WHY = {
    "mods": "patches of its runner: make them a patch series (docs/patches.md), or `dockerfile_extra`",
    "build_args": "options of its build script: `base`, `pip` and `sources` say what is in the image",
    "builder": "the image is built from the profile's keys",
    "cluster_only": "needs several machines: `nodes`, and `cluster` in the service (docs/two-machines.md)",
}


def is_recipe(top: Node) -> bool:
    """Whether this is a recipe rather than a Compose file."""
    return "services" not in top.items and any(name in top.items for name in _MARKS)


def as_compose(top: Node, draft: Draft) -> Node:
    """One service `serve`, with what the recipe's runner adds."""
    at = (top.source, top.line, top.column)

    def text(value: str, near: Node | None = None) -> Node:
        return scalar(value, *((near.source, near.line, near.column) if near is not None else at), quoted=True)

    def listed(values: list[str], near: Node | None = None) -> Node:
        where = near or top
        items = {str(number): text(value, near) for number, value in enumerate(values)}
        return Node(LIST, where.source, where.line, where.column, where.key_line, items=items)

    values = {name: one.text for name, one in _below(top, "defaults").items() if one.kind not in (MAP, LIST, NULL)}
    model = top.items.get("model")
    if model is not None and model.kind not in (MAP, LIST, NULL):
        values.setdefault("model", model.text)
    service: dict[str, Node] = {"gpus": text("all"), "ipc": text("host")}
    service["volumes"] = listed([f"~/{path}:/root/{path}" for path in _CACHES])
    if "container" in top.items:
        service["image"] = top.items["container"]
    if "env" in top.items:
        service["environment"] = top.items["env"]
    words = _words(top, values, draft)
    if words[:2] == ["vllm", "serve"] and "model_revision" in top.items and "--revision" not in words:
        words += ["--revision", top.items["model_revision"].text]
    if words:
        service["command"] = listed([word.replace("$", "$$") for word in words], top.items.get("command"))
    port = values.get("port", "8000")
    service["ports"] = listed([f"{port}:{port}"])
    draft.remark(
        "services", "serve", text="GPUs, ipc, caches and the port are what the recipe's runner gives a container."
    )
    for key, one in top.items.items():
        if key not in _SAID and not (key in ("cluster_only", "mods", "build_args") and _nothing(one)):
            draft.note(one, key, _WHY.get(key, "a profile has no such key"))
    if values.get("tensor_parallel", "1") != "1":
        node = top.items["defaults"].items["tensor_parallel"]
        why = "as many machines on Sparks: `nodes`, and `cluster` in the service (docs/two-machines.md)"
        draft.note(node, f"tensor_parallel: {node.text}", why)
    serve = Node(MAP, *at, items=service)
    return Node(MAP, *at, items={"services": Node(MAP, *at, items={"serve": serve})})


def _nothing(node: Node) -> bool:
    return node.kind == NULL or not (node.items or node.text) or node.text.lower() == "false"


def _below(top: Node, key: str) -> Mapping[str, Node]:
    node = top.items.get(key)
    return node.items if node is not None and node.kind == MAP else {}


def _words(top: Node, values: Mapping[str, str], draft: Draft) -> list[str]:
    """The command, its {names} filled in; without one, what sparkrun's vLLM runtimes make of the defaults."""
    node = top.items.get("command")
    runtime = top.items["runtime"].text if "runtime" in top.items else "vllm"
    if node is None or node.kind != TEXT:
        if not runtime.startswith("vllm") or "model" not in values:
            draft.note(top, "command", f"there is none, and that of {runtime} is not known here")
            return []
        words = ["vllm", "serve", values["model"]]
        for name, value in values.items():
            flag = f"--{_FLAGS.get(name, name.replace('_', '-'))}"
            if name != "model" and value.lower() != "false":
                words += [flag] if value.lower() == "true" else [flag, value]
        return words
    made = node.text
    for _ in range(5):
        made = re.sub(r"\{([A-Za-z_]\w*)\}", lambda found: values.get(found[1], found[0]), made)
    if "{{" in node.text:  # the older format doubles braces that name nothing
        made = made.replace("{{", "{").replace("}}", "}")
    for name in re.findall(r"(?<![\w\"'{$])\{([A-Za-z_]\w*)\}", made):
        draft.note(node, f"{{{name}}}", "has no default: write the value into the command")
    lines = [line for line in re.sub(r"\\[ \t]*\n", " ", made).splitlines() if line.strip() and line.strip()[0] != "#"]
    try:
        if len(lines) == 1:
            return shlex.split(lines[0])
    except ValueError:
        pass
    draft.note(node, "command", "is more than one command: put it into a script")
    return []
