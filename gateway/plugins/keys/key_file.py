"""API keys: a file of their names and hashes, and the check of a key that a client sends.

name:sha256-hex                       one line for each key; empty lines and lines that begin with # are skipped
name:sha256-hex rate=100/s share=0.5  a key with a quota; see gateway.plugins.keys.quota
"""

import hashlib
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import structlog

from gateway.errors import UserError
from gateway.plugins.keys.quota import NO_QUOTA, InvalidQuota, Quota, read_quota
from gateway.values.files import locked, whole_file
from gateway.values.text_files import decoded

log = structlog.get_logger("gateway")

PREFIX = "tig_"
"""Prefix of every key, by which scanners for leaked secrets can recognise one."""
KEY_BYTES = 32
FILE_MODE = 0o600

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_DIGEST = re.compile(r"[0-9a-f]{64}")


class KeysError(UserError):
    """The file of API keys cannot be used or changed; the message states why, and never contains a key."""


def new_key() -> str:
    """A key of 256 random bits."""
    return PREFIX + secrets.token_urlsafe(KEY_BYTES)


def digest(key: bytes) -> str:
    """The SHA-256 of a key in hex, which the file stores instead of the key.

    A slow hash protects passwords that people choose. 256 random bits cannot be guessed however fast the hash is, and
    a slow hash would make every request with an invalid key expensive.
    """
    return hashlib.sha256(key).hexdigest()


class Keys:
    """The digests of the accepted keys, by name, and the quotas of those that have one; no key itself is stored."""

    def __init__(self, digests: Mapping[str, str], quotas: Mapping[str, Quota] | None = None) -> None:
        self.digests = dict(digests)
        self._names = {known: name for name, known in digests.items()}
        self.quotas = dict(quotas or {})

    def name_of(self, key: bytes) -> str | None:
        """The name of a key, None if the key is unknown."""
        # A lookup takes the same time for any number of keys. It need not be constant-time: what its duration could
        # reveal is a part of the SHA-256 of a key, from which no key of 256 random bits can be guessed.
        return self._names.get(digest(key))


class KeyFile:
    """The keys of a file, reloaded when the file changes; admin keys have no quotas.

    Raises KeysError if the first read fails. If a later read fails, the previous keys stay valid.
    """

    def __init__(self, path: Path, *, admin: bool = False) -> None:
        self._path = path
        self._admin = admin
        self._seen = _stamp(path)
        self._keys = self._read()
        if not self._keys.digests:
            log.warning("api_keys_empty", file=str(path))

    @property
    def keys(self) -> Keys:
        """The keys that are accepted now."""
        stamp = _stamp(self._path)
        if stamp != self._seen:
            self._seen = stamp
            try:
                self._keys = self._read()
            except KeysError as exc:
                log.error("api_keys_unchanged", reason=str(exc))  # noqa: TRY400  # the message is enough
            else:
                log.info("api_keys_read", keys=len(self._keys.digests))
        return self._keys

    def _read(self) -> Keys:
        return read_keys(self._path, admin=self._admin)


def read_keys(path: Path, *, admin: bool = False) -> Keys:
    """Read a file of keys; raises KeysError, which names a bad line by its number and does not repeat its text.

    It also raises KeysError if a key of the file of `admin` keys has a quota.
    """
    digests, options = _parse(path, _read(path))
    if admin and options:
        raise KeysError(
            f"{path} has admin keys, which have no quotas, but {next(iter(options))} has one: remove what follows "
            "its hash, or move the line to the file of GATEWAY_API_KEYS_FILE"
        )
    quotas = {}
    for name, (where, given) in options.items():
        try:
            quotas[name] = read_quota(given)
        except InvalidQuota as exc:
            raise KeysError(f"{where}: {exc}") from None
    return Keys(digests, quotas)


def add_key(path: Path, name: str, quota: Quota = NO_QUOTA) -> str:
    """Generate a key and write its name, hash and quota to the file, which is created if missing; returns the key.

    Raises KeysError if the name is taken or not allowed.
    """
    if not _NAME.fullmatch(name):
        raise KeysError(f"{name!r} cannot be a key's name: letters, digits and . _ - are allowed, 64 at most")
    with _changing(path):
        text = _read(path) if path.exists() else ""
        if name in _parse(path, text)[0]:
            raise KeysError(f"there is a key named {name} in {path}: choose another name, or remove that one first")
        key = new_key()
        newline = "\n" if text and not text.endswith("\n") else ""
        line = f"{name}:{digest(key.encode())} {quota}".rstrip()
        _write(path, f"{text}{newline}{line}\n")
    return key


def remove_key(path: Path, name: str) -> None:
    """Remove a key from the file; raises KeysError if there is no key of that name."""
    with _changing(path):
        text = _read(path)
        if name not in _parse(path, text)[0]:
            raise KeysError(f"there is no key named {name} in {path}; gateway key list shows the existing ones")
        lines = text.splitlines(keepends=True)
        _write(path, "".join(line for line in lines if line.partition(":")[0].strip() != name))


def _read(path: Path) -> str:
    try:
        return decoded(path.read_bytes())
    except FileNotFoundError as exc:
        raise KeysError(
            f"there is no file of API keys at {path}: make one with gateway key add NAME --file {path}"
        ) from exc
    except OSError as exc:
        raise KeysError(f"cannot read the API keys in {path}: {exc.strerror or exc}") from exc


def _parse(path: Path, text: str) -> tuple[dict[str, str], dict[str, tuple[str, Mapping[str, str]]]]:
    """The digests of the keys by name; for each with options the line, in words, and the options."""
    digests: dict[str, str] = {}
    options: dict[str, tuple[str, Mapping[str, str]]] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, _, rest = (part.strip() for part in line.partition(":"))
        known, *given = rest.split() or [""]
        where = f"line {number} of {path}"
        if not (_NAME.fullmatch(name) and _DIGEST.fullmatch(known)):
            # The line itself may be a key that was pasted by mistake.
            raise KeysError(f"{where} is not name:sha256-hex; gateway key add writes such lines")
        if name in digests:
            raise KeysError(f"{where} has the name of an earlier key: {name}")
        digests[name] = known
        pairs = [option.partition("=") for option in given]
        if pairs:
            options[name] = where, {option: value for option, _, value in pairs}
            if len(options[name][1]) < len(pairs):
                raise KeysError(f"{where} has an option twice")
    return digests, options


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """A value that changes when the file is written or replaced; None if the file is missing."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_ino, stat.st_size


@contextmanager
def _changing(path: Path) -> Iterator[None]:
    """Lock the file against concurrent changes by other commands, which could lose a key; raises KeysError."""
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(path.parent))
        except OSError as exc:
            raise KeysError(f"cannot write API keys to {path}: {path.parent}: {exc.strerror}") from exc
        try:
            yield
        except OSError as exc:
            raise KeysError(f"cannot write API keys to {path}: {exc.strerror}") from exc


def _write(path: Path, text: str) -> None:
    """Replace the file atomically, so that a gateway never reads a part of it; keeps owner and mode of an old file."""
    target = path.resolve()
    old = None
    with suppress(FileNotFoundError):
        old = target.stat()
    with whole_file(target, mode=FILE_MODE if old is None else old.st_mode & 0o777) as draft:
        draft.write_text(text, encoding="utf-8")
        # Only root may change the owner; for any other user the file already has the right owner.
        if old is not None:
            with suppress(PermissionError):
                os.chown(draft, old.st_uid, old.st_gid)
