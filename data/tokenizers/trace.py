"""Shows how tokenizers work: the merges that byte-pair encoding learns, and the segmentations of a unigram model.

    python -m data.tokenizers.trace FILE [--merges=N] [--out=PICTURE.png] [--encoding=NAME]
    python -m data.tokenizers.trace --workdir=RUN|--model=FILE --text=TEXT [--count=N] [--alpha=X] [--out=PICTURE.png]

Merges: FILE is a text, a folder or a glob. Every line has a merge, how often its pair occurred, the tokens in use after it, the
tokens that the text then has, and the pair; at the end stand the tokens with their counts. _ is the end of a word, and a _ of
the text is written \\_. Without --merges it goes on until every word is one token. The picture shows the tokens in use and the
counts of the pairs against the size of the vocabulary.

Segmentations: of a text by the SentencePiece model of a run, or in a file, of kind 'unigram': the N likeliest (5) with their
probabilities among all, and the log probabilities of their pieces; then the probability of each piece at each place
(data/tokenizers/lattice.py). Places count the characters of the text as the model reads it, which may have a space before it or
other signs. --alpha below 1 flattens them, as data.tokenizer's alpha does for draws in training. The picture shows the lattice.
"""

import itertools
import math
import os
import pathlib
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from data import commands
from data.sources import files as sources
from data.tokenizers import lattice, merges
from data.tokenizers.lattice import Lattice
from data.tokenizers.merges import END, Learner, Merge
from data.tokenizers.tokenizer import SentencePieceTokenizer
from display import figures

_SHOWN, _WIDE = 200, 110  # tokens of a vocabulary, characters of a line
_LONGEST = 10_000  # characters of a word that is merged to its end
_LEAST = 0.001  # probability of a piece in the list
_DRAWN, _SIGNS = 0.01, 60  # probability of a piece in a picture, characters of its text
_ESCAPES = {ord(END): '_', ord('_'): r'\_', ord('\\'): r'\\'}


def read(path: str, encoding: str = 'utf-8') -> dict[str, int]:
    """The words of a text file, a folder or a glob, with their counts. Raises ValueError for what is no text."""
    found = sources.files(path, 'FILE', encoding)
    words = merges.words(chunk for chunk, _ in sources.Split.of('all', found, 'stream').chunks())
    if not words:
        raise ValueError(f'{path} has no words; give a text.')
    if any('\0' in word for word in words):
        raise ValueError(f'{path} is no text: it has bytes of 0; give a text.')
    return words


def shown(token: str) -> str:
    """A token of byte-pair encoding as text for display."""
    return printable(token.translate(_ESCAPES))


def printable(text: str) -> str:
    """A text with the code points of characters that cannot be seen."""
    return ''.join(one if one.isprintable() else f'<U+{ord(one):04X}>' for one in text)


def table(counts: Mapping[str, int], most: int = _SHOWN) -> str:
    """Tokens with their counts, the most frequent first; of equal counts in the order of their characters."""
    rows = sorted(counts.items(), key=lambda row: (-row[1], row[0]))
    told = [f'{shown(token)} {count:,}' for token, count in rows[:most]]
    told += [f'and {len(rows) - most:,} more'] if len(rows) > most else []
    wrapped = textwrap.wrap(' '.join(one.replace(' ', '\xa0') for one in told), _WIDE, break_on_hyphens=False)
    return '\n'.join(line.replace(' ', '  ').replace('\xa0', ' ') for line in wrapped)


def lines(words: Mapping[str, int], most: int | None = None, steps: list[Merge] | None = None) -> Iterator[str]:
    """The report, line by line; `steps` gets the merges. Raises ValueError for a word that is too long to become one token."""
    if most is None and (longest := max(map(len, words))) > _LONGEST:
        raise ValueError(f'A word has {longest:,} characters, which would be merged one by one; set --merges to a number.')
    learner, steps = Learner(words), [] if steps is None else steps
    yield f'{sum(words.values()):,} words, {len(words):,} different'
    yield f'{len(learner.counts):,} tokens:'
    yield table(learner.counts)
    yield ''
    yield ' merge    count   tokens      text  pair'
    yield f'{0:6,}{"":9}{len(learner.counts):9,}{learner.length:10,}'
    for number, one in enumerate(itertools.islice(learner, most), 1):
        steps.append(one)
        yield (f'{number:6,}{one.count:9,}{one.tokens:9,}{one.length:10,}  '
               f'{shown(one.left)} + {shown(one.right)} = {shown(one.left + one.right)}')
    yield ''
    yield f'{len(learner.counts):,} tokens:'
    yield table(learner.counts)


def picture(name: str, characters: int, steps: Sequence[Merge]) -> Any:
    """A figure of the tokens in use, and of the counts of the merged pairs, against the size of the vocabulary.

    Args:
      characters: different characters, with the end of a word; each merge adds one to the vocabulary.
    """
    figure, body = figures.new(9.0, 4.0)
    used, counts = body.subplots(1, 2)
    sizes = range(characters, characters + len(steps) + 1)
    used.plot(sizes, [characters, *(one.tokens for one in steps)], color=figures.COLOURS[0])
    counts.plot(sizes[1:], [one.count for one in steps], color=figures.COLOURS[1], drawstyle='steps-mid')
    used.set_ylabel('different tokens in use')
    counts.set_ylabel('occurrences of the merged pair')
    if steps and steps[0].count >= 100:
        counts.set_yscale('log')
    for axes in (used, counts):
        axes.set_xlabel('vocabulary: characters + merges')
        axes.grid(alpha=0.3)
    return figures.explain(figure, f'Byte-pair encoding of {name}', (
        f'Left: after each of {len(steps):,} merges, the different tokens that occur in the text: every merge adds one, and '
        'takes away those of its pair that no longer occur. Right: how often the pair occurred that was merged.'))


def model_of(path: str) -> SentencePieceTokenizer:
    """The SentencePiece model in a file, or of a run. Raises ValueError or FileNotFoundError if there is none."""
    file = pathlib.Path(path, 'tokenizer.model') if os.path.isdir(path) else pathlib.Path(path)
    if not os.path.exists(path):
        raise FileNotFoundError(f'There is no {path!r}; give a run, or a file, with a model of SentencePiece.')
    if not file.is_file():
        other = ', but a tokenizer.json' if file.with_name('tokenizer.json').is_file() else ''
        raise FileNotFoundError(f'{path} has no tokenizer.model{other}; give a run, or a file, with a model of SentencePiece.')
    made = SentencePieceTokenizer(file.read_bytes())
    made.vocab  # raises here if it is damaged  # noqa: B018
    return made


def segmentations(found: Lattice, count: int) -> Iterator[str]:
    """The report of a lattice, line by line."""
    best = found.best(count)
    yield f'{found.count:,} segmentations of {found.length:,} characters, log probability of the text {found.total:.4f}'
    yield ''
    yield 'probability     log P  segmentation'
    for score, edges in best:
        yield f'{math.exp(score - found.total):11.4f}{score:10.4f}  {" ".join(printable(edge.piece) for edge in edges)}'
    rows = sorted(zip(found.edges, found.marginals()), key=lambda row: (row[0].start, -row[1]))
    kept = [row for row in rows if row[1] >= _LEAST]
    yield ''
    yield 'probability     place  piece'
    for edge, p in kept:
        yield f'{p:11.4f}{f"{edge.start}-{edge.stop}":>10}  {printable(edge.piece)}'
    if len(kept) < len(rows):
        yield f'and {len(rows) - len(kept):,} below {_LEAST}'


def lattice_picture(found: Lattice, text: str) -> Any:
    """A figure of the pieces of a text as arcs from their first character to behind their last, as wide as they are probable.
    Raises ValueError for a long text."""
    from matplotlib.patches import Arc  # slow to import

    if found.length > _SIGNS:
        raise ValueError(f'The text has {found.length:,} characters, and a picture shows {_SIGNS}; give a shorter one.')
    likely = [(edge, p) for edge, p in zip(found.edges, found.marginals()) if p >= _DRAWN]
    figure, body = figures.new(max(5.0, 0.45 * found.length + 1.5), 3.6)
    axes = body.subplots()
    for edge, p in likely:
        middle, width = (edge.start + edge.stop) / 2, edge.stop - edge.start
        axes.add_patch(Arc((middle, 0), width, 2 * _height(width), theta1=0, theta2=180, linewidth=0.5 + 4 * p,
                           color=figures.COLOURS[0], alpha=0.25 + 0.75 * p))
        axes.text(middle, _height(width) + 0.05, f'{printable(edge.piece)}\n{p:.2f}', ha='center', va='bottom',
                  fontsize=8, bbox={'facecolor': 'white', 'edgecolor': 'none', 'alpha': 0.8, 'pad': 0.5})
    axes.plot(range(found.length + 1), [0] * (found.length + 1), 'o', color='black', markersize=4)
    axes.set_xlim(-0.5, found.length + 0.5)
    axes.set_ylim(-0.2, max(_height(edge.stop - edge.start) for edge, _ in likely) + 0.6)
    figures.name_ticks(axes.xaxis, [place + 0.5 for place in range(found.length)], [printable(one) for one in text])
    axes.set_xlabel('characters')
    axes.set_yticks([])
    axes.spines[['top', 'left', 'right']].set_visible(False)
    return figures.explain(figure, f'The lattice of {printable(text)!r}', (
        'Each arc is a piece of the unigram model, with its probability at this place: that of the segmentations, ways from '
        f'the left to the right, that it is part of. {found.count:,} in all; pieces below {_DRAWN} are left out.'))


def _height(width: int) -> float:
    return 0.5 * width ** 0.75


def main(arguments: Sequence[str] | None = None) -> None:
    parser = commands.Parser('data.tokenizers.trace', __doc__)
    parser.add_argument('file', metavar='FILE', nargs='?', help='a text, a folder or a glob')
    parser.add_argument('--merges', type=int, metavar='N', help='the most merges; default: until every word is one token')
    parser.add_argument('--encoding', default='utf-8', metavar='NAME', help='of FILE, by a name that Python knows')
    one = parser.add_mutually_exclusive_group()
    one.add_argument('--workdir', metavar='RUN', help='a run, whose tokenizer segments --text')
    one.add_argument('--model', metavar='FILE', help='a tokenizer.model, which segments --text')
    parser.add_argument('--text', help='the text to segment')
    parser.add_argument('--count', type=int, default=5, metavar='N', help='the most segmentations (default 5)')
    parser.add_argument('--alpha', type=float, default=1.0, metavar='X', help='exponent of their probabilities (default 1)')
    parser.add_argument('--out', metavar='PICTURE.png', help='draws a picture')
    options = parser.parse_args(arguments)
    source = options.workdir or options.model
    if bool(options.file) == bool(source) or bool(source) != (options.text is not None):
        raise ValueError('Give either FILE, for its merges, or a --workdir or --model and a --text, for its segmentations.')
    if options.merges is not None and options.merges < 0:
        raise ValueError(f'--merges={options.merges} is out of range; it is a number of merges, 0 or more.')
    if options.count < 1 or not 0 < options.alpha < math.inf:
        raise ValueError(f'--count={options.count} and --alpha={options.alpha} do not fit; expected 1 or more, and above 0.')
    if options.out and not options.out.endswith('.png'):
        raise ValueError(f'--out={options.out!r} is no name of a picture; expected one that ends in .png.')
    if options.out and not os.path.isdir(os.path.dirname(options.out) or '.'):
        raise ValueError(f'--out={options.out!r} names a folder that does not exist; create it first.')
    if source:
        model = model_of(source)
        found = lattice.of(model, options.text, options.alpha)
        figure = lattice_picture(found, lattice.normalized(model, options.text)) if options.out else None
        for line in segmentations(found, options.count):
            print(line)
    else:
        words, steps = read(options.file, options.encoding), []
        for line in lines(words, options.merges, steps):
            print(line)
        characters = len({END, *itertools.chain(*words)})
        figure = picture(os.path.basename(os.path.normpath(options.file)), characters, steps) if options.out else None
    if figure:
        figure.savefig(options.out)
        print(f'{options.out} is drawn')


if __name__ == '__main__':
    commands.run(main, lambda text: text.replace('data.encoding', '--encoding').replace('set data.path to', 'give'))
