"""The page reports a wrong answer to a service that logs predictions, and to no other."""

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from gateway_predictions.reader import LogReader
from tests.browser.backend import ColourBackend, picture
from tests.gateway.streams.stub import stream_service
from tests.gateway_predictions.logged import EVERYTHING, rows

pytestmark = pytest.mark.slow


def add(page: Page, *colours: str) -> None:
    files = [{"name": f"{each}.png", "mimeType": "image/png", "buffer": picture(each, 0)} for each in colours]
    page.set_input_files("#files", files)
    expect(page.locator(".card[data-state=ok]")).to_have_count(len(colours))


def test_wrong_answer_is_reported_from_its_card(context: BrowserContext, tmp_path):
    settings = {"log_predictions": str(tmp_path), **EVERYTHING}
    with stream_service(ColourBackend(), model="colours", **settings) as (address, _):
        page = context.new_page()
        page.goto(f"http://{address}")
        add(page, "blue", "green")
        button = page.locator(".card", has_text="green.png").locator("button.wrong")
        button.click()
        expect(button).to_have_text("Reported as wrong")
        expect(button).to_be_disabled()
        rows(tmp_path, 1, "feedback")
        rows(tmp_path, 2)
    (found,) = LogReader(str(tmp_path)).labelled()
    assert (found.label, found.row["labels"][0]) == (None, "green")


def test_service_without_a_log_has_no_button(page: Page):
    add(page, "blue")
    expect(page.locator("button.wrong")).to_have_count(0)
