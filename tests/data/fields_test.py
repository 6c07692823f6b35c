from absl.testing import absltest

from data import fields


class FieldsTest(absltest.TestCase):
    def test_positive(self):
        fields.positive(length=1, workers=0)
        with self.assertRaisesRegex(ValueError, 'data.length=0'):
            fields.positive(length=0, workers=0)
        with self.assertRaisesRegex(ValueError, 'data.workers=-1'):
            fields.positive(length=1, workers=-1)

    def test_one_of(self):
        with self.assertRaisesRegex(ValueError, "data.packing='best' is not known; it takes 'a', 'b'"):
            fields.one_of('packing', 'best', ('a', 'b'))


if __name__ == '__main__':
    absltest.main()
