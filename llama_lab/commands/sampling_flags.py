"""Flags of every command that generates: how tokens are chosen, and where."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from llama_lab.configs import find_checkpoint, logs_folder, newest_checkpoint
from llama_lab.errors import UserError
from llama_lab.parsing import Parser

if TYPE_CHECKING:
    from jsonargparse import Namespace

    from llama_lab.generation.completions import CompletionSettings
    from llama_lab.generation.loading import LoadedModel
    from llama_lab.generation.sampling import SamplingConfig

TEMPERATURE = 0.8
FILTERS = ("top_k", "top_p", "min_p", "repetition_penalty")


def add_sampling(parser: Parser) -> None:
    """The flags of sampling, and those that end a text."""
    parser.add_argument(
        "--max_new_tokens", type=int, default=300, help="The most tokens to add to the prompt."
    )
    parser.add_argument(
        "--stop",
        type=list[str] | str | None,
        default=None,
        help="End a text before this string, or before the first of a list of strings; \\n, \\r, "
        "\\t and \\\\ are escapes. No part of it is written.",
    )
    parser.add_argument(
        "--stop_tokens",
        type=list[int | str] | int | str | None,
        default=None,
        help="End a text at this token, or at the first of a list of them, beside the tokenizer's "
        "own: ids, or names of special tokens.",
    )
    parser.add_argument(
        "--temperature",
        type=float,
        default=TEMPERATURE,
        help="Divides the logits: below 1 is safer, above 1 wilder, 0 takes the likeliest token.",
    )
    for name, kind, help in (
        ("top_k", int, "Draw from the k likeliest tokens only; null: from all."),
        (
            "top_p",
            float,
            "Draw from the smallest set of tokens with this probability; null: from all.",
        ),
        (
            "min_p",
            float,
            "Draw from the tokens that have at least this share of the likeliest token's "
            "probability; null: from all.",
        ),
        (
            "repetition_penalty",
            float,
            "Above 1, tokens that the text already has become less likely: their positive logits "
            "are divided by it, negative ones multiplied; null: no penalty.",
        ),
    ):
        parser.add_argument(f"--{name}", type=kind | None, default=None, help=help)
    parser.add_argument(
        "--sampling",
        type=Literal["flags", "folder"],
        default="flags",
        help="flags: the five above; folder: the defaults in the generation_config.json that an "
        "imported model came with.",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="Seed of the draws, alike on every device; text i of all that are written takes "
        "SEED + i, from i = 0.",
    )
    parser.add_argument(
        "--num_samples", type=int, default=1, help="How many texts to write for each prompt."
    )


def completion_of(
    model: LoadedModel,
    options: Namespace,
    sampling: SamplingConfig,
    *,
    logprobs: bool,
    n_top: int = 0,
) -> CompletionSettings:
    """What the flags say of every text."""
    from llama_lab.data.config import unescaped
    from llama_lab.generation.completions import CompletionSettings
    from llama_lab.generation.prompts import token_ids

    stop = [options.stop] if isinstance(options.stop, str) else options.stop or []
    tokens = options.stop_tokens
    tokens = tokens if isinstance(tokens, list) else [] if tokens is None else [tokens]
    return CompletionSettings(
        max_new_tokens=options.max_new_tokens,
        sampling=sampling,
        stop=tuple(unescaped(string) for string in stop),
        stop_ids=token_ids(model.tokenizer, tokens, "--stop_tokens"),
        shows_special=options.show_special_tokens,
        logprobs=logprobs,
        n_top=n_top,
    )


def own_sampling(options: Namespace) -> dict[str, Any]:
    """The sampling of the flags; set beside the folder's they would do nothing."""
    usual = {"temperature": TEMPERATURE, **dict.fromkeys(FILTERS)}
    own = {name: options[name] for name in usual}
    for name in usual:
        if options.sampling == "folder" and own[name] != usual[name]:
            raise UserError(
                f"--{name} {own[name]} would do nothing: --sampling folder takes the folder's; "
                "leave it out, or set --sampling flags"
            )
    return own


def folder_sampling(model: LoadedModel, path: Path) -> SamplingConfig:
    """The sampling that an imported model came with; it is said."""
    from llama_lab.commands.turns import say
    from llama_lab.generation.folder_files import sampling_of_folder

    sampling, unknown = sampling_of_folder(model.folder, path)
    values = dataclasses.asdict(sampling).items()
    said = ", ".join(f"{name} {value}" for name, value in values if value is not None)
    without = f"; without {', '.join(unknown)}, which this version does not know" if unknown else ""
    say(f"sampling of the folder: {said}{without}")
    return sampling


def checkpoint_of(spec: str | None) -> Path:
    """The checkpoint that ``--ckpt_path`` names; null: the newest run's best."""
    logs = logs_folder(None)
    return newest_checkpoint(logs, "best") if spec is None else find_checkpoint(spec, logs)


def device_of(accelerator: str) -> str:
    """The device that ``--accelerator`` names."""
    from llama_lab.model.devices import best_device

    best = best_device().type
    usable = list(dict.fromkeys((best, "cpu")))
    if accelerator not in ("auto", *usable):
        raise UserError(
            f"--accelerator {accelerator}: there is none on this machine; use {' or '.join(usable)}"
        )
    return best if accelerator == "auto" else accelerator
