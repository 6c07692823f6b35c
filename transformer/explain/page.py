"""Attention weights as one page of HTML that a browser shows without a network: lines between tokens, or patches over an image.

The page holds every weight w as the integer q = round(steps * sqrt(|w| / largest)) with the sign of w, and shows
largest * (q / steps)², so that their square roots differ by at most sqrt(largest) / (2 * steps); `largest` is that of the kind
of attention. The integers are deflated, with the largest of STEPS that needs at most MOST characters: of 12 layers of 12 heads
over 256 tokens usually 255; 31 or 63 if all weights are noise; at least 7, whose integers have 3 bits each.
"""

import base64
import dataclasses
import hashlib
import html
import json
import pathlib
import string
import zlib
from collections.abc import Mapping, Sequence

import numpy as np

from transformer.explain import maps, pictures

STEPS = 255, 127, 63, 31, 15, 7, 3
MOST = 4_800_000  # characters of the weights in a page
_WEB = pathlib.Path(__file__).with_name('web')
_SCRIPTS = 'data.js', 'lines.js', 'image.js', 'page.js'


@dataclasses.dataclass(frozen=True)
class Image:
    """An image whose patches are the positions of the attention, after the tokens in front of them.

    Attributes:
      png: its bytes.
      rows, columns: the number of patches.
      front: the names of the tokens before the patches, such as 'class'.
    """
    png: bytes
    rows: int
    columns: int
    front: tuple[str, ...]


def page(sections: Sequence[pictures.Maps], title: str, image: Image | None = None) -> str:
    """The page of HTML for kinds of attention; with an `image` their positions are its patches."""
    stacks = [stack_of(one) for one in sections]
    steps, blob = packed(stacks)
    begin, kinds = 0, []
    for one, stack in zip(sections, stacks):
        kinds.append(_kind(one, stack, begin, steps))
        begin += sum(weights.size for weights in stack)
    shown = None if image is None else {
        'source': f'data:image/png;base64,{base64.b64encode(image.png).decode()}', 'rows': image.rows,
        'columns': image.columns, 'front': image.front}
    script, style = '\n'.join(map(_file, _SCRIPTS)), _file('page.css')
    return string.Template(_file('page.html')).substitute(
        title=html.escape(title), style=style, style_digest=_digest(style), script=script, script_digest=_digest(script),
        data=_inert({'title': title, 'kinds': kinds, 'image': shown}), weights=base64.b64encode(blob).decode())


def stack_of(section: pictures.Maps) -> list[np.ndarray]:
    """The weights [N, T, S] of each layer, and attention rollout [1, T, T] as the last one if there is one."""
    layers = [section.layers[one['layer']] for one in section.found]
    return layers if section.rollout is None else [*layers, section.rollout[None]]


def packed(stacks: Sequence[Sequence[np.ndarray]]) -> tuple[int, bytes]:
    """(steps, the deflated integers) of the weights of kinds of attention, one after the other."""
    for steps in STEPS:
        if steps > STEPS[-1] and 16 * len(_deflated(stacks, steps, every=16)) * 4 / 3 > 1.2 * MOST:
            continue  # one row in sixteen tells soon enough that all would be too many
        blob = _deflated(stacks, steps)
        if len(blob) * 4 / 3 <= MOST:
            break
    return steps, blob


def _deflated(stacks, steps, every=1):
    return zlib.compress(b''.join(quantised(weights[:, ::every], *scale(stack, steps)).tobytes()
                                  for stack in stacks for weights in stack), 6)


def scale(stack: Sequence[np.ndarray], steps: int) -> tuple[float, int, bool]:
    """(the largest absolute weight of a kind of attention, its steps, whether some weights are negative): of a byte, the
    integers of both signs have 127 at most."""
    signed = any((weights < 0).any() for weights in stack)
    largest = max((float(np.abs(weights).max()) for weights in stack if weights.size), default=0.0)
    return largest or 1.0, min(steps, 127) if signed else steps, signed


def quantised(weights: np.ndarray, largest: float, steps: int, signed: bool) -> np.ndarray:
    """round(steps * sqrt(|w| / largest)) with the sign of w, as int8 if some are negative, else as uint8."""
    roots = np.rint(steps * np.sqrt(np.abs(weights) / largest, dtype=np.float32))
    return (np.sign(weights) * roots).astype(np.int8) if signed else roots.astype(np.uint8)


def visible(token: str) -> str:
    """A token with signs for white space, and the code points of characters without a shape, such as U+202E, which would
    turn the text around it."""
    return ''.join(pictures.SIGNS.get(one) or (one if one.isprintable() else f'U+{ord(one):04X}') for one in token)


def _kind(section, stack, begin, steps):
    """The JSON of a kind of attention whose weights begin at `begin`."""
    largest, steps, signed = scale(stack, steps)
    layers = [{'label': pictures.named(one).partition('\n')[0], 'heads': list(map(str, one['heads'])),
               'entropy': one['entropy'], 'highest': one['highest_entropy']} for one in section.found]
    if section.rollout is not None:
        layers.append({'label': 'rollout', 'heads': ['all layers'], 'highest': None,
                       'entropy': maps.entropy(section.rollout[None]).tolist()})
    return {'title': section.title, 'down': section.down, 'across': section.across, 'produced': section.produced,
            'queries': list(map(visible, section.queries)), 'keys': list(map(visible, section.keys)), 'begin': begin,
            'largest': largest, 'steps': steps, 'signed': signed, 'rollout': section.rollout is not None, 'layers': layers}


def _file(name):
    return (_WEB / name).read_text(encoding='utf-8')


def _digest(text):
    """What the page's security policy names a script or style by, so that no other one runs."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _inert(data: Mapping) -> str:
    """JSON that ends no element of HTML, whatever its texts."""
    return json.dumps(data, allow_nan=False).replace('<', '\\u003c').replace('>', '\\u003e').replace('&', '\\u0026')
