"""Tasks of lm-evaluation-harness as units of a sweep, and a table of their results."""

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

    lengths: text lengths, for RULER only. chat: whether the chat template goes around the prompts.
    include: a folder with more tasks.
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
        model = PotLM(replica.runner.model, replica.tokenizer, batch_size=self.batch, **options)
        metadata: dict[str, Any] = {"tokenizer": tokenizer_folder(replica)}
        if self.lengths:
            metadata["max_seq_lengths"] = list(self.lengths)
        key = f"tasks {self.include} {self.lengths}"
        if key not in replica.cache:
            replica.cache[key] = loading_once(manager(self.include, metadata))
        report = lm_eval.simple_evaluate(
            model,
            tasks=[self.task],
            num_fewshot=self.fewshot,
            limit=self.limit,
            apply_chat_template=self.chat,
            log_samples=False,
            bootstrap_iters=0,
            task_manager=replica.cache[key],
            metadata=metadata,
        )
        results = {task: measured(values) for task, values in report["results"].items()}
        return [{**self.keys()[0], "results": results}]


def tokenizer_folder(replica: Replica) -> str:
    """A folder with the replica's tokenizer. RULER loads it by name to measure its texts."""
    if "tokenizer folder" not in replica.cache:
        folder = tempfile.TemporaryDirectory()
        replica.tokenizer.save_pretrained(folder.name)
        replica.cache["tokenizer folder"] = folder
    return str(replica.cache["tokenizer folder"].name)


COUNTS = ("sample_len", "sample_count")


def measured(values: dict[str, Any]) -> dict[str, float]:
    """The harness's metrics, without counts and standard errors.

    The harness gives -1 for text lengths that were not requested. They are left out too.
    """
    return {
        name: float(value)
        for name, value in values.items()
        if isinstance(value, (int, float)) and value != -1
        if "stderr" not in name and name not in COUNTS
    }


def manager(include: Path | None, metadata: dict[str, Any] | None = None) -> Any:
    return need("lm_eval.tasks", "these tasks", LM).TaskManager(
        include_path=None if include is None else str(include), metadata=metadata
    )


def loading_once(manager: Any) -> Any:
    """The manager, changed so that it loads every list of tasks only once.

    Some tasks (ruler_cwe) generate other texts at every load. Methods must be compared on the same
    texts.
    """
    load = manager.load
    cache: dict[tuple[str, ...], Any] = {}

    def load_once(tasks: list[str]) -> Any:
        key = tuple(tasks)
        if key not in cache:
            cache[key] = load(tasks)
        return cache[key]

    manager.load = load_once
    return manager


@functools.cache
def known_tasks(include: Path | None) -> frozenset[str]:
    return frozenset(manager(include).all_tasks)


def check(tasks: Sequence[str], include: Path | None) -> None:
    """Raise ValueError for tasks that the harness does not have."""
    wrong = [task for task in tasks if task not in known_tasks(include)]
    if wrong:
        raise ValueError(
            f"lm-evaluation-harness has no task {', '.join(map(repr, wrong))}; `lm_eval ls tasks` "
            "lists all tasks"
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
    name_of = names(records)
    columns = list(dict.fromkeys(name_of[name_key(record)] for record in records))
    cells: dict[str, dict[str, float]] = {}
    for record in records:
        for task, values in record["results"].items():
            for metric, value in values.items():
                row = cells.setdefault(f"{task} {metric.removesuffix(',none')}", {})
                row[name_of[name_key(record)]] = value
    rows = [
        [name, *[number(row.get(column), 3) for column in columns]] for name, row in cells.items()
    ]
    return markdown(["task", *columns], rows)


def write(records: Sequence[Record], folder: Path) -> tuple[str, list[Path]]:
    text = table(records)
    (folder / "lm.md").write_text(text, "utf-8")
    return text, [folder / "lm.md"]
