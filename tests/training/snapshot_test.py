import math
import types

import numpy as np
from absl.testing import absltest

from tests.training.run_test import Batches, Rows, T, build, drawn
from training import step as steps
from training.snapshot import Snapshot, averages_of


class SnapshotTest(absltest.TestCase):
    def test_averages_weigh_every_token_once_however_batches_are_cut(self):
        run = build()
        snapshot = Snapshot(run, drawn(run.shapes).params, 0)
        whole = Rows().batch(0, 12)
        cut = lambda rows: Batches([{k: v[i:i + rows] for k, v in whole.items()} for i in range(0, 12, rows)],
                                 {'bytes': 100, 'tokens': 50})
        one, four = snapshot.averages(cut(12)), snapshot.averages(cut(3))
        self.assertEqual(one['weight'], whole['weights'].sum())
        for name in one:
            self.assertAlmostEqual(one[name], four[name], places=4, msg=name)
        self.assertAlmostEqual(one['perplexity'], math.exp(one['loss']), places=4)
        numbers = snapshot.evaluate('valid', Batches(cut(12), {'bytes': 1, 'tokens': 1, 'context': T, 'stride': T}))
        self.assertAlmostEqual(numbers['loss'], one['loss'], places=6)
        nothing = Batches([whole | {'weights': 0 * whole['weights']}], {'bytes': 100, 'tokens': 50})
        self.assertTrue(math.isnan(snapshot.averages(nothing)['loss']))  # rather than one of 0
        # against the model itself
        logits = np.float64(snapshot.apply(**{k: whole[k] for k in ('inputs', 'segments', 'positions')})['logits'])
        surprise = np.log(np.exp(logits).sum(-1)) - np.take_along_axis(logits, whole['targets'][..., None], -1)[..., 0]
        self.assertAlmostEqual(one['loss'], (surprise * whole['weights']).sum() / whole['weights'].sum(), places=4)

    def test_a_term_of_nothing_adds_nothing_to_the_total(self):
        nan = float('nan')
        for sums, average, loss in (({'a': (6.0, 4.0), 'b': (0.0, 0.0)}, {'a': 1.5, 'b': nan}, 1.5),
                                    ({'a': (6.0, 4.0), 'b': (1.0, 2.0)}, {'a': 1.5, 'b': 0.5}, 2.5),
                                    ({'a': (6.0, 4.0), 'b': (nan, 2.0)}, {'a': 1.5, 'b': nan}, nan)):
            np.testing.assert_equal(averages_of(sums, {'a': 1.0, 'b': 2.0}), (average, loss))
            np.testing.assert_allclose(steps.total_loss({'a': 1.0, 'b': 2.0}, *steps.split_terms(sums)), loss)

    def test_texts_and_pictures_go_to_the_report_if_there_is_one(self):
        seen = []
        report = types.SimpleNamespace(text=lambda *a: seen.append(a), picture=lambda *a: seen.append(a))
        for target in (None, report):
            snapshot = Snapshot(None, None, 7, target)
            snapshot.text('a', 'b')
            snapshot.picture('c', 'd')
        self.assertEqual(seen, [(7, 'a', 'b'), (7, 'c', 'd')])

    def test_what_evaluators_of_one_class_show_has_their_names(self):
        class Shows:
            def __call__(self, snapshot, batches):
                snapshot.text('texts', batches)
                return {}

        class Alone(Shows):
            pass

        seen = []
        run = types.SimpleNamespace(evaluators={'valid': Shows(), 'test': Shows(), 'other': Alone()})
        snapshot = Snapshot(run, None, 7, types.SimpleNamespace(text=lambda *a: seen.append(a)))
        for name in run.evaluators:
            snapshot.evaluate(name, f'of {name}')
        self.assertEqual(seen, [(7, 'valid_texts', 'of valid'), (7, 'test_texts', 'of test'), (7, 'texts', 'of other')])


if __name__ == '__main__':
    absltest.main()
