"""benchmarks/stand_in.py: models on made-up data are those of the real ones."""

import jax
import tokenizers
from absl.testing import absltest, parameterized

from benchmarks import stand_in
from tests import experiments
from tests.configs_test import SIZES
from training import mesh as meshes
from training import run as runs
from training.config import cli


class ReplacedTest(experiments.TestCase):

    def build(self, config):
        config = config.copy_and_resolve_references().unlock()
        config.evals, config.mesh.data, config.mesh.fsdp = {}, 1, 1
        return runs.build(config.lock(), meshes.make(1, 1, 1, jax.devices()[:1]))

    @parameterized.parameters(
        ('gpt2:124m', SIZES['gpt2:124m'], {'inputs': (512, 1024)}),
        ('transformer_wmt14:big', SIZES['transformer_wmt14:big'], {'inputs': (96, 256), 'targets': (96, 256)}),
        ('bert_mini:next', 5_529_090, {'inputs': (32, 128), 'masked': (32, 20), 'label': (32,)}),
        ('t5_small:spans', 9_443_072, {'inputs': (32, 128), 'targets': (32, 29)}),
        ('resnet50', 25_557_032, {'image': (1024, 224, 224, 3), 'label': (1024,)}),
        ('swin_fashion_mnist', 699_700, {'image': (128, 28, 28, 1)}))
    def test_sizes_of_models_whose_data_are_not_there(self, name, parameters, shapes):
        file, _, variant = name.partition(':')
        config, _ = cli.load_config(f'configs/{file}.py:{variant}')
        run = self.build(stand_in.replaced(config, self.folder))
        self.assertEqual(run.parameters(), parameters)
        self.assertEqual({key: run.data.shapes[key][0] for key in shapes}, shapes)

    def test_the_same_shapes_as_those_of_data_that_are_there(self):
        config = experiments.tiny(self.text)
        real, made = self.build(config), self.build(stand_in.replaced(config, self.folder))
        self.assertEqual(made.data.shapes, real.data.shapes)

    def test_data_that_need_no_download_are_kept(self):
        config, _ = cli.load_config('configs/vit_digits.py')
        self.assertIs(stand_in.replaced(config, self.folder), config)

    def test_a_folder_of_images_that_is_there_is_kept_with_its_classes(self):
        experiments.save_digits(self.folder, [0, 1])
        config = experiments.changed(experiments.tiny_images(), **{'data.source': 'folder', 'data.path': str(self.folder)})
        self.assertIs(stand_in.replaced(config, self.folder), config)

    def test_a_tokenizer_that_is_there_is_kept_with_its_tokens(self):
        path = self.folder / 'tokenizer.json'
        tokenizers.Tokenizer(tokenizers.models.WordLevel({f'w{i}': i for i in range(999)} | {'?': 999}, '?')).save(str(path))
        for there, vocab in ((path, 1000), ('nowhere', 400)):
            config = experiments.tiny(self.text, **{'data.tokenizer': f"Json(path='{there}', end='?')"})
            self.assertEqual(self.build(stand_in.replaced(config, self.folder)).model.vocab, vocab)

    @parameterized.parameters(('SentencePiece(vocab=8000)', 'Byte()', 257, 8000), (
        'Byte()', 'SentencePiece(vocab=9000)', 9000, 257))
    def test_two_tokenizers(self, source, target, vocab, source_vocab):
        config = experiments.tiny_pairs('nowhere', **{'data.tokenizer': source, 'data.target_tokenizer': target,
                                                      'data.source_length': 64, 'data.length': 64, 'model.share': False})
        model = self.build(stand_in.replaced(config, self.folder)).model
        self.assertEqual((model.vocab, model.source_vocab), (vocab, source_vocab))

    def test_data_that_none_are_made_up_for_are_kept(self):
        config = experiments.tiny_reader(self.text, 'labelled')
        self.assertIs(stand_in.replaced(config, self.folder), config)


if __name__ == '__main__':
    absltest.main()
