"""Distils a run (the variant) into a student that is half as deep, initialised from every second layer (Sanh et al. 2019).

    python train.py --config=configs/bert_mini.py --config.data.path=TEXT_FOLDER
    python train.py --config=configs/distill.py:runs/bert_mini --workdir=runs/student

    python train.py --config=configs/classify.py:runs/bert_mini --config.data.path=sst2.tsv --workdir=runs/teacher
    python train.py --config=configs/distill.py:runs/teacher --workdir=runs/student

The teacher predicts masked words or classifies texts, and the student learns from the same data, tokenizer and classes. Its
sizes are flags: --config.model.layers, of which those without such a layer are fresh, and with --config.task.cosine=0 also
others, whose parameters have to be fresh. If layers share their parameters, the student has all of them and half the layers,
which the groups must divide.
Sanh et al. leave the embedding of types and the pooler out; here the student keeps them.

Measured with the run `masked-sst2-0` of configs/objectives.py, 4 layers that learnt SST-2, and --config.train.steps=3200:
the student of 2 layers has 82.0 % on its development part, 99.0 % of the teacher's 82.8 %, and reads it in 2.3 s where the
teacher takes 5.0 s on one core of an EPYC (family 25 model 1; Python 3.11, jax 0.10.2, float32; median of seven, in turns): 2.1
times as fast. Its training took 18 minutes of that core.
"""

from configs import base
from configs.finetune import begun
from training.config import resolve

# {task of the teacher: (task of the student, learning rate, steps)}
TASKS = {'transformer.tasks.masked:MaskedTokens': ('transformer.tasks.distillation:Distillation', 5e-4, 10_000),
         'transformer.tasks.reading:TextClasses': ('transformer.tasks.distillation:DistilledClasses', 1e-4, 1000)}


def get_config(variant=''):
    c, teacher = begun(variant, 'distill')
    if teacher.task.name not in TASKS or 'layers' not in teacher.model:
        raise ValueError(f'{variant} is a run of {teacher.model.name} with {teacher.task.name}; configs/distill.py distils '
                         f'models of one stack with {" or ".join(TASKS)}.')
    task, rate, c.train.steps = TASKS[teacher.task.name]
    c.companions.teacher = variant
    c.model, c.data, c.evals = teacher.model.copy_and_resolve_references(), teacher.data, teacher.evals
    layers = teacher.model.layers
    c.model.layers = max(1, layers // 2)
    c.model.kept = teacher.model.kept[::2][:c.model.layers]  # the heads that pruning has left
    kind = resolve.slots(resolve.load(teacher.model.name))['depth'].kind
    if isinstance(resolve.parse(teacher.model.depth, kind, 'model.depth'), resolve.load('transformer.layers.universal:Own')):
        c.init_rules = (*every_second(layers), (r'block_0/.*', 'keep'), (r'block_.*', 'fresh'), (r'.*', 'keep'))
    else:
        c.init_rules = ((r'.*', 'keep'),)  # layers share their parameters: the student has them all
    c.task = base.part(task, **{name: teacher.task[name] for name in ('types', 'start') if name in teacher.task})
    c.optimizer.learning_rate = rate
    return c.lock()


def every_second(layers):
    """The rules of init_rules by which layer i of the student comes from layer 2 i of a teacher with so many layers."""
    return tuple((rf'block_{i}/(.*)', 'keep:' + rf'block_{2 * i}/\1') for i in range(1, (layers + 1) // 2))
