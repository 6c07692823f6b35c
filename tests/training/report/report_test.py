import contextlib
import errno
import io
import json
import math
import os
import pathlib
import struct
import sys
import tempfile
import termios
import time
import warnings
from unittest import mock

import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from PIL import Image
from tensorboardX import record_writer
from tensorboardX.proto import event_pb2

from display import figures
from training.report import report


@contextlib.contextmanager
def terminal(rows, columns=120):
    """Stdout as a terminal of this size; the list it yields holds the lines on its screen at the end."""
    main, end = os.openpty()
    termios.tcsetwinsize(end, (rows, columns))
    lines, written = [], b''
    with open(end, 'w', encoding='utf-8') as stream, mock.patch.object(sys, 'stdout', stream):
        yield lines
    with open(main, 'rb', buffering=0) as file, contextlib.suppress(OSError):  # Linux ends a terminal with an error
        while piece := file.read(4096):
            written += piece
    screen, column = [[]], 0
    for character in written.decode():
        if character in '\r\n':
            column = 0
            screen += [[]] * (character == '\n')
        else:
            screen[-1] = screen[-1][:column] + [character] + screen[-1][column + 1 :]
            column += 1
    lines += [''.join(line).rstrip() for line in screen]


def temporary(test):
    folder = tempfile.TemporaryDirectory()
    test.addCleanup(folder.cleanup)
    return pathlib.Path(folder.name)


def events(workdir):
    """All TensorBoard events of a run in file order, by the record format: length, checksum, data, checksum."""
    found = []
    for path in sorted(workdir.glob('events.out.tfevents.*')):
        data = path.read_bytes()
        while data:
            (size,) = struct.unpack('<Q', data[:8])
            found.append(event_pb2.Event.FromString(data[12 : 12 + size]))
            data = data[16 + size :]
    return found


def values(workdir, tag):
    return [(e.step, v) for e in events(workdir) for v in e.summary.value if v.tag == tag]


class ReportTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.workdir = temporary(self) / 'runs' / 'tiny'

    def open(self, step=0, *, steps=100, bar=False, peak=None):
        opened = report.Report(self.workdir, step=step, steps=steps, unit='tokens', peak=peak, bar=bar)
        self.addCleanup(opened.close)
        return opened

    def train(self, steps, step=0):
        """Logs every 10 steps and evaluates every 20."""
        with_report = self.open(step)
        for done in range(step + 10, steps + 1, 10):
            with_report.scalars(done, 'train', {'accuracy': done / 7, 'loss': np.float32(10 / done)})
            with_report.timing(done, {'data': 0.1 * done})
            if done % 20 == 0:
                with_report.scalars(done, 'val', {'loss': jnp.float32(11 / done), 'weight': 640})
        with_report.close()

    def read(self, name=report.METRICS):
        return (self.workdir / name).read_bytes()

    # rows

    def test_row(self):
        opened = self.open()
        opened.scalars(3, 'train', {'weight': np.int32(64), 'loss': jnp.float32(0.5), 'accuracy': 1 / 3})
        opened.timing(3, {'data': 0.25})
        opened.flush()
        self.assertEqual(
            self.read(), b'{"step": 3, "split": "train", "loss": 0.5, "accuracy": 0.3333333333333333, "weight": 64}\n'
        )
        self.assertEqual(self.read(report.TIMING), b'{"step": 3, "data": 0.25}\n')

    def test_rows_wait_for_flush(self):
        opened = self.open()
        opened.scalars(1, 'train', {'loss': 1.0})
        self.assertEqual(self.read(), b'')
        opened.flush()
        self.assertEqual(self.read().count(b'\n'), 1)
        opened.scalars(2, 'train', {'loss': 1.0})
        opened.close()
        opened.close()
        self.assertEqual(self.read().count(b'\n'), 2)

    def test_what_is_not_finite_stays_valid_json(self):
        opened = self.open()
        opened.scalars(1, 'train', {'loss': float('nan'), 'norm': np.float32('inf'), 'low': -float('inf')})
        opened.close()

        def refuse(constant):
            raise AssertionError(constant)

        row = json.loads(self.read(), parse_constant=refuse)
        self.assertEqual(row, {'step': 1, 'split': 'train', 'loss': 'nan', 'low': '-inf', 'norm': 'inf'})
        row = report.rows(self.workdir)[0]
        self.assertTrue(np.isnan(row['loss']))
        self.assertEqual((row['norm'], row['low'], row['split']), (float('inf'), -float('inf'), 'train'))

    def test_a_value_may_not_replace_the_step(self):
        with self.assertRaisesRegex(ValueError, "'step'"):
            self.open().scalars(1, 'train', {'loss': 1.0, 'step': 2})

    def test_rows_of_a_split(self):
        self.train(40)
        self.assertEqual([row['step'] for row in report.rows(self.workdir, 'val')], [20, 40])
        self.assertLen(report.rows(self.workdir), 6)

    def test_rows_before_training(self):
        with self.assertRaisesRegex(FileNotFoundError, 'train it first'):
            report.rows(self.workdir)

    # restarts

    def test_killed_run_ends_in_the_same_bytes(self):
        self.train(100)
        whole, timing = self.read(), self.read(report.TIMING)
        self.train(70)
        self.assertNotEqual(self.read(), whole)
        with open(self.workdir / report.METRICS, 'ab') as file:
            file.write(b'{"step": 80, "split": "tra')
        self.assertLen(report.rows(self.workdir), 10)  # a reader beside the run skips the torn line
        self.train(100, step=40)
        self.assertEqual(self.read(), whole)
        self.assertEqual(self.read(report.TIMING), timing)

    def test_what_is_measured_again_at_the_step_resumed_from_is_there_once(self):
        self.train(40)
        whole = self.read()
        for again, splits in (((), ['train', 'val']), (('other',), ['train', 'val']), (('val',), ['train'])):
            (self.workdir / report.METRICS).write_bytes(whole)
            report.Report(self.workdir, step=20, steps=100, unit='tokens', peak=None, bar=False, again=again).close()
            found = report.rows(self.workdir)
            self.assertEqual([(row['step'], row['split']) for row in found],
                             [(10, 'train'), *((20, split) for split in splits)])

    @parameterized.parameters(b'{"step": 30}', b'{"step": 30, "sp', b'\0' * 40, b'\xff\xfe\n', b'7\n')
    def test_torn_last_line(self, torn):
        self.train(20)
        whole = self.read()
        (self.workdir / report.METRICS).write_bytes(whole + torn)
        self.open(step=1000).close()
        self.assertEqual(self.read(), whole)

    def test_fresh_start_drops_all_rows(self):
        opened = self.open()
        opened.scalars(0, 'val', {'loss': 9.0})
        opened.close()
        (self.workdir / report.TIMING).write_bytes(b'nonsense\nnonsense\n')
        self.open()
        self.assertEqual(self.read() + self.read(report.TIMING), b'')

    def test_damage_inside_the_file_is_an_error(self):
        self.train(20)
        whole = self.read()
        (self.workdir / report.METRICS).write_bytes(b'{]\n' + whole)
        with self.assertRaisesRegex(ValueError, 'Line 1 of .*metrics.jsonl is damaged'):
            self.open(step=10)
        self.assertEqual(self.read(), b'{]\n' + whole)

    def test_a_kill_while_cutting_leaves_the_old_rows(self):
        self.train(40)
        whole = self.read()
        with mock.patch.object(os, 'replace', side_effect=KeyboardInterrupt), self.assertRaises(KeyboardInterrupt):
            self.open(step=10)
        self.assertEqual(self.read(), whole)
        self.open(step=10)
        self.assertEqual([row['step'] for row in report.rows(self.workdir)], [10])

    # TensorBoard and samples

    def test_tensorboard_scalars(self):
        self.train(20)
        points = values(self.workdir, 'train/loss')
        self.assertEqual([step for step, _ in points], [10, 20])
        self.assertAlmostEqual(points[1][1].simple_value, 0.5)
        self.assertLen(values(self.workdir, 'val/weight'), 1)
        self.assertLen(values(self.workdir, 'timing/data'), 2)

    def test_tensorboard_is_purged_after_the_restored_step(self):
        self.train(20)
        self.train(40, step=10)  # within the same second: neither file may replace the other
        starts = [e.step for e in events(self.workdir) if e.session_log.status == event_pb2.SessionLog.START]
        self.assertEqual(starts, [0, 11])
        self.assertEqual([step for step, _ in values(self.workdir, 'train/loss')], [10, 20, 20, 30, 40])

    def test_a_full_disk_is_one_sentence(self):
        opened = self.open()
        full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        for owner, name, use in ((os, 'fsync', opened.flush), (pathlib.Path, 'write_text', lambda: opened.text(1, 'a', 'b')),
                                 (record_writer.RecordWriter, 'write', lambda: opened.scalars(1, 'train', {'loss': 1.0}))):
            with (self.subTest(name), mock.patch.object(owner, name, side_effect=full),
                  self.assertRaisesRegex(ValueError, 'cannot be written .No space left on device.; fix that, then')):
                use()
        with mock.patch.object(os, 'fsync', side_effect=full), self.assertRaisesRegex(ValueError, 'cannot be written'):
            opened.close()
        opened.close()  # all is closed, and nothing is tried again
        with (mock.patch.object(record_writer.RecordWriter, 'write', side_effect=full),
              self.assertRaisesRegex(ValueError, 'cannot be written .No space left on device.; fix that, then')):
            self.open()

    def test_text(self):
        opened = self.open()
        opened.text(20, 'sample', 'To be,\nor not Ω')
        opened.close()
        self.assertEqual((self.workdir / 'samples/sample_20.txt').read_text(encoding='utf-8'), 'To be,\nor not Ω\n')
        ((step, value),) = values(self.workdir, 'sample/text_summary')
        self.assertEqual(step, 20)
        self.assertIn('or not Ω', value.tensor.string_val[0].decode())

    @parameterized.parameters(np.uint8, np.float32, jnp.bfloat16)
    def test_picture(self, dtype):
        scale = 255 if dtype == np.uint8 else 1
        pixels = jnp.zeros((4, 6, 3), dtype).at[1, 2, 0].set(scale)
        opened = self.open()
        opened.picture(5, 'val/attention', pixels)
        opened.close()
        saved = np.asarray(Image.open(self.workdir / 'samples/val_attention_5.png'))
        np.testing.assert_array_equal(saved, np.asarray(pixels, np.float32) * (255 // scale))
        ((step, value),) = values(self.workdir, 'val/attention')
        self.assertEqual((step, value.image.height, value.image.width), (5, 4, 6))
        np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(value.image.encoded_image_string))), saved)

    def test_floats_outside_the_range_are_clipped(self):
        opened = self.open()
        with warnings.catch_warnings():
            warnings.simplefilter('error')
            opened.picture(1, 'p', np.array([[[-1.0, 2.0, np.nan]]]))
        opened.close()
        np.testing.assert_array_equal(np.asarray(Image.open(self.workdir / 'samples/p_1.png')), [[[0, 255, 0]]])

    def test_figure(self):
        from matplotlib.figure import Figure

        figure = Figure(figsize=(2, 1), dpi=50)
        figure.add_subplot().plot([0, 1])
        opened = self.open()
        opened.picture(5, 'curve', figure)
        opened.close()
        saved = np.asarray(Image.open(self.workdir / 'samples/curve_5.png'))
        self.assertEqual(saved.shape, (50, 100, 3))
        self.assertGreater(saved.std(), 1)

    @parameterized.parameters(((4, 6), np.float32), ((3, 4, 6), np.uint8), ((4, 6, 3), np.int32))
    def test_what_is_no_picture(self, shape, dtype):
        with self.assertRaisesRegex(ValueError, r'expected \[height, width, 3\]'):
            self.open().picture(1, 'p', np.zeros(shape, dtype))

    # progress

    def lines(self, *, peak=None, **changes):
        numbers = dict(loss=2.3149, units_per_s=12345.4, flops_per_s=4.1e9, data_wait=0.0031, seconds_left=79.7)
        out = io.StringIO()
        with mock.patch.object(sys, 'stdout', out):
            opened = self.open(steps=2000, bar=None, peak=peak)
            opened.progress(200, **(numbers | changes))
            opened.note('saved step 200')
            opened.close()
        return out.getvalue().splitlines()

    def test_plain_line(self):
        self.assertEqual(
            self.lines(peak=13.2e9),
            [
                'step 200/2000  loss 2.315  12,345 tokens/s  4.1 GFLOP/s (31% of peak)  data wait 0.3%  1m20s left',
                'saved step 200',
            ],
        )

    def test_plain_line_leaves_out_what_is_not_known(self):
        self.assertEqual(
            self.lines(flops_per_s=None, seconds_left=None)[0],
            'step 200/2000  loss 2.315  12,345 tokens/s  data wait 0.3%',
        )
        self.assertIn('  4.1 GFLOP/s  ', self.lines()[0])

    @parameterized.parameters(
        (dict(seconds_left=44.6), '45s left'),
        (dict(seconds_left=7500), '2h05m left'),
        (dict(seconds_left=3 * 86400 + 4 * 3600), '3d04h left'),
        (dict(flops_per_s=999.8e12), '1 PFLOP/s'),
        (dict(flops_per_s=123456), '123 kFLOP/s'),
        (dict(units_per_s=3.21), '3.2 tokens/s'),
        (dict(loss=float('nan')), 'loss nan'),
        (dict(peak=1e12), '(0.41% of peak)'),
    )
    def test_readable_numbers(self, changes, expected):
        self.assertIn(expected, self.lines(**changes)[0])

    def show(self):
        opened = self.open(step=100, steps=2000, bar=None)
        for step in (200, 300):
            opened.progress(step, loss=2.0, units_per_s=50, flops_per_s=None, data_wait=0.0, seconds_left=3600 // step)
            opened.note(f'saved step {step}')
        opened.close()

    def test_bar_on_a_terminal_keeps_notes_whole(self):
        with terminal(rows=24) as lines:
            self.show()
        self.assertEqual(lines[:2], ['saved step 200', 'saved step 300'])
        self.assertStartsWith(lines[2], 'step 300/2000 |')
        self.assertEndsWith(lines[2], '| 12s left  loss 2  50 tokens/s  data wait 0.0%')
        self.assertEqual(lines[3:], [''])

    def test_plain_lines_on_a_terminal_without_a_size(self):
        with terminal(rows=0) as lines:
            self.show()
        self.assertEqual(lines[0], 'step 200/2000  loss 2  50 tokens/s  data wait 0.0%  18s left')
        self.assertEqual(lines[1], 'saved step 200')


class JsonTest(absltest.TestCase):
    def test_numbers_that_json_does_not_have(self):
        row = {'split': 'valid', 'step': 3, 'precision': math.nan, 'tests': {'f1': {'p': math.inf, 'first': 0.5}}}
        self.assertEqual(json.loads(report.as_json(row), parse_constant=self.fail), {
            'split': 'valid', 'step': 3, 'precision': 'nan', 'tests': {'f1': {'p': 'inf', 'first': 0.5}}})


class PlotTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        self.workdir = temporary(self)

    def plot(self, *splits, points=300):
        with_report = report.Report(self.workdir, step=0, steps=points, unit='images', peak=None, bar=False)
        for step in range(1, points + 1):
            for split in splits:
                if split == 'train' or step % 50 == 0:
                    with_report.scalars(step, split, {'loss': 1 / step + 0.1 * len(split)})
        with_report.scalars(points + 1, 'train', {'loss': float('nan')})
        with_report.scalars(points + 1, 'lr', {'rate': 1.0})
        with_report.close()
        return np.asarray(Image.open(report.plot_losses(self.workdir)).convert('RGB'))

    def test_every_split_is_drawn(self):
        one = self.plot('train')
        self.assertTrue((self.workdir / 'plots' / 'loss.png').read_bytes().startswith(b'\x89PNG'))
        self.assertGreater(one.std(), 5)
        three = self.plot('train', 'val', 'other_books')

        def orange_and_green(picture):
            red, green, blue = picture.astype(int).transpose(2, 0, 1)
            return int(((red > 200) & (blue < 80)).sum()), int(((green > 130) & (red < 100) & (blue < 130)).sum())

        self.assertEqual(orange_and_green(one), (0, 0))
        self.assertGreater(min(orange_and_green(three)), 50)

    def test_what_is_shown_is_said(self):
        self.workdir = self.workdir / 'books_$x$_\u4e2d\ue000'
        self.workdir.mkdir()
        self.plot('train', 'val')
        figure = report.losses(self.workdir)
        self.assertEqual(figure.get_suptitle().split('U+')[-1], 'E000')  # which no font has
        axes, = figure.axes
        self.assertEqual((axes.get_xlabel(), axes.get_ylabel()), ('step (updates of the parameters)', 'loss'))
        self.assertIn('train is the mean of the steps since the point before (pale), and its running mean',
                      figures.caption_of(figure))

    def test_one_point_has_a_mark(self):
        self.assertGreater(self.plot('train', points=1).std(), 5)
        axes, = report.losses(self.workdir).axes
        self.assertEqual(list(axes.get_xticks()), [1])
        line, = axes.lines
        self.assertEqual((line.get_marker(), len(line.get_xdata())), ('o', 1))

    def test_no_loss(self):
        with self.assertRaisesRegex(ValueError, 'no finite loss'):
            self.plot(points=3)


class ClockTest(absltest.TestCase):
    def test_sections_and_laps(self):
        now = 0.0
        with mock.patch.object(time, 'perf_counter', lambda: now):
            clock = report.Clock()
            for _ in range(2):
                with clock('data'):
                    now += 1
                with clock('eval'):
                    now += 2
                    with clock('data'):
                        now += 4
                    now += 8
                now += 16
            self.assertEqual(clock.lap(), {'data': 10, 'eval': 20, 'wall': 62})
            with clock('save'):
                now += 1
                self.assertEqual(clock.lap(), {'save': 1, 'wall': 1})
                now += 2
            self.assertEqual(clock.lap(), {'save': 2, 'wall': 2})

    def test_a_section_that_raises_is_closed(self):
        clock = report.Clock()
        with self.assertRaises(KeyError), clock('data'):
            raise KeyError
        clock.lap()
        self.assertEqual(list(clock.lap()), ['wall'])

    def test_wall_is_taken(self):
        with self.assertRaisesRegex(ValueError, 'wall'), report.Clock()('wall'):
            pass


if __name__ == '__main__':
    absltest.main()
