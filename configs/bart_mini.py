"""BART (Lewis et al. 2020), small enough for a CPU, learns to restore text.

    python train.py --config=configs/bart_mini.py --config.data.path=TEXT_FOLDER
    echo 'The <mask> of the film was published in <mask>.' | python predict.py --workdir=runs/bart_mini

4 layers of 256 in the encoder and in the decoder. 8,192 pieces are learnt from the text; rows of 128 tokens are full, their
sentences are permuted, and 30 % of the words are in spans that become masks, as for the released models.
--config.data.documents=line if lines are documents. Other noises of section 2.2, alone or in sequence:
--config.data.noise='DeleteTokens(share=0.15)', 'MaskTokens(share=0.15)', 'Rotate()'.
Not yet run to its end; configs/objectives.py trains it for 0.9e14 operations, with rotary positions, and measures it.
"""

from configs import base


def get_config(variant=''):
    base.variant_of(variant, ['none'])
    c = base.config()
    c.data = base.data('data.seq2seq.corrupted:Corrupted', path='text', length=128, framing='roberta',
                       tokenizer="SentencePiece(vocab=8192, special=('begin', 'mask'))",
                       noise='PermuteSentences() >> Infill(share=0.3, mean=3.5, random=0.1)')
    c.model = base.part('transformer.models.encoder_decoder:EncoderDecoder', source_length=128, length=128,
                        scale_embedding=False, head='NextWords(added=True)', **base.both(
                            layers=4, heads=4, width=256, feed_forward='Mlp(activation=Gelu())', positions='Learned(offset=2)',
                            embedding_norm=True, initial='Scaled()', dropout=0.1))
    c.task = base.part('transformer.tasks.language_model:SequenceToSequence')
    c.optimizer = base.optimizer(learning_rate=5e-4, b2=0.98, weight_decay=0.01, schedule=base.part(
        'training.schedules:LinearDecay', warmup_steps=500))
    c.train.steps = 20_000
    c.evals.valid = base.evaluation('transformer.evaluators.base:Averages', split='valid', every_steps=1000)
    return c.lock()
