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
