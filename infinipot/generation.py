"""For people who live in transformers: model.generate(**inputs, custom_generate=infinipot.generate, pot=PotConfig(...))."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList, PreTrainedModel, StoppingCriteriaList

from infinipot.host import Host
from infinipot.options import PotConfig
from infinipot.reader import Reader

PROMPT_END = 32
"""The catalyst: this many last tokens of the prompt, where the question stands (at most half of what the pot can hold beside the survivors)."""


def generate(
    model: PreTrainedModel,
    input_ids: Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    pot: PotConfig | None = None,
    **model_kwargs: Any,
) -> Tensor:
    """Decoding loop for transformers' `generate`: prompts of any length are read into a pot, each row of a batch into its own.

    input_ids [B, T], left-padded as attention_mask says -> [B, T + new], right-padded. The row's own tokens are read as they are (no chat
    template is added). Sampling, processors and stopping criteria are those that transformers prepared.
    """
    for name in ("num_beams", "num_return_sequences"):
        if (value := getattr(generation_config, name)) not in (1, None):
            raise ValueError(f"{name}={value} is not possible on a pot: use sampling or greedy decoding, one answer a row")
    if generation_config.return_dict_in_generate:
        raise ValueError("return_dict_in_generate=True is not possible on a pot: a Session gives the pot and its statistics")
    if model_kwargs.get("inputs_embeds") is not None:
        raise ValueError("inputs_embeds is not possible on a pot: give input_ids")
    if pot is not None and not isinstance(pot, PotConfig):
        raise TypeError(f"pot must be a PotConfig, not {type(pot).__name__}")
    config, host = pot or PotConfig(), Host(model)
    if config.catalyst not in (None, "question"):
        raise ValueError(f"catalyst={config.catalyst!r} needs a tokenizer, which generate does not pass on: leave it out, or use a Session")
    mask = model_kwargs.get("attention_mask")
    rows = []
    for number, row in enumerate(input_ids):
        ids = row if mask is None else row[mask[number].bool()]
        rows.append(_row(host, row, ids, config, logits_processor, stopping_criteria, generation_config))
    pad = generation_config._pad_token_tensor
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=0 if pad is None else float(pad)).to(input_ids.dtype)


def _row(
    host: Host,
    padded: Tensor,
    ids: Tensor,
    config: PotConfig,
    processors: LogitsProcessorList,
    stopping: StoppingCriteriaList,
    options: GenerationConfig,
) -> Tensor:
    """One row's prompt and what comes after it, [T + new]."""
    reader = Reader(host, config)
    max_tokens = options.max_length - len(padded)
    end = min(PROMPT_END, max(1, (config.pot_size - config.survivors) // 2), len(ids))
    catalyst = ids[None, len(ids) - end :] if "catalyst" in reader.needs else None
    reader.check_room(catalyst, 0)
    whole = reader.policy.reads == "pot" and len(ids) + max_tokens <= config.pot_size  # known beforehand here: nothing to keep room for
    reader.read(ids.tolist(), None if whole else catalyst)
    so_far = padded[None]

    def pick(logits: Tensor) -> int:
        nonlocal so_far
        scores = processors(so_far, logits)
        token = torch.multinomial(scores.softmax(dim=-1), 1) if options.do_sample else scores.argmax(dim=-1, keepdim=True)
        so_far = torch.cat((so_far, token.to(so_far.dtype)), dim=1)
        return int(token)

    for _ in reader.answer([], max_tokens=max_tokens, pick=pick, stop_ids=set(), keep=False, catalyst=catalyst):
        if bool(stopping(so_far, None).all()):
            break
    return so_far[0]
