import io
import json
import os
import tarfile
import time
import warnings
import zipfile
from unittest import mock

import numpy as np
import pyarrow
from absl.testing import absltest, parameterized
from PIL import Image
from pyarrow import parquet

from data.images.labelled import Images
from data.sources import image_folders, image_tables

ROWS = [(f'{number}.png', ('cat', 'dog')[number % 2]) for number in range(12)]


class ImageFoldersTest(parameterized.TestCase):
    def write(self, *names, size=(5, 6), mode='L', root=None):
        for number, name in enumerate(names):
            path = (root or self.folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new(mode, size, number if mode == 'L' else None).save(path)

    def table(self, name, contents):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(contents)
        return path

    def flat(self):
        self.write(*(name for name, _ in ROWS))
        return self.table('labels.csv', 'file,label\n' + ''.join(f'{name},{label}\n' for name, label in ROWS))

    def opened(self, path=None, **fields):
        fields = {'train': 'all', 'valid': '', 'batch_size': 4, **fields}
        return Images(path=str(path or self.folder), **{'source': 'folder', **fields}).open(None)

    def labels(self, opened, split='all'):
        """{level of grey: class} of the images; `write` numbers them by their level."""
        found = {}
        for batch in opened.evaluation(split, 5):
            for image, label, weight in zip(batch['image'], batch['label'], batch['example_weights'], strict=True):
                if weight:
                    found[round(float(image[0, 0, 0]) * 255)] = opened.classes[label]
        return found

    def zipped(self, folder, name='packed.zip', around=''):
        path = self.folder.parent / name
        with zipfile.ZipFile(path, 'w') as archive:
            for file in sorted(folder.rglob('*')):
                archive.write(file, around + file.relative_to(folder).as_posix())
        return path

    def test_table_of_classes(self):
        path, wanted = self.flat(), {number: label for number, (_, label) in enumerate(ROWS)}
        opened = self.opened()
        self.assertEqual(self.labels(opened), wanted)
        self.assertRegex(opened.describe(), "12 images of 6x5x1 to train on; 2 classes; file from 'file' and class from "
                                            "'label' of .*/labels.csv$")
        again = self.opened(path)
        self.assertEqual(self.labels(again), wanted)
        self.assertEqual(again.digest('all'), opened.digest('all'))
        self.assertEqual(self.labels(opened, 'train[:50%]'), self.labels(again, 'train[:50%]'))
        scored = [batch['label'] for batch in again.score([str(path)], 12)]
        self.assertEqual(np.bincount(np.concatenate(scored)).tolist(), [6, 6])

    @parameterized.parameters(
        ('meta.jsonl', '\n'.join(json.dumps({'text': 'x', 'file_name': name, 'category': label}) for name, label in ROWS), ''),
        ('meta.tsv', 'id\ttitle\tclass\n' + ''.join(f'{name[:-4]}\tT\t{label}\n' for name, label in ROWS), ''),
        ('meta.csv', ''.join(f'./{name},{label}\n' for name, label in ROWS), ''),  # without a header
        ('meta.csv', 'file,label\n0.png,cat\n1.png,dog\n', ''),  # a header that few rows do not show
        ('meta.csv', 'a,b,c\n' + ''.join(f'1,{label},/home/x/{name}\n' for name, label in ROWS), 'c,b'),
        ('meta.csv', ''.join(f'1,{label},{name}\n' for name, label in ROWS), '3,2'),
    )
    def test_forms_of_tables(self, name, contents, features):
        self.write(*(name for name, _ in ROWS))
        self.table(name, contents)
        labels = self.labels(self.opened(features=features))
        self.assertEqual(labels, {number: label for number, (_, label) in enumerate(ROWS) if number in labels})
        self.assertIn(len(labels), (2, 12))

    def test_parquet_and_images_in_a_folder_of_their_own(self):
        self.write(*(f'images/{name}' for name, _ in ROWS))
        parquet.write_table(pyarrow.table({'image_id': list(range(12)), 'label': [10 - number % 3 for number in range(12)]}),
                            self.folder / 'meta.parquet')
        opened = self.opened()
        self.assertEqual(opened.classes, ('8', '9', '10'))  # in the order of numbers
        self.assertEqual(self.labels(opened), {number: str(10 - number % 3) for number in range(12)})

    def test_a_file_in_a_folder_is_that_of_this_folder(self):
        self.write('a/1.png', 'a/b/2.png', '3.png', '4.png')
        rows = 'file,label\na/1.png,cat\n2.png,dog\n/home/x/3.png,cat\nx/4,dog\n'
        for name in ('a/b/2', 'x/a/b/2.png', 'x\\a\\b\\2'):
            path = self.table('labels.csv', f'{rows}{name},dog\n')
            self.assertEqual(self.labels(self.opened(path)), {0: 'cat', 1: 'dog', 2: 'cat', 3: 'dog'})
        for name in ('missing/1.png', 'b/1.png', 'b/2.png', 'xa/1.png', 'missing/2'):
            path = self.table('labels.csv', f'{rows}{name},cat\n')
            with self.assertRaisesRegex(ValueError, f"labels.csv:6 names '{name}', which is none of the 4 images in "):
                self.opened(path)

    def test_table_in_each_part(self):
        for part, rows in (('train', ROWS[:8]), ('test', ROWS[8:])):
            self.write(*(f'{part}/{name}' for name, _ in rows))
            self.table(f'{part}/metadata.csv', 'file_name,label\n' + ''.join(f'{name},{label}\n' for name, label in rows))
        opened = self.opened(train='train', valid='test')
        self.assertEqual([opened.evaluation(split, 4).facts['images'] for split in ('train', 'valid')], [8, 4])

    @parameterized.parameters('', 'zip')
    def test_tables_beside_the_parts(self, packed):
        parts = {'train': ROWS, 'test': ROWS[:4]}
        rows = {part: ''.join(f'{name},{label}\n' for name, label in of) for part, of in parts.items()}
        self.write(*(f'{part}/{name}' for part, of in parts.items() for name, _ in of))
        self.table('train.csv', 'file,label\n' + rows['train'])
        self.table('sample.csv', 'id,label\n0,cat\n')
        path = lambda: self.zipped(self.folder) if packed else self.folder
        opened = self.opened(path(), train='train')
        self.assertEqual((opened.classes, opened.evaluation('train', 4).facts), (('cat', 'dog'), {'images': 12}))
        self.assertRegex(opened.describe(), (
            r"class from 'label' of [^ ]*train.csv \(CAUTION: the folder 'test' in .*, without classes or of no known name, is "
            r'left out; 1 table in .* is left out \(sample.csv\), as the folders are the classes; set data.path'))
        self.table('test.tsv', rows['test'].replace(',', '\t'))
        opened = self.opened(path(), train='train', valid='test')
        self.assertEqual([opened.evaluation(split, 4).facts['images'] for split in ('train', 'valid')], [12, 4])
        if not packed:
            scored = np.concatenate([batch['label'] for batch in opened.score([str(self.folder / 'test.tsv')], 4)])
            self.assertEqual(np.bincount(scored).tolist(), [2, 2])
        for name in ('train.csv', 'test.tsv', 'sample.csv'):
            (self.folder / name).unlink()
        with self.assertRaisesRegex(FileNotFoundError, "has the folders 'test', 'train' of images, but no folders of classes"):
            self.opened(path())
        self.table('labels.csv', 'file,label\n' + ''.join(f'{part}/{line}\n' for part in rows for line in rows[part].split()))
        opened = self.opened(path(), train='train', valid='test')
        self.assertEqual([opened.evaluation(split, 4).facts['images'] for split in ('train', 'valid')], [12, 4])
        self.assertIn("class from 'label' of", opened.describe())
        self.table('labels.csv', 'file,label\ntest/0.png,cat\n')
        with self.assertRaisesRegex(ValueError, 'has labelled images of test, but none of train; add'):
            self.opened(path())

    def test_a_table_beside_folders_of_classes_is_mentioned(self):
        self.write(*(f'{label}/{name}' for name, label in ROWS), '__MACOSX/cat/0.png', '.hidden/0.png')
        self.table('labels.csv', 'file,label\n0.png,x\n')
        opened = self.opened()
        self.assertEqual(opened.classes, ('cat', 'dog'))
        self.assertRegex(opened.describe(), r'1 table in .* is left out \(labels.csv\), as the folders are the classes; set')

    @parameterized.parameters(
        ('file,label\n0.png,cat\nnone.png,dog\n', r"labels.csv:3 names 'none.png', which is none of the 12 images in"),
        ('file,label\n0.png,cat\n../../../etc/passwd,dog\n', 'labels.csv:3 names .*which is none of the 12 images'),
        ('file,label\n./x/../0.png,cat\n../other/0.jpg,dog\n', "'../other/0.jpg', which is none of the 12 .*there is 0.png"),
        ('file,label\n0.png,cat\n0.png,dog\n', "labels.csv:3 gives '0.png' the class 'dog', and a line before it 'cat'"),
        ('file,title,colour\n0.png,x,red\n1.png,y,red\n2.png,z,red\n3.png,a,red\n4.png,b,red\n5.png,c,red\n',
         "has 'file', 'title', 'colour', which leaves open .*; set data.features to both"),
        ('file,label\n0.png,\n1.png,dog\n', 'labels.csv:2 has nothing in column'),
        ('file,label\n', 'labels.csv has no rows'),
    )
    def test_tables_that_cannot_be_used(self, contents, message):
        self.flat()
        self.table('labels.csv', contents)
        with self.assertRaisesRegex(ValueError, message):
            self.opened()

    def test_a_table_in_another_encoding(self):
        self.flat()
        (self.folder / 'labels.csv').write_bytes('file,label\n0.png,größe\n'.encode('latin-1'))
        with self.assertRaisesRegex(ValueError, r'labels.csv:2 is not UTF-8 \(.*\); convert the file to UTF-8\.$'):
            self.opened()

    @parameterized.parameters('split', 'Set', 'subset')
    def test_a_table_that_says_the_part_of_each_image(self, column):
        self.write(*(name for name, _ in ROWS))
        parts = [('Train', 'test', 'val')[number % 3] for number in range(12)]
        path = self.table('labels.csv', f'file,label,{column}\n' + ''.join(
            f'{name},{label},{part}\n' for (name, label), part in zip(ROWS, parts)))
        for given in (None, path, self.zipped(self.folder)):
            opened = self.opened(given, train='train', valid='val', test='test')
            found = {split: {*self.labels(opened, split)} for split in ('train', 'valid', 'test')}
            self.assertEqual(found, {'train': {0, 3, 6, 9}, 'valid': {2, 5, 8, 11}, 'test': {1, 4, 7, 10}})
            self.assertIn(f", part from '{column}'", opened.describe())
        self.assertLen(self.labels(self.opened(valid='val'), 'all'), 12)
        for given in (path, self.folder):  # not those of training as well
            with self.assertRaisesRegex(ValueError, 'has the parts train and val and test; give a folder or a'):
                self.opened().score([str(given)], 12)

    @parameterized.parameters(('train,0,train,', 4), ('A,test,B,test', 4))
    def test_a_column_of_other_things_is_none_of_parts(self, values, count):
        self.write(*(name for name, _ in ROWS[:4]))
        self.table('labels.csv', 'file,label,set\n' + ''.join(
            f'{name},{label},{value}\n' for (name, label), value in zip(ROWS, values.split(','))))
        opened = self.opened()
        self.assertLen(self.labels(opened, 'train'), count)
        self.assertNotIn('part from', opened.describe())
        self.assertRegex(opened.describe(), "CAUTION: .* in the column 'set', which makes no parts")

    def test_a_column_of_parts_without_training(self):
        self.write(*(name for name, _ in ROWS))
        rows = lambda *parts: 'file,label,set\n' + ''.join(
            f'{name},{label},{parts[number % 3]}\n' for number, (name, label) in enumerate(ROWS))
        path = self.table('labels.csv', rows('trainval', 'trainval', 'test'))
        opened = self.opened(train='train', test='test')
        self.assertEqual([len(self.labels(opened, split)) for split in ('train', 'test')], [8, 4])
        path.write_text(rows('valid', 'valid', 'test'))
        for given in (self.folder, path):
            with self.assertRaisesRegex(ValueError, 'has labelled images of valid and test, but none of train; add'):
                self.opened(given)
        path.write_text(rows('test', 'test', 'test'))
        trained = self.folder.parent / 'trained'
        self.write('cat/0.png', 'dog/1.png', root=trained)
        scored = np.concatenate([batch['label'] for batch in self.opened(trained).score([str(path)], 12)])
        self.assertEqual(np.bincount(scored).tolist(), [6, 6])

    @parameterized.parameters('', 'train/')
    def test_columns_that_are_named_are_read_whatever_the_folders(self, above):
        self.write(*(f'{above}{"ab"[number // 6]}/{name}' for number, (name, _) in enumerate(ROWS)))
        name = f'{above[:-1] or "index"}.csv'
        self.table(name, 'fname,breed\n' + ''.join(f'{name},{label}\n' for name, label in ROWS))
        self.assertEqual(self.labels(self.opened(features='fname,breed')), {n: label for n, (_, label) in enumerate(ROWS)})
        (self.folder / name).unlink()
        with self.assertRaisesRegex(ValueError, "data.features='fname,breed' names columns of a table, and .* has none beside"):
            self.opened(features='fname,breed')

    @parameterized.parameters('train.csv', 'labels.csv')
    def test_a_table_above_training_of_other_classes_than_its_folders(self, name):
        self.write(*(f'train/{"01"[number // 6]}/{name}' for number, (name, _) in enumerate(ROWS)), 'test/0/12.png')
        self.table(name, 'file,label\n' + ''.join(f'{name},{label}\n' for name, label in ROWS))
        with self.assertRaisesRegex(ValueError, "folders '0', '1' in .*train would be the classes, but by .* is 'cat' and "):
            self.opened()

    @parameterized.parameters(
        ('samples', 'labels.csv', ''), ('samples', '', ''), ('', 'labels.csv', ''), ('', '', 'fname,breed'))
    def test_one_table_of_the_images_of_all_parts(self, more, path, features):
        """Whatever else lies there, and whether the folder or the table is given."""
        self.write(*(f'train/x/{number}.png' for number in range(4)), 'test/x/4.png', 'test/x/5.png')
        self.write(*[f'{more}/6.png'] * bool(more))
        header = 'fname,breed' if features or more else 'file,label'
        self.table('labels.csv', f'{header}\n' + ''.join(
            f'{"train" if n < 4 else "test"}/x/{n}.png,{"ab"[n % 2]}\n' for n in range(6)))
        fields = {'features': header} if features or more else {}
        given = self.folder / path
        opened = self.opened(given, train='train', valid='test', **fields)
        self.assertEqual([{*self.labels(opened, split)} for split in ('train', 'valid')], [{0, 1, 2, 3}, {4, 5}])
        with self.assertRaisesRegex(ValueError, 'has the parts train and test; give a folder or a table'):
            opened.score([str(given)], 2)

    def test_a_table_above_folders_that_are_like_parts(self):
        self.write('Train/0.png', 'Train/1.png', 'Test/2.png', 'samples/3.png')
        path = self.table('labels.csv', 'fname,breed\nTrain/0.png,a\nTrain/1.png,b\nTest/2.png,a\n')
        for given in (self.folder, path):
            with self.assertRaisesRegex(ValueError, "folders 'Test', 'Train' in .* are no classes; name them test and train"):
                self.opened(given, features='fname,breed')
        path.write_text('fname,breed\nTrain/0.png,a\nTrain/1.png,b\n')
        self.assertEqual(self.labels(self.opened(path, features='fname,breed')), {0: 'a', 1: 'b'})

    def test_a_table_of_all_images_where_one_class_is_called_train(self):
        self.write('bus/0.png', 'train/1.png')
        path = self.table('labels.csv', 'file,label\nbus/0.png,x\ntrain/1.png,y\n')
        self.assertEqual(self.labels(self.opened(path)), {0: 'x', 1: 'y'})

    @parameterized.parameters(('0.png,cat\n1.png,dog\n', 'test.csv'), ('0.png,3\n1.png,0\n', 'sample_submission.csv'),
                              ('7.png,3\n8.png,0\n', 'sample_submission.csv'))
    def test_a_table_of_another_part_says_nothing_of_the_folders_of_training(self, rows, name):
        self.write('train/cat/0.png', 'train/cat/1.png', 'train/dog/2.png')
        self.write('test/7.png', 'test/8.png', *('test/0.png', 'test/1.png') * ('0.png' in rows))
        self.table(name, f'id,label\n{rows}')
        opened = self.opened(train='train')
        self.assertEqual(self.labels(opened, 'train'), {0: 'cat', 1: 'cat', 2: 'dog'})

    def test_columns_are_named_and_other_images_are_in_folders_of_classes(self):
        self.write(*(f'train/{name}' for name, _ in ROWS[:4]), 'val/cat/4.png', 'val/dog/5.png')
        self.table('train.csv', 'fname,breed\n' + ''.join(f'{name},{label}\n' for name, label in ROWS[:4]))
        opened = self.opened(train='train', valid='val', features='fname,breed')
        self.assertEqual([self.labels(opened, split) for split in ('train', 'valid')], [
            {0: 'cat', 1: 'dog', 2: 'cat', 3: 'dog'}, {4: 'cat', 5: 'dog'}])
        holdout = self.folder.parent / 'holdout'
        self.write('cat/0.png', 'dog/1.png', root=holdout)
        scored = np.concatenate([batch['label'] for batch in opened.score([str(holdout)], 2)])
        self.assertEqual(np.bincount(scored).tolist(), [1, 1])

    @parameterized.parameters('holdout/cat/4.png', 'test/4.png', 'Testing/dog/4.png')
    def test_a_score_of_one_part_leaves_no_folder_out(self, name):
        self.write('train/cat/0.png', 'train/dog/1.png', name)
        with self.assertRaisesRegex(ValueError, f"more than one part .the folder '{name.partition('/')[0]}' in .* is left out"):
            self.opened(train='train').score([str(self.folder)], 2)

    @parameterized.parameters('images', 'data/all')
    def test_parts_in_a_folder_around_them(self, around):
        names = [f'{around}/{part}/{number}.png' for number, part in enumerate(('train', 'train', 'test', 'test'))]
        self.write(*names)
        path = self.table('labels.csv', 'file,label\n' + ''.join(f'{name},{"ab"[n % 2]}\n' for n, name in enumerate(names)))
        for given in (self.folder, path):
            opened = self.opened(given, train='train', valid='test')
            self.assertEqual([{*self.labels(opened, split)} for split in ('train', 'valid')], [{0, 1}, {2, 3}])
            with self.assertRaisesRegex(ValueError, 'has the parts train and test; give a folder or a table'):
                opened.score([str(given)], 2)

    @parameterized.parameters('test', 'val')
    def test_a_table_of_a_folder_of_another_part_beside_one_of_no_part(self, part):
        self.write('photos/0.png', 'photos/1.png', f'{part}/2.png')
        path = self.table('labels.csv', f'file,label,by\nphotos/0.png,a,x\nphotos/1.png,b,x\n{part}/2.png,a,x\n')
        with self.assertRaisesRegex(ValueError, f"the folder '{part}' and in 'photos' of .*, of which none is train; give"):
            self.opened(path)

    def test_folders_of_parts_within_those_of_classes_are_mentioned(self):
        self.write('cat/train/0.png', 'cat/test/1.png', 'dog/train/2.png', 'dog/test/3.png')
        self.assertRegex(self.opened().describe(), "the folders 'test', 'train' in those of classes in .* are no parts of the")
        self.write('fox/4.png', 'test/5.png', root=(root := self.folder.parent / 'other'))
        self.assertRegex(self.opened(root).describe(), "CAUTION: the folder 'test' in .* is a class; parts of the data are")

    @parameterized.parameters(
        (('train/0.png', 'train/1.png', 'test/2.png'), {'train.csv': '0,a\n1,b\n', 'test.csv': '2\n'}, 'test'),
        (('train/0.png', 'train/1.png', 'test/2.png'), {'labels.csv': 'train/0.png,a\ntrain/1.png,b\n'}, 'test'))
    def test_a_score_of_a_table_of_one_part_leaves_no_folder_out(self, names, tables, left):
        self.write(*names)
        for name, rows in tables.items():
            self.table(name, ('id,label\n' if ',' in rows else 'id\n') + rows)
        opened = self.opened(train='train')
        self.assertEqual(self.labels(opened, 'train'), {0: 'a', 1: 'b'})
        with self.assertRaisesRegex(ValueError, f"more than one part .the folder '{left}' in .* is left out"):
            opened.score([str(self.folder)], 2)

    def test_a_score_reads_the_table_of_folders_of_classes(self):
        """Where it says parts, which the folders do not."""
        self.write('cat/0.png', 'cat/1.png', 'dog/2.png', 'dog/3.png')
        self.table('labels.csv', 'file,label,split\n0.png,cat,train\n1.png,cat,test\n2.png,dog,train\n3.png,dog,test\n')
        opened = self.opened(train='train', features='file,label')
        with self.assertRaisesRegex(ValueError, 'has the parts train and test; give a folder or a table'):
            opened.score([str(self.folder)], 2)

    def test_a_score_of_folders_of_training_with_a_class_of_this_name(self):
        self.write(*(f'train/{name}/{number}.png' for number, name in enumerate(('bus', 'car', 'train'))))
        opened = self.opened(train='train')
        for folder in (self.folder, self.folder / 'train'):
            scored = np.concatenate([batch['label'] for batch in opened.score([str(folder)], 3)])
            self.assertEqual(np.bincount(scored).tolist(), [1, 1, 1])

    def test_a_score_says_what_it_leaves_out(self):
        self.write('cat/0.png', 'dog/1.png', '2.png')
        (note,) = self.opened().score([str(self.folder)], 2).facts['notes']
        self.assertRegex(note, '1 image in .* itself without a folder of a class is left out')

    @parameterized.parameters('sample_submission.csv', 'test.csv')
    def test_tables_of_images_that_are_not_there(self, name):
        """Of numbers that images of training have too."""
        self.write('cat/0.png', 'cat/1.png', 'dog/2.png')
        self.table(name, 'id,label\n0,x\n1,y\n')
        self.assertEqual(self.labels(self.opened()), {0: 'cat', 1: 'cat', 2: 'dog'})

    def test_a_table_of_names_that_several_parts_have(self):
        self.write('train/0.png', 'train/1.png', 'test/0.png', 'test/1.png')
        self.table('train_labels.csv', 'id,label\n0,a\n1,b\n')
        with self.assertRaisesRegex(ValueError, "names '0', which is several images .*; write t.*/0.png, or, if the table is "
                                                'of one part, call it such as train.csv'):
            self.opened()

    def test_a_score_of_folders_of_classes_of_which_one_is_called_train(self):
        trained = self.folder.parent / 'trained'
        self.write('bus/0.png', 'car/1.png', 'train/2.png', root=trained)
        self.write('train/a/0.png', 'bus/b/1.png', 'bus/3.png', 'train/c/4.png')
        opened = self.opened(trained)
        scored = np.concatenate([batch['label'] for batch in opened.score([str(self.folder)], 4)])
        self.assertEqual(np.bincount(scored).tolist(), [2, 0, 2])

    def test_images_beside_the_folders_of_parts(self):
        self.write(*(f'train/{name}' for name, _ in ROWS[:8]), 'test/8.png', '9.png')
        self.table('labels.csv', 'file,label\n' + ''.join(f'{name},{label}\n' for name, label in ROWS[:10]))
        self.assertRegex(self.opened(train='train').describe(), 'CAUTION: 1 image of the table in .*, but not in train or test')

    def test_the_form_of_a_run_is_kept(self):
        self.write('cat/0.png', 'dog/1.png')
        kept = self.folder.parent / 'kept'
        kept.mkdir()
        self.opened().save(kept)
        self.write('cat/2.png', mode='RGB')
        again = Images(source='folder', path=str(self.folder), train='all', valid='', batch_size=4).open(kept)
        self.assertEqual(next(iter(again.evaluation('all', 3)))['image'].shape, (3, 6, 5, 1))
        self.assertEqual(next(iter(self.opened(channels=1).evaluation('all', 3)))['image'].shape, (3, 6, 5, 1))
        self.write('cat/0.png', 'cat/2.png', 'dog/1.png', size=(8, 8))
        again = Images(source='folder', path=str(self.folder), train='all', valid='', batch_size=4).open(kept)
        with self.assertRaisesRegex(ValueError, 'images have 8x8 pixels, and the run was trained on 6x5; expected the'):
            again.evaluation('all', 3)

    @parameterized.parameters('labels.csv', 'train.csv', 'train/metadata.csv')
    def test_a_column_of_parts_says_more_than_the_folders(self, table):
        self.write('train/0.png', 'train/1.png', 'train/2.png', 'train/3.png', 'test/4.png', 'test/5.png')
        parts = ['train', 'train', 'valid', 'test', 'test', 'test']
        rows = [f'{"train" if number < 4 else "test"}/{number}.png,{"ab"[number % 2]},{part}\n'
                for number, part in enumerate(parts)]
        inside = table != 'labels.csv'
        self.table(table, 'file,label,split\n' + ''.join(rows[:4] if inside else rows))
        if inside:
            self.table('test.csv', 'file,label\n' + ''.join(row.rpartition(',')[0] + '\n' for row in rows[4:]))
        opened = self.opened(train='train', valid='valid', test='test')
        found = {split: {*self.labels(opened, split)} for split in ('train', 'valid', 'test')}
        self.assertEqual(found, {'train': {0, 1}, 'valid': {2}, 'test': {3, 4, 5}})
        self.assertIn(", part from 'split'", opened.describe())

    @parameterized.product(test=['id\n4\n5\n', 'id,site\n4,a\n5,b\n'], features=['', 'id,label'])
    def test_a_table_without_classes_beside_that_of_training(self, test, features):
        self.write('train/0.png', 'train/1.png', 'test/4.png', 'test/5.png')
        self.table('train.csv', 'id,site,label\n0,x,cat\n1,y,dog\n')
        self.table('test.csv', test)
        opened = self.opened(train='train', features=features)
        self.assertEqual((opened.classes, self.labels(opened, 'train')), (('cat', 'dog'), {0: 'cat', 1: 'dog'}))
        self.assertRegex(opened.describe(), "CAUTION: [^ ]*/test.csv has no column 'label', as that of the training part")
        with self.assertRaisesRegex(ValueError, "'test'"):
            self.opened(train='train', test='test').evaluation('test', 2)

    @parameterized.parameters(('train_images', 'test_images', 'train.csv'), ('images', 'masks', 'labels.csv'))
    def test_a_table_of_other_classes_than_the_folders(self, folder, other, name):
        self.write(f'{folder}/0.png', f'{folder}/1.png', f'{other}/2.png', f'{other}/3.png')
        path = self.table(name, 'image_id,label\n0.png,cat\n1.png,dog\n')
        self.table('sample_submission.csv', 'image_id,label\n2.png,0\n3.png,0\n')
        with self.assertRaisesRegex(ValueError, (
                f"folders '.*' in .* would be the classes, but by {name} {folder}/0.png is 'cat' and {folder}/1.png is 'dog'; "
                f'take it away, or set data.path to .*/{name} to read it')):
            self.opened()
        self.assertEqual(self.labels(self.opened(path)), {0: 'cat', 1: 'dog'})

    def test_a_table_in_a_folder_beside_that_of_the_images(self):
        self.write('images/0.png', 'images/1.png')
        path = self.table('annotations/labels.csv', 'file,label\n../images/0.png,cat\n../images/1.png,dog\n')
        self.assertEqual(self.labels(self.opened(path)), {0: 'cat', 1: 'dog'})
        self.assertIn('1 table in', self.opened().describe())

    def test_several_labels_of_an_image(self):
        self.write(*(name for name, _ in ROWS))
        self.table('meta.jsonl', '\n'.join(json.dumps({'file': name, 'label': [label]}) for name, label in ROWS))
        with self.assertRaisesRegex(ValueError, r"meta.jsonl:1 has the class \"\['\w+'\]\"; expected one class, a word or a"):
            self.opened()

    def test_several_tables_columns_and_classes(self):
        self.flat()
        with self.assertRaisesRegex(ValueError, "data.features='file' names 1 column"):
            self.opened(features='file')
        with self.assertRaisesRegex(ValueError, "data.features names the column 'size', which .*labels.csv does not have"):
            self.opened(features='file,size')
        with mock.patch.object(image_tables, '_FEW', 11):
            self.table('labels.csv', 'file,label\n' + ''.join(f'{name},{number}\n' for number, (name, _) in enumerate(ROWS)))
            with self.assertRaisesRegex(ValueError, '12 different classes for 12 images; set data.features'):
                self.opened(features='file,label')
            rows = [f'{name},{number % 8}\n' for number, (name, _) in enumerate(ROWS)]
            self.table('labels.csv', 'file,label\n' + ''.join(rows))
            self.opened(features='file,label')  # whoever names the column means it
            with self.assertRaisesRegex(ValueError, '8 different classes for 12 images; set data.features'):
                self.opened()
        self.table('other.csv', 'a,b\n')
        with self.assertRaisesRegex(ValueError, 'has the tables labels.csv, other.csv; set data.path to the one'):
            self.opened()

    def test_what_a_person_should_know(self):
        self.write(*(f'{label}/{name}' for name, label in ROWS), 'top.png')
        (self.folder / 'fox').mkdir()
        self.table('cat/a.heic', 'x')
        self.assertRegex(self.opened().describe(), (
            r"2 classes \(CAUTION: the folder 'fox' in .* holds no images; 1 image in .* itself without a folder of a class is "
            r'left out; 1 file without the ending of an image is left out \(cat/a.heic\)\)$'))
        for number in range(12):
            (self.folder / ROWS[number][1] / ROWS[number][0]).unlink()
        with self.assertRaisesRegex(FileNotFoundError, 'holds images, but neither folders of classes nor a table; '
                                                       "expected .*; a task that needs no classes .* data.source='unlabelled'"):
            self.opened()
        self.write('cat/0.png')
        self.assertRegex(self.opened().describe(), "there is one class, 'cat'; expected a folder for each")
        with self.assertRaisesRegex(ValueError, "All images of .* have the class 'cat'; give images of two classes or more"):
            self.opened().train(0)

    def pixels(self, batches):
        """The level of grey of each image, in the order of the split."""
        return [round(float(image[0, 0, 0]) * 255) for batch in batches
                for image, weight in zip(batch['image'], batch['example_weights']) if weight]

    def test_images_without_classes(self):
        """All of them, wherever they lie, in an order that a name has in any folder."""
        self.write('0.png', '1.png', 'cat/2.png', 'dog/a/3.png', 'dog/4.png')
        self.table('labels.csv', 'file,label\n0.png,cat\n')
        self.table('more.txt', 'x')
        opened = self.opened(source='unlabelled', train='all[:3]', valid='all[3:]')
        self.assertEqual((opened.classes, opened.facts), ((), {}))
        self.assertEqual(opened.meanings.keys(), {'image size', 'image normalisation'})
        self.assertEqual(opened.shapes, {'image': ((4, 6, 5, 1), np.float32)})
        self.assertRegex(opened.describe(), r'^unlabelled .*, 3 images of 6x5x1 to train on; without classes \(CAUTION: 1 file '
                                            r'without the ending of an image is left out \(more.txt\)\)$')
        self.assertEqual({*next(opened.train(0))}, {'image'})
        parts = [self.pixels(opened.evaluation(split, 2)) for split in ('train', 'valid', 'all')]
        self.assertEqual((parts[0] + parts[1], sorted(parts[2])), (parts[2], [0, 1, 2, 3, 4]))
        self.assertEqual({*next(iter(opened.evaluation('all', 2)))}, {'image', 'example_weights'})
        packed = self.opened(self.zipped(self.folder), source='unlabelled')
        self.assertEqual(self.pixels(packed.evaluation('all', 5)), parts[2])
        opened.save(self.folder / 'cat')
        again = Images(source='unlabelled', path=str(self.folder)).open(self.folder / 'cat')
        self.assertEqual((again.classes, again.shapes['image'][0]), ((), (64, 6, 5, 1)))
        scored = again.score([str(self.folder / 'dog'), str(self.folder / '0.png')], 2)
        self.assertCountEqual(self.pixels(scored), [3, 4, 0])

    def test_parts_under_other_names_are_no_classes(self):
        self.write('Training/cat/0.png', 'Training/dog/1.png', 'Testing/cat/2.png', 'Testing/dog/3.png')
        with self.assertRaisesRegex(ValueError, "folders 'Testing', 'Training' in .* are no classes; name them test and train"):
            self.opened()
        opened = self.opened(source='unlabelled')
        self.assertLen(self.pixels(opened.evaluation('train', 4)), 4)
        self.assertRegex(opened.describe(), r"CAUTION: the folders 'Testing', 'Training' in .* are no parts of the data; these")
        self.write('Meta/4.png')  # as GTSRB has it
        with self.assertRaisesRegex(ValueError, "folders 'Testing', 'Training' in .* are no classes; name them test and train"):
            self.opened()
        self.folder = self.folder.parent / 'several'
        self.write('Training/cat/0.png', 'eval/cat/1.png', 'evaluation/cat/2.png')
        with self.assertRaisesRegex(ValueError, 'are no classes; name them train and valid, as parts'):
            self.opened()
        self.folder = self.folder.parent / 'alone'
        self.write('Training/cat/0.png', 'Training/dog/1.png')
        self.assertRegex(self.opened().describe(), r"CAUTION: the folder 'Training' in .* is a class; .*there is one class")

    def test_parts_that_no_split_names_are_mentioned(self):
        self.write(*(f'{part}/{name}/{number}.png' for part, number in (('train', 0), ('val', 1), ('test', 2), ('valid', 3))
                     for name in ('cat', 'dog')))
        split = {'train': 'train[:50%]', 'valid': 'train[50%:]'}
        self.assertIn("; 2 in 'test', for eval.py --split=test; 2 in 'val', for data.valid=val or eval.py --split=val; 2 in "
                      "'valid', for data.valid=valid", self.opened(**split).describe())
        for given in ({'train': 'all', 'valid': 'train'}, {'train': 'train', 'valid': 'val', 'test': 'test'}):
            self.assertNotIn("in 'val'", self.opened(**given).describe())
        self.assertIn("; 2 in 'train'; 2 in 'valid', for", self.opened(train='test', valid='val').describe())

    def test_parts_without_classes(self):
        self.write('train/a/0.png', 'train/1.png', 'test/2.png')
        opened = self.opened(source='unlabelled', train='train', valid='test')
        self.assertEqual([sorted(self.pixels(opened.evaluation(split, 4))) for split in ('train', 'valid')], [[0, 1], [2]])
        self.write('3.png')  # then train and test are folders as all others
        opened = self.opened(source='unlabelled')
        self.assertLen(self.pixels(opened.evaluation('train', 4)), 4)
        with self.assertRaisesRegex(ValueError, 'known are all, train'):
            opened.evaluation('dev', 4)

    def test_what_has_no_images_without_classes(self):
        (self.folder / 'empty').mkdir()
        self.table('labels.csv', 'file,label\n')
        for path, message in ((self.folder / 'empty', 'holds no images; data.path must hold images'),
                              (self.folder / 'nowhere', 'nowhere.* is no folder; data.path'),
                              (self.folder / 'labels.csv', 'labels.csv.* is no folder or archive; data.path')):
            with self.assertRaisesRegex(FileNotFoundError, message):
                self.opened(path, source='unlabelled')
        self.write('0.png')
        with self.assertRaisesRegex(FileNotFoundError, 'does not exist; expected image files, or folders'):
            self.opened(source='unlabelled').score([str(self.folder / 'nowhere')], 1)

    def test_images_without_a_row(self):
        self.flat()
        self.write('more/13.png', '14.png')
        self.assertRegex(self.opened().describe(), r'2 images without a row in .*labels.csv are left out \(14.png, ..\)')

    def test_sizes_are_found_in_headers(self):
        self.write(*(f'{label}/{name}' for name, label in ROWS))
        self.write('cat/wide.png', size=(7, 6), mode='RGB')
        self.write(*(f'dog/{number}_{number}.png' for number in range(5)), size=(8, 8))
        with (mock.patch.object(Image.Image, 'load', side_effect=AssertionError('decoded')),
              self.assertRaisesRegex(ValueError, r'5x6 \(12\), 8x8 \(5\), 7x6 \(1\); set data.size to the height and width')):
            self.opened()
        self.assertEqual(self.opened(size=4).shapes['image'][0], (4, 4, 4, 3))
        with mock.patch.object(image_folders, '_HEADERS', 6), self.assertRaisesRegex(ValueError, 'different sizes'):
            self.opened()  # some of them, evenly spread

    def test_turned_photographs_have_the_size_that_is_seen(self):
        exif = Image.Exif()
        exif[0x0112] = 6
        self.write('cat/0.jpg', 'dog/1.jpg')
        Image.new('L', (6, 5)).save(self.folder / 'cat' / 'turned.jpg', exif=exif)
        self.assertEqual(self.opened().shapes['image'][0][1:], (6, 5, 1))

    def test_many_headers_take_a_moment(self):
        self.write('cat/0.png', 'dog/1.png', size=(640, 480))
        for number in range(2, 500):
            os.link(self.folder / 'cat' / '0.png', self.folder / 'cat' / f'{number}.png')
        start = time.process_time()
        self.opened()
        self.assertLess(time.process_time() - start, 1)

    @parameterized.parameters('RGB', 'L', 'RGBA', 'LA', 'P', '1', 'CMYK', 'I;16')
    def test_modes(self, mode):
        (self.folder / 'cat').mkdir()
        image = Image.new('RGB', (4, 4), (204, 102, 0))  # a colour of the usual palette
        if mode == 'I;16':
            image = Image.fromarray(np.asarray(image.convert('L')).astype(np.uint16) * 257)
        image.convert(mode).save(self.folder / 'cat' / ('0.tif' if mode == 'CMYK' else '0.png'))
        gray = mode in ('L', 'LA', '1', 'I;16')
        opened = self.opened(channels=3)
        found = next(iter(opened.evaluation('all', 1)))['image'][0]
        self.assertEqual(self.opened().shapes['image'][0][3], 1 if gray else 3)
        if mode == '1':
            self.assertContainsSubset({*np.unique(found)}, {0, 1})
        else:
            np.testing.assert_allclose(found.mean((0, 1)) * 255, [121] * 3 if gray else [204, 102, 0], atol=1)

    @parameterized.parameters('RGBA', 'LA', 'P', 'RGB')
    def test_what_is_transparent_is_white(self, mode):
        (self.folder / 'cat').mkdir()
        array = np.zeros((4, 4, 4), np.uint8)
        array[:2, :, 3] = 255  # black above, transparent black below
        image = Image.fromarray(array, 'RGBA') if mode in ('RGBA', 'LA') else Image.fromarray(array[..., 3], 'L')
        options = {} if mode in ('RGBA', 'LA') else {'transparency': 0 if mode == 'P' else (0, 0, 0)}
        image.convert(mode).save(self.folder / 'cat' / '0.png', **options)
        found = next(iter(self.opened().evaluation('all', 1)))['image'][0]
        self.assertEqual(np.unique(found[2:]).tolist(), [1])
        self.assertEqual(np.unique(found[:2]).tolist(), [0] if mode in ('RGBA', 'LA') else [1])

    def test_too_many_pixels_and_other_formats(self):
        self.write('cat/0.png', 'dog/1.png', size=(60, 60))
        with mock.patch.object(Image, 'MAX_IMAGE_PIXELS', 3500), warnings.catch_warnings(record=True) as raised:
            for size in (0, 8):
                with self.assertRaisesRegex(ValueError, 'png has more than 0 million pixels; make it smaller, or leave it out'):
                    self.opened(size=size)
        self.assertEmpty([one for one in raised if issubclass(one.category, Image.DecompressionBombWarning)])
        Image.new('RGB', (9, 9)).save(self.folder / 'cat' / '0.png', 'eps')  # which Pillow hands to Ghostscript
        with self.assertRaisesRegex(ValueError, '0.png cannot be decoded as an image'):
            self.opened()

    @parameterized.parameters('', 'photos/')
    def test_archives_are_read_as_their_folders(self, around):
        self.write(*(f'{label}/{name}' for name, label in ROWS))
        (self.folder / 'fox').mkdir()
        path = self.zipped(self.folder, around=around)
        plain, packed = self.opened(), self.opened(path)
        self.assertEqual(self.labels(packed), {number: label for number, (_, label) in enumerate(ROWS)})
        for split in ('train[:50%]', 'train[50%:]'):  # in the same order
            self.assertEqual(self.labels(packed, split), self.labels(plain, split))
        self.assertRegex(packed.describe(), r"packed.zip, 12 images .* \(CAUTION: the folder 'fox' in .* holds no images\)")
        self.assertEqual(packed.evaluation('all', 3).facts, {'images': 12})
        self.assertEqual(next(packed.train(0))['image'].shape, (4, 6, 5, 1))
        scored = np.concatenate([batch['label'] for batch in plain.score([str(path)], 12)])
        self.assertEqual(np.bincount(scored).tolist(), [6, 6])

    def test_parts_and_tables_in_archives(self):
        for part in ('train', 'test'):
            self.write(*(f'{part}/{label}/{name}' for name, label in ROWS))
        opened = self.opened(self.zipped(self.folder, around='x/'), train='train', valid='test')
        self.assertEqual([opened.evaluation(split, 4).facts['images'] for split in ('train', 'valid')], [12, 12])
        self.folder = self.folder / 'flat'
        self.folder.mkdir()
        self.flat()
        path = self.folder.parent / 'flat.tar.gz'
        with tarfile.open(path, 'w:gz') as archive:
            archive.add(self.folder, '.')
        self.assertEqual(self.labels(self.opened(path)), {number: label for number, (_, label) in enumerate(ROWS)})
        self.assertRegex(self.opened(path).describe(), "class from 'label' of .*flat.tar.gz/labels.csv$")

    def test_tables_in_archives_are_called_by_their_names(self):
        self.flat()
        path = self.zipped(self.folder)
        with self.assertRaisesRegex(ValueError, "names the column 'size', which [^ ]*packed.zip/labels.csv does not have"):
            self.opened(path, features='file,size')
        self.table('labels.csv', 'file,label\n0.png,cat\n9.jpg,dog\n')
        with self.assertRaisesRegex(ValueError, "packed.zip/labels.csv:3 names '9.jpg'"):
            self.opened(self.zipped(self.folder))

    def test_contents_name_the_examples(self):
        self.write('cat/0.png', 'dog/1.png')
        path = self.zipped(self.folder)
        before = self.opened(path).digest('all')
        self.assertEqual(before, self.opened(path).digest('all'))
        self.write('dog/1.png')
        self.assertNotEqual(before, self.opened(self.zipped(self.folder)).digest('all'))

    def test_a_damaged_image_in_an_archive_is_named(self):
        self.write('cat/0.png', 'dog/1.png')
        path = self.folder / 'dog' / '1.png'
        path.write_bytes(path.read_bytes()[:45])
        opened = self.opened(self.zipped(self.folder), size=4, channels=1)
        with self.assertRaisesRegex(ValueError, 'packed.zip/dog/1.png cannot be decoded as an image'):
            self.labels(opened)

    def test_links_to_folders_are_followed_once(self):
        self.write(*(f'{label}/{name}' for name, label in ROWS), root=self.folder.parent / 'other')
        (self.folder / 'cat').symlink_to(self.folder.parent / 'other' / 'cat')
        (self.folder / 'dog').symlink_to(self.folder.parent / 'other' / 'dog')
        (self.folder / 'cat' / 'loop').symlink_to(self.folder)
        self.assertEqual(self.opened().evaluation('all', 4).facts, {'images': 12})

    def test_names_that_are_not_utf_8(self):
        image = io.BytesIO()
        Image.new('L', (5, 6)).save(image, 'png')
        for name in (b'a', b'caf\xe9'):
            folder = os.path.join(os.fsencode(self.folder), name)
            os.mkdir(folder)
            with open(os.path.join(folder, b'\xff.png'), 'wb') as file:
                file.write(image.getvalue())
        self.assertEqual(self.opened().evaluation('all', 4).facts, {'images': 2})

    def test_no_folder(self):
        with self.assertRaisesRegex(ValueError, r'x.txt is no folder, archive \(.zip, .*\) or table \(.csv, .*\) of images'):
            self.opened(self.table('x.txt', 'x'))


if __name__ == '__main__':
    absltest.main()
