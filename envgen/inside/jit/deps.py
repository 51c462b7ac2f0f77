"""ninja's own record of what each object was compiled from: ``.ninja_deps``, versions 3 and 4. Read, never written.

A ninja of another version than the container's would delete or misread the log beside it, even when told to change
nothing; so no ninja is asked. The record is a header and then a list of records, each led by its length. A path record
gives the next number a name; one whose length has the top bit set says what an output depends on, in such numbers. A
later entry for the same output replaces the earlier.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Dict, List

MAGIC = b"# ninjadeps\n"
LONGEST = (1 << 19) - 1  # ninja refuses longer records
_TOP = 1 << 31


@dataclass
class Deps:
    """What is in one file. ``whole`` is False where it ends in mid-record or holds what ninja never writes."""

    version: int = 0
    inputs: Dict[str, List[str]] = field(default_factory=dict)  # output -> all that it was compiled from
    whole: bool = False


def parse(data: bytes) -> Deps:
    """Read all that can be understood. Never raises, whatever the bytes."""
    found = Deps()
    start = len(MAGIC) + 4
    if not data.startswith(MAGIC) or len(data) < start:
        return found
    found.version = struct.unpack_from("<I", data, len(MAGIC))[0]
    if found.version not in (3, 4):
        return found
    head = 8 if found.version == 3 else 12  # the output's number, and its time in 4 or 8 bytes
    paths: list[bytes] = []
    records: dict[int, bytes] = {}
    position = start
    end = len(data)
    while position < end:
        if position + 4 > end:
            break
        size = struct.unpack_from("<I", data, position)[0]
        is_deps = size >= _TOP
        size &= _TOP - 1
        position += 4
        if size > LONGEST or size % 4 or position + size > end:
            break
        record = data[position : position + size]
        position += size
        if is_deps:
            if size < head or not _known(record, head, len(paths)):
                break
            records[struct.unpack_from("<I", record)[0]] = record[head:]
        else:
            # The checksum is the number's complement: a record out of its place shows.
            if size < 8 or struct.unpack_from("<I", record, size - 4)[0] != (~len(paths) & 0xFFFFFFFF):
                break
            name = record[:-4]
            paths.append(name[:-3] + name[-3:].rstrip(b"\0"))
    else:
        found.whole = True
    names = [path.decode("utf-8", "surrogateescape") for path in paths]
    for output, numbers in records.items():
        found.inputs[names[output]] = [names[number] for number in struct.unpack("<%dI" % (len(numbers) // 4), numbers)]
    return found


def _known(record: bytes, head: int, count: int) -> bool:
    """Are all numbers in it of paths that were named before?"""
    if not count:
        return False
    inputs = struct.unpack_from("<%dI" % ((len(record) - head) // 4), record, head)
    output: int = struct.unpack_from("<I", record)[0]
    return output < count and all(number < count for number in inputs)
