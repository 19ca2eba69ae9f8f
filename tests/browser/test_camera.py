"""The camera tab in a real browser with a simulated camera."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect
from websockets.sync.client import connect

from gateway.plugins.keys.key_file import add_key
from tests.browser.backend import picture
from tests.browser.conftest import PATIENCE_MS, enter_key, file, page_of
from tests.doubles.backend import StubBackend
from tests.processes import wait_for
from tests.services import stream_service

WATCH_TRACKS = """
  globalThis.tracks = [];
  const { mediaDevices } = navigator;
  const plain = mediaDevices?.getUserMedia.bind(mediaDevices);
  if (plain) mediaDevices.getUserMedia = async (asked) => {
    if (globalThis.fault) throw new DOMException("as the test wants it", globalThis.fault);
    const media = await plain(asked);
    globalThis.tracks.push(...media.getTracks());
    return media;
  };
  globalThis.sent = 0;
  const { send } = WebSocket.prototype;
  WebSocket.prototype.send = function (message) {
    globalThis.sent += 1;
    send.call(this, message);
  };
"""
"""Records every camera that the page gets, and counts its messages; `fault` names an error to raise instead."""


@pytest.fixture(autouse=True)
def healthy(backend: StubBackend) -> Iterator[None]:
    backend.gate.set()
    yield
    backend.gate.set()


@pytest.fixture(scope="module")
def profile(browser: Browser) -> Iterator[BrowserContext]:
    with browser.new_context(viewport={"width": 1280, "height": 900}, permissions=["camera"]) as profile:
        profile.set_default_timeout(PATIENCE_MS)
        profile.add_init_script(WATCH_TRACKS)
        yield profile


def open_camera(page: Page, url: str) -> None:
    page.goto(f"{url}/?tab=camera")
    expect(page.locator("#model option")).to_have_count(4)
    page.get_by_role("button", name="Settings", exact=True).click()
    page.get_by_role("button", name="Start the camera").click()


@pytest.fixture
def page(context: BrowserContext, service: str) -> Iterator[Page]:
    """The camera tab, opened and started; an uncaught error fails the test."""
    page = context.new_page()
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    open_camera(page, service)
    yield page
    assert faults == []


def is_live(page: Page) -> None:
    # A hidden element keeps its text.
    expect(page.locator("#camera-label:visible")).to_have_text(re.compile("blue|red"))


def is_off(page: Page) -> None:
    """The camera is released and can be started again."""
    expect(page.locator("#camera-on")).to_be_hidden()
    wait_for(lambda: page.evaluate("tracks.length && tracks.every(({ readyState }) => readyState === 'ended')"))
    assert page.evaluate("document.querySelector('video').srcObject") is None


def reason(page: Page, words: str) -> None:
    expect(page.locator("#camera-reason")).to_contain_text(words)


def test_labels_of_frame_and_sequence_are_shown_over_the_video(page: Page):
    is_live(page)
    first = page.locator("#camera-label").text_content()
    for colour in ("red", "blue"):
        expect(page.locator("#camera-own")).to_contain_text(f"This frame: {colour}")
    expect(page.locator("#camera-label")).to_have_text(first or "")
    expect(page.locator("#camera-held:visible")).to_have_text("held")
    expect(page.locator("#camera-held")).to_be_hidden()
    expect(page.locator("#camera-answers h2")).to_have_text(["Over the sequence", "In this frame"])
    words = re.compile(r"^\d+\.\d frames per second, latency \d+ ms, \d+ ms of it in the gateway")
    expect(page.locator("#camera-figures")).to_have_text(words)

    page.select_option("#top-k", "3")
    expect(page.locator("#camera-answers .label")).to_have_count(6)
    page.select_option("#smoothing", "none")
    expect(page.locator("#camera-answers h2")).to_have_text(["In this frame"])
    expect(page).to_have_url(re.compile(r"top_k=3&smoothing=none&tab=camera"))
    page.locator("#least").fill("0.95")
    expect(page.locator("#camera-label")).to_have_text("No label is likely enough")


def test_camera_stops_when_its_tab_is_hidden(page: Page):
    is_live(page)
    page.get_by_role("button", name="Stop the camera").click()
    is_off(page)
    expect(page.locator("#camera-start")).to_be_focused()

    page.keyboard.press("Enter")
    is_live(page)
    page.get_by_role("tab", name="Images").click()
    is_off(page)

    page.get_by_role("tab", name="Images").press("ArrowRight")
    expect(page.get_by_role("tab", name="Camera")).to_be_focused()
    page.click("#camera-start")
    is_live(page)
    page.evaluate(
        """() => {
          Object.defineProperty(document, "hidden", { configurable: true, value: true });
          document.dispatchEvent(new Event("visibilitychange"));
        }"""
    )
    is_off(page)
    reason(page, "Stopped, because this page was hidden.")

    page.click("#camera-start")
    is_live(page)
    page.set_input_files("#files", file("blue.png", picture("blue")))
    expect(page.locator("#tally")).to_have_text("1 classified")
    is_off(page)


def test_missing_or_disconnected_camera_is_reported(page: Page):
    is_live(page)
    page.evaluate("tracks[0].dispatchEvent(new Event('ended'))")
    reason(page, "The camera was disconnected")
    is_off(page)
    for fault, words in (
        ("NotFoundError", "No camera was found."),
        ("NotReadableError", "another program may be using it"),
        ("AbortError", "The camera cannot be used: as the test wants it."),
    ):
        page.evaluate("(name) => (globalThis.fault = name)", fault)
        page.click("#camera-start")
        reason(page, words)
    page.evaluate("globalThis.fault = ''")
    page.click("#camera-start")
    is_live(page)


NOT_ALLOWED = {
    "127.0.0.1": ["This page may not use the camera. Allow it in your browser's settings for this site"],
    "gateway.test": [
        "Browsers allow the camera only to pages that come over HTTPS or from localhost.",
        "ssh -L 8080:localhost:{port} gateway.test",
    ],
}


@pytest.mark.parametrize("host", NOT_ALLOWED)
def test_page_that_may_not_use_the_camera_says_how_it_may(browser: Browser, service: str, host: str):
    with browser.new_context() as context:
        page = context.new_page()
        open_camera(page, service.replace("127.0.0.1", host))
        for words in NOT_ALLOWED[host]:
            reason(page, words.format(port=service.rpartition(":")[2]))


def test_stream_without_a_stateful_model_is_refused_unless_it_has_no_smoothing(page: Page):
    is_live(page)
    page.select_option("#model", "moods")
    reason(page, "Triton has no stateful model for the streams of 'moods'.")
    is_off(page)
    page.select_option("#smoothing", "none")
    page.click("#camera-start")
    expect(page.locator("#camera-label")).to_have_text(re.compile("calm|blue"))
    expect(page.locator("#camera-answers h2")).to_have_text(["In this frame"])


def test_page_asks_for_a_key_and_uses_it(context: BrowserContext, backend: StubBackend, tmp_path):
    keys = tmp_path / "keys"
    key = add_key(keys, "page")
    with page_of(context, backend, "/?tab=camera", api_keys_file=keys) as page:
        page.get_by_role("button", name="Start the camera").click()
        reason(page, "The gateway needs an API key: enter it under “API key”.")
        # A wrong key, and a text that cannot be a subprotocol, are refused.
        for wrong in ("tig_wrong", "a(b"):
            enter_key(page, wrong)
            reason(page, "The gateway does not know this API key: enter another one")
        enter_key(page, key)
        is_live(page)


def test_full_or_stopped_gateway_is_tried_again(context: BrowserContext, backend: StubBackend):
    with stream_service(backend, model="colours", max_streams=1) as (address, server):
        page = context.new_page()
        backend.gate.clear()
        with connect(f"ws://{address}/stream", proxy=None) as other:
            other.send(picture("red"))  # a stream whose frame has no answer keeps its place
            open_camera(page, f"http://{address}")
            state = page.locator("#camera-state")
            full = r"the limit max_streams is 1; try again later\. Trying again \(\d of 5\)\."
            expect(state).to_contain_text(re.compile(full))
            backend.gate.set()
        is_live(page)
        server.should_exit = True
        expect(state).to_contain_text("Trying again")
        expect(page.locator("#camera-words")).to_be_hidden()
        page.click("#camera-stop")
        is_off(page)


def test_no_frame_is_sent_while_too_many_are_unanswered(page: Page, backend: StubBackend):
    is_live(page)
    backend.gate.clear()
    before = page.evaluate("sent")
    # Two are classified, two wait, and the gateway drops all later ones.
    wait_for(lambda: page.evaluate("sent") >= before + 8)
    expect(page.locator("#camera-figures")).to_contain_text(re.compile(r"[1-9]\d* by this browser"))
    backend.gate.set()
    expect(page.locator("#camera-figures")).to_contain_text(re.compile(r"[1-9]\d* dropped by the gateway"))
