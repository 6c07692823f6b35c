import json
import pathlib
import shutil
import tempfile

import numpy as np
from absl.testing import absltest, parameterized
from PIL import Image

from data.images.labelled import Images

COUNTS = {'Caps': 9, 'Belts': 14, 'Ties': 6, 'Socks': 9}


class ChosenTest(parameterized.TestCase):
    """Grey images, each with a level of its own."""

    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix='heed-'))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.levels, rows, level = {}, [], 0
        for name, count in COUNTS.items():
            for _ in range(count):
                level += 1
                self.levels[level] = name
                Image.new('L', (2, 2), level).save(self.folder / f'{level}.png')
                rows.append(f'{level}.png\tWorn - {name} - Blue\n')
        (self.folder / 'labels.tsv').write_text('file\tlabel\n' + ''.join(rows))

    def opened(self, folder=None, **fields):
        fields = {'pattern': '^.*? - (.*?) - ', 'train': 'train[:80%]', 'valid': 'train[80%:]', 'batch_size': 4, **fields}
        return Images(source='folder', path=str(self.folder), **fields).open(folder)

    def found(self, opened, split):
        """{level: class} of a split."""
        return {round(float(image[0, 0, 0]) * 255): opened.classes[label] for batch in opened.evaluation(split, 5)
                for image, label, weight in zip(batch['image'], batch['label'], batch['example_weights']) if weight}

    def test_pattern_of_labels(self):
        opened = self.opened()
        self.assertEqual(opened.classes, ('Belts', 'Caps', 'Socks', 'Ties'))
        self.assertEqual(self.found(opened, 'all'), self.levels)
        self.assertEqual(self.opened(pattern='- [A-Z].*s').classes, ('- Belts', '- Caps', '- Socks', '- Ties'))
        scored = np.concatenate([batch['label'] for batch in opened.score([str(self.folder / 'labels.tsv')], 50)])
        self.assertEqual(np.bincount(scored, minlength=4)[:4].tolist()[1:], [9, 9, 6])
        with self.assertRaisesRegex(ValueError, "labels.tsv:2 has the label 'Worn - Caps - Blue', in which data.pattern='x'"):
            self.opened(pattern='x')

    def test_pattern_of_folders(self):
        for number in range(4):
            path = self.folder / 'all' / ('n01_cat', 'n02_dog')[number % 2] / f'{number}.png'
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(self.folder / '1.png', path)
        opened = Images(source='folder', path=str(self.folder / 'all'), pattern='_(.*)').open(None)
        self.assertEqual(opened.classes, ('cat', 'dog'))
        self.assertEqual(opened.score([str(self.folder / 'all' / 'n02_dog' / '1.png')], 1).facts, {'images': 1})

    @parameterized.parameters(
        ('[:2]', ('Belts', 'Caps')), ('[2:]', ('Socks', 'Ties')), ('[:-1]', ('Belts', 'Caps', 'Socks')), ('[:25%]', ('Belts',)),
        ('Ties, Caps', ('Caps', 'Ties')))
    def test_classes(self, given, want):
        opened = self.opened(classes=given)
        self.assertEqual(opened.classes, want)
        self.assertEqual(opened.facts, {'classes': len(want)})
        self.assertEqual(self.found(opened, 'all'), {level: name for level, name in self.levels.items() if name in want})
        apart = [{*self.found(opened, split)} for split in ('train', 'valid')]
        self.assertEmpty(apart[0] & apart[1])
        self.assertLen(apart[0], int(0.8 * sum(COUNTS[name] for name in want)))
        self.assertRegex(opened.describe(), rf'{len(want)} class(es)?; .*of 4, by data.classes={given}'.replace('[', r'\['))
        self.assertNotEqual(opened.digest('valid'), self.opened().digest('valid'))

    @parameterized.parameters(('[4:]', 'names none of the 4 classes'), ('[a:]', 'cannot be read'), (',', 'names none of the 4'),
                              ('Ties,Hats', "data.classes='Hats' is not known; it takes 'Belts', 'Caps', 'Socks', 'Ties'"))
    def test_classes_that_are_not_there(self, given, message):
        with self.assertRaisesRegex(ValueError, message):
            self.opened(classes=given)

    def test_names_with_commas(self):
        table = self.folder / 'labels.tsv'
        table.write_text(table.read_text().replace('Caps', 'Caps, men').replace('Ties', '5" ties'))
        for given in ('"Caps, men",Belts', 'Belts , "Caps, men"'):
            self.assertEqual(self.opened(classes=given).classes, ('Belts', 'Caps, men'))
        self.assertEqual(self.opened(classes='5" ties,Belts').classes, ('5" ties', 'Belts'))
        with self.assertRaisesRegex(ValueError, 'cannot be read .*; write names with commas between them, and one that has a '
                                                'comma itself in quotes'):
            self.opened(classes='"Caps, men')

    def test_as_many_of_each_class(self):
        few = self.found(self.opened(per_class=3), 'train')
        self.assertEqual({name: [*few.values()].count(name) for name in COUNTS}, dict.fromkeys(COUNTS, 3))
        self.assertContainsSubset(few, self.found(self.opened(), 'train'))  # none of those held out
        self.assertEqual(self.found(self.opened(), 'valid'), self.found(self.opened(per_class=3), 'valid'))
        self.assertEqual(self.found(self.opened(per_class=3), 'train'), few)
        self.assertNotEqual(self.found(self.opened(per_class=3, draw=1), 'train'), few)
        self.assertContainsSubset(few, self.found(self.opened(per_class=4), 'train'))  # more are these and others
        self.assertLen(self.found(self.opened(per_class=3), 'train[:50%]'), 6)
        self.assertContainsSubset(self.found(self.opened(per_class=3), 'train[:50%]'), few)
        digests = {self.opened(per_class=count, draw=draw).digest('train') for count in (0, 3, 4) for draw in (0, 1)}
        self.assertLen(digests, 5)  # all of them, whatever the draw
        self.assertLen(self.found(self.opened(per_class=3, classes='[1:3]'), 'train'), 6)

    def test_training_on_few(self):
        opened = self.opened(per_class=3, batch_size=6)
        self.assertEqual(opened.batches_per_epoch, 2)
        self.assertIn('12 images of 2x2x1 to train on', opened.describe())
        batches = opened.train(0)
        labels = np.concatenate([next(batches)['label'] for _ in range(4)])
        self.assertEqual(np.bincount(labels).tolist(), [6, 6, 6, 6])

    def test_too_few(self):
        opened = self.opened(per_class=6, draw=0)
        with self.assertRaisesRegex(ValueError, r"data.per_class=6, and the class 'Ties' has \d images to train on; lower"):
            opened.train(0)

    def test_a_run_has_the_classes_that_were_chosen(self):
        first = self.opened(classes='[:2]')
        first.save(self.folder / 'run')
        self.assertEqual(json.loads((self.folder / 'run' / 'classes.json').read_text())['classes'], ['Belts', 'Caps'])
        again = self.opened(self.folder / 'run', classes='[:2]')
        self.assertEqual(self.found(again, 'valid'), self.found(first, 'valid'))
        with self.assertRaisesRegex(ValueError, "is of class '(Ties|Socks)', which is no class of training, Belts, Caps"):
            again.score([str(self.folder / 'labels.tsv')], 4)

    def test_of_arrays(self):
        whole = Images(batch_size=8).open(None)
        few = Images(batch_size=8, classes='3,7', per_class=5).open(None)
        image, label = (np.concatenate([batch[name] for batch in few.evaluation('train', 5)]) for name in ('image', 'label'))
        self.assertEqual((few.classes, np.bincount(label).tolist()), (('3', '7'), [5, 5]))
        known = {image.tobytes(): label for batch in whole.evaluation('all', 1797)
                 for image, label in zip(batch['image'], batch['label'])}
        self.assertEqual([known[one.tobytes()] for one in image], [(3, 7)[one] for one in label])


if __name__ == '__main__':
    absltest.main()
