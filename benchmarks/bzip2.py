"""Bits per byte of the validation tail beside bzip2 -9's, and Chinese by characters and by BPE.

    python benchmarks/bzip2.py FOLDER [NAME ...]

FOLDER holds the texts (tinyshakespeare.txt, warandpeace.txt, zh_*.txt). bzip2 compresses the tail
after the training part: what it takes for the whole less what it takes for that part, over the
tail's bytes. Models are ``nanogpt-cpu-best.yaml`` for the steps below; the loss is that of the
final weights over the whole tail. ``chinese`` trains each zh_*.txt twice. Runs go to logs/.
"""

from __future__ import annotations

import bz2
import csv
import subprocess
import sys
import time
from pathlib import Path

STEPS = {"tinyshakespeare": 2000, "warandpeace": 6000, "zh_yuanqu_full": 3000}
CHINESE = ("zh_fourbooks", "zh_yuanqu_1700chars", "zh_yuanqu_small", "zh_yuanqu_full")
CHINESE_STEPS, VOCABULARY = 1000, 4096


def compressed(path: Path) -> float:
    """bzip2's bits per byte of the last tenth, after the rest."""
    text = path.read_bytes().decode("utf-8")
    cut = len(text) * 9 // 10
    train, tail = (part.encode() for part in (text[:cut], text[cut:]))
    sizes = [len(bz2.compress(data, 9)) for data in (train + tail, train)]
    return 8 * (sizes[0] - sizes[1]) / len(tail)


def trained(path: Path, name: str, steps: int, *extra: str) -> tuple[float, float, float]:
    """Bits per byte of the best and of the final weights, and the minutes that it took."""
    began = time.monotonic()
    settings = [f"--data.corpus={path}", f"--trainer.max_steps={steps}", f"--name={name}"]
    command = [sys.executable, "-m", "llama_lab", "fit", "--config", "nanogpt-cpu-best.yaml"]
    subprocess.run([*command, *settings, *extra], check=True, stdout=subprocess.DEVNULL)
    run = max(Path("logs", name).glob("run_*"), key=lambda p: p.stat().st_mtime_ns)
    with (run / "metrics.csv").open() as file:
        values = [float(v) for row in csv.DictReader(file) if (v := row["val_bits_per_byte"])]
    return min(values), values[-1], (time.monotonic() - began) / 60


def main(folder: Path, names: list[str]) -> None:
    """Run and report."""
    for name in names or [*STEPS, "chinese"]:
        if name == "chinese":
            for text in CHINESE:
                path = folder / f"{text}.txt"
                char = trained(path, f"{text}-char", CHINESE_STEPS)
                bpe = ("--data.tokenizer=bpe", f"--data.vocab_size={VOCABULARY}")
                pieces = trained(path, f"{text}-bpe", CHINESE_STEPS, *bpe)
                print(f"{text}: char {char[0]:.3f}, bpe {pieces[0]:.3f} (best)", flush=True)
            continue
        path = folder / f"{name}.txt"
        bar, (_, final, minutes) = compressed(path), trained(path, name, STEPS[name])
        verdict = "below" if final < bar else "not below"
        print(
            f"{name}: {final:.4f} bits per byte after {STEPS[name]:,} steps, {minutes:.1f} min; "
            f"{verdict} bzip2's {bar:.4f}",
            flush=True,
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
