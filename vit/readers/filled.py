"""The reader of masked autoencoders, which fills masked patches of an image."""

import dataclasses
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

from display import progress
from vit.explain import filled
from vit.readers.images import ImageReader


@dataclasses.dataclass(frozen=True)
class FilledPatches(ImageReader):
    """Reads the path of an image, masks patches of it, and shows the loss of the predicted ones and the path. With `pictures`,
    a folder, it also writes a picture of each: the original, what the model saw, and the image with its predictions."""
    flags = ('seed', 'pictures')

    def answers(self, snapshot: Any, lines: Sequence[str], name: str, *, seed: int = 0,
                pictures: str | os.PathLike | None = None) -> Iterator[tuple[str, dict]]:
        data = self.data_of(snapshot)
        filled.require(snapshot.model, 'FilledPatches')
        folder = None if pictures is None else pathlib.Path(os.path.expanduser(pictures))
        if folder is not None and not (os.fspath(pictures) and folder.is_dir()):
            raise ValueError(f'There is no folder {os.fspath(pictures)!r} to write pictures in; make it first.')
        number = 0
        for paths, images, notes in self.read(data, lines, name):
            with progress.waiting('predicting'):
                rows = filled.fill(snapshot, images, seed)
            for path, one, note in zip(paths, rows, notes):
                number += 1
                details = {'path': path, 'loss': one.loss, 'masked': float(one.masked.mean())} | note
                if folder is not None:
                    details['picture'] = str(folder / f'{number}_{pathlib.Path(path).stem}.png')
                    drawn = filled.figure([one], f'{pathlib.Path(path).name} with masked patches')
                    with progress.waiting(f'drawing {details["picture"]}'):
                        drawn.savefig(details['picture'])
                shown = f'\t{details["picture"]}' if folder is not None else ''
                yield f'{one.loss:.6f}\t{path}{shown}', details
