"""Sessions: read texts of any length into one pot, ask questions, chat."""

from __future__ import annotations

import os

from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from infinipot import pot_file
from infinipot.config import PotConfig
from infinipot.engine.joint import alone
from infinipot.engine.passes import Passes
from infinipot.engine.reader import Progress
from infinipot.engine.truncate import reader_for
from infinipot.model.runner import ModelRunner
from infinipot.policies import Policy
from infinipot.session.answers import SessionAnswers
from infinipot.session.arguments import (
    Question,
    check_no_messages,
    config_of,
    listed,
    runner_of,
)
from infinipot.session.catalyst import new_catalyst
from infinipot.session.file import damage_of, origin_of, restore_session, session_state
from infinipot.text.chat_template import Dialogue
from infinipot.text.tokens import Text, parts


class Session(SessionAnswers):
    """A text of any length in a pot of fixed size.

    model: a decoder-only transformers model. tokenizer: None if only token ids are used. config:
    sizes and policy. system: a system prompt, pinned. template: whether texts and questions are put
    into the tokenizer's chat template. None: yes, unless the first text read is token ids.
    special_tokens: whether special tokens count where texts and questions spell them; otherwise they
    are text there.
    """

    def __init__(
        self,
        model: PreTrainedModel | ModelRunner,
        tokenizer: PreTrainedTokenizerBase | None = None,
        config: PotConfig | None = None,
        *,
        system: str | None = None,
        template: bool | None = None,
        special_tokens: bool = False,
    ) -> None:
        self.runner = runner_of(model)
        self.tokenizer = tokenizer
        self.system = system
        self.template = template
        self.special_tokens = special_tokens
        self._reader = reader_for(self.runner, config_of(config), tokenizer)
        self._dialogue: Dialogue | None = None
        self._head: list[int] | None = None
        """The ids of the head, instead of the template's own."""
        self._reasons: list[str] = []

    def append(
        self,
        text: Text,
        question: Question = None,
        progress: Progress | None = None,
        *,
        special_tokens: bool | None = None,
    ) -> None:
        """Read a text, and distil whenever the pot is full.

        text: str, token ids (list or tensor [T] or [1, T]), a Path or several (files, folders,
        documents), or an iterator of str, which is read piece by piece. question: the question to
        come (str or ids); it becomes the catalyst.
        progress: called after every chunk. special_tokens: instead of the session's. Raises
        ValueError, before anything is read, if the sizes leave no room. After an interruption the
        chunks already read stay in the pot. Raises RuntimeError while another thread reads.
        """
        check_no_messages(text)
        with self._reader.reading():
            vocabulary = self.runner.vocabulary
            lists, raw = parts(text, self.tokenizer, vocabulary, lambda: dialogue.place())
            dialogue = self._dialogue_for(raw, special_tokens)
            catalyst = new_catalyst(self._reader, dialogue, listed(question))
            self._begin(dialogue)
            for ids, more in self._reader.cycles(dialogue.opening, lists, catalyst):
                alone(self.runner, self._passes(dialogue, ids, catalyst, progress, more))
                self._reader.distil_full()

    def use_head(self, ids: list[int]) -> None:
        """Begin with these ids instead of the template's own head: they hold more, such as tools.
        Nothing may have been read."""
        self._head = ids

    def go_on(self) -> None:
        """The next text follows an answer with ids of its own for what the template puts between."""
        if self._dialogue is not None:
            self._dialogue.answered = False
            self._dialogue.in_text = True

    def recall(self, message: str, answer: str) -> None:
        """Read a message and the answer that it got elsewhere, as `chat` leaves both in the pot."""
        with self._reader.reading():
            dialogue = self._dialogue_for(raw=False)
            catalyst = new_catalyst(self._reader, dialogue, None)
            ids = dialogue.question(message) + dialogue.ids(answer)
            self._begin(dialogue)
            alone(self.runner, self._passes(dialogue, ids, catalyst, None, more=False))
            dialogue.note_answer()

    def append_part(self, ids: list[int], question: Question, most: int, more: bool) -> int:
        """Read the first of these ids: at most `most`, and only up to the next distillation. If that
        is due (`distillation_due`), distil, and read nothing.

        For texts that are read in parts: parts that end where the pot is full are read fastest.
        more: more follows these ids. Returns how many were read. Otherwise as `append`.
        """
        return alone(self.runner, self.part_passes(ids, question, most, more))

    def part_passes(self, ids: list[int], question: Question, most: int, more: bool) -> Passes[int]:
        """`append_part` as passes."""
        with self._reader.reading():
            if self._reader.is_full:
                self._reader.distil_full()
                return 0
            dialogue = self._dialogue_for(raw=True)
            catalyst = new_catalyst(self._reader, dialogue, listed(question))
            yield from self._head_passes(dialogue)
            opening = dialogue.opening()
            count = min(most, len(ids))
            full = self._reader.until_full(catalyst)
            if full is not None and len(opening) < full <= len(opening) + count:
                count = full - len(opening)
                more = more or count < len(ids)
            else:
                more = False
            yield from self._passes(dialogue, opening + ids[:count], catalyst, None, more)
            return count

    @property
    def distillation_due(self) -> bool:
        """Whether the latest `append_part` has filled the pot, and the next one will distil it."""
        return self._reader.is_full

    def _passes(
        self,
        dialogue: Dialogue,
        ids: list[int],
        catalyst: Tensor | None,
        progress: Progress | None,
        more: bool,
    ) -> Passes[None]:
        """Read ids of a text, and note that in the dialogue."""
        state = (dialogue.in_text, dialogue.answered)
        before = self._reader.progress
        dialogue.in_text = True
        dialogue.answered = False
        try:
            yield from self._reader.text_passes(ids, catalyst, progress, more)
        except BaseException:
            if self._reader.progress == before:
                dialogue.in_text, dialogue.answered = state
            raise

    def save(self, path: str | os.PathLike[str], *, origin: pot_file.Origin | None = None) -> None:
        """Write the pot to a file, whole or not at all. origin: the identity of this model and
        tokenizer, if known. Raises PotFileError."""
        self._reader.check_idle()
        if self._dialogue is None or self.pot.hidden is None:
            raise pot_file.PotFileError(
                "nothing has been read, so there is no pot to save: append a text first"
            )
        origin = origin or origin_of(self.runner, self.tokenizer)
        tensors, header = session_state(self._reader, self._dialogue, self.system, origin)
        pot_file.write(path, tensors, header)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        model: PreTrainedModel | ModelRunner,
        tokenizer: PreTrainedTokenizerBase | None = None,
        *,
        chunk_tokens: int | None = None,
        origin: pot_file.Origin | None = None,
        policy: Policy | type[Policy] | None = None,
    ) -> Session:
        """A session from a saved pot, with the options that filled it.

        chunk_tokens: replaces the saved value; it changes rounding only. policy: for a pot of a
        policy from another package, that policy or its class, because a file never imports code.
        Raises PotFileError for files that are damaged, foreign or newer.
        """
        runner = runner_of(model)
        tensors, header = pot_file.read(path)
        with damage_of(path):
            pot_file.check_origin(path, header, origin or origin_of(runner, tokenizer))
            config = pot_file.config_of(path, header, policy)
            config = config.replace(chunk_tokens=chunk_tokens or config.chunk_tokens)
            system = header["system"]
            templated = header["templated"]
            session = cls(runner, tokenizer, config, system=system, template=templated)
            session._dialogue = Dialogue(tokenizer, system, templated)
            restore_session(session._reader, session._dialogue, tensors, header)
        return session
