"""Many answers' next tokens in one go: as transformers' warpers allow them, and as each alone would pick."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from operations import WAITS, Operations
from torch import Tensor
from transformers import LogitsProcessorList
from transformers.generation import logits_process as warpers

from infinipot import Sampling
from infinipot.engine.sampling import BELOW_ONE, Sampler, SamplerBatch, choose, sample

OPTIONS: list[dict[str, Any]] = [
    {"temperature": 1},
    {"temperature": 0.3},
    {"temperature": 2.5},
    {"temperature": 1, "top_k": 1},
    {"temperature": 1, "top_k": 7},
    {"temperature": 0.7, "top_k": 10**6},
    {"temperature": 1, "top_p": 0.9},
    {"temperature": 1.5, "top_p": 0.5},
    {"temperature": 1, "top_p": 0},
    {"temperature": 0.8, "min_p": 0.1},
    {"temperature": 1, "min_p": 1},
    {"temperature": 1.2, "top_k": 40, "top_p": 0.8},
    {"temperature": 1.2, "top_k": 40, "top_p": 0.95, "min_p": 0.05},
    {"temperature": 1, "top_p": 0.9, "min_p": 0.02},
]
CPU = torch.device("cpu")


def logits_of(rows: int, size: int, seed: int = 0, ties: bool = False) -> Tensor:
    x = 3 * torch.randn(rows, size, generator=torch.Generator().manual_seed(seed))
    return x.round() if ties else x


def samplers(options: list[dict[str, Any]], seed: int = 0) -> list[Sampler]:
    return [Sampler(Sampling(seed=seed + row, **one)) for row, one in enumerate(options)]


def naive(logits: Tensor, options: dict[str, Any]) -> Tensor:
    """Probabilities [1, V] of a row's tokens, from transformers' own warpers."""
    warp = LogitsProcessorList([warpers.TemperatureLogitsWarper(float(options["temperature"]))])
    if options.get("top_k"):
        warp.append(warpers.TopKLogitsWarper(options["top_k"]))
    if options.get("top_p", 1) < 1:
        warp.append(warpers.TopPLogitsWarper(options["top_p"]))
    if options.get("min_p"):
        warp.append(warpers.MinPLogitsWarper(options["min_p"]))
    return warp(torch.zeros(1, 0, dtype=torch.long), logits).softmax(dim=-1)


@pytest.mark.parametrize("size", [5, 97, 3000, 50_000])
@pytest.mark.parametrize("ties", [False, True])
def test_probabilities_are_those_of_transformers(size: int, ties: bool) -> None:
    for seed in range(3):
        logits = logits_of(len(OPTIONS), size, seed, ties)
        weights = SamplerBatch(samplers(OPTIONS), CPU).weigh(logits)
        for row, options in enumerate(OPTIONS):
            expected = naive(logits[row : row + 1], options)[0]
            assert torch.equal(weights[row] > 0, expected > 0), options
            got = weights[row].double() / weights[row].double().sum()
            torch.testing.assert_close(got, expected.double(), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("size", [5, 97, 1000])
def test_each_token_is_chosen_as_often_as_its_probability_says(size: int) -> None:
    count = 4_000
    numbers = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    for row, options in enumerate(OPTIONS):
        logits = logits_of(1, size, row)
        weights = SamplerBatch(samplers([options]), CPU).weigh(logits)
        ids = choose(weights.expand(count, -1), numbers)
        assert torch.equal(ids, ids.sort().values)  # in the order of ids
        frequency = ids.bincount(minlength=size) / count
        assert (frequency - naive(logits, options)[0]).abs().max() < 1.5 / count


def test_choices_are_those_of_the_running_sum() -> None:
    random = torch.Generator().manual_seed(0)
    for size in (1, 255, 256, 257, 1000):
        weights = torch.rand(500, size, generator=random)
        weights[torch.rand(500, size, generator=random) < 0.5] = 0
        weights[:, size // 2] = 1e-6
        numbers = torch.rand(500, dtype=torch.float64, generator=random)
        sums = weights.double().cumsum(dim=-1)
        expected = torch.searchsorted(sums, numbers[:, None] * sums[:, -1:], right=True)
        assert torch.equal(choose(weights, numbers), expected[:, 0])


def test_tokens_without_probability_are_never_chosen() -> None:
    weights = torch.zeros(4, 700)
    for row, ids in enumerate(([3], [300, 301], [0, 699], range(256, 512))):
        weights[row, list(ids)] = torch.rand(len(ids)) + 1e-30
    for number in (0.0, 1e-300, 0.5, 1 - 2**-24, BELOW_ONE):
        ids = choose(weights, torch.full((4,), number, dtype=torch.float64))
        assert (weights.gather(1, ids[:, None]) > 0).all()
    tiny = torch.tensor([[0, 1.0, 1e-38, 0]])  # lost in the sum
    assert choose(tiny, torch.tensor([BELOW_ONE]).double()).item() in (1, 2)


MIXED = [{}, *OPTIONS, {}, {"temperature": 1e-45}, {"temperature": 1, "top_k": 3}]


def test_a_row_in_a_batch_is_as_alone() -> None:
    alone = samplers(MIXED)
    together = samplers(MIXED)
    going_on = list(range(len(MIXED)))
    for step in range(90):
        logits = logits_of(len(MIXED), 300, step)
        expected = [alone[row](logits[row : row + 1]) for row in going_on]
        ids = sample([together[row] for row in going_on], logits[going_on])
        assert (ids.dtype, ids.tolist()) == (torch.long, expected)
        if step % 5 == 4:  # an answer ends
            going_on.pop(step % len(going_on))
        if not going_on:
            return
    raise AssertionError("no batch became empty")


def test_greedy_rows_take_the_likeliest_and_the_first_of_equals() -> None:
    logits = logits_of(3, 50)
    logits[1, [7, 20]] = 99
    ids = sample(samplers([{}, {}, {"temperature": 1e-45}]), logits)
    assert ids.tolist() == [int(logits[0].argmax()), 7, int(logits[2].argmax())]


def test_a_seed_repeats_and_others_differ() -> None:
    logits = logits_of(1, 500)

    def tokens(seed: int | None) -> list[int]:
        sampler = Sampler(Sampling(temperature=2, seed=seed))
        return [sampler(logits) for _ in range(70)]

    assert tokens(1) == tokens(1)
    assert len({tuple(tokens(seed)) for seed in (1, 2, None, None)}) == 4


def test_logits_of_one_token_only() -> None:
    logits = torch.full((len(OPTIONS), 40), -torch.inf)
    logits[:, 11] = -3
    assert sample(samplers(OPTIONS), logits).tolist() == [11] * len(OPTIONS)


@pytest.mark.parametrize(
    ("options", "sorts", "rows"),
    [
        ([{}, {}], set(), 0),
        ([{}, {"temperature": 1}, {"temperature": 2, "min_p": 0.1}], set(), 0),
        ([{}, {"temperature": 1}, {"temperature": 1, "top_k": 3}], {"topk"}, 1),
        ([{}, {"temperature": 1}, {"temperature": 1, "top_p": 0.9}], {"sort"}, 1),
    ],
)
def test_only_rows_that_need_it_are_sorted(
    options: list[dict[str, Any]], sorts: set[str], rows: int
) -> None:
    batch = SamplerBatch(samplers(options), CPU)
    logits = logits_of(len(options), 60)
    with Operations() as seen:
        batch.sample(logits)
    assert {"sort", "topk"} & set(seen.names) == sorts
    assert seen.rows == rows
    assert not WAITS & set(seen.names)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_nothing_waits_and_choices_are_those_of_the_cpu() -> None:
    logits = logits_of(len(MIXED), 3000)
    for ties in (logits, logits.round()):
        batch = SamplerBatch(samplers(MIXED), torch.device("cuda"))
        on_gpu = ties.cuda()
        batch.sample(on_gpu)  # the first call loads kernels
        torch.cuda.set_sync_debug_mode("error")
        try:
            ids = batch.sample(on_gpu)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        on_cpu = samplers(MIXED)
        sample(on_cpu, ties)
        assert ids.device.type == "cuda"
        assert ids.tolist() == sample(on_cpu, ties).tolist()
