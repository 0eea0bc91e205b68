"""Certificates for tests, made by the `openssl` of this machine."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Certificate:
    """A self-signed certificate for 127.0.0.1 and localhost; it is its own authority."""

    chain: Path
    key: Path
    encrypted_key: Path
    """The same key under a passphrase."""


def make_certificate(folder: Path, *, name: str = "own") -> Certificate:
    """Make one in `folder`."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl on this machine")
    made = Certificate(folder / f"{name}.pem", folder / f"{name}.key", folder / f"{name}-encrypted.key")

    def run(*words: str | Path) -> None:
        subprocess.run([openssl, *words], check=True, capture_output=True, timeout=30)

    run("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", made.key)
    run(
        *(
            "req",
            "-x509",
            "-new",
            "-key",
            made.key,
            "-out",
            made.chain,
            "-days",
            "2",
            "-subj",
            "/CN=localhost",
        ),
        *("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-addext", "basicConstraints=CA:FALSE"),
    )
    run("ec", "-in", made.key, "-aes256", "-passout", "pass:word", "-out", made.encrypted_key)
    return made
