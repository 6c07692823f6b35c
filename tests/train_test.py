"""Runs that are killed, stopped, damaged and moved end as if nothing had happened."""

import contextlib
import functools
import inspect
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from unittest import mock

import numpy as np
import pytest
from absl.testing import absltest, parameterized

from tests import experiments
from tests.marks import slow_but
from training import storage
from transformer.tasks.language_model import NextToken

# Where a process may end: (module, function, how many calls of it, 'before' or 'after' the last one).
CREATED = ('training.workdir', 'save_config', 1, 'after')
FACTS_SAVED = ('training.workdir', 'save_environment', 1, 'before')
FIRST_BATCH = ('data.text.documents', 'OpenText.count', 1, 'after')
SAVE_BEGUN = ('training.checkpoint', 'Checkpoints.save', 1, 'after')
ROW_WRITTEN = ('training.report.report', 'Report.scalars', 1, 'after')
BEFORE_SAVING = ('training.checkpoint', 'Checkpoints.save', 1, 'before')
EVALUATING = ('training.snapshot', 'Snapshot.averages', 1, 'before')
LAST_SAVE = ('training.checkpoint', 'Checkpoints.save', 2, 'after')
AMENDING = ('training.checkpoint', 'Checkpoints.amend', 1, 'before')
RESUMED_ROW = ('training.report.report', 'Report.scalars', 2, 'after')


def at(moment, action):
    """A patch that calls `action` at a moment."""
    module, name, number, when = moment
    owner = __import__(module, fromlist=['_'])
    *classes, name = name.split('.')
    for part in classes:
        owner = getattr(owner, part)
    original, calls = getattr(owner, name), 0

    @functools.wraps(original)  # its signature is that of the contract
    def wrapped(*args, **kwargs):
        nonlocal calls
        calls += 1
        if calls == number and when == 'before':
            action()
        result = original(*args, **kwargs)
        if calls == number and when == 'after':
            action()
        return result

    static = isinstance(inspect.getattr_static(owner, name), staticmethod)
    return mock.patch.object(owner, name, staticmethod(wrapped) if static else wrapped)


def kill_itself():
    os.kill(os.getpid(), signal.SIGKILL)


def kill_at(text, workdir, moments):
    """Starts the run once for every moment, in a process that ends there; prints how each ended. For a process of its own."""

    experiments.script('train')
    for moment in json.loads(moments):
        child = os.fork()
        if not child:
            with at(moment, kill_itself):
                code, _ = experiments.train(experiments.tiny(text), pathlib.Path(workdir))
            os._exit(code)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def fill_disk_at(text, workdir, moment, before):
    """Trains on a file system that is full from a moment on, when step `before` is saved, up to a few KB; prints how that
    ended and, once there is space, which steps are whole and how the run goes on. For a process of its own."""
    filler, before = pathlib.Path(workdir).parent / 'filler', int(before)

    def fill():
        while before and not pathlib.Path(workdir, 'checkpoints', str(before)).is_dir():
            time.sleep(0.01)  # the save before it goes on in the background
        with contextlib.suppress(OSError), open(filler, 'wb', buffering=0) as file:
            while True:
                file.write(bytes(4096))

    with at(json.loads(moment), fill):
        done = experiments.call('train', *configured(text, workdir))
    filler.unlink()
    saved = [int(path.name) for path in pathlib.Path(workdir, 'checkpoints').iterdir() if path.name.isdecimal()]
    print(json.dumps({'code': done.code, 'error': done.err, 'steps': sorted(saved)}))
    done = experiments.call('train', *configured(text, workdir))
    print(json.dumps({'code': done.code, 'out': done.out}))


def configured(text, workdir):
    """The flags of train.py for the tiny experiment."""
    file = pathlib.Path(text).with_name('config.py')
    file.write_text(f'from tests import experiments\n\n\ndef get_config(variant):\n    return experiments.tiny({text!r})\n')
    return f'--config={file}', f'--workdir={workdir}'


def program(code, *arguments):
    return [sys.executable, '-c', f'from tests import train_test; train_test.{code}(*__import__("sys").argv[1:])', *arguments]


def environment():
    return os.environ | {'PYTHONPATH': str(experiments.ROOT)}


@slow_but('test_damaged_checkpoint', 'overwritten')
class SurvivalTest(experiments.TestCase):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        shared = pathlib.Path(tempfile.mkdtemp(prefix='heed-'))
        cls.addClassCleanup(shutil.rmtree, shared)
        cls.shared_text, cls.uninterrupted = shared / 'text.txt', shared / 'uninterrupted'
        cls.shared_text.write_text(experiments.lines(80))
        code, out = experiments.train(experiments.tiny(cls.shared_text), cls.uninterrupted)
        assert code == 0, out

    def setUp(self):
        super().setUp()
        self.text, self.run_folder = self.shared_text, self.folder / 'run'

    def config(self, **changes):
        return experiments.tiny(self.text, **changes)

    def assert_same_end(self, message=None):
        """Resumes the run and compares every bit of it with one that was never interrupted; returns what it printed."""
        code, out = experiments.train(self.config(), self.run_folder)
        self.assertEqual(code, 0, out)
        self.assertEqual(experiments.metrics(self.run_folder), experiments.metrics(self.uninterrupted), message)
        ours, theirs = experiments.bits(self.run_folder), experiments.bits(self.uninterrupted)
        self.assertEqual(ours.keys(), theirs.keys())
        self.assertEqual([name for name in theirs if ours[name] != theirs[name]], [], message)
        return out

    def killed(self, *moments):
        done = subprocess.run(program('kill_at', self.text, self.run_folder, json.dumps(moments)), env=environment(),
                              capture_output=True, text=True, timeout=600)
        self.assertEqual(done.stdout.split(), [str(-signal.SIGKILL)] * len(moments), done.stderr)

    def stopped(self, *moments, number=signal.SIGTERM, **changes):
        """Trains in this process and sends a signal at each moment; returns what the run printed."""
        for moment in moments:
            with at(moment, lambda: os.kill(os.getpid(), number)):
                code, out = experiments.train(self.config(**changes), self.run_folder)
            self.assertEqual(code, 128 + number, out)
        return out

    @parameterized.parameters((BEFORE_SAVING, 0), (('training.report.report', 'Report.flush', 2, 'before'), 3),
                              (('training.checkpoint', 'Checkpoints.save', 3, 'before'), 6))
    @pytest.mark.slow
    def test_a_full_disk(self, moment, before):
        """On a small file system of its own, in a mount namespace."""
        disk = self.folder / 'disk'
        disk.mkdir()
        own = ['--mount', 'sh', '-c', f'mount -t tmpfs -o size=2m none {disk} && exec "$@"', 'sh']
        ways = ['unshare', *own], ['unshare', '--user', '--map-root-user', *own]  # as root, as anybody
        mount = next((way for way in ways if not subprocess.run([*way, 'true'], capture_output=True).returncode), None)
        if mount is None:
            self.skipTest('this machine lets neither root nor users mount a file system')
        done = subprocess.run([*mount, *program('fill_disk_at', self.text, disk / 'run', json.dumps(moment), str(before))],
                              env=environment(), capture_output=True, text=True, timeout=600)
        self.assertEqual(done.returncode, 0, done.stderr)
        full, freed = map(json.loads, done.stdout.splitlines())
        self.assertEqual(full['code'], 1, full)
        self.assertRegex(full['error'].splitlines()[-1], '^train.py: .*[Nn]o space.* again', done.stderr)
        self.assertNotIn('Traceback', full['error'])
        self.assertEqual(full['steps'], [step for step in (3, 6) if step <= before])
        self.assertEqual(freed['code'], 0, freed)
        if before:
            self.assertIn(f'resumed from step {before}', freed['out'])

    def test_the_reference_exercises_what_could_go_wrong(self):
        config = self.config()
        self.assertGreater(config.model.dropout, 0)
        self.assertGreater(config.train.microbatches, 1)
        self.assertTrue(config.checkpoint.every_steps % config.log.every_steps)
        rows = experiments.rows(self.uninterrupted, 'train')
        self.assertEqual([row['step'] for row in rows], [2, 4, 6, 7])
        self.assertGreater(rows[-1]['epoch'], 0.5)
        self.assertNotEqual(rows[-1]['epoch'] % 1, 0)
        self.assertEqual([row['step'] for row in experiments.rows(self.uninterrupted, 'valid')], [4, 7])
        self.assertEqual(experiments.steps(self.uninterrupted), [3, 6, 7])

    @pytest.mark.slow
    def test_killed_while_starting(self):
        self.killed(CREATED, FACTS_SAVED, FIRST_BATCH, ROW_WRITTEN)
        self.assertTrue((self.run_folder / 'config.json').is_file())
        self.assert_same_end()

    @pytest.mark.slow
    def test_killed_again_and_again(self):
        self.killed(BEFORE_SAVING, SAVE_BEGUN, EVALUATING, LAST_SAVE)
        out = self.assert_same_end()
        self.assertRegex(out, 'resumed from step [36]|finished at step 7')

    @pytest.mark.slow
    def test_killed_at_random(self):
        names = [('data.text.documents', 'OpenText.count'), ('training.report.report', 'Report.timing'),
                 ('training.report.report', 'Report.flush')]
        draw = random.Random(os.urandom(4))
        moments = [(*draw.choice(names), draw.randint(1, 2), draw.choice(['before', 'after'])) for _ in range(2)]
        self.killed(*moments)
        self.assert_same_end(message=f'killed at {moments}')

    @pytest.mark.slow
    def test_killed_from_outside(self):
        command = [sys.executable, 'train.py', f'--workdir={self.run_folder}', f'--config={self.folder / "config.py"}']
        (self.folder / 'config.py').write_text(
            f'from tests import experiments\n\n\ndef get_config(variant):\n    return experiments.tiny({str(self.text)!r})\n')
        for line in ('step 2/7', 'step 6/7'):
            with subprocess.Popen(command, cwd=experiments.ROOT, env=environment(), stdout=subprocess.PIPE, text=True) as run:
                for printed in run.stdout:
                    if printed.startswith(line):
                        time.sleep(random.uniform(0, 0.05))
                        break
                run.kill()
        self.assert_same_end()

    @pytest.mark.slow
    def test_torn_last_line(self):
        self.stopped(('data.text.documents', 'OpenText.count', 4, 'before'))
        with open(self.run_folder / 'metrics.jsonl', 'ab') as file:
            file.write(b'{"step": 4, "split": "train", "lo')
        self.assert_same_end()

    @parameterized.parameters(signal.SIGTERM, signal.SIGINT)
    @pytest.mark.slow
    def test_signal_saves_and_says_how_to_resume(self, number):
        out = self.stopped(('training.report.report', 'Report.timing', 1, 'after'), number=number)
        self.assertEqual(experiments.steps(self.run_folder), [2])
        self.assertIn(f'stopped by {number.name} after step 2, which is saved in {self.run_folder}; '
                      'the same command resumes from there', out)
        out = self.assert_same_end()
        self.assertIn('resumed from step 2', out)

    @pytest.mark.slow
    def test_signal_during_an_evaluation(self):
        out = self.stopped(EVALUATING)
        self.assertIn('after step 4', out)
        self.assertEqual([row['step'] for row in experiments.rows(self.run_folder, 'train')], [2, 4])
        self.assertEqual(experiments.rows(self.run_folder, 'valid'), [])
        out = self.stopped(EVALUATING)  # once more, while it is made up for
        self.assertIn('after step 4', out)
        self.killed(AMENDING, RESUMED_ROW)  # its row is on the disk then, and must not be there twice
        self.assert_same_end()

    @pytest.mark.slow
    def test_an_evaluation_that_is_made_up_for_is_no_time_of_steps(self):
        self.stopped(EVALUATING)
        experiments.train(self.config(), self.run_folder)
        timed = {row['step']: row for row in map(json.loads, (self.run_folder / 'timing.jsonl').read_text().splitlines())}
        self.assertGreater(timed[6]['eval_s'], 0)
        self.assertGreater(timed[6]['save_s'], 0)

    @pytest.mark.slow
    def test_signal_during_the_last_evaluation(self):
        self.stopped(('training.snapshot', 'Snapshot.averages', 2, 'before'))
        code, out = experiments.train(self.config(), self.run_folder)
        self.assertEqual(code, 0, out)
        self.assertEqual([row['step'] for row in experiments.rows(self.run_folder, 'valid')], [4, 7])
        before = experiments.metrics(self.run_folder)
        with at(EVALUATING, self.fail):  # done: a third start only prints
            code, out = experiments.train(self.config(), self.run_folder)
        self.assertEqual((code, experiments.metrics(self.run_folder)), (0, before))
        self.assertIn('finished at step 7', out)

    @pytest.mark.slow
    def test_steps_lowered_to_where_it_was_stopped_still_end_in_an_evaluation(self):
        self.stopped(('training.report.report', 'Report.timing', 1, 'after'))
        changes = {'train.steps': 2}
        code, out = experiments.train(self.config(**changes), self.run_folder)
        self.assertEqual(code, 0, out)
        self.assertEqual([row['step'] for row in experiments.rows(self.run_folder, 'valid')], [2])
        before = experiments.metrics(self.run_folder)
        _, out = experiments.train(self.config(**changes), self.run_folder)
        self.assertIn('finished at step 2', out)
        self.assertEqual(experiments.metrics(self.run_folder), before)

    @pytest.mark.slow
    def test_best_is_found_by_an_evaluation_that_was_broken_off(self):
        changes = {'checkpoint.best': 'valid/loss', 'optimizer.learning_rate': 0.0, 'checkpoint.keep': 2}
        self.stopped(EVALUATING, **changes)  # at learning rate 0 the first evaluation is as good as all later ones
        self.assertEqual(experiments.train(self.config(**changes), self.run_folder)[0], 0)
        self.assertEqual(experiments.steps(self.run_folder), [4, 6, 7])
        done = experiments.call('eval', f'--workdir={self.run_folder}', '--step=best')
        self.assertEqual(json.loads(done.out.splitlines()[-1])['step'], 4)

    @pytest.mark.slow
    def test_what_is_no_better_than_before_the_signal_is_not_saved(self):
        changes = {'checkpoint.best': 'valid/weight', 'checkpoint.keep': 9, 'checkpoint.every_steps': 9,
                   'evals.valid.every_steps': 3}
        self.stopped(('training.report.report', 'Report.timing', 2, 'after'), **changes)
        self.assertEqual(experiments.train(self.config(**changes), self.run_folder)[0], 0)
        self.assertEqual(experiments.steps(self.run_folder), [3, 4, 7])  # the first evaluated, which all others equal

    @pytest.mark.slow
    def test_signal_from_outside_ends_within_seconds(self):
        (self.folder / 'config.py').write_text(
            'from tests import experiments\n\n\ndef get_config(variant):\n'
            f"    return experiments.tiny({str(self.text)!r}, **{{'train.steps': 10**6}})\n")
        command = [sys.executable, 'train.py', f'--workdir={self.run_folder}', f'--config={self.folder / "config.py"}']
        with subprocess.Popen(command, cwd=experiments.ROOT, env=environment(), stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True) as run:
            next(line for line in run.stdout if line.startswith('step 2/'))
            run.terminate()
            start = time.monotonic()
            out, err = run.communicate(timeout=600)
        self.assertEqual(run.returncode, 143, err)
        self.assertLess(time.monotonic() - start, 60)
        self.assertIn('stopped by SIGTERM after step', out)
        self.assertNotIn('Traceback', err)

    @parameterized.named_parameters((kind, kind) for kind in ('truncated', 'overwritten', 'deleted'))
    def test_damaged_checkpoint(self, kind):
        shutil.copytree(self.uninterrupted, self.run_folder)
        newest = self.run_folder / 'checkpoints' / '7'
        if kind == 'deleted':
            shutil.rmtree(newest / 'state')
        else:
            # the file that holds the arrays
            file = max((path for path in (newest / 'state').rglob('*') if path.is_file()), key=lambda p: p.stat().st_size)
            content = file.read_bytes()
            middle = len(content) // 2
            file.write_bytes(content[:middle] if kind == 'truncated' else
                             content[:middle] + bytes(64) + content[middle + 64:])
        with mock.patch('sys.stderr') as stderr:
            self.assert_same_end()
        said = ''.join(call.args[0] for call in stderr.write.call_args_list)
        self.assertRegex(said, r'^checkpoint 7 is damaged \(.*\), moved to damaged; resuming from 6\n$')


class ResumeTest(experiments.TestCase):

    def config(self, **changes):
        return experiments.tiny(self.text, **changes)

    @pytest.mark.slow
    def test_on_another_number_of_devices(self):
        alone = {'train.microbatches': 1, 'log.every_steps': 1}
        reference, moved = self.folder / 'reference', self.folder / 'moved'
        experiments.train(self.config(**alone, **{'train.steps': 3}), reference)
        for steps, devices in ((1, 8), (2, 2), (3, 1)):
            code, _ = experiments.train(self.config(**alone, **{'train.steps': steps, 'mesh.data': devices}), moved)
            self.assertEqual(code, 0)
        ours, theirs = experiments.rows(moved, 'train'), experiments.rows(reference, 'train')
        self.assertEqual([row['step'] for row in ours], [1, 2, 3])
        for a, b in zip(ours, theirs):
            self.assertEqual(a.keys(), b.keys())
            for name in a:
                if name != 'split':
                    self.assertAlmostEqual(a[name], b[name], delta=1e-5 * (1 + abs(b[name])), msg=name)

    def test_finished_run_prints_its_result_again_and_needs_no_data(self):
        config, workdir = self.config(**{'train.steps': 2}), self.folder / 'run'
        _, first = experiments.train(config, workdir)
        drawn = ('.lock', 'loss.png', 'plots')  # locked and drawn once more
        times = {path: path.stat().st_mtime_ns for path in workdir.rglob('*') if path.name not in drawn}
        self.text.unlink()
        code, second = experiments.train(config, workdir)
        self.assertEqual(code, 0)
        self.assertIn('finished at step 2; for more, raise --config.train.steps', second)
        self.assertEqual(*(out.partition(f'{workdir}: trained for 2 steps')[1:] for out in (first, second)))
        self.assertIn('train: loss ', second.partition(f'{workdir}: trained for 2 steps')[2])
        self.assertEqual(times, {path: path.stat().st_mtime_ns for path in times})

    def test_more_steps_say_where_the_learning_rate_goes(self):
        schedule = {'optimizer.schedule.name': 'training.schedules:LinearDecay', 'optimizer.learning_rate': 0.01}
        for steps, said in ((2, None), (4, '; the learning rate is 0.005 there instead of 0, as its schedule depends on '
                                           'train.steps, which were 2')):
            _, out = experiments.train(self.config(**schedule | {'train.steps': steps}), self.folder / 'run')
            self.assertIn(f'resumed from step 2{said}' if said else 'fresh', out)

    def test_finished_run_shows_its_own_step_and_says_which_flags_change_nothing(self):
        config, workdir = self.config(**{'train.steps': 2}), self.folder / 'run'
        _, first = experiments.train(config, workdir)
        rows = experiments.metrics(workdir)
        with open(workdir / 'metrics.jsonl', 'ab') as file:  # as of a continuation that was killed before it had a checkpoint
            file.write(rows.splitlines()[-1].replace(b'"step": 2', b'"step": 4') + b'\n')
        code, second = experiments.train(experiments.changed(config, **{
            'checkpoint.best': 'valid/loss', 'data.reader': '', 'profile.steps': '1:2', 'energy.pue': 2.0}), workdir)
        self.assertEqual(code, 0)
        self.assertRegex(second, 'config: (?=.*checkpoint.best)(?=.*data.reader)(?=.*profile.steps)(?!.*energy).*: as in the '
                                 'run, which is finished\n')
        self.assertEqual(*(out.partition(f'{workdir}: trained for 2 steps')[2].partition('energy:')[0]
                           for out in (first, second)))
        self.assertEqual(experiments.metrics(workdir), rows)

    def test_a_run_without_rows_goes_on(self):
        """In a bucket there is no file before the first row."""
        experiments.train(self.config(**{'train.steps': 2}), self.folder / 'run')
        (self.folder / 'run' / 'metrics.jsonl').unlink()
        with mock.patch.object(storage, 'appending', lambda place: storage._Object(place, '')):
            code, out = experiments.train(self.config(**{'train.steps': 3}), self.folder / 'run')
        self.assertEqual(code, 0, out)
        self.assertIn('resumed from step 2', out)

    @pytest.mark.slow
    def test_changed_data_is_refused(self):
        texts, workdir = self.folder / 'texts', self.folder / 'run'
        texts.mkdir()
        for name in ('a.txt', 'b.txt'):
            shutil.copy(self.text, texts / name)
        files = {'data.path': str(texts), 'data.train': 'a.txt', 'data.valid': 'b.txt'}
        experiments.train(self.config(**files, **{'train.steps': 2}), workdir)
        before = {path: path.read_bytes() for path in workdir.rglob('*') if path.is_file()}
        for name, part in (('a.txt', 'train'), ('b.txt', 'valid')):
            (texts / name).write_text(self.text.read_text() + 'one more\n')
            with self.subTest(name), self.assertRaisesRegex(
                    ValueError, f'The data of {part} has changed since the run in .* began, .*; restore it, .* or train in'):
                experiments.train(self.config(**files), workdir)
            shutil.copy(self.text, texts / name)
        self.assertEqual(before, {path: path.read_bytes() for path in workdir.rglob('*') if path.is_file()})
        self.assertEqual(experiments.train(self.config(**files), workdir)[0], 0)

    def test_what_may_change_and_what_may_not(self):
        workdir = self.folder / 'run'
        experiments.train(self.config(**{'train.steps': 2}), workdir)
        with self.assertRaisesRegex(ValueError, 'holds a run with another config .data.length: 16 there, 8 now; '
                                    'optimizer.learning_rate: 0.01 there, 0.1 now.; give these values again'):
            experiments.train(self.config(**{'data.length': 8, 'optimizer.learning_rate': 0.1}), workdir)
        with self.assertRaisesRegex(ValueError, "task.name: 'transformer.tasks.language_model:NextToken' there, 'x:Y' now"):
            experiments.train(self.config(**{'task.name': 'x:Y'}), workdir)
        with mock.patch.object(NextToken, 'remark', autospec=True, return_value='') as remark:
            code, out = experiments.train(self.config(**{
                'train.steps': 4, 'checkpoint.every_steps': 1, 'checkpoint.keep': 4, 'checkpoint.best': 'valid/loss',
                'evals.valid.every_steps': 1, 'profile.steps': '1:1', 'mesh.fsdp': 1}), workdir)
        _, rows, _, steps = remark.call_args.args
        self.assertEqual(([row['step'] for row in rows], steps), ([2, 4], 4))  # also those before the resumption
        self.assertEqual(code, 0, out)
        self.assertIn('resumed from step 2', out)
        self.assertEqual([row['step'] for row in experiments.rows(workdir, 'valid')], [2, 3, 4])
        self.assertEqual(json.loads((workdir / 'config.json').read_text())['train']['steps'], 4)

    def test_a_row_after_a_resumption_averages_the_steps_since_the_row_before(self):
        losses = []
        for name, steps, every in ('each', 4, 1), ('run', 3, 4), ('run', 4, 4):
            self.assertEqual(experiments.train(self.config(**{
                'train.steps': steps, 'log.every_steps': every}), self.folder / name)[0], 0)
            losses.append([row['loss'] for row in experiments.rows(self.folder / name, 'train')])
        each, _, run = losses
        self.assertAlmostEqual(run[0], np.mean(each[:3]), places=1)
        self.assertAlmostEqual(run[1], each[3], places=5)
        self.assertNotAlmostEqual(each[3], np.mean(each), places=2)

    def test_second_run_in_the_same_workdir_is_refused(self):
        workdir = self.folder / 'run'
        refused = []

        def second():
            with self.assertRaisesRegex(ValueError, 'Another process is training in .*; wait for it, or'):
                experiments.train(self.config(**{'train.steps': 2}), workdir)
            refused.append(True)

        with at(ROW_WRITTEN, second):
            code, _ = experiments.train(self.config(**{'train.steps': 2}), workdir)
        self.assertEqual((code, refused), (0, [True]))

    @pytest.mark.slow
    def test_of_two_that_start_together_one_is_refused(self):
        workdir = self.folder / 'run'
        config = self.config(**{'train.steps': 2})
        with (at(('training.run', 'Run.compile', 1, 'after'), lambda: experiments.train(config, workdir)),
              self.assertRaisesRegex(ValueError, 'has just started a run in')):
            experiments.train(config, workdir)
        self.assertEqual(len(experiments.rows(workdir, 'train')), 1)


if __name__ == '__main__':
    absltest.main()
