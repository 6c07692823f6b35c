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

from configs import base
from data import hugging_face as tokenizer_files
from training import machine, mesh, resolve, weight_files, workdir
from training import run as runs
from transformer.conversion import Weight
from transformer.families import FAMILIES

# Fields of our models that do not change what they compute, but for rounding, once their parameters are there.
FREE = ('dtype', 'dense_gradient', 'scan', 'remat', 'initial')
INPUTS = {'input_ids': 'inputs', 'attention_mask': 'segments', 'position_ids': 'positions',
          'decoder_input_ids': 'decoder_inputs', 'decoder_attention_mask': 'decoder_segments'}
OUTPUTS = {'logits': 'logits', 'hidden': 'last_hidden_state', 'source_hidden': 'encoder_last_hidden_state'}


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
    machine.prepare(workdir.load_config(folder))
    snapshot = runs.load(folder, step=given.step, data=1)
    if given.to_hf is not None:
        print(folder_of(snapshot, pathlib.Path(given.to_hf).expanduser()))
    else:
        print(verify(snapshot, pathlib.Path(given.verify).expanduser(), pathlib.Path(given.out).expanduser()))


def from_hf(folder, dtype='float32'):
    """(model, params) of a folder that save_pretrained has written: a Flax module, and its parameters in float32.

    dtype: of the matrix products, 'float32' or 'bfloat16'. Raises ValueError or FileNotFoundError for what cannot be read, and
    what would not give the outputs of the original.
    """
    folder = pathlib.Path(folder).expanduser()
    family, config, weights = opened(folder)
    model = resolve.construct(base.part(family.model, **family.model_fields(config)), extra={'dtype': dtype})
    return model, params_of(folder, family, weights, shapes_of(family, model))


def opened(folder):
    """(family, config, {name: `Weight`}) of a folder of theirs."""
    config = config_of(folder)
    kind = config['model_type']
    if kind not in FAMILIES:
        raise ValueError(f'config.json names the model {kind!r}; {resolve.did_you_mean(kind, FAMILIES)}')
    family, weights = FAMILIES[kind], weight_files.open_all(folder, Weight)
    return family, family.prepared(config, weights) if family.prepared else config, weights


def config_of(folder):
    """What config.json says."""
    path = folder / 'config.json'
    if not path.is_file():
        raise ValueError(f'There is no {path}; give --from_hf a folder that save_pretrained has written.')
    try:
        config = json.loads(path.read_text(encoding='utf-8'))
    except ValueError:
        config = None
    if not isinstance(config, dict) or 'model_type' not in config:
        raise ValueError(f'{path} is not the config of a model; fetch it again.')
    return config


def shapes_of(family, model):
    """The parameters of a model, as shapes."""
    inputs = {name: jax.ShapeDtypeStruct(shape, dtype) for name, (shape, dtype) in family.inputs.items()}
    return jax.eval_shape(model.init, jax.random.key(0), **inputs)['params']


def params_of(folder, family, weights, shapes):
    """The parameters in these shapes, from the weights of a folder."""
    flat = {mesh.path_of(keys): x.shape for keys, x in jax.tree_util.tree_leaves_with_path(shapes)}
    found = {name: jax.device_put(x) for name, x in family.read(weights, flat, folder)}
    return jax.tree_util.tree_map_with_path(lambda keys, _: found[mesh.path_of(keys)], shapes)


def run_of(folder, new):
    """Writes the run of a folder of theirs; returns what to say of it."""
    runs.require_new(new)
    family, theirs, weights = opened(folder)
    config = experiment(family, family.model_fields(theirs), theirs)
    machine.prepare(config)
    end = theirs.get('eos_token_id')
    tokenizer, expression = tokenizer_files.read(folder, config.model.vocab, end if isinstance(end, int) else None)
    config.data.tokenizer = expression
    with tempfile.TemporaryDirectory() as place:
        tokenizer.save(place)
        run = runs.build(config, mesh.make(1, 1, 1), place)
    params = params_of(folder, family, weights, run.shapes.params)
    runs.write(new, run, {'params': params})
    return (f'{new}: {family.architecture} with {run.parameters():,} parameters, tokenizer {expression}\n'
            f'train it further with: python train.py --config=configs/finetune.py:{new}')


def experiment(family, fields, theirs):
    """The config of a run of a family: its model, and how such a model is trained."""
    c = base.config()
    c.model = base.part(family.model, **fields)
    length = min(c.model.length, 1024)
    if family.model == 'transformer.gpt:Gpt':
        c.data = base.data('data.text:Text', path='text', length=length, batch_size=8)
        c.task = base.part('transformer.tasks:NextToken')
        c.evals.valid = base.evaluation('transformer.evaluators:Perplexity', split='valid')
    else:
        c.data = base.data('data.parallel:Parallel', source='tsv', path='pairs.txt', train='train[:90%]', valid='train[90%:]',
                           test='', start=theirs.get('decoder_start_token_id', -1), source_length=length, length=length,
                           long='truncate', batch_size=8)
        c.task = base.part('transformer.tasks:SequenceToSequence')
        c.evals.valid = base.evaluation('transformer.evaluators:Averages', split='valid')
        c.evals.translations = base.evaluation('transformer.translation:Translations', split='valid')
    c.optimizer = base.optimizer(learning_rate=5e-5, weight_decay=0.01, schedule=base.part(
        'training.schedules:Linear', warmup_steps=100))
    return c.lock()


def folder_of(snapshot, new):
    """Writes a run as a folder for from_pretrained; returns what to say of it."""
    runs.require_new(new)
    config, model = snapshot.run.config, snapshot.model
    families = [family for family in FAMILIES.values() if family.model == config.model.name]
    if not families:
        known = ', '.join(sorted({family.model for family in FAMILIES.values()}))
        raise ValueError(f'{config.model.name} has no form in transformers; those that have one: {known}.')
    family, = families
    theirs = family.config(model, FREE) | {'dtype': 'float32'} | tokens_of(snapshot.data)
    flat = {mesh.path_of(keys): np.asarray(x) for keys, x in jax.tree_util.tree_leaves_with_path(snapshot.params)}
    weights = family.write(flat)
    with made(new) as folder:
        (folder / 'config.json').write_text(json.dumps(theirs, indent=2, sort_keys=True) + '\n')
        weight_files.write(folder, weights)
        files = tokenizer_files.write(folder, snapshot.data.tokenizer)
    there = f'with its tokenizer, {", ".join(files)}' if files else (
        f'without a tokenizer, as {type(snapshot.data.tokenizer).__name__} has no form there')
    return f'{new}: {family.architecture} with {sum(x.size for x in weights.values()):,} weights, {there}'


def tokens_of(data):
    """The fields of a config that name tokens."""
    named = {'eos_token_id': data.end if data.end >= 0 else None, 'bos_token_id': None}
    return named | ({'decoder_start_token_id': data.start, 'pad_token_id': data.start} if data.kind == 'pairs' else {})


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
    if not out.absolute().parent.is_dir():
        raise ValueError(f'There is no folder {str(out.absolute().parent)!r} to write {out.name} in; make it first.')
    inputs, arrays = {}, arrays_of(given)
    for name, array in arrays.items():
        if name not in INPUTS:
            raise ValueError(f'{given} has an array {name!r}; {resolve.did_you_mean(name, INPUTS)}')
        inputs[INPUTS[name]] = np.asarray(array, np.int32)
    require_fit(arrays, snapshot.model.vocab, given, decoder=snapshot.data.kind == 'pairs')
    found = snapshot.apply(**inputs)
    named = {theirs: np.asarray(found[ours], np.float32) for ours, theirs in OUTPUTS.items() if ours in found}
    temporary = out.with_name(f'.{os.getpid()}.{out.name}')
    try:
        with open(temporary, 'wb') as file:
            np.savez(file, **named)
        temporary.replace(out)
    finally:
        temporary.unlink(missing_ok=True)
    return f'{out}: ' + ', '.join(f'{name} {list(x.shape)}' for name, x in named.items())


def require_fit(arrays, vocab, path, decoder):
    """Raises ValueError for arrays that are no inputs of the model."""
    shapes = ', '.join(f'{name} {list(x.shape)}' for name, x in arrays.items()) or 'nothing'
    for prefix in ('', 'decoder_') if decoder else ('',):
        ids = arrays.get(f'{prefix}input_ids', np.zeros(0))
        own = [x for name, x in arrays.items() if name.startswith('decoder_') == bool(prefix)]
        if any(x.ndim != 2 or x.shape != ids.shape for x in (ids, *own)):
            raise ValueError(f'{path} has {shapes}; expected {prefix}input_ids [rows, length], and what is about these of the '
                             'same shape.')
        if ids.size and not 0 <= ids.min() <= ids.max() < vocab:
            raise ValueError(f'{prefix}input_ids in {path} goes from {ids.min()} to {ids.max()}, but the tokens of the model '
                             f'from 0 to {vocab - 1}; give those.')
    if not decoder and any(name.startswith('decoder_') for name in arrays):
        raise ValueError(f'{path} has {shapes}, but the model has no decoder of its own; leave out what is about that.')


def arrays_of(path):
    """{name: array} of an .npz file."""
    if not path.is_file():
        raise ValueError(f'There is no file {str(path)!r}; give --verify an .npz file with input_ids.')
    try:
        with np.load(path) as file:
            return dict(file) if hasattr(file, 'files') else {}
    except (ValueError, OSError, zipfile.BadZipFile, EOFError):
        raise ValueError(f'{path} is no .npz file of arrays; write it with numpy.savez.') from None


if __name__ == '__main__':
    cli.run(main)
