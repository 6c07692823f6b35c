"""Small tokenizer.json files of each family, written by the library that defines the format."""

import json
import string

import tokenizers as library

from data.tokenizers.specs import Json

SPECIAL = '[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]'
LETTERS = string.ascii_lowercase + string.digits + '.,!?$"\'()-'


def word_piece(folder, words=''):
    """Saves BERT's kind, which knows words and, of others, their letters; returns the spec that names it."""
    pieces = [*SPECIAL, *words.split(), *LETTERS, *('##' + letter for letter in LETTERS)]
    numbers = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    made = library.Tokenizer(library.models.WordPiece(numbers, unk_token='[UNK]'))
    made.normalizer = library.normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
    made.add_special_tokens([*SPECIAL])
    return _saved(made, folder, 'word_piece.json')


def byte_level(folder, words='', trim=True):
    """Saves RoBERTa's kind, without merges but for the words, which have a space before them."""
    alphabet = sorted(library.pre_tokenizers.ByteLevel.alphabet())
    made = library.Tokenizer(library.models.BPE())
    made.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(vocab_size=1000, special_tokens=['<s>', '<pad>', '</s>', '<unk>', '<mask>'],
                                          initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator([f' {word}' for word in words.split()], trainer)
    made.post_processor = library.processors.ByteLevel(trim_offsets=trim)
    return _saved(made, folder, f'byte_level_{trim}.json')


def unigram(folder):
    """Saves T5's kind, of letters and the space."""
    made = library.Tokenizer(library.models.Unigram([('<pad>', 0.0), ('</s>', 0.0), ('<unk>', 0.0), ('\u2581', -2.0),
                                                     *((letter, -3.0) for letter in LETTERS), ('\u2581the', -1.0)], 2))
    made.pre_tokenizer, made.decoder = library.pre_tokenizers.Metaspace(), library.decoders.Metaspace()
    made.add_special_tokens(['<pad>', '</s>', '<unk>'])
    return _saved(made, folder, 'unigram.json')


def _saved(made, folder, name):
    path = folder / name
    path.write_text(json.dumps(json.loads(made.to_str())))
    return Json(str(path))
