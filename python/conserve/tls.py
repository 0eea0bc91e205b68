"""TLS of a door: checks its certificate and key before anything listens, and says whom it trusts behind `https://` workers.

Promises: an error names the setting and the file, never what is in it.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import TYPE_CHECKING

from conserve.errors import ConfigError

if TYPE_CHECKING:
    from conserve.settings import Settings

__all__ = ["files_of", "trust_of"]


def files_of(settings: Settings) -> tuple[Path, Path] | None:
    """The files of certificate chain and key, if the door is to speak TLS. Raises ConfigError unless they go together."""
    certificate, key = settings.tls_cert, settings.tls_key
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        missing, given = ("tls_cert", "tls_key") if certificate is None else ("tls_key", "tls_cert")
        raise ConfigError(
            f"{given} needs {missing}: give the certificate chain and its key, both PEM",
            key=missing,
            accepted="a PEM file",
        )
    for name, path in (("tls_cert", certificate), ("tls_key", key)):
        _readable(name, path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key, password=_refuse_password)
    except _EncryptedError:
        raise ConfigError(
            f"tls_key: {key} is encrypted; write it out without a passphrase, readable by the router only",
            key="tls_key",
            accepted="a PEM file that is not encrypted",
        ) from None
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            said = f"tls_key: {key} is not the key of the certificate in {certificate}"
        else:
            said = f"tls_cert {certificate} or tls_key {key} is no PEM file of a certificate or key"
        raise ConfigError(said, key="tls_key", accepted="the certificate's own key") from None
    return certificate, key


def trust_of(settings: Settings) -> ssl.SSLContext | None:
    """Whom to trust behind `https://` workers; None where the machine's own authorities do. Raises ConfigError."""
    if settings.worker_ca is None:
        return None
    _readable("worker_ca", settings.worker_ca)
    try:
        return ssl.create_default_context(cafile=settings.worker_ca)
    except ssl.SSLError:
        raise ConfigError(
            f"worker_ca: {settings.worker_ca} holds no certificate",
            key="worker_ca",
            accepted="a PEM file of certificates",
        ) from None


class _EncryptedError(Exception):
    """A password was asked for."""


def _refuse_password() -> str:
    raise _EncryptedError


def _readable(name: str, path: Path) -> None:
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise ConfigError(
            f"{name}: cannot read {path}: {error.strerror}", key=name, accepted="a PEM file"
        ) from None
