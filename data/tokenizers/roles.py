"""The roles of a tokenizer's special tokens.

A tokenizer states the role of each special token, whatever its name; data and conversion look tokens up by role alone.
"""

import dataclasses
from collections.abc import Collection

NAMES = ('begin', 'end', 'pad', 'cls', 'separator', 'mask', 'unknown')
_INSTEAD = {'begin': 'cls', 'cls': 'begin', 'end': 'separator', 'separator': 'end'}
# The usual names of these tokens: those of BERT, RoBERTa and BART, T5, GPT-2, Llama, Gemma.
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
      begin, end: the first and the last token of a text or a document ('bos' and 'eos' in the files of Hugging Face).
      pad: fills up rows.
      cls: the first token of a text, whose state represents the whole text ('cls').
      separator: the token after each of two texts ('sep').
      mask: replaces a word that is to be predicted.
      unknown: replaces what the vocabulary lacks ('unk').
    """

    begin: int = -1
    end: int = -1
    pad: int = -1
    cls: int = -1
    separator: int = -1
    mask: int = -1
    unknown: int = -1

    def of(self, name: str) -> int:
        """The id of a role. If a role has none, `cls` and `begin` replace each other, and so do `separator` and `end`."""
        found = getattr(self, name)
        return getattr(self, _INSTEAD[name]) if found < 0 and name in _INSTEAD else found

    def named(self) -> dict[str, int]:
        """{role: id} of the roles that have a token."""
        return {name: getattr(self, name) for name in NAMES if getattr(self, name) >= 0}


def sentinel(number: int) -> str:
    """The name of a sentinel, T5's: '<extra_id_0>' is the first one that a text uses, and has the highest id."""
    return f'<extra_id_{number}>'


def usual_sign(role: str) -> str:
    """The usual name of the token of a role."""
    return _USUAL[role][0]


def usual(special: Collection[str], vocabulary: Collection[str]) -> dict[str, str]:
    """{role: token} of the tokens that have a usual name.

    Args:
      special: the special tokens. (RoBERTa's vocabulary also has GPT-2's <|endoftext|>, but as an ordinary piece.)
      vocabulary: all tokens. They are searched for the end token if no special token is one, and for all roles if there
        are no special tokens.
    """
    found = _found(special or vocabulary)
    if not found.keys() & {'end', 'separator'}:
        found |= {role: sign for role, sign in _found(vocabulary).items() if role == 'end'}
    return {role: found[role] for role in NAMES if role in found}


def _found(known):
    found = {role: sign for role, signs in _USUAL.items() for sign in reversed(signs) if sign in known}
    if found.get('mask') != '<mask>':  # <s> of Llama is no cls, and </s> of T5 no separator
        found = {role: sign for role, sign in found.items() if (role, sign) not in (('cls', '<s>'), ('separator', '</s>'))}
    return found
