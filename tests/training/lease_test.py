import contextlib
import io
import os
import subprocess
import sys
import threading
import time
from unittest import mock

import pytest
from absl.testing import absltest

from tests import storage_server
from training import lease, storage


class SlowAnswersTest(absltest.TestCase):
    def test_a_slow_first_answer_is_no_renewal_that_is_missing(self):
        clock, answers = [0.0], iter([(7, lease.LASTS + 1), (7, 0), (8, 0)])  # (generation, seconds)

        def look():
            generation, seconds = next(answers)
            clock[0] += seconds
            return generation, 5

        one = object.__new__(lease.Lease)  # without a bucket
        one._look, one._write = look, mock.Mock()
        with mock.patch.object(lease, 'now', lambda: clock[0]), mock.patch.object(lease.time, 'sleep'):
            self.assertFalse(one.take())
        one._write.assert_not_called()

    def test_a_place_that_cannot_be_written(self):
        with (mock.patch.object(lease, 'Lease', side_effect=OSError('Forbidden')),
              self.assertRaisesRegex(ValueError, '^gs://a cannot be written .Forbidden.; make sure that there is a network'),
              lease.held('gs://a', 'no')):
            self.fail('it is held')


@storage_server.needed
@pytest.mark.slow
class LeaseTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        self.place = storage.path(storage_server.bucket()) / 'run' / '.lease'
        self.enter_context(mock.patch.multiple(lease, LASTS=8.0, RENEWED_EVERY=2.0))
        self.guard = lease.Lease._guard
        # A machine that is busy for seconds must not end the tests.
        self.enter_context(mock.patch.object(lease.Lease, '_guard', lambda self: None))

    def test_one_process_holds_it(self):
        for _ in range(2):  # the end of the first makes it free
            with lease.held(self.place, 'no'):
                with self.assertRaisesRegex(ValueError, 'no'), lease.held(self.place, 'no'):
                    pass
                self.assertNotEmpty(self.place.read_text())
            self.assertEqual(self.place.read_text(), '')

    def test_it_outlasts_its_renewals_while_its_holder_lives(self):
        with lease.held(self.place, 'no'):
            time.sleep(lease.LASTS + 0.5)
            self.assertFalse(lease.Lease(self.place).take())

    def test_of_a_dead_process_it_expires(self):
        program = ('import os, sys; from training import lease, storage\n'
                   'with lease.held(storage.path(sys.argv[1]), ""): os.kill(os.getpid(), 9)')
        ended = subprocess.run([sys.executable, '-c', program, str(self.place)], check=False)
        self.assertEqual(ended.returncode, -9)
        self.assertNotEmpty(self.place.read_text())
        with lease.held(self.place, 'no'):
            pass

    def test_of_many_at_once_one_gets_it(self):
        outcomes, others_are_done = [], threading.Event()

        def rival():
            try:
                with lease.held(self.place, 'no'):
                    outcomes.append('held')
                    others_are_done.wait(20)
            except ValueError:
                outcomes.append('refused')
                if outcomes.count('refused') == 3:
                    others_are_done.set()

        rivals = [threading.Thread(target=rival) for _ in range(4)]
        for one in rivals:
            one.start()
        for one in rivals:
            one.join()
        self.assertCountEqual(outcomes, ['held', *['refused'] * 3])

    def test_a_stale_generation_is_not_replaced(self):
        one, other = lease.Lease(self.place), lease.Lease(self.place)
        self.assertTrue(one.take())
        self.assertFalse(other._write('other', 0))
        before = one._generation
        self.assertTrue(one._write(one._holder, 0))  # its own text: an attempt that succeeded before, and is made again
        self.assertGreater(one._generation, before)

    def test_without_a_network_it_ends_before_another_may_take_it(self):
        ended, leave = [], lambda code: ended.append(lease.now() - one._renewed)
        with mock.patch.object(os, '_exit', leave), contextlib.redirect_stderr(io.StringIO()):
            one = lease.Lease(self.place)
            one.take()
            with (mock.patch.object(lease.Lease, '_guard', self.guard),
                  mock.patch.object(one, '_write', side_effect=ConnectionError), one.renewed()):
                while not ended and lease.now() - one._renewed < 2 * lease.LASTS:
                    time.sleep(0.01)
        self.assertNotEmpty(ended)
        self.assertBetween(ended[0], lease.LASTS / 2, lease.LASTS)

    def test_a_process_that_was_replaced_ends(self):
        ended, err = threading.Event(), io.StringIO()
        with mock.patch.object(os, '_exit', lambda code: ended.set()), contextlib.redirect_stderr(err):
            one = lease.Lease(self.place)
            one.take()
            self.place.write_text('another')
            with one.renewed():
                self.assertTrue(ended.wait(10))
        self.assertRegex(err.getvalue(), r'^Another process may train in gs://.*/run, .*; it ends without saving\.\n')
        self.assertEqual(self.place.read_text(), 'another')


if __name__ == '__main__':
    absltest.main()
