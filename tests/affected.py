"""Finds the test files that a change concerns; `make check` runs them.

`python -m tests.affected` prints the changed test files, test files that import a changed module or name a changed
file, and the test files of the folder that mirrors a changed file's. Changes are uncommitted files, and the commits
since the branch left its upstream or `main`; on `main` itself, the last commit.
"""

import subprocess
import sys

from tests.postponed import PROJECT, heavy, imported, module_name

LEFT_OUT = tuple(
    f"tests/{name}/" for name in ("browser", "e2e", "reliability", "triton_models", "gateway_local/backends")
)
"""Folders whose tests start a browser or a Triton, or run what Triton runs, with torch."""


def git(*arguments: str) -> list[str]:
    """The lines that git prints; none if it fails."""
    run = subprocess.run(["git", *arguments], cwd=PROJECT, capture_output=True, text=True, check=False)
    return run.stdout.splitlines() if run.returncode == 0 else []


def base() -> str:
    """The commit with which the files are compared."""
    head = git("rev-parse", "HEAD")
    for branch in ("@{upstream}", "origin/main", "main"):
        if (commits := git("merge-base", "HEAD", branch)) and commits != head:
            return commits[0]
    return "HEAD" if git("status", "--porcelain") else "HEAD~1"


def mirror(path: str) -> str:
    """The folder with the tests of a file, such as `tests/gateway/triton/` of `gateway/triton/pool.py`."""
    folder = path.rpartition("/")[0]
    return f"{folder}/" if folder.startswith("tests/") else f"tests/{folder}/"


def concerned(paths: set[str], sources: dict[str, str]) -> set[str]:
    """The quick test files that changed paths concern."""
    modules = {module_name(path) for path in paths if path.endswith(".py")}
    names = {path.rpartition("/")[2] for path in paths if not path.endswith(".py")}
    folders = {mirror(path) for path in paths} - {"tests/"}
    return {
        path
        for path, source in sources.items()
        if path.startswith("tests/") and not path.startswith(LEFT_OUT) and "/test_" in path
        if path in paths
        or f"{path.rpartition('/')[0]}/" in folders
        or modules & imported(source)
        or any(name in source for name in names)
    } - heavy(sources)


def main() -> None:
    if not (listed := git("ls-files", "-c", "-o", "--exclude-standard", "*.py")):
        sys.exit("make check asks git what has changed, and this is no clone: run make test")
    paths = {*git("diff", "--name-only", base()), *git("ls-files", "-o", "--exclude-standard")}
    sources = {path: (PROJECT / path).read_text() for path in listed if (PROJECT / path).exists()}
    # By folder: pytest loses the fixtures of a folder that it comes back to.
    sys.stdout.writelines(f"{path}\n" for path in sorted(concerned(paths, sources)))


if __name__ == "__main__":
    main()
