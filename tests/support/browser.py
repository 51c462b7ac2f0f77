"""A real headless Chromium, driven over its debugging pipe: what it shows, complains of, and asks a network for."""

from __future__ import annotations

import base64
import json
import os
import select
import subprocess
import time
from pathlib import Path
from typing import Any

TOP = Path(__file__).parents[2]


class Browser:
    """One process. ``events`` holds everything that it told since the last ``open``."""

    def __init__(self, folder: Path) -> None:
        program = subprocess.run(
            [TOP / "scripts" / "browser"], check=True, text=True, stdout=subprocess.PIPE
        ).stdout.strip()
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        flags = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--no-first-run",
            "--disable-extensions",
        ]
        argv = [program, *flags, f"--user-data-dir={folder}", "--remote-debugging-pipe"]
        # The browser reads commands from descriptor 3 and writes answers to 4.
        shell = ["bash", "-c", f'exec "$@" 3<&{to_read} 4>&{to_write}', "bash", *argv]
        self._log = (folder / "log").open("wb")
        self._process = subprocess.Popen(
            shell, pass_fds=(to_read, to_write), stderr=self._log, stdin=subprocess.DEVNULL
        )
        os.close(to_read)
        os.close(to_write)
        self._rest = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", session=False, url="about:blank")["targetId"]
        self._session = ""
        self._session = self.call("Target.attachToTarget", session=False, targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        """End the process."""
        self.call("Browser.close", session=False)
        os.close(self._write)
        os.close(self._read)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def call(self, method: str, *, session: bool = True, **params: Any) -> dict[str, Any]:
        """One command and its answer; whatever is told before the answer goes to ``events``."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            found = self._next(20)
            if found.get("id") == self._number:
                assert "error" not in found, f"{method}: {found['error']}"
                result: dict[str, Any] = found["result"]
                return result
            self.events.append(found)

    def _next(self, seconds: float) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"the browser said nothing for {seconds} s"
            piece = os.read(self._read, 1 << 20)
            assert piece, "the browser ended"
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

    def open(self, page: Path | str, *, width: int = 1200, dark: bool = False) -> None:
        """Open a file or an address as a screen of that width and colour scheme shows it; wait until it has loaded."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.events.clear()
        self.call("Page.navigate", url=page.as_uri() if isinstance(page, Path) else page)
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next(20))

    def js(self, expression: str) -> Any:
        """The value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def complaints(self) -> list[str]:
        """Whatever reached the console: errors, warnings, blocked content, exceptions, dialogs."""
        self.js("0")  # what was told before this answer has arrived
        heard = (
            "Log.entryAdded",
            "Runtime.exceptionThrown",
            "Runtime.consoleAPICalled",
            "Page.javascriptDialogOpening",
        )
        return [json.dumps(event["params"]) for event in self.events if event.get("method") in heard]

    def requests(self) -> list[str]:
        """Every address that was asked for."""
        self.js("0")
        return [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]

    def screenshot(self) -> bytes:
        """The whole page as PNG."""
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)["data"]
        return base64.b64decode(data)

    def pdf(self) -> bytes:
        """The page as it prints."""
        return base64.b64decode(
            self.call("Page.printToPDF", printBackground=False, paperWidth=8.27, paperHeight=11.69)["data"]
        )
