"""The fixtures of this folder; what they are made of stands in tests/support/doctor_facts.py."""

from __future__ import annotations

from doctor_facts import make

__all__ = ["make"]
