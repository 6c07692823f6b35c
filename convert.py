"""Models of Hugging Face transformers in and out.

    python convert.py --from_hf=FOLDER --workdir=NEW_WORKDIR     what save_pretrained wrote -> a run for eval.py, predict.py
                                                                 and train.py --config=configs/finetune.py:NEW_WORKDIR
    python convert.py --workdir=DIR --to_hf=NEW_FOLDER           a run -> what from_pretrained loads
    python convert.py --workdir=DIR --verify=IN.npz --out=OUT.npz

--verify runs the model on arrays under the names of transformers (input_ids, attention_mask, ...) and writes its outputs
under the names there (logits, last_hidden_state), to compare with those of the original; what stands at padding means nothing.

In Python: from convert import from_hf; model, params = from_hf(FOLDER).
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import tempfile
import zipfile

from absl import flags

from training import cli

if __name__ == '__main__':  # who imports `convert` has flags of its own
    flags.DEFINE_string('from_hf', None, 'the folder of a model that save_pretrained has written')
    flags.DEFINE_string('to_hf', None, 'the folder to write for from_pretrained, a new one')
    flags.DEFINE_string('workdir', None, 'folder of the run: a new one with --from_hf')
    flags.DEFINE_string('step', 'last', 'the checkpoint: last, best, or a number')
    flags.DEFINE_string('verify', None, 'an .npz file with inputs of the model')
    flags.DEFINE_string('out', None, 'for --verify: the .npz file to write')
    cli.answer_help()  # at once, before jax is imported

import jax
import numpy as np

from configs import base, converted
from data import examples as data_examples
from data import hugging_face as tokenizer_files
from data.plain_tokenizers import Ids
from training import machine, mesh, resolve, weight_files, workdir
from training import run as runs
from training.checkpoint import require_same
from transformer.conversion import Weight, labels, named
from transformer.families import FAMILIES as OF_TEXT
from vit.families import VIT, image_of

FAMILIES = *OF_TEXT, *VIT
# Fields of our models that do not change what they compute, but for rounding, once their parameters are there.
FREE = ('dtype', 'dense_gradient', 'scan', 'remat', 'initial')
INPUTS = {'input_ids': 'inputs', 'attention_mask': 'segments', 'position_ids': 'positions', 'token_type_ids': 'types',
          'decoder_input_ids': 'decoder_inputs', 'decoder_attention_mask': 'decoder_segments', 'pixel_values': 'image'}
# Of how texts are generated, what changes them, and what changes nothing.
GENERATION = {
    'num_beams': 1, 'length_penalty': 1.0, 'max_length': 20, 'max_new_tokens': None, 'min_length': 0, 'early_stopping': False,
    'no_repeat_ngram_size': 0, 'repetition_penalty': 1.0, 'bad_words_ids': None, 'suppress_tokens': None,
    'begin_suppress_tokens': None, 'forced_bos_token_id': None, 'do_sample': False, 'temperature': 1.0, 'top_k': 50,
    'top_p': 1.0}
STARTS = {'bart': 2}  # the token that a decoder is given first, where config.json does not say; else it is the one that pads
PADS = {'bart': 1}
OUTPUTS = {'logits': 'logits', 'hidden': 'last_hidden_state', 'source_hidden': 'encoder_last_hidden_state',
           'pooled': 'pooler_output', 'start_logits': 'start_logits', 'end_logits': 'end_logits'}


def main():
    given = flags.FLAGS
    asked = [name for name in ('from_hf', 'to_hf', 'verify') if given[name].value is not None]
    if len(asked) != 1:
        raise ValueError('Give one of --from_hf=FOLDER, --to_hf=FOLDER and --verify=IN.npz; see --help.')
    if (given.out is None) != (given.verify is None):
        raise ValueError('--verify=IN.npz and --out=OUT.npz go together; give both.')
    folder = workdir.given(given.workdir)
    if given.from_hf is not None:
        if given['step'].present:
            raise ValueError('--step is for a run, and --from_hf makes one; leave it out.')
        print(run_of(pathlib.Path(given.from_hf).expanduser(), folder))
        return
    machine.prepare(workdir.load_config(folder), sparing=True)
    if given.to_hf is not None:
        runs.require_new(pathlib.Path(given.to_hf).expanduser())
        print(folder_of(runs.load(folder, step=given.step, data=1), pathlib.Path(given.to_hf).expanduser()))
    else:
        print(verify(runs.load(folder, step=given.step, data=1), pathlib.Path(given.verify).expanduser(),
                     pathlib.Path(given.out).expanduser()))


def from_hf(folder, dtype='float32'):
    """(model, params) of a folder that save_pretrained has written: a Flax module, and its parameters in float32.

    dtype: of the matrix products, 'float32' or 'bfloat16'. Raises ValueError or FileNotFoundError for what cannot be read, and
    what would not give the outputs of the original.
    """
    folder = pathlib.Path(folder).expanduser()
    family, config, weights = opened(folder)
    model = resolve.construct(base.part(family.model, **family.model_fields(config)), extra={'dtype': dtype})
    return model, params_of(folder, family, weights, shapes_of(family, model, config), model)


def opened(folder):
    """(family, config, {name: `Weight`}) of a folder of theirs."""
    config = json_of(folder / 'config.json')
    if 'model_type' not in config:
        raise ValueError(f'{folder / "config.json"} is not the config of a model; fetch it again.')
    kind, named = config['model_type'], (config.get('architectures') or [None])[0]
    known = [family for family in FAMILIES if family.kind == kind]
    if not known:
        raise ValueError(f'config.json names the model {kind!r}; '
                         f'{resolve.did_you_mean(kind, dict.fromkeys(family.kind for family in FAMILIES))}')
    fitting = [family for family in known if named is None or named in family.names]
    if not fitting:
        raise ValueError(f'config.json names {named}; of {kind} expected '
                         f'{", ".join(dict.fromkeys(name for family in known for name in family.names))}.')
    weights = weight_files.open_all(folder, Weight)
    family = min(fitting, key=lambda family: family.distance(weights))  # of several of one name
    return family, family.prepared(config, weights) if family.prepared else config, weights


def json_of(path):
    """The object in a .json file of theirs."""
    if not path.is_file():
        raise ValueError(f'There is no {path}; give --from_hf a folder that save_pretrained has written.')
    try:
        found = json.loads(path.read_text(encoding='utf-8'))
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ValueError(f'{path} is no JSON object; fetch it again.')
    return found


def shapes_of(family, model, config):
    """The parameters of a model, as shapes."""
    inputs = {name: jax.ShapeDtypeStruct(shape, dtype) for name, (shape, dtype) in family.inputs(config).items()}
    return jax.eval_shape(model.init, jax.random.key(0), **inputs)['params']


def params_of(folder, family, weights, shapes, model):
    """The parameters in these shapes, from the weights of a folder."""
    flat = {mesh.path_of(keys): x.shape for keys, x in jax.tree_util.tree_leaves_with_path(shapes)}
    require_same(*family.sides(weights, flat, model), ('the model needs', 'the file has'),
                 f'{folder} does not fit its config.json:')
    found = {name: jax.device_put(x) for name, x in family.read(weights, flat, folder, model)}
    return jax.tree_util.tree_map_with_path(lambda keys, _: found[mesh.path_of(keys)], shapes)


def run_of(folder, new):
    """Writes the run of a folder of theirs; returns what to say of it."""
    runs.require_new(new)
    family, theirs, weights = opened(folder)
    fields = family.model_fields(theirs)
    with tempfile.TemporaryDirectory() as place:
        if family.model == 'vit.vit:Vit':
            config, said = image_run(folder, family, theirs, fields, place)
        else:
            config, said = text_run(folder, family, theirs, fields, place)
        machine.prepare(config, sparing=True)
        run = runs.build(config, mesh.make(1, 1, 1), place)
    params = params_of(folder, family, weights, run.shapes.params, run.model)
    runs.write(new, run, {'params': params})
    further = 'finetune' if family.use not in ('hidden', 'images') else 'classify'
    return (f'{new}: {family.architecture} with {run.parameters():,} parameters, {said}\n{unheard(folder, theirs)}'
            f'train it further with: python train.py --config=configs/{further}.py:{new} --config.data.path=PATH')


def unheard(folder, theirs):
    """A line about the settings of generation in a folder of theirs, which are not carried; '' if there are none."""
    path = folder / 'generation_config.json'
    told = theirs | (json_of(path) if path.is_file() else {})
    found = [f'{name}={told[name]}' for name, usual in GENERATION.items() if told.get(name) not in (None, [], usual)]
    return f'not taken along, to be given to predict.py: {", ".join(found)}\n' if found else ''


def text_run(folder, family, theirs, fields, place):
    """(config, what to say of it) of a model of texts, whose data find their tokenizer and their classes in `place`."""
    tokenizer, expression = tokenizer_files.read(folder, fields['vocab'], token_of(theirs, 'eos_token_id', 'sep_token_id'))
    tokenizer.save(place)
    start, marks = token_of(theirs, 'decoder_start_token_id', folder=folder), ()
    if isinstance(tokenizer, Ids) and converted.STYLES[family.kind] != 'plain':  # it names no tokens
        begin = token_of(theirs, 'cls_token_id', 'bos_token_id')
        marks = (-1 if begin is None else begin, tokenizer.end, tokenizer.vocab - 1)
    if kind := {'classes': 'labelled', 'tags': 'tagged'}.get(family.use):
        data_examples.write(place, 'classes.json', kind, classes=labels(theirs))
    elif family.use == 'spans':
        data_examples.write(place, 'questions.json', 'questions', unanswerable=False)
    if start is None:
        start = STARTS.get(family.kind, theirs.get('pad_token_id') or 0)
    if family.use == 'pairs' and family.kind == 'bart':
        begin = token_of(theirs, 'bos_token_id')
        marks = (0 if begin is None else begin, -1, -1)
    return converted.config_of(family, fields, expression, marks, start), f'tokenizer {expression}'


def image_run(folder, family, theirs, fields, place):
    """The same of a model of images."""
    _, height, width, channels = image_of(theirs)
    path = folder / 'preprocessor_config.json'
    settings = json_of(path) if path.is_file() else {}
    require_preparation(settings, height, width)
    given = settings if settings.get('do_normalize', True) else {'image_mean': [0.0] * channels, 'image_std': [1.0] * channels}
    mean, std = (tuple(map(float, given.get(name) or (0.5,) * channels)) for name in ('image_mean', 'image_std'))
    classes = labels(theirs) if family.use == 'images' else []
    form = {'height': height, 'width': width, 'channels': channels, 'classes': classes}
    pathlib.Path(place, 'classes.json').write_text(json.dumps(form))
    image = dict(size=height if height == width else 0, channels=channels, steps=f'Normalize(mean={mean}, std={std})')
    return converted.config_of(family, fields, image=image), f'images of {height}x{width}x{channels}'


def require_preparation(settings, height, width):
    """Raises ValueError for a preprocessor_config.json that prepares images otherwise than it is done here."""
    sizes = None, {'height': height, 'width': width}, height if height == width else None
    for name, values in (('do_resize', (None, True)), ('do_rescale', (None, True)), ('do_center_crop', (None, False)),
                         ('resample', (None, 2)), ('rescale_factor', (None, 1 / 255)), ('size', sizes)):
        if settings.get(name) not in values:
            raise ValueError(f'preprocessor_config.json has {name}={settings[name]!r}, which is not supported; expected '
                             f'{values[1]!r}.')


def token_of(theirs, *names, folder=None):
    """The first of these fields that names a token, in config.json or beside it; None: none does."""
    generation = folder / 'generation_config.json' if folder else None
    configs = [theirs] + ([json_of(generation)] if generation and generation.is_file() else [])
    for found in (config.get(name) for config in configs for name in names):
        if isinstance(found, list):  # several that end a text: the first ends a document
            found = found[0] if found else None
        if found is not None:
            return found
    return None


def folder_of(snapshot, new):
    """Writes a run as a folder for from_pretrained; returns what to say of it."""
    family = family_of(snapshot)
    more = told_of(snapshot, family)
    theirs = family.config(snapshot.model) | {'dtype': 'float32'} | more
    flat = {mesh.path_of(keys): np.asarray(x) for keys, x in jax.tree_util.tree_leaves_with_path(snapshot.params)}
    snapshot = dataclasses.replace(snapshot, params=None)  # so that each parameter can go when it has been written
    weights = family.write(flat, snapshot.model)
    with made(new) as folder:
        (folder / 'config.json').write_text(json.dumps(theirs, indent=2, sort_keys=True) + '\n')
        weight_files.write(folder, weights)
        if snapshot.data.kind == 'images':
            said = 'and how its images are prepared'
            (folder / 'preprocessor_config.json').write_text(json.dumps(preparation_of(snapshot.data), indent=2) + '\n')
        else:
            tokenizer = plain(snapshot.data.tokenizer)
            files = tokenizer_files.write(folder, tokenizer, more, snapshot.model.length)
            said = f'with its tokenizer, {", ".join(files)}' if files else (
                f'without a tokenizer, as {type(tokenizer).__name__} has no form there')
    return f'{new}: {family.architecture} with {sum(x.size for x in weights.values()):,} weights, {said}'


def family_of(snapshot):
    """The family of the model of a run."""
    name = snapshot.run.config.model.name
    known = [family for family in FAMILIES if family.model == name]
    if not known:
        every = ', '.join(sorted({family.model for family in FAMILIES}))
        raise ValueError(f'{name} has no form in transformers; those that have one: {every}.')
    misfits = [family.misfits(snapshot.model, FREE) for family in known]
    fewest = min(misfits, key=len)
    if fewest:
        raise ValueError(fewest[0])
    return known[misfits.index(fewest)]


def plain(tokenizer):
    """The tokenizer itself, where its texts begin with one more token."""
    return getattr(tokenizer, 'inner', tokenizer)


def told_of(snapshot, family):
    """The fields of a config that the data of a run tell: tokens, classes, the form of images."""
    data, found = snapshot.data, {}
    if classes := list(getattr(data, 'classes', ())):
        head = getattr(snapshot.model, 'head', snapshot.model)  # which may have more of them
        classes += [f'LABEL_{i}' for i in range(len(classes), head.classes)]
        found |= {'id2label': dict(enumerate(named(classes))), 'label2id': {name: i for i, name in enumerate(named(classes))}}
    if data.kind == 'images':
        _, height, width, channels = data.shapes['image'][0]
        return found | {'image_size': height if height == width else [height, width], 'num_channels': channels}
    pad = tokenizer_files.padding(plain(data.tokenizer))
    frame, start = getattr(data, 'frame', None), getattr(snapshot.run.task, 'start', -1)
    if data.kind == 'pairs':
        found |= {'eos_token_id': data.end, 'decoder_start_token_id': data.start}
        pad = PADS.get(family.kind, data.start) if pad is None else pad
        found |= {'bos_token_id': data.config.begin, 'forced_eos_token_id': data.end} if family.kind == 'bart' else {}
    elif frame is None or frame.style == 'plain':
        end = data.tokenizer.end if frame or data.end >= 0 else None  # texts that go on have none
        found |= {'eos_token_id': end, 'bos_token_id': end}
        pad = end if frame else None
    elif frame.style != 'bert':
        found |= {'eos_token_id': frame.end} | ({'bos_token_id': frame.begin} if frame.begin >= 0 else {})
    if start >= 0:
        found['decoder_start_token_id'] = start
        pad = PADS.get(family.kind, start) if pad is None else pad
    return found if pad is None else found | {'pad_token_id': pad}


def preparation_of(data):
    """How transformers prepares images as `data` does."""
    height, width = data.shapes['image'][0][1:3]
    mean, std = data.normalization
    return {'image_processor_type': 'ViTImageProcessor', 'do_resize': True, 'size': {'height': height, 'width': width},
            'resample': 2, 'do_rescale': True, 'rescale_factor': 1 / 255, 'do_normalize': True, 'image_mean': mean,
            'image_std': std}


@contextlib.contextmanager
def made(folder):
    """A folder beside the new one, which becomes it at the end: all of it or nothing."""
    with tempfile.TemporaryDirectory(prefix=f'.{folder.name}.', dir=folder.absolute().parent) as place:
        inside = pathlib.Path(place, folder.name)
        inside.mkdir()
        yield inside
        inside.replace(folder)


def verify(snapshot, given, out):
    """Runs the model on the arrays of an .npz file and writes another; returns what to say of it."""
    family = family_of(snapshot)
    if not out.absolute().parent.is_dir():
        raise ValueError(f'There is no folder {str(out.absolute().parent)!r} to write {out.name} in; make it first.')
    if out.is_dir():
        raise ValueError(f'{out} is a folder; give --out the name of an .npz file.')
    arrays = arrays_of(given)
    require_fit(arrays, snapshot.model, given)
    found = snapshot.apply(**inputs_of(family, snapshot.model, arrays, getattr(snapshot.run.task, 'start', -1)))
    names = OUTPUTS | dict(family.outputs)
    named = {names[ours]: np.asarray(x, np.float32) for ours, x in found.items() if names.get(ours)}
    temporary = out.with_name(f'.{os.getpid()}.{out.name}')
    try:
        with open(temporary, 'wb') as file:
            np.savez(file, **named)
        temporary.replace(out)
    finally:
        temporary.unlink(missing_ok=True)
    return f'{out}: ' + ', '.join(f'{name} {list(x.shape)}' for name, x in named.items())


def inputs_of(family, model, arrays, start=-1):
    """The inputs of our model, for arrays under their names."""
    inputs = {INPUTS[name]: x.astype(np.int32 if x.dtype.kind in 'iub' else np.float32) for name, x in arrays.items()}
    return family.derived(model, inputs, start)


def require_fit(arrays, model, path):
    """Raises ValueError for arrays that are no inputs of the model."""
    shapes = ', '.join(f'{name} {x.dtype}{list(x.shape)}' for name, x in arrays.items()) or 'nothing'
    limits = limits_of(model)
    for name in arrays:
        if name not in limits:
            raise ValueError(f'{path} has an array {name!r}, which this model does not take; '
                             f'{resolve.did_you_mean(name, limits)}')
    if lacks := [name for name in limits if name in ('input_ids', 'pixel_values') and name not in arrays]:
        raise ValueError(f'{path} has {shapes}, and no {lacks[0]}; add that.')
    if 'pixel_values' in limits:
        if arrays['pixel_values'].ndim != 4 or arrays['pixel_values'].dtype.kind != 'f':
            raise ValueError(f'{path} has {shapes}; expected floats [images, channels, height, width] in pixel_values.')
        return
    for name, array in arrays.items():
        ids = arrays.get('decoder_input_ids' if name.startswith('decoder_') else 'input_ids', np.zeros(0))
        if array.ndim != 2 or array.shape != ids.shape or array.dtype.kind not in 'iub':
            raise ValueError(f'{path} has {shapes}; expected integers [rows, length] of one shape in '
                             f'{", ".join(name for name in limits if not name.startswith("decoder_"))}'
                             + (', and of one shape in those of the decoder.' if 'decoder_input_ids' in limits else '.'))
        if array.size and not 0 <= array.min() <= array.max() < limits[name]:
            raise ValueError(f'{name} in {path} goes from {array.min()} to {array.max()}, but this model takes 0 to '
                             f'{limits[name] - 1}; give those.')
    if getattr(model.head, 'at', '') == 'last' and 'attention_mask' not in arrays:  # or what fills a row up would be read
        raise ValueError(f'{path} has {shapes}, and no attention_mask, by which the last token of each row is found; add that.')
    if model.head.causal and 'decoder_input_ids' in limits and 'decoder_input_ids' not in arrays:
        raise ValueError(f'{path} has {shapes}, and no decoder_input_ids; add that.')


def limits_of(model):
    """{name of an input: what its integers are below} of a model."""
    if hasattr(model, 'patch'):
        return {'pixel_values': None}
    if hasattr(model, 'source_vocab'):
        return {'input_ids': model.source_vocab or model.vocab, 'attention_mask': 2, 'decoder_input_ids': model.vocab,
                'decoder_attention_mask': 2}
    offset = getattr(model.positions, 'offset', 0)
    limits = {'input_ids': model.vocab, 'attention_mask': 2, 'position_ids': model.length + offset}
    return limits | ({'token_type_ids': model.types} if hasattr(model, 'types') else {})


def arrays_of(path):
    """{name: array} of an .npz file."""
    if not path.is_file():
        raise ValueError(f'There is no file {str(path)!r}; give --verify an .npz file with input_ids.')
    try:
        with np.load(path) as file:
            return dict(file)
    except (ValueError, TypeError, OSError, zipfile.BadZipFile, EOFError):  # TypeError: a single array, of numpy.save
        raise ValueError(f'{path} is no .npz file of arrays; write it with numpy.savez.') from None


if __name__ == '__main__':
    cli.run(main)
