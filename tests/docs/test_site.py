"""The site: it builds without a warning, and nothing that users can set lacks a page."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from llama_lab import cli
from llama_lab.studies.study import Study

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"docs_{name}", DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    return load("generator")


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="mkdocs-material is not installed: the extra docs")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    # A warning of a strict build is an Abort.
    build(load_config(str(ROOT / "mkdocs.yml"), strict=True, site_dir=str(tmp_path)))
    for command in cli.COMMANDS:
        page = tmp_path / f"reference/commands/{command}.html"
        assert f"llama-lab {command}" in page.read_text()
    assert (tmp_path / "reference/switches.html").is_file()
    # What the pages are made from is not part of them.
    assert not [p for p in tmp_path.rglob("*") if p.suffix in (".py", ".yaml", ".patch")]


def test_a_dead_link_ends_the_build(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="mkdocs-material is not installed: the extra docs")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config
    from mkdocs.exceptions import Abort

    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/index.md").write_text("# Home\n\n[gone](index.md#not-there)\n")
    settings = load_config(
        str(ROOT / "mkdocs.yml"),
        strict=True,
        docs_dir=str(tmp_path / "docs"),
        site_dir=str(tmp_path / "site"),
        nav=[{"Home": "index.md"}],
        hooks=[],
    )
    with pytest.raises(Abort):
        build(settings)


def test_every_command_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text()
    listed = re.findall(r"reference/commands/([\w-]+)\.md", navigation)
    assert listed[0] == "index"
    assert listed[1:] == list(cli.COMMANDS)


def test_a_command_without_a_page_ends_the_build(
    generator: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    added = {"polish": cli.Command("llama_lab.files", "a command without a parser")}
    monkeypatch.setattr(cli, "COMMANDS", added)
    with pytest.raises(generator.MissingPage, match="llama-lab polish: no parser"):
        generator.pages()


def test_a_new_command_that_is_not_in_the_navigation_is_a_warning_of_the_strict_build(
    generator: ModuleType,
) -> None:
    # `omitted_files: warn` makes it one, and `strict` ends the build.
    settings = (ROOT / "mkdocs.yml").read_text()
    assert "omitted_files: warn" in settings
    assert "strict: true" in settings


def test_a_config_without_a_page_ends_the_build(generator: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "new.py").write_text("@dataclass(frozen=True)\nclass GlueConfig:\n    tack: int\n")
    found = generator.config_classes(tmp_path)
    assert found == {"GlueConfig"}
    with pytest.raises(generator.MissingPage, match="GlueConfig"):
        generator.check_configs([], found)


def test_a_variant_without_a_source_ends_the_build(generator: ModuleType) -> None:
    from llama_lab.model.norms import NormConfig

    flag = "--model.decoder.norm"
    with pytest.raises(generator.MissingPage, match=re.escape(f"{flag}.kind")):
        generator.check_choices(NormConfig, flag, {f"{flag}.kind": {"layernorm": "2016"}})


def test_a_json_name_without_a_text_ends_the_build(generator: ModuleType) -> None:
    from llama_lab.bench.config_speed import StepMs

    with pytest.raises(generator.MissingPage, match=r"StepMs\.max"):
        generator.fields_table(StepMs, {"StepMs": {"median": "a", "min": "b"}})
    texts = dict.fromkeys(("median", "min", "max", "least"), "a")
    with pytest.raises(generator.MissingPage, match="least"):
        generator.fields_table(StepMs, {"StepMs": texts})


def test_flags_have_their_default_choices_and_meaning(generator: ModuleType) -> None:
    page = generator.switches_page()
    row = next(line for line in page.splitlines() if "`--model.decoder.norm.placement` |" in line)
    assert "`sandwich`" in row
    assert "| `pre` |" in row
    assert "before a sublayer: LLaMA" in row
    assert "[arXiv:1910.07467](https://arxiv.org/abs/1910.07467)" in page
    assert "--data.batch_size" in page


def test_the_tables_name_every_key_of_a_study() -> None:
    text = (DOCS / "studying.md").read_text()
    for key in Study.__dataclass_fields__:
        assert f"`{key}`" in text, key


def test_pages_speak_of_this_project_alone() -> None:
    forbidden = re.compile(r"\.\./shared|/work/|/root/|\bTODO\b|\bFIXME\b|issue \d|session's")
    for path in [*DOCS.rglob("*"), ROOT / "CITATION.cff", ROOT / "mkdocs.yml"]:
        if path.suffix in (".md", ".yaml", ".py", ".ipynb", ".patch", ".cff", ".yml"):
            found = forbidden.search(path.read_text(encoding="utf-8"))
            assert not found, f"{path}: {found and found[0]}"


def test_the_version_of_the_citation_is_the_package_s() -> None:
    from llama_lab import __version__

    assert f"version: {__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text()
