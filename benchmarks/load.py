"""The load generator of `envgen stress` and `bench` beside established clients, against a stub of known latency.

    python benchmarks/load.py                                 latency at 64 streams, requests a second
    python benchmarks/load.py --vllm IMAGE --model DIR        beside the client of `vllm bench serve`, from that image
    python benchmarks/load.py --wrk wrk                       beside wrk

All contenders ask the same stub (latency_stub.py) in one run, alternately. What a client adds to latency is its median
over the stub's own for the same requests. Printed as Markdown.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
STREAMS = 64
FIRST, GAP, TOKENS = 0.1, 0.02, 20  # 0.48 s a request, 50 tokens a second and stream, 3,200 events a second in all
FAST_PORT, SLOW_PORT = 19761, 19762
BODY = b'{"model":"stub","prompt":"hello","max_tokens":20,"stream":true,"stream_options":{"include_usage":true}}'

VLLM = """
import sys
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""

WRK = f"""
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.body = '{BODY.decode()}'
"""


@contextmanager
def stub(port: int, first: float, gap: float, tokens: int) -> Iterator[str]:
    words = [sys.executable, str(HERE / "latency_stub.py"), str(port), str(first), str(gap), str(tokens)]
    with subprocess.Popen(words) as child:
        url = f"http://127.0.0.1:{port}"
        try:
            for _ in range(200):
                try:
                    took(url)
                    break
                except OSError:
                    time.sleep(0.05)
            yield url
        finally:
            child.kill()


def took(url: str) -> list[float]:
    """How long each reply really took, by the stub's clock; it forgets them then."""
    with urllib.request.urlopen(f"{url}/stats", timeout=5) as reply:
        found: list[float] = json.load(reply)
        return found


@dataclass(frozen=True)
class Run:
    """What a client measured: seconds of each request, and how many it did in a second."""

    latencies: list[float]
    rate: float


Client = Callable[[str, int, int], Run]  # address, requests, at a time


def envgen(url: str, count: int, streams: int) -> Run:
    from envgen.serve.load.connection import address
    from envgen.serve.load.generate import Request, run_closed

    where = address(url)
    requests = [Request(where.request("/v1/completions", BODY))] * count
    load = run_closed(where, requests, streams, silence=60)
    if not all(one.good for one in load.results):
        raise SystemExit("envgen: a request failed")
    return Run([one.latency for one in load.results], count / load.seconds)


def aiohttp_client(url: str, count: int, streams: int) -> Run:
    """The usual loop around aiohttp, which reads each event as it comes."""
    import aiohttp

    latencies: list[float] = []

    async def one(session: aiohttp.ClientSession, left: Iterator[int]) -> None:
        for _ in left:
            began = time.perf_counter()
            async with session.post(
                f"{url}/v1/completions", data=BODY, headers={"Content-Type": "application/json"}
            ) as reply:
                rest = b""
                async for data in reply.content.iter_any():
                    *events, rest = (rest + data).split(b"\n\n")
                    for event in events:
                        if event != b"data: [DONE]":
                            json.loads(event[6:])
            latencies.append(time.perf_counter() - began)

    async def all_of_them() -> float:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            left = iter(range(count))
            began = time.perf_counter()
            await asyncio.gather(*(one(session, left) for _ in range(streams)))
            return time.perf_counter() - began

    return Run(latencies, count / asyncio.run(all_of_them()))


def vllm_client(image: str, model: Path) -> Client:
    """The client of `vllm bench serve`, in its own container on the machine's network."""

    def run(url: str, count: int, streams: int) -> Run:
        with tempfile.TemporaryDirectory() as folder:
            words = [
                "docker", "run", "--rm", "-i", "--network", "host", "--entrypoint", "python3", "-e", "HF_HUB_OFFLINE=1",
                "-v", f"{model.resolve()}:/model:ro", "-v", f"{folder}:/out", image, "-c", VLLM,
                "--backend", "openai", "--base-url", url, "--endpoint", "/v1/completions", "--model", "stub",
                "--tokenizer", "/model", "--dataset-name", "random", "--random-input-len", "8",
                "--random-output-len", str(TOKENS), "--num-prompts", str(count), "--max-concurrency", str(streams),
                "--ignore-eos", "--disable-tqdm", "--percentile-metrics", "ttft,tpot,itl,e2el",
                "--metric-percentiles", "50", "--save-result", "--save-detailed", "--result-dir", "/out",
                "--result-filename", "r.json",
            ]  # fmt: skip
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(f"vllm bench serve: {done.stderr[-2000:]}")
            found = json.loads((Path(folder) / "r.json").read_text())
        if found["completed"] != count:
            raise SystemExit(f"vllm bench serve: {found['completed']} of {count} completed")
        return Run([found["median_e2el_ms"] / 1000], found["request_throughput"])

    return run


def wrk_client(program: str) -> Client:
    """wrk: two threads, no reading of what comes."""

    def run(url: str, count: int, streams: int) -> Run:
        with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
            script.write(WRK)
            script.flush()
            words = [program, "-t2", f"-c{streams}", "-d3s", "-s", script.name, f"{url}/v1/completions"]
            done = subprocess.run(words, capture_output=True, text=True, check=True)
        (line,) = [line for line in done.stdout.splitlines() if line.startswith("Requests/sec")]
        return Run([], float(line.split()[1]))

    return run


def latency(clients: dict[str, Client], rounds: int) -> None:
    added: dict[str, list[float]] = {name: [] for name in clients}
    with stub(SLOW_PORT, FIRST, GAP, TOKENS) as url:
        for number in range(rounds + 1):
            for name, client in clients.items():
                took(url)
                measured = statistics.median(client(url, 4 * STREAMS, STREAMS).latencies)
                real = statistics.median(took(url))
                if number:  # the first round warms up
                    added[name].append(measured / real - 1)
    print(f"\n| client, {STREAMS} streams | added to the latency, median of {rounds} | worst |")
    print("| --- | --- | --- |")
    for name, values in added.items():
        print(f"| {name} | {statistics.median(values):.2%} | {max(values):.2%} |")


def throughput(clients: dict[str, Client], rounds: int) -> None:
    rates: dict[str, list[float]] = {name: [] for name in clients}
    with stub(FAST_PORT, 0, 0, 1) as url:
        for number in range(rounds + 1):
            for name, client in clients.items():
                rate = client(url, 6000 if name != "vllm bench serve" else 2000, STREAMS).rate
                if number:
                    rates[name].append(rate)
    mine = statistics.median(rates["envgen"])
    print(f"\n| client, {STREAMS} at a time | requests/s, median of {rounds} | envgen is |")
    print("| --- | --- | --- |")
    for name, values in rates.items():
        print(f"| {name} | {statistics.median(values):,.0f} | {mine / statistics.median(values):.2f}x |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm", metavar="IMAGE", help="an image with vLLM in it")
    parser.add_argument("--model", type=Path, help="a folder with a tokenizer, for vLLM's client")
    parser.add_argument("--wrk", metavar="PROGRAM")
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    clients: dict[str, Client] = {"envgen": envgen}
    try:
        import aiohttp  # noqa: F401

        clients["aiohttp"] = aiohttp_client
    except ImportError:
        print("aiohttp is not installed: left out")
    if asked.vllm and asked.model:
        clients["vllm bench serve"] = vllm_client(asked.vllm, asked.model)
    print(f"load of this machine before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    latency(clients, asked.rounds)
    throughput({**clients, **({"wrk": wrk_client(asked.wrk)} if asked.wrk else {})}, asked.rounds)
    print(f"\nload of this machine after: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
