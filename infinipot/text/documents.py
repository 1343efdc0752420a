"""Documents as text: PDF, HTML, DOCX, EPUB, e-mail. The converters are the extra `documents`. All
modules are imported at first use, so that help comes at once."""

from __future__ import annotations

import io
import posixpath
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

from infinipot.optional import DOCUMENTS, need

if TYPE_CHECKING:
    import zipfile
    from email.message import EmailMessage

HTML_STARTS = (b"<!doctype html", b"<html")
DOCUMENT_STARTS = {b"%PDF-": "pdf", b"PK\x03\x04": "zip"}
OTHER_STARTS = {
    b"\x89PNG\r\n": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"GIF87a": "a GIF image",
    b"GIF89a": "a GIF image",
    b"{\\rtf": "an RTF document: save it as DOCX, PDF or text",
    b"\xd0\xcf\x11\xe0": "an old Office document: save it as DOCX, PDF or text",
    b"\x1f\x8b": "compressed with gzip: decompress it first (zcat)",
    b"\x28\xb5\x2f\xfd": "compressed with zstd: decompress it first (zstdcat)",
    b"\xfd7zXZ": "compressed with xz: decompress it first (xzcat)",
    b"BZh91AY": "compressed with bzip2: decompress it first (bzcat)",
    b"7z\xbc\xaf": "a 7z archive: unpack it first",
    b"\xff\xfe": "UTF-16 text: convert it first (iconv -f utf-16 -t utf-8)",
    b"\xfe\xff": "UTF-16 text: convert it first (iconv -f utf-16 -t utf-8)",
}
"""First bytes of files that are no text, and what the files are."""
STARTS = (*HTML_STARTS, *DOCUMENT_STARTS, *OTHER_STARTS)
MOST_BYTES = 1 << 28
"""The largest archive, unpacked."""
READABLE = "text in UTF-8, and with the extra 'documents' PDF, HTML, DOCX, EPUB and e-mail"


def undecided(start: bytes) -> bool:
    """Whether more bytes are needed to say what begins with these."""
    start = start.lower()
    return any(len(start) < len(known) and known.lower().startswith(start) for known in STARTS)


def kind_of(start: bytes, name: str) -> str | None:
    """What a file is, by its first bytes and its name: `pdf`, `zip`, `html`, `email`; None is plain
    text. Raises ValueError for what cannot be read as text."""
    for known, kind in DOCUMENT_STARTS.items():
        if start.startswith(known):
            return kind
    for known, what in OTHER_STARTS.items():
        if start.startswith(known):
            raise ValueError(f"{name} is {what}. What can be read: {READABLE}")
    if b"\0" in start:
        raise ValueError(f"{name} is binary (it holds NUL bytes). What can be read: {READABLE}")
    ending = name.lower().rpartition(".")[2]
    if ending == "eml":
        return "email"
    begin = start.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    if ending in ("html", "htm", "xhtml") or begin.startswith(HTML_STARTS):
        return "html"
    return None


def check_converter(kind: str, name: str) -> None:
    """Raise ValueError with the command that installs what reads such a document, if it is not
    installed."""
    modules = {"pdf": ("pypdf",), "zip": ("mammoth", "markdownify"), "html": ("markdownify",)}
    for module in modules.get(kind, ()):
        need(module, f"{name} is a document ({kind})", DOCUMENTS)


def document_text(kind: str, file: BinaryIO, name: str) -> Iterator[str]:
    """The text of a document, piece by piece, with marks of its pages or chapters.

    kind: of `kind_of`. Raises ValueError for a document that is damaged, locked or without text.
    """
    check_converter(kind, name)
    empty = True
    try:
        for piece in CONVERTERS[kind](file, name):
            empty = empty and not piece.strip()
            yield piece
    except (ValueError, OSError):
        raise
    except Exception as problem:  # damage, as each converter meets it
        raise ValueError(
            f"{name} is damaged, or no {kind} that can be read ({type(problem).__name__}: "
            f"{str(problem)[:200]}): save it again, or convert it to text first"
        ) from problem
    if empty:
        raise ValueError(f"{name} holds no text")


def pdf_text(file: BinaryIO, name: str) -> Iterator[str]:
    import pypdf

    try:
        reader = pypdf.PdfReader(file)
        if reader.is_encrypted and not reader.decrypt(""):
            raise ValueError(f"{name} is locked with a password: save it without one first")
        waiting = ""
        found = False
        for number, page in enumerate(reader.pages, 1):
            text = page.extract_text().strip()
            found = found or bool(text)
            waiting += f"[page {number}]\n\n{text or '(no text)'}\n\n"
            if found:
                yield waiting
                waiting = ""
    except pypdf.errors.PyPdfError as problem:
        raise ValueError(
            f"{name} is a damaged PDF ({problem}): save it again, or convert it to text first"
        ) from problem
    if not found:
        raise ValueError(
            f"{name} has no text on its pages, only images: run OCR over it first (ocrmypdf)"
        )


def html_text(file: BinaryIO, name: str) -> Iterator[str]:
    yield markdown(file.read())


def markdown(html: bytes | str) -> str:
    """HTML as Markdown, without scripts and styles. Of an image its description stays."""
    import bs4
    from markdownify import MarkdownConverter

    soup: Any = bs4.BeautifulSoup(html, "html.parser")
    for tag in soup(["script", "style", "template"]):
        tag.decompose()
    for image in soup("img"):
        image.replace_with(image.get("alt") or "")
    text = MarkdownConverter(heading_style="ATX").convert_soup(soup)
    return str(text).strip() + "\n"


def zip_text(file: BinaryIO, name: str) -> Iterator[str]:
    """DOCX or EPUB."""
    import zipfile

    archive = zipfile.ZipFile(file)
    names = set(archive.namelist())
    size = sum(entry.file_size for entry in archive.infolist())
    if size > MOST_BYTES:
        raise ValueError(
            f"{name} holds {size >> 20:,} MiB when unpacked, of {MOST_BYTES >> 20} MiB allowed: "
            "convert it to text first"
        )
    if "word/document.xml" in names:
        import mammoth

        yield markdown(mammoth.convert_to_html(file).value)
    elif "META-INF/container.xml" in names:
        yield from epub_text(archive)
    else:
        raise ValueError(
            f"{name} is a ZIP archive, neither DOCX nor EPUB: unpack it first. "
            f"What can be read: {READABLE}"
        )


def epub_text(archive: zipfile.ZipFile) -> Iterator[str]:
    """The chapters of a book, in the order of its spine."""
    from urllib.parse import unquote
    from xml.etree import ElementTree

    container = ElementTree.fromstring(archive.read("META-INF/container.xml"))
    package = next(one.attrib["full-path"] for one in container.iter() if "full-path" in one.attrib)
    root = ElementTree.fromstring(archive.read(package))
    places = {one.attrib["id"]: one.attrib["href"] for one in root.iter() if "href" in one.attrib}
    spine = [one.attrib["idref"] for one in root.iter() if "idref" in one.attrib]
    for number, key in enumerate(spine, 1):
        path = posixpath.join(posixpath.dirname(package), unquote(places[key]))
        text = markdown(archive.read(posixpath.normpath(path)))
        yield f"[chapter {number}]\n\n{text}\n\n"


HEADERS = ("From", "To", "Cc", "Date", "Subject")


def email_text(file: BinaryIO, name: str) -> Iterator[str]:
    """The headers that people read, the body, and attachments that hold text."""
    import email.policy

    message = email.message_from_binary_file(file, policy=email.policy.default)
    yield "".join(f"{one}: {message[one]}\n" for one in HEADERS if message[one]) + "\n"
    body = message.get_body(("plain", "html"))
    if body is not None:
        content = body.get_content()
        if body.get_content_subtype() == "html":
            check_converter("html", f"the body of {name}")
            content = markdown(content)
        yield content + "\n"
    for part in message.iter_attachments():
        yield from attachment_text(part)


def attachment_text(part: EmailMessage) -> Iterator[str]:
    """An attachment behind its mark, or a mark that says why it is not read."""
    name = part.get_filename() or part.get_content_type()
    from email.message import EmailMessage

    data = part.get_content()
    if isinstance(data, EmailMessage):
        data = data.as_bytes()
        name = f"{name}.eml"
    if isinstance(data, str):
        data = data.encode("utf-8", "replace")
    try:
        kind = kind_of(data, name)
        text = (
            data.decode("utf-8")
            if kind is None
            else "".join(document_text(kind, io.BytesIO(data), name))
        )
    except ValueError as problem:
        yield f"[file: {name}, not read: {problem}]\n"
        return
    yield f"[file: {name}]\n\n{text}\n\n"


CONVERTERS: dict[str, Callable[[BinaryIO, str], Iterator[str]]] = {
    "pdf": pdf_text,
    "html": html_text,
    "zip": zip_text,
    "email": email_text,
}
