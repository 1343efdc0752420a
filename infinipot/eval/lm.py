"""lm-evaluation-harness on a pot: RULER, BABILong, InfiniteBench and other tasks in bounded memory.

    from infinipot.eval.lm import PotLM
    lm_eval.simple_evaluate(PotLM("smollm2", pot_size=2048), tasks=["niah_single_1"])

Generation uses `infinipot.generate`: the catalyst is the end of the prompt, where these tasks have
their question. Scoring reads each context once; its continuations are read one after another and
removed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from infinipot.catalysts import PROMPTS
from infinipot.checks import RENAMED
from infinipot.config import NAMES, PotConfig
from infinipot.custom_generate import PROMPT_END, generate
from infinipot.eval.teacher_forcing import force
from infinipot.model.load import load
from infinipot.model.runner import ModelRunner
from infinipot.option_types import DtypeName
from infinipot.optional import LM, need
from infinipot.policies import policy_of
from infinipot.session import Session
from infinipot.text.chat_template import Dialogue

need("lm_eval", "this adapter", LM)

from lm_eval.api.registry import register_model  # noqa: E402
from lm_eval.models.huggingface import HFLM  # noqa: E402

Scored = tuple[float, bool]
"""Log-likelihood of a continuation in nats, and whether greedy decoding gives it."""


@register_model("infinipot")
class PotLM(HFLM):
    """The harness's Hugging Face model with a pot: texts are never truncated.

    pretrained: a name for `infinipot.load`, or a loaded model with its tokenizer. device, dtype,
    weights: as for `load`. options: those of PotConfig and of HFLM.
    """

    def __init__(
        self,
        pretrained: Any,
        tokenizer: Any = None,
        device: str | None = None,
        dtype: DtypeName | None = None,
        weights: str | None = None,
        **options: Any,
    ) -> None:
        policy = options.pop("policy", "infinipot")
        if isinstance(policy, str):
            policy = policy_of(policy)
        names = {*NAMES, *RENAMED, *policy.options()}
        own = {name: options.pop(name) for name in list(options) if name in names}
        self.pot_config = PotConfig(**own, policy=policy)
        for name, allowed in (("catalyst", (None, "question")), ("answer_prefix", (None,))):
            value = self.pot_config.changed.get(name)
            if value not in allowed:
                raise ValueError(
                    f"{name}={value!r} is not possible here: "
                    "the end of each prompt, its question, is the catalyst"
                )
        if isinstance(pretrained, str):
            pretrained, tokenizer = load(
                pretrained, device=device or "auto", dtype=dtype or "auto", weights=weights
            )
        super().__init__(pretrained=pretrained, tokenizer=tokenizer, backend="causal", **options)
        self.runner = ModelRunner(self.model)
        contrast = self.pot_config.policy.contrast
        self.contrast_ids: list[int] = []
        if contrast:
            dialogue = Dialogue(self.tokenizer, None, False)
            self.contrast_ids = dialogue.catalyst(PROMPTS.get(contrast, contrast))

    @property
    def max_length(self) -> int:
        """No limit: the harness would cut off the start of longer texts."""
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
            runner=self.runner,
            contrast_ids=self.contrast_ids,
            **generation_kwargs,
        )

    def _session(self, context: Sequence[int]) -> Session:
        """A session that has read a context, with its end as the catalyst."""
        config = self.pot_config
        tokenizer = None
        if config.policy.contrast:
            tokenizer = self.tokenizer
        session = Session(self.runner, tokenizer, config, template=False)
        end = min(PROMPT_END, max(1, (config.pot_size - config.mean_budget) // 2), len(context))
        question = None
        if "catalyst" in config.policy.needs():
            question = list(context)[-end:]
        session.append(list(context), question=question)
        return session

    def _loglikelihood_tokens(
        self,
        requests: list[tuple[Any, list[int], list[int]]],
        disable_tqdm: bool = False,
        override_bs: int | None = None,
    ) -> list[Scored]:
        """requests: (texts, context ids, continuation ids). Requests with the same context share one
        reading. Results are in the order of the requests."""
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
        """The log-likelihood of whole texts of any length, each read into a pot."""
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
                "policy 'truncate' leaves out most of a text, so it predicts none of it: "
                "compare with streaming"
            )
        if "catalyst" in config.policy.needs():
            # without a question the newest text is the catalyst
            plain: dict[str, Any] = {"catalyst": "plain", "contrast": None}
            options = config.policy.options()
            config = config.replace(**{name: plain[name] for name in plain if name in options})
        session = Session(self.runner, None, config, template=False)
        session.score_all()
        total = 0.0
        count = 0

        def note() -> None:
            nonlocal total, count
            fresh = session.stats.tokens_read - count
            total += float(session.pot.novelty[0, -fresh:].sum())
            count += fresh

        session.append(list(ids), progress=note)
        return total
