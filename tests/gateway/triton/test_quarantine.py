"""Images that crash processes are remembered for a limited time and up to a limited number."""

from gateway.triton import quarantine as module
from gateway.triton.quarantine import Quarantine


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_suspect_is_released_by_an_answer_or_by_time():
    clock = Clock()
    quarantine = Quarantine(60, clock)
    quarantine.suspect([b"a", b"b"])
    quarantine.clear(b"a")
    assert [quarantine.is_suspect(code) for code in (b"a", b"b", b"c")] == [False, True, False]
    clock.now = 60
    assert not quarantine.is_suspect(b"b")


def test_crashing_image_is_refused_until_it_expires():
    clock = Clock()
    quarantine = Quarantine(60, clock)
    quarantine.suspect([b"a"])
    quarantine.refuse(b"a")
    assert quarantine.is_refused(b"a")
    assert not quarantine.is_suspect(b"a")
    clock.now = 60
    assert not quarantine.is_refused(b"a")


def test_quarantine_is_bounded_and_drops_the_oldest(monkeypatch):
    monkeypatch.setattr(module, "REMEMBERED", 3)
    quarantine = Quarantine(60, Clock())
    quarantine.suspect(bytes([number]) for number in range(5))
    assert [quarantine.is_suspect(bytes([number])) for number in range(5)] == [False, False, True, True, True]


def test_flood_of_suspects_displaces_no_refused_image(monkeypatch):
    """An attacker can make any number of suspects, but each refused image costs a crash of its own."""
    monkeypatch.setattr(module, "REMEMBERED", 3)
    quarantine = Quarantine(60, Clock())
    quarantine.refuse(b"killer")
    quarantine.suspect(bytes([number]) for number in range(100))
    assert quarantine.is_refused(b"killer")
    for number in range(3):
        quarantine.refuse(bytes([number]))
    assert not quarantine.is_refused(b"killer"), "the oldest is forgotten, and may end two processes again"
    assert [quarantine.is_refused(bytes([number])) for number in range(4)] == [True, True, True, False]


def test_quarantine_can_be_turned_off():
    quarantine = Quarantine(0)
    quarantine.suspect([b"a"])
    quarantine.refuse(b"a")
    assert not quarantine.is_suspect(b"a")
    assert not quarantine.is_refused(b"a")
