"""What a user gets wrong is said in one sentence, with exit code 1 and nothing left behind."""

import json
import shutil

import pytest
from absl.testing import absltest, parameterized
from PIL import Image

from tests import experiments


class BadInputTest(experiments.TestCase):

    def setUp(self):
        super().setUp()
        self.workdir = self.folder / 'run'
        self.config = self.folder / 'tiny.py'
        self.config.write_text(
            'from tests import experiments\n\n\ndef get_config(variant):\n'
            f'    return experiments.tiny({str(self.text)!r})\n')

    def assert_sentence(self, done, pattern, name='train'):
        self.assertEqual(done.code, 1, done.out + done.err)
        self.assertNotIn('Traceback', done.err)
        self.assertRegex(done.err, rf'\A{name}.py: [^\n]+[.?]\n\Z')
        self.assertRegex(done.err, pattern)

    def assert_refused(self, *arguments, pattern, config=None):
        done = experiments.call('train', f'--config={config or self.config}', f'--workdir={self.workdir}', *arguments)
        self.assert_sentence(done, pattern)
        self.assertFalse(self.workdir.exists(), done.err)

    def trained(self):
        return super().trained(**{'train.steps': 1})

    @parameterized.parameters(
        ('--config.trian.steps=3', "no field 'trian' in config; did you mean 'train'"),
        ('--config.model.widht=3', "no field 'widht' in config.model; did you mean 'width'"),
        ('--config.train.steps=many', "--config.train.steps is 'many'; expected a whole number"),
        ('--config.train.steps=1.5', "--config.train.steps is '1.5'; expected a whole number"),
        ('--config.init_rules=(.*, keep)', r"--config.init_rules is '\(.*, keep\)'; expected a tuple, in quotes for the shell"),
        ('--config.model.output_bias=perhaps', "--config.model.output_bias is 'perhaps'; expected true or false"),
        ('--config.train=5', r'--config.train is a group of fields \(.*steps.*\); set one of them'),
        ('--confg.train.steps=3', "no flag --confg.train.steps; did you mean '--config.train.steps'"),
        ('--nonsense', "There is no flag --nonsense; known: coordinator, process, processes, workdir"),
        ('nonsense', "'nonsense' is not a flag"),
        ('--config.model.name=transformer.models.gpt:Gtp', "no class 'Gtp' in transformer.models.gpt; did you mean 'Gpt'"),
        ('--config.model.name=transformer.gtp:Gpt', "no module 'transformer.gtp'"),
        ('--config.model.name=Gpt', "'Gpt' does not name a class; expected an import path"),
        ('--config.task.name=vit.models.vit:Vit', "vit.models.vit:Vit has no field 'block'"),
        ('--config.model.mask=Causl()', "no 'Causl'; did you mean 'Causal'"),
        ('--config.model.mask=Causal() & Window(sise=4)', "no field 'sise'; did you mean 'size'"),
        ('--config.model.mask=__import__("os")', 'mask is'),
        ('--config.data.path=nowhere.txt', "'nowhere.txt' does not exist"),
        ('--config.data.path=', 'data.path is empty'),
        ('--config.data.source=fiels', "data.source='fiels' is not known"),
        ('--config.data.tokenizer=SentencePiece(vocab=4000)', r'SentencePiece\(vocab=4000\) cannot be learnt.*at most vocab='),
        ('--config.data.tokenizer=Chars()', "tokenizer is 'Chars\\(\\)': there is no 'Chars'; did you mean 'Char'"),
        ('--config.data.length=17', 'A sequence of 17 tokens is longer than the 16 that this model takes'),
        ('--config.data.valid=train[:0]', "split 'train\\[:0\\]' is empty"),
        ('--config.data.valid=', 'data.valid is empty'),
        ('--config.evals.valid.split=vaild', "The split 'vaild' names no"),
        ('--config.evals.valid.context=17', 'A sequence of 17 tokens is longer'),
        ('--config.evals.valid.stride=17', 'context=16 and stride=17 do not fit'),
        ('--config.evals.valid.every_steps=-1', 'evals.valid.every_steps is -1; set it to at least 0'),
        ('--config.checkpoint.best=valid/lss', "checkpoint.best is 'valid/lss', but valid measures loss, accuracy"),
        ('--config.model.layers=0', 'model.layers is 0; set it to at least 1'),
        ('--config.model.heads=0', 'model.heads is 0; set it to at least 1'),
        ('--config.model.initial=Scaled(scale=-1)', 'Scaled.scale=-1.0.: expected a scale of 0 or more'),
        ('--config.model.initial=Scaled(skale=1)', "Scaled has no field 'skale'; did you mean 'scale'"),
        ('--config.model.residual=PostNrm()', "there is no 'PostNrm'; did you mean 'PostNorm'"),
        ('--config.seed=-1', 'seed is -1; set it to at least 0'),
        ('--config.seed=4294967296', r'seed is 4294967296; set it to less than 2\*\*32'),
        ('--config.seed=99999999999999999999', r'set it to less than 2\*\*32'),
        ('--config.optimizer.learning_rate=nan', 'optimizer.learning_rate is nan; set it to at least 0'),
        ('--config.optimizer.weight_decay=inf', 'optimizer.weight_decay is inf; set it to at least 0'),
        ('--config.optimizer.schedule.final=-5', 'final is -5.0 in optimizer.schedule; expected a multiple of the peak'),
        ('--config.optimizer.decay_rules=((".*","x"),)', "optimizer.decay_rules gives 'x' for .*; expected a number"),
        ('--config.optimizer.rate_rules=((".*",-1.0),)', "optimizer.rate_rules gives -1.0 for .*; expected a number"),
        ('--config.optimizer.average_decay=1', 'optimizer.average_decay is 1.0; expected a decay in'),
        ('--config.task.label_smoothing=1', 'label_smoothing is 1.0 and z_loss 0.0; expected a share'),
        ('--config.mesh.rules=((".*",5),)', 'mesh.rules gives 5 for .*; expected an axis or None for each dimension'),
        ('--config.data.train=train[:1%', r"The split 'train\[:1%' cannot be read"),
        ('--config.optimizer.clip=-1', 'optimizer.clip is -1.0; set it to at least 0'),
        ('--config.optimizer.b1=2', 'expected b1 and b2 in'),
        ('--config.optimizer.schedule.name=training.schedules:Schedule', 'Schedule is only a base of others; known: Const'),
        ('--config.model.name=:Gpt', "':Gpt' does not name a class"),
        ('--config.model.mask=Full()', 'lets a token see later ones'),
        ('--config.model.heads=3', 'The width 8 is not divisible by 3 heads'),
        ('--config.model.vocab=5', 'model.vocab is 5, but the data has [0-9]+'),
        ('--config.model.dropout=1.5', 'dropout is 1.5; expected a rate'),
        ('--config.dtype=float61', "'float61'"),
        ('--config.mesh.data=5', 'data.batch_size=8 cannot be divided .* choose a multiple of 10'),
        ('--config.mesh.data=9', 'needs 9 devices, but there are 8'),
        ('--config.mesh.data=0', 'expected positive sizes'),
        ('--config.data.batch_size=7', 'data.batch_size=7 cannot be divided'),
        ('--config.train.microbatches=0', 'train.microbatches is 0; set it to at least 1'),
        ('--config.train.dispatch=2', 'train.dispatch=2 does not divide train.steps=7; choose one that divides all of'),
        ('--config.train.steps=0', 'train.steps is 0; set it to at least 1'),
        ('--config.log.every_steps=0', 'log.every_steps is 0; set it to at least 1'),
        ('--config.checkpoint.every_steps=0', 'checkpoint.every_steps is 0; set it to at least 1'),
        ('--config.checkpoint.keep=1', 'checkpoint.keep is 1; set it to at least 2'),
        ('--config.checkpoint.best=/loss', "checkpoint.best is '/loss'; expected EVALUATOR/METRIC.*valid"),
        ('--config.checkpoint.best=vlaid/loss', "checkpoint.best is 'vlaid/loss'; expected EVALUATOR/METRIC.*valid"),
        ('--config.profile.steps=3', "profile.steps is '3'; expected 'first:last'"),
        ('--config.profile.steps=3:2', "profile.steps is '3:2'"),
        ('--config.energy.watts=-1', 'energy.watts is -1.0; set it to at least 0.0'),
        ('--config.energy.pue=0.9', 'energy.pue is 0.9; set it to at least 1.0'),
        ('--config.energy.grams_per_kwh=nan', 'energy.grams_per_kwh is nan; set it to at least 0.0'),
        ('--config.train.nonfinite=ignore', "train.nonfinite is 'ignore'; expected one of stop, skip"),
        ('--config.optimizer.schedule.warmup_steps=-1', 'warmup_steps is -1'),
        ('--config.optimizer.name=training.optimizer:Adam', "no class 'Adam'.*did you mean 'AdamW'"),
        ("--config.mesh.rules=(('x', ()),)", 'matches no parameter; those of this model have names such as'),
        ('--config.model.name=numpy:ndarray', 'There is no class .ndarray.|has no fields of its own'),
        ('--config.data.pipeline=data.images.labelled:OpenImages',
         'data.images.labelled:OpenImages has no fields of its own to configure'),
        ('--config.task.name=transformer.tasks.base:Prediction', 'Prediction is only a base of others; known: .*NextToken'),
        ('--config.task.name=transformer.tasks.base:Task', 'Task is only a base of others; known: .*NextToken'),
        ('--config.evals.valid.evaluator=transformer.evaluators.base:Evaluator',
         'transformer.evaluators.base:Evaluator is only a base of others; known: .*Averages, '),
        ('--config.model.mask=Mask()', "there is no 'Mask'; "),
        ('--config.evals.valid.evaluator=transformer.tasks.language_model:NextToken',
         "transformer.tasks.language_model:NextToken has no field 'context'"),
        ("--config.mesh.rules=(('.*',('fsdp','fsdp')),)",
         r"The rule \('fsdp', 'fsdp'\) of mesh.rules names an axis twice; name it for one dimension at most"),
        ('--config.train.steps=99999999999999999999', r'train.steps is 99999999999999999999; set it to less than 2\*\*31'),
        ('--config.data.batch_size=100000000', 'A step needs [0-9.,]+ GiB, but cpu has [0-9.,]+;'),
        ('--config.data.source=stdlib', "data.path=.* is not read with data.source='stdlib'"),
        ('--config.evals.valid.split=', 'The split is empty, so there is no such split'),
        ('--flagfile=/nowhere', '/nowhere'),
        ('--config=', '--config is empty; give it the path'),
        ('--config.init_from=nowhere', 'There is no folder nowhere; give --config.init_from the workdir of a run'),
        ('--workdir=s3://bucket/run', 's3://bucket/run is a remote path'),
        ('--processes=2', '--processes and --process need --coordinator=HOST:PORT'),
    )
    def test_field(self, argument, pattern):
        self.assert_refused(argument, pattern=pattern)

    @parameterized.parameters(
        ('c.train.setps = 4', "has an unknown field train.setps; did you mean 'steps'"),
        ('c.sede = 7', "has an unknown field 'sede'; did you mean 'seed'"),
        ('c.train = dict(steps=5)', 'has no field train.microbatches; configs begin with base.config|train.dispatch'),
        ("c.optimizer = base.part('training.optimizer:AdamW')", 'no field optimizer.learning_rate; make optimizer with '
                                                                'base.optimizer'),
        ("c.optimizer.schedule = 'ConstantRate()'", 'no field optimizer.schedule.name; make optimizer with base.optimizer'),
        ("c.evals.valid = base.part('transformer.evaluators.language_model:Perplexity')",
         'no field evals.valid.evaluator; make it with '
                                                                           'base.evaluation'),
        ("c.data = base.part('data.text.documents:Text', path='x')", 'no field data.pipeline; make data with base.data'),
        ('del c.task', 'The config has no task; set it'), ('c.evals = 5', "evals is 5; expected a group"),
        ('c.mesh = 5', "mesh is 5; expected a group"), ('c.train.steps = 1.5', 'train.steps is 1.5; expected int'))
    def test_mistakes_in_a_config_file(self, line, pattern):
        self.config.write_text(
            'from configs import base\nfrom tests import experiments\n\n\ndef get_config(variant):\n'
            f'    c = type(base.config())(experiments.tiny({str(self.text)!r}).to_dict(), type_safe=False)\n'
            f'    {line}\n    return c\n')
        self.assert_refused(pattern=pattern)

    def test_empty_workdir(self):
        done = experiments.call('train', f'--config={self.config}', '--workdir=')
        self.assert_sentence(done, '--workdir is empty; give it a folder')

    def test_config_file(self):
        self.assert_refused(config='configs/gtp2.py', pattern=r"config file 'configs/gtp2.py'; did you mean configs/gpt2.py\?")
        self.assert_refused(config='configs/gpt_char.py:bse', pattern="no variant 'bse' of this config; did you mean 'base'")
        self.assert_refused(config='README.md', pattern='no config file .README.md.; see --help for those there are, or give')
        self.assert_refused(config='configs', pattern='--config=configs is a folder; name a config file')
        empty = self.folder / 'empty.py'
        empty.write_text('')
        self.assert_refused(config=empty, pattern=r'empty.py is not a config file: it has no get_config')

    def test_text_files(self):
        for name, content, pattern in (('empty.txt', b'', 'holds no text'),
                                       ('latin.txt', b'caf\xe9\n' * 20, 'latin.txt is not UTF-8: byte 3 cannot be decoded'),
                                       ('broken.txt.gz', b'\x1f\x8b\x08nonsense', 'broken.txt.gz is damaged')):
            (self.folder / name).write_bytes(content)
            self.assert_refused(f'--config.data.path={self.folder / name}', pattern=pattern)
        (self.folder / 'folder').mkdir()
        self.assert_refused(f'--config.data.path={self.folder / "folder"}', pattern='holds no text')

    def images(self):
        for label in 'ab':
            folder = self.folder / 'images' / label
            folder.mkdir(parents=True)
            for i in range(6):
                Image.new('L', (8, 8), 20 * i).save(folder / f'{i}.png')
        return self.folder / 'images'

    @pytest.mark.slow
    def test_corrupt_image(self):
        images = self.images()
        damaged = images / 'a' / '2.png'
        damaged.write_bytes(damaged.read_bytes()[:40])
        self.assert_refused('--config.data.source=folder', f'--config.data.path={images}', '--config.data.batch_size=12',
                   '--config.data.train=all', '--config.mesh.data=1', '--config.optimizer.schedule.warmup_steps=0',
                   config='configs/vit_digits.py', pattern='2.png cannot be decoded as an image')

    def test_image_patches(self):
        self.assert_refused('--config.model.patch=3', '--config.mesh.data=1', config='configs/vit_digits.py',
                   pattern='Images of 8x8 cannot be cut into patches of 3x3')

    @parameterized.parameters(
        ('--config.data.steps=Shift(pixels=2)', "there is no 'Shift'; known: Crop, "),
        ('--config.data.steps=Crop() | Flip()', r'steps is .*: Step has no \|; write a >> b or OneOf\(a, b\)'),
        ('--config.data.steps=Normalize(mean=(0, 0, 0), std=(1, 1, 1))', 'is for 3 channels, but the images have 1'),
        ('--config.task.augment=Mixup() & CutMix()', r'augment is .*: Augment has no &; write OneOf\(a, b\)'),
        ('--config.task.augment=MixUp()', "there is no 'MixUp'; did you mean 'Mixup'"))
    def test_augmentation(self, flag, pattern):
        self.assert_refused(flag, '--config.mesh.data=1', config='configs/vit_digits.py', pattern=pattern)

    @pytest.mark.slow
    def test_an_example_without_a_partner(self):
        self.assert_refused('--config.task.augment=CutMix()', '--config.train.microbatches=64', '--config.mesh.data=1',
                            config='configs/vit_digits.py', pattern='there is only one in a microbatch; raise data.batch_size')

    def test_foreign_folder(self):
        self.workdir.mkdir()
        (self.workdir / 'thesis.tex').touch()
        done = experiments.call('train', f'--config={self.config}', f'--workdir={self.workdir}')
        self.assert_sentence(done, "is not a workdir of a run: it has no config.json, but 'thesis.tex'")
        self.assertEqual([path.name for path in self.workdir.iterdir()], ['thesis.tex'])
        done = experiments.call('train', f'--config={self.config}', f'--workdir={self.config}')
        self.assert_sentence(done, 'tiny.py is a file; give a folder')

    def test_damaged_config(self):
        (self.trained() / 'config.json').write_text('{"train": ')
        for name, *arguments in (('train', f'--config={self.config}'), ('eval',), ('predict',)):
            done = experiments.call(name, f'--workdir={self.workdir}', *arguments)
            self.assert_sentence(done, 'config.json is not the config of a run', name)

    @parameterized.parameters(
        ('layers', "model.layers is 'x'; set it to at least 1"),
        ('output_bias', "output_bias of transformer.models.gpt:Gpt is 'x'; expected bool"))
    def test_config_with_a_value_of_another_type(self, field, pattern):
        path = self.trained() / 'config.json'
        content = json.loads(path.read_text())
        content['model'][field] = 'x'
        path.write_text(json.dumps(content))
        self.assert_sentence(experiments.call('eval', f'--workdir={self.workdir}'), pattern, 'eval')

    @parameterized.parameters(('allocator', None, 'no field allocator'), ('mesh', {}, 'no field mesh.data'))
    def test_config_without_a_field(self, name, value, pattern):
        path = self.trained() / 'config.json'
        content = json.loads(path.read_text()) | {name: value}
        path.write_text(json.dumps({k: v for k, v in content.items() if v is not None}))
        self.assert_sentence(experiments.call('eval', f'--workdir={self.workdir}'), pattern, 'eval')

    def test_missing_tokenizer(self):
        (self.trained() / 'tokenizer.json').unlink()
        for name, *arguments in (('train', f'--config={self.config}'), ('eval',), ('predict',)):
            done = experiments.call(name, f'--workdir={self.workdir}', *arguments)
            self.assert_sentence(done, 'has no tokenizer.model or tokenizer.json any more; restore it', name)

    def test_missing_environment(self):
        (self.trained() / 'environment.json').unlink()
        before = sorted(self.workdir.rglob('*'))
        done = experiments.call('train', f'--config={self.config}', f'--workdir={self.workdir}')
        self.assert_sentence(done, 'environment.json is not the environment of a run')
        self.assertEqual(before, sorted(self.workdir.rglob('*')))

    def test_damaged_environment(self):
        (self.trained() / 'environment.json').write_text('{}')
        done = experiments.call('train', f'--config={self.config}', f'--workdir={self.workdir}')
        self.assert_sentence(done, 'environment.json is not the environment of a run')

    def test_damaged_metrics_are_refused_before_anything_is_written(self):
        workdir = self.trained()
        metrics, before = workdir / 'metrics.jsonl', (workdir / 'config.json').read_bytes()
        metrics.write_bytes(b'garbage\n' + metrics.read_bytes())
        with self.assertRaisesRegex(ValueError, 'Line 1 of .*metrics.jsonl is damaged'):
            experiments.train(experiments.tiny(self.text, **{'train.steps': 9}), workdir)
        self.assertEqual((workdir / 'config.json').read_bytes(), before)

    def test_workdir_that_cannot_be_made(self):
        done = experiments.call('train', f'--config={self.config}', f'--workdir={self.text}/run')
        self.assert_sentence(done, 'The workdir .*text.txt/run cannot be made .*; give --workdir a folder')
        self.assertNotIn('model:', done.out)  # before the model is built
        done = experiments.call('train', f'--config={self.config}', f'--workdir={self.text}')
        self.assert_sentence(done, 'text.txt is a file; give a folder')

    @parameterized.parameters('eval', 'predict')
    def test_not_a_workdir(self, name):
        empty = self.folder / 'empty'
        empty.mkdir()
        self.assert_sentence(experiments.call(name), 'Give --workdir=DIR, the folder of a run', name)
        for folder, pattern in ((empty, 'is not a workdir of a run: it has no config.json'),
                                (self.folder / 'nowhere', 'There is no folder .*/nowhere; give the --workdir of a run')):
            self.assert_sentence(experiments.call(name, f'--workdir={folder}'), pattern, name)
        self.assertEqual(list(empty.iterdir()), [])
        self.assertFalse((self.folder / 'nowhere').exists())

    def test_eval(self):
        workdir = self.trained()
        (self.folder / 'latin.txt').write_bytes(b'caf\xe9\n')
        for arguments, pattern in ((['--step=7'], 'There is no checkpoint 7 in .* holds, 1'),
                                   (['--step=newest'], "The step is 'newest'; expected last, best or a number"),
                                   ([f'--against={self.folder / "nowhere"}'], 'no folder .*nowhere; give --against the'),
                                   (['--step=best'], 'This run has no best step; train it with'),
                                   (['--split=vaild'], "The split 'vaild' names no file of this data; did you mean 'valid'"),
                                   ([f'--path={self.folder / "nowhere"}'], 'does not exist; --path must be a file'),
                                   ([f'--path={self.folder / "latin.txt"}'], 'latin.txt is not UTF-8: byte 3'),
                                   (['--wordkir=x'], "There is no flag --wordkir; did you mean 'workdir'")):
            with self.subTest(arguments=arguments):
                self.assert_sentence(experiments.call('eval', f'--workdir={workdir}', *arguments), pattern, 'eval')
        shutil.rmtree(workdir / 'checkpoints')
        done = experiments.call('eval', f'--workdir={workdir}')
        self.assert_sentence(done, 'has no checkpoint yet; train it for longer', 'eval')

    @pytest.mark.slow
    def test_attention_and_heads(self):
        workdir, out = self.trained(), self.folder / 'out.png'
        save = self.images() / 'a' / '0.png'
        before = sorted(path for path in self.folder.rglob('*'))
        for arguments, pattern in (
                ([f'--attention={out}'], 'Give --attention something to look at: --input="a text", or --input=IMAGE_FILE'),
                ([f'--attention={out}', '--input='], 'Give --attention something to look at'),
                ([f'--attention={self.folder}/out.jpg', '--input=key'], "out.jpg' is no .png, .pdf, .svg or .html; give"),
                (['--attention=', '--input=key'], 'is no .png, .pdf, .svg or .html'),
                ([f'--heads={self.folder}/out.html'], "out.html' is no .png, .pdf or .svg; give it such a name"),
                ([f'--attention={self.folder}/out.html', '--input=key', '--steps'], '--steps is for pictures, but'),
                ([f'--attention={self.folder}/nowhere/out.png', '--input=key'], "no folder '.*nowhere' to draw out.png in"),
                ([f'--attention={out}', '--input=' + 'key ' * 8], 'A sequence of 33 tokens is longer than'),
                ([f'--attention={out}', '--input=' + 'key ' * 300], '--input has 1201 tokens, but a picture shows 1024'),
                ([f'--attention={out}', f'--input={save}'], '--input is the file .*0.png., but this run is on text'),
                ([f'--attention={save}', f'--input={save}'], 'is the file of --input, which it would replace'),
                ([f'--attention={out}', '--input=key', f'--heads={out}'], '--attention and --heads were both given'),
                ([f'--attention={out}', '--input=key', '--split=valid'], '--split is not for --attention, which looks at'),
                ([f'--heads={out}', f'--path={self.text}'], '--path is not for --heads, which looks at --split'),
                ([f'--filters={out}', '--split=valid'], '--split is not for --filters, which looks at the parameters'),
                ([f'--filters={out}'], '--filters is for models of images, but this run is on data.text.documents:Text'),
                (['--input=key'], '--input is for --attention=OUT.png; give that too'),
                (['--keep=1'], '--keep is for --heads=OUT.png; give that too'),
                ([f'--heads={out}', '--keep=1'], '--keep and --pruned go together'),
                ([f'--heads={out}', f'--pruned={self.folder}/new'], '--keep and --pruned go together'),
                ([f'--heads={out}', '--keep=-1', f'--pruned={self.folder}/new'], "--keep is '-1'; expected"),
                ([f'--heads={out}', '--keep=3', f'--pruned={self.folder}/new'], '--keep is 3, but the model has 2 heads'),
                ([f'--heads={out}', '--keep=1', f'--pruned={workdir}'], 'run is there already; give the new folder another'),
                ([f'--heads={out}', '--keep=1', '--pruned=.'], "'.' is no name of a new folder; give it one"),
                ([f'--heads={out}', '--keep=1', f'--pruned={self.folder}/a/b'], "no folder '.*a' to make b in"),
                ([f'--heads={out}', '--split=vaild'], "The split 'vaild' names no")):
            with self.subTest(arguments=arguments):
                self.assert_sentence(experiments.call('eval', f'--workdir={workdir}', *arguments), pattern, 'eval')
        self.assertEqual(before, sorted(path for path in self.folder.rglob('*')))

    @pytest.mark.slow
    def test_attention_over_images(self):
        self.assertEqual(experiments.train(experiments.tiny_images(), self.workdir)[0], 0)
        out = f'--attention={self.folder / "out.png"}'
        for given, pattern in (('key query', "'key query' does not exist; expected an image file"),
                               (self.text, 'text.txt cannot be decoded as an image')):
            done = experiments.call('eval', f'--workdir={self.workdir}', out, f'--input={given}')
            self.assert_sentence(done, pattern, 'eval')
            self.assertFalse((self.folder / 'out.png').exists())

    def test_predict(self):
        workdir = self.trained()
        for arguments, stdin, pattern in (
                (['--strategy=Gredy()'], b'a\n', "no 'Gredy'; did you mean 'Greedy'"),
                (['--strategy=Strategy()'], b'a\n', "no 'Strategy'; "),
                (['--strategy=Sample(temperature=0.0)'], b'a\n', 'expected temperature >= 0.001'),
                (['--strategy=Sample(temperature=hot)'], b'a\n', '--strategy is'),
                (['--tokens=0'], b'a\n', "--tokens is '0'; expected an integer in the range .1, 2147483647."),
                (['--tokens=99999999999'], b'a\n', '--tokens is'), (['--seed=99999999999'], b'a\n', '--seed is'),
                (['--tokens=few'], b'a\n', "--tokens is 'few'; expected a whole number"),
                (['--input=nowhere.txt'], b'', "no file 'nowhere.txt'"), (['--input='], b'', '--input is empty; give it a f'),
                (['--input=configs'], b'', "'configs' is a folder; give --input a file with one input per line"),
                (['--input=*.py'], b'', r"'\*.py' names several files; give --input a file with one input per line"),
                ([], b'key\n' + b'key ' * 16 + b'\n', 'The prompt in line 2 has [0-9]+ tokens, but the context .* is 16.*; '
                                                   r'none of the 2 lines was answered\.$'),
                ([], b'key ' * 16 + b'\n', r'The prompt in line 1 has [0-9]+ tokens, but the context .* is 16[^;]*; [^;]+$'),
                ([], b'caf\xe9\n', "The input '-' is not UTF-8 at byte 3; convert it to UTF-8, and give text with one input"),
                ([], 'key\nvalue\n'.encode('utf-16'), "The input '-' is not UTF-8 at byte 0; convert it"),
                ([], 'key\nvalue\n'.encode('utf-16-le'), "The input '-' is no text in UTF-8: 10 of its 20 bytes are NUL, as "
                                                        'in UTF-16; convert it to UTF-8, and give text with one input'),
                ([], b'key\nva\0lue\n', "The input '-' is no text in UTF-8: 1 of its 11 bytes is NUL; convert it")):
            with self.subTest(arguments=arguments, stdin=stdin):
                done = experiments.call('predict', f'--workdir={workdir}', *arguments, stdin=stdin)
                self.assert_sentence(done, pattern, 'predict')
                self.assertEqual(done.out, '')

    def use_pairs(self):
        """Makes the config one of a translator of tab-separated pairs, whose translations are scored."""
        self.config.write_text(
            'from configs import base\nfrom tests import experiments\n\n\ndef get_config(variant):\n'
            "    scores = base.evaluation('transformer.evaluators.translations:Translations', split='valid')\n"
            f"    return experiments.tiny_pairs({str(self.text)!r}, **{{'evals.translations': scores}})\n")
        self.text.write_text(experiments.pairs(20))

    @parameterized.parameters(
        ('key value\n', r'text.txt:21 has 1 column'),
        ('key\t \n', 'text.txt:21 has nothing in column 2; fill it in, or take the line out'),
        ('\tkey\n', 'text.txt:21 has nothing in column 1'))
    def test_line_that_is_no_pair(self, line, pattern):
        self.use_pairs()
        with self.text.open('a') as file:
            file.write(line)
        self.assert_refused(pattern=pattern)

    @parameterized.parameters(
        ({'train.en': 'one\ntwo\n', 'train.fr': 'un\n'},
         r'train.en has 2 line\(s\) and \S*train.fr has 1 line\(s\), but line i of one is the translation'),
        ({'train.en': 'one\ntwo\n', 'train.fr': 'un\n\n'}, r'train.fr:2 is blank and line 2 of \S*train.en is not'),
        ({'train.en': 'one\n'}, 'has no train.fr, train.fr.gz or train.fr.zst; did you mean train.en'))
    def test_aligned_files(self, files, pattern):
        self.use_pairs()
        aligned = self.folder / 'aligned'
        aligned.mkdir()
        for name, content in files.items():
            (aligned / name).write_text(content)
        self.assert_refused('--config.data.source=files', f'--config.data.path={aligned}', '--config.data.train=train',
                            '--config.data.valid=valid', pattern=pattern)

    @parameterized.parameters(
        (['--config.data.path=nowhere.tsv'], "'nowhere.tsv' does not exist; data.path must be"),
        (['--config.data.source=files', '--config.data.path=nowhere'], "'nowhere' is no folder; with data.source='files'"),
        (['--config.data.train=train', '--config.data.valid=*.txt[:5]'],
         r"data.train='train' names text.txt, and so does data.valid='\*.txt\[:5\]'; give each its own part"),
        (['--config.evals.translations.strategy=Beam(size=0)'], r'Beam\(size=0.*expected 1 to 4,096'),
        (['--config.evals.translations.strategy=Baem(size=2)'], "there is no 'Baem'; did you mean 'Beam'"))
    def test_pairs(self, arguments, pattern):
        self.use_pairs()
        self.assert_refused(*arguments, pattern=pattern)

    @pytest.mark.slow
    def test_translate(self):
        workdir = self.translator(**{'train.steps': 1})
        for strategy, pattern in (('Beam(size=0)', r'Beam\(size=0.*expected 1 to 4,096'),
                                  ('Baem(size=2)', "--strategy .*there is no 'Baem'; did you mean 'Beam'"),
                                  ('Beam(sise=2)', "Beam has no field 'sise'; did you mean 'size'")):
            with self.subTest(strategy=strategy):
                done = experiments.call('predict', f'--workdir={workdir}', f'--strategy={strategy}', stdin=b'key\n')
                self.assert_sentence(done, pattern, 'predict')
                self.assertEqual(done.out, '')

    @parameterized.parameters(
        ('Mary went home.\n', r'qa1_some-name_train.txt, line 1: .* begins with no number'),
        ('1 Mary went home.\n3 Where is Mary?\thome\t1\n', 'line 2: .* has the number 3; expected 2'),
        ('1 Mary went home.\n2 Where is Mary?\t\t1\n', 'line 2: .* is a question without an answer'),
        ('1 Mary went home.\n', 'qa1_some-name_train.txt holds no question'))
    def test_stories(self, content, pattern):
        experiments.write_babi(self.folder / 'en-10k', 20)
        (self.folder / 'en-10k' / 'qa1_some-name_train.txt').write_text(content)
        self.config.write_text('from tests import experiments\n\n\ndef get_config(variant):\n'
                               f'    return experiments.tiny_stories({str(self.folder)!r})\n')
        self.assert_refused(pattern=pattern)


if __name__ == '__main__':
    absltest.main()
