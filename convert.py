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
from training.checkpoint import require_same
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
    config = json_of(folder / 'config.json')
    if 'model_type' not in config:
        raise ValueError(f'{folder / "config.json"} is not the config of a model; fetch it again.')
    kind = config['model_type']
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise ValueError(f'config.json names the model {kind!r}; {resolve.did_you_mean(kind, FAMILIES)}')
    family, weights = FAMILIES[kind], weight_files.open_all(folder, Weight)
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


def shapes_of(family, model):
    """The parameters of a model, as shapes."""
    inputs = {name: jax.ShapeDtypeStruct(shape, dtype) for name, (shape, dtype) in family.inputs.items()}
    return jax.eval_shape(model.init, jax.random.key(0), **inputs)['params']


def params_of(folder, family, weights, shapes):
    """The parameters in these shapes, from the weights of a folder."""
    flat = {mesh.path_of(keys): x.shape for keys, x in jax.tree_util.tree_leaves_with_path(shapes)}
    require_same(*family.sides(weights, flat), ('the model needs', 'the file has'), f'{folder} does not fit its config.json:')
    found = {name: jax.device_put(x) for name, x in family.read(weights, flat, folder)}
    return jax.tree_util.tree_map_with_path(lambda keys, _: found[mesh.path_of(keys)], shapes)


def run_of(folder, new):
    """Writes the run of a folder of theirs; returns what to say of it."""
    runs.require_new(new)
    family, theirs, weights = opened(folder)
    config = experiment(family, family.model_fields(theirs), start_of(folder, theirs))
    machine.prepare(config)
    end = theirs.get('eos_token_id')
    if isinstance(end, list):  # several that end a text: the first ends a document
        end = end[0] if end else None
    tokenizer, expression = tokenizer_files.read(folder, config.model.vocab, end)
    config.data.tokenizer = expression
    with tempfile.TemporaryDirectory() as place:
        tokenizer.save(place)
        run = runs.build(config, mesh.make(1, 1, 1), place)
    params = params_of(folder, family, weights, run.shapes.params)
    runs.write(new, run, {'params': params})
    return (f'{new}: {family.architecture} with {run.parameters():,} parameters, tokenizer {expression}\n'
            f'train it further with: python train.py --config=configs/finetune.py:{new} --config.data.path=PATH')


def start_of(folder, theirs):
    """The token that a decoder is given first: as configs say it, else the one that fills rows up."""
    generation = folder / 'generation_config.json'
    for config in (theirs, json_of(generation) if generation.is_file() else {}):
        if (start := config.get('decoder_start_token_id')) is not None:
            return start
    return theirs.get('pad_token_id') or 0


def experiment(family, fields, start):
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
                           test='', start=start, source_length=length, length=length, long='truncate', batch_size=8)
        c.task = base.part('transformer.tasks:SequenceToSequence')
        c.evals.valid = base.evaluation('transformer.evaluators:Averages', split='valid')
        c.evals.translations = base.evaluation('transformer.translation:Translations', split='valid')
    c.optimizer = base.optimizer(learning_rate=5e-5, weight_decay=0.01, schedule=base.part(
        'training.schedules:Linear', warmup_steps=100))
    return c.lock()


def folder_of(snapshot, new):
    """Writes a run as a folder for from_pretrained; returns what to say of it."""
    runs.require_new(new)
    family, ids = family_of(snapshot), tokens_of(snapshot.data)
    theirs = family.config(snapshot.model, FREE) | {'dtype': 'float32'} | ids
    flat = {mesh.path_of(keys): np.asarray(x) for keys, x in jax.tree_util.tree_leaves_with_path(snapshot.params)}
    weights = family.write(flat)
    with made(new) as folder:
        (folder / 'config.json').write_text(json.dumps(theirs, indent=2, sort_keys=True) + '\n')
        weight_files.write(folder, weights)
        files = tokenizer_files.write(folder, snapshot.data.tokenizer, ids)
    there = f'with its tokenizer, {", ".join(files)}' if files else (
        f'without a tokenizer, as {type(snapshot.data.tokenizer).__name__} has no form there')
    return f'{new}: {family.architecture} with {sum(x.size for x in weights.values()):,} weights, {there}'


def family_of(snapshot):
    """The family of the model of a run."""
    name = snapshot.run.config.model.name
    for family in FAMILIES.values():
        if family.model == name:
            return family
    known = ', '.join(sorted({family.model for family in FAMILIES.values()}))
    raise ValueError(f'{name} has no form in transformers; those that have one: {known}.')


def tokens_of(data):
    """The fields of a config that name tokens."""
    end = data.end if data.end >= 0 else None  # texts that go on have none
    if data.kind == 'pairs':
        return {'eos_token_id': end, 'decoder_start_token_id': data.start, 'pad_token_id': data.start}
    return {'eos_token_id': end, 'bos_token_id': end}


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
    family_of(snapshot)
    if not out.absolute().parent.is_dir():
        raise ValueError(f'There is no folder {str(out.absolute().parent)!r} to write {out.name} in; make it first.')
    inputs, arrays = {}, arrays_of(given)
    for name, array in arrays.items():
        if name not in INPUTS:
            raise ValueError(f'{given} has an array {name!r}; {resolve.did_you_mean(name, INPUTS)}')
        inputs[INPUTS[name]] = array.astype(np.int32) if array.dtype.kind in 'iub' else array
    require_fit(arrays, snapshot.model, given)
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


def require_fit(arrays, model, path):
    """Raises ValueError for arrays that are no inputs of the model."""
    shapes = ', '.join(f'{name} {x.dtype}{list(x.shape)}' for name, x in arrays.items()) or 'nothing'
    decoder = hasattr(model, 'source_vocab')
    limits = {'input_ids': model.vocab, 'attention_mask': 2}
    limits |= {f'decoder_{name}': limit for name, limit in limits.items()} if decoder else {'position_ids': model.length}
    if decoder and model.source_vocab:
        limits['input_ids'] = model.source_vocab
    for name, array in arrays.items():
        ids = arrays.get('decoder_input_ids' if name.startswith('decoder_') else 'input_ids', np.zeros(0))
        if name not in limits or array.ndim != 2 or array.shape != ids.shape or array.dtype.kind not in 'iub':
            raise ValueError(f'{path} has {shapes}; expected integers [rows, length] of one shape in '
                             f'{", ".join(name for name in limits if not name.startswith("decoder_"))}'
                             + (', and of one shape in those of the decoder.' if decoder else '.'))
        if array.size and not 0 <= array.min() <= array.max() < limits[name]:
            raise ValueError(f'{name} in {path} goes from {array.min()} to {array.max()}, but this model takes 0 to '
                             f'{limits[name] - 1}; give those.')
    if lacks := [name for name in limits if name.endswith('input_ids') and name not in arrays]:
        raise ValueError(f'{path} has {shapes}, and no {lacks[0]}; add that.')


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
