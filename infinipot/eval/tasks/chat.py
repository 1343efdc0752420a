"""Long chats: what was said early is asked for late."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from infinipot.eval import grouped
from infinipot.eval.methods import Method
from infinipot.eval.results import Record
from infinipot.eval.runner import Model, Replica
from infinipot.eval.tasks.conversations import Conversation, FactQuestion
from infinipot.eval.tasks.documents import answered, seconds_since
from infinipot.eval.teacher_forcing import open_session
from infinipot.text.chat_template import Dialogue
from infinipot.text.tokens import fragment

NAME = "chat"
KEY = (
    "model",
    "dtype",
    "method",
    "question",
    "options",
    "system",
    "task",
    "document",
    "id",
    "digest",
)


@dataclass(frozen=True, kw_only=True)
class Chat:
    """One conversation, read by one method turn by turn, in the model's chat template. Then every
    question meets the same pot, as the next message."""

    model: Model
    method: Method
    conversation: Conversation
    system: str | None = None

    @property
    def title(self) -> str:
        name = f"{self.conversation.task} {self.conversation.number + 1}"
        return f"{self.method.label} · {name}, {len(self.conversation.turns)} turns"

    def keys(self) -> list[Record]:
        return [
            {
                **self.model.about,
                "method": self.method.label,
                "question": self.method.question,
                "options": self.method.options,
                "system": self.system,
                "task": self.conversation.task,
                "document": self.conversation.id,
                "id": question.id,
                "digest": self.conversation.digest(question),
            }
            for question in self.conversation.questions
        ]

    def run(self, replica: Replica) -> list[Record]:
        session = open_session(replica, self.method.config, system=self.system)
        dialogue = Dialogue(replica.tokenizer, self.system, True)
        tokens = len(dialogue.head())
        started = time.perf_counter()
        for message, reply in self.conversation.turns:
            ids = dialogue.question(message) + fragment(replica.tokenizer, reply)
            dialogue.note_answer()
            session.append(ids)
            tokens += len(ids)
        read_s = seconds_since(started)
        records = []
        for key, question in zip(self.keys(), self.conversation.questions, strict=True):
            prompt = dialogue.question(question.prompt)
            whole = tokens + len(prompt) + question.max_tokens
            turn = None
            if isinstance(question, FactQuestion):
                turn = question.turn
            records.append(
                {
                    **key,
                    "number": self.conversation.number,
                    "kind": question.kind,
                    "turns": len(self.conversation.turns),
                    "turn": turn,
                    **answered(session, question, prompt),
                    "text_tokens": tokens,
                    "fits": self._fits(whole),
                    "read_s": read_s,
                }
            )
        return records

    def _fits(self, whole: int) -> bool | None:
        """Whether the pot holds so many tokens. None without a pot."""
        if not (self.method.policy.bounded or self.method.policy.cuts):
            return None
        return whole <= self.method.config.pot_size


def plan(
    model: Model,
    methods: Iterable[Method],
    conversations: Iterable[Conversation],
    system: str | None = None,
) -> list[Chat]:
    """Every conversation for every method; all methods read one before the next one."""
    listed = list(methods)
    return [
        Chat(model=model, method=method, conversation=conversation, system=system)
        for conversation in conversations
        for method in listed
    ]


def write(
    records: Sequence[Record], folder: Path, against: str | None = None
) -> tuple[str, list[Path]]:
    """Write a table for each task, and for conversations that every pot holds entirely a table of
    their own."""
    texts = []
    for task in dict.fromkeys(record["task"] for record in records):
        own = [record for record in records if record["task"] == task]
        for fit, some in grouped.by_fit(own).items():
            title = f"{task} conversations{fit} · {turns_of(some)} turns"
            texts.append(grouped.report(some, title, against, by="kind"))
    text = "\n\n".join([*texts, grouped.seconds(records)])
    (folder / f"{NAME}.md").write_text(text, "utf-8")
    return text, [folder / f"{NAME}.md"]


def turns_of(records: Iterable[Record]) -> str:
    """The number of turns: the lowest, and the highest if it is different."""
    counts = sorted({record["turns"] for record in records})
    return " to ".join(str(count) for count in dict.fromkeys([counts[0], counts[-1]]))
