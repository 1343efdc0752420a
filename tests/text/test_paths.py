"""A session reads files, folders and documents by their paths."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from infinipot.text.documents import kind_of
from infinipot.text.files import FileText, files_text
from infinipot.text.tokens import pieces_of

PAGE = (
    "<html><head><style>x{}</style><title>T</title></head><body><h1>Tea</h1>"
    "<p>Anna &amp; Ben</p><script>no()</script><img alt='a cup' src='data:xyz'></body></html>"
)


def text_of(*paths: Path) -> str:
    return "".join(files_text(paths))


def test_paths_stand_for_their_files(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / f"{name}.txt").write_text(f"{name} é\n", "utf-8")
    one = tmp_path / "a.txt"
    two = tmp_path / "b.txt"
    assert "".join(pieces_of(one)) == "a é\n"
    both = f"[file: {one}]\n\na é\n\n\n[file: {two}]\n\nb é\n"
    for paths in ([one, two], (one, two), iter([one, two]), tmp_path, sorted(tmp_path.glob("*"))):
        assert "".join(pieces_of(paths)) == both


def test_paths_that_cannot_be_read_are_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    for data, part in ((b"", "is empty"), (b"a\0", "is binary"), (b"\x89PNG\r\n", "PNG image")):
        path.write_bytes(data)
        with pytest.raises(ValueError, match=part):
            files_text([path])
    with pytest.raises(FileNotFoundError, match="there is no file"):
        files_text([tmp_path / "none"])
    with pytest.raises(TypeError, match="'b.txt' stands among paths"):
        files_text([path, "b.txt"])  # type: ignore[list-item]
    path.write_bytes(b"caf\xe9")
    pieces = files_text([path])
    assert next(pieces) == "caf"
    with pytest.raises(ValueError, match=r"not UTF-8 at byte 3 \(0xe9\)"):
        list(pieces)


def test_a_name_alone_is_a_text_and_warns(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("a")
    with pytest.warns(UserWarning, match="the name of a file"):
        assert list(pieces_of(str(path))) == [str(path)]
    with path.open() as lines:
        assert list(pieces_of(lines)) == ["a"]
    with path.open("rb") as lines, pytest.raises(TypeError, match="or give its Path"):
        pieces_of(lines)


def test_what_a_folder_leaves_out_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "b.bin").write_bytes(b"\0")
    with pytest.warns(UserWarning, match=r"left out of .*b.bin \(binary"):
        assert text_of(tmp_path) == "a"


@pytest.mark.parametrize(
    ("start", "kind"),
    [
        (b"%PDF-1.7", "pdf"),
        (b"PK\x03\x04..", "zip"),
        (b"\xef\xbb\xbf \n<!DOCTYPE html>", "html"),
        (b"<HTML>", "html"),
        (b"<p>", None),
        (b"GIF is a format", None),
        (b"PK", None),
    ],
)
def test_kinds_by_content(start: bytes, kind: str | None) -> None:
    assert kind_of(start, "a.txt") == kind


class Pipe(io.RawIOBase):
    """Gives one byte at a time, and cannot go back."""

    def __init__(self, data: bytes) -> None:
        self.data = io.BytesIO(data)

    def read1(self, size: int = -1) -> bytes:
        return self.data.read(1)


def test_a_document_without_its_converter_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "pypdf", None)
    with pytest.raises(ValueError, match=r"pip install 'infinipot\[documents\]'"):
        list(FileText(Pipe(b"%PDF-1.7"), "stdin"))  # type: ignore[arg-type]


@pytest.fixture
def _html() -> Iterator[None]:
    pytest.importorskip("markdownify")
    return


@pytest.mark.usefixtures("_html")
def test_html_and_mail(tmp_path: Path) -> None:
    path = tmp_path / "a.html"
    path.write_text(PAGE)
    text = text_of(path)
    assert "# Tea" in text and "Anna & Ben" in text and "a cup" in text
    assert "no()" not in text and "x{}" not in text and "xyz" not in text
    mail = tmp_path / "a.eml"
    mail.write_text(
        "From: Anna <a@b.c>\nSubject: =?utf-8?q?Caf=C3=A9?=\nMIME-Version: 1.0\n"
        "Content-Type: multipart/mixed; boundary=XX\n\n--XX\nContent-Type: text/html\n\n"
        "<p>Come <b>soon</b>\n--XX\nContent-Type: text/plain\n"
        "Content-Disposition: attachment; filename=n.txt\n\nnote\n--XX\n"
        "Content-Type: image/png\nContent-Disposition: attachment; filename=p.png\n"
        "Content-Transfer-Encoding: base64\n\niVBORw0KGgo=\n--XX--\n"
    )
    text = text_of(mail)
    for part in (
        "Subject: Café",
        "Come **soon**",
        "[file: n.txt]\n\nnote",
        "[file: p.png, not read",
    ):
        assert part in text


@pytest.mark.usefixtures("_html")
def test_books_keep_their_chapters_in_order(tmp_path: Path) -> None:
    path = tmp_path / "a.epub"
    with zipfile.ZipFile(path, "w") as book:
        book.writestr(
            "META-INF/container.xml", "<c><rootfile full-path='in/b.opf' media-type='x'/></c>"
        )
        book.writestr(
            "in/b.opf",
            "<p><manifest><item id='x' href='one%20.xhtml'/><item id='y' href='two.xhtml'/>"
            "</manifest><spine><itemref idref='y'/><itemref idref='x'/></spine></p>",
        )
        book.writestr("in/one .xhtml", "<p>End")
        book.writestr("in/two.xhtml", "<p>Begin")
    pytest.importorskip("mammoth")
    text = text_of(path)
    assert text == "[chapter 1]\n\nBegin\n\n\n[chapter 2]\n\nEnd\n\n\n"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.txt", "a")
    with pytest.raises(ValueError, match="is a ZIP archive, neither DOCX nor EPUB"):
        text_of(path)
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(ValueError, match="is damaged"):
        text_of(path)


@pytest.mark.usefixtures("_html")
def test_word_documents(tmp_path: Path) -> None:
    pytest.importorskip("mammoth")
    path = tmp_path / "a.docx"
    relation = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument"
    with zipfile.ZipFile(path, "w") as document:
        document.writestr(
            "_rels/.rels",
            "<Relationships xmlns='http://schemas.openxmlformats.org/package/2006/relationships'>"
            f"<Relationship Id='a' Type='{relation}' Target='word/document.xml'/></Relationships>",
        )
        document.writestr(
            "word/document.xml",
            "<w:document xmlns:w='http://schemas.openxmlformats.org/wordprocessingml/2006/main'>"
            "<w:body><w:p><w:r><w:rPr><w:b/></w:rPr><w:t>Anna</w:t></w:r>"
            "<w:r><w:t> hid it</w:t></w:r></w:p></w:body></w:document>",
        )
        document.writestr("[Content_Types].xml", "<Types/>")
    assert text_of(path) == "**Anna** hid it\n"


def pdf(*texts: str) -> bytes:
    """A PDF with a line on each page."""
    objects = [b"<</Type/Catalog/Pages 2 0 R>>"]
    kids = " ".join(f"{4 + 2 * number} 0 R" for number in range(len(texts)))
    objects.append(f"<</Type/Pages/Kids[{kids}]/Count {len(texts)}>>".encode())
    objects.append(b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>")
    for number, text in enumerate(texts):
        draw = f"BT /F1 12 Tf 9 99 Td ({text}) Tj ET" if text else ""
        objects.append(
            f"<</Type/Page/Parent 2 0 R/MediaBox[0 0 200 200]/Contents {5 + 2 * number} 0 R"
            "/Resources<</Font<</F1 3 0 R>>>>>>".encode()
        )
        objects.append(f"<</Length {len(draw)}>>stream\n{draw}\nendstream".encode())
    out = b"%PDF-1.4\n"
    places = []
    for number, content in enumerate(objects, 1):
        places.append(len(out))
        out += b"%d 0 obj%b\nendobj\n" % (number, content)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    size = len(objects) + 1
    tail = (
        b"xref\n0 %d\n0000000000 65535 f \n%btrailer<</Size %d/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF"
    )
    return out + tail % (size, table, size, len(out))


def test_pdfs_keep_their_pages(tmp_path: Path) -> None:
    pytest.importorskip("pypdf")
    expected = "[page 1]\n\n(no text)\n\n[page 2]\n\nAnna hid it\n\n"
    data = pdf("", "Anna hid it")
    path = tmp_path / "a.pdf"
    path.write_bytes(data)
    assert text_of(path) == expected
    assert "".join(FileText(Pipe(data), "stdin")) == expected  # type: ignore[arg-type]
    path.write_bytes(pdf(""))
    with pytest.raises(ValueError, match="no text on its pages, only images"):
        text_of(path)
    path.write_bytes(b"%PDF-1.4\nrubbish")
    with pytest.raises(ValueError, match="is a damaged PDF"):
        text_of(path)
