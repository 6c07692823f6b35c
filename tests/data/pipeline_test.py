import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from absl.testing import absltest, parameterized

from data import pipeline

WORKERS = """
import select, signal, sys
import numpy as np
from absl import flags
from data import pipeline

flags.FLAGS.mark_as_parsed()
for number in signal.SIGINT, signal.SIGTERM:
    signal.signal(number, signal.default_int_handler)
size = int(sys.argv[1])
batches = pipeline.numbered(lambda number: np.full(size, number, np.uint8), workers=2)
for _ in range(4):
    next(batches)
try:
    print('ready', flush=True)
    while not select.select([sys.stdin], [], [], 0.1)[0]:  # a signal just before a call without end would not be seen
        pass
except KeyboardInterrupt:
    pass
for number in range(4, 30):  # workers made more than they had made before the signal
    assert next(batches)[0] == number
"""


class OrderTest(parameterized.TestCase):
    @parameterized.parameters((10, 4), (10, 25), (1, 3), (7, 7))
    def test_every_epoch_is_a_permutation(self, count, size):
        order = pipeline.Order(count, size, seed=5)
        numbers = np.concatenate([order(draw) for draw in range(6 * count)])
        epochs = numbers[: len(numbers) // count * count].reshape(-1, count)
        np.testing.assert_array_equal(np.sort(epochs), np.broadcast_to(np.arange(count), epochs.shape))
        if count > 1:
            self.assertGreater(len({tuple(epoch) for epoch in epochs}), len(epochs) // 2)

    def test_depends_on_number_and_seed_alone(self):
        order = pipeline.Order(1000, 32, seed=5)
        later = order(99)
        order(0)
        np.testing.assert_array_equal(order(99), later)
        self.assertFalse(np.array_equal(pipeline.Order(1000, 32, seed=6)(99), later))


class NumberedTest(absltest.TestCase):
    def test_state_is_that_of_the_last_batch_handed_out(self):
        iterator = pipeline.numbered(lambda number: {'x': np.array([number])})
        self.assertEqual([next(iterator)['x'][0] for _ in range(3)], [0, 1, 2])
        state = iterator.get_state()
        next(iterator)
        iterator.set_state(state)
        self.assertEqual(next(iterator)['x'][0], 3)

    def test_errors_reach_the_reader(self):
        def fails(number):
            raise ValueError('photo.png cannot be decoded.')

        with self.assertRaisesRegex(ValueError, 'photo.png cannot be decoded'):
            next(pipeline.numbered(fails))


class WorkersTest(parameterized.TestCase):
    @parameterized.parameters(0, signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
    @pytest.mark.slow
    def test_end_with_their_parent_and_leave_nothing(self, number):
        size = 500_000 + time.time_ns() % 500_000  # tells its shared memory from that of others
        with subprocess.Popen(
            [sys.executable, '-c', WORKERS, str(size)], cwd=Path(__file__).parents[2], start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        ) as process:  # fmt: skip
            try:
                self.assertEqual(process.stdout.readline(), b'ready\n')
                if number == signal.SIGKILL:
                    process.kill()
                elif number:
                    os.killpg(process.pid, number)
                else:
                    process.stdin.close()
                process.wait(30)
                deadline = time.monotonic() + 10
                while alive(process.pid) and time.monotonic() < deadline:
                    time.sleep(0.05)
                self.assertFalse(alive(process.pid))
                self.assertEmpty([file for file in Path('/dev/shm').glob('psm_*') if file.stat().st_size == size])
                if number != signal.SIGKILL:
                    self.assertEqual((process.returncode, process.stderr.read()), (0, b''))
            finally:
                if alive(process.pid):
                    os.killpg(process.pid, signal.SIGKILL)


def alive(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


class EvaluationTest(absltest.TestCase):
    def evaluation(self, rows, batch_size):
        return pipeline.Evaluation(
            rows, batch_size, lambda numbers: {'x': numbers.astype(np.int32) + 1}, {'rows': rows}
        )

    def test_last_batch_is_padded(self):
        evaluation = self.evaluation(5, 3)
        for _ in range(2):
            batches = list(evaluation)
            self.assertEqual([batch['x'].tolist() for batch in batches], [[1, 2, 3], [4, 5, 0]])
            self.assertEqual([batch['example_weights'].tolist() for batch in batches], [[1, 1, 1], [1, 1, 0]])
            self.assertEqual(batches[1]['example_weights'].dtype, np.float32)
        self.assertLen(evaluation, 2)
        self.assertLen(list(self.evaluation(6, 3)), 2)

    def test_several_passes_at_once(self):
        evaluation = self.evaluation(5, 2)
        first, second = iter(evaluation), iter(evaluation)
        next(first)
        self.assertEqual(next(second)['x'].tolist(), [1, 2])

    def test_only_text_has_text(self):
        with self.assertRaisesRegex(ValueError, 'Compressors needs text'):
            self.evaluation(5, 2).text()


if __name__ == '__main__':
    absltest.main()
