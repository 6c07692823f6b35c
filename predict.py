"""Uses a run, one line out per line in: continues prompts, translates, classifies, finds words, names and answers.

    python predict.py --workdir=DIR [--input=FILE|-] [--step=last|best|N] [--strategy='Beam(size=4)'] [--tokens=N]
        [--seed=N] [--truncate] [--prefix=TEXT] [--json]

A language model continues each line; line breaks in what it adds are shown as \\n. An empty line is the start of a
document, if the data has documents; a model of one stream has nothing there to continue, and refuses it. A model of pairs
of texts writes the translation of each line, which --prefix begins, and an empty one for an empty one. An image model takes
the path of an image per line (--input may also be an image itself) and prints its class, probability and path; blank lines
are skipped. A model of questions about stories takes these in bAbI's format, and prints an answer for each question.

Models that read texts whole, of which a blank line has a blank one as its answer:
  masked words      a text with [MASK] in it, or <mask>, as its tokenizer has it (of bare ids the number) -> the text with the
                    likeliest words; 'first<TAB>second', where the model has learnt that too -> whether the second text follows
                    the first, 'follows' or 'does not follow', and the probability of that
  classes of texts  a text, or 'first<TAB>second' if the model is of pairs -> its class and probability
  tags of words     words between spaces -> word/TAG word/TAG ..
  answers           'question<TAB>text' -> the part of the text that answers it, nothing where there is no answer
  no head           a text, or the path of an image -> a vector, as a list in JSON: what the model has learnt to pool, or the
                    mean of its hidden states

--json prints an object per line: also the other outputs of a strategy, such as Beam(size=4, count=4), with their scores, and
the ids of the tokens, which constraints such as Without(tokens=(17,)) are about; the probabilities of all classes; the five
likeliest words for each mask; the five best answers, and which characters of the text they are; what names span, in words
counted from 0.
"""

import io
import json
import pathlib
import sys

from absl import flags

from training import cli

flags.DEFINE_string('workdir', None, 'folder of the run')
flags.DEFINE_string('input', '-', "a file with one input per line, an image, or - for stdin")
flags.DEFINE_string('step', 'last', 'the checkpoint: last, best, or a number')
flags.DEFINE_string('strategy', None, "how tokens are chosen, such as 'Greedy()', 'Sample(temperature=1.0, top_p=0.9)' or "
                    "'Beam(size=4, length_penalty=0.6)'; by default Sample(temperature=0.8), or to translate that beam")
flags.DEFINE_integer('tokens', None, 'how many tokens to add at most; by default 100, or to translate 50 more than the source '
                     'has', lower_bound=1, upper_bound=2**31 - 1)
flags.DEFINE_bool('truncate', False, 'cut sources that are longer than the model takes, in place of refusing them')
flags.DEFINE_string('prefix', '', 'with which every translation is to begin')
flags.DEFINE_integer('seed', 0, 'seed of the sampling', lower_bound=0, upper_bound=2**32 - 1)
flags.DEFINE_bool('json', False, 'print a JSON object per line, with details')
if __name__ == '__main__':
    cli.answer_help()  # at once, before jax is imported

import numpy as np

from training import machine, resolve, workdir
from training import run as runs
from training.step import stream
from transformer import text_predictions
from transformer.decoding import generate, require_room
from transformer.strategies import Beam, Sample, Strategy
from transformer.translation import encoded, translate

AT_ONCE = 64  # sources, questions or images in one call of a model


def main():
    folder = workdir.given(flags.FLAGS.workdir)
    machine.prepare(workdir.load_config(folder))
    content = read(flags.FLAGS.input)
    given = flags.FLAGS.strategy
    strategy = None if given is None else resolve.parse(given, Strategy, '--strategy')
    snapshot = runs.load(folder, step=flags.FLAGS.step, data=1)
    decoding = dict(tokens=flags.FLAGS.tokens, seed=flags.FLAGS.seed)
    kind = snapshot.data.kind
    if kind == 'pairs':
        answers = translations(snapshot, lines(content, flags.FLAGS.input), name=flags.FLAGS.input,
                               truncate=flags.FLAGS.truncate, prefix=flags.FLAGS.prefix,
                               strategy=strategy or Beam(size=4, length_penalty=0.6), **decoding)
    elif kind == 'text':
        refuse('truncate', 'prefix', why='is for models that translate; leave it out')
        answers = completions(snapshot, lines(content, flags.FLAGS.input), name=flags.FLAGS.input,
                              strategy=strategy or Sample(temperature=0.8), **decoding)
    else:
        refuse('strategy', 'tokens', 'seed', 'truncate', 'prefix', why='is for models that write texts; leave it out')
        if kind == 'stories':
            answers = answered(snapshot, '\n'.join(lines(content, flags.FLAGS.input)), flags.FLAGS.input)
        elif kind == 'images':
            answers = seen(snapshot, paths(content, flags.FLAGS.input))
        elif kind in text_predictions.KINDS:
            name = flags.FLAGS.input
            answers = text_predictions.answers(snapshot, lines(content, name), lambda number: place(number, name))
        else:
            raise ValueError(f'{folder} is a run on {kind}, for which there is nothing to predict; use eval.py.')
    for text, details in answers:
        print(json.dumps(details, ensure_ascii=False) if flags.FLAGS.json else text, flush=True)


def refuse(*names, why):
    """Raises ValueError if one of these flags was given."""
    for name in names:
        if flags.FLAGS[name].present:
            raise ValueError(f'--{name} {why}.')


def read(source):
    """The bytes of a file, or of stdin."""
    if source == '-':
        if sys.stdin.isatty():
            print('Reading from the terminal: one input per line, Ctrl-D ends.', file=sys.stderr)
        return sys.stdin.buffer.read()
    path = pathlib.Path(source)
    if not path.is_file():
        raise ValueError(f'There is no file {source!r}; give --input a file with one input per line, or - for stdin.')
    return path.read_bytes()


def lines(content, source, wanted='text with one input per line'):
    """The lines of a text in UTF-8, without their ends."""
    try:
        found = content.decode('utf-8-sig').split('\n')
    except UnicodeDecodeError as error:
        place = error.start
        raise ValueError(f'The input {source!r} is not UTF-8 at byte {place}; give {wanted}.') from None
    return [line.removesuffix('\r') for line in (found if found[-1] else found[:-1])]


def paths(content, source):
    """The paths of the images that an input lists, or its own if it is an image."""
    if not is_image(content):
        return [line for line in lines(content, source, 'an image, or the path of one per line') if line.strip()]
    if source == '-':
        raise ValueError('Stdin is an image, but is read as paths of images; give the image itself with --input=FILE.')
    return [source]


def is_image(content):
    """Whether bytes begin as an image file does, damaged or not."""
    from PIL import Image

    try:
        Image.open(io.BytesIO(content)).close()
    except Image.UnidentifiedImageError:
        return False
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        pass  # an image, but one that reading will refuse by name
    return True


def place(number, name):
    return f'line {number}' if name == '-' else f'line {number} of {name}'


def completions(snapshot, prompts, *, name, strategy, tokens, seed):
    """(prompt and continuation on one line, details) of each prompt."""
    data = snapshot.data
    ids = [data.prompt(p) for p in prompts]
    for number, prompt in enumerate(ids, 1):
        require_room(snapshot.model, prompt, f'The prompt in {place(number, name)}')
    for i, (prompt, start) in enumerate(zip(prompts, ids)):
        # One at a time: an answer is there as soon as it can be.
        found, = generate(snapshot.model, snapshot.params, [start], steps=tokens or 100, strategy=strategy, end=data.end,
                          vocab=data.facts['vocab'], key=stream(seed, 'predict'), numbers=[i])
        outputs = details_of(data, found)
        yield (prompt + outputs[0]['text']).replace('\n', '\\n'), {'prompt': prompt, **outputs[0], 'outputs': outputs}


def translations(snapshot, sources, *, name, strategy, tokens, seed, truncate, prefix):
    """(translation, details) of each source; of a blank one an empty one."""
    data, longest = snapshot.data, snapshot.model.source_length
    ids = [encoded(data, source, longest, truncate=truncate, what=f'The source in {place(number, name)}',
                   otherwise='give --truncate') if source.strip() else None for number, source in enumerate(sources, 1)]
    begun = data.encode_target(prefix)[:-1] if prefix else ()
    require_room(snapshot.model, [data.start, *begun], '--prefix')
    for first in range(0, len(sources), AT_ONCE):
        numbers = range(first, min(first + AT_ONCE, len(sources)))
        part = {i: ids[i] for i in numbers if ids[i] is not None}
        found = translate(snapshot, list(part.values()), strategy=strategy, steps=tokens, key=stream(seed, 'predict'),
                          numbers=list(part), prefix=begun)
        outputs = {i: details_of(data, hypotheses, begun) for i, hypotheses in zip(part, found)}
        for i in numbers:
            best, *_ = outputs.get(i, [{'text': '', 'tokens': 0, 'ids': [], 'score': 0.0, 'finished': True}])
            yield best['text'].replace('\n', ' '), {'source': sources[i], **best, 'outputs': outputs.get(i, [])}


def answered(snapshot, text, source):
    """(answer, details) of each question of a text in bAbI's format."""
    asked, batch = snapshot.data.read_stories(text, f'The input {source!r}')
    for question, row in zip(asked, outputs_of(snapshot, snapshot.run.task.inputs(batch), 'logits')):
        chances = np.exp(row - row.max())
        best = int(row[1:].argmax()) + 1  # 0 is no word
        text = snapshot.data.answer(best)
        yield text, {'line': question.line, 'question': question.text, 'answer': text,
                     'probability': float(chances[best] / chances.sum())}


def details_of(data, hypotheses, begun=()):
    """What --json says of outputs, best first, each with the tokens that it was begun with."""
    return [{'text': data.decode([*begun, *one.tokens]), 'tokens': len(one.tokens), 'ids': one.tokens.tolist(),
             'score': one.score, 'finished': one.finished} for one in hypotheses]


def seen(snapshot, paths):
    """('class probability path', details) of each image; of a model without classes (vector, details)."""
    data, name = snapshot.data, 'logits' if 'logits' in text_predictions.given_by(snapshot) else 'pooled'
    images = [data.read(path) for path in paths]  # all of them first: a corrupt one ends it before any output
    for path, found in zip(paths, outputs_of(snapshot, {'image': np.stack(images)}, name) if images else ()):
        if name == 'logits':
            found = text_predictions.classified(data.classes, found)
            yield f'{found["class"]}\t{found["probability"]:.4f}\t{path}', {'path': path, **found}
        else:
            found = text_predictions.numbers(found)
            yield json.dumps(found), {'path': path, 'vector': found, 'of': name}


def outputs_of(snapshot, inputs, name):
    """An output of each row of the inputs, in float32; batches of one size, so that one program is compiled."""
    rows = len(next(iter(inputs.values())))
    count = text_predictions.size(rows, AT_ONCE)
    for start in range(0, rows, count):
        part = {key: x[start:start + count] for key, x in inputs.items()}
        padded = {key: np.concatenate([x, np.zeros((count - len(x), *x.shape[1:]), x.dtype)]) for key, x in part.items()}
        yield from np.asarray(snapshot.apply(**padded)[name], np.float32)[:rows - start]


if __name__ == '__main__':
    cli.run(main)
