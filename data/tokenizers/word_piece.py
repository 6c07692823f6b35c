"""WordPiece, BERT's tokenizer (Schuster and Nakajima 2012; Devlin et al. 2019, section 3): built from a vocabulary, or learnt.

A text is cleaned, optionally lower-cased, and split at spaces, punctuation and Chinese characters. A word is then split from
left to right into the longest pieces of the vocabulary, with '##' before all but the first, or is [UNK] if it cannot be.
"""

import collections
from collections.abc import Iterable
from typing import Any

from data.tokenizers.roles import sentinel

SPECIAL = ('[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]')
_CHARACTERS = 1000  # at most in a learnt vocabulary, as in `tokenizers`; Chinese characters alone could fill it


def build(model, *, lower: bool = True, accents: bool | None = None, chinese: bool = True):
    """A `tokenizers.Tokenizer` with the steps of BERT; special tokens are not in it yet.

    Args:
      model: the `tokenizers.models.WordPiece`.
      accents: whether accents are stripped; None: as `lower`.
      chinese: whether every Chinese character is a word.
    """
    import tokenizers
    from tokenizers import decoders, normalizers, pre_tokenizers

    made = tokenizers.Tokenizer(model)
    made.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=chinese, strip_accents=accents, lowercase=lower
    )
    made.pre_tokenizer, made.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece(prefix='##')
    return made


def frame(made, begin: str = '[CLS]', end: str = '[SEP]') -> None:
    """Sets the special tokens around a text or two: begin a end (type 0), b end (type 1)."""
    from tokenizers import processors

    made.post_processor = processors.TemplateProcessing(
        single=f'{begin}:0 $A:0 {end}:0',
        pair=f'{begin}:0 $A:0 {end}:0 $B:1 {end}:1',
        special_tokens=[(sign, made.token_to_id(sign)) for sign in (begin, end)],
    )


def learn(texts: Iterable[str], spec: Any) -> bytes:
    """The tokenizer.json of the vocabulary that a `specs.WordPiece` describes, learnt from all of a text; the same text gives
    the same bits.

    The special tokens come first ([PAD] is 0), then the 1,000 most frequent characters, then the most frequent merges, and at
    the end `spec.sentinels` tokens that name missing spans, the first of them last.
    Raises ValueError if the text gives fewer or more pieces than `spec.vocab`.
    """
    import tokenizers
    from tokenizers import models, pre_tokenizers, trainers

    vocab, sentinels = spec.vocab, spec.sentinels
    made = build(models.WordPiece(), lower=spec.lower)
    words = _words(texts, made)
    known = _frequent(words)
    words = {word: count for word, count in words.items() if known.issuperset(word)}
    # `tokenizers` numbers the inner characters of words in a hash order that differs between processes, and the numbers
    # break ties. So these characters are passed in sorted order, as if they were special tokens.
    inner = sorted({f'##{sign}' for word in words for sign in word[1:]})
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab - sentinels,
        special_tokens=[*SPECIAL, *inner],
        initial_alphabet=sorted(known),
        limit_alphabet=len(known),
        continuing_subword_prefix='##',
        show_progress=False,
    )
    learner = tokenizers.Tokenizer(models.WordPiece())
    learner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    learner.train_from_iterator(_repeated(words), trainer)
    pieces = learner.get_vocab()
    most = len(pieces) + sentinels
    if most != vocab:
        if not words:
            advice = 'it holds no words; give it more text'
        elif most < vocab:
            advice = spec.no_more_than(most)
        else:
            advice = f'its characters and the special tokens alone are {most:,}; use a larger vocab'
        raise ValueError(f'{spec} cannot be learnt from the training part: {advice}.')
    made.model = models.WordPiece(pieces, unk_token='[UNK]')
    made.add_special_tokens([*SPECIAL])
    made.add_special_tokens([sentinel(i) for i in reversed(range(sentinels))])
    frame(made)
    return made.to_str().encode()


def _words(texts: Iterable[str], made) -> collections.Counter:
    """The count of each word, as the tokenizer normalises and splits it."""
    given = collections.Counter(word for text in texts for word in text.split())
    found = collections.Counter()
    for word, count in given.items():
        for part, _ in made.pre_tokenizer.pre_tokenize_str(made.normalizer.normalize_str(word)):
            found[part] += count
    return found


def _frequent(words: collections.Counter) -> set[str]:
    """The most frequent characters; ties are broken by code point."""
    counts = collections.Counter()
    for word, count in words.items():
        for sign in word:
            counts[sign] += count
    return set(sorted(counts, key=lambda sign: (-counts[sign], sign))[:_CHARACTERS])


def _repeated(words: collections.Counter, most: int = 10_000) -> Iterable[str]:
    """Every word as often as it occurs, because the trainer takes no counts."""
    for word, count in words.items():
        for start in range(0, count, most):
            yield ' '.join([word] * min(most, count - start))
