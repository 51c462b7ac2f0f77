"""Users and passwords of registries, from Docker's own configuration and its credential helpers. Never printed."""

from __future__ import annotations

import base64
import binascii
import json
import os
from collections.abc import Mapping
from typing import Any

from envgen.engine import process
from envgen.engine.endpoint import config_dir
from envgen.errors import EngineError, LockError

_HUB = ("docker.io", "index.docker.io", "registry-1.docker.io")


class Login:
    """A user and a password. ``repr`` shows neither, so that no log can."""

    __slots__ = ("_password", "user")

    def __init__(self, user: str, password: str) -> None:
        self.user = user
        self._password = password

    @property
    def basic(self) -> str:
        """The value of an Authorization header."""
        return "Basic " + base64.b64encode(f"{self.user}:{self._password}".encode()).decode()


class Credentials:
    """What Docker knows on this machine."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self._environ = os.environ if environ is None else environ
        self._path = config_dir(self._environ) / "config.json"

    def of(self, host: str) -> Login | None:
        """The login for a registry; None where Docker has none."""
        config = self._config()
        names = list(_HUB) if host in _HUB else [host]
        addresses = [
            a for name in names for a in (name, f"https://{name}", f"https://{name}/v1/", f"https://{name}/v2/")
        ]
        helpers = config.get("credHelpers")
        helper = next((helpers[a] for a in addresses if a in helpers), "") if isinstance(helpers, dict) else ""
        helper = helper or config.get("credsStore") or ""
        if helper:
            for address in addresses:
                if found := self._ask(str(helper), address):
                    return found
        auths = config.get("auths")
        if not isinstance(auths, dict):
            return None
        for address in addresses:
            entry = auths.get(address)
            if isinstance(entry, dict) and entry.get("auth"):
                return self._decoded(str(entry["auth"]), host)
        return None

    def _config(self) -> dict[str, Any]:
        try:
            found: Any = json.loads(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError):
            raise LockError(f"Docker's configuration {self._path} cannot be read") from None
        return found if isinstance(found, dict) else {}

    def _decoded(self, text: str, host: str) -> Login:
        try:
            user, colon, password = base64.b64decode(text).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            colon = ""
        if not colon:
            raise LockError(f"Docker's configuration has a broken login for {host}", hint=f"`docker login {host}`")
        return Login(user, password.rstrip("\0"))

    def _ask(self, helper: str, address: str) -> Login | None:
        """A credential helper: the address on stdin, JSON on stdout. It fails where it knows nothing."""
        try:
            done = process.run([f"docker-credential-{helper}", "get"], stdin=address.encode(), timeout=30, check=False)
            said: Any = json.loads(done.stdout) if done.code == 0 else {}
        except EngineError as error:
            raise LockError(
                f"Docker's credential helper {helper!r} does not work: {error.problems[0].message}"
            ) from None
        except ValueError:
            raise LockError(f"Docker's credential helper {helper!r} gave no answer that can be read") from None
        user, secret = str(said.get("Username") or ""), str(said.get("Secret") or "")
        if user == "<token>":
            raise LockError(f"Docker's login for {address} is an identity token, which is not supported here",
                            hint="log in with a user and password or an access token")  # fmt: skip
        return Login(user, secret) if secret else None
