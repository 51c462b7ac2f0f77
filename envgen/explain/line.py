"""A line of a log without what stands before its message: the names, times and numbers that
Docker, BuildKit, Compose, journald, Ray, torch and vLLM's logger write there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

_PREFIX = re.compile(
    r"""
    (?P<step>\#\d{1,5})\ (?:\d{1,7}\.\d{1,4}(?:\ (?=\S|\ {2})|$))?(?!\ ?\[)  # `#12 34.5 `: a step of a build
    |\d{1,7}\.\d{1,4}\ (?=\S|\ {2})             # its seconds alone, where BuildKit repeats it
    |(?P<service>[A-Za-z][\w.-]{0,80})\ {1,40}\|\ ?                          # `serve-1  | `: Compose
    # `(EngineCore_DP0 pid=17) `: vLLM and Ray, one after the other; `[rank3]: `: torch
    |\((?:(?P<name>[\w\ ./:-]{1,60}?)\ ?)?pid=(?P<pid>\d{1,9})[^)]{0,40}\)\ ?
    |\[(?P<rank>rank\d{1,4})\]:\ ?
    # `docker logs -t`, `kubectl logs`, and loggers
    |\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|\ ?[+-]\d\d:?\d\d)?
      (?:(?:\ [A-Z]{2}\d{1,4}){1,6}\])?\]?(?:\ std(?:out|err)\ [FP])?\ (?:\|\ )?(?!-\ )
    # journald and dmesg
    |[A-Z][a-z]{2}\ [ \d]\d\ \d\d:\d\d:\d\d\ [\w.-]{1,80}\ (?:kernel|[\w./@-]{1,60}\[\d{1,9}\]):[ ]
    |\[\ {0,8}\d{1,9}\.\d{1,6}\]\ (?=\S)
    |\[\d{10}\.\d{6}\]\ \[[^\]]{1,100}\]\ {1,12}(?=\S)                       # UCX
    """,
    re.VERBOSE,
)
_BEGIN = frozenset("#([0123456789JFMASOND")  # of a prefix, but Compose's
# vLLM's logger; a logger of Python with dashes, as FlashInfer's; NCCL's.
_LOGGED = re.compile(
    r"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) +\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d{1,6})? \[?[^\]\s]{1,120}\] ?"
    r"|(?:\S{10} [\d:,.]{8,15} )?- (?P<python>DEBUG|INFO|WARNING|ERROR|CRITICAL) - (?:\S{1,80} - (?:[\w.]{1,60}: )?)?"
    r"|\S{1,120} \[\d{1,3}\] (?=NCCL (?P<nccl>INFO) )"
    r"|(?P<sglang>DEBUG|INFO|WARNING|ERROR|CRITICAL) [\w/.-]{1,80}\.py:\d{1,6}: "
    r"|\d{1,3}(?:\.\d{2,3}){3} (?P<llama>[IWED]) "
    r"|(?:\[[\d/:-]{19}\] )?\[TRT-LLM\] \[(?P<trtllm>[A-Z])\] "
    r"|\[?(?P<glog>[IWEF])\d{3,4} [\d:.]{8,20} {1,7}(?:\d{1,9} )?[\w./-]{1,120}:\d{1,6}\] "  # torch, Mooncake
    r"|(?:time=\S{10,40} )?level=(?P<go>DEBUG|INFO|W(?=ARN)|info|warning)\w{0,3} "
    r"|(?P<sglang_import>I)gnore import error "
    r"|\[?(?P<plain>W)ARN(?:ING)?(?::|\]:?) (?!\S{1,60} kernel)"
    r"|/\S{1,300}\.py:\d{1,6}: (?:User|Runtime|Future|Deprecation)(?P<warning>W)arning: (?!CUDA init)"
)
# Below an error: the program goes on after it.
MILD = ("DEBUG", "INFO", "WARNING", "info", "warning", "V", "I", "W")
# Source code: of an exception (the line below it has the message), a step of a build, an excerpt of
# the Dockerfile.
_SOURCE = re.compile(
    r" {2,40}raise [\w.]{1,120}(?:\(|$| from )|#\d{1,5} \[|#\d{1,5} [\d.]{1,12} \+ | {1,4}\d{1,4} \| "
)


@lru_cache(1 << 16)  # who searches, who follows the exceptions and who counts read the same lines
def read_line(line: str) -> tuple[str, str, str]:
    """The process ("" if unknown), the log level ("" without a logger) and the text of a line."""
    name = ""
    while (line[:1] in _BEGIN or "| " in line[:96]) and (prefix := _PREFIX.match(line)):
        words = prefix["step"] or prefix["service"] or prefix["rank"]
        if prefix["pid"]:
            words = f"{prefix['name'] or ''} pid={prefix['pid']}".strip()
        name = words or name
        line = line[prefix.end() :]
    if (line[:1] in "DIWEC-0123456789[/tl" or "NCCL INFO" in line) and (
        logged := _LOGGED.match(line)
    ):
        return name, logged[logged.lastgroup or 0], line[logged.end() :]
    return name, "", line


def is_source(text: str) -> bool:
    """Whether a line's text is source code that names an error, not the error."""
    return _SOURCE.match(text) is not None


def search_for(words: Iterable[str]) -> Any:
    """A search for all of these texts at once: its ``Match`` returns the indices of those in a line."""
    import re2  # a C++ library, which only a log needs

    options = re2.Options()
    options.literal = True
    options.max_mem = 67108864  # bytes, 8 times what is usual: the words of all rules need more
    search = re2.Set.SearchSet(options)
    for text in words:
        search.Add(text)
    search.Compile()
    return search
