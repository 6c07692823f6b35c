"""Tokenizers in the files of Hugging Face transformers, in and out."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from data import plain_tokenizers as plain
from data.tokenizers import Ids, Json, Tokenizer


def read(folder: str | os.PathLike, vocab: int, end: int | None) -> tuple[Tokenizer, str]:
    """The tokenizer in a folder, or `Ids` where there is none, and the call expression that names it in a config.

    Args:
      vocab: tokens of the model.
      end: the number of the token that ends a document; None: the tokenizer's own.
    """
    folder = Path(folder)
    if (folder / 'tokenizer.json').is_file():
        contents = (folder / 'tokenizer.json').read_bytes()
    elif (folder / 'vocab.json').is_file() and (folder / 'merges.txt').is_file():
        contents = byte_level(folder / 'vocab.json', folder / 'merges.txt')
    elif (folder / 'spiece.model').is_file():
        contents = unigram(folder / 'spiece.model')
    else:
        end = 0 if end is None else end
        if not 0 <= end < vocab:
            raise ValueError(
                f'config.json has eos_token_id={end}, but the model has {vocab} tokens; give one of these, or null.'
            )
        return Ids(vocab, end), f'Ids(vocab={vocab}, end={end})'
    if end is None:
        return Json(contents), 'Json()'
    sign = Json(contents).sign(end)
    if sign is None:
        raise ValueError(
            f'config.json has eos_token_id={end}, which the tokenizer of {folder} does not have; mend one of them.'
        )
    return Json(contents, sign), f'Json(end={sign!r})'


def byte_level(vocab: Path, merges: Path) -> bytes:
    """The tokenizer.json of GPT-2's two files: byte-level pairs, `<|endoftext|>` being one token."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers

    try:
        made = tokenizers.Tokenizer(models.BPE.from_file(str(vocab), str(merges)))
    except Exception as error:  # the library raises nothing narrower
        raise ValueError(f'{vocab} and {merges.name} cannot be read ({error}); fetch them again.') from error
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    if made.token_to_id('<|endoftext|>') is not None:
        made.add_special_tokens(['<|endoftext|>'])
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


def write(folder: str | os.PathLike, tokenizer: Tokenizer, ids: Mapping[str, int | None]) -> list[str]:
    """Writes a tokenizer; returns the names of the files, none where it has no form there.

    Args:
      ids: the fields of the model's config that name tokens, such as 'eos_token_id'.
    """
    if not isinstance(tokenizer, Json):
        return []
    tokenizer.save(folder)
    roles = [role for role in ('bos_token', 'eos_token', 'pad_token') if ids.get(f'{role}_id') is not None]
    settings = {'tokenizer_class': 'PreTrainedTokenizerFast', **{role: tokenizer.sign(ids[f'{role}_id']) for role in roles}}
    plain.save(folder, 'tokenizer_config.json', (json.dumps(settings, indent=2) + '\n').encode())
    return ['tokenizer.json', 'tokenizer_config.json']
