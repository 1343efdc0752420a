"""What generate, chat and distill share: open a session, read, answer, save."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from infinipot.cli.command_options import CommandOptions
from infinipot.cli.console import (
    BadUse,
    Failure,
    Stopped,
    check_utf8,
    doing,
    interrupts,
    say,
    silence,
)
from infinipot.cli.parsers import biases
from infinipot.cli.policy_names import parse_policy
from infinipot.cli.progress import ReadingProgress, distillations
from infinipot.cli.source import Source

if TYPE_CHECKING:
    from infinipot import PotConfig, Sampling, Session
    from infinipot.policies import Policy


@dataclasses.dataclass
class Job:
    """What a command has to do, checked as far as possible without the model, and its speeds."""

    options: CommandOptions
    config: PotConfig
    sampling: Sampling
    source: Source | None
    question: str | None
    pot: Path | None
    save: Path | None
    load_s: float = 0.0
    read_s: float = 0.0
    read_tps: float = 0.0


def prepare(
    options: CommandOptions,
    *,
    source: Source | None,
    question: str | None,
    pot: Path | None,
    save: Path | None,
) -> Job:
    """Check the command line. source: the texts to read. pot: the saved pot to go on from. save:
    where to save the pot."""
    check_utf8("--prompt", question)
    if save is not None:
        check_writable("save", save)
    with doing("starting", options.quiet):
        from infinipot.sampling import Sampling

        if pot is None:
            config = options.config()
        else:
            config = saved_config(pot, options)
        fields = options.fields_of(Sampling)
        if "logit_bias" in fields:
            fields["logit_bias"] = biases(fields["logit_bias"])
        sampling = Sampling(**fields)
    if source:
        check_question(config, question)
    if options["system"] and options["raw"]:
        raise BadUse("--system needs the chat template, which --raw leaves out: give one of them")
    return Job(options, config, sampling, source, question, pot, save)


def check_question(config: PotConfig, question: str | None) -> None:
    """Refuse to read a text without the question that is its catalyst."""
    needed = config.policy.catalyst == "question" and "catalyst" in config.policy.needs()
    if needed and not question:
        raise BadUse(
            "the catalyst is the question, but none is given while the text is read: "
            "give one with -p, or use --catalyst general"
        )


def check_writable(verb: str, path: Path) -> None:
    """Refuse a path at which no file can be written."""
    folder = Path(os.path.realpath(path)).parent
    if path.is_dir():
        raise BadUse(f"cannot {verb} {path}: it is a folder")
    if path.exists() and not path.is_file():
        raise BadUse(
            f"cannot {verb} {path}: it is a device or a pipe, not a file: choose another name"
        )
    if not folder.is_dir():
        raise BadUse(f"cannot {verb} {path}: there is no folder {folder}")


def saved_config(pot: Path, options: CommandOptions) -> PotConfig:
    """The options of a saved pot. Refuses options of the command that differ, except chunk_tokens,
    which changes rounding only."""
    from infinipot.pot_file import config_of, describe, in_force

    header = describe(pot)
    policy: Policy | type[Policy] | None = None
    if ":" in (options["policy"] or ""):
        policy = parse_policy(options["policy"])
        if "(" not in options["policy"]:  # the class alone: the file has its options
            policy = type(policy)
    saved = config_of(pot, header, policy)
    shown, plan = in_force(pot, header, policy)
    options.check_use([saved.policy])
    values = {**shown.options, **shown.policy.values, "policy": saved.policy.name}
    values |= {"catalyst": plan.catalyst, "system": header["system"]}
    values["raw"] = not header["templated"]
    if policy is not None:
        values["policy"] = options["policy"]
    for name in (*options.pot, "system", "raw"):
        value = options[name]
        if value is None or name == "chunk_tokens" or value == values.get(name):
            continue
        raise BadUse(
            f"{options.origins[name]} is {value!r}, but {pot} was filled with {name} "
            f"{values.get(name)!r}: leave it out, or read the text into a new pot"
        )
    return saved.replace(chunk_tokens=options["chunk_tokens"] or saved.chunk_tokens)


def open_session(job: Job, model: str) -> Session:
    """Load the model, and start a session or go on with the saved one."""
    started = time.perf_counter()
    options = job.options
    with doing(f"loading {model}", options.quiet):
        from infinipot import Session, load

        if not options["debug"]:
            silence(options.quiet)
        try:
            loaded, tokenizer = load(model, **options.loading)
        except OSError as problem:
            raise BadUse(str(problem)) from problem
        if job.pot is not None:
            session = Session.load(
                job.pot,
                loaded,
                tokenizer,
                chunk_tokens=job.config.chunk_tokens,
                policy=job.config.policy,
            )
        else:
            template = False if options["raw"] else None
            session = Session(
                loaded, tokenizer, job.config, system=options["system"], template=template
            )
        session.special_tokens = bool(options["special_tokens"])
    job.load_s = time.perf_counter() - started
    return session


def read(job: Job, session: Session) -> None:
    """Read the text, if there is one. Then save the pot if the command asks for it, even if the
    reading was cut short."""
    tokens = session.stats.tokens_read
    seconds = session.stats.timings["read_s"]
    if job.source is not None:
        read_source(job, session, job.source)
    if job.save is not None:
        line = save(job, session)
        if not job.options.quiet:
            say(line)
    job.read_s = session.stats.timings["read_s"]
    if job.read_s > seconds:
        job.read_tps = (session.stats.tokens_read - tokens) / (job.read_s - seconds)


def read_source(job: Job, session: Session, source: Source) -> None:
    before = session.stats.tokens_read
    progress = ReadingProgress(session, source, job.options.quiet)
    try:
        with interrupts.gently("stopping (Ctrl-C again leaves at once)"):
            session.append(source, question=job.question or None, progress=progress)
            interrupts.check()
    except Stopped:
        progress.close()
        tokens = session.stats.tokens_read - before
        raise Stopped(f"stopped after {tokens:,} tokens; {save(job, session)}") from None
    finally:
        progress.close()
    if source.bytes_read == 0:
        raise BadUse(f"{source.name} is empty: there is nothing to read")
    if source.problem:
        if job.save is not None:
            say(save(job, session))
        raise BadUse(source.problem)


def save(job: Job, session: Session) -> str:
    """Save the pot if the command asks for it. Returns a message about what was done."""
    if job.save is None:
        return "nothing is saved (--save-pot would)"
    if session.pot.hidden is None:
        return "there is no pot to save yet"
    write(session, job.save)
    return f"pot saved in {job.save} ({job.save.stat().st_size / 1e6:,.1f} MB)"


def write(session: Session, path: str | os.PathLike[str]) -> None:
    from infinipot import PotFileError

    try:
        session.save(path)
    except PotFileError as problem:
        raise Failure(str(problem)) from problem


def statistics(session: Session) -> str:
    """What the session has read and how much memory it takes, in one line."""
    stats = session.stats
    pot = "a pot without a bound"
    if session.pot.size is not None:
        pot = f"a pot of {session.pot.size:,}"
    tokens = f"{stats.tokens_read:,} tokens"
    if stats.tokens_skipped:
        tokens += f", {stats.tokens_skipped:,} never read"
    memory = f"{stats.pot_bytes / 1e6:,.1f} MB"
    full = f"a full cache {stats.full_cache_bytes / 1e6:,.1f} MB"
    if session.pot.size is not None and stats.full_cache_bytes < stats.pot_bytes:
        memory += " for texts of any length"
        full += " for this short one"
    return (
        f"{tokens} in {pot} (peak {stats.peak_entries:,}, {distillations(stats.distillations)}) · "
        f"{memory}, {full}"
    )


def report(job: Job, session: Session, *speeds: str) -> None:
    if not job.options.quiet:
        say(" · ".join((statistics(session), *speeds)))
