"""The fields of the model; records themselves are open to every room (``envgen/record.py``)."""

from __future__ import annotations

from envgen.record import EMPTY as EMPTY
from envgen.record import MISSING as MISSING
from envgen.record import Key as Key
from envgen.record import dataclass as dataclass
from envgen.record import key as key
