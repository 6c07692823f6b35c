"""A word-level language model of the Penn Treebank, of at most 3 million parameters.

    python train.py --config=configs/ptb_lm.py[:VARIANT] --config.data.path=FOLDER

`FOLDER` holds ptb.train.txt and ptb.valid.txt (Mikolov et al. 2010), .gz too.

2,850,720 parameters, 11.6 epochs: perplexity 93.6 on the validation part, each token after 96 to 128 others. (A lecture's
table of test perplexities: 174 for a Transformer of this size, 155 for a vanilla RNN, 106 for an LSTM of 7 million.) After
1,000 steps 155.6, after 3,000 105.6; GPT-2's scale of 0.02 instead of 0.05, with Adam's b2 0.95 and dropout 0.2: 174.9 after
1,000. 44 minutes on two cores of a Xeon, beside other work (Python 3.11, jax 0.10.2, float32).

:rnn, :gru and :lstm are two recurrent layers with the same data, loop and number of parameters (2.82, 2.78 and 2.77 million)
instead of the Transformer; the state is reset in every row. :rnn ends at a validation perplexity of 124.9 (151.6 after
2,000 steps), :gru at 113.4, :lstm at 119.8; 104, 102 and 131 minutes on one core of a Xeon, beside other work.
"""

from configs import base

CELLS = {'rnn': ('Rnn()', 256), 'gru': ('Gru()', 220), 'lstm': ('Lstm()', 208)}  # and widths, for as many parameters


def get_config(variant=''):
    variant = base.variant_of(variant, ('transformer', *CELLS))
    c = base.config()
    c.data = base.data('data.text.documents:Text', path='ptb', documents='stream', tokenizer='Word()', train='*ptb.train*',
                       valid='*ptb.valid*', test='*ptb.test*', length=128, batch_size=12)
    if variant == 'transformer':
        c.model = base.part('transformer.models.gpt:Gpt', layers=4, heads=5, width=160, length=128, dropout=0.15,
                            **base.NO_BIASES, initial='Scaled(scale=0.05)')
    else:
        cell, width = CELLS[variant]
        c.model = base.part('transformer.models.recurrent_lm:RecurrentLm', cell=cell, layers=2, width=width, length=128,
                            dropout=0.3)
    c.task = base.part('transformer.tasks.language_model:NextToken')
    c.optimizer = base.optimizer('training.optimizer:Muon', learning_rate=2e-3, b2=0.99, weight_decay=0.1,
                                 average_decay=0.998,
                                 schedule=base.part('training.schedules:LinearDecay', warmup_steps=100))
    c.train.steps = 7000
    c.log.every_steps = 50
    c.checkpoint.every_steps = 1000
    c.evals.valid = base.evaluation('transformer.evaluators.language_model:Perplexity', split='valid', stride=32,
                                    every_steps=1000)
    c.evals.samples = base.evaluation('transformer.evaluators.language_model:Continuations', split='valid', prompt='\n',
                                      tokens=60)
    return c.lock()
