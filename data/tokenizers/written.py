"""The tokenizer.json of bytes, characters, words and pieces: a tokenizer of the Hugging Face library that gives the same ids.

Two things differ. The signs of special tokens in a text are these tokens there, and text here; transformers takes them as text
too if its setting split_special_tokens is true. And where the same pieces of a unigram model give a text in two orders, as they
do runs of spaces, both are as likely, and rounding decides: SentencePiece adds in float32, the Hugging Face library in float64.
"""

import dataclasses
import itertools
import json
import re
from collections.abc import Sequence

from data.tokenizers.plain import ByteTokenizer, CharTokenizer, IdTokenizer, WordTokenizer
from data.tokenizers.roles import usual_sign
from data.tokenizers.tokenizer import SPACE, JsonTokenizer, SentencePieceTokenizer, Tokenizer

_BLANK = '[\t\x0b-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+'  # of str.split, without line ends


def as_json(tokenizer: Tokenizer) -> JsonTokenizer | None:
    """The same tokenizer as a tokenizer.json; None for bare ids, which stand for no text."""
    match tokenizer:
        case ByteTokenizer():
            made = _bytes(tokenizer)
        case CharTokenizer():
            made = _characters(tokenizer)
        case WordTokenizer():
            made = _words(tokenizer)
        case SentencePieceTokenizer():
            made = _pieces(tokenizer)
        case IdTokenizer():
            return None
        case _:
            return tokenizer
    signs = {role: made.id_to_token(number) for role, number in tokenizer.roles.named().items()}
    parsed = {token.content for token in made.get_added_tokens_decoder().values()}  # which are tokens in a text, as here
    made.add_special_tokens([sign for role, sign in signs.items() if role != 'unknown' and sign not in parsed | {'\n'}])
    return JsonTokenizer(made.to_str().encode(), tuple(signs.items()))


def prepared(tokenizer: JsonTokenizer, steps: Sequence) -> JsonTokenizer:
    """The tokenizer of texts to which these normalizers of the library are applied first."""
    from tokenizers import Tokenizer, normalizers

    if not steps:
        return tokenizer
    made = Tokenizer.from_str(tokenizer.contents.decode())
    made.normalizer = normalizers.Sequence([*steps, *([made.normalizer] if made.normalizer else [])])
    contents, known = json.loads(made.to_str()), made.get_vocab(with_added_tokens=False)
    # A token that is found in a text before that is prepared would cut it into texts that are prepared one by one; a line end
    # is no token after it.
    contents['added_tokens'] = [
        token | {'normalized': not token['special'] or token['normalized']} for token in contents['added_tokens']
        if made.normalizer.normalize_str(token['content']) or token['content'] not in known]
    return dataclasses.replace(tokenizer, contents=json.dumps(contents, ensure_ascii=False).encode())


def _bytes(tokenizer):
    """A byte-level BPE without merges (Radford et al. 2019), whose sign of a byte that is no letter is one from 256 on."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    shown = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = itertools.count(256)
    vocab = {chr(byte if byte in shown else next(others)): byte for byte in range(256)}
    vocab |= {usual_sign(role): number for role, number in tokenizer.roles.named().items()}
    made = Tokenizer(models.BPE(vocab, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    return made


def _characters(tokenizer):
    """A BPE without merges."""
    from tokenizers import Tokenizer, decoders, models

    signs = usual_sign('unknown'), usual_sign('end'), *tokenizer.characters
    made = Tokenizer(models.BPE({sign: number for number, sign in enumerate(signs)}, [], unk_token=signs[0]))
    made.decoder = decoders.Fuse()
    return made


def _words(tokenizer):
    """Whole words; the end of a line is one too."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    signs = usual_sign('unknown'), '\n', *tokenizer.words
    made = Tokenizer(models.WordLevel({sign: number for number, sign in enumerate(signs)}, unk_token=signs[0]))
    made.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(_BLANK), 'removed'), pre_tokenizers.Split('\n', 'isolated')])
    return made


def _pieces(tokenizer):
    """A BPE or a unigram model with bytes for what it lacks. A space is a space in its pieces, so that SentencePiece's sign for
    a space is three bytes, as in `SentencePieceTokenizer`."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    pieces, unknown = tokenizer.pieces(), tokenizer.roles.unknown
    signs = [sign.replace(SPACE, ' ') for sign, *_ in pieces]
    cuts = []
    if tokenizer.kind == 'unigram':
        # The library finds the signs of special pieces in a text too. It takes any other pieces for one, as its score is the
        # worst; where there are none, as a character of the sign is in no normal piece, the text is cut at this character.
        low = min(score for _, score, kind in pieces if kind == 'normal') - 1000
        scores = [(sign, score if kind == 'normal' else low) for sign, (_, score, kind) in zip(signs, pieces)]
        model = models.Unigram(scores, unknown, True)
        known = {*''.join(sign for sign, (*_, kind) in zip(signs, pieces) if kind == 'normal')}
        for sign, (*_, kind) in zip(signs, pieces):
            place = next((place for place, character in enumerate(sign) if character not in known), None)
            if kind == 'special' and place is not None:
                before, at, behind = (re.escape(part) for part in (sign[:place + 1], sign[place], sign[place + 1:]))
                cuts.append(f'{at}(?<={before})(?={behind})')
    else:
        vocab = {sign: number for number, sign in enumerate(signs)}
        normal = {sign: score for sign, (_, score, kind) in zip(signs, pieces) if kind == 'normal'}
        parts = [(-score, (sign[:i], sign[i:])) for sign, score in normal.items() for i in range(1, len(sign))
                 if sign[:i] in normal and sign[i:] in normal]
        model = models.BPE(vocab, [pair for _, pair in sorted(parts, key=lambda one: one[0])], unk_token=signs[unknown],
                           byte_fallback=True)
    made = Tokenizer(model)
    if cuts:
        made.pre_tokenizer = pre_tokenizers.Split(Regex('|'.join(cuts)), 'isolated')
    made.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    made.add_tokens([AddedToken(sign, normalized=False) for sign, (_, _, kind) in zip(signs, pieces) if kind == 'user-defined'])
    return made
