"""Pictures of the web pages and plots for docs/images, whose drawings are written by hand.

.venv/bin/python docs/pictures.py http://127.0.0.1:8080

Chromium takes the pictures of a service that runs with the default model. Commands of `gateway model` make the plots,
confusion.png and calibration.png, of docs/examples/train_digits.py.

Wherever the service is, the pictures show it at that address, and the cat of the README with the README's scores.
"""

import io
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

import cv2
import numpy as np
from matplotlib.cbook import get_sample_data
from PIL import Image
from playwright.sync_api import BrowserContext, FilePayload, FloatRect, Page, expect, sync_playwright
from skimage import data

FOLDER = Path(__file__).with_name("images")
EXAMPLES = Path(__file__).with_name("examples")
CAT = EXAMPLES / "cat.jpg"
SHOWN = "127.0.0.1:8080"
FRAMES = 40
FRAME_SIZE = (960, 640)


def jpeg(picture: Image.Image, quality: int = 88) -> bytes:
    """A picture as a JPEG."""
    file = io.BytesIO()
    picture.convert("RGB").save(file, "JPEG", quality=quality)
    return file.getvalue()


def photographs() -> list[FilePayload]:
    """Photographs of classes that the default model knows, a photograph that is cut off, and a PDF."""
    cat, coffee, photographer = map(Image.fromarray, (data.chelsea(), data.coffee(), data.camera()))
    officer = Image.open(get_sample_data("grace_hopper.jpg", asfileobj=False))
    files = {
        "cat.jpg": CAT.read_bytes(),
        "espresso.jpg": jpeg(coffee),
        "photographer.jpg": jpeg(photographer.crop((60, 60, 460, 400))),
        "notes.pdf": b"%PDF-1.7\n",
        "cat-close.jpg": jpeg(cat.crop((80, 20, 320, 270))),
        "cup.jpg": jpeg(coffee.crop((140, 0, 560, 360))),
        "officer.jpg": jpeg(officer),
        "cut-off.jpg": jpeg(coffee)[:9_000],
    }
    return [{"name": name, "mimeType": "image/jpeg", "buffer": content} for name, content in files.items()]


def film(path: Path) -> None:
    """A cup of coffee, seen by a hand that is not steady, as YUV4MPEG2."""
    cup = Image.fromarray(data.coffee())
    generator = np.random.default_rng(1)
    with path.open("wb") as file:
        file.write(b"YUV4MPEG2 W%d H%d F10:1 Ip A1:1 C420jpeg\n" % FRAME_SIZE)
        for _ in range(FRAMES):
            width = generator.uniform(360, 540)
            left, top = generator.uniform(0, 600 - width), generator.uniform(0, 400 - width * 2 / 3)
            frame = cup.resize(FRAME_SIZE, box=(left, top, left + width, top + width * 2 / 3))
            file.write(b"FRAME\n" + cv2.cvtColor(np.asarray(frame), cv2.COLOR_RGB2YUV_I420).tobytes())


def save_small(picture: Image.Image, name: str) -> None:
    """Save a picture with 256 colours."""
    picture.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(FOLDER / name, optimize=True)


def save(page: Page, name: str, clip: FloatRect | None = None) -> None:
    """What the window shows, or a part of the page, in few bytes."""
    taken = page.screenshot(animations="disabled", clip=clip, full_page=clip is not None)
    save_small(Image.open(io.BytesIO(taken)), name)


def opened(context: BrowserContext, address: str) -> Page:
    """The web page, once it knows the models."""
    page = context.new_page()
    page.goto(address)
    expect(page.locator("#health")).to_have_text("Ready")
    expect(page.locator("#model")).not_to_contain_text("Loading")
    return page


def take(address: str, film_path: Path) -> None:
    """Take all of them from the service at a host:port."""
    options = [
        "--use-fake-device-for-media-stream",
        f"--use-file-for-fake-video-capture={film_path}",
        f"--host-resolver-rules=MAP {SHOWN} {address}",
    ]
    url = f"http://{SHOWN}"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=options)
        context = browser.new_context(viewport={"width": 1240, "height": 1080}, permissions=["camera"])

        page = opened(context, f"{url}/?top_k=3")
        page.set_input_files("#files", photographs())
        expect(page.locator("#tally")).to_have_text("6 classified, 2 failed")
        expect(page.locator(".picture:visible")).to_have_count(6)
        save(page, "page.png")
        top, card = page.locator("#tally").bounding_box(), page.locator(".card").first.bounding_box()
        assert top is not None
        assert card is not None
        height = card["y"] + card["height"] - top["y"] + 32
        save(page, "cards.png", {"x": 0, "y": top["y"] - 16, "width": 1240, "height": height})

        page.set_viewport_size({"width": 1240, "height": 620})
        page.get_by_role("button", name="Open cat.jpg").click()
        page.get_by_role("button", name="Why?").click()
        expect(page.locator("#viewer-maps .heat")).to_have_count(1, timeout=300_000)
        save(page, "explain.png")

        page = opened(context, f"{url}/?top_k=3&tab=camera")
        page.set_viewport_size({"width": 1240, "height": 740})
        page.get_by_role("button", name="Start the camera").click()
        # The sequence has a past, and the times are those of frames after the first.
        page.wait_for_timeout(6_000)
        expect(page.locator("#camera-label")).not_to_be_empty()
        save(page, "camera.png")

        page = context.new_page()
        page.goto(f"{url}/docs")
        page.locator("#operations-classify-predict .opblock-summary-control").click()
        page.locator("#operations-classify-predict input[type=file]").first.set_input_files(photographs()[0])
        page.get_by_role("button", name="Execute").click()
        answer = page.locator(".live-responses-table .highlight-code").first
        expect(answer).to_contain_text("Egyptian cat")
        page.mouse.move(0, 0)
        page.evaluate("scrollTo(0, 0)")
        form = page.locator("#operations-classify-predict .opblock-section-request-body").bounding_box()
        box = answer.bounding_box()
        assert form is not None
        assert box is not None
        bottom = box["y"] + box["height"] + 24
        save(page, "docs.png", {"x": 0, "y": form["y"], "width": 1240, "height": bottom - form["y"]})
        browser.close()


DIGITS = """
python train_digits.py
gateway model add digits.pt2 --trust --name digits --labels labels.txt --model-repository models
    --resize 32 --crop 32 --mean 0.5,0.5,0.5 --std 0.25,0.25,0.25
gateway model evaluate digits photos/test --model-repository models --plot confusion.png
gateway model calibrate digits photos/calibration --model-repository models --plot calibration.png --dry-run
"""


def plot_digits(folder: Path) -> None:
    """Make the confusion matrix and the reliability diagram by the commands of docs/guides/postprocess.md."""
    shutil.copy(EXAMPLES / "train_digits.py", folder)
    for command in DIGITS.replace("\n    ", " ").strip().splitlines():
        program, *arguments = command.split()
        subprocess.run([Path(sys.executable).with_name(program), *arguments], cwd=folder, check=True)
    for name in ("confusion.png", "calibration.png"):
        picture = Image.open(folder / name)
        picture.thumbnail((800, 720))
        save_small(picture, name)


def main() -> None:
    """Make the plots, and take the pictures of the service at the URL that is given."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "film.y4m"
        plot_digits(Path(folder))
        film(path)
        take(urlsplit(sys.argv[1]).netloc, path)


if __name__ == "__main__":
    main()
