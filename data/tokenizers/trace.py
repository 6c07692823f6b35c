"""Shows how a tokenizer is learnt: the merges of byte-pair encoding in a text, one after the other.

    python -m data.tokenizers.trace FILE [--merges=N] [--out=PICTURE.png] [--encoding=NAME]

FILE is a text, a folder or a glob. Every line has a merge, how often its pair occurred, the tokens in use after it, the tokens
that the text then has, and the pair; at the end stand the tokens with their counts. _ is the end of a word, and a _ of the text
is written \\_. Without --merges it goes on until every word is one token. The picture shows the tokens in use and the counts of
the pairs against the size of the vocabulary.
"""

import argparse
import itertools
import os
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from data.sources import files as sources
from data.tokenizers import merges
from data.tokenizers.merges import END, Learner, Merge
from display import figures

_SHOWN, _WIDE = 200, 110  # tokens of a vocabulary, characters of a line
_LONGEST = 10_000  # characters of a word that is merged to its end
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
    """A token as text for display."""
    return ''.join(one if one.isprintable() else f'<U+{ord(one):04X}>' for one in token.translate(_ESCAPES))


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


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser('python -m data.tokenizers.trace', None, __doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument('file', metavar='FILE', help='a text, a folder or a glob')
    parser.add_argument('--merges', type=int, metavar='N', help='the most merges; default: until every word is one token')
    parser.add_argument('--out', metavar='PICTURE.png', help='draws a picture')
    parser.add_argument('--encoding', default='utf-8', help='of the text, by a name that Python knows')
    options = parser.parse_args(arguments)
    if options.merges is not None and options.merges < 0:
        raise ValueError(f'--merges={options.merges} is out of range; it is a number of merges, 0 or more.')
    if options.out and not options.out.endswith('.png'):
        raise ValueError(f'--out={options.out!r} is no name of a picture; expected one that ends in .png.')
    if options.out and not os.path.isdir(os.path.dirname(options.out) or '.'):
        raise ValueError(f'--out={options.out!r} names a folder that does not exist; create it first.')
    words, steps = read(options.file, options.encoding), []
    for line in lines(words, options.merges, steps):
        print(line)
    if options.out:
        characters = len({END, *itertools.chain(*words)})
        picture(os.path.basename(os.path.normpath(options.file)), characters, steps).savefig(options.out)
        print(f'{options.out}: {len(steps):,} merges')


if __name__ == '__main__':
    try:
        main()
        sys.stdout.flush()
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # of a reader such as head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (ValueError, OSError) as error:
        if os.environ.get('HEED_TRACEBACK'):
            raise
        told = str(error).replace('data.encoding', '--encoding').replace('set data.path to', 'give')
        sys.exit(f'trace.py: {told}')
