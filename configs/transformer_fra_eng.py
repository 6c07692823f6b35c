r"""The Transformer on English and French sentences of Tatoeba, as in Dive into Deep Learning.

The sections there (Zhang et al.) are 10.5 and 11.7.

    python train.py --config=configs/transformer_fra_eng.py[:VARIANT] --config.data.path=fra.txt

`fra.txt` has a sentence and its translation in each line, from short to long (manythings.org/anki, of 2019), .gz too.

:d2l   the textbook's setting: the first 512 pairs in lower case, words that occur twice, rows of 9; 2 + 2 post-norm blocks,
       256 wide, feed-forward 64, 4 heads without biases, dropout 0.2, initialised like PyTorch, Adam 0.001, 30 epochs. Its four
       sentences, with its BLEU (k=2):

           go . => va !, 1.000                       i lost . => j'ai perdu ., 1.000
           he's calm . => il est calme ., 1.000      i'm home . => je suis chez moi ., 1.000

       (the textbook: 1, 0.687, 0.658, 1, with words counted in its validation pairs too). 6 minutes on two cores of a Xeon,
       beside much other work (Python 3.11, jax 0.10.2, float32).
:full  140,399 pairs, all but a held-out twentieth, which shares no sentence with the rest; 4,000 subwords, 3 + 3 blocks, 3.29
       million parameters. After 2.8 epochs BLEU 42.4, chrF 61.0 of the 7,435 held-out pairs, in lower case and with one
       reference each (beam of 4); with dropout 0.1 and 2,500 steps 35.5 and 55.3. Its four sentences, each a right
       translation:

           go . => allez !, 0.000                    i lost . => j'ai perdu ., 1.000
           he's calm . => il est calme ., 1.000      i'm home . => je suis à la maison ., 0.473

       66 minutes on one core of a Xeon, beside other work (Python 3.11, jax 0.10.2, float32).

The step of :d2l with 10,000 words in each language and rows of 10 takes 0.59 of the time of PyTorch's nn.Transformer of the
same shapes (489 and 825 ms, 682 and 1,148 ms in turns, on two busy cores of a Xeon; PyTorch 2.13):

    python -m benchmarks.train_step --config=configs/transformer_fra_eng.py:d2l --config.data.path=fra.txt \
        --config.model.vocab=10000 --config.model.source_vocab=10000 --config.model.length=10 \
        --config.model.source_length=10 --config.data.length=10 --config.data.source_length=10
"""

from configs import base

SENTENCES = dict(sources=('go .', 'i lost .', "he's calm .", "i'm home ."),
                 references=('va !', "j'ai perdu .", 'il est calme .', 'je suis chez moi .'))


def data(variant, packing):
    """The textbook's 512 + 128 pairs, or all of them but a twentieth."""
    if variant == 'd2l':
        return base.data('data.seq2seq.parallel:Parallel', source='table', path='fra.txt', text='textbook',
                         tokenizer='Word(least=2)',
                         target_tokenizer='Word(least=2)', train='train[:512]', valid='train[512:640]', test='',
                         source_length=9, length=9, long='truncate', packing='none', batch_size=128)
    return base.data('data.seq2seq.parallel:Parallel', source='table', path='fra.txt', text='textbook', order='hash',
                     tokenizer='SentencePiece(vocab=4000)', train='train[:95%]', valid='train[95%:]', test='', source_length=64,
                     length=64, long='truncate', packing=packing, batch_size=24)


def evaluations(c, variant):
    c.evals.valid = base.evaluation('transformer.evaluators.base:Averages', split='valid', every_steps=1000)
    if variant == 'full':
        c.evals.translations = base.evaluation('transformer.evaluators.translations:Translations', split='valid',
                                               strategy='Beam(size=4, length_penalty=0.6)')
    c.evals.sentences = base.evaluation('transformer.evaluators.translations:Sentences', split='valid', **SENTENCES)


def get_config(variant=''):
    variant = base.variant_of(variant, ('full', 'd2l'))
    c = base.config()
    c.data = data(variant, packing='first_fit')
    if variant == 'd2l':
        c.model = base.part('transformer.models.encoder_decoder:EncoderDecoder', **base.both(
            layers=2, heads=4, width=256, dropout=0.2, projection_bias=False, output_bias=False, initial='PyTorch()',
            feed_forward='Mlp(inner=64, activation=Relu())'),
            source_length=9, length=9, share=False, head='NextWords(tied=False, bias=True)')
        c.optimizer = base.optimizer(learning_rate=1e-3, schedule=base.part('training.schedules:ConstantRate'))
        c.train.steps = 120
    else:
        c.model = base.part('transformer.models.encoder_decoder:EncoderDecoder', **base.both(
            layers=3, heads=4, width=192, feed_forward='Mlp(inner=512, activation=Relu())'), source_length=64, length=64)
        c.optimizer = base.optimizer('training.optimizer:Muon', learning_rate=4e-3, b2=0.98, average_decay=0.998,
                                     schedule=base.part('training.schedules:LinearDecay', warmup_steps=200))
        c.train.steps = 3200
    c.task = base.part('transformer.tasks.language_model:SequenceToSequence', label_smoothing=0.1 if variant == 'full' else 0.0)
    c.log.every_steps = 10 if variant == 'd2l' else 50
    c.checkpoint.every_steps = 500
    evaluations(c, variant)
    return c.lock()
