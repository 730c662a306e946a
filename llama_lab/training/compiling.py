"""Compilation of a decoder: the decision, and the compiled regions.

Usually in regions: every block, and what comes after the last one up to the loss. Blocks that are
alike share the code, so that a deep model starts as fast as a shallow one. Compiled whole, from
tokens to loss, a network runs faster, and takes longer to start, the longer the deeper it is.
Either way code is put in place of methods, and no tensor gets another name. It serves one mode,
training or scoring; in the other one, and with a cache, everything runs as it is. So validation in
the middle of a run and sampling, whose lengths vary, compile nothing.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from llama_lab.errors import UserError
from llama_lab.model.config import layer_kinds
from llama_lab.model.decoder import Decoder, DecoderConfig
from llama_lab.model.loss import LOGITS_BUDGET

CompileSetting = Literal["auto", "whole"] | bool

# CPU seconds on one thread of a busy machine, as `python benchmarks/compile.py` prints them. What
# counts is their ratio: a faster machine divides both.
# On CUDA they are from peers' published figures, and not measured yet: nanoGPT's README gives 250
# ms without and 135 ms with compiling (for GPT-2's 12 layers of 768 and, it is assumed here, the
# 12 x 1,024 tokens of its bench.py), and its train.py about a minute for compiling.
START_SECONDS = {"cpu": 33.0, "cuda": 60.0}  # compiling one kind of layer
# Saved in a layer and step for each of its input's tokens x dim numbers.
ENTRY_SECONDS = {"cpu": 3.3e-8, "cuda": (0.250 - 0.135) / (12 * 12 * 1024 * 768)}

OPTIONS: dict[str, Any] = {
    # Dropout by torch's own generator, seeded for each microbatch: a resumed run draws the same
    # masks, compiled or not. On the CPU it is the faster one as well.
    "fallback_random": True,
}
CXX = {"darwin": "clang++", "win32": "cl"}


@dataclass(frozen=True)
class Compilation:
    """What was done with a decoder.

    Attributes:
        compiled: Whether it runs compiled.
        because: The reason, in words.
        whole: Whether that is in one piece.
    """

    compiled: bool = False
    because: str = "nothing was trained"
    whole: bool = False

    @property
    def words(self) -> str:
        """What was done."""
        if self.whole:
            return "network compiled whole"
        return f"blocks {'compiled' if self.compiled else 'not compiled'}"


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


def decide_compilation(
    setting: CompileSetting,
    decoder: Decoder,
    work: Work,
    *,
    training: bool,
    score: Callable[[Tensor, Tensor], Tensor],
) -> Compilation:
    """Compile ``decoder``, or leave it, as the setting says.

    The code is tried out at once, on a microbatch of zeros: a network that cannot be compiled is
    found out before the first step.

    Args:
        setting: true (in regions), whole, false, or auto (true or false, by :func:`unrewarding`;
            false for scoring).
        decoder: In the mode that it will run in.
        work: What it will be used for.
        training: Whether that is training; its backward is then compiled as well.
        score: The loss of tokens and targets as the work will ask for it, precision included.

    Raises:
        UserError: The setting is true or whole, and the network cannot be compiled here.
    """
    if setting is False:
        return Compilation(False, "--model.compile false")
    if setting == "auto":
        because = unrewarding(decoder.config, work) if training else "scoring is short"
        if because is not None:
            return Compilation(False, because)
    fault, whole = missing_compiler(work.device), setting == "whole"
    if fault is None:
        if whole:
            compile_whole(decoder, training=training, with_loss=holds_logits(decoder, work))
        else:
            compile_regions(decoder, training=training, with_loss=holds_logits(decoder, work))
        fault = try_out(decoder, work, training=training, score=score)
    flag = f"--model.compile {str(setting).lower()}"
    if fault is None:
        words = worth(decoder.config, work) if setting == "auto" else flag
        return Compilation(True, words, whole)
    restore(decoder)
    if setting != "auto":
        raise UserError(f"{flag} is impossible here: {fault}; or set it to false")
    return Compilation(False, fault)


def not_compiled(setting: CompileSetting) -> Compilation:
    """Leave a decoder whose weights are divided between processes as it is.

    Raises:
        UserError: The setting is true or whole.
    """
    if setting not in ("auto", False):
        raise UserError(
            f"--model.compile {str(setting).lower()} with --trainer.strategy fsdp: blocks that "
            "gather their weights run as they are; set it to auto or false"
        )
    return Compilation(False, "weights are divided between processes")


def unrewarding(config: DecoderConfig, work: Work) -> str | None:
    """Why compiling would cost more time than it saves, if so; from the settings alone.

    Nothing is timed, so that all processes, and all runs of these settings, decide alike.
    """
    if work.device not in START_SECONDS:
        return f"what it saves is known of CPUs and CUDA alone, not of {work.device}"
    saved, start = savings(config, work)
    return None if saved > start else worth(config, work)


def worth(config: DecoderConfig, work: Work) -> str:
    """What compiling saves over the run, and costs at its start, in words."""
    saved, start = savings(config, work)
    known = "" if work.device == "cpu" else " (by peers' published figures)"
    return (
        f"it saves about {saved:,.0f} s of the run and takes about {start:,.0f} s to start{known}"
    )


def savings(config: DecoderConfig, work: Work) -> tuple[float, float]:
    """Estimated seconds that compiling saves over the run, and that it takes.

    On one thread of a CPU, or on one CUDA device.
    """
    entries = work.rows * work.length * config.dim
    saved = work.steps * work.microbatches * config.n_layers * entries * ENTRY_SECONDS[work.device]
    return saved, len(set(layer_kinds(config))) * START_SECONDS[work.device]


def missing_compiler(device: str) -> str | None:
    """Which compiler the CPU's code would need and is not there, with the remedy, if so."""
    name = os.environ.get("CXX") or CXX.get(sys.platform, "g++")
    if device != "cpu" or shutil.which(name):
        return None
    return f"there is no C++ compiler {name}: install one, or name it in the variable CXX"


def holds_logits(decoder: Decoder, work: Work) -> bool:
    """Whether the loss has all logits at once; made in chunks, it stays as it is."""
    return work.rows * work.length * decoder.head_weight.size(0) <= LOGITS_BUDGET


def compile_regions(decoder: Decoder, *, training: bool, with_loss: bool = True) -> None:
    """Let every block, and final norm, head and loss as one, run compiled from the next call on."""
    # A process compiles a class's code for a handful of shapes and then no more; an earlier run of
    # this process would have used them up.
    torch.compiler.reset()
    # The code that blocks share is not told apart by hooks: a planted fault hangs the same ones on
    # all blocks of a kind.
    for block in decoder.blocks:
        _compile(block, "forward", training)
    if with_loss:
        _compile(decoder, "finish", training)


def compile_whole(decoder: Decoder, *, training: bool, with_loss: bool = True) -> None:
    """Let all from the tokens to the loss, or to the last layer, run compiled as one."""
    torch.compiler.reset()
    _compile(decoder, "score" if with_loss else "read", training)


def _compile(module: nn.Module, method: str, training: bool) -> None:
    plain = getattr(module, method)
    # `fullgraph`: what cannot be compiled whole is an error, and not run in pieces in silence.
    compiled = torch.compile(plain, dynamic=False, fullgraph=True, options=OPTIONS)

    def call(*inputs: Any, cache: Any = None, **settings: Any) -> Any:
        if cache is not None:
            return plain(*inputs, cache=cache, **settings)
        return (compiled if module.training is training else plain)(*inputs, **settings)

    setattr(module, method, call)


def restore(decoder: Decoder) -> None:
    """Undo :func:`compile_regions` or :func:`compile_whole`."""
    for module in (decoder, *decoder.blocks):
        for method in ("forward", "read", "score", "finish"):
            vars(module).pop(method, None)


def try_out(
    decoder: Decoder,
    work: Work,
    *,
    training: bool,
    score: Callable[[Tensor, Tensor], Tensor],
) -> str | None:
    """Score a microbatch of zeros, and its backward; the reason in one line where that fails."""
    tokens = torch.zeros(
        (work.rows, work.length), dtype=torch.int64, device=decoder.head_weight.device
    )
    try:
        loss = score(tokens, tokens)
        if training:
            weights = [p for p in decoder.parameters() if p.requires_grad]
            # Not `backward`: it would leave gradients, and other processes would wait for them.
            torch.autograd.grad(loss, weights, allow_unused=True)
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # tracer, code generator and C++ compiler fail in many ways
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return f"the network cannot be compiled ({(lines or [type(error).__name__])[0]})"
    return None
