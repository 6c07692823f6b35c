"""The tasks of configs/text_to_text.py and configs/summarize.py."""

from absl.testing import absltest

from configs import summarize, text_to_text
from data.seq2seq.tasks import Part, Tasks
from data.tokenizers.specs import Byte


class TasksTest(absltest.TestCase):
    def texts(self, part, split):
        return Tasks(parts={'t': Part(**part)}, tokenizer=Byte(), text='raw').part(split).texts

    def test_french_is_translated_to_english(self):
        path = self.create_tempfile('fra.txt', ''.join(
            f'Go {i % 50}.\tVa {i} !\tCC-BY 2.0 (France) #{i}\n' for i in range(100))).full_path
        part = text_to_text.parts()['fra_eng'] | {'path': path}
        train, valid = self.texts(part, 'train'), self.texts(part, 'valid')
        for source, target in train + valid:
            number = int(source.removeprefix('translate French to English: Va ').removesuffix(' !'))
            self.assertEqual(target, f'Go {number % 50}.')
        self.assertFalse({target for _, target in train} & {target for _, target in valid})

    def test_no_function_to_train_on_has_the_summary_of_one_that_is_held_out(self):
        part = summarize.parts()['code']
        train, valid = self.texts(part, 'train'), self.texts(part, 'valid')
        self.assertGreater(len(train), 8 * len(valid))
        for number in (0, 1):
            self.assertFalse({pair[number] for pair in train} & {pair[number] for pair in valid})


if __name__ == '__main__':
    absltest.main()
