import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from training.config import resolve
from vit.tasks.augment import Augment, CutMix, Mixup, OneOf, Unmixed, mixed
from vit.tasks.classification import Classification

ROWS, HEIGHT, WIDTH, CLASSES = 6, 5, 8, 4
RNG = np.random.default_rng(0)
BATCH = {'image': RNG.random((ROWS, HEIGHT, WIDTH, 3)).astype(np.float32), 'label': np.array([0, 1, 2, 3, 1, 0])}
KERNEL = RNG.normal(size=(HEIGHT * WIDTH * 3, CLASSES)).astype(np.float32)
EITHER = OneOf(Mixup(), CutMix())


def forward(image, key=None):
    return {'logits': jnp.asarray(image).reshape(len(image), -1) @ KERNEL}


def cross_entropy(logits, label):
    """Of one example, in float64."""
    logits = np.float64(logits)
    return np.log(np.exp(logits - logits.max()).sum()) + logits.max() - logits[label]


def masks(augment, rows=2000, height=20, width=30):
    """The masks [rows, height, width], and the shares of the labels [rows]."""
    image = np.ones((rows, height, width, 1), np.float32)
    key = jax.random.key(0)
    kept, told = jax.jit(lambda: (augment.kept(key, *image.shape[:3]), augment({'image': image}, key)['kept']))()
    return np.broadcast_to(kept, image.shape)[..., 0], np.asarray(told)


class MixTest(parameterized.TestCase):
    @parameterized.parameters(Mixup(1.0), CutMix(), EITHER)
    def test_images_are_those_of_two_neighbours(self, augment):
        key = jax.random.key(1)
        after = augment(BATCH, key)
        kept = np.broadcast_to(augment.kept(key, ROWS, HEIGHT, WIDTH), (ROWS, HEIGHT, WIDTH, 1)).astype(np.float64)
        for n in range(ROWS):
            expected = kept[n] * BATCH['image'][n] + (1 - kept[n]) * BATCH['image'][n - 1]
            np.testing.assert_allclose(after['image'][n], expected, atol=1e-6)
            self.assertAlmostEqual(float(after['kept'][n]), kept[n].mean(), places=5)
        self.assertGreater(len(set(np.asarray(after['kept']).tolist())), 2)  # every example has a draw of its own
        self.assertIs(after['label'], BATCH['label'])
        again, other = augment(BATCH, key), augment(BATCH, jax.random.key(2))
        np.testing.assert_array_equal(after['image'], again['image'])
        self.assertFalse(np.array_equal(after['image'], other['image']))

    def test_unmixed_is_what_it_was(self):
        self.assertIs(Unmixed()(BATCH, None), BATCH)

    @parameterized.parameters(0.2, 1.0, 8.0)
    def test_shares_of_mixup_are_beta_distributed(self, alpha):
        kept, told = masks(Mixup(alpha), height=1, width=1)
        np.testing.assert_allclose(kept[:, 0, 0], told, atol=1e-6)
        self.assertAlmostEqual(told.mean(), 0.5, delta=0.03)
        self.assertAlmostEqual(told.var(), 1 / (4 * (2 * alpha + 1)), delta=0.012)

    def test_boxes_of_cutmix(self):
        kept, told = masks(CutMix())
        box = kept == 0
        self.assertTrue(np.all(box | (kept == 1)))
        np.testing.assert_allclose(1 - told, box.mean((1, 2)), atol=1e-5)  # after clipping
        rows, columns = box.any(2), box.any(1)
        np.testing.assert_array_equal(box, rows[:, :, None] & columns[:, None, :])
        for side in (rows, columns):  # one box, without a gap
            self.assertLessEqual(np.abs(np.diff(side.astype(int), axis=1, prepend=0, append=0)).sum(1).max(), 2)
        # a side s = sqrt(1 - λ) with a uniform centre has s - s²/4 inside; λ is uniform: 2 ∫ (s - s²/4)² s ds = 0.3208
        self.assertAlmostEqual((1 - told).mean(), 0.3208, delta=0.02)
        inside = ~rows[:, 0] & ~rows[:, -1] & ~columns[:, 0] & ~columns[:, -1] & box.any((1, 2))  # cut by no edge
        self.assertGreater(inside.sum(), 200)
        height, width = rows[inside].mean(1), columns[inside].mean(1)  # shares of the sides
        self.assertLess(np.abs(height - width).max(), 1 / 20 + 1 / 30)
        for side in (rows, columns):
            self.assertAlmostEqual(side[:, :side.shape[1] // 2].sum() / side.sum(), 0.5, delta=0.02)

    def test_alpha_of_cutmix(self):
        _, spread = masks(CutMix(0.1))
        _, alike = masks(CutMix(50.0))
        self.assertGreater(spread.var(), 3 * alike.var())

    def test_either_draws_one_for_every_example(self):
        kept, told = masks(OneOf(Mixup(8.0), CutMix(), Unmixed()))
        whole, flat = told == 1, (np.ptp(kept, axis=(1, 2)) == 0) & (told > 0) & (told < 1)
        self.assertAlmostEqual(flat.mean(), 1 / 3, delta=0.04)
        self.assertAlmostEqual(whole.mean(), 1 / 3, delta=0.04)
        boxes = kept[~whole & ~flat]
        self.assertTrue(np.all((boxes == 0) | (boxes == 1)))

    def test_expressions(self):
        parsed = resolve.parse('OneOf(Mixup(alpha=0.8), CutMix(), Unmixed())', Augment, 'augment')
        self.assertEqual(parsed, OneOf(Mixup(0.8), CutMix(1.0), Unmixed()))
        self.assertEqual(repr(parsed), 'OneOf(Mixup(alpha=0.8), CutMix(alpha=1.0), Unmixed())')
        self.assertEqual(resolve.parse(repr(parsed), Augment, 'augment'), parsed)

    @parameterized.parameters(
        ('Mixup(alpha=0)', r'Mixup\(alpha=0.0\) is out of range; alpha must be from 0.01'),
        ('CutMix(alpha=-1)', r'CutMix\(alpha=-1.0\) is out of range'),
        ('CutMix(alpha=1e999)', 'alpha of CutMix is inf; expected a finite number'),
        ('Mixup(beta=1)', "Mixup has no field 'beta'"),
        ('Mixup() | CutMix()', r'Augment has no \|; write OneOf\(a, b\)[.]$'),
        ('Mixup() >> CutMix()', r'Augment has no >>; write OneOf\(a, b\)[.]$'),
        ('OneOf(Mixup())', 'is no choice; give two or more augmentations'),
        ('MixUp()', "no 'MixUp'; did you mean 'Mixup'|known"),
    )
    def test_errors(self, expression, message):
        with self.assertRaisesRegex(ValueError, message):
            resolve.parse(expression, Augment, 'augment')

    @parameterized.parameters(Mixup(), EITHER)
    def test_an_example_alone_is_refused(self, augment):
        one = {name: x[:1] for name, x in BATCH.items()}
        with self.assertRaisesRegex(ValueError, 'Mixup.alpha=0.2.*there is only one in a microbatch; raise'):
            augment(one, jax.random.key(0))


class MixedLossTest(parameterized.TestCase):
    def loss(self, batch=BATCH, train=True, key=0, **fields):
        task = Classification(**fields)
        terms = task.loss(forward, batch, key=jax.random.key(key), step=0, train=train)
        total = sum(c * terms[t][0] / terms[t][1] for t, c in task.coefficients.items())
        return float(total), float(terms['accuracy'][0] / terms['accuracy'][1])

    @parameterized.product(augment=[Mixup(1.0), CutMix(), EITHER], smoothing=[0.0, 0.2])
    def test_is_that_of_both_labels(self, augment, smoothing):
        seen = []

        class Seen(Augment):  # what the task mixes, seen from outside
            def __call__(self, batch, key):
                seen.append(super().__call__(batch, key))
                return seen[-1]

            def kept(self, *shape):
                return augment.kept(*shape)

        loss, accuracy = self.loss(augment=Seen(), label_smoothing=smoothing)
        logits, label, expected, right = forward(seen[0]['image'])['logits'], BATCH['label'], 0.0, 0.0
        for n in range(ROWS):
            kept = float(seen[0]['kept'][n])
            each = kept * cross_entropy(logits[n], label[n]) + (1 - kept) * cross_entropy(logits[n], label[n - 1])
            uniform = np.mean([cross_entropy(logits[n], v) for v in range(CLASSES)])
            expected += ((1 - smoothing) * each + smoothing * uniform) / ROWS
            best = np.argmax(logits[n])
            right += (kept * (best == label[n]) + (1 - kept) * (best == label[n - 1])) / ROWS
        self.assertAlmostEqual(loss, expected, places=4)
        self.assertAlmostEqual(accuracy, right, places=5)

    def test_only_training_mixes_and_the_key_decides(self):
        plain = self.loss()
        self.assertEqual(self.loss(train=False, augment=EITHER), plain)
        mixes = [self.loss(augment=augment, key=key)[0] for augment in (Mixup(), CutMix()) for key in (0, 1)]
        self.assertLen({plain[0], *mixes}, 5)
        self.assertEqual(self.loss(augment=CutMix(), key=1)[0], mixes[3])

    @parameterized.product(smoothing=[0.0, 0.2], z_loss=[0.0, 0.1], train=[True, False])
    def test_labels_may_be_probabilities(self, smoothing, z_loss, train):
        options = dict(augment=EITHER, label_smoothing=smoothing, z_loss=z_loss, train=train)
        soft = BATCH | {'label': np.eye(CLASSES, dtype=np.float32)[BATCH['label']]}
        np.testing.assert_allclose(self.loss(soft, **options), self.loss(**options), rtol=1e-6)
        half = (soft['label'] + np.roll(soft['label'], 1, axis=1)) / 2
        logits = forward(BATCH['image'])['logits']
        expected = np.mean([0.5 * cross_entropy(x, y) + 0.5 * cross_entropy(x, (y + 1) % CLASSES)
                            for x, y in zip(logits, BATCH['label'])])
        self.assertAlmostEqual(self.loss(BATCH | {'label': half}, train=False)[0], expected, places=4)

    def test_padding_of_soft_labels_counts_nothing(self):
        soft = BATCH | {'label': np.eye(CLASSES, dtype=np.float32)[BATCH['label']]}
        padded = {name: np.concatenate([x, np.zeros_like(x[:2])]) for name, x in soft.items()}
        padded['example_weights'] = np.float32([1] * ROWS + [0, 0])
        np.testing.assert_allclose(self.loss(padded, train=False), self.loss(soft, train=False), rtol=1e-6)

    def test_mixed(self):
        x, kept = np.float32([[1, 2], [3, 4], [5, 6]]), np.float32([[1], [0.5], [0]])
        np.testing.assert_allclose(mixed(x, kept), [[1, 2], [2, 3], [3, 4]])


if __name__ == '__main__':
    absltest.main()
