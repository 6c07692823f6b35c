"""Tokenizers in the files of Hugging Face transformers, in and out."""

import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from data import plain_tokenizers as plain
from data import word_piece
from data.tokenizers import Ids, Json, Tokenizer

# The special tokens of each family, by the role that transformers calls them by.
_BERT = {'unk_token': '[UNK]', 'sep_token': '[SEP]', 'pad_token': '[PAD]', 'cls_token': '[CLS]', 'mask_token': '[MASK]'}
_ROBERTA = {
    'bos_token': '<s>',
    'eos_token': '</s>',
    'unk_token': '<unk>',
    'sep_token': '</s>',
    'pad_token': '<pad>',
    'cls_token': '<s>',
    'mask_token': '<mask>',
}
_GPT2 = dict.fromkeys(('bos_token', 'eos_token', 'unk_token'), '<|endoftext|>')
_T5 = {'eos_token': '</s>', 'unk_token': '<unk>', 'pad_token': '<pad>'}
_FIELDS = ('content', 'single_word', 'lstrip', 'rstrip', 'normalized')  # of a token
_FRAMING = {'cls_token', 'sep_token', 'mask_token'}  # the roles that BERT and RoBERTa have, and the others have not


def read(folder: str | os.PathLike, vocab: int, end: int | None) -> tuple[Tokenizer, str]:
    """The tokenizer in a folder, or `Ids` where there is none, and the call expression that names it in a config.

    Args:
      vocab: tokens of the model.
      end: the number of the token that ends a document; None: the tokenizer's own.
    """
    folder = Path(folder)
    contents = _contents(folder)
    if contents is None:
        end = 0 if end is None else end
        if not 0 <= end < vocab:
            raise ValueError(
                f'config.json has eos_token_id={end}, but the model has {vocab} tokens; give one of these, or null.'
            )
        return Ids(vocab, end), f'Ids(vocab={vocab}, end={end})'
    made = Json(contents)
    sign = '' if end is None else made.sign(end)
    if sign is None:
        raise ValueError(
            f'config.json has eos_token_id={end}, which the tokenizer of {folder} does not have; mend one of them.'
        )
    # A model may lack tokens that were added later, as bart-large-cnn does <mask>.
    limit = vocab if made.vocab > vocab and made.added.issuperset(range(vocab, made.vocab)) else 0
    given = {name: value for name, value in (('end', sign), ('vocab', limit)) if value}
    return Json(contents, sign, limit), f'Json({", ".join(f"{name}={value!r}" for name, value in given.items())})'


def _contents(folder: Path) -> bytes | None:
    """The tokenizer.json of a folder, or of the files of its vocabulary; None where there are none."""
    if (folder / 'tokenizer.json').is_file():
        return (folder / 'tokenizer.json').read_bytes()
    try:
        if (folder / 'vocab.json').is_file() and (folder / 'merges.txt').is_file():
            return byte_level(folder / 'vocab.json', folder / 'merges.txt')
        if (folder / 'spiece.model').is_file():
            return unigram(folder / 'spiece.model')
        return bert(folder / 'vocab.txt') if (folder / 'vocab.txt').is_file() else None
    except (AttributeError, KeyError, TypeError) as error:  # what is in the settings is something else than expected
        raise ValueError(f'The tokenizer_config.json of {folder} cannot be used ({error!r}); fetch it again.') from error


def bert(vocab: Path) -> bytes:
    """The tokenizer.json of BERT's vocab.txt, a piece a line; it lower-cases if the files beside it say nothing else."""
    from tokenizers import models

    settings = _settings(vocab.parent)
    unknown = _roles(settings, _BERT).get('unk_token')
    try:
        model = models.WordPiece.from_file(str(vocab), unk_token=unknown.content if unknown else '[UNK]')
    except Exception as error:  # the library raises nothing narrower
        raise ValueError(f'{vocab} cannot be read ({error}); fetch it again.') from error
    made = word_piece.build(
        model,
        lower=settings.get('do_lower_case', True),
        accents=settings.get('strip_accents'),
        chinese=settings.get('tokenize_chinese_chars', True),
    )
    signs = _add(made, settings, _BERT, vocab)
    for role in ('unk_token', 'cls_token', 'sep_token'):
        if role not in signs:
            raise ValueError(
                f'{vocab} has no {_BERT[role]}, as those of BERT have; fetch it again, or let {role} in tokenizer_config.json '
                'name its own.'
            )
    word_piece.frame(made, signs['cls_token'], signs['sep_token'])
    return made.to_str().encode()


def byte_level(vocab: Path, merges: Path) -> bytes:
    """The tokenizer.json of two files of byte-level pairs: RoBERTa's and BART's if they have those special tokens, or GPT-2's.

    Where the files beside these do not describe `<mask>`, it takes the space before it along, as it does in their own
    tokenizer.json and in transformers before 5.
    """
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, processors

    try:
        made = tokenizers.Tokenizer(models.BPE.from_file(str(vocab), str(merges)))
    except Exception as error:  # the library raises nothing narrower
        raise ValueError(f'{vocab} and {merges.name} cannot be read ({error}); fetch them again.') from error
    settings = _settings(vocab.parent)
    space = settings.get('add_prefix_space', False)
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=space), decoders.ByteLevel()
    known = made.get_vocab().keys() | {fields['content'] for fields in settings['added_tokens_decoder'].values()}
    framed = {role for role, token in _roles(settings, _ROBERTA).items() if token.content in known} >= _FRAMING
    signs = _add(made, settings, _ROBERTA if framed else _GPT2, vocab)
    if framed:
        end, begin = ((signs[role], made.token_to_id(signs[role])) for role in ('sep_token', 'cls_token'))
        made.post_processor = processors.RobertaProcessing(end, begin, settings.get('trim_offsets', True), space)
    return made.to_str().encode()


def unigram(path: Path, extra: int = 100) -> bytes:
    """The tokenizer.json of T5's SentencePiece model; <extra_id_0>, .. are its last ids, falling."""
    import tokenizers
    from sentencepiece import sentencepiece_model_pb2
    from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

    try:
        proto = sentencepiece_model_pb2.ModelProto.FromString(path.read_bytes())
    except Exception as error:  # of protobuf, which is not imported here
        raise ValueError(f'{path} is no SentencePiece model ({error}); fetch it again.') from error
    settings = proto.trainer_spec
    if settings.model_type != settings.UNIGRAM:
        raise ValueError(f'{path} is no unigram model, as those of T5 are; give the tokenizer as tokenizer.json.')
    special = [f'<extra_id_{i}>' for i in reversed(range(extra))]
    pieces = [*((piece.piece, piece.score) for piece in proto.pieces), *((token, 0.0) for token in special)]
    made = tokenizers.Tokenizer(models.Unigram(pieces, settings.unk_id, settings.byte_fallback))
    if proto.normalizer_spec.precompiled_charsmap:
        made.normalizer = normalizers.Precompiled(proto.normalizer_spec.precompiled_charsmap)
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    made.decoder = decoders.Metaspace()
    known = [proto.pieces[i].piece for i in (settings.pad_id, settings.eos_id, settings.unk_id) if i >= 0]
    made.add_special_tokens([*known, *special])
    if settings.eos_id >= 0:
        end = proto.pieces[settings.eos_id].piece
        made.post_processor = processors.TemplateProcessing(
            single=f'$A {end}', pair=f'$A {end} $B {end}', special_tokens=[(end, settings.eos_id)]
        )
    return made.to_str().encode()


def write(folder: str | os.PathLike, tokenizer: Tokenizer, ids: Mapping[str, int | None], length: int) -> list[str]:
    """Writes a tokenizer; returns the names of the files, none where it has no form there.

    Args:
      ids: the fields of the model's config that name tokens, such as 'eos_token_id'; where they say nothing, the special
        tokens of the tokenizer have the roles that their names have in BERT, RoBERTa, GPT-2 or T5.
      length: the tokens that the model takes, to which transformers cuts texts when it is asked to.
    """
    if not isinstance(tokenizer, Json):
        return []
    tokenizer.save(folder)
    roles = _named(tokenizer.special)
    for role in ('bos_token', 'eos_token', 'pad_token'):
        if ids.get(f'{role}_id') is not None:
            roles[role] = tokenizer.sign(ids[f'{role}_id'])
    # The class that takes any tokenizer.json has types of tokens, which GPT-2 would embed and T5 refuse.
    names = ['input_ids', *(['token_type_ids'] if roles.get('sep_token') == '[SEP]' else []), 'attention_mask']
    settings = {'tokenizer_class': 'PreTrainedTokenizerFast', 'model_input_names': names, 'model_max_length': length, **roles}
    plain.save(folder, 'tokenizer_config.json', (json.dumps(settings, indent=2) + '\n').encode())
    return ['tokenizer.json', 'tokenizer_config.json']


def padding(tokenizer: Tokenizer) -> int | None:
    """The id of the token that fills rows up in transformers; None where none is named."""
    sign = _named(tokenizer.special).get('pad_token') if isinstance(tokenizer, Json) else None
    return tokenizer.number(sign) if sign else None


def _named(special: Collection[str]) -> dict[str, str]:
    """{role: sign} of the special tokens that have the usual names."""
    bert, roberta, t5, gpt2 = (
        {role: sign for role, sign in usual.items() if sign in special} for usual in (_BERT, _ROBERTA, _T5, _GPT2)
    )
    framed = [roles for roles in (bert, roberta) if roles.keys() >= _FRAMING]
    return framed[0] if framed else t5 | gpt2


def _settings(folder: Path) -> dict[str, Any]:
    """What the files beside a vocabulary say of the tokenizer.

    'added_tokens_decoder' describes tokens, {id: fields}, also such as the vocabulary does not have. transformers before 4.34
    wrote these to added_tokens.json, and the special ones to special_tokens_map.json.
    """
    found = _object(folder / 'tokenizer_config.json')
    if 'added_tokens_decoder' not in found:
        found |= _object(folder / 'special_tokens_map.json')
        added, special = _object(folder / 'added_tokens.json'), found.get('additional_special_tokens') or ()
        found['added_tokens_decoder'] = {
            number: {'content': sign, 'special': sign in special} for sign, number in added.items()
        }
    return found


def _roles(settings: Mapping[str, Any], usual: Mapping[str, str]) -> dict[str, Any]:
    """{role: `tokenizers.AddedToken`} of the special tokens: as the settings name and describe them, the usual ones else."""
    from tokenizers import AddedToken

    described = {fields['content']: fields for fields in settings['added_tokens_decoder'].values()}
    roles = {}
    for role, sign in usual.items():
        given = settings.get(role, sign)
        if given is not None:  # null: there is none
            given = {'content': given} if isinstance(given, str) else given
            fields = {'lstrip': given['content'] == '<mask>'} | described.get(given['content'], {}) | given
            roles[role] = AddedToken(**{name: fields[name] for name in _FIELDS if name in fields}, special=True)
    return roles


def _add(made, settings: Mapping[str, Any], usual: Mapping[str, str], vocab: Path) -> dict[str, str]:
    """Adds the tokens beside a vocabulary, and says of it which are special; returns {role: sign} of these."""
    from tokenizers import AddedToken

    for number, fields in sorted(settings['added_tokens_decoder'].items(), key=lambda item: int(item[0])):
        token = AddedToken(**{name: fields[name] for name in _FIELDS if name in fields}, special=fields.get('special', False))
        made.add_tokens([token])
        if (found := made.token_to_id(token.content)) != int(number):
            raise ValueError(
                f'The files beside {vocab} give {token.content!r} the id {number}, and its place there is {found}; fetch '
                'them all again.'
            )
    roles = {role: token for role, token in _roles(settings, usual).items() if made.token_to_id(token.content) is not None}
    made.add_special_tokens([*roles.values()])
    return {role: token.content for role, token in roles.items()}


def _object(path: Path) -> dict[str, Any]:
    """The object in a .json file, an empty one where there is no file."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding='utf-8'))
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ValueError(f'{path} is no JSON object; fetch it again, or take it away.')
    return found
