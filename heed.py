"""Runs from Python, with the results of predict.py:

    import heed

    run = heed.load('runs/quickstart')              # a workdir, or a folder that save_pretrained has written
    run.generate('def main(', tokens=50)            # the continuation of a prompt, or the translation of a source
    run.predict(['a joy from start to end'])        # a dict for each input: the JSON of predict.py --json
    run.logits(ids)                                 # [B, T, V] for token ids [B, T]
    run.model.apply(run.variables, inputs=ids)['hidden']
"""

import dataclasses
import inspect
import numbers
import os
import pathlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from data import json_files
from training import run as runs
from training import storage, workdir
from training.config import resolve
from training.contracts import Reader
from training.host import machine
from training.snapshot import Snapshot
from transformer.decoding.strategies import Strategy
from transformer.layers.stack import Blocks

_AXES = {'image': '[rows, height, width, channels]', 'story': '[rows, sentences, words]'} | dict.fromkeys(
    ('inputs', 'segments', 'positions', 'types', 'prefix', 'decoder_inputs', 'decoder_segments', 'decoder_positions'),
    '[rows, length]') | {'question': '[rows, words]'}  # inputs of models
_RANKS = {name: axes.count(',') + 1 for name, axes in _AXES.items()}
_BOUNDS = {'positions': (('stack', 'length'), ('encoder', 'source_length')), 'decoder_positions': (('decoder', 'length'),)}
_NEEDED = 'image', 'story', 'inputs', 'decoder_inputs', 'question'
_whole = lambda value, least, most: (
    isinstance(value, numbers.Integral) and not isinstance(value, bool) and least <= value < most)
# {flag: (whether a value fits, what is expected)}, as in predict.py.
_FLAGS = {
    'strategy': (lambda value: isinstance(value, Strategy | str), "an expression such as 'Greedy()', or a Strategy"),
    'tokens': (lambda value: _whole(value, 1, 1 << 31), 'a number of tokens, 1 or more'),
    'seed': (lambda value: _whole(value, 0, 1 << 32), 'a whole number from 0 to 4294967295'),
    'truncate': (lambda value: isinstance(value, bool), 'True or False'),
    'prefix': (lambda value: isinstance(value, str), 'a string'),
    'candidates': (lambda value: isinstance(value, str) or (isinstance(value, Sequence) and all(
        isinstance(one, str) for one in value)), 'words, in a list or with commas between them'),
    'pictures': (lambda value: isinstance(value, str | os.PathLike), 'the path of a folder'),
    'watch': (callable, 'a function that takes a string'),
}


def load(folder: str | os.PathLike, step: int | str = 'last') -> 'Run':
    """The run in a workdir, or the run that a folder which save_pretrained has written becomes; nothing is written.

    step: the checkpoint of a workdir: 'last', 'best' or a number.
    Raises ValueError, in one sentence, for a folder that is neither, and for what convert.py refuses.
    """
    if not isinstance(folder, str | os.PathLike):
        raise ValueError(f'The folder is {folder!r:.40}; expected the path of a workdir or of a folder of save_pretrained.')
    folder = storage.path(folder)
    if _is_hugging_face(folder):
        import convert  # which imports all families

        if step != 'last':
            raise ValueError(f'step is {step!r}, but {folder} has no checkpoints; leave it out.')
        return Run(convert.snapshot_of(storage.local(folder)))
    machine.prepare(workdir.load_config(folder))
    return Run(runs.load(folder, step=str(step), data=1))


def _is_hugging_face(folder: pathlib.Path) -> bool:
    """Whether config.json is that of a model of Hugging Face, which names its type, or of timm."""
    return not {'model_type', 'architecture'}.isdisjoint(json_files.read(folder / 'config.json') or {})


@dataclasses.dataclass(frozen=True)
class Run:
    """A model with its parameters and its data: tokenizer, classes and the reader of inputs."""
    snapshot: Snapshot

    @property
    def params(self) -> dict:
        """The parameters, {'block_0': {...}, ...}."""
        return self.snapshot.params

    @property
    def variables(self) -> dict:
        """What the model is applied to: {'params': params} and, of a model with running moments, {'statistics': {...}}."""
        return self.snapshot.variables

    @property
    def model(self) -> Any:
        """The Flax module; `run.model.apply(run.variables, **inputs)` gives all of its outputs."""
        return self.snapshot.model

    @property
    def data(self) -> Any:
        """The data of the run, opened without their files: encode, decode, read, classes, as far as they have these."""
        return self.snapshot.data

    @property
    def config(self) -> Any:
        """The locked ConfigDict."""
        return self.snapshot.run.config

    @property
    def reader(self) -> Reader:
        """The class that the config names in data.reader. Raises ValueError if there is none."""
        if self.snapshot.run.reader is None:
            raise ValueError(f'A run on {self.config.data.pipeline} has no data.reader, which predictions need; use eval.py.')
        return self.snapshot.run.reader

    def logits(self, ids: Any = None, **inputs: Any) -> np.ndarray:
        """float32 logits of the model, for token ids [B, T] or for its inputs by name, such as image=[B, height, width, C] or
        decoder_inputs=[B, T] besides the ids of sources.

        Raises ValueError for inputs that the model does not take or that it lacks, and for arrays of another form.
        """
        given, known = ({} if ids is None else {'inputs': ids}) | inputs, inspect.signature(self.model.__call__).parameters
        takes = [name for name in _RANKS if name in known]
        for name in given:
            if name in known and name not in takes:
                raise ValueError(f'run.logits does not take {name}; give it to run.model.apply(run.variables, ..).')
            if name not in takes:
                raise ValueError(f'{type(self.model).__name__} does not take {"ids" if name == "inputs" else name}; '
                                 f'{resolve.did_you_mean(name, takes)}')
        if lacks := [name for name in takes if name in _NEEDED and name not in given]:
            raise ValueError(f'{type(self.model).__name__} needs {" and ".join(lacks)} too; give run.logits('
                             f'{", ".join(f"{name}=.." for name in takes if name in _NEEDED)}).')
        arrays = {name: self._array(name, value) if name in _RANKS else value for name, value in given.items()}
        for name, array in ((name, arrays[name]) for name in takes if name in arrays):
            of = 'decoder_inputs' if name.startswith('decoder_') else 'story' if name == 'question' else 'inputs'
            for other, axes in ((of, _RANKS[name] if of != 'story' else 1), ('inputs', 1)):
                if other in arrays and array.shape[:axes] != arrays[other].shape[:axes]:
                    raise ValueError(f'{name} are {list(array.shape)} for {other} {list(arrays[other].shape)}; expected '
                                     f'{"one shape" if axes > 1 else "as many rows"}.')
        found = self.snapshot.apply(**arrays)
        if 'logits' not in found:
            raise ValueError(f'{type(self.model).__name__} has no logits here, but {", ".join(found)}; call run.model.apply.')
        return np.asarray(found['logits'], np.float32)

    def _array(self, name: str, value: Any) -> np.ndarray:
        """An input of the model. Raises ValueError for another number of axes, type or range than its own."""
        what = 'The ids' if name == 'inputs' else name
        try:
            array = np.asarray(value)
        except ValueError:
            raise ValueError(f'{what} have rows of several lengths; fill them up to one length, and give segments=[B, T], 0 '
                             'where they are filled and 1 elsewhere.') from None
        facts = self.data.facts
        vocab = {'inputs': facts.get('source_vocab') or facts.get('vocab'),  # a translator reads sources
                 **dict.fromkeys(('decoder_inputs', 'story', 'question'), facts.get('vocab')),
                 'types': getattr(self.model, 'types', None)}.get(name)
        most = vocab - 1 if vocab else np.inf
        for stack, length in _BOUNDS.get(name, ()):
            part = getattr(self.model, stack, None)
            if isinstance(part, Blocks) and not part.positions.free_length:
                most = getattr(self.model, length) - 1
        limited = vocab or name.endswith('positions')
        kinds, wanted = ('f', 'floats') if name == 'image' else ('iub', 'integers')
        values = f' from {array.min()} to {array.max()}' if array.size and array.dtype.kind in 'iubf' else ''
        outside = limited and array.size and values and not 0 <= array.min() <= array.max() <= most
        empty = name == 'image' and not array.size
        wanted += f' {_AXES[name]}{", each axis 1 or more" if empty else ""}'
        if array.ndim != _RANKS[name] or array.dtype.kind not in kinds or empty or outside:
            raise ValueError(f'{what} are {array.dtype} {list(array.shape)}{values}; expected {wanted}'
                             f'{f" from 0 to {most}" if most < np.inf else " from 0" if limited else ""}.')
        return array

    def generate(self, text: str | Sequence[str], *, strategy: Strategy | str | None = None, tokens: int | None = None,
                 seed: int = 0, watch: Callable[[str], None] | None = None, **flags: Any) -> str | list[str]:
        """The continuation of a prompt, or the translation of a source: a string for a string, a list for a list.

        Args:
          strategy: such as 'Beam(size=4)'; None: that of the run, as in predict.py.
          tokens: the most tokens to generate; None: that of the run.
          watch: is called with each piece of a continuation as soon as it is generated: watch=lambda text: print(text, end='').
          flags: further flags of predict.py, such as prefix='..' for translations.

        Warns of what predict.py says beside an answer: tokens of a prompt that are unknown, and a context that is full.
        """
        if 'strategy' not in self.reader.flags:
            raise ValueError(f'{type(self.reader).__name__} does not generate text; call run.predict.')
        found = self.predict(text, strategy=strategy, tokens=tokens, seed=seed, **({'watch': watch} if watch else {}), **flags)
        found = [found] if isinstance(text, str) else found
        for number, note in ((number, one['note']) for number, one in enumerate(found, 1) if 'note' in one):
            said = note[0].upper() + note[1:] if isinstance(text, str) else f'Answer {number}: {note}'
            warnings.warn(said, stacklevel=2)
        return found[0]['text'] if isinstance(text, str) else [one['text'] for one in found]

    def predict(self, inputs: str | os.PathLike | Sequence[str | os.PathLike], **flags: Any) -> dict | list[dict]:
        """The JSON of predict.py --json: a dict for a string or a path, a list for a list. For a blank text
        it has 'text' alone, or of a translator an empty 'text' and no 'outputs'."""
        if isinstance(inputs, os.PathLike):
            inputs = os.fspath(inputs)
        if isinstance(inputs, Sequence) and not isinstance(inputs, str):
            inputs = [os.fspath(one) if isinstance(one, os.PathLike) else one for one in inputs]
        if not isinstance(inputs, str | Sequence) or not all(isinstance(one, str) for one in inputs):
            given = f'of the type {type(inputs).__name__}' if isinstance(inputs, np.ndarray) else f'{inputs!r:.60}'
            raise ValueError(f'The inputs are {given}; expected a string or a path, or a list of these.')
        found = [details for _, details in self.answers([inputs] if isinstance(inputs, str) else list(inputs), **flags)]
        return found[0] if isinstance(inputs, str) else found

    def answers(self, lines: Sequence[str], name: str = 'the inputs', **flags: Any) -> Iterator[tuple[str, dict]]:
        """Yields (the line that predict.py prints, its JSON) for each line; errors name the inputs `name`.

        flags: those of predict.py that the reader uses; strategy and tokens default to the config's `generation`.
        """
        for number, line in enumerate(lines, 1):
            try:
                line.encode()
            except UnicodeEncodeError as error:
                raise ValueError(f'Line {number} of {name} is no text: its character {error.start} is '
                                 f'U+{ord(line[error.start]):04X}, half of a pair; take it out.') from None
        known = self.reader.flags
        given = {flag: value for flag, value in flags.items() if value is not None}
        for flag in flags:
            if flag not in known:
                raise ValueError(f'{type(self.reader).__name__} does not take {flag}; {resolve.did_you_mean(flag, known)}')
        for flag, value in given.items():
            fits, wanted = _FLAGS[flag]
            if not fits(value):
                raise ValueError(f'{flag} is {value!r:.40}; expected {wanted}.')
            if isinstance(value, numbers.Integral) and not isinstance(value, bool):
                given[flag] = int(value)  # not numpy's
        if 'strategy' in known:
            given['strategy'] = self.strategy(given.get('strategy'))
        if 'tokens' in known and self.config.generation.tokens:
            given.setdefault('tokens', self.config.generation.tokens)
        yield from self.reader.answers(self.snapshot, lines, name, **given)

    def strategy(self, given: Strategy | str | None = None) -> Strategy:
        """A strategy, or the one that an expression describes; None: that of the run."""
        if given is None:
            usual = self.config.generation.strategy
            return resolve.parse(usual, Strategy, 'generation.strategy') if usual else self.reader.usual
        return resolve.parse(given, Strategy, 'strategy') if isinstance(given, str) else given
