import re
import types

from absl.testing import absltest, parameterized

from data import splits


class SplitsTest(parameterized.TestCase):
    @parameterized.parameters(
        ('train', 'train', 0, 10),
        ('train[:90%]', 'train', 0, 9),
        ('train[90%:]', 'train', 9, 10),
        ('train[2:-3]', 'train', 2, 7),
        ('train[-20%:]', 'train', 8, 10),
        (' train[ 1 : 12 ] ', 'train', 1, 10),
        ('train[2:8][50%:]', 'train', 5, 8),
        ('train[-4:][1:][:1]', 'train', 7, 8),
        ('valid-[a].txt[1:]', 'valid-[a].txt', 1, 4),
    )
    def test_parse(self, expression, name, start, stop):
        self.assertEqual(splits.parse(expression, {'train': 10, 'valid-[a].txt': 4}), (name, start, stop))

    @parameterized.parameters('1%', '33.3%', '50%', '99.9%')
    def test_neighbours_share_nothing_and_leave_nothing_out(self, share):
        for size in (1, 7, 100, 1234567):
            below, above = splits.Slice('', share).bounds(size), splits.Slice(share, '').bounds(size)
            self.assertEqual((below[0], below[1], above[1]), (0, above[0], size))

    def test_slices_that_share_nothing_of_any_length(self):
        of = lambda expression: splits.read(expression)[1]
        for one, other, apart in (('a[:90%]', 'a[90%:95%]', True), ('a[:10]', 'a[10:]', True), ('a[:11]', 'a[10:]', False),
                                  ('a[:90%]', 'a[80%:]', False), ('a[:10]', 'a[10%:]', False), ('a[:-5]', 'a[-5:]', False),
                                  ('a', 'a[:5]', False), ('a[:50%][50%:]', 'a[50%:]', True),
                                  ('a[:60%][:95%]', 'a[50%:]', False), ('a[30%:][20%:]', 'a[:44%]', False),
                                  ('a[:20%]', 'a[20%:][:50%][3:]', True)):
            self.assertEqual(of(one).apart(of(other)), apart, (one, other))

    @parameterized.parameters('', 'train[5]', 'train[a:b]', 'train[:90%%]', 'train[1:2:3]', 'train[1.5:]', 'train[:9',
                              'train:9]')
    def test_unreadable(self, expression):
        with self.assertRaisesRegex(ValueError, 'cannot be read' if ':' in expression or not expression else 'names no part'):
            splits.parse(expression, {'train': 10})

    @parameterized.parameters('train[:150%]', 'train[-101%:]', 'train[:50%][100.5%:]')
    def test_percentages_go_to_100(self, expression):
        with self.assertRaisesRegex(ValueError, r'has -?\d+(.5)?%, and percentages go from 0% to 100%; write such as train'):
            splits.parse(expression, {'train': 10})
        self.assertEqual(splits.parse('train[-100%:100%]', {'train': 10}), ('train', 0, 10))

    @parameterized.parameters('train[50%:10%]', 'valid[6:5]', 'train[:90%][3:2]')
    def test_a_slice_that_ends_before_it_starts(self, expression):
        """The message has the expression that was given, not the one that it stands for."""
        data = types.SimpleNamespace(train='train', valid='train[90%:]', test='')
        message = re.escape(f'The split {expression!r} is empty: ') + '.*write the smaller number'
        with self.assertRaisesRegex(ValueError, message):
            splits.expression(data, expression)

    def test_a_source_may_have_a_test_part_of_its_own(self):
        data = types.SimpleNamespace(train='train[:90%]', valid='train[90%:]', test='')
        self.assertEqual(splits.expression(data, 'test[:5]', ('train', 'test')), 'test[:5]')
        data.train = 'all'
        with self.assertRaisesRegex(ValueError, 'data.test is empty.*eval.py --path=FILE'):
            splits.expression(data, 'test', ('train', 'test'))

    @parameterized.parameters('[a-z]*.txt', 'a[b', 'C:name', 'x[1]')
    def test_names_with_odd_characters(self, name):
        self.assertEqual(splits.read(name), (name, splits.Slice()))

    def test_a_slice_of_a_split_of_the_config(self):
        data = types.SimpleNamespace(train='all[:50%]', valid='all[50%:]', test='')
        self.assertEqual(splits.expression(data, 'valid[:10%]'), 'all[50%:][:10%]')
        self.assertEqual(splits.expression(data, 'all[:10%]'), 'all[:10%]')
        with self.assertRaisesRegex(ValueError, 'data.test is empty, so there is no such split'):
            splits.expression(data, 'test[:1]')

    def test_unknown_name_lists_the_known(self):
        with self.assertRaisesRegex(ValueError, 'known are test, train, and train, valid and test of the config'):
            splits.parse('dev', {'train': 10, 'test': 2})
        with self.assertRaisesRegex(ValueError, "did you mean 'test'"):
            splits.parse('tset[:1]', {'train': 10, 'test': 2})
        with self.assertRaisesRegex(ValueError, "did you mean 'test'"):  # data.test
            splits.parse('tset', {'all': 12})

    def test_empty(self):
        with self.assertRaisesRegex(ValueError, "'train' has 3 examples"):
            splits.parse('train[:10%]', {'train': 3})


if __name__ == '__main__':
    absltest.main()
