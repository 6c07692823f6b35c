"""The Transformer of Vaswani et al. 2017, small, on phrases in two languages that need no network and no file.

Babel renders them from Unicode's CLDR: dates, times, numbers, prices, measures, names of countries and languages.

    python train.py --config=configs/transformer_cldr.py

English to French, 33,283 phrases to train on, 1,000 each for validation and testing, which share no phrase with them. 900
steps (1.9 epochs) of 8 rows that hold several pairs each: 96.2 % of the validation phrases and 96.3 % of the test phrases are
translated exactly as in CLDR, except for its kinds of spaces (greedily; BLEU 96.6 and 96.3, chrF 97.5 and 96.9, by sacrebleu).
3 minutes 33 and 3 minutes 46 seconds, compilation included, on two cores of a Xeon whose speed changes from day to day: 1,000
steps of AdamW took 1 minute 50 there, and 3 minutes 10 (Python 3.11, jax 0.10.2, float32). They ended at 94 to 95 %, with an
average of parameters and without. On two cores of an EPYC, whose sums round otherwise, 95.3 and 95.9 % (BLEU 96.0 and 95.9).
Any two locales: --config.data.languages=de,es.

:bart  with norms after the embeddings, as BART has them: `convert.py --to_hf` writes a BART, and without this a MarianMT.
       Ends at 95.8 % of the validation phrases (BLEU 96.6, chrF 97.5): 3 minutes 10 on two cores of an EPYC, beside other work.

    echo "Monday, March 3, 2031" | python predict.py --workdir=runs/transformer_cldr
    python eval.py --workdir=runs/transformer_cldr --attention=alignment.png --input="Monday, March 3, 2031"
"""

from configs import base


def get_config(variant=''):
    bart = base.variant_of(variant, ['vaswani', 'bart']) == 'bart'
    c = base.config()
    c.data = base.data('data.seq2seq.parallel:Parallel', source='cldr', languages='en,fr', train='train', valid='valid',
                       test='test', tokenizer='SentencePiece(vocab=1024)', source_length=96, length=96, batch_size=8)
    c.model = base.part('transformer.models.encoder_decoder:EncoderDecoder',
                        **base.both(layers=2, heads=4, width=128, embedding_norm=bart), source_length=96, length=96,
                        head=f'NextWords(added={bart})')
    c.task = base.part('transformer.tasks.language_model:SequenceToSequence')
    c.optimizer = base.optimizer('training.optimizer:Muon', learning_rate=3e-3, b2=0.98, average_decay=0.99,
                                 schedule=base.part('training.schedules:LinearDecay', warmup_steps=100))
    c.train.steps = 900
    c.log.every_steps = 50
    c.checkpoint.every_steps = 500
    c.evals.valid = base.evaluation('transformer.evaluators.base:Averages', split='valid', every_steps=300)
    c.evals.translations = base.evaluation('transformer.evaluators.translations:Translations', split='valid', every_steps=900)
    return c.lock()
