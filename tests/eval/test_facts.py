"""Natural facts: templates, checks of answers in any usual spelling, several facts asked for from one pot; and chats that hold them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from infinipot import Session
from infinipot.cli import main
from infinipot.eval.methods import methods
from infinipot.eval.runner import Model, Replica
from infinipot.eval.tasks import chat, needle
from infinipot.eval.tasks.conversations import Plan, from_document
from infinipot.eval.tasks.document_rows import Document, Question
from infinipot.eval.tasks.fact_answers import CHECKS
from infinipot.eval.tasks.fact_templates import chosen_for, facts, templates, templates_of
from infinipot.eval.tasks.facts import FactsReading, placed, plan, spread
from infinipot.eval.tasks.haystack import hide

PROSE = (
    "The ship left at dawn. Nobody saw it go! Was there a storm? The harbour master wrote of rain. "
)


@pytest.fixture
def prose(tmp_path: Path) -> str:
    (tmp_path / "prose.txt").write_text(PROSE * 8)
    return str(tmp_path / "prose.txt")


# ---------------------------------------------------------------- answers


@pytest.mark.parametrize(
    ("type", "value", "right", "wrong"),
    [
        (
            "clock",
            "16:07",
            [
                "4:07",
                "It leaves at seven minutes past four.",
                "4.07 p.m.",
                "At 16:07",
                "four oh seven",
                "04:07 PM",
                "7 minutes after 4 in the afternoon",
            ],
            ["4:17", "14:07", "4:07 in the morning", "4:07am", "7:04", "four", "407"],
        ),
        ("clock", "16:35", ["twenty-five to five", "25 minutes before 5"], ["25 past 5"]),
        ("clock", "9:15", ["a quarter past nine", "9:15 a.m."], ["21:15", "9:15 pm", "9:45"]),
        ("clock", "12:30", ["half past twelve", "12:30 pm"], ["0:30", "half past eleven"]),
        (
            "amount",
            "1,250",
            ["1250", "1,250 crowns", "1 250", "one thousand two hundred and fifty", "$1,250.00"],
            ["11,250", "1,251", "125", "1250.5", ""],
        ),
        ("amount", "37", ["thirty-seven", "Thirty seven trees"], ["137", "37.5", "3 and 7"]),
        (
            "date",
            "14 March",
            ["March 14", "the fourteenth of March", "14th Mar.", "on March 14th, 1903"],
            ["4 March", "14 May", "March 24"],
        ),
        ("year", "1984", ["in 1984", "nineteen eighty-four"], ["1985", "19840"]),
        (
            "person",
            "Nora Lindqvist",
            ["nora lindqvist", "Dr. Lindqvist", "It was Nora Lindqvist's"],
            ["Ivo Lindqvist", "Nora", "Lindqvistson"],
        ),
        ("town", "Kessock", ["In Kessock.", "KESSOCK"], ["Kesso", "Kessocks Hill"]),
        ("spot", "piano stool|bench", ["on the bench of the piano"], ["a piano", "the stool"]),
        ("cause", "burst pipe|water", ["A water pipe had burst."], ["a fire", "the pipe"]),
        ("code", "BG-4934", ["bg 4934", "B G 4 9 3 4", "“BG4934”"], ["BG-49345", "ABG-4934"]),
    ],
)  # fmt: skip
def test_usual_spellings_are_right(
    type: str, value: str, right: list[str], wrong: list[str]
) -> None:
    for answer in right:
        assert CHECKS[type](value, answer), answer
    for answer in wrong:
        assert not CHECKS[type](value, answer), answer


def test_a_fact_answers_its_question_and_no_other() -> None:
    assert len(templates()) >= 30
    assert len({one.name for one in templates()}) == len(templates())
    for seed in range(6):
        for fact in facts(templates(), random.Random(seed)):
            assert fact.right(fact.value.text), fact
            assert fact.right(fact.statement), fact
            assert not fact.right(fact.question), fact
            assert not fact.right(fact.distractor), fact
            assert not fact.right(f"{fact.value.text} or {fact.other.text}"), fact
            assert fact.other.named_in(fact.distractor), fact
            assert fact.statement.partition(" ")[2] != fact.distractor.partition(" ")[2]


def test_halves_have_every_kind_and_texts_take_templates_in_turn() -> None:
    even, odd = templates_of("even"), templates_of("odd")
    assert not set(even) & set(odd)
    assert {*even, *odd} == set(templates())
    assert {one.kind for one in even} == {one.kind for one in odd}
    assert len({one.kind for one in even}) == 6
    some = [one for text in range(18) for one in chosen_for(text, 4, "odd", 3)]
    assert {some.count(one) for one in odd} == {4}
    assert chosen_for(2, 4, "odd", 3) == some[8:12]
    with pytest.raises(ValueError, match="there are 18 templates"):
        chosen_for(0, 19, "odd", 0)
    with pytest.raises(ValueError, match="did you mean 'even'"):
        templates_of("evn")


def test_facts_stand_at_ends_of_sentences_near_their_depths(replica: Replica, prose: str) -> None:
    hidden = facts(chosen_for(0, 4, "all", 0), random.Random(4))
    assert spread(5) == [0.1, 0.3, 0.5, 0.7, 0.9]
    places = placed(hidden, [0.2, 0.2, 0.9, 0.5])
    depths = dict((text, depth) for depth, text in places)
    assert [depths[fact.statement] for fact in hidden] == pytest.approx([0.2, 0.22, 0.9, 0.5])
    stack = hide(replica, prose, 2000, places, random.Random(1))
    assert len(stack.ids) == 2000
    for (_, statement), (start, stop) in zip(places, stack.spans, strict=True):
        assert replica.tokenizer.decode(stack.ids[start:stop]) == " " + statement
        before = replica.tokenizer.decode(stack.ids[:start]).rstrip()
        assert before.endswith((".", "!", "?"))
    alone = placed(hidden, [0.2, 0.2, 0.9, 0.5], distractors=False)
    assert [text for _, text in alone] == [hidden[place].statement for place in (0, 1, 3, 2)]


def test_questions_are_asked_of_one_pot(replica: Replica, tiny: Model, prose: str) -> None:
    texts: dict[str, Any] = {"haystack": prose, "templates": "even", "max_tokens": 3}
    chosen = methods("streaming,infinipot:catalyst=general", {"pot_size": 200, "distill_to": 80})
    units = plan(tiny, chosen, lengths=[900], depths=[0.3, 0.7], trials=2, **texts)
    assert [unit.keys() for unit in units[::2]] != [unit.keys() for unit in units[1::2]]
    assert units[0].hidden()[0] == units[1].hidden()[0] != units[2].hidden()[0]
    unit: FactsReading = units[0]
    records = unit.run(replica)
    hidden, chance = unit.hidden()
    session = Session(replica.runner, replica.tokenizer, unit.method.config, template=True)
    session.append(hide(replica, prose, 900, placed(hidden, unit.depths), chance).ids)
    for fact, record in reversed(list(zip(hidden, records, strict=True))):
        assert record["answer"] == session.ask(fact.question, max_tokens=3)
        assert (record["template"], record["kind"]) == (fact.template.name, fact.template.kind)
        assert record["right"] is fact.right(record["answer"])
        assert record["haystack"] == "prose.txt"


@pytest.mark.parametrize(
    ("label", "told"), [("snapkv", True), ("snapkv:prefill=whole", False), ("truncate", False)]
)
def test_what_is_kept_is_told_where_the_pot_tells_what_an_answer_sees(
    replica: Replica, tiny: Model, prose: str, label: str, told: bool
) -> None:
    chosen = methods(label, {"pot_size": 400, "distill_to": 200})
    texts: Any = {
        "lengths": [600],
        "depths": [0.5],
        "trials": 1,
        "haystack": prose,
        "max_tokens": 1,
    }
    (natural,) = plan(tiny, chosen, templates="all", **texts)
    (passkey,) = needle.plan(tiny, chosen, kind="number", **texts)
    for unit in (natural, passkey):
        (record,) = unit.run(replica)
        assert (record["kept"] is not None) is told
        assert not told or 0 <= record["kept"] < 1


def test_the_command_names_kind_template_and_depth(
    tiny: Model, prose: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "out"
    args = ["needle", tiny.name, "--kind", "facts", "--facts", "2", "--templates", "odd", "--lengths", "600", "--trials", "1",
            "--policy", "streaming", "--pot-size", "200", "--haystack", prose, "--max-tokens", "2", "-o", str(out), "--device", "cpu"]  # fmt: skip
    assert main(args) == 0
    shown = capsys.readouterr().out
    assert "facts in prose.txt · odd templates · 600 tokens" in shown
    assert "depth 0.25 / 0.75" in shown
    records = [json.loads(line) for line in (out / "facts.jsonl").read_text().splitlines()]
    assert [record["depth"] for record in records] == [0.25, 0.75]
    assert {record["template"] for record in records} <= {one.name for one in templates_of("odd")}
    assert main(["plot", str(out)]) == 0
    assert capsys.readouterr().out == shown
    assert main([*args, "--no-distractors"]) == 0
    assert "odd templates · without distractors · 600 tokens" in capsys.readouterr().out
    assert len((out / "facts.jsonl").read_text().splitlines()) == 4


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (["--kind", "facts", "--facts", "99"], "there are 36 templates"),
        (["--kind", "facts", "--templates", "left"], "unknown half of templates 'left'"),
        (["--facts", "3"], "belong to --kind facts"),
        (["--no-distractors"], "belong to --kind facts"),
        (["--kind", "fact"], "did you mean 'facts'"),
        (["--kind", "facts", "--haystack", "no/such"], "there is no haystack"),
    ],
)
def test_bad_use(args: list[str], part: str, tmp_path: Path, capsys: Any) -> None:
    pytest.importorskip("matplotlib")
    haystack = [] if "--haystack" in args else ["--haystack", "filler"]
    assert main(["needle", "./no/model", *haystack, "-o", str(tmp_path / "o"), *args]) == 2
    assert part in capsys.readouterr().err


# ---------------------------------------------------------------- chats


def test_facts_are_told_early_in_a_chat() -> None:
    made = Plan(turns=40, told=6, seed=3).conversation(1)
    assert made == Plan(turns=40, told=6, seed=3).conversation(1)
    assert made != Plan(turns=40, told=6, seed=3).conversation(2)
    assert len(made.turns) == 40
    for question in made.questions:
        fact = question.fact
        assert [n for n, (message, _) in enumerate(made.turns) if fact.statement in message] == [question.turn]  # fmt: skip
        assert 0 < question.turn < 16
        assert sum(fact.distractor in message for message, _ in made.turns) == 1
        assert (question.score(fact.value.text), question.score(fact.other.text)) == (1.0, 0.0)
    with pytest.raises(ValueError, match="27 turns are too few for 10 facts: give at least 28"):
        Plan(turns=27)


def document(text: str) -> Document:
    return Document("t", "d", 0, text, (Question("0", "Who?", ("Ann",), "f1", 3),))


def test_a_conversation_from_a_document() -> None:
    dated = 'A talk.\n\nDAY: 1\nTALK:\nAnn said, "Hi."\nBo said, "Hello: you."\n\nDAY: 2\nBo said, "Late."\nand more\nAnn said, "Yes."\nAnn said, "Bye."'
    assert from_document(document(dated)).turns == (
        ('A talk.\nDAY: 1\nTALK:\nAnn said, "Hi."', 'Bo said, "Hello: you."\nDAY: 2\nBo said, "Late."\nand more'),
        ('Ann said, "Yes."\nAnn said, "Bye."', ""),
    )  # fmt: skip
    plain = " USER: Hi.\n ASSISTANT: Hello.\nMore.\n USER: Bye."
    assert from_document(document(plain)).turns == (
        ("USER: Hi.", "ASSISTANT: Hello.\nMore."),
        ("USER: Bye.", ""),
    )
    for text in ("A story.\nOnce upon a time.", "Ann: alone.\nAnn: still alone."):
        with pytest.raises(ValueError, match="is no conversation"):
            from_document(document(text))


def test_a_chat_is_read_in_the_template(tiny: Model, replica: Replica) -> None:
    """The ids of all turns and of a question are those of the tokenizer's own template."""
    talk = Plan(turns=8, told=2, max_tokens=3).conversation(0)
    for label in ("full", "streaming"):
        (method,) = methods(label, {"pot_size": 200, "distill_to": 80}, asked=False)
        (unit,) = chat.plan(tiny, [method], [talk])
        records = unit.run(replica)
        for question, record in zip(talk.questions, records, strict=True):
            messages = []
            for message, reply in talk.turns:
                messages += [{"role": "user", "content": message}, {"role": "assistant", "content": reply}]  # fmt: skip
            messages.append({"role": "user", "content": question.prompt})
            text = replica.tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True
            )
            ids = replica.tokenizer.encode(text, add_special_tokens=False)
            prompt = len(ids) - record["text_tokens"]
            session = Session(replica.runner, replica.tokenizer, method.config, template=False)
            if label == "full":
                session.append(ids[:-prompt])
                assert record["answer"] == session.ask(ids[-prompt:], max_tokens=3)
            assert record["fits"] is (None if label == "full" else False)
            assert (record["turns"], record["turn"]) == (8, question.turn)


def test_the_command_of_chats(
    tiny: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    args = ["eval", "chat", tiny.name, "--turns", "6", "--facts", "1", "--chats", "1", "--policy", "sliding_window,infinipot",
            "--pot-size", "256", "--device", "cpu", "-o", str(out)]  # fmt: skip
    assert main(args) == 0
    shown = capsys.readouterr().out
    assert "generated conversations longer than the pot · 6 turns" in shown
    assert "infinipot (unknown)" in shown
    assert main(["plot", str(out)]) == 0
    assert capsys.readouterr().out == shown


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (["--turns", "5"], "too few for 10 facts"),
        (["--data", ".", "--turns", "500"], "leave out the options of generated ones"),
        (["--tasks", "locomo"], "give --data"),
        (["--policy", "infinipot:catalyst=question"], "there is no question"),
        (["--templates", "none"], "unknown half of templates"),
    ],
)
def test_bad_use_of_chats(args: list[str], part: str, tmp_path: Path, capsys: Any) -> None:
    assert main(["eval", "chat", "./no/model", "-o", str(tmp_path / "o"), *args]) == 2
    assert part in capsys.readouterr().err
