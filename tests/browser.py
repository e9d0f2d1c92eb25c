"""A headless Chromium for tests, driven over a pipe: what a page logs, asks for and shows.

The Chrome DevTools Protocol (https://chromedevtools.github.io/devtools-protocol/): messages of JSON, each ended by a
zero byte, on the file descriptors 3 and 4 of the browser.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
          "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
          "--force-device-scale-factor=1", "--remote-debugging-pipe")
_SECONDS = 60.0
_SETTLE_SECONDS = 0.2   # without a further event, after which a page is taken to be done


def find() -> str | None:
    """The browser's program; None where there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One browser with one page at a time. `events` are those of the page that was opened last."""

    def __init__(self, program: str, home: Path) -> None:
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        descriptors = [(theirs_in, 103), (theirs_out, 104), (103, 3), (104, 4)]   # by a detour: theirs may be 3 or 4
        actions = [*((os.POSIX_SPAWN_DUP2, given, wanted) for given, wanted in descriptors),
                   *((os.POSIX_SPAWN_OPEN, output, os.devnull, os.O_WRONLY, 0) for output in (1, 2))]
        self._pid = os.posix_spawn(program, [program, *_FLAGS, f"--user-data-dir={home}"],
                                   {**os.environ, "HOME": str(home)}, file_actions=actions, setpgroup=0)
        os.close(theirs_in)
        os.close(theirs_out)
        self._in, self._out, self._buffer = ours_in, ours_out, b""
        self._number, self._session = 0, ""
        self.events: list[dict[str, Any]] = []

    def close(self) -> None:
        with contextlib.suppress(OSError, AssertionError):
            self._call("Browser.close", session=False)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._in)
        os.close(self._out)

    # Pages

    def open(self, url: str, *, width: int = 1280, height: int = 900, dark: bool = False, touch: bool = False) -> None:
        """Load a page in a window of this size, and wait until it is done."""
        target = self._call("Target.createTarget", session=False, url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", session=False, targetId=target, flatten=True)["sessionId"]
        self.events.clear()
        for domain in ("Runtime", "Log", "Network", "Page"):
            self._call(f"{domain}.enable")
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=touch)
        self._call("Emulation.setTouchEmulationEnabled", enabled=touch)
        self.prefer(dark=dark)
        self._call("Page.navigate", url=url)
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self._next(_SECONDS)
        self.settle()

    def prefer(self, *, dark: bool) -> None:
        """What the page is told of its reader's colour scheme."""
        self._call("Emulation.setEmulatedMedia",
                   features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def settle(self) -> None:
        """Wait until the page has nothing more to do."""
        while self._receive(_SETTLE_SECONDS) is not None:
            pass

    def evaluate(self, expression: str) -> Any:
        """What a JavaScript expression comes to in the page, as plain values."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def press(self, key: str, code: int) -> None:
        """A key goes down and up."""
        for kind in ("rawKeyDown", "keyUp"):
            self._call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def screenshot(self, path: Path) -> None:
        """The whole page, as long as it is."""
        shot = self._call("Page.captureScreenshot", captureBeyondViewport=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    # What happened in the page

    @property
    def complaints(self) -> list[str]:
        """Errors and warnings in its console, uncaught exceptions, and what its security policy has refused."""
        found = []
        for event in self.events:
            said = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                found.append(json.dumps(said["exceptionDetails"]))
            elif event["method"] == "Runtime.consoleAPICalled" and said["type"] in ("error", "warning", "assert"):
                found.append(json.dumps(said["args"]))
            elif event["method"] == "Log.entryAdded" and said["entry"]["level"] in ("error", "warning"):
                found.append(said["entry"]["text"])
        return found

    @property
    def requests(self) -> list[str]:
        """The addresses that were asked for; data that is in the page has none."""
        found = [event["params"]["request"]["url"] for event in self.events
                 if event["method"] == "Network.requestWillBeSent"]
        return [url for url in found if not url.startswith("data:")]

    # The pipe

    def _call(self, method: str, *, session: bool = True, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next(_SECONDS)
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return dict(answer["result"])

    def _next(self, seconds: float) -> dict[str, Any]:
        message = self._receive(seconds)
        assert message is not None, "the browser gave no answer"
        return message

    def _receive(self, seconds: float) -> dict[str, Any] | None:
        """The next message; None where none comes in time."""
        deadline = time.monotonic() + seconds
        while b"\0" not in self._buffer:
            if not select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))[0]:
                return None
            part = os.read(self._in, 1 << 20)
            assert part, "the browser has ended"
            self._buffer += part
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        if "method" in message and message.get("sessionId") == self._session:
            self.events.append(message)
        return message


@contextlib.contextmanager
def opened() -> Iterator[Browser]:
    """A browser, which is ended with the block; the caller has seen that there is one."""
    program = find()
    assert program is not None
    with tempfile.TemporaryDirectory(prefix="rankwise-browser-", ignore_cleanup_errors=True) as home:
        browser = Browser(program, Path(home))
        try:
            yield browser
        finally:
            browser.close()
