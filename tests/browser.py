"""A headless Chromium for tests, driven by its DevTools protocol over a pipe."""

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome")
TIMEOUT = 60
# Root may not have a sandbox, nor may some containers; only pages of these tests are opened.
FLAGS = """--headless --remote-debugging-pipe --no-first-run --no-default-browser-check --no-sandbox
    --disable-background-networking --disable-component-update --disable-dev-shm-usage
    --disable-extensions --disable-gpu --disable-sync --hide-scrollbars"""
# Key -> (code, virtual key code, text).
KEYS = {
    "Tab": ("Tab", 9, ""), "Enter": ("Enter", 13, "\r"), " ": ("Space", 32, " "),
    "ArrowRight": ("ArrowRight", 39, ""), "Escape": ("Escape", 27, ""),
}  # fmt: skip
FOCUSED = "document.activeElement"
# What is in focus: its words, and the outline that shows it.
SEEN = f"""(() => {{
  const at = {FOCUSED}, look = getComputedStyle(at), box = at.getBoundingClientRect();
  return {{
    tag: at.tagName, text: at.textContent.trim().slice(0, 40),
    outline: look.outlineStyle === "none" ? 0 : parseFloat(look.outlineWidth),
    inside: box.bottom > 0 && box.top < innerHeight && box.width > 0,
  }};
}})()"""
CONTROLS = """Array.from(document.querySelectorAll('a[href], summary, button, input, .scroll'))
    .filter(e => e.checkVisibility()).length"""


def program():
    """Chromium of this machine, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


def reason_to_skip():
    """Why no browser can be brought up here, or None."""
    missing = "needs the Debian package chromium, which tests/setup_browser.sh installs"
    return missing if program() is None else None


class BrowserError(RuntimeError):
    """Chromium ended, was silent, or refused a command."""


class Browser:
    """Starts Chromium when entered, and stops what it started when left, whatever happened."""

    def __enter__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="chromium-"))
        self.log = (self.folder / "log").open("wb")
        self.waiting, self.pages, self.number = b"", {}, 0
        commands, self.to = os.pipe()
        self.of, answers = os.pipe()
        # Chromium reads commands from 3 and answers on 4.
        given = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (commands, answers)]
        try:
            self.process = subprocess.Popen(
                [program(), *FLAGS.split(), f"--user-data-dir={self.folder / 'profile'}"],
                stdin=subprocess.DEVNULL,
                stdout=self.log,
                stderr=self.log,
                pass_fds=(3, 4),
                preexec_fn=lambda: (os.dup2(given[0], 3), os.dup2(given[1], 4)),
                # What it writes to a home goes into its folder.
                env=os.environ | {"HOME": str(self.folder)},
                start_new_session=True,
            )
        finally:
            for end in (commands, answers, *given):
                os.close(end)
        return self

    def __exit__(self, *_):
        try:
            self.call("Browser.close")
            self.process.wait(10)
        except (BrowserError, OSError, subprocess.TimeoutExpired):
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        for end in (self.to, self.of):
            os.close(end)
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def call(self, method, session=None, **parameters):
        """Give a command and return its result; what happens meanwhile goes to the pages."""
        self.number += 1
        own = self.number
        message = {"id": own, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        left = memoryview(json.dumps(message).encode() + b"\0")
        while left:
            left = left[os.write(self.to, left) :]
        while True:
            found = self.read()
            if found.get("id") != own:
                self.note(found)
            elif "error" in found:
                raise BrowserError(f"{method}: {found['error']['message']}")
            else:
                return found["result"]

    def read(self):
        """Next message."""
        end = time.monotonic() + TIMEOUT
        while b"\0" not in self.waiting:
            ready, _, _ = select.select([self.of], [], [], max(0, end - time.monotonic()))
            more = os.read(self.of, 1 << 16) if ready else b""
            if not more:
                said = (self.folder / "log").read_text(errors="replace")[-2000:]
                raise BrowserError(f"Chromium {'ended' if ready else 'is silent'}: {said}")
            self.waiting += more
        message, _, self.waiting = self.waiting.partition(b"\0")
        return json.loads(message)

    def note(self, message):
        page = self.pages.get(message.get("sessionId"))
        if page is not None:
            page.events.append(message)

    def open(self, path, **how):
        """Open a file in a tab of its own, as wide as said, and wait until it is there."""
        return Page(self, path, **how)


class Page:
    """A tab: its document, and what happened in it."""

    def __init__(self, browser, path, width=1280, scheme="light", media="", script=True):
        self.browser, self.events = browser, []
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        attached = browser.call("Target.attachToTarget", targetId=target, flatten=True)
        self.session = attached["sessionId"]
        browser.pages[self.session] = self
        for domain in ("Page", "Runtime", "Log", "Network", "DOM"):
            self.call(f"{domain}.enable")
        sides = {"width": width, "height": 800, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", deviceScaleFactor=1, **sides)
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.call("Emulation.setEmulatedMedia", media=media, features=[feature])
        self.call("Emulation.setScriptExecutionDisabled", value=not script)
        self.call("Page.navigate", url=Path(path).resolve().as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            browser.note(browser.read())

    def call(self, method, **parameters):
        return self.browser.call(method, self.session, **parameters)

    def js(self, expression):
        """Value of an expression in the page; a promise is waited for."""
        how = {"returnByValue": True, "awaitPromise": True}
        found = self.call("Runtime.evaluate", expression=expression, **how)
        if "exceptionDetails" in found:
            raise BrowserError(str(found["exceptionDetails"]))
        return found["result"].get("value")

    def press(self, key):
        """Press and release a key, as a person does."""
        code, number, text = KEYS.get(key, (f"Key{key.upper()}", ord(key[0].upper()), key))
        own = {"key": key, "code": code, "windowsVirtualKeyCode": number}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **own)
        self.call("Input.dispatchKeyEvent", type="keyUp", **own)

    def pdf(self, path):
        """What a printer would get."""
        found = self.call("Page.printToPDF", preferCSSPageSize=True, printBackground=False)
        Path(path).write_bytes(base64.b64decode(found["data"]))

    def problems(self):
        """Errors and warnings of the console, of scripts, and of the security policy."""
        found, bad = [], ("error", "warning")
        for method, told in ((event["method"], event["params"]) for event in self.events):
            if method == "Runtime.exceptionThrown":
                found.append(str(told["exceptionDetails"]))
            elif method == "Runtime.consoleAPICalled" and told["type"] in bad:
                found.append(str(told["args"]))
            elif method == "Log.entryAdded" and told["entry"]["level"] in bad:
                found.append(told["entry"]["text"])
        return found

    def requests(self):
        """Addresses that the page asked for."""
        asked = (e for e in self.events if e["method"] == "Network.requestWillBeSent")
        return [event["params"]["request"]["url"] for event in asked]

    def axe(self):
        """Violations that axe-core finds: rule, impact, places."""
        self.js((files("axe_core_python") / "axe.min.js").read_text(encoding="utf-8") + ";0")
        found = self.js("axe.run(document, {resultTypes: ['violations', 'incomplete']})")
        return [
            (rule["id"], rule["impact"], [node["target"][0] for node in rule["nodes"]])
            for rule in found["violations"]
        ]

    def close(self):
        self.call("Page.close")


def assert_fits(tab, name):
    """The page asks for nothing else, has no error, and nothing outside its tables is cut."""
    assert tab.problems() == []
    asked = [url for url in tab.requests() if not url.startswith("data:")]
    assert [url.rpartition("/")[2] for url in asked] == [name.replace(" ", "%20")]
    assert tab.js("document.documentElement.scrollWidth - innerWidth") == 0
    # Tables may be wider, and scroll in their regions.
    wide = """Array.from(document.body.querySelectorAll("*"))
        .filter(e => !e.closest(".scroll, .unseen, .skip, dialog"))
        .filter(e => e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML)"""
    assert tab.js(wide) == []


def assert_tab_reaches_all(tab, least):
    """Tab begins at the skip link, shows every control of `least` or more, and leaves the page."""
    wanted, found = tab.js(CONTROLS), []
    while len(found) <= wanted:
        tab.press("Tab")
        found.append(tab.js(SEEN))
        if found[-1]["tag"] == "BODY":
            break
    assert found.pop()["tag"] == "BODY", "the walk does not end"
    assert found[0]["text"].startswith("Skip to the") and len(found) == wanted >= least
    assert [at for at in found if at["outline"] < 2 or not at["inside"]] == []


def axe_missing():
    """Whether the package that brings axe-core is missing."""
    return find_spec("axe_core_python") is None
