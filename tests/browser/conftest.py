"""Fixtures with a real browser, if the machine has one."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import (
    Browser,
    BrowserContext,
    FilePayload,
    FloatRect,
    Locator,
    Page,
    expect,
    sync_playwright,
)

from tests.browser.backend import colours_backend, picture, video
from tests.doubles.backend import StubBackend
from tests.services import stream_service

WANTED = "no browser: `apt-get install chromium` (or set CHROMIUM to one), then run these tests again"
PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

PATIENCE_MS = 60_000
"""Timeout of expectations on the page."""
expect.set_options(timeout=PATIENCE_MS)


def chromium() -> str:
    """The path of a Chromium; skips the test where there is none."""
    named = os.environ.get("CHROMIUM")
    found = [path for path in map(shutil.which, [named] if named else PROGRAMS) if path]
    if not found:
        pytest.skip(WANTED)
    return found[0]


@pytest.fixture(scope="package")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser whose camera alternates between blue and red, and which resolves gateway.test to this machine."""
    path = chromium()
    seen = tmp_path_factory.mktemp("camera") / "seen.y4m"
    seen.write_bytes(video(blue=10, red=10))
    options = [
        "--disable-background-networking",
        "--use-fake-device-for-media-stream",
        f"--use-file-for-fake-video-capture={seen}",
        "--host-resolver-rules=MAP gateway.test 127.0.0.1",
    ]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=options)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def backend() -> StubBackend:
    return colours_backend()


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model repository with two examples of `colours`, and none of `moods`."""
    folder = tmp_path_factory.mktemp("repository")
    (folder / "colours").mkdir()
    for number, colour in enumerate(("red", "blue"), 1):
        (folder / "colours" / f"example-{number}.png").write_bytes(picture(colour))
    index = [{"file": "example-1.png", "label": "red"}, {"file": "example-2.png", "label": None}]
    (folder / "colours" / "examples.json").write_text(json.dumps(index))
    return folder


@pytest.fixture(scope="module")
def service(backend: StubBackend, repository: Path) -> Iterator[str]:
    with stream_service(backend, model="colours", model_repository=repository, hosts=["gateway.test"]) as (address, _):
        yield f"http://{address}"


@pytest.fixture(scope="package")
def profile(browser: Browser) -> Iterator[BrowserContext]:
    """A browser profile, which keeps the page's compiled scripts: they are half of a test's processor time."""
    with browser.new_context(viewport={"width": 1280, "height": 900}, permissions=["clipboard-read"]) as profile:
        profile.set_default_timeout(PATIENCE_MS)
        yield profile


@pytest.fixture
def context(profile: BrowserContext) -> Iterator[BrowserContext]:
    """The profile, without stored data of earlier tests' pages.

    A blank page stays open: once its last page is closed, a profile compiles the scripts again.
    """
    blank = profile.pages[0] if profile.pages else profile.new_page()
    yield profile
    profile.set_offline(False)
    for page in profile.pages[1:]:
        page.close()
    profile.new_cdp_session(blank).send("Storage.clearDataForOrigin", {"origin": "*", "storageTypes": "all"})


@pytest.fixture
def page(context: BrowserContext, service: str) -> Iterator[Page]:
    """The page with its models loaded; an uncaught error fails the test."""
    page = context.new_page()
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.goto(service)
    expect(page.locator("#model option")).to_have_count(4)
    expect(page.locator("#example")).to_be_visible()
    open_panels(page)
    yield page
    assert faults == []


@contextmanager
def page_of(
    context: BrowserContext, backend: StubBackend | None = None, path: str = "", **settings: object
) -> Iterator[Page]:
    """A page of a new service with these settings."""
    with stream_service(backend or colours_backend(), model="colours", **settings) as (address, _):
        page = context.new_page()
        page.goto(f"http://{address}{path}")
        yield page
        page.close()


def file(name: str, content: bytes, media_type: str = "image/png") -> FilePayload:
    return {"name": name, "mimeType": media_type, "buffer": content}


def box(element: Locator) -> FloatRect:
    """Where a visible element is."""
    found = element.bounding_box()
    assert found
    return found


def check(page: Page) -> None:
    """The page is accessible, and no element is wider than the window."""
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


def enter_key(page: Page, key: str) -> None:
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Use this key").click()


def open_panels(page: Page) -> None:
    """Show the settings and the code."""
    for name in ("Settings", "Code"):
        page.get_by_role("button", name=name, exact=True).click()


def read_download(page: Page, button: str, folder: Path) -> Path:
    """The file that an item of the menu Save saves, under the name that it proposes."""
    page.locator("#saves summary").click()
    with page.expect_download() as download:
        page.get_by_role("button", name=button).click()
    path = folder / download.value.suggested_filename
    download.value.save_as(path)
    return path
