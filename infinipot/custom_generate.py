"""For people who live in transformers: model.generate(**inputs, custom_generate=infinipot.generate,
pot=PotConfig(...))."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteriaList,
)

from infinipot.config import PotConfig
from infinipot.engine.decode import Generation, advance, predict
from infinipot.engine.truncate import reader_for
from infinipot.model.runner import ModelRunner
from infinipot.scoring.representativeness import contrasted

PROMPT_END = 32
"""The catalyst: this many last tokens of the prompt, where the question stands (at most half of
what the pot can hold beside the survivors)."""


def generate(
    model: PreTrainedModel,
    input_ids: Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    pot: PotConfig | None = None,
    runner: ModelRunner | None = None,
    contrast_ids: Sequence[int] = (),
    host: ModelRunner | None = None,
    **model_kwargs: Any,
) -> Tensor:
    """Decoding loop for transformers' `generate`: prompts of any length are read into a pot, each
    row of a batch into its own.

    input_ids [B, T], left-padded as attention_mask says -> [B, T + new], right-padded. The rows'
    own tokens are read as they are (no chat template is added), row by row; answers are decoded
    together. Sampling, processors and stopping criteria are those that transformers prepared.
    runner: a ModelRunner of this model, made once for many calls: each new one looks at the model
    first, and records for a GPU anew. host: its old name. contrast_ids: the tokens of pot's
    `contrast`.
    """
    for name in ("num_beams", "num_return_sequences"):
        if (value := getattr(generation_config, name)) not in (1, None):
            raise ValueError(
                f"{name}={value} is not possible on a pot: use sampling or greedy decoding, one answer a row"
            )
    if generation_config.return_dict_in_generate:
        raise ValueError(
            "return_dict_in_generate=True is not possible on a pot: a Session gives the pot and its statistics"
        )
    for name, value in model_kwargs.items():
        other = any(
            kind in name
            for kind in (
                "inputs_embeds",
                "pixel",
                "image",
                "video",
                "audio",
                "input_features",
                "mm_encoder",
            )
        )
        if other and value is not None and not (isinstance(value, dict) and not value):
            raise ValueError(
                f"{name} is not possible on a pot, which reads token ids only: give input_ids; leave images, video and sound out"
            )
    if pot is not None and not isinstance(pot, PotConfig):
        raise TypeError(f"pot must be a PotConfig, not {type(pot).__name__}")
    if host is not None:
        warnings.warn(
            "generate(host=...) is now generate(runner=...)", DeprecationWarning, stacklevel=2
        )
        runner = runner or host
    if runner is not None and runner.model is not model:
        raise ValueError(
            "runner is that of another model: give ModelRunner(model) of this one, or leave it out"
        )
    config = pot or PotConfig()
    runner = runner or ModelRunner(model)
    for name, fine in (("catalyst", (None, "question")), ("answer_prefix", (None,))):
        if (value := config.changed.get(name)) not in fine:
            raise ValueError(
                f"{name}={value!r} is not possible here: the prompt's end is the catalyst; leave it out, or use a Session"
            )
    if (config.policy.contrast is None) != (len(contrast_ids) == 0):
        raise ValueError(
            f"contrast={config.policy.contrast!r} with {len(contrast_ids)} contrast_ids: generate has no tokenizer, give both or neither"
        )
    mask = model_kwargs.get("attention_mask")
    max_tokens = generation_config.max_length - input_ids.shape[1]
    rows = [
        row if mask is None else row[mask[number].bool()] for number, row in enumerate(input_ids)
    ]
    generations = [_generation(runner, row, config, contrast_ids, max_tokens) for row in rows]
    pad = generation_config._pad_token_tensor
    so_far = input_ids
    live = dict(enumerate(generations))
    try:
        for generation in generations:
            generation.begin()
        while live:
            # the last layer may be elsewhere
            predicted = predict(list(live.values())).to(so_far.device)
            logits = predicted.new_zeros(len(generations), predicted.shape[-1]).index_copy_(
                0, torch.tensor([*live], device=predicted.device), predicted
            )
            scores = logits_processor(so_far, logits)
            if generation_config.do_sample:
                tokens = torch.multinomial(scores.softmax(dim=-1), 1)[:, 0]
            else:
                tokens = scores.argmax(dim=-1)
            ended = [number for number in range(len(generations)) if number not in live]
            if pad is None:
                tokens[ended] = 0
            else:
                tokens[ended] = int(pad.flatten()[0])
            so_far = torch.cat((so_far, tokens[:, None].to(so_far.dtype)), dim=1)
            for number, done in enumerate(stopping_criteria(so_far, None).tolist()):
                if number in live and done:
                    live.pop(number).end()
            for number, generation in live.items():
                generation.tokens.append(int(tokens[number]))
            advance(list(live.values()))
    finally:
        for generation in live.values():
            generation.end()
    return so_far


def _generation(
    runner: ModelRunner,
    ids: Tensor,
    config: PotConfig,
    contrast_ids: Sequence[int],
    max_tokens: int,
) -> Generation:
    """A row's prompt, read, and the answer to come."""
    reader = reader_for(runner, config)
    end = min(PROMPT_END, max(1, (config.pot_size - config.survivors) // 2), len(ids))
    if "catalyst" in reader.plan.needs:
        catalyst = ids[None, len(ids) - end :]
    else:
        catalyst = None
    if catalyst is not None and len(contrast_ids):
        catalyst = contrasted(catalyst, reader.tensor(list(contrast_ids)))
    reader.check_room(catalyst, 0)
    # known beforehand here: nothing to keep room for
    whole = reader.policy.bounded and len(ids) + max_tokens <= config.pot_size
    reader.read(ids.tolist(), None if whole else catalyst)
    return Generation(
        reader, [], max_tokens=max_tokens, pick=int, stop_ids=set(), catalyst=catalyst
    )
