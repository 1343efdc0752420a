"""Break lines between words while an answer comes piece by piece."""

from __future__ import annotations

from collections.abc import Callable

from rich.cells import cell_len

FENCE = ("```", "~~~")
"""Begins and ends a block of code, whose lines stay as they are."""


def shown(letter: str) -> str:
    """A character as the terminal may show it: none that would control the terminal."""
    code = ord(letter)
    if letter in "\n\t" or not (code < 32 or 127 <= code < 160):
        return letter
    return repr(letter)[1:-1]


class Wrapper:
    """Passes text on to `write`, with a line break before a word that does not fit.

    width: how many columns there are, asked anew for each word. A word waits until it is whole.
    """

    def __init__(self, write: Callable[[str], None], width: Callable[[], int]) -> None:
        self.write = write
        self.width = width
        self._begin()

    def _begin(self) -> None:
        self.column = 0
        self.gap = ""
        """White space that waits for the next word."""
        self.word = ""
        self.open = False
        """Whether the last word, longer than a line, goes on."""
        self.line = ""
        """The start of the text's own line, which may be a fence."""
        self.code = False

    def push(self, piece: str) -> None:
        for letter in piece:
            if letter == "\n":
                self._end_line()
            elif letter in " \t":
                self._end_word()
                self.gap += letter
            else:
                self._add(shown(letter))

    def _add(self, letter: str) -> None:
        if cell_len(letter) > 1:  # scripts without spaces break anywhere
            self._end_word()
        self.word += letter
        if cell_len(self.word) > self.width():  # the terminal breaks it
            self._end_word()
            self.open = True

    def _end_word(self) -> None:
        if not self.word:
            return
        self.line = (self.line + self.gap + self.word)[:80]
        size = cell_len(self.word)
        end = self.column + cell_len(self.gap) + size
        goes_on = self.open and not self.gap
        if self.code or goes_on or end <= self.width() or not self.column:
            self.write(self.gap + self.word)
            self.column = end
        else:
            self.write("\n" + self.word)
            self.column = size
        self.gap = ""
        self.word = ""
        self.open = False

    def _end_line(self) -> None:
        self._end_word()
        if self.line.lstrip().startswith(FENCE):
            self.code = not self.code
        self.line = ""
        self.gap = ""
        self.column = 0
        self.write("\n")

    def finish(self) -> None:
        """Write what waits, and end the line."""
        self._end_word()
        if self.column:
            self.write("\n")
        self._begin()
