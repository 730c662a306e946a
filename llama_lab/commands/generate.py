"""``llama-lab generate``: text from a checkpoint."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Literal

from llama_lab.commands.sampling_flags import (
    add_sampling,
    checkpoint_of,
    completion_of,
    device_of,
    folder_sampling,
    own_sampling,
)
from llama_lab.errors import UserError
from llama_lab.parsing import Parser

if TYPE_CHECKING:
    from jsonargparse import Namespace

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
    own = own_sampling(options)
    # torch takes seconds to import, and neither --help nor a misspelt flag needs it.
    from llama_lab.commands.interactive import Loop
    from llama_lab.commands.prompt_files import one_prompt, read_prompts
    from llama_lab.commands.turns import Asker, say
    from llama_lab.commands.written import write_batches, write_one_by_one
    from llama_lab.generation.loading import load_model
    from llama_lab.generation.passages import SharedPassages
    from llama_lab.generation.sampling import SamplingConfig

    sampling = SamplingConfig(**own)
    device = device_of(options.accelerator)
    path = checkpoint_of(options.ckpt_path)
    model = load_model(path, device)
    asker = Asker(model, path, options)
    config = completion_of(
        model,
        options,
        sampling,
        logprobs=options.format == "json" or options.top_tokens > 0,
        n_top=options.top_tokens,
    )
    file = options.prompts
    prompts = one_prompt(options.prompt) if file is None else read_prompts(file)
    asked = None if options.interactive else asker.ask_all(prompts)  # the first one is read now
    shared = SharedPassages(options.share_with)
    if options.sampling == "folder":
        config = dataclasses.replace(config, sampling=folder_sampling(model, path))
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
    add_sampling(parser)
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
