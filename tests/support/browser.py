"""A real browser: Debian's Chromium, without a window, driven by Selenium."""

import base64
import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import pytest
from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

NO_BROWSER = "chromium or chromedriver is not found; scripts/install_browser.py installs them with apt-get"
PATIENCE = 30.0

T = TypeVar("T")

_ARGUMENTS = (
    "--headless=new",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-features=BackForwardCache,IsolateOrigins,site-per-process",  # else a process for every page
    "--disable-gpu",
    "--disable-site-isolation-trials",
    "--disable-sync",
    "--force-device-scale-factor=1",
    "--in-process-gpu",
    "--no-default-browser-check",
    "--no-first-run",
    "--password-store=basic",
    "--renderer-process-limit=1",
    "--window-size=1280,1000",
)


class Browser:
    """One tab. Requests and messages of its console are those since the last `open`."""

    def __init__(self, folder: Path) -> None:
        binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
        if binary is None or driver is None:
            pytest.skip(NO_BROWSER)
        options = ChromeOptions()
        options.binary_location = binary
        for argument in (*_ARGUMENTS, f"--user-data-dir={folder / 'profile'}"):
            options.add_argument(argument)
        if os.geteuid() == 0:
            options.add_argument("--no-sandbox")  # Chromium refuses to run as root with it
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = Chrome(options, ChromeService(driver, log_output=str(folder / "chromedriver.log")))

    def open(self, url: str) -> None:
        """Open a page afresh."""
        self.leave()
        self.console()
        self.requests()
        self.driver.get(url)

    def look(self, *, dark: bool = False, width: int = 1280, height: int = 1000) -> None:
        """Choose a colour scheme and a size."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def find(self, selector: str) -> WebElement:
        """The first element, as soon as there is one."""
        return self.until(lambda: self.all(selector), selector)[0]

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements("css selector", selector)

    def text(self, selector: str = "main") -> str:
        """The text of an element as it is shown now; empty if there is none."""
        return str(self.run("return document.querySelector(arguments[0])?.innerText ?? ''", selector))

    def await_text(self, words: str, selector: str = "main", patience: float = PATIENCE) -> str:
        """Wait until an element shows some words, and return its text."""
        self.until(lambda: words in self.text(selector), f"{words!r} in {selector}", patience)
        return self.text(selector)

    def press(self, *keys: str) -> None:
        """Press keys, wherever the focus is."""
        for key in keys:
            self.driver.switch_to.active_element.send_keys(key)

    def focused(self) -> str:
        """What has the focus: its name and its text."""
        return str(self.run("const e = document.activeElement; return `${e.localName} ${e.innerText}`.trim()"))

    def tab_to(self, words: str, most: int = 40) -> None:
        """Press Tab until what has the focus is this: the name of an element and the beginning of its text."""
        for _ in range(most):
            self.press(Keys.TAB)
            if self.focused().startswith(words):
                return
        raise AssertionError(f"{words!r} cannot be reached by Tab")

    def roles(self) -> Counter[str]:
        """How often each role occurs in what a screen reader is told."""
        nodes = self.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
        return Counter(str(node["role"]["value"]) for node in nodes if not node["ignored"])

    def run(self, script: str, *arguments: object) -> object:
        return self.driver.execute_script(script, *arguments)

    def console(self) -> list[str]:
        """Errors and warnings of the console since the last call."""
        entries = self._log("browser")
        return [entry["message"] for entry in entries if entry["level"] in {"SEVERE", "WARNING"}]

    def requests(self) -> list[str]:
        """Addresses of requests since the last call."""
        messages = [json.loads(entry["message"])["message"] for entry in self._log("performance")]
        sent = [one["params"]["request"]["url"] for one in messages if one["method"] == "Network.requestWillBeSent"]
        return [url for url in sent if urlsplit(url).scheme in {"http", "https", "ws", "wss"}]

    def _log(self, kind: str) -> list[dict[str, str]]:
        found: list[dict[str, str]] = self.driver.get_log(kind)  # type: ignore[no-untyped-call]
        return found

    def shoot(self, file: Path, *, whole: bool = True) -> None:
        """Take a picture of the page."""
        settings: dict[str, object] = {"captureBeyondViewport": whole}
        if whole:
            size = self.driver.execute_cdp_cmd("Page.getLayoutMetrics", {})["cssContentSize"]
            settings["clip"] = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        found = self.driver.execute_cdp_cmd("Page.captureScreenshot", settings)
        file.write_bytes(base64.b64decode(found["data"]))

    def until(self, claim: Callable[[], T], what: str, patience: float = PATIENCE) -> T:
        """Wait until something is true, and return it."""
        deadline = time.monotonic() + patience
        while not (found := claim()):
            assert time.monotonic() < deadline, f"not there: {what}; the page shows: {self.text('body')[:2000]}"
            time.sleep(0.1)
        return found

    def leave(self) -> None:
        """Leave the page, before its server ends: a page that loses its server reports an error."""
        self.driver.get("about:blank")

    def close(self) -> None:
        """End the browser."""
        self.driver.quit()
