"""The processes of models are found by their command lines."""

from pathlib import Path

from gateway.triton.model_processes import KIB, STUB, model_processes, own_bytes


def process(proc: Path, pid: int, *arguments: str, parent: int = 1, rss=0, peak=0, files=0) -> None:
    """Write the files of a process; memory in KiB."""
    folder = proc / str(pid)
    folder.mkdir(parents=True)
    (folder / "cmdline").write_text("\0".join(arguments) + "\0")
    lines = [f"PPid:\t{parent}", f"VmHWM:\t{peak} kB", f"VmRSS:\t{rss} kB", f"RssFile:\t{files} kB"]
    (folder / "status").write_text("\n".join(lines) + "\n")


def test_memory_of_a_model_is_that_of_all_its_processes(tmp_path):
    proc, models, others = tmp_path / "proc", tmp_path / "models", tmp_path / "others"
    stub = f"/opt/{STUB}"
    process(proc, 10, stub, f"{models}/net/1/model.py", parent=1, rss=100, peak=150, files=40)
    process(proc, 11, stub, f"{models}/net/2/model.py", parent=1, rss=50, files=10)
    process(proc, 12, stub, f"{models}/net/1/model.py", parent=2, rss=90, files=0)  # of another Triton
    process(proc, 13, stub, f"{others}/net/1/model.py", parent=1, rss=900)
    process(proc, 14, "/bin/sh", f"{models}/net/1/model.py", rss=900)
    process(proc, 15, stub)  # it ends
    (proc / "meminfo").write_text("")
    assert own_bytes(models, proc) == {"net": 100 * KIB}
    (found,) = model_processes([10], proc)
    assert (found.folder, found.own_bytes, found.peak_bytes) == (models / "net", 60 * KIB, 110 * KIB)


def test_missing_proc_has_no_processes(tmp_path):
    assert own_bytes(tmp_path, tmp_path / "nowhere") == {}
