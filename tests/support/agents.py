"""A tiny model that can be told of tools, and templates of the families that write calls."""

from __future__ import annotations

from typing import Any

from tiny import make_tiny, make_tokenizer

from infinipot import PotConfig

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Tell the weather.",
            "parameters": {
                "type": "object",
                "properties": {
                    "unit": {"enum": ["C", "F"]},
                    "days": {"type": "integer", "minimum": 1, "maximum": 9},
                },
                "required": ["unit", "days"],
                "additionalProperties": False,
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "ping",
            "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
        },
    },
]
HERMES = (
    "{% if tools %}<|system|>{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}"
    "{% for tool in tools %}{{ tool.function | tojson }}{% endfor %} Write <tool_call> and </tool_call><|end|>{% endif %}"
    "{% for m in messages %}{% if m.role == 'tool' %}<|user|><tool_response>{{ m.content }}</tool_response><|end|>"
    "{% elif m.tool_calls %}<|assistant|>{{ m.content }}{% for c in m.tool_calls %}<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}<|end|>'
    "{% elif not (tools and m.role == 'system') %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% if enable_thinking is defined and not enable_thinking %}-{% endif %}{% endif %}"
)
QWEN_XML = (
    "{% if tools %}<|system|>{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}"
    "{% for tool in tools %}{{ tool.function | tojson }}{% endfor %} Write <tool_call><function=name><parameter=key><|end|>{% endif %}"
    "{% for m in messages %}{% if m.role == 'tool' %}<|user|><tool_response>{{ m.content }}</tool_response><|end|>"
    "{% elif m.tool_calls %}<|assistant|>{{ m.content }}{% for c in m.tool_calls %}<tool_call>\n<function={{ c.function.name }}>\n"
    "{% for k, v in c.function.arguments | items %}<parameter={{ k }}>\n{{ v if v is string else v | tojson }}\n</parameter>\n{% endfor %}"
    "</function>\n</tool_call>{% endfor %}<|end|>"
    "{% elif not (tools and m.role == 'system') %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
LLAMA3 = (
    "{% for m in messages %}{% if m.role == 'tool' %}<|ipython|>{{ m.content }}<|end|>"
    '{% elif m.tool_calls %}<|assistant|>{"name": "{{ m.tool_calls[0].function.name }}", "parameters": '
    "{{ m.tool_calls[0].function.arguments | tojson }}}<|end|>"
    "{% else %}<|{{ m.role }}|>{% if loop.first and tools %}Environment: ipython {{ tools | tojson }} {% endif %}{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
MISTRAL = (
    '{% for m in messages %}{% if m.role == \'tool\' %}[TOOL_RESULTS]{"content": {{ m.content }}, "call_id": "{{ m.tool_call_id }}"}[/TOOL_RESULTS]'
    "{% elif m.tool_calls %}[TOOL_CALLS][{% for c in m.tool_calls %}{% if c.id | length != 9 %}{{ raise_exception('ids have 9 letters') }}{% endif %}"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}, "id": "{{ c.id }}"}{% if not loop.last %}, {% endif %}{% endfor %}]<|end|>'
    "{% elif m.role == 'user' %}{% if tools and m == (messages | selectattr('role', 'equalto', 'user') | list)[-1] %}"
    "[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}<|user|>{{ m.content }}<|assistant|>"
    "{% elif m.role == 'system' %}<|system|>{{ m.content }}<|end|>{% else %}{{ m.content }}<|end|>{% endif %}{% endfor %}"
)
GEMMA = (
    "{% if tools %}<|system|>{% for t in tools %}<|tool>{{ t.function | tojson }}<tool|>{% endfor %}<|end|>{% endif %}"
    "{% for m in messages %}{% if m.role == 'tool' %}<|tool_response>response:{{ m.name }}{value:<|\"|>{{ m.content }}<|\"|>}<tool_response|>"
    "{% elif m.tool_calls %}<|assistant|>{% for c in m.tool_calls %}<|tool_call>call:{{ c.function.name + '{' }}"
    '{% for k, v in c.function.arguments | items %}{{ k }}:{% if v is string %}<|"|>{{ v }}<|"|>{% else %}{{ v }}{% endif %}{% if not loop.last %},{% endif %}'
    "{% endfor %}}<tool_call|>{% endfor %}"
    "{% else %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt and messages[-1].role != 'tool' %}<|assistant|>{% endif %}"
)
GPT_OSS = (
    "{% if tools %}<|start|>developer<|message|>{{ tools | tojson }} to=functions.<|end|>{% endif %}"
    "{% for m in messages %}{% if m.role == 'tool' %}<|start|>functions.{{ m.name }} to=assistant<|channel|>commentary<|message|>{{ m.content }}<|end|>"
    "{% elif m.tool_calls %}<|start|>assistant<|channel|>commentary to=functions.{{ m.tool_calls[0].function.name }} <|constrain|>json<|message|>"
    "{{ m.tool_calls[0].function.arguments | tojson }}<|call|>"
    "{% elif m.role == 'assistant' %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|end|>"
    "{% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
TEMPLATES = {
    "hermes": (HERMES, ()),
    "qwen_xml": (QWEN_XML, ("<tool_call>", "</tool_call>")),
    "llama3": (LLAMA3, ("<|ipython|>",)),
    "mistral": (
        MISTRAL,
        (
            "[TOOL_CALLS]",
            "[AVAILABLE_TOOLS]",
            "[/AVAILABLE_TOOLS]",
            "[TOOL_RESULTS]",
            "[/TOOL_RESULTS]",
        ),
    ),
    "gemma4": (
        GEMMA,
        (
            "<|tool_call>",
            "<tool_call|>",
            '<|"|>',
            "<|tool>",
            "<tool|>",
            "<|tool_response>",
            "<tool_response|>",
        ),
    ),
    "gpt_oss": (
        GPT_OSS,
        ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|call|>", "<|return|>"),
    ),
}
CONFIG = PotConfig(pot_size=1536, distill_to=700, chunk_tokens=256)


def agent(family: str = "hermes", template: str | None = None) -> tuple[Any, Any]:
    """A tiny model with random weights, and a tokenizer whose template knows tools."""
    own, tokens = TEMPLATES[family]
    tokenizer = make_tokenizer(template or own, size=100 + len(tokens), more=tokens)
    if family == "gpt_oss":  # its <|end|> ends a message, not the answer
        tokenizer.eos_token = "<|return|>"
    model = make_tiny("llama", vocab=100 + len(tokens))
    model.config.max_position_embeddings = 1 << 14
    return model, tokenizer
