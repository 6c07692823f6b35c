import signal

from absl.testing import absltest, parameterized

from training.host.signals import Interrupted, Stop


class StopTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.seen = []  # what reaches the handler of before
        for number in (signal.SIGTERM, signal.SIGINT):
            self.addCleanup(signal.signal, number, signal.signal(number, lambda n, _: self.seen.append(n)))

    @parameterized.product(number=(signal.SIGTERM, signal.SIGINT), second=(signal.SIGTERM, signal.SIGINT))
    def test_the_first_signal_is_noted_and_the_second_acts_as_usual(self, number, second):
        with Stop() as stop:
            self.assertIsNone(stop.signal)
            signal.raise_signal(number)
            self.assertEqual((stop.signal, self.seen), (number, []))
            signal.raise_signal(second)
            self.assertEqual((stop.signal, self.seen), (number, [second]))

    def test_afterwards_signals_act_as_before(self):
        with Stop() as stop:
            pass
        signal.raise_signal(signal.SIGTERM)
        self.assertEqual((stop.signal, self.seen), (None, [signal.SIGTERM]))

    def test_interruptible_work_is_broken_off(self):
        reached = []
        with Stop() as stop:
            with self.assertRaises(Interrupted), stop.interruptible():
                signal.raise_signal(signal.SIGTERM)
                reached.append('behind the signal')
            with self.assertRaises(Interrupted), stop.interruptible():  # already asked to stop: not begun
                reached.append('after the signal')
        self.assertEqual(reached, [])
        self.assertNotIsInstance(Interrupted(), Exception)  # an evaluator that catches Exception lets it pass

    def test_work_that_is_not_interruptible_goes_on(self):
        with Stop() as stop:
            with stop.interruptible():
                pass
            signal.raise_signal(signal.SIGTERM)
        self.assertEqual(stop.signal, signal.SIGTERM)


if __name__ == '__main__':
    absltest.main()
