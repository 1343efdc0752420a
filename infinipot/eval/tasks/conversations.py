"""Conversations of many turns with questions about them: generated, or from documents."""

from __future__ import annotations

import hashlib
import math
import random
import re
from dataclasses import dataclass

from infinipot.eval.tasks.document_rows import Document, Question
from infinipot.eval.tasks.fact_templates import Fact, chosen_for, facts
from infinipot.eval.tasks.small_talk import THANKS, small_talk

GENERATED = "generated"
EARLY = 0.4
"""The part of a conversation in which facts are told, from its start."""
TELLS = (
    "By the way: {fact} {rest}",
    "{rest} Something else, before I forget it. {fact}",
    "{fact} I thought you should know. {rest}",
    "{rest} And one more piece of news: {fact}",
)
RECALL = "Let us go back to something that I told you earlier. {question} Answer in a few words."
SPEECH = (
    re.compile(r"^\s*(?P<who>[\w.' -]{1,40}?) said, (?P<said>\".*)$"),
    re.compile(r"^\s*(?P<who>[\w.' -]{1,40}?):(?P<said>.*)$"),
)
"""Lines of a conversation: `Anna said, "..."`, or `Anna: ...`."""


@dataclass(frozen=True)
class FactQuestion:
    """The question about a fact, as `Question`. turn: where the fact is told, from 0."""

    id: str
    prompt: str
    kind: str
    max_tokens: int
    turn: int
    fact: Fact

    def score(self, prediction: str) -> float:
        return float(self.fact.right(prediction))


@dataclass(frozen=True)
class Conversation:
    """turns: pairs of a message and the reply to it. number: its place in its task, from 0."""

    task: str
    id: str
    number: int
    turns: tuple[tuple[str, str], ...]
    questions: tuple[Question | FactQuestion, ...]

    def digest(self, question: Question | FactQuestion) -> str:
        """What turns and question are, in eight letters: results of changed ones are not mixed."""
        return hashlib.sha256(repr((self.turns, question)).encode()).hexdigest()[:8]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is generated. turns, told: turns and facts of a conversation. half: of the templates."""

    turns: int = 200
    told: int = 10
    half: str = "all"
    seed: int = 0
    max_tokens: int = 32

    def __post_init__(self) -> None:
        chosen_for(0, self.told, self.half, self.seed)  # refuses what is not possible
        least = math.ceil((self.told + 1) / EARLY)
        if self.turns < least:
            raise ValueError(
                f"{self.turns} turns are too few for {self.told} facts: give at least {least} "
                "turns, or fewer facts"
            )

    def conversation(self, number: int) -> Conversation:
        """Facts are told early, and asked for after the last turn. As many statements of the same
        templates, with other names and values, are told anywhere."""
        chance = random.Random(f"chat {self.seed} {self.half} {self.turns} {self.told} {number}")
        told = facts(chosen_for(number, self.told, self.half, self.seed), chance)
        early = chance.sample(range(1, math.ceil(EARLY * self.turns)), len(told))
        rest = sorted(set(range(self.turns)) - set(early))
        statements = dict(zip(early, [fact.statement for fact in told], strict=True))
        places = chance.sample(rest, len(told))
        statements |= zip(places, [fact.distractor for fact in told], strict=True)
        turns = []
        for turn, (message, reply) in zip(range(self.turns), small_talk(chance), strict=False):
            if turn in statements:
                message = chance.choice(TELLS).format(fact=statements[turn], rest=message)
                reply = f"{chance.choice(THANKS)} {reply}"
            turns.append((message, reply))
        questions = tuple(
            FactQuestion(
                id=fact.template.name,
                prompt=RECALL.format(question=fact.question),
                kind=fact.template.kind,
                max_tokens=self.max_tokens,
                turn=turn,
                fact=fact,
            )
            for turn, fact in zip(early, told, strict=True)
        )
        name = f"{self.turns} turns, {self.told} facts, {self.half} templates, seed {self.seed}"
        return Conversation(GENERATED, f"{name}, {number}", number, tuple(turns), questions)


def from_document(document: Document) -> Conversation:
    """A conversation from the lines of a document: `Anna said, "..."`, or `Anna: ...`.

    The first speaker is the user, all others are the assistant; their names stay. A line that is
    no speech goes on the one before, or begins the next one if it stands behind an empty line.
    Raises ValueError for a text that is no conversation.
    """
    lines = [line.strip() for line in document.text.splitlines()]
    speeches = _speeches(lines)
    if len({who for who, _ in speeches}) < 2:
        raise ValueError(
            f"document {document.id!r} of {document.task} is no conversation: its lines must be "
            '`NAME said, "..."` or `NAME: ...`, of at least two speakers; choose others with --tasks'
        )
    user = speeches[0][0]
    turns: list[tuple[str, str]] = []
    for who, text in speeches:
        message, reply = turns[-1] if turns else ("", "")
        if who == user and (reply or not turns):
            turns.append((text, ""))
        elif who == user:
            turns[-1] = (f"{message}\n{text}", "")
        else:
            turns[-1] = (message, "\n".join([*reply.splitlines(), text]))
    return Conversation(
        document.task, document.id, document.number, tuple(turns), document.questions
    )


def _speeches(lines: list[str]) -> list[tuple[str, str]]:
    """Pairs of a speaker and what is said, with the speaker's name. Empty for other texts."""
    count = sum(map(bool, lines))
    for form in SPEECH:
        found = [form.match(line) for line in lines]
        if 2 * sum(map(bool, found)) >= count:
            break
    else:
        return []
    speeches: list[tuple[str, str]] = []
    before: list[str] = []
    empty = True
    for line, match in zip(lines, found, strict=True):
        if match:
            speeches.append((match["who"], "\n".join([*before, line])))
            before = []
        elif line and (empty or before):
            before.append(line)
        elif line:
            speeches[-1] = (speeches[-1][0], f"{speeches[-1][1]}\n{line}")
        empty = not line
    if before and speeches:
        speeches[-1] = (speeches[-1][0], "\n".join([speeches[-1][1], *before]))
    return speeches
