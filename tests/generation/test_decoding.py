"""Texts side by side: each as alone, whatever its length, its end, and what travels beside it."""

import pytest
import torch

from llama_lab.generation.completions import CompletionSettings, Request, complete
from llama_lab.generation.decoding import Batch, DecodingSettings
from llama_lab.generation.loading import LoadedModel
from llama_lab.generation.sampling import SamplingConfig
from llama_lab.generation.text_stream import StopStrings
from llama_lab.model.attention import AttentionConfig
from llama_lab.model.norms import NormConfig
from llama_lab.model.positions import PositionConfig
from llama_lab.model.rope.scaling import RopeScalingConfig

GREEDY = SamplingConfig(temperature=0)
# Shorter than the context of 10, equal to it, one longer, far longer; and a prompt of one id.
PROMPTS = [[3], [1, 2, 3, 4], list(range(10)), list(range(11)), [i * 7 % 23 for i in range(40)]]
ARCHITECTURES = {
    "llama": {},
    "grouped, windowed, sinks": {
        "attention": AttentionConfig(
            n_heads=2, n_kv_heads=1, window=4, window_pattern="LG", sinks=True
        )
    },
    "learned positions": {"position": PositionConfig(kind="learned")},
    "alibi": {"position": PositionConfig(kind="alibi"), "token_shift": True},
    "2017": {
        "position": PositionConfig(kind="sinusoidal"),
        "norm": NormConfig(kind="layernorm", placement="post"),
    },
    "partly turned": {"position": PositionConfig(rope_fraction=0.5, nope_every=2)},
    "dynamic": {
        "position": PositionConfig(
            rope_scaling=RopeScalingConfig(kind="dynamic", factor=2.0, original_context_length=5)
        )
    },
}


def run(decoder, prompts, n, *, sampling=GREEDY, batch_size=None, **settings):
    """The ids of each prompt; texts come in ``batch_size`` at a time, and leave as they end."""
    batch = Batch(decoder, DecodingSettings(sampling=sampling, n_ids=23, **settings))
    texts = [[] for _ in prompts]
    waiting = list(enumerate(prompts))
    while waiting or batch.texts:
        while waiting and len(batch.texts) < (batch_size or len(prompts)):
            number, prompt = waiting.pop(0)
            batch.add(number, prompt, n + 5 * number, torch.Generator().manual_seed(number))
        for drawn in batch.step():
            texts[drawn.text].append(drawn.id)
    return texts


@pytest.mark.parametrize("changes", ARCHITECTURES.values(), ids=ARCHITECTURES)
@pytest.mark.parametrize("sampling", [GREEDY, SamplingConfig(temperature=1.5, min_p=0.01)])
def test_every_text_of_a_batch_is_the_text_alone(build, changes, sampling):
    decoder = build(**changes)
    alone = [run_alone(decoder, i, p, 25 + 5 * i, sampling) for i, p in enumerate(PROMPTS)]
    for batch_size in (5, 2):
        assert run(decoder, PROMPTS, 25, sampling=sampling, batch_size=batch_size) == alone
    assert run(decoder, PROMPTS, 25, sampling=sampling, use_cache=False) == alone
    assert len({tuple(text[:20]) for text in alone}) >= 4  # equal texts would show nothing


def run_alone(decoder, number, prompt, n, sampling):
    batch = Batch(decoder, DecodingSettings(sampling=sampling, n_ids=23))
    batch.add(number, prompt, n, torch.Generator().manual_seed(number))
    ids = []
    while batch.texts:
        ids += [drawn.id for drawn in batch.step()]
    return ids


def test_log_probabilities_are_those_of_a_forward_over_the_whole_text(build):
    decoder = build()
    batch = Batch(
        decoder,
        DecodingSettings(sampling=SamplingConfig(top_k=3), n_ids=23, logprobs=True, n_top=4),
    )
    batch.add(0, [1, 2, 3], 6, torch.Generator().manual_seed(0))
    batch.add(1, [4], 6, torch.Generator().manual_seed(1))
    drawn = [d for _ in range(6) for d in batch.step() if d.text == 0]
    text = [1, 2, 3, *(d.id for d in drawn)]
    with torch.no_grad():
        expected = decoder.logits(decoder(torch.tensor([text])))[0].log_softmax(-1)
    for step, d in enumerate(drawn):
        assert d.logprob == pytest.approx(float(expected[2 + step, d.id]), abs=1e-4)
        likeliest = expected[2 + step].topk(4)
        assert [id for id, _ in d.top] == likeliest.indices.tolist()
        assert [p for _, p in d.top] == pytest.approx(likeliest.values.tolist(), abs=1e-4)


def test_the_memory_of_a_batch_does_not_grow_with_its_texts(build):
    decoder = build()
    batch = Batch(decoder, DecodingSettings(sampling=GREEDY, n_ids=23))
    for number, prompt in enumerate(PROMPTS[:3]):
        batch.add(number, prompt, 500, torch.Generator())

    def held():
        layers = [] if batch.cache is None else batch.cache.layers
        return sum(layer.keys.numel() for layer in layers) + sum(len(t.window) for t in batch.texts)

    for _ in range(30):
        batch.step()
    before = held()
    for _ in range(400):
        batch.step()
    assert abs(held() - before) <= 3 * decoder.config.context_length


@pytest.mark.parametrize(
    ("stops", "pieces", "shown", "found"),
    [
        (["cd"], ["ab", "c", "d", "e"], ["ab", "", ""], True),
        (["cd"], ["abc", "e"], ["ab", "ce"], False),
        (["aab"], ["a", "a", "a", "b"], ["", "", "a", ""], True),
        (["日本"], ["x日", "本"], ["x", ""], True),
        (["bc", "abcd"], ["a", "b", "c"], ["", "", "a"], True),
        (["\n\n"], ["a\n", "b\n", "\n"], ["a", "\nb", ""], True),
        ([], ["a", "b"], ["a", "b"], False),
    ],
)
def test_no_part_of_a_stop_string_is_shown(stops, pieces, shown, found):
    stop = StopStrings(stops)
    said = []
    for piece in pieces:
        said.append(stop.push(piece))
        if stop.found:
            break
    assert said == shown
    assert stop.found is found
    assert stop.finish() == ""


def texts_of(model, prompts, **settings):
    requests = [Request(list(ids), "x", seed) for seed, ids in enumerate(prompts)]
    completions = {}
    shown = {}
    for event in complete(model, requests, CompletionSettings(**settings), batch_size=3):
        shown[event.number] = shown.get(event.number, "") + event.piece.text
        if event.completion is not None:
            completions[event.number] = event.completion
    assert {number: c.text for number, c in completions.items()} == shown
    return [completions[number] for number in range(len(prompts))]


def test_texts_end_at_strings_tokens_and_lengths_and_say_so(build, bpe_tokenizer):
    decoder = build(vocab_size=bpe_tokenizer.vocab_size)
    model = LoadedModel(decoder, bpe_tokenizer, step=0)
    prompts = [[5], [6, 7, 8], [9] * 12, [10, 11]]
    free = texts_of(model, prompts, sampling=SamplingConfig(temperature=2.0), max_new_tokens=20)
    assert {c.ended for c in free} == {"length"}
    assert [len(c.ids) for c in free] == [20] * 4
    cut = free[1].text[3:5]
    for c, whole in zip(
        texts_of(
            model,
            prompts,
            sampling=SamplingConfig(temperature=2.0),
            max_new_tokens=20,
            stop=(cut,),
            stop_ids=(free[0].ids[4],),
        ),
        free,
        strict=True,
    ):
        assert whole.text.startswith(c.text)
        assert cut not in c.text
    ended = texts_of(
        model,
        prompts[:2],
        sampling=SamplingConfig(temperature=2.0),
        max_new_tokens=20,
        stop_ids=(free[0].ids[4],),
    )
    assert ended[0].ended == "stop_token"
    assert ended[0].ids == free[0].ids[: free[0].ids.index(free[0].ids[4])]


def test_a_character_that_the_limit_cuts_is_left_out(build, bpe_tokenizer):
    decoder = build(vocab_size=bpe_tokenizer.vocab_size)
    first = bpe_tokenizer.pieces.index("日".encode()[:1])
    with torch.no_grad():
        decoder.head_weight.zero_()
    model = LoadedModel(decoder, bpe_tokenizer, step=0)
    banned = tuple(i for i in range(bpe_tokenizer.vocab_size) if i != first)
    object.__setattr__(bpe_tokenizer, "never_sampled", banned)
    try:
        (c,) = texts_of(model, [[5]], sampling=GREEDY, max_new_tokens=1)
    finally:
        object.__setattr__(bpe_tokenizer, "never_sampled", ())
    assert c.ids == [first]
    assert c.text == ""
