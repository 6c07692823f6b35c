"""Two processes on this machine train one run, as on a pod: alike, stopped together, lost together, resumed."""

import os
import re
import runpy
import signal
import socket
import subprocess
import sys
from unittest import mock

import numpy as np
from absl.testing import absltest, parameterized

from tests import experiments
from tests.train_test import at
from training import processes

CONFIG = '''
from tests import experiments

def get_config(variant=''):
    return experiments.tiny({text!r}, **{{'mesh.fsdp': 2, 'evals.valid.every_steps': 0, 'log.every_steps': 1,
                                          'checkpoint.every_steps': 2}})
'''


def one_of_two(process, number, moment, *flags):
    """`train.py FLAGS` as process 0 or 1; process 1 gets the signal `number` after so many rows, or an error of its own
    (-1). For a process of its own."""
    rows = ('training.run', 'Run.training_row', int(moment), 'after')

    def action():
        if int(process) and int(number) == -1:
            raise ValueError('Only this one has a full disk.')
        if int(process) and int(number):
            os.kill(os.getpid(), int(number))

    sys.argv = [str(experiments.ROOT / 'train.py'), *flags, '--processes=2', f'--process={process}']
    with at(rows, action):
        runpy.run_path(sys.argv[0], run_name='__main__')


class TwoProcessesTest(experiments.TestCase):

    def setUp(self):
        super().setUp()
        self.config = self.folder / 'two.py'
        self.config.write_text(CONFIG.format(text=str(self.text)))
        self.workdir = self.folder / 'run'

    def train(self, number=0, moment=1):
        """((exit code, output) of process 0, of process 1)."""
        with socket.create_server(('localhost', 0)) as free:
            port = free.getsockname()[1]
        code = 'from tests.training import processes_test as t; t.one_of_two(*__import__("sys").argv[1:])'
        flags = f'--config={self.config}', f'--workdir={self.workdir}', f'--coordinator=localhost:{port}'
        xla_flags = re.sub('--xla_force_host_platform_device_count=.', '', os.environ.get('XLA_FLAGS', ''))  # a device each
        environment = os.environ | {'PYTHONPATH': str(experiments.ROOT), 'XLA_FLAGS': xla_flags}
        children = [subprocess.Popen([sys.executable, '-c', code, str(i), str(number), str(moment), *flags], text=True,
                                     env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for i in (0, 1)]
        try:
            outputs = [child.communicate(timeout=60)[0] for child in children]
        finally:
            for child in children:
                child.kill()
        return [(child.returncode, output) for child, output in zip(children, outputs, strict=True)]

    def test_stopped_lost_and_resumed_it_ends_as_one_process_does(self):
        for code, out in self.train(signal.SIGTERM, moment=1):  # at one of them; both stop
            self.assertEqual(code, 128 + signal.SIGTERM, out)
        self.assertEqual(experiments.steps(self.workdir), [1])

        (code, out), (killed, _) = self.train(signal.SIGKILL, moment=3)  # at step 4
        self.assertEqual(killed, -signal.SIGKILL)
        self.assertEqual(code, 1, out)
        self.assertIn('resumed from step 1', out)
        self.assertIn('process 0 of 2 ends because another one is gone; start all of them again', out)

        (code, out), (other, quiet) = self.train()
        self.assertEqual((code, other), (0, 0), out + quiet)
        self.assertRegex(out, 'resumed from step [24]')
        self.assertNotIn('resumed', quiet)  # one of them speaks

        alone = self.folder / 'alone'
        config = experiments.script('train').cli.load_config(str(self.config))[0]
        self.assertEqual(experiments.train(config, alone)[0], 0)
        for split in ('train', 'valid'):
            ours, theirs = (experiments.rows(folder, split) for folder in (self.workdir, alone))
            self.assertEqual([row['step'] for row in ours], [row['step'] for row in theirs])
            for row, expected in zip(ours, theirs, strict=True):
                np.testing.assert_allclose(row['loss'], expected['loss'], rtol=1e-5)

    def test_an_error_at_one_of_them_ends_both(self):
        (code, out), (other, reason) = self.train(-1, moment=3)
        self.assertEqual((code, other), (1, 1), out + reason)
        self.assertIn('train.py: Only this one has a full disk.', reason)
        self.assertIn('process 0 of 2 ends because another one is gone', out)
        for text in (out, reason):
            self.assertNotIn('Traceback', text)
            self.assertNotIn('Check failure', text)

    def test_another_config_at_one_of_them_is_refused(self):
        self.config.write_text(CONFIG.format(text=str(self.text)) + '''
_same = get_config

def get_config(variant=''):
    import sys
    config = _same()
    config.seed = int('--process=1' in sys.argv)
    return config
''')
        for code, out in self.train():
            self.assertEqual(code, 1, out)
            self.assertIn('The processes of this run differ in config; start all of them with the same command', out)
        self.assertFalse(self.workdir.exists())


class JoinTest(parameterized.TestCase):

    def test_a_port_that_is_taken(self):
        with socket.create_server(('', 0)) as taken:
            port = taken.getsockname()[1]
            with self.assertRaisesRegex(ValueError, f'cannot listen on the port {port} of --coordinator'):
                processes.join(f'localhost:{port}', 2, 0)

    def test_nobody_there(self):
        with socket.create_server(('', 0)) as free:
            port = free.getsockname()[1]
        with (mock.patch.object(processes, '_MEETING', 0.5),
              self.assertRaisesRegex(ValueError, f'found no process 0 at --coordinator=localhost:{port} within 0.5 s')):
            processes.join(f'localhost:{port}', 2, 1)

    def test_alone(self):
        self.assertIsNone(processes.join(None, None, None))
        self.assertTrue(processes.first())
        self.assertEqual(processes.agreed(signal.SIGTERM, False), signal.SIGTERM)
        self.assertIsNone(processes.agreed(None, True))

    @parameterized.parameters(
        ((None, 2, None), 'need --coordinator=HOST:PORT'), ((None, None, 0), 'need --coordinator=HOST:PORT'),
        (('somewhere', 2, 0), "--coordinator is 'somewhere'; expected HOST:PORT"), (('a:b', 2, 0), 'expected HOST:PORT'),
        (('a:1', None, 0), '--processes=None and --process=0 do not fit'), (('a:1', 2, None), 'do not fit'),
        (('a:1', 2, 2), 'from 0'), (('a:1', 2, -1), 'from 0'), (('auto', 2, 0), 'leave --processes and --process out'),
        (('auto', None, None), '--coordinator=auto found no cluster here'))
    def test_what_does_not_fit_is_refused(self, given, message):
        with self.assertRaisesRegex(ValueError, message):
            processes.join(*given)


if __name__ == '__main__':
    absltest.main()
