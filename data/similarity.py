"""Makes a table of pairs of sentences with their similarity, from their translations: an example for regression.

    python -m data.similarity fra.txt.gz --out=similarity [--count=20000] [--seed=0]

The similarity of two sentences is the chrF (Popović 2015) of their translations, from 0 to 1, the mean of both directions, by
sacrebleu: nobody has to judge it, and a model does not see the other language. `fra.txt.gz` is a table of pairs, a sentence and
its translation (data/sources/tables.py). OUT/train.tsv, valid.tsv and test.tsv hold 90, 5 and 5 % of the count; a sentence is
in one of them alone. Two random sentences have next to nothing in common, so half of the pairs are neighbours in the order of
the translations or of their ends; of all pairs as many as there are of each tenth of the scale are kept, up to an equal share.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from data import cache, commands
from data.seq2seq.pairs import folded
from data.sources import pairs

PARTS = {'train': 0.9, 'valid': 0.05, 'test': 0.05}
_DRAWN = 4  # pairs that are scored for each that is kept
_NEAR = 12  # places between neighbours, at most
_TENTHS = 10


def sentences(path: str) -> list[tuple[str, str]]:
    """The pairs of a table whose sentence and whose translation occur for the first time."""
    found, seen = [], (set(), set())
    for pair in pairs.tables(path, pairs.Form(), 'the table')('all'):
        plain = [folded(text) for text in pair]
        if all(plain) and not any(text in known for text, known in zip(plain, seen)):
            found.append(tuple(' '.join(text.split()) for text in pair))
        for text, known in zip(plain, seen):
            known.add(text)
    return found


def drawn(translations: Sequence[str], count: int, rng: np.random.Generator) -> list[tuple[int, int]]:
    """`count` pairs of numbers, or fewer: half of them random, a quarter neighbours in the order of the texts, and a quarter in
    the order of the reversed texts, which are alike at the end."""
    size, found = len(translations), {}
    orders = [sorted(range(size), key=key) for key in (
        lambda i: translations[i], lambda i: translations[i][::-1])]
    for draw in range(count):
        first = int(rng.integers(size))
        if draw % 2:
            order = orders[draw // 2 % 2]
            second = order[min(size - 1, first + int(rng.integers(1, _NEAR + 1)))]
            first = order[first]
        else:
            second = int(rng.integers(size))
        if first != second:
            found[min(first, second), max(first, second)] = None
    return [*found]


def scored(given: Sequence[tuple[str, str]], count: int, rng: np.random.Generator) -> Iterator[tuple[str, str, float]]:
    """(sentence, sentence, similarity) of at most `count` pairs of these sentences with their translations."""
    from sacrebleu.metrics import CHRF

    chrf, tenths = CHRF(), [[] for _ in range(_TENTHS)]
    for first, second in drawn([translation for _, translation in given], _DRAWN * count, rng):
        one, two = given[first], given[second]
        score = sum(chrf.sentence_score(a, [b]).score for a, b in ((one[1], two[1]), (two[1], one[1]))) / 200
        tenths[min(_TENTHS - 1, int(score * _TENTHS))].append((one[0], two[0], score))
    left, kept = count, []
    for place, rows in enumerate(sorted(tenths, key=len)):  # what a rare tenth lacks the others share
        kept += rows[:left // (_TENTHS - place)]
        left = count - len(kept)
    for number in rng.permutation(len(kept)):
        yield kept[number]


def write(path: str, folder: str | os.PathLike, count: int = 20_000, seed: int = 0) -> dict[str, int]:
    """Writes the tables; returns the number of rows of each. Raises ValueError for too few sentences, and for files there."""
    target = Path(folder)
    if there := [name for name in PARTS if (target / f'{name}.tsv').exists()]:
        raise ValueError(f'{target / there[0]}.tsv is there already; give --out another folder.')
    rng, given = np.random.default_rng(seed), sentences(path)
    order, first, found = rng.permutation(len(given)), 0, {}
    for part, share in PARTS.items():
        numbers = order[first:first + round(share * len(given))]
        first += len(numbers)
        rows = list(scored([given[number] for number in numbers], round(share * count), rng)) if len(numbers) > 1 else []
        if not rows:
            raise ValueError(f'{path} has {len(given):,} different pairs, too few for a table of similarities; give a longer '
                             'one, such as fra.txt of manythings.org/anki.')
        found[part] = len(rows), ''.join(f'{one}\t{two}\t{score:.4f}\n' for one, two, score in rows)
    target.mkdir(parents=True, exist_ok=True)
    for part, (_, text) in found.items():
        cache.write(target / f'{part}.tsv', ('sentence1\tsentence2\tscore\n' + text).encode())
    return {part: rows for part, (rows, _) in found.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = commands.Parser('data.similarity', __doc__)
    parser.add_argument('path', help='a table of sentences with their translations')
    parser.add_argument('--out', required=True, help='the folder of the tables')
    parser.add_argument('--count', default=20_000, type=int, help='pairs in all')
    parser.add_argument('--seed', default=0, type=int)
    options = parser.parse_args(arguments)
    if options.count < 100:
        raise ValueError(f'--count={options.count} is too few pairs; give 100 or more.')
    rows = write(options.path, options.out, options.count, options.seed)
    print(f'{options.out}: {", ".join(f"{count:,} pairs in {part}.tsv" for part, count in rows.items())}')


if __name__ == '__main__':
    commands.run(main)
