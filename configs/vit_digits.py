"""A small ViT on the 1,797 handwritten digits of scikit-learn (8x8 pixels); a random fifth of them is held out.

    python train.py --config=configs/vit_digits.py

Ends at 99.2 % on the 360 held-out digits (loss 0.069) on two cores of a Xeon, in 1 minute, and at 97.8 % (loss 0.096) on two of
an EPYC, whose sums round otherwise: five digits more or less (Python 3.11, jax 0.10.2, float32).
`samples/mistakes_1500.png` shows the digits that it finds hardest.

:cls  the same with a class token, as ViT has one: `convert.py --to_hf` writes a ViT, and without this an I-JEPA.
      Ends at 99.2 % (loss 0.058) on two cores of an EPYC, in 77 seconds beside other work.
"""

from configs import base


def get_config(variant=''):
    variant = base.variant_of(variant, ['mean', 'cls'])
    c = base.config()
    c.data = base.data('data.images.labelled:Images', source='digits', batch_size=64)
    c.model = base.part('vit.models.vit:Vit', patch=2, layers=4, heads=4, width=64, pool=variant,
                        positions='Learned(scale=0.5)', dropout=0.1)
    c.task = base.part('vit.tasks.classification:Classification')
    c.optimizer = base.optimizer(learning_rate=2e-3, weight_decay=0.05, schedule=base.part(
        'training.schedules:CosineDecay', warmup_steps=100))
    c.train.steps = 1500
    c.checkpoint.every_steps = 500
    c.evals.valid = base.evaluation('transformer.evaluators.base:Averages', split='valid', every_steps=200)
    c.evals.mistakes = base.evaluation('vit.evaluators.mistakes:Mistakes', split='valid')
    return c.lock()
