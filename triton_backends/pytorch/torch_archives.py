"""Makes torch's archives safe to load: checks them member by member, and writes a new archive of the checked members.

`torch.export.load` unpickles members of its archive, evaluates expressions and compiles names of its JSON as Python;
`torch.jit.load` runs operators that read and write files. Each file is therefore copied into a fresh archive, and torch
loads only that copy: it gets no unchecked member, and cannot read the zip differently than the check did.

Only the standard library is used: `gateway model add` and Triton's backend load the same file (docs/adr/0026).
"""

import ast
import functools
import io
import json
import os
import pickletools
import re
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, BinaryIO

MAX_MEMBERS = 100_000
MAX_INFLATED_BYTES = 256 * 2**20
"""Limit for all compressed members together: torch compresses only code."""
MAX_TEXT_BYTES = 256 * 2**20
"""Limit for one JSON text, pickle or code file."""
MAX_EXPRESSION = 4096
"""Limit for the characters of one expression of symbolic sizes."""
MAX_EXPONENT = 64
"""Limit for constant exponents in these expressions: nested powers would compute for ever."""

OPERATORS = frozenset({"aten", "prim", "prims", "quantized", "quantized_decomposed", "torchvision", "mkldnn", "onednn"})
"""Namespaces of operators that only compute. Others use other processes or files, or belong to other libraries."""
FILES = frozenset({"from_file", "save", "read_file", "write_file", "rpc_async", "rpc_sync", "rpc_remote"})
"""Operators that access files (map, read, write) or other machines."""
HIGHER_ORDER = frozenset(
    {"associative_scan", "cond", "flex_attention", "invoke_subgraph", "map_impl", "out_dtype", "scan", "while_loop"}
    | {"wrap_with_autocast", "wrap_with_set_grad_enabled"}
)
ARITHMETIC = frozenset(
    {"abs", "add", "and_", "eq", "floordiv", "ge", "getitem", "gt", "invert", "is_", "is_not", "le", "lshift", "lt"}
    | {"mod", "mul", "ne", "neg", "not_", "or_", "pos", "pow", "rshift", "sub", "truediv", "xor"}
)
"""Functions of Python's module operator that only compute; attrgetter and methodcaller can access any object."""
SYMBOLIC = frozenset(
    {"Abs", "Add", "And", "CeilDiv", "CeilToInt", "CleanDiv", "Eq", "Equality", "ExprCondPair", "Float", "FloatPow"}
    | {"FloatTrueDiv", "FloorDiv", "FloorToInt", "Ge", "GreaterThan", "Gt", "ITE", "Identity", "IntTrueDiv", "Integer"}
    | {"IsNonOverlappingAndDenseIndicator", "LShift", "Le", "LessThan", "Lt", "Max", "Min", "Mod", "ModularIndexing"}
    | {"Mul", "Ne", "Not", "Or", "Piecewise", "Pow", "PowByNatural", "PythonMod", "RShift", "Rational", "RoundDecimal"}
    | {"RoundToInt", "StrictGreaterThan", "StrictLessThan", "Symbol", "ToFloat", "TruncToFloat", "TruncToInt"}
    | {"Unequality", "Where", "ceiling", "floor", "sqrt"}
)
"""Functions that an expression of symbolic sizes may call: sympy's own nodes and torch's additions to them."""
_POWERS = frozenset({"FloatPow", "LShift", "Pow", "PowByNatural", "RShift"})
_NODES = (
    *(ast.Expression, ast.Call, ast.Name, ast.Load, ast.Constant, ast.keyword, ast.Tuple),
    *(ast.BinOp, ast.UnaryOp, ast.Compare, ast.BoolOp, ast.operator, ast.unaryop, ast.cmpop, ast.boolop),
)
TENSORS = frozenset(
    {"collections OrderedDict", "torch Size", "torch device", "torch.nn.parameter Parameter"}
    | {f"torch._utils {name}" for name in ("_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_parameter")}
    | {"torch.storage UntypedStorage", "torch.storage TypedStorage", "torch UntypedStorage"}
    | {
        f"torch {name}Storage"
        for name in ("BFloat16", "Bool", "Byte", "Char", "Double", "Float", "Half", "Int", "Long", "Short")
    }
    | {
        f"torch {name}"
        for name in ("bfloat16", "bool", "float16", "float32", "float64", "int16", "int32", "int64", "int8", "uint8")
    }
)
"""The globals that a pickle of tensors needs, and no others: "module name"."""
_OPCODES = frozenset(
    {"PROTO", "FRAME", "MARK", "STOP", "NONE", "NEWTRUE", "NEWFALSE", "INT", "BININT", "BININT1", "BININT2", "LONG"}
    | {"LONG1", "LONG4", "FLOAT", "BINFLOAT", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINSTRING"}
    | {"SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2"}
    | {"TUPLE3", "EMPTY_LIST", "LIST", "APPEND", "APPENDS", "EMPTY_DICT", "DICT", "SETITEM", "SETITEMS", "PUT"}
    | {"BINPUT", "LONG_BINPUT", "MEMOIZE", "GET", "BINGET", "LONG_BINGET", "GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD"}
    | {"BINPERSID", "POP", "POP_MARK", "DUP"}
)
_STRINGS = frozenset({"UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINSTRING", "SHORT_BINSTRING"})

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_WORDS = re.compile(r"[A-Za-z0-9_.:+/ -]{0,1024}")
"""Allowed characters of a weight's name or a version: none that ends a string or begins an expression."""
_SYMBOL = re.compile(r"[a-z]{1,4}[0-9]+|oo|int_oo|true|false")
_SIZES = re.compile(r"torch\.(_sym_[a-z0-9]+|sym_[a-z]+)")
_MATH = re.compile(r"math\.[a-z][a-z0-9]*")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]*)?(e[+-]?[0-9]+)?")
_PAYLOAD = re.compile(r"(weight|tensor)_[0-9]+")
_BITWISE = frozenset({"__and__", "__iand__", "__ior__", "__ixor__", "__lshift__", "__or__", "__rshift__", "__xor__"})
_TREES = frozenset({"builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict"})
_NAMES = frozenset({"name", "as_name", "forward_arg_names", "field_names"})
"""Keys of strings that torch writes into Python source as they are."""
_TEXTS = frozenset({"as_string", "as_strings"})
"""Keys of strings that torch writes into Python source as literals."""
_OBJECTS = frozenset({"as_custom_obj", "custom_obj", "custom_obj_name", "class_fqn", "custom_obj_values"})
_LAYERS = "nn_module_stack"
_DAMAGED = (
    *(zipfile.BadZipFile, zlib.error, OSError, EOFError, NotImplementedError, RuntimeError, ValueError, KeyError),
    *(TypeError, AttributeError, RecursionError, SyntaxError, MemoryError),
)
"""Exceptions that Python raises for a malformed archive, JSON text or pickle."""

# Members that torch reads of each kind of archive, without the archive's top folder; all others are left out.
_HEADER = frozenset(
    {"archive_format", "archive_version", "version", "byteorder", ".data/version", ".format_version"}
    | {".storage_alignment"}
)
_PROGRAM, _SAMPLES = "models/model.json", "data/sample_inputs/model.pt"
_OLD_PROGRAM = "serialized_exported_program.json"
"""The program in archives of torch.export before 2.8, which have no top folder."""
_OLD_SAMPLES = "serialized_example_inputs.pt"
_OLD_TENSORS = ("state_dict", "constants")


class UnsafeArchive(Exception):
    """A file contains something that could run as code, or a layout that torch does not write.

    The message names the member.
    """


class DamagedArchive(Exception):
    """A file cannot be read as an archive of torch."""


def clean_program(path: Path) -> BinaryIO:
    """An open file with a copy of a torch.export archive that contains only its graph and its tensors.

    Examples of inputs, guards and other metadata are left out. Raises UnsafeArchive or DamagedArchive.
    """
    return _cleaned(path, _copy_program)


def clean_torchscript(path: Path) -> BinaryIO:
    """An open file with a copy of a TorchScript archive whose code uses only tensors.

    Debug information and extra files are left out. Raises UnsafeArchive or DamagedArchive.
    """
    return _cleaned(path, _copy_torchscript)


def path_of(file: BinaryIO) -> str:
    """A path by which this process can open a file that has no name."""
    return f"/proc/self/fd/{file.fileno()}"


class _Archive:
    """A zip with checked names and sizes, read member by member. Names are relative to its top folder, if any."""

    def __init__(self, file: BinaryIO, where: str = "") -> None:
        self.where = where
        size = file.seek(0, os.SEEK_END)
        self.zip = zipfile.ZipFile(file)
        members = self.zip.infolist()
        names = [member.filename for member in members]
        if len(names) > MAX_MEMBERS:
            raise UnsafeArchive(f"it has {len(names)} members, and {MAX_MEMBERS} are allowed")
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise UnsafeArchive(f"it has two members of the name {twice!r}")
        for member in members:
            self._check(member)
        if sum(member.file_size for member in members if member.compress_type == zipfile.ZIP_STORED) > size:
            raise UnsafeArchive("its members overlap: together they are larger than the file")
        if sum(member.file_size for member in members if member.compress_type) > MAX_INFLATED_BYTES:
            raise UnsafeArchive(f"its compressed members inflate to more than {MAX_INFLATED_BYTES} bytes")
        folders = {name.partition("/")[0] for name in names}
        inner = all("/" in name for name in names) and len(folders) == 1
        self.members = {
            member.filename.partition("/")[2] if inner else member.filename: member
            for member in members
            if not member.is_dir()
        }

    def _check(self, member: zipfile.ZipInfo) -> None:
        name = member.filename
        # zipfile cuts `filename` at a NUL; `orig_filename` is the whole name.
        if name != member.orig_filename or not name.isprintable() or "\\" in name:
            raise UnsafeArchive(f"it has a member with an odd name, {member.orig_filename!r}")
        if name.startswith("/") or ".." in name.split("/"):
            raise UnsafeArchive(f"its member {name!r} leads out of the archive")
        if member.flag_bits & 1:
            raise UnsafeArchive(f"its member {name!r} is encrypted")
        if member.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
            raise UnsafeArchive(f"its member {name!r} is compressed in a way that torch does not use")

    def text(self, name: str) -> bytes:
        """The whole contents of a member, up to MAX_TEXT_BYTES."""
        member = self.info(name)
        if member.file_size > MAX_TEXT_BYTES:
            raise UnsafeArchive(f"its member {self.named(name)} has more than {MAX_TEXT_BYTES} bytes")
        return self.zip.read(member)

    def named(self, name: str) -> str:
        """A member's whole name, for messages."""
        return f"{self.where}{self.info(name).filename!r}"

    def info(self, name: str) -> zipfile.ZipInfo:
        """The zip's entry of a member; raises UnsafeArchive if there is no member of that name."""
        if name not in self.members:
            raise UnsafeArchive(f"it has no {self.where}{name}")
        return self.members[name]


class _Copy:
    """The archive to write: stored members, in one folder unless `folder` is ""."""

    def __init__(self, source: _Archive, file: BinaryIO, folder: str = "model/") -> None:
        self.source, self.folder = source, folder
        self.zip = zipfile.ZipFile(file, "w", zipfile.ZIP_STORED)

    def write(self, name: str, data: bytes) -> None:
        self.zip.writestr(zipfile.ZipInfo(f"{self.folder}{name}"), data)

    def copy(self, names: Iterable[str]) -> None:
        """Copy members unchanged: tensors, whose bytes are always read as numbers."""
        for name in names:
            with (
                self.source.zip.open(self.source.info(name)) as given,
                self.zip.open(zipfile.ZipInfo(f"{self.folder}{name}"), "w", force_zip64=True) as taken,
            ):
                shutil.copyfileobj(given, taken, 2**20)


def _cleaned(path: Path, copy: Callable[[_Archive, BinaryIO], None]) -> BinaryIO:
    target = _unnamed_file()
    try:
        with path.open("rb") as file:
            copy(_Archive(file), target)
    except _DAMAGED as exc:
        target.close()
        reason = str(exc).strip().splitlines() or [type(exc).__name__]
        raise DamagedArchive(f"it is damaged, or no archive of torch: {reason[0]}") from exc
    except BaseException:
        target.close()
        raise
    target.seek(0)
    return target


def _unnamed_file() -> BinaryIO:
    """A file without a name, removed when it is closed: on disk, or in memory if no disk is writable."""
    try:
        return tempfile.TemporaryFile()
    except OSError:
        return os.fdopen(os.memfd_create("archive"), "w+b")


def _copy_program(source: _Archive, target: BinaryIO) -> None:
    for name in source.members:
        if name.startswith(("data/aotinductor/", "data/executorch/")) or name.endswith((".so", ".dll", ".dylib")):
            raise UnsafeArchive(f"its member {source.named(name)} is machine code")
    if _OLD_PROGRAM in source.members:
        _copy_old_program(source, target)
        return
    if _PROGRAM not in source.members:
        raise UnsafeArchive(f"it has no {_PROGRAM}, the program that torch.export.save writes")
    copy = _Copy(source, target)
    with copy.zip:
        copy.copy(sorted(_HEADER & source.members.keys()))
        copy.write(_PROGRAM, _clean_graph(source, _PROGRAM))
        for folder, kind in (("data/weights/", "weights"), ("data/constants/", "constants")):
            # torch.export 2.8 writes all of them as one pickle.
            if (whole := f"{folder}model.pt") in source.members:
                copy.write(whole, _clean_saved(source.text(whole), source.named(whole)))
                continue
            config = f"{folder}model_{kind}_config.json"
            listed = _json(source, config)
            # Tensors may share a member: if torch unpickles it for one of them, it is checked as a pickle.
            pickled = {each["path_name"] for each in listed["config"].values() if each["use_pickle"]}
            named = {each["path_name"]: tensor for tensor, each in listed["config"].items()}
            for name, tensor in named.items():
                _copy_payload(copy, folder, name, tensor, pickled=name in pickled)
            copy.write(config, json.dumps(_checked(listed, "", source.named(config), loose_keys=True)).encode())
        # torch needs this member; an empty one means no examples.
        copy.write(_SAMPLES, b"")


def _copy_payload(copy: _Copy, folder: str, name: str, tensor: str, *, pickled: bool) -> None:
    if not _PAYLOAD.fullmatch(name):
        kind = "an opaque object, which is a pickle" if name.startswith("opaque") else "a custom object"
        raise UnsafeArchive(f"its constant {tensor!r}, member {folder + name!r}, is {kind}, and no tensor")
    name, source = folder + name, copy.source
    if pickled:
        copy.write(name, _clean_saved(source.text(name), source.named(name)))
    else:
        copy.copy([name])


def _copy_old_program(source: _Archive, target: BinaryIO) -> None:
    copy = _Copy(source, target, folder="")
    with copy.zip:
        copy.copy(["version"])
        copy.write(_OLD_PROGRAM, _clean_graph(source, _OLD_PROGRAM))
        for kind in _OLD_TENSORS:
            name = f"serialized_{kind}.pt"
            copy.write(name, _clean_saved(source.text(name), source.named(name)))
        copy.write(_OLD_SAMPLES, b"")


def _clean_saved(data: bytes, where: str) -> bytes:
    """A copy of a torch.save file within an archive, with only its tensors."""
    if not data:
        return data
    if not zipfile.is_zipfile(io.BytesIO(data)):
        raise UnsafeArchive(f"its member {where} is not a file of torch.save (1.6 or newer)")
    source = _Archive(io.BytesIO(data), f"{where}, ")
    if "constants.pkl" in source.members or "data.pkl" not in source.members:
        raise UnsafeArchive(f"its member {where} is not a file of torch.save")
    target = io.BytesIO()
    copy = _Copy(source, target)
    with copy.zip:
        pickle = source.text("data.pkl")
        check_pickle(pickle, source.named("data.pkl"), TENSORS)
        copy.write("data.pkl", pickle)
        copy.copy(sorted(_HEADER & source.members.keys()))
        copy.copy(name for name in source.members if re.fullmatch(r"data/[0-9]+", name))
    return target.getvalue()


def _copy_torchscript(source: _Archive, target: BinaryIO) -> None:
    copy = _Copy(source, target)
    with copy.zip:
        for name in source.members:
            if name in {"data.pkl", "constants.pkl"}:
                pickle = source.text(name)
                check_pickle(pickle, source.named(name), TENSORS, torchscript=True)
                copy.write(name, pickle)
            elif name.startswith("code/") and name.endswith(".py"):
                code = source.text(name)
                check_code(code.decode(), source.named(name))
                copy.write(name, code)
            elif name in _HEADER or re.fullmatch(r"(data|constants)/[0-9]+", name):
                copy.copy([name])


def check_pickle(data: bytes, where: str, allowed: frozenset[str], *, torchscript: bool = False) -> None:
    """Raise UnsafeArchive if a pickle uses globals that are not allowed; the pickle is not executed.

    TorchScript's pickles also name its own classes, which its C++ loader finds in the archive's code.
    """
    recent: list[str | None] = []
    memo: dict[int, str | None] = {}
    for opcode, argument, position in pickletools.genops(data):
        name = opcode.name
        if name not in _OPCODES and not (torchscript and name == "NEWOBJ"):
            raise UnsafeArchive(f"its member {where} has a pickle's opcode {name} at {position}, which tensors do not")
        if name == "GLOBAL":
            _check_global(argument, where, allowed, torchscript=torchscript)
        elif name == "STACK_GLOBAL":
            names = recent[-2:]
            if len(names) < 2 or None in names:
                raise UnsafeArchive(f"its member {where} has a pickle that computes the name of a global")
            _check_global(" ".join(map(str, names)), where, allowed, torchscript=torchscript)
        # Tracks the top of the stack: strings that were just pushed, literally or from the memo.
        if name in _STRINGS:
            recent.append(argument)
        elif name in {"GET", "BINGET", "LONG_BINGET"}:
            recent.append(memo.get(argument))
        elif name in {"PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"}:
            memo[len(memo) if name == "MEMOIZE" else argument] = recent[-1] if recent else None
        else:
            recent = []


def _check_global(name: str, where: str, allowed: frozenset[str], *, torchscript: bool) -> None:
    if name in allowed:
        return
    module, _, attribute = name.partition(" ")
    if torchscript and _is_torchscripts_own(module, attribute):
        return
    raise UnsafeArchive(f"its member {where} has a pickle that calls {module}.{attribute}, which could run any code")


def _is_torchscripts_own(module: str, attribute: str) -> bool:
    if module == "torch.jit._pickle":
        return attribute.startswith(("build_", "restore_type_tag"))
    if module.startswith("__torch__.torch.classes"):
        return module.startswith("__torch__.torch.classes.quantized")
    return module.partition(".")[0] == "__torch__"


def check_code(text: str, where: str) -> None:
    """Raise UnsafeArchive if TorchScript code names an operator or a class that accesses more than tensors."""
    literals: list[str] = []

    def literal(match: re.Match[str]) -> str:
        if match[0].startswith("#"):
            return " "
        literals.append(match[0])
        return '""'

    # Matches from left to right, like TorchScript's own lexer: comments and strings of each kind.
    code = re.sub(
        r'#[^\n]*|"""(?:[^\\]|\\.)*?"""|' r"'''(?:[^\\]|\\.)*?'''|" r'"(?:[^"\\\n]|\\.)*"|' r"'(?:[^'\\\n]|\\.)*'",
        literal,
        text,
        flags=re.DOTALL,
    ).replace("\\\n", " ")
    # getattr takes a name as a literal, so literals are compared whole and with their escapes resolved.
    named = {str(ast.literal_eval(each)) for each in literals if len(each) < 256}
    if re.search(r'""\s*""', code) or re.search(r"[\"'\\]", code.replace('""', " ")):
        raise UnsafeArchive(f"its member {where} has strings that TorchScript does not write")
    words = set(re.findall(r"\w+", code)) | named
    called = {f".{word}" for word in re.findall(r"\.\s*(\w+)", code)} | {f".{word}" for word in named}
    for operator in sorted(FILES):
        # `save` is a common name of variables and parameters, so only attributes of that name are refused.
        if operator in words and (operator != "save" or ".save" in called):
            raise UnsafeArchive(
                f"its member {where} uses the operator {operator}, which reaches files or other machines"
            )
    for match in re.finditer(r"(?<![\w.])ops\b(?:\s*\.\s*(\w+))?", code):
        if match[1] not in OPERATORS:
            raise UnsafeArchive(
                f"its member {where} uses operators of {match[1] or 'a computed namespace'}, which are not known to "
                "compute alone"
            )
    for name in re.findall(r"torch\s*\.\s*classes\s*\.?\s*(\w*)", code):
        if name != "quantized":
            raise UnsafeArchive(f"its member {where} uses custom classes of {name or 'a computed name'}")


def _clean_graph(source: _Archive, name: str) -> bytes:
    """The JSON of a program, graph and signature, without anything that torch would evaluate as Python."""
    program = _json(source, name)
    # Guards are Python source that torch compiles; the signature checks the sizes as well.
    program["guards_code"] = []
    return json.dumps(_checked(program, "", source.named(name))).encode()


def _json(source: _Archive, name: str) -> dict[str, Any]:
    values = json.loads(source.text(name))
    if not isinstance(values, dict):
        raise UnsafeArchive(f"its member {source.named(name)} is no JSON object")
    return values


def _checked(value: Any, key: str, where: str, *, loose_keys: bool = False) -> Any:  # noqa: ANN401  # JSON
    """A copy of a JSON value with little metadata; raises UnsafeArchive if a string could become Python source.

    The rule for a string depends on its key: most strings are names, which torch writes into the source of a function.
    """
    if isinstance(value, dict):
        for each in value:
            if not (_is_plain(each) if loose_keys else _IDENTIFIER.fullmatch(each)):
                raise _odd(each, key, where)
            if each in _OBJECTS and value[each]:
                raise UnsafeArchive(f"its member {where} has a custom object ({each}), which is not loaded here")
        return {
            each: _kept(inner)
            if each == "metadata" and _is_metadata(inner)
            else _checked(inner, each, where, loose_keys=loose_keys)
            for each, inner in value.items()
        }
    if isinstance(value, list):
        return [_checked(inner, key, where, loose_keys=loose_keys) for inner in value]
    if isinstance(value, str) and not _allowed_text(value, key, where):
        raise _odd(value, key, where)
    return value


def _is_metadata(value: object) -> bool:
    """Whether a value is an exporter's metadata, and not a tensor named "metadata"."""
    return isinstance(value, dict) and all(isinstance(inner, str) for inner in value.values())


def _kept(metadata: dict[str, str]) -> dict[str, str]:
    """The part of metadata that is used: the module that a node comes from, by which --features names a layer."""
    path = metadata.get(_LAYERS, "")
    return {_LAYERS: path} if path and path.isascii() and path.isprintable() else {}


def _is_plain(text: str) -> bool:
    return bool(_WORDS.fullmatch(text)) and not any(part.startswith("__") for part in text.split("."))


def _odd(text: str, key: str, where: str) -> UnsafeArchive:
    what = f"under {key!r} " if key else ""
    return UnsafeArchive(f"its member {where} has {what}{text[:80]!r}, which torch could execute")


def _allowed_text(text: str, key: str, where: str) -> bool:
    if key in _TEXTS:
        return True
    if key in {"target", "as_operator"}:
        if not _is_operator(text):
            raise UnsafeArchive(f"its member {where} calls {text[:80]!r}, which is no operator that computes alone")
        return True
    if key == "expr_str":
        return _is_expression(text)
    if key in {"in_spec", "out_spec"}:
        return _is_tree(json.loads(text))
    if key in _NAMES:
        return text == "" or bool(_IDENTIFIER.fullmatch(text))
    return _is_plain(text)


def _is_operator(target: str) -> bool:
    """Whether the target of a graph's node is an operator that only computes."""
    if _SIZES.fullmatch(target) or _MATH.fullmatch(target):
        return True
    module, *names = target.split(".")
    if module == "_operator":
        return len(names) == 1 and names[0] in ARITHMETIC
    if [module, *names[:1]] != ["torch", "ops"] or len(names) not in {3, 4}:
        return False
    namespace, operator, *overload = names[1:]
    if not all(_IDENTIFIER.fullmatch(name) for name in (operator, *overload)):
        return False
    if namespace == "higher_order":
        return operator in HIGHER_ORDER and not overload
    # An overload is a name such as Tensor or default; attributes of Python objects begin with underscores.
    plain = operator in _BITWISE or not operator.startswith("__")
    return namespace in OPERATORS and operator not in FILES and plain and all(each[0] != "_" for each in overload)


@functools.cache
def _is_expression(text: str) -> bool:
    """Whether an expression of sizes, which sympy evaluates as Python, is only arithmetic."""
    if len(text) > MAX_EXPRESSION or not text.isascii():
        return False
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    functions = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    strings: set[int] = set()
    for node in ast.walk(tree):
        if not isinstance(node, _NODES):
            return False
        if isinstance(node, ast.Call):
            if not (isinstance(node.func, ast.Name) and node.func.id in SYMBOLIC):
                return False
            strings |= {id(each) for each in node.args[:1] if _is_symbols_name(each, node.func.id)}
            if node.func.id in _POWERS and not _is_small(node.args[-1:]):
                return False
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow | ast.LShift | ast.RShift):
            if not _is_small([node.right]):
                return False
        elif isinstance(node, ast.Name):
            if id(node) not in functions and not _SYMBOL.fullmatch(node.id):
                return False
        # ast.walk visits outer nodes first, so the call around a string has been visited before it.
        elif isinstance(node, ast.Constant) and not (isinstance(node.value, int | float) or id(node) in strings):
            return False
    return True


def _is_symbols_name(node: ast.expr, function: str) -> bool:
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
        return False
    wanted = {"Symbol": _IDENTIFIER, "Float": _NUMBER}.get(function)
    return wanted is not None and bool(wanted.fullmatch(node.value))


def _is_small(exponent: list[ast.expr]) -> bool:
    """Whether an exponent is a number, or Integer(number), of at most MAX_EXPONENT."""
    if not exponent:
        return False
    (node,) = exponent
    if isinstance(node, ast.Call) and len(node.args) == 1 and ast.unparse(node.func) == "Integer":
        (node,) = node.args
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        node = node.operand
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float) and abs(node.value) <= MAX_EXPONENT


def _is_tree(spec: object) -> bool:
    """Whether a program's inputs and outputs are only tuples, lists and dictionaries: other types import modules."""
    version, node = spec if isinstance(spec, list) and len(spec) == 2 else (None, None)
    return version == 1 and _is_node(node)


def _is_node(node: object) -> bool:
    if not isinstance(node, dict) or set(node) != {"type", "context", "children_spec"}:
        return False
    if node["type"] is None:
        return node["context"] is None and node["children_spec"] == []
    if node["type"] not in _TREES or not isinstance(node["context"], str | None):
        return False
    keys = json.loads(node["context"]) if node["context"] else None
    named = keys is None or (
        isinstance(keys, list)
        and all(isinstance(each, int) or (isinstance(each, str) and _IDENTIFIER.fullmatch(each)) for each in keys)
    )
    return named and isinstance(node["children_spec"], list) and all(_is_node(child) for child in node["children_spec"])
