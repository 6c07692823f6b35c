"""Benchmark of convolutions over images: one JSON line per case.

    python -m benchmarks.convolution [--case=NAME ...] [--rounds=5]

Forward and backward, float32, with the numbers of benchmarks/attention.py for two programs that take turns.

dense_CHANNELS   Convolution2d of 3x3 at shapes of configs/resnet_fashion_mnist.py, 128 images of 28x28 with 16 and 32 channels,
                 14x14 with 64, and 7x7 with 128, against XLA's own gradient.
depthwise        Depthwise of 3x3, a sum of nine shifted multiplications, for 32 images of 14x14 with 64 channels, against XLA's
                 grouped convolution.
"""

from functools import partial

from absl import flags

from training.config import cli

if __name__ == '__main__':
    flags.DEFINE_multi_string('case', [], 'only the cases whose names begin with this; repeat the flag for several')
    flags.DEFINE_integer('rounds', 5, 'timed turns of each program', lower_bound=1)
    cli.answer_help()

import jax

from benchmarks.attention import drawn, lines
from training.host import machine
from transformer.layers.convolution import Convolution2d, Depthwise, convolve


def layer(module, *shape):
    """(function of its parameters and of images, its arrays)."""
    (x,) = drawn(shape)
    parameters = jax.tree.map(lambda p: drawn(p.shape)[0], module.init(jax.random.key(0), x)['params'])
    return (lambda parameters, x: module.apply({'params': parameters}, x)), (parameters, x)


def by_xla(*shape):
    """`Convolution2d` of as many channels with the gradient of XLA."""
    _, arrays = layer(Convolution2d(shape[-1]), *shape)
    return lambda parameters, x: convolve(x, parameters['kernel'], 1, 'highest'), arrays


def grouped(*shape):
    """`Depthwise` by XLA's convolution with a group for each channel."""
    _, arrays = layer(Depthwise(), *shape)

    def function(parameters, x):
        kernel, bias = parameters['kernel'], parameters['bias']
        return bias + jax.lax.conv_general_dilated(
            x, kernel[:, :, None], (1, 1), ((1, 1), (1, 1)), dimension_numbers=('NHWC', 'HWIO', 'NHWC'),
            feature_group_count=x.shape[-1], precision='highest')

    return function, arrays


def cases():
    """{name: (maker of the first program, maker of the second)}."""
    found = {f'dense_{channels}': (partial(layer, Convolution2d(channels), 128, side, side, channels),
                                   partial(by_xla, 128, side, side, channels))
             for side, channels in ((28, 16), (28, 32), (14, 64), (7, 128))}
    return found | {'depthwise': (partial(layer, Depthwise(), 32, 14, 14, 64), partial(grouped, 32, 14, 14, 64))}


def main():
    machine.prepare({})
    lines(cases())


if __name__ == '__main__':
    cli.run(main)
