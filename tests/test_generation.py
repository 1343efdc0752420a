"""model.generate(custom_generate=infinipot.generate): transformers' own call on a pot."""

from __future__ import annotations

import pytest
import torch
from helpers import greedy, random_ids
from tiny import make_tiny, make_tokenizer

from infinipot import PotConfig, Session, generate
from infinipot.catalysts import PROMPTS
from infinipot.model.runner import ModelRunner
from infinipot.text.chat_template import Dialogue

MODEL = make_tiny("llama")
SMALL = PotConfig(pot_size=64, distill_to=24)
OPTIONS = {"max_new_tokens": 30, "do_sample": False, "pad_token_id": 0, "custom_generate": generate}


def test_long_prompts_equal_a_session() -> None:
    ids = random_ids(300)
    out = MODEL.generate(torch.tensor([ids]), pot=SMALL, **OPTIONS)
    session = Session(MODEL, None, SMALL)
    session.append(ids, question=ids[-20:])
    assert out[0].tolist() == ids + list(
        session.stream_ids(max_tokens=30, pick=greedy, stop_ids=set())
    )


def test_a_contrast_equals_a_session() -> None:
    """The prompt's ids are given beside it; either without the other is refused."""
    tokenizer = make_tokenizer()
    model, ids = make_tiny("llama", vocab=len(tokenizer)), random_ids(300)
    pot = PotConfig(pot_size=64, distill_to=24, contrast="unrelated")
    contrast = Dialogue(tokenizer, None, False).catalyst(PROMPTS["unrelated"])
    out = model.generate(torch.tensor([ids]), pot=pot, contrast_ids=contrast, **OPTIONS)
    session = Session(model, tokenizer, pot)
    session.append(ids, question=ids[-20:])
    assert out[0].tolist() == ids + list(
        session.stream_ids(max_tokens=30, pick=greedy, stop_ids=set())
    )
    for wrong in ({"pot": pot}, {"pot": SMALL, "contrast_ids": contrast}):
        with pytest.raises(ValueError, match="generate has no tokenizer, give both or neither"):
            model.generate(torch.tensor([ids]), **wrong, **OPTIONS)


def test_a_runner_for_many_calls() -> None:
    runner = ModelRunner(MODEL)
    ids = torch.tensor([random_ids(120)])
    out = [
        MODEL.generate(ids, pot=SMALL, runner=one, **OPTIONS).tolist()
        for one in (None, runner, runner)
    ]
    assert out[0] == out[1] == out[2]
    with pytest.warns(DeprecationWarning, match="runner="):
        assert MODEL.generate(ids, pot=SMALL, host=runner, **OPTIONS).tolist() == out[0]
    with pytest.raises(ValueError, match="runner is that of another model"):
        MODEL.generate(ids, pot=SMALL, runner=ModelRunner(make_tiny("llama", seed=3)), **OPTIONS)


def test_every_row_of_a_padded_batch_equals_itself_alone() -> None:
    rows = [random_ids(length, seed=length) for length in (300, 90, 20)]
    width = max(map(len, rows))
    ids = torch.tensor([[0] * (width - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    out = MODEL.generate(ids, attention_mask=mask, pot=SMALL, **OPTIONS)
    for row, got in zip(rows, out, strict=True):
        alone = MODEL.generate(torch.tensor([row]), pot=SMALL, **OPTIONS)
        assert got[width:].tolist() == alone[0, len(row) :].tolist()


def test_end_tokens_processors_and_stopping_criteria_count() -> None:
    from transformers import StoppingCriteria, StoppingCriteriaList

    ids = torch.tensor([random_ids(100)])
    free = MODEL.generate(ids, pot=SMALL, **OPTIONS)[0, 100:].tolist()
    ended = MODEL.generate(ids, pot=SMALL, eos_token_id=[free[4], 96], **OPTIONS)[0, 100:].tolist()
    assert ended == free[: free.index(free[4]) + 1]
    banned = MODEL.generate(ids, pot=SMALL, suppress_tokens=[free[0]], **OPTIONS)[0, 100:].tolist()
    assert free[0] not in banned

    class Three(StoppingCriteria):
        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **kwargs) -> torch.Tensor:
            return torch.tensor([input_ids.shape[1] >= 103])

    assert (
        MODEL.generate(
            ids, pot=SMALL, stopping_criteria=StoppingCriteriaList([Three()]), **OPTIONS
        ).shape[1]
        == 103
    )


def test_sampling_follows_transformers_seed() -> None:
    ids, options = (
        torch.tensor([random_ids(50)]),
        {**OPTIONS, "do_sample": True, "temperature": 1.5, "top_k": 20},
    )
    stock = {name: value for name, value in options.items() if name != "custom_generate"}
    torch.manual_seed(3)
    one = MODEL.generate(ids, pot=PotConfig(pot_size=256), **options)
    torch.manual_seed(3)
    assert torch.equal(one, MODEL.generate(ids, **stock))


@pytest.mark.parametrize(
    "options",
    [
        {"num_beams": 2},
        {"num_return_sequences": 2, "do_sample": True},
        {"return_dict_in_generate": True},
    ],
)
def test_what_a_pot_cannot_do_is_refused(options: dict) -> None:
    with pytest.raises(ValueError, match="not possible on a pot"):
        MODEL.generate(torch.tensor([random_ids(50)]), pot=SMALL, **{**OPTIONS, **options})


def test_a_pot_is_not_cropped_or_reordered() -> None:
    session = Session(MODEL, None, SMALL)
    with pytest.raises(ValueError, match="cannot be cropped"):
        session.pot.crop(-3)
    with pytest.raises(ValueError, match="beam search"):
        session.pot.reorder_cache(torch.tensor([0]))


def test_streamers() -> None:
    """They get the prompt, every token as it comes, and the end, as from transformers itself."""
    from transformers.generation.streamers import BaseStreamer

    class Noted(BaseStreamer):
        def __init__(self) -> None:
            self.got: list = []

        def put(self, value: torch.Tensor) -> None:
            self.got.append(value.flatten().tolist())

        def end(self) -> None:
            self.got.append("end")

    ids = torch.tensor([random_ids(40)])
    options = {**OPTIONS, "max_new_tokens": 6}
    pot = PotConfig(pot_size=64, distill_to=24)
    streamer = Noted()
    out = MODEL.generate(ids, pot=pot, streamer=streamer, **options)[0].tolist()
    assert streamer.got == [out[:40], *([token] for token in out[40:]), "end"]
    stock = Noted()
    MODEL.generate(ids, streamer=stock, **{**options, "custom_generate": None})
    assert streamer.got == stock.got


def test_how_to_stop_at_a_text() -> None:
    """As README says."""
    from transformers import StopStringCriteria

    tokenizer = make_tokenizer()
    ids = torch.tensor([random_ids(40)])
    free = MODEL.generate(ids, pot=SMALL, **OPTIONS)[0, 40:].tolist()
    text = tokenizer.decode(free[3:5])
    stop = StopStringCriteria(tokenizer, [text])
    out = MODEL.generate(ids, pot=SMALL, stopping_criteria=[stop], **OPTIONS)[0, 40:].tolist()
    assert out == free[: len(out)]
    assert tokenizer.decode(out).endswith(text)
