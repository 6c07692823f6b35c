"""JSON files that others have written."""

import json
from pathlib import Path
from typing import Any


def read(path: Path) -> dict[str, Any] | None:
    """The object in a file; None if there is no such file or it holds anything else."""
    try:
        found = json.loads(path.read_text(encoding='utf-8'))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def require_whole(found: Any, text: str, place: str) -> None:
    """Raises ValueError if `found`, read from the JSON `text`, has half of a pair of surrogates, which is no character."""
    if '\\ud' in text or '\\uD' in text:
        try:
            json.dumps(found, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            half = error.object[error.start]
            raise ValueError(f'{place} has {half!r}, half of a character; correct the line, or take it out.') from None
