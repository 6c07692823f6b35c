import pathlib
import types
from unittest import mock

import numpy as np
from absl.testing import absltest

from transformer.conversion import arrays


class ArraysTest(absltest.TestCase):
    def test_what_is_too_large_or_of_no_use_is_not_loaded(self):
        path = pathlib.Path(self.create_tempdir().full_path, 'a.npz')
        ids = np.ones((30, 30), np.int32)
        for named, message in (({'input_ids': ids}, 'a.npz holds 3,728 bytes; give fewer rows, at most 0 MB'),
                               ({'input_id': ids}, "has an array 'input_id', which this model does not take; did you mean"),
                               ({'x': ids}, 'which this model does not take; it takes input_ids')):
            np.savez_compressed(path, **named)
            self.assertLess(path.stat().st_size, 1000)
            with (mock.patch.object(arrays, '_LARGEST', 1000), mock.patch.object(np, 'load', side_effect=AssertionError),
                  self.assertRaisesRegex(ValueError, message)):
                arrays.arrays_of(path, ['input_ids'])
        np.savez(path, input_ids=ids)
        np.testing.assert_array_equal(arrays.arrays_of(path, ['input_ids'])['input_ids'], ids)

    def test_arrays_without_rows_or_tokens_are_refused(self):
        for name, shape in (('pixel_values', (0, 3, 8, 8)), ('input_ids', (0, 5)), ('input_ids', (1, 0))):
            family = types.SimpleNamespace(limits=lambda model, name=name: {name: 9}, use='classes')
            given = {name: np.zeros(shape, np.int32 if name == 'input_ids' else np.float32)}
            with self.assertRaisesRegex(ValueError, f'^a.npz has {name} .*, and nothing in {name}; give at least one row that'):
                arrays.require_fit(given, family, None, pathlib.Path('a.npz'))

    def test_a_decoder_without_inputs_is_refused(self):
        family = types.SimpleNamespace(limits=lambda model: {'input_ids': 9, 'decoder_input_ids': 9}, use='pairs')
        model = types.SimpleNamespace(head=types.SimpleNamespace(causal=True))
        with self.assertRaisesRegex(ValueError, r'^a.npz has input_ids int64\[1, 3\], and no decoder_input_ids; add that'):
            arrays.require_fit({'input_ids': np.ones((1, 3), np.int64)}, family, model, pathlib.Path('a.npz'))


if __name__ == '__main__':
    absltest.main()
