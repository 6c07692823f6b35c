r"""Several tasks as text in one model, which starts from a pretrained run (Raffel et al. 2020, sections 2.4 and 3.5.2).

    python train.py --config=configs/text_to_text.py:runs/t5_small --config.data.parts.sst2.path=SST-2 \
        --config.data.parts.rte.path=RTE --config.data.parts.fra_eng.path=fra.txt --workdir=runs/tasks
    echo 'sst2 sentence: a joy from start to end' | python predict.py --workdir=runs/tasks
    python eval.py --workdir=runs/tasks --split=sst2.valid --evaluator=answers [--against=runs/other]

The variant is the workdir of a run of configs/t5_small.py or configs/bart_mini.py, or of a T5 or BART that convert.py has taken
in. --config.init_from= starts the same model from new parameters. A task without a path is left out:

sst2     sst2 sentence: ..                      negative, positive
mrpc     mrpc sentence1: .. sentence2: ..       not_equivalent, equivalent
rte      rte sentence1: .. sentence2: ..        entailment, not_entailment
stsb     stsb sentence1: .. sentence2: ..       such as 3.8, a multiple of 0.2
fra_eng  translate French to English: ..        the first column of a table without a header, whose second is French

The others read the files of GLUE by the names in their headers; --config.data.parts.sst2.inputs='sst2 sentence: {2}' reads
another column. Each task is drawn in proportion to its examples, of which at most --config.data.limit count, and a
--config.data.temperature above 1 evens out the shares. A task of your own is one more entry of `parts` in a copy of this file.
`answers` says for each task how often the output is the target, of all of its examples in `valid`, whose number it tells;
--config.evals.answers.limit=500 takes the first 500 of each, which is sooner. Not yet run to its end; configs/several_tasks.py
has what each of four tasks reaches alone.
"""

from configs import base
from configs.finetune import begun


def get_config(variant=''):
    c, other = started(variant, 'text_to_text')
    c.data = data(other, parts(), length=48)
    c.train.steps = 3000
    c.evals.valid = base.evaluation('transformer.evaluators.base:Averages', split='valid', every_steps=1000)
    c.evals.answers = base.evaluation('transformer.evaluators.texts:Answers', split='valid')
    return c.lock()


def started(variant, name):
    """(a config without data and evaluators that starts from the run of an encoder and a decoder, the config of that run)."""
    c, other = begun(variant, name)
    if 'decoder' not in other.model or not other.model.get('head', '').startswith('NextWords'):
        raise ValueError(f'{variant} is a run of {other.model.name}, which writes no texts for others; name one of an encoder '
                         'and a decoder, such as a run of configs/t5_small.py.')
    c.model = other.model
    c.task = base.part('transformer.tasks.language_model:SequenceToSequence')
    c.optimizer = base.optimizer(learning_rate=5e-4, weight_decay=0.01, schedule=base.part(
        'training.schedules:LinearDecay', warmup_steps=100))
    return c, other


def data(other, tasks, length):
    """The data of these tasks, with the tokenizer and the framing of the other run and targets of up to `length` tokens."""
    return base.data('data.seq2seq.tasks:Tasks', parts=tasks, tokenizer=other.data.tokenizer, start=other.data.get('start', -1),
                     framing=other.data.get('framing', 't5'), source_length=min(other.model.source_length, 128),
                     length=min(other.model.length, length), batch_size=16)


def parts():
    """The tasks."""
    two = 'sentence1: {sentence1} sentence2: {sentence2}'
    glue = dict(train='train.tsv*', valid='dev.tsv*')
    return {
        'sst2': dict(glue, inputs='sst2 sentence: {sentence}', target='{label}', words=('negative', 'positive')),
        'mrpc': dict(glue, inputs='mrpc sentence1: {#1 String} sentence2: {#2 String}', target='{Quality}',
                     words=('not_equivalent', 'equivalent')),
        'rte': dict(glue, inputs=f'rte {two}', target='{label}', words=('entailment', 'not_entailment')),
        'stsb': dict(glue, inputs=f'stsb {two}', target='{score}', step=0.2),
        'fra_eng': dict(inputs='translate French to English: {2}', target='{1}', header='false', apart='both'),
    }
