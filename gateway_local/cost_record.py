"""The cost of an image on this machine, as `gateway doctor --run` measured it, in the cache folder."""

import hashlib
import json
from pathlib import Path

from gateway.machine.capacity import Costs
from gateway.triton.footprint import version_files
from gateway.values.files import whole_file
from gateway_local.paths import default_cache_dir

RECORD = "costs.json"


def recorded_costs(repository: Path, folder: Path | None = None) -> Costs:
    """The costs that were measured with this repository's network; else the default costs."""
    try:
        document = json.loads(((folder or default_cache_dir()) / RECORD).read_bytes())
        network = repository.resolve() / document["network"]
        if document["fingerprint"] == _fingerprint(network):
            return Costs.read(document["costs"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        pass
    return Costs()


def record_costs(costs: Costs, network: Path, folder: Path | None = None) -> None:
    """Store costs that were measured with a network's files."""
    document = {"network": network.name, "fingerprint": _fingerprint(network), "costs": costs.text}
    path = (folder or default_cache_dir()) / RECORD
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as draft:
        draft.write_text(json.dumps(document, indent=2) + "\n")


def _fingerprint(folder: Path) -> str:
    """Changes with the files of a model's versions."""
    stats = [(str(path.relative_to(folder)), path.stat()) for path in version_files(folder)]
    return hashlib.sha256(repr([(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]).encode()).hexdigest()
