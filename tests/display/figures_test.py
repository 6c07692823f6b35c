"""display/figures.py, and every figure that Heed draws: it has a title, named axes and bars, a caption, and legible text."""

import pathlib
import tempfile
import types
import warnings

import numpy as np
from absl.testing import absltest, parameterized
from matplotlib.text import Text

from benchmarks import complexity
from configs import (
    attention_length,
    critical_batch,
    extrapolation,
    scaling,
    stability,
    vision_comparison,
    vit_products,
    vit_sizes,
)
from data.tokenizers import lattice, merges, trace
from display import figures
from tests.transformer.explain.pictures_test import drawn
from training.report import report, sweeps
from transformer.attention.masks import analysis
from transformer.attention.masks.patterns import Causal, Window
from transformer.attention.pooling import Gaussian
from transformer.evaluators import pooling
from transformer.explain import pictures, positions
from vit.evaluators.mistakes import Mistakes
from vit.explain import attention as image_attention
from vit.explain import filled, filters

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
RNG = np.random.default_rng(0)
TOKENS = ['the', ' cat', '中文', '\ue000$']


def attention(heads=2, **style):
    weights, found = drawn(2, heads, 4)
    return pictures.attention(pictures.Maps(weights, found, TOKENS, TOKENS, **style))


def steps():
    weights, found = drawn(1, 2, 4)
    shown = RNG.normal(size=(2, 4, 4)), np.tri(4, dtype=bool)[None].repeat(2, 0)
    return pictures.attention(pictures.Maps(weights, found, TOKENS, TOKENS, steps={'block_0': shown}))


def over_an_image(sign=1):
    weights, found = drawn(2, 3, 6)
    heats = {name: sign * x[:, 0] for name, x in weights.items()}
    return image_attention.attention(heats, heats['block_0'][0], RNG.random((4, 6, 3)), found,
                                     cells=dict.fromkeys(heats, (2, 3, 2)), reads=image_attention.CLASS_TOKEN)


def mistakes():
    made = {}
    snapshot = types.SimpleNamespace(
        apply=lambda image: {'logits': RNG.normal(size=(4, 2))}, picture=made.__setitem__,
        data=types.SimpleNamespace(classes=('猫', 'a class with a name that is long'), visible=lambda image: image))
    batch = {'image': RNG.random((4, 2, 2, 1)), 'label': np.array([0, 1, 0, 1]), 'example_weights': np.ones(4)}
    Mistakes(rows=2)(snapshot, [batch])
    return made['mistakes']


def kernels(columns):
    points = {'query': RNG.random((3, columns)), 'target': RNG.random((3, columns))}
    model = types.SimpleNamespace(keys=RNG.random((4, columns)), values=RNG.random((4, columns)))
    panel = pooling.Panel(Gaussian(), 'Gaussian\nwidth 1\nloss 0.1', RNG.random((3, columns)), RNG.random((3, 4)), 0.1)
    return pooling.picture(model, points, [panel, panel], 'Two kernels')


def rows(folder, count=3):
    made = report.Report(folder, step=0, steps=count, unit='rows', peak=None, bar=False)
    for step in range(1, count + 1):
        made.scalars(step, 'train', {'loss': 1 / step} | {f'grad_norm/block_{i}': 1.0 + i for i in range(2)})
    made.scalars(count, 'valid', {'loss': 0.5})
    made.close()
    return folder


def in_a_run(draw):
    with tempfile.TemporaryDirectory() as folder:
        return draw(rows(pathlib.Path(folder)))


def stable():
    number = sweeps.Estimate(1.0, 0.1, 2)
    table = {name: {'held out': number, 'skipped': number} for name in ('pre-scaled-warm', 'post-xavier-cold')}
    return in_a_run(lambda folder: stability.picture({name: [folder] for name in table}, table))


def longer():
    table = {f'encoding_{i}': {'64': sweeps.Estimate(1.0, 0.1, 2), '128': sweeps.Estimate(2.0, 0.1, 2)} for i in range(16)}
    return extrapolation.picture({}, table)


def by_length():
    numbers = {'': 30.0, '_low': 28.0, '_high': 31.0, '_pairs': 99}
    table = {f'{name}{kind}': {column: sweeps.Estimate(value, 0.1, 2) for column in ('1-4', '5-6', '7+')}
             for name in attention_length.VARIANTS for kind, value in numbers.items()}
    return attention_length.picture(dict.fromkeys(attention_length.VARIANTS), table)


def transferred():
    table = {name: {'valid accuracy': sweeps.Estimate(0.5, 0.1, 2)} for name in vit_products.LABELS}
    return vit_products.picture(dict.fromkeys(['pretrained', *table]), table)


def compared(part):
    number = lambda value: sweeps.Estimate(value, 0.01, 2)
    table = {name: {'valid accuracy': number(0.9), 'probe accuracy': number(0.8), 'TFLOP': number(100.0 + i),
                    'parameters': number(1000 * (i + 1))}
             for i, name in enumerate((*vision_comparison.MODELS, *vision_comparison.LABELS))}
    return vision_comparison.picture(dict.fromkeys(table), table)[part]


def sized():
    table = {f'{size}-{patch}-{pool}': {'seconds': sweeps.Estimate(size / patch, 0.1, 1), 'valid accuracy': sweeps.Estimate(
        0.9, 0.1, 1)} for size in (14, 28) for patch in (2, 7) for pool in vit_sizes.POOLS}
    return vit_sizes.picture(dict.fromkeys(table), table)


def scaled(part):
    found = {}
    for name, (budget, layers, width, steps) in zip(scaling.sweep().points, scaling.grid('').points()):
        size, tokens = 12 * layers * width ** 2, 2048 * steps
        row = {'N': size, 'N of blocks': size, 'D': tokens, 'C': budget, 'epochs': 1.0,
               'loss': 1.2 + 7 * size ** -0.3 + 40 * tokens ** -0.3}
        found[name] = {column: sweeps.Estimate(float(value), 0.0, 1) for column, value in row.items()}
    return scaling.picture({}, found)[part]


def batches():
    table = {}
    for rows in critical_batch.STEPS:
        size, steps = 128 * rows, 90 + 3e5 / (128 * rows)
        row = {'batch': size, 'rate': 0.01, 'steps': steps, 'bytes': steps * size, 'noise scale': 9e3 + size / 10}
        table[str(rows)] = {column: sweeps.Estimate(float(value), 0.0, 1) for column, value in row.items()}
    return critical_batch.picture({}, table)


def reconstructed():
    image = RNG.random((4, 4, 1))
    return filled.figure([filled.Filled(image, image[..., 0] > 0.5, image / 2, 0.1)] * 2, 'Masked patches')


def complexities():
    return complexity.picture([{'layer': name, 'length': n, 'flops': n, 'steps': n, 'path': n}
                               for name in complexity.LAYERS for n in (64, 128)])


FIGURES = {
    'a text': attention, 'many heads': lambda: attention(12), 'scores and masks': steps,
    'an alignment': lambda: attention(title='alignment', down='token produced', across='source token', produced=True),
    'heads': lambda: pictures.importance(RNG.random((2, 3)), 6, [(6, 1.0), (0, 2.0)], layers=['block_0', 'block_1'],
                                         metric='loss on valid', best=3),
    'sinusoids': lambda: positions.sinusoids(6, 4), 'positions': lambda: positions.similarity(RNG.random((5, 3))),
    'patches': lambda: positions.similarity(RNG.random((7, 3)), (2, 3)),
    'an image': over_an_image, 'an image, negative weights': lambda: over_an_image(-1), 'mistakes': mistakes,
    'curves': lambda: kernels(1), 'classes': lambda: kernels(2),
    'a mask': lambda: analysis.show(Causal() & Window(2), 6),
    'a receptive field': lambda: analysis.show(Window(2), 40, layers=3),
    'merges': lambda: trace.picture('a text', 5, [*merges.Learner({'abc': 2, 'bc': 1})]),
    'a lattice': lambda: trace.lattice_picture(lattice.Lattice(2, tuple(
        lattice.Edge(*one, 0, -1.0) for one in ((0, 1, '\u2581'), (0, 2, '\u2581中'), (1, 2, '中')))), ' 中'),
    'losses': lambda: in_a_run(report.losses), 'stability': stable, 'extrapolation': longer, 'complexity': complexities,
    'by length': by_length, 'transfer': transferred, 'sizes': sized, 'models of images': lambda: compared(''),
    'scaling': lambda: scaled(''), 'scaling with data': lambda: scaled('data'), 'critical batch': batches,
    'an autoencoder': lambda: compared('mae'), 'reconstructions': reconstructed,
    'filters': lambda: filters.figure(RNG.random((2, 2, 1, 5))), 'filters of colours': lambda: filters.figure(
        RNG.random((2, 2, 3, 5)))}


def names(axes, axis):
    """The names of an axis of a panel, of those in its row or column, or of the part of the figure that it is in."""
    place, span = axes.get_subplotspec(), 'rowspan' if axis == 'y' else 'colspan'
    alike = [one for one in axes.figure.axes if one.get_subplotspec() and getattr(one.get_subplotspec(), span) == getattr(
        place, span)]
    found, part = [getattr(one, f'get_{axis}label')() for one in alike], axes.figure
    while part is not axes.get_figure(root=True):
        found, part = [*found, getattr(part, f'get_sup{axis}label')()], part._parent
    return ''.join(found)


class AllFiguresTest(parameterized.TestCase):
    @parameterized.parameters(*FIGURES)
    def test_explains_itself(self, name):
        figure = FIGURES[name]()
        with warnings.catch_warnings():
            warnings.simplefilter('error')
            figure.draw_without_rendering()
        self.assertNotEmpty(figure.get_suptitle())
        self.assertRegex(figures.caption_of(figure), r'^[A-Z].{30,}\.$')
        for axes in filter(lambda axes: axes.axison, figure.axes):
            if axes.get_label() == '<colorbar>':
                words = any(label.get_text().isalpha() for label in axes.get_yticklabels())
                self.assertTrue(axes.get_ylabel() or axes.get_xlabel() or words)
                continue
            for axis in 'xy':
                if len(getattr(axes, f'get_{axis}ticks')()):
                    self.assertNotEmpty(names(axes, axis), f'{axis} of {axes}')
        width = figure.get_figwidth()
        for text in figure.findobj(Text):
            if text.get_text().strip() and text.get_visible():
                self.assertGreaterEqual(text.get_fontsize() * min(1, figures.README / width), 5.4, text)

    def test_all_are_here(self):
        """Only display/figures.py makes figures, and each file that explains one has one in the list above."""
        drawing = set()
        for path in (p for folder in ('benchmarks', 'configs', 'data', 'training', 'transformer', 'vit', '.')
                     for p in (ROOT.glob('*.py') if folder == '.' else (ROOT / folder).rglob('*.py'))):
            text = path.read_text()
            self.assertNotRegex(text, r'\bpyplot\b|\bFigure\(', path)
            if 'figures.new(' in text:
                self.assertGreaterEqual(text.count('figures.explain('), text.count('figures.new('), path)
                drawing.add(path.relative_to(ROOT).as_posix())
        self.assertEqual(drawing, {
            'benchmarks/complexity.py', 'configs/attention_length.py', 'configs/critical_batch.py',
            'configs/extrapolation.py', 'configs/mup.py', 'configs/scaling.py', 'configs/stability.py',
            'configs/vision_comparison.py', 'configs/vit_products.py', 'configs/vit_sizes.py',
            'data/tokenizers/trace.py',
            'training/report/report.py',
            'transformer/attention/masks/analysis.py', 'transformer/evaluators/pooling.py', 'transformer/explain/pictures.py',
            'transformer/explain/positions.py', 'vit/evaluators/mistakes.py', 'vit/explain/attention.py',
            'vit/explain/filled.py', 'vit/explain/filters.py'})

    def test_rows_that_were_produced_and_uniform_weights_are_told(self):
        figure = FIGURES['an alignment']()
        rows = figure.axes[0].get_yticklabels()
        self.assertEqual({label.get_color() for label in rows}, {figures.COLOURS[1]})
        self.assertEqual({label.get_color() for label in FIGURES['a text']().axes[0].get_yticklabels()}, {'black'})
        self.assertIn('orange rows are tokens that the model has produced', figures.caption_of(figure))
        one = {'layer': 'block_0', 'heads': [0, 1], 'entropy': [0.995, 0.98], 'highest_entropy': 1.0}
        self.assertEqual(pictures.titles(one), ['head 0  0.99, uniform', 'head 1  0.98'])

    def test_long_texts_are_wrapped(self):
        figure, body = figures.new(4, 3)
        body.subplots().plot([1, 2])
        figures.explain(figure, 'a title of many words ' * 5, 'a caption of many words ' * 9)
        figure.draw_without_rendering()
        self.assertGreater(figure.get_figheight(), 3.5)
        for text in figure.findobj(lambda one: isinstance(one, Text) and 'of many words' in one.get_text()):
            box = text.get_window_extent()
            self.assertBetween(box.x0, 0, 400)
            self.assertBetween(box.x1, 0, 400)


if __name__ == '__main__':
    absltest.main()
