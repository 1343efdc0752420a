"""Sessions: read texts of any length into one pot, ask questions, chat."""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from infinipot import pot_file
from infinipot.checks import old_name
from infinipot.config import PotConfig, Sampling
from infinipot.engine.answer import Answer
from infinipot.engine.decode import answer
from infinipot.engine.generation import Generation
from infinipot.engine.reader import Progress
from infinipot.engine.sampling import Sampler, end_tokens
from infinipot.engine.truncate import reader_for
from infinipot.model.runner import ModelRunner
from infinipot.policies import Policy
from infinipot.session.arguments import Question, listed, runner_of, uses_template
from infinipot.session.catalyst import answer_catalyst, new_catalyst
from infinipot.session.file import damage_of, restore_session, session_state
from infinipot.session.view import SessionView
from infinipot.text.chat_template import Dialogue
from infinipot.text.pieces import Pieces
from infinipot.text.tokens import Text, checked, parts


class Session(SessionView):
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
        self._reader = reader_for(self.runner, config or PotConfig(), tokenizer)
        self._dialogue: Dialogue | None = None
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
        with self._reader.reading():
            vocabulary = self.runner.vocabulary
            lists, raw = parts(text, self.tokenizer, vocabulary, lambda: dialogue.place())
            dialogue = self._dialogue_for(raw, special_tokens)
            catalyst = new_catalyst(self._reader, dialogue, listed(question), settles=True)
            self._begin(dialogue)
            for ids, more in self._reader.cycles(dialogue.opening, lists, catalyst):
                self._read(dialogue, ids, catalyst, progress, more)

    def append_part(self, ids: list[int], question: Question, most: int, more: bool) -> int:
        """Read the first of these ids: at most `most`, and only up to the next distillation.

        For texts that are read in parts: parts that end where the pot is full are read fastest.
        more: more follows these ids. Returns how many were read. Otherwise as `append`.
        """
        with self._reader.reading():
            dialogue = self._dialogue_for(raw=True)
            catalyst = new_catalyst(self._reader, dialogue, listed(question), settles=True)
            self._begin(dialogue)
            opening = dialogue.opening()
            count = min(most, len(ids))
            full = self._reader.until_full(catalyst)
            if full is not None and len(opening) < full <= len(opening) + count:
                count = full - len(opening)
                more = more or count < len(ids)
            else:
                more = False
            self._read(dialogue, opening + ids[:count], catalyst, None, more)
            return count

    def _read(
        self,
        dialogue: Dialogue,
        ids: list[int],
        catalyst: Tensor | None,
        progress: Progress | None,
        more: bool,
    ) -> None:
        """Read ids of a text, and note that in the dialogue."""
        state = (dialogue.in_text, dialogue.answered)
        before = self._reader.progress
        dialogue.in_text = True
        dialogue.answered = False
        try:
            self._reader.read(ids, catalyst, progress, more)
        except BaseException:
            if self._reader.progress == before:
                dialogue.in_text, dialogue.answered = state
            raise

    def _dialogue_for(self, raw: bool, special_tokens: bool | None = None) -> Dialogue:
        """The conversation, or a new one. raw: the next text is token ids. special_tokens: whether
        they count in it; None: as in the session."""
        dialogue = self._dialogue
        if dialogue is None:
            templated = uses_template(self.template, self.tokenizer, self.system, raw)
            options = {"begins": not raw, "special_tokens": self.special_tokens}
            dialogue = Dialogue(self.tokenizer, self.system, templated, **options)
        if special_tokens is None:
            special_tokens = self.special_tokens
        dialogue.special_tokens = special_tokens
        return dialogue

    def _begin(self, dialogue: Dialogue) -> None:
        """Read and pin the head of the chat template, once."""
        if self._dialogue is None:
            self._reader.check_room(None, len(dialogue.head()))
            self._reader.pin(dialogue.head())
            self._dialogue = dialogue

    def ask(self, question: Question = None, **sampling: Any) -> str:
        """Answer from the pot, and restore the pot. sampling: options of `Sampling`; greedy by
        default."""
        return "".join(self.stream(question, **sampling))

    def chat(self, message: str, **sampling: Any) -> str:
        """Answer a message. Message and answer become part of the pot. Unless config says otherwise,
        distillations use the general catalyst."""
        return "".join(self.stream(message, keep=True, aware=False, **sampling))

    def stream(
        self,
        question: Question = None,
        *,
        keep: bool = False,
        aware: bool = True,
        special_tokens: bool | None = None,
        **sampling: Any,
    ) -> Answer:
        """Like `ask`, as an iterator of pieces, which may be stopped at any piece. keep, aware,
        special_tokens: as in `generation`."""
        options = Sampling(**sampling)
        if self.runner.sharded and options.temperature and options.seed is None:
            raise ValueError(
                "give a seed: every process of a model that is shared out must pick the same tokens"
            )
        if self.tokenizer is None:
            raise ValueError(
                "the session has no tokenizer to turn an answer into text: pass one, or use stream_ids"
            )
        tokens = self.stream_ids(
            question,
            max_tokens=options.max_tokens,
            pick=Sampler(options),
            keep=keep,
            aware=aware,
            special_tokens=special_tokens,
        )
        reply = Answer(tokens, Pieces(self.tokenizer, options.stop), options.max_tokens)
        self._reasons = reply.reasons
        return reply

    def stream_ids(self, question: Question = None, **options: Any) -> Generator[int, None, None]:
        """The answer's token ids, one by one, without the id that ends it. options: as in
        `generation`."""
        prompt, generation = self._prepare(question, **options)
        return answer(self._reader, prompt, expected_progress=self._reader.progress, **generation)

    def generation(self, question: Question = None, **options: Any) -> Generation:
        """An answer that has not begun, for `decode.together`. The session is busy until its end.

        max_tokens: most tokens of the answer. pick: next-token logits [1, V] float32 -> id. keep:
        question and answer become part of the pot. aware: distillations for the answer use the
        question as the catalyst. stop_ids: ids that end the answer; None: all that the model, its
        tokenizer and the template name. special_tokens: instead of the session's.
        """
        prompt, generation = self._prepare(question, **options)
        return Generation(self._reader, prompt, **generation)

    turn = old_name("turn", "generation")

    def _prepare(
        self,
        question: Question,
        *,
        keep: bool = False,
        aware: bool = True,
        stop_ids: set[int] | None = None,
        special_tokens: bool | None = None,
        **options: Any,
    ) -> tuple[list[int], dict[str, Any]]:
        """The ids that are read before an answer, and the fields of its `GenerationOptions`.
        options: max_tokens, pick."""
        reader = self._reader
        reader.check_idle()
        question = listed(question)
        if isinstance(question, list):
            question = checked(question, self.runner.vocabulary)
        dialogue = self._dialogue_for(isinstance(question, list), special_tokens)
        prompt = dialogue.question(question)
        if not prompt and self.pot.hidden is None:
            raise ValueError(
                "nothing has been read and nothing is asked: append a text or pass a question"
            )
        entries = len(prompt) + options["max_tokens"]
        if not self._dialogue:
            entries += len(dialogue.head())
        catalyst = None
        if keep or reader.plan.whole or not reader.fits(entries):
            catalyst = answer_catalyst(reader, dialogue, question, aware=aware, keep=keep)
        self._begin(dialogue)
        if stop_ids is None:
            stop_ids = end_tokens(self.runner.model, self.tokenizer) | dialogue.ends()
        settled = dialogue.note_answer
        return prompt, {
            **options,
            "stop_ids": stop_ids,
            "keep": keep,
            "catalyst": catalyst,
            "settled": settled,
        }

    def __reduce__(self) -> str:
        raise TypeError("a session is not copied: use session.save(path) or session.fork()")

    def save(self, path: str | os.PathLike[str], *, origin: pot_file.Origin | None = None) -> None:
        """Write the pot to a file, whole or not at all. origin: the identity of this model and
        tokenizer, if known. Raises PotFileError."""
        self._reader.check_idle()
        if self._dialogue is None or self.pot.hidden is None:
            raise pot_file.PotFileError(
                "nothing has been read, so there is no pot to save: append a text first"
            )
        origin = origin or pot_file.origin(self.runner.model, self.tokenizer)
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
            pot_file.check_origin(path, header, origin or pot_file.origin(runner.model, tokenizer))
            config = pot_file.config_of(path, header, policy)
            config = config.replace(chunk_tokens=chunk_tokens or config.chunk_tokens)
            system = header["system"]
            templated = header["templated"]
            session = cls(runner, tokenizer, config, system=system, template=templated)
            session._dialogue = Dialogue(tokenizer, system, templated)
            restore_session(session._reader, session._dialogue, tensors, header)
        return session
