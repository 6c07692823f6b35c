"""What the recorded models compute, in float64, and how far from that transformers itself is in float32.

    python tests/reference/exact.py [NAME ...]           # anew, of these folders or of all: from what the other files hold

Reads from case.npz how a model is called and along which directions its outputs count; its weights stay as they are in
model.safetensors. Stops where the gradients are not those of the outputs by finite differences: what is rounded to float32
anywhere on the way is found by that.
"""

import copy
import json
import pathlib
import sys
import tempfile

import numpy as np
import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from torch.overrides import TorchFunctionMode

HERE = pathlib.Path(__file__).parent
STEP = 1e-6  # of finite differences: with larger ones some ReLU turns on the way, with smaller ones rounding shows


class Float64(TorchFunctionMode):
    """Within it, what is float64 stays so: transformers casts to float32 by name where half precision is too little, as in the
    norms of T5."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        exact = lambda x: isinstance(x, torch.Tensor) and x.dtype == torch.float64
        wide = lambda x: torch.float64 if x is torch.float32 else x
        kwargs = kwargs or {}
        if not any(map(exact, (*args, *kwargs.values()))):
            return function(*args, **kwargs)  # such as the buckets of T5's distances, which are integers in the end
        function = torch.Tensor.double if function is torch.Tensor.float else function
        found = function(*map(wide, args), **{key: wide(x) for key, x in kwargs.items()})
        rounded = isinstance(found, torch.Tensor) and found.is_floating_point() and not exact(found)
        assert not rounded, f'{function} makes {found.dtype} of float64'
        return found


def answers(model, inputs, names):
    """{name: output} of a call; last_hidden_state is also that of models that do not return it by this name."""
    inputs = {key: x.to(model.dtype) if x.is_floating_point() else x for key, x in inputs.items()}
    found = model(**inputs, output_hidden_states=True)
    states = found.get('decoder_hidden_states') or found.get('hidden_states')
    return {name: states[-1] if name == 'last_hidden_state' and name not in found else found[name] for name in names}


def score(model, inputs, directions):
    """The outputs, and their sum along the directions."""
    found = answers(model, inputs, directions)
    return found, sum((found[key] * x.to(model.dtype)).sum() for key, x in directions.items())


def computed(model, inputs, directions):
    """({name: output}, {name as in a file: gradient of the score}), as arrays."""
    model.zero_grad()
    found, total = score(model, inputs, directions)
    total.backward()
    for parameter in model.parameters():  # what nothing reads, such as the token of masked patches
        parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    return {key: x.detach().numpy() for key, x in found.items()}, {key: x.numpy() for key, x in gradients(model).items()}


def learnt(model):
    """Its parameters, without the sinusoids of Marian and of MAE."""
    fixed = {id(part.weight) for part in tables_of(model)}
    return [x for x in model.parameters() if id(x) not in fixed and x.requires_grad]


def tables_of(model):
    """The modules that hold the sinusoids of Marian, which no file does."""
    return [part for part in model.modules() if type(part).__name__ == 'MarianSinusoidalPositionalEmbedding']


def gradients(model):
    """{name as in a file: gradient}; of what is no parameter it is 0, and integers have none."""
    like = copy.deepcopy(model)
    with torch.no_grad(), tempfile.TemporaryDirectory() as place:
        for parameter, of in zip(learnt(like), learnt(model)):
            parameter.copy_(of.grad)
        for fixed in (*like.buffers(), *(x for x in like.parameters() if not x.requires_grad)):
            fixed.zero_()
        save(like, pathlib.Path(place))
        return {name: x for name, x in load_file(f'{place}/model.safetensors').items() if x.is_floating_point()}


def save(model, folder):
    """save_pretrained, with the names of published weights: transformers 5.24 calls the layers of MAE's decoder otherwise, by
    names that older versions do not know."""
    model.save_pretrained(folder)
    weights = load_file(folder / 'model.safetensors')
    named = {name.replace('decoder_encoder.layer.', 'decoder_layers.'): x for name, x in weights.items()}
    if named.keys() != weights.keys():
        save_file(named, folder / 'model.safetensors', {'format': 'pt'})


def disagreement(model, inputs, directions):
    """Between the slope of the score along a random direction of all parameters together by the gradients and by finite
    differences, as a share of the length of the gradients, which is how large such a slope is."""
    draw = torch.Generator().manual_seed(2)
    along = [torch.randn(x.shape, generator=draw, dtype=x.dtype) for x in learnt(model)]
    moved = copy.deepcopy(model)

    def at(distance):
        for x, begin, direction in zip(learnt(moved), learnt(model), along):
            x.copy_(begin + distance * direction)
        return score(moved, inputs, directions)[1]

    with torch.no_grad():
        # Of two steps, so that third derivatives cancel; T5's are large.
        one, two = ((at(step) - at(-step)) / (2 * step) for step in (STEP, 2 * STEP))
        slope = sum((x.grad * direction).sum() for x, direction in zip(learnt(model), along))
        length = torch.stack([x.grad.norm() for x in learnt(model)]).norm()
        return (abs(slope - (4 * one - two) / 3) / length).item()


def complete(folder):
    """Adds to case.npz the outputs, the gradients and the errors of float32, in place of those that were there."""
    with np.load(folder / 'case.npz') as file:
        arrays = {key: x for key, x in file.items() if key.split('/')[0] not in ('output', 'gradient', 'error')}
    group = lambda name: {key.partition('/')[2]: torch.from_numpy(x) for key, x in arrays.items() if key.startswith(f'{name}/')}
    inputs, directions = group('input'), group('direction')
    kind, = json.loads((folder / 'config.json').read_text())['architectures']
    model = getattr(hf, kind).from_pretrained(folder, dtype=torch.float32)
    if kind.startswith('ViTMAE'):  # whose sinusoids are fixed, which from_pretrained forgets
        for name, table in model.named_parameters():
            table.requires_grad_(not name.endswith(('position_embeddings', 'decoder_pos_embed')))
    near = computed(model, inputs, directions)
    model.double()
    for part in tables_of(model):
        part.weight.data = sinusoids(*part.weight.shape)  # which it rounds to float32
    with Float64():
        found = computed(model, inputs, directions)
        apart = disagreement(model, inputs, directions)
    assert apart < 1e-9, f'{folder.name}: gradients and finite differences are {apart} apart'
    errors = {}
    for key, x in found[0].items():
        counted = arrays[f'direction/{key}'] != 0  # not what is of padding
        errors[f'error/output/{key}'] = error(near[0][key] * counted, x * counted)
    least = 0.01 * max(np.abs(x).max() for x in found[1].values())  # for those that are 0 but for rounding
    errors |= {f'error/gradient/{key}': error(near[1][key], x, least) for key, x in found[1].items()}
    arrays |= {f'output/{key}': x for key, x in found[0].items()} | {f'gradient/{key}': x for key, x in found[1].items()}
    np.savez_compressed(folder / 'case.npz', **arrays, **errors)
    largest = [max(x for key, x in errors.items() if key.startswith(f'error/{group}/')) for group in ('output', 'gradient')]
    print(f'{folder.name:16} float32 is off by {largest[0]:.1e} in outputs and {largest[1]:.1e} in gradients; gradients are '
          f'{apart:.1e} from finite differences; {sum(path.stat().st_size for path in folder.iterdir())} bytes')


def sinusoids(length, width):
    """Marian's sines, and behind them its cosines."""
    angles = torch.arange(length, dtype=torch.float64)[:, None] * 10000.0 ** (-torch.arange(0, width, 2).double() / width)
    return torch.cat([angles.sin(), angles.cos()], 1)


def error(near, exact, least=0.0):
    """The largest difference, as a share of the largest number, or of `least` where that is more."""
    assert exact.dtype == np.float64 and near.dtype == np.float32
    return np.abs(near - exact).max() / max(np.abs(exact).max(), least)


if __name__ == '__main__':
    for name in sys.argv[1:] or sorted(path.parent.name for path in HERE.glob('*/case.npz')):
        complete(HERE / name)
