"""sweep.py: points that are trained, stopped, continued, tabulated and drawn together; and the sweeps in configs/."""

import contextlib
import dataclasses
import functools
import io
import json
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import time
from unittest import mock

import numpy as np
import pytest
from absl.testing import absltest, parameterized
from PIL import Image

import sweep
from configs import attention_length, extrapolation, stability
from display import figures
from tests import experiments
from tests.train_test import at
from training import run as runs
from training import workdir
from training.report.sweeps import Estimate, Sweep
from transformer.attention.positions.rotary import Rotary

SMALL = {'data.source': 'files', 'data.length': 16, 'data.batch_size': 8, 'model.length': 16, 'model.heads': 2,
         'model.width': 8, 'train.steps': 3, 'log.every_steps': 1, 'optimizer.schedule.warmup_steps': 2, 'mesh.data': 1}
LENGTHS = (16, 32)


def small_extrapolation(text):
    return experiments.changed(extrapolation.get_config(), **SMALL | {
        'data.path': text, 'data.valid': 'train[50%:]', 'data.train': 'train[:50%]', 'model.layers': 1})


def some_encodings():
    whole = extrapolation.sweep()
    return dataclasses.replace(whole, points={name: whole.points[name] for name in ('learned', 'rotary', 'alibi')},
                               measure=functools.partial(extrapolation.measure, lengths=LENGTHS))


def small_stability(text):
    return experiments.changed(stability.get_config(), **SMALL | {
        'data.path': text, 'data.documents': 'line', 'data.valid': 'train[90%:]', 'model.layers': 2})


def some_points():
    whole = stability.sweep()
    return dataclasses.replace(whole, points={name: whole.points[name] for name in ('pre-scaled-warm', 'post-xavier-cold')})


def small_attention_length(text):
    return experiments.changed(attention_length.get_config(), **{
        'data.path': text, 'data.tokenizer': 'SentencePiece(vocab=300)', 'data.batch_size': 8, 'model.width': 8,
        'train.steps': 2, 'log.every_steps': 1, 'mesh.data': 1, 'evals.by_length.limit': 3, 'evals.by_length.bounds': (2, 4)})


def some_attention():
    whole = attention_length.sweep()
    return dataclasses.replace(whole, points={'bahdanau': {}, 'none': {'model.attention': 'NoAttention()'}})


def two_pictures(folders, table):
    return {key: figures.new(1, 1)[0] for key in ('', 'rate')}


class SweepCase(experiments.TestCase):
    def sweep(self, *arguments, config='', points='', workdir='sweep'):
        """sweep.py with a config file that says this."""
        path = self.folder / 'mine.py'
        path.write_text(textwrap.dedent(f'''
            from tests import experiments, sweep_test
            from training.report.sweeps import Point, Sweep

            def get_config(variant):
                return {config or f'experiments.tiny({str(self.text)!r}, **{{"train.steps": 2}})'}
            ''') + (f'\ndef sweep(variant):\n    return {points}\n' if points else ''))
        return experiments.call('sweep', f'--config={path}', f'--workdir={self.folder / workdir}', *arguments)


class FlagsTest(SweepCase):
    def test_points_get_every_field_of_the_command_line(self):
        """Also those that are the same in the config of the sweep, but not in that of a point."""
        with mock.patch.object(sweep.train, 'train', return_value=0) as trained:
            done = self.sweep('--config.train.steps=2', config=f'experiments.tiny({str(self.text)!r}, **{{"train.steps": '
                              '5 if variant else 2})', points="Sweep({'a': Point(__file__ + ':other')}, lambda one: {'': {}})")
        self.assertEqual((done.code, done.err), (0, ''))
        self.assertEqual(trained.call_args.args[0].train.steps, 2)

    def test_a_field_that_a_point_sets_itself(self):
        with mock.patch.object(sweep.train, 'train', return_value=0) as trained:
            done = self.sweep('--config.train.steps=2', points="Sweep({'a': {}, 'b': {'train.steps': 3}})")
        self.assertEqual((done.code, trained.call_count), (1, 0))
        self.assertRegex(done.err, r"^sweep.py: Point 'b' of the sweep sets train.steps=3 itself, [^\n]*\n\Z")

    def test_the_seed_is_the_first_of_several(self):
        with mock.patch.object(sweep.train, 'train', return_value=0) as trained:
            done = self.sweep('--seeds=2', '--config.seed=5', points="Sweep({'a': {}}, lambda one: {'': {}})")
        self.assertEqual((done.code, done.err), (0, ''))
        self.assertEqual([call.args[0].seed for call in trained.call_args_list], [5, 6])


class FailedTest(SweepCase):
    @parameterized.parameters(ValueError, KeyError)
    def test_what_the_others_have_measured_is_tabulated_and_drawn_before_the_error(self, kind):
        drawn = []

        def draw(folders, table):
            drawn.append([*folders])
            return two_pictures(folders, table)

        def at_once(given, folder, processes):
            yield 'a', 0
            yield 'c', 0
            raise kind('Point b has failed.')

        number = lambda count: Estimate.of([float(count)])
        points = {'a': {'seed': 1}, 'b': {'seed': 2}, 'c': {'train.steps': 3}, 'd': {'train.steps': 4}}
        tables = (None, lambda folders: {
            name: {'runs': number(len(found)) if found else None} for name, found in folders.items()})
        wanted_of = {'c': {'loss': 2.0}}, {'a': {'runs': 1.0}, 'c': {'runs': 1.0}, 'd': {'runs': None}}
        for table, shown, wanted in zip(tables, (['c'], ['a', 'c']), wanted_of):
            workdir = self.folder / f'{table is None}'
            made = Sweep(points, measure=lambda folder: {'': {'loss': 2.0}}, draw=draw, table=table)
            with (mock.patch.object(sweep, 'at_once', at_once), contextlib.redirect_stdout(io.StringIO()) as out,
                  self.assertRaisesRegex(kind, 'Point b has failed')):
                sweep.run(made, experiments.tiny(self.text), {}, workdir, 'mine', processes=2)
            self.assertEqual(json.loads((workdir / 'mine.json').read_text()), wanted)
            _, *lines, one, two = out.getvalue().splitlines()
            self.assertEqual([line.split()[0] for line in lines], [*wanted])
            self.assertEqual([one, two], [str(workdir / 'plots' / name) for name in ('mine.png', 'mine_rate.png')])
            self.assertTrue(pathlib.Path(two).is_file())
            self.assertEqual(drawn.pop(), shown)

    def test_a_picture_that_lacks_what_has_failed(self):
        """Then the error is that of the point; of a picture that lacks nothing it is its own."""
        def trained(config, folder):
            if folder.name == 'b' and failing:
                raise ValueError('Point b has failed.')
            return 0

        def draw(folders, table):
            raise KeyError('no row')

        made = Sweep({'a': {'train.steps': 3}, 'b': {'train.steps': 4}}, lambda folder: {'': {'loss': 2.0}}, draw)
        for failing, kind, said in ((True, ValueError, 'Point b has failed'), (False, KeyError, 'no row')):
            with (mock.patch.object(sweep, 'trained', trained), contextlib.redirect_stdout(io.StringIO()),
                  contextlib.redirect_stderr(io.StringIO()) as err, self.assertRaisesRegex(kind, said)):
                sweep.run(made, experiments.tiny(self.text), {}, self.folder / 'sweep', 'mine')
            told = "sweep.py: no picture is drawn without what has failed: KeyError('no row')\n" if failing else ''
            self.assertEqual(err.getvalue(), told)

    def test_what_is_measured_before_a_signal_is_written(self):
        made = Sweep({name: {'train.steps': steps} for steps, name in enumerate('abc', 3)}, lambda folder: {'': {'loss': 2.0}})
        stopped = lambda config, folder: 128 + signal.SIGTERM if folder.name == 'b' else 0
        with mock.patch.object(sweep, 'trained', stopped), contextlib.redirect_stdout(io.StringIO()) as out:
            code = sweep.run(made, experiments.tiny(self.text), {}, self.folder / 'sweep', 'mine')
        self.assertEqual(code, 128 + signal.SIGTERM)
        self.assertEqual([line.split()[0] for line in out.getvalue().splitlines()], ['loss', 'a'])
        written = self.folder / 'sweep' / 'mine.json'
        self.assertEqual(json.loads(written.read_text()), {'a': {'loss': 2.0}})
        before = {name: {'loss': 1.0} for name in 'abc'}  # the sweep was finished once, and started again
        written.write_text(json.dumps(before))
        with mock.patch.object(sweep, 'trained', stopped), contextlib.redirect_stdout(io.StringIO()):
            sweep.run(made, experiments.tiny(self.text), {}, self.folder / 'sweep', 'mine')
        self.assertEqual(json.loads(written.read_text()), before | {'a': {'loss': 2.0}})

    def test_rows_of_before_stay_if_a_point_fails(self):
        made = Sweep({name: {'train.steps': steps} for steps, name in enumerate('abc', 3)}, lambda folder: {'': {'loss': 2.0}})

        def trained(config, folder):
            if failing and folder.name == 'b':
                raise ValueError('Point b has failed.')
            return 0

        written = self.folder / 'sweep' / 'mine.json'
        for failing, wanted in ((True, {'a': 2.0, 'c': 1.0, 'old': 1.0}), (False, dict.fromkeys('abc', 2.0))):
            written.parent.mkdir(exist_ok=True)
            written.write_text(json.dumps({name: {'loss': 1.0} for name in ('a', 'c', 'old')}))
            with (mock.patch.object(sweep, 'trained', trained), contextlib.redirect_stdout(io.StringIO()),
                  self.assertRaisesRegex(ValueError, 'has failed') if failing else contextlib.nullcontext()):
                sweep.run(made, experiments.tiny(self.text), {}, self.folder / 'sweep', 'mine')
            self.assertEqual(json.loads(written.read_text()), {name: {'loss': loss} for name, loss in wanted.items()})

    def test_a_damaged_table_is_named_before_a_point_is_trained(self):
        written = self.folder / 'sweep' / 'mine.json'
        written.parent.mkdir()
        made = Sweep({'a': {'train.steps': 3}}, lambda folder: {'': {'loss': 2.0}})
        for text in ('{"a": {"loss"', '[1]', b'\xff'):
            written.write_bytes(text if isinstance(text, bytes) else text.encode())
            with (mock.patch.object(sweep, 'trained') as trained,
                  self.assertRaisesRegex(ValueError, 'mine.json is no JSON object of a sweep; take it away')):
                sweep.run(made, experiments.tiny(self.text), {}, self.folder / 'sweep', 'mine')
            trained.assert_not_called()

    def test_a_bucket_that_is_away_for_a_while_ends_no_training(self):
        away = type('HttpError', (Exception,), {'__module__': 'gcsfs.retry'})('Service Unavailable, 503')
        place = mock.Mock(exists=mock.Mock(return_value=False), __str__=lambda self: 'gs://bucket/one.log')
        folder = mock.Mock(with_name=lambda name: place)

        def train(config, folder):
            for step in range(3):
                print(step, flush=True)
            return 0

        with mock.patch.object(sweep.train, 'train', train):
            place.write_text.side_effect = [away, None]
            self.assertEqual(sweep.trained(lambda: None, folder), 0)
            self.assertEqual(place.write_text.call_args.args, ('0\n1\n2\n',))
            place.write_text.side_effect = away
            with self.assertRaisesRegex(ValueError, 'gs://bucket/one.log cannot be written .Service Unavailable, 503.: make'):
                sweep.trained(lambda: None, folder)

    def test_a_measure_that_fails_does_not_stop_the_others(self):
        def measure(folder):
            if folder.name == 'a':
                raise KeyError('accuracy')
            return {'': {'loss': 2.0}}

        made = Sweep({'a': {'train.steps': 3}, 'b': {'train.steps': 4}}, measure=measure)
        with (mock.patch.object(sweep, 'trained', lambda config, folder: 0), contextlib.redirect_stdout(io.StringIO()),
              contextlib.redirect_stderr(io.StringIO()) as said, self.assertRaisesRegex(KeyError, 'accuracy')):
            sweep.run(made, experiments.tiny(self.text), {}, self.folder / 'sweep', 'mine')
        self.assertEqual(said.getvalue(), "sweep.py: a is trained, but cannot be measured: KeyError('accuracy')\n")
        self.assertEqual(json.loads((self.folder / 'sweep' / 'mine.json').read_text()), {'b': {'loss': 2.0}})


class SweepTest(SweepCase):
    def test_a_point_is_trained_and_tabulated(self):
        run = {'config': f'experiments.tiny({str(self.text)!r})',
               'points': "Sweep({'one': {}}, title='the rate', draw=sweep_test.two_pictures)"}
        done = self.sweep(**run)
        self.assertEqual((done.code, done.err), (0, ''))
        loss = experiments.rows(self.folder / 'sweep' / 'one', 'valid')[-1]['loss']
        heading, line, *pictures = done.out.splitlines()
        self.assertEqual(pictures, [str(self.folder / 'sweep' / 'plots' / name) for name in ('mine.png', 'mine_rate.png')])
        self.assertTrue(all(pathlib.Path(path).is_file() for path in pictures))
        self.assertEqual(heading.split()[:4], ['the', 'rate', 'valid', 'loss'])
        self.assertEqual(line.split()[:2], ['one', f'{loss:#.4g}'])
        self.assertEqual(json.loads((self.folder / 'sweep' / 'mine.json').read_text())['one']['valid loss'], loss)
        steps = experiments.tiny(self.text).train.steps
        again = self.sweep(f'--config.train.steps={steps - 1}', **run)
        self.assertEqual((again.code, again.out), (0, done.out))
        self.assertEqual(again.err, f'sweep.py: one was trained for {steps} steps, and {steps - 1} are asked for now; its row '
                                    f'is of {steps}.\n')
        config = workdir.load_config(self.folder / 'sweep' / 'one')
        workdir.save_config(self.folder / 'sweep' / 'one', experiments.changed(config, **{'train.steps': steps + 3}))
        again = self.sweep(**run)  # more steps were begun, and are not asked for any more
        self.assertEqual((again.code, again.err), (0, ''))

    @pytest.mark.slow
    def test_points_are_trained_continued_and_tabulated(self):
        points = "Sweep({'flat': {}, 'warm': {'optimizer.learning_rate': 0.1}}, title='the rate')"
        run = {'config': f'experiments.tiny({str(self.text)!r})', 'points': points}
        with at(('training.report.report', 'Report.scalars', 7, 'after'), lambda: os.kill(os.getpid(), signal.SIGTERM)):
            done = self.sweep(**run)  # in the second: the first has four rows and two of evaluation
        self.assertEqual((done.code, done.err), (143, ''))
        self.assertLen(done.out.splitlines(), 2)  # the heading and the first point
        workdir, first = self.folder / 'sweep', experiments.metrics(self.folder / 'sweep' / 'flat')
        done = self.sweep(**run)
        self.assertEqual(done.code, 0, done.err)
        self.assertEqual(experiments.metrics(workdir / 'flat'), first)
        self.assertIn('resumed from step 2', (workdir / 'warm.log').read_text())
        rows = {name: experiments.rows(workdir / name, 'valid')[-1] for name in ('flat', 'warm')}
        heading, *lines = done.out.splitlines()
        self.assertEqual(heading.split()[:4], ['the', 'rate', 'valid', 'loss'])
        table = json.loads((workdir / 'mine.json').read_text())
        self.assertEqual([line.split()[0] for line in lines], [*rows])
        for line, (name, row) in zip(lines, rows.items()):
            self.assertEqual(line.split()[1], f'{row["loss"]:#.4g}')
            self.assertEqual(table[name]['valid loss'], row['loss'])
        self.assertNotEqual(rows['flat']['loss'], rows['warm']['loss'])
        before = experiments.metrics(workdir / 'warm')
        again = self.sweep(**run)
        self.assertEqual((again.code, again.out), (0, done.out))
        self.assertEqual(experiments.metrics(workdir / 'warm'), before)
        self.assertEqual((workdir / 'warm.log').read_text().count('fresh, seed'), 1)

    @pytest.mark.slow
    def test_seeds_of_one_config(self):
        done = self.sweep('--seeds=3', '--config.seed=5')
        self.assertEqual(done.code, 0, done.err)
        losses, configs = [], []
        for number in range(3):
            folder = self.folder / 'sweep' / f'mine-{number}'
            losses.append(experiments.rows(folder, 'valid')[-1]['loss'])
            configs.append(json.loads((folder / 'config.json').read_text()))
        self.assertEqual([config.pop('seed') for config in configs], [5, 6, 7])
        self.assertEqual(configs[0], configs[1])
        self.assertLen({*losses}, 3)
        wanted = {'mean': np.mean(losses), 'deviation': np.std(losses, ddof=1), 'count': 3}
        found = json.loads((self.folder / 'sweep' / 'mine.json').read_text())['mine']['valid loss']
        self.assertEqual(found, wanted)
        self.assertIn(f'{wanted["mean"]:#.4g} ± {wanted["deviation"]:.2g}', done.out.splitlines()[1])

    @pytest.mark.slow
    def test_points_are_trained_at_once_each_after_what_it_starts_from(self):
        path = self.folder / 'mine.py'
        points = """{'a': {}, 'b': {'train.steps': 3}, 'bad': {'data.train': 'none'},
                     'after_bad': Point(fields={'init_from': '{bad}'}), 'c': Point(fields={'init_from': '{b}', 'seed': 6})}"""
        path.write_text(f"""from tests import experiments
from training.report.sweeps import Point, Sweep

def get_config(variant):
    return experiments.tiny({str(self.text)!r}, **{{"train.steps": 2}})

def sweep(variant):
    return Sweep({points})
""")
        command = [sys.executable, 'sweep.py', f'--config={path}', f'--workdir={self.folder / "all"}']
        environment = {**os.environ, 'PYTHONPATH': str(experiments.ROOT)}
        call = lambda *more: subprocess.run([*command, *more], cwd=experiments.ROOT, env=environment, capture_output=True,
                                            text=True, timeout=300)
        done = call('--processes', '2')
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"\Asweep.py: 2 points of the sweep failed, of which the first says: Point 'bad' of the "
                                      r"sweep: The split 'none' names no file[^\n]*\n\Z")
        self.assertCountEqual([line.split()[0] for line in done.stdout.splitlines()[1:]], ['a', 'b', 'c'])
        self.assertFalse((self.folder / 'all' / 'after_bad').exists())
        self.assertIn(f'parameters from {self.folder / "all" / "b"}', (self.folder / 'all' / 'c.log').read_text())
        one = call('--only=a')
        self.assertEqual((one.returncode, one.stdout, one.stderr), (0, '', ''))
        self.assertIn('finished at step 2', (self.folder / 'all' / 'a.log').read_text())

    def test_points_at_once_share_the_memory_of_a_gpu(self):
        new, old = 'XLA_CLIENT_MEM_FRACTION', 'XLA_PYTHON_CLIENT_MEM_FRACTION'
        for given, expected in ({}, 'new 0.3000 old'), ({new: '0.2'}, 'new 0.2 old'), ({old: '0.2'}, 'new old 0.2'):
            with (self.subTest(given), mock.patch.dict(os.environ, given), mock.patch.object(sweep, '__file__', '-c'),
                  mock.patch.object(sweep.sys, 'executable', '/bin/sh'),
                  mock.patch.object(sweep.sys, 'argv', ['sweep.py', f'echo new ${new} old ${old} >&2'])):
                self.assertEqual(list(sweep.at_once(Sweep({'a': {}}), self.folder, 3)), [('a', 0)])
                self.assertEqual((self.folder / 'a.log').read_text().split('\n')[-2].strip(), expected)

    def test_a_sweep_that_is_stopped_before_its_points_listen(self):
        with (mock.patch.object(sweep.sys, 'executable', '/bin/sh'), mock.patch.object(sweep, '__file__', '-c'),
              mock.patch.object(sweep.sys, 'argv', ['sweep.py', 'kill -TERM $PPID; sleep 60'])):
            self.assertEqual(list(sweep.at_once(Sweep({'a': {}}), self.folder, 1)), [('', 128 + signal.SIGTERM)])

    def test_a_point_that_is_killed(self):
        """As by a system whose memory is full."""
        with (mock.patch.object(sweep.sys, 'executable', '/bin/sh'), mock.patch.object(sweep, '__file__', '-c'),
              mock.patch.object(sweep.sys, 'argv', ['sweep.py', 'echo step 5/9 >&2; kill -9 $$']),
              self.assertRaisesRegex(ValueError, "^Point 'a' was ended by SIGKILL; see a.log, and if it ran out of memory")):
            list(sweep.at_once(Sweep({'a': {}}), self.folder, 1))
        self.assertEqual((self.folder / 'a.log').read_text(), 'step 5/9\n')

    @parameterized.parameters(signal.SIGTERM, signal.SIGKILL)
    @pytest.mark.slow
    def test_points_at_once_end_with_the_sweep(self, number):
        path = self.folder / 'mine.py'
        path.write_text(f"""from tests import experiments
from training.report.sweeps import Sweep

def get_config(variant):
    return experiments.tiny({str(self.text)!r}, **{{"train.steps": 100_000, "log.every_steps": 100}})

def sweep(variant):
    return Sweep({{'a': {{}}, 'b': {{'seed': 5}}}})
""")
        environment = {**os.environ, 'PYTHONPATH': str(experiments.ROOT)}
        process = subprocess.Popen(
            [sys.executable, 'sweep.py', f'--config={path}', f'--workdir={self.folder / "all"}', '--processes=2'],
            cwd=experiments.ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        metrics = [self.folder / 'all' / name / 'metrics.jsonl' for name in 'ab']
        end = time.monotonic() + 200
        while time.monotonic() < end and not all(one.exists() and one.stat().st_size for one in metrics):
            time.sleep(0.2)
        process.send_signal(number)
        out, err = process.communicate(timeout=100)
        self.assertEqual((process.returncode, out, err), (143 if number == signal.SIGTERM else -signal.SIGKILL, '', ''))
        logs, end = [self.folder / 'all' / f'{name}.log' for name in 'ab'], time.monotonic() + 60
        while time.monotonic() < end and not all('stopped by SIGTERM' in log.read_text() for log in logs):
            time.sleep(0.2)
        for log in logs:
            self.assertIn('stopped by SIGTERM', log.read_text())

    @parameterized.parameters(
        ("Sweep({'a': {}})", ('--only=b',), "The sweep has no point 'b'; known: a."),
        ("Sweep({'a': {}, 'b': {'modl.width': 4}})", (), "Point 'b' of the sweep: There is no field 'modl' in config; did you"),
        ("Sweep({'a': {}, 'b': {'model.width': '4'}})", (), "Point 'b' of the sweep: model.width is '4'; expected int"),
        ("Sweep({'a': {}, 'b': {'train.steps': 0}})", (), "Point 'b' of the sweep: train.steps is 0; set it to at least 1"),
        ("Sweep({'a': {'seed': 1}})", ('--seeds=2',), 'seeds of their own; leave out --seeds'),
        ("Sweep({'a/b': {}})", (), "A point of the sweep is named 'a/b'"),
        ("Sweep({'plots': {}})", (), "A point of the sweep is named 'plots'"),
        ("Sweep({'a': {'data.path': 'nowhere.txt'}})", (), "Point 'a' of the sweep: 'nowhere.txt' does not exist"),
        ("Sweep({'a': {}})", ('--workdir=README.md',), 'The workdir README.md is a file; give a folder'),
        ('', (), r'mine.py names no points: define sweep\(variant\) as configs/stability.py does'),
        ('', ('--seeds=0',), "--seeds is '0'; expected"), ('', ('--wokdir=here',), 'no flag --wokdir; did you mean .workdir'),
        ('', ('--workdir=',), '--workdir is empty; give it a folder, or leave it out for runs/mine'),
        ("Sweep({'a': {}})", ('--workdir=s3://bucket/grid',), 's3://bucket/grid is a remote path'))
    def test_a_mistake_is_one_sentence(self, points, arguments, message):
        done = self.sweep(*arguments, points=points)
        self.assertEqual((done.code, done.out), (1, ''))
        self.assertRegex(done.err, rf'\Asweep.py: [^\n]*{message}[^\n]*\n\Z')
        self.assertFalse((self.folder / 'sweep' / 'a').exists())

    @pytest.mark.slow
    def test_a_run_is_no_folder_for_a_sweep(self):
        self.trained()
        done = self.sweep(points="Sweep({'a': {}})", workdir='run')
        self.assertRegex(done.err, r'\Asweep.py: The workdir .*run holds a run of train.py; give the sweep a folder of')


class ExtrapolationTest(SweepCase):
    @pytest.mark.slow
    def test_the_encodings_are_trained_measured_and_drawn(self):
        done = self.sweep(config=f'sweep_test.small_extrapolation({str(self.text)!r})', points='sweep_test.some_encodings()')
        self.assertEqual(done.code, 0, done.err)
        folder = self.folder / 'sweep'
        heading, *lines, last = done.out.splitlines()
        self.assertEqual(heading.split()[-2:], ['16', '32'])
        measured = json.loads((folder / 'mine.json').read_text())
        self.assertEqual(list(measured), ['learned', 'rotary', 'rotary_linear', 'rotary_ntk', 'alibi'])
        for line, (name, losses) in zip(lines, measured.items()):
            held_out = experiments.rows(folder / name.partition('_')[0], 'valid')[-1]
            self.assertAlmostEqual(losses['16'], held_out['loss'], places=4)
            told = [name, f'{losses["16"]:#.4g}', 'n/a' if name == 'learned' else f'{losses["32"]:#.4g}']
            self.assertEqual(line.split(), told)
        self.assertIsNone(measured['learned']['32'])
        self.assertLen({losses['32'] for losses in measured.values()}, 5)  # each its own
        snapshot = runs.load(folder / 'rotary')
        for scaling in extrapolation.SCALINGS:
            twice = extrapolation.loss(snapshot, Rotary(scaling=scaling, factor=2.0), 32)
            self.assertAlmostEqual(measured[f'rotary_{scaling}']['32'], twice, places=6)
        self.assertEqual(last, str(folder / 'plots' / 'mine.png'))
        with Image.open(last) as image:
            self.assertGreater(min(image.size), 500)

    @pytest.mark.slow
    def test_longer_rows_give_more_context_to_every_byte_and_score_each_once(self):
        config = experiments.changed(small_extrapolation(str(self.text)), **extrapolation.sweep().points['alibi'])
        experiments.train(config, self.folder / 'run')
        snapshot = runs.load(self.folder / 'run')
        batches = {length: [batch for batch in snapshot.data.evaluation('valid', 4, context=length)] for length in LENGTHS}
        counts = {length: sum(batch['weights'].sum() for batch in found) for length, found in batches.items()}
        self.assertEqual(counts[16], counts[32])
        params, loss = snapshot.params, 0.0
        for batch in batches[32]:
            inputs = {name: batch[name] for name in ('inputs', 'segments', 'positions')}
            logits = np.float64(snapshot.model.apply({'params': params}, **inputs)['logits'])
            logits -= logits.max(-1, keepdims=True)
            chances = np.take_along_axis(logits, batch['targets'][..., None], -1)[..., 0] - np.log(np.exp(logits).sum(-1))
            loss -= (chances * batch['weights']).sum()
        measured = extrapolation.loss(snapshot, snapshot.model.stack.positions, 32)
        self.assertAlmostEqual(measured, float(loss / counts[32]), places=4)

    def test_points_are_the_variants(self):
        sweep = extrapolation.sweep()
        made = {name: sweep.config_of(name, extrapolation.get_config(), {}, self.folder) for name in sweep.points}
        self.assertEqual({name: config.to_dict() for name, config in made.items()},
                         {name: extrapolation.get_config(name).to_dict() for name in extrapolation.VARIANTS})
        with self.assertRaisesRegex(ValueError, 'leave out :rotary, or train it alone with train.py'):
            extrapolation.sweep('rotary')


class AttentionLengthTest(SweepCase):
    @pytest.mark.slow
    def test_the_points_are_trained_measured_by_length_and_drawn(self):
        self.text.write_text(experiments.pairs(200))
        done = self.sweep('--seeds=2', config=f'sweep_test.small_attention_length({str(self.text)!r})',
                          points='sweep_test.some_attention()')
        self.assertEqual(done.code, 0, done.err)
        folder = self.folder / 'sweep'
        measured = json.loads((folder / 'mine.json').read_text())
        self.assertEqual(list(measured), [f'{name}{kind}' for name in ('bahdanau', 'none')
                                          for kind in ('', '_low', '_high', '_pairs')])
        for name in ('bahdanau', 'none'):
            rows = [experiments.rows(folder / f'{name}-{seed}', 'by_length')[-1] for seed in (0, 1)]
            for kind in ('bleu', 'low', 'high', 'pairs'):
                row = measured[name if kind == 'bleu' else f'{name}_{kind}']
                self.assertEqual([*row], ['1-2', '3-4', '5+'])
                for column, found in row.items():
                    self.assertEqual(found['mean'], np.mean([one[f'{kind}/{column}'] for one in rows]))
        self.assertEqual({found['mean'] for found in measured['none_pairs'].values()}, {3})
        last = done.out.splitlines()[-1]
        self.assertEqual(last, str(folder / 'plots' / 'mine.png'))
        with Image.open(last) as image:
            self.assertGreater(min(image.size), 500)

    def test_bins_are_in_the_order_of_lengths(self):
        bins = '1-4', '5-9', '10-19', '20+'
        row = {'step': 3, 'split': 'by_length'} | {f'{name}/{one}': place for name in ('bleu', 'low', 'high', 'pairs')
                                                   for place, one in enumerate(bins)}
        (self.folder / 'metrics.jsonl').write_text(json.dumps(row, sort_keys=True) + '\n')
        for found in attention_length.measure(self.folder).values():
            self.assertEqual([*found.items()], [*zip(bins, range(4))])

    def test_points_are_the_variants(self):
        sweep = attention_length.sweep()
        made = {name: sweep.config_of(name, attention_length.get_config(), {}, self.folder) for name in sweep.points}
        self.assertEqual({name: config.to_dict() for name, config in made.items()},
                         {name: attention_length.get_config(name).to_dict() for name in attention_length.VARIANTS})
        with self.assertRaisesRegex(ValueError, 'leave out :none, or train it alone with train.py'):
            attention_length.sweep('none')


class StabilityTest(SweepCase):
    @pytest.mark.slow
    def test_the_points_are_trained_and_drawn_with_two_seeds(self):
        done = self.sweep('--seeds=2', config=f'sweep_test.small_stability({str(self.text)!r})',
                          points='sweep_test.some_points()')
        self.assertEqual(done.code, 0, done.err)
        folder = self.folder / 'sweep'
        heading, *lines, last = done.out.splitlines()
        self.assertEqual(heading.split(), ['held', 'out', 'skipped'])
        for name, line in zip(some_points().points, lines):
            losses = [experiments.rows(folder / f'{name}-{number}', 'valid')[-1]['loss'] for number in (0, 1)]
            spread = f'{np.mean(losses):#.4g} ± {np.std(losses, ddof=1):.2g}'
            self.assertEqual(line.split(), [name, *spread.split(), '0.000', '±', '0'])
            rows = experiments.rows(folder / f'{name}-0', 'train')
            self.assertEqual([row['step'] for row in rows], [1, 2, 3])
            self.assertContainsSubset({'grad_norm/block_0', 'grad_norm/block_1'}, rows[0])
            first_rate = rows[0]['learning_rate'] / stability.get_config().optimizer.learning_rate
            self.assertAlmostEqual(first_rate, 0.5 if 'warm' in name else 1.0, places=5)
        self.assertEqual(last, str(folder / 'plots' / 'mine.png'))
        with Image.open(last) as image:
            self.assertGreater(min(image.size), 500)

    @pytest.mark.slow
    def test_a_point_that_diverges_is_drawn_too(self):
        done = self.sweep('--config.optimizer.learning_rate=1e30', config=f'sweep_test.small_stability({str(self.text)!r})',
                          points='sweep_test.some_points()')
        self.assertEqual(done.code, 0, done.err)
        table = json.loads((self.folder / 'sweep' / 'mine.json').read_text())
        self.assertGreater(table['post-xavier-cold']['skipped'], 0)
        self.assertTrue((self.folder / 'sweep' / 'plots' / 'mine.png').is_file())

    def test_a_run_that_would_have_stopped_has_skipped_nothing(self):
        rows = [{'step': 3, 'split': 'train', 'loss': 2.0}, {'step': 3, 'split': 'valid', 'loss': 2.5}]
        (self.folder / 'metrics.jsonl').write_text(''.join(f'{json.dumps(row)}\n' for row in rows))
        self.assertEqual(stability.measure(self.folder), {'': {'held out': 2.5, 'skipped': 0}})

    def test_points_are_values_of_existing_fields(self):
        sweep = stability.sweep()
        points = {name: sweep.config_of(name, stability.get_config(), {}, self.folder) for name in sweep.points}
        self.assertLen(points, 2 * 2 * 2 + 4)
        for name, (residual, initial, warmup) in {
                'post-xavier-warm': ('PostNorm()', 'Xavier()', True),
                'pre-scaled-cold': ('PreNorm()', 'Scaled(scale=0.07)', False),
                'rezero-xavier-cold': ('ReZero()', 'Xavier()', False),
                'tfixup-tfixup-cold': ('NoNorm()', 'TFixup()', False),
                'dtfixup-dtfixup-cold': ('NoNorm()', 'DTFixup(largest=1.5)', False),
                'admin-xavier-cold': ('Admin(variance=0.3)', 'Xavier()', False)}.items():
            model, schedule = points[name].model, points[name].optimizer.schedule
            self.assertEqual((model.residual, model.initial, schedule.warmup_steps > 0), (residual, initial, warmup))

    @parameterized.parameters(('queries', 4), ('optimizers', 4), ('heads', 5), ('norms', 4))
    def test_points_of_further_sweeps(self, variant, count):
        sweep = stability.sweep(variant)
        sweep.check(stability.get_config(variant), {}, self.folder)
        self.assertLen(sweep.points, count)

    def test_another_sweep_is_refused(self):
        with self.assertRaisesRegex(ValueError, 'leave out :post.*; further sweeps are queries, optimizers, heads, norms'):
            stability.sweep('post')

    @parameterized.parameters(('optimizers', 'adamw-pre-scaled', 'sgd-pre-scaled'), ('norms', 'layer-pre', 'batch-pre'))
    @pytest.mark.slow
    def test_a_further_sweep_is_trained_and_drawn(self, variant, *names):
        whole = stability.sweep(variant)
        config = experiments.changed(stability.get_config(variant), **SMALL | {
            'data.path': str(self.text), 'data.documents': 'line', 'data.valid': 'train[90%:]', 'model.layers': 2})
        points = {name: whole.points[name] for name in names}
        with contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(sweep.run(dataclasses.replace(whole, points=points), config, {}, self.folder / 'runs', 'mine'), 0)
        table = json.loads((self.folder / 'runs' / 'mine.json').read_text())
        self.assertEqual([*table], [*points])
        for name, row in table.items():
            self.assertEqual([*row], ['held out', 'skipped', 'query', 'key', 'value', 'update', 'gradient'])
            last = experiments.rows(self.folder / 'runs' / name, 'gradients')[-1]
            self.assertAlmostEqual(row['value'], np.hypot(*(last[f'block_{i}/attention/value'] for i in (0, 1))), places=6)
        self.assertTrue((self.folder / 'runs' / 'plots' / 'mine.png').is_file())


if __name__ == '__main__':
    absltest.main()
