"""Runs inside the container: asks the vLLM that is installed there what it would choose on a GPU that may be absent.

Nothing is chosen here: the release's own parser, configuration and selectors answer. Names move between releases:
``PLACES`` has all that are known, newest first, and each answer names the one that was used.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import importlib
import importlib.metadata
import importlib.util
import inspect
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import traceback
from typing import Any, Dict, Iterator, List, Optional, Tuple

Doc = Dict[str, Any]

PLACES = {
    # The parser of `vllm serve`: 0.32, then 0.11 to 0.31.
    "parser": (("vllm.entrypoints.launchers.cli_args", "make_arg_parser"),
               ("vllm.entrypoints.openai.cli_args", "make_arg_parser")),
    "parser class": (("vllm.utils.argparse_utils", "FlexibleArgumentParser"), ("vllm.utils", "FlexibleArgumentParser")),
    # 0.14 and later, then 0.11 to 0.13.
    "attention": (("vllm.v1.attention.selector", "get_attn_backend"), ("vllm.attention.selector", "get_attn_backend")),
    "layout": (("vllm.v1.attention.backends.utils", "get_kv_cache_layout"),),
    # The oracle of 0.19 and later, then the function of 0.18 and earlier.
    "mxfp4": (("vllm.model_executor.layers.fused_moe.oracle.mxfp4", "select_gpt_oss_mxfp4_moe_backend"),
              ("vllm.model_executor.layers.fused_moe.oracle.mxfp4", "select_mxfp4_moe_backend"),
              ("vllm.model_executor.layers.quantization.mxfp4", "get_mxfp4_backend")),
    "set config": (("vllm.config", "set_current_vllm_config"),),
    "reasoning-parser": (("vllm.reasoning", "ReasoningParserManager"),),
    "tool-call-parser": (("vllm.tool_parsers", "ToolParserManager"),
                         ("vllm.entrypoints.openai.tool_parsers", "ToolParserManager")),
}  # fmt: skip
STUBS = ("/usr/local/cuda*/lib64/stubs/libcuda.so", "/usr/local/cuda*/targets/*/lib/stubs/libcuda.so",
         "/usr/local/cuda*/compat/libcuda.so.1")  # fmt: skip
LINES = 400  # of the release's own log
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tekken.json", "tiktoken.model", "vocab.json")
STDLIB = os.path.dirname(os.__file__) + os.sep


class Refused(Exception):
    """The release refused, in its own words."""


LARGEST_CONFIG = 4 << 20  # bytes; those of released models have some thousands


class NotAskable(Exception):
    """This release has no such function, or wants to know more than can be given it."""


class Lines(logging.Handler):
    """Keeps what the release logs; ``step`` is what it was doing."""

    def __init__(self) -> None:
        logging.Handler.__init__(self, logging.DEBUG)
        self.step = "import"
        self.kept: List[Doc] = []

    def emit(self, record: logging.LogRecord) -> None:
        if len(self.kept) < LINES:
            text = record.getMessage()[:4000]
            if record.exc_info and record.exc_info[1] is not None:
                text += ": %s: %s" % (type(record.exc_info[1]).__name__, str(record.exc_info[1])[:1000])
            self.kept.append({"step": self.step, "level": record.levelname, "logger": record.name, "text": text})


def answer(request: Doc) -> Doc:
    lines = Lines()
    found: Doc = {"asked": {}, "refusals": [], "unasked": [], "stubs": [], "notes": []}
    found["python"] = sys.version.split()[0]
    with tempfile.TemporaryDirectory(prefix="envgen-predict-") as folder, told(found, lines):
        # Nothing is downloaded, and no cache of the service is written.
        os.environ.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_CACHE_ROOT=os.path.join(folder, "cache"))
        ask_all(request, found, lines, folder)
    found["lines"] = lines.kept
    return found


def behind(problem: BaseException) -> List[BaseException]:
    """The exception and what it was raised for, down to the first."""
    found: List[BaseException] = []
    waiting: List[Any] = [problem]
    while waiting:
        one = waiting.pop()
        if not isinstance(one, BaseException) or one in found:
            continue
        found.append(one)
        waiting.append(one.__cause__ or (None if one.__suppress_context__ else one.__context__))
        if type(one).__name__ == "ValidationError":  # pydantic's: it holds what a validator raised
            with contextlib.suppress(Exception):
                waiting += [each.get("ctx", {}).get("error") for each in one.errors()]  # type: ignore[attr-defined]
    return found


def on_purpose(problem: BaseException) -> bool:
    """Whether the release itself refuses. An accident, a missing package or a missing file says nothing about a
    server that has them."""
    text = str(problem)
    if "failed to be inspected" in text or re.search(r"\bImportError\b", text):
        return False
    if "requires Triton" in text and not has_triton():
        return False
    if any(isinstance(one, (ImportError, OSError)) for one in behind(problem)):
        return False
    if type(problem).__name__ == "ValidationError" and type(problem).__module__.startswith("pydantic"):
        return True
    if not isinstance(problem, (ValueError, NotImplementedError)) or isinstance(problem, UnicodeError):
        return False
    frames = traceback.extract_tb(problem.__traceback__)
    if not frames:
        return False
    last = frames[-1]
    packaged = "site-packages" in last.filename or "dist-packages" in last.filename
    if last.filename.startswith(STDLIB) and not packaged:
        return False  # int("x"), a JSON file that is none
    return not last.line or last.line.startswith("raise")


def has_triton() -> bool:
    """Whether the release has Triton switched on: without a driver, as here, it is off."""
    return bool(getattr(sys.modules.get("vllm.triton_utils"), "HAS_TRITON", True))


def turned_down(problem: BaseException, lines: Optional[Lines] = None) -> Exception:
    """A refusal of the release, or why it could not be asked and what would make the answer known."""
    if on_purpose(problem):
        return Refused(said(problem))
    why = "%s: %s" % (type(problem).__name__, str(problem)[:1000])
    chain = behind(problem)
    missing = next((one for one in chain if isinstance(one, ImportError)), None)
    logged = [one["text"] for one in (lines.kept if lines else ()) if "inspecting model arch" in one["text"]]
    if "failed to be inspected" in why and (INSPECTED or logged):
        why += " (%s)" % (INSPECTED or logged)[-1][-600:]
    if missing is not None or "No module named" in why:
        package = getattr(missing, "name", None) or (re.findall(r"No module named '([\w.]+)'", why) or ["it"])[-1]
        known = "with %s installed where it is asked, as the profile's image has it" % package
    elif any(isinstance(one, OSError) for one in chain):
        known = "with the model's files in the cache: `envgen model pull`"
    else:
        known = "where the server starts: this is no refusal, it was not said on purpose"
    return NotAskable("%s; it would be known %s" % (why, known))


INSPECTED: List[str] = []  # why a model's class could not be imported


@contextlib.contextmanager
def told(answers: Doc, lines: Lines) -> Iterator[None]:
    """What is raised inside goes into ``answers``: a refusal, or why it can't be asked."""
    try:
        yield
    except Refused as no:
        answers["refusals"].append({"step": lines.step, "message": str(no)[:8000]})
    except Exception as odd:
        frame = traceback.extract_tb(odd.__traceback__)[-1]
        why = "%s: %s (%s:%s)" % (type(odd).__name__, str(odd)[:1000], frame.filename, frame.lineno)
        answers["unasked"].append({"step": lines.step, "why": str(odd)[:2000] if isinstance(odd, NotAskable) else why})


def ask_all(request: Doc, found: Doc, lines: Lines, folder: str) -> None:
    release(found, lines)
    driver(found, folder)
    unloadable(found)
    platform = take_platform(request, found)
    lines.step = "arguments"
    args = parsed(request, found)
    known_parsers(args, found)
    place_model(args, request, found, folder)
    lines.step = "configuration"
    if platform is not None:  # the platform that is pretended has as many GPUs as one worker a GPU needs
        sizes = [getattr(args, name, 1) or 1 for name in ("tensor_parallel_size", "pipeline_parallel_size")]
        platform["count"] = max(int(sizes[0]) * int(sizes[1]), 1)
        found["platform"]["count"] = platform["count"]
    config = configured(args, found, lines)
    ask_selectors(config, found, lines)
    if offline(lines):
        # Whether NVIDIA's cubins can be had is decided where the server starts: ask for both.
        other: Doc = {"asked": {}, "refusals": [], "unasked": [], "notes": [], "kv": dict(found["kv"])}
        other.update({name: found[name] for name in ("model", "quantization")})
        os.environ["VLLM_HAS_FLASHINFER_CUBIN"] = "1"
        forget()
        before, lines.kept = lines.kept, []
        ask_selectors(config, other, lines)
        other["lines"], lines.kept = lines.kept, before
        found["with_cubins"] = other


def ask_selectors(config: Any, answers: Doc, lines: Lines) -> None:
    """Ask each selector; its answer, its refusal or why it can't be asked goes into ``answers``."""
    for lines.step, ask in (("attention", ask_attention), ("moe", ask_moe)):
        with told(answers, lines), named("set config")[1](config), everything_logged():
            answers["asked"][lines.step] = ask(config, answers)


def offline(lines: Lines) -> bool:
    """Whether the release missed NVIDIA's artifactory, with no variable that lists what is there."""
    asked = any("artifactory" in one["text"] and one["level"] == "WARNING" for one in lines.kept)
    return asked and "VLLM_HAS_FLASHINFER_CUBIN" not in os.environ


def forget() -> None:
    """Drop what the release has remembered about FlashInfer and its own choice, log messages included."""
    for name in ("vllm.utils.flashinfer", "vllm.v1.attention.selector", "vllm.v1.attention.backends.utils",
                 "vllm.platforms.cuda", "vllm.logger"):  # fmt: skip
        for one in list(vars(sys.modules.get(name, sys)).values()):
            if type(one).__name__ == "_lru_cache_wrapper":  # a platform claims to have any attribute
                one.cache_clear()


def release(found: Doc, lines: Lines) -> None:
    """Import vLLM and listen to its log."""
    for name in ("torch", "flashinfer-python", "flashinfer-cubin", "transformers"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found.setdefault("versions", {})[name] = importlib.metadata.version(name)
    try:
        vllm = importlib.import_module("vllm")
        importlib.import_module("vllm.logger")  # first: it sets logging up
    except Exception as problem:
        raise NotAskable("import vllm: %s: %s" % (type(problem).__name__, problem)) from None
    place = getattr(vllm, "__file__", None)
    if place is None:
        where = list(getattr(vllm, "__path__", []))
        raise NotAskable("import vllm gives an empty namespace package (%s)" % ", ".join(map(str, where)))
    found["vllm"] = {"version": str(getattr(vllm, "__version__", "unknown")), "file": place}
    logger: Any = logging.getLogger("vllm")
    logger.addHandler(lines)
    remove = logger.removeHandler  # from 0.3x on it sets logging up once more, from its configuration
    logger.removeHandler = lambda one: None if one is lines else remove(one)


# --- what a machine without a driver lacks ----------------------------------------------------------------------------


def driver(found: Doc, folder: str) -> None:
    """Compiled modules are linked against libcuda: without a driver, a stub of it lets them load."""
    try:
        ctypes.CDLL("libcuda.so.1")
        return
    except OSError:
        pass
    package = os.path.dirname(found["vllm"]["file"])
    modules = sorted(glob.glob(os.path.join(package, "*.so")))
    if not modules:
        return
    for pattern in STUBS:
        for stub in sorted(glob.glob(pattern)):
            if loaded(stub):
                found["stubs"].append({"name": "libcuda.so.1", "how": stub})
                return
    built = built_stub(modules, folder)
    if built is not None and loaded(built):
        found["stubs"].append({"name": "libcuda.so.1", "how": "built from the names that vLLM's modules want"})
    else:
        found["notes"].append("libcuda.so.1 is missing, and there is neither a CUDA stub nor a C compiler to make one")


def unloadable(found: Doc) -> None:
    """Compiled modules that are there and can't be loaded (no CUDA libraries here): empty ones take their place."""
    package = os.path.dirname(found["vllm"]["file"])
    count = len(found["stubs"])
    for path in sorted(glob.glob(os.path.join(package, "**", "*.so"), recursive=True)):
        inner = os.path.relpath(path, package).split(".")[0].split(os.sep)
        name = ".".join(["vllm"] + inner)
        if name in sys.modules:
            continue
        try:
            ctypes.CDLL(path)
        except OSError as problem:
            empty(name, "empty: %s" % problem, found)
    if len(found["stubs"]) > count:
        not_compiled(found)


def empty(name: str, how: str, found: Doc) -> None:
    """An empty module under the name of a compiled one."""
    stub = sys.modules[name] = type(sys)(name)
    stub.__dict__["__file__"] = "<envgen: empty>"
    parent, _, last = name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], last, stub)
    found["stubs"].append({"name": name, "how": how[:300]})


def loaded(path: str) -> bool:
    """The loader takes it for libcuda.so.1 from now on, by its SONAME."""
    try:
        ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return True


def built_stub(modules: List[str], folder: str) -> Optional[str]:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    names: Dict[str, None] = {}
    symbols = shutil.which("nm")
    for path in modules if symbols else []:
        done = subprocess.run(
            [str(symbols), "-D", "--undefined-only", path], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        for name in re.findall(r"\bU (cu[A-Z]\w*)", done.stdout.decode("ascii", "replace")):
            names[name.partition("@")[0]] = None
    source = os.path.join(folder, "stub.c")
    with open(source, "w", encoding="utf-8") as file:
        # 34 is CUDA_ERROR_STUB_LIBRARY, what NVIDIA's own stubs return.
        file.writelines("int %s(void) { return 34; }\n" % name for name in names)
    target = os.path.join(folder, "libcuda.so.1")
    command = [compiler, "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", target, source]
    if subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode != 0:
        return None
    return target


def imported(name: str, found: Doc) -> Any:
    """Import a module of vLLM; a compiled one that is not built or can't be loaded is replaced by an empty one."""
    for _ in range(8):
        try:
            return importlib.import_module(name)
        except Exception as problem:
            missing = getattr(problem, "name", "") or ""
            if not re.match(r"vllm\._\w+$", missing) or missing in sys.modules:
                raise NotAskable("import %s: %s: %s" % (name, type(problem).__name__, problem)) from None
            empty(missing, "empty: %s" % problem, found)
            not_compiled(found)
    raise NotAskable("import %s: too many compiled modules are missing" % name)


def not_compiled(found: Doc) -> None:
    """While vLLM is imported it asks its compiled code what that supports. What is not there supports nothing."""
    torch = importlib.import_module("torch")
    package = os.path.dirname(found["vllm"]["file"])
    with open(os.path.join(package, "_custom_ops.py"), encoding="utf-8") as file:
        questions = sorted(set(re.findall(r"torch\.ops\.(_C\w*)\.(\w*support\w*)\(", file.read())))
    for space, name in questions:
        holder = getattr(torch.ops, space)
        if not hasattr(holder, name):
            setattr(holder, name, lambda *_: False)
            found["stubs"].append({"name": "torch.ops.%s.%s" % (space, name), "how": "answers no: not compiled here"})


def take_platform(request: Doc, found: Doc) -> Optional[Doc]:
    """Put a platform that reports the GPU of the request into vLLM, unless a real one is there and is wanted."""
    platforms = imported("vllm.platforms", found)
    gpu = request["gpu"]
    if request.get("real") and platforms.current_platform.is_cuda():
        real = platforms.current_platform
        capability = real.get_device_capability()
        found["platform"] = {"name": real.get_device_name(), "capability": [capability.major, capability.minor],
                             "memory": real.get_device_total_memory(), "count": real.device_count(),
                             "real": True}  # fmt: skip
        return None
    cuda = imported("vllm.platforms.cuda", found)
    interface = imported("vllm.platforms.interface", found)
    capability = interface.DeviceCapability(*gpu["capability"])
    told: Doc = {"count": 1}

    class Reported(cuda.CudaPlatformBase):  # type: ignore[misc, name-defined]
        """vLLM's CUDA platform, with the figures of a GPU that is not there."""

        get_device_capability = classmethod(lambda cls, device_id=0: capability)
        get_device_name = classmethod(lambda cls, device_id=0: gpu["name"])
        get_device_total_memory = classmethod(lambda cls, device_id=0: int(gpu["memory"]))
        get_device_uuid = classmethod(lambda cls, device_id=0: "GPU-reported-by-envgen")
        get_current_memory_usage = classmethod(lambda cls, device=None: 0)
        is_fully_connected = classmethod(lambda cls, device_ids: True)
        device_count = classmethod(lambda cls: told["count"])

    platforms._current_platform = Reported()
    for name, module in list(sys.modules.items()):  # those that have imported it by name already
        if name.startswith("vllm") and "current_platform" in vars(module) and module is not platforms:
            vars(module)["current_platform"] = platforms._current_platform
    found["platform"] = {"name": gpu["name"], "capability": list(gpu["capability"]), "memory": int(gpu["memory"]),
                         "count": 1, "real": False}  # fmt: skip
    return told


# --- what `vllm serve` does with its words ----------------------------------------------------------------------------


def named(what: str) -> Tuple[str, Any]:
    """(where, function) of the first place that this release has."""
    for place, name in PLACES[what]:
        try:
            module = importlib.import_module(place)
        except ModuleNotFoundError as problem:
            if not place.startswith(str(problem.name)):
                raise NotAskable("import %s: %s" % (place, problem)) from None
            continue
        except Exception as problem:
            raise NotAskable("import %s: %s: %s" % (place, type(problem).__name__, problem)) from None
        if hasattr(module, name):
            return "%s.%s" % (place, name), getattr(module, name)
    known = ", ".join("%s.%s" % one for one in PLACES[what])
    raise NotAskable("this release has none of %s" % known)


def parsed(request: Doc, found: Doc) -> Any:
    """The words of `vllm serve`, read by the release's own parser."""
    found["asked"]["parser"], make = named("parser")
    parser = make(named("parser class")[1]())

    def refuse(message: str) -> None:
        raise Refused(message)

    parser.error = refuse
    try:
        return parser.parse_args(list(request["words"]))
    except Refused:
        raise
    except SystemExit as problem:
        raise Refused("the parser ended with exit code %s" % problem.code) from None
    except Exception as problem:
        raise turned_down(problem) from None


def known_parsers(args: Any, found: Doc) -> None:
    """The names of the parsers, which the server looks up before anything else. A plugin may bring its own."""
    for option, plugin, counts in (
        ("tool-call-parser", "tool_parser_plugin", getattr(args, "enable_auto_tool_choice", False)),
        ("reasoning-parser", "reasoning_parser_plugin", True),
    ):
        name = getattr(args, option.replace("-", "_"), None)
        if not name or not counts or getattr(args, plugin, None):
            continue
        try:
            known = list(named(option)[1].list_registered())
        except Exception:
            found["notes"].append("whether this release has the %s %s was not asked" % (option, name))
            continue
        if known and name not in known:
            raise Refused("invalid %s: %s (this release has %s)" % (option, name, ", ".join(sorted(known))))


def has_tokenizer(args: Any) -> bool:
    """Whether the model's tokenizer is in its folder or in the Hugging Face cache."""
    name = str(getattr(args, "tokenizer", None) or args.model)
    if os.path.isdir(name):
        return any(os.path.isfile(os.path.join(name, file)) for file in TOKENIZERS)
    hub = importlib.import_module("huggingface_hub")
    revision = getattr(args, "tokenizer_revision", None) or getattr(args, "revision", None)
    with contextlib.suppress(ValueError):  # no name of a repository
        return any(isinstance(hub.try_to_load_from_cache(name, file, revision=revision), str) for file in TOKENIZERS)
    return False


def without_tokenizer(args: Any, found: Doc, why: str) -> None:
    """Ask without the tokenizer, and without what needs one: kernels don't hang on either."""
    args.skip_tokenizer_init = True
    parser = getattr(args, "reasoning_parser", None)
    if parser:
        args.reasoning_parser = ""
        found["notes"].append("the reasoning parser %s was left out of the question: %s" % (parser, why))
    if getattr(args, "reasoning_config", None) is not None:
        args.reasoning_config = None


def place_model(args: Any, request: Doc, found: Doc, folder: str) -> None:
    """Where the model's config.json comes from: its folder, the Hugging Face cache, or what the request brings."""
    if getattr(args, "model_tag", None):
        args.model = args.model_tag
    name = str(args.model)
    told: Doc = {"name": name}
    found["model"] = told
    if os.path.isfile(os.path.join(name, "config.json")):
        told.update({"from": "folder", "place": os.path.join(name, "config.json")})
    else:
        hub = importlib.import_module("huggingface_hub")
        place = None
        with contextlib.suppress(ValueError):  # no name of a repository
            place = hub.try_to_load_from_cache(name, "config.json", revision=getattr(args, "revision", None))
        if isinstance(place, str):
            told.update({"from": "cache", "place": place})
        elif name in request["models"]:
            told["from"] = "envgen"
            with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
                json.dump(request["models"][name], file)
            args.model = folder
            if getattr(args, "served_model_name", None) is None:
                args.served_model_name = [name]
        else:
            raise NotAskable(
                "the config.json of %s is neither in the Hugging Face cache nor among those that envgen brings" % name
            )
    if "place" in told:
        check_config(told["place"])
    draft = getattr(args, "speculative_config", None)
    if isinstance(draft, dict) and draft.get("model"):
        repository = str(draft["model"])
        if not os.path.isdir(repository):
            hub = importlib.import_module("huggingface_hub")
            if not isinstance(hub.try_to_load_from_cache(repository, "config.json"), str):
                args.speculative_config = None
                why = "the config.json of the draft model %s is not in the Hugging Face cache" % repository
                found["unasked"].append({"step": "speculative-config", "why": why})


def check_config(place: str) -> None:
    """NotAskable for a config.json that no release should be made to read."""
    if os.path.getsize(place) > LARGEST_CONFIG:
        raise NotAskable("%s has %d MiB: no model has such a config.json" % (place, os.path.getsize(place) >> 20))
    try:
        with open(place, encoding="utf-8") as file:
            if not isinstance(json.load(file), dict):
                raise ValueError("it is not a mapping")
    except RecursionError:
        raise NotAskable("%s cannot be read: it is nested too deep" % place) from None
    except (OSError, ValueError) as error:
        raise NotAskable("%s cannot be read: %s" % (place, error)) from None


def configured(args: Any, found: Doc, lines: Optional[Lines] = None) -> Any:
    """The release's whole configuration, with its own checks; with the model's tokenizer where that is here."""
    arg_utils = importlib.import_module("vllm.engine.arg_utils")
    inspect_here()
    if not has_triton() and os.environ.get("VLLM_USE_V2_MODEL_RUNNER") == "1":
        del os.environ["VLLM_USE_V2_MODEL_RUNNER"]
        why = "that runner wants Triton, which is switched off where there is no driver"
        found["notes"].append("VLLM_USE_V2_MODEL_RUNNER was left out of the question: %s" % why)
    engine = getattr(arg_utils, "AsyncEngineArgs", arg_utils.EngineArgs)
    config, odd = None, None
    if has_tokenizer(args):
        try:
            config = engine.from_cli_args(args).create_engine_config()
        except Exception as problem:
            odd = problem
            if on_purpose(problem):
                raise Refused(said(problem)) from None
    if config is None:
        lacking = "%s: %s" % (type(odd).__name__, str(odd)[:300]) if odd else "the tokenizer is not in the cache"
        without_tokenizer(args, found, lacking)
        try:
            config = engine.from_cli_args(args).create_engine_config()
        except Exception as problem:
            raise turned_down(problem, lines) from None
    model = config.model_config
    found["quantization"] = str(model.quantization) if model.quantization else None
    found["kv"] = {"dtype": str(config.cache_config.cache_dtype), "block_size": config.cache_config.block_size}
    found["model"].update({
        "architectures": list(getattr(model.hf_config, "architectures", None) or []),
        "type": str(getattr(model.hf_config, "model_type", "")),
        "dtype": str(model.dtype).replace("torch.", ""), "head_size": model.get_head_size(), "mla": bool(model.use_mla),
        "sinks": has_sinks(model),
    })  # fmt: skip
    found["config_line"] = config_line(config)
    with contextlib.suppress(Exception):  # another release: memory is not estimated then
        found["size"] = size_of(config, found)
    return config


def size_of(config: Any, found: Doc) -> Doc:
    """What decides how much memory the server needs, after the release's own defaults."""
    model, cache, parallel, steps = (
        getattr(config, name) for name in ("model_config", "cache_config", "parallel_config", "scheduler_config")
    )
    text = model.hf_config.to_dict()
    text = text.get("text_config") or text
    return {
        "config": {name: value for name, value in text.items() if not isinstance(value, dict)},
        "weights": weights_of(os.path.dirname(found["model"].get("place", ""))), "context": model.max_model_len,
        "cache_dtype": str(cache.cache_dtype), "dtype": str(model.dtype).replace("torch.", ""),
        "share": cache.gpu_memory_utilization, "fixed": getattr(cache, "kv_cache_memory_bytes", None),
        "ranks": parallel.tensor_parallel_size, "stages": parallel.pipeline_parallel_size,
        "sequences": steps.max_num_seqs, "batched": steps.max_num_batched_tokens,
        "draft": getattr(config, "speculative_config", None) is not None,
    }  # fmt: skip


def weights_of(folder: str) -> Optional[int]:
    """Bytes of the model's weights, by the index beside its config.json or the one file; None where neither is."""
    index, whole = (os.path.join(folder, name) for name in ("model.safetensors.index.json", "model.safetensors"))
    if not folder:
        return None
    if os.path.isfile(index) and os.path.getsize(index) < 100 << 20:
        try:
            with open(index, encoding="utf-8") as file:
                total = int(json.load(file)["metadata"]["total_size"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):  # the rest of the estimate stands
            return None
        return total if total > 0 else None
    return os.path.getsize(whole) if os.path.isfile(whole) else None


def inspect_here() -> None:
    """vLLM imports the model's class in a second process, so as not to touch CUDA. Here it may: half the time."""
    try:
        registry: Any = importlib.import_module("vllm.model_executor.models.registry")
        apart = registry._run_in_subprocess
    except Exception:
        return  # another release: it does as it likes

    def here_first(function: Any) -> Any:
        try:
            return function()
        except Exception as problem:
            INSPECTED.append("%s: %s" % (type(problem).__name__, problem))
            return apart(function)

    registry._run_in_subprocess = here_first


def said(problem: BaseException) -> str:
    """What was refused, without the frame that pydantic puts around it."""
    text = str(problem)
    inner = re.search(r"\n\s+(Value error|Assertion failed), (.*?) \[type=", text, re.DOTALL)
    return "%s: %s" % (type(problem).__name__, inner.group(2) if inner else text)


def config_line(config: Any) -> Optional[str]:
    """The line with the whole configuration that the engine's core logs first, made by the release's own words."""
    try:
        core = importlib.util.find_spec("vllm.v1.engine.core")
        with open(str(core.origin if core else ""), encoding="utf-8") as file:
            words = re.search(r'"(Initializing a V1 LLM engine \(v%s\) with config: %s)"', file.read())
        version = sys.modules["vllm"].__dict__.get("__version__", "")
        return words.group(1) % (version, config) if words else None
    except Exception:
        return None


# --- the selectors ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def everything_logged() -> Iterator[None]:
    """The reasons for what was not chosen are debug messages."""
    root = logging.getLogger("vllm")
    level, others = root.level, [(one, one.level) for one in root.handlers if not isinstance(one, Lines)]
    for one, _ in others:
        one.setLevel(max(level, logging.INFO))
    root.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        root.setLevel(level)
        for one, before in others:
            one.setLevel(before)


def has_sinks(model: Any) -> bool:
    """Whether the release's own code of this model passes attention sinks to its attention layers."""
    try:
        known = importlib.import_module("vllm.model_executor.models").ModelRegistry.models
        module = next(known[name].module_name for name in model.architectures if name in known)
        spec: Any = importlib.util.find_spec(module)
        with open(spec.origin, encoding="utf-8") as file:  # read, because its import needs kernels
            return bool(re.search(r"\bsinks\s*=", file.read()))
    except Exception:
        return str(getattr(model.hf_config, "model_type", "")) == "gpt_oss"


def accepted(function: Any, values: Doc) -> Doc:
    """Those of the values that this release's function has a parameter for."""
    names = inspect.signature(function).parameters
    return {name: value for name, value in values.items() if name in names}


def ask_attention(config: Any, found: Doc) -> Doc:
    where, select = named("attention")
    model, cache = config.model_config, config.cache_config
    text = getattr(model, "hf_text_config", model.hf_config)
    if getattr(text, "compress_ratios", None):
        raise NotAskable("attention layers of %s choose their kernels themselves: the selector is not what they ask"
                         % found["model"]["type"])  # fmt: skip
    parallel = config.parallel_config
    shared: Doc = {
        "head_size": model.get_head_size(), "dtype": model.dtype, "kv_cache_dtype": cache.cache_dtype,
        "block_size": cache.block_size, "use_mla": bool(model.use_mla), "has_sink": found["model"]["sinks"],
        "use_sparse": hasattr(text, "index_topk"), "num_heads": model.get_num_attention_heads(parallel),
        "use_mm_prefix": bool(getattr(model, "is_mm_prefix_lm", False)), "attn_type": None,
        "is_attention_free": bool(getattr(model, "is_attention_free", False)), "use_v1": True,
    }  # fmt: skip
    chosen: List[str] = []
    # Layers with a window and layers without may be treated differently (from 0.30 on): ask for each kind.
    kinds = [True, False] if getattr(text, "sliding_window", None) else [False]
    for window in kinds if "has_sliding_window" in inspect.signature(select).parameters else [False]:
        values = accepted(select, dict(shared, has_sliding_window=window))
        try:
            name = str(select(**values).get_name())
        except Exception as problem:
            raise turned_down(problem) from None
        if name not in chosen:
            chosen.append(name)
    wanted = asked_for(config, "attention_config", "backend") or os.environ.get("VLLM_ATTENTION_BACKEND")
    told = {"where": where, "backend": " + ".join(chosen), "asked_for": wanted}
    with contextlib.suppress(Exception):
        _, layout = named("layout")
        found["kv"]["layout"] = layout()
    return told


def asked_for(config: Any, part: str, name: str) -> Optional[str]:
    """What the service's own words choose; None where the choice is left to the release."""
    found = getattr(getattr(config, part, None), name, None)
    return None if found in (None, "auto") else str(getattr(found, "name", found))


def ask_moe(config: Any, found: Doc) -> Optional[Doc]:
    text = getattr(config.model_config, "hf_text_config", config.model_config.hf_config)
    experts = next((getattr(text, name) for name in ("num_local_experts", "num_experts", "n_routed_experts")
                    if getattr(text, name, None)), 0)  # fmt: skip
    if not experts:
        return None  # a dense model
    wanted = asked_for(config, "kernel_config", "moe_backend")
    try:
        if "gpt_oss" in str(text.model_type) and "mxfp4" in str(found["quantization"]):
            where, select = named("mxfp4")
            if where.endswith("get_mxfp4_backend"):
                chosen = select(**accepted(select, {"with_lora_support": config.lora_config is not None}))
            else:
                chosen = select(layer(config, int(experts), text))[0]
        else:
            where, chosen = experts_method(config, int(experts), text)
    except NotAskable:
        raise
    except Exception as odd:
        # What the oracle says is the release's word; what a layer without weights trips over is not.
        oracle = any("oracle" in one.filename or one.name == "get_mxfp4_backend"
                     for one in traceback.extract_tb(odd.__traceback__))  # fmt: skip
        if oracle and on_purpose(odd) and not lacks_compiled(odd, found):
            raise Refused(said(odd)) from None
        raise NotAskable("the choice for %s experts wants more than a layer's shape and the release's Python code:"
                         " %s: %s" % (found["quantization"] or "plain", type(odd).__name__, odd)) from None  # fmt: skip
    return {"where": where, "backend": str(getattr(chosen, "name", chosen)), "asked_for": wanted}


def lacks_compiled(problem: BaseException, found: Doc) -> bool:
    """Whether a backend may be turned down only because vLLM's compiled code is not here."""
    gone = any(str(one["name"]).startswith(("vllm.", "torch.ops.")) for one in found.get("stubs", ()))
    return gone and re.search(r"current device|not available|No \w+ MoE backend", str(problem)) is not None


def experts_method(config: Any, experts: int, text: Any) -> Tuple[str, Any]:
    """The release's own quantization makes the method of a layer of experts, which asks the oracle for its kernels."""
    fused: Any = importlib.import_module("vllm.model_executor.layers.fused_moe")
    try:
        kind: Any = importlib.import_module("vllm.model_executor.layers.fused_moe.routed_experts").RoutedExperts
    except ImportError:
        kind = fused.FusedMoE
    described = layer(config, experts, text)
    empty_layer: Any = type(kind.__name__, (kind,), {"__init__": importlib.import_module("torch").nn.Module.__init__})()
    values = {"moe_config": described, "moe_parallel_config": described.moe_parallel_config, "activation": "silu",
              "layer_name": EXPERTS, "local_num_experts": described.num_local_experts,
              "global_num_experts": experts, "apply_router_weight_on_input": False}  # fmt: skip
    for name, value in values.items():
        with contextlib.suppress(AttributeError):  # a property of this release
            setattr(empty_layer, name, value)
    quantization = config.quant_config
    method = quantization.get_quant_method(empty_layer, EXPERTS) if quantization is not None else None
    if method is None:
        unquantized: Any = importlib.import_module("vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method")
        method = unquantized.UnquantizedFusedMoEMethod(described)
    where = "%s.%s" % (type(method).__module__, type(method).__name__)
    for name, value in vars(method).items():
        if name.endswith("_backend") and hasattr(value, "name"):
            return where, value
    raise NotAskable("%s names no backend in this release" % where)


EXPERTS = "model.layers.3.mlp.experts"  # no layer that models treat apart


def alone(kind: Any) -> Any:
    """The parallel configuration of one GPU."""
    if hasattr(kind, "make_no_parallel"):
        return kind.make_no_parallel()
    known: Doc = {"use_ep": False, "all2all_backend": "naive", "enable_eplb": False, "is_sequence_parallel": False}
    sizes = {name: 0 if name.endswith("_rank") else 1 for name in kind.__dataclass_fields__ if name not in known}
    return kind(**sizes, **{name: value for name, value in known.items() if name in kind.__dataclass_fields__})


def layer(config: Any, experts: int, text: Any) -> Any:
    """The description of one layer of experts, from the model's own figures; nothing is computed."""
    moe = importlib.import_module("vllm.model_executor.layers.fused_moe.config")
    parallel = config.parallel_config
    split = alone(moe.FusedMoEParallelConfig)
    size = int(parallel.tensor_parallel_size)
    expert_parallel = bool(getattr(parallel, "enable_expert_parallel", False)) and size > 1
    if size > 1:
        changes = {"ep_size": size, "use_ep": True} if expert_parallel else {"tp_size": size}
        split = type(split)(**dict({name: getattr(split, name) for name in split.__dataclass_fields__}, **changes))
    intermediate = int(getattr(text, "moe_intermediate_size", None) or text.intermediate_size)
    gpt_oss = str(getattr(text, "model_type", "")) == "gpt_oss"
    act = str(getattr(text, "mlp_hidden_act", None) or getattr(text, "hidden_activation", None)
              or getattr(text, "hidden_act", "silu"))  # fmt: skip
    gated = act != "relu2"  # Nemotron-H's experts
    values = {
        "num_experts": experts, "num_logical_experts": experts,
        "num_local_experts": experts // (size if expert_parallel else 1),
        "experts_per_token": int(getattr(text, "num_experts_per_tok", None) or getattr(text, "top_k_experts", 1) or 1),
        "hidden_dim": int(getattr(text, "moe_latent_size", None) or text.hidden_size),
        "intermediate_size": intermediate,
        "intermediate_size_per_partition": intermediate // (1 if expert_parallel else size), "device": "cuda",
        "is_act_and_mul": gated, "routing_method": moe.RoutingMethodType.Renormalize,
        "in_dtype": config.model_config.dtype,
        "swiglu_limit": None if gpt_oss else getattr(text, "swiglu_limit", None),
        "has_bias": gpt_oss, "moe_parallel_config": split, "is_lora_enabled": config.lora_config is not None,
        "moe_backend": getattr(getattr(config, "kernel_config", None), "moe_backend", "auto"),
    }  # fmt: skip
    fields = {name: one for name, one in moe.FusedMoEConfig.__dataclass_fields__.items() if one.init}
    if "activation" in fields:
        kinds: Any = importlib.import_module("vllm.model_executor.layers.fused_moe.activation").MoEActivation
        tanh = getattr(kinds, "GELU_TANH", kinds.GELU)
        known = {"relu2": "RELU2_NO_MUL", "gelu": "GELU", "silu": "SILU", "swish": "SILU"}
        values["activation"] = kinds.SWIGLUOAI if gpt_oss else tanh if "tanh" in act else getattr(kinds, known[act])
    return moe.FusedMoEConfig(**{name: value for name, value in values.items() if name in fields})
