"""ELECTRA (Clark et al. 2020), a generator and a discriminator in one run, small enough for a CPU, on a text of one's own.

    python train.py --config=configs/electra.py --config.data.path=TEXT_FOLDER
    echo 'the chef ate the meal .' | python predict.py --workdir=runs/electra
    python train.py --config=configs/classify.py:runs/electra --config.data.path=sst2.tsv --workdir=runs/sst2

predict.py tells which words look replaced. configs/classify.py, tag.py and the like start from the discriminator.

A vocabulary of 8,192 word pieces is learnt from the text; documents are lines, and rows of 128 tokens are full. The
discriminator has 4 layers of 256 as in configs/bert_mini.py, on tables of 128 as in ELECTRA-Small, and the generator as many
layers of a quarter of its width (google-research/electra; the released small model has one of the same width).
Not yet run to its end; configs/objectives.py trains it for 0.9e14 operations, with rotary positions, and measures it.
"""

from configs import base


def get_config(variant=''):
    base.variant_of(variant, ('none',))
    c = base.config()
    c.data = base.data('data.text.masked:Masked', documents='line', path='text', tokenizer='WordPiece(vocab=8192)', length=128,
                       noise='WithReplacement()', reader='transformer.readers.replaced:ReplacedWords')
    sizes = dict(layers=4, dropout=0.1)
    c.model = base.part('transformer.models.electra:Electra', embedding_width=128, length=128,
                        generator=dict(heads=1, width=64, **sizes), discriminator=dict(heads=4, width=256, **sizes))
    c.task = base.part('transformer.tasks.electra:ReplacedTokens')
    c.optimizer = base.optimizer(learning_rate=5e-4, weight_decay=0.01, eps=1e-6, schedule=base.part(
        'training.schedules:LinearDecay', warmup_steps=500))
    c.train.steps = 10_000
    c.evals.valid = base.evaluation('transformer.evaluators.base:Averages', split='valid', every_steps=1000)
    return c.lock()
