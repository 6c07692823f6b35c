"""The attention weights of a run on a text, a pair of texts or a story, as a figure, as a page of HTML and as numbers.

Each `of_..` returns (a `View`, the entries of the layers: see `transformer.explain.maps.read`, {further entries of the JSON}).
With `steps` the figure also shows the scores and the mask, of which the weights are the softmax.
"""

import dataclasses
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from transformer.contracts import ReadsSource
from transformer.decoding.strategies import Greedy
from transformer.decoding.translate import encoded, longest_source, sees_source, translate
from transformer.explain import maps, page, pictures

MOST_TOKENS = 1024  # in a picture
GIVEN = 'token given to the decoder'  # the start and the output so far


@dataclasses.dataclass(frozen=True)
class View:
    """What attention looks at in an input: kinds of attention, and a title; '': that of `pictures.counted`."""
    sections: Sequence[pictures.Maps]
    title: str = ''

    def figure(self) -> Any:
        """A matplotlib figure."""
        return pictures.attention(*self.sections, title=self.title)

    def page(self) -> str:
        """A page of HTML, to explore in a browser."""
        return page.page(self.sections, self.title or self.counted())

    def counted(self) -> str:
        """The usual title."""
        return f'Attention weights of {pictures.counted([one for maps_ in self.sections for one in maps_.found])}'


def of_text(snapshot: Any, text: str, steps: bool = False) -> tuple:
    """The attention between the tokens of a text, and attention rollout to the last of them."""
    ids = tokens(text, snapshot.data.prompt)
    seen = look(snapshot, steps, inputs=ids[None])
    pieces, flow = snapshot.data.pieces(ids), seen.rollout()
    return View([seen.section(pieces, pieces)]), seen.found, {
        'tokens': pieces, 'rollout': None if flow is None else flow[-1].tolist()}


def of_row(snapshot: Any, ids: np.ndarray, types: np.ndarray, steps: bool = False) -> tuple:
    """The same for one encoded text, ids and types [n] with special tokens, and attention rollout to the token that represents
    it: the last one under a causal mask, else the first. For a model that reads the text twice, as BART does, the view of
    `of_pair`."""
    data, task = snapshot.data, snapshot.run.task
    require_few(ids)
    pieces = data.pieces(ids)
    inputs = task.inputs(data.rows([(ids, types)], len(ids)) | {'masked': np.zeros((1, 1), np.int32)})
    if task.start >= 0:
        target = np.asarray(inputs['decoder_inputs'][0])
        return _between(snapshot, ids, target, pieces, data.pieces(target), pieces, steps)
    seen = look(snapshot, steps, **inputs)
    flow = seen.rollout()
    causal = all(stack.mask.causal for stack, *_ in snapshot.model.attentions.values())
    rollout = None if flow is None else flow[-1 if causal else 0].tolist()
    return View([seen.section(pieces, pieces)]), seen.found, {'tokens': pieces, 'rollout': rollout}


def of_pair(snapshot: Any, text: str, steps: bool = False) -> tuple:
    """A source and the run's greedy output for it: their alignment, the attention within each, and the cross attention from the
    output to the source."""
    data = snapshot.data
    source = tokens(text, lambda text: encoded(data, text, longest_source(snapshot), what='--input'))
    if len(source) < 2:
        raise ValueError(f'--input is {text!r}, which has no tokens; give a longer text.')
    best = translate(snapshot, [source], strategy=Greedy(), key=snapshot.key('attention'))[0][0]
    written = [*best.tokens, data.end] if best.finished else best.tokens
    if not isinstance(snapshot.model, ReadsSource):
        row = np.array([*source, *written[:-1]])
        marks = (np.arange(len(row)) < len(source)).astype(np.int32)
        given = {'prefix': marks[None]} if sees_source(snapshot) else {}
        seen, shown = look(snapshot, steps, inputs=row[None], **given), data.pieces(row)
        return View([seen.section(shown, shown)]), seen.found, {'tokens': shown, 'text': data.decode(best.tokens)}
    target = np.array([data.start, *written[:-1]])  # the decoder never reads the last one
    view, found, more = _between(snapshot, source, target, data.pieces(source), data.target_pieces(target),
                                 data.target_pieces(written), steps)
    return view, found, more | {'text': data.decode(best.tokens)}


def of_shift(snapshot: Any, text: str, steps: bool = False) -> tuple:
    """The same for the words of a text as source and those from the second one on as output."""
    data = snapshot.data
    source = tokens(text, data.encode)
    if len(source) < 2:
        raise ValueError(f'--input is {text!r}, one word, which leaves nothing to copy; give a longer text.')
    target, read = np.array([data.start, *source[1:]]), data.pieces(source)
    return _between(snapshot, source, target, read, data.pieces(target), [*read[1:], '?'], steps)


def _between(snapshot, source, target, read, shown, written, steps):
    """A source [S] and the inputs of the decoder [T], with their tokens `read` and `shown`; `written` are its outputs."""
    seen = look(snapshot, steps, inputs=source[None], segments=np.ones((1, len(source)), np.int32),
                decoder_inputs=target[None])
    cross = seen.section(shown, read, 'cross attention: from the output so far to the source',
                         lambda name: name.endswith('cross_attention'), within=False, down=GIVEN, across='source token')
    own = [seen.section(read, read, 'self-attention of the source', lambda name: name.startswith('encoder/'),
                        down='source token that attends', across='source token that is attended to'),
           seen.section(shown, shown, 'self-attention of the output so far',
                        lambda name: not name.startswith('encoder/') and name not in cross.layers,
                        down=GIVEN, across='token given to the decoder')]
    mean, sections = None, [maps_ for maps_ in own if maps_.found]
    if any(map(len, cross.layers.values())):
        mean = maps.alignment(cross.layers)
        whole = {'layer': 'all layers', 'heads': ['mean of all heads'], 'entropy': maps.entropy(mean[None]).tolist(),
                 'highest_entropy': maps.highest_entropy(np.ones(mean.shape, bool))}
        sections = [pictures.Maps({'all layers': mean[None]}, [whole], written, read, 'alignment of the output with the source',
                                  down='token produced', across='source token', produced=True), *sections, cross]
    return View(sections, f'Attention weights of {pictures.counted(seen.found)}'), seen.found, {
        'source': read, 'output': written,
        'alignment': None if mean is None else np.round(mean, 6).tolist()}


def of_story(snapshot: Any, given: str, steps: bool = False) -> tuple:
    """The last question about a story in bAbI's format: the attention of each hop of a memory network, or of each head of a
    Transformer, over the sentences, the latest first."""
    text = pathlib.Path(given).read_bytes() if os.path.isfile(given) else given
    asked, batch = snapshot.data.read_stories(text, '--input')
    question = asked[-1]
    if not question.sentences:
        raise ValueError(f'--input, line {question.line}: there is no story before {question.text!r}; put sentences before it.')
    sentences = question.sentences[::-1][:batch['story'].shape[1]]

    def there(weights):  # [B, N, T, S]: T = 1 for hops, whose keys are sentences; else the question precedes these
        queries, count = weights.shape[2], len(sentences)
        return weights[:, :, :1 + count, :count if queries == 1 else 1 + count]

    seen = look(snapshot, steps, there, **snapshot.run.task.inputs({name: rows[-1:] for name, rows in batch.items()}))
    if all(weights.shape[1] == 1 for weights in seen.layers.values()):
        hops = np.concatenate(list(seen.layers.values()), 1)
        whole = {'layer': question.text, 'heads': ['all hops'], 'entropy': maps.entropy(hops).tolist(),
                 'highest_entropy': maps.highest_entropy(np.ones(hops.shape[1:], bool))}
        shown = pictures.Maps({question.text: hops}, [whole], list(seen.layers), sentences, longest=60,
                              down='hop of the memory', across='sentence of the story, the latest first')
        title = f'Attention of {len(hops)} hops over the story for {question.text!r}'
    else:
        read, title = [question.text, *sentences], ''
        shown = seen.section(read, read, longest=60, down='question or sentence that attends',
                             across='question or sentence that is attended to')
    return View([shown], title), seen.found, {
        'question': question.text, 'sentences': sentences,
        'weights': {name: np.round(x, 4).tolist() for name, x in shown.layers.items()}}


def tokens(text: str, encode: Callable) -> np.ndarray:
    """The tokens of the text to show."""
    require_text(text)
    ids = encode(text)
    if not text or not len(ids):
        raise ValueError(f'--input is {text!r}, which has no tokens; give a longer text.')
    require_few(ids)
    return ids


def require_text(given: str) -> None:
    if os.path.isfile(given):
        raise ValueError(f'--input is the file {given!r}, but this run is on text: give the text itself, such as '
                         f'--input="$(head -c 200 {given})".')


def require_few(ids: Sequence[int] | np.ndarray) -> None:
    if len(ids) > MOST_TOKENS:
        raise ValueError(f'--input has {len(ids)} tokens, but a picture shows {MOST_TOKENS} at most; give a shorter text.')


@dataclasses.dataclass(frozen=True)
class Seen:
    """The attention weights of all layers of a model on one example.

    Attributes:
      layers: {layer: weights [N, T, S]}; of a layer with a partition as of `maps.read`.
      found: their entries from `maps.read`.
      steps: {layer: (scores, mask), each [N, T, S]}; empty if not requested.
    """
    layers: Mapping[str, np.ndarray]
    found: Sequence[Mapping]
    steps: Mapping[str, tuple[np.ndarray, np.ndarray]]

    def section(self, queries: Sequence[str], keys: Sequence[str], title: str = '', chosen: Callable = lambda layer: True,
                within: bool = True, **style: Any) -> pictures.Maps:
        """The chosen layers, for a view; `within`: the keys are the queries' own positions."""
        found = [one for one in self.found if chosen(one['layer'])]
        part = lambda known: {one['layer']: known[one['layer']] for one in found if one['layer'] in known}
        none = np.zeros((0, len(queries), len(keys)), np.float32)  # of a layer without heads
        layers = {name: weights if len(weights) else none for name, weights in part(self.layers).items()}
        flow = dataclasses.replace(self, found=found, layers=layers).rollout() if within and found else None
        return pictures.Maps(layers, found, queries, keys, title, steps=part(self.steps), rollout=flow, **style)

    @property
    def sure(self) -> bool:
        """Whether the weights of all layers are distributions over the positions."""
        return all(one['entropy'] is not None for one in self.found)

    def rollout(self) -> np.ndarray | None:
        """Attention rollout, if the weights are distributions over the positions; else None."""
        return maps.rollout(list(self.layers.values())) if self.sure else None

    def spread(self, keys: Mapping[str, np.ndarray]) -> 'Seen':
        """The same with the weights of groups between all positions; keys: from `maps.keys_of`."""
        whole = lambda name, x: maps.spread(x, keys.get(name))
        return dataclasses.replace(self, layers={name: whole(name, x) for name, x in self.layers.items()}, steps={
            name: tuple(whole(name, x) for x in parts) for name, parts in self.steps.items()})


def look(snapshot: Any, steps: bool, part: Callable = lambda x: x, **inputs: Any) -> Seen:
    """The attention of the model on the inputs of one example; `part` selects what is shown of arrays [1, N, T, S].

    Raises ValueError if `steps` are requested and the weights are not a softmax of scores."""
    found = snapshot.captured(*(('attention', 'scores', 'visible') if steps else ('attention',)), **inputs)
    found = {name: part(x) for name, x in found.items()}
    weights = {name: x for name, x in found.items() if not name.endswith(('/scores', '/visible'))}
    layers, said = maps.read(snapshot.model, weights, inputs.get('prefix'))
    stages = {name.removesuffix('/attention'): tuple(np.asarray(found[f'{name}/{step}'][0]) for step in ('scores', 'visible'))
              for name in weights if f'{name}/scores' in found}
    if steps and not stages:
        raise ValueError(f'--steps draws the scores of which the weights are a softmax, but the attention of this '
                         f'{type(snapshot.model).__name__} has none; leave it out.')
    return Seen(layers, said, stages)
