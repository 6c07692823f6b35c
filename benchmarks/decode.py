"""Benchmark of generation: one JSON line per case.

    python -m benchmarks.decode [--cases=greedy,beam] [--batch=8] [--source=128] [--tokens=64] [--repeats=5]
    python -m benchmarks.decode --model=gpt2 --cases=greedy --batch=8 --source=32 --tokens=128

A model with random parameters generates `tokens` new tokens for each of `batch` sources or prompts of `source` tokens; the time
includes encoding, prefill and every step, but not compilation. The model has the shapes of T5-small (6 + 6 layers, 512 wide, 8
heads, 32,128 tokens; 60 million parameters) or of the smallest GPT-2 (12 layers, 768 wide, 12 heads, 50,257 tokens; 124
million). `ms` is the median of the repeats; `tokens_per_s` counts the tokens of the outputs.

Compared with `generate` of Hugging Face transformers 5 (PyTorch 2.13, a T5 of these shapes) on two cores of a Xeon, in turns:

    greedy       0.74 to 0.85 of its time on a quiet machine, 0.80 to 1.07 on a busy one (2.7 to 3.4 s, and 3.2 to 3.3 s)
    beam of 4    0.60 to 0.66 of its time on a quiet machine, 0.71 on a busy one (5.3 s, and 7.5 s)

and with its GPT-2 of these shapes, greedy, 128 tokens after 32, the fastest repeat of each run, on a machine that is also busy
with other work:

    batch of 1   0.90 to 1.40 of its time (4.5 to 7.7 s against 4.4 to 6.8): both read 498 MB of weights for each token, at
                 14 GB/s on this machine
    batch of 8   0.67 to 0.79 of its time (10.2 to 12.2 s against 14.0 to 15.4), and once 1.20

Each step of T5 reads 150 MB of weights, about a third of the time of a greedy step at the 10 GB/s of a single product.
A product of 8 rows with a kernel [512, 2048] takes XLA 0.55 ms and PyTorch 0.28 ms; with the kernel kept transposed it takes
0.33 ms, which would save 10 to 20 % and need a second layout of every kernel.
"""

import json
import resource
import statistics
import time

from absl import flags

from training.config import cli

if __name__ == '__main__':
    flags.DEFINE_enum('model', 't5_small', ['t5_small', 'gpt2'], 'the model whose shapes are used')
    flags.DEFINE_list('cases', ['greedy', 'beam'], 'strategies: greedy, sample, beam (of size 4)')
    flags.DEFINE_integer('batch', 8, 'sources or prompts that are decoded together', lower_bound=1)
    flags.DEFINE_integer('source', 128, 'tokens of each source or prompt', lower_bound=1)
    flags.DEFINE_integer('tokens', 64, 'new tokens of each output', lower_bound=1)
    flags.DEFINE_integer('repeats', 5, 'measurements of each case', lower_bound=1)
    cli.answer_help()

import dataclasses

import jax
import numpy as np

from training.config import resolve
from training.host import allocator, machine
from transformer.attention.masks.patterns import Causal
from transformer.attention.mechanism import Softmax
from transformer.attention.positions.relative import T5Bias
from transformer.attention.scores import Dot
from transformer.contracts import ReadsSource
from transformer.decoding.generate import generate
from transformer.decoding.strategies import Beam, Greedy, Sample
from transformer.layers.activations import GeluTanh, Relu
from transformer.layers.feed_forward import Mlp
from transformer.layers.initial import Xavier
from transformer.layers.norm import LayerNorm
from transformer.layers.stack import Stack
from transformer.models.encoder_decoder import EncoderDecoder
from transformer.models.gpt import Gpt

CASES = {'greedy': Greedy(), 'sample': Sample(), 'beam': Beam(size=4)}
STACK = Stack(layers=6, heads=8, width=512, feed_forward=Mlp(activation=Relu(), bias=False), projection_bias=False,
              output_bias=False, norm=LayerNorm(bias=False), positions=T5Bias(), attention=Softmax(score=Dot()),
              initial=Xavier())
SMALL = EncoderDecoder(vocab=32128, source_vocab=0, scale_embedding=False, cross_attention=Softmax(score=Dot()),
                       encoder=STACK, decoder=dataclasses.replace(STACK, mask=Causal()))
GPT2 = Gpt(vocab=50257, stack=Stack(mask=Causal(), feed_forward=Mlp(activation=GeluTanh())))
MODELS = {'t5_small': SMALL, 'gpt2': GPT2}


def main():
    given = flags.FLAGS
    for name in given.cases:
        if name not in CASES:
            raise ValueError(f'--cases has {name!r}; {resolve.did_you_mean(name, CASES)}')
    model, tokens = MODELS[given.model], np.ones((1, 2), int)
    most = model.length + 1 - (1 if isinstance(model, ReadsSource) else given.source)  # the last one is never read
    if given.tokens > most:
        raise ValueError(f'--tokens={given.tokens} is too many for the {model.length} positions of {given.model}, which leave '
                         f'room for {max(most, 0)} new ones here; lower --tokens, or --source of a prompt.')
    allocator.keep_pages()
    more = {'decoder_inputs': tokens} if given.model == 't5_small' else {}
    params = jax.jit(lambda key: model.init(key, tokens, **more))(jax.random.key(0))['params']
    for name in given.cases:
        print(json.dumps({'case': name, 'model': given.model, 'batch': given.batch, 'source': given.source,
                          'tokens': given.tokens} | measure(
            model, params, CASES[name], given.batch, given.source, given.tokens, given.repeats)), flush=True)


def measure(model, params, strategy, batch, source, tokens, repeats):
    """{name: number} of one case."""
    given = list(np.random.default_rng(0).integers(5, model.vocab, (batch, source)))
    prompts, sources = ([[0]] * batch, given) if isinstance(model, ReadsSource) else (given, None)

    def run():
        return generate(model, params, prompts, source=sources, steps=tokens, strategy=strategy, key=jax.random.key(0), end=-1,
                        vocab=model.vocab)

    start = time.perf_counter()
    lengths = {len(best.tokens) for best, *_ in run()}
    first = time.perf_counter() - start
    if lengths != {tokens}:
        raise RuntimeError(f'outputs of {lengths} tokens instead of {tokens}')
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    middle = statistics.median(seconds)
    return {'ms': round(1e3 * middle, 1), 'ms_min': round(1e3 * min(seconds), 1), 'ms_max': round(1e3 * max(seconds), 1),
            'tokens_per_s': round(batch * tokens / middle, 1), 'first_s': round(first, 2),
            'device': jax.devices()[0].device_kind, 'cores': machine.cores(), 'jax': jax.__version__,
            'peak_rss_mb': resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024}


if __name__ == '__main__':
    cli.run(main)
