"""Windows of neighbouring patches, within which attention acts (Swin, Liu et al. 2021, section 3.2)."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer.attention.context import Context
from transformer.attention.masks.data import Segments
from transformer.attention.partition import Groups, Partition

SHRINK = 'grid', 'sides', 'never'


@dataclasses.dataclass(frozen=True)
class Windows(Partition):
    """Non-overlapping squares of size·size patches. The grid is padded at the bottom and on the right; as in the code of Swin,
    of transformers and of timm, the zeros of the padding are keys and values as all others: they are projected to the biases.

    A position encoding and a mask see the window: positions 0, 1, .. row by row, in a grid of size·size.

    Attributes:
      size: the side of a window, in patches.
      shift: the grid is rolled up and to the left by so many patches, and back afterwards; patches that come together only by
        that do not see each other (section 3.2). 0: no shift. Swin shifts by size // 2 in every other layer
        (`AlternatePartition`).
      shrink: what happens where the window is larger than the grid: 'grid', as in transformers: with a side of the grid that is
        not larger than the window, the window has the smaller side of the grid, and there is no shift; 'sides', as in timm: the
        same for each side by itself; 'never', as in DaViT: the grid is padded.
      roll_first: the grid is rolled before it is padded, as in timm, instead of after, as in transformers and the code of Swin.
    """
    size: int = 7
    shift: int = 0
    shrink: str = 'grid'
    roll_first: bool = False

    def __post_init__(self):
        if self.size < 1:
            raise ValueError(f'{self}: size is {self.size}; expected at least 1.')
        if not 0 <= self.shift < self.size:
            raise ValueError(f'{self}: shift is {self.shift}; expected one from 0 to {self.size - 1}, less than the size.')
        if self.shrink not in SHRINK:
            raise ValueError(f'{self}: shrink is {self.shrink!r}; expected one of {", ".join(SHRINK)}.')

    def fit(self, grid: tuple[int, int]) -> tuple[tuple[int, int], tuple[int, int]]:
        """((height, width) of a window, (down, right) of its shift) in a grid of patches."""
        size, shift = (self.size,) * 2, (self.shift,) * 2
        if self.shrink == 'grid' and min(grid) <= self.size:
            size, shift = (min(grid),) * 2, (0, 0)
        elif self.shrink == 'sides':
            size = tuple(min(side, self.size) for side in grid)
            shift = tuple(0 if side <= self.size else self.shift for side in grid)
        return size, shift

    def grid(self, whole: tuple) -> tuple:
        return self.fit(whole)[0]

    def keys(self, whole: tuple) -> np.ndarray:
        place = self._place(whole)
        return place.tokens[place.windows]

    def __call__(self, x: jax.Array, context: Context) -> Groups:
        sizes = context.encoding.sizes
        if sizes.grid is None or sizes.extra:
            what = 'other tokens in front of them' if sizes.grid else 'no patches in a grid'
            raise ValueError(f'partition={self} is for the patches of an image alone, and this model has {what}; use Whole()'
                             + (", or pool='mean'." if sizes.grid else '.'))
        if x.shape[1] != sizes.grid[0] * sizes.grid[1]:
            raise ValueError(f'partition={self} needs all patches of the grid of {sizes.grid[0]}x{sizes.grid[1]}, and is given '
                             f'{x.shape[1]}; use Whole().')
        place = self._place(sizes.grid)
        count, row = place.tokens.shape[0], jnp.arange(place.tokens.shape[1])
        size, mask = place.size, context.mask
        if any(place.shift):
            regions = jnp.tile(place.regions, (x.shape[0], 1))  # [B·windows, t]
            mask = mask & Segments(regions, regions, runs=False)
        encoding = dataclasses.replace(context.encoding, query=row, key=row, sizes=dataclasses.replace(
            sizes, grid=size, length=size[0] * size[1]))
        each = lambda factors: jnp.repeat(factors, count, 0) if factors.ndim > 1 else factors
        inside = dataclasses.replace(context, mask=mask, encoding=encoding, head_mask={
            branch: each(factors) for branch, factors in context.head_mask.items()})
        return Groups(place.apart(x), inside, place.back, place.rows)

    def _place(self, grid):
        return _Place(grid, *self.fit(grid), self.roll_first)


class _Place:
    """Where the patches of a grid are in the windows.

    Attributes:
      tokens: [windows, t], the number of the patch, -1 for padding.
      windows: [T], the window of each patch, and `inside` its place there.
      regions: [windows, t], numbers from 1 on of the regions whose patches are neighbours in the image.
    """

    def __init__(self, grid: tuple, size: tuple, shift: tuple, roll_first: bool) -> None:
        self.grid, self.size, self.shift, self.roll_first = grid, size, shift, roll_first
        self.padded = tuple(-(-side // one) * one for side, one in zip(grid, size))
        numbers = 1 + np.arange(grid[0] * grid[1]).reshape(1, -1, 1)
        self.tokens = self.apart(numbers, np)[..., 0] - 1
        window, inside = np.nonzero(self.tokens >= 0)
        order = np.argsort(self.tokens[window, inside])
        self.windows, self.inside = window[order], inside[order]
        # On each side of the padded grid [0, H - M), [H - M, H - s) and [H - s, H), for windows of M and a shift of s.
        rows, columns = (sum((np.arange(side) >= side - most).astype(np.int32) for most in (one, by))
                         for side, one, by in zip(self.padded, size, shift))
        self.regions = self._cut((1 + 3 * rows[:, None] + columns)[None, ..., None])[..., 0]

    def apart(self, x: Any, xp: Any = jnp) -> Any:
        """[B, T, D] -> [B·windows, t, D], by jax.numpy or numpy."""
        x = x.reshape(x.shape[0], *self.grid, x.shape[-1])
        steps = [self._padded, self._rolled]
        for step in steps[::-1] if self.roll_first else steps:
            x = step(x, xp)
        return self._cut(x)

    def back(self, x: jax.Array) -> jax.Array:
        """[B·windows, t, D] -> [B, T, D], without the padding."""
        (height, width), (h, w) = self.padded, self.size
        x = x.reshape(-1, height // h, width // w, h, w, x.shape[-1]).swapaxes(2, 3)
        x = x.reshape(-1, height, width, x.shape[-1])
        steps = [self._cropped, self._rolled_back]
        for step in steps if self.roll_first else steps[::-1]:
            x = step(x)
        return x.reshape(x.shape[0], -1, x.shape[-1])

    def rows(self, x: jax.Array) -> jax.Array:
        """[B·windows, N, t, t] -> [B, N, T, t], a row for each patch with the keys of its window; 0 for padding."""
        windows, t = self.tokens.shape
        x = x.reshape(-1, windows, x.shape[1], t, t)[:, self.windows, :, self.inside]  # [T, B, N, t]
        return jnp.where(self.tokens[self.windows][:, None, None] >= 0, x, jnp.zeros((), x.dtype)).transpose(1, 2, 0, 3)

    def _cut(self, x):
        (h, w), (height, width) = self.size, x.shape[1:3]
        x = x.reshape(-1, height // h, h, width // w, w, x.shape[-1]).swapaxes(2, 3)
        return x.reshape(-1, h * w, x.shape[-1])

    def _padded(self, x, xp):
        more = [(0, wanted - side) for wanted, side in zip(self.padded, self.grid)]
        return xp.pad(x, [(0, 0), *more, (0, 0)]) if self.padded != self.grid else x

    def _rolled(self, x, xp):
        return xp.roll(x, [-by for by in self.shift], (1, 2)) if any(self.shift) else x

    def _cropped(self, x):
        return x[:, :self.grid[0], :self.grid[1]]

    def _rolled_back(self, x):
        return jnp.roll(x, self.shift, (1, 2)) if any(self.shift) else x
