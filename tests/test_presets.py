"""The presets as data: exactly the published counts, on the ``meta`` device."""

from __future__ import annotations

from pathlib import Path

import pytest

from llama_lab.configs import SHIPPED, read_yaml
from llama_lab.inspect.accounting import count_parameters
from llama_lab.model.decoder import DecoderConfig

COUNTS = {
    "llama-7b": 6_738_415_616,
    "llama-13b": 13_015_864_320,
    "llama-33b": 32_528_943_616,
    "llama-65b": 65_285_660_672,
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3.2-1b": 1_235_814_400,
    "gpt2": 124_439_808,
    "gpt2-xl": 1_557_611_200,
    "mistral-7b": 7_241_732_096,
    "qwen2-7b": 7_615_616_512,
    "qwen3-0.6b": 596_049_920,
    "gemma3-1b": 999_885_952,
    "olmo2-7b": 7_298_617_344,
    "transformer-2017-base": 37_858_304,
    "mini-2017": 1_244_928,
    "mini-llama": 1_178_496,
}


def preset(name: str) -> DecoderConfig:
    return DecoderConfig.from_dict(read_yaml(SHIPPED / "decoders" / f"{name}.yaml"))


@pytest.mark.parametrize("name", COUNTS)
def test_a_preset_has_its_published_count(name: str) -> None:
    assert count_parameters(preset(name)).total == COUNTS[name]


def test_every_shipped_preset_is_counted() -> None:
    assert {p.stem for p in Path(SHIPPED, "decoders").glob("*.yaml")} == set(COUNTS)
