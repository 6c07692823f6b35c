"""The plans of docs/tpu.md: steps of published shapes, each planned by benchmarks/plan.py in a process of its own.

    make plans                                all, or with ARGS="'CASE' .." these; hours for all
    python -m benchmarks.plans ['CASE' ..]    the same where jax[tpu], and for the H100 jax[cuda13], is installed

A line of each, the JSON object of benchmarks/plan.py with its `case`, is printed and goes to docs/plans.jsonl in place of an
earlier one; at the end the table of all lines, which stands in docs/tpu.md, is printed.
"""

import argparse
import json
import pathlib
import subprocess
import sys

from benchmarks import topologies
from training import storage
from training.config.resolve import did_you_mean

LINES = pathlib.Path(__file__).parent.parent / 'docs' / 'plans.jsonl'
WEAK_COLUMNS = ('case', 'chips', 'a chip sends', 'during other work', 'links', 'the rest', 'MFU at most')
COLUMNS = ('case', 'chips', 'rows', 'memory', 'of it temporaries', 'traffic', 'products', 'links', 'MFU at most')


def llama(layers, width, heads, key_heads, inner, vocab, length, rows):
    """A Llama (Touvron et al. 2023, section 2.2; Grattafiori et al. 2024, table 3) as changes to configs/gpt2.py."""
    return {
        'model.layers': layers, 'model.width': width, 'model.heads': heads, 'model.key_heads': key_heads, 'model.vocab': vocab,
        'model.feed_forward': f'Gated(inner={inner}, activation=Silu(), bias=False)', 'model.norm': 'RMSNorm(epsilon=1e-5)',
        'model.positions': 'Rotary()', 'model.projection_bias': False, 'model.output_bias': False,
        'model.head': 'NextWords(tied=False)', 'model.length': length, 'data.length': length, 'data.batch_size': rows,
        'train.microbatches': 1}


def t5(**fields):
    return {f'model.{stack}.{field}': value for stack in ('encoder', 'decoder') for field, value in fields.items()}


VIT_L = {'model.layers': 24, 'model.heads': 16, 'model.width': 1024, 'train.microbatches': 1}
T5_3B = {  # Raffel et al. 2020, section 3.7
    **t5(layers=24, width=1024, heads=32, head_width=128, remat='full', scan=True,
         feed_forward='Mlp(inner=16384, activation=Relu(), bias=False, dropout=0.1)'),
    'model.vocab': 32128, 'model.length': 512, 'model.source_length': 512, 'data.length': 512, 'data.source_length': 512,
    'data.batch_size': 1024, 'dtype': 'bfloat16', 'mesh.data': 1, 'mesh.fsdp': -1}
# The same rows a chip on more and more of them, for each mesh; layers are scanned, as they compile sooner.
WEAK = {f'GPT-2 124M, {mesh}, {chips} chips': ('gpt2.py:124m', f'v5e:{side}', {
    'train.microbatches': 1, 'model.scan': True, 'data.batch_size': 16 * chips, **fields})
        for mesh, fields in (('data', {}), ('fsdp', {'mesh.data': 1, 'mesh.fsdp': -1}))
        for chips, side in ((4, '2x2'), (16, '4x4'), (64, '8x8'), (256, '16x16'))}
# case: (config, topology, changes)
CASES = {
    'GPT-2 124M': ('gpt2.py:124m', 'v5e:4x4', {'train.microbatches': 1}),
    'ViT-Ti/16': ('vit_ti16.py:imagenet', 'v5e:4x4', {}),
    'ResNet-50': ('resnet50.py', 'v5e:4x4', {}),
    'Swin-T': ('swin_t.py:imagenet', 'v5e:4x4', {}),
    'ViT-L/16': ('vit_ti16.py:imagenet', 'v5e:4x4', VIT_L),
    'GPT-2 1.5B': ('gpt2.py:1558m', 'v5e:16x16', {'train.microbatches': 1, 'mesh.data': 4, 'mesh.fsdp': 64,
                                                  'model.remat': 'none'}),
    'T5-3B': ('t5_small.py:pairs', 'v5e:16x16', T5_3B),
    'Llama 7B': ('gpt2.py:1558m', 'v5p:8x8x8', llama(32, 4096, 32, 0, 11008, 32000, 2048, 2048)),
    'GPT-3 175B': ('gpt2.py:gpt3', 'v5p:8x8x8', {'train.microbatches': 1}),
    'Llama 3.1 8B': ('gpt2.py:1558m', 'v6e:16x16', llama(32, 4096, 32, 8, 14336, 128256, 8192, 1024)),
    'Llama 3.1 70B': ('gpt2.py:1558m', 'v6e:16x16', llama(80, 8192, 64, 8, 28672, 128256, 8192, 1280) | {
        'train.microbatches': 10, 'mesh.tensor': 2}),
    'GPT-3 175B, v6e': ('gpt2.py:gpt3', 'v6e:16x16', {
        'data.batch_size': 768, 'train.microbatches': 1, 'model.remat': 'offload'}),
    'MaxText 16B': ('gpt2.py:1558m', 'v5e:16x16', llama(32, 4096, 64, 0, 28672, 32000, 2048, 1536) | {'model.head_width': 128}),
    'MaxText 32B': ('gpt2.py:1558m', 'v5e:16x16', llama(32, 8192, 64, 0, 28672, 32000, 2048, 1024)),
    'GPT-2 124M, H100': ('gpt2.py:124m', 'h100:8', {'train.microbatches': 1}),
    'ViT-Ti/16, H100': ('vit_ti16.py:imagenet', 'h100:8', {}),
    'ResNet-50, H100': ('resnet50.py', 'h100:8', {}),
    'Swin-T, H100': ('swin_t.py:imagenet', 'h100:8', {}),
    'ViT-L/16, H100': ('vit_ti16.py:imagenet', 'h100:8', VIT_L),
    'GPT-2 1.5B, H100': ('gpt2.py:1558m', 'h100:8', {'train.microbatches': 2}),
    'Llama 7B, H100': ('gpt2.py:1558m', 'h100:8', llama(32, 4096, 32, 0, 11008, 32000, 2048, 64)),
    **WEAK,
}


def command(case):
    config, topology, changes = CASES[case]
    return [sys.executable, '-m', 'benchmarks.plan', f'--config=configs/{config}', f'--topology={topology}',
            *(f'--config.{field}={value}' for field, value in changes.items())]


def planned(case):
    """The plan of a case. Raises ValueError if none is made."""
    done = subprocess.run(command(case), stdout=subprocess.PIPE, text=True, cwd=LINES.parent.parent)
    if done.returncode:
        raise ValueError(f'The plan of {case} ended with exit code {done.returncode}.')
    return {'case': case, 'topology': CASES[case][1]} | json.loads(done.stdout.splitlines()[-1])


def table(plans):
    """The lines of the table of plans, in Markdown; those of WEAK are left out."""
    yield f'| {" | ".join(COLUMNS)} |'
    yield '|---' * len(COLUMNS) + '|'
    for plan in plans:
        if plan['case'] in WEAK:
            continue
        memory, chips = plan['memory_gb'], plan['device'].partition(' ')[0]
        kind = plan['topology'].partition(':')[0].replace('h100', 'H100')
        row = [plan['case'], f'{chips} of {kind}', f'{plan["rows"]:,}',
               f'{memory["all"]:.1f} of {memory["there is"]:.1f} GB']
        if plan['fits']:
            ms, sent = plan['bounds_ms'], sum(one['sent'] for one in plan['collectives'])
            row += [f'{memory["temporaries"]:.1f} GB', f'{plan["traffic_gb"]:.4g} GB, {ms["memory"]:,.1f} ms',
                    f'{plan["step_tflop"]:,.4g} TFLOP, {ms["products"]:,.1f} ms', f'{sent:.3g} GB, {ms["links"]:,.1f} ms',
                    f'{100 * plan["mfu"]:.0f} %']
        else:
            row += ['does not fit'] + [''] * 4
        yield f'| {" | ".join(row)} |'


def weak_table(plans):
    """The lines of the table of weak scaling, in Markdown: of the plans of WEAK what collectives take beside the rest."""
    yield f'| {" | ".join(WEAK_COLUMNS)} |'
    yield '|---' * len(WEAK_COLUMNS) + '|'
    for plan in plans:
        if plan['case'] not in WEAK or not plan['fits']:
            continue
        sent, hidden = (sum(one[key] for one in plan['collectives']) for key in ('sent', 'hidden'))
        links, rest = plan['bounds_ms']['links'], max(plan['bounds_ms'][key] for key in ('products', 'memory'))
        row = [plan['case'], plan['device'].partition(' ')[0], f'{sent:.3g} GB', f'{100 * hidden / sent:.0f} %',
               f'{links:,.1f} ms', f'{rest:,.1f} ms', f'{100 * plan["mfu"]:.0f} %']
        yield f'| {" | ".join(row)} |'


def read():
    """{case: its line}, in the order of the cases. Raises ValueError for a line that is damaged."""
    found = {}
    for number, line in enumerate(LINES.read_bytes().splitlines() if LINES.is_file() else [], 1):
        try:
            plan = json.loads(line)
            found[plan['case']] = plan
        except (ValueError, TypeError, KeyError):
            raise ValueError(f'Line {number} of {LINES} is damaged, expected one JSON object with its case: delete that line, '
                             'and plan its case again.') from None
    return found


def main(names):
    if unknown := [name for name in names if name not in CASES]:
        raise ValueError(f'There is no case {unknown[0]!r}; {did_you_mean(unknown[0], CASES)}')
    missing = [] if names else [case for case in CASES if not topologies.available(topologies.kind_of(CASES[case][1]))]
    if missing:
        print(f'left out, as their compiler is not installed: {", ".join(missing)}', file=sys.stderr)
    read()  # a damaged line is refused before the hours of plans
    failed = []
    for name in names or [case for case in CASES if case not in missing]:
        try:
            plan = planned(name)  # for up to an hour, in which others may write
            print(json.dumps(plan), flush=True)  # not lost, whatever happens to the file
            found = read() | {name: plan}
            storage.write(LINES, ''.join(f'{json.dumps(found[case])}\n' for case in CASES if case in found))
        except ValueError as error:
            failed.append(error)
    print('\n'.join([*table(read().values()), '', *weak_table(read().values())]))
    if failed:
        raise ValueError(' '.join(map(str, failed)))


if __name__ == '__main__':
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('case', nargs='*', help=', '.join(CASES))
    try:
        main(parser.parse_args().case)
    except ValueError as error:
        sys.exit(f'plans.py: {error}')
