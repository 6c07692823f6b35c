"""Sweeps over pretraining: the same computation for every objective, and the way from a corpus to a table of scores."""

import contextlib
import dataclasses
import gzip
import io
import json
import math

import jax
import pytest
from absl.testing import absltest

import sweep
from configs import longer_objectives, objectives, several_tasks
from tests import experiments
from tests.configs_test import SHRUNK, has
from training import mesh as meshes
from training import run as runs
from training.config import cli
from training.report import flops
from training.report.sweeps import Point

SENTENCES = [f'The {one} of the {other} is here . It reads the {other} again .'
             for one in experiments.WORDS for other in experiments.WORDS][:120]


def write_data(root):
    """A little of every data set of the corpus, in its own form."""
    def write(name, lines):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = ('\n'.join(lines) + '\n').encode()
        path.write_bytes(gzip.compress(data) if path.suffix == '.gz' else data)

    for part, some in ('train', SENTENCES), ('valid', SENTENCES[:20]):
        write(f'wikitext2/wiki.{part}.tokens', [line for i, text in enumerate(some) for line in (f' = Title {i} = ', text, '')])
        write(f'ptb/ptb.{part}.txt', some)
    write('tinyshakespeare/input.txt.gz', [line for text in SENTENCES for line in (text, '')])
    write('multi30k/train.en', SENTENCES)
    write('multi30k/val.en', SENTENCES[:20])
    write('fra_eng/fra.txt', [f'{text}\tLe {i}' for i, text in enumerate(SENTENCES)])
    for part, head in ('train', 'sentence'), ('dev', 'content'):
        write(f'sst2/{part}.tsv', [f'label\t{head}', *(f'{i % 2}\t{text}' for i, text in enumerate(SENTENCES))])
    pairs = list(zip(SENTENCES, reversed(SENTENCES))) * 8
    write('mrpc/train.txt', ['Quality\t#1 ID\t#2 ID\t#1 String\t#2 String', *(
        f'{i % 2}\t{i}\t{i}\t{a}\t{b}' for i, (a, b) in enumerate(pairs))])
    write('rte/train.tsv', ['sentence1\tsentence2\tlabel\tidx', *(f'{a}\t{b}\t{i % 2}\t{i}' for i, (a, b) in enumerate(pairs))])
    tags = lambda text: [f'{word}\t{"B-it" if word == "It" else "O"}' for word in text.split()]
    tagged = [line for text in SENTENCES for line in (*tags(text), '')]
    write('wnut17/wnut17train.conll', tagged)
    write('wnut17/emerging.dev.conll', tagged[:200])
    asked = [{'context': text, 'qas': [{'id': f'{i}', 'question': 'What reads?', 'answers': [
        {'text': 'It', 'answer_start': text.index('It')}]}]} for i, text in enumerate(SENTENCES)]
    write('squad_v1.1_dev/dev.json', [json.dumps({'data': [{'title': 'a', 'paragraphs': asked}]})])


class ObjectivesTest(experiments.TestCase):
    def setUp(self):
        super().setUp()
        self.data = self.folder / 'data'
        self.data.mkdir()
        write_data(self.data)
        self.sweep = objectives.sweep(str(self.data))

    def smaller(self, *names, **fields):
        """The sweep with these points alone, of two steps; those that start from no other have these fields where they can."""
        more = {'train.steps': 2, 'log.every_steps': 1, 'mesh.data': 1, 'optimizer.schedule.warmup_steps': 1}
        points = {name: self.sweep.points[name] for name in names}
        first = lambda point: {field: value for field, value in fields.items()
                               if has(cli.load_config(point.config)[0], field)} if not point.after else {}
        return dataclasses.replace(self.sweep, points={
            name: Point(point.config, point.fields | more | first(point)) for name, point in points.items()})

    @pytest.mark.slow
    def test_from_the_corpus_to_the_table(self):
        names = ('masked', 'masked-mrpc-0', 'masked-mrpc-1', 'masked-squad-0', 't5', 't5-sst2-0', 't5-wnut17-0', 'electra',
                 'electra-sst2-0')
        sizes = {field: value for field, value in SHRUNK.items() if field.startswith('model.') and 'length' not in field}
        small = self.smaller(*names, **sizes, **{'data.tokenizer': 'WordPiece(vocab=150, sentinels=32)',
                                                 'model.embedding_width': 4})
        with contextlib.redirect_stdout(io.StringIO()) as out:
            code = sweep.run(small, objectives.get_config(), {}, self.folder / 'all', 'objectives')
        self.assertEqual(code, 0)
        table = json.loads((self.folder / 'all' / 'objectives.json').read_text())
        given = {name: {column for column, number in row.items() if number is not None} for name, row in table.items()}
        self.assertEqual({name: row for name, row in given.items() if row}, {
            'masked': {'MRPC accuracy', 'MRPC F1', 'SQuAD F1'}, 't5': {'SST-2 accuracy', 'WNUT-17 F1'},
            'electra': {'SST-2 accuracy'}})
        scores = [experiments.rows(self.folder / 'all' / f'masked-mrpc-{seed}', 'scores')[-1]['accuracy'] for seed in (0, 1)]
        self.assertAlmostEqual(table['masked']['MRPC accuracy']['mean'], 50 * sum(scores))
        written = experiments.rows(self.folder / 'all' / 't5-sst2-0', 'answers')[-1]['sst2_exact_match']
        self.assertAlmostEqual(table['t5']['SST-2 accuracy'], 100 * written)
        self.assertIn('masked ', out.getvalue())

    def test_one_run_of_it(self):
        """Of train.py with the same config."""
        for module in objectives, longer_objectives:
            config = module.get_config(str(self.data))
            sweep = module.sweep(str(self.data))
            self.assertEqual(config, sweep.config_of('masked', objectives.get_config(), {}, self.folder))
            self.assertIn(str(self.data), config.data.corpus)

    def test_a_folder_is_asked_for(self):
        with self.assertRaisesRegex(ValueError, 'trains on a folder of public data sets; name it, --config='):
            objectives.sweep()

    def test_every_point_starts_from_its_objective(self):
        self.assertLen(self.sweep.points, 8 + 3 + 9 * (1 + 3 + 1 + 1))
        self.assertEqual(self.sweep.points['scratch-mrpc-2'].after, ['scratch-2'])
        self.assertEqual(self.sweep.points['scratch-2'].fields['seed'], 2)
        self.assertEqual(self.sweep.groups['scratch-mrpc'], [f'scratch-mrpc-{seed}' for seed in range(3)])
        self.assertEqual(self.sweep.points['bart-mrpc-2'].after, ['bart'])
        self.assertEqual(self.sweep.groups['bart-mrpc'], [f'bart-mrpc-{seed}' for seed in range(3)])

    @pytest.mark.slow
    def test_every_objective_has_the_same_computation(self):
        for name, point in self.sweep.all_points.items():
            if point.after or name.startswith('scratch'):
                continue
            sizes = {'data.tokenizer': "Byte(special=('cls', 'mask', 'separator'), sentinels=32)", 'model.vocab': 8192}
            config = self.smaller(name, **sizes, **{'train.steps': point.fields['train.steps']}).config_of(
                name, objectives.get_config(), {}, self.folder)
            mesh = meshes.make(1, 1, 1)
            run = runs.build(config, mesh)
            batch = {key: jax.ShapeDtypeStruct(shape, dtype) for key, (shape, dtype) in run.data.shapes.items()}
            with jax.set_mesh(mesh):
                traced = jax.jit(run.step_function).trace(run.shapes, batch)
            share = flops.count_jaxpr(traced.jaxpr) * config.train.steps / objectives.OPERATIONS
            self.assertLess(abs(math.log(share)), 0.02, name)


class TablesTest(experiments.TestCase):
    """Tables of sweeps, from what runs have measured."""

    def measured(self, sweep, number):
        """The table of a sweep whose run `point` has number(point) of every measure."""
        for point in sweep.points:
            (self.folder / point).mkdir()
            measures = 'accuracy', 'f1', 'bleu', *(f'{task}_exact_match' for task in several_tasks.PARTS)
            rows = [{'step': 2, 'split': split} | dict.fromkeys(measures, number(point))
                    for split in ('scores', 'entities', 'answers', 'translations')]
            (self.folder / point / 'metrics.jsonl').write_text(''.join(f'{json.dumps(row)}\n' for row in rows))
        return sweep.table({group: [self.folder / one for one in names] for group, names in sweep.groups.items()})

    def test_longer_objectives(self):
        def number(point):
            name = point.partition('-sst2-')[0]
            more = 0.01 * int(point[-1]) if point[-1].isdigit() else 0.0
            return {'student': 0.75, 'masked': 0.8, 'spans': 0.7, 'scratch': 0.7}.get(name, 0.5) + more

        table = self.measured(longer_objectives.sweep('data'), number)
        masked, scratch, student = (table[name] for name in ('masked', 'scratch', 'student'))
        self.assertAlmostEqual(masked['SST-2 accuracy'].mean, 82.0)
        self.assertEqual(masked['SST-2 accuracy'].count, 5)
        # Two groups of five, 0.1 apart, with the variance 0.00025 each: t = 0.1 / sqrt(2 * 0.00025 / 5) = 10 with 8 degrees.
        self.assertAlmostEqual(masked['SST-2 p'].mean, 8.488e-06, delta=1e-8)
        self.assertAlmostEqual(table['spans']['SST-2 p'].mean, 1.0)
        self.assertIsNone(scratch['SST-2 p'])
        self.assertEqual((student['SST-2 accuracy'].mean, student['SQuAD F1']), (75.0, None))
        self.assertAlmostEqual(student['share'].mean, 75 / 0.8)
        self.assertAlmostEqual(masked['WNUT-17 p'].mean, 1.0)
        self.assertIsNone(masked['share'])

    def test_longer_objectives_of_which_points_have_failed(self):
        folders = dict.fromkeys(longer_objectives.sweep('data').groups, ())
        table = longer_objectives.tabulated(folders)
        self.assertEqual({*table['masked'].values(), *table['student'].values()}, {None})

    def test_several_tasks(self):
        empty = several_tasks.tabulated(dict.fromkeys(several_tasks.sweep('data,run').groups, ()))
        self.assertEqual(empty['rte'], {'together': None, 'alone': None})
        sweep = several_tasks.sweep('data,run')
        table = self.measured(sweep, lambda point: len(point) / 10)
        self.assertEqual({task: (row['together'].mean, row['alone'].mean) for task, row in table.items()}, {
            'sst2': (80.0, 40.0), 'mrpc': (80.0, 40.0), 'rte': (80.0, 30.0), 'fra_eng': (0.8, 0.7)})

    def test_several_tasks_of_another_name(self):
        with self.assertRaisesRegex(ValueError, "one of together, sst2, mrpc, rte, fra_eng; 'data,run,cola' was given"):
            several_tasks.get_config('data,run,cola')


if __name__ == '__main__':
    absltest.main()
