"""The command line of scripts/gpu-day: runs the steps and writes one report of them."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import functools
import getpass
import json
import os
import re
import shutil
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from envgen import files
from envgen.errors import EnvgenError
from envgen.redact import redact
from envgen.text import visible
from gpu_day import answers, change, comparing, loop, machines, moe, serving, starts, trouble  # noqa: F401  # each registers its steps
from gpu_day.day import MARKER, OWN, Day, NotRun, Rows, kept
from gpu_day.day import STEPS as REGISTERED
from gpu_day.models import MODELS, NAME, TOP

ORDER = (
    "facts",
    "image",
    "model",
    "predict",
    "up",
    "doctor",
    "smoke",
    "bench",
    "load",
    "trace",
    "log",
    "answers",
    "sweep",
    "models",
    "whole",
    "clear",
    "moe",
    "crash",
    "wedged",
    "endless",
    "debug",
    "several-gpus",
    "pair",
    "ship",
    "upgrade",
    "upgrade-fails",
    "bisect",
    "dev",
    "down",
)
STEPS = {name: REGISTERED[name] for name in ORDER}
DESCRIPTION = """\
Serve a model on this machine's GPU with everything that envgen does, and write one report of what was seen.

Needs an NVIDIA GPU, a Docker Engine that gives it to containers, 40 GB of disk, and the network or --wheels. Takes 15
to 40 minutes. It works in a folder of its own, under the project name `gpu-day`, and touches nothing of anybody else.
"""
EPILOG = """\
Each step can be run alone and again; without names, all of them run in this order:
{steps}
  clean        removes its containers, images, volumes and folder

examples:
  scripts/gpu-day
  scripts/gpu-day up doctor
  scripts/gpu-day --wheels ~/wheels --tokenizer ~/gpt-oss     # without a network
  scripts/gpu-day --repo openai/gpt-oss-120b                  # real weights, from your Hugging Face cache
"""


def clean(day: Day) -> None:
    """Remove everything of the day, and nothing else that lies in its folder."""
    if day.foreign:
        sys.exit("gpu-day: the project is your own; `envgen down` stops it")
    if not (day.work / MARKER).is_file():
        sys.exit(f"gpu-day: {day.work} is not a folder that it made; nothing was removed")
    if (day.project / "envgen.yaml").exists():
        day.envgen("down", "--volumes")
        image_name = day.settings.image_name
        # What containers wrote may belong to root. A link is not followed: what lies behind it is
        # another's.
        if day.hub.is_dir() and not day.hub.is_symlink():
            empty = ("-v", f"{day.hub}:/hub", image_name, "-rf", "/hub/hub", f"/hub/{NAME}")
            day.docker("run", "--rm", "--entrypoint", "rm", *empty)
        day.docker("image", "rm", "-f", image_name)
    for path in (day.work / name for name in OWN):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    if any(day.work.iterdir()):
        print(f"gpu-day: {day.work} stays: it has files that are not its own", file=sys.stderr)
    else:
        day.work.rmdir()


@contextlib.contextmanager
def noted(day: Day, name: str, rows: Rows) -> Iterator[None]:
    """Write the step's result, however it ends."""
    title, _ = STEPS[name]
    began, why, outcome, stopped = time.monotonic(), "", "passed", False
    print(f"== {name}: {title}", file=sys.stderr, flush=True)
    try:
        yield
    except NotRun as reason:
        outcome, why = "not run", str(reason)
    except KeyboardInterrupt:
        stopped = not rows.add("the step itself", False, "interrupted")
    except Exception as error:  # whatever a server answers, the other steps run
        rows.add("the step itself", False, f"{type(error).__name__}: {error}")
    if any(row["held"] is False for row in rows.rows):
        outcome = "failed"
    document = {
        "step": name,
        "title": title,
        "outcome": outcome,
        "why": why,
        "seconds": round(time.monotonic() - began, 1),
        "at": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "rows": rows.rows,
        "data": rows.data,
    }
    folder = day.work / "steps"
    folder.mkdir(parents=True, exist_ok=True)
    files.write(folder / f"{name}.json", json.dumps(document, indent=1, default=str).encode())
    print(visible(f"   {outcome} after {document['seconds']} s {why}"), file=sys.stderr, flush=True)
    if stopped:
        raise KeyboardInterrupt


def anonymous(day: Day, text: str) -> str:
    """``text`` without secrets and names of this machine, its users and its folders."""
    names = {
        str(day.work): "~/gpu-day",
        str(TOP): "envgen",
        str(Path.home()): "~",
        socket.gethostname(): "host",
    }
    with contextlib.suppress(KeyError, OSError):
        names[f"/home/{getpass.getuser()}"] = "~"
    for name in sorted(names, key=len, reverse=True):
        if len(name) > 3 and name != "/root":
            text = text.replace(name, names[name])
    return redact(text)


def anonymous_values(day: Day, value: Any) -> Any:
    """``value`` with each text made anonymous by itself: a secret that has no end would take the
    rest along.
    """
    if isinstance(value, dict):
        return {key: anonymous_values(day, one) for key, one in value.items()}
    if isinstance(value, list):
        return [anonymous_values(day, one) for one in value]
    return anonymous(day, value) if isinstance(value, str) else value


def report(day: Day) -> str:
    """Write gpu-day.json and gpu-day.md; the latter's text."""
    done = [kept(day, name) for name in STEPS]
    found = [anonymous_values(day, one) for one in done if one]
    absent = [name for name in STEPS if not kept(day, name)]
    text = json.dumps(
        {"format": 1, "without_gpu": bool(day.options.without_gpu), "steps": found}, indent=1
    )
    (day.work / "gpu-day.json").write_text(anonymous(day, text) + "\n")
    lines = [
        "# gpu-day" + (" WITHOUT A GPU: a trial of the script" if day.options.without_gpu else "")
    ]
    lines += ["", f"envgen, profile `{day.profile}`, {found[0]['at'][:10] if found else ''}", ""]
    lines += ["| step | | seconds | seen | expected |", "| --- | --- | --- | --- | --- |"]

    def cell(value: object) -> str:
        return visible(re.sub(r"\s+", " ", str(value))).replace("|", "\\|")

    for one in found:
        lines.append(
            f"| **{one['step']}** | {one['outcome']} | {one['seconds']} | {cell(one['why'])} | |"
        )
        for row in one["rows"]:
            mark = {True: "ok", False: "FAILED", None: "note"}[row["held"]]
            seconds = row.get("seconds", "")
            lines.append(
                f"| {cell(row['what'])} | {mark} | {seconds} | {cell(row['seen'])} | {cell(row['expected'])} |"
            )
    lines += ["", "Not run: " + (", ".join(absent) or "nothing") + "."]
    page = anonymous(day, "\n".join(lines) + "\n")
    (day.work / "gpu-day.md").write_text(page)
    return page


def main(words: Sequence[str]) -> int:
    """Run the steps that are named, or all; 0 if none failed."""
    titles = "\n".join(f"  {name:<12} {title}" for name, (title, _) in STEPS.items())
    parser = argparse.ArgumentParser(
        prog="scripts/gpu-day",
        description=DESCRIPTION,
        epilog=EPILOG.format(steps=titles),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    state = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state") / "envgen/gpu-day"
    parser.add_argument("steps", nargs="*", metavar="STEP", help="the steps to run (default: all)")
    parser.add_argument(
        "--work", default=str(state), metavar="FOLDER", help=f"its folder (default: {state})"
    )
    parser.add_argument(
        "--wheels", metavar="FOLDER", help="wheels, for a machine without a package index"
    )
    parser.add_argument(
        "--tokenizer", metavar="FOLDER", help="o200k_base.tiktoken, or gpt-oss's tokenizer"
    )
    parser.add_argument(
        "--repo", metavar="REPO", help="serve the real weights from your Hugging Face cache"
    )
    parser.add_argument(
        "--layers", type=int, default=2, help="layers of the model that is made (default: 2)"
    )
    parser.add_argument(
        "--utilization", type=float, default=0.7, help="the server's share of the memory (0.7)"
    )
    parser.add_argument(
        "--local", metavar="FILE", help="YAML with changes of your own to the profile"
    )
    parser.add_argument(
        "--base",
        metavar="IMAGE",
        help="a stand-in for the base image, which the report names as such",
    )
    parser.add_argument("--base-note", default="", help="what the stand-in is made of")
    names = functools.partial(str.split, sep=",")
    parser.add_argument(
        "--protect",
        type=names,
        default=[],
        metavar="NAME,...",
        help="with --base: packages that it has and keeps",
    )
    parser.add_argument(
        "--override",
        type=names,
        default=[],
        metavar="NAME,...",
        help="with --base: dependencies that are left out",
    )
    parser.add_argument(
        "--bench", default="", help="options for bench, such as '--pp 512 --runs 2'"
    )
    parser.add_argument(
        "--sweep",
        default="fitting",
        metavar="A,B,...",
        help="variants of the step sweep (default: fitting, those that vLLM would take)",
    )
    parser.add_argument(
        "--models",
        type=names,
        default=[],
        metavar="NAME,...",
        help=f"those of the step models (default: all): {', '.join(MODELS)}",
    )
    parser.add_argument(
        "--at-once", type=int, default=7, help="servers at once in the step models (default: 7)"
    )
    parser.add_argument(
        "--small-moe",
        action="store_true",
        help="of fused_moe_90 compile what gpt-oss needs alone, by a patch of FlashInfer's wheel: "
        "minutes of 16 cores instead of more than an hour",
    )
    parser.add_argument(
        "--older", metavar="RELEASE", help="the vLLM, or NAME==VERSION, that upgrade begins with"
    )
    parser.add_argument(
        "--newer", metavar="NAME==VERSION", help="what upgrade tries (default: the shipped vLLM)"
    )
    parser.add_argument(
        "--faulty",
        metavar="RELEASE",
        help="a vLLM of yours (or NAME==VERSION) with a fault, which has to be left",
    )
    parser.add_argument(
        "--bad",
        metavar="FOLDER",
        help="the step bisect: the wheels of --wheels and newer ones, of which a FlashInfer is bad",
    )
    parser.add_argument(
        "--second-engine", metavar="ADDRESS", help="the step pair: an engine that has another GPU"
    )
    parser.add_argument(
        "--project", metavar="FOLDER", help="the day of a project of your own, built already"
    )
    parser.add_argument("--profile", default="prod", help="its profile (default: prod)")
    parser.add_argument("--service", default="serve", help="its service (default: serve)")
    parser.add_argument(
        "--without-gpu",
        action="store_true",
        help="try this script without a GPU; the report says so",
    )
    day = Day(parser.parse_args(words))
    if day.options.steps == ["clean"]:
        try:
            clean(day)
        except (EnvgenError, OSError) as error:
            sys.exit(f"gpu-day: {error}")
        return 0
    if strange := set(day.options.models) - set(MODELS):
        parser.error(f"no model {', '.join(sorted(strange))}; models: {', '.join(MODELS)}")
    unknown = [name for name in day.options.steps if name not in (*STEPS, "report")]
    if unknown:
        parser.error(f"no step {', '.join(unknown)}; steps: {', '.join(STEPS)}, report, clean")
    day.require()
    day.claim()
    chosen = (
        [name for name in STEPS if name in day.options.steps] if day.options.steps else list(STEPS)
    )
    try:
        for name in chosen:
            rows = Rows()
            with noted(day, name, rows):
                STEPS[name][1](day, rows)
            report(day)
    except KeyboardInterrupt:
        report(day)
        print(
            "gpu-day: interrupted; what was started still runs: `scripts/gpu-day clean` removes it",
            file=sys.stderr,
        )
        return 130
    print(report(day))
    print(f"gpu-day: {day.work / 'gpu-day.md'}, {day.work / 'gpu-day.json'}", file=sys.stderr)
    return int(any(kept(day, name).get("outcome") == "failed" for name in chosen))
