"""Learning of byte pairs from a text, in a separate process where that takes long.

The library learns in one call, and Python answers a signal only between two calls: a process can be
ended in the middle. (A thread that is left behind in compiled code ends the whole process badly.)
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import tokenizers as hugging_face
from tokenizers import models, pre_tokenizers, trainers

from llama_lab.data.reading_progress import Elapsed, in_bytes
from llama_lab.data.tokenizers.long_words import LONGEST_WORD, BoundedWords, split_of_words
from llama_lab.errors import RunError

END_OF_TEXT = "<|endoftext|>"
SHORT_BYTES = 1 << 17  # learnt from in less time than a process takes to start
STEP_SECONDS = 0.1


class Learnt(NamedTuple):
    """What :class:`BpeTokenizer` is made of."""

    vocabulary: list[str]
    merges: list[str]
    longest_word: int | None


def learn_pairs(texts: Iterable[str], n_bytes: int, vocab_size: int) -> Learnt:
    """A vocabulary of ``vocab_size`` ids; of fewer where the text runs out of pairs.

    Args:
        texts: To learn from.
        n_bytes: Of the whole text that they are taken from.
        vocab_size: The end of text and the 256 bytes included.

    Raises:
        RunError: The process that learns was ended from outside.
    """
    if n_bytes < SHORT_BYTES:
        return _learn(texts, vocab_size)
    root = str(Path(__file__).parents[3])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    with subprocess.Popen(
        [sys.executable, "-m", __name__, str(vocab_size)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C reaches this process alone, which ends the other one
    ) as process:
        try:
            return _learnt_by(process, texts, n_bytes)
        finally:
            process.kill()


def _learnt_by(process: subprocess.Popen[bytes], texts: Iterable[str], n_bytes: int) -> Learnt:
    progress = Elapsed(f"learning  byte pairs from {in_bytes(n_bytes)}", sys.stderr)
    assert process.stdin is not None
    with progress:
        try:
            with process.stdin as pipe:
                for text in texts:
                    pipe.write(json.dumps(text).encode("ascii") + b"\n")
                    progress()
        except BrokenPipeError:
            pass  # its exit code, below, says why
        process.stdin = None
        while True:
            try:
                answer, _ = process.communicate(timeout=STEP_SECONDS)
                break
            except subprocess.TimeoutExpired:
                progress()
    if process.returncode != 0:
        raise RunError(
            f"the process that learns the bpe vocabulary ended with {process.returncode}; it may "
            "have had too little memory: lower --data.vocab_size or take a shorter text"
        )
    return Learnt(*json.loads(answer))


def _learn(texts: Iterable[str], vocab_size: int) -> Learnt:
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    trained = hugging_face.Tokenizer(models.BPE())
    trained.pre_tokenizer = split_of_words(None)
    words = BoundedWords(texts)
    trained.train_from_iterator(iter(words), trainer)
    model = json.loads(trained.to_str())["model"]
    vocabulary = sorted(model["vocab"], key=model["vocab"].__getitem__)
    merges = [f"{left} {right}" for left, right in model["merges"]]
    return Learnt(vocabulary, merges, LONGEST_WORD if words.found_long else None)


if __name__ == "__main__":
    print(json.dumps(_learn(map(json.loads, sys.stdin.buffer), int(sys.argv[1]))))
