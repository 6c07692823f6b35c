"""Records what seqeval 1.2.2 counts of random tags, legal and illegal ones, into seqeval.json; needs seqeval alone.

    python tests/reference/record_seqeval.py

A line of it is [tags, right tags, F1 by default, F1 with mode='strict' and scheme=IOB2], a letter for each tag.
"""

import json
import pathlib
import random

SIGNS = {'.': 'O', 'B': 'B-x', 'I': 'I-x', 'b': 'B-y', 'i': 'I-y'}


def main():
    from seqeval.metrics import f1_score
    from seqeval.scheme import IOB2

    draw, lines = random.Random(0), []
    for _ in range(1000):
        size = draw.randint(1, 9)
        right = ''.join(draw.choices('..BIbi', k=size))
        said = ''.join(one if draw.random() < 0.6 else draw.choice('.BIbi') for one in right)
        tags = [[[SIGNS[one] for one in text]] for text in (right, said)]
        lines.append([said, right, f1_score(*tags), f1_score(*tags, mode='strict', scheme=IOB2)])
    pathlib.Path(__file__).with_name('seqeval.json').write_text('[\n' + ',\n'.join(map(json.dumps, lines)) + '\n]\n')


if __name__ == '__main__':
    main()
