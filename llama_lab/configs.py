"""Lookup of configs, runs and checkpoints by name."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from llama_lab.errors import UserError
from llama_lab.names import refuse_path

PACKAGE = Path(__file__).resolve().parent
# A wheel carries the configs inside the package; a checkout keeps them at the top.
SHIPPED = next(
    (
        folder
        for folder in (PACKAGE / "shipped_configs", PACKAGE.parent / "configs")
        if folder.is_dir()
    ),
    PACKAGE / "shipped_configs",
)
DEFAULT_RUN_NAME = "default"


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word closest to a misspelt one, or None where nothing is close."""
    matches = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return matches[0] if matches else None


def find_config(name: str, flag: str = "--config ") -> Path:
    """The file that a config name stands for: a path, then ``./configs``, then the shipped ones.

    Args:
        name: A path or a bare name; ``.yaml`` may be left out.
        flag: What the message puts in front of the name.

    Raises:
        UserError: Nothing is found; the message lists the names that are there.
    """
    for folder in (Path(), Path("configs"), SHIPPED):
        for candidate in (folder / name, folder / f"{name}.yaml"):
            if candidate.is_file():
                return candidate
    known = sorted(
        {
            str(file.relative_to(folder).with_suffix(""))
            for folder in (Path("configs"), SHIPPED)
            for file in folder.rglob("*.yaml")
        }
    )
    guess = nearest(Path(name).stem, known)
    hint = f"; did you mean {guess}?" if guess else ""
    raise UserError(
        f"{flag}{name}: no such file, neither here, nor under ./configs, nor among the "
        f"shipped configs ({', '.join(known)}){hint}"
    )


def find_decoder(name: str, beside: Path | None = None) -> Path:
    """The decoder file that a preset's name stands for.

    Args:
        name: A path, or the name of a file in a folder ``decoders/`` of the configs.
        beside: Folder to look in first: that of the config which names it.

    Raises:
        UserError: Nothing is found; the message lists the presets.
    """
    return _find_in("decoders", name, beside, called="--model.decoder", kind="preset")


def find_study(name: str) -> Path:
    """The file that a study's name stands for: a path, or a file in ``studies/`` of the configs.

    Raises:
        UserError: Nothing is found; the message lists the studies.
    """
    return _find_in("studies", name, None, called="--config", kind="study")


def _find_in(folder: str, name: str, beside: Path | None, *, called: str, kind: str) -> Path:
    """A file as a path, or by its name in a folder of the configs here or of the shipped ones."""
    folders = [Path("configs") / folder, SHIPPED / folder]
    for place in ([beside] if beside else []) + [Path(), *folders]:
        for candidate in (place / name, place / f"{name}.yaml"):
            if candidate.is_file():
                return candidate
    known = sorted({file.stem for place in folders for file in place.glob("*.yaml")})
    guess = nearest(name, known)
    hint = f"; did you mean {guess}?" if guess else ""
    raise UserError(
        f"{called} {name}: no such {kind} or file; there are {', '.join(known) or 'none'}{hint}"
    )


def read_yaml(path: Path) -> dict[str, Any]:
    """The settings in a YAML file.

    Raises:
        UserError: It is not YAML in UTF-8, holds no settings, or one of them twice.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not a YAML file ({error})") from error
    return settings_in(text, str(path))


def settings_in(text: str, source: str) -> dict[str, Any]:
    """The settings in a YAML text.

    Raises:
        UserError: It is not YAML, holds no settings, or one of them twice.
    """
    from llama_lab.yaml_text import parse_yaml  # `--help` comes without it

    content = parse_yaml(text, source)
    if not isinstance(content, dict):
        raise UserError(f"{source}: no settings in it; it must hold `name: value` lines")
    return content


def logs_folder(root: str | Path | None) -> Path:
    """``logs/`` under the trainer's root folder (default: here)."""
    return Path(root or ".") / "logs"


def check_run_name(name: str) -> str:
    """``name`` itself, where it can be a folder's name.

    Raises:
        UserError: It is empty, hidden, or holds a path separator.
    """
    if not re.fullmatch(r"[^\W_][\w.+=@-]{0,99}", name):
        raise UserError(
            f"--name {name!r} cannot name a folder: use letters, digits, '-', '_', '.', "
            "begin with a letter or digit, and stay within 100"
        )
    return name


def new_run_folder(logs: Path, name: str) -> Path:
    """Make and return the first free ``logs/<name>/run_<n>``.

    Raises:
        UserError: The folder cannot be made.
    """
    parent = logs / name
    try:
        parent.mkdir(parents=True, exist_ok=True)
        taken = [int(match[1]) for p in parent.iterdir() if (match := _RUN.fullmatch(p.name))]
        number = max(taken, default=-1) + 1
        while True:
            try:
                (parent / f"run_{number}").mkdir()
                return parent / f"run_{number}"
            except FileExistsError:  # another process took it in this very moment
                number += 1
    except OSError as error:
        raise unwritable(parent, error) from error


def unwritable(folder: Path, error: OSError) -> UserError:
    """What to tell the user when the log folder refuses a file."""
    return UserError(
        f"--trainer.default_root_dir: cannot write to {folder} ({error.strerror or error}); "
        "make it writable or name another folder"
    )


_RUN = re.compile(r"run_(\d+)")


def newest_checkpoint(logs: Path, which: str, name: str | None = None) -> Path:
    """The ``best`` or ``last`` checkpoint of the newest run, of any name or of one.

    The newest run is the one that was started, or resumed, last.

    Raises:
        UserError: There is no run, the newest has no such checkpoint yet, or its path is not UTF-8.
    """
    pattern = f"{name}/run_*" if name else "**/run_*"
    runs = [run for run in logs.glob(pattern) if (run / "checkpoints").is_dir()]
    if not runs:
        where = logs / name if name else logs
        raise UserError(
            f"--ckpt_path {which}: no run under {where}; train one with `llama-lab fit`, or name "
            "a checkpoint file"
        )
    newest = max(runs, key=_started)
    refuse_path(f"--ckpt_path {which}, the newest run", newest)
    found = newest / "checkpoints" / f"{which}.ckpt"
    if not found.is_file():
        raise UserError(
            f"--ckpt_path {which}: the newest run, {newest}, has no {which}.ckpt yet; "
            "name another run's folder or checkpoint"
        )
    return found


def _started(run: Path) -> tuple[int, int]:
    """When a run was started or resumed; a resume writes its settings anew."""
    settings = run / "config.yaml"
    match = _RUN.fullmatch(run.name)
    when = (settings if settings.is_file() else run / "checkpoints").stat().st_mtime_ns
    return when, int(match[1]) if match else -1


def find_checkpoint(
    spec: str, logs: Path, name: str | None = None, *, flag: str = "--ckpt_path"
) -> Path:
    """The checkpoint file that ``flag`` names: ``last``, ``best``, a file or a run folder.

    Raises:
        UserError: It is not there.
    """
    if spec in ("last", "best"):
        return newest_checkpoint(logs, spec, name)
    path = Path(spec)
    if spec and path.is_dir() and (path / "checkpoints").is_dir():
        path = path / "checkpoints" / "last.ckpt"
    if not path.is_file():
        raise UserError(
            f"{flag} {spec}: no such file; give a checkpoint, a run folder, `last` or `best`"
        )
    return path


def run_folder_of(checkpoint: Path) -> Path | None:
    """The run folder that a checkpoint lies in, or None where it was copied elsewhere."""
    folder = checkpoint.absolute().parent
    is_run = folder.name == "checkpoints" and (folder.parent / "receipt.json").is_file()
    return folder.parent if is_run else None
