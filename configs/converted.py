"""The config of a run that convert.py makes of a model of Hugging Face: data and task for what it is good for."""

import math

from configs import base

LONGEST = {'classes': 512, 'tags': 512, 'spans': 384}  # tokens in a row, where the model takes more
STYLES = {'bert': 'bert', 'roberta': 'roberta', 'bart': 'roberta', 't5': 't5', 'gpt2': 'plain'}
TASKS = {'masked': 'MaskedTokens', 'sentences': 'Pretraining', 'next': 'NextSentence', 'classes': 'TextClasses', 'tags': 'Tags',
         'spans': 'Spans', 'hidden': 'Hidden'}


def config_of(family, fields, tokenizer='', marks=(), start=-1, image=None):
    """The locked config.

    Args:
      fields: {name: value} of the model.
      tokenizer: the call expression of its tokenizer; marks: as in data/frames.py.
      start: the token that a decoder is given first.
      image: {field of data.images:Images: value} of a model of images.
    """
    c = base.config()
    c.model = base.part(family.model, **fields)
    c.data, c.task, c.evals = _image_parts(family.use, image) if image else _text_parts(
        family, fields, marks, start, min(c.model.length, LONGEST.get(family.use, 1024)))
    if tokenizer:
        c.data.tokenizer = tokenizer
    c.optimizer = base.optimizer(learning_rate=5e-5, weight_decay=0.01, schedule=base.part(
        'training.schedules:Linear', warmup_steps=100))
    return c.lock()


def _image_parts(use, image):
    data = base.data('data.images:Images', source='folder', path='images', batch_size=32, **image)
    if use == 'hidden':
        return data, base.part('transformer.text_tasks:Hidden', image=True), {}
    return data, base.part('vit.tasks:Classification'), _evals()


def _text_parts(family, fields, marks, start, length):
    use, common = family.use, dict(length=length, batch_size=8)
    if use == 'text':
        data = base.data('data.text:Text', path='text', **common)
        return data, base.part('transformer.tasks:NextToken'), _evals('Perplexity')
    if use == 'pairs':
        data = base.data('data.parallel:Parallel', source='tsv', path='pairs.txt', train='train[:90%]', valid='train[90%:]',
                         test='', text='raw', start=start, begin=marks[0] if marks else -1, source_length=length,
                         long='truncate', **common)
        return data, base.part('transformer.tasks:SequenceToSequence'), _evals() | {
            'translations': base.evaluation('transformer.translation:Translations', split='valid')}
    framed = dict(style=STYLES[family.kind], marks=marks, **common)
    if use in ('masked', 'sentences', 'next', 'hidden'):
        following = use in ('sentences', 'next')
        data = base.data('data.masked:Masked', path='text', next_sentence=following, packing='none' if following else 'concat',
                         **framed)
        return data, base.part(f'transformer.text_tasks:{TASKS[use]}'), _evals() if use != 'hidden' else {}
    task = base.part(f'transformer.text_tasks:{TASKS[use]}', types=family.kind in ('bert', 'roberta'),
                     start=start if family.kind in ('bart', 't5') else -1)
    framed |= dict(path=f'{use}.txt', train='train[:90%]', valid='train[90%:]', test='')
    if use == 'classes':
        return base.data('data.labelled:Labelled', columns=(), **framed), task, _evals()
    if use == 'tags':
        return base.data('data.tagged:Tagged', **framed), task, _evals() | {
            'entities': base.evaluation('transformer.text_evaluators:Entities', split='valid')}
    stride, asked = math.ceil(length / 3), min(64, length // 4)
    return base.data('data.questions:Questions', stride=stride, question_length=asked, **framed), task, _evals() | {
        'answers': base.evaluation('transformer.text_evaluators:Answers', split='valid')}


def _evals(name='Averages'):
    return {'valid': base.evaluation(f'transformer.evaluators:{name}', split='valid')}
