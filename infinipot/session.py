"""Reading without end, asking, chatting: texts, questions and the conversation around one pot."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Generator, Iterable
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from infinipot import pot_file
from infinipot.cache.pot import Pot
from infinipot.catalysts import ANSWER_PREFIXES, PRESETS
from infinipot.config import PotConfig, Sampling
from infinipot.engine.decode import Answer, Generation, answer
from infinipot.engine.plan import Plan
from infinipot.engine.reader import Progress, Stats
from infinipot.engine.sampling import Sampler, end_tokens
from infinipot.engine.truncate import reader_for
from infinipot.machine import out_of_memory
from infinipot.model.runner import ModelRunner
from infinipot.policies import Policy
from infinipot.scoring.representativeness import contrasted
from infinipot.text.chat_template import Dialogue
from infinipot.text.tokens import Pieces, Text, checked, parts

Question = str | Iterable[int] | None


def _listed(question: Question) -> str | list[int] | None:
    """A question as a text or as plain ids, whatever kind of sequence it came as."""
    if question is None or isinstance(question, str):
        return question
    return [int(i) for i in (question.flatten() if isinstance(question, Tensor) else question)]


class Session:
    """A text of any length in a pot of fixed size.

    model: a decoder-only transformers model. tokenizer: None if only token ids are used. config:
    sizes and policy. system: a system prompt, pinned. template: whether the tokenizer's chat
    template stands around texts and questions. None: yes, unless the first thing read is token ids;
    a session that begins with ids reads everything as it is.
    """

    def __init__(
        self,
        model: PreTrainedModel | ModelRunner,
        tokenizer: PreTrainedTokenizerBase | None = None,
        config: PotConfig | None = None,
        *,
        system: str | None = None,
        template: bool | None = None,
    ) -> None:
        if isinstance(model, ModelRunner):
            self.host = model
        else:
            self.host = ModelRunner(model)
        self.tokenizer = tokenizer
        self.system = system
        self.template = template
        self._reader = reader_for(self.host, config or PotConfig())
        self._dialogue: Dialogue | None = None

    @property
    def pot(self) -> Pot:
        return self._reader.pot

    @property
    def plan(self) -> Plan | None:
        """What distillations go by, layer by layer; None while it still depends on whether a
        question will be known."""
        return self._reader.fixed_plan

    @property
    def config(self) -> PotConfig:
        """The options that are in force; None: an option that is not decided yet, or that each
        layer has for itself (`plan` has them)."""
        return self._reader.plan.shown_in(self._reader.options, decided=self.plan is not None)

    @property
    def stats(self) -> Stats:
        return self._reader.stats

    @property
    def logits(self) -> Tensor:
        """Next-token logits [1, V] float32 after what the pot has read."""
        if self.pot.hidden is None:
            raise ValueError("nothing has been read: append a text first")
        return self.host.head(self.pot.hidden)[:, -1].float()

    # ---------------------------------------------------------------- reading

    def score_all(self) -> None:
        """From now on note how surprising every token is that is read, also if the policy makes no
        use of it: after each chunk `pot.novelty` ends in that chunk's."""
        self._reader.score_novelty = True
        self.pot.read_by_chunk()

    def append(
        self, text: Text, question: Question = None, progress: Progress | None = None
    ) -> None:
        """Read on, distilling whenever the pot is full.

        text: str, token ids (list or tensor [T] or [1, T]), or an iterator of str, which is never
        held whole. question: what will be asked (str or ids); it becomes the catalyst. progress:
        called after every chunk, when the pot is whole. Raises ValueError, before anything is read,
        when the sizes leave no room. When reading is interrupted, what was read by then stays.
        """
        self._reader.check_idle()
        lists, raw = parts(text, self.tokenizer, self.host.vocabulary, lambda: dialogue.place())
        dialogue = self._dialogue or self._new_dialogue(raw)
        catalyst = self._catalyst_for(_listed(question), dialogue, settles=True)
        self._begin(dialogue)
        for ids, more in self._reader.cycles(dialogue.opening, lists, catalyst):
            was = (dialogue.in_text, dialogue.answered)
            before = self.stats.tokens_read
            dialogue.in_text = True
            dialogue.answered = False
            try:
                self._reader.read(ids, catalyst, progress, more)
            except BaseException:
                if self.stats.tokens_read == before:
                    dialogue.in_text, dialogue.answered = was
                raise

    def _new_dialogue(self, raw: bool) -> Dialogue:
        templated = self.tokenizer is not None and (
            not raw if self.template is None else self.template
        )
        if self.template and self.tokenizer is None:
            raise ValueError("template=True needs a tokenizer, which has the template: pass one")
        if self.system is not None and not templated:
            raise ValueError(
                "system is given, but this session uses no chat template to put it in: put it into the text instead"
            )
        return Dialogue(self.tokenizer, self.system, templated)

    def _begin(self, dialogue: Dialogue) -> None:
        """Settle, once, whether the chat template is used; read its head, which stays pinned."""
        if self._dialogue is None:
            self._reader.check_room(None, len(dialogue.head()))
            self._reader.pin(dialogue.head())
            self._dialogue = dialogue

    def _catalyst_for(
        self, question: str | list[int] | None, dialogue: Dialogue, settles: bool
    ) -> Tensor | None:
        """Ids [1, |P|] of the prompt that is read at a distillation, [2, |P|] with its contrast;
        None if the policy needs none. Refuses one that leaves no room. settles: what depends on
        whether there is a question goes by this one, unless something was distilled before."""
        reader = self._reader
        policy = reader.policy
        if "catalyst" not in reader.plan.needs:
            return None
        kind = policy.catalyst or ("general" if question is None else "question")
        if kind == "question" and question is None:
            raise ValueError(
                "catalyst='question' needs the question while reading: append(text, question=...); or use catalyst='general'"
            )
        if settles:
            reader.settle(kind)
        if kind == "plain":
            catalyst = self.pot.newest
        else:
            if kind == "question" and question is not None:
                prompt = question
            else:
                prompt = PRESETS.get(kind, kind)
            if isinstance(prompt, str):
                prompt = prompt
            else:
                prompt = checked(prompt, self.host.vocabulary)
            if policy.answer_prefix is None:
                prefix = ANSWER_PREFIXES.get(kind, "")
            else:
                prefix = policy.answer_prefix
            catalyst = reader.tensor(dialogue.catalyst(prompt) + dialogue.ids(prefix))
            if policy.contrast is not None:
                other = dialogue.catalyst(PRESETS.get(policy.contrast, policy.contrast))
                catalyst = contrasted(catalyst, reader.tensor(other))
        reader.check_room(catalyst, self.pot.pinned if self._dialogue else len(dialogue.head()))
        return catalyst

    # ---------------------------------------------------------------- answering

    def ask(self, question: Question = None, **sampling: Any) -> str:
        """Answer from the pot and leave it as it was. Options are those of `Sampling`; greedy by
        default."""
        return "".join(self.stream(question, **sampling))

    def chat(self, message: str, **sampling: Any) -> str:
        """A turn that becomes part of the pot, with its answer. Unless config says otherwise, the
        general catalyst distils for it."""
        return "".join(self.stream(message, keep=True, aware=False, **sampling))

    def stream(
        self, question: Question = None, *, keep: bool = False, aware: bool = True, **sampling: Any
    ) -> Answer:
        """Like `ask`, in pieces as they come. keep, aware: as in `turn`. Stopping at any piece is
        safe."""
        options = Sampling(**sampling)
        if self.host.sharded and options.temperature and options.seed is None:
            raise ValueError(
                "give a seed: every process of a model that is shared out must pick the same tokens"
            )
        if self.tokenizer is None:
            raise ValueError(
                "the session has no tokenizer to turn an answer into text: pass one, or use stream_ids"
            )
        tokens = self.stream_ids(
            question, max_tokens=options.max_tokens, pick=Sampler(options), keep=keep, aware=aware
        )
        return Answer(tokens, Pieces(self.tokenizer, options.stop), options.max_tokens)

    def stream_ids(self, question: Question = None, **options: Any) -> Generator[int, None, None]:
        """The answer's token ids, one by one; the id that ends it is not among them. Options are
        those of `turn`."""
        prompt, how = self._prepare(question, **options)
        return answer(self._reader, prompt, expected_progress=self._reader.progress, **how)

    def turn(self, question: Question = None, **options: Any) -> Generation:
        """An answer that has not begun, to be run together with those of other sessions
        (`decode.together`); until its end the session is busy.

        max_tokens: most tokens of it. pick: next-token logits [1, V] float32 -> id. keep: question
        and answer become part of the pot. aware: the question is the catalyst of distillations made
        for it. stop_ids: ids that end the answer; None: all that the model, its tokenizer and the
        template name.
        """
        prompt, how = self._prepare(question, **options)
        return Generation(self._reader, prompt, **how)

    def _prepare(
        self,
        question: Question,
        *,
        max_tokens: int,
        pick: Callable[[Tensor], int],
        keep: bool = False,
        aware: bool = True,
        stop_ids: set[int] | None = None,
    ) -> tuple[list[int], dict[str, Any]]:
        """The ids that are read before an answer, and how it is made."""
        self._reader.check_idle()
        asked = _listed(question)
        if isinstance(asked, list):
            asked = checked(asked, self.host.vocabulary)
        dialogue = self._dialogue or self._new_dialogue(raw=isinstance(asked, list))
        prompt = dialogue.question(asked)
        if not prompt and self.pot.hidden is None:
            raise ValueError(
                "nothing has been read and nothing is asked: append a text or pass a question"
            )
        catalyst = None
        if self._dialogue:
            head = 0
        else:
            head = len(dialogue.head())
        if (
            keep
            or self._reader.plan.whole
            or not self._reader.fits(head + len(prompt) + max_tokens)
        ):
            if aware or self._reader.policy.catalyst == "question":
                known = asked
            else:
                known = None
            anew = known or self._reader.last_catalyst is None
            if anew:
                catalyst = self._catalyst_for(
                    known, dialogue, settles=keep or self._reader.plan.whole
                )
            else:
                catalyst = self._reader.last_catalyst
        self._begin(dialogue)
        if stop_ids is None:
            stop_ids = end_tokens(self.host.model, self.tokenizer) | dialogue.ends()

        def settled() -> None:
            dialogue.in_text = False
            dialogue.answered = True

        options = {
            "max_tokens": max_tokens,
            "pick": pick,
            "stop_ids": stop_ids,
            "keep": keep,
            "catalyst": catalyst,
            "settled": settled,
        }
        return prompt, options

    # ---------------------------------------------------------------- keeping

    def fork(self) -> Session:
        """An independent session that goes on from the same pot; model and tokenizer are shared."""
        twin = copy.copy(self)
        twin._reader = self._reader.copy()
        twin._dialogue = copy.copy(self._dialogue)
        return twin

    def save(self, path: str | os.PathLike[str], *, origin: pot_file.Origin | None = None) -> None:
        """Write the pot to a file, whole or not at all. origin: that of this model and tokenizer,
        if it is known. Raises PotFileError."""
        self._reader.check_idle()
        if self._dialogue is None or self.pot.hidden is None:
            raise pot_file.PotFileError(
                "nothing has been read, so there is no pot to save: append a text first"
            )
        here = origin or pot_file.origin(self.host.model, self.tokenizer)
        tensors, numbers = self.pot.state()
        ids, skipped = self._reader.waiting()
        tensors["tail"] = torch.tensor(ids, dtype=torch.long)
        catalyst = self._reader.last_catalyst
        if catalyst is not None and catalyst is not self.pot.newest:
            tensors["catalyst"] = catalyst
        about = {
            "model": here.model,
            "tokenizer_sha256": here.tokenizer_sha256,
            "config": pot_file.saved_options(self._reader.options),
            "catalyst": self._reader.plan.catalyst,
            "plan": self.plan and self.plan.saved(),
            "system": self.system,
            "templated": self._dialogue.templated,
            "in_text": self._dialogue.in_text,
            "answered": self._dialogue.answered,
            "usual_is_newest": catalyst is self.pot.newest,
            "skipped": skipped,
            "entries": self.pot.length,
            "pot": numbers,
        }
        pot_file.write(path, tensors, about)

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
        """Go on from a saved pot, with the options it was filled with; only chunk_tokens may
        differ, as results do not depend on it.

        policy: for a pot that a policy of another package filled, that policy or its class: a file
        never imports code. Refuses, with PotFileError, files that are damaged, foreign or newer.
        """
        if isinstance(model, ModelRunner):
            host = model
        else:
            host = ModelRunner(model)
        tensors, about = pot_file.read(path)
        try:
            pot_file.check_origin(path, about, origin or pot_file.origin(host.model, tokenizer))
            config = pot_file.config_of(path, about, policy)
            config = config.replace(chunk_tokens=chunk_tokens or config.chunk_tokens)
            session = cls(
                host, tokenizer, config, system=about["system"], template=about["templated"]
            )
            session._dialogue = dialogue = Dialogue(tokenizer, about["system"], about["templated"])
            dialogue.in_text = about["in_text"]
            dialogue.answered = about["answered"]
            reader = session._reader
            reader.restore_plan(about.get("catalyst"), about.get("plan"))
            reader.restore_waiting(tensors.pop("tail").tolist(), about["skipped"])
            tensors = host.placed(tensors)
            catalyst = tensors.pop("catalyst", None)
            reader.pot.restore(tensors, about["pot"])
            if about["usual_is_newest"]:
                reader.last_catalyst = reader.pot.newest
            else:
                reader.last_catalyst = catalyst
            reader.pot.check()
        except pot_file.PotFileError:
            raise
        except Exception as problem:  # a file may say anything
            if out_of_memory(problem):
                raise
            raise pot_file.PotFileError(
                f"{path} is damaged, or was written by another program: {problem!r}"
            ) from problem
        return session
