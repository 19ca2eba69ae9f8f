"""The page in a real browser."""

import csv
import json
import re
from collections.abc import Callable
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, FilePayload, Page, Route, expect

from gateway.plugins.keys.key_file import add_key
from tests.browser.backend import picture
from tests.browser.conftest import PATIENCE_MS, box, enter_key, file, page_of, read_download
from tests.doubles.backend import StubBackend
from tests.processes import wait_for


def photos(**colours: int) -> list[FilePayload]:
    """The given number of images of each colour: blue-0.png, …"""
    return [file(f"{each}-{n}.png", picture(each, n)) for each, count in colours.items() for n in range(count)]


def add(page: Page, files: list[FilePayload]) -> None:
    page.set_input_files("#files", files)
    expect(page.locator("#saves")).to_be_visible()


def shows(page: Page, *names: str) -> None:
    """The cards, in their order, are of these files."""
    expect(page.locator(".card .name")).to_have_text([*names])


def labelled(page: Page, *labels: list[str]) -> None:
    """The labels of each card, those behind "more labels" included."""
    expect(page.locator(".card")).to_have_count(len(labels))
    for position, those in enumerate(labels):
        expect(page.locator(".card").nth(position).locator(".label")).to_have_text(those)


def test_each_image_gets_a_card_with_labels_and_model(page: Page):
    page.select_option("#top-k", "3")
    add(page, [*photos(blue=1, green=1), file("broken.png", b"not a picture")])
    expect(page.locator("#tally")).to_have_text("2 classified, 1 failed")
    shows(page, "blue-0.png", "green-0.png", "broken.png")
    labelled(page, ["blue", "green", "red"], ["green", "blue", "red"], [])
    labels = page.locator(".card .label:visible")
    expect(labels).to_have_text(["blue", "green"])
    page.get_by_text("2 more labels").first.click()
    expect(labels).to_have_text(["blue", "green", "red", "green"])
    expect(page.locator(".verdict")).to_have_count(0)  # the service logs no predictions
    expect(page.locator(".card .model")).to_have_count(0)
    expect(page.locator(".card code")).to_have_text("unsupported_format")
    expect(page.locator(".picture:visible")).to_have_count(2)


def test_example_is_classified_on_arrival_and_others_by_a_click(page: Page, backend: StubBackend):
    best = page.locator("#example-answer .label").first
    expect(best).to_have_text("red")
    expect(page.locator("#example-title")).to_have_text("An example: red")
    page.get_by_role("button", name="Picture 2").click()
    expect(best).to_have_text("blue")
    expect(page.locator("#example-title")).to_have_text("An example")
    expect(page.locator("#results")).to_be_hidden()
    page.get_by_role("button", name="red", exact=True).click()
    expect(best).to_have_text("red")
    add(page, photos(blue=1))
    expect(page.locator("#example")).to_be_hidden()
    page.click("#clear")
    expect(best).to_have_text("red")
    asked = len(backend.calls)
    page.select_option("#model", "moods")  # a model without examples
    expect(page.locator("#example")).to_be_hidden()
    assert len(backend.calls) == asked
    page.select_option("#model", "colours")
    expect(best).to_have_text("red")


def test_pictures_of_the_same_name_show_their_folder(page: Page):
    page.evaluate(
        """async (bytes) => {
          const carried = new DataTransfer();
          for (const folder of ["a", "b"]) {
            const file = new File([new Uint8Array(bytes)], "same.png", { type: "image/png" });
            Object.defineProperty(file, "webkitRelativePath", { value: `photos/${folder}/same.png` });
            carried.items.add(file);
          }
          const input = document.getElementById("files");
          Object.defineProperty(input, "files", { value: carried.files, configurable: true });
          for (const [number, folder] of ["a", "b"].entries()) {
            Object.defineProperty(input.files[number], "webkitRelativePath", { value: `photos/${folder}/same.png` });
          }
          input.dispatchEvent(new Event("change"));
        }""",
        list(picture("blue")),
    )
    shows(page, "photos/a/same.png", "photos/b/same.png")
    page.locator(".thumb").last.click()
    expect(page.locator("#viewer-name")).to_have_text("photos/b/same.png")


def test_copied_link_has_the_choices(page: Page, context: BrowserContext):
    choices = {"#model": "colours 1", "#compare": "moods", "#top-k": "3"}
    for menu, value in choices.items():
        page.select_option(menu, value)
    page.locator("#least").fill("0.25")
    page.get_by_role("button", name="Copy link").click()
    expect(page.locator("#link")).to_have_text("Copied")
    link = page.evaluate("navigator.clipboard.readText()")
    assert link == page.url
    other = context.new_page()
    other.goto(link)
    expect(other.locator("#model option")).to_have_count(4)
    for field, value in {**choices, "#least": "0.25"}.items():
        expect(other.locator(field)).to_have_value(value)


def test_another_model_or_number_of_labels_asks_to_run_again(page: Page):
    add(page, photos(blue=1))
    expect(page.locator("#again")).to_have_text("Run again")
    page.select_option("#model", "colours 1")
    expect(page.locator("#again")).to_have_text("Run again with these settings")
    page.click("#again")
    expect(page.locator("#again")).to_have_text("Run again")
    page.get_by_role("button", name="Open blue-0.png").click()
    expect(page.locator("#viewer .model")).to_have_text("colours version 1")
    page.keyboard.press("Escape")
    page.select_option("#compare", "colours 2")
    page.click("#again")
    expect(page.locator(".card .model")).to_have_text(["colours version 1", "colours version 2"])


def test_two_models_answer_side_by_side(page: Page, tmp_path):
    page.select_option("#compare", "moods")
    add(page, photos(blue=1, red=1))
    expect(page.locator("#tally")).to_have_text("2 classified")
    expect(page.locator(".card").first.locator(".model")).to_have_text(["colours", "moods"])

    expect(page.locator(".disagree:visible")).to_have_count(1)
    page.locator("#kinds").get_by_text("Disagree").click()
    shows(page, "red-0.png")
    expect(page.locator(".disagree")).to_have_text("Models disagree")

    path = read_download(page, "Save as JSON", tmp_path)
    assert path.name == "results-colours-2-moods-1.json"
    saved = json.loads(path.read_text())
    assert (saved["model"], saved["summary"]) == (None, {"ok": 4, "failed": 0})
    assert [(each["filename"], each["model"]["name"]) for each in saved["results"]] == [
        (name, model) for name in ("blue-0.png", "red-0.png") for model in ("colours", "moods")
    ]


def test_saved_results_name_the_model_and_every_label(page: Page, tmp_path):
    page.select_option("#top-k", "1")
    add(page, [*photos(green=1), file("empty.png", b"")])
    path = read_download(page, "Save as CSV", tmp_path)
    assert path.name == "results-colours-2.csv"
    with path.open(newline="") as rows:
        first, second = csv.DictReader(rows)
    columns = ("filename", "model", "version", "label")
    assert [first[name] for name in columns] == ["green-0.png", "colours", "2", "green"]
    assert float(first["score"]) == pytest.approx(0.9)
    assert (second["filename"], second["label"], second["error"]) == ("empty.png", "", "empty_file")

    saved = json.loads(read_download(page, "Save as JSON", tmp_path).read_text())
    assert saved["model"] == {"name": "colours", "version": "2"}


def test_card_says_what_the_model_is(page: Page):
    expect(page.locator("#about-name")).to_have_text("colours")
    expect(page.locator("#about-words")).to_have_text("Blue, green or red.")
    expect(page.locator("#about-version")).to_have_text("Version 1 (10%), 2 (90%), since November 29, 2026")
    labels = page.locator("#about-labels")
    expect(labels.locator("summary")).to_have_text("Knows 43 labels: blue, green, red, colour 0, colour 1, …")
    labels.locator("summary").click()
    page.get_by_label("Search what the model knows").fill("colour 39")
    expect(labels.locator("p")).to_have_text("colour 39")
    page.select_option("#model", "colours 1")
    expect(page.locator("#about-version")).to_have_text("Version 1")
    page.select_option("#model", "moods")
    expect(labels.locator("summary")).to_have_text("Knows 2 labels: calm, blue")
    expect(page.locator("#about-words")).to_be_hidden()


@pytest.mark.parametrize("origins", [["*"], []], ids=str)
def test_embed_code_shows_the_page_on_a_site_of_the_settings(context: BrowserContext, origins: list[str]):
    with page_of(context, cors_origins=origins) as page:
        expect(page.locator("#about-name")).to_have_text("colours")
        page.get_by_role("button", name="Settings").click()
        page.get_by_role("button", name="Copy embed code").click()
        expect(page.locator("#embed")).to_have_text("Copied")
        code = page.evaluate("navigator.clipboard.readText()")
        page.get_by_role("button", name="Copy link").click()
        expect(page.locator("#link")).to_have_text("Copied")
        assert page.evaluate("navigator.clipboard.readText()").endswith("?model=colours")
        site = context.new_page()
        said: list[str] = []
        site.on("console", lambda message: said.append(message.text))
        # Another origin, whose policy has no word about frames in it.
        site.goto(page.url.replace("127.0.0.1", "localhost") + "openapi.json")
        site.evaluate("code => (document.body.innerHTML = code)", code)
        name = site.frame_locator("iframe").locator("#about-name")
        if origins:
            expect(name).to_have_text("colours")
        else:
            # Waits in the browser, which then has the message.
            wait_for(lambda: site.evaluate("1") and any("frame-ancestors" in words for words in said))


@pytest.mark.parametrize("access", ["open", "key"])
def test_metrics_that_need_a_key_have_no_link(context: BrowserContext, tmp_path, access: str):
    add_key(tmp_path / "keys", "page")
    with page_of(context, api_keys_file=tmp_path / "keys", metrics_access=access) as page:
        expect(page.get_by_role("link", name="API docs")).to_be_visible()
        expect(page.get_by_role("link", name="Metrics")).to_have_count(int(access == "open"))


def test_command_for_the_client_can_be_copied(page: Page, service: str):
    page.goto(f"{service}/client/")
    page.get_by_role("button", name="Copy").click()
    expect(page.locator("#copy")).to_have_text("Copied")
    command = page.evaluate("navigator.clipboard.readText()")
    assert re.fullmatch(rf"pip install {service}/client/\S+\.whl", command)
    assert page.evaluate("fetch(document.querySelector('#code').value.split(' ').at(-1)).then(({ ok }) => ok)")


def test_labels_are_counted_and_the_slider_hides_those_below_the_threshold(page: Page):
    add(page, photos(red=1, blue=3, green=2))
    expect(page.locator(".chip")).to_have_text(["blue3", "green2", "red1"])
    green = page.locator(".chip", has_text="green")
    green.click()
    shows(page, "green-0.png", "green-1.png")
    green.click()
    expect(page.locator(".card")).to_have_count(6)
    page.locator("#least").fill("0.7")
    expect(page.locator(".unsure")).to_have_text("No label reaches 70.0%")
    labelled(page, [], ["blue"], ["blue"], ["blue"], ["green"], ["green"])
    expect(page.locator(".chip")).to_have_text(["blue3", "green2"])
    page.locator("#kinds").get_by_text("Unsure").click()
    shows(page, "red-0.png")
    expect(page.locator("#code")).to_have_value(re.compile("threshold=0.7"))


def test_viewer_shows_the_crop_and_requests_every_label(page: Page):
    add(page, photos(blue=2))
    page.get_by_role("button", name="Open blue-0.png").click()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#viewer-name")).to_have_text("blue-1.png")
    expect(page.locator("#viewer-seen")).to_have_text("The model saw what is in the frame, at 32 × 32.")
    image, frame = (box(page.locator(each)) for each in ("#viewer-image", "#viewer-frame"))
    assert frame["width"] == pytest.approx(image["width"] / 2, abs=1)
    assert frame["x"] - image["x"] == pytest.approx(image["width"] / 4, abs=1)

    rows = page.locator("#viewer .scores li")
    expect(rows).to_have_count(5)
    page.locator("#viewer").get_by_role("button", name="All labels").click()
    expect(rows).to_have_count(43)
    page.get_by_label("Find a label").fill("colour 39")
    expect(page.locator("#viewer .scores li:visible")).to_have_count(1)

    page.get_by_role("button", name="Previous").click()
    expect(page.locator("#viewer-name")).to_have_text("blue-0.png")
    page.keyboard.press("Escape")
    expect(page.locator("#viewer")).to_be_hidden()


def test_code_is_shown_in_two_ways(page: Page):
    starts = {
        "curl": "curl -F files=@cat.jpg",
        "Python": r"# pip install http://.*_client-.*\.whl\nfrom gateway_client import",
    }
    for name, start in starts.items():
        page.locator("#languages").get_by_text(name, exact=True).click()
        expect(page.locator("#code")).to_have_value(re.compile(start))


def test_link_that_is_dropped_is_not_followed(page: Page):
    dropped = page.evaluate(
        """() => {
          const carried = new DataTransfer();
          carried.setData("text/uri-list", "/elsewhere");
          const event = new DragEvent("drop", { dataTransfer: carried, bubbles: true, cancelable: true });
          return { followed: document.body.dispatchEvent(event) };
        }"""
    )
    assert dropped == {"followed": False}
    expect(page.locator("#said")).to_contain_text("Only files can be dropped here")


def test_slow_upload_shows_progress_in_bytes_and_seconds(page: Page, context: BrowserContext):
    line = context.new_cdp_session(page)
    line.send("Network.enable")
    slow = {"offline": False, "latency": 0, "downloadThroughput": -1, "uploadThroughput": 400_000}
    line.send("Network.emulateNetworkConditions", slow)
    page.set_input_files("#files", [file("large.png", picture("blue") + bytes(600_000))])
    expect(page.locator("#pace")).to_contain_text("of 600.3 kB sent")
    first = page.locator("#pace").text_content()
    expect(page.locator("#pace")).not_to_have_text(first or "")
    expect(page.locator("#again")).to_be_visible()


def test_stopped_run_can_be_continued(page: Page, backend: StubBackend):
    backend.gate.clear()
    try:
        page.set_input_files("#files", photos(green=1))
        page.get_by_role("button", name="Stop").click()
        expect(page.locator(".card code")).to_have_text("stopped")
    finally:
        backend.gate.set()
    page.get_by_role("button", name="Retry failed").click()
    expect(page.locator("#tally")).to_have_text("1 classified")


def test_images_without_a_result_are_sent_when_the_gateway_is_back(browser: Browser, service: str):
    with browser.new_context() as context:  # whose clock has no effect on other tests
        context.set_default_timeout(PATIENCE_MS)
        context.clock.install()
        page = context.new_page()
        page.goto(service)
        expect(page.locator("#model option")).to_have_count(4)
        expect(page.locator("#health")).to_have_text("Ready")
        context.set_offline(True)
        page.click("#health")
        expect(page.locator("#notice")).to_contain_text("Files that you add now are sent again as soon as it does.")
        page.set_input_files("#files", photos(blue=1))

        def given_up() -> bool:
            context.clock.fast_forward(1_000)  # through the pauses between its attempts
            return page.locator(".card code").count() == 1

        wait_for(given_up)
        expect(page.locator(".card code")).to_have_text("connection_lost")
        context.set_offline(False)
        page.click("#health")
        expect(page.locator("#tally")).to_have_text("1 classified")


def test_without_a_key_files_wait_for_one(context: BrowserContext, tmp_path):
    keys = tmp_path / "keys"
    key = add_key(keys, "page")
    with page_of(context, api_keys_file=keys) as page:
        words = "The gateway needs an API key: enter it under “API key”."
        expect(page.locator("#model-problem")).to_have_text(words)
        add(page, photos(blue=1))
        expect(page.locator(".card .error")).to_have_text(words)
        enter_key(page, "tig_wrong")
        expect(page.locator("#key-facts")).to_have_text("not accepted")
        enter_key(page, key)
        expect(page.locator("#tally")).to_have_text("1 classified")
        expect(page.get_by_label("API key")).to_be_hidden()
        expect(page.locator("#key-facts")).to_have_text("entered")
        expect(page.locator("#model option")).to_have_count(4)


MODELS = {
    "default": "m",
    "models": [
        {"name": "m", "versions": ["1", "2"], "ready": True, "reason": None, "classes": 2},
        {"name": "n", "versions": ["1"], "ready": False, "reason": "It died.", "classes": 3},
        {"name": "o", "versions": [], "ready": False, "loaded": False, "reason": "No Triton has it.", "classes": 0},
    ],
}
LISTED = ["m", "m, version 2", "m, version 1", "n (not ready)", "o (loads when used)"]
SELECTIONS = {
    "": ("m", ""),
    "?model=m&version=2": ("m, version 2", ""),
    "?model=n": ("n (not ready)", ""),
    "?model=o": ("o (loads when used)", ""),
    "?model=zzz": ("m", "This gateway has no model zzz. Choose another one."),
}
"""The address's query → the model that the menu selects, and the text below."""


def test_menu_selects_the_model_of_the_address(context: BrowserContext, service: str):
    page = context.new_page()
    page.route("**/models", lambda route: route.fulfill(json=MODELS))
    for query, (chosen, problem) in SELECTIONS.items():
        page.goto(f"{service}/{query}")
        expect(page.locator("#model option")).to_have_text(LISTED)
        expect(page.locator("#model option:checked")).to_have_text(chosen)
        expect(page.locator("#model-problem")).to_have_text(problem)


def test_files_are_sent_to_the_model_of_the_address_before_models_are_listed(context: BrowserContext, service: str):
    page = context.new_page()
    page.route("**/health/ready", lambda _: None)  # not answered; the page lists the models afterwards
    page.goto(f"{service}/?model=flowers&version=2")
    with page.expect_request("**/predict?*") as sent:
        add(page, photos(green=1))
    assert parse_qs(urlsplit(sent.value.url).query) == {"top_k": ["5"], "model": ["flowers"], "version": ["2"]}


def test_default_model_is_used_where_models_cannot_be_listed(context: BrowserContext, service: str):
    page = context.new_page()
    answers: dict[str, Callable[[Route], None]] = {
        "Triton is away.": lambda route: route.fulfill(status=503, json={"detail": "Triton is away."}),
        "the gateway answered 502.": lambda route: route.fulfill(status=502, json={}),
        "the gateway does not answer.": lambda route: route.abort(),
    }
    for why, answer in answers.items():
        page.route("**/models", answer)
        page.goto(f"{service}/?model=flowers")
        expect(page.locator("#model-problem")).to_contain_text(f"The models cannot be listed: {why}")
    page.route("**/models", lambda route: route.fulfill(json={"default": "m", "models": []}))
    page.goto(service)
    expect(page.locator("#model-problem")).to_contain_text("This gateway serves no model that takes images.")
    expect(page.locator("#model option")).to_have_text(["The default model"])
    add(page, photos(green=1))
    expect(page.locator("#tally")).to_have_text("1 classified")
