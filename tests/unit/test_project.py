"""What the project says about itself stays true."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def table(name: str) -> dict[str, Any]:
    return tomllib.loads((ROOT / name).read_text(encoding="utf-8"))


def python_dependencies() -> set[str]:
    project = table("pyproject.toml")["project"]
    lines = list(project["dependencies"])
    for extra in project["optional-dependencies"].values():
        lines += extra
    names = {re.split(r"[\[<>=~! ]", line, maxsplit=1)[0] for line in lines}
    return names - {"conserve-router"}


def rust_dependencies() -> set[str]:
    cargo = table("Cargo.toml")
    names = set(cargo["dependencies"]) | set(cargo.get("dev-dependencies", {}))
    for target in cargo.get("target", {}).values():
        names |= set(target.get("dependencies", {})) | set(target.get("dev-dependencies", {}))
    return names


@pytest.mark.parametrize("name", sorted(python_dependencies() | rust_dependencies()))
def test_each_dependency_says_what_it_is_for(name: str) -> None:
    text = (ROOT / "docs" / "design" / "dependencies.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert any(re.search(rf"\b{re.escape(name)}\b", row.split("|")[1]) for row in rows), f"{name} has no line"


def test_the_library_has_no_dependencies() -> None:
    assert table("pyproject.toml")["project"]["dependencies"] == [], (
        "pip install of the router brings nothing else"
    )


def test_extras_that_are_named_where_something_is_missing_exist() -> None:
    extras = table("pyproject.toml")["project"]["optional-dependencies"].keys()
    named = {
        extra
        for folder in ("python", "workers")
        for file in (ROOT / folder).rglob("*.py")
        for extra in re.findall(r"conserve-router\[(\w+)\]", file.read_text(encoding="utf-8"))
    }
    from conserve.cli import _EXTRA_OF

    assert named >= {"engine", "energy", "proxy", "tables"}
    assert named | set(_EXTRA_OF.values()) <= extras


def test_rust_and_python_have_one_version() -> None:
    assert table("pyproject.toml")["project"]["version"] == table("Cargo.toml")["package"]["version"]


def links(page: Path) -> list[str]:
    found = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    return [link for link in found if "://" not in link]


@pytest.mark.parametrize(
    "page",
    [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    dead = [link for link in links(page) if not (page.parent / link).exists()]
    assert not dead, f"{page.name} links to files that do not exist"


def test_each_case_of_the_worker_contract_stands_behind_its_sentence() -> None:
    page = (ROOT / "workers" / "README.md").read_text()
    contract = page[: page.index("## `vllm`")]
    named = re.findall(r"(?<!\*)\*(\w+_\w+)\*(?!\*)", contract)
    tests = [
        name
        for file in (ROOT / "tests" / "contract").glob("test_*.py")
        for name in re.findall(r"^def test_(\w+)", file.read_text(), re.MULTILINE)
    ]
    assert sorted(named) == sorted(tests)
