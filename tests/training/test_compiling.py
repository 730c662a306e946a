"""Blocks that run compiled train as those that do not, and leave the same files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from llama_lab.cli import main
from llama_lab.errors import UserError
from llama_lab.inspect.faults import FAULTS, plant_fault
from llama_lab.model.decoder import Decoder, DecoderConfig
from llama_lab.model.initialise import initialise
from llama_lab.training import compiling
from llama_lab.training.compiling import (
    Work,
    compile_regions,
    compile_whole,
    decide_compilation,
    missing_compiler,
    restore,
    unrewarding,
)
from tests.runs.conftest import TEXT, Lab, equal_weights, flags, start

needs_compiler = pytest.mark.skipif(
    missing_compiler("cpu") is not None, reason="no C++ compiler here"
)
STEPS = 6
SETTINGS: dict[str, Any] = {
    "model__decoder__n_layers": 1,
    "model__decoder__dropout": 0.1,
    "trainer__max_steps": STEPS,
    "trainer__val_check_interval": 3,
}
EARLY_END = (
    "--trainer.callbacks=EarlyStopping",
    "--trainer.callbacks.monitor=val_loss",
    "--trainer.callbacks.stopping_threshold=100",
)
ON, OFF = "--model.compile=true", "--model.compile=false"
WHOLE = "--model.compile=whole"


@pytest.fixture(scope="module", autouse=True)
def _cache_of_compiled_code(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("inductor")))
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of equal settings: ``compiled``, ``plain``, and ``half``, compiled and stopped early."""
    folder = tmp_path_factory.mktemp("compiling")
    (folder / "text.txt").write_text(TEXT)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, extra in (
            ("compiled", (ON,)),
            ("plain", (OFF,)),
            ("half", (ON, *EARLY_END)),
            ("half-plain", (OFF, *EARLY_END)),
        ):
            assert main(["fit", *flags(**SETTINGS, name=name), *extra]) == 0
    return folder


@pytest.fixture
def runs(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Lab:
    """The folder of those runs."""
    monkeypatch.chdir(folder)
    return Lab(folder, capsys)


def last(lab: Lab, name: str) -> Path:
    return lab.run(0, name) / "checkpoints" / "last.ckpt"


def contents(lab: Lab, name: str) -> dict[str, Any]:
    return torch.load(last(lab, name), weights_only=True)


def receipt(lab: Lab, name: str) -> dict[str, Any]:
    return json.loads((lab.run(0, name) / "receipt.json").read_text())


def scores(text: str) -> dict[str, float]:
    return {name: float(value) for name, value in (line.split() for line in text.splitlines())}


def check_like_plain(lab: Lab, name: str, setting: str) -> None:
    """A compiled run's losses are those of ``plain``, and its receipt says what it was."""
    compiled, plain = lab.metrics(name=name), lab.metrics(name="plain")
    assert len(compiled) == len(plain) == STEPS
    for a, b in zip(compiled, plain, strict=True):
        assert float(a["train_loss"]) == pytest.approx(float(b["train_loss"]), abs=1e-5)
    assert float(compiled[-1]["val_loss"]) == pytest.approx(float(plain[-1]["val_loss"]), abs=1e-5)
    assert receipt(lab, name)["compile"] == {
        "compiled": True,
        "because": f"--model.compile {setting}",
        "whole": setting == "whole",
        "steps": STEPS,
    }


@needs_compiler
@pytest.mark.slow
def test_a_network_compiled_whole_trains_as_one_that_is_not_and_scores_anywhere(runs: Lab) -> None:
    fitted = runs("fit", *flags(**SETTINGS, name="whole"), WHOLE)
    assert fitted.code == 0, fitted.err
    check_like_plain(runs, "whole", "whole")
    path = str(last(runs, "whole"))
    assert not [key for key in contents(runs, "whole")["state_dict"] if "_orig_mod" in key]
    scored = [runs("validate", "--ckpt_path", path, extra).out for extra in (OFF, WHOLE)]
    losses = [scores(text)["val_loss"] for text in scored]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    resumed = runs("fit", "--ckpt_path", path, "--trainer.max_steps=8", ON)
    assert resumed.code == 0, resumed.err


@needs_compiler
@pytest.mark.slow
def test_a_compiled_run_has_the_losses_of_one_that_is_not_and_says_what_it_was(runs: Lab) -> None:
    check_like_plain(runs, "compiled", "true")
    plain = {"compiled": False, "because": "--model.compile false", "whole": False, "steps": 0}
    assert receipt(runs, "plain")["compile"] == plain
    assert contents(runs, "compiled")["llama_lab"]["progress"]["compiled_steps"] == STEPS


@needs_compiler
@pytest.mark.slow
def test_a_stopped_compiled_run_ends_as_the_whole_one_to_the_bit(runs: Lab) -> None:
    assert contents(runs, "half")["global_step"] == 3
    go_on(runs, "half")
    assert equal_weights(contents(runs, "half"), contents(runs, "compiled"))
    assert receipt(runs, "half")["compile"]["steps"] == STEPS


def go_on(lab: Lab, name: str, *extra: str) -> None:
    arguments = ("--ckpt_path", str(last(lab, name)), "--trainer.callbacks=null", *extra)
    outcome = lab("fit", *arguments)
    assert outcome.code == 0, outcome.err


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize(("trained", "used"), [("compiled", OFF), ("plain", ON)])
def test_a_checkpoint_serves_whatever_compiles(
    runs: Lab, trained: str, used: str, tmp_path: Path
) -> None:
    assert not [key for key in contents(runs, trained)["state_dict"] if "_orig_mod" in key]
    path = str(last(runs, trained))
    scored = runs("validate", "--ckpt_path", path, used)
    assert scored.code == 0, scored.err
    logged = float(runs.metrics(name=trained)[-1]["val_loss"])
    assert scores(scored.out)["val_loss"] == pytest.approx(logged, abs=1e-5)
    texts = [
        runs("generate", "--ckpt_path", str(last(runs, name)), "--prompt=1", "--temperature=0").out
        for name in ("compiled", "plain")
    ]
    assert texts[0] == texts[1] != ""
    exported = runs("export", path, "--output", str(tmp_path / "exported"))
    assert exported.code == 0, exported.err
    assert b"_orig_mod" not in (tmp_path / "exported" / "model.safetensors").read_bytes()


@needs_compiler
@pytest.mark.slow
def test_a_run_goes_on_with_what_the_other_kind_began(runs: Lab) -> None:
    go_on(runs, "half-plain", ON)
    assert receipt(runs, "half-plain")["compile"]["steps"] == STEPS - 3
    loss = float(runs.metrics(name="half-plain")[-1]["val_loss"])
    assert loss == pytest.approx(float(runs.metrics(name="plain")[-1]["val_loss"]), abs=1e-5)


@needs_compiler
@pytest.mark.slow
def test_scoring_compiles_when_told_to_alone(runs: Lab) -> None:
    path = str(last(runs, "compiled"))  # whose own setting is true
    for extra, graphs in (((), 0), ((ON,), 1)):
        counters.clear()
        assert runs("validate", "--ckpt_path", path, *extra).code == 0
        assert (counters["stats"]["unique_graphs"] > 0) is bool(graphs)


@needs_compiler
@pytest.mark.slow
def test_each_kind_of_layer_is_compiled_once_whatever_else_a_run_does(lab: Lab) -> None:
    """Validation with a short last batch, samples and accumulation between the steps."""
    counters.clear()
    window = {"model__decoder__attention__window": 4, "model__decoder__n_layers": 3}
    lab.fit(
        **{**SETTINGS, **window, "model__decoder__attention__window_pattern": "LLG"},
        model__compile="true",
        trainer__accumulate_grad_batches=2,
    )
    assert counters["stats"]["unique_graphs"] == 3  # with that of norm, head and loss


@needs_compiler
@pytest.mark.slow
def test_two_compiled_processes_in_bfloat16_leave_a_checkpoint_for_one_without(lab: Lab) -> None:
    extra = ("--trainer.devices=2", "--trainer.strategy=ddp", "--trainer.precision=bf16-mixed")
    process = start(lab.folder, "fit", *flags(**SETTINGS), ON, *extra)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert receipt(lab, "tiny")["compile"]["steps"] == STEPS
    free = ("--trainer.devices=1", "--trainer.strategy=auto", "--trainer.precision=32-true")
    resumed = lab("fit", "--ckpt_path", str(last(lab, "tiny")), "--trainer.max_steps=8", OFF, *free)
    assert resumed.code == 0, resumed.err
    assert receipt(lab, "tiny")["compile"]["steps"] == STEPS


def test_without_a_compiler_true_is_refused_and_auto_goes_without(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    line = lab.refused("fit", *flags(), ON)
    assert "--model.compile true" in line
    assert "no-such-compiler" in line
    assert "false" in line
    monkeypatch.setattr(compiling, "START_SECONDS", {"cpu": 0.0})
    outcome = lab.fit(trainer__max_steps=1)
    assert "blocks not compiled: there is no C++ compiler no-such-compiler" in outcome.out


def small(**settings: Any) -> Decoder:
    """A decoder with weights."""
    attention = {"n_heads": 4, "n_kv_heads": 2, **settings.pop("attention", {})}
    base = {"dim": 16, "n_layers": 2, "context_length": 16, "vocab_size": 9, "dropout": 0.1}
    decoder = Decoder(DecoderConfig.from_dict({**base, **settings, "attention": attention}))
    initialise(decoder, 0)
    return decoder


WORK = Work(device="cpu", steps=10, microbatches=1, rows=2, length=16)


def decide(setting: Any, decoder: Decoder) -> compiling.Compilation:
    return decide_compilation(
        setting,
        decoder,
        WORK,
        training=True,
        score=lambda tokens, targets: decoder.score(tokens, targets, reduction="mean"),
    )


@needs_compiler
def test_what_cannot_be_compiled_is_refused_for_true_and_runs_as_it_is_for_auto(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decoder = small()
    # A branch on a value, which no graph holds.
    for block in decoder.blocks:
        block.attention.register_forward_hook(
            lambda attention, given, mixed: mixed if mixed.sum() > 0 else -mixed
        )
    with pytest.raises(UserError, match=r"--model.compile true is impossible here: .*cannot be"):
        decide(True, decoder)
    monkeypatch.setattr(compiling, "START_SECONDS", {"cpu": 0.0})
    decision = decide("auto", decoder)
    assert not decision.compiled
    assert "cannot be compiled" in decision.because
    assert decoder(torch.zeros(2, 16, dtype=torch.int64)).shape == (2, 16, 16)


CONFIG = DecoderConfig(dim=384, n_layers=6, context_length=256)
LONG = Work(device="cpu", steps=5000, microbatches=1, rows=64, length=256)


def test_auto_compiles_where_the_steps_repay_the_start() -> None:
    assert unrewarding(CONFIG, LONG) is None
    assert "takes about" in str(unrewarding(CONFIG, WORK))
    tiny = DecoderConfig(dim=16, n_layers=2, context_length=16)
    assert unrewarding(tiny, Work("cpu", 40, 1, 8, 16)) is not None


def test_auto_leaves_devices_alone_that_it_knows_nothing_of() -> None:
    assert "mps" in str(unrewarding(CONFIG, Work("mps", 5000, 1, 64, 256)))


def test_auto_compiles_on_cuda_where_the_published_saving_repays_the_published_start() -> None:
    # 115 ms saved a step of GPT-2's 12 layers of 768 on 12 x 1,024 tokens, a minute to start:
    # 522 steps make up for it.
    gpt2 = DecoderConfig(dim=768, n_layers=12, context_length=1024)
    assert "published" in str(unrewarding(gpt2, Work("cuda", 521, 1, 12, 1024)))
    assert unrewarding(gpt2, Work("cuda", 522, 1, 12, 1024)) is None


def test_more_kinds_of_layers_take_longer_to_start() -> None:
    mixed = DecoderConfig.from_dict(
        {"dim": 384, "n_layers": 6, "context_length": 256, "attention": {"window": 8}}
        | {"position": {"nope_every": 2}}
    )
    assert compiling.savings(mixed, LONG)[1] == 2 * compiling.savings(CONFIG, LONG)[1]


def test_the_setting_is_read_from_files_and_flags(lab: Lab) -> None:
    for value in ("auto", "true", "whole", "false"):
        (lab.folder / "c.yaml").write_text(f"model: {{compile: {value}}}\n")
        printed = lab("fit", "--config", "c.yaml", "--print_config").out
        assert f"compile: {value}\n" in printed
    line = lab.refused("fit", *flags(), "--model.compile=sometimes")
    assert line == "--model.compile sometimes: must be auto or whole or true or false"


VARIANTS: dict[str, dict[str, Any]] = {
    **{
        placement: {"norm": {"placement": placement}}
        for placement in ("post", "sandwich", "reordered", "parallel")
    },
    **{kind: {"position": {"kind": kind}} for kind in ("learned", "sinusoidal", "alibi", "none")},
    "banded": {"attention": {"window": 4, "window_pattern": "LG"}},
    "held scores": {"attention": {"sinks": True, "softcap": 5.0, "gate": True, "qk_norm": "head"}},
}


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("compile_it", [compile_regions, compile_whole])
@pytest.mark.parametrize("variant", [*VARIANTS, *FAULTS])
def test_every_kind_of_block_computes_the_same_compiled(variant: str, compile_it: Any) -> None:
    decoder = small(**VARIANTS.get(variant, {}))
    plant_fault(decoder, variant if variant in FAULTS else None)  # type: ignore[arg-type]
    compare(decoder, compile_it)


@pytest.mark.parametrize("compile_it", [compile_regions, compile_whole])
def test_a_traced_network_computes_the_same_and_names_no_weight_otherwise(
    compile_it: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As all compiled code, but for the C++, which takes long to be compiled."""

    def traced(function: Any, *, options: Any, **settings: Any) -> Any:
        return compiled(function, backend="aot_eager", **settings)

    compiled = torch.compile
    monkeypatch.setattr(torch, "compile", traced)
    decoder = small(dropout=0.0)
    names = list(decoder.state_dict())
    compare(decoder, compile_it)
    assert list(decoder.state_dict()) == names


def compare(decoder: Decoder, compile_it: Any) -> None:
    """Loss and gradients, compiled and not."""
    tokens = torch.randint(9, (2, 16))

    def gradients() -> list[torch.Tensor]:
        torch.manual_seed(1)  # of dropout
        weights = [p for p in decoder.parameters() if p.requires_grad]
        loss = decoder.score(tokens, tokens, reduction="mean", z_loss=1e-3)
        return [loss, *torch.autograd.grad(loss, weights, allow_unused=True)]

    counters.clear()
    compile_it(decoder, training=True)
    compiled = gradients()
    assert counters["stats"]["unique_graphs"] > 0
    restore(decoder)
    torch.testing.assert_close(compiled, gradients(), atol=1e-6, rtol=1e-5)
