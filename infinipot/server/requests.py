"""From a request's fields to jobs for the engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from infinipot.config import PotConfig
from infinipot.policies.base import Policy
from infinipot.policies.registry import POLICIES
from infinipot.sampling import SEEDS, Sampling
from infinipot.server.errors import APIError
from infinipot.server.forms import answer_form, completion_form, style_of
from infinipot.server.jobs.answer import AnswerJob, Question
from infinipot.server.jobs.echo import EchoJob
from infinipot.server.schema import ChatRequest, CompletionRequest, Options, PotOptions
from infinipot.server.service import Service
from infinipot.server.stream import EventStream
from infinipot.server.text_prompts import PotContext

MAX_PROBABILITIES = 250_000
"""Log probabilities in a reply that is not streamed. Each takes half a kilobyte."""
MAX_PROMPTS = 128
SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "min_tokens",
    "ignore_eos",
    "stop_token_ids",
)
Submission = tuple[AnswerJob, EventStream]


def config_of(options: PotOptions, base: PotConfig) -> PotConfig:
    """The server's config with the request's options.

    A request can get neither a larger pot nor an unbounded one.
    """
    values = fields_of(options, *PotOptions.model_fields)
    if values.get("catalyst") == "question":
        values["catalyst"] = None  # the same on a server, which always knows the question
    own = values.get("policy") in (None, base.policy.name)
    if own:  # possibly of another package; a request never names a module
        values["policy"] = base.policy
    if own and values.get("catalyst") == "plain" and "contrast" in base.policy.options():
        values["contrast"] = None
    try:
        config = base.replace(**values)
    except (ValueError, TypeError) as problem:
        raise APIError(400, str(problem)) from None
    if config.pot_size > base.pot_size:
        raise APIError(
            400,
            f"pot_size={config.pot_size} is not allowed: pots here hold {base.pot_size} entries",
            param="pot_size",
        )
    if not is_like(config.policy, base.policy):
        raise APIError(
            400,
            f"policy={config.policy.name!r} is not allowed: "
            "it does not read all of a text in a pot of fixed size",
            param="policy",
        )
    return config


def is_like(policy: Policy | type[Policy], other: Policy) -> bool:
    """Whether a request may choose the policy in place of the other one."""
    return (policy.bounded, policy.cuts) == (other.bounded, other.cuts)


def policies_of(base: PotConfig) -> list[str]:
    """The names of the policies that a request may choose."""
    others = [name for name, policy in POLICIES.items() if is_like(policy, base.policy)]
    return list(dict.fromkeys((base.policy.name, *others)))


def fields_of(options: Options | PotOptions, *names: str) -> dict[str, Any]:
    """The fields that the request sets."""
    return {name: value for name in names if (value := getattr(options, name)) is not None}


def sampling_of(service: Service, options: Options, max_tokens: int | None) -> Sampling:
    values = fields_of(options, *SAMPLING)
    if options.logit_bias is not None:
        values["logit_bias"] = biases(options.logit_bias)
    if isinstance(options.stop, str):
        values["stop"] = (options.stop,)
    elif options.stop is not None:
        values["stop"] = tuple(options.stop)
    if max_tokens:
        values["max_tokens"] = max_tokens
    try:
        sampling = replace(service.settings.sampling, **values)
        sampling.check_tokens(service.engine.runner.vocabulary)
    except ValueError as problem:
        raise APIError(400, str(problem)) from None
    most = service.settings.most_tokens
    if sampling.max_tokens > most:
        raise APIError(
            400,
            f"max_tokens={max_tokens} is not allowed: "
            f"this server's answers have up to {most:,} tokens",
            param="max_tokens",
        )
    return sampling


def biases(given: dict[str, float]) -> dict[int, float]:
    """logit_bias as JSON has it: ids are texts there."""
    found = {}
    for token, value in given.items():
        if not token.isdecimal():
            message = f"logit_bias names {token!r}, which is no token id: ids are whole numbers"
            raise APIError(400, message, param="logit_bias")
        found[int(token)] = value
    return found


def check_probabilities(tokens: int, top: int | None, streamed: bool) -> None:
    """Refuse a reply that would hold too many probabilities."""
    if top is None or streamed:
        return
    count = tokens * (1 + top)
    if count > MAX_PROBABILITIES:
        raise APIError(
            400,
            f"{count:,} log probabilities are asked for: "
            f"a reply holds up to {MAX_PROBABILITIES:,}; ask for fewer, or stream",
            param="logprobs",
        )


async def pot_context(service: Service, options: Options) -> tuple[PotContext | None, PotConfig]:
    """The named pot's context and config; without a named pot, the request's config."""
    if options.pot is None:
        return None, config_of(options, service.settings.config)
    name = options.pot
    for field in fields_of(options, *PotOptions.model_fields):
        raise APIError(
            400,
            f"{field} cannot be changed: the pot {name!r} was filled with options of its own",
            param=field,
        )
    return await service.engine.ask(lambda: service.pots.context(name))


async def chat_jobs(service: Service, body: ChatRequest) -> list[Submission]:
    """One job for each answer."""
    service.check_model(body.model)
    check_chat(body)
    context, config = await pot_context(service, body)
    sampling = sampling_of(service, body, body.max_completion_tokens or body.max_tokens)
    top = (body.top_logprobs or 0) if body.logprobs else None
    answers = body.n or 1
    check_probabilities(answers * sampling.max_tokens, top, bool(body.stream))

    def question() -> Question:
        style = style_of(service, body)
        prompt = service.engine.prompts.chat(body.messages, config, context, style)
        form, settled = answer_form(service, body, style, prompt, sampling)
        return Question(
            config,
            prompt,
            settled,
            top=top,
            pot=body.pot,
            label=body.session,
            salt=body.cache_salt or "",
            form=form,
        )

    return answer_jobs(service, await service.tokenize(question), answers)


def check_chat(body: ChatRequest) -> None:
    if body.max_tokens is not None and body.max_completion_tokens is not None:
        message = "max_tokens and max_completion_tokens are both given: use one"
        raise APIError(400, message, param="max_tokens")
    if body.top_logprobs is not None and not body.logprobs:
        raise APIError(400, "top_logprobs needs logprobs to be true", param="top_logprobs")


def answer_jobs(service: Service, question: Question, answers: int) -> list[Submission]:
    """Jobs of several answers to one prompt. The first one reads the text for all; with a seed, each
    has its own."""
    found: list[Submission] = []
    for number in range(answers):
        sampling = question.sampling
        if sampling.seed is not None:
            sampling = replace(sampling, seed=seed_of(sampling.seed, number))
        stream = EventStream(service.engine.outbox)
        job = AnswerJob(replace(question, sampling=sampling), service.engine.prompts, stream.send)
        job.stalled = stream.is_full
        if found:
            job.leader = found[0][0]
            job.leader.followers.append(job)
        found.append((job, stream))
    return found


def seed_of(seed: int, number: int) -> int:
    """The seed of an answer, by its number."""
    least, greatest = SEEDS
    return least + (seed + number - least) % (greatest - least + 1)


def prompts_of(body: CompletionRequest) -> list[Any]:
    """The prompts of a completion, each a text or ids."""
    if not body.echo and body.max_tokens == 0:
        raise APIError(400, "max_tokens=0 is only allowed with echo", param="max_tokens")
    if body.echo and (body.stream or body.pot or body.session):
        message = "echo does not go together with stream, pot or session: leave one out"
        raise APIError(400, message, param="echo")
    prompt = body.prompt
    if prompt is None or prompt == []:
        raise APIError(400, "the prompt is empty: there is nothing to continue", param="prompt")
    if isinstance(prompt, str) or all(isinstance(item, int) for item in prompt):
        prompts: list[Any] = [prompt]
    else:
        prompts = list(prompt)
    if not 1 <= len(prompts) <= MAX_PROMPTS:
        raise APIError(
            400,
            f"{len(prompts)} prompts are given: between 1 and {MAX_PROMPTS} are allowed",
            param="prompt",
        )
    return prompts


async def completion_jobs(service: Service, body: CompletionRequest) -> list[Submission]:
    """One job for each answer to each prompt."""
    service.check_model(body.model)
    prompts = prompts_of(body)
    answers = answers_of(body, len(prompts))
    sampling = sampling_of(service, body, body.max_tokens)
    context, config = await pot_context(service, body)
    form = await service.tokenize(completion_form, service, body)
    tokens = 0
    jobs: list[Submission] = []
    for text in prompts:
        try:
            prompt = await service.tokenize(
                service.engine.prompts.plain, text, config, context, bool(body.special_tokens)
            )
        except ValueError as problem:
            raise APIError(400, str(problem), param="prompt") from None
        tokens += len(prompt.ids) if body.echo else 0
        tokens += 0 if body.max_tokens == 0 else sampling.max_tokens * answers
        check_probabilities(tokens, body.logprobs, bool(body.stream))
        question = Question(
            config,
            prompt,
            sampling,
            top=body.logprobs,
            pot=body.pot,
            label=body.session,
            keep=body.session is not None,
            salt=body.cache_salt or "",
            form=form,
        )
        if body.echo:
            jobs.append(echo_job(service, body, question))
        else:
            jobs += answer_jobs(service, question, answers)
    return jobs


def answers_of(body: CompletionRequest, prompts: int) -> int:
    """How many answers each prompt gets."""
    answers = body.n or 1
    if body.best_of not in (None, answers):
        message = "best_of is only allowed to be n: the best of more answers is not chosen here"
        raise APIError(400, message, param="best_of")
    if body.echo and answers > 1:
        raise APIError(400, "echo does not go together with n above 1: leave one out", param="n")
    if prompts * answers > MAX_PROMPTS:
        raise APIError(
            400,
            f"{prompts} prompts with n={answers} are {prompts * answers} answers: "
            f"{MAX_PROMPTS} are allowed",
            param="n",
        )
    return answers


def echo_job(service: Service, body: CompletionRequest, question: Question) -> Submission:
    engine = service.engine
    stream = EventStream(engine.outbox)
    question = replace(question, keep=False)
    silent = body.max_tokens == 0
    job = EchoJob(question, engine.prompts, stream.send, runner=engine.runner, silent=silent)
    job.stalled = stream.is_full
    return job, stream
