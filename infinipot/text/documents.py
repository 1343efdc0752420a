"""Documents as text: PDF, HTML, DOCX, EPUB, e-mail. The converters are the extra `documents`. All
modules are imported at first use, so that help comes at once."""

from __future__ import annotations

import io
import posixpath
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, BinaryIO

from infinipot.optional import DOCUMENTS, need
from infinipot.text.document_limits import (
    INSTEAD,
    MOST_ENTRIES,
    MOST_HEADER,
    MOST_MARKUP,
    MOST_PAGES,
    Budget,
    check_mail,
    check_markup,
    check_xml,
    limited,
    too_many,
)

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


def document_text(
    kind: str, file: BinaryIO, name: str, budget: Budget | None = None
) -> Iterator[str]:
    """The text of a document, piece by piece, with marks of its pages or chapters.

    kind: of `kind_of`. budget: of the document to which this one is attached. Raises ValueError for
    a document that is damaged, locked, without text, or beyond the limits.
    """
    check_converter(kind, name)
    empty = True
    try:
        for piece in limited(CONVERTERS[kind](file, name, budget or Budget()), name):
            empty = empty and not piece.strip()
            yield piece
    except (ValueError, OSError):
        raise
    except RecursionError:
        raise ValueError(f"{name} is nested too deep to be read: {INSTEAD}") from None
    except MemoryError:
        raise ValueError(f"{name} takes more memory than there is: {INSTEAD}") from None
    except Exception as problem:  # damage, as each converter meets it
        raise ValueError(
            f"{name} is damaged, or no {kind} that can be read ({type(problem).__name__}: "
            f"{str(problem)[:200]}): save it again, or convert it to text first"
        ) from problem
    if empty:
        raise ValueError(f"{name} holds no text")


def pdf_text(file: BinaryIO, name: str, budget: Budget) -> Iterator[str]:
    import pypdf

    try:
        reader = pypdf.PdfReader(file)
        if reader.is_encrypted and not reader.decrypt(""):
            raise ValueError(f"{name} is locked with a password: save it without one first")
        waiting = ""
        found = False
        for number, page in enumerate(reader.pages, 1):
            if number > MOST_PAGES:
                raise too_many(name, "pages", MOST_PAGES)
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


def html_text(file: BinaryIO, name: str, budget: Budget) -> Iterator[str]:
    html = file.read(MOST_MARKUP + 1)
    budget.unpack(len(html), name)
    yield markdown(html)


def markdown(html: bytes | str) -> str:
    from infinipot.text.markup import markdown as converted

    return converted(html)


def zip_text(file: BinaryIO, name: str, budget: Budget) -> Iterator[str]:
    """DOCX or EPUB."""
    import zipfile

    archive = zipfile.ZipFile(file)
    entries = archive.infolist()
    if len(entries) > MOST_ENTRIES:
        raise too_many(name, "files in it", MOST_ENTRIES)
    budget.unpack(sum(entry.file_size for entry in entries), name)
    names = set(archive.namelist())
    if "word/document.xml" in names:
        yield from docx_text(archive, name)
    elif "META-INF/container.xml" in names:
        yield from epub_text(archive, name)
    else:
        raise ValueError(
            f"{name} is a ZIP archive, neither DOCX nor EPUB: unpack it first. "
            f"What can be read: {READABLE}"
        )


def docx_text(archive: zipfile.ZipFile, name: str) -> Iterator[str]:
    import mammoth

    for entry in archive.infolist():
        if entry.filename.lower().endswith((".xml", ".rels")):
            check_markup(entry.file_size, name)
            check_xml(archive.read(entry), name)
    describe = mammoth.images.img_element(lambda image: {})  # its bytes would become text
    yield markdown(mammoth.convert_to_html(archive.fp, convert_image=describe).value)


def epub_text(archive: zipfile.ZipFile, name: str) -> Iterator[str]:
    """The chapters of a book, in the order of its spine, each once."""
    from urllib.parse import unquote
    from xml.etree import ElementTree

    def parsed(path: str) -> ElementTree.Element:
        check_markup(archive.getinfo(path).file_size, name)
        data = archive.read(path)
        check_xml(data, name)
        return ElementTree.fromstring(data)

    container = parsed("META-INF/container.xml")
    package = next(one.attrib["full-path"] for one in container.iter() if "full-path" in one.attrib)
    root = parsed(package)
    places = {one.attrib["id"]: one.attrib["href"] for one in root.iter() if "href" in one.attrib}
    spine = [one.attrib["idref"] for one in root.iter() if "idref" in one.attrib]
    chapters = dict.fromkeys(
        posixpath.normpath(posixpath.join(posixpath.dirname(package), unquote(places[key])))
        for key in spine
    )
    for number, path in enumerate(chapters, 1):
        yield f"[chapter {number}]\n\n{markdown(archive.read(path))}\n\n"


HEADERS = ("From", "To", "Cc", "Date", "Subject")


def email_text(file: BinaryIO, name: str, budget: Budget) -> Iterator[str]:
    """The headers that people read, the body, and attachments that hold text."""
    import email.policy

    message = email.message_from_binary_file(file, policy=email.policy.default)
    check_mail(message, name)
    yield "".join(f"{one}: {text}\n" for one in HEADERS if (text := header(message, one))) + "\n"
    body = message.get_body(("plain", "html"))
    if body is not None:
        content = body.get_content()
        if body.get_content_subtype() == "html":
            check_converter("html", f"the body of {name}")
            content = markdown(content)
        yield content + "\n"
    for part in message.iter_attachments():
        yield from attachment_text(part, budget)


def header(message: EmailMessage, name: str) -> str:
    """A header as people read it. Decoding a long one would take long, so it stays as it is."""
    raw = dict(message.raw_items()).get(name, "")
    if len(raw) > MOST_HEADER:
        return " ".join(raw.split())
    return str(message[name] or "")


def attachment_text(part: EmailMessage, budget: Budget) -> Iterator[str]:
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
        if kind is None:
            text = data.decode("utf-8")
        else:
            with budget.within():
                text = "".join(document_text(kind, io.BytesIO(data), name, budget))
    except ValueError as problem:
        yield f"[file: {name}, not read: {problem}]\n"
        return
    yield f"[file: {name}]\n\n{text}\n\n"


Converter = Callable[[BinaryIO, str, Budget], Iterator[str]]
CONVERTERS: dict[str, Converter] = {
    "pdf": pdf_text,
    "html": html_text,
    "zip": zip_text,
    "email": email_text,
}
