"""What eight pretraining objectives teach at equal computation: each pretrained on one corpus, then fine-tuned for four tasks.

    python sweep.py --config=configs/objectives.py:DATA --workdir=runs/objectives --processes=2

DATA is a folder with wikitext2, ptb, tinyshakespeare, multi30k, fra_eng, sst2, mrpc, rte, wnut17 and squad_v1.1_dev, as in
`corpus` below: 5.2 million English words. All objectives have the same 8,192 word pieces, learnt from the training parts, and
rows of 128 tokens, 16 a step; the encoders have 4 layers of 256 (configs/bert_mini.py, configs/electra.py), encoder-decoders
as many in each part (configs/t5_small.py:spans, configs/bart_mini.py). Positions are relative, T5's own and elsewhere rotary:
with tables of absolute ones a masked language model is still on the plateau of word frequencies, 6.36, at the end of so short
a training (6.38 after 650 of these steps, with rotary ones 5.29). Each is trained for 0.9e14 floating point operations, counted
as in the log, so the padding of `next` and `order` counts too: their rows, two parts of one document, are 51 to 61 % full, and
documents of one sentence have none. The other rows are full, and texts in one see each other (RoBERTa's FULL-SENTENCES).
Rates and schedules are those of each config; T5's, the inverse square root, ends at a third of its peak, the others' at 0.
`scratch` is the network of `masked` without pretraining, a new one for each seed, fine-tuned as the others are. Points are
`masked`, `masked-mrpc-0` (its task and seed) and so on.

Development parts, the mean of three seeds for MRPC; what has no number was not measured:

               SST-2 accuracy   MRPC accuracy   MRPC F1   WNUT-17 F1   SQuAD F1
    masked               84.2      67.4 ± 1.5                   23.5       12.5
    masked, anew         82.8      66.3 ± 0.3      76.0
    words                83.5      66.6 ± 1.3                   27.0       11.5
    spans                82.6      65.6 ± 0.3                   22.4       10.2
    next                 82.2      63.3 ± 2.2      72.9         22.5       11.4
    order                81.9      65.3 ± 0.5      75.8         22.3       11.4
    electra              81.0      68.5 ± 2.0      77.7         20.7       11.2
    bart                 80.5      64.1 ± 2.8      73.9         16.3        8.9
    t5                   66.2           69.4                     0.5        8.0
    scratch        81.1 ± 0.5      67.8 ± 1.6      77.2   14.7 ± 0.7       10.0

`scratch` is that of configs/longer_objectives.py, whose points are the same, of which SST-2 has three seeds and WNUT-17 two.
`masked, anew` is the same training from the same seed on another processor, which rounds otherwise, and so is `order` but for
SST-2; of t5 there is one seed.
Of MRPC nothing is learnt: 69.6 % of its pairs are paraphrases, which gives an F1 of 82.1. Masked words alone are best on SST-2
and SQuAD, whole words on names: in so short a training, further tasks cost more than they give, and ELECTRA's generator is
little better, 5.80, than one that knows only how frequent words are, 6.05. Held-out loss of pretraining in nats a word: masked
4.64, whole words 4.78, masked beside next 4.92 and beside order 4.92, within spans 5.92; T5's spans 5.10, BART's texts 5.63.

T5 is fine-tuned for SST-2 and MRPC as text to text, by configs/several_tasks.py with each task alone, in rows of 16 and a
fourth of the examples of SST-2 that the others see. It begins as in its code;
begun as the Transformer of 2017, with scores that are not divided, it had a training loss of 6.67 after 400 steps, where it now
has 5.23, and ended at 5.36. Classified by the state of its decoder after it has read the text again, as Hugging Face does, it
learns slowly: 0.64 nats of SST-2 after 900 steps, BART 0.33; of the names of WNUT-17 it finds 2 of 836 in the 850 steps of the
others, of the answers of SQuAD 9 of 1,133. Its decoder has seen no whole texts.

Pretraining takes 19 to 51 minutes of one core of a Xeon (family 6 model 167), fine-tuning 6 to 32, and T5 for SQuAD 73, beside
other work; the first three and `order` were trained on an EPYC (family 26 model 2), what was trained anew, t5 but for SQuAD,
and BART but for names on another (family 25 model 1), the others on that Xeon (Python 3.11, jax 0.10.2, float32), where T5 was
pretrained once more for SQuAD, to 5.11.

The corpus is all English of DATA but newstest2017, which is there for tests, and the generated stories of bAbI; held-out parts
of the pairs of Tatoeba are the last of the file, its longest sentences. Of the 1,133 held-out questions of SQuAD 11 are about a
context of which others are trained on.
"""

from configs import bert_mini, several_tasks
from training.config import schema
from training.report import report
from training.report.sweeps import Estimate, Point, Sweep

OPERATIONS = 0.9e14
PIECES = {'data.tokenizer': 'WordPiece(vocab=8192)'}
SENTINELS = {'data.tokenizer': 'WordPiece(vocab=8224, sentinels=32)', 'data.framing': 'bert'}
# objective: (config, fields besides those of all, GFLOP of a step)
OBJECTIVES = {
    'masked': ('configs/bert_mini.py:words', PIECES, 46.5),
    'words': ('configs/bert_mini.py:whole_words', PIECES, 46.5),
    'spans': ('configs/bert_mini.py:spans', PIECES, 51.0),
    'next': ('configs/bert_mini.py:next', PIECES, 46.5),
    'order': ('configs/bert_mini.py:order', PIECES, 46.5),
    'electra': ('configs/electra.py', PIECES, 49.1),
    't5': ('configs/t5_small.py:spans', SENTINELS, 66.4),
    'bart': ('configs/bart_mini.py', {'data.tokenizer': 'WordPiece(vocab=8192)', 'data.framing': 'bert'}, 127.2),
    'scratch': ('configs/bert_mini.py:words', PIECES | {'optimizer.learning_rate': 0.0}, 0.0),  # one step that changes nothing
}
# The stacks of a model, which are pretrained without dropout (as in Lan et al. 2020, section 4.8) and fine-tuned with it.
STACKS = {'electra': ('generator', 'discriminator'), 't5': ('encoder', 'decoder'), 'bart': ('encoder', 'decoder')}
# task: (config, its fields, numbers of the table {name: (evaluator, metric)}, seeds)
TASKS = {
    'sst2': ('configs/classify.py', {
        'data.path': 'sst2', 'data.columns': ('2',), 'data.label': '1', 'data.train': 'train', 'data.valid': 'dev*',
        'data.header': 'true', 'train.steps': 3200}, {'SST-2 accuracy': ('scores', 'accuracy')}, 1),
    'mrpc': ('configs/classify.py', {
        'data.path': 'mrpc', 'data.columns': ('#1 String', '#2 String'), 'data.label': 'Quality', 'data.train': 'all[:-408]',
        'data.valid': 'all[-408:]', 'train.steps': 460},
        {'MRPC accuracy': ('scores', 'accuracy'), 'MRPC F1': ('scores', 'f1')}, 3),
    'wnut17': ('configs/tag.py', {
        'data.path': 'wnut17', 'data.train': 'wnut17train*', 'data.valid': 'emerging*', 'train.steps': 850},
        {'WNUT-17 F1': ('entities', 'f1')}, 1),
    'squad': ('configs/answer.py', {
        'data.path': 'squad_v1.1_dev', 'data.train': 'all[:80%]', 'data.valid': 'all[80%:]', 'data.stride': 64,
        'data.question_length': 32, 'train.steps': 840}, {'SQuAD F1': ('answers', 'f1')}, 1),
}


def corpus(root):
    """The English texts in a folder of public data sets, without the parts that tasks are evaluated on; a few sentences of
    MRPC and RTE stand in both parts of their files."""
    def place(kind, path, train, valid, **more):
        fields = {'path': f'{root}/{path}', 'train': train, 'valid': valid, 'test': ''} | more
        return f'{kind}({", ".join(f"{name}={value!r}" for name, value in fields.items())})'

    return '(' + ', '.join((
        place('Documents', 'wikitext2', 'wiki.train*', 'wiki.valid*', documents='article'),
        place('Documents', 'ptb', 'ptb.train*', 'ptb.valid*', documents='line'),
        place('Documents', 'tinyshakespeare/*.gz', 'all[:95%]', 'all[95%:]', documents='blank'),
        place('Documents', 'multi30k', 'train.en*', 'val.en*', documents='line'),
        place('Column', 'fra_eng/fra*', 'all[:98%]', 'all[98%:]', column='1'),
        place('Column', 'sst2', 'train', 'dev*', column='2'),
        place('Column', 'mrpc', 'all[:-408]', 'all[-408:]', column='#1 String,#2 String'),
        place('Column', 'rte', 'all[:-277]', 'all[-277:]', column='sentence1,sentence2'),
        place('Words', 'wnut17', 'wnut17train*', 'emerging*'),
        place('Contexts', 'squad_v1.1_dev', 'all[:80%]', 'all[80%:]'))) + ')'


def get_config(variant=''):
    """`masked`, which train.py trains alone."""
    config = bert_mini.get_config('words')
    return schema.changed(config, pretraining('masked', variant, OPERATIONS).fields) if variant else config


def sweep(variant=''):
    if not variant:
        raise ValueError('configs/objectives.py trains on a folder of public data sets; name it, '
                         '--config=configs/objectives.py:DATA.')
    points = pretrained(OBJECTIVES, variant, OPERATIONS, seeds=3)
    for name in OBJECTIVES:
        for task, (*_, seeds) in TASKS.items():
            points |= {f'{name}-{task}-{seed}': fine_tuning(name, task, variant, seed) for seed in range(seeds)}
    return Sweep(points, table=lambda folders: {name: scores(name, folders) for name in OBJECTIVES}, title='objective')


def pretrained(names, root, operations, seeds):
    """{name: point} that pretrains by each objective; of `scratch` a point for each of so many seeds, `scratch-0` and so on."""
    points = {name: pretraining(name, root, operations) for name in names if name != 'scratch'}
    scratch = pretraining('scratch', root, operations)
    return points | {f'scratch-{seed}': scratch.replaced(str, seed=seed) for seed in range(seeds)}


def pretraining(name, root, operations):
    """The point that pretrains by an objective for so many floating point operations."""
    config, fields, cost = OBJECTIVES[name]
    steps = round(operations / (cost * 1e9)) if cost else 1
    positions = {} if name == 't5' else stacks(name, 'positions', 'Rotary()')  # T5 has relative ones
    return Point(config, fields | stacks(name, 'dropout', 0.0) | positions | {
        'data.batch_size': 16, 'data.corpus': corpus(root), 'data.path': '', 'data.documents': 'file', 'train.steps': steps,
        'optimizer.schedule.warmup_steps': min(steps // 10, 1000), 'evals.valid.every_steps': 0, 'checkpoint.every_steps': 500})


def fine_tuning(name, task, root, seed):
    """The point that fine-tunes the point `name`, pretrained by the objective of that name, for a task."""
    if as_text(name, task):
        return Point(f'configs/several_tasks.py:{root},{{{name}}},{task}', {'seed': seed})
    config, fields, *_ = TASKS[task]
    start = f'scratch-{seed}' if name == 'scratch' else name
    return Point(f'{config}:{{{start}}}', fields | {
        'data.path': f'{root}/{fields["data.path"]}', 'data.batch_size': 32, 'data.length': 128, 'seed': seed,
        'optimizer.learning_rate': 2e-4, 'optimizer.schedule.warmup_steps': fields['train.steps'] // 10,
        **stacks('bert' if name == 'electra' else name, 'dropout', 0.1)})  # of ELECTRA the discriminator alone


def as_text(name, task):
    """Whether the answers of a task are written, not classified."""
    return name == 't5' and task in several_tasks.PARTS


def stacks(name, field, value):
    """{a field of every stack of an objective's model: value}."""
    return {f'model.{stack}.{field}'.replace('..', '.'): value for stack in STACKS.get(name, ('',))}


def scores(name, folders):
    """{column: mean and deviation} of an objective on the development parts of the tasks, in percent; None where all runs of a
    task have failed."""
    row = {}
    for task, (_, _, numbers, _) in TASKS.items():
        runs = [folder for group, found in folders.items() if group.startswith(f'{name}-{task}') for folder in found]
        for column, (evaluator, metric) in numbers.items():
            if as_text(name, task):
                evaluator, metric = 'answers', f'{task}_exact_match' if metric == 'accuracy' else ''
            values = [rows[-1][metric] for folder in runs if metric and (rows := report.rows(folder, evaluator))]
            scale = 1 if metric == 'f1' else 100
            row[column] = Estimate.of([scale * value for value in values]) if values else None
    return row
