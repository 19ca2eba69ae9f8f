"""Damaged JPEGs are noticed, by the same code in the gateway's decoders and in the preprocessor."""

import os
import random
from pathlib import Path

import pytest

import gateway.decoder.damage
from gateway.decoder.damage import DamageDetector
from gateway_local.paths import DEFAULT_MODEL_REPOSITORY
from tests.damaged_files import KINDS, damaged, jpegs, outcome, refused_by_pillow
from tests.photos import PHOTOS, photo
from tests.samples import samples

NOTICED = 0.25
"""Fewest damaged JPEGs of each kind that are noticed; no decoder notices flipped bits that are valid codes again."""


@pytest.fixture(scope="module")
def of():
    return outcome(DamageDetector())


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_jpegs_are_noticed(of, kind):
    generator = random.Random(7)
    files = [damaged(data, generator) for data in jpegs(100, kind, generator)]
    found = [of(data) for data in files]
    assert "not noticed" not in [known for data, known in zip(files, found, strict=True) if refused_by_pillow(data)]
    assert len(files) - found.count("not noticed") > NOTICED * len(files)


def test_sound_jpegs_are_not_marked(of):
    files = [one.data for one in samples(67, 45) if one.format == "JPEG"] + [photo(name) for name in PHOTOS]
    assert len(files) > 20
    assert {of(data) for data in files} == {"not noticed"}


def test_warning_does_not_depend_on_other_images(of):
    generator = random.Random(7)
    sound = photo("cat")
    broken = next(data for data in (damaged(sound, generator) for _ in range(100)) if of(data) == "marked")
    assert [of(data) for data in (sound, broken, sound, broken)] == ["not noticed", "marked"] * 2


def test_other_output_reaches_stderr(capfd):
    detector = DamageDetector()
    with detector:
        os.write(2, b"one line\nCorrupt JPEG data: premature end of data segment\nanother\n")
    assert detector.damaged
    with detector:
        os.write(2, b"Warning: unknown JFIF revision number 3.01\n")
    assert not detector.damaged
    assert capfd.readouterr().err == "one line\nanother\nWarning: unknown JFIF revision number 3.01\n"


def test_preprocessor_has_the_same_detector():
    """The two packages share no code: text is compared up to what each says of the other."""
    here, there = (
        Path(path).read_text().partition("import os")[2]
        for path in (gateway.decoder.damage.__file__, DEFAULT_MODEL_REPOSITORY / "preprocessor/1/damage.py")
    )
    assert here == there
