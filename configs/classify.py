r"""Learns the classes of texts, of pairs of texts or of images, starting from another run (the variant).

    python convert.py --from_hf=FOLDER --workdir=runs/bert
    python train.py --config=configs/classify.py:runs/bert --config.data.path=sst2 --config.data.train=train \
        --config.data.valid=valid --workdir=runs/sst2
    echo 'a joy from start to end' | python predict.py --workdir=runs/sst2

The head is that of the model's family (transformer/layers/heads.py:Classes); it is initialised afresh unless the other run has
one with as many classes. Texts are in tables, TSV, CSV, JSON Lines or Parquet (docs/data.md), images in a folder for each
class. configs/label.py learns any number of labels for each text, configs/rate.py a number, configs/prefer.py
which of two is better, configs/choose.py which of several answers is right.
"""

import json

from configs import base
from configs.finetune import BERT, begun, encoder_of, with_head
from training import storage
from training.config import resolve

IMAGES = 'data.images.labelled:Images'
VIT, MAE = 'vit.models.vit:Vit', 'vit.models.mae:Mae'
OF_CLASSES = r'(\w+_)?head/.*'  # the heads of models of images
HEADS = {BERT: 'Classes()',
         'transformer.models.encoder_decoder:EncoderDecoder': "Classes(at='last', dropout=0.0, twice=True)",
         'transformer.models.gpt:Gpt': "Classes(at='last', pooler=False, bias=False, dropout=0.0)"}

# {prediction for a text: (task, {name: evaluator besides the averages}, fields of the data)}
TOLD = {
    'classes': ('reading:TextClasses', {'scores': 'transformer.evaluators.reading:ClassScores'}, {}),
    'labels': ('reading:MultiLabel', {'labels': 'transformer.evaluators.reading:LabelScores'},
               {'target': 'Labels()', 'reader': 'transformer.readers.classes:TextLabels'}),
    'preferences': ('reading:Preferred', {}, {'data': 'data.text.preferences:Preferences'}),
    'choices': ('reading:MultipleChoice', {}, {'data': 'data.text.choices:Choices'}),
    'number': ('reading:TextNumbers', {'correlation': 'transformer.evaluators.reading:Correlation'},
               {'target': 'Number()', 'reader': 'transformer.readers.classes:TextNumber'})}


def get_config(variant=''):
    _, other = begun(variant, 'classify')
    if other.data.pipeline == IMAGES:
        return of_images(variant, 'classify').lock()
    return of_texts(variant, 'classify', 'classes')


def of_images(variant, name):
    """The config of a model of images with a head for classes, from a run of one, or of a ViT from the encoder of a masked
    autoencoder."""
    c, other = begun(variant, name)
    if other.data.pipeline != IMAGES or ('classes' not in other.model and other.model.name != MAE):
        raise ValueError(f'{variant} is a run of {other.model.name} on {other.data.pipeline}, and configs/{name}.py learns the '
                         f'classes of images; name a run of a model of images, on {IMAGES}.')
    model, there = other.model.name, ''
    fields = {key: value for key, value in other.model.items() if key not in ('name', 'classes')}
    if model == MAE:
        model, there = VIT, 'encoder/'
        fields = {key: fields[key] for key in ('patch', 'pool', 'dense_gradient')} | {**fields['encoder']}
    c.model = base.part(model, **fields | ({'pooler': False} if model == VIT else {}))
    c.data, c.task = other.data, base.part('vit.tasks.classification:Classification')
    c.data.source = 'folder' if c.data.source == 'unlabelled' else c.data.source
    c.data.channels = c.data.channels or channels_of(storage.path(variant))
    c.data.reader = 'vit.readers.images:ImageClass'
    c.evals.valid = base.evaluation('transformer.evaluators.base:Averages', split='valid')
    c.evals.scores = base.evaluation(TOLD['classes'][1]['scores'], split='valid')
    front = rf':{there}\g<0>' if there else ''
    c.init_rules = (OF_CLASSES, f'offered{front}'), (r'.*', f'keep{front}')
    return c


def channels_of(folder):
    """The channels of a run's images; 0 if it has read none. Raises ValueError if the file that says it is damaged."""
    path = folder / 'classes.json'
    try:
        return int(json.loads(path.read_text())['channels']) if path.is_file() else 0
    except (ValueError, KeyError, TypeError):
        raise ValueError(f'{path} does not describe classes of images; restore it, or name another run.') from None


def of_texts(variant, name, what):
    """The config of a run with the head of the model's family, which learns `what` of `TOLD`."""
    _, other = begun(variant, name)
    (model, fields), _ = encoder_of(other.model)
    heads = HEADS | ({BERT: (head_of_choices if what == 'choices' else head_of)(fields)} if model == BERT else {})
    task, evals, more = TOLD[what]
    data = {'data': 'data.text.labelled:Labelled', 'train': 'train[:90%]', 'valid': 'train[90%:]', 'test': ''}
    return with_head(variant, name, heads, task=f'transformer.tasks.{task}', evals=evals, **data | more)


def family_of(model):
    """The family of a BERT: RoBERTa's positions begin after an offset for padding, ALBERT's layers share parameters, ELECTRA
    has narrow tables or a discriminator's head, T5's encoder biases for offsets, and DistilBERT no token types."""
    part = lambda name: resolve.parse(model[name], resolve.slots(resolve.load(BERT))[name].kind, f'model.{name}')
    is_a = lambda part, path: isinstance(part, resolve.load(path))
    positions = part('positions')
    if is_a(positions, 'transformer.attention.positions.absolute:Learned') and positions.offset:
        return 'roberta'
    if is_a(positions, 'transformer.attention.positions.relative:T5Bias'):
        return 't5'
    if is_a(part('depth'), 'transformer.layers.universal:Groups'):
        return 'albert'
    if model.get('embedding_width', 0) or is_a(part('head'), 'transformer.layers.heads:ReplacedTokens'):
        return 'electra'
    return 'distilbert' if model['types'] == 0 else 'bert'


def head_of(model):
    """The head for classes in the family of a BERT; T5, which has none on its encoder alone, gets DistilBERT's."""
    relu = 'Classes(activation=Relu(), dropout=0.2)'
    return {'roberta': 'Classes(twice=True)', 'albert': 'Classes(dropout=0.1)', 'bert': 'Classes()',
            'electra': 'Classes(activation=Gelu(), twice=True)',
            'distilbert': relu, 't5': relu}[family_of(model)]


def head_of_choices(model):
    """The head for the score of an answer there, which differs in RoBERTa's and ELECTRA's dropout alone."""
    return {'roberta': 'Classes()', 'electra': 'Classes(activation=Gelu(), dropout=0.1)'}.get(family_of(model), head_of(model))
