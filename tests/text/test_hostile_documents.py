"""Documents that would take all memory or time are refused in a sentence."""

from __future__ import annotations

import io
import zipfile
from email.message import EmailMessage

import pytest

from infinipot.text import document_limits, documents
from infinipot.text.document_limits import Budget, check_xml
from infinipot.text.documents import document_text, kind_of

NESTED_MAIL = b"From: a\nContent-Type: message/rfc822\n\n" * 3000 + b"\nhello\n"
LAUGHS = b'<!DOCTYPE l [<!ENTITY a "lol"><!ENTITY b "&a;&a;">]><l>&b;</l>'


def read(kind: str, data: bytes) -> str:
    return "".join(document_text(kind, io.BytesIO(data), "a.doc"))


def archive(files: dict[str, bytes]) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as target:
        for name, content in files.items():
            target.writestr(name, content)
    return data.getvalue()


def mail(*attached: bytes) -> bytes:
    message = EmailMessage()
    message["Subject"] = "Hello"
    message.set_content("the body")
    for data in attached:
        name = "a.eml" if data.startswith(b"Subject") else "a.txt"
        message.add_attachment(data, "application", "octet-stream", filename=name)
    return bytes(message)


@pytest.mark.parametrize(
    ("data", "part"),
    [
        (b"<a>" * 101, "elements within each other, more than 100 deep"),
        (LAUGHS, "declares entities of its own"),
        (b" " * ((1 << 25) + 1), "more than 32 MiB of markup in one piece"),
    ],
    ids=["deep", "entities", "large"],
)
def test_xml_beyond_the_limits(data: bytes, part: str) -> None:
    with pytest.raises(ValueError, match=f"^a.doc .*{part}.*: convert it to text first"):
        check_xml(data, "a.doc")


def test_xml_within_the_limits() -> None:
    check_xml(b"<a>" * 100 + b"</a>" * 100 + b"", "a.doc")
    check_xml(b"<a>" + b"<b><c/></b>" * 1000 + b"</a>", "a.doc")


@pytest.mark.parametrize(
    ("data", "part"),
    [
        (NESTED_MAIL, "is nested too deep to be read"),
        (b"Content-Type: text/plain; x=" + b"y" * 9000 + b"\n\nhi", "characters in its header"),
        (
            b"Content-Type: multipart/mixed; boundary=b\n\n" + b"--b\n\nhi\n" * 1001 + b"--b--\n",
            "more than 1,000 parts",
        ),
    ],
    ids=["nested", "header", "parts"],
)
def test_mail_beyond_the_limits(data: bytes, part: str) -> None:
    with pytest.raises(ValueError, match=f"^a.doc .*{part}.*: convert it to text first"):
        read("email", data)


def test_long_lists_of_people_stay_as_they_are() -> None:
    text = read("email", b"To: " + b"a <b@c>, " * 20_000 + b"\nSubject: =?utf-8?q?a=C3=A9?=\n\nhi")
    assert text.startswith("To: a <b@c>, a <b@c>")
    assert "Subject: aé\n" in text and text.endswith("hi\n")


def test_mails_within_mails() -> None:
    data = mail()
    for _ in range(8):
        data = mail(data, b"a note")
    text = read("email", data)
    assert text.count("the body") == 6
    assert text.count("not read: it lies within more than 5 documents") == 1
    assert text.count("a note") == 6  # documents beside each other do not add up


def test_attached_archives_share_what_may_be_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "check_converter", lambda kind, name: None)
    one = archive({"a": b"x" * 1000})
    letter = io.BytesIO(mail(one, one, one))
    text = "".join(document_text("email", letter, "a.doc", Budget(unpacked=2500)))
    assert text.count("neither DOCX nor EPUB") == 2
    assert text.count("more than 256 MiB when unpacked") == 1


def test_archives_beyond_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "check_converter", lambda kind, name: None)
    files = {str(number): b"" for number in range(4)}
    monkeypatch.setattr(documents, "MOST_ENTRIES", 3)
    with pytest.raises(ValueError, match="a.doc has more than 3 files in it"):
        read("zip", archive(files))
    monkeypatch.setattr(documents, "MOST_ENTRIES", 4)
    with pytest.raises(ValueError, match="neither DOCX nor EPUB"):
        read("zip", archive(files))
    bomb = io.BytesIO(archive({"word/document.xml": b" " * 1000}))
    with pytest.raises(ValueError, match="more than 256 MiB when unpacked: convert it to text"):
        list(document_text("zip", bomb, "a.doc", Budget(unpacked=999)))


def test_a_text_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document_limits, "MOST_TEXT", 1000)
    assert len(read("email", b"Subject: x\n\n" + b"y" * 900)) > 900
    with pytest.raises(ValueError, match="more than 1,000 characters of text"):
        read("email", b"Subject: x\n\n" + b"y" * 1000)


def test_lists_of_files_are_looked_at_by_kind() -> None:
    assert kind_of(archive({"a": b""}), "a.doc") == "zip"


# ---------------------------------------------------------------- with the extra `documents`


@pytest.fixture
def _html() -> None:
    pytest.importorskip("markdownify")


@pytest.mark.usefixtures("_html")
@pytest.mark.parametrize("element", ["div", "b", "ul><li", "table><tr><td"])
def test_pages_that_are_deep(element: str) -> None:
    with pytest.raises(ValueError, match="elements within each other, more than 200 deep"):
        read("html", f"<html><{element}>".encode() + f"<{element}>".encode() * 100_000)
    count = 180 // (1 + element.count("<"))
    assert "found" in read("html", f"<{element}>".encode() * count + b"found")


@pytest.mark.usefixtures("_html")
def test_pages_without_end_tags_are_not_deep() -> None:
    text = read("html", b"<html><p>first" + b"<p>more" * 500 + b"<ul>" + b"<li>x" * 500 + b"</ul>")
    assert text.count("more") == 500 and text.count("* x") == 500
    rows = read("html", b"<table>" + b"<tr><th>a<td>b" * 300 + b"</table>")
    assert rows.count("| a | b |") == 300


@pytest.mark.usefixtures("_html")
def test_a_chapter_counts_once() -> None:
    items = "<manifest><item id='x' href='x.xhtml'/><item id='y' href='./x.xhtml'/></manifest>"
    spine = "<spine>" + "<itemref idref='x'/><itemref idref='y'/>" * 1000 + "</spine>"
    files = {
        "META-INF/container.xml": b"<c><rootfile full-path='b.opf'/></c>",
        "b.opf": f"<p>{items}{spine}</p>".encode(),
        "x.xhtml": b"<p>word",
    }
    assert read("zip", archive(files)).count("word") == 1
    for name in ("META-INF/container.xml", "b.opf"):
        for bad, part in ((b"<a>" * 200, "more than 100 deep"), (LAUGHS, "declares entities")):
            with pytest.raises(ValueError, match=part):
                read("zip", archive({**files, name: bad}))


@pytest.mark.usefixtures("_html")
def test_parts_of_a_docx_beyond_the_limits() -> None:
    for name in ("word/document.xml", "word/styles.XML", "_rels/.rels"):
        for bad, part in ((b"<a>" * 200, "more than 100 deep"), (LAUGHS, "declares entities")):
            with pytest.raises(ValueError, match=part):
                read("zip", archive({"word/document.xml": b"<a/>", name: bad}))
