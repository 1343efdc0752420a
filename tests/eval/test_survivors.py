"""The page that shows what survived: the text is whole, and the marks are those of the pot."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infinipot.cli import main
from infinipot.eval.inspect import kept_places, look, page, pieces_of
from infinipot.eval.methods import method
from infinipot.eval.runner import Model, Replica
from infinipot.eval.teacher_forcing import open_session

TEXT = "Wörter, 漢字 </script> & <b>𝄞</b>\nThe ship left at dawn. " * 30
POT = {"pot_size": 160, "distill_to": 64}


def data_of(text: str) -> Any:
    found = re.search(r'<script id="data" type="application/json">(.*?)</script>', text, re.DOTALL)
    assert found
    return json.loads(found[1])


@pytest.mark.parametrize(
    "label", ["infinipot", "streaming", "infinipot:layer_budget=[3, 1]", "full"]
)
def test_the_page_shows_what_the_pot_holds(replica: Replica, label: str) -> None:
    one = method(label, POT)
    seen = look(replica, "tiny", one, TEXT, "Who?", max_tokens=4)
    session = open_session(replica, one.config)
    ids, _ = pieces_of(replica.tokenizer, TEXT)
    session.append(ids, question="Who?" if one.aware else None)
    expected = np.zeros((*seen.kept.shape,), dtype=bool)
    for number, layer in enumerate(session.pot.bounded):
        for head, places in enumerate(session.pot.described([layer])[0][0].tolist()):
            expected[number, head, places] = True
    assert seen.kept.numpy().tolist() == expected.tolist()
    assert seen.kept[..., : seen.pinned].all()
    data = data_of(page(seen))
    shape = (data["layers"], data["heads"], len(data["pieces"]))
    bits = np.unpackbits(
        np.frombuffer(base64.b64decode(data["bits"]), dtype=np.uint8), bitorder="little"
    )[: int(np.prod(shape))]
    assert bits.astype(bool).reshape(shape).tolist() == expected.tolist()
    assert "".join(data["pieces"][data["pinned"] :]) == TEXT
    assert data["answer"] == session.ask("Who?", max_tokens=4)
    assert data["known"] is one.aware
    assert len(data["novelty"]) == len(data["pieces"])
    assert (label == "full") == bool(kept_places(session, shape[2]).all())


def test_nothing_comes_from_elsewhere(replica: Replica) -> None:
    text = page(look(replica, "tiny", method("streaming", POT), TEXT, None))
    assert text.count("</script>") == 2  # the page's own
    assert not re.search(
        r"""(src|href)=|url\(|https?:|import """, text.replace(json.dumps(TEXT), "")
    )
    assert data_of(text)["answer"] is None


def test_what_cannot_be_shown_is_refused(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="never reads the middle"):
        look(replica, "tiny", method("truncate", POT), TEXT, None)
    monkeypatch.setattr("infinipot.eval.inspect.LONGEST", 10)
    with pytest.raises(ValueError, match="a page can show 10"):
        look(replica, "tiny", method("full", POT), TEXT, None)


def test_the_command(tiny: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, out = tmp_path / "text.txt", tmp_path / "page.html"
    text.write_text(TEXT, "utf-8")
    args = [
        "inspect",
        tiny.name,
        "-f",
        str(text),
        "--pot-size",
        "160",
        "--device",
        "cpu",
        "-o",
        str(out),
    ]
    assert main([*args, "-p", "Who?", "--max-tokens", "2"]) == 0
    assert f"the page is {out}" in capsys.readouterr().err
    assert data_of(out.read_text("utf-8"))["question"] == "Who?"
    assert main(args) == 0
    assert main([*args, "--policy", "full,streaming"]) == 2
    assert main([*args[:-1], str(tmp_path / "no" / "page.html")]) == 2
