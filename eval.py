"""Evaluates a run, draws its attention weights, and measures the importance of its heads. The last line of stdout is one JSON
object with split, step, loss, weight and the other metrics; for a picture it says what was drawn.

    python eval.py --workdir=DIR [--split=NAME | --path=FILE ...] [--evaluator=NAME] [--step=last|best|N] [--against=OTHER]
    python eval.py --workdir=DIR --attention=OUT.png --input=TEXT|IMAGE_FILE|STORY_FILE [--steps]
    python eval.py --workdir=DIR --attention=OUT.html --input=TEXT|IMAGE_FILE|STORY_FILE
    python eval.py --workdir=DIR --heads=OUT.png [--split=NAME] [--keep=N --pruned=NEW_WORKDIR]
    python eval.py --workdir=DIR --positions=OUT.png
    python eval.py --workdir=DIR --filters=OUT.png

Accuracies, the exact match of texts that the model writes, and the precision and recall of replaced tokens (ELECTRA) are
shares from 0 to 1; BLEU, chrF, ROUGE, every F1, other precision and recall, and the exact match of answers that it finds in a
text are per cent, with % in the line above the JSON. A cross-entropy is in nats; `weight` counts what it is averaged over,
such as tokens.

--against tests whether another run differs by more than chance over the same examples: McNemar's exact test of right and wrong
ones, the paired bootstrap of other scores, with the difference, its interval of 95 % and p.
A picture has its numbers beside it, in OUT.json. --attention draws the weights of every head of every layer, with tokens on
both axes or over the image, and their entropies; --steps also draws the scores and the mask whose softmax the weights are.
OUT.html is a page to explore them in a browser.
--heads draws the importance of each head for the loss of the split, and the loss against the number of heads kept; with
--keep and --pruned it also writes a run that has only the most important heads. --positions draws how alike positions are, and
--filters the principal components of the filters with which a model of images begins.
"""

import dataclasses
import json
import os
import re
import sys

from absl import flags

from training.config import cli

flags.DEFINE_string('workdir', None, 'folder of the run')
flags.DEFINE_string('split', 'valid', "valid, test, train, or an expression over the run's data such as 'train[:1%]'")
flags.DEFINE_multi_string('path', [], 'score this file instead of a split; repeat the flag for several')
flags.DEFINE_string('evaluator', None, 'an evaluator of the run, such as translations; default: the one with the name of the '
                    'split, else valid')
flags.DEFINE_string('step', 'last', 'the checkpoint: last, best, or a number')
flags.DEFINE_string('against', None, 'the folder of another run to compare with, at the same --step, by a paired test')
flags.DEFINE_string('attention', None, 'draw the attention weights of --input, to this .png, .pdf or .svg, or to a .html, a '
                    'page to explore them')
flags.DEFINE_string('input', None, 'for --attention: a text, two texts separated by a tab for a model of pairs, or the path of '
                    'an image or of a story')
flags.DEFINE_bool('steps', False, 'for --attention: also draw the scores and the mask whose softmax the weights are')
flags.DEFINE_string('heads', None, 'draw the importance of the heads on --split, to this .png, .pdf or .svg')
flags.DEFINE_integer('keep', None, 'for --heads: the number of heads of the pruned run', lower_bound=0)
flags.DEFINE_string('pruned', None, 'for --heads: the folder of the pruned run, a new one')
flags.DEFINE_string('positions', None, 'draw the similarities of the learnt positions, to this .png, .pdf or .svg')
flags.DEFINE_string('filters', None, 'draw the principal components of the filters on pixels, to this .png, .pdf or .svg')
if __name__ == '__main__':
    cli.answer_help()  # at once, before jax is imported

import numpy as np

from data import json_files, remote
from display import progress
from training import run as runs
from training import storage, workdir
from training.config import resolve
from training.host import machine
from training.report import report, summary
from transformer.evaluators import paired
from transformer.evaluators.base import Averages, OfExamples
from transformer.explain import importance, pictures, pruning
from transformer.explain import positions as position_pictures
from vit.explain import filters as filter_pictures

PICTURES = 'attention', 'heads', 'positions', 'filters'


def main():
    folder = workdir.given(flags.FLAGS.workdir)
    machine.prepare(workdir.load_config(folder))
    require_clear(flags.FLAGS)
    drawn = [flags.FLAGS[name].value for name in PICTURES if flags.FLAGS[name].value is not None]
    path = picture(drawn[0], page=flags.FLAGS.attention is not None) if drawn else None
    snapshot = runs.load(folder, step=flags.FLAGS.step, data=1 if flags.FLAGS.attention else None)
    if flags.FLAGS.attention:
        attention(snapshot, folder.absolute().name, flags.FLAGS.input, path, flags.FLAGS.steps)
    elif flags.FLAGS.heads:
        heads(snapshot, flags.FLAGS.split, path, folder, flags.FLAGS.keep, flags.FLAGS.pruned)
    elif flags.FLAGS.positions:
        positions(snapshot, path)
    elif flags.FLAGS.filters:
        filters(snapshot, path)
    elif flags.FLAGS.against is not None:
        compare(snapshot, folder, flags.FLAGS)
    else:
        own = flags.FLAGS.evaluator and not flags.FLAGS['split'].present
        name, part = asked(snapshot, None if own else flags.FLAGS.split, flags.FLAGS.path, flags.FLAGS.evaluator)
        row = evaluate(snapshot, None if own else flags.FLAGS.split, flags.FLAGS.path, name, part)
        say_changes(folder, snapshot, part)
        if said := summary.line(row, snapshot.run.evaluators[name].percent):  # an evaluator of texts has no numbers
            print(f'{row["split"]} at step {row["step"]}: {said}')
        print(report.as_json(row))


def require_clear(given):
    """Raises ValueError for flags that do not go together, before anything is read."""
    asked = [name for name in PICTURES if given[name].value is not None]
    if len(asked) > 1:
        raise ValueError(f'{" and ".join(f"--{name}" for name in asked)} were both given; give one after the other.')
    for name, needed in (('input', 'attention'), ('steps', 'attention'), ('keep', 'heads'), ('pruned', 'heads')):
        if given[name].present and given[needed].value is None:
            raise ValueError(f'--{name} is for --{needed}=OUT.png; give that too, or leave it out.')
    of_parameters = dict.fromkeys(('split', 'path', 'evaluator'), 'the parameters') | {'against': 'one run'}
    looks_at = {'attention': dict.fromkeys(('split', 'path', 'evaluator', 'against'), '--input'),
                'heads': {'path': '--split', 'evaluator': 'the loss', 'against': 'one run'},
                'positions': of_parameters, 'filters': of_parameters}
    for other, names in looks_at.items():
        for name, what in names.items():
            if given[name].present and given[other].value is not None:
                raise ValueError(f'--{name} is not for --{other}, which looks at {what}; leave it out.')
    if given.path and given['split'].present:
        raise ValueError('--split and --path were both given; give --split for data of the run, or --path for files.')
    if not all(given.path):
        raise ValueError('--path is empty; give it the path of a file to score, or leave it out.')
    if not given.split:
        raise ValueError("--split is empty; give valid, test, train or an expression such as 'train[:1%]'.")
    if given.attention is not None and not given.input:
        raise ValueError('Give --attention something to look at: --input="a text", or --input=IMAGE_FILE or STORY_FILE.')
    if given.steps and given.attention.lower().endswith('.html'):
        raise ValueError('--steps is for pictures, but --attention is a page, which has weights alone; give it as OUT.png, or '
                         'leave --steps out.')
    if (given.keep is None) != (given.pruned is None):
        raise ValueError('--keep and --pruned go together: --keep=8 --pruned=NEW_WORKDIR writes a run with eight heads.')


def picture(path, page=False):
    """The path of a picture to draw, or with `page` of a page of HTML. Raises ValueError for another suffix, and for a folder
    that does not exist."""
    given, path = path, storage.local(path)
    known = '.png', '.pdf', '.svg', *(['.html'] if page else [])
    if path.suffix.lower() not in known:
        raise ValueError(f'The picture {given!r} is no {", ".join(known[:-1])} or {known[-1]}; give it such a name.')
    if not path.parent.is_dir():
        raise ValueError(f'There is no folder {str(path.parent)!r} to draw {path.name} in; make it first.')
    workdir.require_writable(path.parent, 'folder', f'give {path.name} another place')
    beside = path.with_suffix('.json')
    if beside.exists() and 'picture' not in (json_files.read(beside) or {}):
        raise ValueError(f'{given!r} has its numbers in {beside.name}, which is there and holds something else; give the '
                         'picture another name.')
    return path


def keep(path, drawn, numbers, said):
    """Writes a picture, a figure or a page of HTML, and its numbers beside it, and says what is shown."""
    if isinstance(drawn, str):
        storage.write(path, drawn)
    else:
        write_figure(path, drawn)
    write_numbers(path, numbers)
    print(f'{path}: {said}, step {numbers["step"]}')


def write_figure(path, figure):
    temporary = path.with_name(f'.{os.getpid()}.{path.name}')
    try:
        with progress.waiting(f'drawing {path}'):
            figure.savefig(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_numbers(path, numbers):
    storage.write(path.with_suffix('.json'), json.dumps(numbers, indent=1, allow_nan=False) + '\n')


def attention(snapshot, name, given, path, steps):
    """Draws the attention weights of each head for a text, two texts separated by a tab, a story or an image."""
    reader = snapshot.run.reader
    if reader is None:
        raise ValueError(f'--attention is for runs on texts, stories or images, but this one is on '
                         f'{snapshot.run.config.data.pipeline}, which has no data.reader; leave it out.')
    given = expanded if os.path.isfile(expanded := os.path.expanduser(given)) else given
    if os.path.isfile(given) and path.exists() and path.samefile(given):
        raise ValueError(f'--attention={path} is the file of --input, which it would replace; give the picture another name.')
    with progress.waiting('computing the attention'):
        view, found, more = reader.picture(snapshot, given, steps)
        shown = given[:40] + '..' * (len(given) > 40)
        view = dataclasses.replace(view, title=f'{view.title or view.counted()}: {name} at step {snapshot.step}, {shown!r}')
        drawn = view.page() if path.suffix.lower() == '.html' else view.figure()
    keep(path, drawn, {'picture': str(path), 'run': name, 'input': given, 'step': snapshot.step} | more | {'layers': found},
         f'{pictures.counted(found)} on {shown!r}'
         + (f' ({more["note"]})' if 'note' in more else '')
         + ', a text, as there is no such file' * (looks_like_a_path(given) and not os.path.exists(given)))


def looks_like_a_path(given):
    return bool(re.fullmatch(r'\S*/\S*\.\w{1,5}', given))


def positions(snapshot, path):
    """Draws the cosine similarities of the learnt positions; those of image patches on their grid."""
    reader = snapshot.run.reader
    table = np.asarray(position_pictures.learnt(snapshot.model, snapshot.params))
    figure = position_pictures.similarity(table, reader.grid(snapshot) if reader else None)
    keep(path, figure, {'picture': str(path), 'step': snapshot.step, 'positions': len(table),
                        'similarity': np.round(position_pictures.similarities(table), 4).tolist()},
         f'the similarities of {len(table)} learnt positions')


def filters(snapshot, path):
    """Draws the principal components of the filters on the pixels."""
    if 'image' not in snapshot.data.shapes:
        raise ValueError(f'--filters is for models of images, but this run is on {snapshot.run.config.data.pipeline}; leave it '
                         'out.')
    found = filter_pictures.of_run(snapshot)
    shares = filter_pictures.components(found)[1]
    keep(path, filter_pictures.figure(found), {
        'picture': str(path), 'step': snapshot.step, 'filters': found.shape[-1], 'shape': list(found.shape[:-1]),
        'variance': np.round(shares, 6).tolist()}, f'the principal components of {found.shape[-1]} filters')


def heads(snapshot, split, path, folder, count, new):
    """Draws the importance of the heads, and the loss against the number of heads kept; with `new` also writes a run that has
    only the `count` most important heads."""
    model, name, part = snapshot.model, evaluator_of(snapshot, split), part_of(snapshot, split)
    importance.require_heads(model)
    total = len(importance.all_heads(model))
    if count is not None:
        if count > total:
            raise ValueError(f'--keep is {count}, but the model has {total} heads; keep fewer.')
        runs.require_new(storage.path(new))
    batches = snapshot.run.evaluation(name, part)
    raw = importance.importance(snapshot, batches)
    scores = importance.by_layer(raw)
    order = importance.order(scores)
    measure = lambda params: dataclasses.replace(snapshot, params=params).evaluate(name, batches)['loss']
    counts = {round(total * tenth / 10) for tenth in range(11)} | ({count} - {None})
    curve = pruning.curve(snapshot, measure, order, sorted(counts, reverse=True))
    layers = importance.layers_of(model)
    numbers = {'picture': str(path), 'split': split, 'step': snapshot.step, 'layers': [layer.name for layer in layers],
               'importance': rows(raw), 'scaled': rows(scores),
               'order': order, 'curve': [{'heads': left, 'loss': loss} for left, loss in curve]}
    figure = pictures.importance(scores, total, curve, layers=numbers['layers'], metric=f'loss on {split}', best=count,
                                 of=f'{folder.absolute().name} at step {snapshot.step}')
    write_figure(path, figure)
    write_numbers(path, numbers)  # now, as pruning may still fail
    if new is not None:
        kept = [tuple(sorted(head for layer, head in order[total - count:] if layer == i)) for i in range(len(layers))]
        prune(snapshot, folder, storage.path(new), kept, next(iter(batches)))
        numbers |= {'pruned': new, 'kept': kept}
        write_numbers(path, numbers)
    say_changes(folder, snapshot, part)
    print(f'{path}: the importance of {total} heads on {split}, the least that of head {order[0][1]} in '
          f'{pictures.layer(layers[order[0][0]].name)}, step {snapshot.step}')


def rows(scores):
    """Nested lists, None for a head that was pruned before."""
    return [[None if np.isnan(score) else float(score) for score in row] for row in scores]


def prune(snapshot, folder, new, kept, batch):
    """Writes a run with only these heads, after checking that its outputs equal those of the whole run under a head mask."""
    config = workdir.load_config(folder)
    with config.unlocked():
        for name, value in pruning.fields(snapshot.model, kept).items():
            heads, path = snapshot.model.attentions[name], 'model'
            group = config.model
            for part in filter(None, heads.group.split('.')):
                group, path = group[part], f'{path}.{part}'
            group[heads.field] = value
            if group.scan and len(set(value)) > 1:  # scan changes the program only, not the result
                group.scan = False
                print(f'The pruned run has {path}.scan=False: its layers differ.')
    run = runs.build(config, snapshot.run.mesh, folder)
    params = pruning.pruned(snapshot.model, snapshot.params, kept, run.shapes.params, run.roles)
    pruning.require_same(snapshot, run.model, params, kept, batch)
    runs.write(new, run, run.begun_with(snapshot.variables | {'params': params}).tree(), folder)
    print(f'{new}: {sum(map(len, kept))} heads and {run.parameters():,} parameters of {snapshot.run.parameters():,}')


def say_changes(folder, snapshot, part):
    """Says on stderr that a part of the data (None: no part) or a companion has changed since the run began."""
    companions = snapshot.run.companions.present

    def changed(what, digests):
        try:
            return workdir.changed(folder, digests(), what)
        except ValueError as error:
            print(f'eval.py: whether the {what} changed since the run began cannot be told: {str(error).partition(";")[0]}.',
                  file=sys.stderr)
            return ()

    if part and changed('data', lambda: {part: snapshot.data.digest(part)}):
        print(f'eval.py: the data of {part} has changed since the run began, or is read differently by this version; the '
              'current data was measured.', file=sys.stderr)
    for name in changed('companions', companions.digests) if companions.were_read else ():
        print(f'eval.py: the companion {name} has changed since the run began; the current one was applied.', file=sys.stderr)


def say_absent(snapshot, name):
    """Says on stderr which companions are not there, if the evaluator measures the terms of the loss."""
    if isinstance(snapshot.run.evaluators.get(name), Averages):
        for said in snapshot.run.companions.absent.values():
            problem, _, advice = said.partition('; ')
            print(f'eval.py: {problem}, so the loss is left out, and what else needs it; {advice}', file=sys.stderr)


def part_of(snapshot, split):
    """The part of the data that --split means: that of the evaluator of this name, else the split itself."""
    evals = snapshot.run.config.evals
    return evals[split].split if split in evals else split


def evaluator_of(snapshot, split):
    """The name of the evaluator that measures the loss of a split: the split's own name, else valid."""
    evaluators = snapshot.run.evaluators
    name = split if split in evaluators else 'valid'
    losses = [n for n, evaluator in evaluators.items() if isinstance(evaluator, Averages)]
    if name not in losses:
        lacks = f'The evaluator {name!r} measures no loss' if name in evaluators else f'This run has no evaluator {name!r}'
        raise ValueError(f'{lacks}; those of this run that measure one: {", ".join(losses) or "none"}.')
    return name


class Printed:
    """Prints the texts of evaluators."""

    def text(self, step, name, text):
        print(f'{name}:\n{text}')

    def picture(self, step, name, image):
        """Drops the picture, which training saves in samples/."""


def evaluate(snapshot, split, paths, name, part):
    """The row of metrics of a split (None: the evaluator's own) or of files, measured by the evaluator `name` on a part of the
    data (None: the files), as `asked` gives them."""
    batches = measured(snapshot, name, part, paths)
    say_absent(snapshot, name)
    shown = dataclasses.replace(snapshot, report=Printed())
    return {'split': ' '.join(paths) or split or part, 'step': snapshot.step} | shown.evaluate(name, batches)


def asked(snapshot, split, paths, name):
    """(the name of the evaluator, part of the data or None for files) of a split (None: the evaluator's own) or of files: the
    evaluator `name`, else the one with the name of the split, else valid."""
    evaluators = snapshot.run.evaluators
    if not evaluators:
        raise ValueError('This run has no evaluators; use predict.py to see its outputs.')
    if name is not None and name not in evaluators:
        raise ValueError(f'This run has no evaluator {name!r}; {resolve.did_you_mean(name, evaluators)}')
    name = name or evaluator_of(snapshot, 'valid' if paths else split)
    if paths:
        return name, None
    return name, part_of(snapshot, split) if split else snapshot.run.config.evals[name].split


def measured(snapshot, name, part, paths, view=None):
    """The batches of a part of the data or of files; `view`: of another run's evaluator."""
    view = snapshot.run.evaluators[name].view if view is None else view
    with progress.waiting('reading the data'):
        if paths:
            found = scored(snapshot, paths, view)
        else:
            found = snapshot.data.evaluation(part, snapshot.run.eval_rows, **view)
    if cut := found.facts.get('cut'):
        print(f'eval.py: {cut:,} of the texts {"is" if cut == 1 else "are"} cut to {snapshot.data.length} tokens, as in '
              'training.', file=sys.stderr)
    for note in found.facts.get('notes', ()):
        print(f'eval.py: {note}.', file=sys.stderr)
    return found


def scored(snapshot, paths, view):
    """The batches of files. Of what errors advise, the fields of the data are left out: they are those of the run here."""
    try:
        return snapshot.data.score(paths, snapshot.run.eval_rows, **view)
    except ValueError as error:
        said = str(error).replace('set data.path to', 'give --path').replace('data.path', '--path').removesuffix('.')
        fields = re.compile(rf'\bdata\.({"|".join(snapshot.run.config.data)})\b')
        if fields.search(said):
            fact, advice = said.rsplit('; ', 1) if '; ' in said else (said, '')
            others = [one for one in advice.split(', or ') if not fields.search(one)]
            said = f'{fact}; {", or ".join(others) or "give --path files like those that this run was trained on"}'
        raise ValueError(f'{said}.') from None


def compare(snapshot, folder, given):
    """Prints how a run differs from the one in --against over the same examples: a line, and a line of JSON."""
    rival = workdir.existing(given.against, '--against')
    other = runs.load(rival, step=given.step)
    own = given.evaluator and not given['split'].present
    name, part = asked(snapshot, None if own else given.split, given.path, given.evaluator)
    evaluator = snapshot.run.evaluators[name]
    if not isinstance(evaluator, OfExamples):
        known = [one for one, evaluator in snapshot.run.evaluators.items() if isinstance(evaluator, OfExamples)]
        raise ValueError(f'The evaluator {name!r} scores no single examples, so two runs cannot be compared by it; those of '
                         f'this run that do: {", ".join(known) or "none"}.')
    if part and snapshot.data.contents(part) != other.data.contents(part):
        raise ValueError(f'{rival} has other data in {part} than {folder}; compare runs on the same examples, such as those of '
                         'files with --path.')
    evaluator, found = evaluator.naming(snapshot.data), []
    for one in (snapshot, other):
        batches = measured(one, name, part, given.path, evaluator.view)
        say_absent(one, name)
        evaluator.check(one.run, batches)
        found.append(evaluator.each(one, batches))
    with progress.waiting('drawing the examples again'):
        tests = paired.compare(evaluator, *found)
    examples = len(next(iter(found[0].values())))
    row = {'split': ' '.join(given.path) or part, 'step': snapshot.step, 'against': given.against, 'against_step': other.step,
           'examples': examples, 'tests': tests}
    say_changes(folder, snapshot, part)
    print(f'{row["split"]}, {examples:,} examples, {folder} at step {snapshot.step} - {rival} at step {other.step}: '
          f'{paired.line(tests, evaluator.percent)}')
    print(report.as_json(row))


if __name__ == '__main__':
    cli.run(main, shown=remote.shown)
