"""Which test files a change concerns; `make check` runs them.

`python -m tests.affected` prints the files whose imports reach a changed file, the nearest first: tests that import
what has changed, then tests of modules that import it, and so on, as long as all together take at most `SECONDS`; how
long each took in earlier runs is in pytest's cache. Test files that have changed come before others, and the first file
is taken in any case; what is left to `make test` is printed on stderr.

What has changed: the uncommitted files, and the commits since the branch left its upstream or `main`. On `main` itself,
or in a copy without either, the commits since the last that passed `make test`; where none did, the uncommitted files,
or else the last commit.
"""

import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
SECONDS = 45.0
GREEN = PROJECT / "build" / "green"
"""The commit that passed `make test`, and had no other changes then."""
DURATIONS = "seconds_by_file"
"""The key in pytest's cache."""
UNKNOWN_SECONDS = 1.0
"""Counted for a test file that has not run yet."""
ROOT_FIXTURES = "tests/conftest.py"
LEFT_OUT = tuple(
    f"tests/{name}/" for name in ("browser", "e2e", "reliability", "triton_models", "gateway_local/backends")
)
"""Folders whose tests start a browser or a Triton, or run what Triton runs, with torch."""
HEAVY = ("torch", "torchvision", "onnx", "onnxruntime", "sklearn", "skimage", "scipy", "matplotlib", "jsonschema")
HEAVY += ("efficientnet_lite_pytorch", "timm", "transformers", "ultralytics", "keras", "safetensors")
"""Packages that take a second or more to import: tests of what imports them are left out. See tests/postponed.py."""
IMPORT = re.compile(r"^\s*(?:import\s+([\w., ]+)|from\s+([\w.]+)\s+import\s+(\([^)]*\)|[^\n]+))", re.MULTILINE)
AT_IMPORT = re.compile(IMPORT.pattern.replace(r"^\s*", "^"), re.MULTILINE)
"""The imports outside of functions and conditions."""


def git(*arguments: str) -> list[str]:
    """The lines that git prints; none if it fails."""
    run = subprocess.run(["git", *arguments], cwd=PROJECT, capture_output=True, text=True, check=False)
    return run.stdout.splitlines() if run.returncode == 0 else []


def base() -> str:
    """The commit since which the tests have not run."""
    head = "".join(git("rev-parse", "HEAD"))
    for branch in ("@{upstream}", "origin/main", "main"):
        if (commits := git("merge-base", "HEAD", branch)) and commits[0] != head:
            return commits[0]
    green = GREEN.read_text().strip() if GREEN.exists() else ""
    if green and git("merge-base", "HEAD", green) == [green]:
        return green
    return "HEAD" if git("status", "--porcelain") else "HEAD~1"


def changed() -> set[str]:
    """The files that differ from the commit `base`, with new and deleted ones."""
    return {*git("diff", "--name-only", base()), *git("ls-files", "-o", "--exclude-standard")}


def sources() -> dict[str, str]:
    """The text of each Python file, by its path in the project."""
    listed = git("ls-files", "-c", "-o", "--exclude-standard", "*.py")
    return {path: (PROJECT / path).read_text() for path in listed if (PROJECT / path).exists()}


def imported(source: str, pattern: re.Pattern[str] = IMPORT) -> set[str]:
    """The names of the modules that a module may import, anywhere in it: in `from a import b`, both `a` and `a.b`."""
    names = set()
    for plain, package, members in pattern.findall(source):
        names |= {each.split()[0] for each in plain.split(",") if each.strip()}
        if package:
            names |= {package, *(f"{package}.{name}" for name in re.findall(r"\w+", members))}
    return names


def module_name(path: str) -> str:
    """The name by which the file at a path is imported."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def dependents(sources: dict[str, str], pattern: re.Pattern[str] = IMPORT) -> dict[str, set[str]]:
    """For each file the files that import it; a conftest.py counts as imported by the files of its folder."""
    files = {module_name(path): path for path in sources}
    found = defaultdict(set)
    for path, source in sources.items():
        for name in imported(source, pattern) & files.keys():
            found[files[name]].add(path)
        if path.endswith("/conftest.py"):
            folder = path.removesuffix("conftest.py")
            found[path].update(each for each in sources if each.startswith(folder) and each != path)
    return found


def named_by(path: str, sources: dict[str, str]) -> set[str]:
    """The test files that name a file without Python code, and the Python files of a package that it belongs to."""
    folder = path.rpartition("/")[0]
    name = path.rpartition("/")[2]
    return {
        each
        for each, source in sources.items()
        if (each.startswith("tests/") and name in source) or (folder and each.rpartition("/")[0] == folder)
    }


def mirrored(path: str, sources: dict[str, str]) -> set[str]:
    """The tests of a file's folder: of the plug-in, or of the nearest folder that has tests under the same name."""
    top, _, rest = path.rpartition("/")[0].partition("/")
    if rest.startswith("plugins/"):
        return {each for each in sources if each.startswith(f"tests/gateway/plugins/{rest.split('/')[1]}/")}
    folder = f"tests/{top}/{rest}".replace("tests/tests/", "tests/").rstrip("/")
    while folder.count("/"):
        if found := {each for each in sources if each.rpartition("/")[0] == folder}:
            return found
        folder = folder.rpartition("/")[0]
    return set()


def distances(paths: Iterable[str], sources: dict[str, str]) -> dict[str, int]:
    """How many imports lie between a test file and the nearest changed file; 0 for a changed test file."""
    users = dependents(sources)
    level = set(paths)
    reached = dict.fromkeys(level, 0)
    nearest = set()
    for path in level:
        nearest |= mirrored(path, sources) | (users[path] if path.endswith(".py") else named_by(path, sources))
    distance = 1
    while nearest := nearest - reached.keys():
        reached |= dict.fromkeys(nearest, distance)
        # Every test uses the root's fixtures, and they import much: a change of what they import says little of a test.
        nearest = {user for path in nearest - {ROOT_FIXTURES} for user in users[path]}
        distance += 1
    return {path: reached[path] for path in reached.keys() & sources.keys() - heavy(sources) if is_quick(path)}


def heavy(sources: dict[str, str]) -> set[str]:
    """The files whose import needs a package of HEAVY: they import it, or another file that does."""
    found = {
        path
        for path, source in sources.items()
        if any(name.partition(".")[0] in HEAVY for name in imported(source, AT_IMPORT))
    }
    at_import = dependents(sources, AT_IMPORT)
    level = found
    while level := {user for path in level for user in at_import[path]} - found - {ROOT_FIXTURES}:
        found |= level
    return found


def is_quick(path: str) -> bool:
    """Whether a file has tests that `make check` may run."""
    return path.startswith("tests/") and not path.startswith(LEFT_OUT) and "/test_" in path


def durations() -> dict[str, float]:
    """The seconds that the tests of a file took, those that `make check` runs."""
    path = PROJECT / ".pytest_cache" / "v" / DURATIONS
    return json.loads(path.read_text()) if path.exists() else {}


def chosen(near: dict[str, int], seconds: dict[str, float], left: float) -> list[str]:
    """The test files to run for `left` seconds: the nearest first, of equally near ones the shortest first."""
    files: list[str] = []
    for path in sorted(near, key=lambda path: (near[path], seconds.get(path, UNKNOWN_SECONDS), path)):
        needs = seconds.get(path, UNKNOWN_SECONDS)
        if not files or needs <= left:
            files.append(path)
            left -= needs
    return files


def main() -> None:
    """Print the files for pytest, and on stderr what they leave out."""
    paths = changed()
    if not (texts := sources()):
        sys.exit("make check asks git what has changed, and this is no clone: run make test")
    near = distances(paths, texts)
    files = chosen(near, durations(), SECONDS)
    # By folder: pytest loses the fixtures of a folder that it comes back to.
    sys.stdout.writelines(f"{path}\n" for path in sorted(files))
    left = sorted(near.keys() - files, key=near.__getitem__)
    sys.stderr.write(f"changed files: {len(paths)}; test files: {len(files)}; left to `make test`: {' '.join(left)}\n")


if __name__ == "__main__":
    main()
