"""The order of the help: groups of options, which are rare, and two examples for each command."""

from __future__ import annotations

GROUPS = {
    "Reading": (
        "file",
        "pot",
        "save_pot",
        "resume",
        "private",
        "output",
        "system",
        "raw",
        "special_tokens",
        "prefill",
    ),
    "Answering": (
        "prompt",
        "json",
        "max_tokens",
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "seed",
        "stop",
        "stop_token_ids",
        "ignore_eos",
        "min_tokens",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "logit_bias",
        "answer_prefix",
    ),
    "Retention": (
        "pot_size",
        "distill_to",
        "policy",
        "preset",
        "novelty",
        "catalyst",
        "contrast",
        "by_novelty",
        "by_sentence",
        "context_reset",
        "sinks",
        "recent",
        "window",
        "pool",
        "pool_mode",
        "gqa",
        "shared_heads",
        "score_memory",
        "layer_budget",
        "group",
        "neighbours",
    ),
    "Machine": (
        "device",
        "dtype",
        "weights",
        "tensor_parallel",
        "spread",
        "pot_dtype",
        "chunk_tokens",
        "workers",
        "shard",
        "ray",
        "replicas",
        "max_replicas",
        "max_sessions",
        "memory_fraction",
        "quiet",
        "config",
        "debug",
        "help",
    ),
}
"""The options of a group, by the order of the groups. Others are the command's own."""

EVERYDAY = (
    "file",
    "pot",
    "save_pot",
    "resume",
    "private",
    "output",
    "system",
    "prompt",
    "json",
    "max_tokens",
    "temperature",
    "pot_size",
    "policy",
    "preset",
    "catalyst",
    "device",
    "weights",
    "quiet",
    "config",
    "help",
)
SERVERS_OWN = (
    "max_stall_ms",
    "queue",
    "max_body_mb",
    "max_tokens_limit",
    "client_timeout",
    "document_timeout",
    "allowed_host",
    "allowed_origin",
    "log_level",
    "log_format",
    "root_path",
)
RARE = {name for names in GROUPS.values() for name in names if name not in EVERYDAY} | {
    *SERVERS_OWN
}
"""What only --help-all shows."""

EXAMPLES = {
    "generate": (
        'infinipot generate smollm2 -f book.txt -p "Who hid the letter?" --pot-size 1k',
        "zcat logs.gz | infinipot generate smollm2 'What failed first?' --json",
    ),
    "chat": (
        "infinipot chat smollm2 -f notes/ --save-pot notes.pot",
        "infinipot chat -c",
    ),
    "distill": (
        "infinipot distill smollm2 -f book.txt -o book.pot",
        "infinipot distill smollm2 -f 'docs/*.md' -o docs.pot --preset facts",
    ),
    "ask": (
        'infinipot ask book.pot "Who hid the letter?"',
        "echo 'Who hid it?' | infinipot ask book.pot --model models/qwen.gguf --json",
    ),
    "info": ("infinipot info book.pot", "infinipot info book.pot --json"),
    "policies": ("infinipot policies", "infinipot policies snapkv"),
    "serve": (
        "infinipot serve smollm2 --pot-size 4k --pot-dir pots",
        "INFINIPOT_API_KEY=secret infinipot serve smollm2 --host 0.0.0.0 --port 8080",
    ),
    "bench": (
        "infinipot bench smollm2 --lengths 8k,32k --compare stock",
        "infinipot bench llama-8b-shape --lengths 128k --pot-size 4k",
    ),
    "needle": (
        "infinipot needle smollm2 -o results --lengths 4k --trials 2",
        "infinipot needle smollm2 -o results --policy full,streaming,infinipot --pot-size 1k",
    ),
    "compare": (
        "infinipot compare full streaming infinipot --tasks needle,ruler --budget 4k -o results",
        "infinipot compare infinipot infinipot:preset=facts --question unknown -o results",
    ),
    "plot": ("infinipot plot results", "infinipot plot benchmarks/results/bench.jsonl -o figures"),
    "inspect": (
        'infinipot inspect smollm2 -f book.txt -p "Who hid the letter?"',
        "infinipot inspect smollm2 -f book.txt -o survivors.html --policy snapkv",
    ),
    "study": (
        "infinipot study ablation smollm2 -o results --lengths 4k",
        "infinipot study kept smollm2 -o results --style rows",
    ),
    "convert": (
        "infinipot convert smollm2 smollm2-int8",
        "infinipot convert Qwen/Qwen2.5-1.5B-Instruct qwen-int4 --weights int4",
    ),
    "plan": (
        "infinipot plan smollm2 --memory 700MiB",
        "infinipot plan Qwen/Qwen2.5-1.5B-Instruct --memory 4GB --pot-size 4k",
    ),
    "eval documents": (
        "infinipot eval documents smollm2 --data rows -o results --question known",
        "infinipot eval documents smollm2 --data rows -o results --limit 10",
    ),
    "eval chat": (
        "infinipot eval chat smollm2 -o results --turns 50 --chats 2",
        "infinipot eval chat smollm2 -o results --policy streaming,infinipot",
    ),
    "eval longbench": (
        "infinipot eval longbench smollm2 --data LongBench -o results --limit 10",
        "infinipot eval longbench smollm2 --data LongBench -o results --tasks qasper,trec",
    ),
    "eval perplexity": (
        "infinipot eval perplexity smollm2 -f book.txt -o results",
        "infinipot eval perplexity smollm2 -f book.txt.gz -o results --tokens 100k",
    ),
    "eval lm": (
        "infinipot eval lm smollm2 --tasks ruler --lengths 4k -o results",
        "infinipot eval lm smollm2 --tasks babilong -o results --limit 10",
    ),
}
