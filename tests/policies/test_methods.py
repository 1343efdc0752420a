"""Every policy, and every option that policies share, keeps the same entries and predicts the same as plain loops."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from families import FAMILIES, WINDOW, build, runner
from helpers import CATALYST, assert_close, config_for, greedy, kept, random_ids
from naive_methods import Methods
from reference import rope
from tiny import make_tiny, make_tokenizer

from infinipot import PotConfig, Session
from infinipot.cache.rope import Rotation
from infinipot.catalysts import PROMPTS
from infinipot.engine.generation import Generation
from infinipot.engine.observe import observe
from infinipot.engine.plan import Plan
from infinipot.model.self_extend import grouped_attention
from infinipot.policies.h2o import H2O
from infinipot.scoring.representativeness import Scoring

SIZES = {"pot_size": 48, "distill_to": 24}
TEXT = 122
SHORT = 72
"""For pots that are distilled after every few tokens."""
CASES = {
    "streaming": {"policy": "streaming"},
    "streaming, a token at a time": {"policy": "streaming", "distill_to": 47},
    "h2o": {"policy": "h2o"},
    "h2o, a token at a time": {"policy": "h2o", "distill_to": 47},
    "h2o, four heavy hitters": {"policy": "h2o", "distill_to": 47, "recent": 43},
    "h2o, group max": {"policy": "h2o", "gqa": "max", "sinks": 2},
    "tova": {"policy": "tova"},
    "tova, a token at a time": {"policy": "tova", "distill_to": 47},
    "tova, own heads": {"policy": "tova", "shared_heads": False, "window": 3},
    "snapkv": {"policy": "snapkv", "window": 6},
    "snapkv, few fresh tokens": {"policy": "snapkv", "window": 8, "recent": 10, "distill_to": 45},
    "snapkv, fewer fresh tokens than it looks at": {
        "policy": "snapkv",
        "window": 8,
        "recent": 2,
        "distill_to": 45,
    },
    "snapkv, average": {
        "policy": "snapkv",
        "window": 4,
        "pool": 3,
        "pool_mode": "avg",
        "recent": 4,
    },
    "kvzip": {"policy": "kvzip", "catalyst": "question"},
    "kvzip, past scores fade": {"policy": "kvzip", "catalyst": "question", "score_memory": 0.5},
    "shared heads": {"novelty": 0.5, "shared_heads": True},
    "largest score ever": {"novelty": 0.0, "score_memory": 1.0, "pool": 3},
    "past scores fade": {"novelty": 0.5, "score_memory": 0.7},
    "judged once": {"novelty": 0.25, "score_memory": "once", "pool": 5},
    "judged once, by weight": {
        "score_memory": "once",
        "gqa": "max",
        "pool": 3,
        "recent": 0,
        "layer_budget": (3.0, 2.0, 1.0),
        "novelty": 0.0,
    },
    "judged once, shared heads": {
        "novelty": 0.5,
        "score_memory": "once",
        "shared_heads": True,
        "pool": 3,
        "pool_mode": "max",
        "sinks": 2,
    },
    "contrast": {"novelty": 0.25, "contrast": "unrelated", "pool": 3},
    "contrast, judged once": {
        "novelty": 0.25,
        "contrast": "Tell a joke.",
        "score_memory": "once",
        "gqa": "max",
        "pool": 5,
    },
    "what follows a strong entry": {"novelty": 0.25, "pool": 7, "pool_mode": "trailing"},
    "what follows, judged once": {
        "novelty": 0.0,
        "pool": 5,
        "pool_mode": "trailing",
        "score_memory": "once",
        "contrast": "unrelated",
    },
    "uneven layers": {"novelty": 0.5, "layer_budget": (1.95, 1.0, 0.05), "recent": 0, "pool": 3},
    "layers by weight": {"policy": "h2o", "layer_budget": (3.0, 2.0, 1.0), "recent": 2},
}


@pytest.mark.parametrize("name", CASES)
def test_equal_to_plain_loops(name: str) -> None:
    """However long the chunks are."""
    config = PotConfig(**{**SIZES, **CASES[name]})
    policy = config.policy
    tokenizer = make_tokenizer() if policy.contrast else None
    model = make_tiny("llama", layers=3, vocab=97 if tokenizer is None else len(tokenizer))
    catalyst = CATALYST if "catalyst" in policy.needs() else []
    contrast = (
        tokenizer.encode("\n\n" + PROMPTS.get(policy.contrast, policy.contrast) + "\n")
        if tokenizer
        else []
    )
    plan = Plan.of(config, 3, "general")
    naive = Methods(
        model,
        policy=policy.name,
        window=policy.window,
        shared=policy.shared_heads,
        persist=policy.score_memory,
        replay=plan.replay_tokens,
        contrast=(contrast * 9)[-len(CATALYST) :],
        budgets=[layer.budget for layer in plan.layers],
        pot_size=config.pot_size,
        distill_to=config.mean_budget,
        novelty=policy.novelty,
        catalyst=catalyst,
        sinks=policy.sinks,
        recent=policy.newest_kept(config.mean_budget),
        pool=plan.layers[0].pool,
        pool_mode=plan.layers[0].pool_mode,
        gqa=policy.gqa,
    )
    ids = random_ids(SHORT if config.mean_budget > 40 else TEXT)
    naive.read(ids)
    expected = naive.logits()
    for chunk in (7, 512):
        session = Session(model, tokenizer, replace(config, chunk_tokens=chunk))
        session.append(ids, question=CATALYST)
        assert session.stats.distillations == naive.distillations >= 4
        assert kept(session) == [
            [[entry.index for entry in pot] for pot in pots] for pots in naive.entries
        ]
        assert_close(f"logits in chunks of {chunk}", session.logits[0], expected)
        assert session.stats.peak_entries <= config.pot_size


def test_layers_share_out_the_same_memory() -> None:
    model = make_tiny("llama", layers=4)
    for budget in ((2.0, 1.4, 0.8, 0.2), (5.0, 1.0, 1.0, 1.0)):
        session = Session(model, None, PotConfig(pot_size=64, distill_to=24, layer_budget=budget))
        session.append(random_ids(300), question=CATALYST)
        assert sum(layer.keys.shape[2] for layer in session.pot.layers) == 4 * 64
        assert session.stats.peak_entries == 64
        assert len({layer.length for layer in session.pot.layers}) > 1


@pytest.mark.parametrize(
    ("pot_size", "survivors", "asked", "unasked"),
    [
        (64, 32, (7, "avg", 2), (7, "avg", 2)),
        (2048, 1024, (7, "avg", 85), (7, "avg", 85)),
        (3072, 2048, (7, "avg", 170), (7, "avg", 170)),
        (4096, 3072, (45, "trailing", 256), (7, "avg", 256)),
        (8192, 6144, (45, "trailing", 512), (7, "avg", 512)),
    ],
)
def test_defaults_follow_the_size_and_the_question(
    pot_size: int, survivors: int, asked: tuple, unasked: tuple
) -> None:
    def own(**options: object) -> tuple:
        layer = Plan.of(PotConfig(pot_size=pot_size, **options), 1).layers[0]
        return layer.pool, layer.pool_mode, layer.recent

    assert (
        PotConfig(pot_size=pot_size).mean_budget
        == PotConfig(pot_size=pot_size, policy="h2o").mean_budget
        == survivors
    )
    assert own() == own(catalyst="question") == asked
    assert (
        own(catalyst="general")
        == own(catalyst="Name the ships.")
        == own(catalyst="plain")
        == unasked
    )
    assert own(pool=13, pool_mode="max", recent=1) == (13, "max", 1)
    assert own(pool=13)[:2] == (13, "avg"), "not the kind of the wide window"
    assert own(pool_mode="trailing")[:2] == (7, "trailing")
    assert own(preset="paper")[::2] == (0, 0)
    assert own(preset="facts") == (21, "avg", survivors // 12)


def test_a_preset_is_a_set_of_options() -> None:
    paper = PotConfig(preset="paper", pot_size=4096)
    assert paper == PotConfig(pot_size=4096, distill_to=2048, novelty=0.5, pool=0, recent=0)
    assert PotConfig(preset="paper").distill_to == 1024
    assert PotConfig(pot_size=4096).replace(preset="paper") == paper
    assert PotConfig(preset="paper", pot_size=4096, distill_to=3000, novelty=0.1).changed == {
        "pot_size": 4096,
        "distill_to": 3000,
        "novelty": 0.1,
        "pool": 0,
        "recent": 0,
    }
    with pytest.raises(ValueError, match=r"unknown preset 'papr'; did you mean 'paper'\?"):
        PotConfig(preset="papr")
    with pytest.raises(
        ValueError, match="unknown preset 'snapkv' .known: paper, facts.: it is a policy"
    ):
        PotConfig(preset="snapkv")
    with pytest.raises(TypeError, match="policy 'snapkv' has no option 'novelty'"):
        PotConfig(preset="paper", policy="snapkv")
    with pytest.raises(TypeError, match="pot_size='4096' is not allowed"):
        PotConfig(preset="paper", pot_size="4096")


def test_layers_have_defaults_of_their_own_size() -> None:
    layers = Plan.of(PotConfig(pot_size=8192, layer_budget=(1.95, 1.32, 0.68, 0.05)), 4).layers
    budgets = [layer.budget for layer in layers]
    assert budgets[0] > 3 * 3072 > 3072 > budgets[-1]
    assert [layer.pool for layer in layers] == [45, 45, 45, 7]
    assert [layer.recent for layer in layers] == [budget // 12 for budget in budgets]
    assert Plan.of(PotConfig(layer_budget=(1.95, 0.05)), 2), (
        "the top layer has room for what is newest"
    )
    with pytest.raises(ValueError, match="recent=200, and at least 1: distil to more"):
        Plan.of(PotConfig(layer_budget=(1.95, 0.05), recent=200), 2)


def test_readings_before_a_distillation_settle_what_depends_on_the_question(tmp_path: Path) -> None:
    """Whatever is asked later, and after it was saved; the catalyst itself is free."""
    tokenizer = make_tokenizer()
    model = make_tiny("llama", vocab=len(tokenizer))
    for question, kind in ((None, "general"), ("Why?", "question")):
        session = Session(model, tokenizer, PotConfig(pot_size=160, distill_to=20))
        session.ask("Is anything there?", max_tokens=3)
        session.append("A title.", question="What?" if question is None else None)
        session.append("word and word again, " * 20, question=question)
        assert session.stats.distillations
        session.ask("How many?", max_tokens=120)
        session.append("and yet again, " * 20, question="When?" if question is None else None)
        session.save(tmp_path / "a.pot")
        for one in (session, session.fork(), Session.load(tmp_path / "a.pot", model, tokenizer)):
            assert one.plan.catalyst == kind
            assert one.config.catalyst is None
    whole = Session(model, tokenizer, PotConfig(pot_size=160, distill_to=20, prefill="whole"))
    whole.append("word and word again, " * 20)
    whole.ask("How many?", max_tokens=3)
    assert whole._reader.plan.catalyst == "question", "the one distillation is the question's"


@pytest.mark.parametrize(
    ("options", "instead"),
    [
        ({"distill_to": "auto"}, "give a number of entries"),
        ({"coverage": 0.9}, "give distill_to a number of entries"),
        ({"layer_budget": "pyramid"}, "give a weight for each layer"),
        ({"catalyst": "general-1"}, "use 'general', or give the prompt itself"),
        ({"contrast": "general-2"}, "use 'general', or give the prompt itself"),
    ],
)
def test_what_is_gone_is_refused_with_what_to_do_instead(options: dict, instead: str) -> None:
    with pytest.raises(ValueError, match=f"gone.*{instead}"):
        PotConfig(**options)


@pytest.mark.parametrize("policy", ["snapkv", "h2o", "tova"])
def test_whole_prefill_as_published(policy: str) -> None:
    """All is read without a bound; then one choice by the attention that the stock model computes over text and question."""
    model, ids, question = make_tiny("qwen2"), random_ids(90), random_ids(8, seed=2)
    config = config_for(
        policy,
        pot_size=48,
        distill_to=30,
        prefill="whole",
        window=1 if policy == "tova" else 6,
        gqa="sum",
    )
    model.set_attn_implementation("eager")
    session = Session(model, None, config)
    session.append(ids)
    generation = Generation(session._reader, question, max_tokens=5, pick=greedy, stop_ids=set())
    generation.begin()
    whole = model(torch.tensor([ids + question]), output_attentions=True)
    for layer, attention in zip(generation.pot.bounded, whole.attentions, strict=True):
        rows = {"snapkv": attention[0, :, -6:], "tova": attention[0, :, -1:], "h2o": attention[0]}[
            policy
        ]
        scores = (
            rows.sum(dim=1).unflatten(0, (2, -1)).sum(dim=1)
        )  # over rows, then over the query heads of a KV head
        if policy == "tova":
            scores = scores.mean(dim=0, keepdim=True).expand_as(scores)
        last = {"snapkv": 6, "h2o": 15, "tova": 0}[policy]
        scores = scores[:, : 98 - last]
        if policy == "snapkv":
            scores = F.max_pool1d(scores[None], 7, stride=1, padding=3)[0]
        chosen = scores.argsort(dim=-1, descending=True, stable=True)[:, : 30 - last]
        expected = [sorted([*head.tolist(), *range(98 - last, 98)]) for head in chosen]
        assert generation.pot.described([layer])[0][0].tolist() == expected
    assert generation.pot.hidden is not None
    assert_close(
        "the question saw everything",
        session.runner.head(generation.pot.hidden)[0],
        whole.logits[0, -1:],
    )
    generation.end()
    assert session.stats.entries == 90, "the session itself goes on with everything"
    assert len(list(session.stream_ids(question, max_tokens=5, pick=greedy, stop_ids=set()))) == 5


def test_whole_prefill_with_a_catalyst() -> None:
    session = Session(
        make_tiny("llama"), None, PotConfig(pot_size=48, distill_to=30, prefill="whole")
    )
    session.append(random_ids(90), question=CATALYST)
    generation = Generation(
        session._reader,
        CATALYST,
        max_tokens=5,
        pick=greedy,
        stop_ids=set(),
        catalyst=torch.tensor([CATALYST]),
    )
    generation.begin()
    assert generation.pot.length == 30 + len(CATALYST)
    generation.end()
    with pytest.raises(ValueError, match="prefill='whole'"):
        list(session.stream_ids(CATALYST, max_tokens=5, pick=greedy, keep=True))
    assert session.stats.distillations == 0


@pytest.mark.parametrize(("group", "window"), [(2, 4), (3, 5), (8, 1), (1, 7), (2, 10**9)])
def test_grouped_positions_by_the_formula(group: int, window: int) -> None:
    random = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, heads, 20, 8, generator=random) for heads in (4, 2, 2))
    frequencies = 1 / 100 ** (torch.arange(4) / 4)
    rotation = Rotation(
        "half", lambda p: (torch.cos(p[:, None] * frequencies), torch.sin(p[:, None] * frequencies))
    )
    got = grouped_attention(
        query[:, :, 6:], key, value, rotation, (group, window), Scoring(8**-0.5)
    )
    for row in range(14):
        here = row + 6
        for head in range(4):
            scores = []
            for there in range(here + 1):
                near = here - there < window
                places = (
                    (here, there)
                    if near
                    else (here // group + window - window // group, there // group)
                )
                q, k = (
                    rope(x[None], torch.tensor([p]), 100.0)[0]
                    for x, p in zip(
                        (query[0, head, here], key[0, head // 2, there]), places, strict=True
                    )
                )
                scores.append(float(q @ k) / 8**0.5)
            expected = torch.tensor(scores).softmax(dim=0) @ value[0, head // 2, : here + 1]
            assert_close(f"row {row}", got[0, row, head], expected)
    assert len(rotation.tables[torch.device("cpu")].places) <= 21, "as long as the text"


def test_self_extend_reads_everything() -> None:
    model, ids = make_tiny("llama"), random_ids(200)
    near = Session(model, None, PotConfig(policy="self_extend", neighbours=200, chunk_tokens=30))
    near.append(ids)
    assert_close(
        "stock where all are neighbours", near.logits, model(torch.tensor([ids])).logits[:, -1]
    )
    logits = []
    for chunk in (200, 30, 1):
        session = Session(
            model, None, PotConfig(policy="self_extend", neighbours=16, group=4, chunk_tokens=chunk)
        )
        session.append(ids)
        logits.append(session.logits)
        assert session.stats.entries == 200
    assert_close("chunks", logits[1], logits[0])
    assert_close("chunks", logits[2], logits[0])
    assert not torch.allclose(logits[0], near.logits)


def test_whole_prefill_replays_the_text() -> None:
    config = PotConfig(
        pot_size=48, distill_to=24, policy="kvzip", catalyst="question", prefill="whole"
    )
    session = Session(make_tiny("llama"), None, config)
    session.append(random_ids(100), question=CATALYST)
    assert session.pot.fresh.shape[1] == 100
    assert len(list(session.stream_ids(CATALYST, max_tokens=4, pick=greedy, stop_ids=set()))) == 4


@pytest.mark.parametrize("recent", [None, 0, 1, 4, 40])
def test_the_window_votes_whatever_else_stays(recent: int | None) -> None:
    """All of it, also where everything is read at once; and no more than there are entries."""
    config = PotConfig(
        pot_size=64, distill_to=50, policy="snapkv", prefill="whole", window=8, recent=recent
    )
    session = Session(make_tiny("llama"), None, config)
    session.append(random_ids(100))
    for number in range(2):
        assert (
            session._reader.distiller.watcher.newest(
                session.pot, number, session._reader.plan.layers[number].recent
            )[1]
            == 8
        )
    session.append(random_ids(3))
    wide = Session(
        make_tiny("llama"), None, PotConfig(pot_size=64, policy="snapkv", window=1000, recent=0)
    )
    wide._reader.pin([5])
    wide.append(random_ids(63))
    assert wide._reader.distiller.watcher.newest(wide.pot, 0, 0)[1] == 63


def test_unbounded_layers_grow_with_positions_that_never_start_again() -> None:
    model = make_tiny("llama")
    config = PotConfig(
        pot_size=1300,
        distill_to=950,
        policy="snapkv",
        window=4,
        prefill="whole",
        context_reset=False,
        chunk_tokens=2048,
    )
    answers = []
    for slots in (1024, 4096):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("infinipot.cache.layer.GROWTH", slots)
            session = Session(model, None, config)
            session.append(random_ids(1060))
            answers.append(
                list(session.stream_ids(CATALYST, max_tokens=100, pick=greedy, stop_ids=set()))
            )
    assert answers[0] == answers[1]


def test_layer_budgets_are_checked_at_once_and_do_not_touch_other_policies() -> None:
    model = make_tiny("llama")
    for policy in ("infinipot", "full", "self_extend", "truncate"):
        with pytest.raises(ValueError, match="has 4 weights, but the model has 2 layers"):
            Session(model, None, PotConfig(policy=policy, layer_budget=(1, 2, 3, 4)))
    session = Session(model, None, PotConfig(pot_size=48, policy="truncate", layer_budget=(3, 2)))
    session.append(random_ids(150))
    assert len(list(session.stream_ids([3, 4], max_tokens=8, pick=greedy, stop_ids=set()))) == 8
    uneven = Session(model, None, PotConfig(pot_size=48, layer_budget=(1.9, 0.1)))
    uneven.append(random_ids(100), question=CATALYST)
    assert uneven.stats.entries <= uneven.stats.peak_entries <= 48


@pytest.mark.parametrize(
    "options",
    [
        {"catalyst": 5}, {"layer_budget": 0.5}, {"layer_budget": ("a", "b")}, {"layer_budget": (float("inf"), 1)}, {"novelty": "0.5"},
        {"policy": None}, {"pot_dtype": torch.int8}, {"score_memory": "x"}, {"score_memory": True}, {"score_memory": 1.5},
        {"policy": H2O}, {"recent": True}, {"distill_to": "half"},
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_a_sentence(options: dict) -> None:
    with pytest.raises((TypeError, ValueError), match="is not allowed"):
        PotConfig(**options)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (
            {"policy": "h2o"},
            "goes by the catalyst's attention: use policy 'infinipot' with novelty below 1",
        ),
        ({"policy": "kvzip"}, "goes by the catalyst's attention"),
        ({"novelty": 1.0}, "goes by the catalyst's attention"),
    ],
)
def test_judged_once_is_refused_where_it_means_nothing(options: dict, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        PotConfig(score_memory="once", **options)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"contrast": "unrelated", "policy": "tova"}, "policy 'tova' has no option 'contrast'"),
        (
            {"contrast": "unrelated", "novelty": 1.0},
            "contrast='unrelated' goes by the catalyst's attention",
        ),
        ({"contrast": "unrelated", "catalyst": "plain"}, "not with catalyst='plain'"),
        (
            {"contrast": "question"},
            "unknown contrast 'question' .known: general, facts, unrelated, repeat\\)",
        ),
        ({"contrast": "unrelatd"}, "unknown contrast 'unrelatd'; did you mean 'unrelated'"),
    ],
)
def test_a_contrast_is_refused_where_it_means_nothing(options: dict, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        PotConfig(**options)
    with pytest.raises(TypeError, match="must be a name or a text"):
        PotConfig(contrast=5)


def test_a_contrast_stays_with_the_pot(tmp_path: Path) -> None:
    """Questions longer and shorter than it; a saved pot goes on as its twin does, with the catalyst and the contrast it had."""
    tokenizer = make_tokenizer()
    model = make_tiny("llama", vocab=len(tokenizer))
    session = Session(
        model, tokenizer, PotConfig(pot_size=160, distill_to=20, contrast="unrelated")
    )
    for question in (
        "Why?",
        "Why is it that nobody knows what will be asked of a text while it is read, and by whom, and when?",
    ):
        session.append("word and word again, " * 20, question=question)
    session.save(tmp_path / "a.pot")
    twin = Session.load(tmp_path / "a.pot", model, tokenizer)
    for one in (session, twin):
        one.append("what stood there once, " * 20)
        assert one.stats.peak_entries <= 160
    assert kept(session) == kept(twin)
    assert session.stats.distillations == twin.stats.distillations >= 4
    with pytest.raises(ValueError, match="no tokenizer"):
        Session(model, None, PotConfig(pot_size=160, contrast="unrelated")).append(
            [5, 6, 7], question=[5, 6]
        )


@pytest.mark.parametrize("family", ["Llama-3.1", "Gemma-2", "Gemma-3", "gpt-oss", "GLM-4"])
def test_judged_once_in_every_kind_of_attention(family: str) -> None:
    """Soft-caps, sinks, windows, interleaved rotation: the catalyst rides behind the last chunk or is read by itself, and sees no survivors."""
    sessions = []
    for chunk in (5, 512):
        config = PotConfig(
            pot_size=40, distill_to=20, score_memory="once", pool=3, chunk_tokens=chunk
        )
        session = Session(runner(family), None, config)
        session.append(random_ids(150), question=CATALYST)
        assert session.stats.distillations >= 4
        assert session.stats.peak_entries <= 40
        sessions.append(session)
    assert kept(sessions[0]) == kept(sessions[1])
    assert_close("logits", sessions[0].logits, sessions[1].logits)


def test_what_an_entry_is_worth_does_not_depend_on_the_survivors() -> None:
    """The same fresh text after two different pasts: with one layer, whose keys depend on nothing but the token, it is judged the same."""
    model, fresh = make_tiny("llama", layers=1), random_ids(23, seed=8)
    judged = {}
    for memory in (None, "once"):
        found = []
        for seed in (1, 2):
            session = Session(
                model,
                None,
                PotConfig(pot_size=48, distill_to=20, novelty=0.0, score_memory=memory, pool=0),
            )
            session.append(random_ids(43, seed=seed) + fresh, question=CATALYST)
            catalyst = torch.tensor([CATALYST])
            look = session._reader.distiller.watcher.look(catalyst)
            received = observe(session.runner, session.pot, catalyst, look, look.alone)
            found.append(received[0][..., -23:])
        judged[memory] = float((found[0] - found[1]).abs().max() / found[0].abs().max())
    assert judged["once"] < 1e-5
    assert judged[None] > 1e-3


def test_a_sliding_window_is_the_models_own() -> None:
    """One entry leaves a token, in a pot of the window's size: what stock predicts with its window. `full` is stock without it."""
    family = FAMILIES["Mistral v0.1"]
    ids = random_ids(120)
    for policy, options in (
        ({"policy": "sliding_window", "distill_to": WINDOW - 1}, family.options),
        ({"policy": "full"}, family.unlike_stock),
    ):
        session = Session(runner("Mistral v0.1"), None, PotConfig(pot_size=WINDOW, **policy))
        session.append(ids)
        stock = build(family.kind, **options)(torch.tensor([ids])).logits[:, -1]
        assert_close("logits", session.logits, stock)
