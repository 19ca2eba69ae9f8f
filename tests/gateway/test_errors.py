"""Errors keep nothing in memory."""

import weakref

import pytest

from gateway.errors import clear_frames


class Upload:
    """Something large that a function holds."""


def test_error_releases_the_locals_of_its_frames():
    """A client may take a minute to read its error, which must not keep its upload in memory for as long."""
    held: list[weakref.ref[Upload]] = []

    def fail() -> None:
        upload = Upload()
        held.append(weakref.ref(upload))
        raise ValueError

    def fail_again() -> None:
        upload = Upload()
        held.append(weakref.ref(upload))
        try:
            fail()
        except ValueError as exc:
            raise KeyError from exc

    with pytest.raises(KeyError) as failure:
        fail_again()
    assert [ref() is None for ref in held] == [False, False]
    clear_frames(failure.value)
    assert [ref() is None for ref in held] == [True, True]
    assert failure.value.__traceback__ is not None
