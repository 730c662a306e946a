"""``llama-lab import``: a checkpoint from a Hugging Face folder or a llama2.c file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from llama_lab.errors import UserError
from llama_lab.parsing import Parser

if TYPE_CHECKING:
    from llama_lab.interop.imported import ImportedModel

DESCRIPTION = (
    "Makes a checkpoint from a Hugging Face folder (config.json, safetensors, tokenizer.json) or "
    "from a llama2.c file. `generate`, `describe` and `validate` read this checkpoint, and "
    "`fit --model.init_from` trains on from its weights. It keeps the folder's chat template, "
    "special tokens and sampling defaults. Without a vocabulary in the folder, the model reads "
    "and writes token ids as numbers with spaces between them."
)


def main(argv: list[str], prog: str) -> int:
    """Run the command; 0 where it succeeds.

    Raises:
        UserError: A flag is refused, or the source cannot be read or expressed.
        RunError: The checkpoint cannot be written.
    """
    options = build_parser(prog).parse_args(argv)
    from llama_lab.interop.folders import refuse_existing
    from llama_lab.interop.imported import write_checkpoint

    output = Path(options.output)
    refuse_existing(output)  # before minutes of reading
    model = _read(Path(options.SOURCE), options.tokenizer)
    write_checkpoint(output, model)
    for note in model.notes:
        print(f"{options.SOURCE}: {note}", file=sys.stderr)
    count = sum(tensor.numel() for tensor in model.weights.values())
    print(f"{output}: {model.origin}, {count:,} parameters", file=sys.stderr)
    return 0


def build_parser(prog: str) -> Parser:
    """The command's flags."""
    parser = Parser(prog=prog, description=DESCRIPTION)
    parser.add_argument("SOURCE", type=str, help="A Hugging Face folder, or a llama2.c file.")
    parser.add_argument("--output", type=str, required=True, help="The checkpoint to write.")
    parser.add_argument(
        "--tokenizer",
        type=str | None,
        default=None,
        help="A llama2.c file's tokenizer.bin; refused for a folder, which holds its own.",
    )
    return parser


def _read(source: Path, tokenizer: str | None) -> ImportedModel:
    if source.is_dir():
        from llama_lab.interop.huggingface import import_folder

        if tokenizer is not None:
            raise UserError(
                f"--tokenizer {tokenizer} would do nothing: the folder {source} holds its own; "
                "set --tokenizer null"
            )
        return import_folder(source)
    if not source.is_file():
        raise UserError(f"{source}: no such folder or file")
    if tokenizer is None:
        raise UserError(
            f"--tokenizer null: {source} is a file, so a llama2.c model, and needs its "
            "tokenizer.bin; for a Hugging Face model give the folder"
        )
    from llama_lab.interop.llama2c import import_file

    return import_file(source, Path(tokenizer))
