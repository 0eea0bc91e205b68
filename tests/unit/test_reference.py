"""The reference pages written by hand say what the program does; the others are compared by `make check`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fastapi.routing import APIRoute

from conserve import Router, openai_routes

ROOT = Path(__file__).parents[2]
HTTP = (ROOT / "docs" / "reference" / "http.md").read_text(encoding="utf-8")
SOURCES = "".join(
    path.read_text(encoding="utf-8")
    for folder, pattern in (("src", "*.rs"), ("python/conserve", "*.py"))
    for path in sorted((ROOT / folder).rglob(pattern))
)


def section(title: str) -> str:
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", HTTP, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def test_each_route_is_described_and_each_described_route_exists() -> None:
    described = set(re.findall(r"^\| ([A-Z]+) \| `([^`]+)` \|", HTTP, re.MULTILINE))
    routes = {
        (method, re.sub(r"\{[^}]*\}", "{id}", route.path))
        for route in openai_routes(Router()).routes
        if isinstance(route, APIRoute)
        for method in route.methods or ()
    }
    assert described == routes


@pytest.mark.parametrize("code", re.findall(r"`([a-z]+(?:_[a-z]+)+)`", section("Refused requests")))
def test_each_code_and_setting_named_is_in_the_source(code: str) -> None:
    assert f'"{code}"' in SOURCES or f"{code}:" in SOURCES


@pytest.mark.parametrize(
    "header", re.findall(r"^\| `(x-[a-z-]+)` \|", section("Response headers"), re.MULTILINE)
)
def test_each_response_header_is_in_the_source(header: str) -> None:
    assert f'"{header}"' in SOURCES
