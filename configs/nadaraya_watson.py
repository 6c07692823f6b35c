"""Pooling by similarity: regression and classification by attention over the training points (Nadaraya 1964; Watson 1964).

    python train.py --config=configs/nadaraya_watson.py[:VARIANT]

:curve     y = 2 sin x + x + noise at 40 points (Zhang et al., Dive into Deep Learning, section 11.2), the width of a Gaussian
           learnt by leave-one-out: a training point is estimated from the 39 others.
:collapse  the same, but a training point sees itself.
:iris      the species of 112 flowers from four lengths, one width learnt for each, by leave-one-out.

After 500 steps, the squared error or -log p(species):

                                         width                      training    validation
    :curve                               0.440                      1.456       0.210
    :collapse                            0.000227                   0.000002    1.374
    :iris                                0.93, 0.39, 0.29, 0.14 cm  0.0591      0.110, 35 of 37 right
    :iris --config.model.learn=one       0.245 cm                   0.0810      0.113, 35 of 37 right
    :iris --config.task.leave_one_out=0  0.08, 0.04, 0.12, 0.06 cm  0.0000001   0.606, 34 of 37 right

Fitted without leave-one-out, the width shrinks until every point is estimated by itself, noise and all, and a new point by its
nearest neighbour. Validation on the curve is without noise; of fixed Gaussians, the widths 0.1, 0.2, 0.5 and 1 give 0.589,
0.376, 0.208 and 0.443 there, and at width 1 the boxcar 0.266, Epanechnikov's 0.214, the triangular one
(which the book calls Epanechnikov's) 0.215, the mean of all points (constant) 0.898.

`samples/kernels_500.png` shows estimates and weights of the five kernels, `samples/widths_500.png` those of the Gaussian of
four widths and of the run. 5 to 8 seconds each on two cores of a Xeon (Python 3.11, jax 0.10.2, float32). To see another
kernel: --config.model.kernel='Boxcar(width=0.5)' --config.model.learn=none.
"""

from configs import base


def get_config(variant=''):
    variant = base.variant_of(variant, ('curve', 'collapse', 'iris'))
    c = base.config()
    if variant == 'iris':
        c.data = base.data('data.points:Iris')
        c.model = base.part('transformer.attention.pooling:Pooling', learn='each')
        c.task = base.part('transformer.tasks.pooling:PooledClassification')
    else:
        c.data = base.data('data.points:Curve')
        c.model = base.part('transformer.attention.pooling:Pooling')
        c.task = base.part('transformer.tasks.pooling:PooledRegression', leave_one_out=variant != 'collapse')
    c.optimizer = base.optimizer(learning_rate=0.1, clip=0.0, schedule=base.part('training.schedules:ConstantRate'))
    c.train.steps = 500
    c.log.every_steps = 10
    c.evals.valid = base.evaluation('transformer.evaluators.base:Averages', split='valid', every_steps=10)
    c.evals.kernels = base.evaluation('transformer.evaluators.pooling:Kernels', split='valid')
    return c.lock()
