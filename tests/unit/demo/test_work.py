"""The agents' work: real files, real tools, a plan that depends on nothing but the files."""

from __future__ import annotations

from pathlib import Path

import pytest

from conserve.demo.options import Options, default_workdir
from conserve.demo.plan import make_plan
from conserve.demo.tools import CountLines, Grep, ListFiles, Outline, ReadLines
from conserve.demo.workspace import Workspace, WorkspaceError

PYTHON = '''"""A store."""

class Store:
    def get(self, key):
        return self.items[key]

    async def put(self, key, value):
        self.items[key] = value


def main(argv):
    Store().get(argv)
'''
RUST = (
    "//! Units.\n\npub struct Tokens(u32);\n\nimpl Tokens {\n    pub fn new(n: u32) -> Self { Self(n) }\n}\n"
)


@pytest.fixture
def project(tmp_path: Path) -> Workspace:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "store.py").write_text(PYTHON + "# padding\n" * 40)
    (tmp_path / "src" / "units.rs").write_text(RUST + "// padding\n" * 40)
    (tmp_path / "README.md").write_text("# Shop\n\n## Use\n\n" + "The store keeps items.\n" * 20)
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "built.py").write_text("x = 1\n" * 200)
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "config.toml").write_text("x = 1\n" * 200)
    (tmp_path / "image.png").write_bytes(b"\x89PNG" * 200)
    (tmp_path / "small.py").write_text("x = 1\n")
    (tmp_path / "link").symlink_to(tmp_path / "src")
    return Workspace.scan(tmp_path)


def test_scan_finds_text_files_and_passes_over_what_was_built(project: Workspace) -> None:
    assert project.files == ("README.md", "src/store.py", "src/units.rs")


def test_scan_says_why_a_directory_cannot_be_worked_on(tmp_path: Path) -> None:
    with pytest.raises(WorkspaceError, match="has no text file"):
        Workspace.scan(tmp_path)
    with pytest.raises(WorkspaceError, match="is not a directory"):
        Workspace.scan(tmp_path / "absent")


def test_read_lines_are_numbered_and_end_with_the_file(project: Workspace) -> None:
    tool = ReadLines("src/store.py", 3, 2)
    assert tool.command == "sed -n 3,4p src/store.py"
    assert tool.run(project, max_chars=1000) == "3 class Store:\n4     def get(self, key):"
    assert ReadLines("src/store.py", 10_000, 5).run(project, max_chars=1000) == "(no output)"


def test_grep_finds_whole_words_below_the_folder(project: Workspace) -> None:
    assert Grep("Store", "src").run(project, max_chars=1000).splitlines() == [
        "src/store.py:3:class Store:",
        "src/store.py:12:Store().get(argv)",
    ]
    assert Grep("Stor", "").run(project, max_chars=1000) == "(no output)", "Stor is no whole word"


def test_count_lines_gives_the_longest_first_and_the_sum(project: Workspace) -> None:
    assert CountLines("src").run(project, max_chars=1000).split() == [
        *("52", "src/store.py"),
        *("47", "src/units.rs"),
        *("99", "total"),
    ]


def test_list_files_gives_sizes(project: Workspace) -> None:
    size = (project.root / "src/units.rs").stat().st_size
    assert f"{size} src/units.rs" in ListFiles("src").run(project, max_chars=1000)
    assert "README.md" not in ListFiles("src").run(project, max_chars=1000)


def test_outline_of_python_is_its_syntax_tree(project: Workspace) -> None:
    assert Outline("src/store.py").run(project, max_chars=1000).splitlines() == [
        "3 class Store",
        "4   def get(self, key)",
        "7   def put(self, key, value)",
        "11 def main(argv)",
    ]


def test_outline_of_other_files_is_their_heads(project: Workspace) -> None:
    assert Outline("src/units.rs").run(project, max_chars=1000).splitlines() == [
        "3 pub struct Tokens",
        "5 impl Tokens",
        "6 pub fn new",
    ]
    assert Outline("README.md").run(project, max_chars=1000).splitlines() == ["1 # Shop", "3 ## Use"]


def test_outline_of_broken_python_says_where(project: Workspace) -> None:
    (project.root / "src/store.py").write_text("def f(:\n")
    assert "src/store.py:1:" in Outline("src/store.py").run(project, max_chars=1000)


def test_output_is_cut_with_a_note(project: Workspace) -> None:
    text = ReadLines("README.md", 1, 40).run(project, max_chars=30)
    assert len(text.splitlines()[-1]) < 40
    assert text.endswith("more characters]")


def test_plan_depends_only_on_the_files(project: Workspace) -> None:
    first = [make_plan(project, agent, turns=8, prompt_chars=300) for agent in range(9)]
    again = [make_plan(project, agent, turns=8, prompt_chars=300) for agent in range(9)]
    assert first == again
    assert len({plan.task for plan in first}) == 9, (
        "no two conversations begin alike, though there are three files"
    )
    assert all(len(plan.steps) == 7 for plan in first), "a tool before each turn but the first"
    assert all(step.tool.run(project, max_chars=100) for plan in first for step in plan.steps)


def test_task_quotes_the_file_as_it_is(project: Workspace) -> None:
    plan = make_plan(project, 0, turns=1, prompt_chars=120)
    assert plan.path == "src/store.py"
    assert PYTHON[:80] in plan.task
    assert plan.steps == ()


def test_default_workdir_is_this_project() -> None:
    workspace = Workspace.scan(default_workdir())
    assert len(workspace.files) >= 8, "enough different files for the default number of agents"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"conversations": 0}, "--conversations 0: use 1 to 256"),
        ({"turns": 65}, "--turns 65: use 1 to 64"),
        ({"tenants": 9}, "--tenants 9: use 1 to 8"),
        ({"max_tokens": 0}, "--max-tokens 0: use 1 to 2048"),
        ({"turns": 64}, "the engine's limit is 8192"),
    ],
)
def test_options_out_of_range_are_refused_by_name(change: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Options(workdir=Path(), **change)  # type: ignore[arg-type]
