"""From a request's fields to works for the engine."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request
from starlette.requests import ClientDisconnect

from infinipot.config import PotConfig, Sampling
from infinipot.server.claim import Claim
from infinipot.server.engine import Engine, Settings
from infinipot.server.errors import Refusal, refusal_of
from infinipot.server.hosts import Hosts
from infinipot.server.jobs.answer import Answering
from infinipot.server.jobs.echo import Echoing
from infinipot.server.metrics import Metrics
from infinipot.server.named_pots import Pots
from infinipot.server.prompts import Behind
from infinipot.server.schema import ChatRequest, CompletionRequest, Options, PotOptions
from infinipot.server.stream import Mailbox, ask

log = logging.getLogger("infinipot")

PATIENCE_S = 60.0
MOST_PROBABILITIES = 250_000
"""Log probabilities in a reply that is not streamed: each takes half a kilobyte."""
T = TypeVar("T")


def config_of(given: PotOptions, base: PotConfig) -> PotConfig:
    """The server's pot with what the request says otherwise. A request never gets a larger pot, or one without a bound."""
    wanted = {name: value for name in PotOptions.model_fields if (value := getattr(given, name)) is not None}
    if wanted.get("catalyst") == "question":
        wanted["catalyst"] = None  # the same here: the question is always known
    own = wanted.get("policy") in (None, base.policy.name)
    if own:  # also one of another package; a request never names a module
        wanted["policy"] = base.policy
    if own and wanted.get("catalyst") == "plain" and "contrast" in base.policy.options():
        wanted["contrast"] = None
    try:
        config = base.replace(**wanted)
    except (ValueError, TypeError) as problem:
        raise Refusal(400, str(problem)) from None
    if config.pot_size > base.pot_size:
        raise Refusal(400, f"pot_size={config.pot_size} is not allowed: this server's pots hold {base.pot_size} entries", param="pot_size")
    if (config.policy.bounded, config.policy.cuts) != (base.policy.bounded, base.policy.cuts):
        raise Refusal(
            400, f"policy={config.policy.name!r} is not allowed: it does not read all of a text in a pot of fixed size", param="policy"
        )
    return config


class Serving:
    """A model that is being served: loaded in the background, then asked through the engine."""

    def __init__(
        self,
        model: str,
        load: Callable[[], tuple[Any, Any]],
        settings: Settings,
        *,
        api_key: str | None = None,
        max_body_bytes: int = 1 << 26,
        patience_s: float = PATIENCE_S,
        hosts: Hosts = Hosts(),  # noqa: B008 (it cannot be changed)
    ) -> None:
        """patience_s: how long a client may keep the server waiting for its request, or not fetch its answer."""
        if api_key is not None and not api_key.strip():
            raise ValueError("the API key is empty: give one that is not, or none at all")
        path = Path(model)
        self.name = path.stem if path.suffix == ".gguf" else path.name if path.exists() else model
        self.names = {self.name, model}
        self.settings, self.api_key, self.max_body_bytes, self.patience_s = settings, api_key, max_body_bytes, patience_s
        self.hosts = hosts
        self.held_bytes = 0
        """Bytes of all bodies in hand."""
        self.preparing = 0
        """Requests whose texts are being made into ids."""
        self.metrics = Metrics()
        self._failure: Exception | None = None
        self._load = load
        self._engine: Engine | None = None
        self._pots: Pots | None = None
        self._claim: Claim | None = None

    def start(self) -> None:
        """Load the model and begin. Returns when that is done; what fails is in `failure`."""
        from infinipot.model.runner import ModelRunner

        try:
            if self.settings.pot_dir is not None:
                self._claim = Claim(self.settings.pot_dir, self.settings.shared)
            model, tokenizer = self._load()
            engine = Engine(ModelRunner(model), tokenizer, self.settings, self.metrics)
            engine.start()
            self._pots, self._engine = Pots(engine), engine
        except Exception as problem:
            self._failure = problem

    @property
    def failure(self) -> Exception | None:
        """Why nobody can be served: the model could not be loaded, or the engine has failed."""
        return self._failure or (self._engine.failure if self._engine is not None else None)

    def close(self) -> None:
        """Refuse whatever is still asked for. Returns at once."""
        if self._engine is not None:
            self._engine.call(self._engine.close)

    def stop(self) -> None:
        """End what runs, write what can be written, and return when that is done."""
        if self._engine is not None:
            self._engine.stop()
        if self._claim is not None:
            self._claim.end()

    @property
    def engine(self) -> Engine:
        if self._engine is None:
            raise Refusal(503, "the model is being loaded: try again in a moment", code="loading")
        if self._engine.failure is not None:
            raise Refusal(503, "the server has failed and is about to end; its log says why", code="failed")
        return self._engine

    @property
    def pots(self) -> Pots:
        self.engine  # noqa: B018 (refuses while there is none)
        assert self._pots is not None
        return self._pots

    def check_model(self, model: str | None) -> None:
        if model is not None and model not in self.names:
            raise Refusal(404, f"there is no model {model!r} here; this server has {self.name!r}", code="model_not_found", param="model")

    def _sampling(self, given: Options, max_tokens: int | None) -> Sampling:
        wanted = {name: getattr(given, name) for name in ("temperature", "top_p", "top_k", "min_p", "seed") if getattr(given, name) is not None}
        if given.stop is not None:
            wanted["stop"] = (given.stop,) if isinstance(given.stop, str) else tuple(given.stop)
        if max_tokens:
            wanted["max_tokens"] = max_tokens
        sampling = dataclasses.replace(self.settings.sampling, **wanted)
        if sampling.max_tokens > self.settings.most_tokens:
            raise Refusal(
                400,
                f"max_tokens={max_tokens} is not allowed: this server's answers have up to {self.settings.most_tokens:,} tokens",
                param="max_tokens",
            )
        return sampling

    def _check_probabilities(self, tokens: int, top: int | None, streamed: bool) -> None:
        """Refuse more probabilities than should be held for one reply."""
        count = 0 if top is None or streamed else tokens * (1 + top)
        if count > MOST_PROBABILITIES:
            raise Refusal(
                400,
                f"{count:,} log probabilities are asked for: a reply holds up to {MOST_PROBABILITIES:,}; ask for fewer, or stream",
                param="logprobs",
            )

    async def prepared(self, act: Callable[..., T], *given: Any) -> T:
        """Have texts made into ids, unless there is no place for those who wait."""
        engine = self.engine
        engine.check()
        if self.preparing >= self.settings.queue + self.settings.max_sessions:
            raise Refusal(429, f"{self.preparing} requests are being prepared already: try again later", code="queue_full")
        self.preparing += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(engine.words.threads, act, *given)
        finally:
            self.preparing -= 1

    async def _pot(self, given: Options) -> tuple[Behind | None, PotConfig]:
        """What stands before the prompt, and the pot's options: those of the named pot, if there is one."""
        if given.pot is None:
            return None, config_of(given, self.settings.config)
        set_anyway = next((name for name in PotOptions.model_fields if getattr(given, name) is not None), None)
        if set_anyway is not None:
            raise Refusal(400, f"{set_anyway} cannot be changed: the pot {given.pot!r} was filled with options of its own", param=set_anyway)
        name = given.pot
        return await ask(self.engine, lambda: self.pots.behind(name))

    async def chat(self, body: ChatRequest) -> tuple[Answering, Mailbox]:
        engine, mailbox = self.engine, Mailbox(self.engine.post)
        self.check_model(body.model)
        if body.max_tokens is not None and body.max_completion_tokens is not None:
            raise Refusal(400, "max_tokens and max_completion_tokens are both given: use one", param="max_tokens")
        if body.top_logprobs is not None and not body.logprobs:
            raise Refusal(400, "top_logprobs needs logprobs to be true", param="top_logprobs")
        max_tokens = body.max_completion_tokens or body.max_tokens
        behind, config = await self._pot(body)
        sampling, top = self._sampling(body, max_tokens), (body.top_logprobs or 0) if body.logprobs else None
        self._check_probabilities(sampling.max_tokens, top, bool(body.stream))
        prompt = await self.prepared(engine.words.chat, body.messages, config, behind)
        reserved, pot = max_tokens is not None, body.pot
        work = Answering(
            config,
            prompt,
            sampling,
            engine.words,
            mailbox.send,
            reserved=reserved,
            top=top,
            pot=pot,
            label=body.session,
            salt=body.cache_salt or "",
        )
        work.unheard = mailbox.crowded
        return work, mailbox

    async def completions(self, body: CompletionRequest) -> list[tuple[Answering, Mailbox]]:
        """One work for each prompt."""
        engine = self.engine
        self.check_model(body.model)
        if not body.echo and body.max_tokens == 0:
            raise Refusal(400, "max_tokens=0 is only allowed with echo", param="max_tokens")
        if body.echo and (body.stream or body.pot or body.session):
            raise Refusal(400, "echo does not go together with stream, pot or session: leave one out", param="echo")
        several = not isinstance(body.prompt, str) and not all(isinstance(one, int) for one in body.prompt)
        prompts: list[Any] = list(body.prompt) if several else [body.prompt]  # type: ignore[arg-type]
        if not 1 <= len(prompts) <= 128:
            raise Refusal(400, f"{len(prompts)} prompts are given: between 1 and 128 are allowed", param="prompt")
        sampling, tokens = self._sampling(body, body.max_tokens), 0
        behind, config = await self._pot(body)
        works = []
        for one in prompts:
            try:
                prompt = await self.prepared(engine.words.plain, one, config, behind)
            except ValueError as problem:
                raise Refusal(400, str(problem), param="prompt") from None
            tokens += (len(prompt.ids) if body.echo else 0) + (0 if body.max_tokens == 0 else sampling.max_tokens)
            self._check_probabilities(tokens, body.logprobs, bool(body.stream))
            mailbox = Mailbox(engine.post)
            given: dict[str, Any] = {"reserved": body.max_tokens is not None, "top": body.logprobs}
            if body.echo:
                work: Answering = Echoing(
                    config, prompt, sampling, engine.words, mailbox.send, host=engine.host, silent=body.max_tokens == 0, **given
                )
            else:
                given |= {"pot": body.pot, "label": body.session, "kept": body.session is not None, "salt": body.cache_salt or ""}
                work = Answering(config, prompt, sampling, engine.words, mailbox.send, **given)
            work.unheard = mailbox.crowded
            works.append((work, mailbox))
        return works


async def serving_of(request: Request) -> Serving:
    serving: Serving = request.app.state.serving
    return serving


Served = Annotated[Serving, Depends(serving_of)]


def refused(problem: Exception) -> Refusal:
    """For handlers: what went wrong in them, as a client is told. What is the server's fault is logged."""
    if isinstance(problem, ClientDisconnect):
        return Refusal(400, "the client has left")  # nobody hears it
    refusal = refusal_of(problem)
    if refusal.status >= 500 and not isinstance(problem, Refusal):
        log.error("a request failed: %s", problem, exc_info=problem)
    return refusal
