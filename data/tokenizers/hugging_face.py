"""Reads and writes tokenizers in the files of Hugging Face transformers: tokens, their roles, and the framing of texts."""

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from data import json_files
from data.tokenizers import plain as plain
from data.tokenizers import post_processor, word_piece
from data.tokenizers.roles import NAMES, Roles, usual
from data.tokenizers.specs import Ids, Json, TokenizerSpec
from data.tokenizers.tokenizer import JsonTokenizer, Tokenizer
from data.tokenizers.written import as_json, prepared

# The names of the roles in the tokenizer settings of transformers.
FIELDS = {'begin': 'bos_token', 'end': 'eos_token', 'unknown': 'unk_token', 'separator': 'sep_token', 'pad': 'pad_token',
          'cls': 'cls_token', 'mask': 'mask_token'}
IDS = {role: f'{field}_id' for role, field in FIELDS.items() if role != 'unknown'}  # in the config of a model
# The default special tokens of each tokenizer class.
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
_ALBERT = _BERT | {'bos_token': '[CLS]', 'eos_token': '[SEP]', 'unk_token': '<unk>', 'pad_token': '<pad>'}
_GPT2 = dict.fromkeys(('bos_token', 'eos_token', 'unk_token'), '<|endoftext|>')
_T5 = {'eos_token': '</s>', 'unk_token': '<unk>', 'pad_token': '<pad>'}
# {class: (its special tokens, its framing by a name of data/text/frames.py)}.
_CLASSES = {
    **dict.fromkeys(('Bert', 'DistilBert', 'Electra'), (_BERT, 'bert')),
    **dict.fromkeys(('Roberta', 'Bart', 'XLMRoberta', 'Camembert'), (_ROBERTA, 'roberta')),
    'Albert': (_ALBERT, 'bert'),
    'T5': (_T5, 't5'),
    'GPT2': (_GPT2, 'plain'),
    **dict.fromkeys(('PreTrained', 'TokenizersBackend'), ({}, 'plain')),  # which take any tokenizer.json
}
# The default ids of a model whose config.json leaves them out; `start` is the first input of a decoder.
_USUAL_IDS = {
    **{kind: {'pad': 0} for kind in ('bert', 'electra', 'distilbert')},
    'albert': {'pad': 0, 'begin': 2, 'end': 3},
    'roberta': {'begin': 0, 'pad': 1, 'end': 2},
    'bart': {'begin': 0, 'pad': 1, 'end': 2, 'start': 2},
    't5': {'pad': 0, 'end': 1},
    'marian': {'end': 0, 'pad': 58100, 'start': 58100},
    'gpt2': {'begin': 50256, 'end': 50256},
}
_OF_MODELS = {
    'bert': 'Bert',
    'electra': 'Electra',
    'distilbert': 'DistilBert',
    'albert': 'Albert',
    'roberta': 'Roberta',
    'bart': 'Bart',
    't5': 'T5',
    'gpt2': 'GPT2',
}
_SETTINGS = 'tokenizer_config.json', 'special_tokens_map.json'
_FIELDS = ('content', 'single_word', 'lstrip', 'rstrip', 'normalized')  # of a token
_FRAMING = {'cls_token', 'sep_token', 'mask_token'}  # roles that only BERT and RoBERTa have

Configs = tuple[Mapping[str, Any], Mapping[str, Any]]


@dataclasses.dataclass(frozen=True)
class Found:
    """The tokenizer of a folder.

    Attributes:
      spec: its spec for a config, with the roles of its tokens.
      framing: the special tokens around texts, a template of data/text/frames.py or its name; '' if unknown.
      said: clauses about ids that are left out, for the log.
    """

    tokenizer: Tokenizer
    spec: TokenizerSpec
    framing: str
    said: tuple[str, ...] = ()


def read(folder: str | os.PathLike, kind: str, vocab: int, configs: Configs, generates: bool = False) -> Found:
    """The tokenizer in a folder, or bare ids where there is none.

    The roles of the tokens come from the files of the tokenizer, else from its class, else from the config of the model.
    The token that ends a generated text always comes from generation_config.json, else from the config of the model.

    Args:
      kind: the `model_type` of the model, which gives the tokenizer class if the files do not name one.
      vocab: number of token ids of the model.
      configs: the objects in config.json and in generation_config.json.
      generates: whether the model generates text.
    """
    folder = Path(folder)
    contents, (ids, said) = _contents(folder), _ids(vocab, configs, generates)
    if contents is None:
        usual_ones = {role: one for role, one in usual_ids(kind).items() if role != 'start' and one < vocab}
        spec = Ids(vocab, **usual_ones | ids)
        if (folder / 'source.spm').is_file():
            said += ('source.spm and target.spm are not read, so texts are numbers: a tokenizer.json is needed for words',)
        return Found(spec.learn(), spec, '', said)
    made = JsonTokenizer(contents)
    # A model may lack tokens that were added to its tokenizer later, as bart-large-cnn lacks <mask>.
    limit = vocab if made.vocab > vocab and made.added.issuperset(range(vocab, made.vocab)) else 0
    signs = {role: made.sign(one) for role, one in ids.items() if one >= 0}
    if generates and signs.get('end', '') is None:
        file = 'generation_config.json' if _first(configs[1].get('eos_token_id')) >= 0 else 'config.json'
        raise ValueError(
            f'{file} has eos_token_id={ids["end"]}, which the tokenizer of {folder} does not have; mend one of them.'
        )
    known, framing = _class(folder, kind)
    named = {role: sign for role, sign in _named(folder, made, known).items() if made.number(sign) < (limit or made.vocab)}
    more = {role: signs[role] for role in ('begin', 'pad') if signs.get(role) and (generates or role == 'pad')}
    named = more | named | ({'end': signs['end']} if generates and 'end' in signs else {})
    single, _ = post_processor.read(contents) or ((), ())
    for role, (piece, _) in zip(('cls', 'separator'), single[:: max(1, len(single) - 1)]):
        if isinstance(piece, int) and made.sign(piece) not in named.values():
            named.setdefault(role, made.sign(piece))  # the tokens at the ends of texts
    if generates:
        named = {'begin': named.get('cls', ''), 'end': named.get('separator', '')} | named
    spec = Json(vocab=limit, **named, split=_object(folder / _SETTINGS[0]).get('split_special_tokens') is True)
    made = JsonTokenizer(contents, spec.stated, limit, spec.split)
    return Found(made, spec, _framing(folder, made) or framing, said)


def usual_ids(kind: str) -> Mapping[str, int]:
    """The default {role: id} of a model whose config.json leaves ids out."""
    return _USUAL_IDS.get(kind, {})


def start(kind: str, configs: Configs, generates: bool) -> int:
    """The id of a decoder's first input, from generation_config.json of a model that `generates` or else from config.json, else
    the default of the model."""
    given = [_first(config.get('decoder_start_token_id')) for config in _ordered(configs, generates)]
    given += [usual_ids(kind).get('start', -1), _first(configs[0].get('pad_token_id')), 0]
    return next(one for one in given if one >= 0)


def _ordered(configs: Configs, generates: bool) -> Configs:
    """The configs in the order in which transformers looks for the tokens with which outputs begin and end."""
    return (configs[1], configs[0]) if generates else configs


def _ids(vocab: int, configs: Configs, generates: bool) -> tuple[dict[str, int], tuple[str, ...]]:
    """({role: id, -1 for none} in the configs of a model, clauses about ids outside its vocabulary)."""
    ids, said = {}, []
    for role, name in IDS.items():
        for config in _ordered(configs, generates and role == 'end'):
            if name in config and ids.get(role, -1) < 0:
                ids[role] = _first(config[name])
        if ids.get(role, -1) >= vocab:
            said.append(f'without {name}={ids[role]}, as the model has {vocab} tokens')
            ids[role] = -1
    return ids, tuple(said)


def _first(given: Any) -> int:
    """The id in a field of a config, -1 for none; of several end tokens the first, which ends a document."""
    found = given[0] if isinstance(given, list) and given else given
    return found if isinstance(found, int) and found >= 0 else -1


def _class(folder: Path, kind: str) -> tuple[dict[str, str], str]:
    """The default special tokens of a tokenizer's class, and its framing."""
    return _CLASSES.get(_stem(_named_class(folder)) or _OF_MODELS.get(kind, ''), ({}, ''))


def _named_class(folder: Path) -> str:
    """The tokenizer class that the files of a folder name; '' for none."""
    return str((_object(folder / 'config.json') | _object(folder / _SETTINGS[0])).get('tokenizer_class') or '')


def _stem(name: str) -> str:
    return name.removesuffix('Fast').removesuffix('Tokenizer')


def _require_class(vocab: Path, *stems: str) -> str:
    """The one of these classes that the files beside a vocabulary name, '' if they name none. Raises ValueError for another,
    of whose rules the vocabulary says nothing."""
    name = _named_class(vocab.parent)
    if name and _stem(name) not in stems:
        raise ValueError(
            f'{vocab.parent} names {name}, which {vocab.name} alone does not give; save it as tokenizer.json, or name one of '
            f'{", ".join(f"{stem}Tokenizer" for stem in stems)}.'
        )
    return _stem(name)


def _framing(folder: Path, made: JsonTokenizer) -> str:
    """The framing in a tokenizer.json and the settings beside it; '' if they define none."""
    settings, said = _object(folder / _SETTINGS[0]), made.framing
    begin, end = ('begin ' * bool(settings.get('add_bos_token')), ' end' * bool(settings.get('add_eos_token')))
    if (begin or end) and not set(said.split()) - {'a', 'b', 'b:1', '|'}:
        return f'{begin}a{end} | {begin}a{end} {begin}b{end}'
    return said


def _named(folder: Path, made: JsonTokenizer, known: Mapping[str, str]) -> dict[str, str]:
    """{role: token} of the tokens that a tokenizer has."""
    settings = _settings(folder)
    stated = {field: settings[field] for field in FIELDS.values() if field in settings}
    if not stated and not known:
        return usual(made.special, [])
    found = {role: (known | stated).get(field) for role, field in FIELDS.items()}
    found = {role: sign.get('content') if isinstance(sign, dict) else sign for role, sign in found.items()}
    return {role: found[role] for role in NAMES if isinstance(found[role], str) and made.number(found[role]) is not None}


def _contents(folder: Path) -> bytes | None:
    """The tokenizer.json of a folder, or one built from its vocabulary files; None if it has neither."""
    if (folder / 'tokenizer.json').is_file():
        return (folder / 'tokenizer.json').read_bytes()
    try:
        if (folder / 'vocab.json').is_file() and (folder / 'merges.txt').is_file():
            return byte_level(folder / 'vocab.json', folder / 'merges.txt')
        if (folder / 'spiece.model').is_file():
            return unigram(folder / 'spiece.model')
        return bert(folder / 'vocab.txt') if (folder / 'vocab.txt').is_file() else None
    except (AttributeError, KeyError, TypeError) as error:  # the settings have an unexpected form
        raise ValueError(f'The tokenizer_config.json of {folder} cannot be used ({error!r}); fetch it again.') from error


def bert(vocab: Path) -> bytes:
    """The tokenizer.json of BERT's vocab.txt, a piece a line; it lower-cases unless the files beside it say otherwise."""
    from tokenizers import models

    _require_class(vocab, 'Bert', 'DistilBert', 'Electra')
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
                f'{vocab} has no {_BERT[role]}, which every vocabulary of BERT has; fetch it again, or set {role} in '
                'tokenizer_config.json to its own.'
            )
    word_piece.frame(made, signs['cls_token'], signs['sep_token'])
    return made.to_str().encode()


def byte_level(vocab: Path, merges: Path) -> bytes:
    """The tokenizer.json of a byte-level BPE: that of RoBERTa and BART if it has their special tokens and the files beside it
    do not name GPT-2's class, else that of GPT-2.

    If the files beside `vocab` do not describe `<mask>`, it absorbs the space before it, as in the tokenizer.json of these
    models and in transformers before 5.
    """
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, processors

    kind = _require_class(vocab, 'GPT2', 'Roberta', 'Bart')
    try:
        made = tokenizers.Tokenizer(models.BPE.from_file(str(vocab), str(merges)))
    except Exception as error:  # the library raises nothing narrower
        raise ValueError(f'{vocab} and {merges.name} cannot be read ({error}); fetch them again.') from error
    settings = _settings(vocab.parent)
    space = settings.get('add_prefix_space', False)
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=space), decoders.ByteLevel()
    known = made.get_vocab().keys() | {fields['content'] for fields in settings['added_tokens_decoder'].values()}
    there = {role for role, token in _roles(settings, _ROBERTA).items() if token.content in known}
    framed = there >= _FRAMING and kind != 'GPT2'
    signs = _add(made, settings, _ROBERTA if framed else _GPT2, vocab)
    if framed:
        end, begin = ((signs[role], made.token_to_id(signs[role])) for role in ('sep_token', 'cls_token'))
        made.post_processor = processors.RobertaProcessing(end, begin, settings.get('trim_offsets', True), space)
    return made.to_str().encode()


def unigram(path: Path) -> bytes:
    """The tokenizer.json of a SentencePiece model: that of ALBERT if it has [CLS] and [SEP] and the files beside it do not name
    T5's class, else that of T5, whose <extra_id_0>, <extra_id_1>, .. count down from its last id."""
    import tokenizers
    from sentencepiece import sentencepiece_model_pb2
    from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

    kind = _require_class(path, 'T5', 'Albert')
    try:
        proto = sentencepiece_model_pb2.ModelProto.FromString(path.read_bytes())
    except Exception as error:  # of protobuf, which is not imported here
        raise ValueError(f'{path} is no SentencePiece model ({error}); fetch it again.') from error
    trained, table = proto.trainer_spec, proto.normalizer_spec.precompiled_charsmap
    if trained.model_type != trained.UNIGRAM:
        raise ValueError(f'{path} is no unigram model, as those of T5 and ALBERT are; give the tokenizer as tokenizer.json.')
    pieces, settings = [(piece.piece, piece.score) for piece in proto.pieces], _settings(path.parent)
    framed = {sign for sign, _ in pieces} >= {'[CLS]', '[SEP]'} and kind != 'T5'
    if framed:  # ALBERT cuts the comma off a number, unless there is no other way
        number = lambda sign: len(sign) > 1 and sign[-1] == ',' and sign[-2].isdigit()
        pieces = [(sign, score - 100 * number(sign)) for sign, score in pieces]
    special = [] if framed else [f'<extra_id_{i}>' for i in reversed(range(settings.get('extra_ids', 100)))]
    pieces += [(token, 0.0) for token in special]
    made = tokenizers.Tokenizer(models.Unigram(pieces, trained.unk_id, trained.byte_fallback))
    steps = _of_albert(settings) if framed else []
    steps += [normalizers.Precompiled(table)] if table else []
    if steps:
        made.normalizer = normalizers.Sequence(steps) if framed else steps[0]
    space = pre_tokenizers.Metaspace(prepend_scheme='always' if settings.get('add_prefix_space', True) else 'never')
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), space])
    made.decoder = decoders.Metaspace(prepend_scheme=space.prepend_scheme)
    if framed:
        signs = _add(made, settings, _ALBERT, path)
        word_piece.frame(made, signs['cls_token'], signs['sep_token'])
        return made.to_str().encode()
    known = [proto.pieces[i].piece for i in (trained.pad_id, trained.eos_id, trained.unk_id) if i >= 0]
    _add(made, settings, _T5, path)
    made.add_special_tokens([*known, *special])
    if trained.eos_id >= 0:
        end = proto.pieces[trained.eos_id].piece
        made.post_processor = processors.TemplateProcessing(
            single=f'$A {end}', pair=f'$A {end} $B {end}', special_tokens=[(end, trained.eos_id)]
        )
    return made.to_str().encode()


def _of_albert(settings: Mapping[str, Any]) -> list:
    """What ALBERT does to a text before its SentencePiece model does, by the settings beside it."""
    from tokenizers import normalizers

    accents = [] if settings.get('keep_accents', False) else [normalizers.NFKD(), normalizers.StripAccents()]
    lower = [normalizers.Lowercase()] if settings.get('do_lower_case', True) else []
    return [normalizers.Replace('``', '"'), normalizers.Replace("''", '"'), *accents, *lower]


def write(
    folder: str | os.PathLike,
    tokenizer: Tokenizer,
    roles: Roles,
    length: int,
    around: tuple[list[post_processor.Piece], list[post_processor.Piece]] | None = None,
    types: bool = False,
    steps: Sequence = (),
) -> list[str]:
    """Writes a tokenizer as a tokenizer.json with its settings and returns the names of the files: none for bare ids.

    Args:
      roles: the roles of its tokens in the run.
      length: the longest input of the model in tokens, to which transformers truncates texts on request.
      around: the pieces around one text and around two; None: those of its tokenizer.json.
      types: whether the model takes token types.
      steps: normalizers of `tokenizers` for what the data do to a text before it is tokenized.
    """
    # Whether special tokens are found in a text; transformers makes all of them text or none.
    parsed = (isinstance(tokenizer, JsonTokenizer) and not tokenizer.split) or roles.mask >= 0
    if (tokenizer := as_json(tokenizer)) is None:
        return []
    contents = prepared(tokenizer, steps).contents
    there = post_processor.read(contents) or ([('a', 0)], [('a', 0), ('b', 0)])
    plainly = lambda pieces: [[one for one, _ in part] for part in pieces]
    if around is not None and plainly(around) != plainly(there):
        numbers = {one for part in around for one, _ in part if isinstance(one, int)}
        contents = post_processor.written(contents, *around, {one: tokenizer.sign(one) for one in numbers})
    signs = {FIELDS[role]: tokenizer.sign(one) for role, one in roles.named().items()}
    # By default PreTrainedTokenizerFast returns token types, which GPT-2 would embed and T5 would refuse.
    names = ['input_ids', *(['token_type_ids'] if types else []), 'attention_mask']
    settings = {'tokenizer_class': 'PreTrainedTokenizerFast', 'model_input_names': names, 'model_max_length': length, **signs}
    settings |= {} if parsed else {'split_special_tokens': True}
    files = {'tokenizer.json': contents} | {
        name: (json.dumps(what, indent=2) + '\n').encode() for name, what in zip(_SETTINGS, (settings, signs))
    }
    for name, what in files.items():
        plain.save(folder, name, what)
    return [*files]


def _settings(folder: Path) -> dict[str, Any]:
    """The settings of a tokenizer in the files beside its vocabulary.

    'added_tokens_decoder' describes tokens, {id: fields}, including tokens that the vocabulary lacks. transformers before
    4.34 wrote these to added_tokens.json, and the special ones to special_tokens_map.json.
    """
    found = _object(folder / 'tokenizer_config.json')
    if 'added_tokens_decoder' not in found:
        found |= _object(folder / 'special_tokens_map.json')
        added = _object(folder / 'added_tokens.json')
        special = [one['content'] if isinstance(one, dict) else one for one in found.get('additional_special_tokens') or ()]
        found['added_tokens_decoder'] = {
            number: {'content': sign, 'special': sign in special} for sign, number in added.items()
        }
    return found


def _roles(settings: Mapping[str, Any], usual: Mapping[str, str]) -> dict[str, Any]:
    """{role: `tokenizers.AddedToken`} of the special tokens in the settings, or else of the `usual` ones."""
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
    """Adds the tokens described beside a vocabulary and marks the special ones; returns {role: token} of these."""
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
    if (found := json_files.read(path)) is None:
        raise ValueError(f'{path} is no JSON object; fetch it again, or take it away.')
    return found
