"""docs/layout.md lists every file of the package, and no file that is not there."""

from __future__ import annotations

import re
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent


def test_layout_lists_exactly_the_files() -> None:
    text = (CHECKOUT / "docs" / "layout.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(nuvec/[\w/]+\.py)` \| .*\S.* \|$", text, re.MULTILINE)
    assert len(listed) == len(set(listed)), "a file is listed twice"
    files = {
        path.relative_to(CHECKOUT).as_posix()
        for path in (CHECKOUT / "nuvec").rglob("*.py")
        if path.name != "__init__.py" or path.parent.name == "nuvec"
    }
    assert files - set(listed) == set(), "add these files to docs/layout.md, a line each"
    assert set(listed) - files == set(), "these files of docs/layout.md are gone"
