"""Checkpoints of a training run: saved without stopping the loop, verified bit by bit when they are read.

Orbax commits a step as a whole, but does not notice bytes that change later. So every array gets an integer checksum,
computed on its device and stored in the same step. If a step cannot be restored, it is set aside and the one before it is used.
"""

import contextlib
import dataclasses
import functools
import gc
import itertools
import json
import logging
import math
import os
import re
import sys
import time
import warnings
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from jax import numpy as jnp
from jax.experimental import multihost_utils
from orbax.checkpoint.checkpoint_managers import preservation_policy

from training import storage
from training.mesh import nested, path_of

_DIFF_ROWS = 40
# Failures of the machine, not of the checkpoint: another attempt may succeed, so the checkpoint is not set aside.
_MACHINE = re.compile(r'RESOURCE_EXHAUSTED|PERMISSION_DENIED|[Oo]ut of memory|Permission denied|Too many open files|'
                      r'UNAVAILABLE|DEADLINE_EXCEEDED|UNAUTHENTICATED|[Tt]imed? ?out|Cannot connect|Forbidden')


@dataclasses.dataclass(frozen=True)
class Restored:
    """A restored checkpoint: its step, the state in the shardings of the target, and the `meta` given to `save`."""

    step: int
    state: Any
    meta: dict[str, Any]


def checksums(tree: Any) -> dict[str, int]:
    """One 32-bit integer per array of `tree`, by name ('params/block_0/attention/query/kernel').

    sum over i of mix(bits_i + (i + 1) * c) mod 2**32, with i the position in row-major order, mix a bijection of the
    32-bit integers and c odd; the halves of a 64-bit number are two elements. Any change of a single element changes it;
    swaps and larger changes escape with probability 2**-32. Computed on the devices that hold the array; the same however
    the array is sharded.
    """
    return _numbers(_dispatch(_named(tree)))


# Replicas share the writing of large arrays only: each share is cut out by a program of its own, compiled at the first save.
_WHOLE = ocp.type_handlers.create_type_handler_registry(
    (jax.Array, ocp.type_handlers.ArrayHandler(min_slice_bytes_for_replica_parallel=1 << 20)))


_POSITION = 'position.json'


class _PositionHandler(ocp.CheckpointHandler):
    """The position of the data iterator. Every process draws the same batches, so process 0 saves it for all.

    It is written before `save` returns. Orbax's own JSON handler writes later, and if that fails on a full disk, the writing of
    the arrays is broken off.
    """

    def save(self, directory, args):
        if jax.process_index() == 0:
            (directory / _POSITION).write_text(json.dumps(args.position))

    def restore(self, directory, args=None):
        return json.loads((directory / _POSITION).read_text())


@ocp.args.register_with_handler(_PositionHandler, for_save=True, for_restore=True)  # Orbax asks for both
@dataclasses.dataclass
class _Position(ocp.args.CheckpointArgs):
    position: dict[str, Any]


# Of these more is better, also with something before them, as in pairs_accuracy, or a number behind, as in bleu_2; of all
# others less.
HIGHER = ('accuracy', 'agreement', 'bleu', 'chrf', 'exact', 'exact_match', 'f1', 'high', 'low', 'margin', 'matthews', 'pearson',
          'precision', 'recall', 'rouge1', 'rouge2', 'rougeL', 'spearman')
_HIGHER = re.compile(rf'(.*_)?({"|".join(HIGHER)})(_\d+)?')


def rank(name: str, metrics: Mapping[str, float]) -> float:
    """A number that is the lower, the better the metric 'EVALUATION/METRIC' is: its value, or that times -1 for those of which
    more is better; inf where it was not measured or is not finite."""
    value = metrics.get(name, math.nan)
    if not math.isfinite(value):
        return math.inf
    return -value if any(map(_HIGHER.fullmatch, name.split('/')[1:])) else value


class Checkpoints:
    """The checkpoints of one run: <workdir>/checkpoints/<step>/ with the items `state`, `data` and `meta`.

    One commit covers all three, so a process killed while it saves leaves a temporary folder that is never read.

    Args:
      folder: the workdir; `checkpoints` and `damaged` are folders inside it.
      keep: how many of the newest steps are kept, at least 2.
      best: the metric whose best value, by `rank`, marks one more step to keep, such as 'valid/loss'; '' for none.
      writable: False opens for reading only: nothing is created, cleaned up or set aside.

    Raises:
      ValueError: `keep` is below 2; the metrics of a step, which may be the best, could not be read though it may be intact.
    """

    def __init__(self, folder, *, keep: int = 3, best: str = '', writable: bool = True):
        if keep < 2:
            raise ValueError(
                f'checkpoint.keep is {keep}, but at least 2 checkpoints are needed in case one is damaged: '
                'set it to 2 or more.'
            )
        self._workdir = epath.Path(folder if storage.remote(folder) else os.path.abspath(folder))  # not relative, for Orbax
        self._folder = self._workdir / 'checkpoints'
        self._best, self._writable = best, writable
        self._values: dict[int, float] = {}  # step -> rank of the metric `best`
        # Weights hardly compress: trying takes twice the processor time and saves 8 % of the size.
        arrays = ocp.PyTreeCheckpointHandler(use_compression=False, type_handler_registry=_WHOLE)
        handlers = ocp.handlers.DefaultCheckpointHandlerRegistry()
        handlers.add('state', ocp.args.PyTreeSave, arrays)
        handlers.add('state', ocp.args.PyTreeRestore, arrays)
        logging.getLogger('absl').addFilter(_is_not_orbax_traceback)
        self._manager = ocp.CheckpointManager(
            self._folder,
            options=ocp.CheckpointManagerOptions(
                create=writable,
                cleanup_tmp_directories=writable,
                preservation_policy=_NewestAndBest(keep, self._best_of),
                save_root_metadata=False,
                lightweight_initialize=True,
                # Otherwise, if a step's folder cannot be made, threads wait for it for 20 minutes, at exit too.
                async_options=ocp.options.AsyncOptions(create_directories_asynchronously=False),
            ),
            handler_registry=handlers,
        )
        if best:
            for step in self.steps():
                content, reason = self._attempt('meta', functools.partial(self._read_meta, step))
                if not reason:  # a damaged step has no value; `restore` reports it when it reaches it
                    self._note_metric(step, content['metrics'])

    def steps(self) -> list[int]:
        """The saved steps, oldest first; a save in progress counts."""
        return sorted(self._manager.all_steps())

    def best_step(self) -> int | None:
        """The step with the best value of the metric `best`, the earlier one of equals; None if there is none."""
        return self._best_of(self.steps())

    def save(self, step: int, state, iterator, metrics: dict[str, float] | None = None,
             meta: dict | None = None) -> None:
        """Saves `state`, the position of `iterator` and `meta` as `step`; most of the work is done after the return.

        Args:
          step: must be higher than every saved step.
          state: a pytree of arrays, on any number of devices; may be donated as soon as this returns.
          iterator: a Grain DatasetIterator, or None to save no position.
          metrics: numbers such as {'valid/loss': 1.5}; only steps with a finite `best` compete for the best.
          meta: anything else to store; must be JSON.

        Raises:
          ValueError: the step exists, is older than the newest one, or this or the previous save could not be written.
        """
        arrays = _named(state)
        sums = _dispatch(arrays)  # before anything else, so that the devices work while the rest is prepared
        metrics = {name: float(value) for name, value in (metrics or {}).items()}
        content = {'data': None, 'metrics': metrics, 'user': meta or {}}
        items = {'state': ocp.args.PyTreeSave(nested(arrays))}  # does not depend on the types of the containers
        if iterator is not None:
            position = iterator.get_state()
            content['data'] = _json_checksum(position)
            items['data'] = _Position(position)
        self.wait()
        newest = max(self.steps(), default=-1)
        if newest >= step:  # Orbax would return False and save nothing
            raise ValueError(
                f'checkpoint {step} cannot be saved in {self._folder} because it holds checkpoint {newest}: '
                'use another workdir or move the newer checkpoints away.'
            )
        numbers = _numbers(sums)
        content['arrays'] = {name: [*_kind(array), numbers[name]] for name, array in arrays.items()}
        items['meta'] = ocp.args.JsonSave({'checksum': _json_checksum(content), 'content': content})
        self._note_metric(step, metrics)
        with self._saving():
            self._manager.save(step, args=ocp.args.Composite(**items))

    def amend(self, step: int, metrics: dict[str, float], meta: dict) -> None:
        """Adds metrics to a saved step and replaces its `meta`: for an evaluation done after the step was saved. Raises
        ValueError if it can no longer be read, or not be written."""
        self.wait()
        content, reason = self._attempt('meta', functools.partial(self._read_meta, step))
        if reason:
            raise ValueError(f'checkpoint {step} in {self._folder} has been damaged ({reason}): start again '
                             'with the same command, which resumes from the one before it.')
        content |= {'metrics': content['metrics'] | {name: float(v) for name, v in metrics.items()}, 'user': meta}
        if jax.process_index() == 0:
            # A kill leaves the old file or the new one.
            storage.write(self._folder / str(step) / 'meta' / 'metadata',
                          json.dumps({'checksum': _json_checksum(content), 'content': content}))
        self._note_metric(step, content['metrics'])

    def restore(self, target, *, iterator=None, step: int | None = None) -> Restored | None:
        """Reads a checkpoint, verifies every bit of it, and returns it; None if there is no checkpoint at all.

        Without `step` the newest is read. If it is damaged, that is reported on stderr, the one before it is read, and
        (if writable) the damaged one is moved to <workdir>/damaged so that its step can be saved again.

        Args:
          target: a pytree of jax.ShapeDtypeStruct with shardings, or of arrays. It may have fewer top-level entries
            than what was saved ({'params': ...}): the others are not read.
          iterator: the Grain DatasetIterator to set to the saved position, or None; it stays where it is if the
            checkpoint has no position.
          step: reads exactly this step, without falling back.

        Raises:
          ValueError: the target's names, shapes or types differ from what was saved (with the differences); `step`
            does not exist or is damaged; every checkpoint is damaged; the iterator cannot take the saved position.
        """
        target_arrays = _named(target)
        for name, array in target_arrays.items():
            if getattr(array, 'sharding', None) is None:
                raise ValueError(f'the target for {name} has no sharding: give a jax.ShapeDtypeStruct with one.')
        self.wait()
        steps = self.steps()
        if step is not None:
            if step not in steps:
                there = ', '.join(map(str, steps))
                raise ValueError(
                    f'There is no checkpoint {step} in {self._folder}: '
                    + (f'choose one of those it holds, {there}.' if steps else 'it holds none, so train first.')
                )
            steps = [step]
        damaged: dict[int, str] = {}
        for candidate in reversed(steps):
            found = self._try(candidate, target_arrays, iterator)
            if isinstance(found, str):
                alone = not self._writable and jax.process_count() == 1
                if alone and not (self._folder / str(candidate)).exists():  # deleted by training, which has saved newer ones
                    self._manager.reload()
                    return self.restore(target, iterator=iterator, step=step)
                damaged[candidate] = found
                continue
            self._set_aside(damaged, candidate)
            arrays, meta = found
            state = jax.tree.unflatten(jax.tree.structure(target), [arrays[name] for name in target_arrays])
            return Restored(candidate, state, meta)
        if damaged:
            reasons = '; '.join(f'{number}: {reason}' for number, reason in damaged.items())
            others = len(self.steps()) > len(damaged)
            every = 'Every checkpoint' if len(damaged) > 1 else 'The only checkpoint'
            what = every if step is None else 'The chosen checkpoint'
            raise ValueError(
                f'{what} in {self._folder} is damaged ({reasons}); '
                f'{"choose another one, or " * others}restore it from a copy, or train in another workdir.'
            )
        return None

    def wait(self) -> None:
        """Returns when the last save is complete. Raises ValueError if it failed."""
        with self._saving():
            self._manager.wait_until_finished()

    def close(self) -> None:
        """Completes the last save and ends the background threads. Raises ValueError if that save failed."""
        with self._saving():
            self._manager.close()

    def _try(self, step: int, target: dict[str, Any], iterator) -> tuple[dict[str, jax.Array], dict] | str:
        """The arrays and user meta of `step`, or a description of its damage. Raises ValueError if the target differs."""
        content, reason = self._attempt('meta', lambda: self._read_meta(step))
        if reason:
            return reason
        _check_structure(step, self._folder, content['arrays'], target)
        arrays, reason = self._attempt('state', lambda: self._read_arrays(step, target))
        if reason:
            return reason
        wrong = [name for name, value in checksums(arrays).items() if value != content['arrays'][name][2]]
        if wrong:
            others = f' and {len(wrong) - 1} more' if len(wrong) > 1 else ''
            return f'checksum of {wrong[0]}{others} differs'
        if iterator is not None and content['data'] is not None:
            reason = self._restore_iterator(step, content['data'], iterator)
        return reason or (arrays, content['user'])

    def _attempt(self, what: str, read: Callable[[], Any]) -> tuple[Any, str]:
        """(what `read` returns, '') or (None, why it failed), agreed among all processes."""
        result, reason = None, ''
        with _quiet():
            try:
                result = read()
            except Exception as error:  # Orbax and TensorStore report damage by errors of many types
                reason = f'{what} cannot be read, {_shortened(error)}'
                if (isinstance(error, MemoryError | PermissionError) or storage.unreachable(error)
                        or _MACHINE.search(str(error).replace(str(self._folder), ''))):
                    raise ValueError(
                        f'a checkpoint in {self._folder} could not be read, though it may be intact ({reason}): '
                        'make sure that it can be reached, with enough memory and permission, then start again.'
                    ) from error
            if reason:
                time.sleep(0.1)  # the other reads fail a little later, or when they are garbage-collected
                gc.collect()
        if jax.process_count() > 1 and multihost_utils.process_allgather(np.array(bool(reason))).any():
            reason = reason or f'{what} cannot be read by another process'
        return result, reason

    def _read_meta(self, step: int) -> dict[str, Any]:
        folder = self._folder / str(step)
        if not json.loads((folder / '_CHECKPOINT_METADATA').read_text()).get('commit_timestamp_nsecs'):
            raise ValueError('it was never committed')
        saved = json.loads((folder / 'meta' / 'metadata').read_text())
        if saved['checksum'] != _json_checksum(saved['content']):
            raise ValueError('its checksum differs')
        return saved['content']

    def _read_arrays(self, step: int, target: dict[str, Any]) -> dict[str, jax.Array]:
        tree = nested({
            name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding) for name, x in target.items()
        })
        restore = ocp.args.PyTreeRestore(
            tree, restore_args=ocp.checkpoint_utils.construct_restore_args(tree), partial_restore=True
        )
        arrays = _named(self._manager.restore(step, args=ocp.args.Composite(state=restore))['state'])
        # A partial restore hands back the target itself where its name is not among those of the files.
        absent = [name for name, array in arrays.items() if not isinstance(array, jax.Array)]
        if absent:
            raise ValueError(f'{absent[0]} is not in it')
        return arrays

    def _restore_iterator(self, step: int, saved: int, iterator) -> str:
        """Sets the iterator; returns a description of the damage, '' if there is none."""
        def read():
            position = _PositionHandler().restore(self._folder / str(step) / 'data')  # no barrier: the damage may be local
            if _json_checksum(position) != saved:
                raise ValueError('its checksum differs')
            return position

        position, reason = self._attempt('data', read)
        if reason:
            return reason
        try:
            iterator.set_state(position)
        except Exception as error:
            # The position is intact, so the pipeline has changed.
            raise ValueError(
                f'the data position of checkpoint {step} in {self._folder} does not fit this data pipeline '
                f'({type(error).__name__}: {error}): use the data settings it was saved with.'
            ) from error
        iterator.start_prefetch()
        return ''

    def _set_aside(self, damaged: dict[int, str], good: int) -> None:
        """Reports the damaged steps and moves them away, now that an older step is known to be good."""
        for step, reason in damaged.items():
            moved = ''
            if self._writable:
                moved = ', moved to damaged'
                if jax.process_index() == 0:
                    aside = self._workdir / 'damaged'
                    names = itertools.chain([str(step)], (f'{step}-{n}' for n in itertools.count(1)))
                    place = next(aside / name for name in names if not (aside / name).exists())
                    storage.move(self._folder / str(step), place)
            if jax.process_index() == 0:
                print(f'checkpoint {step} is damaged ({reason}){moved}; resuming from {good}', file=sys.stderr)
        if damaged and self._writable:
            if jax.process_count() > 1:
                multihost_utils.sync_global_devices('damaged checkpoints set aside')
            self._manager.reload()

    def _note_metric(self, step: int, metrics: dict[str, float]) -> None:
        self._values[step] = rank(self._best, metrics)

    def _best_of(self, steps: list[int]) -> int | None:
        finite = [step for step in steps if math.isfinite(self._values.get(step, math.inf))]
        return min(finite, key=self._values.get, default=None)

    @contextlib.contextmanager
    def _saving(self):
        """Turns a failed write, which Orbax reports by errors of many types, into one sentence."""
        try:
            yield
        except Exception as error:
            raise ValueError(
                f'a checkpoint could not be written to {self._folder} ({_shortened(error)}): '
                'make sure that there is space and permission, then start again.'
            ) from error


@dataclasses.dataclass
class _NewestAndBest(preservation_policy.PreservationPolicy):
    """Keeps the newest `keep` checkpoints and the best."""

    keep: int
    best_of: Callable[[list[int]], int | None]

    def should_preserve(self, checkpoints, *, context):
        steps = [checkpoint.step for checkpoint in checkpoints]
        staying = {*sorted(steps)[-self.keep:], self.best_of(sorted(steps))}
        return [step in staying for step in steps]


@jax.jit
def _checksum(x: jax.Array) -> jax.Array:
    if x.dtype == jnp.bool_:
        x = x.astype(jnp.uint8)
    size = x.dtype.itemsize
    bits = jax.lax.bitcast_convert_type(x, jnp.dtype(f'uint{8 * min(size, 4)}')).astype(jnp.uint32)
    position = jnp.uint32(1)
    stride = 1
    for axis in reversed(range(bits.ndim)):  # one iota per axis: a reshape would gather a sharded array
        index = jax.lax.broadcasted_iota(jnp.uint32, bits.shape, axis)
        position = position + index * jnp.uint32(stride % 2**32)
        stride *= bits.shape[axis]
    h = bits + position * jnp.uint32(0x9E3779B9)
    h = (h ^ (h >> 16)) * jnp.uint32(0x85EBCA6B)  # the finalizer of MurmurHash3
    h = (h ^ (h >> 13)) * jnp.uint32(0xC2B2AE35)
    return jnp.sum(h ^ (h >> 16), dtype=jnp.uint32)


def _dispatch(arrays: dict[str, Any]) -> dict[str, jax.Array]:
    # One small program per shape and type: layers share them, so few are compiled.
    return {name: _checksum(array) for name, array in arrays.items()}


def _numbers(sums: dict[str, jax.Array]) -> dict[str, int]:
    return {name: int(value) for name, value in jax.device_get(sums).items()}


def _named(tree) -> dict[str, Any]:
    """The leaves of a pytree by their path, in the order of the tree."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    named = {path_of(path): leaf for path, leaf in leaves}
    if len(named) != len(leaves):
        raise ValueError('two arrays of the state have the same name: use names without "/".')
    return named


def _kind(array) -> tuple[str, list[int]]:
    return str(array.dtype), list(array.shape)


def _check_structure(step: int, folder, saved: dict[str, list], target: dict[str, Any]) -> None:
    entries, there = ({name.split('/')[0] for name in names} for names in (target, saved))
    if there <= {'params', 'statistics'} and entries != there:
        raise ValueError(
            f'{folder.parent} holds parameters alone, for other runs to start from: give another --workdir, and '
            f'--config.init_from={folder.parent}.'
        )
    left = {name: f'{dtype}{shape}' for name, (dtype, shape, _) in saved.items() if name.split('/')[0] in entries}
    right = {name: '{}{}'.format(*_kind(array)) for name, array in target.items()}
    require_same(
        left, right, ('the checkpoint has', 'the model has'),
        f'checkpoint {step} in {folder} does not fit this model: use the settings it was saved with, or another workdir.',
    )


def require_same(left: dict[str, str], right: dict[str, str], heads: tuple[str, str], what: str, advice: str = '') -> None:
    """Raises ValueError, with a diff in two columns and the advice below, unless {name: kind of array} is the same on both
    sides."""
    rows = [
        tuple(f'{name} {side[name]}' if name in side else '-' for side in (left, right))
        for name in sorted(left.keys() | right.keys()) if left.get(name) != right.get(name)
    ]
    if not rows:
        return
    shown = [heads, *rows[:_DIFF_ROWS]]
    width = max(len(row[0]) for row in shown)
    table = '\n'.join(f'  {a:<{width}} | {b}' for a, b in shown)
    more = f'\n  ... and {len(rows) - _DIFF_ROWS} more' if len(rows) > _DIFF_ROWS else ''
    raise ValueError(f'{what}\n{table}{more}' + f'\n{advice}' * bool(advice))


@contextlib.contextmanager
def _quiet():
    """Suppresses what other reads print after one has failed; the caller reports the failure once."""
    hook, logger = sys.unraisablehook, logging.getLogger('asyncio')
    sys.unraisablehook, was_disabled, logger.disabled = lambda unraisable: None, logger.disabled, True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore', RuntimeWarning)  # coroutines that were never awaited
            yield
    finally:
        sys.unraisablehook, logger.disabled = hook, was_disabled


def _is_not_orbax_traceback(record: logging.LogRecord) -> bool:
    """Orbax logs the traceback of a failed save several times and raises it too; our one sentence is enough."""
    return not (record.exc_info and 'orbax' in record.pathname)


def _shortened(error: Exception) -> str:
    noise = r'Error opening "\w+" driver: |\[tensorstore.*|See full TensorStore.*'
    text = re.sub(noise, '', ' '.join(str(error).split())).strip()
    if len(text) > 180:  # TensorStore puts the place first and the cause last
        text = f'{text[:110]} ... {text[-60:]}'
    return f'{type(error).__name__}: {text}'


def _json_checksum(content) -> int:
    read_back = json.loads(json.dumps(content))  # keys become strings, which sort differently
    return zlib.crc32(json.dumps(read_back, sort_keys=True).encode())
