"""Archives of torch with members that execute something when they are read."""

import io
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

GRAPH, SAMPLES = "models/model.json", "data/sample_inputs/model.pt"
WEIGHTS, CONSTANTS = "data/weights/model_weights_config.json", "data/constants/model_constants_config.json"
Member = bytes | Callable[[bytes], bytes]


class Trap:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def members(path: Path) -> list[str]:
    with zipfile.ZipFile(path) as archive:
        return [name.partition("/")[2] for name in archive.namelist()]


def altered(source: Path, target: Path, changes: dict[str, Member]) -> Path:
    """A copy of an archive with other, or further, members."""
    with zipfile.ZipFile(source) as given, zipfile.ZipFile(target, "w") as taken:
        folder = given.namelist()[0].partition("/")[0]
        for name in dict.fromkeys([*members(source), *changes]):
            data = given.read(f"{folder}/{name}") if f"{folder}/{name}" in given.namelist() else b""
            change = changes.get(name, data)
            taken.writestr(f"{folder}/{name}", change if isinstance(change, bytes) else change(data))
    return target


def saved(value: object, **options: object) -> bytes:
    import torch

    buffer = io.BytesIO()
    torch.save(value, buffer, **options)
    return buffer.getvalue()


def edited(edit: Callable[[dict], None]) -> Callable[[bytes], bytes]:
    """A change of a member's JSON."""

    def change(data: bytes) -> bytes:
        values = json.loads(data)
        edit(values)
        return json.dumps(values).encode()

    return change


def listed(name: str, **changes: object) -> Callable[[bytes], bytes]:
    """A change of an entry in the list of weights, or of constants; or a new entry."""
    return edited(lambda values: values["config"].setdefault(name, {}).update(changes))


def in_graph(edit: Callable[[dict], None]) -> dict[str, Member]:
    return {GRAPH: edited(lambda values: edit(values["graph_module"]["graph"]))}


def pickled_weight(data: bytes) -> dict[str, Member]:
    change = listed("features.weight", use_pickle=True, path_name="weight_9")
    return {WEIGHTS: change, "data/weights/weight_9": data}


def shared_weight(evidence: Path) -> dict[str, Member]:
    """A member that one weight has as numbers, and another one as a pickle."""

    def edit(values: dict) -> None:
        values["config"]["scores.bias"].update(path_name="weight_9")
        values["config"]["features.weight"].update(path_name="weight_9", use_pickle=True)

    data = saved(Trap(evidence))
    return {WEIGHTS: edited(edit), "data/weights/weight_9": data + bytes(-len(data) % 4)}


def touch(evidence: Path) -> str:
    """Python that creates the file."""
    return f"__import__('pathlib').Path({str(evidence)!r}).touch()"


def size(evidence: Path) -> dict[str, Member]:
    expression = {"as_expr": {"expr_str": touch(evidence), "hint": None}}
    return in_graph(lambda graph: graph["tensor_values"]["images"]["sizes"].insert(0, expression))


def name(evidence: Path) -> dict[str, Member]:
    """The name of an input, which is written into the source of a function."""
    text = f"more={touch(evidence)}"

    def edit(graph: dict) -> None:
        graph["inputs"].append({"as_tensor": {"name": text}})
        graph["tensor_values"][text] = graph["tensor_values"]["images"]

    return in_graph(edit)


def enumeration(evidence: Path) -> dict[str, Member]:
    """A member of an enumeration that is found by importing any module."""
    evidence.with_name("hostile_module.py").write_text(touch(evidence))
    context = json.dumps({"__enum__": True, "fqn": "hostile_module:Any", "name": "any"})
    spec = {"type": "builtins.dict", "context": context, "children_spec": []}

    def edit(values: dict) -> None:
        values["graph_module"]["module_call_graph"][0]["signature"]["out_spec"] = json.dumps([1, spec])

    return {GRAPH: edited(edit)}


HOSTILE: dict[str, Callable[[Path], dict[str, Member]]] = {
    "sample": lambda evidence: {SAMPLES: saved((Trap(evidence), {}))},
    "opaque constant": lambda evidence: {
        CONSTANTS: listed("opaque", path_name="opaque_obj_0", is_param=False, use_pickle=True, tensor_meta=None),
        "data/constants/opaque_obj_0": pickle.dumps(Trap(evidence)),
    },
    "pickled weight": lambda evidence: pickled_weight(saved(Trap(evidence))),
    "pickled constant": lambda evidence: {
        CONSTANTS: listed("scale", use_pickle=True, path_name="tensor_9"),
        "data/constants/tensor_9": saved(Trap(evidence)),
    },
    "shared weight": shared_weight,
    "all weights": lambda evidence: {"data/weights/model.pt": saved({"features.weight": Trap(evidence)})},
    "all constants": lambda evidence: {"data/constants/model.pt": saved({"scale": Trap(evidence)}, pickle_protocol=4)},
    "size": size,
    "guard": lambda evidence: {GRAPH: edited(lambda values: values.update(guards_code=[f"{touch(evidence)} or True"]))},
    "name": name,
    "enumeration": enumeration,
}
