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

    from llama_lab.generation.generate import LoadedModel
    from llama_lab.generation.sampling import SamplingConfig

TEMPERATURE = 0.8
DESCRIPTION = (
    "Samples from a checkpoint. Standard output is the prompt and its continuation and nothing "
    "else (with --chat true the answer alone), written as it comes; what is said about it goes to "
    "standard error."
)


def main(argv: list[str], prog: str) -> int:
    """Run the command; 0 where it succeeds.

    Raises:
        UserError: A flag, the prompt or the checkpoint is refused.
        SettingError: A flag would do nothing.
        RunError: The model's logits are not finite.
    """
    options = build_parser(prog).parse_args(argv)
    _check(options)
    own = _own_sampling(options)
    # torch takes seconds to import, and neither --help nor a misspelt flag needs it.
    from llama_lab.commands.interactive import Loop
    from llama_lab.commands.turns import ask_in_chat, ask_plainly, say, say_if_cut, write_turn
    from llama_lab.generation.generate import load_model
    from llama_lab.generation.sampling import SamplingConfig

    sampling = SamplingConfig(**own)
    device = _device(options.accelerator)
    path = _checkpoint(options.ckpt_path)
    model = load_model(path, device)
    if options.interactive:
        asked = None
    elif options.chat:
        asked = ask_in_chat(model, path, [{"role": "user", "content": options.prompt}], options)
    else:
        asked = ask_plainly(model, options.prompt, options)  # refused before a word is said
    if options.sampling == "folder":
        sampling = _of_folder(model, path)
    fault = f", with --model.fault {model.fault}" if model.fault else ""
    say(f"{path}, step {model.step}, on {device}{fault}")
    if asked is None:
        Loop(model, path, sampling, options).run()
        return 0
    say_if_cut(model, asked, "--prompt")
    for number in range(options.num_samples):
        seed = options.seed + number
        if options.num_samples > 1:
            say(f"--- sample {number + 1} of {options.num_samples}, --seed {seed}")
        write_turn(model, asked, sampling, options, seed=seed)
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
    parser.add_argument(
        "--prompt",
        type=str,
        default=None,
        help="Text to continue; none or an empty one starts a new text.",
    )
    parser.add_argument(
        "--interactive",
        type=bool,
        default=False,
        help="Read prompts from standard input, a line each, and write what follows each one; "
        "with --chat true the lines are the user's turns of one conversation.",
    )
    parser.add_argument(
        "--max_new_tokens", type=int, default=300, help="The most tokens to add to the prompt."
    )
    parser.add_argument(
        "--temperature",
        type=float,
        default=TEMPERATURE,
        help="Divides the logits: below 1 is safer, above 1 wilder, 0 takes the likeliest token.",
    )
    parser.add_argument(
        "--top_k",
        type=int | None,
        default=None,
        help="Draw from the k likeliest tokens only; null: from all.",
    )
    parser.add_argument(
        "--top_p",
        type=float | None,
        default=None,
        help="Draw from the smallest set of tokens with this probability; null: from all.",
    )
    parser.add_argument(
        "--sampling",
        type=Literal["flags", "folder"],
        default="flags",
        help="flags: the three above; folder: the defaults in the generation_config.json that an "
        "imported model came with.",
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
    parser.add_argument(
        "--show_special_tokens",
        type=bool,
        default=False,
        help="Write special tokens that are drawn by their names, the one that ends the text too.",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="Seed of the draws, alike on every device; sample or turn i takes SEED + i, from "
        "i = 0.",
    )
    parser.add_argument("--num_samples", type=int, default=1, help="How many texts to write.")
    parser.add_argument(
        "--accelerator",
        type=str,
        default="auto",
        help="Where to compute: cpu, or the kind of accelerator that this machine has, such as "
        "cuda or mps; auto takes the accelerator where there is one.",
    )
    return parser


def _check(options: Namespace) -> None:
    if options.max_new_tokens < 1:
        raise UserError(f"--max_new_tokens {options.max_new_tokens}: must be 1 or more")
    if options.num_samples < 1:
        raise UserError(f"--num_samples {options.num_samples}: must be 1 or more")
    if options.interactive and options.num_samples > 1:
        raise UserError(
            f"--num_samples {options.num_samples} would do nothing: --interactive true writes one "
            "text a line; leave it out, or set --interactive false"
        )
    if options.chat and not options.interactive and not options.prompt:
        raise UserError(
            "--chat true needs a user's turn: give it with --prompt, or set --interactive true"
        )
    if not 0 <= options.seed < 2**63 - options.num_samples:
        raise UserError(f"--seed {options.seed}: must be 0 or more and fit into 63 bits")


def _own_sampling(options: Namespace) -> dict[str, Any]:
    """The sampling of the flags; set beside the folder's they would do nothing."""
    own = {"temperature": options.temperature, "top_k": options.top_k, "top_p": options.top_p}
    for name, usual in {"temperature": TEMPERATURE, "top_k": None, "top_p": None}.items():
        if options.sampling == "folder" and own[name] != usual:
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
