"""What several files of the process tier share."""

from __future__ import annotations

from releases import ask_models as ask_models
from releases import hot as hot
from releases import nowhere as nowhere
from releases import warm as warm
