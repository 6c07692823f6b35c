"""Parts of a stack that alternate from layer to layer."""

import math
from typing import Any


class ByLayer:
    """Base of the parts of which layers 0, 2, 4, ... of a stack have `even`, and the others `odd`.

    Attributes:
      even, odd: parts of the same kind, which may alternate themselves.
      period: the number of layers after which those of `of_layer` repeat.
    """
    even: Any
    odd: Any

    @property
    def period(self) -> int:
        return 2 * math.lcm(self.even.period, self.odd.period)

    def of_layer(self, number: int) -> Any:
        """The part of one layer."""
        return (self.odd if number % 2 else self.even).of_layer(number // 2)

    def __call__(self, *args: Any, **given: Any) -> Any:
        raise TypeError(f'{self} is another part in every other layer; get that of one layer with of_layer(number).')
