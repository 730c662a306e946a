"""Reference pages, made from the package itself, so that none of them can be out of date.

Every page is made from what the commands use: argument parsers, config dataclasses and the
dataclasses of the JSON files. A command, a config or a JSON name without its place on a page is a
:class:`MissingPage`, and the build ends there.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import json
import re
import textwrap
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

import llama_lab
from llama_lab import cli
from llama_lab.commands.describe_accounts import AccountOptions, account_for
from llama_lab.data.config import DataConfig
from llama_lab.generation.sampling import SamplingConfig
from llama_lab.model.attention import AttentionConfig
from llama_lab.model.config import DecoderConfig
from llama_lab.runs import rules
from llama_lab.runs.command_line import LabCLI
from llama_lab.runs.rate_range import RangeTest
from llama_lab.training.module import LanguageModel

DOCS = Path(__file__).parent
PACKAGE = Path(llama_lab.__file__).parent
SUPPRESSED = "==SUPPRESS=="
LIGHTNINGS_OWN = "As Lightning defines it."
# Texts that the parser's own library gives, in this project's words.
OF_EVERY_PARSER = {
    "config": "A config, by its name or file; later ones override earlier ones.",
    "print_config": "Print every setting as the run would have it, and end.",
}


class MissingPage(Exception):
    """Something that users can set or read has no place in the reference."""


def pages() -> dict[str, str]:
    """The text of every generated page, by its path under ``docs/``.

    Raises:
        MissingPage: A command, a config or a JSON name has no page.
    """
    commands = {name: command_page(name) for name in cli.COMMANDS}
    made = {f"reference/commands/{name}.md": text for name, text in commands.items()}
    made["reference/commands/index.md"] = commands_index()
    made["reference/switches.md"] = switches_page()
    made["reference/json.md"] = json_page()
    for name in ("CHANGELOG", "CONTRIBUTING"):
        made[f"{name.lower()}.md"] = (PACKAGE.parent / f"{name}.md").read_text(encoding="utf-8")
    return made


# ---- words ---------------------------------------------------------------------------------------


def words(text: str | None) -> str:
    """A docstring or a help text as one line of Markdown, with papers as links."""
    line = " ".join((text or "").replace("%%", "%").split())
    line = re.sub(r":\w+:`~?([^`]*)`", r"`\1`", line).replace("``", "`")
    kept = re.split(r"(`[^`]*`)", line)
    plain = [re.sub(r"([|<*])", r"\\\1", part) if i % 2 == 0 else part.replace("|", r"\|")
             for i, part in enumerate(kept)]  # fmt: skip
    return linked("".join(plain))


def linked(text: str) -> str:
    """The text with every bare ``arXiv:NUMBER`` as a link."""
    return re.sub(r"(?<!\[)arXiv:(\d{4}\.\d{4,5})", r"[arXiv:\1](https://arxiv.org/abs/\1)", text)


def shown(value: Any) -> str:
    """A value as it is typed."""
    if value is dataclasses.MISSING or value == SUPPRESSED:
        return ""
    if isinstance(value, str):
        return f"`{value}`" if value else "empty"
    if isinstance(value, float):
        return f"`{value!r}`"
    plain = list(value) if isinstance(value, tuple) else value
    return f"`{json.dumps(plain, default=str)}`"


TYPES = {int: "whole number", float: "number", str: "text", bool: "true, false", Any: "any value",
         type(None): "null"}  # fmt: skip


def kind(hint: Any) -> str:
    """A type in words; a Literal as its choices."""
    if hint in TYPES:
        return TYPES[hint]
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return ", ".join(f"`{choice}`" for choice in inner)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(kind(each) for each in inner)
    if origin in (list, tuple):
        each = [kind(entry) for entry in inner if entry is not ...]
        return f"list of {', '.join(dict.fromkeys(each))}" if each else "list"
    if origin is dict:
        return f"mapping from {kind(inner[0])} to {kind(inner[1])}"
    if dataclasses.is_dataclass(hint):
        return f"[{hint.__name__}](#{hint.__name__.lower()})"
    return f"`{getattr(hint, '__name__', str(hint))}`"


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    header = list(header)
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


# ---- dataclasses ---------------------------------------------------------------------------------


def attribute_docstrings(cls: type) -> dict[str, str]:
    """The docstring under each field of a dataclass, those of its bases among them."""
    found: dict[str, str] = {}
    for owner in reversed(cls.__mro__):
        if not dataclasses.is_dataclass(owner):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, after in zip(body.body, body.body[1:], strict=False):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(after, ast.Expr)
                and isinstance(after.value, ast.Constant)
                and isinstance(after.value.value, str)
            ):
                found[field.target.id] = after.value.value
    return found


def default_of(field: dataclasses.Field[Any]) -> Any:
    """A field's default; MISSING where it must be given."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def is_config(hint: Any) -> bool:
    """Whether a field is a group of settings."""
    return isinstance(hint, type) and dataclasses.is_dataclass(hint)


def config_classes(folder: Path = PACKAGE) -> set[str]:
    """The names of all dataclasses in the package that are called ``...Config``."""
    found: set[str] = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and node.name.endswith("Config"):
                found |= (
                    {node.name} if "dataclass" in ast.unparse(node.decorator_list[:1]) else set()
                )
    return found


# ---- the switches --------------------------------------------------------------------------------


def switches_page() -> str:
    """Every setting: flag, type, default, choices, meaning, and the paper of each variant.

    Raises:
        MissingPage: A config is not part of what a command reads, or a variant has no entry in
            ``papers.yaml``.
    """
    papers = yaml.safe_load((DOCS / "papers.yaml").read_text(encoding="utf-8"))
    documented: list[type] = []
    parts = [SWITCHES_HEAD]
    hints = typing.get_type_hints(LanguageModel.__init__)
    helps = argument_docstrings(LanguageModel.__init__)
    rows = []
    for name, parameter in inspect.signature(LanguageModel.__init__).parameters.items():
        if name in ("self", "seed"):
            continue
        if is_config(hints[name]):
            parts += section(hints[name], f"--model.{name}", papers, documented)
        else:
            rows.append(
                [
                    f"`--model.{name}`",
                    kind(hints[name]),
                    shown(parameter.default),
                    words(helps[name]),
                ]
            )
    loose = ["## The rest of the model's settings\n", table(SWITCH_HEADER, rows)]
    loose += papers_of("--model", papers)
    parts += loose
    parts += section(DataConfig, "--data", papers, documented)
    parts += ["# Settings of single commands\n"]
    parts += section(SamplingConfig, "-", papers, documented, of="generate")
    parts += section(AccountOptions, "-", papers, documented, of="describe")
    parts += section(RangeTest, "-", papers, documented, of="lr-range")
    check_configs(documented)
    if papers:
        raise MissingPage(
            f"docs/papers.yaml names settings that are not there: {', '.join(papers)}"
        )
    return "\n".join(parts)


SWITCH_HEADER = ("flag", "takes", "default", "meaning")
SWITCHES_HEAD = """# The switches

Every setting of a run, with what it takes, its default and its meaning. The meaning is the text
that `--help` prints. `null` as a default means that the variant decides; the meaning says how. A
setting that would do nothing under the values of the others is refused.

The tables below each group name the variants and the papers that they come from. A new kind
touches one file: its class, one line in the file's table, one word in its `Literal`.
"""


def section(
    cls: type, flag: str, papers: dict[str, Any], documented: list[type], *, of: str = ""
) -> Iterator[str]:
    """A config's own settings, then those of the configs in it."""
    documented.append(cls)
    hints, docstrings = typing.get_type_hints(cls), attribute_docstrings(cls)
    inner, rows = [], []
    dotted = "--" if flag == "-" else f"{flag}."
    for field in dataclasses.fields(cls):
        if is_config(hints[field.name]):
            inner.append((hints[field.name], f"{flag}.{field.name}"))
            continue
        if not docstrings.get(field.name):
            raise MissingPage(f"{cls.__name__}.{field.name} has no docstring, so no text in --help")
        rows.append([
            f"`{dotted}{field.name}`", kind(hints[field.name]), shown(default_of(field)),
            words(docstrings[field.name]),
        ])  # fmt: skip
    title = f"`llama-lab {of}`" if of else f"`{flag}`"
    yield f"## {title} {{ #{cls.__name__.lower()} }}\n"
    yield f"{words((cls.__doc__ or '').split('Raises:')[0])} (`{cls.__module__}.{cls.__name__}`)\n"
    yield table(SWITCH_HEADER, rows)
    yield from papers_of(flag, papers)
    for each, its_flag in inner:
        check_choices(each, its_flag, papers)
        yield from section(each, its_flag, papers, documented)


def papers_of(flag: str, papers: dict[str, Any]) -> list[str]:
    """The variants of a group's settings and their sources; takes them out of ``papers``."""
    own = [name for name in papers if name.rpartition(".")[0] == flag]
    rows = []
    for name in own:
        for value, source in papers.pop(name).items():
            choice = str(value) if " " in str(value) else f"`{value}`"
            rows.append([f"`{name}`", choice, linked(str(source))])
    return [table(("flag", "variant", "source"), rows)] if rows else []


def check_choices(cls: type, flag: str, papers: Mapping[str, Any]) -> None:
    """Hold the variants of ``kind`` and ``placement`` against those in ``papers.yaml``."""
    hints = typing.get_type_hints(cls)
    for name in ("kind", "placement"):
        if name not in hints:
            continue
        have = {str(value) for value in papers.get(f"{flag}.{name}", {})}
        want = set(typing.get_args(hints[name]))
        if name == "kind" and cls.__name__ in ("RopeScalingConfig", "AveragingConfig"):
            want -= {"none"}
        if have != want:
            raise MissingPage(
                f"docs/papers.yaml, {flag}.{name}: has {sorted(have)}, and the code {sorted(want)}"
            )


def check_configs(documented: Iterable[type], known: set[str] | None = None) -> None:
    """Every config dataclass of the package is documented, by itself or as another one's base.

    Raises:
        MissingPage: One is not.
    """
    have = {base.__name__ for cls in documented for base in cls.__mro__}
    if missing := (config_classes() if known is None else known) - have:
        raise MissingPage(f"no page has the settings of {', '.join(sorted(missing))}")


def argument_docstrings(function: Any) -> dict[str, str]:
    """The texts under ``Args:`` in a function's docstring."""
    body = inspect.cleandoc(function.__doc__ or "").partition("Args:")[2]
    entries = re.split(r"\n    (\w+): ", "\n" + body.strip("\n"))
    return {name: " ".join(text.split()) for name, text in zip(entries[1::2], entries[2::2])}  # noqa: B905


# ---- commands ------------------------------------------------------------------------------------


class _Found(Exception):
    """Carries a verb's parser out of Lightning's construction."""

    def __init__(self, parser: Any) -> None:
        self.parser = parser


class _ParserAlone(LabCLI):
    """Builds the parser of a verb, and goes no further."""

    def parse_arguments(self, parser: Any, args: Any) -> None:
        raise _Found(parser)


def parser_of(name: str) -> Any:
    """A command's parser."""
    module = cli.COMMANDS[name].module
    if module == cli.VERBS:
        try:
            _ParserAlone(name, [])
        except _Found as found:
            return found.parser
    return importlib.import_module(module).build_parser(f"llama-lab {name}")


def command_page(name: str) -> str:
    """A command's description and every argument of its parser.

    Raises:
        MissingPage: The command has no parser, or an argument has no text.
    """
    try:
        parser = parser_of(name)
    except AttributeError as error:
        raise MissingPage(f"llama-lab {name}: no parser to make a page of ({error})") from error
    groups: dict[str, list[list[str]]] = {}
    positional: list[str] = []
    for action in parser._actions:
        if not is_shown(action):
            continue
        flags = [flag for flag in action.option_strings if not flag.endswith("+")]
        if not flags:
            positional.append(action.dest)
        label = ", ".join(f"`{flag}`" for flag in flags) or f"`{action.dest}`"
        hint = getattr(action, "_typehint", None) or action.type
        takes = kind(hint) if hint and not action.dest.startswith("trainer.") else ""
        if hint and action.dest.startswith("trainer."):
            takes = "" if "." in repr(hint) else kind(hint)
        group = action.dest.rpartition(".")[0] if flags else ""
        given = "required" if action.required or not flags else shown(action.default)
        groups.setdefault(group, []).append([label, takes, given, help_of(name, action)])
    about, json_names, _ = parser.description.partition("JSON output")
    parts = [f"# llama-lab {name}\n", f"{words(about)}\n"]
    call = " ".join(["llama-lab", name, *positional])
    parts.append(f"```\n{call} [flags]\n```\n")
    links = ["[All commands](index.md)", "[The switches](../switches.md)"]
    if json_names:
        links.append(f"[The names of its JSON output](../json.md#{name})")
    parts.append(" · ".join(links) + "\n")
    for group, rows in groups.items():
        parts.append(f"## `--{group}`\n" if group else "## Arguments\n")
        parts.append(table(("argument", "takes", "default", "meaning"), rows))
    return "\n".join(parts)


def is_shown(action: Any) -> bool:
    """Whether an argument is one that ``--help`` shows and a user sets."""
    if action.help == SUPPRESSED or action.dest in ("help", "print_shtab"):
        return False
    # A group as a file, and Lightning's help on classes, stand beside the flags themselves.
    return type(action).__name__ not in ("_ActionConfigLoad", "_ActionHelpClassPath")


def help_of(command: str, action: Any) -> str:
    """The text of ``--help``; Lightning's own texts are Lightning's to keep."""
    owner, _, setting = action.dest.partition(".")
    if owner == "trainer" and setting not in rules.TRAINER_HELP:
        return LIGHTNINGS_OWN
    if action.dest in OF_EVERY_PARSER and command != "ablate":
        return OF_EVERY_PARSER[action.dest]
    if not action.help:
        raise MissingPage(f"llama-lab {command}: {action.dest} has no help text")
    return words(action.help)


def commands_index() -> str:
    """All commands, in a line each, as ``llama-lab --help`` lists them."""
    rows = [[f"[`llama-lab {name}`]({name}.md)", words(command.help)]
            for name, command in cli.COMMANDS.items()]  # fmt: skip
    return f"{COMMANDS_HEAD}\n{table(('command', 'what it does'), rows)}"


COMMANDS_HEAD = """# Commands

Each page lists every argument of a command, as `llama-lab COMMAND --help` does. Trainer settings
that say "As Lightning defines it." are described in Lightning's own documentation of the `Trainer`.

Exit codes are the same for every command: 0, 1 for a run that failed, 2 for a mistake of the
user's, 130 after Ctrl-C, 143 after SIGTERM.
"""

# ---- JSON ----------------------------------------------------------------------------------------


def json_page() -> str:
    """Names, types and meanings of everything that programs read.

    Raises:
        MissingPage: A name is in the code and not in ``json_fields.yaml``, or the other way round.
    """
    from llama_lab.bench.config_speed import BenchResult, DecodingSpeed, StepMs
    from llama_lab.kernels.kernel_report import PartReport
    from llama_lab.kernels.pair_timing import PartResult
    from llama_lab.studies.conclusions import ArmConclusion, ComparisonFamily, Lost
    from llama_lab.studies.results import (
        ArmResult,
        Decoding,
        Point,
        RunResult,
        Score,
        StudyResult,
    )
    from llama_lab.studies.statistics import Comparison

    texts = yaml.safe_load((DOCS / "json_fields.yaml").read_text(encoding="utf-8"))
    study = (StudyResult, ArmResult, RunResult, Point, Score, Decoding)
    verdicts = (ComparisonFamily, ArmConclusion, Comparison, Lost)
    parts = [JSON_HEAD, "## `results.json` of a study { #results }\n"]
    parts += [fields_table(cls, texts) for cls in (*study, *verdicts)]
    parts.append("## `results.json` of a study of parts { #parts }\n")
    parts += [fields_table(cls, texts) for cls in (PartReport, PartResult)]
    receipt = literal_keys("runs/receipts.py", "Receipt", "write")
    parts += ["## `receipt.json` of a run { #receipt }\n", named(texts, "receipt", receipt)]
    parts += ["## `llama-lab describe --format json` { #describe }\n"]
    parts.append(named(texts, "describe", describe_names()))
    parts.append("## `llama-lab bench --format json` { #bench }\n")
    parts += [fields_table(cls, texts) for cls in (BenchResult, StepMs, DecodingSpeed)]
    parts.append("## `llama-lab tokenize --format json` { #tokenize }\n")
    parts.append(named(texts, "tokenize", None))
    parts.append("## `llama-lab runs --format json` { #runs }\n")
    parts.append("A list of runs, each with:\n")
    parts.append(named(texts, "runs", literal_keys("commands/runs.py", None, "find_runs")))
    if texts:
        raise MissingPage(f"docs/json_fields.yaml: nothing has the names of {', '.join(texts)}")
    return "\n".join(parts)


JSON_HEAD = """# Files and JSON for programs

Names that programs may rely on; [what a version number promises](../changelog.md#versions) says
for how long. Losses are in nats per token, times in seconds and sizes in bytes unless a name or a
line says otherwise. A value that was not measured is null.

The columns of `metrics.csv` and `diagnostics.csv` are on the page [What a run leaves](../runs.md).
"""


def fields_table(cls: type, texts: dict[str, Any]) -> str:
    """A dataclass as a table; texts for fields without a docstring are in ``json_fields.yaml``."""
    docstrings = attribute_docstrings(cls) | attribute_list(cls)
    added = texts.pop(cls.__name__, {})
    hints, rows = typing.get_type_hints(cls), []
    for field in dataclasses.fields(cls):
        text = words(docstrings.get(field.name) or added.pop(field.name, None))
        rows.append([f"`{field.name}`", kind(hints[field.name]), text])
        if not text:
            raise MissingPage(f"docs/json_fields.yaml: {cls.__name__}.{field.name} has no text")
    if added:
        raise MissingPage(f"docs/json_fields.yaml: {cls.__name__} has no {', '.join(added)}")
    head = f"### {cls.__name__} {{ #{cls.__name__.lower()} }}\n\n{words(first_of(cls))}\n"
    return f"{head}\n{table(('name', 'type', 'meaning'), rows)}"


def first_of(cls: type) -> str:
    """The first paragraph of a docstring."""
    return inspect.cleandoc(cls.__doc__ or "").split("\n\n")[0]


def attribute_list(cls: type) -> dict[str, str]:
    """The texts under ``Attributes:`` in a class's docstring."""
    body = inspect.cleandoc(cls.__doc__ or "").partition("Attributes:")[2]
    return dict(re.findall(r"^ {4}(\w+): (.*)$", body, re.MULTILINE))


def named(texts: dict[str, Any], what: str, names: set[str] | None) -> str:
    """A table of names and their texts, held against the names that the code has."""
    own = texts.pop(what, {})
    if names is not None and set(own) != names:
        differ = ", ".join(sorted(set(own) ^ names))
        raise MissingPage(f"docs/json_fields.yaml, {what}: differs from the code in {differ}")
    return table(("name", "meaning"), [[f"`{name}`", words(text)] for name, text in own.items()])


def literal_keys(module: str, owner: str | None, function: str) -> set[str]:
    """The keys of the largest dict that a function writes out, read from its source."""
    tree: ast.AST = ast.parse((PACKAGE / module).read_text(encoding="utf-8"))
    for name, node_type in ((owner, ast.ClassDef), (function, ast.FunctionDef)):
        if name is not None:
            tree = next(n for n in ast.walk(tree) if isinstance(n, node_type) and n.name == name)
    dicts = [node for node in ast.walk(tree) if isinstance(node, ast.Dict)]
    largest = max(dicts, key=lambda node: len(node.keys))
    return {str(key.value) for key in largest.keys if isinstance(key, ast.Constant)}


def describe_names() -> set[str]:
    """The names that ``describe`` gives, of groups the dotted ones."""
    config = DecoderConfig(
        dim=8, n_layers=1, context_length=4, vocab_size=8, attention=AttentionConfig(n_heads=2)
    )
    account = account_for("any", config, AccountOptions(device_memory="1GiB"))
    command = importlib.import_module("llama_lab.commands.describe")
    probe = {"causal", "max_difference"}
    assert command.build_parser("llama-lab describe") is not None
    found = {"fault", *probe}
    at = AccountOptions(device_memory="1GiB", devices=2)
    account |= command.devices_for(config, at)
    for name, value in account.items():
        split = isinstance(value, dict) and name != "decoder"
        found |= {f"{name}.{inner}" for inner in value} if split else {name}
    return found
