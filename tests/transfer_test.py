"""configs/transfer.py, and the sweeps of configs/vit_products.py and configs/vit_sizes.py."""

import functools
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import absltest, parameterized

from configs import vit_products, vit_sizes
from tests import experiments
from tests.marks import slow_but
from training import mesh, workdir
from training import run as runs
from training.config import cli, resolve, schema
from training.report.sweeps import Estimate
from transformer.layers.activations import Relu
from transformer.layers.feed_forward import FeedForward, Gated

NEW = ('--config.data.classes=5,6,7', '--config.data.per_class=4', '--config.data.size=12', '--config.data.width=16',
       '--config.data.train=train[:200]', '--config.data.valid=train[200:220]', '--config.data.batch_size=8',
       '--config.train.steps=2', '--config.log.every_steps=1', '--config.optimizer.schedule.warmup_steps=0')


@slow_but('test_every_kind_of_model_learns_from_there_on', 'resnet')
class TransferTest(experiments.TestCase):
    @parameterized.parameters(
        ('runs/x', "There is no variant 'runs/x' of this config; write HOW,WORKDIR, such as full,runs/photos: known: full"),
        ('ful,runs/x', "did you mean 'full'"), ('full', 'the workdir comes after a comma'),
        ('probe,', 'the workdir comes after a comma'))
    def test_other_variants(self, variant, message):
        with self.assertRaisesRegex(ValueError, message):
            cli.load_config(f'configs/transfer.py:{variant}')

    @pytest.mark.slow
    def test_runs_on_texts(self):
        with self.assertRaisesRegex(ValueError, r'is a run of .*Gpt on .*Text, and configs/transfer.py learns the classes'):
            cli.load_config(f'configs/transfer.py:full,{self.trained()}')

    def pretrained(self, **changes):
        """A run on three digits, of 8x8 pixels."""
        config = experiments.changed(experiments.tiny_images(), **{'data.classes': '0,1,2', 'data.batch_size': 8} | changes)
        folder = self.folder / 'pretrained'
        self.assertEqual(experiments.train(config, folder)[0], 0)
        return folder

    @pytest.mark.slow
    def test_full_and_probe(self):
        before = self.pretrained(**{'model.dropout': 0.5})
        made = {}
        for how in ('full', 'probe'):
            folder = self.folder / how
            done = experiments.call('train', f'--config=configs/transfer.py:{how},{before}', f'--workdir={folder}', *NEW)
            self.assertEqual(done.code, 0, done.err)
            self.assertRegex(done.out, 'parameters from .*pretrained, fresh ones in head/bias, head/kernel')
            self.assertIn('12 images of 12x16x1 to train on; 3 classes', done.out)
            made[how] = runs.load(folder)
        known = runs.load(before).params
        for how, run in made.items():
            same = jax.tree.map(lambda x, y: np.array_equal(np.asarray(x), np.asarray(y)), run.params, known)
            changed = {one for one, alike in same.items() if not all(jax.tree.leaves(alike))}
            self.assertEqual(changed, {'head', 'positions'} if how == 'probe' else {*known})
            self.assertEqual(run.params['positions']['embedding'].shape, (1 + 3 * 4, 8))
        self.assertEqual([run.model.stack.dropout for run in made.values()], [0.5, 0.0])
        np.testing.assert_array_equal(made['probe'].params['positions']['embedding'][0], known['positions']['embedding'][0])
        self.assertTrue((np.asarray(made['probe'].params['head']['kernel']) != 0).any())

    @parameterized.named_parameters(*((kind, kind) for kind in ('resnet', 'swin', 'mae')))
    def test_every_kind_of_model_learns_from_there_on(self, kind):
        """The body of a probe stays as it is, also its running moments; of a masked autoencoder it is the encoder."""
        config = experiments.tiny_autoencoder() if kind == 'mae' else experiments.tiny_images(kind)
        config = experiments.changed(config, **{'data.classes': '0,1,2'})
        before, run, draw = self.folder / 'before', runs.build(config, mesh.make(1)), np.random.default_rng(0)
        drawn = lambda tree: jax.tree.map(lambda x: jnp.asarray(draw.uniform(0.1, 0.9, x.shape), x.dtype), tree)
        runs.write(before, run, {'params': drawn(run.shapes.params), 'statistics': drawn(run.shapes.statistics)})
        for how in ('full', 'probe'):
            config, _ = cli.load_config(f'configs/transfer.py:{how},{before}')
            self.assertEqual(config.data.channels, 1)  # also of images in colour
            config = experiments.changed(config, **{'data.classes': '5,6,7', 'data.size': 12, 'data.width': 16,
                                                    'data.batch_size': 8, 'optimizer.schedule.warmup_steps': 0})
            run = runs.build(config, mesh.make(1))
            begun, made = run.init_from(str(before))
            self.assertEqual({*made}, {'head/kernel', 'head/bias'})
            state, step, batches = begun, jax.jit(run.step_function), run.data.train(0)
            for _ in range(2):  # after the first one the head is no longer 0
                state, report = step(state, next(batches))
            self.assertTrue(report['finite'])
            known, found = (mesh.flat(one.params, one.statistics) for one in (begun, state))
            changed = {path.partition('/')[0] for path, x in found.items() if not np.array_equal(x, known[path])}
            self.assertEqual(changed, {*begun.params} if how == 'full' else {'head'})

    @parameterized.parameters('', 'stages.stage_1.')
    def test_a_probe_has_no_dropout_inside_of_parts(self, group):
        """As those of configs/vit_fashion_mnist.py:d2l have; other fields stay."""
        config = experiments.tiny_images('swin' if group else 'vit')
        path = f'model.{group}feed_forward'
        config = experiments.changed(config, **{path: 'Gated(inner=12, activation=Relu(), dropout=0.1)'})
        run = runs.build(config, mesh.make(1))
        runs.write(self.folder / 'before', run, {'params': run.init().params})
        for how, rate in (('full', 0.1), ('probe', 0.0)):
            found, _ = cli.load_config(f'configs/transfer.py:{how},{self.folder / "before"}')
            text = functools.reduce(lambda config, name: config[name], path.split('.'), found)
            self.assertEqual(resolve.parse(text, FeedForward, path), Gated(inner=12, activation=Relu(), dropout=rate))

    def test_a_probe_refuses_moments_of_batches_that_move(self):
        config = experiments.changed(experiments.tiny_images(), **{'model.norm': 'OverBatch()'})
        run = runs.build(config, mesh.make(1))
        first = run.init()
        runs.write(self.folder / 'before', run, {'params': first.params, 'statistics': first.statistics})
        cli.load_config(f'configs/transfer.py:full,{self.folder / "before"}')
        with self.assertRaisesRegex(ValueError, 'norm=OverBatch.* moves its moments in training, .* use :full'):
            cli.load_config(f'configs/transfer.py:probe,{self.folder / "before"}')

    def test_from_images_without_classes_to_those_of_folders(self):
        before, flat = self.folder / 'before', self.folder / 'flat'
        for path in experiments.save_digits(self.folder / 'photos', [*range(20)]):
            flat.mkdir(exist_ok=True)
            shutil.copy(path, flat)
        config = experiments.changed(experiments.tiny_autoencoder(), **{
            'data.source': 'unlabelled', 'data.path': str(flat), 'data.train': 'all', 'data.valid': '', 'evals': {}})
        run = runs.build(config, mesh.make(1))
        runs.write(before, run, {'params': run.init().params})
        config, _ = cli.load_config(f'configs/finetune_images.py:{before}')
        with self.assertRaisesRegex(FileNotFoundError, 'flat.* holds images, but neither folders of classes nor a table; exp'):
            runs.build(config, mesh.make(1))
        config = experiments.changed(config, **{'data.path': str(self.folder / 'photos'), 'data.valid': 'all'})
        _, made = runs.build(config, mesh.make(1)).init_from(str(before))
        self.assertEqual({*made}, {'head/kernel', 'head/bias'})
        for changes, message in (({}, "Vit needs a value for 'classes', which the data does not give"),
                                 ({'model.classes': 10}, "'label', which neither .*:Vit gives nor .*batches have image;")):
            with self.assertRaisesRegex(ValueError, message):
                runs.build(experiments.changed(experiments.tiny_images(), **{
                    'data.source': 'unlabelled', 'data.path': str(flat)} | changes), mesh.make(1))


class SweepsTest(experiments.TestCase):
    def point(self, name, config, accuracy, times):
        folder = self.folder / name
        folder.mkdir()
        (folder / 'config.json').write_text(json.dumps(config))
        (folder / 'timing.jsonl').write_text(''.join(  # steps of 5e9 operations
            json.dumps({'step': 1, 'step_ms': time, 'flops_per_s': 5e12 / time}) + '\n' for time in times))
        row = {'step': 1, 'split': 'valid', 'accuracy': accuracy, 'loss': 1.5, 'weight': 9.0}
        (folder / 'metrics.jsonl').write_text(json.dumps(row) + '\n')
        return folder

    @parameterized.parameters('fashion_mnist', 'digits')
    def test_sizes(self, variant):
        sweep = vit_sizes.sweep(variant)
        sweep.check(vit_sizes.get_config(variant), {}, self.folder)
        for name, point in sweep.all_points.items():
            size, patch, pool = name.split('-')
            self.assertEqual(point.fields, {'data.size': int(size), 'model.patch': int(patch), 'model.pool': pool})
            self.assertEqual(int(size) % int(patch), 0)
        self.assertLen({(row['data.size'] // row['model.patch'], row['data.size'], row['model.pool'])
                        for row in sweep.points.values()}, len(sweep.points))

    def test_what_sizes_cost(self):
        table, folders = {}, {}
        for number, name in enumerate(vit_sizes.sweep('digits').points):
            size, patch, _ = name.split('-')
            config = schema.changed(vit_sizes.get_config('digits'), {'data.size': int(size), 'model.patch': int(patch)})
            folders[name] = [self.point(name, workdir.as_json(config), 0.9 + number / 200, (10.0, 20.0, 990.0))]
            numbers = vit_sizes.measure(folders[name][0])['']
            self.assertEqual(numbers, {'patches': (int(size) // int(patch)) ** 2, 'TFLOP': 2.5, 'seconds': 10.0,
                                       'valid accuracy': 0.9 + number / 200})
            table[name] = {column: Estimate.of([value * (1 + number)]) for column, value in numbers.items()}
        left, right = vit_sizes.picture(folders, table).axes
        self.assertEqual([axes.get_title() for axes in (left, right)], ['class token', 'mean of the patches'])
        lines = {line.get_label(): line for line in left.get_lines()}
        self.assertEqual([*lines], ['8 x 8', '16 x 16'])
        self.assertEqual(lines['8 x 8'].get_xdata().tolist(), [10.0, 30.0])
        self.assertEqual([text.get_text() for text in right.texts], ['2', '4', '2', '4', '8'])

    def test_products(self):
        sweep = vit_products.sweep()
        self.assertEqual({name: point.after for name, point in sweep.all_points.items()},
                         {'pretrained': [], 'full': ['pretrained'], 'probe': ['pretrained'], 'scratch': []})
        made = sweep.config_of('scratch', vit_products.get_config(), {}, self.folder)
        self.assertEqual((made.data.classes, made.data.per_class, made.init_from), ('[34:42]', 20, ''))
        self.assertEqual(made.optimizer.name, vit_products.get_config().optimizer.name)
        sweep.check(vit_products.get_config(), {}, self.folder)
        folder = self.point('full', {}, 0.75, ())
        self.assertEqual(vit_products.measure(folder), {'': {'valid accuracy': 0.75, 'valid loss': 1.5}})
        table = {name: {'valid accuracy': Estimate.of([0.5 + number / 10])} for number, name in enumerate(sweep.points)}
        axes, = vit_products.picture({name: [folder] for name in sweep.points}, table).axes
        self.assertEqual([round(bar.get_width()) for bar in axes.patches], [60, 70, 80])
        self.assertEqual([text.get_text() for text in axes.get_yticklabels()], [*vit_products.LABELS.values()])


if __name__ == '__main__':
    absltest.main()
