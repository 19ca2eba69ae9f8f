"""Suffixes of image files."""

SUFFIXES = frozenset(
    f".{suffix}"
    for suffix in (
        *("avif", "bmp", "dib", "gif", "heic", "heif", "hif", "j2k", "jfif", "jp2"),
        *("jpe", "jpeg", "jpg", "png", "tif", "tiff", "webp"),
    )
)
"""Files in a folder or an archive with one of these suffixes are images; a test compares them with the gateway's."""
