"""The config of a run that convert.py makes of a model of Hugging Face, with the data and the task of its head."""

import math

from configs import base
from configs.classify import TOLD

LONGEST = dict.fromkeys((*TOLD, 'tags'), 512) | {'spans': 384}  # the most tokens in a row
PAIRS = {'sentences': 'next', 'next': 'next', 'order': 'order'}  # what the two texts of a row are
# The readers of models that have nothing to learn from a text.
READERS = {'hidden': 'transformer.readers.vectors:TextVector', 'replaced': 'transformer.readers.replaced:ReplacedWords'}
# The framing of texts if the tokenizer has none (data/text/frames.py).
FRAMINGS = {'roberta': 'roberta', 'bart': 'roberta', 't5': 't5', 'marian': 't5', 'gpt2': 'plain',
            **dict.fromkeys(('bert', 'albert', 'electra', 'distilbert'), 'bert')}
TASKS = {'masked': 'masked:MaskedTokens', 'sentences': 'masked:BertPretraining', 'next': 'masked:NextSentencePrediction',
         'order': 'masked:BertPretraining', 'tags': 'reading:Tags', 'spans': 'reading:Spans', 'hidden': 'reading:Hidden',
         'replaced': 'reading:Hidden',
         **{use: task for use, (task, _, _) in TOLD.items()}}


def config_of(family, fields, tokenizer=None, framing='', start=-1, ends=True, image=None):
    """The locked config.

    Args:
      fields: {name: value} of the model.
      tokenizer: the spec of its tokenizer; framing: the special tokens around texts, as in data/text/frames.py.
      start: the first input of the decoder; ends: whether a token ends texts.
      image: {field of data.images.labelled:Images: value} of a model of images.
    """
    c = base.config()
    c.model = base.part(family.model, **fields)
    c.data, c.task, c.evals = _image_parts(family.use, image) if image else _text_parts(
        family, fields, framing, start, ends, dict(
            tokenizer=tokenizer, length=min(c.model.length, LONGEST.get(family.use, 1024)), batch_size=8))
    c.optimizer = base.optimizer(learning_rate=5e-5, weight_decay=0.01, schedule=base.part(
        'training.schedules:LinearDecay', warmup_steps=100))
    return c.lock()


def _image_parts(use, image):
    data = base.data('data.images.labelled:Images', source='folder', path='images', batch_size=32, **image)
    if use == 'hidden':
        data.reader = 'vit.readers.images:ImageVector'
        return data, base.part('transformer.tasks.reading:Hidden', image=True), {}
    if use == 'reconstruction':
        data.reader = 'vit.readers.filled:FilledPatches'
        return data, base.part('vit.tasks.reconstruction:Reconstruction'), _evals()
    return data, base.part('vit.tasks.classification:Classification'), _evals()


def _text_parts(family, fields, framing, start, ends, common):
    use, length = family.use, common['length']
    if use == 'text':
        data = base.data('data.text.documents:Text', path='text', documents='file' if ends else 'stream', **common)
        return data, base.part('transformer.tasks.language_model:NextToken'), _evals('language_model:Perplexity')
    if use == 'pairs':
        data = base.data('data.seq2seq.parallel:Parallel', source='table', path='pairs.txt', train='train[:90%]',
                         valid='train[90%:]', test='', text='raw', start=start, framing=framing, source_length=length,
                         long='truncate', **common)
        return data, base.part('transformer.tasks.language_model:SequenceToSequence'), _evals() | {
            'translations': base.evaluation('transformer.evaluators.translations:Translations', split='valid')}
    framed = dict(framing=framing, **common)
    if use in ('masked', *PAIRS, *READERS):
        pairs = PAIRS.get(use, 'none')
        data = base.data('data.text.masked:Masked', path='text', pairs=pairs, cut='anywhere',
                         packing='concat' if ends and pairs == 'none' else 'none', **framed)
        data.reader = READERS.get(use, data.reader)
        return data, base.part(f'transformer.tasks.{TASKS[use]}'), {} if use in READERS else _evals()
    task = base.part(f'transformer.tasks.{TASKS[use]}', types=fields.get('types', 0) > 0,
                     start=start if 'decoder_inputs' in family.inputs(fields) else -1)
    framed |= dict(path=f'{use}.txt', train='train[:90%]', valid='train[90%:]', test='')
    if use in TOLD:
        _, evals, fields = TOLD[use]
        data, fields = fields.get('data', 'data.text.labelled:Labelled'), {key: x for key, x in fields.items() if key != 'data'}
        return base.data(data, **framed, **fields), task, _evals() | {
            name: base.evaluation(path, split='valid') for name, path in evals.items()}
    if use == 'tags':
        return base.data('data.text.tagged:Tagged', **framed), task, _evals() | {
            'entities': base.evaluation('transformer.evaluators.reading:Entities', split='valid')}
    stride, asked = math.ceil(length / 3), min(64, length // 4)
    return base.data('data.text.questions:Questions', stride=stride, question_length=asked, **framed), task, _evals() | {
        'answers': base.evaluation('transformer.evaluators.reading:AnswerScores', split='valid')}


def _evals(name='base:Averages'):
    return {'valid': base.evaluation(f'transformer.evaluators.{name}', split='valid')}
