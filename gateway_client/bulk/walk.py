"""Files below a folder that match a glob: depth first, sorted by name, each folder once, even if links form cycles."""

import os
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from functools import partial

Pattern = tuple[str, ...]
"""The parts of a glob below the folder; `**` stands for any number of folders."""
EVERYTHING: Pattern = ("**", "*")
_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK | os.O_CLOEXEC


def walk(root: str, pattern: Pattern, again: Callable[[str], None]) -> Iterator[tuple[str, OSError | None]]:
    """Yield the files that match, and the folders that cannot be listed, with the error.

    Names that begin with a dot match only a part that does. Links are followed; `again` is called with each folder that
    was already read under another name, as in a cycle, and is skipped. Memory holds the names of one folder per level.
    """
    if pattern[-1] == "**":
        pattern = (*pattern, "*")
    seen: set[tuple[int, int, frozenset[int]]] = set()
    # Each level: the remaining paths, each with the positions in the pattern that may match next; none for a file.
    levels = [iter([(root, _closed(pattern, {0}))])]
    while levels:
        if (following := next(levels[-1], None)) is None:
            levels.pop()
            continue
        path, positions = following
        if not positions:
            yield path, None
        else:
            try:
                entries = _entries(path, partial(_is_new, seen, positions))
            except OSError as exc:
                yield path, exc
                continue
            if entries is None:
                again(path)
            else:
                levels.append(_matching(path, entries, pattern, positions))


def split(glob: str, has_magic: Callable[[str], bool]) -> tuple[str, Pattern]:
    """Split a glob into its fixed folder and its pattern."""
    parts = glob.split("/")
    first = next(number for number, part in enumerate(parts) if has_magic(part))
    root = "/".join(parts[:first]) or ("/" if first else ".")
    return root, tuple(part for part in parts[first:] if part not in ("", "."))


def _is_new(seen: set[tuple[int, int, frozenset[int]]], positions: frozenset[int], found: os.stat_result) -> bool:
    key = (found.st_dev, found.st_ino, positions)
    if key in seen:
        return False
    seen.add(key)
    return True


def _entries(path: str, is_new: Callable[[os.stat_result], bool]) -> list[tuple[str, bool]] | None:
    """The names in a folder, and whether each is a folder; None if the folder is not new."""
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
    except OSError:  # a link to itself: opening it reports the error
        return False


def _matching(
    folder: str, entries: list[tuple[str, bool]], pattern: Pattern, positions: frozenset[int]
) -> Iterator[tuple[str, frozenset[int]]]:
    end = len(pattern)
    for name, is_folder in entries:
        following = _after(pattern, positions, name)
        path = f"{folder.rstrip('/')}/{name}"
        if not is_folder:
            if end in following:
                yield path, frozenset()
        elif inner := following - {end}:
            yield path, inner


def _after(pattern: Pattern, positions: frozenset[int], name: str) -> frozenset[int]:
    """The positions in the pattern that may match after a name."""
    found = set()
    for position in positions:
        part = pattern[position]
        if part == "**":
            if not name.startswith("."):
                found.add(position)
        elif fnmatchcase(name, part) and (part.startswith(".") or not name.startswith(".")):
            found.add(position + 1)
    return _closed(pattern, found)


def _closed(pattern: Pattern, positions: set[int]) -> frozenset[int]:
    """Add the positions after each `**`, which may match no folder at all."""
    closed = set(positions)
    for position in positions:
        following = position
        while following < len(pattern) and pattern[following] == "**":
            following += 1
            closed.add(following)
    return frozenset(closed)
