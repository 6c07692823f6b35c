"""GPT-2 in its four sizes (Radford et al. 2019, table 2), and GPT-3's largest (Brown et al. 2020, table 2.1), in bfloat16.

    python train.py --config=configs/gpt2.py:124m --config.data.path=TEXT_FOLDER

:124m, :350m, :774m, :1558m, :gpt3   rows of 1,024 packed tokens (GPT-3: 2,048), half a million tokens a step (3.2 million),
       learning rates of GPT-3's table for the nearest size. From :774m on, layers are scanned, activations recomputed, and
       parameters sharded over all devices (`mesh.fsdp`; of :1558m 64 at most, which divide its width of 1,600: on 256
       --config.mesh.data=4 --config.mesh.fsdp=64). For GPUs and TPUs; not yet run. A step is 32 microbatches of 16 rows (GPT-3:
       48), meant for one GPU of 80 GB; the number of devices must divide these rows, so on more than 16, or for more speed,
       take fewer microbatches: --config.train.microbatches=4. GPT-3's parameters with the two moments of Adam are 2.1 TB. The
       vocabulary of 50,257 pieces is learnt from the text, which has to be large for that (100 MB or more); with
       --config.data.tokenizer="Json(path='tokenizer.json')" it is GPT-2's own, from huggingface.co/openai-community/gpt2.
:step  one row of 512 in float32, the smallest model on bytes of Python's standard library: for timing its step on a CPU.

           python -m benchmarks.train_step --config=configs/gpt2.py:step --steps=20

       2.48 s a step, 207 tokens/s on two cores of a Xeon (Python 3.11, jax 0.10.2); in turns with PyTorch 2.13 and Hugging
       Face's model, 0.90 to 0.93 of its time. On two quiet cores of a Xeon with AMX (family 6 model 167) 2.18 to 2.25 s, and in
       turns 1.42 to 1.49 with --config.dtype=mixed. On one core of such a Xeon, beside a training on the other, 4.11 and 4.03
       s, in turns with the model of keras-hub 0.32 (Keras 3.15 on the same jax, the same batch, train_on_batch), which takes
       6.59 and 6.44.
"""

from configs import base

# layers, heads, width, length, peak learning rate, rows a step
SHAPES = {
    '124m': (12, 12, 768, 1024, 6e-4, 512),
    '350m': (24, 16, 1024, 1024, 3e-4, 512),
    '774m': (36, 20, 1280, 1024, 2.5e-4, 512),
    '1558m': (48, 25, 1600, 1024, 2e-4, 512),
    'gpt3': (96, 96, 12288, 2048, 0.6e-4, 1536),
    'step': (12, 12, 768, 1024, 6e-4, 1),
}

# Brown et al. 2020, section 2.1: alternating dense and locally banded layers; the paper does not tell the width of the bands.
MASKS = {'gpt3': 'Alternate(even=Causal(), odd=Causal() & Window(size=256))'}


def get_config(variant=''):
    variant = base.variant_of(variant, tuple(SHAPES))
    layers, heads, width, length, rate, rows = SHAPES[variant]
    step, large = variant == 'step', layers >= 36
    c = base.config()
    c.dtype = 'float32' if step else 'bfloat16'
    c.data = base.data(
        'data.text.documents:Text', source='stdlib' if step else 'files', path='' if step else 'text',
        length=512 if step else length,
        tokenizer='Byte()' if step else 'SentencePiece(vocab=50257)', batch_size=rows)
    c.model = base.part('transformer.models.gpt:Gpt', vocab=50257, layers=layers, heads=heads, width=width, length=length,
                        mask=MASKS.get(variant, 'Causal()'), feed_forward='Mlp(activation=GeluTanh())', scan=large,
                        remat='full' if large else 'none')
    c.task = base.part('transformer.tasks.language_model:NextToken')
    c.optimizer = base.optimizer(learning_rate=rate, b2=0.95, weight_decay=0.1, schedule=base.part(
        'training.schedules:CosineDecay', warmup_steps=700, final=0.1))
    c.train.steps = 19_000
    if not step:
        c.train.microbatches = 32  # 16 rows each, whose logits take 3.3 GB (GPT-3: 48, 20 GB over its devices)
    if large:
        c.mesh.data, c.mesh.fsdp = 1, -1
        c.log.every_steps = 5  # several processes react to a signal only when a row is logged
    c.evals.valid = base.evaluation('transformer.evaluators.language_model:Perplexity', split='valid', every_steps=1000)
    return c.lock()
