"""The rooms and who may import whom, read from the imports themselves."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "llama_lab"
MODULES = sorted(PACKAGE.rglob("*.py"))

# From above to below: a room may import those below it.
ORDER = [
    {"__main__"},
    {"cli"},
    {"api"},
    {"commands"},
    {"prediction"},
    {"kernels"},
    {"bench", "reports"},
    {"studies"},
    {"runs"},
    {"training"},
    {"parallel"},
    {"generation", "interop"},
    {"data"},
    {"parsing"},
    {"checkpoints", "configs", "dotted_names", "files", "ranks", "signals"},
    {"yaml_text"},
    {"names"},
    {"inspect"},
    {"errors"},
    {"model"},
]
ORDER_IN_DATA = [
    {"datamodule"},
    {"loading"},
    {"store"},
    {"tokenizers"},
    {"corpus"},
    {"batches", "config", "reading_progress"},
]
LIGHTNING = {
    "prediction",
    "training",
    "runs",
    "studies",
    "bench",
    "data.datamodule",
    "parallel.strategy",
    "parallel.watching",
}
# Scripts know the command line of runs by an older name.
FORWARDS = {"training/trainer_cli.py"}


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def level(room: str, order: list[set[str]]) -> int:
    return next(i for i, rooms in enumerate(order) if room in rooms)


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)


NAMES = {name_of(path) for path in MODULES}


def imports(path: Path) -> Iterator[str]:
    """What a module imports, for type checkers and within functions too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in NAMES else node.module


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_nothing_imports_upward(path: Path) -> None:
    room = room_of(path)
    if str(path.relative_to(PACKAGE)) in FORWARDS:
        return
    for module in imports(path):
        if not module.startswith("llama_lab."):
            continue
        other = module.split(".")[1]
        if other != room:
            assert level(room, ORDER) < level(other, ORDER), f"{room} imports {other}"
        if room == "model":
            assert other == "model"
        if room == other == "data":
            inner = [name.split(".")[2] for name in (name_of(path), module)]
            if inner[0] != inner[1]:
                above, below = (level(part, ORDER_IN_DATA) for part in inner)
                assert above < below, f"data.{inner[0]} imports data.{inner[1]}"


def test_no_two_modules_import_each_other_by_any_way_round() -> None:
    graph = {name_of(path): {m for m in imports(path) if m in NAMES} for path in MODULES}
    while leaves := {name for name, others in graph.items() if not others & graph.keys()}:
        graph = {name: others for name, others in graph.items() if name not in leaves}
    assert not graph, f"a circle among {sorted(graph)}"


def test_no_folder_is_crowded() -> None:
    for folder in {path.parent for path in MODULES}:
        assert len(list(folder.glob("*.py"))) <= 20, folder


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_lightning_stays_in_its_rooms_and_torch_is_all_that_the_model_needs(path: Path) -> None:
    name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
    packages = {module.split(".")[0] for module in imports(path)}
    if not any(name == room or name.startswith(f"{room}.") for room in LIGHTNING):
        assert "lightning" not in packages
    if room_of(path) == "model":
        assert not packages & {"numpy", "jsonargparse", "rich", "yaml", "tokenizers"}


@pytest.mark.parametrize(
    "path", sorted((PACKAGE / "model").rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE))
)
def test_no_import_of_the_model_is_for_type_checkers_alone(path: Path) -> None:
    # Such an import hides a circle: two files that cannot be read one after the other.
    assert "TYPE_CHECKING" not in path.read_text(encoding="utf-8")


def test_only_the_entry_imports_commands() -> None:
    for path in MODULES:
        if room_of(path) not in ("cli", "commands"):
            assert not any(m.startswith("llama_lab.commands") for m in imports(path)), path


def test_files_are_of_a_size_to_be_read() -> None:
    for path in MODULES:
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 390, path


def test_the_repository_speaks_of_itself_alone() -> None:
    root = PACKAGE.parent
    forbidden = re.compile(r"\.\./shared|/work/|/root/|\bTODO\b|\bFIXME\b|issue \d|session's")
    for path in [*MODULES, *root.glob("*.md"), *root.glob("configs/**/*.yaml")]:
        found = forbidden.search(path.read_text(encoding="utf-8"))
        assert not found, f"{path}: {found and found[0]}"
