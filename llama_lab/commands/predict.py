"""``llama-lab predict``: every prompt of a file, continued on any number of devices."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from llama_lab.commands.prompt_files import read_prompts
from llama_lab.commands.sampling_flags import (
    add_sampling,
    checkpoint_of,
    completion_of,
    folder_sampling,
    own_sampling,
)
from llama_lab.errors import UserError
from llama_lab.parsing import Parser

if TYPE_CHECKING:
    from jsonargparse import Namespace

    from llama_lab.generation.completions import CompletionSettings

DESCRIPTION = (
    "Continues every prompt of a file and writes a line of JSON for each, in the file's order. A "
    "call that was ended goes on where it stopped when it is made again."
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
    from llama_lab.commands.turns import Asker, say
    from llama_lab.commands.written import completion_record
    from llama_lab.generation.loading import load_model
    from llama_lab.generation.sampling import SamplingConfig
    from llama_lab.runs.prediction import Parts, Predictor, predict_all, predicting_trainer

    sampling = SamplingConfig(**own)
    path = checkpoint_of(options.ckpt_path)
    model = load_model(path)
    if options.sampling == "folder":
        sampling = folder_sampling(model, path)
    config = completion_of(model, options, sampling, logprobs=True)
    file = options["data.prompts"]
    parts = Parts(Path(options.output), _settings(path, file, config, options))
    asker = Asker(model, path, options)
    trainer = predicting_trainer(
        options["trainer.accelerator"], options["trainer.devices"], options["trainer.num_nodes"]
    )
    batch_size = options["data.batch_size"]
    predictor = Predictor(
        model,
        config,
        parts,
        ask=lambda prompt: asker.ask_once(prompt)[:2],
        record=lambda prompt, text: {**prompt.fields, **completion_record(text, model)},
        seed=options.seed,
        batch_size=batch_size,
    )
    next(iter(prompts_of(file)))  # a file that is not there is refused before anything is made
    parts.begin()
    done = parts.done()
    if trainer.is_global_zero:
        so_far = f", {sum(done):,} texts are there already" if any(done) else ""
        say(f"{path}, step {model.step}, {trainer.world_size} process(es){so_far}")
    predict_all(trainer, predictor, lambda: prompts_of(file), done)
    if trainer.is_global_zero:
        say(f"wrote {options.output}")
    return 0


def prompts_of(file: str) -> Any:
    """The prompts, from the file's beginning."""
    return read_prompts(file, "--data.prompts")


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
        "--data.prompts",
        type=str,
        required=True,
        help="File of prompts, a line each. Of a .jsonl file each line is an object whose `prompt` "
        "is continued; the output keeps its other fields.",
    )
    parser.add_argument("--output", type=str, required=True, help="File of JSON lines to write.")
    parser.add_argument(
        "--data.batch_size",
        type=int,
        default=8,
        help="Texts that each process generates side by side. It does not change them.",
    )
    parser.add_argument(
        "--chat",
        type=bool,
        default=False,
        help="Make each prompt a user's turn by the chat template that the imported model came "
        "with.",
    )
    parser.add_argument(
        "--special_tokens",
        type=Literal["text", "parse"],
        default="text",
        help="Whether a special token's spelling in a prompt is text or that token.",
    )
    parser.add_argument(
        "--show_special_tokens",
        type=bool,
        default=False,
        help="Write special tokens that are drawn by their names, the one that ends the text too.",
    )
    add_sampling(parser)
    parser.add_argument(
        "--trainer.accelerator",
        type=str,
        default="auto",
        help="Where to compute: auto, cpu, cuda or mps.",
    )
    parser.add_argument(
        "--trainer.devices",
        type=int | str,
        default="auto",
        help="How many devices, or auto for all of them (one process on a CPU).",
    )
    parser.add_argument("--trainer.num_nodes", type=int, default=1, help="How many machines.")
    return parser


def _check(options: Namespace) -> None:
    file = options["data.prompts"]
    if file == "-":
        raise UserError(
            "--data.prompts -: standard input cannot be read again by a call that goes on; write "
            "the prompts into a file, or use llama-lab generate --prompts -"
        )
    if options["data.batch_size"] < 1:
        raise UserError(f"--data.batch_size {options['data.batch_size']}: must be 1 or more")
    if options.num_samples != 1:
        raise UserError(
            f"--num_samples {options.num_samples}: predict writes one text a prompt; write a "
            "prompt into several lines, or use llama-lab generate"
        )
    if not 0 <= options.seed < 2**63:
        raise UserError(f"--seed {options.seed}: must be 0 or more and fit into 63 bits")


def _settings(
    path: Path, file: str, config: CompletionSettings, options: Namespace
) -> dict[str, Any]:
    """What decides about the texts, by the flags' names."""
    about = {}
    for flag, name in (("--ckpt_path", str(path)), ("--data.prompts", file)):
        try:
            stat = Path(name).stat()
        except OSError as error:
            raise UserError(f"{flag} {name}: {error.strerror}; give a file") from error
        about[flag] = f"{Path(name).absolute()} ({stat.st_size} bytes of {stat.st_mtime_ns})"
    values = dataclasses.asdict(config)
    return {
        **about,
        **{f"--{name}": value for name, value in values.pop("sampling").items()},
        **{f"--{name}": options[name] for name in ("stop", "stop_tokens", "max_new_tokens")},
        **{f"--{name}": options[name] for name in ("seed", "chat", "special_tokens")},
        "--show_special_tokens": config.shows_special,
    }
