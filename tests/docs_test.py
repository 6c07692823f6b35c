"""What docs/ says is there: files, modules, expressions, commands in Python."""

import ast
import dataclasses
import importlib
import os
import pathlib
import re
import tempfile

from absl.testing import absltest, parameterized

import convert
from benchmarks import plans
from configs import davit_fashion_mnist
from data.noise.masking import Masking
from data.seq2seq.parallel import Parallel
from data.text.choices import Choices
from data.text.labelled import Labelled
from data.text.preferences import Preferences
from data.text.questions import Questions
from data.text.tagged import Tagged
from data.text.targets import Labels, Number
from data.tokenizers.specs import WordPiece
from training.config import resolve
from transformer.attention.masks.algebra import Mask
from transformer.attention.multi_head import Mechanism  # which knows all of them
from transformer.attention.positions.base import Positions
from transformer.attention.scores import Score

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCS = {path.name: path.read_text() for path in sorted((ROOT / 'docs').glob('*.md'))}
KINDS = {'Scores': Score, 'Masks': Mask, 'Positions': Positions, 'Cheaper attention': Mechanism}


def sections(text):
    """(title, text) of every section."""
    return [part.partition('\n')[::2] for part in re.split('^## ', text, flags=re.MULTILINE)[1:]]


def expressions():
    """(expression, class) of every value in the last column of a table of docs/attention.md whose section is of one class."""
    for title, text in sections(DOCS['attention.md']):
        kind = next((kind for name, kind in KINDS.items() if title.startswith(name)), None)
        for row in re.findall(r'^\|(.*)\|$', text, re.MULTILINE) if kind else ():
            column = re.split(r'(?<!\\)\|', row)[-1].replace(r'\|', '|')
            for one in re.findall('`([^`]*)`', column):
                if not one.startswith('positions='):
                    yield one, kind


class ConfigsTest(absltest.TestCase):
    def test_a_sentence_for_the_list_of_configs(self):
        """train.py --help shows the first line of each."""
        for path in (ROOT / 'configs').glob('*.py'):
            first = ast.get_docstring(ast.parse(path.read_text())).splitlines()[0]
            self.assertRegex(first, r'[.]$', path.name)

    def test_docstrings_are_shown_as_they_are_written(self):
        """So a command may be copied from the file and from --help."""
        for path in (ROOT / 'configs').glob('*.py'):
            text = path.read_text()
            self.assertIn(ast.get_docstring(ast.parse(text), clean=False) or '', text, path.name)


READ_BY = {'classify': Labelled(), 'label': Labelled(target=Labels()), 'rate': Labelled(target=Number()), 'tag': Tagged(),
           'prefer': Preferences(), 'choose': Choices(),
           'answer': Questions(tokenizer=WordPiece()), 'transformer_fra_eng': Parallel(source='table')}


def examples_of_data():
    """(config, name of a file, its text) of every example in docs/data.md."""
    for section in re.split('^### ', DOCS['data.md'], flags=re.MULTILINE)[1:]:
        section = re.split('^## ', section, flags=re.MULTILINE)[0]
        config = re.search(r'`configs/(\w+)\.py`', section)[1]
        for name, text in re.findall(r'^`([\w.]+)`.*?^```\n(.*?)^```', section, re.MULTILINE | re.DOTALL):
            yield config, name, text


class DocsTest(parameterized.TestCase):
    @parameterized.parameters(*DOCS)
    def test_files_and_modules_are_there(self, name):
        for path in re.findall(r'`([\w./]+\.py)`', DOCS[name]):
            places = [ROOT / folder / path for folder in ('', 'transformer/attention', 'configs', 'benchmarks')]
            self.assertTrue(any(place.is_file() for place in places), path)
        for module in re.findall(r'\b((?:transformer|vit|data|training|benchmarks)(?:\.[a-z_]+)+)\.[a-z_]+\(', DOCS[name]):
            self.assertTrue((ROOT / f'{module.replace(".", "/")}.py').is_file(), module)

    @parameterized.parameters(*expressions())
    def test_expressions_are_what_a_config_takes(self, expression, kind):
        self.assertIsInstance(resolve.parse(expression, kind, 'model'), kind)

    @parameterized.parameters(*examples_of_data())
    def test_examples_of_data_are_read(self, config, name, text):
        folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        (folder / name).write_text(text)
        data = dataclasses.replace(READ_BY[config], path=str(folder / name), train='all', valid='', test='')
        part = data.part('train')
        found = part.texts if config == 'transformer_fra_eng' else part.examples
        self.assertGreaterEqual(sum(len(one.words) for one in found) if config == 'tag' else len(found), 5)
        if config == 'classify':
            self.assertLen({example.label for example in found} - {'label'}, 3 if 'premise' in text else 2)
        if config == 'label':
            self.assertEqual(found[-1].label, ())

    def test_noises_are_what_a_config_takes(self):
        table = DOCS['data.md'].partition('| noise |')[2].partition('\n\n')[0]
        names = [resolve.parse(one, Masking, 'noise') for one in re.findall(r'^\| `(.*?)`', table, re.MULTILINE)]
        self.assertEqual({type(noise).__name__ for noise in names}, {*resolve.subclasses(Masking)})

    def test_architectures_are_those_of_the_families(self):
        rows = re.findall(r'^\| .* \| (`.*`) \|$', DOCS['hugging_face.md'], re.MULTILINE)
        self.assertEqual({name for row in rows for name in re.findall(r'`(\w+)`', row)},
                         {name for family in convert.FAMILIES for name in family.names})

    def test_configs_go_out_as_it_says(self):
        names = {'GPT-2': 'gpt2', 'BERT': 'bert', 'RoBERTa': 'roberta', 'T5': 't5', 'BART': 'bart', 'MarianMT': 'marian',
                 'ViT': 'vit', 'ViTMAE': 'vit_mae', 'DeiT': 'deit', 'I-JEPA': 'ijepa', 'ALBERT': 'albert', 'ELECTRA': 'electra',
                 'DistilBERT': 'distilbert', 'Swin': 'swin'}
        rows = re.findall(r'^\| (`configs/.*) \| (.*) \|$', DOCS['hugging_face.md'], re.MULTILINE)
        self.assertLen(rows, 7)
        for configs, told in rows:
            usual, *others = told.split('; ')
            cases = [(one, '', usual) for one in re.findall(r'(\w+)\.py', configs)]
            for other in others:
                name, _, variant = re.search(r'(\w+)\.py(:(\w+))?|$', other).groups() if '.py' in other else (
                    cases[0][0], None, re.search('`(.*)`', other)[1])
                cases.append((name, variant, re.search(r'(\S+)$', other)[1]))
            for name, variant, family in cases:
                fields = re.findall(r'--config\.model\.(\w+)=(\S+)', variant)
                config = importlib.import_module(f'configs.{name}').get_config('' if fields else variant).unlock()
                for field, value in fields:
                    config.model[field] = int(value) if value.isdigit() else value.strip("'")
                facts = {'vocab': 40, 'source_vocab': 0, 'classes': 10, 'dtype': 'float32', 'parameter_dtype': 'float32'}
                model = resolve.construct(config.model, extra=facts)
                found = min(((family, family.formed(model, convert.FREE)) for family in convert.FAMILIES
                             if family.model == config.model.name), key=lambda one: one[1].distance)
                self.assertEqual((found[0].kind, found[1].misfits), (names[family], []), f'{name}:{variant}')

    def test_a_davit_goes_out_to_timm_with_the_stem_that_it_says(self):
        self.assertIn("goes out with\n  `--config.model.stem='Convolutions()'`", DOCS['hugging_face.md'])
        config = davit_fashion_mnist.get_config().unlock()
        families = [one for one in convert.FAMILIES if one.kind == 'timm_davit']
        for stem, fits in ((config.model.stem, False), ('Convolutions()', True)):
            config.model.stem = stem
            model = resolve.construct(config.model, extra={'classes': 10, 'dtype': 'float32', 'parameter_dtype': 'float32'})
            self.assertEqual(any(not one.formed(model, convert.FREE).misfits for one in families), fits)

    def test_the_table_of_plans_is_that_of_their_lines(self):
        found = plans.read()
        self.assertContainsSubset(found, plans.CASES)
        for table in plans.table, plans.weak_table:
            self.assertIn('\n'.join(table(found.values())) + '\n\n', DOCS['tpu.md'])

    def test_python_draws_what_it_says(self):
        text = DOCS['attention.md']
        blocks = re.findall('```python\n(.*?)```', text, re.DOTALL) + re.findall('^python -c "(.*)"', text, re.MULTILINE)
        self.assertLen(blocks, 2)
        before, folder = os.getcwd(), self.enter_context(tempfile.TemporaryDirectory())
        self.addCleanup(os.chdir, before)
        os.chdir(folder)
        for block in blocks:
            exec(block, {})
            drawn, = re.findall(r"savefig\('(.*?)'\)", block)
            self.assertGreater(os.path.getsize(drawn), 1000)


if __name__ == '__main__':
    absltest.main()
