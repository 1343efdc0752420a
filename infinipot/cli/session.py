"""What the commands do with a session: open it, read, answer, save."""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infinipot.cli.console import (
    BadUse,
    Failure,
    Progress,
    Stopped,
    doing,
    interrupts,
    say,
    statistics,
)
from infinipot.cli.options import Given
from infinipot.cli.policy_names import policy_named
from infinipot.cli.source import Source

if TYPE_CHECKING:
    from infinipot import PotConfig, Sampling, Session


@dataclasses.dataclass
class Plan:
    """What a command was asked to do, checked as far as that is possible without the model."""

    given: Given
    config: PotConfig
    sampling: Sampling
    source: Source | None
    question: str | None
    pot: Path | None
    save: Path | None

    @property
    def quiet(self) -> bool:
        return bool(self.given["quiet"])


def plan(
    given: Given, *, file: str | None, question: str | None, pot: Path | None, save: Path | None
) -> Plan:
    if save is not None and (save.is_dir() or not save.absolute().parent.is_dir()):
        raise BadUse(
            f"cannot save {save}: "
            + (
                "it is a folder"
                if save.is_dir()
                else f"there is no folder {save.absolute().parent}"
            )
        )
    if file is None:
        source = None
    else:
        source = Source(file)
    with doing("starting", bool(given["quiet"])):
        from infinipot.config import Sampling

        if pot is None:
            config = given.config()
        else:
            config = saved_config(pot, given)
        sampling = Sampling(**{**given.of(Sampling), "stop": tuple(given["stop"] or ())})
    asks = config.policy.catalyst == "question" and "catalyst" in config.policy.needs()
    if source and asks and not question:
        raise BadUse(
            "the catalyst is the question, but none is given while the text is read: give one with -p, or use --catalyst general"
        )
    if given["system"] and given["raw"]:
        raise BadUse(
            "--system needs the chat template, and --raw is without it: leave one of them out"
        )
    return Plan(given, config, sampling, source, question, pot, save)


def saved_config(pot: Path, given: Given) -> PotConfig:
    """The options a pot was filled with. Refuses given ones that say otherwise; only chunk_tokens
    may, as results do not depend on it."""
    from infinipot.pot_file import config_of, describe, in_force

    header = describe(pot)
    if ":" in (given["policy"] or ""):
        policy = policy_named(given["policy"])
    else:
        policy = None
    saved = config_of(pot, header, policy)
    shown, plan = in_force(pot, header, policy)
    given.check_use([saved.policy])
    here = {
        **shown.options,
        **shown.policy.values,
        "policy": given["policy"] if policy else saved.policy.name,
    }
    here |= {"catalyst": plan.catalyst, "system": header["system"], "raw": not header["templated"]}
    for name, there in {**given.pot, "system": given["system"], "raw": given["raw"]}.items():
        if there is not None and name != "chunk_tokens" and there != here[name]:
            raise BadUse(
                f"{given.origins[name]} is {there!r}, but {pot} was filled with {name} {here[name]!r}: leave it out, or read the text into a "
                "new pot"
            )
    return saved.replace(chunk_tokens=given["chunk_tokens"] or saved.chunk_tokens)


def silence(quiet: bool) -> None:
    """No warnings and bars of other libraries; a download from the Hub may show its bar on a
    terminal."""
    import warnings

    import transformers
    from huggingface_hub.utils import logging as hub_logging
    from huggingface_hub.utils.tqdm import enable_progress_bars

    warnings.simplefilter("ignore")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    hub_logging.set_verbosity_error()
    if sys.stderr.isatty() and not quiet:
        enable_progress_bars()


def open_session(plan: Plan, model: str) -> tuple[Session, float]:
    """A new session, or the saved one, and the seconds that loading took."""
    started = time.perf_counter()
    given = plan.given
    with doing(f"loading {model}", plan.quiet):
        from infinipot import Session, load

        if not given["debug"]:
            silence(plan.quiet)
        wanted = {name: given[name] for name in ("device", "dtype") if given[name]}
        try:
            loaded, tokenizer = load(model, **wanted)
        except OSError as problem:
            raise BadUse(str(problem)) from problem
        if plan.pot is not None:
            session = Session.load(
                plan.pot,
                loaded,
                tokenizer,
                chunk_tokens=plan.config.chunk_tokens,
                policy=plan.config.policy,
            )
        else:
            session = Session(
                loaded,
                tokenizer,
                plan.config,
                system=given["system"],
                template=False if given["raw"] else None,
            )
    return session, time.perf_counter() - started


def read(plan: Plan, session: Session) -> float:
    """Read the text, if there is one, and save the pot, if that is wanted, also if the reading was
    cut short. Returns tokens per second."""
    before = session.stats.tokens_read
    took = session.stats.timings["read_s"]
    source = plan.source
    if source is not None:
        progress = Progress(session, source, plan.quiet)
        try:
            with interrupts.gently("stopping (Ctrl-C again leaves at once)"):
                session.append(source, question=plan.question or None, progress=progress)
                interrupts.check()
        except Stopped:
            progress.close()
            raise Stopped(
                f"stopped after {session.stats.tokens_read - before:,} tokens; "
                + save(plan, session)
            ) from None
        finally:
            progress.close()
        if source.bytes_read == 0:
            raise BadUse(f"{source.name} is empty: there is nothing to read")
        if source.problem:
            if plan.save is not None:
                say(save(plan, session))
            raise BadUse(source.problem)
    if plan.save is not None:
        line = save(plan, session)
        if not plan.quiet:
            say(line)
    took = session.stats.timings["read_s"] - took
    if took:
        return (session.stats.tokens_read - before) / took
    return 0.0


def save(plan: Plan, session: Session) -> str:
    """Save the pot where the plan says, and say what was done."""
    if plan.save is None:
        return "nothing is saved (--save-pot would)"
    if session.pot.hidden is None:
        return "there is no pot to save yet"
    write(session, plan.save)
    return f"pot saved in {plan.save} ({plan.save.stat().st_size / 1e6:,.1f} MB)"


def write(session: Session, path: str | os.PathLike[str]) -> None:
    from infinipot import PotFileError

    try:
        session.save(path)
    except PotFileError as problem:
        raise Failure(str(problem)) from problem


@dataclasses.dataclass
class Said:
    """An answer, and how fast it came."""

    text: str = ""
    tokens: int = 0
    first_token_s: float | None = None
    answer_s: float = 0.0
    stopped: bool = False

    @property
    def answer_tps(self) -> float | None:
        """Tokens per second after the first."""
        if self.first_token_s is None or self.tokens < 2:
            return None
        return (self.tokens - 1) / max(self.answer_s - self.first_token_s, 1e-9)


def answer(
    session: Session,
    question: str | None,
    sampling: Sampling,
    show: Callable[[str], None],
    aware: bool = True,
) -> Said:
    """Answer into the pot, showing pieces as they come, until it ends or Ctrl-C stops it; what was
    said stays.

    With prefill="whole" nothing stays: each answer has a distillation of its own.
    """
    said = Said()
    started = time.perf_counter()
    pieces = session.stream(
        question,
        keep=session.config.prefill != "whole",
        aware=aware,
        **dataclasses.asdict(sampling),
    )
    with closing(pieces), interrupts.gently():
        for piece in pieces:
            if said.first_token_s is None:
                said.first_token_s = time.perf_counter() - started
            said.text += piece
            show(piece)
            said.stopped = interrupts.asked
            if said.stopped:
                break
    said.tokens = len(pieces.ids)
    said.answer_s = time.perf_counter() - started
    return said


def result(
    plan: Plan, session: Session, said: Said, load_s: float, read_s: float, read_tps: float
) -> dict[str, Any]:
    """What --json prints."""
    stats = session.stats
    timings = {
        "load_s": load_s,
        "read_s": read_s,
        "distill_s": stats.timings["distill_s"],
        "first_token_s": said.first_token_s,
        "answer_s": said.answer_s,
        "read_tps": read_tps,
        "answer_tps": said.answer_tps,
    }
    return {
        "text": said.text,
        "usage": {
            "prompt_tokens": stats.tokens_read - said.tokens,
            "completion_tokens": said.tokens,
        },
        "pot": {
            "size": session.pot.size,
            "entries": stats.entries,
            "peak_entries": stats.peak_entries,
            "distillations": stats.distillations,
            "bytes": stats.pot_bytes,
            "full_cache_bytes": stats.full_cache_bytes,
            "policy": plan.config.policy.name,
        },
        "timings": {
            name: None if value is None else round(value, 4) for name, value in timings.items()
        },
    }


def report(plan: Plan, session: Session, *speeds: str) -> None:
    if not plan.quiet:
        say(" · ".join((statistics(session), *speeds)))
