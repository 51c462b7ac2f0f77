"""Reads recipes: envgen's own, vllm-project's, eugr's and sparkrun's. Nothing in a file is
executed.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from packaging.version import InvalidVersion, Version

from envgen.binding import JsonDict, JsonObject
from envgen.errors import Place, Problem, ProjectError
from envgen.profile.flags import parsed, whole_ranks
from envgen.profile.model import REPOSITORIES
from envgen.profile.shape import ENV_NAME, FLAG, matches
from envgen.profile.tree import LIST, MAP, NULL, PROJECT, ValueText, YamlNode, parse
from envgen.text import whole_number

HARDWARE = "dgx_spark_gb10"
_WIDER = (
    "blackwell",
    "nvidia",
)  # groups of hardware that include it; the first one in a recipe counts
LARGEST = 256 << 10  # bytes of one recipe
# Flags that the profile sets.
_OURS = {"host", "port"}
# Flags that name a file, and keys of recipes that say nothing about how a model is served.
_FILES = (
    "chat-template|tool-parser-plugin|reasoning-parser-plugin|hf-config-path|generation-config"
    r"|spec-model|speculative-config\.model"
)
_TALK = "pull_image|hardware_notes|notes|tags|author|benchmarks|license"
_SIZES = ("tensor-parallel", "pipeline-parallel", "data-parallel")
_PULL = re.compile(r"--apply-vllm-pr[ =](\d{1,7})")
_SHELL = re.compile(r"[;|&<>`]|\$[({A-Za-z_]")
_QUOTED = re.compile(r"'[^']*'|\"[^\"$`]*\"")  # where the shell expands nothing
_REPO = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True)
class Recipe:
    """A model and how it is served. ``left``: parts that no profile can hold; ``ran``: who ran it
    on which machine.
    """

    name: str
    repo: str
    revision: str = ""
    args: JsonObject = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    release: str = ""  # the oldest vLLM that it supports
    image: str = ""
    nodes: int = 1
    weights: str = ""
    draft: str = ""  # the size of a separate draft model's weights
    source: str = ""
    commit: str = ""
    date: str = ""
    ran: str = ""
    left: tuple[str, ...] = ()
    service: JsonObject = field(default_factory=dict)  # other keys of a service
    profile: JsonObject = field(default_factory=dict)  # and of its profile
    b12x: JsonObject = field(
        default_factory=dict
    )  # flags of the variant with kernels made for SM12x


def read_recipe(text: str, file: str, *, variant: str = "") -> Recipe:
    """The recipe in ``text``. Raises ProjectError with the place of what is wrong.

    ``variant``: of vllm-project's format.
    """
    if len(text.encode("utf-8", "surrogateescape")) > LARGEST:
        raise refusal(f"is larger than {LARGEST >> 10} KiB, the limit for a recipe", Place(file))
    top, problems = parse(ValueText(file, PROJECT, text), foreign=True)
    if problems or top is None:
        raise ProjectError(problems)
    reader = _Reader(top, file)
    if "repo" in top.items:
        return reader.own()
    if "model" in top.items and top.items["model"].kind == MAP:
        return reader.vllm(variant)
    if variant:
        raise refusal("this format has no variants", top.place(), "leave --model-variant out")
    if "command" in top.items or "container" in top.items:
        return reader.spark()
    if "apiVersion" in top.items and reader._text("kind") == "ServingRecipe":
        raise refusal(
            "is NVIDIA's ServingRecipe (NemoClaw), which envgen does not read",
            top.items["kind"].place(),
            "copy by hand: image -> base.image, model -> services.serve.model, environment -> env, arguments -> args",
        )
    raise refusal("is not a recipe that envgen reads", top.place(), "formats: docs/models.md")


def refusal(message: str, place: Place, hint: str = "") -> ProjectError:
    """One problem of a recipe, to be raised."""
    return ProjectError([Problem(message, place, hint)])


def split(text: str, place: Place, hint: str = "") -> list[str]:
    """The words of a command, as a shell would split it."""
    try:
        return shlex.split(text, comments=True)
    except ValueError as error:
        raise refusal(f"the command can't be read: {error}", place, hint) from None


def value_of(node: YamlNode) -> Any:
    """A tree as plain values. Scalars stay text, as written: 0.70 stays 0.70."""
    if node.kind == MAP:
        return {name: value_of(child) for name, child in node.items.items()}
    if node.kind == LIST:
        return [value_of(child) for child in node.elements]
    if node.kind == NULL:
        return None
    return node.text


# The keys that are read, or that say nothing about a server: of vllm-project's recipes and their
# models, and of those of eugr and sparkrun.
_KEYS = (
    "meta|model|features|opt_in_features|variants|compatible_strategies|hardware_overrides"
    "|strategy_overrides|guide|kv_offload_support|dependencies"
)
_MODEL_KEYS = (
    "model_id|min_vllm_version|docker_image|architecture|parameter_count|active_parameters"
    "|context_length|base_args|base_env|nightly_required"
)
_SPARK_KEYS = (
    "recipe_version|name|description|model|model_revision|container|build_args|mods|cluster_only"
    "|solo_only|defaults|env|command|runtime|min_nodes|max_nodes|metadata|version"
)


class _Reader:
    """One file, in any of the formats."""

    def __init__(self, top: YamlNode, file: str) -> None:
        self.top = top
        self.file = file
        self.left: list[str] = []

    def _text(self, key: str, node: YamlNode | None = None) -> str:
        value = (node or self.top).items.get(key)
        if value is None or value.kind == NULL:
            return ""
        if value.kind in (MAP, LIST):
            raise refusal(f"expected text, found {value.seen()}", value.place(key))
        return value.text

    def _map(self, key: str, node: YamlNode | None = None) -> dict[str, YamlNode]:
        value = (node or self.top).items.get(key)
        if value is None or value.kind == NULL:
            return {}
        if value.kind != MAP:
            raise refusal(f"expected a mapping, found {value.seen()}", value.place(key))
        return value.items

    def _values(self, key: str) -> JsonDict:
        return {name: value_of(node) for name, node in self._map(key).items()}

    def _words(self, node: YamlNode | None) -> list[str]:
        if node is None or node.kind == NULL:
            return []
        if node.kind != LIST or any(one.kind in (MAP, LIST) for one in node.elements):
            raise refusal(f"expected a list of words, found {node.seen()}", node.place())
        words = []
        for one in node.elements:
            parted = re.match(r"--[\w-]+ \S", one.text)  # a flag and its value in one item
            words += one.text.split(" ", 1) if parted else [one.text]
        return words

    def _env(self, nodes: Mapping[str, YamlNode]) -> dict[str, str]:
        env = {}
        for name, node in nodes.items():
            if not matches(ENV_NAME, name) or node.kind in (MAP, LIST):
                raise refusal(f"{name!r} is not a variable with a value", node.key_place())
            if re.fullmatch(r"\$\{?\w+\}?", node.text):
                self.left.append(f"{name}={node.text}: its value depends on your machine")
            else:
                env[name] = node.text
        return env

    def _unknown(self, known: str, nodes: Mapping[str, YamlNode], where: str = "") -> None:
        for name, node in nodes.items():
            is_empty = node.kind in (MAP, LIST, NULL) and not node.items
            if not is_empty and not re.fullmatch(f"{known}|{_TALK}", name):
                self.left.append(f"{where}{name}: a key that envgen does not know in this format")

    def _repo(self, text: str, place: Place) -> str:
        if not _REPO.fullmatch(text):
            raise refusal(
                f"{text!r} is not the name of a model", place, "as in: openai/gpt-oss-120b"
            )
        return text

    def _release(self, text: str, node: YamlNode) -> str:
        if text == "nightly":
            self.left.append("a nightly build of vLLM")
            return ""
        try:
            return str(Version(text)) if text else ""
        except InvalidVersion:
            raise refusal(
                f"{text!r} is not a release of vLLM", node.place(), "as in: 0.28.0"
            ) from None

    def _named(self, flags: Iterable[str], place: Place) -> None:
        if odd := next((name for name in flags if not matches(FLAG, name)), None):
            raise refusal(f"{odd[:60]!r} is not a flag that envgen knows", place)

    # --- envgen's own ---

    def own(self) -> Recipe:
        ours = ("name", "image", "left", "service", "profile")
        known = [one.name for one in fields(Recipe) if one.name not in ours]
        if unknown := [name for name in self.top.items if name not in known]:
            raise refusal(f"unknown key {unknown[0]!r}", self.top.items[unknown[0]].key_place())
        repo = self._repo(self._text("repo"), self.top.items["repo"].place())
        args = self._values("args")
        b12x = self._values("b12x")
        self._named((*args, *b12x), self.top.place())
        nodes = self._text("nodes") or str(whole_ranks(args) or 1)
        if not 1 <= (machines := whole_number(nodes) or 0) <= 64:
            place = self.top.items.get("nodes", self.top).place()
            raise refusal(f"{nodes!r} is not a number of machines", place)
        texts: JsonDict = {
            key: self._text(key)
            for key in ("revision", "weights", "draft", "source", "commit", "date", "ran")
        }
        release = self._release(self._text("release"), self.top)
        return Recipe(
            name_of(self.file),
            repo,
            args=args,
            env=self._env(self._map("env")),
            release=release,
            nodes=machines,
            left=brought(args),
            b12x=b12x,
            **texts,
        )

    # --- vllm-project/recipes ---

    def _chosen(self, variant: str, variants: dict[str, YamlNode]) -> str:
        """The variant to take: the named one, else one for our hardware, else the default."""
        if variant and variant not in variants:
            place = self.top.items.get("variants", self.top).key_place()
            known = ", ".join(variants) or "none"
            raise refusal(f"no variant {variant!r}", place, f"it has {known}")
        if variant:
            return variant
        chosen = "default" if "default" in variants else ""
        for name, node in reversed(variants.items()):
            if HARDWARE in self._map("hardware_overrides", node):
                chosen = name
        others = [name for name in variants if name != chosen]
        if others:
            self.left.append(f"variants: {', '.join(others)}; --model-variant takes one of them")
        return chosen

    def _features(self, modes: Mapping[str, YamlNode]) -> list[str]:
        """The flags of the features that are on."""
        optional = self._words(self.top.items.get("opt_in_features"))
        words = []
        for name, feature in self._map("features").items():
            is_off = name in optional and name not in modes
            if is_off or name in ("text_only", "encoder_parallel"):
                line = f"feature {name}: optional"
                flags = self._words(feature.items.get("args"))
                if flags:
                    line += f"; its flags: {shlex.join(flags)}"
                self.left.append(line)
                continue
            kinds = self._map("modes", feature)
            wanted = modes[name].text if name in modes else self._text("default_mode", feature)
            kind = kinds.get(wanted) or next(iter(kinds.values()), feature)
            ours = self._for_us(kind, HARDWARE, *_WIDER) or kind
            words += self._words(ours.items.get("args"))
        return words

    def vllm(self, variant: str) -> Recipe:
        model = self.top.items["model"]
        variants = self._map("variants")
        if "omni" in self._words(self._map("meta").get("tasks")):
            raise refusal(
                "is served by vLLM-Omni, not by `vllm serve`",
                self.top.items["meta"].items["tasks"].place(),
            )
        self._unknown(_KEYS, self.top.items)
        self._unknown(_MODEL_KEYS, model.items, "model.")
        if self._text("nightly_required", model) == "true":
            self.left.append("a nightly build of vLLM")
        self._dependencies()
        chosen = self._chosen(variant, variants)
        described = variants.get(chosen, model)
        over = self._map("hardware_overrides", described).get(HARDWARE) if chosen else None
        if HARDWARE not in self._map("hardware", self.top.items.get("meta")):
            self.left.append(f"the recipe does not name {HARDWARE}")
        repo = self._text("model_id", described) or self._text("model_id", model)
        words = self._words(model.items.get("base_args"))
        words += self._features(self._map("default_modes", described))
        env = self._env(self._map("base_env", model))
        layers = [self._for_us(self.top, *_WIDER), over]
        if chosen:
            layers.insert(0, described)
            layers.insert(2, self._for_us(described, *_WIDER))
        for layer in layers:
            if layer is not None:
                words += self._words(layer.items.get("extra_args"))
                env |= self._env(self._map("extra_env", layer))
        image = self._image(over) or self._image(described) or self._image(model)
        release = self._text("min_vllm_version", described) or self._text("min_vllm_version", model)
        args = flags_of(words, self.top.place(), again=True)
        vram = self._text("vram_minimum_gb", described) if chosen else ""
        weights = ""
        if re.fullmatch(r"\d{1,6}(\.\d+)?", vram):
            weights = f"{float(vram) * 10**9 / (1 << 30):.0f} GiB"
        release = self._release(release, model)
        return Recipe(
            name_of(self.file) + (f"-{chosen}" if chosen not in ("", "default") else ""),
            self._repo(repo, model.place()),
            "",
            args,
            env,
            release,
            image,
            whole_ranks(args) or 1,
            weights,
            left=(*self.left, *brought(args)),
        )

    def _dependencies(self) -> None:
        """Name what the recipe installs besides vLLM."""
        steps = self.top.items.get("dependencies")
        for step in steps.elements if steps is not None else ():
            what = "dependencies"
            if self._text("optional", step) == "true":
                what += " (optional)"
            self.left.append(f"{what}: {self._text('command', step)}")

    def _for_us(self, node: YamlNode, *names: str) -> YamlNode | None:
        """The `hardware_overrides` of a node for the first of ``names`` that it has."""
        overrides = self._map("hardware_overrides", node)
        for name in names:
            if name in overrides and overrides[name].kind == MAP:
                return overrides[name]
        return None

    def _image(self, node: YamlNode | None) -> str:
        """The image: one for all, or one per vendor, perhaps by CUDA release, of which the first
        counts.
        """
        image = node.items.get("docker_image") if node is not None else None
        if image is not None and image.kind == MAP:
            image = image.items.get("nvidia")
        while image is not None and image.kind == MAP:
            image = next(iter(image.items.values()), None)
        if image is None or image.kind in (LIST, NULL):
            return ""
        return image.text

    # --- eugr v1, sparkrun v2 ---

    def spark(self) -> Recipe:
        self._unknown(_SPARK_KEYS, self.top.items)
        runtime = self._text("runtime")
        if runtime and not runtime.startswith("vllm"):
            raise refusal(
                f"the runtime {runtime} is not vLLM's",
                self.top.items["runtime"].place(),
                "docs/recipes.md#another-server has a profile for such a server",
            )
        self.left += [f"mods: {word}" for word in self._words(self.top.items.get("mods"))]
        self._build()
        defaults = self._values("defaults")
        place = self.top.items.get("command", self.top).place()
        model = self._text("model")
        words = self._command(defaults) if self._text("command") else []
        if words:
            model, args = self._server(words, model, place)
        else:
            args = {}
            for key, value in defaults.items():
                flag = key.replace("_", "-")
                if flag in _SIZES:
                    flag += "-size"
                if key not in _OURS:
                    args[flag] = value
            self._named(args, place)
        least = 2 if self._text("cluster_only") == "true" else 1
        nodes = max(whole_number(self._text("min_nodes") or "1") or 1, whole_ranks(args), least)
        if args.pop("distributed-executor-backend", None):
            self.left.append(
                "distributed-executor-backend: `cluster` uses vLLM's own multi-node mode"
            )
        image = self._text("container")
        name = self._text("name") or name_of(self.file)
        return Recipe(
            name_of(name.lower()),
            self._repo(model, place),
            self._text("model_revision"),
            args,
            self._env(self._map("env")),
            "",
            image,
            nodes,
            left=(*self.left, *brought(args)),
        )

    def _build(self) -> None:
        """What the build is asked for stays with the user."""
        options = " ".join(self._words(self.top.items.get("build_args")))
        if not options:
            return
        pull = _PULL.search(options)
        if pull:
            ref = f"refs/pull/{pull[1]}/head"
            options += f": write `origin: {{git: {REPOSITORIES['vllm']}, ref: {ref}}}`"
        self.left.append(f"build_args: {options}")

    def _server(self, words: list[str], model: str, place: Place) -> tuple[str, JsonDict]:
        """The model and the flags in the words of a command. ``model``: as the recipe names it."""
        if words[:2] != ["vllm", "serve"] or len(words) < 3 or words[2].startswith("-"):
            message = "the command is not `vllm serve MODEL ...`"
            raise refusal(message, place, "write the profile by hand")
        served = words[2]
        if model not in ("", served):
            message = f"two models: {model}, and {served} in the command"
            raise refusal(message, place, "keep one of them")
        return served, flags_of(words[3:], place)

    def _command(self, defaults: JsonObject) -> list[str]:
        """The words of a command whose templates (``{port}``) are filled in from ``defaults``."""
        node = self.top.items["command"]

        def filled(match: re.Match[str]) -> str:
            if match[0] in ("{{", "}}"):
                return match[0][0]
            values = {"model": self._text("model"), **defaults}
            if match[1] not in values:
                raise refusal(
                    f"the template {match[0]} has no value",
                    node.place(),
                    f"write {match[1]} in `defaults`",
                )
            value = values[match[1]]
            if not isinstance(value, str):
                raise refusal(
                    f"the value of the template {match[0]} is not plain text", node.place()
                )
            return value

        broken = re.search(r"\\\n(?=[ \t]*\n\s*\S)", node.text)
        if broken:
            above = node.text[: broken.end()].count("\n")
            line = node.place().line + above + 1
            raise refusal(
                f"line {line} is empty after a backslash: the shell ends the command there",
                node.place(),
                "remove the line",
            )
        text = re.sub(r"\{\{|\}\}|\{(\w+)\}", filled, node.text.replace("\\\n", " "))
        text = "\n".join(line for line in text.splitlines() if not re.match(r"\s*(#|$)", line))
        words = split(text, node.place())
        if "\n" in text.strip() or _SHELL.search(_QUOTED.sub("", text)):
            raise refusal(
                "the command is a shell script, not one command",
                node.place(),
                "write the profile by hand",
            )
        return words


def flags_of(
    words: Sequence[str], place: Place, *, again: bool = False, ours: Iterable[str] = _OURS
) -> JsonDict:
    """Flags and their values, without ``ours``. ``again``: a flag may come again, and the last one
    counts, as in overrides.
    """
    flags = {}
    for flag in parsed(words):
        if not flag.word:
            message = f"two models, or a word that belongs to no flag: {flag.values[0]!r}"
            raise refusal(message, place)
        if not matches(FLAG, flag.name):
            raise refusal(f"{flag.word!r} is not a flag that envgen knows", place)
        if flag.name in flags and not again:
            raise refusal(f"the flag --{flag.name} is there twice", place)
        if flag.name not in ours:
            flags[flag.name] = _typed(flag.values, place)
    return flags


def _typed(values: Sequence[str], place: Place) -> Any:
    if len(values) != 1:
        return list(values) if values else "true"
    if re.match(r"\{(?![{%#])", values[0]):  # not a template of Jinja's
        try:
            return json.loads(values[0])
        except (ValueError, RecursionError):
            raise refusal(f"not JSON: {values[0][:80]}", place) from None
    return values[0]


def brought(args: JsonObject, mounted: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The files that stay in the flags, which the recipe's image or a mod of it brings.
    ``mounted``: folders whose files are there.
    """
    draft = args.get("speculative-config")
    named = {flag: value for flag, value in args.items() if re.fullmatch(_FILES, flag)}
    if isinstance(draft, Mapping):
        named["speculative-config.model"] = draft.get("model")
    return tuple(
        f"{flag}: the file {value} is not in the image: bring it by `mounts` or COPY, and correct the path"
        for flag, value in named.items()
        if isinstance(value, str)
        and not value.startswith(mounted)
        and re.fullmatch(r"[\w.~][\w./~-]*\.(jinja|j2|py|json)|[/.~][\w./-]+", value)
    )


def name_of(file: str) -> str:
    """The name of a recipe, from that of its file."""
    name = file.rsplit("/", 1)[-1].lower()
    stem = re.sub(r"\.ya?ml$", "", name)
    return re.sub(r"[^a-z0-9.]+", "-", stem).strip("-.") or "recipe"
