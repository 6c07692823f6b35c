"""Gradients by central differences, in float64, to hold derived ones against."""

import numpy as np


def gradient(function, array, step=1e-5):
    """d function() / d array, where the function reads the array, which is changed and restored in place."""
    found = np.zeros_like(array)
    for i in np.ndindex(array.shape):
        old = array[i]
        array[i] = old + step
        above = function()
        array[i] = old - step
        found[i] = (above - function()) / (2 * step)
        array[i] = old
    return found
