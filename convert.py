"""Converts models of Hugging Face transformers into runs, and runs into such models.

    python convert.py --from_hf=FOLDER --workdir=NEW_WORKDIR     what save_pretrained wrote -> a run for eval.py, predict.py
                                                                 and train.py --config=configs/finetune.py:NEW_WORKDIR
    python convert.py --workdir=DIR --to_hf=NEW_FOLDER           a run -> what from_pretrained loads
    python convert.py --workdir=DIR --to_hf=NEW_FOLDER --part=generator      of ELECTRA the generator, not the discriminator
    python convert.py --workdir=DIR --to_safetensors=NEW_FILE    a run -> its parameters by our names, their shapes and the
                                                                 config in NEW_FILE's .json, for other tools
    python convert.py --workdir=DIR --verify=IN.npz --out=OUT.npz

--to_hf writes a model with the same outputs: what transformers always has and the run lacks, such as biases, is written as
zeros. A run for which there is no such model is refused, with the flags to train one that has. Of several families that have
one, the first of docs/hugging_face.md is written, or --family=electra.

--verify runs the model, in float32 and with any kernel of attention, on arrays that are named as in transformers (input_ids,
attention_mask, ...) and writes its outputs under their names there (logits, last_hidden_state), to compare with those of the
original. Outputs at padding are arbitrary.

In Python: from convert import from_hf; model, params = from_hf(FOLDER).
"""

import contextlib
import dataclasses
import json
import pathlib
import re
import tempfile

from absl import flags

from training.config import cli

if __name__ == '__main__':  # a script that imports `convert` defines flags of its own
    flags.DEFINE_string('from_hf', None, 'the folder of a model that save_pretrained has written')
    flags.DEFINE_string('to_hf', None, 'the new folder to write for from_pretrained')
    flags.DEFINE_string('to_safetensors', None, 'the new file to write with the parameters of any run')
    flags.DEFINE_string('workdir', None, 'folder of the run: a new one with --from_hf')
    flags.DEFINE_string('step', 'last', 'the checkpoint: last, best, or a number')
    flags.DEFINE_string('part', None, 'of a run of ELECTRA with --to_hf or --verify: discriminator (the default) or generator')
    flags.DEFINE_string('family', None, 'with --to_hf or --verify: the model_type to write, such as electra; else the nearest')
    flags.DEFINE_string('verify', None, 'an .npz file with inputs of the model')
    flags.DEFINE_string('out', None, 'for --verify: the .npz file to write')
    cli.answer_help()  # at once, before jax is imported

import jax
import numpy as np

from configs import base, converted
from data import json_files, special_tokens
from data.seq2seq import pairs
from data.seq2seq.parallel import OpenParallel
from data.text import examples as data_examples
from data.text import frames
from data.text.choices import OpenChoices
from data.text.labelled import Labelled, OpenLabelled
from data.text.preferences import OpenPreferences
from data.text.targets import Labels, Number
from data.tokenizers import hugging_face as tokenizer_files
from display import progress
from training import mesh, storage, weight_files, workdir
from training import run as runs
from training.checkpoint import require_same
from training.config import resolve
from training.contracts import Fitting
from training.host import machine
from training.snapshot import Snapshot
from training.state import initialised, variables
from transformer.contracts import LabelledText, TaggedText
from transformer.conversion import arrays
from transformer.conversion.families import FAMILIES as OF_TEXT
from transformer.conversion.fields import PROBLEMS, at, labels, named, problem_of
from transformer.conversion.fields import fields_of as fields_in
from transformer.conversion.forms import with_fields
from transformer.conversion.generation import IDS, Prompts, stated
from transformer.conversion.generation import read as read_settings
from transformer.conversion.generation import write as write_settings
from transformer.conversion.tables import Weight
from transformer.decoding.strategies import Strategy
from transformer.models.electra import Electra
from vit.contracts import SeenImages
from vit.conversion import preparation, timm
from vit.conversion.families import FAMILIES as OF_IMAGES
from vit.conversion.families import TIMM
from vit.conversion.vit import image_of

FAMILIES = *OF_TEXT, *OF_IMAGES
# Fields of our models that do not change what given parameters compute, except for rounding.
FREE = ('dtype', 'parameter_dtype', 'dense_gradient', *(f'{stack}{name}' for stack in ('', 'encoder.', 'decoder.')
                                                        for name in ('scan', 'remat', 'initial')))
KERNELS = [f'{stack}{name}.implementation' for stack in ('', 'encoder.', 'decoder.')
           for name in ('attention', 'cross_attention')]
GENERATES = 'text', 'pairs'  # the uses of models that generate text


def main():
    given = flags.FLAGS
    asked = [name for name in ('from_hf', 'to_hf', 'to_safetensors', 'verify') if given[name].value is not None]
    if len(asked) != 1:
        raise ValueError('Give one of --from_hf=FOLDER, --to_hf=FOLDER, --to_safetensors=FILE and --verify=IN.npz; see --help.')
    if (given.out is None) != (given.verify is None):
        raise ValueError('--verify=IN.npz and --out=OUT.npz go together; give both.')
    for name in ('part', 'family'):
        if given[name].value is not None and given.to_hf is None and given.verify is None:
            raise ValueError(f'--{name} is for --to_hf and --verify; leave it out.')
    folder = workdir.given(given.workdir)
    if given.from_hf is not None:
        if given['step'].present:
            raise ValueError('--step is for a run, and --from_hf makes one; leave it out.')
        print(run_of(storage.local(given.from_hf), folder))
        return
    machine.prepare(workdir.load_config(folder), sparing=True)
    path = storage.local(given[asked[0]].value)
    if given.to_hf is not None:
        runs.require_new(path)
    elif given.to_safetensors is not None:
        weight_files.require_new(path)
    snapshot, kind = runs.load(folder, step=given.step, data=1), given.family
    if given.to_safetensors is None:
        kind = 'electra' if kind is None and isinstance(snapshot.model, Electra) else kind
        snapshot = part_of(snapshot, given.part)
    if given.to_hf is not None:
        print(folder_of(snapshot, path, kind))
    elif given.to_safetensors is not None:
        print(weight_files.export(snapshot, path))
    else:
        family, snapshot, _ = expressed(snapshot, kind)
        print(arrays.verify(in_float32(snapshot), family, path, storage.local(given.out)))


def from_hf(folder, dtype='float32'):
    """(model, params) of a folder that save_pretrained has written: a Flax module and its parameters, which are bfloat16 if all
    weights in the folder are, else float32.

    dtype: of the matrix products, 'float32', 'bfloat16' or 'mixed'; or 'float64', which is then also the type of the parameters
      and requires that the caller has enabled JAX's 64-bit types.
    Raises ValueError or FileNotFoundError for a folder that cannot be read, for a model whose outputs would differ, and for one
    that needs more than its parameters.
    """
    model, variables = variables_from_hf(folder, dtype)
    if len(variables) > 1:
        raise ValueError(f'{folder} has running statistics besides its parameters; call variables_from_hf.')
    return model, variables['params']


def variables_from_hf(folder, dtype='float32'):
    """As `from_hf`, (model, variables): what the module is applied to, {'params': ..} and for a ResNet {'statistics': ..}."""
    folder = pathlib.Path(folder).expanduser()
    family, config, weights = opened(folder)
    types = {'dtype': dtype, 'parameter_dtype': dtype if dtype == 'float64' else family.parameter_dtype(weights)}
    with of_config():
        model = resolve.construct(base.part(family.model, **fields_of(family, config)), extra=types)
        shapes = shapes_of(family, model, config)
    return model, read(folder, family, weights, shapes, model)


def fields_of(family, config):
    """{field of our model: value} for a config of transformers."""
    return family.model_fields(config, resolve.load(family.model))


def opened(folder):
    """(family, config, {name: `Weight`}) of a folder that save_pretrained has written."""
    require_folder(folder)
    config = json_of(folder / 'config.json')
    with of_config():
        config = timm.flat(config) if timm.is_timm(config) else config
        if 'model_type' not in config:
            raise ValueError(f'{folder / "config.json"} is not the config of a model; fetch it again.')
        several = config.get('architectures') or [None]
        kind, named = config['model_type'], several if isinstance(several, str) else several[0]
    known = [family for family in FAMILIES if family.kind == kind]
    if not known:
        raise ValueError(f'config.json names the model {kind!r}; '
                         f'{resolve.did_you_mean(kind, dict.fromkeys(family.kind for family in FAMILIES))}')
    fitting = [family for family in known if named is None or named in family.names]
    if not fitting:
        raise ValueError(f'config.json names {named}; of {kind} expected '
                         f'{", ".join(dict.fromkeys(name for family in known for name in family.names))}.')
    weights = weight_files.open_all(folder, Weight)
    family = min(fitting, key=lambda family: family.distance(weights))  # several may share a name
    with of_config():
        return family, family.prepared(config, weights) if family.prepared else config, weights


@contextlib.contextmanager
def of_config(file='config.json'):
    """Raises ValueError for what a field of a wrong kind in a file leads to."""
    try:
        yield
    except (TypeError, AttributeError, LookupError, ArithmeticError, ValueError) as error:
        if cli.expected(error):
            raise
        said = ' '.join(str(error).split()) or type(error).__name__
        raise ValueError(f'{file} has a field of a wrong kind ({said}); fetch it again.') from error


def require_folder(folder):
    """Raises ValueError for a file, and for a name on the hub, which is not downloaded."""
    if folder.is_file():
        raise ValueError(f'{folder} is a file; give --from_hf the folder that save_pretrained has written.')
    if not folder.exists() and re.fullmatch(r'[\w-][\w.-]*(/[\w.-]+)?', str(folder)):
        raise ValueError(f'There is no folder {folder}; if it is a name on the Hugging Face hub, download it first with '
                         f'"hf download {folder} --local-dir {folder.name}" and give --from_hf that folder.')


def json_of(path):
    """The JSON object in a file."""
    if not path.is_file():
        raise ValueError(f'There is no {path}; give --from_hf a folder that save_pretrained has written.')
    if (found := json_files.read(path)) is None:
        raise ValueError(f'{path} is no JSON object; fetch it again.')
    return found


def shapes_of(family, model, config):
    """The shapes of what a model is applied to. Raises ValueError for images that theirs cannot take."""
    if wrong := family in OF_IMAGES and family.check(model, image_of(config)[1:3]):
        raise ValueError(f'{wrong}.')
    inputs = {name: jax.ShapeDtypeStruct(shape, dtype) for name, (shape, dtype) in family.inputs(config).items()}
    return variables(*jax.eval_shape(lambda inputs: initialised(model, inputs, jax.random.key(0)), inputs))


def read(folder, family, weights, shapes, model):
    """The variables of these shapes and types, read from the weights of a folder."""
    flat = mesh.flat(*shapes.values())
    sizes, dtype = {name: x.shape for name, x in flat.items()}, next(iter(flat.values())).dtype
    require_same(*family.sides(weights, sizes, model), ('the model needs', 'the file has'),
                 f'{folder} does not fit its config.json:', 'Mend the sizes in config.json, or fetch both again.')
    reading = progress.over(family.read(weights, sizes, folder, model, dtype), f'reading {folder}', 'arrays', len(flat))
    found = {name: jax.device_put(x.astype(flat[name].dtype)) for name, x in reading}
    return {kind: jax.tree_util.tree_map_with_path(lambda keys, _: found[mesh.path_of(keys)], tree)
            for kind, tree in shapes.items()}


def snapshot_of(folder):
    """The Snapshot of the run that a folder of save_pretrained becomes, without a workdir."""
    _, _, run, found, _ = converted_run(pathlib.Path(folder))
    return Snapshot(run, step=0, **found)


def run_of(folder, new):
    """Writes a run from a folder that save_pretrained has written; returns the report to print."""
    runs.require_new(new)
    family, weights, run, found, said = converted_run(folder)
    runs.write(new, run, found)
    further = 'classify' if family.use in ('hidden', 'replaced', 'images', 'reconstruction') else 'finetune'
    return (f'{new}: {family.architecture} with {run.parameters():,} parameters, {said}\n'
            f'{widened(family.kinds(weights), run.config.parameter_dtype)}'
            f'train it further with: python train.py --config=configs/{further}.py:{new} --config.data.path=PATH')


def converted_run(folder):
    """(family, {name: `Weight`}, run, variables, report) of a folder that save_pretrained has written."""
    family, theirs, weights = opened(folder)
    with tempfile.TemporaryDirectory() as place:
        config, said = described(folder, family, theirs, place)
        with config.unlocked():
            config.parameter_dtype = family.parameter_dtype(weights)
        machine.prepare(config, sparing=True)
        with of_config():
            run = runs.build(config, mesh.make(1, 1, 1), place)
            shapes = shapes_of(family, run.model, theirs) if family in OF_IMAGES else None
    if family in OF_IMAGES:
        found = read(folder, family, weights, shapes, run.model)
        found, more = fitted(folder, family, theirs, run, found)
        said += more
    else:
        found = read(folder, family, weights, variables(run.shapes.params, run.shapes.statistics), run.model)
    return family, weights, run, found, said


def widened(kinds, dtype):
    """A line on weights whose type changes; '' if there are none."""
    others = sorted(kinds - {{'float32': 'F32', 'bfloat16': 'BF16'}[dtype]})
    return f'weights in {", ".join(others)} become {dtype}, the type in which --to_hf writes them\n' if others else ''


@of_config()
def described(folder, family, theirs, place):
    """(config, report to print) of a run; writes what it takes besides the weights into the folder `place`."""
    return (image_run if family in OF_IMAGES else text_run)(folder, family, theirs, fields_of(family, theirs), place)


def text_run(folder, family, theirs, fields, place):
    """(config, report to print) of a run of a text model; writes its tokenizer and its classes into the folder `place`."""
    path, generates = folder / 'generation_config.json', family.use in GENERATES
    generation = json_of(path) if path.is_file() else None
    vocab = fields['vocab']
    configs = theirs, generation or {}
    found = tokenizer_files.read(folder, family.kind, vocab, configs, generates)
    found.tokenizer.save(place)
    start, said = tokenizer_files.start(family.kind, configs, generates), [f'tokenizer {found.spec}', *found.said]
    framing = framing_of(family, found, fields.get('types', 1), said)
    if family.use == 'classes':
        family = dataclasses.replace(family, use=problem_of(theirs))
    if family.use == 'choices':
        data_examples.write(place, 'classes.json', classes=OpenChoices.classes)
    elif file := dict.fromkeys(PROBLEMS, 'classes.json').get(family.use, 'tags.json' if family.use == 'tags' else ''):
        data_examples.write(place, file, classes=labels(theirs))
    elif family.use == 'spans':
        data_examples.write(place, 'questions.json', unanswerable=False)
    end = found.tokenizer.end if family.use == 'text' else frames.Frame.of(framing, found.tokenizer).end
    config = converted.config_of(family, fields, found.spec, framing, start, ends=end >= 0)
    if generates:
        prompts = Prompts(start if family.use == 'pairs' else -1, end)
        with config.unlocked(), of_config('config.json' if generation is None else path.name):
            config.generation = generation_of(theirs, generation, prompts, said)
    return config, '\n'.join(said)


def framing_of(family, found, types, said):
    """The template of the special tokens around texts: the tokenizer's, else that of the family of the model."""
    framing = frames.named(found.framing or converted.FRAMINGS[family.kind])
    framing = framing if types > 1 else frames.of_one_type(framing)
    if lacks := frames.lacking(framing, found.tokenizer):
        if family.use == 'pairs':
            raise ValueError(f'Texts need a token with the role {lacks[0]!r} around them, but no file names it; give '
                             f'{tokenizer_files.IDS[lacks[0]]} in config.json.')
        framing = frames.named('a | a b:1') if types > 1 else 'plain'
        said.append(f'texts get no special tokens around them, as no file names those with the roles {", ".join(lacks)}: give '
                    f'{", ".join(tokenizer_files.IDS[role] for role in lacks)} in config.json')
    if family.use == 'pairs' and framing == 'plain':
        framing = 't5'
        said.append('texts end with a token that the original tokenizer does not add')
    return framing


def generation_of(theirs, generation, prompts, said):
    """The group `generation` of a run's config: the strategy and the most tokens, from the generation settings of a folder."""
    settings = stated(theirs, generation)
    strategy, tokens, rest = read_settings(settings, prompts)
    if strategy is not None or tokens:
        said.append(f'predict.py takes {strategy or "its usual strategy"}{f" and {tokens} tokens at most" if tokens else ""}')
    if rest:
        said.append('kept for generation_config.json, but without effect here: '
                    + ', '.join(f'{name}={settings[name]}' for name in rest))
    return {'strategy': '' if strategy is None else repr(strategy), 'tokens': tokens, 'settings': settings}


def image_run(folder, family, theirs, fields, place):
    """(config, report to print) of a run of an image model; writes its classes into the folder `place`."""
    path, channels = folder / 'preprocessor_config.json', image_of(theirs)[-1]
    prepared = preparation.read(json_of(path) if path.is_file() else None, theirs)
    if family.use == 'images' and (told := problem_of(theirs)) != 'classes':
        raise ValueError(f'config.json says that an image has {told}, which is not supported; expected one class.')
    classes = labels(theirs) if family.use == 'images' else []
    form = {'height': prepared.height, 'width': prepared.width, 'channels': channels, 'classes': classes}
    pathlib.Path(place, 'classes.json').write_text(json.dumps(form))
    said = f'images of {prepared.height}x{prepared.width}x{channels}, prepared by {prepared.fit}'
    return converted.config_of(family, fields, image=prepared.fields() | {'channels': channels}), said


def fitted(folder, family, theirs, run, found):
    """(the variables for the images of the run, report to print): where config.json has images of another size, tables of
    positions are resized."""
    before = {name: jax.ShapeDtypeStruct(shape, dtype) for name, (shape, dtype) in family.inputs(theirs).items()}
    image = jax.ShapeDtypeStruct(run.data.shapes['image'][0], np.float32)
    sides = ['x'.join(map(str, one.shape[1:3])) for one in (image, before['image'])]
    said = '' if sides[0] == sides[1] else f'; config.json has {sides[1]}'
    if said and isinstance(run.model, Fitting):
        fit = lambda keys, x: run.model.fitted(mesh.path_of(keys), x, before, image=image)
        there, found = found, {kind: jax.tree_util.tree_map_with_path(fit, tree) for kind, tree in found.items()}
        if any(x.shape != y.shape for x, y in zip(*map(jax.tree.leaves, (there, found)))):
            said += ', whose table of positions is resized'
    sizes = [[x.shape for x in jax.tree.leaves(tree)] for tree in (found, variables(run.shapes.params, run.shapes.statistics))]
    if sizes[0] != sizes[1]:
        raise ValueError(f'{folder} has a preprocessor_config.json for images of {sides[0]}, and a model for images of '
                         f'{sides[1]}; mend one of them.')
    return found, said


def folder_of(snapshot, new, kind=None):
    """Writes a run as a folder for from_pretrained; returns the report to print."""
    family, snapshot, formed = expressed(snapshot, kind)
    if wrong := family in OF_IMAGES and family.check(snapshot.model, snapshot.data.shapes['image'][0][1:3]):
        raise ValueError(f'{wrong}, or write the run as it is with --to_safetensors=FILE.')
    special = None if family in OF_IMAGES else special_of(snapshot, family)
    more = (special.ids() if special else {}) | family.config(snapshot.model) | told_of(snapshot)
    kind = next(iter(jax.tree.leaves(snapshot.params))).dtype
    flat = {name: np.asarray(x, kind) for name, x in mesh.flat(*snapshot.variables.values()).items()}
    theirs = more | {'dtype': kind.name}
    snapshot = dataclasses.replace(snapshot, params=None)  # so that each parameter is freed once it is written
    weights = family.write(flat, snapshot.model)
    of_timm = family in TIMM
    prepared = None if special else (preparation.pretrained if of_timm else preparation.processor)(snapshot.data)
    theirs = timm.nested(theirs, prepared, family) if of_timm else theirs
    with workdir.made(new) as folder:
        (folder / 'config.json').write_text(json.dumps(theirs, indent=2, sort_keys=True) + '\n')
        with progress.waiting(f'writing {new}'):
            weight_files.write(folder, weights)
        if special is None:
            said = 'and the preparation of its images'
            if not of_timm:
                (folder / 'preprocessor_config.json').write_text(json.dumps(prepared, indent=2) + '\n')
        else:
            said = written_tokenizer(folder, snapshot, special)
            if family.use in GENERATES:
                said += written_generation(folder, snapshot.run.config.generation, special)
    count = sum(x.size for x in weights.values())
    return '\n'.join(filter(None, [f'{new}: {family.architecture} with {count:,} weights, {said}', formed]))


def written_tokenizer(folder, snapshot, special):
    """Writes the tokenizer of a run; returns the report to print."""
    frame, model = special.frame, snapshot.model
    around = None if frame is None else (frame.single, frame.pair)
    types = frame is not None and min(frame.types, fields_in(model).get('types', 1)) > 1
    how = snapshot.data.config.text if isinstance(snapshot.data, OpenParallel) else 'raw'
    steps = pairs.normalizers(how)
    files = tokenizer_files.write(folder, special.tokenizer, special.roles, model.length, around, types, steps)
    if not files:
        return 'without a tokenizer, as its texts are numbers'
    said = f'with its tokenizer, {", ".join(files)}'
    if steps and (apart := getattr(special.tokenizer, 'special', ())):
        said += (f', which prepares texts as data.text={how!r} does, but those with {" or ".join(sorted(apart)[:3])} in them '
                 'part by part')
    return said


def written_generation(folder, generation, special):
    """Writes the group `generation` of a run's config as generation_config.json; returns the report to print."""
    strategy = resolve.parse(generation.strategy, Strategy, 'generation.strategy') if generation.strategy else None
    prompts = Prompts(special.start if special.pairs else -1, special.roles.end)
    settings, lost = write_settings(strategy, generation.tokens, generation.settings.to_dict(), prompts)
    ids = {name: one for name, one in special.ids().items() if name in IDS and one is not None}
    if [ids.get('eos_token_id')] != settings.get('eos_token_id', [])[:1]:  # the first of several end tokens has changed
        settings.pop('eos_token_id', None)
    (folder / 'generation_config.json').write_text(json.dumps(ids | settings, indent=2, sort_keys=True) + '\n')
    return f', and generation_config.json, which cannot express {", ".join(lost)}' if lost else ', and generation_config.json'


def part_of(snapshot, part):
    """One encoder of a run of ELECTRA as a snapshot of its own, by default the discriminator; of others the run itself."""
    if not isinstance(snapshot.model, Electra):
        if part is not None:
            raise ValueError(f'--part={part} is for runs of {Electra.__module__}:{Electra.__name__}; leave it out.')
        return snapshot
    part = 'discriminator' if part is None else part
    if part not in ('discriminator', 'generator'):
        raise ValueError(f'--part is {part!r}; expected discriminator or generator.')
    model, params = snapshot.model.encoder(part, snapshot.params)
    return dataclasses.replace(snapshot, run=dataclasses.replace(snapshot.run, model=model), params=params)


def expressed(snapshot, kind=None):
    """(family, the snapshot with an equal model that the family has, a report on how it differs): the family with this
    `model_type`, or the nearest.

    Raises ValueError if transformers has no such model.
    """
    known = [family for family in FAMILIES if type(snapshot.model) is resolve.load(family.model)]
    if not known:
        every = ', '.join(sorted({family.model for family in FAMILIES}))
        raise ValueError(f'{snapshot.run.config.model.name} has no counterpart in transformers, only {every} have one; write '
                         'the run as it is with --to_safetensors=FILE.')
    chosen = [family for family in known if family.use == 'choices'] if isinstance(snapshot.data, OpenChoices) else []
    known = chosen or [family for family in known if family.use != 'choices']  # the same head as that of a number
    if kind is not None:
        kinds = dict.fromkeys(family.kind for family in known)
        known = [family for family in known if family.kind == kind]
        if not known:
            raise ValueError(f'--family={kind} is none that {snapshot.run.config.model.name} is written as; expected one of '
                             f'{", ".join(kinds)}.')
    model, unlike = with_any_kernel(snapshot.model), ''
    for family, formed in sorted(((family, family.formed(model, FREE)) for family in known),
                                 key=lambda one: one[1].distance):
        if formed.misfits:
            break
        pad = family.config(formed.model).get('pad_token_id', -1)  # RoBERTa's positions skip this token
        if pad == -1 or pad == (own := special_of(snapshot, family).roles.pad):
            image = snapshot.data.shapes['image'][0][1:] if family in OF_IMAGES else ()
            flat = {name: np.asarray(x) for name, x in mesh.flat(snapshot.params).items()}
            params = mesh.nested(formed.params(flat, image))
            run = dataclasses.replace(snapshot.run, model=formed.model)
            return family, dataclasses.replace(snapshot, run=run, params=params), formed.said
        unlike = unlike or (
            f'{family.architecture} pads with token {pad}, to which it gives no position, and this run with '
            f'{"none" if own < 0 else f"token {own}"}; train with a tokenizer that pads with token {pad}, write the run as '
            'another --family, or as it is with --to_safetensors=FILE.')
    raise ValueError(unlike or formed.refusal(family.architecture))


def with_any_kernel(model):
    """The model with the choice of kernels left to each call, which computes the same but for rounding."""
    own, chosen = fields_in(model), {}
    for path in KERNELS:
        with contextlib.suppress(ValueError, KeyError):  # there is no such part, or it has no kernels
            if at(own, path) != 'auto':
                chosen[path] = 'auto'
    return with_fields(model, chosen) if chosen else model


def in_float32(snapshot):
    """The snapshot with a model that computes in float32 where it rounds products to bfloat16; others as they are."""
    if snapshot.model.dtype not in ('mixed', 'bfloat16'):
        return snapshot
    run = dataclasses.replace(snapshot.run, model=snapshot.model.clone(dtype='float32'))
    return dataclasses.replace(snapshot, run=run)


def told_of(snapshot):
    """The fields of the config for transformers, except tokens, that come from the data: classes and the shape of images."""
    data, found = snapshot.data, {}
    if classes := list(data.classes) if isinstance(data, LabelledText | TaggedText | SeenImages | OpenChoices) else []:
        known = fields_in(snapshot.model)
        # A score beside the next words is the only one.
        count = known.get('classes', 0) if isinstance(data, SeenImages) else getattr(known['head'], 'classes', 1)
        classes += [f'LABEL_{i}' for i in range(len(classes), count)]  # a head may have more than the data
        found |= {'id2label': dict(enumerate(named(classes))), 'label2id': {name: i for i, name in enumerate(named(classes))}}
    match data:
        case OpenLabelled(config=Labelled(target=Labels())):
            found['problem_type'] = PROBLEMS['labels']
        case OpenLabelled(config=Labelled(target=Number())) | OpenPreferences():
            found['problem_type'] = PROBLEMS['number']
    if isinstance(data, SeenImages):
        _, height, width, channels = data.shapes['image'][0]
        found |= {'image_size': height if height == width else [height, width], 'num_channels': channels}
    return found


def special_of(snapshot, family):
    """The special tokens of a run."""
    pads = family.use not in GENERATES and family.kind == 'gpt2'  # without padding transformers takes one text only
    return special_tokens.of(snapshot.data, snapshot.run.task.start, pads)


if __name__ == '__main__':
    cli.run(main)
