import pathlib

from absl.testing import absltest, parameterized

from data.sources import image_tables
from data.sources.files import File
from data.sources.image_tables import Told
from data.sources.tables import Table

IMAGES = {f'{folder}/{number}.png': f'file {number}' for folder, number in (('cat', 0), ('cat', 1), ('dog', 2), ('dog', 3))}


class OfTableTest(parameterized.TestCase):

    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.create_tempdir().full_path, 'photos')

    def read(self, *rows, features='', path='labels.csv'):
        path = self.folder.parent / path
        path.write_text('\n'.join(rows) + '\n')
        return image_tables.of_table(Table(File(str(path), path.name)), IMAGES, str(self.folder), Told(features), str(path))

    def test_parts(self):
        found = self.read('file,label,Split', '0.png,a,train', '1.png,b,Training', '2.png,a,dev', '3.png,b,TEST').apart()
        self.assertEqual({part: sorted(one.pairs) for part, one in found.items()}, {
            'train': [('file 0', 'a'), ('file 1', 'b')], 'dev': [('file 2', 'a')], 'test': [('file 3', 'b')]})

    @parameterized.parameters('vla', 'holdout', '')
    def test_a_value_that_is_no_part_is_said(self, value):
        found = self.read('file,label,split', '0.png,a,train', f'1.png,b,{value}', '2.png,a,test', '3.png,b,test')
        self.assertEqual({*found.apart()}, {'train'})
        self.assertRegex(found.notes[0], f"^the column 'split' makes no parts, as .*labels.csv:3 has '{value}' in it; expected")

    def test_an_image_in_two_parts_is_refused(self):
        with self.assertRaisesRegex(ValueError, "labels.csv:3 puts '0.png' into 'test', and a line before it into 'train'"):
            self.read('file,label,split', '0.png,a,train', '0.png,a,test')

    def test_the_column_of_classes_is_none_of_parts(self):
        found = self.read('file,split', *(f'{number}.png,{("train", "test")[number % 2]}' for number in range(4)),
                          features='file,split')
        self.assertEqual({*found.apart()}, {'train'})
        self.assertEqual(sorted(label for _, label in found.pairs), ['test', 'test', 'train', 'train'])

    def test_paths_as_seen_from_elsewhere(self):
        found = self.read('file,label', '../input/photos/cat/0.png,a', 'x/../../photos/cat/1.png,b',
                          f'{self.folder.parent}/y/../photos/dog/2.png,a', '/kaggle/photos/dog/3.png,b')
        self.assertEqual(sorted(found.pairs), [('file 0', 'a'), ('file 1', 'b'), ('file 2', 'a'), ('file 3', 'b')])
        for name in ('../others/cat/0.png', '../cat/0.png', '../input/photos/0.txt', '../../photos2/cat/0.png'):
            with self.assertRaisesRegex(ValueError, f"names '{name}', which is none of the 4 images"):
                self.read('file,label', f'{name},a')

    @parameterized.parameters(
        (['file,label', '0.png,a', '1.png,b,c'], 'has 3 columns, and the header has 2'),
        (['0.png,a', '1.png,b'], "data.features names the column 'name', which"),
        (['<!doctype html><html><body>x</body></html>', '0.png,a'], 'page of HTML'),
        (['file,label', '"0.png,a', '1.png,b'], 'cannot be read as quoted fields'))
    def test_no_field_is_advised_that_images_lack(self, rows, message):
        with self.assertRaisesRegex(ValueError, message) as raised:
            self.read(*rows, features='name,kind' if 'features' in message else '')
        self.assertNotRegex(str(raised.exception), r'data\.(header|quotes|encoding)')
        self.assertRegex(str(raised.exception), r'[^,;] ?\w+\.$')

    def test_a_table_of_two_bytes_a_letter(self):
        path = self.folder.parent / 'labels.csv'
        path.write_bytes('file,label\n0.png,a\n'.encode('utf-16-le'))
        with self.assertRaisesRegex(ValueError, 'looks like UTF-16-LE without a byte order mark; convert the file to UTF-8.$'):
            image_tables.of_table(Table(File(str(path), 'labels.csv')), IMAGES, str(self.folder), Told(), str(path))


if __name__ == '__main__':
    absltest.main()
