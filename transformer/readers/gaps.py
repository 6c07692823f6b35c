"""Texts whose gaps are filled."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from transformer.contracts import CorruptedText
from transformer.readers.translation import Translation


@dataclasses.dataclass(frozen=True)
class FilledGaps(Translation):
    """A text with its gaps filled: each is a token of the noise that the model has learnt to undo, such as <extra_id_0> of
    T5's sentinels, or <mask>."""
    contract, what = CorruptedText, 'texts with noise'

    def require(self, data: Any, line: str, where: str) -> None:
        if line.strip():
            try:
                data.filled(line, ())
            except ValueError as error:  # it has no gap
                raise ValueError(f'In {where}: {error}') from None

    def said(self, data: Any, line: str, text: str, ids: Sequence[int]) -> str:
        return data.filled(line, ids) if line.strip() else ''
