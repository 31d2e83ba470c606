"""The report and the widget in a real browser: Debian's packages chromium and chromium-driver."""

import base64
import json
import re
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request

import pytest

from treespec.experiments.report.run import load_run
from treespec.experiments.report.stepper.steps import trails_of_run

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (CHROMIUM and DRIVER),
        reason="no chromium and chromedriver: apt install chromium-driver",
    ),
]

WIDTHS, SCHEMES = (390, 1280, 1920), ("light", "dark")

WIDER = """
const inside = (e) => e.closest(".scroll, .stepper-tree, .stepper-text, [style*='overflow-x']");
return [...document.body.querySelectorAll("*")]
  .filter((e) => !inside(e) && e.getBoundingClientRect().right > innerWidth + 0.5)
  .map((e) => e.outerHTML.slice(0, 120));
"""
CUT = """
return [...document.querySelectorAll("svg text")].filter((text) => {
  const own = text.getBoundingClientRect(), all = text.closest("svg").getBoundingClientRect();
  return own.left < all.left - 1 || own.right > all.right + 1 || own.top < all.top - 1
    || own.bottom > all.bottom + 1;
}).map((text) => text.textContent);
"""
OVERFULL = """
return [...document.querySelectorAll(".trees svg, .stepper-tree svg")].flatMap((svg) => {
  const boxes = [...svg.querySelectorAll("rect")].map((box) => box.getBoundingClientRect());
  const within = (t) => boxes.some((b) => t.left >= b.left && t.right <= b.right);
  return [...svg.querySelectorAll("text")]
    .filter((text) => !within(text.getBoundingClientRect())).map((text) => text.textContent);
});
"""


class Browser:
    """A session of chromedriver, by its HTTP protocol (W3C WebDriver)."""

    def __init__(self, port):
        self.root = f"http://127.0.0.1:{port}"
        options = {
            "binary": CHROMIUM,
            "args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
        }
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        found = self.call("/session", {"capabilities": {"alwaysMatch": wanted}})
        self.root += f"/session/{found['sessionId']}"

    def call(self, path, data=None, method="POST"):
        body = None if method != "POST" else json.dumps(data or {}).encode()
        request = urllib.request.Request(self.root + path, body, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["value"]

    def run(self, script):
        return self.call("/execute/sync", {"script": script, "args": []})

    def devtools(self, command, **parameters):
        return self.call("/goog/cdp/execute", {"cmd": command, "params": parameters})

    def open(self, path, width=1280, scheme="light", media=""):
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        self.devtools("Emulation.setDeviceMetricsOverride", **size)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.devtools("Emulation.setEmulatedMedia", media=media, features=features)
        self.call("/url", {"url": path.as_uri()})

    def messages(self):
        return [entry["message"] for entry in self.call("/se/log", {"type": "browser"})]

    def key(self, name):
        for kind in ("rawKeyDown", "keyUp"):
            self.devtools("Input.dispatchKeyEvent", type=kind, key=name, code=name)

    def picture(self, path):
        """A screenshot of the whole page."""
        found = self.devtools("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))


@pytest.fixture(scope="module")
def browser():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    driver = subprocess.Popen([str(DRIVER), f"--port={port}"], stdout=subprocess.DEVNULL)
    try:
        for _ in range(100):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=5)
                break
            except (urllib.error.URLError, OSError):
                time.sleep(0.1)
        session = Browser(port)
        yield session
        session.call("", method="DELETE")
    finally:
        driver.terminate()
        driver.wait(timeout=20)


@pytest.fixture(scope="module")
def page(demo_page):
    return demo_page


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_wider_than_the_window_or_cut(browser, page, width, scheme):
    browser.open(page, width, scheme)
    assert browser.run("return innerWidth") == width
    assert browser.run("return document.documentElement.scrollWidth") <= width
    assert browser.run(WIDER) == []
    assert browser.run(CUT) == []
    assert browser.run(OVERFULL) == []
    dark = browser.run("return getComputedStyle(document.body).backgroundColor")
    assert dark == ("rgb(20, 23, 27)" if scheme == "dark" else "rgb(255, 255, 255)")
    assert browser.messages() == []


def state(browser):
    return browser.run("""
      const at = (query) => document.querySelector(query);
      return {
        count: at(".stepper-count").textContent, said: at(".stepper-said").textContent,
        text: at(".stepper-text").textContent,
        labels: [...document.querySelectorAll(".stepper-tree text")].map((text) => text.textContent),
        accepted: document.querySelectorAll(".stepper-text mark.accepted").length,
        selects: [...document.querySelectorAll(".stepper select")].map((select) => select.value),
      };""")


def expected(trail, at):
    before = "".join(piece for step in trail.steps[:at] for piece in step.emitted[: step.kept])
    return (trail.before or "… " + trail.steps[0].pieces[0]) + before


def test_the_stepper_steps(browser, page):
    trails = trails_of_run(load_run(page.parent))
    assert trails[0].before.endswith("</script><b>first</b>")
    assert trails[-1].before == ""
    browser.open(page)
    first = state(browser)
    trail = next(t for t in trails if t.group == "tree")
    assert first["selects"] == [trail.prompt, trail.sampling, trail.method]
    assert first["count"].startswith(f"step 1 of {len(trail.steps)}")
    assert first["said"] == trail.steps[0].said
    assert len(first["labels"]) == trail.steps[0].shape.size + 1
    assert first["text"].startswith(expected(trail, 0))

    browser.run("document.querySelector('[aria-label=\"next step\"]').click()")
    second = state(browser)
    assert second["count"].startswith("step 2 of")
    assert second["labels"] != first["labels"]
    assert second["text"].startswith(expected(trail, 1))

    browser.run("document.querySelector('.stepper-tree').focus()")
    browser.key("ArrowRight")
    assert state(browser)["count"].startswith("step 3 of")
    browser.key("ArrowLeft")
    assert state(browser) == second
    browser.key("End")
    last = state(browser)
    assert last["count"].startswith(f"step {len(trail.steps)} of {len(trail.steps)}")
    assert last["said"] == trail.steps[-1].said
    assert last["text"].startswith(expected(trail, len(trail.steps) - 1))
    assert browser.run("return document.querySelector('[aria-label=\"next step\"]').disabled")
    browser.key("ArrowRight")
    assert state(browser) == last
    browser.key("Home")
    assert state(browser) == first
    assert browser.messages() == []


def test_without_its_scripts_there_are_pictures(browser, page, tmp_path):
    path = tmp_path / "still.html"
    text = re.sub("<script.*?</script>", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    path.write_text(text, encoding="utf-8")
    browser.open(path, 390)
    html = browser.run("return document.querySelector('[data-steps]').outerHTML")
    assert html.count("<svg") == 4
    assert "stepper-bar" not in html
    assert "Step 1: " in html
    assert browser.run(WIDER) == browser.run(CUT) == []
    assert browser.messages() == []
