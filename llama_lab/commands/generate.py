"""``llama-lab generate``: text from a checkpoint."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from llama_lab.configs import find_checkpoint, logs_folder, newest_checkpoint
from llama_lab.errors import UserError
from llama_lab.parsing import Parser

if TYPE_CHECKING:
    from jsonargparse import Namespace

    from llama_lab.generation.completions import CompletionConfig
    from llama_lab.generation.loading import LoadedModel
    from llama_lab.generation.sampling import SamplingConfig

TEMPERATURE = 0.8
FILTERS = ("top_k", "top_p", "min_p", "repetition_penalty")
DESCRIPTION = (
    "Samples from a checkpoint. Standard output is the prompt and its continuation and nothing "
    "else (with --chat true the answer alone), written as it comes, or lines of JSON; what is said "
    "about it goes to standard error."
)


def main(argv: list[str], prog: str) -> int:
    """Run the command; 0 where it succeeds.

    Raises:
        UserError: A flag, a prompt or the checkpoint is refused.
        SettingError: A flag would do nothing.
        RunError: The model's logits are not finite.
    """
    options = build_parser(prog).parse_args(argv)
    _check(options)
    own = _own_sampling(options)
    # torch takes seconds to import, and neither --help nor a misspelt flag needs it.
    from llama_lab.commands.interactive import Loop
    from llama_lab.commands.prompt_files import one_prompt, read_prompts
    from llama_lab.commands.turns import Asker, say
    from llama_lab.commands.written import write_batches, write_one_by_one
    from llama_lab.generation.loading import load_model
    from llama_lab.generation.passages import SharedPassages
    from llama_lab.generation.sampling import SamplingConfig

    sampling = SamplingConfig(**own)
    device = _device(options.accelerator)
    path = _checkpoint(options.ckpt_path)
    model = load_model(path, device)
    asker = Asker(model, path, options)
    config = _completion(model, options, sampling)
    prompts = one_prompt(options.prompt) if options.prompts is None else read_prompts(options)
    asked = None if options.interactive else asker.ask_all(prompts)  # the first one is read now
    shared = SharedPassages(options.share_with)
    if options.sampling == "folder":
        config = dataclasses.replace(config, sampling=_of_folder(model, path))
    fault = f", with --model.fault {model.fault}" if model.fault else ""
    say(f"{path}, step {model.step}, on {device}{fault}")
    if asked is None:
        Loop(asker, config, shared).run()
    elif options.prompts is None and options.format == "text":
        write_one_by_one(model, asked, config, options, shared)
    else:
        write_batches(model, asked, config, options, shared)
    return 0


def build_parser(prog: str) -> Parser:
    """The command's flags."""
    parser = Parser(prog=prog, description=DESCRIPTION)
    parser.add_argument(
        "--ckpt_path",
        type=str | None,
        default=None,
        help="Checkpoint file, run folder, `best` or `last`; null: the newest run's best one "
        "under ./logs.",
    )
    _add_prompts(parser)
    _add_sampling(parser)
    _add_output(parser)
    parser.add_argument(
        "--accelerator",
        type=str,
        default="auto",
        help="Where to compute: cpu, or the kind of accelerator that this machine has, such as "
        "cuda or mps; auto takes the accelerator where there is one.",
    )
    return parser


def _add_prompts(parser: Parser) -> None:
    parser.add_argument(
        "--prompt",
        type=str,
        default=None,
        help="Text to continue; none or an empty one starts a new text.",
    )
    parser.add_argument(
        "--prompts",
        type=str | None,
        default=None,
        help="File of prompts, a line each, or - for standard input. Of a .jsonl file each line is "
        "an object whose `prompt` is continued; the JSON output keeps its other fields.",
    )
    parser.add_argument(
        "--interactive",
        type=bool,
        default=False,
        help="Read prompts from standard input, a line each, and write what follows each one; "
        "with --chat true the lines are the user's turns of one conversation.",
    )
    parser.add_argument(
        "--chat",
        type=bool,
        default=False,
        help="Make the prompt a user's turn by the chat template that the imported model came "
        "with; the model's answer alone is written. Spellings of special tokens are tokens then.",
    )
    parser.add_argument(
        "--special_tokens",
        type=Literal["text", "parse"],
        default="text",
        help="Whether a special token's spelling in the prompt is text or that token.",
    )


def _add_sampling(parser: Parser) -> None:
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


def _add_output(parser: Parser) -> None:
    parser.add_argument(
        "--format",
        type=Literal["text", "json"],
        default="text",
        help="text, or a line of JSON for each text: prompt, text, tokens, the log-probability of "
        "each under the model itself, why the text ended, seed and timing.",
    )
    parser.add_argument(
        "--batch_size",
        type=int | None,
        default=None,
        help="Texts that are generated side by side, with --prompts or --format json; null: 8. "
        "It does not change them.",
    )
    parser.add_argument(
        "--top_tokens",
        type=int,
        default=0,
        help="Show each token with its probability and the N likeliest ones in its place.",
    )
    parser.add_argument(
        "--share_with",
        type=str | None,
        default=None,
        help="Corpus, named as --data.corpus is: tell the longest passage that each text shares "
        "with it word for word.",
    )
    parser.add_argument(
        "--show_special_tokens",
        type=bool,
        default=False,
        help="Write special tokens that are drawn by their names, the one that ends the text too.",
    )


def _check(options: Namespace) -> None:
    if options.max_new_tokens < 1:
        raise UserError(f"--max_new_tokens {options.max_new_tokens}: must be 1 or more")
    if options.num_samples < 1:
        raise UserError(f"--num_samples {options.num_samples}: must be 1 or more")
    if options.top_tokens < 0:
        raise UserError(f"--top_tokens {options.top_tokens}: must be 0 or more")
    if options.batch_size is not None and options.batch_size < 1:
        raise UserError(f"--batch_size {options.batch_size}: must be 1 or more")
    if options.prompts is not None and options.prompt is not None:
        raise UserError(f"--prompt and --prompts {options.prompts}: give one of them")
    if options.interactive:
        _refuse_beside_interactive(options)
    elif options.batch_size is not None and options.prompts is None and options.format == "text":
        raise UserError(
            f"--batch_size {options.batch_size} would do nothing: the texts of one prompt are "
            "written as they come; leave it out, or set --format json"
        )
    if options.chat and not options.interactive and not options.prompt and options.prompts is None:
        raise UserError(
            "--chat true needs a user's turn: give it with --prompt, or set --interactive true"
        )
    if not 0 <= options.seed < 2**63 - options.num_samples:
        raise UserError(f"--seed {options.seed}: must be 0 or more and fit into 63 bits")


def _refuse_beside_interactive(options: Namespace) -> None:
    why = "--interactive true writes one text a line"
    idle = {
        "num_samples": (options.num_samples, 1),
        "prompts": (options.prompts, None),
        "format": (options.format, "text"),
        "batch_size": (options.batch_size, None),
    }
    for name, (value, usual) in idle.items():
        if value != usual:
            raise UserError(
                f"--{name} {value} would do nothing: {why}; leave it out, or set "
                "--interactive false"
            )


def _completion(
    model: LoadedModel, options: Namespace, sampling: SamplingConfig
) -> CompletionConfig:
    """What the flags say of every text."""
    from llama_lab.data.config import unescaped
    from llama_lab.generation.completions import CompletionConfig
    from llama_lab.generation.prompts import token_ids

    stop = [options.stop] if isinstance(options.stop, str) else options.stop or []
    tokens = options.stop_tokens
    tokens = tokens if isinstance(tokens, list) else [] if tokens is None else [tokens]
    return CompletionConfig(
        max_new_tokens=options.max_new_tokens,
        sampling=sampling,
        stop=tuple(unescaped(string) for string in stop),
        stop_ids=token_ids(model.tokenizer, tokens, "--stop_tokens"),
        shows_special=options.show_special_tokens,
        logprobs=options.format == "json" or options.top_tokens > 0,
        n_top=options.top_tokens,
    )


def _own_sampling(options: Namespace) -> dict[str, Any]:
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


def _of_folder(model: LoadedModel, path: Path) -> SamplingConfig:
    from llama_lab.commands.turns import say
    from llama_lab.generation.folder_files import sampling_of_folder

    sampling, unknown = sampling_of_folder(model.folder, path)
    values = dataclasses.asdict(sampling).items()
    said = ", ".join(f"{name} {value}" for name, value in values if value is not None)
    without = f"; without {', '.join(unknown)}, which this version does not know" if unknown else ""
    say(f"sampling of the folder: {said}{without}")
    return sampling


def _checkpoint(spec: str | None) -> Path:
    logs = logs_folder(None)
    return newest_checkpoint(logs, "best") if spec is None else find_checkpoint(spec, logs)


def _device(accelerator: str) -> str:
    from llama_lab.model.devices import best_device

    best = best_device().type
    usable = list(dict.fromkeys((best, "cpu")))
    if accelerator not in ("auto", *usable):
        raise UserError(
            f"--accelerator {accelerator}: there is none on this machine; use {' or '.join(usable)}"
        )
    return best if accelerator == "auto" else accelerator
