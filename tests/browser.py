"""A real browser without a window, driven over WebDriver, for tests of the page.
It needs Chromium and chromedriver on the PATH, and no Python package.
"""

import contextlib
import json
import re
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

# One process draws the pages of all tests: a new one takes half a second to start. The last flag stands for a mouse,
# which a machine without a window has not.
FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--process-per-site",
    "--disable-site-isolation-trials",
    "--disable-back-forward-cache",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--blink-settings=primaryHoverType=2,availableHoverTypes=2,primaryPointerType=4,availablePointerTypes=4",
]
# The key of an element's number in the W3C's protocol.
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def programs() -> tuple[str, str] | None:
    """Chromium and its driver, or None where one of them is not installed."""
    driver = shutil.which("chromedriver")
    if driver is None:
        return None
    for name in ("chromium", "chromium-browser", "google-chrome"):
        binary = shutil.which(name)
        if binary is not None:
            return binary, driver
    return None


class Browser:
    """One page in one browser. `open_browser` makes it."""

    def __init__(self, driver: str, binary: str, profile: str):
        self.session = driver
        capabilities = {
            "browserName": "chrome",
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
            "goog:chromeOptions": {
                "binary": binary,
                "args": [*FLAGS, f"--user-data-dir={profile}"],
            },
        }
        answer = self.call("/session", capabilities={"alwaysMatch": capabilities})
        self.session += "/session/" + answer["sessionId"]
        self.open("about:blank")  # away from the browser's own first page

    def call(self, path: str, method: str = "POST", **fields):
        """Give the driver a command, and return its answer. Raises RuntimeError with its sentence."""
        body = None
        if method == "POST":
            body = json.dumps(fields).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.session + path, body, headers, method=method)
        try:
            with DIRECT.open(request, timeout=60) as response:
                return json.load(response)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(json.load(error)["value"]["message"]) from error

    def look(self, width: int, height: int, dark: bool) -> None:
        """Set the size of the page's window, and whether the system is set to dark."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.devtools("Emulation.setDeviceMetricsOverride", **size)

        scheme = "light"
        if dark:
            scheme = "dark"
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.devtools("Emulation.setEmulatedMedia", features=features)

    def devtools(self, command: str, **parameters):
        return self.call("/goog/cdp/execute", cmd=command, params=parameters)

    def open(self, address: str) -> None:
        self.call("/url", url=address)

    def run(self, script: str, *values):
        """Run a script and return its value; `values` are its arguments[0], arguments[1], ..."""
        return self.call("/execute/sync", script=script, args=list(values))

    def wait(self, script: str, *values, seconds: float = 15):
        """Wait until a script returns something true, and return it. Raises AssertionError after so many seconds."""
        end = time.monotonic() + seconds
        while not (value := self.run(script, *values)):
            assert time.monotonic() < end, f"after {seconds} s not true: {script}"
            time.sleep(0.05)
        return value

    def element(self, selector: str) -> str:
        return "/element/" + self.call("/element", using="css selector", value=selector)[ELEMENT]

    def click(self, selector: str) -> None:
        self.call(self.element(selector) + "/click")

    def type(self, selector: str, text: str) -> None:
        """Type into a field, or give a file field the file of this name. "\\ue007" is the Enter key."""
        self.call(self.element(selector) + "/value", text=text)

    def press(self, key: str) -> None:
        """Press a key for whatever has the focus."""
        strokes = [{"type": "keyDown", "value": key}, {"type": "keyUp", "value": key}]
        self.call("/actions", actions=[{"type": "key", "id": "keys", "actions": strokes}])

    def log(self, name: str) -> list[dict]:
        """The lines of a log since the last call: of "browser" those of its console."""
        return self.call("/se/log", type=name)

    def requests(self) -> list[str]:
        """The addresses that the page has asked for since the last call."""
        events = (json.loads(line["message"])["message"] for line in self.log("performance"))
        return [
            event["params"]["request"]["url"]
            for event in events
            if event["method"] == "Network.requestWillBeSent"
        ]


@contextlib.contextmanager
def open_browser():
    """A new browser of `programs`, which is closed at the end."""
    binary, driver_path = programs()
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
        subprocess.Popen([driver_path, "--port=0"], stdout=subprocess.PIPE, text=True) as driver,
    ):
        try:
            for line in driver.stdout:
                started = re.search(r"successfully on port (\d+)", line)
                if started:
                    break
            port = started[1]
            browser = Browser(f"http://127.0.0.1:{port}", binary, profile)
            try:
                yield browser
            finally:
                browser.call("", "DELETE")
        finally:
            driver.terminate()


# whether the search page has asked what is searched, shows its answers, and has loaded the photos in view
READY = """const seen = (image) => image.getBoundingClientRect().top < innerHeight;
return document.getElementById('count')?.textContent && !document.querySelector('[aria-busy=true]')
    && [...document.images].every((image) => image.complete || !seen(image))"""
