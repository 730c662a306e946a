"""``llama-lab export``: write a Hugging Face folder from a checkpoint."""

from __future__ import annotations

import sys
from pathlib import Path

from llama_lab.checkpoints import read_record
from llama_lab.configs import find_checkpoint, logs_folder
from llama_lab.parsing import Parser

DESCRIPTION = (
    "Writes a checkpoint as a Hugging Face folder: config.json, generation_config.json, float32 "
    "safetensors, tokenizer.json and tokenizer_config.json; for an imported model also the other "
    "files of its folder. The model's parts decide its Hugging Face family; if no family has one "
    "of the parts, the export is refused and names that part."
)


def main(argv: list[str], prog: str) -> int:
    """Run the command; 0 where it succeeds.

    Raises:
        UserError: A flag or the checkpoint is refused, or no family has the model's parts.
        RunError: The folder cannot be written.
    """
    options = build_parser(prog).parse_args(argv)
    path = find_checkpoint(options.CKPT, logs_folder(None), flag="CKPT")
    from llama_lab.interop.folders import refuse_existing
    from llama_lab.interop.huggingface import export_checkpoint

    output = Path(options.output)
    refuse_existing(output)
    family = export_checkpoint(read_record(path), output)
    print(f"{output}: {family}, from {path}", file=sys.stderr)
    return 0


def build_parser(prog: str) -> Parser:
    """The command's flags."""
    parser = Parser(prog=prog, description=DESCRIPTION)
    parser.add_argument("CKPT", type=str, help="A checkpoint file, a run folder, `best` or `last`.")
    parser.add_argument("--output", type=str, required=True, help="The folder to write.")
    return parser
