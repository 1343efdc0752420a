"""lm-evaluation-harness on a pot: RULER, BABILong, InfiniteBench and whatever else it has, in
bounded memory.

    from infinipot.eval.lm import PotLM
    lm_eval.simple_evaluate(PotLM("smollm2", pot_size=2048), tasks=["niah_single_1"])

What is generated goes through `infinipot.generate`: the end of the prompt, where these tasks have
their question, is the catalyst. What is scored is read into a pot once per context; its
continuations are tried one after another and forgotten.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from infinipot.catalysts import PRESETS
from infinipot.checks import RENAMED
from infinipot.config import NAMES, PotConfig
from infinipot.custom_generate import PROMPT_END, generate
from infinipot.eval.teacher_forcing import force
from infinipot.model.load import load
from infinipot.model.runner import ModelRunner
from infinipot.optional import LM, need
from infinipot.policies import policy_of
from infinipot.session import Session
from infinipot.text.chat_template import Dialogue

need("lm_eval", "this adapter", LM)

from lm_eval.api.registry import register_model  # noqa: E402
from lm_eval.models.huggingface import HFLM  # noqa: E402

Scored = tuple[float, bool]
"""Log-likelihood of a continuation in nats, and whether it is what greedy decoding would say."""


@register_model("infinipot")
class PotLM(HFLM):
    """The harness's own Hugging Face model, except that texts go into a pot and are never
    truncated.

    pretrained: what `infinipot.load` takes, or a loaded model with its tokenizer. device, dtype: as
    for `load`. Other options are those of PotConfig, by name, or of HFLM.
    """

    def __init__(
        self,
        pretrained: Any,
        tokenizer: Any = None,
        device: str | None = None,
        dtype: str | None = None,
        **options: Any,
    ) -> None:
        policy = options.pop("policy", "infinipot")
        if isinstance(policy, str):
            policy = policy_of(policy)
        else:
            policy = policy
        names = {*NAMES, *RENAMED, *policy.options()}
        self.pot_config = PotConfig(
            **{name: value for name, value in options.items() if name in names}, policy=policy
        )
        rest = {name: value for name, value in options.items() if name not in names}
        for name, fine in (("catalyst", (None, "question")), ("answer_prefix", (None,))):
            if (value := self.pot_config.changed.get(name)) not in fine:
                raise ValueError(
                    f"{name}={value!r} is not possible here: the end of each prompt, its question, is the catalyst"
                )
        if isinstance(pretrained, str):
            pretrained, tokenizer = load(pretrained, device=device or "auto", dtype=dtype or "auto")
        super().__init__(pretrained=pretrained, tokenizer=tokenizer, backend="causal", **rest)
        self.host = ModelRunner(self.model)
        contrast = self.pot_config.policy.contrast
        if contrast:
            self.contrast_ids = Dialogue(self.tokenizer, None, False).catalyst(
                PRESETS.get(contrast, contrast)
            )
        else:
            self.contrast_ids = []

    @property
    def max_length(self) -> int:
        """No text is too long: otherwise the harness would cut its beginning off before the pot
        sees it."""
        return 1 << 40

    def _model_generate(
        self, context: Any, max_length: int, stop: list[str], **generation_kwargs: Any
    ) -> Any:
        return super()._model_generate(
            context,
            max_length,
            stop,
            custom_generate=generate,
            pot=self.pot_config,
            runner=self.host,
            contrast_ids=self.contrast_ids,
            **generation_kwargs,
        )

    def _session(self, context: Sequence[int]) -> Session:
        """A session that has read a context, its end being the catalyst."""
        config = self.pot_config
        session = Session(
            self.host, self.tokenizer if config.policy.contrast else None, config, template=False
        )
        end = min(PROMPT_END, max(1, (config.pot_size - config.survivors) // 2), len(context))
        asks = "catalyst" in config.policy.needs()
        session.append(list(context), question=list(context)[-end:] if asks else None)
        return session

    def _loglikelihood_tokens(
        self,
        requests: list[tuple[Any, list[int], list[int]]],
        disable_tqdm: bool = False,
        override_bs: int | None = None,
    ) -> list[Scored]:
        """Requests (texts, context ids, continuation ids), results in their order. Requests with
        one context are scored from one reading."""
        by_context: dict[tuple[int, ...], list[int]] = {}
        for number, (_, context, _) in enumerate(requests):
            by_context.setdefault(tuple(context), []).append(number)
        scores: dict[int, Scored] = {}
        bar = need("tqdm", "this adapter", LM).tqdm(
            total=len(requests), disable=disable_tqdm or self.rank != 0, desc="loglikelihood"
        )
        for shared, numbers in by_context.items():
            session = self._session(shared)
            for number in numbers:
                texts, _, continuation = requests[number]
                forced = force(session, [], list(continuation))
                scores[number] = (-forced.loss, all(forced.first))
                self.cache_hook.add_partial("loglikelihood", texts, scores[number])
                bar.update()
        bar.close()
        return [scores[number] for number in range(len(requests))]

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """The log-likelihood of whole texts, each read through a pot from its beginning to its end,
        whatever its length."""
        sums = []
        for request in requests:
            (text,) = request.args
            sums.append(-self.total_loss([self.prefix_token_id, *self.tok_encode(text)]))
            self.cache_hook.add_partial("loglikelihood_rolling", (text,), sums[-1])
        return sums

    def total_loss(self, ids: Sequence[int]) -> float:
        """Nats of all ids but the first."""
        config = self.pot_config
        if config.policy.cuts:
            raise ValueError(
                "policy 'truncate' leaves out most of a text, so it predicts none of it: compare with streaming"
            )
        if "catalyst" in config.policy.needs():
            plain = {"catalyst": "plain", "contrast": None}
            config = config.replace(
                **{name: value for name, value in plain.items() if name in config.policy.options()}
            )  # there is no question: the newest text is the catalyst
        session = Session(self.host, None, config, template=False)
        session.score_all()
        total = 0.0
        seen = 0

        def note() -> None:
            nonlocal total, seen
            fresh = session.stats.tokens_read - seen
            total = total + float(session.pot.novelty[0, -fresh:].sum())
            seen = seen + fresh

        session.append(list(ids), progress=note)
        return total
