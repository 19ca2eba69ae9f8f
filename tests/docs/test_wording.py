"""Phrases that name no subject or no number are not used where a reader needs them: docstrings, comments, guides."""

import re

import pytest

from tests.processes import PROJECT

FOLDERS = (
    *(
        "gateway",
        "gateway_cli",
        "gateway_client",
        "gateway_decoder",
        "gateway_local",
        "gateway_machine",
        "gateway_models",
        "gateway_plugins",
    ),
    *("gateway_predictions", "triton_backends", "triton_models", "native", "deploy", "bench", "examples", "docs"),
    "tests",
)
PHRASES = {
    "a quantity without its name": r"\b(so many|for so long|takes so long|so much (?:more|memory|that))\b",
    "a fragment that begins with Of": r'(?:"""|# )Of [a-z`]',
    "a fragment that begins with a pronoun": r'(?:"""|# )(?:Those|That) of\b',
    "an action without its name": r"\b(gives way|give way|has to come|further ones)\b",
}


@pytest.mark.parametrize("meaning", PHRASES)
@pytest.mark.parametrize("folder", FOLDERS)
def test_phrase_is_not_used(folder, meaning):
    paths = [
        path for path in (PROJECT / folder).rglob("*") if path.suffix in {".py", ".md"} and path.name != "CHANGELOG.md"
    ]
    found = [
        f"{path.relative_to(PROJECT)}:{number}: {line.strip()}"
        for path in paths
        if path.name != "test_wording.py"
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(PHRASES[meaning], line)
    ]
    assert paths
    assert found == []


@pytest.mark.parametrize(
    ("meaning", "line"),
    [
        ("a quantity without its name", "Wait until so many connections are open."),
        ("a fragment that begins with Of", '"""Of the bins of SCORE and ENTROPY."""'),
        ("a fragment that begins with a pronoun", '"""That of the images in pixels."""'),
        ("an action without its name", "The oldest stream gives way; further ones wait."),
    ],
)
def test_phrase_would_be_found(meaning, line):
    assert re.search(PHRASES[meaning], line)
