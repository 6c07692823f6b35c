import types

import numpy as np
from absl.testing import absltest, parameterized

from transformer.readers.rows import outputs
from transformer.tasks.masked import MaskedTokens


class OutputsTest(parameterized.TestCase):
    @parameterized.parameters((('logits',), True), (('hidden',), False))
    def test_logits_of_masked_words_are_computed_at_their_places_alone(self, names, wanted):
        """Also of a task that asks for them everywhere: a batch of those may not fit into memory."""
        given, whole = [], np.arange(24.0).reshape(2, 4, 3)

        def apply(masked=None, **inputs):
            given.append(masked is not None)
            logits = whole if masked is None else np.take_along_axis(whole, masked[..., None], 1)
            return {'logits': logits, 'hidden': whole}

        rows = {name: np.zeros((2, 4), np.int32) for name in ('inputs', 'segments', 'positions', 'types')}
        batch = rows | {'masked': np.array([[1, 3], [0, 2]]), 'example_weights': np.ones(2)}
        snapshot = types.SimpleNamespace(apply=apply, run=types.SimpleNamespace(task=MaskedTokens(everywhere=True)),
                                         data=types.SimpleNamespace(shapes={'masked': ((2, 2), np.int32)}))
        found = np.stack([row[names[0]] for row in outputs(snapshot, [batch], names)])
        self.assertEqual(given, [wanted])
        np.testing.assert_array_equal(found, whole[[[0], [1]], batch['masked']] if wanted else whole)


if __name__ == '__main__':
    absltest.main()
