"""Companions: frozen models of other runs that a task applies besides its own, such as a teacher.

`config.companions.teacher = 'runs/x'` names one; in a task `forward.teacher(**inputs)` applies it. Its newest parameters are
sharded like a run's own and are an argument of the compiled step, outside optimizer and checkpoint.
"""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from training import contracts, storage, workdir
from training.checkpoint import checksums


@dataclasses.dataclass(frozen=True)
class Companions:
    """The companions of a run. They are read at first use: a run without its loss, as in predict.py, needs none.

    Attributes:
      folders: {name: workdir}.
      data: of the run, whose tokenizer and classes they must have.
      read: from a workdir to its Snapshot, with the parameters on the mesh of the run.
      planned: the data may be made up, and need not be those of the companions.
    """
    folders: Mapping[str, str]
    data: contracts.Opened
    read: Callable
    planned: bool = False

    @functools.cached_property
    def snapshots(self) -> dict[str, Any]:
        """{name: Snapshot}. Raises ValueError for a folder without a run, and for another tokenizer or other classes."""
        return {name: self._snapshot(name, folder) for name, folder in self.folders.items()}

    @functools.cached_property
    def absent(self) -> dict[str, str]:
        """{name: what to say of it} of those in whose folder there is no run."""
        return {name: f'companions.{name} is {folder!r}, where there is no run; restore the run whose model the loss applies, '
                      f'or name the workdir to which it has moved with train.py --config.companions.{name}=DIR.'
                for name, folder in self.folders.items() if not (storage.path(folder) / 'config.json').is_file()}

    @functools.cached_property
    def present(self) -> 'Companions':
        """The others."""
        folders = {name: folder for name, folder in self.folders.items() if name not in self.absent}
        return dataclasses.replace(self, folders=folders) if self.absent else self

    @property
    def were_read(self) -> bool:
        """Whether anything has applied them."""
        return bool(self.folders) and 'snapshots' in vars(self)

    @property
    def models(self) -> dict[str, contracts.Model]:
        """{name: model}."""
        return {name: snapshot.model for name, snapshot in self.snapshots.items()}

    @property
    def variables(self) -> dict[str, dict]:
        """{name: what its model is applied to: {'params': ..}, with {'statistics': ..} if it has any}."""
        return {name: snapshot.variables for name, snapshot in self.snapshots.items()}

    def digests(self) -> dict[str, str]:
        """{name: a digest of model and parameters}: another one means another function."""
        return {name: _digest(snapshot) for name, snapshot in self.snapshots.items()}

    def _snapshot(self, name, folder):
        if name in self.absent:
            raise ValueError(self.absent[name])
        found = self.read(storage.path(folder))
        own, theirs = self.data.meanings, found.data.meanings
        for what in () if self.planned else own:
            if what in theirs and own[what] != theirs[what]:
                start = '' if 'image size' in own else f', or start from it with --config.init_from={folder}'
                raise ValueError(f'companions.{name} is {folder!r}, whose {what} differ{"s" * (what[-1] != "s")} from this '
                                 f'run\'s, so that its outputs mean something else; name a run with the same{start}.')
        return found


def _digest(snapshot):
    config = workdir.as_json(snapshot.run.config)
    told = [config['model'], config['dtype'], *map(checksums, snapshot.variables.values())]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:32]
