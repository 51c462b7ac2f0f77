"""Semantic checks over a bound profile: what types and patterns cannot say. All run, whatever the others found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from envgen import files
from envgen.errors import Problem
from envgen.profile import check_services
from envgen.profile.bind import LOCAL_HINT, Binding, Report
from envgen.profile.model import ORIGIN_KINDS, Mode, Origin, Profile
from envgen.profile.tree import DEFAULT, LIST, MAP, TEXT, Node, near
from envgen.profile.values import LONGEST, ContainerPath
from envgen.redact import is_secret_value, secret_in, secret_like, secret_word
from envgen.text import forbidden_character


def check_profile(profile: Profile, tree: Node, binding: Binding, root: Path) -> None:
    """Note everything that is wrong with ``profile``."""
    report = Report(profile, tree, binding, root)
    _image(report)
    _sources(report)
    _env(report)
    _secrets(report)
    check_services.check(report)
    _own(report)
    _variants(report)


def _image(report: Report) -> None:
    profile = report.profile
    bare = [str(arch) for arch in profile.cuda.arch_list.archs if arch.needs_suffix_for_fp4]
    if profile.cuda.fp4 and bare:
        better = " ".join(str(a) + ("a" if a.needs_suffix_for_fp4 else "") for a in profile.cuda.arch_list.archs)
        report.problem(
            ("cuda", "arch_list"),
            f"{', '.join(bare)} has no FP4 instructions without the suffix a or f",
            f"write {better}; or cuda.fp4: false when no FP4 kernel is ever built",
        )
    if profile.image is not None and profile.image.digest:
        report.problem(("image",), "names a digest, which only a finished image has", "leave the @sha256:... out")
    if profile.image is not None and profile.image == profile.base.image:
        message = "is the base image itself, which a build would overwrite"
        report.problem(("image",), message, "choose a name of your own")
    if profile.dockerfile.lower().endswith(".dockerignore"):
        report.problem(("dockerfile",), "ends with .dockerignore, which means something else to Docker")
    if profile.ipc == "host" and profile.shm_size is not None:
        message = "has no effect with ipc: host, which shares the machine's /dev/shm"
        report.problem(("shm_size",), message, "remove one of them")
    for name, limit in profile.ulimits.items():
        infinite = 1 << 62
        if (infinite if limit.soft < 0 else limit.soft) > (infinite if limit.hard < 0 else limit.hard):
            report.problem(("ulimits", name), f"the soft limit {limit.soft} is above the hard limit {limit.hard}")


def _variants(report: Report) -> None:
    """Note variants that change a service or choose a group of variables that the profile does not have."""
    services = list(report.profile.services)
    for name in report.profile.variants:
        for service in report.names(("variants", name, "services")):
            if service not in services and not report.is_broken(f"variants.{name}"):
                message = f"this profile has no service {service!r} to change"
                report.problem(("variants", name, "services", service), message, near(service, services), at_key=True)
        _variant_groups(report, name)


def _variant_groups(report: Report, name: str) -> None:
    path = ("variants", name, "env_groups")
    node = report.node(path)
    if node is None or node.kind != LIST:
        return
    known = [*report.names(("env",)), *report.names(("variants", name, "env"))]
    for number, child in node.items.items():
        if child.text not in known:
            report.problem((*path, number), f"there is no group {child.text!r} in env", near(child.text, known))


def check_project(profiles: Mapping[str, Profile], trees: Mapping[str, Node]) -> list[Problem]:
    """What is wrong between the profiles of one project."""
    problems = []
    writers: dict[str, str] = {}
    for name, profile in profiles.items():
        file = profile.dockerfile.lower()  # one file on a file system that folds case
        first = writers.setdefault(file, name)
        if first != name:
            node = trees[name].items["dockerfile"]
            written = node.source.layer != DEFAULT
            place = node.place("dockerfile") if written else trees[name].key_place(f"profiles.{name}")
            message = f"profiles {first} and {name} both write {profile.dockerfile}"
            problems.append(Problem(message, place, f"give one of them another name, such as Dockerfile.{name}"))
    return problems


# Names that mean something else where a source's name is used: stages of a Dockerfile, words of the command line.
RESERVED_SOURCES = frozenset(("all", "base", "context", "scratch", "scripts", "wheelhouse"))


def _sources(report: Report) -> None:
    """Note what is wrong with the sources and with what surrounds them."""
    for name, source in report.profile.sources.items():
        if name in RESERVED_SOURCES:
            report.problem(("sources", name), f"{name!r} is a reserved name", "choose another", at_key=True)
        _origin(report, name, source.origin)
        if source.submodule_origins and (source.origin.kind in ("pypi", "wheel", "folder") or not source.submodules):
            path = ("sources", name, "submodule_origins")
            hint = "give it a git origin, and leave `submodules` on"
            report.problem(path, "there are no submodules to replace", hint, at_key=True)
    _between(report)
    _python_path(report)
    _packages(report)


def _origin(report: Report, name: str, origin: Origin) -> None:
    path = ("sources", name, "origin")
    kinds = [kind for kind in ORIGIN_KINDS if getattr(origin, kind) is not None]
    if len(kinds) > 1:
        report.problem(path, f"names {' and '.join(kinds)}: a source has one origin", "keep one of them", whole=True)
    elif not kinds:
        hint = "write one of git (with ref or pull), pypi, wheel, folder, checkout"
        report.problem(path, "names no origin", hint, at_key=True, whole=True)
    if origin.git is not None:
        if origin.ref is None and origin.pull is None:
            hint = "add ref (a branch, tag or commit) or pull (a number)"
            report.problem(path, "git without ref or pull", hint, at_key=True, whole=True)
        if origin.git.startswith("file://") and report.is_shared((*path, "git")):
            report.problem((*path, "git"), "is a place on one machine", LOCAL_HINT.format("a file:// address"))
    if origin.ref is not None and origin.pull is not None:
        report.problem((*path, "pull"), "ref and pull exclude each other", "keep one of them", at_key=True)
    for key in ("ref", "pull"):
        if getattr(origin, key) is not None and origin.git is None and not report.is_broken(".".join((*path, "git"))):
            report.problem((*path, key), f"{key} without git", "add the address: git: https://...", at_key=True)
    ref = origin.ref or ""
    if ".." in ref or "//" in ref or ref.endswith(("/", ".", ".lock")):
        report.problem((*path, "ref"), f"{ref!r} is not a branch, tag or commit")
    if origin.checkout is not None:
        if report.profile.mode is Mode.PRODUCTION and not report.is_broken("mode"):
            hint = "give it a git ref, a pypi or a wheel version; or set mode: development"
            report.problem((*path, "checkout"), "a production profile mounts no checkouts", hint, at_key=True)
        report.host_path((*path, "checkout"), origin.checkout)


def _between(report: Report) -> None:
    """Two sources that claim the same thing."""
    sources = report.sources("mount", "package", "distribution")
    for position, (name, source) in enumerate(sources):
        path = ("sources", name)
        for other, earlier in sources[:position]:
            if source.mount == earlier.mount:
                report.problem((*path, "mount"), f"{source.mount} is already the mount of {other}")
            elif source.mount.is_parent_of(earlier.mount) or earlier.mount.is_parent_of(source.mount):
                report.problem((*path, "mount"), f"{source.mount} and {earlier.mount} (of {other}) lie in each other")
            if source.package == earlier.package:
                report.problem((*path, "package"), f"{source.package} is already the package of {other}")
            if canonicalize_name(source.distribution) == canonicalize_name(earlier.distribution):
                report.problem((*path, "distribution"), f"{source.distribution} is already the distribution of {other}")


def _python_path(report: Report) -> None:
    entries = report.profile.python_path
    report.repeated(("python_path",), entries)
    mounted = {name: source for name, source in report.sources("mount", "package") if source.origin.kind == "checkout"}
    for number, entry in enumerate(entries):
        path = ("python_path", str(number))
        for name, source in mounted.items():
            if _parent(source.mount) == entry:
                message = (
                    f"{entry} is the parent folder of the checkout {source.mount}: from there Python sees the folder "
                    f"`{source.mount.path.rsplit('/', 1)[1]}`, which has no __init__.py, as a namespace package, and "
                    f"`import {source.package}` gives an empty module"
                )
                report.problem(path, message, f"name the checkout itself: {source.mount} (source {name})")
            elif entry.path == f"{source.mount.path}/{source.package}":
                message = f"{entry} is the package {source.package} itself: its modules would shadow others by name"
                report.problem(path, message, f"name the folder above it: {source.mount}")


def _parent(path: ContainerPath) -> ContainerPath:
    return ContainerPath(path.path.rsplit("/", 1)[0] or "/")


def _requirements(report: Report, path: tuple[str, ...], requirements: Sequence[str]) -> None:
    """What pip would refuse in mid-build."""
    for number, text in enumerate(requirements):
        try:
            Requirement(text)
        except InvalidRequirement as error:
            reason = str(error).split("\n", 1)[0]
            report.problem(
                (*path, str(number)), f"{text!r} is not a requirement: {reason}", "write it like cmake>=3.26"
            )


def _one_line(report: Report, path: tuple[str, ...], words: Sequence[str]) -> None:
    """Words that are printed into one line of a Dockerfile, each in quotes."""
    length = sum(len(word.encode()) + 3 + 4 * word.count("'") for word in words)
    if length > LONGEST:
        message = f"{length} bytes of words are more than one line of a Dockerfile carries ({LONGEST})"
        report.problem(path, message, "put the commands into a script of the source")


def _packages(report: Report) -> None:
    pip = report.profile.pip
    protected = {canonicalize_name(name) for name in pip.protect}
    sources = {canonicalize_name(source.distribution): name for name, source in report.sources("distribution")}
    for name, source in report.profile.sources.items():
        _requirements(report, ("sources", name, "install", "requires"), source.install.requires)
        _one_line(report, ("sources", name, "install", "prepare"), source.install.prepare)
    for number, name in enumerate(pip.remove):
        if canonicalize_name(name) in protected:
            message = f"{name} is in pip.protect: it can't be kept and removed"
            report.problem(("pip", "remove", str(number)), message, "remove it from one of the two")
    for key in ("tools", "deps"):
        _requirements(report, ("pip", key), getattr(pip, key))
        for number, requirement in enumerate(getattr(pip, key)):
            rest = requirement.lstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
            distribution = canonicalize_name(requirement.removesuffix(rest))
            path = ("pip", key, str(number))
            if distribution in protected:
                message = f"{distribution} is in pip.protect: it may not be installed"
                report.problem(path, message, "remove it from one of the two")
            if distribution in sources:
                message = f"{distribution} is what the source {sources[distribution]} installs; a wheel would hide it"
                report.problem(path, message, "remove it here")


# Variables that envgen sets itself, and the key that decides each. Written twice, they would drift.
DERIVED: Mapping[str, str] = {
    "PYTHONPATH": "python_path",
    "FLASHINFER_CUDA_ARCH_LIST": "cuda.arch_list",
    "TORCH_CUDA_ARCH_LIST": "cuda.torch",
    "CUDA_HOME": "cuda.home",
    "MAX_JOBS": "build.max_jobs",
    "FLASHINFER_NVCC_THREADS": "build.nvcc_threads",
    "NVCC_THREADS": "build.nvcc_threads",
    "TRITON_PTXAS_PATH": "cuda.home",
    "TIKTOKEN_ENCODINGS_BASE": "tiktoken.directory",
    "NVIDIA_VISIBLE_DEVICES": "gpu",
    "NVIDIA_DRIVER_CAPABILITIES": "gpu",
    "SSL_CERT_FILE": "network.ca_certificates",
    "REQUESTS_CA_BUNDLE": "network.ca_certificates",
    "CURL_CA_BUNDLE": "network.ca_certificates",
    "PIP_CERT": "network.ca_certificates",
    "HTTP_PROXY": "network.pass_proxy",
    "HTTPS_PROXY": "network.pass_proxy",
    "NO_PROXY": "network.pass_proxy",
    "http_proxy": "network.pass_proxy",
    "https_proxy": "network.pass_proxy",
    "no_proxy": "network.pass_proxy",
}
# Caches whose program must be told where they are, wherever the profile puts them:
# variable -> folder below the cache; torch's own defaults would lie in /tmp.
CACHE_VARIABLES: Mapping[str, Mapping[str, str]] = {
    "ccache": {"CCACHE_DIR": ""},
    "huggingface": {"HF_HOME": ""},
    "torch": {"TORCH_HOME": "", "TORCHINDUCTOR_CACHE_DIR": "/inductor", "TORCH_EXTENSIONS_DIR": "/extensions"},
    "triton": {"TRITON_CACHE_DIR": ""},
    "uv": {"UV_CACHE_DIR": ""},
    "vllm": {"VLLM_CACHE_ROOT": ""},
}
_CACHE_OF = {variable: cache for cache, variables in CACHE_VARIABLES.items() for variable in variables}
_CACHE_OF["FLASHINFER_WORKSPACE_BASE"] = "flashinfer"


def _env(report: Report) -> None:
    """Note what is wrong with variables and secrets."""
    secrets = report.profile.secrets
    for path, name in _variables(report):
        key = DERIVED.get(name, "")
        if _CACHE_OF.get(name) in report.profile.caches:
            key = f"caches.{_CACHE_OF[name]}.path"
        if key:
            report.problem(path, f"envgen sets {name} itself", f"use the key {key}", at_key=True)
        elif name.startswith("ENVGEN_"):
            report.problem(
                path, f"{name}: names that begin with ENVGEN_ are envgen's own", "choose another", at_key=True
            )
        if name in secrets:
            hint = "leave it in `secrets` alone: its value comes from your shell when a service starts"
            report.problem(path, f"{name} is also in `secrets`", hint, at_key=True)
    for number, name in enumerate(secrets):
        if name in DERIVED:
            report.problem(("secrets", str(number)), f"envgen sets {name} itself", f"use the key {DERIVED[name]}")
    report.repeated(("secrets",), secrets)
    groups = list(report.profile.env)
    in_use = _groups(report, ("env_groups",), report.profile.env_groups, groups, "there is no group {!r} in env")
    for name, service in report.profile.services.items():
        path = ("services", name, "env_groups")
        used = _groups(report, path, service.env_groups, in_use, "the group {!r} is not in use in this profile")
        _contradictions(report, path, used)


def _variables(report: Report) -> Iterator[tuple[tuple[str, ...], str]]:
    """Each variable with its path."""
    profile = report.profile
    for group, variables in profile.env.items():
        for name in variables:
            yield ("env", group, name), name
    for service_name, service in profile.services.items():
        for name in service.env:
            yield ("services", service_name, "env", name), name
    for source_name, source in profile.sources.items():
        for name in source.install.env:
            yield ("sources", source_name, "install", "env", name), name


def _groups(
    report: Report, path: tuple[str, ...], chosen: tuple[str, ...] | None, known: list[str], message: str
) -> list[str]:
    """The groups that are in use; unknown and repeated ones are noted."""
    if chosen is None:
        return known
    report.repeated(path, chosen)
    for number, group in enumerate(chosen):
        if group not in known:
            report.problem((*path, str(number)), message.format(group), near(group, known))
    return [group for group in known if group in chosen]


def _contradictions(report: Report, path: tuple[str, ...], groups: list[str]) -> None:
    """One variable with two values in the groups of one service: which one wins would be an accident."""
    first: dict[str, str] = {}
    env = report.profile.env
    for group in groups:
        for name, value in env[group].items():
            other = first.setdefault(name, group)
            if env[other][name] != value:
                hint = "put it into one group, or choose between the groups with env_groups"
                message = f"{name} is {value!r} here and {env[other][name]!r} in the group {other}"
                report.problem(("env", group, name), message, hint, at_key=True)


Path_ = tuple[str, ...]
_PROSE = frozenset(("description", "prompt", "expect_text", "expect", "forbid"))


def _secrets(report: Report) -> None:
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


LARGEST = 1 << 20


def _own(report: Report) -> None:
    """Note what is wrong with them."""
    profile = report.profile
    for place in ("base", "end"):
        for number, line in enumerate(getattr(profile.dockerfile_extra, place)):
            path = ("dockerfile_extra", place, str(number))
            for source in line.sources:
                report.in_project(path, source)
            if profile.reproducible:
                message = "reproducible can't hold for lines of your own: envgen does not know what they write"
                report.problem(path, message, "remove one of them")
    for name, encoding in profile.tiktoken.encodings.items():
        where = ("tiktoken", "encodings", name, "file")
        found = report.in_project(where, encoding.file.path) if encoding.file is not None else None
        if found is not None and found.is_dir():
            report.problem(where, f"{str(encoding.file)!r} is a folder", "name the file in it")
    if profile.compose is not None:
        file = report.in_project(("compose",), profile.compose.path)
        if file is not None:
            _compose(report, file)
    for name, source in report.sources("origin", "install"):
        if source.origin.folder is None:
            continue
        at = ("sources", name)
        folder = report.in_project((*at, "origin", "folder"), source.origin.folder.path)
        if folder is not None and not folder.is_dir():
            report.problem((*at, "origin", "folder"), f"{str(source.origin.folder)!r} is not a folder")
        if source.patches is not None:
            report.problem((*at, "patches"), "a folder of the project is not patched", "edit its files", at_key=True)
        if source.install.dependencies:
            message = "no index knows what a folder of the project depends on"
            report.problem((*at, "install", "dependencies"), message, "name its dependencies in pip.deps")


def _compose(report: Report, file: Path) -> None:
    """Text, of a size that a person writes, without secrets: it is committed like the project file."""
    path = ("compose",)
    try:
        text = files.read(file, limit=LARGEST).decode()
    except OSError as error:
        report.problem(path, f"{file.name!r} can't be read: {error.strerror}", "name a Compose file")
        return
    except UnicodeDecodeError:
        report.problem(path, f"{file.name!r} is not UTF-8 text", "name a Compose file")
        return
    for number, line in enumerate(text.splitlines(), 1):
        if forbidden_character(line.replace("\t", " ")):
            report.problem(path, f"line {number} of {file.name!r} has a control character", "remove it")
        elif kind := secret_in(line):
            hint = "write `secrets: [NAME]` in the profile, and ${NAME} there"
            report.problem(path, f"line {number} of {file.name!r} looks like a secret ({kind})", hint)
