"""Two processes on this machine train one run, as on a pod: alike, stopped together, lost together, resumed."""

import contextlib
import os
import re
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from unittest import mock

import jax
import numpy as np
import pytest
from absl.testing import absltest, parameterized

from tests import experiments
from tests.train_test import at
from training import mesh as meshes
from training.config import cli
from training.host import processes

CONFIG = '''
from configs import base
from tests import experiments

def get_config(variant=''):
    c = experiments.tiny({text!r}, **{{'mesh.fsdp': 2, 'evals.valid.every_steps': 0, 'log.every_steps': 1,
                                       'checkpoint.every_steps': 2, 'init_from': {source!r},
                                       'init_rules': (('positions/.*', 'fresh'), ('.*', 'keep'))}}).unlock()
    c.evals.noise = base.evaluation('transformer.evaluators.gradient_noise:GradientNoise', split='valid', rows=8)
    c.evals.sizes = base.evaluation('transformer.evaluators.activations:Activations', split='valid')
    return c.lock()
'''


def one_of_two(process, victim, number, moment, *flags):
    """`train.py FLAGS` as process 0 or 1; the victim gets the signal `number` after so many rows, or an error of its own
    (-1). For a process of its own."""
    rows = ('training.run', 'Run.training_row', int(moment), 'after')

    def action():
        if process == victim and int(number) == -1:
            raise ValueError('Only this one has a full disk.')
        if process == victim and int(number):
            os.kill(os.getpid(), int(number))

    sys.argv = [str(experiments.ROOT / 'train.py'), *flags, '--processes=2', f'--process={process}']
    with at(rows, action):
        runpy.run_path(sys.argv[0], run_name='__main__')


def ending(process, event, port):
    """A run of process 0 or 1 that ends with a message of the first, after an event at its end. For a process of its own."""

    def main():
        processes.join(f'localhost:{port}', 2, int(process))
        with processes.together():
            processes.from_first(0)  # all have begun
            if process == '0':
                if event == 'error':
                    raise ValueError('Only this one has a full disk.')
                if event == 'interrupted':
                    raise KeyboardInterrupt
                time.sleep(8)  # draws, copies to a bucket
                print('finished', flush=True)
            elif event == 'lost':  # while it waits
                threading.Timer(1, os.kill, (os.getpid(), signal.SIGKILL)).start()
        return 0

    sys.argv = ['train.py']
    with mock.patch.object(processes, '_LOST', 5):
        cli.run(main)


def free_port():
    with socket.create_server(('localhost', 0)) as free:
        return free.getsockname()[1]


def both(function, *arguments):
    """((exit code, output) of process 0, of process 1), which call a function of this file with their number and these."""
    code = f'from tests.training.host import processes_test as t; t.{function.__name__}(*__import__("sys").argv[1:])'
    xla_flags = re.sub('--xla_force_host_platform_device_count=.', '', os.environ.get('XLA_FLAGS', ''))  # a device each
    environment = os.environ | {'PYTHONPATH': str(experiments.ROOT), 'XLA_FLAGS': xla_flags}
    children = [subprocess.Popen([sys.executable, '-c', code, str(i), *map(str, arguments)], text=True, env=environment,
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for i in (0, 1)]
    try:
        outputs = [child.communicate(timeout=600)[0] for child in children]
    finally:
        for child in children:
            child.kill()
    return [(child.returncode, output) for child, output in zip(children, outputs, strict=True)]


class DevicesTest(absltest.TestCase):
    def test_a_process_without_a_device_is_refused(self):
        processes.require_devices(meshes.make(1))
        with mock.patch('jax.process_count', return_value=2), self.assertRaisesRegex(
                ValueError, 'The mesh of 2 of 8 devices has none of process 1; use them all, such as mesh.data=-1'):
            processes.require_devices(meshes.make(2))


class TwoProcessesTest(experiments.TestCase):

    def setUp(self):
        super().setUp()
        self.config = self.folder / 'two.py'
        self.config.write_text(CONFIG.format(text=str(self.text), source=''))
        self.workdir = self.folder / 'run'

    def train(self, number=0, moment=1, victim=1):
        """((exit code, output) of process 0, of process 1)."""
        return both(one_of_two, victim, number, moment, f'--config={self.config}', f'--workdir={self.workdir}',
                    f'--coordinator=localhost:{free_port()}')

    @pytest.mark.slow
    def test_stopped_lost_and_resumed_it_ends_as_one_process_does(self):
        source = self.folder / 'source'  # whose batch is too small for two devices
        experiments.train(experiments.tiny(self.text, **{'data.batch_size': 2, 'train.steps': 1}), source)
        self.config.write_text(CONFIG.format(text=str(self.text), source=str(source)))
        config = experiments.script('train').cli.load_config(str(self.config))[0]

        for code, out in self.train(signal.SIGTERM, moment=1):  # at one of them; both stop
            self.assertEqual(code, 128 + signal.SIGTERM, out)
        self.assertEqual(experiments.steps(self.workdir), [1])

        with at(('training.run', 'Run.training_row', 1, 'after'), lambda: os.kill(os.getpid(), signal.SIGTERM)):
            code, out = experiments.train(config, self.workdir)  # another number of processes
        self.assertEqual(code, 128 + signal.SIGTERM, out)
        self.assertIn('resumed from step 1', out)

        (killed, out), (code, quiet) = self.train(signal.SIGKILL, moment=3, victim=0)  # at step 5, the one all others meet at
        self.assertEqual(killed, -signal.SIGKILL)
        self.assertEqual(code, 1, quiet)
        self.assertIn('resumed from step 2', out)
        self.assertIn('process 1 of 2 ends because another one is gone; start all of them again', quiet)
        self.assertNotIn('Check failure', quiet)

        (code, out), (other, quiet) = self.train()
        self.assertEqual((code, other), (0, 0), out + quiet)
        self.assertRegex(out, 'resumed from step [24]')
        self.assertNotIn('resumed', quiet)  # one of them speaks

        alone = self.folder / 'alone'
        self.assertEqual(experiments.train(config, alone)[0], 0)
        for split in ('train', 'valid'):
            ours, theirs = (experiments.rows(folder, split) for folder in (self.workdir, alone))
            self.assertEqual([row['step'] for row in ours], [row['step'] for row in theirs])
            for row, expected in zip(ours, theirs, strict=True):
                np.testing.assert_allclose(row['loss'], expected['loss'], rtol=1e-5)
        for name, number in (('noise', 'gradient_variance'), ('sizes', 'hidden')):
            ours, theirs = (experiments.rows(folder, name)[-1][number] for folder in (self.workdir, alone))
            np.testing.assert_allclose(ours, theirs, rtol=1e-3)

    @pytest.mark.slow
    def test_an_error_at_one_of_them_ends_both(self):
        (code, out), (other, reason) = self.train(-1, moment=3)
        self.assertEqual((code, other), (1, 1), out + reason)
        self.assertIn('train.py: Only this one has a full disk.', reason)
        self.assertIn('process 0 of 2 ends because another one is gone', out)
        for text in (out, reason):
            self.assertNotIn('Traceback', text)
            self.assertNotIn('Check failure', text)

    @pytest.mark.slow
    def test_another_config_at_one_of_them_is_refused(self):
        self.config.write_text(CONFIG.format(text=str(self.text), source='') + '''
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


class EndTest(parameterized.TestCase):
    """What becomes of a process that has nothing left to do, while the first works on for longer than jax lets others wait."""

    @pytest.mark.slow
    def test_it_waits_for_the_first(self):
        (code, out), (other, quiet) = both(ending, 'none', free_port())
        self.assertEqual((code, other), (0, 0), out + quiet)
        self.assertIn('finished', out)
        self.assertNotIn('is gone', out + quiet)

    @pytest.mark.slow
    def test_its_loss_is_noticed_by_the_first(self):
        (code, out), (other, quiet) = both(ending, 'lost', free_port())
        self.assertEqual((code, other), (1, -signal.SIGKILL), out + quiet)
        self.assertIn('process 0 of 2 ends because another one is gone', out)
        self.assertNotIn('finished', out)
        self.assertNotIn('Check failure', out)

    @parameterized.parameters(('error', 1), ('interrupted', 130))
    @pytest.mark.slow
    def test_it_ends_when_the_first_has_failed(self, event, wanted):
        (code, out), (other, quiet) = both(ending, event, free_port())
        self.assertEqual((code, other), (wanted, 1), out + quiet)
        self.assertEqual('train.py: Only this one has a full disk.' in out, event == 'error', out)
        self.assertIn('process 1 of 2 ends because another one is gone', quiet)
        self.assertNotIn('is gone', out)
        for text in (out, quiet):
            self.assertNotIn('Traceback', text)
            self.assertNotIn('Check failure', text)


class AgreementTest(parameterized.TestCase):
    """What several processes tell each other, of which only this one is there."""

    def setUp(self):
        super().setUp()
        self.enterContext(mock.patch.object(jax, 'process_count', lambda: 2))

    def others_say(self, change):
        """The other one's array is what `change` makes of this one's."""
        gather = lambda own: np.stack([own, change(own)])
        return mock.patch.object(processes.multihost_utils, 'process_allgather', gather)

    @parameterized.parameters(
        (None, 0, True, None), (None, signal.SIGTERM, True, signal.SIGTERM), (signal.SIGINT, 0, True, signal.SIGINT),
        (signal.SIGTERM, 0, False, None), (signal.SIGINT, signal.SIGTERM, True, signal.SIGTERM))
    def test_all_stop_by_the_signal_of_one_where_they_ask(self, own, other, asked, wanted):
        with self.others_say(lambda _: np.int32(other)):
            self.assertEqual(processes.agreed(own, asked), wanted)

    def test_what_differs_is_named(self):
        with self.others_say(lambda own: own):
            processes.require_same(config={'seed': 0}, data={'train': 'a'})
        with (self.others_say(lambda own: own + np.array([0, 1], np.uint32)),
              self.assertRaisesRegex(ValueError, 'The processes of this run differ in data; start all of them')):
            processes.require_same(config={'seed': 0}, data={'train': 'a'})


class LinksTest(absltest.TestCase):
    def test_a_foreign_connection_that_says_nothing_cuts_off_no_other(self):
        links, released = [], []

        def spread(packed):
            """Others connect as soon as they are told the port; the first of them is foreign. At the end they wait for all."""
            if links:
                released.append(select.select(links[1:], [], [], 0)[0])
                return
            packed = bytes(packed)
            port = int(packed[16:].rstrip(b'\0').decode().rpartition(':')[2])
            for said in b'', packed[:16], packed[:16]:
                links.append(socket.create_connection(('localhost', port), 5))
                self.addCleanup(links[-1].close)
                links[-1].sendall(said)

        with (mock.patch.multiple(jax, process_count=lambda: 3, process_index=lambda: 0),
              mock.patch.multiple(processes, from_first=spread, _PATIENCE=0.5), processes.together()):
            pass
        self.assertEqual(links[0].recv(1), b'')
        for link in links[1:]:
            self.assertEqual(link.recv(1), processes._DONE)
            link.sendall(processes._DONE)
        self.assertEqual(released, [[]])  # none of them before all had come


class JoinTest(parameterized.TestCase):

    @contextlib.contextmanager
    def meeting(self, seconds):
        """A free port, `come(process, processes)`, which joins in a thread, and the errors of those that came, in that order;
        '' of one that went on."""
        errors, threads = [], []

        def one(place, *arguments):
            try:
                processes.join(*arguments)
                errors[place] = ''
            except ValueError as error:
                errors[place] = str(error)

        def come(process, count):
            threads.append(threading.Thread(target=one, args=(len(errors), f'localhost:{port}', count, process), daemon=True))
            errors.append('waits')
            threads[-1].start()

        with socket.create_server(('', 0)) as free:
            port = free.getsockname()[1]
        with (mock.patch.object(processes, '_MEETING', seconds),
              mock.patch.object(jax.distributed, 'initialize') as self.initialize):
            yield port, come, errors
            for thread in threads:
                thread.join(20)

    def over(self):
        """An event that ends all waits."""
        over = threading.Event()
        clock = mock.Mock(monotonic=lambda: time.monotonic() + 10 * over.is_set(), sleep=time.sleep)
        self.enterContext(mock.patch.object(processes, 'time', clock))
        return over

    def test_one_that_never_comes(self):
        over, arrives = self.over(), processes._arrives

        def arrive(*arguments):
            over.set()
            return arrives(*arguments)

        with mock.patch.object(processes, '_arrives', arrive), self.meeting(10) as (port, come, errors):
            for process in (2, 0):  # that may come before the first
                come(process, 4)
        for error in errors:
            self.assertEqual(error, f'Of the 4 processes only 0, 2 connected to --coordinator=localhost:{port} within 10 s; '
                                    'start all of them, each with --processes=4 and a --process of its own.')
        self.initialize.assert_not_called()

    def test_all_come_though_others_call_too(self):
        with self.meeting(20) as (port, come, errors):
            come(0, 3)
            silent = self.connection(port)  # and stays
            self.connection(port).sendall(b'GET / HTTP/1.1\r\n\r\n')
            self.connection(port).close()
            with self.connection(port) as gone:  # is started again
                gone.sendall(processes._HELLO.pack(processes._HEED, 1, 3))
                self.assertEqual(gone.recv(4, socket.MSG_WAITALL), processes._HEED)
            for arguments in ((1, 3), (1, 3), (2, 4)):
                come(*arguments)
            for _ in range(200):
                if errors.count('waits') == 2:  # the first and one with the number 1
                    break
                time.sleep(0.05)
            self.initialize.assert_not_called()
            come(2, 3)
        self.assertEqual(silent.recv(1), b'')
        self.assertEqual((errors[0], errors[4]), ('', ''))
        self.assertCountEqual(errors[1:3], ['', 'Two processes have --process=1; give each its own, from 0 to 2.'])
        self.assertEqual(errors[3], 'Process 2 was started with --processes=4, but process 0 with --processes=3; start all of '
                                    'them with the same number.')
        self.assertEqual(sorted(call.args for call in self.initialize.call_args_list),
                         [(f'localhost:{port}', 3, process) for process in range(3)])

    def connection(self, port):
        link = socket.socket()
        self.addCleanup(link.close)
        for _ in range(100):
            if link.connect_ex(('localhost', port)) == 0:
                break
            time.sleep(0.05)
        return link

    def test_something_else_answers(self):
        def answer():
            with contextlib.suppress(OSError):  # closed
                while True:
                    with other.accept()[0] as link:
                        over.set()
                        link.sendall(b'HTTP/1.1 400 Bad Request')

        over = self.over()
        with socket.create_server(('', 0)) as other, mock.patch.object(processes, '_MEETING', 10):
            port = other.getsockname()[1]
            threading.Thread(target=answer, daemon=True).start()
            with self.assertRaisesRegex(ValueError, 'found no process 0 .* within 10 s .the program that answers there'):
                processes.join(f'localhost:{port}', 2, 1)

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
