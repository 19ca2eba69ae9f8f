"""Files below a folder that match a glob: depth first, by name, each folder once, whatever the links between them."""

import os
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from functools import partial

Pattern = tuple[str, ...]
"""The parts of a glob below the folder; `**` stands for any number of folders."""
EVERYTHING: Pattern = ("**", "*")
_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK | os.O_CLOEXEC


def walk(root: str, pattern: Pattern, again: Callable[[str], None]) -> Iterator[tuple[str, OSError | None]]:
    """The files that match, and the folders that cannot be listed, with the reason.

    Names that begin with a dot match only a part that does. Links are followed; `again` is told of each folder that was
    met before under another name, as in a loop, and that is not entered again. Holds the names of one folder per level.
    """
    if pattern[-1] == "**":
        pattern = (*pattern, "*")
    seen: set[tuple[int, int, frozenset[int]]] = set()
    # Each level: what is left to look at, as paths with the parts of the pattern that may come next; none for a file.
    levels = [iter([(root, _closed(pattern, {0}))])]
    while levels:
        if (following := next(levels[-1], None)) is None:
            levels.pop()
            continue
        path, places = following
        if not places:
            yield path, None
        else:
            try:
                entries = _entries(path, partial(_is_new, seen, places))
            except OSError as exc:
                yield path, exc
                continue
            if entries is None:
                again(path)
            else:
                levels.append(_matching(path, entries, pattern, places))


def split(glob: str, has_magic: Callable[[str], bool]) -> tuple[str, Pattern]:
    """The folder in which a glob begins, and what follows it."""
    parts = glob.split("/")
    first = next(number for number, part in enumerate(parts) if has_magic(part))
    root = "/".join(parts[:first]) or ("/" if first else ".")
    return root, tuple(part for part in parts[first:] if part not in ("", "."))


def _is_new(seen: set[tuple[int, int, frozenset[int]]], places: frozenset[int], found: os.stat_result) -> bool:
    key = (found.st_dev, found.st_ino, places)
    if key in seen:
        return False
    seen.add(key)
    return True


def _entries(path: str, is_new: Callable[[os.stat_result], bool]) -> list[tuple[str, bool]] | None:
    """The names in a folder, and whether each is a folder; None where it is not new."""
    handle = os.open(path, _FLAGS)
    try:
        if not is_new(os.fstat(handle)):
            return None
        with os.scandir(handle) as entries:
            return sorted((entry.name, _is_folder(entry)) for entry in entries)
    finally:
        os.close(handle)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself: who opens it learns why
        return False


def _matching(
    folder: str, entries: list[tuple[str, bool]], pattern: Pattern, places: frozenset[int]
) -> Iterator[tuple[str, frozenset[int]]]:
    end = len(pattern)
    for name, is_folder in entries:
        following = _after(pattern, places, name)
        path = f"{folder.rstrip('/')}/{name}"
        if not is_folder:
            if end in following:
                yield path, frozenset()
        elif inner := following - {end}:
            yield path, inner


def _after(pattern: Pattern, places: frozenset[int], name: str) -> frozenset[int]:
    """Which parts may come next after a name."""
    found = set()
    for place in places:
        part = pattern[place]
        if part == "**":
            if not name.startswith("."):
                found.add(place)
        elif fnmatchcase(name, part) and (part.startswith(".") or not name.startswith(".")):
            found.add(place + 1)
    return _closed(pattern, found)


def _closed(pattern: Pattern, places: set[int]) -> frozenset[int]:
    """With the parts behind each `**`, which may stand for no folder at all."""
    closed = set(places)
    for place in places:
        following = place
        while following < len(pattern) and pattern[following] == "**":
            following += 1
            closed.add(following)
    return frozenset(closed)
