from absl.testing import absltest, parameterized

from data import fields


def shift(pixels=1, fill='zero'):
    return pixels, fill


class FieldsTest(parameterized.TestCase):
    def test_call(self):
        read = fields.call(" Shift(pixels=3, fill='edge') ", {'Shift': shift}, 'data.steps')
        self.assertEqual(read, ('Shift', {'pixels': 3, 'fill': 'edge'}))
        self.assertEqual(fields.call('Shift()', {'Shift': shift}, 'data.steps'), ('Shift', {}))

    def test_a_whole_number_is_a_float_where_one_is_wanted(self):
        _, keywords = fields.call('Scale(by=2)', {'Scale': lambda by=0.5: by}, 'data.steps')
        self.assertEqual((keywords, type(keywords['by'])), ({'by': 2.0}, float))

    @parameterized.parameters(
        'Shift', 'Shift(3)', 'Shift(', 'Flip()', 'Shift(pixel=3)', "Shift(pixels='3')", 'Shift(pixels=1+1j)',
        'Shift(pixels=__import__("os"))', 'Shift(**{})', 'os.Shift()', '',
    )  # fmt: skip
    def test_anything_else_is_refused_with_the_signature(self, expression):
        with self.assertRaisesRegex(ValueError, r"^data.steps=.*it takes Shift\(pixels=1, fill='zero'\)"):
            fields.call(expression, {'Shift': shift}, 'data.steps')

    @parameterized.parameters(
        ('Shfit()', r"there is no 'Shfit' \(did you mean 'Shift'\?\)"),
        ('Rotate()', "there is no 'Rotate';"),
        ('Shift(pixel=3)', r"Shift has no keyword 'pixel' \(did you mean 'pixels'\?\)"),
        ("Shift(pixels='3')", "pixels must be of type int, not '3';"),
        ('Shift(pixels=True)', 'pixels must be of type int, not True;'),
    )
    def test_what_is_wrong_is_named(self, expression, message):
        with self.assertRaisesRegex(ValueError, message):
            fields.call(expression, {'Shift': shift}, 'data.steps')

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
