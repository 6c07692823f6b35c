"""How the parameters of every score, mechanism and position encoding begin."""

import jax
import numpy as np
from absl.testing import absltest, parameterized

from training.config import resolve
from transformer.attention.mechanism import AlternateAttention, Mechanism
from transformer.attention.mechanisms.alternatives import Convolution, Recurrence
from transformer.attention.mechanisms.projected import Linformer, MemoryCompressed
from transformer.attention.mechanisms.synthesizer import Synthesizer
from transformer.attention.positions.absolute import Learned
from transformer.attention.positions.base import Positions, Sizes
from transformer.attention.positions.relative import Disentangled, Etc, Shaw, SwinBias, T5Bias, TransformerXl, Tupe
from transformer.attention.scores import Additive, Bilinear, Cosine, Location, Score

N, K, H, WIDE, LENGTH = 6, 3, 20, 28, 50  # heads, heads of keys, the width of queries and values, that of keys, a row
D, KEY = N * H, jax.random.key(0)
SIZES = Sizes(LENGTH, D, N, H, table=jax.nn.initializers.normal(0.3), grid=(7, 7), extra=1)


def xavier(rows, columns):
    return (2 / (rows + columns)) ** 0.5


# What is learnt, and the standard deviation with which it begins; of all others nothing is.
BEGINNINGS = {
    Bilinear(): {'kernel': xavier(H, WIDE)},
    Additive(70): {'query': xavier(H, 70), 'key': xavier(WIDE, 70), 'output': 70 ** -0.5},
    Cosine(): {'log_sharpness': 0.0},
    Location(): {'table': H ** -0.5},
    Linformer(): {'key': LENGTH ** -0.5, 'value': LENGTH ** -0.5},
    Linformer(shared=True): {'projection': LENGTH ** -0.5},
    MemoryCompressed(): {'key': xavier(3 * WIDE, WIDE), 'value': xavier(3 * H, H)},
    Synthesizer(): {'kernel': xavier(H, H), 'bias': 0.0, 'table': H ** -0.5, 'offset': 0.0},
    Synthesizer(rank=30): {'kernel': xavier(H, 30), 'bias': 0.0, 'table': 30 ** -0.5, 'offset': 0.0},
    Synthesizer('random', length=LENGTH): {'scores': 1.0},
    Synthesizer('random', rank=16): {'query': 0.5, 'key': 0.5},
    Convolution(5): {'kernel': xavier(5 * K * H, K * H), 'bias': 0.0},
    Recurrence(): {'recurrent': (K * H) ** -0.5, 'bias': 0.0, 'input': xavier(K * H, 2 * K * H)},
    Recurrence(gated=False): {'recurrent': (K * H) ** -0.5, 'bias': 0.0},
    Learned(): {'embedding': 0.3},
    Learned(scale=0.7): {'embedding': 0.7},
    Shaw(): {'keys': H ** -0.5, 'values': H ** -0.5},
    T5Bias(): {'bias': 0.02},
    SwinBias(): {'bias': 0.02, 'extra': 0.02},
    TransformerXl(): {'content': 0.02, 'position': 0.02, 'projection': D ** -0.5},
    Disentangled(): {'embedding': 0.3, 'queries': D ** -0.5, 'keys': D ** -0.5},
    Tupe(): {'embedding': 0.3, 'queries': D ** -0.5, 'keys': D ** -0.5, 'bias': 0.02, 'theta': 0.02},
    Etc(): {'labels': H ** -0.5}}


def wanted(part):
    """{name: `Wanted`}."""
    if isinstance(part, Score):
        return part.parameters(N, K, H, WIDE)
    if isinstance(part, Mechanism):
        row = lambda heads, width: jax.ShapeDtypeStruct((1, LENGTH, heads, width), 'float32')
        return part.parameters(row(N, H), row(K, WIDE), row(K, H))
    return part.parameters(SIZES) | part.layer_parameters(SIZES)


class ParametersTest(parameterized.TestCase):
    @parameterized.named_parameters(*((str(part), part) for part in BEGINNINGS))
    def test_begin_with_the_scale_of_the_paper(self, part):
        self.assertEqual(set(wanted(part)), set(BEGINNINGS[part]))
        for name, one in wanted(part).items():
            x, deviation = np.asarray(one.initialiser(KEY, one.shape)), BEGINNINGS[part][name]
            self.assertEqual((x.shape, x.dtype), (one.shape, np.float32), name)
            np.testing.assert_allclose(x.std(), deviation, rtol=4 / (2 * x.size) ** 0.5, atol=1e-6, err_msg=name)
            mean = np.log(10.0) if name == 'log_sharpness' else 0.0
            np.testing.assert_allclose(x.mean(), mean, rtol=1e-6, atol=4 * deviation / x.size ** 0.5, err_msg=name)
            for axis, size in enumerate(one.shape if deviation else ()):  # no head, position or feature is a copy of another
                self.assertLen(np.unique(np.moveaxis(x, axis, 0).reshape(size, -1), axis=0), size, name)

    def test_others_learn_nothing(self):
        for base in (Score, Mechanism, Positions):
            for name, cls in resolve.subclasses(base).items():
                if cls not in (*map(type, BEGINNINGS), AlternateAttention):  # which is one of two, layer by layer
                    self.assertEmpty(wanted(cls()), name)


if __name__ == '__main__':
    absltest.main()
