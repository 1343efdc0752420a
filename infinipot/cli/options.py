"""The options that commands share, declared once. Their defaults are those of the dataclasses they
fill."""

from __future__ import annotations

from pathlib import Path

import typer

from infinipot.cli import config_file
from infinipot.cli.command import all_options
from infinipot.cli.console import traces
from infinipot.cli.option import option
from infinipot.cli.parsers import number_or_once, weights, whole_or_auto


def from_config(context: typer.Context, path: Path | None) -> Path | None:
    """Make the values of a YAML file the defaults, below flags and environment."""
    if path is not None:
        context.default_map = config_file.read(path, all_options(context))
    return path


def note_debug(value: bool | None) -> bool | None:
    traces.wanted = traces.wanted or bool(value)
    return value


POT = (
    option("pot_size", int, "Most entries (tokens) the pot ever holds."),
    option(
        "distill_to",
        int,
        "Entries that survive a distillation. [default: pot_size / 2; "
        "above 2,048: pot_size - 1,024, at most 3/4 of pot_size]",
        parser=whole_or_auto,
    ),
    option(
        "policy",
        str,
        "How survivors are chosen: a name (`infinipot policies` lists them), or a policy of your "
        "own, package.module:Class. Both may have options: snapkv(window=16).",
    ),
    option(
        "preset",
        str,
        "A set of options. paper: as InfiniPot was published "
        "(novelty 0.5, no pooling, no recent entries, distill_to half of pot_size). "
        "facts: keep single facts when the question is not known. "
        "Other options override the preset.",
    ),
    option(
        "novelty",
        float,
        "Share of survivors chosen for novelty, 0 to 1; the catalyst's attention chooses the rest.",
    ),
    option(
        "catalyst",
        str,
        "question, general, facts, unrelated, repeat, plain, or a prompt of your own. "
        "[default: the policy's, else the question; without a question, outliers choose]",
    ),
    option(
        "answer_prefix",
        str,
        "First words of an answer, read after the catalyst, "
        "so that it looks for what follows them. [default: the catalyst's]",
    ),
    option(
        "contrast",
        str,
        "Divide the catalyst's attention by a second prompt's, to discount tokens that every "
        "prompt attends to: unrelated, general, ..., or a prompt of your own.",
    ),
    option(
        "context_reset",
        bool,
        "Restart positions at 0 after each distillation (default), or let them grow for ever.",
        "--context-reset/--no-context-reset",
    ),
    option("by_novelty", float, "Policy outliers: weight of novelty, beside 1 for unlike keys."),
    option(
        "by_sentence",
        float,
        "Policies outliers and relevance: weight of an entry's sentence, beside 1 for the entry itself.",
    ),
    option("sinks", int, "First entries that always stay. [default: the policy's]"),
    option("recent", int, "Newest entries that always stay. [default: the policy's]"),
    option(
        "window",
        int,
        "Number of newest tokens whose attention counts (snapkv, tova). [default: the policy's]",
    ),
    option(
        "pool",
        int,
        "Smooth scores over this many slots, an odd number; 0: no smoothing. "
        "[default: the policy's]",
    ),
    option(
        "pool_mode",
        str,
        "avg or max: around an entry. trailing: the average of an entry and those before it, "
        "so that the text after a strong entry stays. [default: the policy's]",
    ),
    option(
        "gqa",
        str,
        "How to combine the scores of query heads that share a KV head: mean, max or sum.",
    ),
    option(
        "shared_heads",
        bool,
        "All heads of a layer keep the same entries, or each its own. [default: the policy's]",
        "--shared-heads/--own-heads",
    ),
    option(
        "score_memory",
        float,
        "How much of its earlier score an entry keeps, 0 to 1; "
        "once: score each entry once, when it is new. [default: the policy's]",
        parser=number_or_once,
        metavar="X|once",
    ),
    option(
        "layer_budget",
        str,
        "How layers share the survivors: uniform, or a weight for each layer, with commas.",
        parser=weights,
    ),
    option("pot_dtype", str, "Store entries in int8 or fp8. [default: the model's type]"),
    option(
        "prefill",
        str,
        "bounded; whole: read everything without a bound and distil once, "
        "as other methods do (for comparison).",
    ),
    option("group", int, "Policy self_extend: number of distant entries that share a position."),
    option(
        "neighbours",
        int,
        "Policy self_extend: number of newest entries with positions of their own.",
    ),
    option(
        "chunk_tokens",
        int,
        "Most tokens read in one forward pass. [default: 1024, with --weights 512, on a GPU 2048]",
    ),
    option("system", str, "A system prompt; it is never distilled."),
    option("raw", bool, "Read and answer without the chat template.", "--raw"),
    option(
        "special_tokens",
        bool,
        "Special tokens count where texts, questions and the system prompt spell them, "
        "for prompts that you build yourself. Otherwise they are text.",
        "--special-tokens",
    ),
    option("begun", str, "Now answer_prefix.", hidden=True),
    option(
        "persist",
        float,
        "Now score_memory.",
        parser=number_or_once,
        metavar="X|once",
        hidden=True,
    ),
    option("pool_kind", str, "Now pool_mode.", hidden=True),
    option("coverage", float, "Gone.", hidden=True),
)
SAMPLING = (
    option("max_tokens", int, "Most tokens of an answer."),
    option("temperature", float, "0 always takes the likeliest token."),
    option("top_k", int, "Choose among this many likeliest tokens; 0: all."),
    option(
        "top_p", float, "Choose among the likeliest tokens that have this probability together."
    ),
    option("min_p", float, "Choose among tokens at least this likely, relative to the likeliest."),
    option("seed", int, "Make random choices repeatable."),
    option("stop", list[str], "A text that ends the answer; repeatable."),
    option(
        "stop_token_ids",
        list[int],
        "A token that ends the answer, by its id; repeatable.",
        "--stop-token-ids",
    ),
    option("ignore_eos", bool, "The model's own end tokens do not end the answer.", "--ignore-eos"),
    option("min_tokens", int, "Tokens of the answer before which no token ends it."),
    option(
        "repetition_penalty",
        float,
        "Make tokens of question and answer less likely: divide their logits by this.",
    ),
    option(
        "presence_penalty", float, "Make tokens of the answer less likely: subtract this, once."
    ),
    option(
        "frequency_penalty",
        float,
        "Make tokens of the answer less likely: subtract this for each time.",
    ),
    option(
        "logit_bias",
        list[str],
        "Make a token likelier, or less likely: 42=-5 adds -5 to the logit of token 42; repeatable.",
        metavar="ID=X",
    ),
)
PER_REQUEST = ("max_tokens", "stop", "stop_token_ids", "min_tokens", "logit_bias")
"""Options of an answer that a server takes from requests only, or explains in other words."""
UNSERVED = ("system", "raw", "special_tokens", "prefill")
SERVED = (
    # the texts and how to read them come with requests
    *(parameter for parameter in POT if parameter.name not in UNSERVED),
    *(parameter for parameter in SAMPLING if parameter.name not in PER_REQUEST),
    option(
        "max_tokens", int, "Most tokens of an answer whose request names no number. [default: 1024]"
    ),
)
LOADING = (
    option("device", str, "cpu, cuda, cuda:1, mps. [default: the fastest available]"),
    option("dtype", str, "float32, bfloat16, float16. [default: what suits the device]"),
    option(
        "weights",
        str,
        "Keep the weights quantised in memory: int8, int4, or auto (a GGUF file's in its own bits, "
        "others in int8). [default: as they are, in dtype]",
    ),
    option(
        "tensor_parallel",
        int,
        "Share heads and weights out over so many GPUs, a process each, or over processes on a CPU.",
    ),
    option(
        "spread",
        bool,
        "Share the layers out over all GPUs, for a model that one GPU cannot hold.",
        "--spread",
    ),
    option("quiet", bool, "No progress, no statistics.", "--quiet"),
)
ALWAYS = (
    option(
        "config",
        Path,
        "A YAML file with options by name, e.g. `pot_size: 1024`.",
        callback=from_config,
        is_eager=True,
    ),
    option("debug", bool, "Show where an error comes from.", "--debug", callback=note_debug),
)
"""What every command has. The config file may hold any option of any command; a command ignores
values that it does not use."""
COMMON = (*LOADING, *ALWAYS)
