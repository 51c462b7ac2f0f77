"""The engine and its values, under one name for every other room."""

from envgen.engine.client import Engine
from envgen.engine.values import (
    COMPOSE_ONE_OFF,
    COMPOSE_PROJECT,
    COMPOSE_SERVICE,
    LOG_LIMIT,
    MEMORY,
    MISSHAPEN,
    OUTPUT_LIMIT,
    PIDS,
    Container,
    EngineInfo,
    ExecResult,
    Image,
    Mount,
    Port,
    read_json,
)  # fmt: skip

__all__ = [
    "COMPOSE_ONE_OFF", "COMPOSE_PROJECT", "COMPOSE_SERVICE", "LOG_LIMIT", "MEMORY", "MISSHAPEN", "OUTPUT_LIMIT", "PIDS",
    "Container", "Engine", "EngineInfo", "ExecResult", "Image", "Mount", "Port", "read_json",
]  # fmt: skip
