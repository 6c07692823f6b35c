"""Named arrays in .safetensors files, whole or in shards with an index."""

import functools
import json
import os
import pathlib
import tempfile

import ml_dtypes  # noqa: F401  registers bfloat16 with numpy, which safetensors needs
import numpy as np

from display import progress
from training import mesh, workdir

SINGLE, INDEX = 'model.safetensors', 'model.safetensors.index.json'
_NARROW = 'F8', 'F6', 'F4'  # floats of which safetensors makes no arrays of numpy


def open_all(folder, found):
    """{name: found(shape, type such as 'BF16', function that reads the array)} of the weights in a folder. Arrays are read on
    demand."""
    weights = {}
    for path in _paths(pathlib.Path(folder)):
        with _opened(path) as file:
            for name in file.keys():  # noqa: SIM118  the file is no dict
                one = file.get_slice(name)
                kind = one.get_dtype()
                weights[name] = found(tuple(one.get_shape()), kind, functools.partial(_read, path, name, kind))
    return weights


def _read(path, name, kind):
    if kind[:2] in _NARROW:
        raise ValueError(f'{path} has {name!r} in {kind}, which is not read; save it in F32 or BF16.')
    with _opened(path) as file:  # an open file would keep all that was read mapped in memory
        return file.get_tensor(name)


def _opened(path):
    import safetensors

    try:
        return safetensors.safe_open(path, framework='numpy')
    except (safetensors.SafetensorError, OSError) as error:
        raise ValueError(f'{path} is not a complete .safetensors file ({error}); fetch it again.') from None


def _paths(folder):
    """The files of a folder that hold its weights."""
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    if not (folder / INDEX).is_file():
        if (folder / 'pytorch_model.bin').is_file() or (folder / 'pytorch_model.bin.index.json').is_file():
            raise ValueError(f'{folder} has its weights in pytorch_model.bin, a pickle that can run any code and is not read; '
                             'save them as model.safetensors first: load the model in transformers, then '
                             'model.save_pretrained(FOLDER).')
        raise ValueError(f'{folder} has no {SINGLE}; give a folder that save_pretrained has written.')
    try:
        names = sorted(set(json.loads((folder / INDEX).read_text())['weight_map'].values()), key=str)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ValueError(f'{folder / INDEX} is no index of weights; fetch it again.') from None
    if outside := [name for name in names if not isinstance(name, str) or pathlib.PurePath(name).name != name]:
        raise ValueError(f'{folder / INDEX} names {str(outside[0])[:80]!r}, which is no file of its folder; fetch it again.')
    if absent := [name for name in names if not (folder / name).is_file()]:
        raise ValueError(f'{folder / INDEX} names {absent[0]}, which is not there; fetch it too.')
    return [folder / name for name in names]


def write(folder, arrays):
    """Writes {name: array} as one file."""
    import safetensors
    from safetensors.numpy import save_file

    path = pathlib.Path(folder, SINGLE)
    try:
        save_file(arrays, path, metadata={'format': 'pt'})  # transformers requires this key
    except safetensors.SafetensorError as error:  # such as that of a full disk
        raise OSError(f'{path.name} cannot be written ({error}).') from None
    path.chmod(0o666 & ~_umask())  # safetensors makes files that only the owner may read


def require_new(path):
    """Raises ValueError unless a .safetensors file of this name, and the .json beside it, can be written and are new."""
    if path.suffix != '.safetensors':
        raise ValueError(f'--to_safetensors is {str(path)!r}; give it a name that ends in .safetensors.')
    if not path.absolute().parent.is_dir():
        raise ValueError(f'There is no folder {str(path.absolute().parent)!r} to write {path.name} in; make it first.')
    workdir.require_writable(path.absolute().parent, 'folder', f'give {path.name} another place')
    for one in (path, path.with_suffix('.json')):
        if one.exists():
            raise ValueError(f'{one} is already there; give --to_safetensors the name of a new file.')


def export(snapshot, path):
    """Writes the parameters and statistics of any run as a .safetensors file, and its config and their shapes beside it;
    returns the report to print."""
    flat = {name: np.asarray(x) for name, x in mesh.flat(*snapshot.variables.values()).items()}
    told = lambda tree: {name: {'shape': list(x.shape), 'dtype': x.dtype.name} for name, x in mesh.flat(tree).items()}
    about = {'step': snapshot.step, 'config': workdir.as_json(snapshot.run.config), 'parameters': told(snapshot.params)}
    if snapshot.statistics:
        about['statistics'] = told(snapshot.statistics)
    with tempfile.TemporaryDirectory(prefix=f'.{path.name}.', dir=path.absolute().parent) as place:
        with progress.waiting(f'writing {path}'):
            write(place, flat)
        beside = path.with_suffix('.json')
        pathlib.Path(place, beside.name).write_text(json.dumps(about, indent=1) + '\n')
        pathlib.Path(place, SINGLE).replace(path)
        pathlib.Path(place, beside.name).replace(beside)
    count, size = snapshot.run.parameters(), path.stat().st_size
    return f'{path}: {count:,} parameters in {len(flat)} arrays, {size / 1e6:,.1f} MB; names, shapes and the config in {beside}'


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask
