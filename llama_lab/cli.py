"""The entry: names every command, imports the one that is called, and ends every run properly."""

from __future__ import annotations

import errno
import importlib
import os
import signal
import sys
from collections.abc import Callable
from typing import NamedTuple

from llama_lab import __version__
from llama_lab.commands.output import discard_stdout, one_line, write_utf8
from llama_lab.configs import nearest
from llama_lab.errors import RunError, Stopped, UserError
from llama_lab.model.settings import SettingError
from llama_lab.names import (
    refuse_arguments,
    refuse_variables,
    refuse_working_directory,
)
from llama_lab.ranks import leave_word
from llama_lab.signals import signals_end_the_command


class Command(NamedTuple):
    """Where a command lives, and its line in ``--help``."""

    module: str
    help: str


VERBS = "llama_lab.runs.command_line"
COMMANDS: dict[str, Command] = {
    "fit": Command(VERBS, "train a decoder on a text, or resume a run"),
    "validate": Command(VERBS, "score the held-out part of a text with a checkpoint"),
    "test": Command(VERBS, "the same, reported under the name test"),
    "tokenize": Command("llama_lab.commands.tokenize", "prepare a corpus and say what is in it"),
    "predict": Command("llama_lab.commands.predict", "continue every prompt of a file"),
    "generate": Command("llama_lab.commands.generate", "sample text from a checkpoint"),
    "describe": Command("llama_lab.commands.describe", "count parameters, FLOPs and memory"),
    "bench": Command("llama_lab.commands.bench", "time training and decoding on this machine"),
    "lr-range": Command("llama_lab.commands.lr_range", "find learning rates that suit a config"),
    "ablate": Command("llama_lab.commands.ablate", "run a controlled study and report on it"),
    "runs": Command("llama_lab.commands.runs", "list the runs under logs/"),
    "import": Command("llama_lab.commands.importing", "make a checkpoint of a Hugging Face folder"),
    "export": Command("llama_lab.commands.exporting", "write a checkpoint for Hugging Face"),
    "consolidate": Command(
        "llama_lab.commands.consolidating", "make a single file of a sharded checkpoint"
    ),
}

OK, FAILED, USER_ERROR = 0, 1, 2
# Variables that are settings begin so; Lightning takes those of the second kind for its own.
SETTINGS = ("LLAMA_LAB_", "PL_")


def main(argv: list[str]) -> int:
    """Run ``llama-lab`` with these arguments and return its exit code."""
    write_utf8()
    try:
        with signals_end_the_command():
            refuse_arguments(argv)
            refuse_variables(os.environ, SETTINGS)
            refuse_working_directory()
            return dispatch(argv)
    except (UserError, SettingError) as error:
        return _end(error, USER_ERROR)
    except RunError as error:
        return _end(error, FAILED)
    except Stopped as stop:
        return _end(stop, 128 + stop.signum)
    except SystemExit as end:  # --help and --print_config
        return int(end.code or OK)
    except KeyboardInterrupt as stop:
        return _end(stop, 128 + signal.SIGINT)
    except BrokenPipeError:
        discard_stdout()
        return OK
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            name = str(error.filename)[:80]
            return _end(UserError(f"{name}…: a longer name than this system has"), USER_ERROR)
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        discard_stdout()
        return _end(
            RunError(f"cannot write {error.filename or 'output'}: the disk is full"), FAILED
        )
    except (MemoryError, RuntimeError) as error:
        if "out of memory" not in str(error).lower() and not isinstance(error, MemoryError):
            raise
        first = (str(error).splitlines() or ["no memory is left"])[0]
        message = f"{first}; lower --data.batch_size or raise --trainer.accumulate_grad_batches"
        return _end(RunError(message), FAILED)


def dispatch(argv: list[str]) -> int:
    """Call the command that the first argument names."""
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(usage())
        return OK
    name, *rest = argv
    if name == "--version":
        print(f"llama-lab {__version__}")
        return OK
    if name not in COMMANDS:
        guess = nearest(name, COMMANDS)
        hint = f"did you mean {guess}?" if guess else f"there are {', '.join(COMMANDS)}"
        raise UserError(f"{name}: no such command; {hint}")
    # Lightning takes 3 s to import: only who needs it pays.
    entry: Callable[..., int] = importlib.import_module(COMMANDS[name].module).main
    return entry(name, rest) if COMMANDS[name].module == VERBS else entry(rest, f"llama-lab {name}")


def usage() -> str:
    """What ``llama-lab --help`` prints."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {command.help}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            "usage: llama-lab [-h] [--version] COMMAND ...",
            "",
            "Train, resume, sample and compare small decoder-only language models, part by part.",
            "",
            "commands:",
            *lines,
            "",
            "`llama-lab COMMAND --help` lists every setting of a command.",
            "first steps: llama-lab fit --config llama.yaml; llama-lab generate",
        ]
    )


def _end(error: BaseException, code: int) -> int:
    """Report how a command ended, in one line; with LLAMA_LAB_DEBUG=1 as a traceback."""
    if os.environ.get("LLAMA_LAB_DEBUG") == "1":
        raise error
    text = one_line(error) or "interrupted"
    if leave_word(text, code):
        return code  # the first process tells it
    label = "" if isinstance(error, Stopped | KeyboardInterrupt) else "error: "
    print(f"llama-lab: {label}{text}", file=sys.stderr, flush=True)
    return code
