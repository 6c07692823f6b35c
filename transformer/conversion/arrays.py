"""Arrays in .npz files, named as in transformers, that a model is run on: convert.py --verify."""

import difflib
import os
import pathlib
import struct
import zipfile
import zlib
from collections.abc import Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from display import progress
from transformer.conversion.tables import Family

_LARGEST = 1 << 30  # bytes of all arrays of a file
INPUTS = {'input_ids': 'inputs', 'attention_mask': 'segments', 'position_ids': 'positions', 'token_type_ids': 'types',
          'decoder_input_ids': 'decoder_inputs', 'decoder_attention_mask': 'decoder_segments', 'pixel_values': 'image',
          'noise': 'noise'}
OUTPUTS = {'logits': 'logits', 'hidden': 'last_hidden_state', 'source_hidden': 'encoder_last_hidden_state',
           'pooled': 'pooler_output', 'start_logits': 'start_logits', 'end_logits': 'end_logits', 'cls_logits': 'cls_logits',
           'distillation_logits': 'distillation_logits'}


def verify(snapshot: Any, family: Family, given: pathlib.Path, out: pathlib.Path) -> str:
    """Runs the model of a run on the arrays of an .npz file and writes its outputs to another; returns the report to print."""
    if not out.absolute().parent.is_dir():
        raise ValueError(f'There is no folder {str(out.absolute().parent)!r} to write {out.name} in; make it first.')
    if out.is_dir():
        raise ValueError(f'{out} is a folder; give --out the name of an .npz file.')
    if out.exists() and given.exists() and out.samefile(given):
        raise ValueError(f'--out={out} is the file of --verify; give it another name.')
    arrays = arrays_of(given, family.limits(snapshot.model))
    require_fit(arrays, family, snapshot.model, given)
    if 'pixel_values' in arrays and (pixels := arrays['pixel_values'].shape)[1] != (channels := _channels(snapshot)):
        raise ValueError(f'{given} has pixel_values {list(pixels)}, and this model takes {channels} channels; give [images, '
                         'channels, height, width].')
    with progress.waiting('running the model'):
        found = jax.block_until_ready(snapshot.apply(**inputs_of(family, snapshot.model, arrays, snapshot.run.task.start)))
    wide = lambda x: np.asarray(x, jnp.promote_types(x.dtype, jnp.float32))  # .npz files know no bfloat16
    named = {name: wide(x) for name, x in outputs_of(family, found, arrays).items()}
    temporary = out.with_name(f'.{os.getpid()}.{out.name}')
    try:
        with open(temporary, 'wb') as file:
            np.savez(file, **named)
        temporary.replace(out)
    finally:
        temporary.unlink(missing_ok=True)
    return f'{out}: ' + ', '.join(f'{name} {list(x.shape)}' for name, x in named.items())


def _channels(snapshot):
    return snapshot.data.shapes['image'][0][-1]


def inputs_of(family: Family, model: Any, arrays: Mapping[str, np.ndarray], start: int = -1) -> dict:
    """The inputs of our model, from arrays that are named as in transformers; of choices [B, C, T] a row for each answer."""
    kind = lambda x: np.int32 if x.dtype.kind in 'iub' else jnp.result_type(float)
    flat = lambda x: x.reshape(-1, x.shape[-1]) if family.use == 'choices' else x
    inputs = {INPUTS[name]: flat(x.astype(kind(x))) for name, x in arrays.items()}
    return family.derived(model, inputs, start)


def outputs_of(family: Family, found: Mapping[str, jax.Array], arrays: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
    """The outputs of our model that transformers names, under its names and with its axes, for inputs as in `inputs_of`."""
    import einops

    names = OUTPUTS | dict(family.outputs)
    if family.use == 'choices':
        found = {**found, 'logits': found['logits'].reshape(arrays['input_ids'].shape[:2])}
    laid = lambda ours, x: einops.rearrange(x, family.layouts[ours]) if ours in family.layouts else x
    return {names[ours]: laid(ours, x) for ours, x in found.items() if names.get(ours)}


def require_fit(arrays: Mapping[str, np.ndarray], family: Family, model: Any, path: pathlib.Path) -> None:
    """Raises ValueError for arrays that the model cannot take."""
    shapes = ', '.join(f'{name} {x.dtype}{list(x.shape)}' for name, x in arrays.items()) or 'nothing'
    limits = family.limits(model)
    if lacks := [name for name in limits if name in ('input_ids', 'pixel_values') and name not in arrays]:
        raise ValueError(f'{path} has {shapes}, and no {lacks[0]}; add that.')
    if empty := [name for name, x in arrays.items() if not x.size]:
        raise ValueError(f'{path} has {shapes}, and nothing in {empty[0]}; give at least one row that is not empty.')
    if 'pixel_values' in limits:
        if arrays['pixel_values'].ndim != 4 or arrays['pixel_values'].dtype.kind != 'f':
            raise ValueError(f'{path} has {shapes}; expected floats [images, channels, height, width] in pixel_values.')
        if 'noise' in arrays and (arrays['noise'].ndim != 2 or arrays['noise'].dtype.kind != 'f'):
            raise ValueError(f'{path} has {shapes}; expected floats [images, patches] in noise.')
        if family.use == 'reconstruction' and 'noise' not in arrays:
            raise ValueError(f'{path} has {shapes}, and no noise, which says what patches of each image are masked; add that, '
                             'floats [images, patches].')
        return
    for name, array in arrays.items():
        ids = arrays.get('decoder_input_ids' if name.startswith('decoder_') else 'input_ids', np.zeros(0))
        axes = ('examples', 'answers', 'length') if family.use == 'choices' else ('rows', 'length')
        if array.ndim != len(axes) or array.shape != ids.shape or array.dtype.kind not in 'iub':
            raise ValueError(f'{path} has {shapes}; expected integers [{", ".join(axes)}] of one shape in '
                             f'{", ".join(name for name in limits if not name.startswith("decoder_"))}'
                             + (', and of one shape in those of the decoder.' if 'decoder_input_ids' in limits else '.'))
        if not 0 <= array.min() <= array.max() < limits[name]:
            raise ValueError(f'{name} in {path} goes from {array.min()} to {array.max()}, but this model takes 0 to '
                             f'{limits[name] - 1}; give those.')
    # Without these the model would read padding.
    if family.use == 'classes' and model.head.at == 'last' and 'attention_mask' not in arrays:
        raise ValueError(f'{path} has {shapes}, and no attention_mask, by which the last token of each row is found; add that.')
    if model.head.causal and 'decoder_input_ids' in limits and 'decoder_input_ids' not in arrays:
        raise ValueError(f'{path} has {shapes}, and no decoder_input_ids; add that.')


def arrays_of(path: pathlib.Path, known: Collection[str]) -> dict[str, np.ndarray]:
    """{name: array} of an .npz file. Raises ValueError for names that are not `known`, and for more than 1 GB."""
    if not path.is_file():
        raise ValueError(f'There is no file {str(path)!r}; give --verify an .npz file with {next(iter(known))}.')
    try:
        with zipfile.ZipFile(path) as members:
            found = members.infolist()
        if unknown := [name for name in (one.filename.removesuffix('.npy') for one in found) if name not in known]:
            close = difflib.get_close_matches(unknown[0], known, 1)
            meant = f'did you mean {close[0]!r}?' if close else f'it takes {", ".join(known)}.'
            problem = f'{path} has an array {unknown[0][:80]!r}, which this model does not take; {meant}'
        elif (size := sum(one.file_size for one in found)) > _LARGEST:
            problem = f'{path} holds {size:,} bytes; give fewer rows, at most {_LARGEST >> 20} MB.'
        else:
            with np.load(path) as file:
                return dict(file)
    except (ValueError, TypeError, OSError, EOFError, zipfile.BadZipFile, zlib.error, MemoryError, NotImplementedError,
            RuntimeError, SyntaxError, KeyError, struct.error):  # TypeError: a single array, of numpy.save
        raise ValueError(f'{path} is no .npz file of arrays; write it with numpy.savez.') from None
    raise ValueError(problem)
