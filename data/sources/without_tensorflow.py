"""The parts of TensorFlow that TFDS uses to prepare a data set: `tf.io.gfile` for local files, and encoding of images.

TFDS writes ArrayRecord by itself. But it unpacks archives and shuffles large sets through `tf.io.gfile`, four of five
builders open the downloaded files with it, and TFDS encodes images that a builder gives as arrays with TensorFlow.
"""

import glob
import io
import os
import shutil
import sys
import types

import numpy as np

_DTYPES = ('bool', 'uint8', 'uint16', 'int32', 'int64', 'float32', 'float64')
_JPEG_QUALITY = 95  # TensorFlow's


class _Module(types.ModuleType):
    """A module whose missing attributes raise ImportError with their full name."""

    def __getattr__(self, name: str):
        raise ImportError(f'{self.__name__}.{name}', name='tensorflow')


class _Errors(types.ModuleType):
    """Exception classes for `except tf.errors.SomeError`; only NotFoundError is ever raised."""

    NotFoundError = FileNotFoundError

    def __getattr__(self, name: str):
        return type(name, (Exception,), {})


def install() -> None:
    """Makes TFDS use this module for the rest of the process, even if TensorFlow is installed.

    Access to anything that is missing here raises ImportError with the name 'tensorflow' and the full name as its message.
    """
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core.utils import lazy_imports_utils

    before = sys.modules.get('tensorflow')
    sys.modules['tensorflow'] = _tensorflow()
    try:
        lazy_imports_utils.tensorflow.__version__  # noqa: B018  all of TFDS holds this object, which imports only once
    finally:
        del sys.modules['tensorflow']  # otherwise libraries take it for the whole of TensorFlow
        if before:
            sys.modules['tensorflow'] = before
    if tfds.features.Image.encode_example is not _encode_example:
        _encode_example.original = tfds.features.Image.encode_example
        tfds.features.Image.encode_example = _encode_example


def _tensorflow() -> types.ModuleType:
    tf = _Module('tensorflow')
    tf.__version__ = '2.21'
    tf.string = np.object_
    for name in _DTYPES:
        setattr(tf, name, np.dtype(name).type)
    tf.errors = _Errors('tensorflow.errors')
    tf.compat = _Module('tensorflow.compat')
    tf.compat.as_text = lambda text: text.decode() if isinstance(text, bytes) else text
    tf.compat.as_bytes = lambda text: text.encode() if isinstance(text, str) else text
    tf.io = _Module('tensorflow.io')
    tf.io.gfile = _Module('tensorflow.io.gfile')
    functions = {'GFile': _open, 'copy': _copy, 'exists': os.path.exists, 'glob': _glob, 'isdir': os.path.isdir}
    functions |= {'makedirs': _make_folders, 'rmtree': shutil.rmtree}
    vars(tf.io.gfile).update(functions, **{f.__name__: f for f in (os.listdir, os.mkdir, os.remove, os.walk)})
    return tf


def _open(name, mode: str = 'r'):
    return open(name, mode) if 'b' in mode else open(name, mode, encoding='utf-8', newline='\n')


def _copy(source, target, overwrite: bool = False) -> None:
    if os.path.exists(target) and not overwrite:
        raise FileExistsError(f'{target} exists.')
    shutil.copyfile(source, target)


def _glob(pattern) -> list[str]:
    patterns = pattern if isinstance(pattern, (list, tuple)) else [pattern]
    return [found for pattern in patterns for found in sorted(glob.glob(os.fspath(pattern)))]


def _make_folders(path) -> None:
    os.makedirs(path, exist_ok=True)


def _encode_example(feature, image):
    """Replaces `tfds.features.Image.encode_example`: encodes integer arrays as PNG or JPEG with Pillow."""
    if not isinstance(image, np.ndarray) or image.dtype == np.float32:
        return _encode_example.original(feature, image)
    from PIL import Image

    if image.dtype != feature.np_dtype or not _fits(image.shape, feature.shape):
        raise ValueError(f'An image is {image.dtype} {image.shape}; its feature says {feature.np_dtype} {feature.shape}.')
    encoded = io.BytesIO()
    plane = image[..., 0] if image.shape[-1] == 1 else image
    Image.fromarray(plane).save(encoded, feature.encoding_format or 'png', quality=_JPEG_QUALITY)
    return encoded.getvalue()


def _fits(shape: tuple[int, ...], wanted: tuple[int | None, ...]) -> bool:
    return len(shape) == len(wanted) and all(want in (None, have) for have, want in zip(shape, wanted, strict=True))
