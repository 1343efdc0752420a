"""Ask a session: answers as text, as pieces, as token ids."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedTokenizerBase

from infinipot.checks import old_name
from infinipot.engine.answer import Answer
from infinipot.engine.decode import answer
from infinipot.engine.generation import Generation
from infinipot.engine.joint import alone
from infinipot.engine.passes import Passes
from infinipot.engine.sampling import Sampler, end_tokens
from infinipot.sampling import Sampling
from infinipot.session.arguments import Question, fed, listed, sampling_of, uses_template
from infinipot.session.catalyst import answer_catalyst
from infinipot.session.view import SessionView
from infinipot.text.chat_template import Dialogue
from infinipot.text.pieces import Pieces
from infinipot.text.tokens import checked

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from infinipot.option_types import SamplingOptions


class SessionAnswers(SessionView):
    """What a session says."""

    tokenizer: PreTrainedTokenizerBase | None
    system: str | None
    template: bool | None
    special_tokens: bool
    _head: list[int] | None

    def ask(
        self,
        question: Question = None,
        *,
        streamer: Any = None,
        **sampling: Unpack[SamplingOptions],
    ) -> str:
        """Answer from the pot, and restore the pot. sampling: options of `Sampling`; greedy by
        default. streamer: of transformers; it gets the tokens, and is ended also after an error."""
        return "".join(self.stream(question, streamer=streamer, **sampling))

    def chat(
        self, message: str, *, streamer: Any = None, **sampling: Unpack[SamplingOptions]
    ) -> str:
        """Answer a message. Message and answer become part of the pot. The message is no catalyst:
        distillations go on as for an unknown question. streamer: as in `ask`."""
        answer = self.stream(message, keep=True, aware=False, streamer=streamer, **sampling)
        return "".join(answer)

    def stream(
        self,
        question: Question = None,
        *,
        keep: bool = False,
        aware: bool = True,
        special_tokens: bool | None = None,
        streamer: Any = None,
        **sampling: Unpack[SamplingOptions],
    ) -> Answer:
        """Like `ask`, as an iterator of pieces, which may be stopped at any piece. keep, aware,
        special_tokens: as in `generation`."""
        how = {"keep": keep, "aware": aware, "special_tokens": special_tokens}
        try:
            return self._stream(question, sampling_of(sampling), how, streamer)
        except BaseException:
            if streamer is not None:  # who waits for its pieces would wait for ever
                streamer.end()
            raise

    def _stream(
        self, question: Question, options: Sampling, how: dict[str, Any], streamer: Any
    ) -> Answer:
        """how: keep, aware, special_tokens."""
        alone = self.runner.sharded and self.runner.followers is None
        if alone and options.temperature and options.seed is None:
            raise ValueError(
                "give a seed: every process of a model that is shared out must pick the same tokens"
            )
        if self.tokenizer is None:
            raise ValueError(
                "the session has no tokenizer to turn an answer into text: pass one, or use stream_ids"
            )
        pick = Sampler(options)
        tokens = self.stream_ids(question, max_tokens=options.max_tokens, pick=pick, **how)
        if streamer is not None:
            tokens = fed(streamer, tokens)
        reply = Answer(tokens, Pieces(self.tokenizer, options.stop), options.max_tokens)
        self._reasons = reply.reasons
        return reply

    def stream_ids(self, question: Question = None, **options: Any) -> Generator[int, None, None]:
        """The answer's token ids, one by one, without the id that ends it. options: as in
        `generation`."""
        prompt, generation = alone(self.runner, self._prepare(question, **options))
        return answer(self._reader, prompt, expected_progress=self._reader.progress, **generation)

    def generation(self, question: Question = None, **options: Any) -> Generation:
        """An answer that has not begun, for `decode.together`. The session is busy until its end.

        max_tokens: most tokens of the answer. pick: next-token logits [1, V] float32 -> id. keep:
        question and answer become part of the pot. aware: distillations for the answer use the
        question as the catalyst. stop_ids: ids that end the answer; None: all that the model, its
        tokenizer and the template name. special_tokens: instead of the session's. sampler: the one
        within `pick`, if that is none itself.
        """
        return alone(self.runner, self.generation_passes(question, **options))

    def generation_passes(self, question: Question, **options: Any) -> Passes[Generation]:
        """`generation` as passes: the head of the chat template may have to be read."""
        prompt, generation = yield from self._prepare(question, **options)
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
    ) -> Passes[tuple[list[int], dict[str, Any]]]:
        """The ids that are read before an answer, and the fields of its `GenerationOptions`.
        options: max_tokens, pick, sampler."""
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
            catalyst = answer_catalyst(reader, dialogue, question, aware=aware)
        yield from self._head_passes(dialogue)
        if stop_ids is None:
            stop_ids = end_tokens(self.runner.model, self.tokenizer) | dialogue.ends()
        settled = dialogue.note_answer
        return prompt, {
            **options,
            "stop_ids": self._ends(stop_ids, options),
            "keep": keep,
            "catalyst": catalyst,
            "settled": settled,
        }

    def _ends(self, own: set[int], options: dict[str, Any]) -> set[int]:
        """The tokens that end an answer. own: those of the model. options: pick, sampler."""
        sampler = options.get("sampler") or options["pick"]
        if not isinstance(sampler, Sampler):
            return own
        sampler.sampling.check_tokens(self.runner.vocabulary)
        return sampler.sampling.ends(own)

    def _dialogue_for(self, raw: bool, special_tokens: bool | None = None) -> Dialogue:
        """The conversation, or a new one. raw: the next text is token ids. special_tokens: whether
        they count in it; None: as in the session."""
        dialogue = self._dialogue
        if dialogue is None:
            templated = uses_template(self.template, self.tokenizer, self.system, raw)
            dialogue = Dialogue(
                self.tokenizer,
                self.system,
                templated,
                begins=not raw,
                special_tokens=self.special_tokens,
            )
            if self._head is not None:
                head = tuple(self._head)
                dialogue.template = dataclasses.replace(dialogue.template, head_ids=head)
        if special_tokens is None:
            special_tokens = self.special_tokens
        dialogue.special_tokens = special_tokens
        return dialogue

    def _begin(self, dialogue: Dialogue) -> None:
        """Read and pin the head of the chat template, once."""
        alone(self.runner, self._head_passes(dialogue))

    def _head_passes(self, dialogue: Dialogue) -> Passes[None]:
        """`_begin` as passes."""
        if self._dialogue is None:
            self._reader.check_room(None, len(dialogue.head()))
            yield from self._reader.pin_passes(dialogue.head())
            self._dialogue = dialogue
