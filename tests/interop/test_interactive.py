"""The loop of ``generate --interactive``, through pipes and in a terminal."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from llama_lab.cli import main
from llama_lab.generation.folder_files import render_chat
from llama_lab.generation.generate import load_model, parsed_ids
from tests.interop.conftest import run
from tests.interop.test_companions import GENERATION, IDS, NAMED, TEMPLATE

GENERATE = ["generate", "--ckpt_path", "a.ckpt", "--accelerator", "cpu", "--max_new_tokens", "8"]
LOOP = [*GENERATE, "--interactive", "true"]


@pytest.fixture
def imported(make_folder: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint of a model that came with a chat template."""
    folder = make_folder(
        IDS,
        tokenizer_config={**NAMED, "chat_template": TEMPLATE},
        generation_config={**IDS, **GENERATION},
    )
    monkeypatch.chdir(folder.parent)
    run("import", folder, "--output", "a.ckpt")
    return folder.parent / "a.ckpt"


def change_head(path: Path, change: Callable[[torch.Tensor], object]) -> None:
    """Change the head's weights in place."""
    contents = torch.load(path, weights_only=True)
    weights = contents["state_dict"]
    change(weights.get("decoder.head.weight", weights["decoder.embedding.weight"]))
    torch.save(contents, path)


@pytest.fixture
def talk(imported: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Any:
    """Give lines to the loop and get its exit code and both outputs."""

    def call(lines: str | bytes, *flags: str, command: list[str] = LOOP) -> tuple[int, str, str]:
        typed = lines if isinstance(lines, bytes) else lines.encode()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(typed), encoding="ascii"))
        capsys.readouterr()
        code = main([*command, *flags])
        return code, *capsys.readouterr()

    return call


def test_every_line_is_continued_as_a_prompt_with_a_seed_of_its_own(talk) -> None:
    code, out, err = talk("the cat\n\né the\r\nthe dog", "--seed", "5")
    assert code == 0
    expected = ""
    for seed, prompt in enumerate(["the cat", "", "é the", "the dog"], 5):
        expected += talk("", "--prompt", prompt, "--seed", str(seed), command=GENERATE)[1]
    assert out == expected
    assert "> " not in out + err


def test_a_conversation_grows_by_each_turn_and_its_answer(talk, imported) -> None:
    greedy = ["--chat", "true", "--temperature", "0"]
    code, out, _ = talk("the cat\n\nthe dog\n", *greedy)
    assert code == 0
    model = load_model(imported)
    first = talk("", "--prompt", "the cat", *greedy, command=GENERATE)[1]
    assert out.startswith(first)
    messages = [
        {"role": "user", "content": "the cat"},
        {"role": "assistant", "content": first.removesuffix("\n")},
        {"role": "user", "content": "the dog"},
    ]
    whole = render_chat(model.folder, imported, messages)
    flags = ["--special_tokens", "parse", "--temperature", "0", "--prompt", whole]
    second = talk("", *flags, command=GENERATE)[1].removeprefix(whole)
    assert out == first + second


def test_a_reset_forgets_the_conversation_and_keeps_counting_the_seeds(talk) -> None:
    chat = ["--chat", "true", "--seed", "3"]
    alone = [
        talk("", "--prompt", "the cat", *chat[:2], "--seed", seed, command=GENERATE)[1]
        for seed in ("3", "4")
    ]
    assert talk("the cat\n/reset\nthe cat\n", *chat)[1] == "".join(alone)
    assert "the conversation has" in talk("the cat\n" * 6, *chat)[2]
    assert "the conversation has" not in talk("the cat\n/reset\n" * 6, *chat)[2]
    assert talk("the cat\n/quit\nthe cat\n", *chat)[1] == alone[0]
    _, out, err = talk("/reset\n")
    assert out == ""
    assert "/reset would do nothing: without --chat true every line begins anew" in err


def test_a_line_that_is_refused_takes_no_seed_and_is_not_remembered(talk) -> None:
    for flags in ([], ["--chat", "true"]):
        code, out, err = talk(b"caf\xe9 \x1b[31m\nthe cat\n", *flags)
        assert code == 0
        assert out == talk("the cat\n", *flags)[1]
        assert "llama-lab: caf\\xe9 \\x1b[31m: not UTF-8 text; this line is left out" in err


def test_the_prompt_is_the_first_turn(talk) -> None:
    chat = ["--chat", "true"]
    both = talk("the cat\nthe dog\n", *chat)[1]
    assert talk("the dog\n", *chat, "--prompt", "the cat")[1] == both


def test_names_that_are_shown_stay_out_of_the_conversation(talk, imported) -> None:

    model = load_model(imported)
    with torch.no_grad():
        turn = render_chat(model.folder, imported, [{"role": "user", "content": "the"}])
        hidden = model.decoder(torch.tensor([parsed_ids(model.tokenizer, turn)]))[0, -1]
    change_head(imported, lambda weight: weight[281].copy_(1000 * hidden))
    chat = ["--chat", "true", "--temperature", "0"]
    lines = "the\nthe cat\n"
    hides, shows = (talk(lines, *chat, "--show_special_tokens", v)[1] for v in ("false", "true"))
    assert hides.startswith("\n")
    assert shows.startswith("<|im_end|>\n")
    assert shows.replace("<|im_end|>", "") == hides


def test_a_conversation_beyond_the_context_is_said_once(talk) -> None:
    _, _, err = talk("the cat " * 40 + "\nthe dog\nthe\n/reset\nthe\n", "--chat", "true")
    assert err.count("the conversation has ") == 1
    assert "it sees the last" in err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--num_samples", "2"], "--num_samples 2 would do nothing: --interactive true writes"),
        (["--chat", "true", "--ckpt_path", "bare.ckpt"], "came with no chat template"),
    ],
)
def test_what_no_line_could_mend_is_refused_before_the_first(talk, flags, words) -> None:
    bare = torch.load("a.ckpt", weights_only=True)
    del bare["llama_lab"]["folder"]
    torch.save(bare, "bare.ckpt")
    code, out, err = talk("the cat\n", *flags)
    assert (code, out) == (2, "")
    assert words in err


class Typist:
    """The loop in a terminal of its own, on whose keys somebody types."""

    def __init__(self, folder: Path, *argv: str) -> None:
        self.keys, theirs = pty.openpty()

        def take_the_terminal() -> None:
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # so that Ctrl-C becomes a signal

        self.process = subprocess.Popen(
            [sys.executable, "-m", "llama_lab", *argv],
            cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs, preexec_fn=take_the_terminal,
            env={**os.environ, "OMP_NUM_THREADS": "1", "TERM": "dumb"},
        )  # fmt: skip
        os.close(theirs)
        self.shown = b""
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with open(self.keys, "rb", buffering=0, closefd=False) as screen:
            while True:
                try:
                    self.shown += screen.read(4096)
                except OSError:  # the process ended
                    return

    def type(self, text: str, until: str) -> None:
        """Type, and wait until the screen shows something behind what it shows now."""
        start = len(self.shown)
        os.write(self.keys, text.encode())
        deadline = time.monotonic() + 60
        while until.encode() not in self.shown[start:]:
            assert time.monotonic() < deadline, self.shown
            assert self.process.poll() is None, self.shown
            time.sleep(0.01)


@pytest.mark.skipif(os.name != "posix", reason="Windows has no terminals of this kind")
def test_ctrl_c_ends_an_answer_and_the_next_one_the_command(imported) -> None:
    endless = ["--max_new_tokens", "10000000", "--top_k", "3", "--special_tokens", "parse"]
    at = Typist(imported.parent, *LOOP, *endless)
    at.type("", until="> ")
    at.type("the cat\n", until="the cat\r\nthe cat")  # the echo of the keys, then the text
    at.type("\x03", until="tokens/s\r\n> ")
    at.type("the dog\n", until="the dog\r\nthe dog")
    at.type("\x03", until="tokens/s\r\n> ")
    os.write(at.keys, b"\x03")
    assert at.process.wait(30) == 128 + signal.SIGINT, at.shown
    assert b"Traceback" not in at.shown


@pytest.mark.skipif(os.name != "posix", reason="Windows has no terminals of this kind")
def test_the_end_of_the_input_ends_the_loop_at_a_terminal(imported) -> None:
    at = Typist(imported.parent, *LOOP, "--chat", "true")
    at.type("", until="> ")
    assert b"/reset begins a new conversation; /quit, or the end of the input, ends" in at.shown
    os.write(at.keys, b"\x04")
    assert at.process.wait(30) == 0, at.shown
