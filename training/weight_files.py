"""Named arrays in .safetensors files, whole or in shards with an index."""

import functools
import json
import os
import pathlib
import tempfile

import ml_dtypes  # noqa: F401  registers bfloat16 with numpy, which safetensors needs
import numpy as np

SINGLE, INDEX = 'model.safetensors', 'model.safetensors.index.json'


def open_all(folder, found):
    """{name: found(shape, type such as 'BF16', function that reads the array)} of the weights in a folder. Arrays are read on
    demand."""
    weights = {}
    for path in _paths(pathlib.Path(folder)):
        with _opened(path) as file:
            for name in file.keys():  # noqa: SIM118  the file is no dict
                one = file.get_slice(name)
                weights[name] = found(tuple(one.get_shape()), one.get_dtype(), functools.partial(_read, path, name))
    return weights


def _read(path, name):
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
        names = sorted(set(json.loads((folder / INDEX).read_text())['weight_map'].values()))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f'{folder / INDEX} is no index of weights; fetch it again.') from None
    if absent := [name for name in names if not (folder / name).is_file()]:
        raise ValueError(f'{folder / INDEX} names {absent[0]}, which is not there; fetch it too.')
    return [folder / name for name in names]


def write(folder, arrays):
    """Writes {name: array} as one file."""
    _save(pathlib.Path(folder, SINGLE), arrays, {'format': 'pt'})  # transformers requires this key


def require_new(path):
    """Raises ValueError unless `write_file` can write a file `path`, and the one beside it."""
    for one in (path, beside(path)):
        if one.exists():
            raise ValueError(f'{one} is there already; give the new file another name.')
    if not path.absolute().parent.is_dir():
        raise ValueError(f'There is no folder {str(path.absolute().parent)!r} to write {path.name} in; make it first.')


def beside(path):
    """The file that describes a file of `write_file`."""
    return path.with_name(f'{path.name}.json')


def write_file(path, arrays, facts):
    """Writes {name: array} as the file `path`, and a JSON object of `facts` and of the shapes and types of the arrays as the
    file beside it, which is returned. The file itself is there only once both are whole."""
    require_new(path)
    what = facts | {'parameters': {name: {'shape': list(x.shape), 'dtype': x.dtype.name} for name, x in sorted(arrays.items())}}
    with tempfile.TemporaryDirectory(prefix=f'.{path.name}.', dir=path.absolute().parent) as place:
        inside = pathlib.Path(place, path.name)
        _save(inside, {name: np.ascontiguousarray(x) for name, x in arrays.items()}, {'format': 'heed'})
        beside(inside).write_text(json.dumps(what, indent=2) + '\n', encoding='utf-8')
        beside(inside).replace(beside(path))
        inside.replace(path)
    return beside(path)


def _save(path, arrays, metadata):
    from safetensors.numpy import save_file

    save_file(arrays, path, metadata=metadata)
    path.chmod(0o666 & ~_umask())  # safetensors makes files that only the owner may read


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask
