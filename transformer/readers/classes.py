"""Classes of texts."""

import dataclasses

from transformer.contracts import LabelledText
from transformer.readers.base import classified
from transformer.readers.rows import TokenRow
from transformer.readers.whole import WholeText


@dataclasses.dataclass(frozen=True)
class TextClass(WholeText):
    """The class of a text, or of 'first<TAB>second', and its probability."""
    contract, what = LabelledText, 'texts with a class'

    def read(self, data, names, line):
        return [TokenRow(data.read_text(line))], None

    def answer(self, data, line, known, rows):
        found = classified(data.classes, rows[0]['logits'])
        return f'{found["class"]}\t{found["probability"]:.4f}', {'text': line, **found}
