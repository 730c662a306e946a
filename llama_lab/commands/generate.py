"""``llama-lab generate``: text from a checkpoint."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from llama_lab.configs import find_checkpoint, logs_folder, newest_checkpoint
from llama_lab.errors import UserError
from llama_lab.parsing import Parser

if TYPE_CHECKING:
    from jsonargparse import Namespace

    from llama_lab.generation.generate import LoadedModel
    from llama_lab.generation.sampling import SamplingConfig

DESCRIPTION = (
    "Samples from a checkpoint. Standard output is the prompt and its continuation and nothing "
    "else, written as it comes; what is said about it goes to standard error."
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
    prompt = _as_text(options.prompt)
    # torch takes seconds to import, and neither --help nor a misspelt flag needs it.
    from llama_lab.generation.generate import load_model, prompt_ids
    from llama_lab.generation.sampling import SamplingConfig

    sampling = SamplingConfig(
        temperature=options.temperature, top_k=options.top_k, top_p=options.top_p
    )
    device = _device(options.accelerator)
    path = _checkpoint(options.ckpt_path)
    model = load_model(path, device)
    ids, _ = prompt_ids(model.tokenizer, prompt)  # refused before a word is said
    fault = f", with --model.fault {model.fault}" if model.fault else ""
    _say(f"{path}, step {model.step}, on {device}{fault}")
    context = model.decoder.config.context_length
    if len(ids) > context:
        _say(
            f"--prompt has {len(ids):,} tokens and the model's context {context:,}: it sees the "
            f"last {context:,} only"
        )
    for number in range(options.num_samples):
        seed = options.seed + number
        if options.num_samples > 1:
            _say(f"--- sample {number + 1} of {options.num_samples}, --seed {seed}")
        _write_sample(model, prompt, sampling, options.max_new_tokens, seed=seed)
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
        "--max_new_tokens", type=int, default=300, help="The most tokens to add to the prompt."
    )
    parser.add_argument(
        "--temperature",
        type=float,
        default=0.8,
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
        "--seed",
        type=int,
        default=0,
        help="Seed of the draws, alike on every device; sample i takes SEED + i, from i = 0.",
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
    if not 0 <= options.seed < 2**63 - options.num_samples:
        raise UserError(f"--seed {options.seed}: must be 0 or more and fit into 63 bits")


def _as_text(prompt: str | None) -> str | None:
    """The prompt as the UTF-8 text that its bytes are.

    In a locale that is not UTF-8 Python hands undecodable bytes over as lone surrogates.
    """
    if prompt is None:
        return None
    try:
        return prompt.encode("utf-8", "surrogateescape").decode("utf-8")
    except UnicodeError as error:
        raise UserError(
            f"--prompt {prompt.encode('ascii', 'backslashreplace').decode()}: not UTF-8 text; "
            "give it in UTF-8"
        ) from error


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


def _write_sample(
    model: LoadedModel,
    prompt: str | None,
    sampling: SamplingConfig,
    max_new_tokens: int,
    *,
    seed: int,
) -> None:
    from llama_lab.generation.generate import stream_text

    started, parts = time.perf_counter(), 0
    for text in stream_text(
        model.decoder,
        model.tokenizer,
        prompt=prompt,
        max_new_tokens=max_new_tokens,
        sampling=sampling,
        seed=seed,
    ):
        sys.stdout.write(text)
        sys.stdout.flush()
        parts += 1
    sys.stdout.write("\n")
    sys.stdout.flush()
    # A time in a log would make two equal calls differ, so it is for people at a terminal only.
    if sys.stderr.isatty():
        tokens, seconds = parts - 2, time.perf_counter() - started  # prompt and rest are no tokens
        _say(f"{tokens} tokens, {tokens / seconds:.0f} tokens/s")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
