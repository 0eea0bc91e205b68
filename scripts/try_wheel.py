"""Tries a built wheel as a stranger would: an empty environment, no extras, the README's library lines."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

MUST_CONTAIN = (
    "conserve/__init__.py",
    "conserve/_core.pyi",
    "conserve/py.typed",
    "conserve_workers/__init__.py",
    "conserve_workers/tiny/__init__.py",
)
LIBRARY_BLOCK = re.compile(r"^```python\n(?P<code>from conserve import .*?)^```$", re.MULTILINE | re.DOTALL)


def check_contents(wheel: Path) -> None:
    """Fails unless the wheel carries the extension, the types and the engine that `conserve demo` starts."""
    names = set(zipfile.ZipFile(wheel).namelist())
    missing = [name for name in MUST_CONTAIN if name not in names]
    if not any(name.startswith("conserve/_core.") and name.endswith((".so", ".pyd")) for name in names):
        missing.append("conserve/_core.*.so")
    if missing:
        sys.exit(f"{wheel.name} lacks {', '.join(missing)}")


def check_readme(wheel: Path) -> None:
    """Runs the README's first library example against the installed wheel, away from the source tree."""
    block = LIBRARY_BLOCK.search(Path("README.md").read_text(encoding="utf-8"))
    if block is None:
        sys.exit("README.md has no python block that begins with `from conserve import`")
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = str(Path(folder) / "bin" / "python")
        pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", "--no-index", str(wheel.resolve())], check=True)
        subprocess.run([python, "-I", "-c", block["code"]], check=True, cwd=folder)


def main() -> None:
    """`python scripts/try_wheel.py WHEEL`."""
    wheel = Path(sys.argv[1])
    check_contents(wheel)
    check_readme(wheel)
    print(
        f"{wheel.name} ({wheel.stat().st_size / 1e6:.1f} MB): installs alone, the README's library lines run"
    )


if __name__ == "__main__":
    main()
