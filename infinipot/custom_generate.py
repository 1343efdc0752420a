"""A pot for `generate` of transformers: model.generate(**inputs, custom_generate=infinipot.generate,
pot=PotConfig(...))."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteriaList,
)

from infinipot.cache.pot import Pot
from infinipot.compat import streamer_given
from infinipot.config import PotConfig
from infinipot.engine.decode import InvalidLogits, advance, begin, predict
from infinipot.engine.generation import Generation
from infinipot.engine.truncate import reader_for
from infinipot.model.runner import ModelRunner
from infinipot.scoring.representativeness import contrasted

PROMPT_END = 32
"""Length of the catalyst: the last tokens of the prompt, where the question is. At most half of the
pot beside the survivors."""
OTHER_INPUTS = (
    "inputs_embeds",
    "pixel",
    "image",
    "video",
    "audio",
    "input_features",
    "mm_encoder",
)
"""Parts of the names of arguments that a pot cannot read."""


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
    """Decoding loop for transformers' `generate`. It reads prompts of any length into pots, one for
    each row of the batch.

    input_ids [B, T], left-padded by attention_mask -> [B, T + new], right-padded. Prompts are read
    without a chat template, row by row; answers are decoded together. Sampling, processors and
    stopping criteria are those of transformers. runner: a ModelRunner of this model to reuse; a new
    one inspects the model first, and records CUDA graphs anew. host: its old name. contrast_ids: the
    tokens of pot's `contrast`. A streamer is ended also after an error.
    """
    streamer = streamer_given()
    if host is not None:
        warning = "generate(host=...) is now generate(runner=...)"
        warnings.warn(warning, DeprecationWarning, stacklevel=2)
        runner = runner or host
    picks = _Picks(logits_processor, stopping_criteria, generation_config, streamer)
    with _ended(streamer):
        _check_decoding(generation_config)
        _check_inputs(model_kwargs)
        config = _checked(pot, len(contrast_ids))
        runner = _runner(runner, model)
        rows = list(input_ids)
        if (mask := model_kwargs.get("attention_mask")) is not None:
            rows = [row[mask[number].bool()] for number, row in enumerate(rows)]
        max_tokens = generation_config.max_length - input_ids.shape[1]
        generations = [_generation(runner, row, config, contrast_ids, max_tokens) for row in rows]
        return _decode(generations, input_ids, picks)


@contextmanager
def _ended(streamer: Any) -> Iterator[None]:
    """Ends a streamer afterwards: who waits for its next piece would wait for ever."""
    try:
        yield
    finally:
        if streamer is not None:
            streamer.end()


def _runner(runner: ModelRunner | None, model: PreTrainedModel) -> ModelRunner:
    if runner is not None and runner.model is not model:
        raise ValueError(
            "runner is that of another model: give ModelRunner(model) of this one, or leave it out"
        )
    return runner or ModelRunner(model)


def _check_decoding(config: GenerationConfig) -> None:
    for name in ("num_beams", "num_return_sequences"):
        value = getattr(config, name)
        if value not in (1, None):
            raise ValueError(
                f"{name}={value} is not possible on a pot: use sampling or greedy decoding, one answer a row"
            )
    if config.return_dict_in_generate:
        raise ValueError(
            "return_dict_in_generate=True is not possible on a pot: a Session gives the pot and its statistics"
        )


def _check_inputs(model_kwargs: dict[str, Any]) -> None:
    for name, value in model_kwargs.items():
        empty = value is None or (isinstance(value, dict) and not value)
        if not empty and any(part in name for part in OTHER_INPUTS):
            raise ValueError(
                f"{name} is not possible on a pot, which reads token ids only: "
                "give input_ids; leave images, video and sound out"
            )
    for name in ("past_key_values", "cache"):
        cache = model_kwargs.get(name)
        if isinstance(cache, Pot) or (cache is not None and cache.get_seq_length()):
            raise ValueError(
                "past_key_values with entries is not possible on a pot, which reads the whole prompt: "
                "leave it out; to go on from a pot, use session.ask or session.chat"
            )


def _checked(pot: PotConfig | None, contrast_length: int) -> PotConfig:
    """The config, without options that need a tokenizer. contrast_length: number of contrast ids."""
    if pot is not None and not isinstance(pot, PotConfig):
        raise TypeError(f"pot must be a PotConfig, not {type(pot).__name__}")
    config = pot or PotConfig()
    for name, allowed in (("catalyst", (None, "question")), ("answer_prefix", (None,))):
        value = config.changed.get(name)
        if value not in allowed:
            raise ValueError(
                f"{name}={value!r} is not possible here: the prompt's end is the catalyst; "
                "leave it out, or use a Session"
            )
    contrast = config.policy.contrast
    if (contrast is None) != (contrast_length == 0):
        raise ValueError(
            f"contrast={contrast!r} with {contrast_length} contrast_ids: "
            "generate has no tokenizer, give both or neither"
        )
    return config


@dataclass(frozen=True)
class _Picks:
    """How the next tokens are picked, and when rows end."""

    processor: LogitsProcessorList
    criteria: StoppingCriteriaList
    config: GenerationConfig
    streamer: Any = None
    """Gets the tokens [B] of each step, as from transformers."""

    def __call__(self, ids: Tensor, logits: Tensor) -> Tensor:
        """ids [B, T] so far, logits [B, V] -> token ids [B]."""
        if not logits.amax(dim=-1).isfinite().all():
            raise InvalidLogits
        scores = self.processor(ids, logits)
        if self.config.do_sample:
            return torch.multinomial(scores.softmax(dim=-1), 1)[:, 0]
        return scores.argmax(dim=-1)

    @property
    def pad(self) -> int:
        pad = self.config._pad_token_tensor
        if pad is None:
            return 0
        return int(pad.flatten()[0])

    def ended(self, ids: Tensor) -> list[bool]:
        """Whether each row of ids [B, T] ends here."""
        ends: list[bool] = self.criteria(ids, None).tolist()
        return ends


def _decode(generations: list[Generation], ids: Tensor, picks: _Picks) -> Tensor:
    """Run the generations until all rows have ended, and append their tokens to ids [B, T]."""
    live = dict(enumerate(generations))
    try:
        begin(generations)
        while live:
            # the last layer may be on another device
            rows = predict(list(live.values())).to(ids.device)
            numbers = torch.tensor([*live], device=ids.device)
            logits = rows.new_zeros(len(generations), rows.shape[-1])
            tokens = picks(ids, logits.index_copy_(0, numbers, rows))
            tokens[[number for number in range(len(generations)) if number not in live]] = picks.pad
            ids = torch.cat((ids, tokens[:, None].to(ids.dtype)), dim=1)
            if picks.streamer is not None:
                picks.streamer.put(tokens.cpu())
            for number, ended in enumerate(picks.ended(ids)):
                if number in live and ended:
                    live.pop(number).end()
            for number, generation in live.items():
                generation.tokens.append(int(tokens[number]))
            advance(list(live.values()))
    finally:
        for generation in live.values():
            generation.end()
    return ids


def _generation(
    runner: ModelRunner,
    ids: Tensor,
    config: PotConfig,
    contrast_ids: Sequence[int],
    max_tokens: int,
) -> Generation:
    """Read the prompt of a row, ids [T]. Returns its generation."""
    reader = reader_for(runner, config)
    catalyst = None
    if "catalyst" in reader.plan.needs:
        end = min(PROMPT_END, max(1, (config.pot_size - config.mean_budget) // 2), len(ids))
        catalyst = ids[None, len(ids) - end :]
        if len(contrast_ids):
            catalyst = contrasted(catalyst, reader.tensor(list(contrast_ids)))
    reader.check_room(catalyst, 0)
    prompt: list[int] = ids.tolist()
    if not reader.policy.bounded or reader.plan.whole or len(prompt) > config.pot_size:
        reader.read(prompt, catalyst)
        prompt = []
    return Generation(
        reader, prompt, max_tokens=max_tokens, pick=int, stop_ids=set(), catalyst=catalyst
    )
