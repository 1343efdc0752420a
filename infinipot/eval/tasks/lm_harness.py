"""Tasks of lm-evaluation-harness as units of a sweep, and their table."""

from __future__ import annotations

import dataclasses
import functools
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infinipot.eval.methods import Method
from infinipot.eval.results import Record
from infinipot.eval.runner import Model, Replica
from infinipot.eval.tables import markdown, name_key, names, number
from infinipot.optional import LM, need

NAME = "lm"
KEY = (
    "model",
    "dtype",
    "method",
    "question",
    "options",
    "task",
    "fewshot",
    "limit",
    "lengths",
    "chat",
)


@dataclass(frozen=True, kw_only=True)
class TaskUnit:
    """One task (or group of tasks), answered by one method.

    lengths: for RULER, the lengths of its texts. chat: whether the chat template stands around
    prompts. include: a folder with more tasks.
    """

    model: Model
    method: Method
    task: str
    fewshot: int | None = None
    limit: int | None = None
    lengths: tuple[int, ...] = ()
    chat: bool = False
    batch: int = 1
    include: Path | None = None

    @property
    def title(self) -> str:
        return f"{self.task} · {self.method.label}"

    def keys(self) -> list[Record]:
        return [
            {
                **self.model.about,
                "method": self.method.label,
                "question": self.method.question,
                "options": self.method.options,
                "task": self.task,
                "fewshot": self.fewshot,
                "limit": self.limit,
                "lengths": list(self.lengths),
                "chat": self.chat,
            }
        ]

    def run(self, replica: Replica) -> list[Record]:
        import lm_eval

        from infinipot.eval.lm import PotLM

        options = {
            field.name: getattr(self.method.config, field.name)
            for field in dataclasses.fields(self.method.config)
        }
        model = PotLM(replica.host.model, replica.tokenizer, batch_size=self.batch, **options)
        metadata = {
            "tokenizer": tokenizer_folder(replica),
            **({"max_seq_lengths": list(self.lengths)} if self.lengths else {}),
        }
        key = f"tasks {self.include} {self.lengths}"
        if key not in replica.cache:
            replica.cache[key] = loading_once(manager(self.include, metadata))
        found = lm_eval.simple_evaluate(
            model, tasks=[self.task], num_fewshot=self.fewshot, limit=self.limit, apply_chat_template=self.chat, log_samples=False,
            bootstrap_iters=0, task_manager=replica.cache[key], metadata=metadata,
        )  # fmt: skip
        return [
            {
                **self.keys()[0],
                "results": {task: measured(values) for task, values in found["results"].items()},
            }
        ]


def tokenizer_folder(replica: Replica) -> str:
    """A folder with the tokenizer: RULER measures its texts with one that it loads by name."""
    if "tokenizer folder" not in replica.cache:
        folder = tempfile.TemporaryDirectory()
        replica.tokenizer.save_pretrained(folder.name)
        replica.cache["tokenizer folder"] = folder
    return str(replica.cache["tokenizer folder"].name)


def measured(values: dict[str, Any]) -> dict[str, float]:
    """Metrics that were measured: the harness gives -1 to lengths that were not asked for."""
    return {name: float(value) for name, value in values.items() if isinstance(value, (int, float)) and value != -1 and "stderr" not in name
            and name not in ("sample_len", "sample_count")}  # fmt: skip


def manager(include: Path | None, metadata: dict[str, Any] | None = None) -> Any:
    return need("lm_eval.tasks", "these tasks", LM).TaskManager(
        include_path=None if include is None else str(include), metadata=metadata
    )


def loading_once(manager: Any) -> Any:
    """The manager, giving the same tasks whenever they are asked for: some that make their texts
    (ruler_cwe) would make others each time, and methods would be compared on different ones."""
    load = manager.load
    loaded = dict[tuple[str, ...], Any]()

    def remembered(tasks: list[str]) -> Any:
        if tuple(tasks) not in loaded:
            loaded[tuple(tasks)] = load(tasks)
        return loaded[tuple(tasks)]

    manager.load = remembered
    return manager


@functools.cache
def known_tasks(include: Path | None) -> frozenset[str]:
    return frozenset(manager(include).all_tasks)


def check(tasks: Sequence[str], include: Path | None) -> None:
    """Refuse names that the harness does not know."""
    known = known_tasks(include)
    wrong = [task for task in tasks if task not in known]
    if wrong:
        raise ValueError(
            f"lm-evaluation-harness has no task {', '.join(map(repr, wrong))}; `lm_eval ls tasks` lists what it has"
        )


def plan(
    model: Model, methods: Iterable[Method], tasks: Sequence[str], **more: Any
) -> list[TaskUnit]:
    return [
        TaskUnit(model=model, method=method, task=task, **more)
        for task in tasks
        for method in methods
    ]


def table(records: Sequence[Record]) -> str:
    """Tasks and metrics down, methods across."""
    named = names(records)
    columns = list(dict.fromkeys(named[name_key(record)] for record in records))
    cells: dict[str, dict[str, float]] = {}
    for record in records:
        for task, values in record["results"].items():
            for name, value in values.items():
                cells.setdefault(f"{task} {name.removesuffix(',none')}", {})[
                    named[name_key(record)]
                ] = value
    return markdown(
        ["task", *columns],
        [
            [name, *[number(row.get(column), 3) for column in columns]]
            for name, row in cells.items()
        ],
    )


def write(records: Sequence[Record], folder: Path) -> tuple[str, list[Path]]:
    text = table(records)
    (folder / "lm.md").write_text(text, "utf-8")
    return text, [folder / "lm.md"]
