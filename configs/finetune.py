"""Trains the model of another run further: one that convert.py has made of a model of Hugging Face, or one trained here.

    python convert.py --from_hf=FOLDER --workdir=runs/gpt2
    python train.py --config=configs/finetune.py:runs/gpt2 --config.data.path=TEXT_FOLDER --workdir=runs/mine
    python convert.py --workdir=runs/mine --to_hf=NEW_FOLDER

The variant is the workdir of that run. Its model, task, data and evaluators are kept, and training starts from its parameters;
of a run of configs/distill.py the teacher too, and --config.companions.teacher=DIR tells where that has moved.
The optimizer is new: AdamW, 5e-5 falling linearly to 0 over 1,000 steps, weight decay 0.01.
configs/classify.py, label.py, rate.py, prefer.py, choose.py, tag.py and answer.py put another head on the model; of a run of
configs/electra.py they take the discriminator, a BERT.
"""

from configs import base
from training import storage, workdir
from training.config import resolve

BERT, ELECTRA = 'transformer.models.bert:Bert', 'transformer.models.electra:Electra'
# Heads that are initialised afresh if the other run has none, or one of another shape.
HEAD = r'(pooler|classes|choice|span|head|distillation_head)/.*'


def get_config(variant=''):
    c, other = begun(variant, 'finetune')
    if other.task.name.endswith(':Hidden'):
        raise ValueError(f'{variant} is a model that has nothing to learn by itself; give it another head with '
                         'configs/classify.py, configs/tag.py or configs/answer.py.')
    if other.data.pipeline == 'data.images.labelled:Images':
        raise ValueError(f'{variant} is a run on images, and your images have other classes; use '
                         f'--config=configs/classify.py:{variant}.')
    for part in ('model', 'task', 'data', 'evals', 'generation', 'companions'):
        c[part] = other[part]
    return c.lock()


# {config: one whose runs it begins with}, where that is no BERT
BEGINS = {'finetune': 'quickstart.py', 'text_to_text': 't5_small.py', 'summarize': 't5_small.py',
          'several_tasks': 't5_small.py', 'finetune_images': 'mae_fashion_mnist.py', 'transfer': 'vit_products.py',
          'gpt_finetune': 'quickstart.py with --config.data.tokenizer=\'SentencePiece(vocab=8192, special=("begin",))\''}


def begun(variant, name):
    """(a config that starts from the parameters of the run in the folder `variant`, the config of that run).

    Matrix products keep their type. Parameters are trained in float32 even if that run stores them in bfloat16, whose last bit
    is larger than updates of 5e-5.
    """
    if not variant:
        raise ValueError(f'configs/{name}.py trains the model of a run further; name its workdir, '
                         f'--config=configs/{name}.py:WORKDIR (a run of configs/{BEGINS.get(name, "bert_mini.py")}, or '
                         'one that convert.py --from_hf has made).')
    c, other = base.config(), workdir.of_variant(variant)
    c.dtype, c.init_from = other.dtype, variant
    c.optimizer = base.optimizer(learning_rate=5e-5, weight_decay=0.01, schedule=base.part(
        'training.schedules:LinearDecay', warmup_steps=100))
    c.train.steps = 1000
    return c, other


def with_head(variant, name, head, data, task, evals, **fields):
    """The locked config of a run on texts whose model has another head.

    Args:
      head: {import path of a model: its new head}.
      data, task: import paths; `fields` are those of the data.
      evals: {name: evaluator}, besides the averages of the task on data.valid.
    """
    c, other = begun(variant, name)
    (model, kept), front = encoder_of(other.model)
    if model not in head:
        raise ValueError(f'{variant} is a run of {model}, for which configs/{name}.py has no head; it has one for '
                         f'{", ".join(head)}.')
    c.model = base.part(model, **kept | {'head': head[model]})
    if 'source_vocab' in c.model and c.model.source_vocab is None:
        c.model.source_vocab = 0  # encoder and decoder read one text
    framing = other.data.get('framing', 'plain')  # a text that is continued has no special tokens around it
    c.data = base.data(data, path=f'{name}.txt', packing='buckets', framing=framing, tokenizer=other.data.tokenizer,
                       length=min(c.model.length, fields.pop('length', 128)), **fields)
    c.task = base.part(task, types=kept.get('types', 0) > 0, start=start_of(other, variant))
    c.evals.valid = base.evaluation('transformer.evaluators.base:Averages', split='valid')
    for evaluation, path in evals.items():
        c.evals[evaluation] = base.evaluation(path, split='valid')
    there = rf':{front}/\g<0>' if front else ''
    c.init_rules = (HEAD, f'offered{there}'), (r'.*', f'keep{there}')
    return c.lock()


def start_of(other, folder):
    """The first input of the decoder of a run; -1 if it has none."""
    if 'start' not in other.data or 'decoder' not in other.model:
        return other.task.get('start', -1)
    return resolve.construct(other.data, 'pipeline').open(workdir.facts(storage.path(folder))).start


def encoder_of(model):
    """((import path, {field: value}) of the model of a run that gets another head, the front of its parameters' names there):
    of ELECTRA the discriminator, of others the model itself."""
    kept = {key: value for key, value in model.items() if key != 'name' and value is not None}  # None: the data's
    if model.name != ELECTRA:
        return (model.name, kept), ''
    stack, width = model.discriminator, model.embedding_width
    common = {key: value for key, value in kept.items() if key not in ('generator', 'discriminator', 'tied')}
    tables = {'embedding_width': width if width != stack.width else 0}
    return (BERT, common | {**stack, **tables, 'head': 'ReplacedTokens()'}), 'discriminator'
