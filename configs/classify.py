"""Learns the classes of texts, of pairs of texts or of images, starting from another run (the variant).

    python convert.py --from_hf=FOLDER --workdir=runs/bert
    python train.py --config=configs/classify.py:runs/bert --config.data.path=sst2 --config.data.train=train \
        --config.data.valid=valid --workdir=runs/sst2
    echo 'a joy from start to end' | python predict.py --workdir=runs/sst2

The head is that of the model's family (transformer/layers/heads.py:Classes); it is initialised afresh unless the other run has
one with as many classes. Texts are in tables, TSV, CSV, JSON Lines or Parquet (docs/data.md), images in a folder for each
class. configs/label.py learns any number of labels for each text, configs/rate.py a number, configs/prefer.py
which of two is better.
"""

from configs import base
from configs.finetune import BERT, ELECTRA, HEAD, begun, with_head
from training.config import resolve

HEADS = {BERT: 'Classes()',
         'transformer.models.encoder_decoder:EncoderDecoder': "Classes(at='last', dropout=0.0, twice=True)",
         'transformer.models.gpt:Gpt': "Classes(at='last', pooler=False, bias=False, dropout=0.0)"}
ELECTRA_CLASSES = 'Classes(activation=Gelu(), twice=True)'  # as in Hugging Face transformers; Google's code has no pooler

# {prediction for a text: (task, {name: evaluator besides the averages}, fields of the data)}
TOLD = {
    'classes': ('reading:TextClasses', {'scores': 'transformer.evaluators.reading:ClassScores'}, {}),
    'labels': ('reading:MultiLabel', {'labels': 'transformer.evaluators.reading:LabelScores'},
               {'target': 'Labels()', 'reader': 'transformer.readers.classes:TextLabels'}),
    'preferences': ('reading:Preferred', {}, {'data': 'data.text.preferences:Preferences'}),
    'number': ('reading:TextNumbers', {'correlation': 'transformer.evaluators.reading:Correlation'},
               {'target': 'Number()', 'reader': 'transformer.readers.classes:TextNumber'})}


def get_config(variant=''):
    c, other = begun(variant, 'classify')
    if other.model.name != 'vit.models.vit:Vit':
        return of_texts(variant, 'classify', 'classes')
    fields = {key: value for key, value in other.model.items() if key not in ('name', 'classes')}
    c.model = base.part(other.model.name, **fields | {'pooler': False})
    c.data, c.task = other.data, base.part('vit.tasks.classification:Classification')
    c.data.reader = 'vit.readers.images:ImageClass'
    c.evals.valid = base.evaluation('transformer.evaluators.base:Averages', split='valid')
    c.evals.scores = base.evaluation(TOLD['classes'][1]['scores'], split='valid')
    c.init_rules = (HEAD, 'offered'), (r'.*', 'keep')
    return c.lock()


def of_texts(variant, name, what):
    """The config of a run with the head of the model's family, which learns `what` of `TOLD`."""
    _, other = begun(variant, name)
    own = 'Classes(twice=True)' if is_roberta(other.model) else ELECTRA_CLASSES if is_electra(other.model) else HEADS[BERT]
    task, evals, fields = TOLD[what]
    data = {'data': 'data.text.labelled:Labelled', 'train': 'train[:90%]', 'valid': 'train[90%:]', 'test': ''}
    return with_head(variant, name, HEADS | {BERT: own}, task=f'transformer.tasks.{task}', evals=evals, **data | fields)


def is_electra(model):
    """Whether a model is an ELECTRA, or its discriminator alone."""
    return model.name == ELECTRA or str(model.get('head')).startswith('ReplacedTokens(')


def is_roberta(model):
    """Whether a model is a BERT whose positions begin after an offset for padding, like RoBERTa's."""
    if model.name != BERT:
        return False
    positions = resolve.parse(model.positions, resolve.slots(resolve.load(BERT))['positions'].kind, 'model.positions')
    return isinstance(positions, resolve.load('transformer.attention.positions.absolute:Learned')) and positions.offset > 0
