"""Applies a run to lines of input, one line out per line in: it continues prompts, translates, classifies, fills masks, tags
words and answers questions. The run's config names the class that reads a line in data.reader (transformer/readers/,
vit/readers/).

    python predict.py --workdir=DIR [--input=FILE|-] [--step=last|best|N] [--strategy='Beam(size=4)'] [--tokens=N]
        [--seed=N] [--truncate] [--prefix=TEXT] [--candidates=WORD,WORD] [--pictures=FOLDER] [--json]

A language model continues each line; line breaks in the continuation are printed as \\n. An empty line is the start of a
document; a model of one stream without documents refuses it. A translation model translates each line, an empty line to an
empty line; --prefix begins every translation. An image model takes the path of an image per line, of a folder of images, or a
pattern such as 'photos/*.jpg' (--input may also be one of these itself), and prints for each image its five likeliest classes,
each with its probability, and its path, separated by tabs; blank lines are skipped. A model of stories takes them with their
questions in bAbI's format, and prints an answer for each question.

All lines are read first: a line that cannot be answered is refused before any answer. What an answer leaves out, such as the
end of a text that is too long for a class, is said once on stderr.

Encoders read whole texts; the output of a blank line is blank:
  masked words      a text with the tokenizer's mask in it, [MASK] or <mask> (of bare ids its number) -> the text with the
                    likeliest words, line breaks as \\n; 'first<TAB>second', with a head for the next sentence -> 'follows'
                    or 'does not follow', and its probability; with --candidates='train,peanut' the probabilities of these
                    words at each mask, the most probable first; one of k tokens gets k masks, and the product of its tokens'
                    probabilities there
  classes of texts  a text, or 'first<TAB>second' for a model of pairs -> its class and probability
  multiple choice   'context<TAB>answer<TAB>answer ..', or with a question behind the context -> the answer that is chosen and
                    its probability; the same for each row of a table, with or without labels
  tags of words     words separated by spaces -> word/TAG word/TAG ..
  answers           'question<TAB>text' -> the span of the text that answers it, empty if it has no answer
  masked patches    an image -> the loss of the patches that it predicts from the others, and the path; --pictures=FOLDER writes
                    a picture of it, --seed=N masks other patches
  no head           a text, or the path of an image -> a vector, as a list in JSON: the pooled output, or the mean of the
                    hidden states

At a terminal it asks for one input after the other, writes continuations as they are generated, and keeps the model ready;
:set temperature=0.7 changes a setting, :settings shows them, :quit or Ctrl-D ends.

--json prints an object per line with details: the other outputs of a strategy, such as Beam(size=4, count=4), with their
scores, and the ids of the tokens, for constraints such as Without(tokens=(17,)); the probabilities of all classes; the five
likeliest words for each mask; the five best answers with their character offsets; the spans of names, in words counted from 0.
"""

import glob
import itertools
import json
import pathlib
import sys

from absl import flags

from training.config import cli

flags.DEFINE_string('workdir', None, 'folder of the run')
flags.DEFINE_string('input', '-', "a file with one input per line, an image, a folder or pattern of images, or - for stdin")
flags.DEFINE_string('step', 'last', 'the checkpoint: last, best, or a number')
flags.DEFINE_string('strategy', None, "the decoding strategy, such as 'Greedy()', 'Sample(temperature=1.0, top_p=0.9)' or "
                    "'Beam(size=4, length_penalty=0.6)'; default: generation.strategy in the run's config.json, else "
                    'Sample(temperature=0.8), or that beam for translation')
flags.DEFINE_integer('tokens', None, 'the most tokens to generate; default: generation.tokens in config.json, else '
                     '100, or for translation 50 more than the source has', lower_bound=1, upper_bound=2**31 - 1)
flags.DEFINE_bool('truncate', False, 'cut sources that are longer than the model takes, instead of refusing them')
flags.DEFINE_string('prefix', '', 'the beginning of every translation')
flags.DEFINE_string('candidates', None, "words whose probabilities at each mask are printed, such as 'train,peanut'")
flags.DEFINE_string('pictures', None, 'a folder in which pictures of images with predicted patches are written')
flags.DEFINE_integer('seed', 0, 'seed of the sampling, or of the masks of images', lower_bound=0, upper_bound=2**32 - 1)
flags.DEFINE_bool('json', False, 'print a JSON object per line, with details')
if __name__ == '__main__':
    cli.answer_help()  # at once, before jax is imported

import heed
from data import remote
from training import workdir
from training.config import resolve
from training.host.conversation import Conversation
from transformer.decoding.strategies import Strategy

# Each reader declares which of these it uses.
FLAGS = 'strategy', 'tokens', 'seed', 'truncate', 'prefix', 'candidates', 'pictures'


def main():
    given = flags.FLAGS
    folder = workdir.given(given.workdir)
    workdir.load_config(folder)
    at_terminal = given.input == '-' and sys.stdin.isatty() and sys.stdout.isatty()
    source = remote.local(given.input)
    content = None if at_terminal else read(source)
    if given.strategy is not None:
        resolve.parse(given.strategy, Strategy, '--strategy')
    run = heed.load(folder, given.step)
    reader = run.snapshot.run.reader
    if reader is None:
        raise ValueError(f'{folder} is a run on {run.config.data.pipeline}, which has no data.reader, so predict.py '
                         'cannot read lines for it; use eval.py.')
    require_used(reader.flags)
    asked = {name: given[name].value for name in FLAGS if name in reader.flags}
    if at_terminal:
        Conversation(run, asked, given.json).start(f'{folder}, step {run.snapshot.step}')
        return
    notes = []
    for number, (text, details) in enumerate(answers(run, reader.lines(content, source), source, asked), 1):
        print(remote.shown(json.dumps(details, ensure_ascii=False) if given.json else text), flush=True)
        notes += [f'answer {number}: {details["note"]}'] if 'note' in details else []
    if notes:
        more = f' (and there are notes at {len(notes) - 1:,} more; --json has them all)' if len(notes) > 1 else ''
        print(f'predict.py: {notes[0]}{more}.', file=sys.stderr)


def answers(run, lines, name, asked):
    """The answers of a run. An error before the first one says that it leaves all lines without, if there are several."""
    found = run.answers(lines, name, **asked)
    try:
        first = [*itertools.islice(found, 1)]
    except ValueError as error:
        if len(lines) < 2:
            raise
        raise ValueError(f'{str(error).removesuffix(".")}; none of the {len(lines):,} lines was answered.') from error
    yield from first
    yield from found


def require_used(names):
    """Raises ValueError if a flag was given that the reader does not use; `names` are those that it does."""
    for name in FLAGS:
        if flags.FLAGS[name].present and name not in names:
            models = {'candidates': 'fill masks', 'pictures': 'fill masked patches of images'}.get(
                name, 'translate' if 'strategy' in names else 'generate text')
            raise ValueError(f'--{name} is for models that {models}; leave it out.')


def read(source):
    """The bytes of a file, or of stdin; None for a folder, and for a pattern that names files."""
    if source == '-':
        if sys.stdin.isatty():
            print('Reading from the terminal: one input per line, Ctrl-D ends.', file=sys.stderr)
        return sys.stdin.buffer.read()
    if not source:
        raise ValueError('--input is empty; give it a file with one input per line, or - for stdin.')
    path = pathlib.Path(source).expanduser()
    if path.is_dir() or (not path.exists() and glob.glob(str(path), recursive=True)):
        return None
    if not path.exists():
        raise ValueError(f'There is no file {source!r}; give --input a file with one input per line, or - for stdin.')
    return path.read_bytes()


if __name__ == '__main__':
    cli.run(main, shown=remote.shown)
