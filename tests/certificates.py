"""Certificates for tests, made with the openssl command."""

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, as PEM files."""

    certificate: Path
    key: Path


class Authority:
    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._own = Pair(folder / "ca.crt", folder / "ca.key")
        self.certificate = self._own.certificate
        _openssl(
            "req", "-x509", *_key(self._own), "-out", str(self.certificate), "-days", "2", "-subj", "/CN=a test's CA"
        )

    def issue(self, name: str) -> Pair:
        """A certificate for a host name."""
        pair = Pair(self._folder / f"{name}.crt", self._folder / f"{name}.key")
        request, extensions = self._folder / f"{name}.csr", self._folder / f"{name}.ext"
        extensions.write_text(f"subjectAltName=DNS:{name}")
        _openssl("req", *_key(pair), "-out", str(request), "-subj", f"/CN={name}")
        signed_by = ("-CA", str(self._own.certificate), "-CAkey", str(self._own.key), "-CAcreateserial")
        files = ("-in", str(request), "-out", str(pair.certificate), "-extfile", str(extensions))
        _openssl("x509", "-req", *files, *signed_by, "-days", "2")
        return pair


def _key(pair: Pair) -> tuple[str, ...]:
    return ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", str(pair.key))


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=60)
