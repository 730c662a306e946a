"""Generation: the window, the cache, spare ids, prompts, text streams and loading."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from llama_lab.errors import UserError
from llama_lab.generation.generate import (
    generate,
    load_model,
    prompt_ids,
    sample_text,
)
from llama_lab.generation.sampling import SamplingConfig
from llama_lab.generation.text_stream import TextStream
from llama_lab.model.attention import AttentionConfig
from llama_lab.model.norms import NormConfig
from llama_lab.model.positions import PositionConfig

ROOT = Path(__file__).parents[2]
GREEDY = SamplingConfig(temperature=0)
ARCHITECTURES = {
    "llama": {},
    "grouped and tied": {
        "attention": AttentionConfig(n_heads=2, n_kv_heads=1),
        "tie_embeddings": True,
    },
    "learned positions": {"position": PositionConfig(kind="learned")},
    "2017": {
        "position": PositionConfig(kind="sinusoidal"),
        "norm": NormConfig(kind="layernorm", placement="post"),
    },
    "context of one": {"context_length": 1},
    "odd context": {"context_length": 7},
}


def run(
    decoder, prompt, n, *, sampling=GREEDY, seed=0, n_ids=None, stop=(), banned=(), use_cache=True
):
    return list(
        generate(
            decoder,
            prompt,
            max_new_tokens=n,
            sampling=sampling,
            generator=torch.Generator().manual_seed(seed),
            n_ids=decoder.config.vocab_size if n_ids is None else n_ids,
            stop=stop,
            banned=banned,
            use_cache=use_cache,
        )
    )


@pytest.mark.parametrize("kind", ["rope", "sinusoidal"])
def test_a_context_of_millions_takes_memory_for_the_text_alone(kind: str) -> None:
    """In a process of its own, whose memory is limited: tables and cache would take gigabytes."""
    code = (
        "import resource, torch; from llama_lab.generation.generate import generate;"
        "from llama_lab.generation.sampling import SamplingConfig;"
        "from llama_lab.model.decoder import Decoder, DecoderConfig;"
        "from llama_lab.model.initialise import initialise;"
        "sizes = {'dim': 64, 'n_layers': 2, 'vocab_size': 11, 'context_length': 16_000_000};"
        f"sizes['position'] = {{'kind': {kind!r}}};"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize();"
        "resource.setrlimit(resource.RLIMIT_AS, (used + (400 << 20),) * 2);"
        "decoder = Decoder(DecoderConfig.from_dict(sizes)); initialise(decoder, 0);"
        "setting = {'sampling': SamplingConfig(), 'generator': torch.Generator(), 'n_ids': 11};"
        "print(*generate(decoder, [1] * 10, max_new_tokens=3, **setting))"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    assert len(result.stdout.split()) == 3


@torch.no_grad()
def reference_loop(decoder, prompt, n, pick):
    """The documented window, written independently: its start as a function of the position."""
    context = decoder.config.context_length
    stride = (context + 1) // 2
    text = list(prompt)[-context:]
    for _ in range(n):
        start = max(0, -(-(len(text) - context) // stride)) * stride
        logits = decoder.logits(decoder(torch.tensor([text[start:]])))[0, -1]
        text.append(int(pick(logits)))
    return text[-n:]


@pytest.mark.parametrize("changes", ARCHITECTURES.values(), ids=ARCHITECTURES)
@pytest.mark.parametrize("prompt", [[3], list(range(10)), [i * 7 % 23 for i in range(27)]])
class TestPastTheContext:
    def test_greedy_with_and_without_cache_equals_an_argmax_loop(self, build, changes, prompt):
        decoder = build(**changes)
        expected = reference_loop(decoder, prompt, 33, torch.argmax)
        assert run(decoder, prompt, 33) == expected
        assert run(decoder, prompt, 33, use_cache=False) == expected

    def test_draws_with_and_without_cache_equal_a_sampling_loop(self, build, changes, prompt):
        decoder = build(**changes)
        source = torch.Generator().manual_seed(5)
        expected = reference_loop(
            decoder,
            prompt,
            33,
            lambda logits: torch.multinomial((logits / 1.5).softmax(-1), 1, generator=source),
        )
        sampling = SamplingConfig(temperature=1.5)
        assert run(decoder, prompt, 33, sampling=sampling, seed=5) == expected
        assert run(decoder, prompt, 33, sampling=sampling, seed=5, use_cache=False) == expected
        assert len(set(expected)) > 5, "a model that repeats itself shows nothing"


def test_drawn_text_is_the_same_with_and_without_cache_and_for_the_same_seed(build):
    decoder = build()
    sampling = SamplingConfig(temperature=1.3, top_k=9, top_p=0.95)
    cached = run(decoder, [1, 2], 40, sampling=sampling, seed=4)
    assert cached == run(decoder, [1, 2], 40, sampling=sampling, seed=4, use_cache=False)
    assert cached != run(decoder, [1, 2], 40, sampling=sampling, seed=5)


def test_a_new_id_costs_a_bounded_number_of_positions(build, monkeypatch):
    decoder = build()
    seen = []
    forward = decoder.forward
    monkeypatch.setattr(
        decoder, "forward", lambda t, cache=None: seen.append(t.size(1)) or forward(t, cache)
    )
    run(decoder, [0] * 10, 60)
    assert sum(seen) <= 10 + 60 * 3
    assert max(seen) <= decoder.config.context_length


def test_only_the_newest_context_of_a_long_prompt_counts(build):
    decoder = build()
    tail = [i * 5 % 23 for i in range(10)]
    assert run(decoder, [9] * 50 + tail, 20) == run(decoder, tail, 20)


def test_spare_ids_are_never_chosen(build):
    decoder = build(vocab_size=40)
    with torch.no_grad():
        decoder.head_weight[23:] *= 50  # whatever the hidden state, a spare id has the top logit
    assert max(run(decoder, [1], 30, n_ids=40)) >= 23
    for sampling in (GREEDY, SamplingConfig(temperature=2.0), SamplingConfig(top_k=30)):
        assert max(run(decoder, [1], 30, sampling=sampling, n_ids=23)) < 23
        chosen = run(decoder, [1], 30, sampling=sampling, n_ids=40, banned=range(20, 40))
        assert max(chosen) < 20


def test_the_stop_id_ends_the_text_and_is_not_yielded(build):
    decoder = build()
    free = run(decoder, [1], 30)
    stop = free[8]
    assert run(decoder, [1], 30, stop=[stop]) == free[: free.index(stop)]


@pytest.mark.parametrize("training", [True, False])
def test_the_caller_keeps_its_mode_gradients_and_random_state_between_ids(build, training):
    decoder = build(dropout=0.5).train(training)
    before = torch.get_rng_state()
    ids = generate(
        decoder,
        [1],
        max_new_tokens=20,
        sampling=GREEDY,
        generator=torch.Generator(),
        n_ids=23,
    )
    first = list(itertools.islice(ids, 3))
    assert all(module.training is training for module in decoder.modules())
    assert not torch.is_inference_mode_enabled()
    assert torch.is_grad_enabled()
    assert torch.equal(torch.get_rng_state(), before)
    # Abandoned in the middle; the text is that of eval mode, and the model still trains.
    assert first == run(decoder.eval(), [1], 3)
    decoder.train(training)
    hidden = decoder(torch.tensor([[1, 2, 3, 4, 5]]))
    decoder.logits(hidden).sum().backward()
    assert decoder.embedding.weight.grad is not None


def test_an_empty_prompt_of_ids_is_a_programming_error(build):
    with pytest.raises(ValueError, match="prompt is empty"):
        run(build(), [], 1)


@pytest.mark.parametrize("prompt", [None, ""])
def test_no_prompt_begins_after_an_unprinted_id(prompt, char_tokenizer, bpe_tokenizer):
    assert prompt_ids(bpe_tokenizer, prompt) == ([bpe_tokenizer.end_of_text], "")
    assert prompt_ids(char_tokenizer, prompt) == ([char_tokenizer.encode("\n")[0]], "")
    without_newline = type(char_tokenizer)("ab")
    assert prompt_ids(without_newline, prompt) == ([0], "")


def test_a_prompt_is_encoded_and_printed_as_it_is(char_tokenizer):
    assert prompt_ids(char_tokenizer, "hell") == (char_tokenizer.encode("hell").tolist(), "hell")


def test_unknown_characters_of_a_prompt_are_named(char_tokenizer):
    with pytest.raises(UserError, match=r"--prompt: .*é.*U\+00E9.*😀") as refused:
        prompt_ids(char_tokenizer, "hé😀")
    assert "\n" not in str(refused.value)


def test_a_character_split_over_ids_appears_once_it_is_whole(bpe_tokenizer):
    text = "a日本é😀b"
    byte_ids = [bpe_tokenizer.pieces.index(bytes([b])) for b in text.encode()]
    stream = TextStream(bpe_tokenizer)
    pushed = [stream.push(i) for i in byte_ids]
    assert [p for p in pushed if p] == list(text)
    assert pushed[1:4] == ["", "", "日"]
    assert stream.finish() == ""


def test_bytes_left_over_become_the_replacement_character(bpe_tokenizer):
    stream = TextStream(bpe_tokenizer)
    cut_off = [bpe_tokenizer.pieces.index(bytes([b])) for b in "x日".encode()[:-1]]
    assert "".join(stream.push(i) for i in cut_off) == "x"
    assert stream.finish() == "\ufffd"


def test_streamed_text_equals_decoding_all_ids_at_once(bpe_tokenizer):
    ids = torch.randint(
        bpe_tokenizer.vocab_size, (3000,), generator=torch.Generator().manual_seed(0)
    ).tolist()
    stream = TextStream(bpe_tokenizer)
    text = "".join(stream.push(i) for i in ids) + stream.finish()
    assert text == bpe_tokenizer.decode(ids)


def test_sample_text_is_the_prompt_and_the_decoded_continuation(build, bpe_tokenizer):
    decoder = build(vocab_size=bpe_tokenizer.vocab_size)
    ids = run(decoder, bpe_tokenizer.encode("the c").tolist(), 25, stop=bpe_tokenizer.ends)
    text = sample_text(
        decoder, bpe_tokenizer, prompt="the c", max_new_tokens=25, sampling=GREEDY, seed=0
    )
    stream = TextStream(bpe_tokenizer)  # what is left of a character at the end is left out
    assert text == "the c" + "".join(map(stream.push, ids))


def test_a_model_comes_back_from_its_checkpoint_alone(build, char_tokenizer, write_checkpoint):
    decoder = build(
        vocab_size=30, tie_embeddings=True, attention=AttentionConfig(n_heads=4, n_kv_heads=2)
    )
    loaded = load_model(write_checkpoint(decoder.train(), char_tokenizer))
    assert loaded.decoder.config == decoder.config
    assert loaded.tokenizer.state() == char_tokenizer.state()
    assert loaded.step == 7
    assert not loaded.decoder.training
    tokens = torch.tensor([[0, 1, 2, 3]])
    expected = decoder.eval().logits(decoder(tokens))
    assert torch.equal(loaded.decoder.logits(loaded.decoder(tokens)), expected)


def test_half_precision_weights_load_as_float32(build, char_tokenizer, write_checkpoint):
    loaded = load_model(write_checkpoint(build().bfloat16(), char_tokenizer))
    assert {p.dtype for p in loaded.decoder.parameters()} == {torch.float32}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"blocks.1.attention.wk.weight": None}, "blocks.1.attention.wk.weight is missing"),
        ({"head.bias": torch.zeros(23)}, "head.bias is not in the architecture"),
        ({"embedding.weight": torch.zeros(23, 8)}, "shape [23, 8] instead of [23, 16]"),
    ],
)
def test_weights_that_do_not_fit_are_refused_by_name(
    build, char_tokenizer, write_checkpoint, changes, words
):
    with pytest.raises(UserError) as refused:
        load_model(write_checkpoint(build(), char_tokenizer, **changes))
    assert words in str(refused.value)
    assert "--ckpt_path" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_tokenizer_larger_than_the_model_is_refused(build, bpe_tokenizer, write_checkpoint):
    with pytest.raises(UserError, match=r"tokenizer has 270 ids.*only 23"):
        load_model(write_checkpoint(build(), bpe_tokenizer))
