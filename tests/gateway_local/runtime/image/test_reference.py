import pytest

from gateway_local.runtime.image.errors import ImageError
from gateway_local.runtime.image.reference import MAX_LENGTH, Reference

DIGEST = f"sha256:{'0f' * 32}"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("registry.example/nvidia/tritonserver:26.11-py3", ("registry.example", "nvidia/tritonserver", "26.11-py3")),
        ("registry.example/tritonserver", ("registry.example", "tritonserver", "latest")),
        (f"registry.example/tritonserver@{DIGEST}", ("registry.example", "tritonserver", DIGEST)),
        (f"registry.example/tritonserver:26.11-py3@{DIGEST}", ("registry.example", "tritonserver", DIGEST)),
        ("localhost/tritonserver:1", ("localhost", "tritonserver", "1")),
        ("mirror:5000/a/b__c/d-e.f:1", ("mirror:5000", "a/b__c/d-e.f", "1")),
        ("[::1]:5000/tritonserver:1", ("[::1]:5000", "tritonserver", "1")),
    ],
)
def test_reference_has_a_registry_a_repository_and_a_version(text, parts):
    reference = Reference.parse(text)
    assert (reference.registry, reference.repository, reference.version) == parts
    assert Reference.parse(str(reference)) == reference


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("tritonserver:26.11-py3", "does not name its registry"),
        ("nvidia/tritonserver:26.11-py3", "does not name its registry"),
        ("https://registry.example/tritonserver:1", "is a URL"),
        ("registry.example/Triton:1", "'Triton' is not the name of an image"),
        ("registry.example/../tritonserver:1", "is not the name of an image"),
        ("registry.example/tritonserver:", "'' is not a tag"),
        ("registry.example/tritonserver:a b", "'a b' is not a tag"),
        ("registry.example/tritonserver@sha256:12", "is not a digest"),
        ("registry.example/tritonserver@", "'' is not a digest"),
        (f"registry.example/tritonserver@sha512:{'0f' * 64}", "is not a digest"),
        ("", "does not name its registry"),
    ],
)
def test_wrong_reference_is_refused_with_the_reason(text, reason):
    with pytest.raises(ImageError, match=reason):
        Reference.parse(text)


def test_reference_has_at_most_so_many_characters():
    start = "registry.example/"
    assert Reference.parse(start + "a" * (MAX_LENGTH - len(start)))
    with pytest.raises(ImageError, match=f"at most {MAX_LENGTH} are allowed"):
        Reference.parse(start + "a" * (MAX_LENGTH - len(start) + 1))
