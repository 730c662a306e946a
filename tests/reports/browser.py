"""A real Chromium, driven over its debugging pipe with the standard library alone."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# `sh` knows no descriptor of two digits.
LAUNCHER = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.dup2(int(sys.argv[2]), 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
LAPTOP, PHONE = (1366, 768), (390, 844)


def find_chromium() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((path for name in names if (path := shutil.which(name))), None)


class Browser:
    """One page of one browser; ``errors`` and ``requests`` are all that it has complained of and
    asked for.
    """

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._write = os.fdopen(to_browser, "wb", buffering=0)
        self._read = os.fdopen(from_browser, "rb")
        self._calls = 0
        self._session: str | None = None
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._loaded = False
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Ask the browser and wait for its answer."""
        self._calls += 1
        message = {"id": self._calls, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._write.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._calls:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def _next(self) -> dict[str, Any]:
        data = bytearray()
        while (byte := self._read.read(1)) != b"\0":
            assert byte, "the browser is gone"
            data += byte
        message = json.loads(data)
        event, parameters = message.get("method"), message.get("params", {})
        if event == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(parameters["exceptionDetails"]))
        elif event == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning"):
            self.errors.append(json.dumps(parameters["args"]))
        elif event == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.errors.append(parameters["entry"]["text"])
        elif event == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif event == "Page.loadEventFired":
            self._loaded = True
        return message

    def resize(self, size: tuple[int, int]) -> None:
        mobile = size == PHONE
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=size[0],
            height=size[1],
            deviceScaleFactor=1,
            mobile=mobile,
        )
        self.settle()

    def emulate(self, *, scheme: str = "light", media: str = "") -> None:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media=media, features=features)
        self.settle()

    def open(self, page: Path) -> None:
        self._loaded = False
        self.call("Page.navigate", url=page.as_uri())
        while not self._loaded:
            self._next()
        self.settle()

    def settle(self) -> None:
        """Let what was asked for be drawn."""
        self.run("new Promise(done => requestAnimationFrame(() => setTimeout(done, 150)))")

    def run(self, expression: str) -> Any:
        """The value of JavaScript, awaited."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """The page from top to bottom."""
        picture = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(picture["data"]))

    def close(self) -> None:
        self._session = None
        self.call("Browser.close")
        self._write.close()
        self._read.close()


@contextlib.contextmanager
def chromium(path: str) -> Iterator[Browser]:
    """Start a browser with a profile of its own; it reads descriptor 3 and writes descriptor 4."""
    their_end, ours_out = os.pipe()
    ours_in, their_other_end = os.pipe()
    # Out of the way of 3 and 4, onto which the launcher copies them.
    theirs_in, theirs_out = (
        fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (their_end, their_other_end)
    )
    flags = "--headless --no-sandbox --disable-gpu --hide-scrollbars --remote-debugging-pipe"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [
                *(sys.executable, "-c", LAUNCHER, str(theirs_in), str(theirs_out)),
                *(path, *flags.split(), f"--user-data-dir={profile}", "about:blank"),
            ],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (their_end, their_other_end, theirs_in, theirs_out):
            os.close(end)
        try:
            browser = Browser(ours_out, ours_in)
            yield browser
            browser.close()
            process.wait(timeout=20)
        finally:
            process.kill()
            process.wait()
