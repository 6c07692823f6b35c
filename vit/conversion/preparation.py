"""How the images of published models are prepared, in and out: preprocessor_config.json of transformers, and the pretrained_cfg
of timm.

A processor there resizes an image, to a height and a width or by its shorter side, cuts out the centre, multiplies the bytes by
a factor and normalises them. A run here resizes the part that remains, in one step (`data.fit`), and normalises pixels in 0..1.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from vit.contracts import SeenImages
from vit.conversion.vit import image_of

FILTERS = 'nearest', 'lanczos', 'bilinear', 'bicubic', 'box', 'hamming'  # by their numbers in Pillow, `resample`
_COMMON = dict(do_resize=True, do_rescale=True, rescale_factor=1 / 255, do_normalize=True, do_center_crop=False, do_pad=False,
               do_flip_channel_order=False, crop_size=224, image_mean=0.5, image_std=0.5)
# {processor: what it does unless the file says otherwise}.
PROCESSORS = {
    'ViT': _COMMON | dict(size=224, resample=2),
    'DeiT': _COMMON | dict(size=256, resample=3, do_center_crop=True),
    'ConvNext': _COMMON | dict(size=384, resample=3, crop_pct=224 / 256),
    'Bit': _COMMON | dict(size=224, resample=3, do_center_crop=True, image_mean=[0.48145466, 0.4578275, 0.40821073],
                          image_std=[0.26862954, 0.26130258, 0.27577711])}
_SHORTER = 'ConvNext', 'Bit'  # a size of one number is that of the shorter side
_WARPED = 384  # from this size on ConvNextImageProcessor stretches images
USUAL = {'resnet': 'ConvNext', 'deit': 'DeiT', 'dinov2_with_registers': 'Bit'}  # of a model_type; of others 'ViT'
# What does not change the pixels of images that are read as grey or coloured.
ASIDE = ('_valid_processor_keys', 'data_format', 'device', 'disable_grouping', 'do_convert_rgb',
         'feature_extractor_type', 'image_processor_type', 'input_data_format', 'processor_class', 'return_tensors')
_TIMM = dict(crop_pct=0.875, crop_mode='center', interpolation='bicubic')  # if pretrained_cfg does not say it
TIMM = *_TIMM, 'image_mean', 'image_std'


@dataclasses.dataclass(frozen=True)
class Preparation:
    """What a run has to do to images.

    Attributes:
      fit: the expression of `data.fit`.
      mean, std: of pixels in 0..1, one for each channel.
    """
    height: int
    width: int
    fit: str
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def fields(self) -> dict[str, Any]:
        """The fields of data.images.labelled:Images."""
        return {'size': self.height, 'width': 0 if self.width == self.height else self.width, 'fit': self.fit,
                'steps': f'Normalize(mean={self.mean}, std={self.std})'}


def read(settings: Mapping | None, config: Mapping) -> Preparation:
    """The preparation in a folder.

    Args:
      settings: its preprocessor_config.json; None: it has none.
      config: its config.json, flat.
    Raises: ValueError for what a run cannot do.
    """
    _, height, width, channels = image_of(config)
    kind = config['model_type']
    if settings is not None:
        return _of_processor(settings, USUAL.get(kind, 'ViT'), channels)
    if kind.startswith('timm_'):
        return _of_timm(config, (height, width), channels)
    return _of_processor({'size': {'height': height, 'width': width}}, 'ViT', channels)


def processor(images: SeenImages) -> dict:
    """The preprocessor_config.json with which transformers prepares images as those of a run. Raises ValueError if no processor
    does."""
    fit = images.fit
    height, width, channels = images.shapes['image'][0][1:]
    mean, std = images.normalization
    more, size, kind = {}, {'height': height, 'width': width}, 'ViT'
    if fit.proportional or fit.share < 1:
        more = {'do_center_crop': True, 'crop_size': size}
        size, kind = {'height': fit.enlarged(height), 'width': fit.enlarged(width)}, 'DeiT'
    if fit.proportional:
        if height != width:
            raise ValueError(f'data.fit={fit} makes images of {height}x{width} that keep their proportions, for which '
                             "transformers has no processor; train with data.fit='Stretch()' or square images, or write the "
                             'run with --to_safetensors=FILE.')
        size, kind = {'shortest_edge': fit.enlarged(height)}, 'Bit'
    return {'image_processor_type': f'{kind}ImageProcessor', 'do_convert_rgb': channels == 3, 'do_resize': True, 'size': size,
            'resample': FILTERS.index(fit.filter), **more, 'do_rescale': True, 'rescale_factor': 1 / 255, 'do_normalize': True,
            'image_mean': mean, 'image_std': std}


def pretrained(images: SeenImages) -> dict:
    """The same as fields of timm's pretrained_cfg."""
    fit, (mean, std) = images.fit, images.normalization
    return {'crop_pct': fit.share, 'crop_mode': 'center' if fit.proportional else 'squash', 'interpolation': fit.filter,
            'mean': mean, 'std': std}


def _of_processor(settings: Mapping, usual: str, channels: int) -> Preparation:
    kind = next((settings[name] for name in ('image_processor_type', 'feature_extractor_type') if settings.get(name)), usual)
    short = str(kind)
    for end in ('Fast', 'Pil', 'ImageProcessor', 'FeatureExtractor'):
        short = short.removesuffix(end)
    if short not in PROCESSORS:
        known = ', '.join(f'{one}ImageProcessor' for one in PROCESSORS)
        raise ValueError(f'preprocessor_config.json is of {kind}, which is not supported; expected one of {known}.')
    given = {name: value for name, value in settings.items() if value is not None and name not in ASIDE}
    if unknown := sorted(given.keys() - PROCESSORS[short].keys()):
        raise ValueError(f'preprocessor_config.json has {unknown[0]}={given[unknown[0]]!r}, which is not known for '
                         f'{short}ImageProcessor; leave it out if it does not change the pixels of images.')
    given = PROCESSORS[short] | given
    for name, wanted in (('do_resize', (True,)), ('do_pad', (False,)), ('do_flip_channel_order', (False,)),
                         *((name, (True, False)) for name in ('do_center_crop', 'do_rescale', 'do_normalize'))):
        if given[name] not in wanted:
            raise _unsupported(name, given[name], ' or '.join(map(repr, wanted)))
    if type(given['resample']) is not int or not 0 <= given['resample'] < len(FILTERS):
        raise _unsupported('resample', given['resample'], 'the number of a filter of Pillow, 0 to 5')
    if type(given['rescale_factor']) not in (int, float) or given['rescale_factor'] <= 0:
        raise _unsupported('rescale_factor', given['rescale_factor'], 'a number above 0')
    # (x·factor - mean) / std of bytes x is (x/255 - mean/unit) / (std/unit).
    unit = 255 * (given['rescale_factor'] if given['do_rescale'] else 1)
    mean, std = (_each(name, given[name] if given['do_normalize'] else plain, channels)
                 for name, plain in (('image_mean', 0.0), ('image_std', 1.0)))
    height, width, fit = _part(given, short)
    return Preparation(height, width, _expression(*fit, FILTERS[given['resample']]), tuple(x / unit for x in mean),
                       tuple(x / unit for x in std))


def _part(given: Mapping, kind: str) -> tuple[int, int, tuple[str, float]]:
    """(height, width, (the name of a fit, its share)) of what a processor makes of an image."""
    size = _sides('size', given, square=kind not in _SHORTER)
    crop = _sides('crop_size', given, square=True) if given['do_center_crop'] else None
    if kind == 'ConvNext':
        if len(size) > 1:
            raise _unsupported('size', given['size'], 'that of the shorter side')
        side, = size
        if crop not in (None, (side, side)):
            raise _unsupported('crop_size', given['crop_size'], side)
        if side >= _WARPED:
            return side, side, ('Stretch', 1.0)
        return side, side, ('CentreCrop', _share_in('preprocessor_config.json', given['crop_pct']))
    shorter = len(size) == 1
    whole = size * 2 if shorter else size
    if crop is None:
        if shorter:
            raise _unsupported('size', given['size'], 'a height and a width, or also do_center_crop=True and a crop_size')
        return *whole, ('Stretch', 1.0)
    if len(crop) < 2 or crop[0] > whole[0] or crop[1] > whole[1]:
        raise _unsupported('crop_size', given['crop_size'], f'a height and a width of at most the size {given["size"]!r}')
    if crop[0] * whole[1] != crop[1] * whole[0]:
        raise _unsupported('crop_size', given['crop_size'],
                           'a square' if shorter else f'one with the proportions of the size {given["size"]!r}')
    return *crop, ('CentreCrop' if shorter else 'Stretch', _share(crop, whole))


def _of_timm(config: Mapping, size: tuple[int, int], channels: int) -> Preparation:
    given = {name: config.get(name, usual) for name, usual in _TIMM.items()}
    for name, known in (('crop_mode', ('center', 'squash')), ('interpolation', FILTERS)):
        if given[name] not in known:
            raise ValueError(f'pretrained_cfg in config.json has {name}={given[name]!r}, which is not supported; expected one '
                             f'of {", ".join(known)}.')
    name = 'CentreCrop' if given['crop_mode'] == 'center' else 'Stretch'
    mean, std = (_each(name, config.get(name, 0.5), channels) for name in ('image_mean', 'image_std'))
    fit = _expression(name, _share_in('pretrained_cfg in config.json', given['crop_pct']), given['interpolation'])
    return Preparation(*size, fit, mean, std)


def _unsupported(name: str, value: Any, expected: Any) -> ValueError:
    return ValueError(f'preprocessor_config.json has {name}={value!r}, which is not supported; expected {expected}.')


def _each(name: str, value: Any, channels: int) -> tuple[float, ...]:
    """A number for each channel."""
    found = [value] * channels if type(value) in (int, float) else value
    if not isinstance(found, list | tuple) or len(found) != channels or not all(type(x) in (int, float) for x in found):
        raise ValueError(f'The preparation of images has {name}={value!r}, and they have {channels} channels; give a number '
                         'for each.')
    return tuple(map(float, found))


def _sides(name: str, given: Mapping, square: bool) -> tuple[int, ...]:
    """(height, width), or that of the shorter side, of a size in the forms of several versions; a single number is that of a
    `square`."""
    match given[name]:
        case int(side):
            found = (side, side) if square else (side,)
        case [height, width]:
            found = height, width
        case {'height': height, 'width': width, **rest} if not rest:
            found = height, width
        case {'shortest_edge': side, **rest} if not rest:
            found = side,
        case _:
            found = 0,
    if not all(type(side) is int and side > 0 for side in found):
        raise _unsupported(name, given[name], 'a height and a width, or that of the shortest_edge')
    return found


def _share_in(file: str, value: Any) -> float:
    if type(value) not in (int, float) or not 0 < value <= 1:
        raise ValueError(f'{file} has crop_pct={value!r}, which is not supported; expected a number above 0 and at most 1.')
    return float(value)


def _share(part: tuple[int, ...], whole: tuple[int, ...]) -> float:
    """The share of which floor(part / share) is the whole, in spite of rounding."""
    share = part[0] / whole[0]
    exact = all(math.floor(side / share) == resized for side, resized in zip(part, whole))
    return share if exact else float(np.nextafter(share, 0))


def _expression(name: str, share: float, filter: str) -> str:
    fields = {'filter': filter} | ({'share': share} if share != 1 else {})
    return f'{name}({", ".join(f"{field}={value!r}" for field, value in fields.items() if value != "bilinear")})'
