"""What the special tokens of a tokenizer are for.

A tokenizer states the roles of its tokens, whatever these are called; data and conversion ask for a token by its role alone.
"""

import dataclasses
from collections.abc import Collection

NAMES = ('begin', 'end', 'pad', 'cls', 'separator', 'mask', 'unknown')
_INSTEAD = {'begin': 'cls', 'cls': 'begin', 'end': 'separator', 'separator': 'end'}
# The names that these tokens usually have: BERT's, RoBERTa's and BART's, T5's, GPT-2's, Llama's, Gemma's.
_USUAL = {
    'begin': ('<s>', '<bos>', '<|begin_of_text|>', '<|endoftext|>'),
    'end': ('<|endoftext|>', '<|end_of_text|>', '</s>', '<eos>'),
    'pad': ('[PAD]', '<pad>'),
    'cls': ('[CLS]', '<s>'),
    'separator': ('[SEP]', '</s>'),
    'mask': ('[MASK]', '<mask>'),
    'unknown': ('[UNK]', '<unk>', '<|endoftext|>'),
}


@dataclasses.dataclass(frozen=True)
class Roles:
    """The ids of special tokens by their roles; -1: there is none.

    Attributes:
      begin, end: stand at the ends of a text or a document ('bos' and 'eos' in the files of Hugging Face).
      pad: fills up rows.
      cls: stands before a text whose state there stands for the whole ('cls').
      separator: stands behind each of two texts ('sep').
      mask: stands for a word that is to be predicted.
      unknown: stands for what the vocabulary does not have ('unk').
    """

    begin: int = -1
    end: int = -1
    pad: int = -1
    cls: int = -1
    separator: int = -1
    mask: int = -1
    unknown: int = -1

    def of(self, name: str) -> int:
        """The id for a role; without one of its own `cls` and `begin` stand in for each other, and `separator` and `end`."""
        found = getattr(self, name)
        return getattr(self, _INSTEAD[name]) if found < 0 and name in _INSTEAD else found

    def named(self) -> dict[str, int]:
        """{role: id} of the roles that have a token."""
        return {name: getattr(self, name) for name in NAMES if getattr(self, name) >= 0}


def usual(special: Collection[str], vocabulary: Collection[str]) -> dict[str, str]:
    """{role: token} of the tokens that have a usual name.

    Args:
      special: the tokens that are no text. RoBERTa's vocabulary has GPT-2's <|endoftext|> too, as a piece like any other.
      vocabulary: all tokens, in which the end is looked for if none of those is one, and all if there are none.
    """
    found = _found(special or vocabulary)
    if not found.keys() & {'end', 'separator'}:
        found |= {role: sign for role, sign in _found(vocabulary).items() if role == 'end'}
    return {role: found[role] for role in NAMES if role in found}


def _found(known):
    found = {role: sign for role, signs in _USUAL.items() for sign in reversed(signs) if sign in known}
    if found.get('mask') != '<mask>':  # Llama's <s> and T5's </s> are not RoBERTa's
        found = {role: sign for role, sign in found.items() if (role, sign) not in (('cls', '<s>'), ('separator', '</s>'))}
    return found
