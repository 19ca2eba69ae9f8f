"""API keys: a file of their names and hashes, and the check of a key that a client sends.

name:sha256-hex                       one line for each key; empty lines and lines that begin with # are skipped
name:sha256-hex rate=100/s share=0.5  a key with a quota; see gateway.plugins.keys.quota
"""

import hashlib
import re
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

import structlog

from gateway.errors import UserError
from gateway.plugins.keys.quota import Quota, read_quota
from gateway.values.files import locked
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


def digest(key: bytes) -> str:
    """The SHA-256 of a key in hex, which the file stores instead of the key.

    A slow hash protects passwords that people choose. 256 random bits cannot be guessed however fast the hash is, and
    a slow hash would make every request with an invalid key expensive.
    """
    return hashlib.sha256(key).hexdigest()


class Keys:
    """The digests of the accepted keys, by name, and the quotas of keys that have one; no key itself is stored."""

    def __init__(self, digests: Mapping[str, str], quotas: Mapping[str, Quota]) -> None:
        self.digests, self.quotas = digests, quotas
        self._names = {known: name for name, known in digests.items()}

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
        self._keys = read_keys(path, admin=admin)
        if not self._keys.digests:
            log.warning("api_keys_empty", file=str(path))

    @property
    def keys(self) -> Keys:
        """The keys that are accepted now."""
        stamp = _stamp(self._path)
        if stamp != self._seen:
            self._seen = stamp
            try:
                self._keys = read_keys(self._path, admin=self._admin)
            except KeysError as exc:
                log.error("api_keys_unchanged", reason=str(exc))  # noqa: TRY400  # the message suffices
            else:
                log.info("api_keys_read", keys=len(self._keys.digests))
        return self._keys


def read_keys(path: Path, *, admin: bool = False) -> Keys:
    """Read a file of keys; raises KeysError, which names a bad line by its number and does not repeat its text.

    It also raises KeysError if a key of the file of `admin` keys has a quota.
    """
    digests: dict[str, str] = {}
    quotas: dict[str, Quota] = {}
    for number, line in enumerate(_text(path).splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        where = f"line {number} of {path}"
        name, _, rest = (part.strip() for part in line.partition(":"))
        known, *given = rest.split() or [""]
        if not (_NAME.fullmatch(name) and _DIGEST.fullmatch(known)):
            # The line itself may be a key that was pasted by mistake.
            raise KeysError(f"{where} is not name:sha256-hex; gateway key add writes such lines")
        if name in digests:
            raise KeysError(f"{where} has the name of an earlier key: {name}")
        digests[name] = known
        if admin and given:
            raise KeysError(
                f"{path} has admin keys, which have no quotas, but {name} has one: remove what follows its hash, or "
                "move the line to the file of GATEWAY_API_KEYS_FILE"
            )
        if given:
            quotas[name] = _quota(given, f"{where}: ")
    return Keys(digests, quotas)


def add_key(path: Path, name: str, options: Sequence[str] = ()) -> str:
    """Generate a key of 256 random bits, add its name, hash and quota to the file, and return it.

    A missing file is created, for its owner alone. Raises KeysError if the name is taken or not allowed, or an option
    of the quota cannot be read.
    """
    if not _NAME.fullmatch(name):
        raise KeysError(f"{name!r} cannot be a key's name: letters, digits and . _ - are allowed, 64 at most")
    _quota(options)
    key = PREFIX + secrets.token_urlsafe(KEY_BYTES)
    line = " ".join([f"{name}:{digest(key.encode())}", *options])
    try:
        # Another command that adds a key at this moment waits, since it may add the same name.
        with locked(path.parent):
            text = _text(path) if path.exists() else ""
            if text and name in read_keys(path).digests:
                raise KeysError(f"there is a key named {name} in {path}: choose another name, or delete its line first")
            newline = "\n" if text and not text.endswith("\n") else ""
            path.touch(FILE_MODE)
            # One write, so that a gateway never reads a part of the line.
            with path.open("ab", buffering=0) as file:
                file.write(f"{newline}{line}\n".encode())
    except OSError as exc:
        raise KeysError(f"cannot write API keys to {path}: {exc.filename or path.parent}: {exc.strerror}") from exc
    return key


def _quota(options: Sequence[str], where: str = "") -> Quota:
    try:
        return read_quota(options)
    except ValueError as exc:
        raise KeysError(f"{where}{exc}") from None


def _text(path: Path) -> str:
    try:
        return decoded(path.read_bytes())
    except FileNotFoundError as exc:
        raise KeysError(
            f"there is no file of API keys at {path}: make one with gateway key add NAME --file {path}"
        ) from exc
    except OSError as exc:
        raise KeysError(f"cannot read the API keys in {path}: {exc.strerror or exc}") from exc


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """A value that changes when the file is written or replaced; None if the file is missing."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_ino, stat.st_size
