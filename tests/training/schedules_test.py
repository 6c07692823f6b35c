import math

import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from training import schedules


class SchedulesTest(parameterized.TestCase):
    def rates(self, schedule, steps=20, **fields):
        multiple = getattr(schedules, schedule)(**fields)(steps)
        return np.array([2.0 * float(multiple(jnp.int32(step))) for step in range(steps + 5)])

    @parameterized.parameters('ConstantRate', 'CosineDecay', 'LinearDecay')
    def test_warm_up_rises_from_zero_to_the_peak_in_equal_steps(self, schedule):
        np.testing.assert_allclose(self.rates(schedule, warmup_steps=4)[:5], [0.5, 1.0, 1.5, 2.0, 2.0], rtol=1e-6)

    @parameterized.parameters('ConstantRate', 'CosineDecay', 'LinearDecay')
    def test_without_warm_up_the_first_step_is_the_peak(self, schedule):
        self.assertAlmostEqual(self.rates(schedule)[0], 2.0)

    @parameterized.parameters(0, 4)
    def test_shapes(self, warmup):
        fraction = np.clip((np.arange(25) - warmup) / (20 - warmup), 0, 1)[warmup:]
        for schedule, final, shape in (
                ('ConstantRate', 0.0, np.ones_like(fraction)), ('LinearDecay', 0.0, 1 - fraction),
                ('LinearDecay', 0.1, 1 - 0.9 * fraction), ('CosineDecay', 0.0, (1 + np.cos(np.pi * fraction)) / 2),
                ('CosineDecay', 0.1, 0.1 + 0.9 * (1 + np.cos(np.pi * fraction)) / 2)):
            got = self.rates(schedule, warmup_steps=warmup, final=final)[warmup:]
            np.testing.assert_allclose(got, 2.0 * shape, atol=1e-6, err_msg=f'{schedule} {final}')

    def test_decay_may_end_before_training_does(self):
        rates = self.rates('LinearDecay', decay_steps=10, final=0.2)
        np.testing.assert_allclose(rates[[0, 5, 10, 24]], [2.0, 1.2, 0.4, 0.4], rtol=1e-6)

    @parameterized.product(name=('warmup_steps', 'decay_steps'), steps=(-1, 1 << 31))
    def test_durations_that_cannot_be_counted_are_refused(self, name, steps):
        with self.assertRaisesRegex(ValueError, 'warmup_steps is'):
            self.rates('CosineDecay', **{name: steps})

    @parameterized.parameters(3, 4)
    def test_a_decay_that_ends_in_the_warm_up_is_refused(self, steps):
        with self.assertRaisesRegex(ValueError, f'decay_steps is {steps}, which includes the warmup_steps=4; expected more'):
            self.rates('LinearDecay', warmup_steps=4, decay_steps=steps)

    def test_inverse_square_root_is_that_of_the_paper(self):
        width, warmup = 512, 6
        paper = [width ** -0.5 * min(n ** -0.5, n * warmup ** -1.5) for n in range(1, 26)]  # equation 3
        peak = (width * warmup) ** -0.5
        np.testing.assert_allclose(self.rates('InverseSqrt', warmup_steps=warmup) / 2 * peak, paper, rtol=1e-5)
        np.testing.assert_allclose(self.rates('InverseSqrt') / 2, np.arange(1, 26) ** -0.5, rtol=1e-5)

    @parameterized.parameters(('InverseSqrt', {'final': 0.1}), ('ConstantRate', {'final': 0.1}), ('ConstantRate', {
        'decay_steps': 9}))
    def test_what_never_ends_has_no_end(self, schedule, fields):
        with self.assertRaisesRegex(ValueError, 'never ends'):
            self.rates(schedule, **fields)

    @parameterized.parameters(0.0, 0.1)
    def test_warm_up_stable_decay(self, final):
        rates = self.rates('WarmupStableDecay', warmup_steps=4, cooldown_steps=8, final=final)
        np.testing.assert_allclose(rates[:13], [0.5, 1.0, 1.5, *[2.0] * 10], rtol=1e-6)
        wanted = [2.0 * (1 - (1 - final) * math.sqrt(k / 8)) for k in range(9)] + [2.0 * final] * 4
        np.testing.assert_allclose(rates[12:], wanted, rtol=1e-5, atol=1e-6)

    @parameterized.parameters(0, 17)
    def test_a_cooldown_that_does_not_fit_is_refused(self, steps):
        with self.assertRaisesRegex(ValueError, f'cooldown_steps is {steps}; expected 1 to 16'):
            self.rates('WarmupStableDecay', warmup_steps=4, cooldown_steps=steps)


if __name__ == '__main__':
    absltest.main()
