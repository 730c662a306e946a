"""A process that has imported everything, and answers each request from a child of its own.

Starting anew for each command would take seconds; a device that is installed for good would
disturb what comes after it. A child starts at once, and all that it changes goes with it.

A request is a line of JSON on standard input: ``folder`` to work in, ``rules`` of the pretended
device (null: none is installed), and ``argv`` of ``llama-lab``, or ``call`` and ``with``: a
function, ``module:name``, and its arguments. What the child prints goes to ``out`` and ``err`` in
the folder, what the function returns to ``result``. It is answered by the exit code.
"""

from __future__ import annotations

import functools
import importlib
import io
import json
import os
import sys
import traceback
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import torch
from docstring_parser import attrdoc

from llama_lab.cli import main
from llama_lab.commands import bench, generate, lr_range
from llama_lab.runs import callbacks
from llama_lab.runs import command_line as trainer_cli
from llama_lab.studies import worker
from tests.device import pretended, work

WARM = (bench, generate, lr_range, worker, trainer_cli, work)  # else imported late, each time


def serve() -> None:
    """Answer until standard input ends."""
    remember_documentation()
    # A token takes a device in Python some milliseconds, and each validation writes a sample.
    callbacks.SAMPLE_TOKENS = 10
    torch.set_num_threads(1)
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            perform(request)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def remember_documentation() -> None:
    """Read what documents the flags once: that is half of a tiny command's time."""
    read = attrdoc.AttributeDocstrings.get_attr_docs
    remembered = functools.cache(lambda component: read(attrdoc.AttributeDocstrings(), component))
    attrdoc.AttributeDocstrings.get_attr_docs = lambda self, component: remembered(component)
    with redirect_stdout(io.StringIO()):
        main(["fit", "--help"])


def perform(request: dict[str, Any]) -> None:
    """Carry a request out and end this process."""
    os.chdir(request["folder"])
    for descriptor, name in ((1, "out"), (2, "err")):
        file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, descriptor)
    code = 1
    try:
        if request["rules"] is not None:
            pretended.install(request["rules"])
        code = main(request["argv"]) if "argv" in request else call(request)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def call(request: dict[str, Any]) -> int:
    """Call the function."""
    module, _, name = request["call"].partition(":")
    result = getattr(importlib.import_module(module), name)(**request["with"])
    Path("result").write_text(json.dumps(result), encoding="utf-8")
    return 0


if __name__ == "__main__":
    serve()
