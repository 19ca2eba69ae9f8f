"""Self-contained HTML files for reports."""

import base64
import html

STYLE = """\
body { font: 15px/1.4 system-ui, sans-serif; margin: 2rem; color: #1b1b1b; background: #fff }
main { display: grid; grid-template-columns: repeat(auto-fill, minmax(14rem, 1fr)); gap: 1.5rem }
figure { margin: 0 } img { max-width: 100%; height: auto; background: #eee }
figcaption { overflow-wrap: anywhere } figcaption b { font-weight: 600 } .right { color: #0a6b2d }
"""


def page(heading: str, body: str, style: str = "") -> str:
    """A document with a heading, which is escaped here, and a body in HTML; `style` is CSS beside STYLE."""
    heading = html.escape(heading)
    return (
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{heading}</title>\n'
        f"<style>\n{STYLE}{style}</style>\n<h1>{heading}</h1>\n{body}\n</html>\n"
    )


def embedded(image: bytes, media_type: str) -> str:
    """The address of an image inside of the document."""
    return f"data:{media_type};base64,{base64.b64encode(image).decode()}"
