"""Sampling: greedy, tiny temperatures, what top-k and top-p keep, and the distribution drawn."""

import math

import pytest
import torch

from llama_lab.errors import RunError, UserError
from llama_lab.generation.sampling import SamplingConfig, adjust, choose, keep_likely
from llama_lab.model.settings import SettingError


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def frequencies(logits: torch.Tensor, config: SamplingConfig, draws: int = 20_000) -> torch.Tensor:
    ids = choose(logits.expand(draws, -1), config, generator())
    return torch.bincount(ids, minlength=logits.numel()) / draws


def test_temperature_zero_is_argmax_and_leaves_the_generator_alone():
    logits = torch.randn(50, 17, generator=generator())
    source = generator(5)
    before = source.get_state()
    assert torch.equal(choose(logits, SamplingConfig(temperature=0), source), logits.argmax(-1))
    assert torch.equal(source.get_state(), before)


def test_greedy_ties_go_to_the_lowest_id():
    logits = torch.zeros(1, 4000)
    logits[0, [1234, 77, 3999]] = 2.0
    assert choose(logits, SamplingConfig(temperature=0), generator()).tolist() == [77]


@pytest.mark.parametrize("temperature", [1e-8, 1e-38, 1e-45, 5e-324])
@pytest.mark.parametrize("scale", [1.0, 1e30])
def test_tiny_temperatures_choose_the_likeliest_without_overflow(temperature, scale):
    logits = scale * torch.randn(40, 17, generator=generator())
    config = SamplingConfig(temperature=temperature)
    assert torch.equal(choose(logits, config, generator()), logits.argmax(-1))


def test_draws_follow_the_softmax_at_the_temperature():
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]])
    expected = torch.softmax(logits[0] / 0.7, dim=-1)
    drawn = frequencies(logits, SamplingConfig(temperature=0.7))
    # Four standard deviations of a frequency over 20,000 draws are at most 0.0142.
    assert torch.allclose(drawn, expected, atol=0.0142)


def test_draws_with_top_k_and_top_p_follow_the_renormalised_rest():
    probabilities = torch.tensor([[0.05, 0.4, 0.25, 0.2, 0.1]])
    # top_k 4 leaves 0.95, of which 0.4 and 0.25 are 0.68: not yet 0.7, so 0.2 stays as well.
    config = SamplingConfig(temperature=1.0, top_k=4, top_p=0.7)
    expected = torch.tensor([0.0, 0.4, 0.25, 0.2, 0.0]) / 0.85
    drawn = frequencies(probabilities.log(), config)
    assert torch.allclose(drawn, expected, atol=0.0142)
    assert drawn[0] == drawn[4] == 0


def test_equal_seeds_draw_equally_and_the_global_generator_is_not_used():
    logits = torch.randn(100, 17, generator=generator())
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = choose(logits, SamplingConfig(), generator(9))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(choose(logits, SamplingConfig(), generator(9)), first)
    assert not torch.equal(choose(logits, SamplingConfig(), generator(10)), first)


def test_half_precision_logits_draw_like_their_float32_values():
    logits = torch.randn(100, 17, generator=generator()).bfloat16()
    expected = choose(logits.float(), SamplingConfig(top_k=5), generator())
    assert torch.equal(choose(logits, SamplingConfig(top_k=5), generator()), expected)


def test_top_k_one_is_greedy_also_among_equals():
    logits = torch.tensor([[0.0, 3.0, 3.0, 1.0]])
    assert frequencies(logits, SamplingConfig(top_k=1), 200).tolist() == [0, 1, 0, 0]


def test_top_k_above_the_vocabulary_keeps_all_of_it():
    logits = torch.randn(3, 17, generator=generator())
    assert torch.equal(keep_likely(logits, 10_000, None), logits)


def test_top_p_keeps_the_smallest_set_that_reaches_p():
    logits = torch.tensor([[0.1, 0.5, 0.15, 0.25]]).log()
    for p, kept in [(0.01, [1]), (0.49, [1]), (0.51, [1, 3]), (0.74, [1, 3]), (0.76, [1, 2, 3])]:
        left = keep_likely(logits, None, p)[0].isfinite().nonzero().flatten().tolist()
        assert left == kept, p


def test_top_p_of_one_keeps_the_longest_tail():
    logits = torch.linspace(0, -60, 5000)[None]
    assert keep_likely(logits, None, 1.0).isfinite().all()
    assert keep_likely(logits, 5000, 1.0).isfinite().all()


@pytest.mark.parametrize(("top_k", "top_p"), [(5, None), (None, 0.6), (7, 0.9), (2, 0.05)])
def test_what_is_kept_equals_what_transformers_keeps(top_k, top_p):
    warpers = pytest.importorskip("transformers.generation.logits_process")
    logits = 3 * torch.randn(64, 40, generator=generator())
    theirs = logits
    if top_k is not None:
        theirs = warpers.TopKLogitsWarper(top_k)(None, theirs)
    if top_p is not None:
        theirs = warpers.TopPLogitsWarper(top_p)(None, theirs)
    assert torch.equal(keep_likely(logits, top_k, top_p), theirs)


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0.7},
        {"temperature": 1.0, "min_p": 0.05},
        {"temperature": 1.3, "top_k": 12, "min_p": 0.2},
        {"temperature": 0.9, "repetition_penalty": 1.3},
        {"temperature": 1.1, "repetition_penalty": 0.7, "top_k": 9, "top_p": 0.8, "min_p": 0.1},
    ],
)
def test_distributions_are_those_of_transformers(settings):
    pytest.importorskip("transformers")
    import transformers

    logits = 3 * torch.randn(64, 40, generator=generator())
    ids = torch.randint(40, (64, 7), generator=generator(1))
    seen = torch.zeros(64, 40, dtype=torch.bool).scatter_(1, ids, True)
    # The processors in the order in which transformers itself puts them.
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=40, hidden_size=8, num_attention_heads=1, num_hidden_layers=1,
            intermediate_size=8,
        )
    )  # fmt: skip
    theirs = {"top_k": 0, **settings}
    processors = model._get_logits_processor(
        transformers.GenerationConfig(do_sample=True, **theirs), input_ids_seq_length=7
    )
    expected = processors(ids, logits.clone()).softmax(-1)
    drawn_from = adjust(logits, SamplingConfig(**settings), seen).softmax(-1)
    torch.testing.assert_close(drawn_from, expected, rtol=0, atol=1e-6)
    assert not torch.equal(drawn_from, logits.softmax(-1))


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0.7},
        {"top_k": 4},
        {"top_p": 0.8},
        {"min_p": 0.1},
        {"repetition_penalty": 1.5},
        {"temperature": 1.4, "top_k": 7, "top_p": 0.9, "min_p": 0.05, "repetition_penalty": 1.2},
    ],
)
def test_frequencies_of_draws_pass_a_chi_squared_test(settings):
    stats = pytest.importorskip("scipy.stats")
    config = SamplingConfig(**{"temperature": 1.0, **settings})
    logits = 1.5 * torch.randn(1, 12, generator=generator(3))
    seen = (torch.arange(12) % 3 == 0)[None]
    draws = 20_000
    ids = choose(logits.expand(draws, -1), config, generator(), seen.expand(draws, -1))
    expected = adjust(logits, config, seen)[0].double().softmax(-1) * draws
    counts = torch.bincount(ids, minlength=12)
    possible = expected > 0
    assert counts[~possible].sum() == 0
    # Seeded: fails for one wrong distribution in a thousand draws of this size, never by chance.
    assert stats.chisquare(counts[possible], expected[possible]).pvalue > 1e-3


def test_a_rows_own_generator_draws_the_same_whatever_rows_stand_beside_it():
    logits = torch.randn(5, 30, generator=generator())
    together = choose(logits, SamplingConfig(), [generator(i) for i in range(5)])
    for i in range(5):
        assert together[i] == choose(logits[i : i + 1], SamplingConfig(), generator(i))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"temperature": -1.0}, ["--temperature -1.0", "0 or more"]),
        ({"temperature": math.nan}, ["--temperature nan"]),
        ({"temperature": math.inf}, ["--temperature inf"]),
        ({"top_k": 0}, ["--top_k 0", "--top_k null"]),
        ({"top_k": -3}, ["--top_k -3", "--top_k null"]),
        ({"top_p": 0.0}, ["--top_p 0.0", "--top_p null"]),
        ({"top_p": 1.01}, ["--top_p 1.01", "--top_p null"]),
        ({"top_p": math.nan}, ["--top_p nan", "--top_p null"]),
        ({"min_p": 1.01}, ["--min_p 1.01", "--min_p null"]),
        ({"min_p": -0.1}, ["--min_p -0.1", "--min_p null"]),
        ({"min_p": math.nan}, ["--min_p nan", "--min_p null"]),
        ({"repetition_penalty": 0.0}, ["--repetition_penalty 0.0", "above 0"]),
        ({"repetition_penalty": math.inf}, ["--repetition_penalty inf", "above 0"]),
    ],
)
def test_senseless_values_are_refused_in_one_line(settings, words):
    with pytest.raises(UserError) as refused:
        SamplingConfig(**settings)
    text = str(refused.value)
    assert "\n" not in text
    assert all(word in text for word in words)


@pytest.mark.parametrize("settings", [{"top_k": 5}, {"top_p": 0.9}, {"min_p": 0.1}])
def test_top_k_and_top_p_beside_greedy_are_refused_with_the_flag_that_settles_it(settings):
    (flag,) = settings
    with pytest.raises(SettingError, match=f"would do nothing.*set --{flag} null"):
        SamplingConfig(temperature=0, **settings)


@pytest.mark.parametrize("temperature", [0, 0.8])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_logits_that_are_not_finite_end_the_run_in_words(temperature, bad):
    logits = torch.full((2, 5), bad)
    logits[0] = 1.0
    with pytest.raises(RunError, match="not finite"):
        choose(logits, SamplingConfig(temperature=temperature), generator())


@pytest.mark.parametrize("top_p", [1e-300, 1e-8])
def test_a_tiny_top_p_leaves_the_likeliest_id(top_p: float) -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0]])
    config = SamplingConfig(temperature=1.0, top_p=top_p)
    assert int(choose(logits, config, torch.Generator().manual_seed(0))) == 1
