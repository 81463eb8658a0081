"""Write again what the pages quote: pictures by `convgrad draw`, and what blocks of code print.

    python docs/regenerate.py

A block of Python that prints, and a block of shell that draws, is followed by a block `text` with what comes out. The
blocks of a page share their names, from top to bottom. Commands that write to docs/pictures are in the pages, and
nowhere else. The tests compare all of it.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from convgrad.cli import main as convgrad

DOCS = Path(__file__).parent
PICTURES = DOCS / "pictures"
_LINES = r"(?:(?!```).*\n)*"
_BLOCK = re.compile(rf"^```(?P<language>python|sh)\n(?P<code>{_LINES})```$(?P<quoted>\n\n```text\n{_LINES}```$)?", re.M)
_SHELL = re.compile(rf"^```sh\n({_LINES})```$", re.M)


def pages() -> list[Path]:
    """All of the site."""
    return sorted(DOCS.rglob("*.md"))


def commands(text: str) -> Iterator[list[str]]:
    """The arguments of every `convgrad` in the shell blocks of a page."""
    for block in _SHELL.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words and words[0] == "convgrad":
                yield words[1:]


def drawn(text: str) -> list[list[str]]:
    """The commands of a page that draw."""
    return [words for words in commands(text) if words[0] == "draw"]


def with_output(text: str) -> str:
    """The page with what its blocks print, all of them run in the working directory."""

    names: dict[str, object] = {"__name__": "page"}

    def replaced(found: re.Match[str]) -> str:
        if found["language"] == "sh" and not drawn(found[0]):
            return found[0]
        output = run_python(found["code"], names) if found["language"] == "python" else run_shell(found[0])
        if not found["quoted"]:
            return found[0]
        return f"```{found['language']}\n{found['code']}```\n\n```text\n{output}```"

    return _BLOCK.sub(replaced, text)


def run_python(code: str, names: dict[str, object]) -> str:
    """What a block prints."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(code, "page", "exec"), names)
    return printed.getvalue()


def run_shell(block: str) -> str:
    """What the drawing commands of a block print."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        for words in drawn(block):
            status = convgrad(words)
            assert status == 0, words
    return printed.getvalue()


def main() -> int:
    """Rewrite every page and picture in place."""
    with contextlib.chdir(DOCS.parent):
        PICTURES.mkdir(exist_ok=True)
        for path in pages():
            text = path.read_text()
            renewed = with_output(text)
            if renewed != text:
                path.write_text(renewed)
                print(f"rewrote {path.relative_to(DOCS.parent)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
