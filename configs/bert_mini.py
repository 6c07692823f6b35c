"""BERT-mini, 4 layers of 256 (Turc et al. 2019, table 1), learns masked language modelling (Devlin et al. 2019, section 3.1).

    python train.py --config=configs/bert_mini.py --config.data.path=TEXT_FOLDER
    echo 'the [MASK] of the film is released in may .' | python predict.py --workdir=runs/bert_mini

:words  a vocabulary of 8,192 word pieces is learnt from the text; documents are lines, and rows of 128 tokens are full.
:static  masks are drawn once for ten copies of the text (Liu et al. 2019, section 4.1).
:whole_words  all pieces of a word are masked together (BERT's code of May 2019).
:ngrams  one to three words in a row are (Lan et al. 2020, section 4.1).
:spans  spans of words are, and are also predicted from their boundaries (SpanBERT, Joshi et al. 2020, section 3).
:next   a row is two parts of a document, or the second of another one (Devlin et al. 2019, section 3.1). Documents are files;
        with --config.data.documents=line they are lines of several sentences.
:order  a row is two parts of a document, in order or not (Lan et al. 2020, section 3.1).
        None of these was run to its end yet; configs/objectives.py trains all but :static and :ngrams for 0.9e14 operations,
        with rotary positions, and measures them.
:step   32 rows of 128 and 30,522 word pieces in float32, on bytes of Python's standard library: for timing its step on a CPU.
        Logits are computed at the masked positions only; with --config.task.everywhere=True at all.

            python -m benchmarks.train_step --config=configs/bert_mini.py:step --steps=40

        2.3 s a step on two busy cores of a Xeon (Python 3.11, jax 0.10.2); in turns with PyTorch 2.13 and Hugging Face's model
        1.33 and 1.68 of its time, with logits everywhere 1.21 and 1.32 (4.8 to 5.2 s). It is slower by
        its attention: see configs/vit_ti16.py. On two quiet cores of a Xeon with AMX (family 6 model 167) 0.73 s, and in turns
        0.52 to 0.53 with --config.dtype=mixed. On one core of such a Xeon, beside a training on the other, 1.17 s twice, in
        turns with the model of keras-hub 0.32 (Keras 3.15 on the same jax, the same batch, as many masks, train_on_batch),
        which takes 1.74 and 2.01.
"""

from configs import base

VARIANTS = 'words', 'static', 'whole_words', 'ngrams', 'spans', 'next', 'order', 'step'
NOISES = {'whole_words': 'WholeWords()', 'ngrams': 'NGrams(longest=3)', 'spans': 'Spans(p=0.2, longest=10)'}


def get_config(variant=''):
    variant = base.variant_of(variant, VARIANTS)
    step = variant == 'step'
    c = base.config()
    c.data = base.data('data.text.masked:Masked', documents='line', path='text', tokenizer='WordPiece(vocab=8192)', length=128)
    c.model = base.part('transformer.models.bert:Bert', layers=4, heads=4, width=256, dropout=0.0 if step else 0.1)
    if step:
        c.data = base.data('data.text.masked:Masked', source='auto', framing='bert',
                           tokenizer="Byte(special=('cls', 'mask'))", length=128)
        c.model.vocab = 30522
    c.task = base.part('transformer.tasks.masked:MaskedTokens')
    c.data.noise = NOISES.get(variant, c.data.noise)
    c.data.copies = 10 if variant == 'static' else 0
    if variant == 'spans':
        c.data.boundary_targets, c.model.head = 20, 'SpanBoundary()'
        c.task = base.part('transformer.tasks.masked:SpanPretraining')
    if variant in ('next', 'order'):
        c.data.documents, c.data.packing, c.data.pairs = 'file', 'none', variant
        c.task, c.model.head = base.part('transformer.tasks.masked:BertPretraining'), 'Pretraining()'
    c.optimizer = base.optimizer(learning_rate=1e-3, b2=0.98, weight_decay=0.01, schedule=base.part(
        'training.schedules:LinearDecay', warmup_steps=500))
    c.train.steps = 10_000
    c.evals.valid = base.evaluation('transformer.evaluators.base:Averages', split='valid', every_steps=1000)
    return c.lock()
