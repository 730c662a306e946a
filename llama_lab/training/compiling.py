"""Whether a decoder's blocks run compiled, and how.

Blocks are compiled one by one, in place: those that are alike share the code, so that a deep model
starts as fast as a shallow one, and no tensor gets another name. What is compiled serves one mode,
training or scoring; in the other one, and with a cache, the blocks run as they are. So validation
in the middle of a run and sampling, whose lengths vary, compile nothing.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from llama_lab.errors import UserError
from llama_lab.model.config import layer_kinds
from llama_lab.model.decoder import Decoder, DecoderConfig
from llama_lab.model.layer_cache import LayerCache
from llama_lab.model.places import Places

CompileSetting = Literal["auto"] | bool

# CPU seconds on one thread of a busy machine, as `python benchmarks/compile.py` prints them. What
# counts is their ratio: a faster machine divides both.
START_SECONDS = 33.0  # compiling one kind of layer
ENTRY_SECONDS = 3.3e-8  # saved in a layer and step for each of its input's tokens x dim numbers

OPTIONS: dict[str, Any] = {
    # Dropout by torch's own generator, seeded for each microbatch: a resumed run draws the same
    # masks, compiled or not. On the CPU it is the faster one as well.
    "fallback_random": True,
}
CXX = {"darwin": "clang++", "win32": "cl"}


@dataclass(frozen=True)
class Compilation:
    """What was done with a decoder's blocks.

    Attributes:
        compiled: Whether they run compiled.
        because: The reason, in words.
    """

    compiled: bool = False
    because: str = "nothing was trained"


@dataclass(frozen=True)
class Work:
    """What is about to be computed, as far as the decision depends on it.

    Attributes:
        device: Type of the device, such as ``cpu``.
        steps: Optimiser steps of the whole run, those before a resume included: a resumed run
            decides as the run that was not stopped.
        microbatches: Of one process in one step.
        rows: Sequences in a microbatch.
        length: Tokens in a sequence.
    """

    device: str
    steps: int
    microbatches: int
    rows: int
    length: int


def settle(
    setting: CompileSetting,
    decoder: Decoder,
    work: Work,
    *,
    training: bool,
    context: Callable[[], AbstractContextManager[Any]],
) -> Compilation:
    """Compile the blocks of ``decoder``, or leave them, as the setting says.

    They are tried out at once, on a microbatch of zeros: a network that cannot be compiled is
    found out before the first step.

    Args:
        setting: true, false, or auto: see :func:`unrewarding`. Scoring compiles for true alone.
        decoder: In the mode that it will run in.
        work: What it will be used for.
        training: Whether that is training; its backward is then compiled as well.
        context: Surrounds each forward: the precision.

    Raises:
        UserError: The setting is true, and the blocks cannot be compiled here.
    """
    if setting is False:
        return Compilation(False, "--model.compile false")
    if setting == "auto":
        because = unrewarding(decoder.config, work) if training else "scoring is short"
        if because is not None:
            return Compilation(False, because)
    fault = missing_compiler(work.device)
    if fault is None:
        compile_blocks(decoder, training=training)
        fault = try_out(decoder, work, training=training, context=context)
    if fault is None:
        words = "--model.compile true" if setting is True else worth(decoder.config, work)
        return Compilation(True, words)
    restore_blocks(decoder)
    if setting is True:
        raise UserError(f"--model.compile true is impossible here: {fault}; or set it to false")
    return Compilation(False, fault)


def unrewarding(config: DecoderConfig, work: Work) -> str | None:
    """Why compiling would cost more time than it saves, if so; from the settings alone.

    Nothing is timed, so that all processes, and all runs of these settings, decide alike.
    """
    if work.device != "cpu":
        return f"what it saves was measured on the CPU alone, not on {work.device}"
    saved, start = savings(config, work)
    return None if saved > start else worth(config, work)


def worth(config: DecoderConfig, work: Work) -> str:
    """What compiling saves over the run, and costs at its start, in words."""
    if work.device != "cpu":
        return "--model.compile auto"
    saved, start = savings(config, work)
    return f"it saves about {saved:,.0f} s of the run and takes about {start:,.0f} s to start"


def savings(config: DecoderConfig, work: Work) -> tuple[float, float]:
    """Estimated seconds that compiling saves over the run, and that it takes, on one thread."""
    entries = work.rows * work.length * config.dim
    saved = work.steps * work.microbatches * config.n_layers * entries * ENTRY_SECONDS
    return saved, len(set(layer_kinds(config))) * START_SECONDS


def missing_compiler(device: str) -> str | None:
    """Which compiler the CPU's code would need and is not there, with the remedy, if so."""
    name = os.environ.get("CXX") or CXX.get(sys.platform, "g++")
    if device != "cpu" or shutil.which(name):
        return None
    return f"there is no C++ compiler {name}: install one, or name it in the variable CXX"


def compile_blocks(decoder: Decoder, *, training: bool) -> None:
    """Let every block run compiled, in the one mode, from its next call on."""
    # A process compiles a class's code for a handful of shapes and then no more; an earlier run of
    # this process would have used them up.
    torch.compiler.reset()
    # The code that blocks share is not told apart by hooks: a planted fault hangs the same ones on
    # all blocks of a kind.
    for block in decoder.blocks:
        _compile_block(block, training)


def _compile_block(block: nn.Module, training: bool) -> None:
    plain = block.forward
    # `fullgraph`: what cannot be compiled whole is an error, and not run in pieces in silence.
    compiled = torch.compile(plain, dynamic=False, fullgraph=True, options=OPTIONS)

    def forward(x: torch.Tensor, places: Places, cache: LayerCache | None = None) -> torch.Tensor:
        if cache is None and block.training is training:
            return compiled(x, places)
        return plain(x, places, cache)

    block.forward = forward


def restore_blocks(decoder: Decoder) -> None:
    """Undo :func:`compile_blocks`."""
    for block in decoder.blocks:
        vars(block).pop("forward", None)


def try_out(
    decoder: Decoder,
    work: Work,
    *,
    training: bool,
    context: Callable[[], AbstractContextManager[Any]],
) -> str | None:
    """Run a microbatch of zeros, and its backward; the reason in one line where that fails."""
    tokens = torch.zeros(
        (work.rows, work.length), dtype=torch.int64, device=decoder.head_weight.device
    )
    try:
        with context():
            hidden = decoder(tokens)
        if training:
            weights = [p for p in decoder.parameters() if p.requires_grad]
            # Not `backward`: it would leave gradients, and other processes would wait for them.
            torch.autograd.grad(hidden.float().sum(), weights, allow_unused=True)
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # tracer, code generator and C++ compiler fail in many ways
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return f"the blocks cannot be compiled ({(lines or [type(error).__name__])[0]})"
    return None
