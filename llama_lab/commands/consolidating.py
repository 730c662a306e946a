"""``llama-lab consolidate``: one file of a sharded checkpoint."""

from __future__ import annotations

from pathlib import Path

from llama_lab.configs import find_checkpoint, logs_folder
from llama_lab.errors import UserError
from llama_lab.parsing import Parser

DESCRIPTION = (
    "Writes a sharded checkpoint, as --trainer.strategy fsdp leaves it, as a single file. Every "
    "command takes that file; a run that goes on from it may be sharded again, or not."
)


def build_parser(prog: str) -> Parser:
    """The command's flags."""
    parser = Parser(prog=prog, description=DESCRIPTION)
    parser.add_argument(
        "CKPT", type=str, help="A sharded checkpoint, a run folder, `best` or `last`."
    )
    parser.add_argument(
        "--output", type=str, required=True, help="The file to write; it must not be there yet."
    )
    return parser


def main(argv: list[str], prog: str) -> int:
    """Run the command; 0 where it succeeds.

    Raises:
        UserError: The checkpoint is not sharded or not whole, or the file is there already.
    """
    options = build_parser(prog).parse_args(argv)
    path = find_checkpoint(options.CKPT, logs_folder(None), flag="CKPT")
    output = Path(options.output)
    if output.exists():
        raise UserError(f"--output {output} is there already: name another file, or remove it")
    import torch

    from llama_lab.checkpoints import SHARDED_KEY, load_file
    from llama_lab.files import write_atomically
    from llama_lab.parallel.sharded_checkpoints import load_whole

    if SHARDED_KEY not in load_file(path, sharded=True, mmap=True):
        raise UserError(f"CKPT {path}: a single file already, which every command takes")
    contents = load_whole(path)
    output.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(output, lambda file: torch.save(contents, file))
    print(f"{output}: {output.stat().st_size:,} bytes, step {contents['global_step']:,}")
    return 0
