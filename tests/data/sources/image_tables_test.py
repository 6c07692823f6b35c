import pathlib
import unicodedata

import pyarrow
from absl.testing import absltest, parameterized
from pyarrow import parquet

from data.sources import image_tables
from data.sources.files import File
from data.sources.image_tables import Told
from data.sources.tables import Table

IMAGES = {f'{folder}/{number}.png': f'file {number}' for folder, number in (('cat', 0), ('cat', 1), ('dog', 2), ('dog', 3))}


class OfTableTest(parameterized.TestCase):

    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.create_tempdir().full_path, 'photos')

    def read(self, *rows, features='', images=IMAGES):
        path = self.folder.parent / 'labels.csv'
        path.write_text('\n'.join(rows) + '\n')
        return self.of(path, features, images)

    def of(self, path, features='', images=IMAGES):
        return image_tables.of_table(Table(File(str(path), path.name)), images, str(self.folder), Told(features), str(path))

    def test_parts(self):
        found = self.read('file,label,Split', '0.png,a,train', '1.png,b,Training', '2.png,a,dev', '3.png,b,TEST').apart()
        self.assertEqual({part: sorted(one.pairs) for part, one in found.items()}, {
            'train': [('file 0', 'a'), ('file 1', 'b')], 'dev': [('file 2', 'a')], 'test': [('file 3', 'b')]})

    @parameterized.parameters('vla', 'holdout', '')
    def test_a_value_that_is_no_part_beside_parts_is_refused(self, value):
        said = repr(value) if value else 'nothing'
        with self.assertRaisesRegex(ValueError, f"csv:3 has {said} in the column 'split', and other lines test and train"):
            self.read('file,label,split', '0.png,a,train', f'1.png,b,{value}', '2.png,a,test', '3.png,b,test')

    def test_a_column_with_other_things_beside_train_makes_no_parts(self):
        found = self.read('file,label,set', '0.png,a,train', '1.png,b,bus')
        self.assertEqual({*found.apart()}, {'train'})
        self.assertRegex(found.notes[-1], "labels.csv:3 has 'bus' in the column 'set', which makes no parts, as they are")

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
        for name in ('../input/photos/0.txt', '..', '../cat/7.png', 'others/0.png'):
            with self.assertRaisesRegex(ValueError, f"names '{name}', which is none of the 4 images"):
                self.read('file,label', f'{name},a')

    @parameterized.parameters('', '/home/ann/photos/', '../input/', 'data/train/', 'C:\\set\\', './x/../', '..//')
    def test_names_that_repeat_in_folders_are_told_apart_by_these(self, above):
        images = {f'{folder}/{number}.png': f'{folder} {number}' for folder in ('cat', 'dog') for number in range(2)}
        for ending in ('.png', '.PNG', ''):
            found = self.read('file,label', *(f'{above}{name[:-4]}{ending},{name[:3]}' for name in images), images=images)
            self.assertEqual(sorted(found.pairs), sorted((name, name[:3]) for name in images.values()))
        with self.assertRaisesRegex(ValueError, "'1.png', which is several images in .*photos .cat/1.png, dog/1.png.; correct"):
            self.read('file,label', 'cat/0.png,cat', '1.png,cat', images=images)

    def test_files_of_two_folders_are_not_one(self):
        for apart in '/\\':
            with self.assertRaisesRegex(ValueError, "names 'b/0.png', and a line before it 'a/0.png', but of these .* only"):
                self.read('file,label', f'a{apart}0.png,cat', f'b{apart}0.png,cat', images={'0.png': 'zero'})

    def test_accents_of_a_mac(self):
        names = [unicodedata.normalize(form, 'caf\u00e9.png') for form in ('NFD', 'NFC')]
        self.assertNotEqual(*names)
        for on_disk, written in (names, names[::-1]):
            self.assertEqual(self.read('file,label', f'{written},a', images={on_disk: 'file'}).pairs, [('file', 'a')])

    @parameterized.parameters(
        ('1.jpg', r'none of the 4 images in [^ ]* \(there is cat/1.png\); correct the line or take it out.$'),
        ('9.png', r'none of the 4 images in [^ ,]*; correct'),
        ('9.png,b|8.png', r'none of the 4 images in [^ ,]*, and so are those of 1 more of 3 rows; correct'))
    def test_rows_without_an_image(self, names, message):
        rows = [f'{name},b' for name in names.replace(',b', '').split('|')]
        with self.assertRaisesRegex(ValueError, f"labels.csv:3 names '{rows[0][:-2]}', which is {message}"):
            self.read('file,label', '0.png,a', *rows)

    @parameterized.parameters(
        ('img_0.png,rare', *(f'img_{number}.png,common' for number in range(1, 12))),  # as if 'rare' were a name
        ('img_0,rare', *(f'img_{number},common' for number in range(1, 12))))
    def test_a_line_that_names_an_image_is_no_header(self, *rows):
        found = self.read(*rows, images={f'img_{number}.png': number for number in range(12)})
        self.assertEqual(sorted(found.pairs), [(number, 'common' if number else 'rare') for number in range(12)])

    @parameterized.parameters(('filename,breed', ''), ('img_name, kind', 'img_name,kind'), ('a,b', ''), ('a,b', '1,2'))
    def test_a_line_above_images_is_a_header(self, header, features):
        found = self.read(header, '0.png,a', '1.png,b', features=features)
        self.assertEqual(sorted(found.pairs), [('file 0', 'a'), ('file 1', 'b')])

    def test_cells_that_are_no_path(self):
        path = self.folder.parent / 'labels.parquet'
        parquet.write_table(pyarrow.table({'image': [{'bytes': b'x'}], 'label': ['a'], 'split': [None]}), path)
        with self.assertRaisesRegex(ValueError, "row 1 has the file .*bytes.*; expected the path of one"):
            self.of(path)

    def test_no_value_in_a_column_of_parts(self):
        path = self.folder.parent / 'labels.parquet'
        write = lambda column, part: parquet.write_table(pyarrow.table({
            'image': ['0.png', '1.png'], 'label': ['a', 'b'], column: [part, None]}), path)
        write('set', 'train')
        self.assertRegex(self.of(path).notes[-1], "row 2 has nothing in the column 'set'")
        for part in ('train', 'test'):  # the others may be those of training, or of no part
            write('split', part)
            with self.assertRaisesRegex(ValueError, f"row 2 has nothing in the column 'split', and other lines {part}; exp"):
                self.of(path)

    def test_nothing_to_read(self):
        with self.assertRaisesRegex(ValueError, 'labels.csv is empty; expected a file and its class in each line'):
            self.read('')
        with self.assertRaisesRegex(ValueError, 'labels images, of which .*photos has none; put it beside its images'):
            self.read('file,label', '0.png,a', images={})

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
            self.of(path)


if __name__ == '__main__':
    absltest.main()
