"""WIP"""

from configs import base, transformer_fra_eng


def get_config(variant=''):
    variant = base.variant_of(variant, ('full', 'd2l'))
    c = base.config()
    c.data = transformer_fra_eng.data(variant, packing='buckets')
    model = 'transformer.bahdanau:RecurrentEncoderDecoder'
    if variant == 'd2l':
        c.model = base.part(model, source_length=9, length=9, layers=2, width=256, bidirectional=False, dropout=0.2,
                            attention='Bahdanau(score=Additive(width=256))')
        c.optimizer = base.optimizer(learning_rate=5e-3, schedule=base.part('training.schedules:Constant'))
        c.train.steps = 120
    else:
        c.model = base.part(model, source_length=64, length=64, layers=1, width=256, share='all', outer_dropout=0.2,
                            attention='Bahdanau(score=Additive(width=256), combined=True)')
        c.optimizer = base.optimizer('training.optimizer:Muon', learning_rate=4e-3, b2=0.98, average_decay=0.998,
                                     schedule=base.part('training.schedules:Linear', warmup_steps=200))
        c.train.steps = 6000
    c.task = base.part('transformer.tasks:SequenceToSequence', label_smoothing=0.1 if variant == 'full' else 0.0)
    c.log.every_steps = 10 if variant == 'd2l' else 50
    c.checkpoint.every_steps = 500
    transformer_fra_eng.evaluations(c, variant)
    return c.lock()
