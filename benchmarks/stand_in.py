"""Data in place of those that a config names, where their shapes alone matter: a few made-up lines, pairs or images."""

import dataclasses
import random
from pathlib import Path

import numpy as np
from PIL import Image

from data.tokenizers import specs
from training.config import resolve, schema

_TEXT = {'documents': 'line', 'train': 'train[:90%]', 'valid': 'train[90%:95%]', 'test': 'train[95%:]'}
_SIGNS = ' '.join(map(chr, range(33, 127)))  # so that a Char() has the usual ones
_WRITTEN = 'Text', 'Masked', 'Corrupted', 'Parallel', 'Prefixed'  # of lines that are texts alone
_CLASSES = {'imagenet2012': 1000, 'cifar100': 100}
_PLACES = 'name', 'features', 'corpus', 'columns', 'languages', 'pattern', 'classes', 'per_class'


def replaced(config, folder: Path):
    """The config on made-up data in this folder, with batches of the same shapes and as many kinds of tokens and classes. Of
    data that are there without a download, such as a folder of images, and of those that none are made up for, such as labelled
    texts, which then have to be there, it is the same."""
    data, kind = config.data, config.data.pipeline.partition(':')[2]
    there = kind == 'Images' and data.source == 'folder' and data.path and Path(data.path).exists()
    if data.get('source') in ('stdlib', 'cldr', 'digits') or kind not in ('Images', *_WRITTEN) or there:
        return config
    fields = resolve.fields(resolve.load(data.pipeline))
    plain = resolve.describe(data.pipeline)
    changes = {name: plain[name] for name in _PLACES if name in plain}
    changes |= _images(config, folder) if kind == 'Images' else _text(config, folder, paired='source_length' in fields)
    return schema.changed(config, {f'data.{name}': value for name, value in changes.items() if name in data} | (
        _vocabulary(config) if kind != 'Images' else {}))


def _text(config, folder, paired):
    draw = random.Random(0)
    words = [''.join(draw.choices('etaoinshrdlu', k=draw.randint(2, 7))) for _ in range(400)]
    sentence = lambda: ' '.join(draw.choices(words, k=draw.randint(3, 9))) + '.'
    path = folder / ('pairs.tsv' if paired else 'text.txt')
    line = lambda: f'{sentence()}\t{sentence()}' if paired else ' '.join(sentence() for _ in range(6))
    signs = f'{_SIGNS}\t{_SIGNS}' if paired else _SIGNS
    path.write_text('\n'.join([signs, *(line() for _ in range(1000))]) + '\n')
    where = {'source': 'table', 'header': 'false', 'columns': ('1', '2'), 'train': 'all[:90%]', 'valid': 'all[90%:]', 'test': ''
             } if paired else _TEXT | {'source': 'files'}
    return where | {'path': str(path)} | {field: str(_small(spec)) for field, spec in _tokenizers(config).items()}


def _tokenizers(config):
    """{field of the data: its tokenizer}."""
    given = {field: config.data.get(field) for field in ('tokenizer', 'target_tokenizer')}
    return {field: resolve.parse(spec, specs.TokenizerSpec, f'data.{field}') if isinstance(spec, str) else spec
            for field, spec in given.items() if spec}


def _small(spec):
    """A tokenizer with the same special tokens that is learnt at once, or is there."""
    match spec:
        case specs.SentencePiece():
            return dataclasses.replace(spec, vocab=min(spec.vocab, 400 + spec.sentinels))
        case specs.WordPiece():
            return dataclasses.replace(spec, vocab=min(spec.vocab, 300 + spec.sentinels))
        case specs.Word():
            return dataclasses.replace(spec, vocab=0)
        case specs.Json() if not Path(spec.path).is_file():
            roles = tuple(role for role in ('begin', 'pad', 'mask') if getattr(spec, role))
            return specs.WordPiece(vocab=300) if spec.cls else specs.SentencePiece(vocab=400, special=roles)
    return spec


def _vocabulary(config):
    """The fields of the model for as many tokens as the config's own tokenizers have."""
    source, *target = (getattr(spec, 'vocab', 0) for spec in _tokenizers(config).values())
    sizes = {'vocab': target[0], 'source_vocab': source} if target else {'vocab': source}
    return {f'model.{name}': size for name, size in sizes.items()
            if size and name in config.model and config.model[name] is None}


def _images(config, folder):
    data = config.data
    classes = _CLASSES.get(data.name.partition(':')[0], 10)
    channels, size = data.channels or (1 if data.source == 'idx' else 3), data.size or 28
    pixels = np.random.default_rng(0).integers(0, 256, (size, data.get('width', 0) or size, channels), np.uint8)
    Image.fromarray(pixels.squeeze(-1) if channels == 1 else pixels).save(folder / '0.png')
    names = ['0.png', *(f'{number}.png' for number in range(1, 4 * max(classes, 32)))]
    for name in names[1:]:
        (folder / name).hardlink_to(folder / '0.png')
    (folder / 'labels.csv').write_text('file,label\n' + ''.join(
        f'{name},c{number % classes}\n' for number, name in enumerate(names)))
    return {'source': 'folder', 'path': str(folder), 'features': 'file,label', 'size': size, 'channels': channels,
            'train': 'train[:80%]', 'valid': 'train[80%:]', 'test': ''}
