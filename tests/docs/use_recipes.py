"""Uses the parts that the recipes add, in a process whose package has them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from llama_lab.cli import main
from llama_lab.generation.generate import load_model

TEXT = "The cat sat on the mat. "
TINY = (
    *("--model.decoder.dim=16", "--model.decoder.n_layers=2", "--model.decoder.context_length=8"),
    *("--data.corpus=my.txt", "--data.batch_size=4", "--model.schedule.warmup_steps=1"),
    *("--trainer.max_steps=2", "--trainer.val_check_interval=2"),
)
KINDS = {
    "norm": "decoder.norm.kind=scalenorm",
    "position": "decoder.position.kind=alibi_log",
    "optimizer": "optimizer.kind=nadamw",
}
STARCODER2 = (
    *("--model.decoder.norm.kind=layernorm", "--model.decoder.feed_forward.kind=gelu_tanh"),
    *("--model.decoder.feed_forward.bias=true", "--model.decoder.attention.qkv_bias=true"),
    "--model.decoder.attention.output_bias=true",
)


def call(*words: str, code: int = 0) -> None:
    assert main(list(words)) == code, words


def trains_and_resumes() -> None:
    """Four steps in one go and four with a stop in the middle end at the same weights."""
    fit = ("fit", "--config", "llama.yaml", *TINY, "--model.schedule.kind=constant")
    fit += tuple(f"--model.{setting}" for setting in KINDS.values())
    call(*fit, "--trainer.max_steps=4", "--name", "whole")
    call(*fit, "--name", "stopped")
    call("fit", "--ckpt_path", "logs/stopped/run_0", "--trainer.max_steps=4")
    whole, resumed = (weights(f"logs/{run}/run_0") for run in ("whole", "stopped"))
    assert whole.keys() == resumed.keys()
    for key, tensor in whole.items():
        assert torch.equal(tensor, resumed[key]), key


def weights(run: str) -> dict[str, torch.Tensor]:
    return load_model(Path(run, "checkpoints", "last.ckpt")).decoder.state_dict()


def logits(path: str) -> torch.Tensor:
    model = load_model(path)
    with torch.no_grad():
        return model.decoder.logits(model.decoder(torch.tensor([[1, 2, 3, 4, 5]])))


def goes_out_and_comes_back() -> None:
    """The new family's folder has its name, and comes back as it was."""
    call("fit", "--config", "llama.yaml", *TINY, *STARCODER2, "--name", "family")
    call("export", "logs/family/run_0", "--output", "folder")
    assert json.loads(Path("folder/config.json").read_text())["model_type"] == "starcoder2"
    call("import", "folder", "--output", "again.ckpt")
    before, after = logits("logs/family/run_0/checkpoints/best.ckpt"), logits("again.ckpt")
    assert torch.equal(before, after)


def is_that_of_transformers() -> None:
    """The folder's model gives the same logits there."""
    from transformers import Starcoder2ForCausalLM

    theirs = Starcoder2ForCausalLM.from_pretrained("folder", dtype=torch.float32)
    with torch.no_grad():
        # Both compute in float32, in another order.
        torch.testing.assert_close(
            theirs(torch.tensor([[1, 2, 3, 4, 5]])).logits,
            logits("again.ckpt"),
            rtol=1e-4,
            atol=1e-5,
        )


if __name__ == "__main__":
    Path("my.txt").write_text(TEXT * 40)
    trains_and_resumes()
    call("export", "logs/whole/run_0", "--output", "refused", code=2)
    goes_out_and_comes_back()
    if "--against-transformers" in sys.argv:
        is_that_of_transformers()
    sys.path.insert(0, sys.argv[1])
    from generator import switches_page

    page = switches_page()
    for setting in KINDS.values():
        flag, _, kind = setting.partition("=")
        assert f"| `--model.{flag}` | `{kind}` |" in page, setting
    print("all recipes work")
