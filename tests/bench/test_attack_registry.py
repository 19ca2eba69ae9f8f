"""The registry of attacks: what `make attack --only` selects, and the rows of its table."""

from bench.attack.registry import FAMILIES, TITLES
from bench.attack.target import folded


def test_every_attack_has_its_own_name_and_text():
    for family, attacks in FAMILIES.items():
        names, texts = {attack.name for attack in attacks}, {attack.what for attack in attacks}
        assert len(names) == len(texts) == len(attacks) > 0, family
        assert all(attack.what and "\n" not in attack.what and attack.requests > 0 for attack in attacks), family


def test_every_family_has_a_title():
    assert list(TITLES) == list(FAMILIES)


def test_costly_images_are_also_sent_as_many_as_fit():
    assert FAMILIES["n-fold"] == folded(FAMILIES["pictures"])
    assert all(attack.folded for attack in FAMILIES["n-fold"])


def test_registry_has_the_attacks_of_the_last_release():
    """An attack that is removed must be removed here on purpose."""
    numbers = {family: len(attacks) for family, attacks in FAMILIES.items()}
    assert numbers == {
        "pictures": 24,
        "n-fold": 24,
        "costs": 11,
        "parsers": 30,
        "errors": 10,
        "clients": 8,
        "connections": 17,
        "streams": 24,
        "urls": 12,
        "cache": 1,
        "killers": 3,
        "fleet": 2,
    }
