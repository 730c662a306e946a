"""How fast text becomes ids: BPE beside the library's own ``encode_batch``, characters in MB/s.

    python benchmarks/tokenizing.py [--text FILE] [--mb 64] [--turns 7] [--memory GB] [--dna]

In turns in one process, all cores: medians of wall time and of the turns' ratios. BPE of 4,096 ids
encodes the text in pieces of a million characters, as a corpus is encoded, against one call of
``encode_batch`` for the same pieces. Bars: 0.9 of its speed; 50 MB/s of characters; with
``--memory``, preparing a store of a text of so many GB (made on the spot) takes less than 1.5 GB.
``--dna`` times a text without blanks alone: 8 MB take at most 10 times as long as 1 MB.
"""

from __future__ import annotations

import argparse
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from llama_lab.data.corpus.cutting import last_cut
from llama_lab.data.tokenizers.kinds import BpeTokenizer, CharTokenizer, train_tokenizer

PIECE = 1 << 20
CORPUS = Path("data/tinyshakespeare.txt")


def seconds(work: Callable[[], Any]) -> float:
    """Of wall time."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def bpe(text: str, turns: int) -> None:
    """Ours beside the library's."""
    tokenizer = train_tokenizer("bpe", train_text=text[: 4 * PIECE], whole_text="", vocab_size=4096)
    assert isinstance(tokenizer, BpeTokenizer)
    assert tokenizer.safe_cut is not None
    pieces, rest = [], text
    while rest:
        cut = last_cut(rest[:PIECE], tokenizer.safe_cut) if len(rest) > PIECE else len(rest)
        pieces.append(rest[:cut])
        rest = rest[cut:]
    ways: dict[str, Callable[[], Any]] = {
        "library": lambda: tokenizer.backend.encode_batch(pieces, add_special_tokens=False),
        "ours": lambda: tokenizer.encode_batch(pieces),
    }
    ids = [encoding.ids for encoding in ways["library"]()]
    assert [mine.tolist() for mine in ways["ours"]()] == ids
    del ids
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(turns):
        for name in sorted(ways, reverse=bool(turn % 2)):
            times[name].append(seconds(ways[name]))
    size = len(text.encode()) / 1e6
    for name, values in times.items():
        print(f"bpe   {name:8} {size / statistics.median(values):7.1f} MB/s")
    ratios = [theirs / mine for theirs, mine in zip(times["library"], times["ours"], strict=True)]
    ratio = statistics.median(ratios)
    print(
        f"bpe   ours is {ratio:.2f} times as fast ({min(ratios):.2f} to {max(ratios):.2f}); "
        f"bar 0.9: {'held' if ratio >= 0.9 else 'missed'}"
    )


def characters(text: str, turns: int) -> None:
    """The char tokenizer alone."""
    tokenizer = CharTokenizer("".join(sorted(set(text))))
    pieces = [text[at : at + PIECE] for at in range(0, len(text), PIECE)]
    rate = (
        len(text.encode())
        / 1e6
        / statistics.median(seconds(lambda: tokenizer.encode_batch(pieces)) for _ in range(turns))
    )
    print(f"char  {rate:.0f} MB/s; bar 50: {'held' if rate >= 50 else 'missed'}")


def prepared(text: str, gigabytes: float, kind: str) -> None:
    """A store of a large text, made by ``llama-lab tokenize`` in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path, data = Path(folder, "large.txt"), text.encode()
        with open(path, "wb") as file:
            while file.tell() < gigabytes * 1e9:
                file.write(data)
        size = path.stat().st_size / 1e6
        command = [sys.executable, "-m", "llama_lab", "tokenize", "--corpus", str(path)]
        command += ["--cache_dir", str(Path(folder, "cache")), "--tokenizer", kind]
        took = seconds(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL))
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e9
        print(
            f"store {kind:4} of {size:,.0f} MB: {size / took:.1f} MB/s, peak memory {peak:.2f} GB; "
            f"bar 1.5 GB: {'held' if peak < 1.5 else 'missed'}"
        )


def without_blanks() -> None:
    """Stores of DNA, which is one word from its beginning to its end."""
    times: dict[int, float] = {}
    for megabytes in (1, 2, 8):
        letters = "".join(random.Random(0).choices("ACGT", k=megabytes * 1_000_000))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "dna.txt")
            path.write_text(letters, encoding="utf-8")
            command = [sys.executable, "-m", "llama_lab", "tokenize", "--corpus", str(path)]
            command += ["--cache_dir", str(Path(folder, "cache")), "--tokenizer", "bpe"]
            command += ["--vocab_size", "1024"]
            call = partial(subprocess.run, command, check=True, stdout=subprocess.DEVNULL)
            times[megabytes] = seconds(call)
        print(f"dna   {megabytes} MB in {times[megabytes]:.1f} s", flush=True)
    ratio = times[8] / times[1]
    print(f"dna   8 MB take {ratio:.1f} times 1 MB; bar 10: {'held' if ratio <= 10 else 'missed'}")


def main() -> None:
    """Run and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--text", type=Path, default=CORPUS)
    parser.add_argument("--mb", type=float, default=64)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--memory", type=float, metavar="GB")
    parser.add_argument("--kinds", nargs="+", default=["char", "bpe"])
    parser.add_argument("--dna", action="store_true")
    options = parser.parse_args()
    if options.dna:
        without_blanks()
        return
    text = options.text.read_text(encoding="utf-8")
    text *= max(1, round(options.mb * 1e6 / len(text.encode())))
    characters(text, options.turns)
    bpe(text, options.turns)
    for kind in options.kinds if options.memory else []:
        prepared(text, options.memory, kind)


if __name__ == "__main__":
    main()
