"""The same on a GPU: exact when it fits, bounded when it does not, the same answer from the same pot."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from commands import save_tiny
from helpers import CATALYST, assert_close, greedy, kept, random_ids
from tiny import FAMILIES, make_tiny

from infinipot import PotConfig, Session, generate, load
from infinipot.engine.cuda_graphs import graph_cache, unrecorded
from infinipot.model.groups import weights_in_groups
from infinipot.model.quantizer import quantise_model
from infinipot.model.runner import ModelRunner

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("chunk", [7, 512])
@pytest.mark.parametrize("family", FAMILIES)
def test_equals_stock_and_the_cpu(family: str, chunk: int) -> None:
    ids = random_ids(200)
    model = make_tiny(family).cuda()
    session = Session(model, None, PotConfig(pot_size=256, chunk_tokens=chunk))
    session.append(ids, question=CATALYST)
    assert_close("fits", session.logits, model(torch.tensor([ids], device="cuda")).logits[:, -1])
    small = PotConfig(pot_size=64, distill_to=24, chunk_tokens=chunk, pool=3)
    sessions = [Session(m, None, small) for m in (model, make_tiny(family))]
    for one in sessions:
        one.append(ids, question=CATALYST)
    assert kept(sessions[0]) == kept(sessions[1])
    assert_close("distilled", sessions[0].logits.cpu(), sessions[1].logits)


@pytest.mark.parametrize("family", FAMILIES)
def test_norms_are_found_and_given_back(family: str) -> None:
    model = make_tiny(family).to("cuda", torch.bfloat16)
    norms = [module for module in model.modules() if "RMSNorm" in type(module).__name__]
    runner = ModelRunner(model)
    assert len(runner.norms) == len(norms)
    ids = torch.tensor([random_ids(90)], device="cuda")
    session = Session(runner, None, PotConfig(pot_size=128))
    session.append(ids, question=CATALYST)
    assert not any("forward" in module.__dict__ for module in norms)
    assert_close("stock", session.logits, model(ids).logits[:, -1], tolerance=0.05)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype, tmp_path) -> None:
    model = make_tiny("llama").to("cuda", dtype)
    session = Session(model, None, PotConfig(pot_size=128, distill_to=48))
    session.append(random_ids(1000), question=CATALYST)
    assert session.stats.peak_entries == 128
    before = session.logits
    answer = list(session.stream_ids(random_ids(9), max_tokens=100, pick=greedy, stop_ids=set()))
    assert torch.equal(session.logits, before)
    session.save(tmp_path / "a.pot")
    again = Session.load(tmp_path / "a.pot", model)
    assert (
        list(again.stream_ids(random_ids(9), max_tokens=100, pick=greedy, stop_ids=set())) == answer
    )


def test_generate() -> None:
    model, ids = make_tiny("qwen2").cuda(), torch.tensor([random_ids(100)], device="cuda")
    options = {"max_new_tokens": 30, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(
        model.generate(ids, **options),
        model.generate(ids, custom_generate=generate, pot=PotConfig(pot_size=256), **options),
    )


def test_threads_read_and_answer_with_recordings() -> None:
    """Cycles and steps of several threads are recorded and replayed one after the other, in memory that they share."""
    runner = ModelRunner(make_tiny("llama", vocab=20_000).to("cuda", torch.bfloat16))

    def work(seed: int) -> tuple[list[int], list]:
        session = Session(runner, None, PotConfig(pot_size=64, distill_to=24, chunk_tokens=16))
        session.append(random_ids(600, seed=seed), question=CATALYST)
        options = {"max_tokens": 40, "pick": greedy, "stop_ids": set(), "keep": True}
        return list(session.stream_ids(random_ids(5, seed=seed), **options)), kept(session)

    expected = [work(seed) for seed in range(4)]
    for _ in range(3):
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(work, range(4))) == expected


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
@pytest.mark.parametrize("output", [0, 1])
def test_layers_on_two_devices(output: int, tmp_path: Path) -> None:
    """Each layer's entries are where the layer is; reading, distilling, answering and loading are those of one device. output: where the
    output layer is, beside the embeddings (as when they are tied) or behind the last layer."""
    from transformers import AutoModelForCausalLM

    one = make_tiny("llama", layers=4, vocab=20_000).cuda()
    one.save_pretrained(tmp_path / "model")
    places = {f"model.layers.{number}": number // 2 for number in range(4)}
    places |= {"model.embed_tokens": 0, "model.rotary_emb": 0, "model.norm": 1, "lm_head": output}
    two = AutoModelForCausalLM.from_pretrained(
        tmp_path / "model", device_map=places, dtype=torch.float32
    ).eval()
    config = PotConfig(pot_size=64, distill_to=24, chunk_tokens=16)
    sessions = [Session(model, None, config) for model in (one, two)]
    for session in sessions:
        session.append(random_ids(300), question=CATALYST)
    assert [layer.keys.device.index for layer in sessions[1].pot.bounded] == [0, 0, 1, 1]
    assert kept(sessions[0]) == kept(sessions[1])
    assert_close("logits", sessions[1].logits.cpu(), sessions[0].logits.cpu())
    sessions[1].save(tmp_path / "a.pot")
    sessions.append(Session.load(tmp_path / "a.pot", two))
    options = {"max_tokens": 60, "pick": greedy, "keep": True, "stop_ids": set()}
    said = [list(session.stream_ids([5, 6, 7], **options)) for session in sessions]
    assert said[0] == said[1] == said[2]
    assert kept(sessions[1]) == kept(sessions[2])
    ids, decoding = (
        torch.tensor([random_ids(100)], device="cuda:0"),
        {"max_new_tokens": 20, "do_sample": False, "pad_token_id": 0},
    )
    answers = [
        model.generate(ids, custom_generate=generate, pot=config, **decoding)
        for model in (one, two)
    ]
    assert torch.equal(*answers)


@pytest.mark.parametrize(("dtype", "allowed"), [(torch.float32, 1e-4), (torch.bfloat16, 0.05)])
@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_quantised_weights_in_recordings(weights: str, dtype: torch.dtype, allowed: float) -> None:
    """Chunks and steps with weights in groups, recorded and not: the same survivors, logits and answers; and those of stock with the weights unpacked.

    In bfloat16 rounding may choose other survivors, which changes everything after."""
    model = make_tiny("llama", vocab=20_000).to("cuda", dtype)
    quantise_model(model, weights)
    runner = ModelRunner(model)
    config = PotConfig(pot_size=128, distill_to=48, chunk_tokens=100)
    ids = random_ids(900)
    sessions = [Session(one, None, config) for one in (runner, unrecorded(runner))]
    said = []
    for session in sessions:
        for part in (ids[:300], ids[300:600], ids[600:]):
            session.append(part, question=CATALYST)
        options = {"max_tokens": 40, "pick": greedy, "stop_ids": set()}
        said.append(list(session.stream_ids([5, 6, 7], **options)))
    cache = graph_cache(runner)
    assert any(one.recording for one in cache.chunks.values())
    assert any(one.recording for one in cache.steps.values())
    if dtype == torch.float32:
        assert_close("logits", sessions[0].logits, sessions[1].logits, allowed)
        assert kept(sessions[0]) == kept(sessions[1])
        assert said[0] == said[1]
    short = Session(runner, None, config)
    short.append(ids[:100], question=CATALYST)
    plain = make_tiny("llama", vocab=20_000).to("cuda", dtype)
    for name, groups in weights_in_groups(model).items():
        plain.get_parameter(name).data.copy_(groups.dequantize())
    logits = plain(torch.tensor([ids[:100]], device="cuda")).logits[:, -1]
    assert_close("stock", short.logits, logits, allowed)


def test_moving_quantised_weights_takes_no_more_than_they_do() -> None:
    """A model that goes to the GPU never has more memory there than what stays, and a little."""
    model = make_tiny("llama", vocab=20_000)
    quantise_model(model, "int4")
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    model.cuda()
    stays = torch.cuda.memory_allocated() - before
    assert torch.cuda.max_memory_allocated() - before <= 1.15 * stays


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_weights_are_rounded_on_the_gpu_as_on_a_cpu(weights: str, tmp_path: Path) -> None:
    """A model that is quantised while it loads: in eight bits equal, in four up to a last digit of a scale."""
    save_tiny(tmp_path)
    loaded = [load(str(tmp_path), device=device, weights=weights)[0] for device in ("cuda", "cpu")]
    ours, theirs = (weights_in_groups(model) for model in loaded)
    assert ours.keys() == theirs.keys() and len(ours) > 0
    for name, one in ours.items():
        other = theirs[name]
        assert one.device.type == "cuda"
        if one.bits == 8:
            assert torch.equal(one.numbers.cpu(), other.numbers)
        assert_close(name, one.dequantize().cpu(), other.dequantize(), 1e-2)
