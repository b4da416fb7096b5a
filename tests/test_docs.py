"""Every Python block of the README and the documentation runs.

The blocks of one file run one after another in one fresh process, on the lines they have in the
file, so a failure's traceback points into the document.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from nuvec.core.config import PASSES
from nuvec.core.lower.rules import ROWS

CHECKOUT = Path(__file__).resolve().parent.parent
DOCUMENTS = [CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").rglob("*.md"))]


def program(text: str) -> str:
    """The document with everything but its ```python blocks blanked out."""
    lines = []
    fence: str | None = None  # the language of the block we are in
    for line in text.splitlines():
        marker = re.match(r"```(\w*)", line)
        if marker:
            fence = marker[1] if fence is None else None
            line = ""
        lines.append(line if fence == "python" else "")
    assert fence is None, "a ``` block is not closed"
    return "\n".join(lines)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.stem)
def test_python_blocks_run(document: Path, tmp_path: Path) -> None:
    script = tmp_path / f"{document.stem}.py"
    script.write_text(program(document.read_text(encoding="utf-8")), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, f"{document.relative_to(CHECKOUT)}:\n{done.stderr}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.stem)
def test_links_lead_somewhere(document: Path) -> None:
    """Relative links and pictures exist."""
    text = document.read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)|<img[^>]*src=\"([^\"]+)\"", text)
    for target in (a or b for a, b in targets):
        if not re.match(r"\w+:", target):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_program_keeps_the_lines() -> None:
    text = "# Title\n```python\nx = 1\n```\ntext\n```bash\nrm\n```\n```python\ny = x\n```\n"
    assert program(text).splitlines()[2] == "x = 1"
    assert program(text).splitlines()[9] == "y = x"
    assert "rm" not in program(text)


def rewrites() -> str:
    """The table of docs/rewrites.md."""
    rows = [f"| `{row.pattern}` | `{row.replacement}` | {row.why} |" for row in ROWS]
    return "\n".join(["| from | to | why the bits stay |", "|---|---|---|", *rows, ""])


def test_the_rewrites_are_those_of_the_simplifier() -> None:
    document = CHECKOUT / "docs" / "rewrites.md"
    text = document.read_text(encoding="utf-8")
    assert text[text.index("| from |") :] == rewrites(), "the table must be what rewrites() gives"


def test_every_pass_is_described() -> None:
    """In order, by one row of the table of passes in docs/compile.md."""
    text = (CHECKOUT / "docs" / "compile.md").read_text(encoding="utf-8")
    described = re.findall(r"^\| ([a-z_]+) \| [a-z]", text, re.MULTILINE)
    assert described == list(PASSES)
