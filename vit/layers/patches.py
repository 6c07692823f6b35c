"""Images cut into patches, and joined of them."""

import jax


def space_to_depth(x: jax.Array, size: int) -> jax.Array:
    """[B, height, width, C] -> [B, height / size, width / size, size·size·C]: squares of size·size, each row by row."""
    batch, height, width, channels = x.shape
    x = x.reshape(batch, height // size, size, width // size, size, channels).swapaxes(2, 3)
    return x.reshape(batch, height // size, width // size, size * size * channels)


def depth_to_space(x: jax.Array, size: int) -> jax.Array:
    """The inverse of `space_to_depth`: [B, rows, columns, size·size·C] -> [B, rows·size, columns·size, C]."""
    batch, rows, columns, features = x.shape
    x = x.reshape(batch, rows, columns, size, size, features // size ** 2).swapaxes(2, 3)
    return x.reshape(batch, rows * size, columns * size, features // size ** 2)


def patches(image: jax.Array, size: int) -> jax.Array:
    """Cuts images [B, height, width, C] into non-overlapping squares: [B, T, size·size·C], row by row (Dosovitskiy et al. 2021,
    eq. 1). Raises ValueError for sides that are no multiples."""
    _, height, width, _ = image.shape
    if height % size or width % size:
        raise ValueError(f'Images of {height}x{width} cannot be cut into patches of {size}x{size}; '
                         'choose a patch that divides both sides.')
    x = space_to_depth(image, size)
    return x.reshape(len(x), -1, x.shape[-1])


def joined(x: jax.Array, size: int, height: int, width: int) -> jax.Array:
    """The inverse of `patches`: [B, T, size·size·C] -> [B, height, width, C]."""
    return depth_to_space(x.reshape(len(x), height // size, width // size, -1), size)
